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
#include "passes/lowering/AttentionGenerator.h"

#include <limits>
#include <numeric>

using namespace cleave;
using namespace cleave::attention;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

Operation *cleave::attentionIn(FusedOp fused) {
  Operation *found = nullptr;
  for (Operation &op : fused.getBody().front().without_terminator())
    if (isa<AttentionOp, AttentionGradOp>(op))
      found = &op;
  return found;
}

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
  info.bytes = bytesOf(fused.getBody());
  // Two products of each score forward, five backward; the causal half is not done.
  double products = gradient ? 3.0 * static_cast<double>(depth) + 2.0 * static_cast<double>(values)
                             : static_cast<double>(depth + values);
  double scores = static_cast<double>(tensorOf(q).getNumElements() / depth) *
                  static_cast<double>(keys) * (causal ? 0.5 : 1.0);
  info.flops = static_cast<int64_t>(scores * (2 * products + 14));
  int64_t heads = tensorOf(q).getNumElements() / std::max<int64_t>(1, depth * queries);
  info.attention = {heads, queries, keys, depth, causal, gradient};
  if (rate > 0) // dropout
    info.functions[static_cast<size_t>(ScalarFunction::Random)] = static_cast<int64_t>(scores);
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
      storeRow(code.at(keySums, code.mul(key, depthWidth), element), dk, rowOf(dk, keyDim, at),
               operand(dk).stride(depthDim), depth, {}, /*add=*/true);
      storeRow(code.at(valueSums, code.mul(key, valueWidth), element), dv, rowOf(dv, keyDim, at),
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
    addTo(
        of(sums, queryBlock * valueWidth), valueWidth, blockQueries, p, 1, queryBlock, packedV,
        [&](Value first) { return keysOfTile(first); }, corrections);
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
      NamedTensorType type = operand(r).type;
      eachPart(width, [&](Value at, Value mask) {
        Value place = code.at(row, code.mul(at, stride), storageOf(type));
        storeLanes(splat(0.0), place, stride, mask, type);
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
      copyRow(q, rowOf(q, queryDim, at), operand(q).stride(depthDim), depth,
              code.at(of(packedQ, queryBlock * depthWidth), code.mul(query, depthWidth), element),
              depthWidth, factor);
      Value incoming = rowOf(outGradient, queryDim, at), out = rowOf(output, queryDim, at);
      int64_t incomingStride = operand(outGradient).stride(valueDim),
              outStride = operand(output).stride(valueDim);
      Value packed = code.at(of(packedGradient, queryBlock * valueWidth),
                             code.mul(query, valueWidth), element);
      copyRow(outGradient, incoming, incomingStride, values, packed, valueWidth, {});
      // delta = sum of p d p = gradient . output, less the gradient of lse.
      Value delta = arith::ConstantOp::create(b, loc, b.getFloatAttr(element, 0));
      int64_t whole = values / lanes * lanes;
      auto product = [&](Value at, Value mask, Value sum) {
        Value x = loadVector(packed, at);
        NamedTensorType type = operand(output).type;
        Value place = code.at(out, code.mul(at, outStride), storageOf(type));
        Value y = loadLanes(place, outStride, mask, type);
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
    addTo(of(sums, queryBlock * depthWidth), depthWidth, blockQueries, ds, 1, queryBlock, packedK,
          [&](Value first) { return keysOfTile(first); }, {});
  });
  eachBlock([&] {
    Value dq = op->getResult(0);
    eachQuery([&](Value query) {
      storeRow(code.at(of(sums, queryBlock * depthWidth), code.mul(query, depthWidth), element), dq,
               rowOf(dq, queryDim, code.add(blockBegin, query)), operand(dq).stride(depthDim),
               depth, factor, /*add=*/false);
    });
  });
}

bool cleave::generateAttention(FusedOp fused, ModuleOp module, const KernelOptions &options,
                               StringRef symbol, KernelInfo &info) {
  return AttentionGenerator(fused, attentionIn(fused), module, options).generate(symbol, info);
}
