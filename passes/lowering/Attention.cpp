//===- Attention.cpp - attention's kernels --------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// One outer iteration: forward, a chunk of queries of one head; backward, all
// queries of one kv head, since these add to the same gradients of k and v.
//
//   queries of the chunk  -> blocks of `queryBlock`, scaled, transposed
//   for each block of `keyBlock` keys: rows of k and v
//     for each block of queries that sees any of them
//       s[key][query]  = k q             tiles of `rows` x `columns` registers
//       p              = exp(s - max)    queries along the lanes: no sums across lanes
//       o[query][:]   += p v
//
// What is packed is padded with zeros to whole tiles, so tiles have no masks. A
// query sees the keys up to its limit (none past the end, fewer when causal); tiles that no
// query of theirs sees are left out, and within a tile p is 0 past the limit.
// Nothing depends on how queries are dealt out to threads.
//
//===----------------------------------------------------------------------===//
#include "passes/lowering/Attention.h"

#include "passes/lowering/VectorMath.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <limits>
#include <numeric>

using namespace mlir;
using namespace cleave;

Operation *cleave::attentionIn(FusedOp fused) {
  Operation *found = nullptr;
  for (Operation &op : fused.getBody().front().without_terminator())
    if (isa<AttentionOp, AttentionGradOp>(op))
      found = &op;
  return found;
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t roundUp(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

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
  Type storageOf(NamedTensorType type) {
    return type.getElementType().isInteger(1) ? Type(b.getI8Type()) : element;
  }

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
  Value loadLanes(Value pointer, int64_t stride, Value mask);
  void storeLanes(Value x, Value pointer, int64_t stride, Value mask);
  void eachPart(int64_t width, function_ref<void(Value at, Value mask)> body);
  Value tailMask(int64_t used);
  void copyRow(Value from, int64_t stride, int64_t width, Value to, int64_t toWidth, Value factor);
  void copyKeys(Value tensor, int64_t width, StringRef dim, Value to, int64_t toWidth);
  void transposeBlock(Value tensor, int64_t width, StringRef dim, Value to, Value factor);
  void storeRow(Value from, Value to, int64_t stride, int64_t width, Value factor, bool add);
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

//===----------------------------------------------------------------------===//
// The op and the plan
//===----------------------------------------------------------------------===//

template <typename Attention> void AttentionGenerator::read(Attention a) {
  queryDim = a.getQueryDim();
  keyDim = a.getKeyDim();
  depthDim = a.getDepthDim();
  valueDim = a.getValueDim();
  causal = a.getCausal();
  shift = static_cast<int64_t>(a.getShift());
  scale = a.getScale().convertToDouble();
  q = a.getQuery();
  k = a.getKey();
  v = a.getValue();
  mask = a.getMask();
  bias = a.getBias();
  random = SmallVector<Value>(a.getRandom());
  offsets = SmallVector<Value>(a.getOffsets());
  rate = random.empty() ? 0 : a.getRate().convertToDouble();
  site = static_cast<int64_t>(a.getSite());
  globalSizes = SmallVector<int64_t>(a.getGlobalSizes());
  queries = tensorOf(q).sizeOf(queryDim);
  keys = tensorOf(k).sizeOf(keyDim);
  depth = tensorOf(q).sizeOf(depthDim);
  values = tensorOf(v).sizeOf(valueDim);
  for (auto [name, size] : llvm::zip_equal(tensorOf(q).getNames(), tensorOf(q).getSizes()))
    if (name != queryDim && name != depthDim)
      (tensorOf(k).hasDim(name) ? shared : group).push_back({name.getValue(), size});
}

void AttentionGenerator::chooseBlocks() {
  element = tensorOf(q).getElementType().isF64() ? Type(b.getF64Type()) : b.getF32Type();
  integer = b.getIntegerType(element.getIntOrFloatBitWidth());
  int64_t width = element.getIntOrFloatBitWidth() / 8;
  lanes = options.vectorBits / 8 / width;
  rows = options.vectorBits > 256 ? 12 : 6; // rows x 2 sums leave registers for the operands
  columns = 2 * lanes;
  vector = VectorType::get({lanes}, element);
  limits = VectorType::get({lanes}, integer);
  queryBlock = roundUp(48, std::lcm(columns, rows));
  depthWidth = roundUp(depth, columns);
  valueWidth = roundUp(values, columns);
  // The keys' rows lie in the first cache or near it.
  constexpr int64_t keyBytes = int64_t{64} << 10, queryBytes = int64_t{256} << 10;
  int64_t longest = std::max(depthWidth, valueWidth) * width;
  keyBlock = std::clamp(keyBytes / (2 * longest), rows, int64_t{96}) / rows * rows;
  // As many queries as the second cache holds share a packed block of keys.
  int64_t perBlock =
      queryBlock * width * (gradient ? 3 * depthWidth + 2 * valueWidth : depthWidth + valueWidth);
  int64_t wanted = std::clamp<int64_t>(queryBytes / perBlock, 1, 4);
  blocks = std::min(wanted, (queries + queryBlock - 1) / queryBlock);
}

Value AttentionGenerator::scratch(int64_t elements, Type type) {
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(&function.getBody().front());
  return LLVM::AllocaOp::create(b, loc, pointerType, type, code.number(elements), 64);
}

void AttentionGenerator::makeScratch() {
  packedK = scratch(keyBlock * depthWidth, element);
  packedV = scratch(keyBlock * valueWidth, element);
  p = scratch(keyBlock * queryBlock, element);
  int64_t all = blocks * queryBlock;
  queryT = scratch(all * depth, element);
  limitsAt = scratch(all, integer);
  lses = scratch(all, element);
  if (!gradient) {
    sums = scratch(all * valueWidth, element);
    maxima = scratch(all, element);
    totals = scratch(all, element);
    corrections = scratch(queryBlock, element);
    return;
  }
  ds = scratch(keyBlock * queryBlock, element);
  gradientT = scratch(all * values, element);
  packedQ = scratch(all * depthWidth, element);
  packedGradient = scratch(all * valueWidth, element);
  sums = scratch(all * depthWidth, element);
  keySums = scratch(keyBlock * depthWidth, element);
  valueSums = scratch(keyBlock * valueWidth, element);
  deltas = scratch(all, element);
}

Value AttentionGenerator::scalarOperand(Value v, Type type) {
  Type own = b.getIntegerType(tensorOf(v).getElementType().getIntOrFloatBitWidth());
  Value x;
  if (auto known = v.getDefiningOp<ConstantOp>())
    x = arith::ConstantOp::create(
        b, loc, IntegerAttr::get(own, cast<IntegerAttr>(known.getValue()).getValue()));
  else
    x = code.load(pointers.lookup(v), code.number(0), own, own);
  unsigned have = own.getIntOrFloatBitWidth(), want = type.getIntOrFloatBitWidth();
  if (have < want)
    return arith::ExtSIOp::create(b, loc, type, x);
  return have > want ? Value(arith::TruncIOp::create(b, loc, type, x)) : x;
}

/// Random numbers are numbered row-major over q's dims without depth and query, then query,
/// then key, of the global tensor.
void AttentionGenerator::makeNumberBase() {
  if (rate == 0)
    return;
  SmallVector<StringRef> dims;
  for (StringAttr name : tensorOf(q).getNames())
    if (name.getValue() != depthDim && name.getValue() != queryDim)
      dims.push_back(name);
  dims.append({queryDim, keyDim});
  numberBase = code.number(0);
  int64_t stride = 1;
  for (auto [name, size] : llvm::reverse(llvm::zip_equal(dims, globalSizes))) {
    for (const llvm::StringMap<Value> *part : {&coordinates, &starts})
      if (Value index = part->lookup(name))
        numberBase = code.add(numberBase, code.mul(index, stride));
    stride *= size;
  }
}

Value AttentionGenerator::headOf(Value tensor) {
  Operand t = operand(tensor);
  Value sum = code.number(0);
  for (const auto *dims : {&shared, &group})
    for (const auto &[name, size] : *dims)
      if (t.type.hasDim(name))
        sum = code.add(sum, code.mul(coordinates.lookup(name), t.stride(name)));
  return code.at(t.pointer, sum, storageOf(t.type));
}

Value AttentionGenerator::rowOf(Value tensor, StringRef dim, Value index) {
  Operand t = operand(tensor);
  return code.at(headOf(tensor), code.mul(index, t.stride(dim)), storageOf(t.type));
}

bool AttentionGenerator::generate(StringRef symbol, KernelInfo &info) {
  if (auto grad = dyn_cast<AttentionGradOp>(op)) {
    gradient = true;
    read(grad);
    output = grad.getOutput();
    lse = grad.getLse();
    outGradient = grad.getGradient();
    lseGradient = grad.getLseGradient();
  } else {
    read(cast<AttentionOp>(op));
    output = op->getResult(0);
    lse = op->getResult(1);
  }
  if (!tensorOf(q).getElementType().isF32() && !tensorOf(q).getElementType().isF64()) {
    op->emitOpError() << "has no kernel: its elements are " << tensorOf(q).getElementType()
                      << "; f32 and f64 have one";
    return false;
  }
  chooseBlocks();
  Type i64 = b.getI64Type();
  pointerType = LLVM::LLVMPointerType::get(b.getContext());
  b.setInsertionPointToEnd(module.getBody());
  function = func::FuncOp::create(b, loc, symbol,
                                  b.getFunctionType({i64, i64, pointerType, pointerType}, {}));
  Block *entry = function.addEntryBlock();
  b.setInsertionPointToEnd(entry);
  func::ReturnOp::create(b, loc);
  b.setInsertionPoint(&entry->back());
  int64_t buffers = 0, numbers = 0;
  auto nextBuffer = [&]() {
    return code.load(entry->getArgument(2), code.number(buffers++), pointerType, pointerType);
  };
  for (BlockArgument arg : fused.getBody().getArguments()) {
    if (isa<NamedTensorType>(arg.getType()))
      pointers[arg] = nextBuffer();
    else
      scalars[arg] = code.load(entry->getArgument(3), code.number(numbers++), i64, i64);
  }
  for (Value r : fused.getBody().front().getTerminator()->getOperands())
    pointers[r] = nextBuffer();
  unsigned next = 0;
  for (const Factor &factor : cast<ShardableOpInterface>(op).getShardingRule().factors)
    if (factor.needsOffset && !offsets.empty())
      starts[factor.name] = scalars.lookup(offsets[next++]);
  if (rate > 0) {
    seed = scalarOperand(random[0], i64);
    step = scalarOperand(random[1], b.getI32Type());
    layer = scalarOperand(random[2], b.getI32Type());
  }
  makeScratch();
  SmallVector<std::pair<StringRef, int64_t>> dims(shared);
  if (!gradient)
    dims.append(group);
  int64_t chunks = (queries + blocks * queryBlock - 1) / (blocks * queryBlock);
  info.extent = gradient ? 1 : chunks;
  for (const auto &[name, size] : dims)
    info.extent *= size;
  code.loop(entry->getArgument(0), entry->getArgument(1), 1, [&](Value iteration) {
    Value rest = iteration, chunk;
    if (!gradient) {
      chunk = code.remainder(rest, chunks);
      rest = code.divide(rest, chunks);
    }
    for (const auto &[name, size] : llvm::reverse(dims)) {
      coordinates[name] = code.remainder(rest, size);
      rest = code.divide(rest, size);
    }
    if (gradient)
      backwardHead();
    else
      forwardChunk(chunk);
  });
  return true;
}

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

void AttentionGenerator::enterChunk(Value chunk) {
  chunkBegin = code.mul(chunk, blocks * queryBlock);
  chunkEnd = code.least(code.add(chunkBegin, blocks * queryBlock), code.number(queries));
  makeNumberBase();
}

void AttentionGenerator::eachBlock(function_ref<void()> body) {
  Value count = code.divide(code.add(code.sub(chunkEnd, chunkBegin), queryBlock - 1), queryBlock);
  code.loop(code.number(0), count, 1, [&](Value index) {
    block = index;
    blockBegin = code.add(chunkBegin, code.mul(index, queryBlock));
    blockQueries = code.least(code.number(queryBlock), code.sub(chunkEnd, blockBegin));
    body();
  });
}

/// Packs the keys and values that any query of the chunk sees, block by block, and runs `body`
/// for each block of queries that sees any of them.
void AttentionGenerator::eachKeyBlock(function_ref<void()> body) {
  blockBegin = chunkBegin;
  Value last = code.sub(code.sub(chunkEnd, chunkBegin), code.number(1));
  Value end = code.add(limitOf(last), 1);
  code.loop(code.number(0), end, keyBlock, [&](Value index) {
    firstKey = index;
    keyCount = code.least(code.number(keyBlock), code.sub(end, index));
    copyKeys(k, depth, depthDim, packedK, depthWidth);
    copyKeys(v, values, valueDim, packedV, valueWidth);
    if (gradient) {
      Value padded = code.up(keyCount, rows);
      fill(keySums, code.mul(padded, depthWidth), splat(0.0));
      fill(valueSums, code.mul(padded, valueWidth), splat(0.0));
    }
    eachBlock([&] {
      blockKeys = keysSeenBy(code.sub(blockQueries, code.number(1)));
      blockKeys = code.most(blockKeys, code.number(0));
      code.when(code.less(code.number(0), blockKeys), body);
    });
    if (!gradient)
      return;
    code.loop(code.number(0), keyCount, 1, [&](Value key) {
      Value at = code.add(firstKey, key), dk = op->getResult(1), dv = op->getResult(2);
      storeRow(code.at(keySums, code.mul(key, depthWidth), element), rowOf(dk, keyDim, at),
               operand(dk).stride(depthDim), depth, {}, /*add=*/true);
      storeRow(code.at(valueSums, code.mul(key, valueWidth), element), rowOf(dv, keyDim, at),
               operand(dv).stride(valueDim), values, {}, /*add=*/true);
    });
  });
}

void AttentionGenerator::eachQuery(function_ref<void(Value)> body) {
  code.loop(code.number(0), blockQueries, 1, body);
}

void AttentionGenerator::overGroup(size_t first, function_ref<void()> body) {
  if (first == group.size())
    return body();
  code.loop(code.number(0), code.number(group[first].second), 1, [&](Value index) {
    coordinates[group[first].first] = index;
    overGroup(first + 1, body);
  });
}

void AttentionGenerator::forwardChunk(Value chunk) {
  enterChunk(chunk);
  eachBlock([&] {
    setLimits();
    transposeBlock(q, depth, depthDim, of(queryT, queryBlock * depth), splat(scale));
    Value size = code.number(queryBlock);
    fill(of(maxima, queryBlock), size, splat(-kInfinity));
    fill(of(totals, queryBlock), size, splat(0.0));
    fill(of(sums, queryBlock * valueWidth), code.number(queryBlock * valueWidth), splat(0.0));
  });
  eachKeyBlock([&] {
    scores(packedK, depth, depthWidth, of(queryT, queryBlock * depth), p);
    softmax();
    // o[query] = o[query] * correction + sum over keys of p v.
    auto range = [&](Value first) -> std::pair<Value, Value> {
      Value last = code.least(code.add(first, rows), blockQueries);
      Value seen = keysSeenBy(code.sub(last, code.number(1)));
      return {code.number(0), code.most(seen, code.number(0))};
    };
    addTo(of(sums, queryBlock * valueWidth), valueWidth, blockQueries, p, 1, queryBlock, packedV,
          range, corrections);
  });
  eachBlock([&] { finishForward(); });
}

void AttentionGenerator::backwardHead() {
  // Each chunk adds its share to the gradients of all keys that it sees.
  code.loop(code.number(0), code.number(keys), 1, [&](Value key) {
    for (auto [r, dim, width] : {std::tuple(op->getResult(1), depthDim, depth),
                                 std::tuple(op->getResult(2), valueDim, values)}) {
      int64_t stride = operand(r).stride(dim);
      Value row = rowOf(r, keyDim, key);
      eachPart(width, [&](Value at, Value mask) {
        storeLanes(splat(0.0), code.at(row, code.mul(at, stride), element), stride, mask);
      });
    }
  });
  int64_t chunks = (queries + blocks * queryBlock - 1) / (blocks * queryBlock);
  overGroup(0, [&] {
    code.loop(code.number(0), code.number(chunks), 1, [&](Value chunk) { backwardChunk(chunk); });
  });
}

void AttentionGenerator::backwardChunk(Value chunk) {
  enterChunk(chunk);
  Value factor = splat(scale);
  eachBlock([&] {
    setLimits();
    transposeBlock(q, depth, depthDim, of(queryT, queryBlock * depth), factor);
    transposeBlock(outGradient, values, valueDim, of(gradientT, queryBlock * values), {});
    Value size = code.number(queryBlock);
    fill(of(lses, queryBlock), size, splat(0.0));
    fill(of(deltas, queryBlock), size, splat(0.0));
    fill(of(sums, queryBlock * depthWidth), code.number(queryBlock * depthWidth), splat(0.0));
    eachQuery([&](Value query) {
      Value at = code.add(blockBegin, query);
      copyRow(rowOf(q, queryDim, at), operand(q).stride(depthDim), depth,
              code.at(of(packedQ, queryBlock * depthWidth), code.mul(query, depthWidth), element),
              depthWidth, factor);
      Value incoming = rowOf(outGradient, queryDim, at), out = rowOf(output, queryDim, at);
      int64_t incomingStride = operand(outGradient).stride(valueDim),
              outStride = operand(output).stride(valueDim);
      Value packed = code.at(of(packedGradient, queryBlock * valueWidth),
                             code.mul(query, valueWidth), element);
      copyRow(incoming, incomingStride, values, packed, valueWidth, {});
      // delta = sum of p d p = gradient . output, less the gradient of lse.
      Value delta = arith::ConstantOp::create(b, loc, b.getFloatAttr(element, 0));
      int64_t whole = values / lanes * lanes;
      auto product = [&](Value at, Value mask, Value sum) {
        Value x = loadVector(packed, at);
        Value y = loadLanes(code.at(out, code.mul(at, outStride), element), outStride, mask);
        return code.fma(x, y, sum);
      };
      Value dot = code.loop(code.number(0), code.number(whole), lanes, ValueRange{splat(0.0)},
                            [&](Value at, ValueRange carried) {
                              return SmallVector<Value>{product(at, {}, carried[0])};
                            })[0];
      if (whole < values)
        dot = product(code.number(whole), tailMask(values - whole), dot);
      delta = vector::ReductionOp::create(b, loc, vector::CombiningKind::ADD, dot, delta);
      auto single = [&](Value tensor) {
        return code.load(rowOf(tensor, queryDim, at), code.number(0), element, element);
      };
      if (lseGradient)
        delta = arith::SubFOp::create(b, loc, delta, single(lseGradient));
      code.store(delta, of(deltas, queryBlock), query, element);
      code.store(single(lse), of(lses, queryBlock), query, element);
    });
  });
  eachKeyBlock([&] {
    scores(packedK, depth, depthWidth, of(queryT, queryBlock * depth), p);
    scores(packedV, values, valueWidth, of(gradientT, queryBlock * values), ds);
    scoreGradients();
    auto queriesOf = [&](Value key) -> std::pair<Value, Value> {
      return {code.least(firstQueryFor(key), blockQueries), blockQueries};
    };
    addTo(valueSums, valueWidth, blockKeys, p, queryBlock, 1,
          of(packedGradient, queryBlock * valueWidth), queriesOf, {});
    addTo(keySums, depthWidth, blockKeys, ds, queryBlock, 1, of(packedQ, queryBlock * depthWidth),
          queriesOf, {});
    auto keysOf = [&](Value first) -> std::pair<Value, Value> {
      Value last = code.least(code.add(first, rows), blockQueries);
      Value seen = keysSeenBy(code.sub(last, code.number(1)));
      return {code.number(0), code.most(seen, code.number(0))};
    };
    addTo(of(sums, queryBlock * depthWidth), depthWidth, blockQueries, ds, 1, queryBlock, packedK,
          keysOf, {});
  });
  eachBlock([&] {
    Value dq = op->getResult(0);
    eachQuery([&](Value query) {
      storeRow(code.at(of(sums, queryBlock * depthWidth), code.mul(query, depthWidth), element),
               rowOf(dq, queryDim, code.add(blockBegin, query)), operand(dq).stride(depthDim),
               depth, factor, /*add=*/false);
    });
  });
}

//===----------------------------------------------------------------------===//
// Packing
//===----------------------------------------------------------------------===//

Value AttentionGenerator::tailMask(int64_t used) {
  SmallVector<bool> bits(lanes, false);
  std::fill(bits.begin(), bits.begin() + used, true);
  auto type = VectorType::get({lanes}, b.getI1Type());
  return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, bits));
}

