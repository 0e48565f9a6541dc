//===- Generator.cpp - random programs, meshes and plans ------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A program is grown op by op from a pool of values that all stay available, so
// values fan out by themselves. Each value carries a bound of its size: before
// an op that could overflow or lose digits, it is scaled by a power of two.
//
// Ops with a jump or a kink (max, compare, relu) get operands to which an input of
// odd reals is added: otherwise integers make ties, and which side of a tie a
// sharded sum falls on is rounding.
//
//===----------------------------------------------------------------------===//
#include "tests/generated/GeneratorImpl.h"

using namespace cleave;
using namespace cleave::testing;

// As passes/sharding reads them.
static constexpr llvm::StringLiteral kPin = "cleave.pin", kPinAxes = "cleave.pin_axes";

//===----------------------------------------------------------------------===//
// Types and arguments
//===----------------------------------------------------------------------===//

NamedTensorType Generator::type(const Names &wanted, Type elementType) {
  SmallVector<StringAttr> attrs;
  SmallVector<int64_t> extents;
  for (const std::string &name : wanted) {
    attrs.push_back(b.getStringAttr(name));
    extents.push_back(sizes.at(name));
  }
  return NamedTensorType::get(b.getContext(), elementType, attrs, extents, {});
}

Names Generator::dims(Value v) const {
  Names out;
  for (StringAttr name : tensorOf(v).getNames())
    out.push_back(name.str());
  return out;
}

int64_t Generator::count(const Names &list) const {
  int64_t n = 1;
  for (const std::string &name : list)
    n *= sizes.at(name);
  return n;
}

std::string Generator::freshDim(int64_t size) {
  std::string name = "d" + std::to_string(names++);
  sizes[name] = size;
  return name;
}

Names Generator::newDims(const Names &besides, int64_t least, int64_t most) {
  return some(without(baseDims, besides), least, most);
}

ArrayAttr Generator::list(const Names &dims) {
  SmallVector<StringRef> refs(dims.begin(), dims.end());
  return b.getStrArrayAttr(refs);
}

Value Generator::argument(const std::string &name, const char *role, NamedTensorType t, Array value,
                          int64_t range, StringRef rangeDim, bool ignored) {
  BlockArgument arg = entry->addArgument(t, loc);
  args.push_back({arg, name, role, std::move(value), range, rangeDim.str(), ignored});
  return arg;
}

Val Generator::param(const Names &wanted, bool mayTie) {
  // Tied: the same param again.
  if (mayTie && chance(0.35))
    for (const Val &p : params)
      if (dims(p.v) == wanted)
        return p;
  NamedTensorType t = type(wanted);
  std::vector<double> values;
  for (int64_t i = 0; i < t.getNumElements(); ++i)
    values.push_back((1 + pick(3)) * (chance(0.5) ? 1 : -1));
  Value v = argument("w" + std::to_string(names++), "param", t,
                     Array::ofReals(shapeOf(t), std::move(values)));
  params.push_back({v, 3});
  return params.back();
}

/// An input of reals in (0.5, 2.5).
Val Generator::fixed(const Names &wanted) {
  NamedTensorType t = type(wanted);
  std::vector<double> values;
  for (int64_t i = 0; i < t.getNumElements(); ++i)
    values.push_back(0.5 + 2 * (static_cast<double>(random() >> 11) * 0x1p-53));
  return {argument("x" + std::to_string(names++), "input", t,
                   Array::ofReals(shapeOf(t), std::move(values))),
          2.5};
}

Val Generator::jitter(Val x) {
  x = fit(x, 4);
  Val odd = scale(fixed(dims(x.v)), 0.125);
  return {binary<AddOp>(b, loc, x.v, odd.v), x.bound + odd.bound};
}

Value Generator::ids(const Names &wanted, const std::string &rangeDim, bool ignored) {
  NamedTensorType t = type(wanted, b.getI32Type());
  std::vector<int64_t> values;
  for (int64_t i = 0; i < t.getNumElements(); ++i)
    values.push_back(ignored && chance(0.25) ? -100 : pick(sizes[rangeDim]));
  return argument("i" + std::to_string(names++), "input", t,
                  Array::ofInts(shapeOf(t), std::move(values)), sizes[rangeDim], rangeDim, ignored);
}

void Generator::needRandom() {
  if (seed)
    return;
  NamedTensorType t = type({}, b.getI64Type());
  seed = argument("seed", "scalar", t, Array::ofInts({}, {1234567 + pick(1000)}));
  stepNumber = argument("step", "scalar", t, Array::ofInts({}, {pick(100)}));
}

//===----------------------------------------------------------------------===//
// Building blocks
//===----------------------------------------------------------------------===//

Val Generator::fit(Val x, double limit) {
  double factor = 1;
  while (x.bound * factor > limit)
    factor /= 2;
  return factor == 1 ? x : scale(x, factor);
}

