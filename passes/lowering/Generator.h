//===- Generator.h - loops for one fused group ------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A kernel is made from its results backwards. `eval` gives a value at
// coordinates: for each dim name an index. It emits the code at the outermost
// loop on which these indices depend and remembers it there. So a row's mean,
// which depends on the row only, lands before the loop over the row's elements:
// the stages of a softmax or a norm come out of the order of need. A reduction is
// a loop, vectorised along the dim that lies contiguous in the inputs.
// Dims that only rename, slice, pad or look up just change the coordinates.
//
// Lanes: one dim, the same in the whole kernel, is walked `lanes` elements at a
// time; an index is uniform, or base + stride * lane, or a vector (gather).
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"
#include "passes/lowering/Kernels.h"
#include "passes/lowering/VectorMath.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/BuiltinOps.h"

#include <deque>
#include <map>

namespace cleave {

/// Dims that belong to something, by number.
using DimParts = llvm::DenseMap<mlir::StringAttr, int64_t>;

/// Merges dims that are adjacent wherever they occur, in place. The region
/// stays valid; only names and sizes change. Dims of different parts stay apart;
/// merged ones are entered.
void mergeDims(mlir::Region &region, DimParts *parts = nullptr);

/// Bytes of the region's arguments and results, each once; of a table that is looked up, of what
/// is taken of it.
int64_t bytesOf(mlir::Region &region);

class Generator {
public:
  /// `region`: a copy of the group's region (it is changed). `source`: for
  /// errors. The function goes to `module`, whose context may be another.
  Generator(mlir::Region &region, mlir::Operation *source, mlir::ModuleOp module,
            const KernelOptions &options);

  /// False: an error was emitted. Fills all but `info.symbol`.
  bool generate(llvm::StringRef symbol, KernelInfo &info);

private:
  /// A place where code is emitted: the function, a loop's body, a branch.
  struct Scope {
    Scope *parent = nullptr;
    mlir::Block *block = nullptr;
    /// The loop that is being filled inside of this scope: code goes before it.
    mlir::Operation *open = nullptr;
    int depth = 0;
    double times = 1; ///< how often it runs in all iterations of the kernel, about
    std::map<std::vector<uintptr_t>, mlir::Value> memo;
  };
  struct Index {
    mlir::Value base;       ///< i64
    int64_t lane = 0;       ///< step from lane to lane
    mlir::Value vector;     ///< if there is one: the index of each lane, base is unused
    Scope *scope = nullptr; ///< where it changes
    bool uniform() const { return !vector && lane == 0; }
  };
  struct Coordinate {
    mlir::StringAttr dim;
    Index index;
  };
  using Coordinates = llvm::SmallVector<Coordinate, 6>;
  struct Mask {
    mlir::Value value; ///< null: all lanes
    Scope *scope = nullptr;
  };
  /// A loop that is open: closing it restores the outer scope.
  struct Loop {
    Scope *outer;
    mlir::Operation *saved;
    mlir::scf::ForOp op;
    Scope *body;
  };
  /// Something that a loop over `dims` accumulates.
  struct Accumulator {
    mlir::Operation *op;
    Reduction kind;
    llvm::SmallVector<mlir::StringAttr> dims;
    int rank; ///< reductions on the longest way to it
  };
  /// Read of an input, for the in-place rule.
  struct Read {
    unsigned input;
    Scope *scope;
    Coordinates coordinates;
    int group;           ///< stores begun before it
    mlir::Operation *op; ///< the load
  };
  /// A value of the row's elements that one loop makes and a later one needs. Until then it
  /// lies where a result of the last loop will.
  struct Waiting {
    mlir::Value value;
    unsigned result;
    Accumulator *madeBy; ///< in its loop
    bool filled = false; ///< that loop is closed
    struct Store {
      mlir::Operation *op;
      Scope *scope;
      Coordinates coordinates;
    };
    std::vector<Store> stores = {}; ///< of the loop's body and of its tail
  };

