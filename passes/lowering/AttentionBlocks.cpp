//===- AttentionBlocks.cpp - one block of queries by one of keys ----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/lowering/AttentionGenerator.h"

#include <limits>
#include <numeric>

using namespace cleave::attention;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

//===----------------------------------------------------------------------===//
// Packing
//===----------------------------------------------------------------------===//

Value AttentionGenerator::tailMask(int64_t used) {
  SmallVector<bool> bits(lanes, false);
  std::fill(bits.begin(), bits.begin() + used, true);
  auto type = VectorType::get({lanes}, b.getI1Type());
  return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, bits));
}

/// 0, stride, 2 * stride, ...
Value AttentionGenerator::laneSteps(int64_t stride) {
  SmallVector<int64_t> steps(lanes);
  for (int64_t i = 0; i < lanes; ++i)
    steps[i] = i * stride;
  auto type = VectorType::get({lanes}, b.getI64Type());
  return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, ArrayRef(steps)));
}

/// A pointer for each lane.
Value AttentionGenerator::lanePlaces(Value pointer, int64_t stride, Type storage) {
  return LLVM::GEPOp::create(b, loc, VectorType::get({lanes}, pointerType), storage, pointer,
                             ArrayRef<LLVM::GEPArg>{laneSteps(stride)});
}

Value AttentionGenerator::widened(Value x, NamedTensorType type) {
  if (type.getElementType().isBF16())
    return VectorMath(b, loc).unpackBF16(x);
  if (!type.getElementType().isF16())
    return x;
  bool isVector = isa<VectorType>(x.getType());
  return arith::ExtFOp::create(b, loc, isVector ? Type(vector) : element, x);
}

Value AttentionGenerator::stored(Value x, NamedTensorType type) {
  VectorMath m(b, loc);
  if (type.getElementType().isBF16())
    return m.packBF16(m.roundToBF16(x));
  if (!type.getElementType().isF16())
    return x;
  Type half = b.getF16Type();
  bool isVector = isa<VectorType>(x.getType());
  return arith::TruncFOp::create(b, loc, isVector ? Type(VectorType::get({lanes}, half)) : half, x);
}

/// `mask` null: all lanes. Lanes that are not loaded are 0.
Value AttentionGenerator::loadLanes(Value pointer, int64_t stride, Value mask,
                                    NamedTensorType type) {
  Type storage = storageOf(type);
  auto lanesOf = VectorType::get({lanes}, storage);
  unsigned align = Code::alignOf(storage);
  Value zero = arith::ConstantOp::create(b, loc, cast<TypedAttr>(b.getZeroAttr(lanesOf)));
  Value x;
  if (stride == 1 && !mask)
    x = LLVM::LoadOp::create(b, loc, lanesOf, pointer, align);
  else if (stride == 1)
    x = LLVM::MaskedLoadOp::create(b, loc, lanesOf, pointer, mask, zero, b.getI32IntegerAttr(align),
                                   UnitAttr());
  else
    x = LLVM::masked_gather::create(b, loc, lanesOf, lanePlaces(pointer, stride, storage),
                                    mask ? mask : tailMask(lanes), ValueRange(zero),
                                    b.getI32IntegerAttr(align));
  return widened(x, type);
}

