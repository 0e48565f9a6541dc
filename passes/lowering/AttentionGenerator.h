//===- AttentionGenerator.h - attention's loops ------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// One kernel of attention while it is made: Attention.cpp has the plan and the outer
// loops, AttentionBlocks.cpp packing and what is done with one block of queries and one of keys.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/lowering/Attention.h"
#include "passes/lowering/Generator.h"
#include "passes/lowering/VectorMath.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace cleave::attention {

using namespace mlir;

inline int64_t roundUp(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/// Code at the builder's place, on i64 numbers, pointers and vectors.
class Code {
public:
  Code(OpBuilder &b, Location loc) : b(b), loc(loc) {}

  Value number(int64_t n) { return arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(n)); }
  Value add(Value x, Value y) { return arith::AddIOp::create(b, loc, x, y); }
  Value add(Value x, int64_t y) { return y ? add(x, number(y)) : x; }
  Value sub(Value x, Value y) { return arith::SubIOp::create(b, loc, x, y); }
  Value mul(Value x, int64_t y) {
    return y == 1 ? x : Value(arith::MulIOp::create(b, loc, x, number(y)));
  }
  Value least(Value x, Value y) { return arith::MinSIOp::create(b, loc, x, y); }
  Value most(Value x, Value y) { return arith::MaxSIOp::create(b, loc, x, y); }
  Value divide(Value x, int64_t y) { return arith::DivSIOp::create(b, loc, x, number(y)); }
  Value remainder(Value x, int64_t y) { return arith::RemSIOp::create(b, loc, x, number(y)); }
  Value up(Value x, int64_t to) { return mul(divide(add(x, to - 1), to), to); }
  Value less(Value x, Value y) {
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt, x, y);
  }

  void loop(Value low, Value high, int64_t step, function_ref<void(Value)> body) {
    auto op = scf::ForOp::create(b, loc, low, high, number(step));
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(op.getBody());
    body(op.getInductionVar());
  }
  SmallVector<Value> loop(Value low, Value high, int64_t step, ValueRange carried,
                          function_ref<SmallVector<Value>(Value, ValueRange)> body) {
    auto op = scf::ForOp::create(b, loc, low, high, number(step), carried);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(op.getBody());
    SmallVector<Value> next = body(op.getInductionVar(), op.getRegionIterArgs());
    scf::YieldOp::create(b, loc, next);
    return SmallVector<Value>(op.getResults());
  }
  void when(Value condition, function_ref<void()> yes, function_ref<void()> no = {}) {
    auto op = scf::IfOp::create(b, loc, condition, /*withElseRegion=*/bool(no));
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(op.thenBlock());
    yes();
    if (no) {
      b.setInsertionPointToStart(op.elseBlock());
      no();
    }
  }

  Value at(Value base, Value index, Type element) {
    return LLVM::GEPOp::create(b, loc, base.getType(), element, base,
                               ArrayRef<LLVM::GEPArg>{index});
  }
  Value load(Value base, Value index, Type element, Type type) {
    return LLVM::LoadOp::create(b, loc, type, at(base, index, element), alignOf(element));
  }
  void store(Value x, Value base, Value index, Type element) {
    LLVM::StoreOp::create(b, loc, x, at(base, index, element), alignOf(element));
  }
  static unsigned alignOf(Type element) {
    return element.isIntOrFloat() ? element.getIntOrFloatBitWidth() / 8 : 8;
  }

  Value splat(Value x, VectorType type) { return vector::BroadcastOp::create(b, loc, type, x); }
  Value fma(Value x, Value y, Value z) { return math::FmaOp::create(b, loc, x, y, z); }
  Value select(Value c, Value x, Value y) { return arith::SelectOp::create(b, loc, c, x, y); }

  OpBuilder &b;
  Location loc;
};

/// A tensor in memory. Strides are in elements, 0 along a dim that it lacks.
struct Operand {
  Value pointer;
  NamedTensorType type;

  int64_t stride(StringRef dim) const {
    int64_t step = 1;
    for (auto [name, size] : llvm::reverse(llvm::zip_equal(type.getNames(), type.getSizes()))) {
      if (name.getValue() == dim)
        return step;
      step *= size;
    }
    return 0;
  }
};

class AttentionGenerator {
public:
  AttentionGenerator(FusedOp fused, Operation *op, ModuleOp module, const KernelOptions &options)
      : fused(fused), op(op), module(module), options(options), b(module.getContext()),
        loc(b.getUnknownLoc()), code(b, loc) {}

  bool generate(StringRef symbol, KernelInfo &info);

private:
  template <typename Attention> void read(Attention attention);
  void chooseBlocks();
  Operand operand(Value v) { return {pointers.lookup(v), cast<NamedTensorType>(v.getType())}; }
  Value scalarOperand(Value v, Type type);
  Value scratch(int64_t elements, Type type);
  void makeScratch();
  void makeNumberBase();
  /// The first element of the tensor's part under the outer coordinates.
  Value headOf(Value tensor);
  /// Row `index` of it along the dim.
  Value rowOf(Value tensor, StringRef dim, Value index);
  /// How an element lies in memory. bf16 and f16 are computed with in f32.
  Type storageOf(NamedTensorType type) {
    Type own = type.getElementType();
    if (own.isBF16())
      return b.getI16Type();
    return own.isF16() ? b.getF16Type() : own.isInteger(1) ? Type(b.getI8Type()) : element;
  }
  /// From storage, and to it, rounding once. Scalars or vectors.
  Value widened(Value x, NamedTensorType type);
  Value stored(Value x, NamedTensorType type);

