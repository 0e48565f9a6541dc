//===- GemmKernelImpl.h - matrix products over a vector type ----*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
// Written once, compiled for each instruction set in a file of its own with its
// own flags. All of it has internal linkage (see GemmKernel.h).
//
// A vector type V has: Scalar, Vector, lanes, rows and vectors (the tile: rows x
// vectors registers of sums), sums (registers for the sums of `fewRows`), and
// zero, load, store, broadcast, fma; of floats also loads that widen.
#pragma once

#include "runtime/cpu/GemmKernel.h"

#include <stddef.h>
#include <utility>

namespace cleave {
namespace {

#define CLEAVE_INLINE inline __attribute__((always_inline))

template <typename T> CLEAVE_INLINE T least(T a, T b) { return b < a ? b : a; }

CLEAVE_INLINE float widen(float x) { return x; }
CLEAVE_INLINE double widen(double x) { return x; }
CLEAVE_INLINE float floatOf(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
CLEAVE_INLINE float widen(StoredBF16 x) { return floatOf(uint32_t(x.bits) << 16); }
/// The exponent's bias changes by a multiplication, which gets subnormal numbers right, too.
CLEAVE_INLINE float widen(StoredF16 x) {
  uint32_t magnitude = uint32_t(x.bits & 0x7FFF) << 13, sign = uint32_t(x.bits & 0x8000) << 16;
  float scaled = floatOf(magnitude) * 0x1p112F;
  uint32_t bits;
  __builtin_memcpy(&bits, &scaled, sizeof(bits));
  uint32_t special = magnitude >= 0x0F800000 ? 0x7F800000 : 0; // infinity, NaN
  return floatOf(bits | special | sign);
}

template <typename V> struct GemmKernelImpl {
  using T = typename V::Scalar;
  using Vector = typename V::Vector;
  static constexpr int64_t lanes = V::lanes, tileRows = V::rows, tileCols = V::vectors * V::lanes;
  using Four = T __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T))));

  //===--- packing -------------------------------------------------------===//

  template <typename S> static Four loadFour(const S *from) {
    if constexpr (sizeof(S) == sizeof(T)) {
      Four x;
      __builtin_memcpy(&x, from, sizeof(x));
      return x;
    } else {
      return Four{widen(from[0]), widen(from[1]), widen(from[2]), widen(from[3])};
    }
  }

  /// The rows lie along the sum: four at a time, through registers.
  template <int64_t width, typename S>
  static void packAcross(const S *from, int64_t stride, int64_t count, int64_t padded,
                         int64_t depth, T *to) {
    constexpr int64_t part = 64; // of the depth: what is written stays in the first cache
    for (int64_t begin = 0; begin < depth; begin += part) {
      int64_t end = least(depth, begin + part);
      int64_t i = 0;
      for (; i + 4 <= count; i += 4) {
        const S *r = from + i * stride;
        int64_t q = begin;
        for (; q + 4 <= end; q += 4) {
          Four a = loadFour(r + q), b = loadFour(r + stride + q);
          Four c = loadFour(r + 2 * stride + q), d = loadFour(r + 3 * stride + q);
          Four ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
          Four ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
          Four cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
          Four cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
          Four out[4] = {__builtin_shufflevector(ab0, cd0, 0, 1, 4, 5),
                         __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7),
                         __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5),
                         __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7)};
          for (int64_t u = 0; u < 4; ++u)
            __builtin_memcpy(to + (q + u) * width + i, &out[u], sizeof(Four));
        }
        for (; q < end; ++q)
          for (int64_t u = 0; u < 4; ++u)
            to[q * width + i + u] = widen(r[u * stride + q]);
      }
      for (; i < count; ++i)
        for (int64_t q = begin; q < end; ++q)
          to[q * width + i] = widen(from[i * stride + q]);
      for (; i < padded; ++i)
        for (int64_t q = begin; q < end; ++q)
          to[q * width + i] = 0;
    }
  }

  template <int64_t width, typename S> static void copyRow(const S *from, T *to) {
    if constexpr (sizeof(S) == sizeof(T)) {
      __builtin_memcpy(to, from, sizeof(T) * width);
    } else if constexpr (width % lanes == 0) {
      for (int64_t i = 0; i < width; i += lanes)
        V::store(to + i, V::load(from + i));
    } else {
      int64_t i = 0;
      for (; i + 4 <= width; i += 4) {
        Four x = loadFour(from + i);
        __builtin_memcpy(to + i, &x, sizeof(x));
      }
      for (; i < width; ++i)
        to[i] = widen(from[i]);
    }
  }

  template <int64_t width, int64_t multiple, typename S>
  static void pack(const S *from, int64_t stride, int64_t step, int64_t count, int64_t depth,
                   T *to) {
    if (step == 1) {
      for (int64_t i = 0; i < count; i += width) {
        int64_t some = least(width, count - i);
        packAcross<width>(from + i * stride, stride, some,
                          (some + multiple - 1) / multiple * multiple, depth, to + i * depth);
      }
      return;
    }
    // The rows lie side by side: some panels at once, so that a few whole cache
    // lines are read at each step.
    constexpr int64_t panels = (128 + width - 1) / width;
    for (int64_t first = 0; first < count; first += panels * width) {
      int64_t whole = least(panels, (count - first) / width);
      const S *r = from + first;
      T *out = to + first * depth;
      int64_t rest = whole == panels ? 0 : count - first - whole * width;
      int64_t padded = (rest + multiple - 1) / multiple * multiple;
      for (int64_t q = 0; q < depth; ++q, r += step, out += width) {
        for (int64_t p = 0; p < whole; ++p)
          copyRow<width>(r + p * width, out + p * width * depth);
        T *last = out + whole * width * depth;
        for (int64_t i = 0; i < rest; ++i)
          last[i] = widen(r[whole * width + i]);
        for (int64_t i = rest; i < padded; ++i)
          last[i] = 0;
      }
    }
  }

  //===--- sums ----------------------------------------------------------===//

  template <int64_t width>
  static void sum(const T *packed, int64_t count, int64_t depth, T *sums, bool add) {
    constexpr int64_t chains = 4; // do not wait for each other, and err less
    for (int64_t first = 0; first < count; first += width, packed += width * depth) {
      T part[chains][width] = {};
      int64_t q = 0;
      for (; q + chains <= depth; q += chains)
        for (int64_t u = 0; u < chains; ++u)
          for (int64_t l = 0; l < width; ++l)
            part[u][l] += packed[(q + u) * width + l];
      for (; q < depth; ++q)
        for (int64_t l = 0; l < width; ++l)
          part[0][l] += packed[q * width + l];
      for (int64_t l = 0; l < least(width, count - first); ++l) {
        T total = (part[0][l] + part[1][l]) + (part[2][l] + part[3][l]);
        sums[first + l] = add ? sums[first + l] + total : total;
      }
    }
  }

  //===--- the tile ------------------------------------------------------===//

  template <int rows, int vectors>
  static void tile(const T *a, const T *b, T *c, int64_t ldc, int64_t depth, bool add) {
    Vector sum[rows][vectors];
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < vectors; ++j) {
        sum[i][j] = V::zero();
        __builtin_prefetch(c + i * ldc + j * lanes, 1);
      }
