//===- Steps.cpp - the random ops that a program is grown by --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "tests/generated/GeneratorImpl.h"

using namespace cleave;
using namespace cleave::testing;

std::optional<Val> Generator::smooth() {
  Val x = fit(take(), 2);
  Value v = x.v;
  switch (pick(9)) {
  case 0:
    return Val{unary<ExpOp>(b, loc, v), 8};
  case 1:
    return Val{unary<TanhOp>(b, loc, v), 1};
  case 2:
    return Val{unary<SigmoidOp>(b, loc, v), 1};
  case 3:
    return Val{unary<ErfOp>(b, loc, v), 1};
  case 4:
    return Val{unary<SinOp>(b, loc, v), 1};
  case 5:
    return Val{unary<CosOp>(b, loc, v), 1};
  case 6:
    return Val{unary<NegOp>(b, loc, v), x.bound};
  case 7:
    return Val{GeluOp::create(b, loc, v.getType(), v, b.getBoolAttr(chance(0.5))), 2};
  default:
    return Val{SiluOp::create(b, loc, v.getType(), v), 2};
  }
}

std::optional<Val> Generator::kinked() {
  Val x = jitter(take());
  Value v = x.v;
  switch (pick(4)) {
  case 0:
    return Val{ReluOp::create(b, loc, v.getType(), v), x.bound};
  case 1:
    return Val{unary<AbsOp>(b, loc, v), x.bound};
  default: {
    Val y = jitter(take());
    if (!fits(joinedWith(dims(v), dims(y.v))))
      return {};
    Value w = chance(0.5) ? binary<MaximumOp>(b, loc, v, y.v) : binary<MinimumOp>(b, loc, v, y.v);
    return Val{w, std::max(x.bound, y.bound)};
  }
  }
}

std::optional<Val> Generator::arithmetic() {
  Val x = take(), y = take();
  Names all = joinedWith(dims(x.v), dims(y.v));
  if (!fits(all))
    return {};
  switch (pick(3)) {
  case 0:
    return Val{binary<AddOp>(b, loc, x.v, y.v), x.bound + y.bound};
  case 1:
    return Val{binary<SubOp>(b, loc, x.v, y.v), x.bound + y.bound};
  default: {
    x = fit(x, 8);
    y = fit(y, 8);
    return Val{binary<MulOp>(b, loc, x.v, y.v), x.bound * y.bound};
  }
  }
}

std::optional<Val> Generator::withParam() {
  Val x = fit(take(), 8);
  Val p = param(some(dims(x.v), 0, 2));
  if (chance(0.5))
    return Val{binary<AddOp>(b, loc, x.v, p.v), x.bound + p.bound};
  return Val{binary<MulOp>(b, loc, x.v, p.v), x.bound * p.bound};
}

std::optional<Val> Generator::square() {
  Val x = fit(take(), 8);
  if (chance(0.7))
    return Val{binary<MulOp>(b, loc, x.v, x.v), x.bound * x.bound};
  return Val{binary<AddOp>(b, loc, x.v, x.v), 2 * x.bound};
}

std::optional<Val> Generator::linear() {
  Val x = take();
  Names own = dims(x.v);
  if (own.empty())
    return {};
  Names summed = some(own, 1, 2), made = newDims(own, 1, 2);
  Names batched = chance(0.25) ? some(without(own, summed), 0, 1) : Names();
  Names weight = joinedWith(joinedWith(summed, made), batched);
  shuffle(weight);
  Names result = joinedWith(without(own, summed), made);
  if (chance(0.3))
    shuffle(result);
  if (!fits(result) || !fits(weight))
    return {};
  Val y = contract(x, param(weight), result);
  if (chance(0.5)) { // a bias
    y = fit(y, 8);
    Val bias = param(made);
    y = {binary<AddOp>(b, loc, y.v, bias.v), y.bound + bias.bound};
  }
  return y;
}

std::optional<Val> Generator::product() {
  Val x = take(), y = take();
  Names shared, all = joinedWith(dims(x.v), dims(y.v));
  for (const std::string &name : dims(x.v))
    if (has(dims(y.v), name))
      shared.push_back(name);
  if (shared.empty())
    return {};
  Names result = without(all, some(shared, 1, 2));
  if (!fits(result))
    return {};
  return contract(x, y, result);
}

