//===- VectorMath.cpp - functions on lanes --------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/lowering/VectorMath.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/BuiltinOps.h"

#include <limits>

using namespace mlir;
using namespace cleave;

//===----------------------------------------------------------------------===//
// Shorthand
//===----------------------------------------------------------------------===//

Type VectorMath::like(Value x, Type element) {
  if (auto vector = dyn_cast<VectorType>(x.getType()))
    return VectorType::get(vector.getShape(), element);
  return element;
}

Value VectorMath::number(Value like, double value) {
  Type type = like.getType();
  Type element = getElementTypeOrSelf(type);
  if (isa<IntegerType>(element))
    return integer(like, static_cast<int64_t>(value));
  TypedAttr attr = b.getFloatAttr(element, value);
  if (auto vector = dyn_cast<VectorType>(type))
    attr = DenseElementsAttr::get(vector, Attribute(attr));
  return arith::ConstantOp::create(b, loc, attr);
}

Value VectorMath::integer(Value like, int64_t value) {
  Type type = like.getType();
  auto element = cast<IntegerType>(getElementTypeOrSelf(type));
  TypedAttr attr = IntegerAttr::get(element, APInt(element.getWidth(), static_cast<uint64_t>(value),
                                                   /*isSigned=*/true,
                                                   /*implicitTrunc=*/true));
  if (auto vector = dyn_cast<VectorType>(type))
    attr = DenseElementsAttr::get(vector, Attribute(attr));
  return arith::ConstantOp::create(b, loc, attr);
}

Value VectorMath::add(Value x, Value y) { return arith::AddFOp::create(b, loc, x, y); }
Value VectorMath::sub(Value x, Value y) { return arith::SubFOp::create(b, loc, x, y); }
Value VectorMath::mul(Value x, Value y) { return arith::MulFOp::create(b, loc, x, y); }
Value VectorMath::div(Value x, Value y) { return arith::DivFOp::create(b, loc, x, y); }
Value VectorMath::fma(Value x, Value y, Value z) { return math::FmaOp::create(b, loc, x, y, z); }
Value VectorMath::abs(Value x) { return math::AbsFOp::create(b, loc, x); }
Value VectorMath::sqrt(Value x) { return math::SqrtOp::create(b, loc, x); }
Value VectorMath::rsqrt(Value x) { return div(number(x, 1), sqrt(x)); }
Value VectorMath::select(Value c, Value x, Value y) {
  return arith::SelectOp::create(b, loc, c, x, y);
}
Value VectorMath::isNan(Value x) {
  return arith::CmpFOp::create(b, loc, arith::CmpFPredicate::UNO, x, x);
}

/// NaN becomes `low`.
Value VectorMath::clamp(Value x, double low, double high) {
  Value lo = number(x, low), hi = number(x, high);
  Value above = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, x, lo);
  x = select(above, x, lo);
  Value below = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, x, hi);
  return select(below, x, hi);
}

Value VectorMath::polynomial(Value x, ArrayRef<double> c) {
  Value y = number(x, c.front());
  for (double coefficient : c.drop_front())
    y = fma(y, x, number(x, coefficient));
  return y;
}

Value VectorMath::libm(StringRef name, ArrayRef<Value> arguments) {
  Type f64 = b.getF64Type();
  auto module = b.getInsertionBlock()->getParentOp()->getParentOfType<ModuleOp>();
  if (!module.lookupSymbol(name)) {
    OpBuilder at = OpBuilder::atBlockBegin(module.getBody());
    SmallVector<Type> inputs(arguments.size(), f64);
    auto callee = func::FuncOp::create(at, loc, name, at.getFunctionType(inputs, {f64}));
    callee.setPrivate();
  }
  auto vector = dyn_cast<VectorType>(arguments[0].getType());
  if (!vector)
    return func::CallOp::create(b, loc, name, TypeRange{f64}, arguments).getResult(0);
  Value result = number(arguments[0], 0);
  for (int64_t i = 0; i < vector.getNumElements(); ++i) {
    SmallVector<Value> scalars;
    for (Value x : arguments)
      scalars.push_back(vector::ExtractOp::create(b, loc, x, i));
    Value y = func::CallOp::create(b, loc, name, TypeRange{f64}, scalars).getResult(0);
    result = vector::InsertOp::create(b, loc, y, result, i);
  }
  return result;
}

