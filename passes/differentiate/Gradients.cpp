//===- Gradients.cpp - the gradient of each primitive op ------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/differentiate/Differentiate.h"

#include "llvm/ADT/TypeSwitch.h"

#include <cmath>

using namespace mlir;
using namespace cleave;

namespace {

struct GradientBuilder {
  OpBuilder &b;
  Location loc;
  function_ref<bool(Value)> isActive;
  Accumulate accumulate;
  Value g;                ///< gradient of the first result
  ArrayRef<Value> others; ///< of the others; null: zero

  Value number(Value like, double value) {
    return constant(
        b, loc, NamedTensorType::get(b.getContext(), tensorOf(like).getElementType(), {}, {}, {}),
        value);
  }
  Value add(Value x, Value y) { return binary<AddOp>(b, loc, x, y); }
  Value sub(Value x, Value y) { return binary<SubOp>(b, loc, x, y); }
  Value mul(Value x, Value y) { return binary<MulOp>(b, loc, x, y); }
  Value div(Value x, Value y) { return binary<DivOp>(b, loc, x, y); }
  Value neg(Value x) { return unary<NegOp>(b, loc, x); }
  Value scale(Value x, double s) { return mul(x, number(x, s)); }
  Value where(Predicate p, Value x, Value y, Value a, Value c) {
    return select(b, loc, compare(b, loc, p, x, y), a, c);
  }
  /// The gradient is only built when somebody needs it.
  void give(Value operand, function_ref<Value()> build) {
    if (isActive(operand))
      accumulate(operand, build());
  }

  LogicalResult visit(Operation *op);
};

} // namespace