std::optional<Val> Generator::reduction() {
  Val x = take();
  Names over = some(dims(x.v), 1, 2);
  if (over.empty())
    return {};
  if (chance(0.6))
    return sumOver(x, over);
  x = jitter(x);
  SmallVector<StringRef> refs(over.begin(), over.end());
  return Val{cleave::reduce(b, loc, chance(0.7) ? Reduction::Max : Reduction::Min, x.v, refs),
             x.bound};
}

std::optional<Val> Generator::normed() {
  Val x = fit(take(), 4);
  Names own = dims(x.v), over = some(own, 1, 2);
  if (over.empty())
    return {};
  Value v = x.v;
  FloatAttr epsilon = b.getF64FloatAttr(0.25);
  switch (pick(3)) {
  case 0:
    return Val{SoftmaxOp::create(b, loc, v.getType(), v, list(over)), 1};
  case 1: {
    Val w = param(over), bias = param(over, false);
    return Val{LayerNormOp::create(b, loc, v.getType(), v, w.v, bias.v, list(over), epsilon), 20};
  }
  default: {
    Val w = param(over);
    return Val{RmsNormOp::create(b, loc, v.getType(), v, w.v, list(over), epsilon), 20};
  }
  }
}

/// Slice, pad, rename, another order.
std::optional<Val> Generator::moved() {
  Val x = take();
  Names own = dims(x.v);
  if (own.empty())
    return {};
  int at = pick(own.size());
  int64_t size = sizes[own[at]];
  Names after = own;
  switch (pick(4)) {
  case 0: {
    int64_t stride = 1 + pick(2), start = pick(size);
    int64_t most = (size - 1 - start) / stride + 1, taken = 1 + pick(most);
    after[at] = freshDim(taken);
    return Val{SliceOp::create(b, loc, type(after), x.v, own[at], start, stride), x.bound};
  }
  case 1: {
    int64_t stride = 1 + pick(2), start = pick(3);
    after[at] = freshDim(start + (size - 1) * stride + 1 + pick(2));
    if (!fits(after))
      return {};
    return Val{PadOp::create(b, loc, type(after), x.v, own[at], start, stride), x.bound};
  }
  case 2:
    after[at] = freshDim(size);
    return Val{RenameOp::create(b, loc, type(after), x.v), x.bound};
  default: {
    shuffle(after);
    Names more = newDims(own, 0, 1);
    after.insert(after.begin() + pick(after.size() + 1), more.begin(), more.end());
    if (!fits(after))
      return {};
    return Val{BroadcastOp::create(b, loc, type(after), x.v), x.bound};
  }
  }
}

std::optional<Val> Generator::joined() {
  Val x = take();
  Names own = dims(x.v);
  if (own.empty())
    return {};
  int at = pick(own.size());
  // The second part has the same dims, but along the joined one a size of its own.
  Names other = own;
  other[at] = freshDim(1 + pick(3));
  Val y = param(other, false);
  Names result = own;
  result[at] = freshDim(sizes[own[at]] + sizes[other[at]] + (chance(0.3) ? sizes[own[at]] : 0));
  if (!fits(result))
    return {};
  SmallVector<Value> parts{x.v, y.v};
  Names along{own[at], other[at]};
  if (sizes[result[at]] > sizes[own[at]] + sizes[other[at]]) {
    parts.push_back(x.v);
    along.push_back(own[at]);
  }
  return Val{
      ConcatOp::create(b, loc, type(result), parts, list(along), b.getStringAttr(result[at])),
      std::max(x.bound, y.bound)};
}

std::optional<Val> Generator::lookup() {
  if (chance(0.6)) {
    // An embedding.
    Names row = newDims({"vocab", "batch", "seq"}, 1, 2);
    Names table = row, where = some({"batch", "seq"}, 1, 2);
    table.insert(table.begin() + pick(table.size() + 1), "vocab");
    Names result = joinedWith(where, row);
    if (!fits(result) || !fits(table))
      return {};
    Val t = param(table);
    return Val{
        GatherOp::create(b, loc, type(result), t.v, ids(where, "vocab"), "vocab", ValueRange{}),
        t.bound};
  }
  Val x = take();
  Names own = dims(x.v);
  if (own.empty())
    return {};
  std::string along = oneOf(own);
  Names rest = without(own, {along});
  Names where = joinedWith(some(rest, 0, 1), newDims(own, 0, 1));
  Names result = joinedWith(rest, where);
  if (!fits(result))
    return {};
  return Val{GatherOp::create(b, loc, type(result), x.v, ids(where, along), along, ValueRange{}),
             x.bound};
}