static bool isF64(Value x) { return getElementTypeOrSelf(x.getType()).isF64(); }

//===----------------------------------------------------------------------===//
// f32
//===----------------------------------------------------------------------===//

/// t = n ln 2 + r, |r| <= ln 2 / 2: e^r, and the bits of a float whose last ones are n + bias.
std::pair<Value, Value> VectorMath::reducedExp(Value t, int bias) {
  // So large a number has no bits behind the point: the sum is rounded to a whole one.
  Value magic = number(t, 0x1.8p23 + bias);
  Value shifted = fma(t, number(t, 1.44269504088896341), magic);
  Value n = sub(shifted, magic);
  Value r = fma(n, number(t, -0.693145751953125), t);
  r = fma(n, number(t, -1.428606765330187e-06), r);
  Value p = polynomial(r, {1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
                           1.6666665459e-1, 5.0000001201e-1});
  Value one = number(r, 1), y = fma(fma(p, r, one), r, one);
  return {y, arith::BitcastOp::create(b, loc, like(t, b.getI32Type()), shifted)};
}

/// 2^(e - 127), e the last bits of these.
Value VectorMath::powerOfTwo(Value bits) {
  bits = arith::ShLIOp::create(b, loc, bits, integer(bits, 23));
  return arith::BitcastOp::create(b, loc, like(bits, b.getF32Type()), bits);
}

Value VectorMath::atLeast(Value x, double low) {
  Value least = number(x, low);
  return select(arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, x, least), least, x);
}

Value VectorMath::expBelow(Value x) {
  if (isF64(x))
    return libm("exp", x);
  constexpr double lowest = -87.3;
  auto [y, bits] = reducedExp(atLeast(x, lowest), 127);
  Value isTiny = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, x, number(x, lowest));
  return select(isTiny, number(x, 0), mul(y, powerOfTwo(bits)));
}

Value VectorMath::exp(Value x) {
  if (isF64(x))
    return libm("exp", x);
  // These ends give zero and infinity; NaN stays.
  Value t = atLeast(x, -104), most = number(x, 89);
  t = select(arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, t, most), most, t);
  // 2^n in two factors, so that denormals and infinity come out right.
  auto [y, bits] = reducedExp(t, 2 * 127);
  Value half = arith::ShRUIOp::create(b, loc, bits, integer(bits, 1));
  Value rest = arith::SubIOp::create(b, loc, bits, half);
  return mul(mul(y, powerOfTwo(half)), powerOfTwo(rest));
}

