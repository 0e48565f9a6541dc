//===- Activity.h - which values depend on params ---------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"

namespace cleave {

/// Values that depend on a param through floats.
class Activity {
public:
  void mark(mlir::Value v) { active.insert(v); }
  bool operator()(mlir::Value v) const { return active.contains(v); }
  void replace(mlir::Value from, mlir::Value to) {
    if (active.erase(from))
      active.insert(to);
  }

  void visit(mlir::Block &block) {
    for (mlir::Operation &op : block)
      visit(&op);
  }

private:
  void visit(mlir::Operation *op) {
    if (auto repeat = llvm::dyn_cast<RepeatOp>(op)) {
      for (auto [slice, stack] : llvm::zip_equal(repeat.getSlices(), repeat.getStacked()))
        markIf(slice, (*this)(stack));
      // A carried value is active when it ever becomes so.
      for (bool changed = true; changed;) {
        changed = false;
        for (auto [arg, init] : llvm::zip_equal(repeat.getCarried(), repeat.getInits()))
          changed |= markIf(arg, (*this)(init));
        visit(repeat.getBody().front());
        YieldOp yield = repeat.getYield();
        for (unsigned i = 0; i < repeat.getNumCarried(); ++i)
          changed |= markIf(repeat.getCarried()[i], (*this)(yield.getOperand(i)));
      }
      for (auto [result, yielded] :
           llvm::zip_equal(repeat.getResults(), repeat.getYield().getOperands()))
        markIf(result, (*this)(yielded));
      for (unsigned i = 0; i < repeat.getNumCarried(); ++i)
        markIf(repeat.getResult(i), (*this)(repeat.getCarried()[i]));
      return;
    }
    if (llvm::isa<StopGradientOp>(op) || llvm::none_of(op->getOperands(), *this))
      return;
    for (mlir::Value r : op->getResults())
      markIf(r, true);
  }

  bool markIf(mlir::Value v, bool condition) {
    auto type = llvm::dyn_cast<NamedTensorType>(v.getType());
    return condition && type && type.isFloat() && active.insert(v).second;
  }

  llvm::DenseSet<mlir::Value> active;
};

} // namespace cleave