#pragma GCC unroll 4
    for (int64_t q = 0; q < depth; ++q) {
      Vector right[vectors];
      for (int j = 0; j < vectors; ++j) {
        right[j] = V::load(b + j * lanes);
        __builtin_prefetch(b + j * lanes + 2048 / int64_t(sizeof(T)));
      }
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        Vector left = V::broadcast(a[i]);
        for (int j = 0; j < vectors; ++j)
          sum[i][j] = V::fma(left, right[j], sum[i][j]);
      }
      a += tileRows;
      b += tileCols;
    }
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < vectors; ++j) {
        T *to = c + i * ldc + j * lanes;
        V::store(to, add ? V::load(to) + sum[i][j] : sum[i][j]);
      }
  }

  using Tile = void (*)(const T *, const T *, T *, int64_t, int64_t, bool);
  template <size_t... i> static constexpr Tile tileOf(std::index_sequence<i...>, size_t wanted) {
    Tile found = nullptr;
    ((i == wanted ? void(found = &tile<int(i / V::vectors) + 1, int(i % V::vectors) + 1>) : void()),
     ...);
    return found;
  }
  struct Tiles {
    Tile at[V::rows][V::vectors];
    constexpr Tiles() : at() {
      for (int i = 0; i < V::rows; ++i)
        for (int j = 0; j < V::vectors; ++j)
          at[i][j] =
              tileOf(std::make_index_sequence<V::rows * V::vectors>(), size_t(i * V::vectors + j));
    }
  };
  static constexpr Tiles tiles{};

  static void multiply(const T *a, const T *b, T *c, int64_t ldc, int64_t rows, int64_t cols,
                       int64_t depth, bool add) {
    for (int64_t i = 0; i < rows; i += tileRows) {
      int64_t someRows = least(tileRows, rows - i);
      for (int64_t j = 0; j < cols; j += tileCols) {
        int64_t someCols = least(tileCols, cols - j), vectors = (someCols + lanes - 1) / lanes;
        Tile run = tiles.at[someRows - 1][vectors - 1];
        T *to = c + i * ldc + j;
        if (someCols == vectors * lanes) {
          run(a + i * depth, b + j * depth, to, ldc, depth, add);
          continue;
        }
        // The tile ends in the middle of a vector.
        T edge[V::rows * V::vectors * V::lanes];
        run(a + i * depth, b + j * depth, edge, tileCols, depth, false);
        for (int64_t r = 0; r < someRows; ++r)
          for (int64_t s = 0; s < someCols; ++s) {
            T value = edge[r * tileCols + s];
            to[r * ldc + s] = add ? to[r * ldc + s] + value : value;
          }
      }
    }
  }

  //===--- few rows ------------------------------------------------------===//

  /// B is depth x n: some of its rows at a time, from left to right.
  template <int rows, int steps, typename S>
  static void addRows(const T *x, int64_t ldx, const S *b, int64_t ldb, int64_t n, bool first, T *y,
                      int64_t ldy) {
    Vector left[rows][steps];
    for (int r = 0; r < rows; ++r)
      for (int u = 0; u < steps; ++u)
        left[r][u] = V::broadcast(x[r * ldx + u]);
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) {
      Vector sum[rows];
      for (int r = 0; r < rows; ++r)
        sum[r] = first ? V::zero() : V::load(y + r * ldy + j);
      for (int u = 0; u < steps; ++u) {
        Vector right = V::load(b + u * ldb + j);
        for (int r = 0; r < rows; ++r)
          sum[r] = V::fma(left[r][u], right, sum[r]);
      }
      for (int r = 0; r < rows; ++r)
        V::store(y + r * ldy + j, sum[r]);
    }
    for (; j < n; ++j)
      for (int r = 0; r < rows; ++r) {
        T sum = first ? T(0) : y[r * ldy + j];
        for (int u = 0; u < steps; ++u)
          sum += x[r * ldx + u] * widen(b[u * ldb + j]);
        y[r * ldy + j] = sum;
      }
  }

  template <int rows, typename S>
  static void alongRows(const T *x, int64_t ldx, const S *b, int64_t ldb, int64_t n, int64_t depth,
                        T *y, int64_t ldy) {
    constexpr int steps = rows <= 2 ? 8 : 4;
    int64_t q = 0;
    for (; q + steps <= depth; q += steps)
      addRows<rows, steps>(x + q, ldx, b + q * ldb, ldb, n, q == 0, y, ldy);
    for (; q < depth; ++q)
      addRows<rows, 1>(x + q, ldx, b + q * ldb, ldb, n, q == 0, y, ldy);
  }

  /// B is n x depth: dot products with `cols` of its rows at a time.
  template <int rows, int cols, typename S>
  static void dots(const T *x, int64_t ldx, const S *b, int64_t ldb, int64_t depth, T *y,
                   int64_t ldy) {
    Vector sum[rows][cols];
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < cols; ++j)
        sum[r][j] = V::zero();
    int64_t q = 0;
    for (; q + lanes <= depth; q += lanes) {
      Vector right[cols];
      for (int j = 0; j < cols; ++j)
        right[j] = V::load(b + j * ldb + q);
      for (int r = 0; r < rows; ++r) {
        Vector left = V::load(x + r * ldx + q);
        for (int j = 0; j < cols; ++j)
          sum[r][j] = V::fma(left, right[j], sum[r][j]);
      }
    }
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < cols; ++j) {
        T part[V::lanes];
        V::store(part, sum[r][j]);
        for (int half = V::lanes / 2; half > 0; half /= 2)
          for (int l = 0; l < half; ++l)
            part[l] += part[l + half];
        T total = part[0];
        for (int64_t t = q; t < depth; ++t)
          total += x[r * ldx + t] * widen(b[j * ldb + t]);
        y[r * ldy + j] = total;
      }
  }

  template <int rows, typename S>
  static void acrossRows(const T *x, int64_t ldx, const S *b, int64_t ldb, int64_t n, int64_t depth,
                         T *y, int64_t ldy) {
    constexpr int cols = V::sums / rows > 8 ? 8 : V::sums / rows < 1 ? 1 : V::sums / rows;
    int64_t j = 0;
    for (; j + cols <= n; j += cols)
      dots<rows, cols>(x, ldx, b + j * ldb, ldb, depth, y + j, ldy);
    for (; j < n; ++j)
      dots<rows, 1>(x, ldx, b + j * ldb, ldb, depth, y + j, ldy);
  }

  template <int rows, typename S>
  static bool fewRowsOf(int64_t wanted, const T *x, int64_t ldx, const S *b, int64_t ldb,
                        bool across, int64_t n, int64_t depth, T *y, int64_t ldy) {
    if (wanted != rows)
      return false;
    across ? acrossRows<rows>(x, ldx, b, ldb, n, depth, y, ldy)
           : alongRows<rows>(x, ldx, b, ldb, n, depth, y, ldy);
    return true;
  }
  template <typename S, size_t... i>
  static void fewRowsAmong(std::index_sequence<i...>, int64_t rows, const T *x, int64_t ldx,
                           const S *b, int64_t ldb, bool across, int64_t n, int64_t depth, T *y,
                           int64_t ldy) {
    (void)(fewRowsOf<int(i) + 1>(rows, x, ldx, b, ldb, across, n, depth, y, ldy) || ...);
  }
  template <typename S>
  static void fewRows(int64_t rows, const T *x, int64_t ldx, const S *b, int64_t ldb, bool across,
                      int64_t n, int64_t depth, T *y, int64_t ldy) {
    fewRowsAmong(std::make_index_sequence<mostFewRows>(), rows, x, ldx, b, ldb, across, n, depth, y,
                 ldy);
  }

  //===--- few rows, packed B --------------------------------------------===//

  /// Several panels at once: memory is read faster from several places.
  template <int rows, int panels>
  static void strips(const T *x, int64_t ldx, const T *b, int64_t depth, T *y, int64_t ldy,
                     bool add) {
    Vector sum[rows][panels * V::vectors];
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < panels * V::vectors; ++j)
        sum[r][j] = V::zero();
    for (int64_t q = 0; q < depth; ++q) {
      Vector right[panels * V::vectors];
      for (int p = 0; p < panels; ++p)
        for (int j = 0; j < V::vectors; ++j) {
          const T *from = b + p * tileCols * depth + q * tileCols + j * lanes;
          right[p * V::vectors + j] = V::load(from);
          __builtin_prefetch(from + 4096 / int64_t(sizeof(T)));
        }
      for (int r = 0; r < rows; ++r) {
        Vector left = V::broadcast(x[r * ldx + q]);
        for (int j = 0; j < panels * V::vectors; ++j)
          sum[r][j] = V::fma(left, right[j], sum[r][j]);
      }
    }
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < panels * V::vectors; ++j) {
        T *to = y + r * ldy + j * lanes;
        V::store(to, add ? V::load(to) + sum[r][j] : sum[r][j]);
      }
  }

  template <int rows>
  static bool fewPackedOf(int64_t wanted, const T *x, int64_t ldx, const T *b, int64_t n,
                          int64_t depth, T *y, int64_t ldy, bool add) {
    if (wanted != rows)
      return false;
    constexpr int some = V::sums / V::vectors / rows;
    constexpr int panels = some > 4 ? 4 : some < 1 ? 1 : some;
    int64_t j = 0;
    for (; j + panels * tileCols <= n; j += panels * tileCols)
      strips<rows, panels>(x, ldx, b + j * depth, depth, y + j, ldy, add);
    for (; j + tileCols <= n; j += tileCols)
      strips<rows, 1>(x, ldx, b + j * depth, depth, y + j, ldy, add);
    if (j == n)
      return true;
    T edge[rows * tileCols];
    strips<rows, 1>(x, ldx, b + j * depth, depth, edge, tileCols, false);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t s = 0; s < n - j; ++s) {
        T &to = y[r * ldy + j + s];
        to = add ? to + edge[r * tileCols + s] : edge[r * tileCols + s];
      }
    return true;
  }
  template <size_t... i>
  static void fewPackedAmong(std::index_sequence<i...>, int64_t rows, const T *x, int64_t ldx,
                             const T *b, int64_t n, int64_t depth, T *y, int64_t ldy, bool add) {
    (void)(fewPackedOf<int(i) + 1>(rows, x, ldx, b, n, depth, y, ldy, add) || ...);
  }
  static void fewPacked(int64_t rows, const T *x, int64_t ldx, const T *b, int64_t n, int64_t depth,
                        T *y, int64_t ldy, bool add) {
    fewPackedAmong(std::make_index_sequence<mostFewRows>(), rows, x, ldx, b, n, depth, y, ldy, add);
  }

  static constexpr GemmKernel<T> kernel{tileRows,       tileCols,  &sum<tileRows>,
                                        &sum<tileCols>, &multiply, &fewPacked};
  template <typename S>
  static constexpr GemmReader<T, S> reader{&pack<tileRows, 1, S>, &pack<tileCols, lanes, S>,
                                           &fewRows<S>};
};

template <typename F32, typename F64>
constexpr GemmKernels makeKernels(const char *name, const char *(*rejection)()) {
  using Single = GemmKernelImpl<F32>;
  using Double = GemmKernelImpl<F64>;
  return {name,
          rejection,
          Single::kernel,
          Double::kernel,
          Single::template reader<float>,
          Double::template reader<double>,
          Single::template reader<StoredBF16>,
          Single::template reader<StoredF16>};
}

#undef CLEAVE_INLINE
} // namespace
} // namespace cleave