/// `mask` null: all lanes. Lanes that are not loaded are 0.
Value AttentionGenerator::loadLanes(Value pointer, int64_t stride, Value mask) {
  unsigned align = Code::alignOf(element);
  Value zero = splat(0.0);
  if (stride == 1) {
    if (!mask)
      return LLVM::LoadOp::create(b, loc, vector, pointer, align);
    return LLVM::MaskedLoadOp::create(b, loc, vector, pointer, mask, zero,
                                      b.getI32IntegerAttr(align), UnitAttr());
  }
  SmallVector<int64_t> steps(lanes);
  for (int64_t i = 0; i < lanes; ++i)
    steps[i] = i * stride;
  Value index = arith::ConstantOp::create(
      b, loc, DenseElementsAttr::get(VectorType::get({lanes}, b.getI64Type()), ArrayRef(steps)));
  Value places = LLVM::GEPOp::create(b, loc, VectorType::get({lanes}, pointerType), element,
                                     pointer, ArrayRef<LLVM::GEPArg>{index});
  return LLVM::masked_gather::create(b, loc, vector, places, mask ? mask : tailMask(lanes),
                                     ValueRange(zero), b.getI32IntegerAttr(align));
}

void AttentionGenerator::storeLanes(Value x, Value pointer, int64_t stride, Value mask) {
  unsigned align = Code::alignOf(element);
  if (stride == 1 && !mask) {
    LLVM::StoreOp::create(b, loc, x, pointer, align);
    return;
  }
  if (stride == 1) {
    LLVM::MaskedStoreOp::create(b, loc, x, pointer, mask, b.getI32IntegerAttr(align));
    return;
  }
  SmallVector<int64_t> steps(lanes);
  for (int64_t i = 0; i < lanes; ++i)
    steps[i] = i * stride;
  Value index = arith::ConstantOp::create(
      b, loc, DenseElementsAttr::get(VectorType::get({lanes}, b.getI64Type()), ArrayRef(steps)));
  Value places = LLVM::GEPOp::create(b, loc, VectorType::get({lanes}, pointerType), element,
                                     pointer, ArrayRef<LLVM::GEPArg>{index});
  LLVM::masked_scatter::create(b, loc, x, places, mask ? mask : tailMask(lanes),
                               b.getI32IntegerAttr(align));
}

