//===- Optimizer.cpp - SGD and AdamW as IR --------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The gradients' norm comes first: it says how much they are clipped, and whether
// the step is taken at all. If it is not finite, every param and state stays as it
// is, AdamW's count of steps too.
//
//===----------------------------------------------------------------------===//
#include "passes/Passes.h"
#include "passes/differentiate/Differentiate.h"
#include "passes/sharding/Sharding.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/MapVector.h"

#include <cmath>
#include <limits>

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEADDOPTIMIZER
#include "passes/differentiate/Passes.h.inc"
} // namespace cleave

namespace {

/// Scalars that all params share, computed once in f64 and then cast.
struct Scalars {
  Value rate;        ///< sgd: lr
  Value stepSize;    ///< adamw: lr / (1 - beta1^t)
  Value rootCorrect; ///< adamw: 1 / sqrt(1 - beta2^t)
  Value finite;      ///< i1: no gradient is infinite or NaN
  Value factor;      ///< of all gradients: clips them, undoes the loss's scale; null: none
};

struct Arithmetic {
  OpBuilder &b;
  Location loc;

  NamedTensorType scalarType(Type element) {
    return NamedTensorType::get(b.getContext(), element, {}, {}, {});
  }
  Value number(Value like, double v) {
    return constant(b, loc, scalarType(tensorOf(like).getElementType()), v);
  }
  Value add(Value x, Value y) { return binary<AddOp>(b, loc, x, y); }
  Value sub(Value x, Value y) { return binary<SubOp>(b, loc, x, y); }
  Value mul(Value x, Value y) { return binary<MulOp>(b, loc, x, y); }
  Value div(Value x, Value y) { return binary<DivOp>(b, loc, x, y); }
  Value scale(Value x, double s) { return mul(x, number(x, s)); }
};

/// A param's decay: its group's, else the optimizer's, which spares norms and biases.
double decayOf(func::FuncOp gradients, unsigned param, const OptimizerOptions &options) {
  if (auto own = gradients.getArgAttrOfType<FloatAttr>(param, kDecay))
    return own.getValueAsDouble();
  return options.decayAll || !gradients.getArgAttr(param, kNoDecay) ? options.decay : 0;
}

/// Halved, down to 1, after a gradient that was not finite; doubled, up to 2^24, after so many
/// that were. And how many have been since.
SmallVector<Value> nextLossScale(Arithmetic m, Value finite, Value scale, Value steps,
                                 const OptimizerOptions &options) {
  OpBuilder &b = m.b;
  Value one = m.number(scale, 1), more = m.add(steps, one);
  Value full = compare(b, m.loc, Predicate::GE, more,
                       m.number(steps, static_cast<double>(options.lossScaleSteps)));
  Value twice = binary<MinimumOp>(b, m.loc, m.scale(scale, 2), m.number(scale, 0x1p24));
  Value half = binary<MaximumOp>(b, m.loc, m.scale(scale, 0.5), one);
  Value zero = m.number(steps, 0);
  return {select(b, m.loc, finite, select(b, m.loc, full, twice, scale), half),
          select(b, m.loc, finite, select(b, m.loc, full, zero, more), zero)};
}

} // namespace

