//===- GemmTest.cpp - matrix products -------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "UsableKernels.h"

#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/GemmKernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <thread>

using namespace cleave;

namespace {
/// A product with its operands. Nothing lies behind the operands' last elements: a
/// sanitizer sees what reads there.
template <typename T> struct Case {
  GemmStep s;
  std::vector<T> a, b, c;

  /// `forms`: 1 transA, 2 transB, 4 accumulate, 8 the batch's matrices side by
  /// side in common rows (as attention's heads), 16 one B for the whole batch.
  Case(int64_t batch, int64_t m, int64_t n, int64_t k, int forms, int64_t pad, std::mt19937 &random,
       bool integers) {
    s.dtype = sizeof(T) == 4 ? DType::F32 : DType::F64;
    s.batch = batch, s.m = m, s.n = n, s.k = k;
    s.transA = forms & 1, s.transB = forms & 2, s.accumulate = forms & 4;
    int64_t rowsA = s.transA ? k : m, colsA = s.transA ? m : k;
    int64_t rowsB = s.transB ? n : k, colsB = s.transB ? k : n;
    s.lda = std::max<int64_t>(1, colsA + pad), s.ldb = std::max<int64_t>(1, colsB + 2 * pad);
    s.ldc = n + 3 * pad;
    if (forms & 8) {
      s.strideA = colsA, s.strideB = colsB, s.strideC = n;
      s.lda = std::max<int64_t>(1, batch * colsA + pad);
      s.ldb = std::max<int64_t>(1, batch * colsB + pad);
      s.ldc = batch * n + pad;
    } else {
      s.strideA = rowsA * s.lda + pad, s.strideC = m * s.ldc + pad;
      s.strideB = forms & 16 ? 0 : rowsB * s.ldb;
    }
    auto span = [&](int64_t stride, int64_t rows, int64_t cols, int64_t ld) {
      return rows * cols == 0 ? 0 : (batch - 1) * stride + (rows - 1) * ld + cols;
    };
    std::uniform_real_distribution<double> real(-1, 1);
    auto fill = [&](int64_t count) {
      std::vector<T> v(static_cast<size_t>(count));
      for (T &x : v)
        x = integers ? T(int(random() % 17) - 8) : T(real(random));
      return v;
    };
    a = fill(span(s.strideA, rowsA, colsA, s.lda));
    b = fill(span(s.strideB, rowsB, colsB, s.ldb));
    c = fill(span(s.strideC, m, n, s.ldc));
    if (!s.accumulate) // what lay there before must not be read
      forEach(c, [](size_t, T &x) { x = std::numeric_limits<T>::quiet_NaN(); });
  }

  size_t at(int64_t p, int64_t i, int64_t j) const {
    return static_cast<size_t>(p * s.strideC + i * s.ldc + j);
  }

  template <typename Body> void forEach(std::vector<T> &from, Body body) const {
    for (int64_t p = 0; p < s.batch; ++p)
      for (int64_t i = 0; i < s.m; ++i)
        for (int64_t j = 0; j < s.n; ++j)
          body(at(p, i, j), from[at(p, i, j)]);
  }

  std::vector<T> run(const GemmKernels &kernels, ThreadTeam &team, KernelCall call = {},
                     T *sums = nullptr) const {
    std::vector<T> out = c;
    char *buffers[] = {reinterpret_cast<char *>(out.data())};
    call.buffers = buffers;
    cpuGemm(s, reinterpret_cast<const char *>(a.data()), reinterpret_cast<const char *>(b.data()),
            buffers[0], call, team, kernels, reinterpret_cast<char *>(sums));
    return out;
  }

  /// With B packed ahead; what is not to be read is NaN.
  std::vector<T> runPacked(const GemmKernels &kernels, ThreadTeam &team,
                           KernelCall call = {}) const {
    std::vector<T> out = c, none(1, std::numeric_limits<T>::quiet_NaN());
    std::vector<T> copy(static_cast<size_t>(packedBytes(s, kernels)) / sizeof(T),
                        std::numeric_limits<T>::quiet_NaN());
    packB(s, reinterpret_cast<const char *>(b.data()), reinterpret_cast<char *>(copy.data()), team,
          kernels);
    char *buffers[] = {reinterpret_cast<char *>(out.data())};
    call.buffers = buffers;
    cpuGemm(s, reinterpret_cast<const char *>(a.data()), reinterpret_cast<char *>(none.data()),
            buffers[0], call, team, kernels, nullptr, reinterpret_cast<const char *>(copy.data()));
    return out;
  }

  /// In double, and the sum of the terms' magnitudes for an error bound. Where
  /// there is no element of C, what lay there.
  void reference(std::vector<double> &want, std::vector<double> &bound) const {
    want.assign(c.begin(), c.end());
    bound.assign(c.size(), 0);
    for (int64_t p = 0; p < s.batch; ++p)
      for (int64_t i = 0; i < s.m; ++i)
        for (int64_t j = 0; j < s.n; ++j) {
          double sum = s.accumulate ? want[at(p, i, j)] : 0, size = std::fabs(sum);
          // Numbers, not pointers: without terms, a and b may be empty.
          int64_t x = p * s.strideA + i * (s.transA ? 1 : s.lda);
          int64_t y = p * s.strideB + j * (s.transB ? s.ldb : 1);
          for (int64_t q = 0; q < s.k; ++q) {
            double term = double(a[static_cast<size_t>(x + q * (s.transA ? s.lda : 1))]) *
                          b[static_cast<size_t>(y + q * (s.transB ? 1 : s.ldb))];
            sum += term;
            size += std::fabs(term);
          }
          want[at(p, i, j)] = sum;
          bound[at(p, i, j)] = size;
        }
  }

  std::string text() const {
    return std::to_string(s.batch) + " x " + std::to_string(s.m) + " x " + std::to_string(s.n) +
           " x " + std::to_string(s.k) + (s.transA ? " T" : " N") + (s.transB ? "T" : "N") +
           (s.accumulate ? " +" : "") + " strides " + std::to_string(s.strideA) + " " +
           std::to_string(s.strideB) + " " + std::to_string(s.strideC);
  }
};

/// All kernels, with B packed ahead and not, against the reference, and all teams bit by bit
/// against the first.
template <typename T>
void check(const Case<T> &product, bool exact, const std::vector<ThreadTeam *> &teams) {
  std::vector<double> want, bound;
  product.reference(want, bound);
  for (const GemmKernels *kernels : usableKernels())
    for (bool packed : {false, true}) {
      if (packed && packedBytes(product.s, *kernels) == 0)
        continue;
      std::vector<T> first;
      for (ThreadTeam *team : teams) {
        std::vector<T> got =
            packed ? product.runPacked(*kernels, *team) : product.run(*kernels, *team);
        if (packed && product.s.m > mostFewRows && product.s.k > 0) {
          std::vector<T> same = product.run(*kernels, *team);
          ASSERT_EQ(std::memcmp(same.data(), got.data(), got.size() * sizeof(T)), 0)
              << kernels->name << ", " << team->size() << " workers: " << product.text();
        }
        for (size_t i = 0; i < got.size(); ++i) {
          // A chain of k roundings, each of half a unit in the last place.
          double allowed = exact ? 0
                                 : bound[i] * double(product.s.k + 2) *
                                       double(std::numeric_limits<T>::epsilon());
          // Written so that NaN fails.
          ASSERT_TRUE(std::fabs(double(got[i]) - want[i]) <= allowed)
              << kernels->name << ", " << team->size() << " workers: " << product.text() << " at "
              << i << ": " << got[i] << " instead of " << want[i];
        }
        if (first.empty())
          first = got;
        else
          ASSERT_EQ(std::memcmp(first.data(), got.data(), got.size() * sizeof(T)), 0)
              << kernels->name << ", " << team->size() << " workers: " << product.text();
      }
    }
}

struct Teams {
  ThreadTeam one{1}, two{2, false}, three{3, false}, four{4, false};
  std::vector<ThreadTeam *> all{&one, &two, &three, &four};
};

/// Tells a tile that is not finished, left out, or finished twice.
void doubleAndOne(int64_t batch, int64_t rowBegin, int64_t rowEnd, int64_t colBegin, int64_t colEnd,
                  char **buffers, const int64_t *scalars) {
  float *c = reinterpret_cast<float *>(buffers[0]) + batch * scalars[1];
  for (int64_t i = rowBegin; i < rowEnd; ++i)
    for (int64_t j = colBegin; j < colEnd; ++j)
      c[i * scalars[0] + j] = c[i * scalars[0] + j] * 2 + 1;
}
} // namespace