/// Vectors of a row of `width`; the last one may have a mask.
void AttentionGenerator::eachPart(int64_t width, function_ref<void(Value, Value)> body) {
  int64_t whole = width / lanes * lanes;
  if (whole)
    code.loop(code.number(0), code.number(whole), lanes, [&](Value at) { body(at, {}); });
  if (whole < width)
    body(code.number(whole), tailMask(width - whole));
}

/// To `toWidth` elements, with zeros behind the row's.
void AttentionGenerator::copyRow(Value from, int64_t stride, int64_t width, Value to,
                                 int64_t toWidth, Value factor) {
  eachPart(width, [&](Value at, Value mask) {
    Value x = loadLanes(code.at(from, code.mul(at, stride), element), stride, mask);
    if (factor)
      x = arith::MulFOp::create(b, loc, x, factor);
    code.store(x, to, at, element);
  });
  for (int64_t at = roundUp(width, lanes); at < toWidth; at += lanes)
    code.store(splat(0.0), to, code.number(at), element);
}

/// Rows of this block of keys, and rows of zeros up to whole tiles.
void AttentionGenerator::copyKeys(Value tensor, int64_t width, StringRef dim, Value to,
                                  int64_t toWidth) {
  Value head = headOf(tensor);
  int64_t rowStride = operand(tensor).stride(keyDim), stride = operand(tensor).stride(dim);
  code.loop(code.number(0), keyCount, 1, [&](Value key) {
    Value from = code.at(head, code.mul(code.add(firstKey, key), rowStride), element);
    copyRow(from, stride, width, code.at(to, code.mul(key, toWidth), element), toWidth, {});
  });
  Value padding = code.sub(code.up(keyCount, rows), keyCount);
  fill(code.at(to, code.mul(keyCount, toWidth), element), code.mul(padding, toWidth), splat(0.0));
}

