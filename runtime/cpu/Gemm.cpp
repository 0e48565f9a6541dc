//===- Gemm.cpp - matrix products on a rank's workers ---------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/Gemm.h"

#include "runtime/cpu/KernelTable.h"

#include <algorithm>
#include <array>
#include <cblas.h>
#include <limits>
#include <mutex>
#include <vector>

namespace cleave {

/// Products of up to this many multiply-adds are done here: a call of the
/// library takes longer.
static constexpr int64_t tinyProduct = 512;

static int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

GemmTiling chooseTiling(const GemmStep &step, int workers) {
  // Times in units of one multiply-add at full rate (about 25 ps in f32).
  constexpr double packCost = 8;      // an element of A or B, read and packed
  constexpr double callCost = 40'000; // a call and its unused panel edges
  constexpr double missCost = 12;     // an element of C that has left the cache
  const int64_t m = step.m, n = step.n, k = std::max<int64_t>(1, step.k);
  const int64_t width = byteSize(step.dtype);
  // The part of the second-level cache that a tile of C may take.
  const int64_t cacheElements = 512 * 1024 / width;

  auto sizesFor = [](int64_t extent) {
    std::vector<int64_t> sizes{extent};
    for (int64_t size : {1024, 768, 512, 384, 256, 192, 128, 96, 64})
      if (size < extent)
        sizes.push_back(size);
    return sizes;
  };
  std::vector<int64_t> rowSizes = sizesFor(m), colSizes = sizesFor(n);
  // Equal shares among the workers, in whole vector registers.
  for (int parts = workers; parts <= 4 * workers && workers > 1; parts *= 2) {
    if (int64_t share = ceilDiv(ceilDiv(m, parts), 16) * 16; share < m)
      rowSizes.push_back(share);
    if (int64_t share = ceilDiv(ceilDiv(n, parts), 16) * 16; share < n)
      colSizes.push_back(share);
  }
  GemmTiling best{m, n};
  double bestCost = std::numeric_limits<double>::infinity();
  for (int64_t rows : rowSizes)
    for (int64_t cols : colSizes) {
      double product = double(rows) * double(cols) * double(k);
      double tile = product + packCost * double(k) * double(rows + cols) + callCost;
      // Few rows: up to a million multiply-adds the library has kernels that do
      // not pack; beyond, it packs all of B for them, at a fifth of the rate.
      if (rows > 1 && rows <= 16)
        tile = product <= 1e6 ? product + callCost / 4 : 5 * product + callCost;
      if (!step.epilogue.empty() && rows * cols > cacheElements)
        tile += missCost * double(rows) * double(cols);
      int64_t tiles = step.batch * ceilDiv(m, rows) * ceilDiv(n, cols);
      // A worker's share, and half a tile of waiting for the slowest.
      double cost = tile * double(ceilDiv(tiles, workers));
      if (workers > 1)
        cost += 0.5 * tile;
      if (cost < bestCost) {
        bestCost = cost;
        best = {rows, cols};
      }
    }
  return best;
}

/// OpenBLAS as this file needs it: each call on the caller's thread, and several
/// callers at once. A build without threads hands the same work buffer to two
/// callers, so there they take turns.
static std::mutex *blasTurn() {
  static std::mutex turn;
  static std::mutex *const needed = [] {
    openblas_set_num_threads(1);
    return openblas_get_parallel() == OPENBLAS_SEQUENTIAL ? &turn : nullptr;
  }();
  return needed;
}

template <typename T>
static void tinyGemm(const GemmStep &s, const T *a, const T *b, T *c, int64_t m, int64_t n) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t k = 0; k < s.k; ++k)
        sum += (s.transA ? a[k * s.lda + i] : a[i * s.lda + k]) *
               (s.transB ? b[j * s.ldb + k] : b[k * s.ldb + j]);
      T &to = c[i * s.ldc + j];
      to = s.accumulate ? to + sum : sum;
    }
}

static void blasGemm(const GemmStep &s, const float *a, const float *b, float *c, int m, int n) {
  cblas_sgemm(CblasRowMajor, s.transA ? CblasTrans : CblasNoTrans,
              s.transB ? CblasTrans : CblasNoTrans, m, n, int(s.k), 1, a, int(s.lda), b, int(s.ldb),
              s.accumulate ? 1 : 0, c, int(s.ldc));
}
static void blasGemm(const GemmStep &s, const double *a, const double *b, double *c, int m, int n) {
  cblas_dgemm(CblasRowMajor, s.transA ? CblasTrans : CblasNoTrans,
              s.transB ? CblasTrans : CblasNoTrans, m, n, int(s.k), 1, a, int(s.lda), b, int(s.ldb),
              s.accumulate ? 1 : 0, c, int(s.ldc));
}

