//===- Planner.h - the state of a fusion plan -------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Used by Fusion.cpp and Epilogue.cpp only.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/fusion/Fusion.h"
#include "passes/schedule/Contraction.h"

#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

#include <map>
#include <optional>

namespace cleave::planner {

using namespace mlir;

/// Tensors that one kernel reads and writes.
inline constexpr unsigned kMostBuffers = 24;

using Dim = std::pair<StringAttr, int64_t>;
using Dims = SmallVector<Dim, 4>;

inline Dims dimsOf(NamedTensorType type) {
  Dims dims;
  for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
    dims.push_back({name, size});
  return dims;
}

/// How many exps the op costs for each element.
inline double weightOf(Operation *op) {
  if (isa<ExpOp, LogOp, TanhOp, SigmoidOp, ErfOp>(op))
    return tensorOf(op->getResult(0)).getElementType().isF64() ? 8 : 1;
  if (isa<SinOp, CosOp, PowOp>(op))
    return 8;
  if (isa<RandomOp>(op))
    return 3;
  return 0;
}

/// Reads its operand's elements at other places than its own.
inline bool movesElements(Operation *op, unsigned operand) {
  if (isa<RenameOp, SliceOp, PadOp>(op))
    return true;
  return isa<GatherOp>(op) && operand == 0;
}

/// What a group's loops look like. Two groups may merge if their shapes do.
struct Shape {
  GroupKind kind = GroupKind::Elementwise;
  Dims outer, reduced;

  /// All elements that the loops visit.
  Dims all() const {
    Dims dims = outer;
    dims.append(reduced);
    return dims;
  }
};

/// What a kept value is computed from.
struct Closure {
  llvm::SetVector<Operation *> ops;    ///< with the root
  llvm::MapVector<Value, bool> leaves; ///< kept tensors; true: read in place only
  llvm::SetVector<Value> indices;
};

class Planner {
public:
  Planner(Block &block, const FusionOptions &options) : block(block), options(options) {}

  FusionPlan run();

private:
  struct Cluster {
    Shape shape;
    SmallVector<Operation *> roots;
    llvm::SetVector<Operation *> ops;
    llvm::MapVector<Value, bool> leaves;
    llvm::SetVector<Value> indices;
    bool alive = true;
    double scalarWork = 0;
    Operation *stays = nullptr; ///< not a group: an op that stays in the block
    /// A contraction that stays and has an epilogue: `roots` and so on are the epilogue's.
    ContractOp product;
    llvm::MapVector<Value, bool> operands; ///< what the epilogue reads, the product first
    SmallVector<int64_t> parts;            ///< see Group
    ReduceOp sum; ///< of an operand of a contraction that stays: made along the way

    bool isGroup() const { return alive && !roots.empty(); }
  };

  bool inBlock(Value v) const {
    Operation *op = v.getDefiningOp();
    return op && op->getBlock() == &block;
  }
  /// Computed where it is used.
  bool isInline(Value v) const {
    return inBlock(v) && isFusible(v.getDefiningOp()) &&
           (!kept.contains(v) || isa<ConstantOp, IotaOp>(v.getDefiningOp()));
  }

  /// Must lie in memory: read by something that stays, or by a look-up.
  bool mustKeep(Operation *op) const {
    Value v = op->getResult(0);
    for (OpOperand &use : v.getUses()) {
      Operation *user = use.getOwner();
      if (user->getBlock() != &block || !isFusible(user) || user->hasTrait<OpTrait::IsTerminator>())
        return true;
      if (isa<GatherOp>(user) && use.getOperandNumber() == 0)
        return true;
    }
    return false;
  }

  void chooseKept();
  Closure closureOf(Operation *root, Value without = {}) const;
  void makeGroups();
  void fuseEpilogues();
  /// Empty: cluster i is now done on the tiles of contraction x. Else why not.
  std::string joinEpilogue(unsigned x, unsigned i);
  std::string whyBare(ContractOp op) const;
  void fuseSums();
  /// Empty: contraction x now makes sum i along the way. Else why not.
  std::string joinSum(unsigned x, unsigned i);
  void mergeNeighbours(bool scalars);
  unsigned find(unsigned i) {
    while (parent[i] != i)
      i = parent[i] = parent[parent[i]];
    return i;
  }
  bool tryMerge(unsigned x, unsigned y);
  bool wouldCycle(unsigned x, unsigned y) const;
  /// y is part of x from now on: what had to come before either comes before both.
  void joinOrder(unsigned x, unsigned y);
  bool keepShared();
  FusionPlan finish();

  Block &block;
  FusionOptions options;
  llvm::DenseMap<Operation *, unsigned> position;
  llvm::DenseSet<Value> kept;
  llvm::DenseSet<Value> extra;       ///< kept though nothing demands it
  llvm::DenseSet<Operation *> views; ///< stay: no kernel needed
  std::vector<Cluster> clusters;
  std::vector<llvm::BitVector> before;             ///< clusters that must run earlier
  llvm::DenseMap<Operation *, unsigned> clusterOf; ///< of roots and of what stays
  std::vector<unsigned> parent;                    ///< of merged clusters
  std::map<std::pair<unsigned, unsigned>, std::string> refused;
  llvm::DenseMap<Operation *, std::string> refusedEpilogue, refusedSum;
  llvm::DenseMap<Operation *, std::optional<SmallVector<int64_t>>> partsOfProduct;
};

/// What a product would sum for it: what it sums, or the short float that it widens first.
Value operandOf(ReduceOp sum);

/// Products of one left side follow one another where what they read allows it.
void bringTogether(FusionPlan &plan);

} // namespace cleave::planner
