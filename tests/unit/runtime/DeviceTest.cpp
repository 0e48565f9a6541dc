//===- DeviceTest.cpp - the device contract on the CPU ---------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/CpuDevice.h"
#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/KernelTable.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <thread>

using namespace cleave;

TEST(Device, AllocatesZeroedAlignedMemory) {
  CpuDevice device(2);
  for (int64_t bytes : {0, 1, 100, 5 << 20}) {
    auto buffer = device.allocate(bytes);
    ASSERT_TRUE(buffer);
    EXPECT_EQ((*buffer)->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % 64, 0u);
    for (int64_t i = 0; i < bytes; ++i)
      ASSERT_EQ((*buffer)->data()[i], 0);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
TEST(Device, OutOfMemoryIsAnError) {
  CpuDevice device(1);
  auto buffer = device.allocate(int64_t{1} << 47);
  ASSERT_FALSE(buffer);
  EXPECT_NE(buffer.error().message.find("140737488355328 bytes"), std::string::npos);
}
#endif
#endif

TEST(Device, CopiesFillsAndLaunches) {
  CpuDevice device(3);
  auto a = device.allocate(3 << 20), b = device.allocate(3 << 20);
  char *x = (*a)->data(), *y = (*b)->data();
  ASSERT_TRUE(device.fill(x, 0xAB, 3 << 20));
  ASSERT_TRUE(device.copy(y, x, 3 << 20));
  EXPECT_EQ(std::memcmp(x, y, 3 << 20), 0);
  EXPECT_EQ(static_cast<uint8_t>(y[(3 << 20) - 1]), 0xAB);
  for (int i = 0; i < 100; ++i)
    x[i] = static_cast<char>(i);
  ASSERT_TRUE(device.copy(x + 10, x, 90)); // overlap
  EXPECT_EQ(x[99], 89);
  ASSERT_TRUE(device.copy(x, x, 90));

  KernelTable table;
  table.add("square", [](int64_t begin, int64_t end, char **buffers, const int64_t *scalars) {
    auto *to = reinterpret_cast<int64_t *>(buffers[0]);
    for (int64_t i = begin; i < end; ++i)
      to[i] += i * i + scalars[0];
  });
  EXPECT_EQ(table.find("cube"), nullptr);
  ASSERT_TRUE(device.fill(x, 0, 1000 * 8));
  int64_t scalar = 5;
  ASSERT_TRUE(device.launch({table.find("square"), &x, &scalar}, 1000, 16));
  for (int64_t i = 0; i < 1000; ++i)
    ASSERT_EQ(reinterpret_cast<int64_t *>(x)[i], i * i + 5);
  auto event = device.record();
  ASSERT_TRUE(event);
  EXPECT_TRUE(device.wait(**event));
  EXPECT_TRUE(device.synchronize());
}

namespace {
/// Adds 1 to each element of its rows and columns, so that a tile that is left
/// out or finished twice shows.
template <typename T>
void addOne(int64_t batch, int64_t rowBegin, int64_t rowEnd, int64_t colBegin, int64_t colEnd,
            char **buffers, const int64_t *scalars) {
  T *c = reinterpret_cast<T *>(buffers[0]) + batch * scalars[1];
  for (int64_t i = rowBegin; i < rowEnd; ++i)
    for (int64_t j = colBegin; j < colEnd; ++j)
      c[i * scalars[0] + j] += 1;
}

template <typename T>
void checkGemm(Device &device, int64_t batch, int64_t m, int64_t n, int64_t k, bool transA,
               bool transB, bool accumulate, bool epilogue, int64_t pad) {
  GemmStep s;
  s.dtype = sizeof(T) == 4 ? DType::F32 : DType::F64;
  s.batch = batch, s.m = m, s.n = n, s.k = k;
  s.transA = transA, s.transB = transB, s.accumulate = accumulate;
  int64_t rowsA = transA ? k : m, colsA = transA ? m : k;
  int64_t rowsB = transB ? n : k, colsB = transB ? k : n;
  s.lda = std::max<int64_t>(1, colsA) + pad, s.ldb = std::max<int64_t>(1, colsB) + pad;
  s.ldc = n + pad;
  s.strideA = rowsA * s.lda + pad, s.strideB = batch > 2 ? 0 : rowsB * s.ldb;
  s.strideC = m * s.ldc + pad;
  std::mt19937 random(7);
  auto fill = [&](int64_t count) {
    std::vector<T> v(static_cast<size_t>(count) + 1);
    for (T &x : v)
      x = static_cast<T>(static_cast<int>(random() % 17) - 8);
    return v;
  };
  std::vector<T> a = fill(batch * s.strideA), b = fill(rowsB * s.ldb * batch), want;
  std::vector<T> c = fill(batch * s.strideC);
  if (!accumulate) // what lay there before must not be read
    for (int64_t p = 0; p < batch; ++p)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          c[static_cast<size_t>(p * s.strideC + i * s.ldc + j)] =
              std::numeric_limits<T>::quiet_NaN();
  want = c;
  for (int64_t p = 0; p < batch; ++p)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        T sum = 0;
        for (int64_t q = 0; q < k; ++q)
          sum += a[static_cast<size_t>(p * s.strideA + (transA ? q * s.lda + i : i * s.lda + q))] *
                 b[static_cast<size_t>(p * s.strideB + (transB ? j * s.ldb + q : q * s.ldb + j))];
        T &to = want[static_cast<size_t>(p * s.strideC + i * s.ldc + j)];
        to = (accumulate ? to : T(0)) + sum + (epilogue ? 1 : 0);
      }
  char *buffers[] = {reinterpret_cast<char *>(c.data())};
  int64_t scalars[] = {s.ldc, s.strideC};
  KernelCall call;
  if (epilogue) {
    s.epilogue = "add_one";
    call = {reinterpret_cast<KernelHandle>(&addOne<T>), buffers, scalars};
  }
  ASSERT_TRUE(device.gemm(s, reinterpret_cast<char *>(a.data()), reinterpret_cast<char *>(b.data()),
                          buffers[0], call, nullptr, nullptr));
  // Small integers: every order of the sums is exact.
  for (size_t i = 0; i < c.size(); ++i)
    ASSERT_EQ(c[i], want[i]) << batch << " x " << m << " x " << n << " x " << k << " " << transA
                             << transB << accumulate << epilogue << " at " << i;
}
} // namespace

TEST(Device, GemmOfEveryForm) {
  for (int workers : {1, 3}) {
    CpuDevice device(workers);
    for (int bits = 0; bits < 16; ++bits)
      for (auto [batch, m, n, k] : {std::array<int64_t, 4>{1, 1, 70, 33},
                                    {1, 3, 5, 2},
                                    {1, 65, 130, 40},
                                    {5, 16, 12, 9},
                                    {2, 1, 1, 1},
                                    {1, 300, 520, 17},
                                    {1, 40, 30, 0},
                                    {0, 4, 4, 4},
                                    {3, 0, 4, 4}})
        for (int64_t pad : {0, 3}) {
          checkGemm<float>(device, batch, m, n, k, bits & 1, bits & 2, bits & 4, bits & 8, pad);
          checkGemm<double>(device, batch, m, n, k, bits & 1, bits & 2, bits & 4, bits & 8, pad);
        }
  }
}

TEST(Device, TilesCoverTheWorkersAndNoMore) {
  GemmStep s;
  s.m = 1024, s.n = 3072, s.k = 768;
  GemmTiling one = chooseTiling(s, 1), two = chooseTiling(s, 2);
  EXPECT_EQ(one.rows * one.cols, s.m * s.n); // alone: packing twice gains nothing
  int64_t tiles = ((s.m + two.rows - 1) / two.rows) * ((s.n + two.cols - 1) / two.cols);
  EXPECT_GE(tiles, 2);
  EXPECT_LE(tiles, 128);
}

// All ranks multiply at once, each with operands of its own: a product that shares
// two callers the same work buffer mixes them up.
TEST(Device, RanksMultiplyAtTheSameTime) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 6; ++rank)
    ranks.emplace_back([rank] {
      CpuDevice device(2, false);
      for (int round = 0; round < 30; ++round)
        checkGemm<float>(device, 1, 130 + rank, 300 + 7 * rank, 60 + rank, false, true, false, true,
                         0);
    });
  for (std::thread &rank : ranks)
    rank.join();
}