/// to[i][query] = factor * row of the query [i].
void AttentionGenerator::transposeBlock(Value tensor, int64_t width, StringRef dim, Value to,
                                        Value factor) {
  int64_t rowStride = operand(tensor).stride(queryDim), stride = operand(tensor).stride(dim);
  Value head = rowOf(tensor, queryDim, blockBegin);
  auto maskType = VectorType::get({lanes}, b.getI1Type());
  auto square = [&](Value query, Value at, int64_t used) {
    SmallVector<Value> x(lanes);
    for (int64_t i = 0; i < lanes; ++i) {
      Value row = code.add(query, i);
      Value mask = code.splat(code.less(row, blockQueries), maskType);
      if (used < lanes)
        mask = arith::AndIOp::create(b, loc, mask, tailMask(used));
      Value from =
          code.at(code.at(head, code.mul(row, rowStride), element), code.mul(at, stride), element);
      x[i] = loadLanes(from, stride, mask);
    }
    // Perfect shuffles: each doubles how many numbers of one column lie side by side.
    SmallVector<int64_t> low(lanes), high(lanes);
    for (int64_t i = 0; i < lanes; ++i) {
      low[i] = i / 2 + i % 2 * lanes;
      high[i] = low[i] + lanes / 2;
    }
    for (int64_t done = 1; done < lanes; done *= 2) {
      SmallVector<Value> y(lanes);
      for (int64_t i = 0; i < lanes / 2; ++i) {
        y[2 * i] = vector::ShuffleOp::create(b, loc, x[i], x[i + lanes / 2], low);
        y[2 * i + 1] = vector::ShuffleOp::create(b, loc, x[i], x[i + lanes / 2], high);
      }
      x = y;
    }
    for (int64_t i = 0; i < used; ++i) {
      Value y = factor ? Value(arith::MulFOp::create(b, loc, x[i], factor)) : x[i];
      code.store(y, to, code.add(code.mul(code.add(at, i), queryBlock), query), element);
    }
  };
  int64_t whole = width / lanes * lanes;
  code.loop(code.number(0), blockQueries, lanes, [&](Value query) {
    if (whole)
      code.loop(code.number(0), code.number(whole), lanes,
                [&](Value at) { square(query, at, lanes); });
    if (whole < width)
      square(query, code.number(whole), width - whole);
  });
}

