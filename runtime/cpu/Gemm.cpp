//===- Gemm.cpp - matrix products on a rank's workers ---------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/Gemm.h"

#include "runtime/core/Float16.h"
#include "runtime/cpu/GemmKernel.h"
#include "runtime/cpu/KernelTable.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <fmt/format.h>
#include <limits>
#include <new>
#include <sys/mman.h>
#include <type_traits>
#include <unistd.h>

namespace cleave {

static int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t roundUp(int64_t a, int64_t b) { return ceilDiv(a, b) * b; }

//===----------------------------------------------------------------------===//
// What is taken for a product. Sizes decide, never the number of workers.
//===----------------------------------------------------------------------===//

/// Products of up to this many multiply-adds are done in place.
static constexpr int64_t tinyProduct = 512;

namespace {
enum class Method : uint8_t {
  InPlace,  ///< three loops
  Streamed, ///< few rows: B (or, few columns, A) is read once, as it lies
  Packed,   ///< tiles in registers over packed operands
};
constexpr std::array methods = {Method::InPlace, Method::Streamed, Method::Packed};
} // namespace

static std::string rejectionOf(Method method, const GemmStep &s) {
  switch (method) {
  case Method::InPlace:
    if (s.k > 0 && s.m * s.n > tinyProduct / s.k)
      return fmt::format("more than {} multiply-adds", tinyProduct);
    return {};
  case Method::Streamed:
    if (std::min(s.m, s.n) > mostFewRows)
      return fmt::format("more than {} rows and columns", mostFewRows);
    return {};
  case Method::Packed:
    return {};
  }
  return {};
}

static Method methodOf(const GemmStep &s) {
  return *std::find_if(methods.begin(), methods.end(),
                       [&](Method method) { return rejectionOf(method, s).empty(); });
}

/// In the order of preference; the last one runs everywhere.
static constexpr std::array kernelList = {
#if defined(__x86_64__)
    &gemmAvx512,
    &gemmAvx2,
#endif
    &gemmPortable,
};

std::vector<GemmCandidate> gemmCandidates(const GemmStep &step) {
  std::vector<GemmCandidate> out{{"in place", rejectionOf(Method::InPlace, step)}};
  for (const GemmKernels *kernels : kernelList)
    for (Method method : {Method::Streamed, Method::Packed}) {
      std::string rejection = kernels->rejection();
      if (rejection.empty())
        rejection = rejectionOf(method, step);
      out.push_back(
          {fmt::format("{} {}", kernels->name, method == Method::Streamed ? "streamed" : "packed"),
           std::move(rejection)});
    }
  return out;
}

const GemmKernels &bestKernels() {
  static const GemmKernels &best =
      **std::find_if(kernelList.begin(), kernelList.end(),
                     [](const GemmKernels *kernels) { return kernels->rejection()[0] == '\0'; });
  return best;
}

/// Few columns: the product is done as C' = B' * A'.
static bool isTurned(const GemmStep &s) { return s.m > mostFewRows; }

/// Equal parts of `extent` of at most `most`.
static int64_t evenPart(int64_t extent, int64_t most, int64_t multiple) {
  return roundUp(ceilDiv(extent, ceilDiv(extent, most)), multiple);
}
/// Equal parts of the sum; by its length only, so that its order is, too.
template <typename T> static int64_t depthPart(const GemmStep &s) {
  return evenPart(s.k, 4096 / int64_t{sizeof(T)}, 8);
}

//===----------------------------------------------------------------------===//
// B packed ahead: for each part of the sum all panels, one after another.
//===----------------------------------------------------------------------===//

/// Elements that one step of the sum takes.
template <typename T> static int64_t packedCols(const GemmStep &s, const GemmKernel<T> &kernel) {
  return roundUp(s.n, kernel.tileCols);
}

int64_t packedBytes(const GemmStep &s, const GemmKernels &kernels) {
  Method method = methodOf(s);
  if (s.batch != 1 || s.m <= 0 || s.n <= 0 || s.k <= 0 || s.sums != GemmStep::Sums::None ||
      method == Method::InPlace || (method == Method::Streamed && isTurned(s)))
    return 0;
  return s.k * byteSize(accumulatorOf(s.dtype)) *
         (s.dtype == DType::F64 ? packedCols(s, kernels.f64) : packedCols(s, kernels.f32));
}

static float widen(StoredBF16 x) { return fromBF16(x.bits); }
static float widen(StoredF16 x) { return fromF16(x.bits); }
static float widen(float x) { return x; }
static double widen(double x) { return x; }

/// Calls `f` with the kernels, and what reads operands as the step has them stored.
template <typename F>
static void withReader(const GemmStep &s, const GemmKernels &kernels, const F &f) {
  if (s.dtype == DType::F64)
    f(kernels.f64, kernels.readF64);
  else if (s.dtype == DType::BF16)
    f(kernels.f32, kernels.readBF16);
  else if (s.dtype == DType::F16)
    f(kernels.f32, kernels.readF16);
  else
    f(kernels.f32, kernels.readF32);
}

template <typename T, typename S>
static void packWhole(const GemmStep &s, const char *stored, char *place, ThreadTeam &team,
                      const GemmKernel<T> &kernel, const GemmReader<T, S> &reader) {
  auto *b = reinterpret_cast<const S *>(stored);
  auto *to = reinterpret_cast<T *>(place);
  const int64_t depth = depthPart<T>(s), panels = packedCols(s, kernel) / kernel.tileCols;
  for (int64_t q = 0; q < s.k; q += depth) {
    const int64_t deep = std::min(depth, s.k - q);
    team.parallelFor(0, panels, 8, [&](int64_t from, int64_t end) {
      int64_t first = from * kernel.tileCols, last = std::min(s.n, end * kernel.tileCols);
      reader.packB(b + (s.transB ? first * s.ldb + q : q * s.ldb + first), s.transB ? s.ldb : 1,
                   s.transB ? 1 : s.ldb, last - first, deep,
                   to + q * packedCols(s, kernel) + first * deep);
    });
  }
}

void packB(const GemmStep &step, const char *b, char *to, ThreadTeam &team,
           const GemmKernels &kernels) {
  withReader(step, kernels, [&](const auto &kernel, const auto &reader) {
    packWhole(step, b, to, team, kernel, reader);
  });
}

//===----------------------------------------------------------------------===//
// Tiling
//===----------------------------------------------------------------------===//

GemmTiling chooseTiling(const GemmStep &step, int workers) {
  const int64_t m = step.m, n = step.n, k = std::max<int64_t>(1, step.k);
  Method method = methodOf(step);
  if (workers <= 1 || method == Method::InPlace)
    return {m, n};
  if (method == Method::Streamed) {
    // Some 200 KB of the streamed operand to each tile, whole cache lines of C.
    bool turned = isTurned(step);
    int64_t extent = turned ? m : n;
    int64_t part = std::max(ceilDiv(extent, 4 * int64_t{workers}), ceilDiv(50'000, k));
    part = std::min(extent, roundUp(part, 64));
    return turned ? GemmTiling{part, n} : GemmTiling{m, part};
  }
  // Times in units of one multiply-add at full rate.
  constexpr double packCost = 12;     // an element of A or B, read and packed
  constexpr double callCost = 20'000; // a tile claimed, its unused edges
  GemmTiling best{m, n};
  double bestCost = std::numeric_limits<double>::infinity();
  auto sizeOf = [](int64_t extent, int64_t parts, int64_t multiple) {
    return std::min(extent, roundUp(ceilDiv(extent, parts), multiple));
  };
  // Multiples of the tiles of all kernels.
  for (int64_t rowParts = 1; rowParts <= 8 * workers; ++rowParts)
    for (int64_t colParts = 1; rowParts * colParts <= 8 * workers; ++colParts) {
      int64_t rows = sizeOf(m, rowParts, 12), cols = sizeOf(n, colParts, 32);
      double tile = double(rows) * double(cols) * double(k) +
                    packCost * double(k) * double(rows + cols) + callCost;
      // The work, evenly shared, and a part of a tile of waiting for the slowest.
      int64_t tiles = step.batch * ceilDiv(m, rows) * ceilDiv(n, cols);
      double cost = tile * double(ceilDiv(tiles, workers)) + 0.25 * tile;
      if (cost < bestCost) {
        bestCost = cost;
        best = {rows, cols};
      }
    }
  return best;
}

//===----------------------------------------------------------------------===//
// Tiles
//===----------------------------------------------------------------------===//

namespace {
/// A thread's packed operands: grows, and stays for the next product.
class Scratch {
public:
  Scratch() = default;
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  ~Scratch() { std::free(memory); }

  char *get(int64_t bytes) {
    if (bytes > size) {
      std::free(memory);
      memory = nullptr;
      size = 0;
      constexpr int64_t hugePage = int64_t{2} << 20;
      bytes = bytes < hugePage ? roundUp(bytes, 4096) : roundUp(bytes, hugePage);
      memory = static_cast<char *>(
          std::aligned_alloc(bytes < hugePage ? 4096 : hugePage, static_cast<size_t>(bytes)));
      if (!memory)
        throw std::bad_alloc();
      if (bytes >= hugePage)
        madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
      size = bytes;
    }
    return memory;
  }

private:
  char *memory = nullptr;
  int64_t size = 0;
};

struct Tile {
  int64_t batch, row, col, rows, cols;
};

/// What the calling thread's last product has packed of A, as a whole.
struct KeptA {
  const void *a = nullptr;
  DType dtype = DType::F32;
  int64_t m = 0, k = 0, lda = 0;
  bool transA = false;
  bool operator==(const KeptA &) const = default;
};
constexpr int64_t mostKeptA = int64_t{16} << 20;

thread_local Scratch scratch;       ///< of who multiplies
thread_local Scratch sharedScratch; ///< of who calls: what all workers read
thread_local KeptA keptA;

/// Operands are stored in S, added up in T.
template <typename T, typename S> class Product {
public:
  /// `packedB`: the whole of B as `packB` makes it, or null.
  Product(const GemmStep &step, const S *a, const S *b, const T *packedB, T *c,
          const KernelCall &epilogue, const GemmKernel<T> &kernel, const GemmReader<T, S> &reader,
          T *sums)
      : s(step), a(a), b(b), packedB(packedB), c(c), sums(sums), epilogue(epilogue),
        finish(reinterpret_cast<EpilogueFunction>(epilogue.kernel)), kernel(kernel), reader(reader),
        method(methodOf(step)) {}

  void run(const Tile &tile) const {
    // With a sum over nothing the operands may be null.
    const S *tileA = a, *tileB = b;
    if (s.k > 0) {
      tileA += tile.batch * s.strideA + tile.row * (s.transA ? 1 : s.lda);
      tileB += tile.batch * s.strideB + tile.col * (s.transB ? s.ldb : 1);
    }
    T *tileC = c + tile.batch * s.strideC + tile.row * s.ldc + tile.col;
    switch (method) {
    case Method::InPlace:
      inPlace(tile, tileA, tileB, tileC);
      break;
    case Method::Streamed:
      isTurned(s) ? streamed(tile.cols, tileB, s.transB ? s.ldb : 1, s.transB ? 1 : s.ldb,
                             tile.rows, tileA, s.lda, !s.transA, tileC, 1, s.ldc)
                  : streamed(tile.rows, tileA, s.transA ? 1 : s.lda, s.transA ? s.lda : 1,
                             tile.cols, tileB, s.ldb, s.transB, tileC, s.ldc, 1);
      break;
    case Method::Packed:
      packed(tile, tileA, tileB);
      return; // it has called the epilogue itself
    }
    finished(tile.batch, tile.row, tile.rows, tile.col, tile.cols);
  }

  void forgetA() const { keptA = KeptA(); }

  /// Sums of an operand that is not packed as a whole.
  void sumApart() const {
    if (s.sums == GemmStep::Sums::None)
      return;
    const bool ofA = s.sums == GemmStep::Sums::OfA;
    const S *from = ofA ? a : b;
    const int64_t count = ofA ? s.m : s.n, ld = ofA ? s.lda : s.ldb;
    const bool rowsAlongSum = ofA ? !s.transA : s.transB; // an element's terms lie side by side
    std::fill_n(sums, count, T(0));
    for (int64_t i = 0; i < (rowsAlongSum ? count : s.k); ++i)
      for (int64_t j = 0; j < (rowsAlongSum ? s.k : count); ++j)
        sums[rowsAlongSum ? i : j] += widen(from[i * ld + j]);
  }

  /// Whether all workers take parts of one product, rather than products of a batch.
  /// Sizes decide, so that sums of an operand have one order.
  bool isShared() const {
    return method == Method::Packed && s.batch == 1 &&
           double(s.m) * double(s.n) * double(s.k) > 2e6;
  }
  /// All workers on one packed product: A is packed once for all of them, B by who needs it.
  void together(ThreadTeam &team) const {
    constexpr int64_t width = sizeof(T);
    const int64_t depth = depthPart<T>(s);
    // A's part lies in the last-level cache.
    const int64_t mostRows = std::max(kernel.tileRows, (int64_t{8} << 20) / (depth * width));
    const int64_t rowPart = evenPart(s.m, mostRows, kernel.tileRows);
    const int64_t colPart = columnPart(s.n, depth);
    const int64_t colTiles = ceilDiv(s.n, colPart), wanted = 8 * int64_t{team.size()};
    // The whole of A stays for the next product if it is of a size for the cache.
    const bool whole = roundUp(s.m, rowPart) * s.k * width <= mostKeptA;
    const KeptA form{a, s.dtype, s.m, s.k, s.lda, s.transA};
    const bool isPacked = s.sameA && whole && keptA == form;
    keptA = KeptA(); // until it is packed
    auto *memory = reinterpret_cast<T *>(
        sharedScratch.get(whole ? roundUp(s.m, rowPart) * s.k * width : rowPart * depth * width));
    for (int64_t i = 0; i < s.m; i += rowPart) {
      const int64_t rows = std::min(rowPart, s.m - i);
      const int64_t rowTiles =
          std::clamp(ceilDiv(wanted, colTiles), int64_t{1}, ceilDiv(rows, 8 * kernel.tileRows));
      const int64_t tileRows = evenPart(rows, ceilDiv(rows, rowTiles), kernel.tileRows);
      const int64_t rowCount = ceilDiv(rows, tileRows);
      for (int64_t q = 0; q < s.k; q += depth) {
        const int64_t deep = std::min(depth, s.k - q);
        T *left = memory + (whole ? i * s.k + roundUp(rows, kernel.tileRows) * q : 0);
        const bool sumsA = s.sums == GemmStep::Sums::OfA, sumsB = s.sums == GemmStep::Sums::OfB;
        if (!isPacked || sumsA)
          team.parallelFor(0, ceilDiv(rows, kernel.tileRows), 8, [&](int64_t from, int64_t to) {
            int64_t first = from * kernel.tileRows, end = std::min(rows, to * kernel.tileRows);
            if (!isPacked)
              reader.packA(a + (s.transA ? q * s.lda + i + first : (i + first) * s.lda + q),
                           s.transA ? 1 : s.lda, s.transA ? s.lda : 1, end - first, deep,
                           left + first * deep);
            if (sumsA)
              kernel.sumA(left + first * deep, end - first, deep, sums + i + first, q > 0);
          });
        // Tiles of the same columns follow one another: who takes two packs B once.
        std::atomic<int64_t> next{0};
        team.parallelFor(0, team.size(), 1, [&](int64_t, int64_t) {
          T *right =
              packedB ? nullptr : reinterpret_cast<T *>(scratch.get(colPart * depth * width));
          int64_t packed = -1;
          for (int64_t tile;
               (tile = next.fetch_add(1, std::memory_order_relaxed)) < colTiles * rowCount;) {
            int64_t column = tile / rowCount, j = column * colPart;
            int64_t cols = std::min(colPart, s.n - j), r = tile % rowCount * tileRows;
            if (column != packed && !packedB)
              reader.packB(b + (s.transB ? j * s.ldb + q : q * s.ldb + j), s.transB ? s.ldb : 1,
                           s.transB ? 1 : s.ldb, cols, deep, right);
            packed = column;
            if (sumsB && i + r == 0) // of each column once
              kernel.sumB(right, cols, deep, sums + j, q > 0);
            multiplyPieces(left + r * deep, packedB ? packedAt(q, j, deep) : right,
                           {0, i + r, j, std::min(tileRows, rows - r), cols}, deep,
                           s.accumulate || q > 0, q + deep == s.k);
          }
        });
      }
    }
    keptA = whole ? form : KeptA();
  }

  /// Few rows, and B packed ahead.
  bool isFewPacked() const { return packedB && method == Method::Streamed; }
  /// Each panel of B is read once, in the order in which it lies.
  void fewPacked(ThreadTeam &team, int workers) const {
    const int64_t depth = depthPart<T>(s);
    T *copy = nullptr;
    if (s.transA || !isStoredWide)
      copy = reinterpret_cast<T *>(scratch.get(s.m * s.k * int64_t{sizeof(T)}));
    const auto [x, ldx] = rowsOf(s.m, a, s.transA ? 1 : s.lda, s.transA ? s.lda : 1, copy);
    auto panels = [&](int64_t from, int64_t end) {
      const int64_t j = from * kernel.tileCols;
      const int64_t cols = std::min(s.n, end * kernel.tileCols) - j;
      for (int64_t q = 0; q < s.k; q += depth) {
        const int64_t deep = std::min(depth, s.k - q);
        kernel.fewPacked(s.m, x + q, ldx, packedAt(q, j, deep), cols, deep, c + j, s.ldc,
                         s.accumulate || q > 0);
      }
      finished(0, 0, s.m, j, cols);
    };
    const int64_t count = ceilDiv(s.n, kernel.tileCols);
    if (workers == 1)
      return panels(0, count);
    // Some 200 KB of B to each worker at a time.
    team.parallelFor(0, count, ceilDiv(50'000, s.k * kernel.tileCols), panels);
  }

private:
  /// The panels of B from column j on, a panel's first one, in the sum from q on.
  const T *packedAt(int64_t q, int64_t j, int64_t deep) const {
    return packedB + q * packedCols(s, kernel) + j * deep;
  }
  /// B's part lies in a third of the second-level cache.
  int64_t columnPart(int64_t cols, int64_t depth) const {
    int64_t most =
        std::clamp(secondCache() / 3 / (depth * int64_t{sizeof(T)}), int64_t{1}, int64_t{1024});
    return evenPart(cols, most, kernel.tileCols);
  }
  /// With an epilogue, C is finished in pieces that stay in cache.
  void multiplyPieces(const T *left, const T *right, const Tile &tile, int64_t depth, bool add,
                      bool last) const {
    const int64_t piece = finish && last ? roundUp(96, kernel.tileRows) : tile.rows;
    for (int64_t r = 0; r < tile.rows; r += piece) {
      int64_t some = std::min(piece, tile.rows - r);
      kernel.multiply(left + r * depth, right,
                      c + tile.batch * s.strideC + (tile.row + r) * s.ldc + tile.col, s.ldc, some,
                      tile.cols, depth, add);
      if (last)
        finished(tile.batch, tile.row + r, some, tile.col, tile.cols);
    }
  }
  void finished(int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols) const {
    if (finish)
      finish(batch, row, row + rows, col, col + cols, epilogue.buffers, epilogue.scalars);
  }

  static constexpr bool isStoredWide = std::is_same_v<T, S>;
  struct Rows {
    const T *x;
    int64_t stride;
  };
  /// A few rows, of which element (r, q) is x[r * stride + q * step], side by side along the sum
  /// and in T: as they lie, or in `copy`.
  Rows rowsOf(int64_t rows, const S *x, int64_t stride, int64_t step, T *copy) const {
    if constexpr (isStoredWide)
      if (step == 1)
        return {x, stride};
    for (int64_t q = 0; q < s.k; ++q)
      for (int64_t r = 0; r < rows; ++r)
        copy[r * s.k + q] = widen(x[r * stride + q * step]);
    return {copy, s.k};
  }

  void inPlace(const Tile &tile, const S *tileA, const S *tileB, T *tileC) const {
    for (int64_t i = 0; i < tile.rows; ++i)
      for (int64_t j = 0; j < tile.cols; ++j) {
        T sum = 0;
        for (int64_t k = 0; k < s.k; ++k)
          sum += widen(s.transA ? tileA[k * s.lda + i] : tileA[i * s.lda + k]) *
                 widen(s.transB ? tileB[j * s.ldb + k] : tileB[k * s.ldb + j]);
        T &to = tileC[i * s.ldc + j];
        to = s.accumulate ? to + sum : sum;
      }
  }

  /// to = x * B with few rows in x. Element (r, q) of x is x[r * stride + q * step].
  void streamed(int64_t rows, const S *few, int64_t fewStride, int64_t step, int64_t cols,
                const S *right, int64_t ldb, bool across, T *to, int64_t rowStride,
                int64_t colStride) const {
    constexpr int64_t width = sizeof(T);
    // What the kernel writes stays in the first cache.
    const int64_t part = std::min(cols, 16'384 / width / rows / 64 * 64);
    T *y = reinterpret_cast<T *>(scratch.get((rows * part + rows * s.k) * width));
    const auto [x, stride] = rowsOf(rows, few, fewStride, step, y + rows * part);
    for (int64_t j = 0; j < cols; j += part) {
      int64_t some = std::min(part, cols - j);
      reader.fewRows(rows, x, stride, right + j * (across ? ldb : 1), ldb, across, some, s.k, y,
                     part);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < some; ++i) {
          T &out = to[r * rowStride + (j + i) * colStride];
          out = s.accumulate ? out + y[r * part + i] : y[r * part + i];
        }
    }
  }

  void packed(const Tile &tile, const S *tileA, const S *tileB) const {
    constexpr int64_t width = sizeof(T);
    const int64_t depth = depthPart<T>(s);
    // A's part lies in the last-level cache; the panel of it that is being used passes
    // through the first.
    const int64_t mostRows = std::max(kernel.tileRows, (int64_t{3} << 20) / (depth * width));
    const int64_t rowPart = evenPart(tile.rows, mostRows, kernel.tileRows);
    const int64_t colPart = columnPart(tile.cols, depth);
    const int64_t bytesA = roundUp(rowPart * depth * width, 4096);
    char *memory = scratch.get(bytesA + (packedB ? 0 : colPart * depth * width));
    T *left = reinterpret_cast<T *>(memory), *right = reinterpret_cast<T *>(memory + bytesA);
    for (int64_t i = 0; i < tile.rows; i += rowPart) {
      int64_t rows = std::min(rowPart, tile.rows - i);
      for (int64_t q = 0; q < s.k; q += depth) {
        int64_t deep = std::min(depth, s.k - q);
        reader.packA(tileA + (s.transA ? q * s.lda + i : i * s.lda + q), s.transA ? 1 : s.lda,
                     s.transA ? s.lda : 1, rows, deep, left);
        for (int64_t j = 0; j < tile.cols; j += colPart) {
          int64_t cols = std::min(colPart, tile.cols - j);
          if (!packedB)
            reader.packB(tileB + (s.transB ? j * s.ldb + q : q * s.ldb + j), s.transB ? s.ldb : 1,
                         s.transB ? 1 : s.ldb, cols, deep, right);
          multiplyPieces(left, packedB ? packedAt(q, tile.col + j, deep) : right,
                         {tile.batch, tile.row + i, tile.col + j, rows, cols}, deep,
                         s.accumulate || q > 0, q + deep == s.k);
        }
      }
    }
  }

  static int64_t secondCache() {
    static const int64_t bytes =
        std::clamp<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), int64_t{256} << 10, int64_t{2} << 20);
    return bytes;
  }

  const GemmStep &s;
  const S *const a, *const b;
  const T *const packedB;
  T *const c, *const sums;
  const KernelCall &epilogue;
  const EpilogueFunction finish;
  const GemmKernel<T> &kernel;
  const GemmReader<T, S> &reader;
  const Method method;
};
} // namespace

template <typename T, typename S>
static void runTiles(const GemmStep &s, const Product<T, S> &product, ThreadTeam &team) {
  if (s.m > 0 && s.n > 0 && product.isShared())
    return product.together(team);
  product.forgetA(); // who comes next must not take an earlier product's
  product.sumApart();
  if (s.m <= 0 || s.n <= 0)
    return;
  // Less than a few microseconds: nobody else would come in time.
  double work = double(s.batch) * double(s.m) * double(s.n) * double(std::max<int64_t>(1, s.k));
  int workers = work < 50'000 ? 1 : team.size();
  if (product.isFewPacked())
    return product.fewPacked(team, workers);
  GemmTiling tiling = chooseTiling(s, workers);
  int64_t rowTiles = ceilDiv(s.m, tiling.rows), colTiles = ceilDiv(s.n, tiling.cols);
  int64_t tiles = s.batch * rowTiles * colTiles;
  auto runRange = [&](int64_t from, int64_t to) {
    for (int64_t index = from; index < to; ++index) {
      int64_t batch = index / (rowTiles * colTiles), tile = index % (rowTiles * colTiles);
      int64_t row = tile / colTiles * tiling.rows, col = tile % colTiles * tiling.cols;
      product.run(
          {batch, row, col, std::min(tiling.rows, s.m - row), std::min(tiling.cols, s.n - col)});
    }
  };
  if (workers == 1 || tiles == 1) {
    runRange(0, tiles);
    return;
  }
  // Tiles are claimed from a counter of our own, one by one (small ones, such as
  // attention's heads, several at a time): the tail is shorter than a chunk of
  // the team's.
  auto grain = static_cast<int64_t>(std::clamp(400'000 / (work / double(tiles)), 1.0,
                                               std::max(1.0, double(tiles) / (4 * workers))));
  std::atomic<int64_t> next{0};
  team.parallelFor(0, workers, 1, [&](int64_t, int64_t) {
    for (int64_t from; (from = next.fetch_add(grain, std::memory_order_relaxed)) < tiles;)
      runRange(from, std::min(tiles, from + grain));
  });
}

void cpuGemm(const GemmStep &step, const char *a, const char *b, char *c,
             const KernelCall &epilogue, ThreadTeam &team, const GemmKernels &kernels, char *sums,
             const char *packedB) {
  if (step.batch <= 0)
    return;
  withReader(
      step, kernels,
      [&]<typename T, typename S>(const GemmKernel<T> &kernel, const GemmReader<T, S> &reader) {
        runTiles(step,
                 Product<T, S>(step, reinterpret_cast<const S *>(a), reinterpret_cast<const S *>(b),
                               reinterpret_cast<const T *>(packedB), reinterpret_cast<T *>(c),
                               epilogue, kernel, reader, reinterpret_cast<T *>(sums)),
                 team);
      });
}

} // namespace cleave