TEST(Gemm, SmallIntegersAreExactForEveryFormAndTail) {
  Teams teams;
  std::mt19937 random(3);
  for (int64_t m : {0, 1, 2, 5, 8, 9, 12, 13, 31})
    for (int64_t n : {0, 1, 3, 8, 9, 16, 31, 32, 33, 70})
      for (int64_t k : {0, 1, 4, 7, 16, 19, 65}) {
        int forms = int(random() % 32);
        int64_t pad = int64_t(random() % 3), batch = 1 + int64_t(random() % 3);
        check(Case<float>(batch, m, n, k, forms, pad, random, true), true,
              {&teams.one, &teams.three});
        check(Case<double>(batch, m, n, k, forms ^ 3, pad, random, true), true,
              {&teams.one, &teams.three});
        if (HasFatalFailure())
          return;
      }
}

TEST(Gemm, RandomProductsAgreeWithDoubleForAnyNumberOfWorkers) {
  Teams teams;
  std::mt19937 random(11);
  auto upTo = [&](int64_t most) { return int64_t(random() % static_cast<uint64_t>(most)) + 1; };
  for (int round = 0; round < 48 && !HasFatalFailure(); ++round) {
    // Many rows and columns, few of either, long sums in several parts, batches.
    int64_t m = upTo(round % 4 == 0 ? 10 : 200), n = upTo(round % 4 == 1 ? 10 : 200);
    int64_t k = upTo(round % 5 == 0 ? 2500 : 200), batch = round % 3 == 0 ? upTo(5) : 1;
    if (k > 500)
      m = upTo(60), n = upTo(60);
    int forms = round % 32;
    int64_t pad = round % 2 ? upTo(9) : 0;
    check(Case<float>(batch, m, n, k, forms, pad, random, false), false, teams.all);
    check(Case<double>(batch, n, m, k, forms, pad, random, false), false, teams.all);
  }
}