std::optional<Val> Generator::scattered() {
  Val x = take();
  Names own = dims(x.v);
  if (own.empty() || has(own, "vocab"))
    return {};
  Names where = some(own, 1, 2);
  Names kept = without(own, where);
  if (chance(0.3))
    kept = joinedWith(kept, some(where, 0, 1));
  Names result = kept;
  result.insert(result.begin() + pick(result.size() + 1), "vocab");
  if (!fits(result))
    return {};
  double summed = static_cast<double>(count(where));
  return Val{
      ScatterAddOp::create(b, loc, type(result), x.v, ids(where, "vocab"), "vocab", ValueRange{}),
      x.bound * summed};
}

std::optional<Val> Generator::attend() {
  Val x = take();
  Names own = dims(x.v);
  for (const char *name : {"kv", "group", "depth", "vdim"})
    if (has(own, name))
      return {};
  if (own.size() < 2 || own.size() > 3)
    return {};
  Names order = own;
  shuffle(order);
  std::string query = order[0], summed = order[1];
  Names batch = without(own, {query, summed});
  std::string key = freshDim(sizes[query]);
  std::string value = chance(0.5) ? "depth" : "vdim";
  Names qDims = joinedWith(batch, {query, "kv", "group", "depth"});
  Names scores = joinedWith(batch, {"kv", "group", query, key});
  if (!fits(qDims) || scores.size() > 6 || count(scores) > 700)
    return {};
  compound = true;
  Val q = contract(x, param({summed, "kv", "group", "depth"}), qDims);
  auto onKeys = [&](const std::string &last) {
    Val y = contract(x, param({summed, "kv", last}), joinedWith(batch, {query, "kv", last}));
    return Val{RenameOp::create(b, loc, type(joinedWith(batch, {key, "kv", last})), y.v), y.bound};
  };
  Val k = onKeys("depth"), v = onKeys(value);
  q = fit(q, 1);
  k = fit(k, 1);
  v = fit(v, 4);
  Value mask, bias;
  SmallVector<Value> site;
  if (chance(0.3)) {
    Names over = joinedWith(some(batch, 0, 1), {key});
    NamedTensorType t = type(over, b.getI1Type());
    std::vector<int64_t> bits;
    for (int64_t i = 0; i < t.getNumElements(); ++i)
      bits.push_back(chance(0.75));
    mask = argument("m" + std::to_string(names++), "input", t,
                    Array::ofInts(shapeOf(t), std::move(bits)));
  }
  if (chance(0.3))
    bias = param(some({query, key, "kv", "group"}, 1, 3)).v;
  double rate = 0;
  if (chance(0.25)) {
    needRandom();
    site = {seed, stepNumber, layer};
    rate = 0.25;
  }
  Names resultDims = joinedWith(batch, {query, "kv", "group", value});
  Names lseDims = joinedWith(batch, {query, "kv", "group"});
  std::string path = "attend" + std::to_string(names++);
  SmallVector<int64_t> globalSizes;
  if (!site.empty()) {
    NamedTensorType all = type(joinedWith(batch, {"kv", "group", query, key}));
    globalSizes = SmallVector<int64_t>(all.getSizes());
  }
  int64_t shift = tensorOf(k.v).sizeOf(key) - tensorOf(q.v).sizeOf(query);
  auto op = AttentionOp::create(b, loc, type(resultDims), type(lseDims), q.v, k.v, v.v, mask, bias,
                                site, ValueRange{}, b.getStringAttr(query), b.getStringAttr(key),
                                b.getStringAttr("depth"), b.getStringAttr(value),
                                b.getBoolAttr(chance(0.5)), b.getI64IntegerAttr(shift),
                                b.getF64FloatAttr(0.5), b.getF64FloatAttr(rate),
                                b.getStringAttr(path),
                                b.getI64IntegerAttr(cleave::siteHash(StringRef(path))),
                                b.getDenseI64ArrayAttr(globalSizes));
  Val y{op.getResult(), v.bound / (1 - rate)};
  // The output projection, over heads and depth together.
  if (chance(0.7) && !has(batch, "width"))
    return contract(y, param({"kv", "group", value, "width"}), joinedWith(batch, {query, "width"}));
  return y;
}

std::optional<Val> Generator::dropped() {
  Val x = take();
  needRandom();
  std::string path = "drop" + std::to_string(names++);
  return Val{DropoutOp::create(b, loc, x.v.getType(), x.v, seed, stepNumber, layer,
                               b.getF64FloatAttr(0.25), b.getStringAttr(path),
                               b.getI64IntegerAttr(cleave::siteHash(StringRef(path)))),
             x.bound * 4 / 3};
}

