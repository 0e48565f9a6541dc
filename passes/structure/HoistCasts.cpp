//===- HoistCasts.cpp - cleave-hoist-param-casts --------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/structure/HoistCasts.h"
#include "ir/Dialect.h"
#include "passes/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEHOISTPARAMCASTS
#include "passes/structure/Passes.h.inc"
} // namespace cleave

static bool isParam(func::FuncOp function, Value v) {
  auto arg = dyn_cast<BlockArgument>(v);
  if (!arg || arg.getOwner() != &function.getBody().front())
    return false;
  auto role = function.getArgAttrOfType<StringAttr>(arg.getArgNumber(), kRole);
  return role && role.getValue() == "param";
}

LogicalResult cleave::hoistParamCasts(ModuleOp module) {
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function.isExternal())
      continue;
    llvm::DenseMap<std::pair<Value, Type>, Value> copies;
    for (RepeatOp repeat : llvm::to_vector(function.getBody().front().getOps<RepeatOp>())) {
      unsigned carried = repeat.getNumCarried();
      for (unsigned i = 0, count = repeat.getStacked().size(); i < count; ++i) {
        Value param = repeat.getStacked()[i];
        BlockArgument slice = repeat.getSlices()[i];
        llvm::MapVector<Type, SmallVector<CastOp>> casts; // by their type
        for (Operation *user : slice.getUsers())
          if (auto op = dyn_cast<CastOp>(user); op && isParam(function, param))
            casts[op.getType()].push_back(op);
        for (auto &[type, ops] : casts) {
          Type element = cast<NamedTensorType>(type).getElementType();
          Value &copy = copies[{param, element}];
          if (!copy) {
            OpBuilder b(repeat);
            copy = CastOp::create(b, ops[0].getLoc(), tensorOf(param).withElementType(element),
                                  param, ops[0].getPartial(), ops[0].getWideGradient());
          }
          repeat.getStackedMutable().append(copy);
          Value own = repeat.getBody().addArgument(type, ops[0].getLoc());
          for (CastOp op : ops) {
            op.replaceAllUsesWith(own);
            op.erase();
          }
        }
      }
      // A slice that nothing reads any more would have a gradient of zeros.
      for (unsigned i = repeat.getStacked().size(); i-- > 0;)
        if (isParam(function, repeat.getStacked()[i]) && repeat.getSlices()[i].use_empty()) {
          repeat.getStackedMutable().erase(i);
          repeat.getBody().eraseArgument(1 + carried + i);
        }
    }
  }
  return success();
}

namespace {
struct HoistParamCasts : cleave::impl::CleaveHoistParamCastsBase<HoistParamCasts> {
  void runOnOperation() override {
    if (failed(hoistParamCasts(getOperation())))
      signalPassFailure();
  }
};
} // namespace