TEST(Gemm, MoreRowsColumnsAndTermsThanOnePartHolds) {
  Teams teams;
  std::mt19937 random(5);
  for (int forms : {0, 3, 5, 6}) {
    check(Case<float>(1, 1600, 20, 1100, forms, 1, random, true), true, {&teams.one, &teams.two});
    check(Case<float>(1, 20, 400, 1100, forms, 1, random, true), true, {&teams.one, &teams.two});
    check(Case<float>(1, 20, 3000, 150, forms, 0, random, true), true, {&teams.one, &teams.two});
    check(Case<float>(1, 2, 5000, 150, forms, 0, random, true), true, {&teams.one, &teams.two});
  }
}

TEST(Gemm, EpilogueSeesEachFinishedElementOnce) {
  Teams teams;
  std::mt19937 random(9);
  for (auto [batch, m, n, k] : {std::array<int64_t, 4>{1, 1, 700, 90},
                                {1, 300, 5, 90},
                                {3, 4, 4, 4},
                                {2, 250, 200, 64},
                                {1, 30, 400, 1100},
                                {1, 40, 30, 0}})
    for (int forms = 0; forms < 8; ++forms) {
      Case<float> product(batch, m, n, k, forms, 2, random, true);
      std::vector<double> want, bound;
      product.reference(want, bound);
      int64_t scalars[] = {product.s.ldc, product.s.strideC};
      KernelCall call{reinterpret_cast<KernelHandle>(&doubleAndOne), nullptr, scalars};
      for (const GemmKernels *kernels : usableKernels())
        for (ThreadTeam *team : {&teams.one, &teams.three}) {
          for (bool packed : {false, true}) {
            if (packed && packedBytes(product.s, *kernels) == 0)
              continue;
            std::vector<float> got = packed ? product.runPacked(*kernels, *team, call)
                                            : product.run(*kernels, *team, call);
            std::vector<float> between = product.c;
            product.forEach(got, [&](size_t at, float &x) {
              ASSERT_EQ(double(x), want[at] * 2 + 1) << kernels->name << " " << product.text();
              between[at] = x;
            });
            // What lies between the rows is as it was.
            ASSERT_EQ(std::memcmp(between.data(), got.data(), got.size() * sizeof(float)), 0);
          }
        }
    }
}