Value VectorMath::log(Value x) {
  if (isF64(x))
    return libm("log", x);
  Type i32 = like(x, b.getI32Type());
  using P = arith::CmpFPredicate;
  Value tiny = arith::CmpFOp::create(b, loc, P::OLT, x, number(x, 0x1p-126));
  Value scaled = select(tiny, mul(x, number(x, 0x1p23)), x);
  Value bits = arith::BitcastOp::create(b, loc, i32, scaled);
  // x = 2^k m with sqrt(1/2) <= m < sqrt(2).
  Value offset = arith::SubIOp::create(b, loc, bits, integer(bits, 0x3f3504f3));
  Value k = arith::ShRSIOp::create(b, loc, offset, integer(bits, 23));
  Value mantissa = arith::SubIOp::create(
      b, loc, bits, Value(arith::ShLIOp::create(b, loc, k, integer(bits, 23))));
  Value f = sub(arith::BitcastOp::create(b, loc, x.getType(), mantissa), number(x, 1));
  Value dk = arith::SIToFPOp::create(b, loc, x.getType(), k);
  dk = sub(dk, select(tiny, number(x, 23), number(x, 0)));
  Value s = div(f, add(f, number(x, 2)));
  Value z = mul(s, s), w = mul(z, z);
  Value t1 = mul(w, polynomial(w, {0.24279078841, 0.40000972152}));
  Value t2 = mul(z, polynomial(w, {0.28498786688, 0.66666662693}));
  Value r = add(t1, t2);
  Value hfsq = mul(mul(f, f), number(x, 0.5));
  Value low = fma(s, add(hfsq, r), mul(dk, number(x, 9.0580006145e-06)));
  Value y = add(sub(low, hfsq), f);
  y = fma(dk, number(x, 6.9313812256e-01), y);
  // The ends: log 0 = -inf, log inf = inf, of negative numbers NaN.
  double inf = std::numeric_limits<double>::infinity();
  Value isZero = arith::CmpFOp::create(b, loc, P::OEQ, x, number(x, 0));
  Value isInf = arith::CmpFOp::create(b, loc, P::OEQ, x, number(x, inf));
  Value isBad = arith::CmpFOp::create(b, loc, P::ULT, x, number(x, 0));
  y = select(isZero, number(x, -inf), y);
  y = select(isInf, x, y);
  return select(isBad, number(x, std::numeric_limits<double>::quiet_NaN()), y);
}

Value VectorMath::tanh(Value x) {
  if (isF64(x))
    return libm("tanh", x);
  Value size = abs(x), z = mul(x, x);
  Value p = polynomial(z, {-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
                           -3.33332819422e-1});
  Value small = fma(mul(p, z), x, x);
  // Beyond 10 it is 1; NaN stays.
  Value most = number(x, 10);
  Value t =
      select(arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, size, most), most, size);
  auto [y, bits] = reducedExp(add(t, t), 127);
  Value e = mul(y, powerOfTwo(bits));
  Value big = sub(number(x, 1), div(number(x, 2), add(e, number(x, 1))));
  big = math::CopySignOp::create(b, loc, big, x);
  Value isSmall = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, size, number(x, 0.625));
  return select(isSmall, small, big);
}

Value VectorMath::sigmoid(Value x) {
  // With e^-|x| nothing overflows, and negative x keep their relative accuracy. What would be a
  // denormal is zero: arithmetic with one takes a hundred times as long.
  Value z = expBelow(arith::NegFOp::create(b, loc, abs(x)));
  Value positive = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGE, x, number(x, 0));
  return div(select(positive, number(x, 1), z), add(z, number(x, 1)));
}

Value VectorMath::erf(Value x) {
  if (isF64(x))
    return libm("erf", x);
  Value t = clamp(abs(x), 0, 4); // erf(4) rounds to 1
  Value s = mul(x, x);
  // |x| > 0.9277: 1 - exp(-polynomial).
  Value s2 = mul(t, t);
  Value r = polynomial(t, {-1.72853470e-5, 3.83197126e-4});
  Value u = polynomial(t, {-3.88396438e-3, 2.42546219e-2});
  r = fma(r, s2, u);
  for (double c : {-1.06777877e-1, -6.34846687e-1, -1.28717512e-1})
    r = fma(r, t, number(x, c));
  r = fma(r, t, arith::NegFOp::create(b, loc, t));
  auto [y, bits] = reducedExp(r, 127); // r is between -16 and 0
  Value e = mul(y, powerOfTwo(bits));
  Value big = math::CopySignOp::create(b, loc, sub(number(x, 1), e), x);
  Value p = polynomial(s, {-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1,
                           -3.76125336e-1, 1.28379166e-1});
  Value small = fma(p, x, x);
  Value isBig = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, t, number(x, 0.927734375));
  return select(isNan(x), x, select(isBig, big, small));
}