/// to = factor * from, or to += from.
void AttentionGenerator::storeRow(Value from, Value to, int64_t stride, int64_t width, Value factor,
                                  bool add) {
  eachPart(width, [&](Value at, Value mask) {
    Value x = loadVector(from, at);
    if (factor)
      x = arith::MulFOp::create(b, loc, x, factor);
    Value place = code.at(to, code.mul(at, stride), element);
    if (add)
      x = arith::AddFOp::create(b, loc, x, loadLanes(place, stride, mask));
    storeLanes(x, place, stride, mask);
  });
}

/// `count`: a multiple of the lanes.
void AttentionGenerator::fill(Value to, Value count, Value x) {
  code.loop(code.number(0), count, lanes, [&](Value at) { code.store(x, to, at, element); });
}

//===----------------------------------------------------------------------===//
// What a query sees
//===----------------------------------------------------------------------===//

/// The last key that a query of this block sees, without a mask; below 0: none.
Value AttentionGenerator::limitOf(Value query) {
  Value last = code.number(keys - 1);
  if (!causal)
    return last;
  Value at = code.add(code.add(blockBegin, query), shift);
  if (Value start = starts.lookup(queryDim))
    at = code.add(at, start);
  return code.least(at, last);
}

/// How many keys of the key block a query of this block sees. Below 0: how far it is from it.
Value AttentionGenerator::keysSeenBy(Value query) {
  Value seen = code.sub(code.add(limitOf(query), 1), firstKey);
  return code.least(seen, keyCount);
}