FailureOr<func::FuncOp> cleave::addOptimizer(func::FuncOp gradients,
                                             const OptimizerOptions &options) {
  bool adam = options.kind == "adamw";
  if (!adam && options.kind != "sgd")
    return gradients.emitError() << "there is no optimizer '" << options.kind
                                 << "'; there are adamw and sgd";
  auto module = gradients->getParentOfType<ModuleOp>();
  if (Operation *old = module.lookupSymbol("train_step"))
    old->erase();
  MLIRContext *context = gradients.getContext();
  OpBuilder b(context);
  b.setInsertionPointAfter(gradients);
  Location loc = gradients.getLoc();

  SmallVector<unsigned> params;
  SmallVector<unsigned> others;
  int seed = -1, step = -1, scale = -1;
  for (unsigned i = 0; i < gradients.getNumArguments(); ++i) {
    auto role = gradients.getArgAttrOfType<StringAttr>(i, kRole);
    auto name = gradients.getArgAttrOfType<StringAttr>(i, kName);
    bool isParam = role && role.getValue() == "param";
    if (isParam && tensorOf(gradients.getArgument(i)).isFloat() &&
        !gradients.getArgAttr(i, kFrozen))
      params.push_back(i);
    else if (role && role.getValue() == "scalar" && name && name.getValue() == "seed")
      seed = i;
    else if (role && role.getValue() == "scalar" && name && name.getValue() == "step")
      step = i;
    else if (role && role.getValue() == "scalar" && name && name.getValue() == kLossScale)
      scale = i;
    else
      others.push_back(i);
  }
  unsigned numForward = gradients.getNumResults() - params.size();
  if (gradients.getNumResults() < params.size() + 1)
    return gradients.emitError() << "'" << gradients.getSymName() << "' gives no gradients";

  // Signature: params, states, inputs, seed, step, lr.
  SmallVector<Type> types;
  SmallVector<DictionaryAttr> attrs;
  auto addArgument = [&](Type type, SmallVector<NamedAttribute> list) {
    types.push_back(type);
    attrs.push_back(b.getDictionaryAttr(list));
  };
  auto pathOf = [&](unsigned i) {
    auto name = gradients.getArgAttrOfType<StringAttr>(i, kName);
    return name ? name.getValue().str() : "param" + std::to_string(i);
  };
  SmallVector<StringRef> states;
  if (adam)
    states = {"adam.m:", "adam.v:"};
  else if (options.momentum != 0)
    states = {"sgd.momentum:"};
  auto donated = [&](size_t result) {
    return b.getNamedAttr(kDonatedTo, b.getI64IntegerAttr(static_cast<int64_t>(result)));
  };
  for (auto [position, i] : llvm::enumerate(params)) {
    SmallVector<NamedAttribute> list(gradients.getArgAttrDict(i).getValue());
    list.push_back(donated(position));
    addArgument(gradients.getArgumentTypes()[i], list);
  }
  for (auto [s, prefix] : llvm::enumerate(states))
    for (auto [position, i] : llvm::enumerate(params)) {
      SmallVector<NamedAttribute> list{b.getNamedAttr(kName, b.getStringAttr(prefix + pathOf(i))),
                                       b.getNamedAttr(kRole, b.getStringAttr("state")),
                                       b.getNamedAttr(kInit, b.getStringAttr("zeros")),
                                       donated((1 + s) * params.size() + position)};
      // Moments live where their param does.
      for (StringRef attr : {StringRef(kPin), StringRef(kPinAxes), StringRef(kStacked)})
        if (Attribute value = gradients.getArgAttr(i, attr))
          list.push_back(b.getNamedAttr(attr, value));
      addArgument(gradients.getArgumentTypes()[i], list);
    }
  // The count of steps taken: one that is skipped does not count.
  size_t countArg = types.size();
  if (adam)
    addArgument(NamedTensorType::get(context, b.getF64Type(), {}, {}, {}),
                {b.getNamedAttr(kName, b.getStringAttr("adam.t")),
                 b.getNamedAttr(kRole, b.getStringAttr("state")),
                 b.getNamedAttr(kInit, b.getStringAttr("zeros")), donated(countArg)});
  size_t scaleArg = types.size();
  if (scale >= 0)
    for (auto [name, init] : {std::pair(kLossScale.str(), options.lossScale),
                              std::pair(kLossScale.str() + ".steps", 0.0)})
      addArgument(NamedTensorType::get(context, b.getF64Type(), {}, {}, {}),
                  {b.getNamedAttr(kName, b.getStringAttr(name)),
                   b.getNamedAttr(kRole, b.getStringAttr("state")),
                   b.getNamedAttr(kInit, b.getStringAttr("constant(" + std::to_string(init) + ")")),
                   donated(types.size())});
  size_t firstOther = types.size();
  for (unsigned i : others)
    addArgument(gradients.getArgumentTypes()[i],
                SmallVector<NamedAttribute>(gradients.getArgAttrDict(i).getValue()));
  auto scalar = [&](StringRef name, Type element) {
    addArgument(NamedTensorType::get(context, element, {}, {}, {}),
                {b.getNamedAttr(kName, b.getStringAttr(name)),
                 b.getNamedAttr(kRole, b.getStringAttr("scalar"))});
    return types.size() - 1;
  };
  size_t seedArg = scalar("seed", b.getI64Type());
  size_t stepArg = scalar("step", b.getI64Type());
  size_t lrArg = scalar("lr", b.getF64Type());

  auto function = func::FuncOp::create(b, loc, "train_step", b.getFunctionType(types, {}));
  function.setAllArgAttrs(attrs);
  Block *block = function.addEntryBlock();
  b.setInsertionPointToStart(block);

  // The body of the gradients, inlined.
  IRMapping map;
  auto becomes = [&](unsigned i, size_t position) {
    BlockArgument argument = block->getArgument(position);
    argument.setLoc(gradients.getArgument(i).getLoc());
    map.map(gradients.getArgument(i), argument);
  };
  for (auto [position, i] : llvm::enumerate(params))
    becomes(i, position);
  for (auto [position, i] : llvm::enumerate(others))
    becomes(i, firstOther + position);
  if (seed >= 0)
    map.map(gradients.getArgument(seed), block->getArgument(seedArg));
  if (step >= 0)
    map.map(gradients.getArgument(step), block->getArgument(stepArg));
  if (scale >= 0)
    map.map(gradients.getArgument(scale),
            cleave::cast(b, loc, block->getArgument(scaleArg), b.getF32Type()));
  for (Operation &op : gradients.getBody().front().without_terminator())
    b.clone(op, map);
  Operation *ret = gradients.getBody().front().getTerminator();
  auto resultOf = [&](unsigned i) { return map.lookupOrDefault(ret->getOperand(i)); };
  Operation *lastOfGradients = block->empty() ? nullptr : &block->back();

  // Squares that the plan leaves as partial sums over the same axes are added first: one
  // reduction for all of them.
  FailureOr<ShardingContext> sharding =
      ShardingContext::create(gradients->getParentOfType<ModuleOp>());
  if (failed(sharding))
    return failure();
  Type f64 = b.getF64Type();
  llvm::MapVector<Attribute, Value> norms;
  for (auto [position, i] : llvm::enumerate(params)) {
    Arithmetic m{b, gradients.getArgument(i).getLoc()}; // the param's declaration
    Value wide = cleave::cast(b, m.loc, resultOf(numForward + position), f64);
    NamedTensorType type = tensorOf(block->getArgument(position));
    SmallVector<StringRef> all;
    for (StringAttr name : type.getNames())
      all.push_back(name);
    Value square = reduce(b, m.loc, Reduction::Sum, m.mul(wide, wide), all);
    SmallVector<int> axes;
    auto layers = gradients.getArgAttrOfType<IntegerAttr>(i, kStacked);
    Sharding lives =
        sharding->zeroTarget(type, sharding->target(type), layers ? layers.getInt() : 0);
    for (const auto &dim : lives.dims)
      axes.append(dim.begin(), dim.end());
    llvm::sort(axes);
    Value &sum = norms[sharding->axes(axes)];
    sum = sum ? m.add(sum, square) : square;
  }
  Arithmetic m{b, loc};
  Value norm;
  for (auto &[axes, sum] : norms)
    norm = norm ? m.add(norm, sum) : sum;
  norm = unary<SqrtOp>(b, loc, norm);
  Value lossScale = scale >= 0 ? block->getArgument(scaleArg) : Value();
  if (lossScale)
    norm = m.div(norm, lossScale);
  Value lr = block->getArgument(lrArg);
  Scalars s{lr, {}, {}, {}, {}};
  s.finite =
      compare(b, loc, Predicate::LT, norm, m.number(norm, std::numeric_limits<double>::infinity()));
  if (options.clip > 0) {
    Value fits = m.div(m.number(norm, options.clip), m.add(norm, m.number(norm, 1e-6)));
    s.factor = binary<MinimumOp>(b, loc, fits, m.number(norm, 1));
  }
  if (lossScale)
    s.factor = m.div(s.factor ? s.factor : m.number(norm, 1), lossScale);
  Operation *lastOfNorm = &block->back();

  Value count;
  if (adam) {
    // t counts from 1. 1 - beta^t with beta^t = e^(t ln beta).
    Value before = block->getArgument(countArg), t = m.add(before, m.number(lr, 1));
    auto correction = [&](double beta) {
      Value power = unary<ExpOp>(b, loc, m.scale(t, std::log(beta)));
      return m.sub(m.number(lr, 1), power);
    };
    s.stepSize = m.div(lr, correction(options.beta1));
    s.rootCorrect = unary<RsqrtOp>(b, loc, correction(options.beta2));
    count = select(b, loc, s.finite, t, before);
  }
  SmallVector<Value> scales;
  if (lossScale)
    scales = nextLossScale(m, s.finite, lossScale, block->getArgument(scaleArg + 1), options);

  SmallVector<Value> newParams;
  SmallVector<SmallVector<Value>> newStates(states.size());
  for (auto [position, i] : llvm::enumerate(params)) {
    Value p = block->getArgument(position), g = resultOf(numForward + position);
    Arithmetic m{b, gradients.getArgument(i).getLoc()};
    Type element = tensorOf(p).getElementType();
    auto in = [&](Value v) { return cleave::cast(b, m.loc, v, element); };
    auto unlessSkipped = [&](Value now, Value before) {
      return select(b, m.loc, s.finite, now, before);
    };
    auto own = gradients.getArgAttrOfType<FloatAttr>(i, kRate);
    double factor = own ? own.getValueAsDouble() : 1;
    auto scaled = [&](Value rate) { return factor == 1 ? rate : m.scale(rate, factor); };
    if (s.factor)
      g = m.mul(g, in(s.factor));
    auto state = [&](size_t k) { return block->getArgument((1 + k) * params.size() + position); };
    auto setState = [&](size_t k, Value now) {
      newStates[k].push_back(unlessSkipped(now, state(k)));
    };
    Value update;
    if (adam) {
      Value m1 = m.add(m.scale(state(0), options.beta1), m.scale(g, 1 - options.beta1));
      Value v1 = m.add(m.scale(state(1), options.beta2), m.mul(m.scale(g, 1 - options.beta2), g));
      setState(0, m1);
      setState(1, v1);
      Value root = m.mul(unary<SqrtOp>(b, m.loc, v1), in(s.rootCorrect));
      Value step =
          m.div(m.mul(m1, in(scaled(s.stepSize))), m.add(root, m.number(root, options.epsilon)));
      Value base = p;
      if (double decay = decayOf(gradients, i, options); decay != 0)
        base = m.mul(p, in(m.sub(m.number(lr, 1), m.scale(lr, factor * decay))));
      update = m.sub(base, step);
    } else {
      Value direction = g;
      if (!states.empty()) {
        direction = m.add(m.scale(state(0), options.momentum), g);
        setState(0, direction);
      }
      update = m.sub(p, m.mul(direction, in(scaled(lr))));
    }
    newParams.push_back(unlessSkipped(update, p));
  }

  SmallVector<Value> results(newParams);
  SmallVector<DictionaryAttr> resultAttrs;
  auto named = [&](StringRef name) {
    resultAttrs.push_back(b.getDictionaryAttr({b.getNamedAttr(kName, b.getStringAttr(name))}));
  };
  for (unsigned i : params)
    named(pathOf(i));
  for (auto [k, list] : llvm::enumerate(newStates)) {
    llvm::append_range(results, list);
    for (unsigned i : params)
      named((states[k] + pathOf(i)).str());
  }
  if (adam) {
    results.push_back(count);
    named("adam.t");
  }
  for (auto [i, value] : llvm::enumerate(scales)) {
    results.push_back(value);
    named(kLossScale.str() + (i ? ".steps" : ""));
  }
  for (unsigned i = 0; i < numForward; ++i) {
    results.push_back(resultOf(i));
    auto attr = gradients.getResultAttrOfType<StringAttr>(i, kName);
    named(i == 0 ? "loss" : attr ? attr.getValue() : StringRef("result"));
  }
  results.push_back(norm);
  named("gradient_norm");
  func::ReturnOp::create(b, loc, results);
  function.setType(b.getFunctionType(types, SmallVector<Type>(ValueRange(results).getTypes())));
  function.setAllResultAttrs(resultAttrs);
  bool after = lastOfGradients == nullptr, ofNorm = true;
  for (Operation &op : block->without_terminator()) {
    if (after) {
      op.setAttr(kPhase, b.getStringAttr("optimizer"));
      if (op.getNumOperands()) // for profiles
        op.setAttr(kPart, b.getStringAttr(ofNorm ? "gradient_norm" : StringRef(options.kind)));
    }
    ofNorm &= &op != lastOfNorm;
    after |= &op == lastOfGradients;
  }
  return function;
}

namespace {
struct AddOptimizer : cleave::impl::CleaveAddOptimizerBase<AddOptimizer> {
  using CleaveAddOptimizerBase::CleaveAddOptimizerBase;
  void runOnOperation() override {
    auto target = getOperation().lookupSymbol<func::FuncOp>(function);
    if (!target) {
      getOperation().emitError() << "there is no function '" << function
                                 << "'; run cleave-differentiate first";
      return signalPassFailure();
    }
    OptimizerOptions options;
    options.kind = kind;
    options.momentum = momentum;
    options.beta1 = beta1;
    options.beta2 = beta2;
    options.epsilon = epsilon;
    options.decay = decay;
    options.decayAll = decayAll;
    options.clip = clip;
    options.lossScale = lossScale;
    options.lossScaleSteps = lossScaleSteps;
    if (failed(addOptimizer(target, options)))
      signalPassFailure();
  }
};
} // namespace