Value VectorMath::sinOrCos(Value x, bool isSin) {
  if (isF64(x))
    return libm(isSin ? "sin" : "cos", x);
  // In double: then two words of pi/2 reduce every argument that matters.
  Value d = arith::ExtFOp::create(b, loc, like(x, b.getF64Type()), x);
  Value magic = number(d, 0x1.8p52); // its low bits become the quadrant
  Value shifted = fma(d, number(d, 0x1.45f306dc9c883p-1), magic);
  Value n = sub(shifted, magic);
  Value r = fma(n, number(d, -0x1.921fb54442d18p0), d);
  r = fma(n, number(d, -0x1.1a62633145c07p-54), r);
  Value q = arith::BitcastOp::create(b, loc, like(x, b.getI64Type()), shifted);
  Value z = mul(r, r);
  Value sine =
      fma(mul(mul(z, r), polynomial(z, {2.75573137070700676789e-06, -1.98412698298579493134e-04,
                                        8.33333333332248946124e-03, -1.66666666666666324348e-01})),
          number(d, 1), r);
  Value cosine = fma(mul(z, z),
                     polynomial(z, {-2.75573143513906633035e-07, 2.48015872894767294178e-05,
                                    -1.38888888888741095749e-03, 4.16666666666666019037e-02}),
                     fma(z, number(d, -0.5), number(d, 1)));
  if (!isSin)
    q = arith::AddIOp::create(b, loc, q, integer(q, 1));
  auto bit = [&](int64_t mask) -> Value {
    Value masked = arith::AndIOp::create(b, loc, q, integer(q, mask));
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, masked, integer(q, 0));
  };
  Value y = select(bit(1), cosine, sine);
  y = select(bit(2), Value(arith::NegFOp::create(b, loc, y)), y);
  return arith::TruncFOp::create(b, loc, x.getType(), y);
}

Value VectorMath::pow(Value x, Value y) {
  if (isF64(x))
    return libm("pow", {x, y});
  Type f64 = like(x, b.getF64Type());
  Value wide =
      libm("pow", {arith::ExtFOp::create(b, loc, f64, x), arith::ExtFOp::create(b, loc, f64, y)});
  return arith::TruncFOp::create(b, loc, x.getType(), wide);
}

//===----------------------------------------------------------------------===//
// bf16
//===----------------------------------------------------------------------===//

Value VectorMath::roundToBF16(Value x) {
  Value bits = arith::BitcastOp::create(b, loc, like(x, b.getI32Type()), x);
  Value odd = arith::AndIOp::create(
      b, loc, Value(arith::ShRUIOp::create(b, loc, bits, integer(bits, 16))), integer(bits, 1));
  Value sum = arith::AddIOp::create(b, loc, bits, integer(bits, 0x7fff));
  sum = arith::AddIOp::create(b, loc, sum, odd);
  Value quiet = arith::OrIOp::create(b, loc, bits, integer(bits, 0x400000));
  Value kept = select(isNan(x), quiet, sum);
  kept = arith::AndIOp::create(b, loc, kept, integer(bits, 0xffff0000));
  return arith::BitcastOp::create(b, loc, x.getType(), kept);
}

Value VectorMath::packBF16(Value x) {
  Value bits = arith::BitcastOp::create(b, loc, like(x, b.getI32Type()), x);
  bits = arith::ShRUIOp::create(b, loc, bits, integer(bits, 16));
  return arith::TruncIOp::create(b, loc, like(x, b.getI16Type()), bits);
}

Value VectorMath::unpackBF16(Value bits) {
  Value wide = arith::ExtUIOp::create(b, loc, like(bits, b.getI32Type()), bits);
  wide = arith::ShLIOp::create(b, loc, wide, integer(wide, 16));
  return arith::BitcastOp::create(b, loc, like(bits, b.getF32Type()), wide);
}

//===----------------------------------------------------------------------===//
// Random numbers
//===----------------------------------------------------------------------===//