  // Plan.
  void collectAccumulators();
  mlir::StringAttr chooseLaneDim(llvm::ArrayRef<NamedTensorType> results);
  bool generateRows(KernelInfo &info);
  bool generateScatter(ScatterAddOp scatter, KernelInfo &info);
  bool generateEpilogue(const DimParts &parts, KernelInfo &info);
  double workOf(mlir::Region &region) const;
  /// As Step counts.
  static double flopsOf(mlir::Region &body);
  /// Counts what the code in this scope evaluates, again for each use in another loop.
  void countFunction(mlir::Operation *op, mlir::Value result, const Scope *scope);
  static std::optional<ScalarFunction> functionOf(mlir::Operation *op);
  static bool isExpensive(mlir::Operation *op) { return functionOf(op).has_value(); }

  // What a result's buffer holds besides the result.
  void planWaiting(size_t outerDims);
  Waiting *waitingFor(mlir::Value v);
  static bool sameIndex(const Index &x, const Index &y);
  bool isInThisRow(const Coordinates &coordinates);
  mlir::Value loadWaiting(const Waiting &w, const Coordinates &coordinates, Mask mask,
                          Scope *scope);
  void storeWaiting(Waiting &w, const Coordinates &coordinates, mlir::Value x, Mask mask,
                    Scope *scope);
  bool isReadBeforeWaiting(const Read &read, const Waiting &w);
  void findInPlace(KernelInfo &info);

  // Emission.
  mlir::OpBuilder &in(Scope *scope);
  Scope *newScope(Scope *parent, mlir::Block *block);
  Loop openLoop(Scope *outer, mlir::Value low, mlir::Value high, int64_t step,
                mlir::ValueRange carried = {});
  void closeLoop(Loop &loop, mlir::ValueRange carried = {});
  mlir::Value constant(int64_t value); ///< i64, in the function's scope
  mlir::Value splat(mlir::OpBuilder &b, mlir::Value x);
  mlir::Value laneNumbers(mlir::OpBuilder &b);
  mlir::Value vectorOf(mlir::OpBuilder &b, const Index &index);
  mlir::Type registerType(mlir::Type element);
  mlir::Type storageType(mlir::Type element);
  mlir::Value toRegister(mlir::OpBuilder &b, mlir::Value x, mlir::Type element);
  mlir::Value toStorage(mlir::OpBuilder &b, mlir::Value x, mlir::Type element);
  mlir::Value roundTo(mlir::OpBuilder &b, mlir::Value x, mlir::Type element);
  mlir::Value error(mlir::Operation *op, const llvm::Twine &message, mlir::Type element);

  // Values.
  Coordinates restrict(const Coordinates &all, NamedTensorType type);
  static const Index *find(const Coordinates &all, mlir::StringAttr dim);
  Scope *scopeOf(const Coordinates &coordinates);
  static Scope *deeper(Scope *x, Scope *y);
  mlir::Value eval(mlir::Value v, const Coordinates &all, Mask mask);
  mlir::Value evalOp(mlir::Operation *op, const Coordinates &coordinates, Mask mask, Scope *scope);
  mlir::Value evalArithmetic(mlir::Operation *op, llvm::MutableArrayRef<mlir::Value> operands,
                             Scope *scope);
  mlir::Value evalInteger(mlir::OpBuilder &b, mlir::Operation *op,
                          llvm::ArrayRef<mlir::Value> operands);
  mlir::Value evalCast(mlir::OpBuilder &b, mlir::Value x, mlir::Type from, mlir::Type to);
  mlir::Value evalIota(IotaOp op, const Coordinates &coordinates, Scope *scope);
  mlir::Value evalRandom(RandomOp op, const Coordinates &coordinates, Scope *scope);
  mlir::Value evalPad(PadOp op, const Coordinates &coordinates, Mask mask, Scope *scope);
  mlir::Value evalGather(GatherOp op, const Coordinates &coordinates, Mask mask, Scope *scope);
  mlir::Value evalMaskPadding(MaskPaddingOp op, const Coordinates &coordinates, Mask mask,
                              Scope *scope);
  mlir::Value evalAccumulators(mlir::Operation *op, const Coordinates &coordinates, Mask mask,
                               Scope *scope);
  llvm::SmallVector<mlir::Value> accumulate(Scope *scope, llvm::ArrayRef<Accumulator *> group,
                                            llvm::ArrayRef<Coordinate> dims,
                                            llvm::ArrayRef<int64_t> sizes, bool vectorise,
                                            Coordinates &coordinates, Mask mask,
                                            llvm::SmallVector<mlir::Value> carried);
  mlir::Value elementOf(Accumulator &a, const Coordinates &coordinates, Mask mask, Scope *scope);
  mlir::Value neutral(mlir::OpBuilder &b, Accumulator &a, bool asVector);
  mlir::Value combine(mlir::OpBuilder &b, Reduction kind, mlir::Value x, mlir::Value y);
  mlir::Value horizontal(mlir::OpBuilder &b, Reduction kind, mlir::Value x);