LogicalResult GradientBuilder::visit(Operation *op) {
  return llvm::TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](AddOp o) {
        give(o.getLhs(), [&] { return g; });
        give(o.getRhs(), [&] { return g; });
        return success();
      })
      .Case([&](SubOp o) {
        give(o.getLhs(), [&] { return g; });
        give(o.getRhs(), [&] { return neg(g); });
        return success();
      })
      .Case([&](MulOp o) {
        give(o.getLhs(), [&] { return mul(g, o.getRhs()); });
        give(o.getRhs(), [&] { return mul(g, o.getLhs()); });
        return success();
      })
      .Case([&](DivOp o) {
        // d(x/y) = dx / y - (x/y) dy / y
        give(o.getLhs(), [&] { return div(g, o.getRhs()); });
        give(o.getRhs(), [&] { return neg(div(mul(g, o.getResult()), o.getRhs())); });
        return success();
      })
      .Case<MaximumOp, MinimumOp>([&](auto o) {
        // Where both are equal, the left side gets it all.
        Predicate p = isa<MaximumOp>(op) ? Predicate::GE : Predicate::LE;
        Value x = o.getLhs(), y = o.getRhs(), zero = number(g, 0);
        give(x, [&] { return where(p, x, y, g, zero); });
        give(y, [&] { return where(p, x, y, zero, g); });
        return success();
      })
      .Case([&](PowOp o) {
        Value x = o.getLhs(), y = o.getRhs();
        give(x, [&] {
          Value less = PowOp::create(b, loc, o.getType(), x, sub(y, number(y, 1)));
          return mul(g, mul(y, less));
        });
        give(y, [&] { return mul(g, mul(o.getResult(), unary<LogOp>(b, loc, x))); });
        return success();
      })
      .Case([&](NegOp o) {
        give(o.getOperand(), [&] { return neg(g); });
        return success();
      })
      .Case([&](AbsOp o) {
        Value x = o.getOperand();
        give(x, [&] {
          Value zero = number(x, 0);
          Value falling = where(Predicate::LT, x, zero, neg(g), zero);
          return where(Predicate::GT, x, zero, g, falling);
        });
        return success();
      })
      .Case([&](ExpOp o) {
        give(o.getOperand(), [&] { return mul(g, o.getResult()); });
        return success();
      })
      .Case([&](LogOp o) {
        give(o.getOperand(), [&] { return div(g, o.getOperand()); });
        return success();
      })
      .Case([&](SqrtOp o) {
        give(o.getOperand(), [&] { return div(scale(g, 0.5), o.getResult()); });
        return success();
      })
      .Case([&](RsqrtOp o) {
        // d x^(-1/2) = -1/2 x^(-3/2)
        Value r = o.getResult();
        give(o.getOperand(), [&] { return mul(scale(g, -0.5), mul(r, mul(r, r))); });
        return success();
      })
      .Case([&](TanhOp o) {
        Value y = o.getResult();
        give(o.getOperand(), [&] { return mul(g, sub(number(y, 1), mul(y, y))); });
        return success();
      })
      .Case([&](SigmoidOp o) {
        Value y = o.getResult();
        give(o.getOperand(), [&] { return mul(g, mul(y, sub(number(y, 1), y))); });
        return success();
      })
      .Case([&](ErfOp o) {
        Value x = o.getOperand();
        give(x, [&] {
          Value bell = unary<ExpOp>(b, loc, neg(mul(x, x)));
          return mul(g, scale(bell, 2 / std::sqrt(M_PI)));
        });
        return success();
      })
      .Case([&](SinOp o) {
        give(o.getOperand(), [&] { return mul(g, unary<CosOp>(b, loc, o.getOperand())); });
        return success();
      })
      .Case([&](CosOp o) {
        give(o.getOperand(), [&] { return neg(mul(g, unary<SinOp>(b, loc, o.getOperand()))); });
        return success();
      })
      .Case([&](CastOp o) {
        // A gradient that is wider than the operand stays so: others are added to it first.
        Type from = tensorOf(o.getOperand()).getElementType();
        bool wider = holds(tensorOf(g).getElementType(), from);
        give(o.getOperand(), [&] { return wider ? g : cleave::cast(b, loc, g, from); });
        return success();
      })
      .Case<BroadcastOp, BarrierOp, PinOp>([&](auto o) {
        give(o.getOperand(), [&] { return g; });
        return success();
      })
      .Case([&](StopGradientOp) { return success(); })
      .Case([&](SelectOp o) {
        Value zero = number(g, 0), c = o.getCondition();
        give(o.getOnTrue(), [&] { return select(b, loc, c, g, zero); });
        give(o.getOnFalse(), [&] { return select(b, loc, c, zero, g); });
        return success();
      })
      .Case([&](RenameOp o) {
        give(o.getOperand(), [&]() -> Value {
          Value back = broadcastTo(b, loc, g, o.getType());
          return RenameOp::create(b, loc, o.getOperand().getType(), back);
        });
        return success();
      })
      .Case([&](SplitDimOp o) {
        give(o.getOperand(), [&]() -> Value {
          Value back = broadcastTo(b, loc, g, o.getType());
          return JoinDimsOp::create(b, loc, o.getOperand().getType(), back);
        });
        return success();
      })
      .Case([&](JoinDimsOp o) {
        give(o.getOperand(), [&]() -> Value {
          Value back = broadcastTo(b, loc, g, o.getType());
          return SplitDimOp::create(b, loc, o.getOperand().getType(), back);
        });
        return success();
      })
      .Case([&](ReduceOp o) {
        Value x = o.getOperand();
        NamedTensorType type = tensorOf(x);
        if (o.getReduction() == Reduction::Sum) {
          give(x, [&]() -> Value { return BroadcastOp::create(b, loc, type, g); });
          return success();
        }
        // Equal extrema share the gradient.
        give(x, [&] {
          Value hit = cleave::cast(b, loc, compare(b, loc, Predicate::EQ, x, o.getResult()),
                                   type.getElementType());
          SmallVector<StringRef> dims(o.getDims().getAsValueRange<StringAttr>());
          Value count = reduce(b, loc, Reduction::Sum, hit, dims);
          return mul(hit, div(g, count));
        });
        return success();
      })
      .Case([&](ContractOp o) {
        auto side = [&](Value operand, Value other) {
          give(operand, [&]() -> Value {
            // As wide as it is added up; both sides are of one type.
            NamedTensorType type = tensorOf(operand);
            Value gradient = cleave::cast(b, loc, g, type.getElementType());
            return ContractOp::create(b, loc,
                                      type.withElementType(accumulatorOf(type.getElementType())),
                                      gradient, other);
          });
        };
        side(o.getLhs(), o.getRhs());
        side(o.getRhs(), o.getLhs());
        return success();
      })
      .Case([&](GatherOp o) {
        give(o.getTable(), [&]() -> Value {
          NamedTensorType table = tensorOf(o.getTable());
          return ScatterAddOp::create(b, loc,
                                      table.withElementType(accumulatorOf(table.getElementType())),
                                      g, o.getIds(), o.getDim(), ValueRange{});
        });
        return success();
      })
      .Case([&](ScatterAddOp o) {
        give(o.getUpdates(), [&]() -> Value {
          return GatherOp::create(b, loc, o.getUpdates().getType(), g, o.getIds(), o.getDim(),
                                  ValueRange{});
        });
        return success();
      })
      .Case([&](SliceOp o) {
        NamedTensorType from = tensorOf(o.getOperand());
        StringRef dim = o.getType().getNames()[from.indexOf(o.getDim())].getValue();
        give(o.getOperand(), [&]() -> Value {
          Value whole = broadcastTo(b, loc, g, o.getType());
          return PadOp::create(b, loc, from, whole, dim, o.getStart(), o.getStride());
        });
        return success();
      })
      .Case([&](PadOp o) {
        NamedTensorType from = tensorOf(o.getOperand());
        StringRef dim = o.getType().getNames()[from.indexOf(o.getDim())].getValue();
        give(o.getOperand(), [&]() -> Value {
          Value whole = broadcastTo(b, loc, g, o.getType());
          return SliceOp::create(b, loc, from, whole, dim, o.getStart(), o.getStride());
        });
        return success();
      })
      .Case([&](AttentionOp o) {
        Value q = o.getQuery(), k = o.getKey(), v = o.getValue();
        NamedTensorType type = tensorOf(o.getResult());
        auto widened = [](Value x) {
          return tensorOf(x).withElementType(accumulatorOf(tensorOf(x).getElementType()));
        };
        Value own = g ? broadcastTo(b, loc, g, type) : constant(b, loc, type, 0);
        Value ofLse = others[0] ? broadcastTo(b, loc, others[0], tensorOf(o.getLse())) : Value();
        auto made = AttentionGradOp::create(
            b, loc, TypeRange{widened(q), widened(k), widened(v)}, q, k, v, o.getResult(),
            o.getLse(), own, ofLse, o.getMask(), o.getBias(), o.getRandom(), ValueRange(),
            o.getQueryDimAttr(), o.getKeyDimAttr(), o.getDepthDimAttr(), o.getValueDimAttr(),
            o.getCausalAttr(), o.getShiftAttr(), o.getScaleAttr(), o.getRateAttr(), o.getPathAttr(),
            o.getSiteAttr(), o.getGlobalSizesAttr());
        Value operands[] = {q, k, v};
        for (auto [operand, gradient] : llvm::zip_equal(operands, made.getResults()))
          if (isActive(operand))
            accumulate(operand, gradient);
        return success();
      })
      .Default([](Operation *o) {
        return o->emitOpError() << "has no gradient; run cleave-expand-composites first";
      });
}

LogicalResult cleave::buildGradient(OpBuilder &b, Operation *op, ArrayRef<Value> resultGradients,
                                    function_ref<bool(Value)> isActive, Accumulate accumulate) {
  GradientBuilder builder{b,          op->getLoc(),       isActive,
                          accumulate, resultGradients[0], resultGradients.drop_front()};
  // Dims keep the result's order, as long as the gradient has all of them.
  return builder.visit(op);
}