/// Of both operands in every form, small and large, in several parts of the sum; bit by bit
/// the same for any number of workers.
TEST(Gemm, SumsOfAnOperandBesideTheProduct) {
  Teams teams;
  std::mt19937 random(21);
  for (auto [m, n, k] : {std::array<int64_t, 3>{5, 7, 3},
                         {40, 30, 0},
                         {0, 30, 9},
                         {40, 0, 9},
                         {3, 700, 90},
                         {131, 145, 149},
                         {1, 3000, 700},
                         {2100, 45, 1100},
                         {33, 515, 2050}})
    for (int forms = 0; forms < 4; ++forms)
      for (auto which : {GemmStep::Sums::OfA, GemmStep::Sums::OfB}) {
        Case<float> product(1, m, n, k, forms, 2, random, false);
        GemmStep &s = product.s;
        s.sums = which;
        bool ofA = which == GemmStep::Sums::OfA;
        int64_t count = ofA ? m : n, ld = ofA ? s.lda : s.ldb;
        const std::vector<float> &operand = ofA ? product.a : product.b;
        bool along = ofA ? !s.transA : s.transB;
        for (const GemmKernels *kernels : usableKernels()) {
          std::vector<float> first;
          for (ThreadTeam *team : {&teams.one, &teams.three}) {
            std::vector<float> sums(static_cast<size_t>(count), NAN);
            product.run(*kernels, *team, {}, sums.data());
            for (int64_t i = 0; i < count; ++i) {
              double want = 0, size = 0;
              for (int64_t q = 0; q < k; ++q) {
                double x = operand[static_cast<size_t>(along ? i * ld + q : q * ld + i)];
                want += x, size += std::fabs(x);
              }
              ASSERT_LE(std::fabs(double(sums[static_cast<size_t>(i)]) - want),
                        size * double(k + 2) * 6e-8)
                  << kernels->name << (ofA ? " A " : " B ") << product.text() << " at " << i;
            }
            if (first.empty())
              first = sums;
            if (count) // else there is no memory to compare
              ASSERT_EQ(std::memcmp(first.data(), sums.data(), sums.size() * sizeof(float)), 0);
          }
        }
      }
}

