//===- GemmKernelAvx512.cpp - matrix products with AVX-512 ----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/GemmKernelImpl.h"

#include <immintrin.h>

namespace cleave {
namespace {
struct F32 {
  using Scalar = float;
  using Vector = __m512;
  static constexpr int lanes = 16, rows = 12, vectors = 2, sums = 16;
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector load(const float *p) { return _mm512_loadu_ps(p); }
  static Vector load(const StoredBF16 *p) {
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
  }
  static Vector load(const StoredF16 *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
  }
  static void store(float *p, Vector v) { _mm512_storeu_ps(p, v); }
  static Vector broadcast(float x) { return _mm512_set1_ps(x); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
};
struct F64 {
  using Scalar = double;
  using Vector = __m512d;
  static constexpr int lanes = 8, rows = 12, vectors = 2, sums = 16;
  static Vector zero() { return _mm512_setzero_pd(); }
  static Vector load(const double *p) { return _mm512_loadu_pd(p); }
  static void store(double *p, Vector v) { _mm512_storeu_pd(p, v); }
  static Vector broadcast(double x) { return _mm512_set1_pd(x); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_pd(a, b, c); }
};

// All that this file is compiled with: the compiler may use any of it.
const char *rejection() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
             ? ""
             : "the processor has no AVX-512 F, VL, DQ, BW";
}
} // namespace

constinit const GemmKernels gemmAvx512 = makeKernels<F32, F64>("avx512", &rejection);

} // namespace cleave