std::optional<Val> Generator::rotated() {
  Val x = take();
  Names wide;
  for (const std::string &name : dims(x.v))
    if (sizes[name] >= 2)
      wide.push_back(name);
  if (wide.empty())
    return {};
  std::string dim = oneOf(wide);
  Names rest = without(dims(x.v), {dim});
  Value positions = ids(some(rest, 0, 2), dim);
  int64_t rotary = 2 * (1 + pick(sizes[dim] / 2));
  return Val{RopeOp::create(b, loc, x.v.getType(), x.v, positions, b.getStringAttr(dim),
                            b.getF64FloatAttr(100), b.getBoolAttr(chance(0.5)),
                            b.getI64IntegerAttr(rotary)),
             x.bound * 2};
}

std::optional<Val> Generator::masked() {
  Val x = jitter(take()), y = fit(take(), 8);
  Names all = joinedWith(dims(x.v), dims(y.v));
  if (!fits(all))
    return {};
  Value condition;
  Names own = dims(x.v);
  if (own.empty() || chance(0.5)) {
    condition = compare(b, loc, Predicate::GT, x.v, scalar(0));
  } else {
    // By position: below a diagonal or a limit.
    auto line = [&](const std::string &dim) -> Value {
      return IotaOp::create(b, loc, type({dim}, b.getI32Type()), dim, ValueRange{});
    };
    std::string first = oneOf(own), second = oneOf(own);
    Value limit = first == second ? constant(b, loc, type({}, b.getI32Type()), pick(sizes[first]))
                                  : line(second);
    condition = compare(b, loc, chance(0.5) ? Predicate::LE : Predicate::NE, line(first), limit);
  }
  return Val{select(b, loc, condition, x.v, y.v), std::max(x.bound, y.bound)};
}

/// Division, roots, logarithm and powers of what is at least 1.
std::optional<Val> Generator::quotient() {
  Val x = fit(take(), 4), y = fit(take(), 4);
  if (!fits(joinedWith(dims(x.v), dims(y.v))))
    return {};
  Value positive = binary<AddOp>(b, loc, binary<MulOp>(b, loc, y.v, y.v), scalar(1));
  switch (pick(5)) {
  case 0:
    return Val{binary<DivOp>(b, loc, x.v, positive), x.bound};
  case 1:
    return Val{unary<LogOp>(b, loc, positive), 4};
  case 2:
    return Val{unary<SqrtOp>(b, loc, positive), 5};
  case 3:
    return Val{unary<RsqrtOp>(b, loc, positive), 1};
  default:
    return Val{binary<PowOp>(b, loc, positive, scalar(1.5)), 80};
  }
}

std::optional<Val> Generator::plain() {
  Val x = take();
  switch (pick(3)) {
  case 0: {
    Value stopped = unary<StopGradientOp>(b, loc, x.v);
    return Val{binary<AddOp>(b, loc, stopped, x.v), 2 * x.bound};
  }
  case 1:
    return Val{unary<BarrierOp>(b, loc, x.v), x.bound};
  default: {
    Type other = element.isF64() ? Type(b.getF32Type()) : Type(b.getF64Type());
    Value there = cleave::cast(b, loc, x.v, other);
    there = binary<AddOp>(b, loc, there, there);
    return Val{cleave::cast(b, loc, there, element), 2 * x.bound};
  }
  }
}

std::optional<Val> Generator::pinned() {
  Val x = take();
  std::vector<StringAttr> axes(mesh.getNames().begin(), mesh.getNames().end());
  shuffle(axes);
  axes.resize(1);
  SmallVector<Attribute> rules;
  Names own = dims(x.v);
  if (chance(0.6) && !own.empty())
    rules.push_back(ShardRuleAttr::get(
        b.getContext(), {b.getArrayAttr({b.getArrayAttr({b.getStringAttr(oneOf(own))})})}, axes));
  return Val{PinOp::create(b, loc, x.v.getType(), x.v,
                           b.getStringAttr("p" + std::to_string(names++)), b.getArrayAttr(rules),
                           b.getStrArrayAttr({axes[0].getValue()})),
             x.bound};
}