/// The upper 32 bits of x * m, without signs.
Value VectorMath::highProduct(Value x, int64_t m) {
  auto vector = dyn_cast<VectorType>(x.getType());
  int64_t lanes = vector ? vector.getNumElements() : 1;
  auto shiftRight = [&](Value v, int64_t by) -> Value {
    return arith::ShRUIOp::create(b, loc, v, integer(v, by));
  };
  auto multiply = [&](Value v) -> Value { return arith::MulIOp::create(b, loc, v, integer(v, m)); };
  if (lanes % 2) {
    Value wide = arith::ExtUIOp::create(b, loc, like(x, b.getI64Type()), x);
    return arith::TruncIOp::create(b, loc, x.getType(), shiftRight(multiply(wide), 32));
  }
  // Processors multiply every other number to twice its bits: the even ones, then the odd.
  auto wide = VectorType::get({lanes / 2}, b.getI64Type());
  Value pairs = vector::BitCastOp::create(b, loc, wide, x);
  Value even = arith::AndIOp::create(b, loc, pairs, integer(pairs, 0xffffffff));
  even = vector::BitCastOp::create(b, loc, vector, shiftRight(multiply(even), 32));
  Value odd = vector::BitCastOp::create(b, loc, vector, multiply(shiftRight(pairs, 32)));
  SmallVector<int64_t> order(lanes);
  for (int64_t i = 0; i < lanes; ++i)
    order[i] = i % 2 ? lanes + i : i;
  return vector::ShuffleOp::create(b, loc, even, odd, order);
}

Value VectorMath::philox(Value c0, Value c1, Value c2, Value c3, Value k0, Value k1) {
  auto exclusiveOr = [&](Value x, Value y) -> Value { return arith::XOrIOp::create(b, loc, x, y); };
  auto multiply = [&](Value x, int64_t m, Value &high, Value &low) {
    low = arith::MulIOp::create(b, loc, x, integer(x, m));
    high = highProduct(x, m);
  };
  for (int round = 0; round < 10; ++round) {
    Value high0, low0, high1, low1;
    multiply(c0, 0xD2511F53, high0, low0);
    multiply(c2, 0xCD9E8D57, high1, low1);
    c0 = exclusiveOr(exclusiveOr(high1, c1), k0);
    c1 = low1;
    c2 = exclusiveOr(exclusiveOr(high0, c3), k1);
    c3 = low0;
    k0 = arith::AddIOp::create(b, loc, k0, integer(k0, 0x9E3779B9));
    k1 = arith::AddIOp::create(b, loc, k1, integer(k1, 0xBB67AE85));
  }
  return c0;
}

Value VectorMath::uniform(Value index, Value seed, Value step, Value layer, int64_t site,
                          bool isShort) {
  auto spread = [&](Value x) -> Value {
    auto vector = dyn_cast<VectorType>(index.getType());
    if (!vector)
      return x;
    auto type = VectorType::get(vector.getShape(), x.getType());
    return vector::BroadcastOp::create(b, loc, type, x);
  };
  auto low = [&](Value x) -> Value {
    return arith::TruncIOp::create(b, loc, like(x, b.getI32Type()), x);
  };
  auto high = [&](Value x) { return low(arith::ShRUIOp::create(b, loc, x, integer(x, 32))); };
  Value c0 = low(index), c1 = isShort ? integer(c0, 0) : high(index), c2 = integer(c0, site),
        c3 = spread(layer);
  Value top = high(seed);
  Value spreadTop = arith::MulIOp::create(b, loc, top, integer(top, 0x9E3779B9));
  Value k0 = spread(arith::XOrIOp::create(b, loc, low(seed), spreadTop)), k1 = spread(step);
  Value word = philox(c0, c1, c2, c3, k0, k1);
  Value bits = arith::ShRUIOp::create(b, loc, word, integer(word, 8));
  Value u = arith::SIToFPOp::create(b, loc, like(bits, b.getF32Type()), bits);
  return mul(u, number(u, 0x1p-24));
}
