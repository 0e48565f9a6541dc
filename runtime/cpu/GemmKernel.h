//===- GemmKernel.h - matrix products, one instruction set ------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
// What Gemm.cpp builds products from, once for each instruction set.
//
// Packed operands: A in panels of `tileRows` rows, B in panels of `tileCols`
// columns. Within a panel the numbers that meet in one step of the sum lie side
// by side, so that the innermost loop reads both from front to back. Panel i of
// A starts at i * tileRows * depth, panel j of B at j * tileCols * depth.
//
// This header is included where AVX-512 code is compiled: it must not pull in
// inline functions, whose copies the linker might take for the whole program.
#pragma once

#include <stdint.h>

namespace cleave {

/// Up to this many rows `fewRows` takes: less than a tile's worth, so that
/// packing B would take longer than the product.
inline constexpr int64_t mostFewRows = 8;

/// Numbers of 16 bits as they are stored. They are widened, exactly, where they are read.
struct StoredBF16 {
  uint16_t bits;
};
struct StoredF16 {
  uint16_t bits;
};

/// What reads operands as they are stored, in type S.
template <typename T, typename S> struct GemmReader {
  /// Packs `count` rows (of A) or columns (of B); element (i, q) of the sum's
  /// step q is from[i * stride + q * step], and one of the two is 1. B is filled
  /// up with zeros to a whole vector.
  void (*packA)(const S *from, int64_t stride, int64_t step, int64_t count, int64_t depth, T *to);
  void (*packB)(const S *from, int64_t stride, int64_t step, int64_t count, int64_t depth, T *to);

  /// y = x * B for x of 1 to mostFewRows rows, B as it is stored: depth x n, or
  /// n x depth (`acrossRows`). The order of an element's sum depends on the depth
  /// only, and on its distance from the end of n.
  void (*fewRows)(int64_t rows, const T *x, int64_t ldx, const S *b, int64_t ldb, bool acrossRows,
                  int64_t n, int64_t depth, T *y, int64_t ldy);
};

template <typename T> struct GemmKernel {
  int64_t tileRows, tileCols;

  /// For each of `count` packed rows (of A) or columns (of B) the sum over the depth, by
  /// which it depends on in what order; with `add` it is added to `sums`.
  void (*sumA)(const T *packed, int64_t count, int64_t depth, T *sums, bool add);
  void (*sumB)(const T *packed, int64_t count, int64_t depth, T *sums, bool add);

  /// C (+)= A * B over packed operands. Every element's sum runs over the depth
  /// in order, from zero, and is then added to C.
  void (*multiply)(const T *a, const T *b, T *c, int64_t ldc, int64_t rows, int64_t cols,
                   int64_t depth, bool add);

  /// y (+)= x * B for x of 1 to mostFewRows rows as it is stored, B packed. The sums are as
  /// those of `multiply`.
  void (*fewPacked)(int64_t rows, const T *x, int64_t ldx, const T *b, int64_t n, int64_t depth,
                    T *y, int64_t ldy, bool add);
};

struct GemmKernels {
  const char *name;
  /// Why this processor cannot run them; empty if it can.
  const char *(*rejection)();
  GemmKernel<float> f32;
  GemmKernel<double> f64;
  GemmReader<float, float> readF32;
  GemmReader<double, double> readF64;
  GemmReader<float, StoredBF16> readBF16;
  GemmReader<float, StoredF16> readF16;
};

#if defined(__x86_64__)
extern const GemmKernels gemmAvx512, gemmAvx2;
#endif
extern const GemmKernels gemmPortable; ///< runs everywhere

} // namespace cleave