/// The first query of this block that sees a key of the key block.
Value AttentionGenerator::firstQueryFor(Value key) {
  if (!causal)
    return code.number(0);
  Value at = code.sub(code.add(code.add(firstKey, key), -shift), blockBegin);
  if (Value start = starts.lookup(queryDim))
    at = code.sub(at, start);
  return code.most(at, code.number(0));
}

void AttentionGenerator::setLimits() {
  auto wide = VectorType::get({lanes}, b.getI64Type());
  SmallVector<int64_t> numbers(lanes);
  std::iota(numbers.begin(), numbers.end(), 0);
  Value count = arith::ConstantOp::create(b, loc, DenseElementsAttr::get(wide, ArrayRef(numbers)));
  Value to = code.at(limitsAt, code.mul(block, queryBlock), integer);
  code.loop(code.number(0), code.number(queryBlock), lanes, [&](Value first) {
    Value query = code.add(count, code.splat(first, wide));
    Value limit = code.splat(code.number(keys - 1), wide);
    if (causal) {
      Value start = code.add(blockBegin, shift);
      if (Value more = starts.lookup(queryDim))
        start = code.add(start, more);
      limit = code.least(limit, code.add(query, code.splat(start, wide)));
    }
    Value exists = code.less(query, code.splat(blockQueries, wide));
    limit = code.select(exists, limit, code.splat(code.number(-1), wide));
    if (!integer.isInteger(64))
      limit = arith::TruncIOp::create(b, loc, limits, limit);
    code.store(limit, to, first, integer);
  });
}

//===----------------------------------------------------------------------===//
// A block of queries by a block of keys
//===----------------------------------------------------------------------===//

/// sums[r][:] += x[r * rowStep + i * step] * y[i * yStep : + columns], i from low to high.
AttentionGenerator::Sums AttentionGenerator::multiply(Value x, int64_t rowStep, int64_t step,
                                                      Value y, int64_t yStep, Value low, Value high,
                                                      Sums sums) {
  return code.loop(low, high, 1, sums, [&](Value i, ValueRange carried) {
    SmallVector<Value> next(carried);
    Value row = code.at(y, code.mul(i, yStep), element);
    Value y0 = loadVector(row, code.number(0)), y1 = loadVector(row, code.number(lanes));
    Value column = code.at(x, code.mul(i, step), element);
    for (int64_t r = 0; r < rows; ++r) {
      Value one = splat(code.load(column, code.number(r * rowStep), element, element));
      next[2 * r] = code.fma(one, y0, next[2 * r]);
      next[2 * r + 1] = code.fma(one, y1, next[2 * r + 1]);
    }
    return next;
  });
}