  // Memory.
  struct Address {
    mlir::Value pointer; ///< of the first lane, or of each lane
    bool perLane = false, vector = false;
  };
  Address address(mlir::OpBuilder &b, mlir::Value buffer, NamedTensorType type,
                  const Coordinates &coordinates);
  mlir::Value load(mlir::Value buffer, NamedTensorType type, const Coordinates &coordinates,
                   Mask mask, Scope *scope);
  mlir::Operation *store(mlir::Value buffer, NamedTensorType type, const Coordinates &coordinates,
                         mlir::Value value, Mask mask, Scope *scope);
  /// Loops over `dims`, the lane dim last; at the innermost, `body`.
  void nest(Scope *scope, llvm::ArrayRef<mlir::StringAttr> dims, llvm::ArrayRef<int64_t> sizes,
            Coordinates &coordinates, Mask mask,
            llvm::function_ref<void(Scope *, const Coordinates &, Mask)> body);
  void laneLoop(Scope *scope, mlir::StringAttr dim, mlir::Value low, mlir::Value high, int64_t size,
                bool alwaysWhole, Coordinates &coordinates, Mask mask,
                llvm::function_ref<void(Scope *, const Coordinates &, Mask)> body);
  void storeResults(Scope *scope, llvm::ArrayRef<unsigned> results, const Coordinates &coordinates,
                    Mask mask);
  Mask tailMask(Scope *scope, int64_t used);
  /// Stores all results at columns [low, high) of the lane dim.
  void storeColumns(Scope *scope, mlir::Value low, mlir::Value high, Coordinates &coordinates,
                    mlir::StringAttr rowDim);
  void prefetchRows(Scope *scope, const Coordinates &coordinates, mlir::StringAttr rowDim);

  mlir::Region &region;
  mlir::Operation *source;
  mlir::ModuleOp module;
  KernelOptions options;
  mlir::OpBuilder b;
  mlir::Location loc;
  bool failed = false;

  YieldOp yield;
  std::deque<Scope> scopes;
  FunctionCounts functions = {};
  Scope *root = nullptr;
  mlir::func::FuncOp function;
  llvm::SmallVector<mlir::Value> buffers;           ///< inputs, then results
  llvm::DenseMap<mlir::Value, unsigned> bufferOf;   ///< region argument -> its buffer
  llvm::DenseMap<mlir::Value, mlir::Value> scalars; ///< index argument -> i64
  std::deque<Accumulator> accumulators;
  llvm::DenseMap<mlir::Operation *, Accumulator *> accumulatorOf;
  int64_t lanes = 8;
  mlir::StringAttr laneDim;
  std::vector<Read> reads;
  std::deque<Waiting> waiting;
  Coordinates rowCoordinates;           ///< of the outer iteration
  mlir::Block *rowBlock = nullptr;      ///< its body
  const Coordinates *filling = nullptr; ///< in the loop of `fillingBy`: where it is
  llvm::ArrayRef<Accumulator *> fillingBy;
  struct StoreGroup {
    llvm::SmallVector<unsigned> results;
    llvm::SmallVector<mlir::StringAttr> dims;
  };
  std::vector<StoreGroup> storeGroups;
  std::vector<std::pair<unsigned, Coordinates>> writes; ///< result, coordinates
  std::map<int64_t, mlir::Value> constants;
  int groupsBegun = 0;
};

} // namespace cleave
