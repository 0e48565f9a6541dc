//===- Reshard.cpp - from one sharding to another, by collectives ---------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/sharding/Route.h"

using namespace mlir;
using namespace cleave;

Value cleave::reshard(OpBuilder &b, Location loc, const ShardingContext &context, Value value,
                      const Sharding &to, StringRef why, Attribute phase) {
  Sharding now = context.of(tensorOf(value));
  for (const RouteStep &step : routeOf(context, tensorOf(value), now, to, context.price())) {
    NamedTensorType type = tensorOf(value).withSharding(context.toAttr(step.after));
    auto nameOf = [&](unsigned dim) { return type.getNames()[dim].getValue(); };
    ArrayAttr axes = context.axes(step.atoms);
    Operation *op = nullptr;
    switch (step.kind) {
    case RouteStep::Kind::AllReduce:
      op = AllReduceOp::create(b, loc, type, value, now.reduction, axes);
      break;
    case RouteStep::Kind::ReduceScatter:
      op = ReduceScatterOp::create(b, loc, type, value, now.reduction, nameOf(step.dim), axes);
      break;
    case RouteStep::Kind::AllGather:
      op = AllGatherOp::create(b, loc, type, value, nameOf(step.dim), axes);
      break;
    case RouteStep::Kind::AllToAll:
      op = AllToAllOp::create(b, loc, type, value, nameOf(step.dim), nameOf(step.to), axes);
      break;
    case RouteStep::Kind::Slice:
      op = ShardSliceOp::create(b, loc, type, value, ValueRange{}, nameOf(step.dim), axes);
      break;
    }
    if (step.kind != RouteStep::Kind::Slice)
      op->setAttr(kRule, b.getStringAttr(why));
    if (phase)
      op->setAttr(kPhase, phase);
    value = op->getResult(0);
    now = step.after;
  }
  return value;
}