  // Loops.
  void forwardChunk(Value chunk);
  void backwardHead();
  void backwardChunk(Value chunk);
  void overGroup(size_t first, function_ref<void()> body);
  void enterChunk(Value chunk);
  void eachBlock(function_ref<void()> body);
  void eachKeyBlock(function_ref<void()> body);
  void eachQuery(function_ref<void(Value)> body);

  // Packing.
  Value loadLanes(Value pointer, int64_t stride, Value mask, NamedTensorType type);
  void storeLanes(Value x, Value pointer, int64_t stride, Value mask, NamedTensorType type);
  void eachPart(int64_t width, function_ref<void(Value at, Value mask)> body);
  Value tailMask(int64_t used);
  Value laneSteps(int64_t stride);
  Value lanePlaces(Value pointer, int64_t stride, Type storage);
  void copyRow(Value tensor, Value from, int64_t stride, int64_t width, Value to, int64_t toWidth,
               Value factor);
  void copyKeys(Value tensor, int64_t width, StringRef dim, Value to, int64_t toWidth);
  void transposeBlock(Value tensor, int64_t width, StringRef dim, Value to, Value factor);
  void storeRow(Value from, Value tensor, Value to, int64_t stride, int64_t width, Value factor,
                bool add);
  void fill(Value to, Value count, Value x);

  // A block of queries by a block of keys.
  using Sums = SmallVector<Value>; ///< rows x 2 vectors
  Sums multiply(Value x, int64_t rowStep, int64_t step, Value y, int64_t yStep, Value low,
                Value high, Sums sums);
  void scores(Value from, int64_t width, int64_t fromWidth, Value transposed, Value to);
  void addTo(Value sums, int64_t width, Value rowEnd, Value x, int64_t rowStep, int64_t step,
             Value y, function_ref<std::pair<Value, Value>(Value)> range, Value factors);
  void eachGroup(function_ref<void(Value first, Value keyEnd)> body);
  std::pair<Value, Value> seenScore(Value s, Value key, Value first);
  Value kept(Value key, Value first);
  void softmax();
  void finishForward();
  void scoreGradients();
  Value limitOf(Value query);
  Value keysSeenBy(Value query);
  std::pair<Value, Value> keysOfTile(Value first);
  Value firstQueryFor(Value key);
  void setLimits();
  Value splat(Value x) { return code.splat(x, vector); }
  Value splat(double x) {
    return arith::ConstantOp::create(
        b, loc, DenseElementsAttr::get(vector, Attribute(b.getFloatAttr(element, x))));
  }
  Value loadVector(Value from, Value index) { return code.load(from, index, element, vector); }
  Value of(Value perBlock, int64_t size) {
    return code.at(perBlock, code.mul(block, size), element);
  }

  FusedOp fused;
  Operation *op;
  ModuleOp module;
  KernelOptions options;
  OpBuilder b;
  Location loc;
  Code code;

  // The op.
  StringRef queryDim, keyDim, depthDim, valueDim;
  bool causal = false, gradient = false;
  int64_t shift = 0, site = 0;
  double scale = 1, rate = 0;
  SmallVector<int64_t> globalSizes;
  Value q, k, v, output, lse, outGradient, lseGradient, mask, bias;
  SmallVector<Value> random, offsets;
  int64_t queries = 1, keys = 1, depth = 1, values = 1;

  // The plan. Sizes in elements.
  Type element, integer; ///< a limit is an integer of the elements' width
  VectorType vector, limits;
  int64_t lanes = 8, rows = 6, columns = 16;
  int64_t queryBlock = 48, keyBlock = 96, blocks = 1;       ///< blocks of a chunk
  int64_t depthWidth = 64, valueWidth = 64;                 ///< padded to whole tiles
  SmallVector<std::pair<StringRef, int64_t>> shared, group; ///< dims with k, and q's own

  // The function.
  func::FuncOp function;
  Type pointerType;
  llvm::DenseMap<Value, Value> pointers, scalars; ///< by the op's operand or result
  llvm::StringMap<Value> coordinates, starts;     ///< by dim
  Value seed, step, layer;

  // Scratch. What is by block of queries has `blocks` of them.
  Value packedK, packedV;             ///< [keyBlock][padded]
  Value p, ds;                        ///< [keyBlock][queryBlock]
  Value queryT, gradientT;            ///< by block: [depth or values][queryBlock]
  Value packedQ, packedGradient;      ///< by block: [queryBlock][padded]
  Value sums;                         ///< by block: [queryBlock][padded], the result's rows
  Value keySums, valueSums;           ///< [keyBlock][padded]
  Value maxima, totals, lses, deltas; ///< by block: [queryBlock]
  Value corrections;                  ///< [queryBlock]
  Value limitsAt;                     ///< by block: [queryBlock]

  // Where the loops are.
  Value chunkBegin, chunkEnd, block, blockBegin, blockQueries; ///< queries
  Value firstKey, keyCount, blockKeys;                         ///< keys
  Value numberBase; ///< the random number of this head's query 0 and key 0
};

} // namespace cleave::attention