/// Contracts what both have and the result lacks.
Val Generator::contract(Val x, Val y, const Names &result) {
  x = fit(x, 4);
  y = fit(y, 4);
  int64_t summed = 1;
  for (const std::string &name : dims(x.v))
    if (!has(result, name))
      summed *= sizes[name];
  Value v = ContractOp::create(b, loc, type(result), x.v, y.v);
  return {v, x.bound * y.bound * static_cast<double>(summed)};
}

Val Generator::sumOver(Val x, const Names &over) {
  SmallVector<StringRef> refs(over.begin(), over.end());
  double n = static_cast<double>(count(over));
  return {cleave::reduce(b, loc, Reduction::Sum, x.v, refs), x.bound * n};
}

/// A value of the pool, most often a young one.
Val Generator::take() {
  size_t i = pool.size() - 1;
  while (i > 0 && chance(0.45))
    --i;
  return pool[i];
}

//===----------------------------------------------------------------------===//
// Mesh, plan, loss
//===----------------------------------------------------------------------===//

void Generator::makeMesh() {
  SmallVector<StringAttr> axes{b.getStringAttr("tp")};
  SmallVector<int64_t> extents{1 + pick(4)};
  if (chance(0.5)) {
    axes = {b.getStringAttr("dp"), b.getStringAttr("tp")};
    extents = {1 + pick(3), 1 + pick(4)};
  } else if (extents[0] == 1 && chance(0.8)) {
    extents[0] = 2 + pick(3);
  }
  mesh = MeshAttr::get(b.getContext(), axes, extents);
}

ShardRuleAttr Generator::rule(const std::vector<StringAttr> &axes) {
  SmallVector<ArrayAttr> alternatives;
  auto alternative = [&](int64_t most) {
    SmallVector<Attribute> dimList;
    for (const std::string &name : some(baseDims, 1, most))
      dimList.push_back(b.getArrayAttr({b.getStringAttr(name)}));
    if (compound && chance(0.8)) {
      // heads = kv * group, kv major: its atoms share the axis.
      llvm::erase_if(dimList, [&](Attribute a) {
        StringRef name = cast<StringAttr>(cast<ArrayAttr>(a)[0]).getValue();
        return name == "kv" || name == "group";
      });
      dimList.push_back(b.getArrayAttr({b.getStringAttr("kv"), b.getStringAttr("group")}));
    }
    alternatives.push_back(b.getArrayAttr(dimList));
  };
  alternative(3);
  if (chance(0.3))
    alternative(1);
  return ShardRuleAttr::get(b.getContext(), alternatives, axes);
}

void Generator::makePlan() {
  SmallVector<Attribute> rules;
  std::vector<StringAttr> axes(mesh.getNames().begin(), mesh.getNames().end());
  if (axes.size() == 2 && chance(0.2)) {
    shuffle(axes);
    rules.push_back(rule(axes));
  } else {
    for (StringAttr axis : axes)
      for (int i = 0, n = chance(0.25) ? 2 : 1; i < n; ++i)
        rules.push_back(rule({axis}));
  }
  (*module)->setAttr(kMeshAttr, mesh);
  (*module)->setAttr(kPlanAttr, b.getArrayAttr(rules));
  (*module)->setAttr(kPlanName, b.getStringAttr("random"));
}

/// `at NAME: ...` on a param.
void Generator::pinParams() {
  for (auto [i, arg] : llvm::enumerate(args)) {
    if (arg.role != "param" || !chance(0.08))
      continue;
    StringAttr axis = mesh.getNames()[pick(mesh.getNames().size())];
    Names own = dims(function.getArgument(i));
    SmallVector<Attribute> rules;
    if (chance(0.6) && !own.empty())
      rules.push_back(ShardRuleAttr::get(
          b.getContext(), {b.getArrayAttr({b.getArrayAttr({b.getStringAttr(oneOf(own))})})},
          {axis}));
    function.setArgAttr(i, kPin, b.getArrayAttr(rules));
    function.setArgAttr(i, kPinAxes, b.getStrArrayAttr({axis.getValue()}));
  }
}

/// `zero LEVEL over AXES`, also over axes that split more than data: the frontend refuses
/// these, the passes need not.
void Generator::makeZero() {
  if (!chance(0.4))
    return;
  std::vector<StringAttr> axes(mesh.getNames().begin(), mesh.getNames().end());
  if (axes.size() == 2 && chance(0.6))
    axes.erase(axes.begin() + pick(2));
  (*module)->setAttr(kZeroAttr,
                     ZeroAttr::get(b.getContext(), 1 + pick(3), axes, /*offload=*/false));
  for (auto [i, arg] : llvm::enumerate(args))
    if (Names own = dims(function.getArgument(i));
        arg.role == "param" && !own.empty() && own.front() == "layers" && chance(0.8))
      function.setArgAttr(i, kStacked, b.getI64IntegerAttr(1));
}