std::optional<Val> Generator::repeated() {
  if (inBody || pool.empty())
    return {};
  SmallVector<Value> inits, stacked;
  std::vector<Val> carried;
  for (int i = 0, n = 1 + pick(2); i < n; ++i) {
    carried.push_back(fit(take(), 4));
    if (has(dims(carried.back().v), "layers"))
      return {};
    inits.push_back(carried.back().v);
  }
  for (int i = 0, n = pick(3); i < n; ++i) {
    Names own = i == 0 ? some(dims(carried[0].v), 1, 2) : newDims({"layers"}, 1, 2);
    own.insert(own.begin(), "layers");
    if (fits(own))
      stacked.push_back(param(own).v);
  }
  // The body first, apart, since its stacked outputs give the op's types.
  Block body;
  body.addArgument(type({}, b.getI32Type()), loc);
  std::vector<Val> outside = pool;
  Value outerLayer = layer;
  std::vector<Val> inner;
  for (Value v : inits)
    inner.push_back({body.addArgument(v.getType(), loc), 4});
  for (Value v : stacked)
    inner.push_back({body.addArgument(tensorOf(v).withoutDims({"layers"}), loc), 3});
  OpBuilder::InsertPoint before = b.saveInsertionPoint();
  b.setInsertionPointToEnd(&body);
  // Now and then the body reads a value from outside.
  pool.clear();
  if (chance(0.5) && !has(dims(outside.back().v), "layers"))
    pool.push_back(outside.back());
  pool.insert(pool.end(), inner.begin(), inner.end());
  layer = body.getArgument(0);
  inBody = true;
  for (int i = 0, n = 1 + pick(4); i < n; ++i)
    step(true);
  SmallVector<Value> yields;
  SmallVector<Type> outputs;
  for (size_t i = 0; i < inits.size(); ++i) {
    // Half of what came in, plus the body's value in the carried one's dims.
    Names own = dims(inits[i]);
    Val x = pool[pool.size() - 1 - std::min<size_t>(i, pool.size() - 1)];
    x = fit(sumOver(x, without(dims(x.v), own)), 2);
    Val half = scale(inner[i], 0.5);
    yields.push_back(inOrder({binary<AddOp>(b, loc, half.v, x.v), 4}, own).v);
  }
  double outputBound = 1;
  if (chance(0.4)) {
    Val x = fit(take(), 8);
    Names own = dims(x.v);
    if (x.v.getParentBlock() == &body && !has(own, "layers")) {
      yields.push_back(x.v);
      outputs.push_back(tensorOf(x.v).withLeadingDim("layers", sizes["layers"]));
      outputBound = x.bound;
    }
  }
  YieldOp::create(b, loc, yields);
  inBody = false;
  layer = outerLayer;
  pool = outside;
  b.restoreInsertionPoint(before);
  auto op =
      RepeatOp::create(b, loc, "layers", sizes["layers"], chance(0.2), inits, stacked, outputs);
  Block &own = op.getBody().front();
  for (auto [from, to] : llvm::zip_equal(body.getArguments(), own.getArguments()))
    from.replaceAllUsesWith(to);
  own.getOperations().splice(own.end(), body.getOperations());
  for (Value r : op.getResults().drop_front())
    pool.push_back({r, std::max(4.0, outputBound)});
  return Val{op.getResult(0), 4};
}

void Generator::step(bool inRepeat) {
  static const std::vector<std::pair<Step, int>> all = {
      {&Generator::smooth, 3},    {&Generator::kinked, 2},    {&Generator::arithmetic, 4},
      {&Generator::withParam, 4}, {&Generator::square, 2},    {&Generator::linear, 6},
      {&Generator::product, 2},   {&Generator::reduction, 2}, {&Generator::normed, 4},
      {&Generator::moved, 3},     {&Generator::joined, 1},    {&Generator::lookup, 2},
      {&Generator::scattered, 1}, {&Generator::attend, 3},    {&Generator::dropped, 2},
      {&Generator::rotated, 1},   {&Generator::masked, 2},    {&Generator::quotient, 2},
      {&Generator::plain, 1},     {&Generator::pinned, 1},    {&Generator::repeated, 3}};
  int total = 0;
  for (auto [s, weight] : all)
    total += weight;
  for (int attempt = 0; attempt < 20; ++attempt) {
    int at = pick(total);
    size_t i = 0;
    while (at >= all[i].second)
      at -= all[i++].second;
    if (inRepeat && all[i].first == &Generator::repeated)
      continue;
    if (std::optional<Val> made = (this->*all[i].first)()) {
      pool.push_back(*made);
      return;
    }
  }
}
