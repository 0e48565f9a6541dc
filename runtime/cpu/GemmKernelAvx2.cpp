//===- GemmKernelAvx2.cpp - matrix products with AVX2 and FMA -------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/GemmKernelImpl.h"

#include <immintrin.h>

namespace cleave {
namespace {
struct F32 {
  using Scalar = float;
  using Vector = __m256;
  static constexpr int lanes = 8, rows = 6, vectors = 2, sums = 8;
  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector load(const float *p) { return _mm256_loadu_ps(p); }
  static Vector load(const StoredBF16 *p) {
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  }
  static Vector load(const StoredF16 *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
  }
  static void store(float *p, Vector v) { _mm256_storeu_ps(p, v); }
  static Vector broadcast(float x) { return _mm256_set1_ps(x); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
};
struct F64 {
  using Scalar = double;
  using Vector = __m256d;
  static constexpr int lanes = 4, rows = 6, vectors = 2, sums = 8;
  static Vector zero() { return _mm256_setzero_pd(); }
  static Vector load(const double *p) { return _mm256_loadu_pd(p); }
  static void store(double *p, Vector v) { _mm256_storeu_pd(p, v); }
  static Vector broadcast(double x) { return _mm256_set1_pd(x); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_pd(a, b, c); }
};

const char *rejection() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 __builtin_cpu_supports("f16c")
             ? ""
             : "the processor has no AVX2 with FMA and F16C";
}
} // namespace

constinit const GemmKernels gemmAvx2 = makeKernels<F32, F64>("avx2", &rejection);

} // namespace cleave
