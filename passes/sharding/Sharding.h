//===- Sharding.h - from a global program to one rank's ---------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
//   assign    plan -> where every value is to live      (cleave-assign-shardings)
//             of the optimizer, by the plan's `zero`: Zero.h
//   insert    -> types with shardings, collectives      (cleave-insert-collectives)
//   mask      -> padding is neutral where it is read    (cleave-mask-padding)
//   verify    every op agrees with its declared rule    (cleave-verify-shardings)
//             and reads no padding that counts          (cleave-verify-padding)
//   partition -> local sizes, offsets                   (cleave-partition)
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

#include <functional>

namespace cleave {

struct RouteStep;
struct SearchReport;
/// What a step of a way between two shardings costs (Route.h), for elements of so many bytes.
using RoutePrice = std::function<double(const RouteStep &, int64_t elementBytes)>;

/// All stages, in place, over every function of the module. The module says
/// its mesh and plan (kMeshAttr, kPlanAttr); with neither, types stay as they are
/// and only pins are removed.
llvm::LogicalResult shardModule(mlir::ModuleOp module);

/// `reports`: null, or where the searches of a plan that says `auto` are told.
llvm::LogicalResult assignShardings(mlir::ModuleOp module,
                                    std::vector<SearchReport> *reports = nullptr);
llvm::LogicalResult insertCollectives(mlir::ModuleOp module);
llvm::LogicalResult maskPadding(mlir::ModuleOp module);
llvm::LogicalResult verifyShardings(mlir::ModuleOp module);
llvm::LogicalResult verifyPadding(mlir::ModuleOp module);
llvm::LogicalResult partition(mlir::ModuleOp module);

/// Result shardings that `assign` decided: array of ShardingAttr on ops (for a
/// repeat: of its region arguments), ShardingAttr on function arguments/results.
inline constexpr llvm::StringLiteral kSharding = "cleave.sharding";
inline constexpr llvm::StringLiteral kRegionSharding = "cleave.region_sharding";
/// Decided by the plan's `zero` (see Zero.h): a param's as its readers want it, on
/// arguments, on casts of these and for a repeat's region arguments; where a result goes once it is
/// computed (a gradient reduced, a param's shard updated), on ops.
inline constexpr llvm::StringLiteral kReadAs = "cleave.read_as";
inline constexpr llvm::StringLiteral kRegionReadAs = "cleave.region_read_as";
inline constexpr llvm::StringLiteral kRestsAs = "cleave.rests_as";
/// Decided by the search: the axes of each of an op's factors, an array of arrays.
inline constexpr llvm::StringLiteral kFactors = "cleave.factors";
inline constexpr llvm::StringLiteral kPin = "cleave.pin";
inline constexpr llvm::StringLiteral kPinAxes = "cleave.pin_axes";

/// A smallest part of a mesh axis that this module splits by: the whole axis, or
/// one of its sub-axes. Shardings are lists of atom numbers, so that nothing
/// below needs to compare sub-axes.
struct Atom {
  AxisAttr axis;
  int64_t size;
};

/// A value's sharding in atoms. Dims: major first.
struct Sharding {
  llvm::SmallVector<llvm::SmallVector<int, 2>, 4> dims;
  llvm::SmallVector<int, 2> unreduced;
  Reduction reduction = Reduction::Sum;

  bool uses(int atom) const {
    if (llvm::is_contained(unreduced, atom))
      return true;
    return llvm::any_of(dims, [&](auto &d) { return llvm::is_contained(d, atom); });
  }
  bool operator==(const Sharding &o) const {
    return dims == o.dims && unreduced == o.unreduced &&
           (unreduced.empty() || reduction == o.reduction);
  }
};

/// The mesh of a module in atoms, and what its plan says.
class ShardingContext {
public:
  static llvm::FailureOr<ShardingContext> create(mlir::ModuleOp module);

