//===- Expand.cpp - composite ops in terms of primitive ones --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/Dialect.h"

#include <cmath>
#include <limits>

using namespace mlir;
using namespace cleave;

namespace {

/// Short names for building arithmetic on one location.
struct Math {
  OpBuilder &b;
  Location loc;

  Value number(Value like, double value) {
    return constant(
        b, loc, NamedTensorType::get(b.getContext(), tensorOf(like).getElementType(), {}, {}, {}),
        value);
  }
  Value add(Value x, Value y) { return binary<AddOp>(b, loc, x, y); }
  Value sub(Value x, Value y) { return binary<SubOp>(b, loc, x, y); }
  Value mul(Value x, Value y) { return binary<MulOp>(b, loc, x, y); }
  Value div(Value x, Value y) { return binary<DivOp>(b, loc, x, y); }
  Value scale(Value x, double s) { return mul(x, number(x, s)); }
  Value plus(Value x, double s) { return add(x, number(x, s)); }
  Value sum(Value x, ArrayRef<StringRef> dims) { return reduce(b, loc, Reduction::Sum, x, dims); }
  Value max(Value x, ArrayRef<StringRef> dims) { return reduce(b, loc, Reduction::Max, x, dims); }
  template <typename Op> Value map(Value x) { return unary<Op>(b, loc, x); }
  Value inOrder(Value x, NamedTensorType type) { return broadcastTo(b, loc, x, type); }
};

SmallVector<StringRef> names(ArrayAttr dims) {
  return SmallVector<StringRef>(dims.getAsValueRange<StringAttr>());
}

double elements(NamedTensorType type, ArrayRef<StringRef> dims) {
  double n = 1;
  for (StringRef dim : dims)
    n *= static_cast<double>(type.sizeOf(dim));
  return n;
}

} // namespace

SmallVector<Value> LayerNormOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  auto dims = names(getDims());
  double n = elements(tensorOf(getX()), dims);
  Value mean = m.scale(m.sum(getX(), dims), 1 / n);
  Value centred = m.sub(getX(), mean);
  Value variance = m.scale(m.sum(m.mul(centred, centred), dims), 1 / n);
  Value rstd = m.map<RsqrtOp>(m.plus(variance, getEpsilon().convertToDouble()));
  Value y = m.add(m.mul(m.mul(centred, rstd), getWeight()), getBias());
  return {m.inOrder(y, getType())};
}

SmallVector<Value> RmsNormOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  auto dims = names(getDims());
  double n = elements(tensorOf(getX()), dims);
  Value square = m.scale(m.sum(m.mul(getX(), getX()), dims), 1 / n);
  Value rstd = m.map<RsqrtOp>(m.plus(square, getEpsilon().convertToDouble()));
  return {m.inOrder(m.mul(m.mul(getX(), rstd), getWeight()), getType())};
}

SmallVector<Value> SoftmaxOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  auto dims = names(getDims());
  // The shift cancels, so no gradient goes through it.
  Value top = m.map<StopGradientOp>(m.max(getX(), dims));
  Value e = m.map<ExpOp>(m.sub(getX(), top));
  return {m.inOrder(m.div(e, m.sum(e, dims)), getType())};
}

SmallVector<Value> GeluOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  Value x = getX();
  if (getTanh()) {
    // 0.5 x (1 + tanh u) = x sigmoid(2u), which keeps its relative accuracy for
    // negative x; u = sqrt(2/pi) (x + 0.044715 x^3).
    Value cube = m.mul(m.mul(x, x), x);
    Value u = m.scale(m.add(x, m.scale(cube, 0.044715)), 2 * std::sqrt(2 / M_PI));
    return {m.mul(x, m.map<SigmoidOp>(u))};
  }
  Value e = m.map<ErfOp>(m.scale(x, 1 / std::sqrt(2.0)));
  return {m.mul(m.scale(x, 0.5), m.plus(e, 1))};
}

SmallVector<Value> SiluOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  return {m.mul(getX(), m.map<SigmoidOp>(getX()))};
}

SmallVector<Value> ReluOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  Value zero = m.number(getX(), 0);
  return {select(b, getLoc(), compare(b, getLoc(), Predicate::GT, getX(), zero), getX(), zero)};
}

/// x / (1 - rate) where the site's random numbers are at least rate, else 0; as a
/// product, so that it is plain that dropout is linear in x.
static Value buildDropout(Math m, Value x, ValueRange random, double rate, StringAttr path,
                          uint64_t site) {
  if (rate == 0)
    return x;
  OpBuilder &b = m.b;
  NamedTensorType type = tensorOf(x);
  NamedTensorType bits =
      NamedTensorType::get(b.getContext(), b.getF32Type(), type.getNames(), type.getSizes(), {});
  Value u = RandomOp::create(b, m.loc, bits, random[0], random[1], random[2], ValueRange{}, path,
                             b.getI64IntegerAttr(static_cast<int64_t>(site)),
                             b.getDenseI64ArrayAttr(type.getSizes()));
  Value keep = compare(b, m.loc, Predicate::GE, u, m.number(u, rate));
  Value factor = select(b, m.loc, keep, m.number(x, 1 / (1 - rate)), m.number(x, 0));
  return m.mul(x, factor);
}

