//===- ParamFlow.cpp - which values stand for a param ---------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/sharding/ParamFlow.h"

using namespace mlir;
using namespace cleave;

static bool sameDims(Value a, Value b) {
  auto x = dyn_cast<NamedTensorType>(a.getType()), y = dyn_cast<NamedTensorType>(b.getType());
  return x && y && x.getNames() == y.getNames() && x.getSizes() == y.getSizes();
}

bool cleave::isUpdate(Operation *op) {
  auto phase = op->getAttrOfType<StringAttr>(kPhase);
  return phase && phase.getValue() == "optimizer";
}

Sharding cleave::shardingOfPart(const Sharding &whole, NamedTensorType wholeType,
                                NamedTensorType part) {
  Sharding sharding;
  sharding.dims.resize(part.getRank());
  for (auto [d, name] : llvm::enumerate(part.getNames()))
    if (int64_t i = wholeType.indexOf(name);
        i >= 0 && wholeType.getSizes()[i] == part.getSizes()[d])
      sharding.dims[d] = whole.dims[i];
  return sharding;
}

ParamFlow::ParamFlow(func::FuncOp function) {
  auto ret = cast<func::ReturnOp>(function.getBody().front().getTerminator());
  auto text = [&](unsigned arg, StringRef name) {
    auto attr = function.getArgAttrOfType<StringAttr>(arg, name);
    return attr ? attr.getValue() : StringRef();
  };
  llvm::StringSet<> layers;
  function.walk([&](RepeatOp repeat) { layers.insert(repeat.getDim()); });
  llvm::StringMap<unsigned> byPath;
  for (BlockArgument arg : function.getArguments())
    if (text(arg.getArgNumber(), kRole) == "param") {
      byPath[text(arg.getArgNumber(), kName)] = static_cast<unsigned>(params.size());
      places[arg] = {Role::Param, static_cast<unsigned>(params.size())};
      params.push_back(arg);
      auto stacked = function.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), kStacked);
      int64_t &count = layerDims.emplace_back(stacked ? stacked.getInt() : 0);
      ArrayRef<StringAttr> names = tensorOf(arg).getNames();
      while (count < static_cast<int64_t>(names.size()) && layers.contains(names[count].getValue()))
        ++count;
    }
  gradientResults.resize(params.size());
  auto updated = [&](BlockArgument arg) {
    auto to = function.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), kDonatedTo);
    return to ? ret.getOperand(static_cast<unsigned>(to.getInt())) : Value();
  };
  for (auto [p, param] : llvm::enumerate(params))
    if (Value v = updated(param)) {
      update(v, param, static_cast<unsigned>(p));
      if (auto it = places.find(v); it != places.end() && it->second.role == Role::Update)
        it->second.role = Role::Renewed;
    }
  for (BlockArgument arg : function.getArguments()) {
    if (text(arg.getArgNumber(), kRole) != "state")
      continue;
    // Its new value is computed from some of those that its param's is.
    Value v = updated(arg);
    if (std::optional<unsigned> param = v ? paramOf(v) : std::nullopt;
        param && sameDims(arg, params[*param])) {
      places.insert({arg, {Role::State, *param}});
      update(v, params[*param], *param);
    }
  }
  // What else the optimizer computes of these: the gradient's norm.
  for (Operation &op : function.getBody().front()) {
    if (!isUpdate(&op))
      continue;
    for (Value result : op.getResults())
      for (Value operand : op.getOperands()) {
        auto it = places.find(operand);
        if (it == places.end() || it->second.role == Role::Param || !sameDims(operand, result))
          continue;
        places.insert({result, {Role::Update, it->second.param}});
        break;
      }
  }
  for (unsigned i = 0; i < function.getNumResults(); ++i)
    if (auto name = function.getResultAttrOfType<StringAttr>(i, kName))
      if (StringRef path = name.getValue(); path.consume_front("grad:"))
        if (auto param = byPath.find(path); param != byPath.end()) {
          gradientResults[param->second] = ret.getOperand(i);
          gradient(ret.getOperand(i), param->second, /*onlyResult=*/true);
        }
  views(function);
}

/// Of which param the optimizer's value is, by what it is computed from.
std::optional<unsigned> ParamFlow::paramOf(Value v) const {
  if (auto it = places.find(v); it != places.end())
    return it->second.param;
  Operation *op = v.getDefiningOp();
  if (op && isUpdate(op))
    for (Value operand : op->getOperands())
      if (sameDims(operand, v))
        if (std::optional<unsigned> param = paramOf(operand))
          return param;
  return std::nullopt;
}

/// The value and what it is computed from, back to the gradient.
void ParamFlow::update(Value v, BlockArgument of, unsigned param) {
  Operation *op = v.getDefiningOp();
  if (!op || !sameDims(v, of) || places.contains(v))
    return;
  if (!isUpdate(op))
    return gradient(v, param, /*onlyResult=*/false);
  places[v] = {Role::Update, param};
  for (Value operand : op->getOperands())
    update(operand, of, param);
}

void ParamFlow::gradient(Value v, unsigned param, bool onlyResult) {
  auto result = dyn_cast<OpResult>(v);
  if (!result || places.contains(v))
    return;
  auto keep = [&](Role role) {
    places[v] = {role, param};
    if (onlyResult)
      onlyResults.insert(v);
  };
  if (auto join = dyn_cast<JoinDimsOp>(result.getOwner())) {
    keep(Role::KeptGradient);
    return gradient(join.getOperand(), param, onlyResult);
  }
  auto repeat = dyn_cast<RepeatOp>(result.getOwner());
  if (!repeat) {
    keep(Role::Gradient);
    // A sum is taken before it is widened.
    if (auto wide = dyn_cast<CastOp>(result.getOwner()))
      gradient(wide.getOperand(), param, onlyResult);
    return;
  }
  if (result.getResultNumber() < repeat.getNumCarried())
    return; // summed from layer to layer: whole until it is complete
  keep(Role::KeptGradient);
  gradient(repeat.getYield().getOperand(result.getResultNumber()), param, onlyResult);
}

/// Layers' slices of params, of groups of layers, and of params that are read in another type only.
void ParamFlow::views(func::FuncOp function) {
  for (auto [p, param] : llvm::enumerate(params)) {
    if (!llvm::all_of(param.getUsers(), [](Operation *user) {
          return isa<CastOp, func::ReturnOp>(user) || isUpdate(user);
        }))
      continue;
    for (Operation *user : param.getUsers())
      if (isa<CastOp>(user) && !isUpdate(user))
        places.insert({user->getResult(0), {Role::Slice, static_cast<unsigned>(p)}});
  }
  auto isWhole = [&](Value v) {
    auto it = places.find(v);
    return it != places.end() && (it->second.role == Role::Param || it->second.role == Role::Slice);
  };
  for (auto split : function.getBody().front().getOps<SplitDimOp>())
    if (isWhole(split.getOperand()))
      places.insert({split.getResult(), {Role::Slice, places[split.getOperand()].param}});
  function.walk<WalkOrder::PreOrder>([&](RepeatOp repeat) {
    for (auto [slice, stack] : llvm::zip_equal(repeat.getSlices(), repeat.getStacked()))
      if (isWhole(stack))
        places.insert({slice, {Role::Slice, places[stack].param}});
  });
}