/// to[key][query] = sum of from[key][i] * transposed[i][query].
void AttentionGenerator::scores(Value from, int64_t width, int64_t fromWidth, Value transposed,
                                Value to) {
  code.loop(code.number(0), blockKeys, rows, [&](Value key) {
    Value first = code.mul(code.divide(firstQueryFor(key), columns), columns);
    code.loop(first, blockQueries, columns, [&](Value query) {
      Sums sums(2 * rows, splat(0.0));
      sums = multiply(code.at(from, code.mul(key, fromWidth), element), fromWidth, 1,
                      code.at(transposed, query, element), queryBlock, code.number(0),
                      code.number(width), sums);
      Value place = code.at(code.at(to, code.mul(key, queryBlock), element), query, element);
      for (int64_t i = 0; i < 2 * rows; ++i)
        code.store(sums[i], place, code.number(i / 2 * queryBlock + i % 2 * lanes), element);
    });
  });
}

/// sums[row][:] = sums[row][:] * factors[row] + sum over i of x[row, i] y[i][:], `rows` rows at a
/// time; `range` gives i's bounds for those that begin at a row.
void AttentionGenerator::addTo(Value sums, int64_t width, Value rowEnd, Value x, int64_t rowStep,
                               int64_t step, Value y,
                               function_ref<std::pair<Value, Value>(Value)> range, Value factors) {
  code.loop(code.number(0), rowEnd, rows, [&](Value row) {
    auto [low, high] = range(row);
    Value column = code.at(x, code.mul(row, rowStep), element);
    code.loop(code.number(0), code.number(width), columns, [&](Value at) {
      Value place = code.at(code.at(sums, code.mul(row, width), element), at, element);
      Sums tile;
      for (int64_t i = 0; i < 2 * rows; ++i) {
        Value sum = loadVector(place, code.number(i / 2 * width + i % 2 * lanes));
        if (factors)
          sum = arith::MulFOp::create(
              b, loc, sum, splat(code.load(factors, code.add(row, i / 2), element, element)));
        tile.push_back(sum);
      }
      tile = multiply(column, rowStep, step, code.at(y, at, element), width, low, high, tile);
      for (int64_t i = 0; i < 2 * rows; ++i)
        code.store(tile[i], place, code.number(i / 2 * width + i % 2 * lanes), element);
    });
  });
}

/// Vectors of queries, and how many keys any of them sees, and some more whose p must be 0, for
/// they share a tile with one that is seen.
void AttentionGenerator::eachGroup(function_ref<void(Value, Value)> body) {
  Value all = code.up(blockKeys, rows);
  code.loop(code.number(0), blockQueries, lanes, [&](Value first) {
    Value last = code.sub(code.least(code.add(first, lanes), blockQueries), code.number(1));
    Value end = code.least(code.add(keysSeenBy(last), rows), all);
    body(first, end);
  });
}

/// The score with its bias, and whether the queries see the key.
std::pair<Value, Value> AttentionGenerator::seenScore(Value s, Value key, Value first) {
  Value at = code.add(firstKey, key);
  Value limit =
      code.load(code.at(limitsAt, code.mul(block, queryBlock), integer), first, integer, limits);
  Value number = at;
  if (!integer.isInteger(64))
    number = arith::TruncIOp::create(b, loc, integer, number);
  Value seen =
      arith::CmpIOp::create(b, loc, arith::CmpIPredicate::sle, code.splat(number, limits), limit);
  Value inside = code.least(at, code.number(keys - 1));
  if (mask) {
    Type i8 = b.getI8Type();
    Value bit = code.load(rowOf(mask, keyDim, inside), code.number(0), i8, i8);
    Value set = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, bit,
                                      VectorMath(b, loc).integer(bit, 0));
    seen = arith::AndIOp::create(b, loc, seen,
                                 code.splat(set, VectorType::get({lanes}, b.getI1Type())));
  }
  if (bias) {
    int64_t stride = operand(bias).stride(queryDim);
    Value from = rowOf(bias, keyDim, inside);
    Value more;
    if (stride == 0) {
      more = splat(code.load(from, code.number(0), element, element));
    } else {
      from = code.at(from, code.mul(code.add(blockBegin, first), stride), element);
      more = loadLanes(from, stride, seen);
    }
    s = arith::AddFOp::create(b, loc, s, more);
  }
  return {s, seen};
}

/// Dropout's factor: 0 or 1 / (1 - rate).
Value AttentionGenerator::kept(Value key, Value first) {
  auto wide = VectorType::get({lanes}, b.getI64Type());
  int64_t stride = globalSizes.back();
  SmallVector<int64_t> steps(lanes);
  for (int64_t i = 0; i < lanes; ++i)
    steps[i] = i * stride;
  Value index = code.add(code.mul(code.add(blockBegin, first), stride), code.add(firstKey, key));
  index = code.add(index, numberBase);
  Value each = arith::ConstantOp::create(b, loc, DenseElementsAttr::get(wide, ArrayRef(steps)));
  each = code.add(each, code.splat(index, wide));
  VectorMath m(b, loc);
  Value u = m.uniform(each, seed, step, layer, site);
  Value keep = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGE, u, m.number(u, rate));
  return code.select(keep, splat(1 / (1 - rate)), splat(0.0));
}

