//===- VectorMath.h - functions on lanes ------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Emits exp, tanh and so on for values of f32 or f64, scalars or vectors, at the
// builder's insertion point. f32 goes through polynomials of our own (at most
// 4 ulp, tests/passes/lowering measures them against double), f64 through libm,
// lane by lane. All keep NaN and infinities. No instruction depends on how many
// lanes are in use, so a masked tail gives the same bits as the body.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "mlir/IR/Builders.h"
#include "mlir/IR/Value.h"

namespace cleave {

/// So many numbers have indices of 32 bits, those of padding at their end too.
constexpr int64_t kShortIndices = int64_t{1} << 31;

class VectorMath {
public:
  VectorMath(mlir::OpBuilder &builder, mlir::Location location) : b(builder), loc(location) {}

  mlir::Value exp(mlir::Value x);
  /// The same in fewer instructions where x is at most 88, as in a softmax: below -87.3 it gives 0.
  mlir::Value expBelow(mlir::Value x);
  mlir::Value log(mlir::Value x);
  mlir::Value tanh(mlir::Value x);
  mlir::Value sigmoid(mlir::Value x); ///< f32: 0 below about -87.3
  mlir::Value erf(mlir::Value x);
  mlir::Value sin(mlir::Value x) { return sinOrCos(x, /*isSin=*/true); }
  mlir::Value cos(mlir::Value x) { return sinOrCos(x, /*isSin=*/false); }
  mlir::Value sqrt(mlir::Value x);
  mlir::Value rsqrt(mlir::Value x);
  mlir::Value pow(mlir::Value x, mlir::Value y);

  /// A number of the type of `like`; integers likewise.
  mlir::Value number(mlir::Value like, double value);
  mlir::Value integer(mlir::Value like, int64_t value);

  /// f32 rounded to bf16 (nearest even, NaN stays NaN), kept as f32.
  mlir::Value roundToBF16(mlir::Value x);
  /// f32 that is a bf16 number <-> its 16 bits.
  mlir::Value packBF16(mlir::Value x);
  mlir::Value unpackBF16(mlir::Value bits);

  /// Word 0 of Philox4x32-10; each is an i32 value, all of one shape.
  mlir::Value philox(mlir::Value c0, mlir::Value c1, mlir::Value c2, mlir::Value c3, mlir::Value k0,
                     mlir::Value k1);

  /// The number of `cleave.random`, f32 in [0, 1). index: i64, lanes or one; seed: i64;
  /// step, layer: i32. `isShort`: no index has more than 32 bits, and a part of the rounds is the
  /// same for all.
  mlir::Value uniform(mlir::Value index, mlir::Value seed, mlir::Value step, mlir::Value layer,
                      int64_t site, bool isShort);

private:
  mlir::Value add(mlir::Value x, mlir::Value y);
  mlir::Value sub(mlir::Value x, mlir::Value y);
  mlir::Value mul(mlir::Value x, mlir::Value y);
  mlir::Value div(mlir::Value x, mlir::Value y);
  mlir::Value fma(mlir::Value x, mlir::Value y, mlir::Value z);
  mlir::Value abs(mlir::Value x);
  mlir::Value select(mlir::Value c, mlir::Value x, mlir::Value y);
  mlir::Value isNan(mlir::Value x);
  mlir::Value clamp(mlir::Value x, double low, double high);
  /// c[0] x^(n-1) + ... + c[n-1].
  mlir::Value polynomial(mlir::Value x, llvm::ArrayRef<double> c);
  /// x's shape with other elements.
  mlir::Type like(mlir::Value x, mlir::Type element);
  mlir::Value sinOrCos(mlir::Value x, bool isSin);
  /// NaN stays.
  mlir::Value atLeast(mlir::Value x, double low);
  std::pair<mlir::Value, mlir::Value> reducedExp(mlir::Value t, int bias);
  mlir::Value powerOfTwo(mlir::Value bits);
  mlir::Value highProduct(mlir::Value x, int64_t m);
  /// A function of libm on each lane.
  mlir::Value libm(llvm::StringRef name, llvm::ArrayRef<mlir::Value> arguments);

  mlir::OpBuilder &b;
  mlir::Location loc;
};

} // namespace cleave