// One row: y = x * op(B) streams B once, where the general product packs it.
static void blasGemv(const GemmStep &s, const float *a, const float *b, float *c, int n) {
  cblas_sgemv(CblasRowMajor, s.transB ? CblasNoTrans : CblasTrans, s.transB ? n : int(s.k),
              s.transB ? int(s.k) : n, 1, b, int(s.ldb), a, s.transA ? int(s.lda) : 1,
              s.accumulate ? 1 : 0, c, 1);
}
static void blasGemv(const GemmStep &s, const double *a, const double *b, double *c, int n) {
  cblas_dgemv(CblasRowMajor, s.transB ? CblasNoTrans : CblasTrans, s.transB ? n : int(s.k),
              s.transB ? int(s.k) : n, 1, b, int(s.ldb), a, s.transA ? int(s.lda) : 1,
              s.accumulate ? 1 : 0, c, 1);
}

template <typename T>
static void runTiles(const GemmStep &s, const T *a, const T *b, T *c, const KernelCall &epilogue,
                     ThreadTeam &team) {
  GemmTiling tiling = chooseTiling(s, team.size());
  auto finish = reinterpret_cast<EpilogueFunction>(epilogue.kernel);
  std::mutex *turn = blasTurn();
  int64_t rowTiles = ceilDiv(s.m, tiling.rows), colTiles = ceilDiv(s.n, tiling.cols);
  // Which of two neighbouring tiles shares more with the next: keep the larger
  // operand's part in cache.
  bool rowsInside = tiling.cols * colTiles > tiling.rows * rowTiles;
  auto runTile = [&](int64_t index) {
    int64_t batch = index / (rowTiles * colTiles), tile = index % (rowTiles * colTiles);
    int64_t rowTile = rowsInside ? tile % rowTiles : tile / colTiles;
    int64_t colTile = rowsInside ? tile / rowTiles : tile % colTiles;
    int64_t row = rowTile * tiling.rows, col = colTile * tiling.cols;
    int64_t rows = std::min(tiling.rows, s.m - row), cols = std::min(tiling.cols, s.n - col);
    const T *tileA = a + batch * s.strideA + (s.transA ? row : row * s.lda);
    const T *tileB = b + batch * s.strideB + (s.transB ? col * s.ldb : col);
    T *tileC = c + batch * s.strideC + row * s.ldc + col;
    if (rows * cols * s.k <= tinyProduct) {
      tinyGemm(s, tileA, tileB, tileC, rows, cols);
    } else {
      std::unique_lock<std::mutex> lock;
      if (turn)
        lock = std::unique_lock(*turn);
      if (rows == 1)
        blasGemv(s, tileA, tileB, tileC, int(cols));
      else
        blasGemm(s, tileA, tileB, tileC, int(rows), int(cols));
    }
    if (finish)
      finish(batch, row, row + rows, col, col + cols, epilogue.buffers, epilogue.scalars);
  };
  int64_t tiles = s.batch * rowTiles * colTiles;
  // Many small products (attention's heads): several to a chunk.
  double work = double(tiling.rows) * double(tiling.cols) * double(std::max<int64_t>(1, s.k));
  auto grain = static_cast<int64_t>(std::clamp(400'000 / work, 1.0, double(tiles)));
  team.parallelFor(0, tiles, grain, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i)
      runTile(i);
  });
}

void cpuGemm(const GemmStep &step, const char *a, const char *b, char *c,
             const KernelCall &epilogue, ThreadTeam &team) {
  if (step.batch <= 0 || step.m <= 0 || step.n <= 0)
    return;
  if (step.dtype == DType::F32)
    runTiles(step, reinterpret_cast<const float *>(a), reinterpret_cast<const float *>(b),
             reinterpret_cast<float *>(c), epilogue, team);
  else
    runTiles(step, reinterpret_cast<const double *>(a), reinterpret_cast<const double *>(b),
             reinterpret_cast<double *>(c), epilogue, team);
}

} // namespace cleave