/// What was packed of A serves the products that say so, and no other.
TEST(Gemm, OneLeftSideForSeveralProducts) {
  Teams teams;
  std::mt19937 random(22);
  for (auto [m, k] : {std::array<int64_t, 2>{150, 160}, {2100, 1100}, {3000, 2000}, {20, 5}})
    for (int forms : {0, 1})
      for (ThreadTeam *team : {&teams.one, &teams.three}) {
        Case<float> first(1, m, 70, k, forms, 1, random, true),
            second(1, m, 41, k, forms | 2, 1, random, true), third = first;
        std::vector<float> before = first.run(bestKernels(), *team);
        // Elsewhere, so that another packs into the memory in between.
        Case<float> other(1, 160, 140, 150, 0, 0, random, true);
        second.a = first.a;
        second.s.sameA = true;
        std::vector<double> want, bound;
        second.reference(want, bound);
        // The same memory, as in a program.
        auto runOn = [&](const Case<float> &c) {
          std::vector<float> out = c.c;
          cpuGemm(c.s, reinterpret_cast<const char *>(first.a.data()),
                  reinterpret_cast<const char *>(c.b.data()), reinterpret_cast<char *>(out.data()),
                  {}, *team);
          return out;
        };
        auto holds = [&](const char *when) {
          std::vector<float> got = runOn(second);
          for (size_t i = 0; i < got.size(); ++i)
            if (!std::isnan(want[i]))
              ASSERT_EQ(double(got[i]), want[i]) << second.text() << " " << when << " at " << i;
        };
        runOn(first);
        holds("after its neighbour");
        holds("once more");
        other.run(bestKernels(), *team);
        holds("after another product");
        // Who does not say so packs anew: A has changed.
        runOn(first);
        for (float &x : first.a)
          x = -x;
        third.a = first.a;
        std::vector<float> changed = runOn(third);
        third.forEach(changed, [&](size_t at, float &x) { ASSERT_EQ(x, -before[at]); });
        // A once more as it was, and in between a product of it that packs nothing.
        for (float &x : first.a)
          x = -x;
        runOn(Case<float>(1, m, 3, k, forms, 1, random, true));
        holds("after a product that packs nothing");
      }
}

TEST(Gemm, ManyRanksMultiplyAtOnce) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 6; ++rank)
    ranks.emplace_back([rank] {
      ThreadTeam team(2, false);
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int round = 0; round < 10; ++round)
        check(Case<float>(1, 60 + rank, 90 + 7 * rank, 60 + rank, round % 4, 0, random, true), true,
              {&team});
    });
  for (std::thread &rank : ranks)
    rank.join();
}

TEST(Gemm, CandidatesSayWhyTheyDoNotApply) {
  auto step = [](int64_t m, int64_t n, int64_t k) {
    GemmStep s;
    s.m = m, s.n = n, s.k = k;
    return s;
  };
  auto chosen = [](const GemmStep &s) {
    std::vector<GemmCandidate> all = gemmCandidates(s);
    // The last one takes everything.
    EXPECT_EQ(all.back().name, "portable packed");
    EXPECT_EQ(all.back().rejection, "");
    return std::find_if(all.begin(), all.end(),
                        [](const GemmCandidate &c) { return c.rejection.empty(); })
        ->name;
  };
  std::string best = usableKernels().front()->name;
  EXPECT_EQ(chosen(step(4, 4, 4)), "in place");
  EXPECT_EQ(chosen(step(1000, 1000, 0)), "in place");
  EXPECT_EQ(chosen(step(1, 1000, 100)), best + " streamed");
  EXPECT_EQ(chosen(step(1000, 8, 100)), best + " streamed");
  EXPECT_EQ(chosen(step(9, 9, 100)), best + " packed");
  EXPECT_EQ(gemmCandidates(step(9, 9, 100)).front().rejection, "more than 512 multiply-adds");
}

TEST(Gemm, TilesCoverTheWorkersAndNoMore) {
  GemmStep s;
  s.m = 1024, s.n = 3072, s.k = 768;
  GemmTiling one = chooseTiling(s, 1), two = chooseTiling(s, 2);
  EXPECT_EQ(one.rows * one.cols, s.m * s.n); // alone: packing twice gains nothing
  int64_t tiles = ((s.m + two.rows - 1) / two.rows) * ((s.n + two.cols - 1) / two.cols);
  EXPECT_GE(tiles, 4);
  EXPECT_LE(tiles, 16);
  s.batch = 48, s.m = 64, s.n = 64, s.k = 64; // attention: whole matrices
  GemmTiling heads = chooseTiling(s, 2);
  EXPECT_EQ(heads.rows * heads.cols, s.m * s.n);
}