void AttentionGenerator::storeLanes(Value x, Value pointer, int64_t stride, Value mask,
                                    NamedTensorType type) {
  Type storage = storageOf(type);
  unsigned align = Code::alignOf(storage);
  x = stored(x, type);
  if (stride == 1 && !mask) {
    LLVM::StoreOp::create(b, loc, x, pointer, align);
    return;
  }
  if (stride == 1) {
    LLVM::MaskedStoreOp::create(b, loc, x, pointer, mask, b.getI32IntegerAttr(align));
    return;
  }
  Value places = lanePlaces(pointer, stride, storage);
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

/// A row of the tensor that begins at `from`; to `toWidth` elements, with zeros behind the row's.
void AttentionGenerator::copyRow(Value tensor, Value from, int64_t stride, int64_t width, Value to,
                                 int64_t toWidth, Value factor) {
  NamedTensorType type = operand(tensor).type;
  eachPart(width, [&](Value at, Value mask) {
    Value place = code.at(from, code.mul(at, stride), storageOf(type));
    Value x = loadLanes(place, stride, mask, type);
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
  // A head's rows lie far apart, which the processor does not foresee.
  constexpr int64_t ahead = 8, line = 64;
  Type storage = storageOf(operand(tensor).type);
  int64_t bytes = storage.getIntOrFloatBitWidth() / 8;
  code.loop(code.number(0), keyCount, 1, [&](Value key) {
    Value from = code.at(head, code.mul(code.add(firstKey, key), rowStride), storage);
    if (stride == 1)
      for (int64_t at = 0; at < width * bytes; at += line) {
        Value place = code.at(from, code.number(ahead * rowStride + at / bytes), storage);
        LLVM::Prefetch::create(b, loc, place, /*rw=*/0, /*hint=*/3, /*cache=*/1);
      }
    copyRow(tensor, from, stride, width, code.at(to, code.mul(key, toWidth), element), toWidth, {});
  });
  Value padding = code.sub(code.up(keyCount, rows), keyCount);
  fill(code.at(to, code.mul(keyCount, toWidth), element), code.mul(padding, toWidth), splat(0.0));
}

/// to[i][query] = factor * row of the query [i].
void AttentionGenerator::transposeBlock(Value tensor, int64_t width, StringRef dim, Value to,
                                        Value factor) {
  int64_t rowStride = operand(tensor).stride(queryDim), stride = operand(tensor).stride(dim);
  Value head = rowOf(tensor, queryDim, blockBegin);
  NamedTensorType type = operand(tensor).type;
  Type storage = storageOf(type);
  Value last = code.sub(blockQueries, code.number(1));
  auto square = [&](Value query, Value at, int64_t used) {
    SmallVector<Value> x(lanes);
    for (int64_t i = 0; i < lanes; ++i) {
      // Behind the last query it comes again; nothing is read of its scores there.
      Value row = code.least(code.add(query, i), last);
      Value from =
          code.at(code.at(head, code.mul(row, rowStride), storage), code.mul(at, stride), storage);
      x[i] = loadLanes(from, stride, used < lanes ? tailMask(used) : Value(), type);
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
void AttentionGenerator::storeRow(Value from, Value tensor, Value to, int64_t stride, int64_t width,
                                  Value factor, bool add) {
  NamedTensorType type = operand(tensor).type;
  eachPart(width, [&](Value at, Value mask) {
    Value x = loadVector(from, at);
    if (factor)
      x = arith::MulFOp::create(b, loc, x, factor);
    Value place = code.at(to, code.mul(at, stride), storageOf(type));
    if (add)
      x = arith::AddFOp::create(b, loc, x, loadLanes(place, stride, mask, type));
    storeLanes(x, place, stride, mask, type);
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

/// The keys of the key block that any of the `rows` queries from `first` on sees.
std::pair<Value, Value> AttentionGenerator::keysOfTile(Value first) {
  Value last = code.least(code.add(first, rows), blockQueries);
  Value seen = keysSeenBy(code.sub(last, code.number(1)));
  return {code.number(0), code.most(seen, code.number(0))};
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
  Value count = laneSteps(1);
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
    NamedTensorType type = operand(bias).type;
    Type storage = storageOf(type);
    Value from = rowOf(bias, keyDim, inside);
    Value more;
    if (stride == 0) {
      more = splat(widened(code.load(from, code.number(0), storage, storage), type));
    } else {
      from = code.at(from, code.mul(code.add(blockBegin, first), stride), storage);
      more = loadLanes(from, stride, seen, type);
    }
    s = arith::AddFOp::create(b, loc, s, more);
  }
  return {s, seen};
}

/// Dropout's factor: 0 or 1 / (1 - rate).
Value AttentionGenerator::kept(Value key, Value first) {
  auto wide = VectorType::get({lanes}, b.getI64Type());
  int64_t stride = globalSizes.back();
  Value index = code.add(code.mul(code.add(blockBegin, first), stride), code.add(firstKey, key));
  index = code.add(index, numberBase);
  Value each = code.add(laneSteps(stride), code.splat(index, wide));
  VectorMath m(b, loc);
  int64_t numbers = 1;
  for (int64_t size : globalSizes)
    numbers *= size;
  Value u = m.uniform(each, seed, step, layer, site, numbers <= kShortIndices);
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
    // Keys that all of the queries see need no masks.
    Value plain = code.number(0);
    if (!mask && !bias && queries >= lanes)
      plain = code.most(code.least(keysSeenBy(first), keyEnd), plain);
    Value whole = code.less(code.add(first, lanes - 1), blockQueries);
    plain = code.select(whole, plain, code.number(0));
    auto larger = [&](Value s, Value than) {
      return code.select(arith::CmpFOp::create(b, loc, P::OGT, s, than), s, than);
    };
    Value top = before;
    if (!mask && !bias && queries >= lanes)
      top =
          code.loop(code.number(0), plain, 1, ValueRange{top}, [&](Value key, ValueRange carried) {
            return SmallVector<Value>{larger(loadVector(p, place(key)), carried[0])};
          })[0];
    top = code.loop(plain, keyEnd, 1, ValueRange{top}, [&](Value key, ValueRange carried) {
      auto [s, seen] = seenScore(loadVector(p, place(key)), key, first);
      s = code.select(seen, s, lowest);
      code.store(s, p, place(key), element);
      return SmallVector<Value>{larger(s, carried[0])};
    })[0];
    // Where nothing is seen yet the maximum is -inf, and e^(-inf - 0) is 0.
    Value blind = arith::CmpFOp::create(b, loc, P::OEQ, top, lowest);
    Value base = code.select(blind, splat(0.0), top);
    Value total = code.loop(code.number(0), keyEnd, 1, ValueRange{splat(0.0)},
                            [&](Value key, ValueRange carried) {
                              Value s = loadVector(p, place(key));
                              Value e = m.expBelow(arith::SubFOp::create(b, loc, s, base));
                              Value sum = arith::AddFOp::create(b, loc, carried[0], e);
                              if (rate > 0)
                                e = arith::MulFOp::create(b, loc, e, kept(key, first));
                              code.store(e, p, place(key), element);
                              return SmallVector<Value>{sum};
                            })[0];
    Value correction = m.expBelow(arith::SubFOp::create(b, loc, before, base));
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
             output, rowOf(output, queryDim, at), operand(output).stride(valueDim), values, factor,
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
      Value e = m.expBelow(arith::SubFOp::create(b, loc, s, base));
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