SmallVector<Value> DropoutOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  return {buildDropout(m, getX(), {getSeed(), getStep(), getLayer()}, getRate().convertToDouble(),
                       getPathAttr(), getSite())};
}

SmallVector<Value> RopeOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  NamedTensorType type = tensorOf(getX());
  int64_t axis = type.indexOf(getDim());
  int64_t whole = type.getSizes()[axis], rotary = static_cast<int64_t>(getRotary()),
          half = rotary / 2;
  std::string pairName = getDim().str() + ".pair";
  NamedTensorType part = type.withDim(axis, pairName, half);
  bool twisted = getInterleaved();
  auto take = [&](int64_t start, int64_t stride) -> Value {
    return SliceOp::create(b, getLoc(), part, getX(), getDim(), start, stride);
  };
  int64_t firstStart = 0, secondStart = twisted ? 1 : half, stride = twisted ? 2 : 1;
  Value x1 = take(firstStart, stride), x2 = take(secondStart, stride);
  // pos * base^(-2i/rotary), in f64 until the last step.
  Type f64 = b.getF64Type();
  NamedTensorType line =
      NamedTensorType::get(b.getContext(), b.getI32Type(), {b.getStringAttr(pairName)}, {half}, {});
  Value i =
      cleave::cast(b, getLoc(), IotaOp::create(b, getLoc(), line, pairName, ValueRange{}), f64);
  double logBase = std::log(getBase().convertToDouble());
  Value frequency = m.map<ExpOp>(m.scale(i, -2 * logBase / static_cast<double>(rotary)));
  Value angle = m.mul(cleave::cast(b, getLoc(), getPositions(), f64), frequency);
  Value cosine = cleave::cast(b, getLoc(), m.map<CosOp>(angle), type.getElementType());
  Value sine = cleave::cast(b, getLoc(), m.map<SinOp>(angle), type.getElementType());
  Value y1 = m.inOrder(m.sub(m.mul(x1, cosine), m.mul(x2, sine)), part);
  Value y2 = m.inOrder(m.add(m.mul(x2, cosine), m.mul(x1, sine)), part);
  auto put = [&](Value y, int64_t start, int64_t step) -> Value {
    return PadOp::create(b, getLoc(), type, y, tensorOf(y).getNames()[axis].getValue(), start,
                         step);
  };
  Value y = m.add(put(y1, firstStart, stride), put(y2, secondStart, stride));
  if (rotary < whole) {
    NamedTensorType rest = type.withDim(axis, getDim().str() + ".rest", whole - rotary);
    Value tail = SliceOp::create(b, getLoc(), rest, getX(), getDim(), rotary, 1);
    y = m.add(y, put(tail, rotary, 1));
  }
  return {y};
}

SmallVector<Value> ConcatOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  Value all;
  int64_t start = 0;
  for (auto [x, dim] : llvm::zip_equal(getInputs(), getDims().getAsValueRange<StringAttr>())) {
    NamedTensorType type = tensorOf(x);
    int64_t axis = type.indexOf(dim);
    int64_t size = type.getSizes()[axis];
    NamedTensorType whole = type.withDim(axis, getResultDim(), getType().sizeOf(getResultDim()));
    Value padded = PadOp::create(b, getLoc(), whole, x, dim, start, 1);
    all = all ? m.add(all, padded) : padded;
    start += size;
  }
  return {m.inOrder(all, getType())};
}

SmallVector<Value> CrossEntropyOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  Value logits = getLogits(), labels = getLabels();
  StringRef dim = getDim();
  int64_t classes = tensorOf(logits).sizeOf(dim);
  Type element = tensorOf(logits).getElementType();
  Value top = m.map<StopGradientOp>(m.max(logits, {dim}));
  Value shifted = m.sub(logits, top);
  Value lse = m.map<LogOp>(m.sum(m.map<ExpOp>(shifted), {dim}));
  NamedTensorType line =
      NamedTensorType::get(b.getContext(), b.getI32Type(), {b.getStringAttr(dim)}, {classes}, {});
  Value index = IotaOp::create(b, getLoc(), line, dim, ValueRange{});
  Value isTarget = compare(b, getLoc(), Predicate::EQ, labels, index);
  Value target = m.sum(
      m.inOrder(select(b, getLoc(), isTarget, shifted, m.number(logits, 0)), tensorOf(logits)),
      {dim});
  Value loss = m.sub(lse, target);
  double a = getSmoothing().convertToDouble();
  if (a != 0) {
    // -log softmax summed over all classes, over V.
    Value mean = m.scale(m.sum(shifted, {dim}), 1.0 / static_cast<double>(classes));
    loss = m.add(m.scale(loss, 1 - a), m.scale(m.sub(lse, mean), a));
  }
  NamedTensorType scalarIndex = NamedTensorType::get(b.getContext(), b.getI32Type(), {}, {}, {});
  Value ignore =
      constant(b, getLoc(), scalarIndex, static_cast<double>(static_cast<int64_t>(getIgnore())));
  Value valid = compare(b, getLoc(), Predicate::NE, labels, ignore);
  Value zero = m.number(logits, 0);
  SmallVector<StringRef> rows;
  for (StringAttr name : tensorOf(labels).getNames())
    rows.push_back(name);
  Value total = m.sum(select(b, getLoc(), valid, loss, zero), rows);
  Value count = m.sum(cleave::cast(b, getLoc(), valid, element), rows);
  // No valid label: loss 0 and zero gradients, never 0/0.
  count = binary<MaximumOp>(b, getLoc(), count, m.number(logits, 1));
  return {m.div(total, count)};
}

