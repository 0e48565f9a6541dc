//===- GemmKernelPortable.cpp - matrix products on any processor ----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/GemmKernelImpl.h"

namespace cleave {
namespace {
/// 16 bytes: what every processor with vectors has. The compiler makes scalars of
/// them elsewhere.
template <typename T> struct Portable {
  using Scalar = T;
  using Vector = T __attribute__((vector_size(16)));
  static constexpr int lanes = 16 / sizeof(T), rows = 4, vectors = 2, sums = 8;
  static Vector zero() { return Vector{}; }
  static Vector load(const T *p) {
    Vector v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  template <typename S> static Vector load(const S *p) {
    Vector v{};
    for (int i = 0; i < lanes; ++i)
      v[i] = widen(p[i]);
    return v;
  }
  static void store(T *p, Vector v) { __builtin_memcpy(p, &v, sizeof(v)); }
  static Vector broadcast(T x) { return x - Vector{}; }
  static Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
};

const char *rejection() { return ""; }
} // namespace

constinit const GemmKernels gemmPortable =
    makeKernels<Portable<float>, Portable<double>>("portable", &rejection);

} // namespace cleave
