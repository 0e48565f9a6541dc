//===- GemmShortTest.cpp - matrix products of bf16 and f16 ----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Operands of 16 bits are widened where they are read, so a product is, bit by bit, that of the
// widened operands, which GemmTest.cpp tests.
//
//===----------------------------------------------------------------------===//
#include "UsableKernels.h"

#include "runtime/core/Float16.h"
#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/GemmKernel.h"

#include <array>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

using namespace cleave;

namespace {
class GemmShort : public ::testing::TestWithParam<DType> {
protected:
  float widened(uint16_t bits) const {
    return GetParam() == DType::BF16 ? fromBF16(bits) : fromF16(bits);
  }
  uint16_t narrowed(float x) const { return GetParam() == DType::BF16 ? toBF16(x) : toF16(x); }

  /// `step` on 16-bit operands; null: on none.
  std::vector<float> run(GemmStep step, const void *a, const void *b, const std::vector<float> &c,
                         const GemmKernels &kernels, ThreadTeam &team, bool ahead,
                         std::vector<float> *sums) {
    std::vector<float> out = c, copy;
    if (ahead) {
      copy.resize(static_cast<size_t>(packedBytes(step, kernels)) / sizeof(float));
      packB(step, static_cast<const char *>(b), reinterpret_cast<char *>(copy.data()), team,
            kernels);
    }
    cpuGemm(step, static_cast<const char *>(a), static_cast<const char *>(b),
            reinterpret_cast<char *>(out.data()), {}, team, kernels,
            sums ? reinterpret_cast<char *>(sums->data()) : nullptr,
            ahead ? reinterpret_cast<const char *>(copy.data()) : nullptr);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Of, GemmShort, ::testing::Values(DType::BF16, DType::F16),
                         [](const auto &info) { return std::string(name(info.param)); });

TEST_P(GemmShort, IsTheProductOfTheWidenedOperands) {
  ThreadTeam one{1}, three{3, false};
  std::mt19937 random(17);
  std::uniform_real_distribution<float> real(-3, 3);
  for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 5},
                         {3, 70, 33},
                         {8, 300, 90},
                         {200, 5, 61},
                         {31, 33, 19},
                         {5, 9, 0},
                         {129, 143, 131},
                         {60, 400, 1100}})
    for (int forms = 0; forms < 8; ++forms) {
      GemmStep step;
      step.dtype = GetParam();
      step.m = m, step.n = n, step.k = k;
      step.transA = forms & 1, step.transB = forms & 2, step.accumulate = forms & 4;
      step.lda = (step.transA ? m : k) + 3, step.ldb = (step.transB ? n : n) + 1;
      if (step.transB)
        step.ldb = k + 1;
      step.ldc = n + 2;
      step.sums = forms % 3 == 0   ? GemmStep::Sums::None
                  : forms % 3 == 1 ? GemmStep::Sums::OfA
                                   : GemmStep::Sums::OfB;
      GemmStep wide = step;
      wide.dtype = DType::F32;
      std::vector<uint16_t> a(static_cast<size_t>((step.transA ? k : m) * step.lda)),
          b(static_cast<size_t>((step.transB ? n : k) * step.ldb));
      std::vector<float> wideA, wideB, c(static_cast<size_t>(m * step.ldc));
      for (auto [from, to] : {std::pair(&a, &wideA), {&b, &wideB}})
        for (uint16_t &x : *from) {
          x = narrowed(real(random));
          to->push_back(widened(x));
        }
      for (float &x : c)
        x = real(random);
      for (const GemmKernels *kernels : usableKernels())
        for (ThreadTeam *team : {&one, &three})
          for (bool ahead : {false, true}) {
            if (ahead && packedBytes(step, *kernels) == 0)
              continue;
            size_t count = static_cast<size_t>(std::max(m, n));
            std::vector<float> sums(count, -7), wideSums(count, -7);
            bool summed = step.sums != GemmStep::Sums::None;
            auto want = run(wide, wideA.data(), wideB.data(), c, *kernels, *team, ahead,
                            summed ? &wideSums : nullptr);
            auto got =
                run(step, a.data(), b.data(), c, *kernels, *team, ahead, summed ? &sums : nullptr);
            auto where = [&] {
              return std::string(kernels->name) + " " + std::to_string(m) + " x " +
                     std::to_string(n) + " x " + std::to_string(k) + " form " +
                     std::to_string(forms) + (ahead ? " packed" : "");
            };
            ASSERT_EQ(std::memcmp(want.data(), got.data(), got.size() * sizeof(float)), 0)
                << where();
            ASSERT_EQ(std::memcmp(wideSums.data(), sums.data(), count * sizeof(float)), 0)
                << where();
          }
    }
}

/// Every number there is, by each way to read it: a sum of one term, times 1.
TEST_P(GemmShort, ReadsEveryNumber) {
  constexpr int64_t all = 1 << 16;
  std::vector<uint16_t> numbers(all), ones(64, narrowed(1));
  for (int64_t i = 0; i < all; ++i)
    numbers[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
  ThreadTeam team{2, false};
  for (int64_t other : {1, 3, 40}) // in place, streamed, packed
    for (bool left : {true, false})
      for (bool across : {true, false}) {
        GemmStep step;
        step.dtype = GetParam();
        step.m = left ? all : other, step.n = left ? other : all, step.k = 1;
        step.transA = across, step.transB = across;
        step.lda = across ? step.m : 1, step.ldb = across ? 1 : step.n, step.ldc = step.n;
        const uint16_t *a = left ? numbers.data() : ones.data();
        const uint16_t *b = left ? ones.data() : numbers.data();
        for (const GemmKernels *kernels : usableKernels()) {
          auto got = run(step, a, b, std::vector<float>(static_cast<size_t>(all * other)), *kernels,
                         team, false, nullptr);
          for (int64_t i = 0; i < step.m; ++i)
            for (int64_t j = 0; j < step.n; ++j) {
              float want = widened(static_cast<uint16_t>(left ? i : j));
              float x = got[static_cast<size_t>(i * step.n + j)];
              ASSERT_TRUE(x == want || (std::isnan(x) && std::isnan(want)))
                  << kernels->name << " reads " << (left ? i : j) << " as " << x << ", not "
                  << want;
            }
        }
      }
}
} // namespace