/// p = e^(s - maximum so far), and what earlier sums must be multiplied with.
void AttentionGenerator::softmax() {
  using P = arith::CmpFPredicate;
  VectorMath m(b, loc);
  eachGroup([&](Value first, Value keyEnd) {
    auto place = [&](Value key) { return code.add(code.mul(key, queryBlock), first); };
    Value before = loadVector(of(maxima, queryBlock), first), lowest = splat(-kInfinity);
    Value top = code.loop(code.number(0), keyEnd, 1, ValueRange{before},
                          [&](Value key, ValueRange carried) {
                            auto [s, seen] = seenScore(loadVector(p, place(key)), key, first);
                            s = code.select(seen, s, lowest);
                            code.store(s, p, place(key), element);
                            Value more = arith::CmpFOp::create(b, loc, P::OGT, s, carried[0]);
                            return SmallVector<Value>{code.select(more, s, carried[0])};
                          })[0];
    // Where nothing is seen yet the maximum is -inf, and e^(-inf - 0) is 0.
    Value blind = arith::CmpFOp::create(b, loc, P::OEQ, top, lowest);
    Value base = code.select(blind, splat(0.0), top);
    Value total = code.loop(code.number(0), keyEnd, 1, ValueRange{splat(0.0)},
                            [&](Value key, ValueRange carried) {
                              Value s = loadVector(p, place(key));
                              Value e = m.exp(arith::SubFOp::create(b, loc, s, base));
                              Value sum = arith::AddFOp::create(b, loc, carried[0], e);
                              if (rate > 0)
                                e = arith::MulFOp::create(b, loc, e, kept(key, first));
                              code.store(e, p, place(key), element);
                              return SmallVector<Value>{sum};
                            })[0];
    Value correction = m.exp(arith::SubFOp::create(b, loc, before, base));
    Value old = loadVector(of(totals, queryBlock), first);
    code.store(code.fma(old, correction, total), of(totals, queryBlock), first, element);
    code.store(top, of(maxima, queryBlock), first, element);
    code.store(correction, corrections, first, element);
  });
}

void AttentionGenerator::finishForward() {
  using P = arith::CmpFPredicate;
  VectorMath m(b, loc);
  code.loop(code.number(0), blockQueries, lanes, [&](Value first) {
    Value top = loadVector(of(maxima, queryBlock), first);
    Value total = loadVector(of(totals, queryBlock), first);
    Value zero = splat(0.0), one = splat(1.0);
    Value blind = arith::CmpFOp::create(b, loc, P::OEQ, top, splat(-kInfinity));
    top = code.select(blind, zero, top);
    total = code.select(arith::CmpFOp::create(b, loc, P::OEQ, total, zero), one, total);
    code.store(arith::DivFOp::create(b, loc, one, total), corrections, first, element);
    code.store(arith::AddFOp::create(b, loc, m.log(total), top), of(lses, queryBlock), first,
               element);
  });
  eachQuery([&](Value query) {
    Value at = code.add(blockBegin, query);
    Value factor = splat(code.load(corrections, query, element, element));
    storeRow(code.at(of(sums, queryBlock * valueWidth), code.mul(query, valueWidth), element),
             rowOf(output, queryDim, at), operand(output).stride(valueDim), values, factor,
             /*add=*/false);
    code.store(code.load(of(lses, queryBlock), query, element, element), rowOf(lse, queryDim, at),
               code.number(0), element);
  });
}

/// From scores and gradient . value to p (with dropout) and the gradient of the scores.
void AttentionGenerator::scoreGradients() {
  VectorMath m(b, loc);
  eachGroup([&](Value first, Value keyEnd) {
    Value base = loadVector(of(lses, queryBlock), first);
    Value delta = loadVector(of(deltas, queryBlock), first);
    code.loop(code.number(0), keyEnd, 1, [&](Value key) {
      Value place = code.add(code.mul(key, queryBlock), first), zero = splat(0.0);
      auto [s, seen] = seenScore(loadVector(p, place), key, first);
      Value e = m.exp(arith::SubFOp::create(b, loc, s, base));
      e = code.select(seen, e, zero);
      Value dp = loadVector(ds, place), weight = e;
      if (rate > 0) {
        Value factor = kept(key, first);
        weight = arith::MulFOp::create(b, loc, e, factor);
        dp = arith::MulFOp::create(b, loc, dp, factor);
      }
      Value d = arith::MulFOp::create(b, loc, e, arith::SubFOp::create(b, loc, dp, delta));
      code.store(weight, p, place, element);
      code.store(code.select(seen, d, zero), ds, place, element);
    });
  });
}

} // namespace

bool cleave::generateAttention(FusedOp fused, ModuleOp module, const KernelOptions &options,
                               StringRef symbol, KernelInfo &info) {
  return AttentionGenerator(fused, attentionIn(fused), module, options).generate(symbol, info);
}
