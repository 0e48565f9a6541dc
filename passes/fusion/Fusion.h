//===- Fusion.h - which ops become one kernel -------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Works on one rank's program, block by block (functions and repeat bodies).
// Everything but contractions, attention, collectives and repeats goes into
// groups. First it decides, then it outlines:
//   1. which values are kept in memory (the others are computed where they are
//      used, if need be in several kernels);
//   2. which kept values a contraction makes on the tiles of its product, or sums while
//      it copies its operands;
//   3. which other kept values one kernel makes: those that share their loops;
//   4. which products follow one another, since they have one left side;
//   5. outlining: each group becomes a `cleave.fused`.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

#include <functional>
#include <string>
#include <vector>

namespace cleave {

struct FusionPlan;
struct FusionOptions {
  bool fuse = true; ///< off: a kernel for each op
  /// Called with each block's plan before it is outlined.
  std::function<void(mlir::Block &, const FusionPlan &)> report;
};

/// How a kernel walks its elements.
enum class GroupKind {
  Elementwise, ///< every value has the same dims
  Rows,        ///< reductions over inner dims and what has the outer dims, or all
  Columns,     ///< reductions over outer dims, keeping the contiguous one
  Scalars,     ///< few numbers: small reductions to scalars, arithmetic on them
  Scatter,     ///< a scatter_add with what makes its updates
  Epilogue,    ///< elementwise, on each tile of a contraction's result
  Sums,        ///< a sum of an operand of a contraction, which it makes along the way
};
llvm::StringRef toString(GroupKind kind);

struct Group {
  GroupKind kind = GroupKind::Elementwise;
  llvm::SmallVector<mlir::Operation *> roots; ///< whose results are kept, in block order
  llvm::SmallVector<mlir::Value> inputs;      ///< what it reads: tensors and index values
  llvm::SmallVector<mlir::Operation *>
      ops; ///< all ops, in block order; some may be in other groups too
  llvm::SmallVector<mlir::Value> outputs;             ///< what others read
  llvm::SmallVector<mlir::StringAttr> outer, reduced; ///< dims; elementwise: outer only
  ContractOp product; ///< epilogue, sums: whose; an epilogue's first input is its result
  llvm::SmallVector<int64_t> parts; ///< epilogue: see kParts in Kernels.h
  bool keepsProduct = false;        ///< epilogue: others read the bare product, too
};

/// Two groups that share data but stay apart, and why.
struct Refusal {
  unsigned first, second; ///< indices into `groups`
  std::string reason;
};

/// A contraction without an epilogue, and why.
struct BareProduct {
  ContractOp op;
  std::string reason;
};

/// A sum of an operand of a contraction that is a kernel of its own, and why.
struct LoneSum {
  ReduceOp op;
  std::string reason;
};

struct FusionPlan {
  std::vector<Group> groups; ///< in an order in which they can run
  std::vector<Refusal> refusals;
  std::vector<BareProduct> bare;
  std::vector<LoneSum> loneSums;
  /// They stand behind a product of the same left side, which copies it for them, too.
  std::vector<ContractOp> sameLeft;
  /// All that stays in the block, groups among it, in the new order: an op, or
  /// null and the index of a group. An epilogue stands right behind its product, and so do
  /// sums, behind the epilogue if there is one.
  std::vector<std::pair<mlir::Operation *, unsigned>> order;
};

/// Part of a group: elementwise ops, reductions, look-ups, random numbers.
bool isFusible(mlir::Operation *op);
/// Its result is its operand's bytes as they lie; no kernel if the operand is kept.
bool isView(mlir::Operation *op);

/// Runs after `simplify` and `splitReductions`.
FusionPlan planFusion(mlir::Block &block, const FusionOptions &options = {});
void outline(mlir::Block &block, const FusionPlan &plan);

/// Drops what only earlier stages need (stop_gradient, barriers, pins) and copies
/// constants and iotas into the regions that use them.
void simplify(mlir::Block &block);

/// Splits sums and maxima of big tensors to few numbers in two, so that the first
/// half has rows for all threads. The split depends on the shape alone.
void splitReductions(mlir::Block &block);

/// Blocks of functions and repeats, outer ones first.
llvm::SmallVector<mlir::Block *> blocksToFuse(mlir::ModuleOp module);

/// All blocks of the module.
llvm::LogicalResult fuse(mlir::ModuleOp module, const FusionOptions &options = {});

#define GEN_PASS_DECL
#include "passes/fusion/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "passes/fusion/Passes.h.inc"

} // namespace cleave
