//===- Space.h - the variables of the search --------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/search/Routes.h"
#include "passes/sharding/Zero.h"

#include <optional>

namespace cleave {

/// For each factor of an op its atoms, major first.
using Factors = llvm::SmallVector<llvm::SmallVector<int, 2>>;

struct SpaceVariable {
  enum class Kind { Dims, Param, Pin, Op, Pending } kind;
  std::string name;
  NamedTensorType type; ///< Dims, Param, Pin: of the shardings
  /// Dims, Param, Pin: where it lives, for each choice.
  std::vector<Sharding> homes;
  /// Param: of its update, for each choice.
  std::vector<ParamShards> shards;
  std::vector<Factors> factors;                 ///< Op
  std::vector<llvm::SmallVector<int, 2>> atoms; ///< Pending; the first is empty: at the leaves
  int param = -1;                               ///< Param: into the flow's
  /// What sentences of the plan allow, if the space has more than that.
  struct Sentence {
    std::string text;
    std::vector<int> allowed;
  };
  std::vector<Sentence> sentences;
  std::optional<mlir::Location> place; ///< of the param, or the first such value

  SpaceVariable(Kind kind, std::string name, NamedTensorType type = {})
      : kind(kind), name(std::move(name)), type(type) {}
  int size() const {
    return static_cast<int>(kind == Kind::Op        ? factors.size()
                            : kind == Kind::Pending ? atoms.size()
                                                    : homes.size());
  }
};

/// Where a value's sharding comes from.
struct SpacePlace {
  int variable = -1;    ///< none: a scalar
  bool ofShard = false; ///< a param's: what `zero` splits, not the param as it is read
  bool operator==(const SpacePlace &) const = default;
  auto operator<=>(const SpacePlace &) const = default;
};

class Space {
public:
  /// `sentences`: variables have all choices, and the plan's sentences say which they allow.
  Space(const ShardingContext &context, mlir::func::FuncOp function, const ParamFlow &flow,
        bool sentences = false);

  /// Where values live, and where an op's result goes (a gradient in shards, a new param).
  SpacePlace placeOf(mlir::Value v) const { return places.lookup(v); }
  SpacePlace restOf(mlir::Value v) const;
  Sharding shardingOf(SpacePlace place, int choice, NamedTensorType type) const;

  /// Factors that axes may split.
  std::vector<Factors> factorsOf(mlir::Operation *op, const ShardingRule &rule) const;
  /// All shardings of a type.
  std::vector<Sharding> homesOf(NamedTensorType type) const;
  bool isLayerDim(llvm::StringRef name) const { return layerDims.contains(name); }

  int add(SpaceVariable variable);
  const std::vector<SpaceVariable> &variables() const { return list; }
  const AtomOrder &order() const { return atomOrder; }

private:
  /// `base` and each way to put the free atoms on its dims.
  std::vector<Sharding> extend(NamedTensorType type, const Sharding &base,
                               llvm::ArrayRef<int> free) const;
  llvm::SmallVector<int> freeAtoms(const Sharding &base, mlir::ArrayAttr pinnedAxes) const;
  /// With `sentences`: all shardings, and those that each rule (of a pin: of `at NAME`) allows.
  void allow(SpaceVariable &variable, const std::string &at, mlir::ArrayAttr pin,
             mlir::ArrayAttr pinnedAxes, int64_t layers) const;
  void addParams();
  void addValue(mlir::Value v);
  SpacePlace dimsOf(NamedTensorType type, mlir::Location loc);

  const ShardingContext &context;
  mlir::func::FuncOp function;
  const ParamFlow &flow;
  bool withSentences;
  AtomOrder atomOrder;
  std::vector<SpaceVariable> list;
  llvm::DenseMap<mlir::Value, SpacePlace> places;
  std::map<std::string, int> byDims;
  std::map<std::string, std::pair<mlir::ArrayAttr, mlir::ArrayAttr>> pinnedDims; ///< rules, axes
  llvm::StringSet<> layerDims;
};

} // namespace cleave
