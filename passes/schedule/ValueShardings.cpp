//===- ValueShardings.cpp - where the values of a program lie -------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/ValueShardings.h"

#include "passes/Location.h"
#include "passes/sharding/Sharding.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace cleave;

static std::string layoutText(const ShardingContext &context, NamedTensorType type) {
  Sharding sharding = context.of(type);
  std::string text;
  for (auto [name, atoms] : llvm::zip_equal(type.getNames(), sharding.dims)) {
    text += (text.empty() ? "" : ", ") + name.getValue().str();
    if (!atoms.empty())
      text += " by " + context.text(atoms);
  }
  text = "[" + text + "]";
  if (!sharding.unreduced.empty())
    text += ", partial over " + context.text(sharding.unreduced);
  return text;
}

static int64_t turnsAround(Operation *op) {
  int64_t turns = 1;
  for (auto repeat = op->getParentOfType<RepeatOp>(); repeat;
       repeat = repeat->getParentOfType<RepeatOp>())
    turns *= static_cast<int64_t>(repeat.getCount());
  return turns;
}

std::vector<ValueSharding> cleave::valueShardings(ModuleOp module) {
  std::vector<ValueSharding> list;
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return list;
  llvm::StringSet<> seen;
  auto add = [&](ValueSharding value) {
    std::string key = value.source + "\n" + value.phase + "\n" + value.name + "\n" + value.layout;
    if (!value.source.empty() && seen.insert(key).second)
      list.push_back(std::move(value));
  };
  for (func::FuncOp function : module.getOps<func::FuncOp>())
    for (BlockArgument argument : function.getArguments()) {
      auto name = function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), kName);
      auto role = function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), kRole);
      NamedTensorType type = tensorOf(argument);
      if (name && role && role.getValue() != "state" && type.getRank())
        add({locationText(argument.getLoc()), "forward", name.str(), layoutText(*context, type),
             1});
    }
  module.walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (isa<RepeatOp>(op))
      return;
    auto phase = op->getAttrOfType<StringAttr>(kPhase);
    for (Value result : op->getResults())
      if (auto type = dyn_cast<NamedTensorType>(result.getType()); type && type.getRank())
        add({locationText(op->getLoc()), phase ? phase.str() : "forward", "",
             layoutText(*context, type), turnsAround(op)});
  });
  return list;
}