Value Generator::makeLoss() {
  Value loss;
  auto add = [&](Value term) { loss = loss ? binary<AddOp>(b, loc, loss, term) : term; };
  int terms = 0;
  for (size_t i = pool.size(); i-- > 0 && terms < 3;) {
    Val x = fit(pool[i], 4);
    // What nothing reads must count; what is read may.
    if (!pool[i].v.use_empty() && terms > 0 && !chance(0.3))
      continue;
    ++terms;
    Names own = dims(x.v);
    if (!own.empty() && chance(0.3)) {
      std::string classes = oneOf(own);
      Value labels = ids(without(own, {classes}), classes, true);
      add(CrossEntropyOp::create(b, loc, type({}), x.v, labels, b.getStringAttr(classes),
                                 b.getI64IntegerAttr(-100),
                                 b.getF64FloatAttr(chance(0.3) ? 0.1 : 0.0)));
      continue;
    }
    Value weighted = binary<MulOp>(b, loc, x.v, fixed(own).v);
    add(sumOver({weighted, 1}, own).v);
  }
  // Some param must reach the loss.
  Val p = param({"width"}, false);
  add(sumOver({binary<MulOp>(b, loc, p.v, p.v), 1}, {"width"}).v);
  return loss;
}

func::FuncOp Generator::finish(ArrayRef<Value> results) {
  auto end = func::ReturnOp::create(b, loc, results);
  // Params first, then inputs, then scalars.
  std::vector<Arg> ordered;
  for (StringRef role : {"param", "input", "scalar"})
    for (const Arg &arg : args)
      if (arg.role == role)
        ordered.push_back(arg);
  args = std::move(ordered);
  unsigned old = entry->getNumArguments();
  SmallVector<Type> types, resultTypes;
  for (Arg &arg : args) {
    BlockArgument moved = entry->addArgument(arg.value.getType(), loc);
    arg.value.replaceAllUsesWith(moved);
    types.push_back(moved.getType());
  }
  entry->eraseArguments(0, old);
  for (Value v : end.getOperands()) // an argument among them has just been replaced
    resultTypes.push_back(v.getType());
  function.setType(FunctionType::get(b.getContext(), types, resultTypes));
  for (auto [i, arg] : llvm::enumerate(args)) {
    function.setArgAttr(i, kName, b.getStringAttr(arg.name));
    function.setArgAttr(i, kRole, b.getStringAttr(arg.role));
    if (arg.range) {
      function.setArgAttr(i, kRange, b.getI64IntegerAttr(arg.range));
      function.setArgAttr(i, kRangeDim, b.getStringAttr(arg.rangeDim));
      if (arg.ignored)
        function.setArgAttr(i, kIgnore, b.getI64IntegerAttr(-100));
    }
  }
  for (unsigned i = 0; i < results.size(); ++i)
    function.setResultAttr(i, kName, b.getStringAttr("result" + std::to_string(i)));
  return function;
}

Generated Generator::make(int limit) {
  planned();
  if (limit >= 0)
    steps = std::min(steps, limit);
  element = chance(0.8) ? Type(b.getF64Type()) : Type(b.getF32Type());
  // Small and often uneven.
  for (auto [name, most] : {std::pair{"batch", 5},
                            {"seq", 5},
                            {"width", 6},
                            {"ffn", 7},
                            {"kv", 4},
                            {"group", 3},
                            {"depth", 3},
                            {"vdim", 3},
                            {"vocab", 7},
                            {"layers", 3}}) {
    // A dim of size 1 is a case of its own, but hides faults.
    sizes[name] = chance(0.12) ? 1 : 2 + pick(most - 1);
    if (std::string(name) != "layers")
      baseDims.push_back(name);
  }
  makeMesh();
  module = ModuleOp::create(loc);
  b.setInsertionPointToEnd(module->getBody());
  function = func::FuncOp::create(b, loc, "loss", FunctionType::get(b.getContext(), {}, {}));
  entry = function.addEntryBlock();
  b.setInsertionPointToEnd(entry);
  layer = constant(b, loc, type({}, b.getI32Type()), 0);
  Names first = some({"batch", "seq", "width"}, 2, 3);
  pool.push_back(chance(0.5) ? fixed(first) : param(first));
  for (int i = 0; i < steps; ++i)
    step(false);
  SmallVector<Value> results{makeLoss()};
  for (int i = 0, n = pick(3); i < n; ++i)
    results.push_back(take().v);
  makePlan();
  finish(results);
  pinParams();
  makeZero();
  Generated out;
  for (Arg &arg : args)
    out.args.push_back(arg.array);
  out.module = std::move(module);
  return out;
}

Generated cleave::testing::generate(uint64_t seed, int steps) {
  return Generator(seed).make(steps);
}

int cleave::testing::stepsOf(uint64_t seed) { return Generator(seed).planned(); }