  llvm::ArrayRef<Atom> getAtoms() const { return atoms; }
  int64_t sizeOf(llvm::ArrayRef<int> list) const {
    int64_t p = 1;
    for (int a : list)
      p *= atoms[a].size;
    return p;
  }
  /// What the plan wants for a tensor of these names. `pin`: rules that come first
  /// (may be null); `pinnedAxes`: axes that only the pin speaks of.
  Sharding target(NamedTensorType type, mlir::ArrayAttr pin = {},
                  mlir::ArrayAttr pinnedAxes = {}) const;
  /// What one rule alone wants.
  Sharding targetOf(ShardRuleAttr rule, NamedTensorType type) const;
  /// The plan's rules, but for the one of micro-batches.
  llvm::SmallVector<ShardRuleAttr> rules() const;
  /// Atoms of the axes of the plan's rules, in their order; some more than once.
  llvm::SmallVector<int> atomsOfRules() const;
  /// Of an axis, or of a part of it: "tp", "tp:(2)4"; of a list of these, null for none.
  llvm::SmallVector<int> atomsOf(llvm::StringRef axis) const;
  llvm::SmallVector<int> atomsOf(mlir::ArrayAttr axes) const;
  /// The axis becomes a loop over micro-batches.
  bool isInTime(int atom) const;
  /// The level of the plan's `zero`; 0 without one.
  int64_t zeroLevel() const { return zero ? zero.getLevel() : 0; }
  /// How a state (by level also gradient or param) that would live as `base` is split
  /// by the plan's `zero`: the axes that `base` leaves unused go to one dim, as its most
  /// minor ones. Of the dims behind the first `layerDims`, whose shards must be parts of
  /// `base`'s: the one that leaves a rank the fewest elements, before others one that
  /// `base` doesn't split, then the outermost. `base` itself when there is none.
  /// `pinnedAxes`: axes that the plan pins for the param, which `zero` leaves alone.
  Sharding zeroTarget(NamedTensorType type, const Sharding &base, int64_t layerDims,
                      mlir::ArrayAttr pinnedAxes = {}) const;
  /// The same for these atoms.
  Sharding splitFurther(NamedTensorType type, const Sharding &base, int64_t layerDims,
                        llvm::ArrayRef<int> atoms) const;
  /// Whether micro-batches are cut along the dim.
  bool splitsInTime(llvm::StringRef dim) const;
  /// Whether a split of `size` by `fine` is one of each shard of its prefix `coarse`.
  bool refines(int64_t size, llvm::ArrayRef<int> coarse, llvm::ArrayRef<int> fine) const {
    int64_t more = sizeOf(fine) / sizeOf(coarse);
    return coarse.empty() || block(size, coarse) == more * block(size, fine);
  }
  /// Whether the plan speaks of the dim.
  bool mentions(llvm::StringRef dim) const { return mentioned.contains(dim); }

  llvm::SmallVector<int, 2> atomsIn(mlir::ArrayAttr axes) const;
  ShardingAttr toAttr(const Sharding &sharding) const;
  Sharding fromAttr(ShardingAttr attr, int64_t rank) const;
  Sharding of(NamedTensorType type) const { return fromAttr(type.getSharding(), type.getRank()); }
  mlir::ArrayAttr axes(llvm::ArrayRef<int> list) const;
  std::string text(llvm::ArrayRef<int> list) const;

  /// What ways between shardings are chosen by; empty: bytes.
  const RoutePrice &price() const { return priceOfStep; }
  void setPrice(RoutePrice price) { priceOfStep = std::move(price); }

  /// Elements of one rank along a dim.
  int64_t block(int64_t size, llvm::ArrayRef<int> list) const {
    int64_t p = sizeOf(list);
    return (size + p - 1) / p;
  }
  /// Of a value on one rank, padding included.
  int64_t localBytes(NamedTensorType type) const {
    int64_t elements = 1;
    for (auto [size, atoms] : llvm::zip_equal(type.getSizes(), of(type).dims))
      elements *= block(size, atoms);
    return elements * type.getElementBytes();
  }

private:
  llvm::LogicalResult refineAxes(mlir::ModuleOp module);
  void apply(ShardRuleAttr rule, NamedTensorType type, llvm::ArrayRef<int> skip,
             Sharding &sharding) const;

  mlir::MLIRContext *context = nullptr;
  MeshAttr mesh;
  mlir::ArrayAttr plan;
  ZeroAttr zero;
  llvm::SmallVector<Atom> atoms;
  llvm::StringSet<> mentioned;
  llvm::StringMap<int64_t> dimSizes;
  RoutePrice priceOfStep;
};

/// Moves a value to another sharding of its dims, and reduces what is unreduced.
/// `why` goes into the collectives. Returns the value itself when there is nothing
/// to do.
mlir::Value reshard(mlir::OpBuilder &b, mlir::Location loc, const ShardingContext &context,
                    mlir::Value value, const Sharding &to, llvm::StringRef why,
                    mlir::Attribute phase);

} // namespace cleave