/// The kernel holds blocks of rows, so their length is bounded.
bool AttentionOp::hasKernel() {
  constexpr int64_t longestRow = 512; // on a thread's stack
  NamedTensorType q = tensorOf(getQuery()), v = tensorOf(getValue());
  Type element = q.getElementType();
  return (element.isF32() || element.isF64() || isShortFloat(element)) &&
         q.sizeOf(getDepthDim()) <= longestRow && v.sizeOf(getValueDim()) <= longestRow;
}

SmallVector<Value> AttentionOp::expand(OpBuilder &b) {
  Math m{b, getLoc()};
  Location loc = getLoc();
  NamedTensorType q = tensorOf(getQuery()), k = tensorOf(getKey());
  Type element = accumulatorOf(q.getElementType());
  StringRef queryDim = getQueryDim(), keyDim = getKeyDim();
  int64_t queries = q.sizeOf(queryDim), keys = k.sizeOf(keyDim);
  // Scores: q's dims without depth, query before key, last.
  SmallVector<StringAttr> scoreNames;
  SmallVector<int64_t> scoreSizes;
  for (auto [name, size] : llvm::zip_equal(q.getNames(), q.getSizes()))
    if (name.getValue() != getDepthDim() && name.getValue() != queryDim) {
      scoreNames.push_back(name);
      scoreSizes.push_back(size);
    }
  scoreNames.append({b.getStringAttr(queryDim), b.getStringAttr(keyDim)});
  scoreSizes.append({queries, keys});
  NamedTensorType scoreType =
      NamedTensorType::get(b.getContext(), element, scoreNames, scoreSizes, {});
  Value s = m.scale(ContractOp::create(b, loc, scoreType, getQuery(), getKey()),
                    getScale().convertToDouble());
  if (getBias())
    s = m.inOrder(m.add(s, cleave::cast(b, loc, getBias(), element)), scoreType);
  Value seen;
  if (getMask())
    seen = getMask();
  if (getCausal()) {
    auto line = [&](StringRef dim, int64_t size) -> Value {
      NamedTensorType type =
          NamedTensorType::get(b.getContext(), b.getI32Type(), {b.getStringAttr(dim)}, {size}, {});
      return IotaOp::create(b, loc, type, dim, ValueRange{});
    };
    Value row =
        m.plus(line(queryDim, queries), static_cast<double>(static_cast<int64_t>(getShift())));
    Value causal = compare(b, loc, Predicate::GE, row, line(keyDim, keys));
    seen = seen ? binary<AndOp>(b, loc, seen, causal) : causal;
  }
  // A row that sees nothing (by mask, or by a bias of -inf) has the maximum -inf:
  // shift by 0 there, and divide by 1, so that the row is 0 and so are its gradients.
  bool mayBeBlind = seen || getBias();
  Value lowest = m.number(s, -std::numeric_limits<double>::infinity());
  Value zero = m.number(s, 0);
  Value masked = seen ? m.inOrder(select(b, loc, seen, s, lowest), scoreType) : s;
  Value top = m.map<StopGradientOp>(m.max(masked, {keyDim}));
  if (mayBeBlind)
    top = select(b, loc, compare(b, loc, Predicate::EQ, top, lowest), zero, top);
  Value shifted = m.sub(s, top);
  Value e =
      m.map<ExpOp>(seen ? m.inOrder(select(b, loc, seen, shifted, lowest), scoreType) : shifted);
  Value total = m.sum(e, {keyDim});
  Value safe = total;
  if (mayBeBlind)
    safe = select(b, loc, compare(b, loc, Predicate::EQ, total, zero), m.number(s, 1), total);
  Value p = m.div(e, safe);
  if (!getRandom().empty())
    p = buildDropout(m, p, getRandom(), getRate().convertToDouble(), getPathAttr(), getSite());
  NamedTensorType resultType = llvm::cast<NamedTensorType>(getResult().getType());
  NamedTensorType sums = resultType.withSharding({}).withElementType(element);
  p = cleave::cast(b, loc, p, resultType.getElementType());
  Value y = ContractOp::create(b, loc, sums, p, getValue());
  y = cleave::cast(b, loc, y, resultType.getElementType());
  Value lse = m.inOrder(m.add(m.map<LogOp>(safe), top),
                        llvm::cast<NamedTensorType>(getLse().getType()).withSharding({}));
  return {y, lse};
}
