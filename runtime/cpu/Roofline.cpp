//===- Roofline.cpp - what this processor can do --------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/Roofline.h"

#include "runtime/core/Threads.h"
#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/GemmKernel.h"

#include <chrono>
#include <vector>

namespace cleave {

namespace {

using Clock = std::chrono::steady_clock;

/// Most of `work` per second over the rounds; `body` does the part of one thread.
template <typename Body> double best(ThreadTeam &team, double work, int rounds, Body body) {
  double most = 0;
  for (int round = 0; round < rounds; ++round) {
    Clock::time_point start = Clock::now();
    team.parallelFor(0, team.size(), 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i)
        body(i);
    });
    most = std::max(most, work / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return most;
}

template <typename T> double productRate(ThreadTeam &team, const GemmKernel<T> &kernel) {
  constexpr int64_t depth = 192;
  const int64_t rows = 2 * kernel.tileRows, cols = kernel.tileCols, times = 4000;
  struct Operands {
    std::vector<T> a, b, c;
  };
  std::vector<Operands> all(static_cast<size_t>(team.size()));
  for (Operands &o : all) {
    o.a.assign(static_cast<size_t>(rows * depth), T(0.5));
    o.b.assign(static_cast<size_t>(cols * depth), T(0.25));
    o.c.assign(static_cast<size_t>(rows * cols), T(0));
  }
  double work = 2.0 * double(rows) * double(cols) * double(depth) * double(times) * team.size();
  return best(team, work, 8, [&](int64_t i) {
    Operands &o = all[static_cast<size_t>(i)];
    for (int64_t n = 0; n < times; ++n)
      kernel.multiply(o.a.data(), o.b.data(), o.c.data(), cols, rows, cols, depth, false);
  });
}

double streamRate(ThreadTeam &team) {
  // In place, so that what is written needs no reading of its own. 96 MiB in all.
  constexpr size_t count = size_t{12} << 20;
  std::vector<float> a(count), b(count, 1);
  auto part = static_cast<int64_t>(count) / team.size();
  return best(team, 3.0 * double(part) * team.size() * sizeof(float), 6, [&](int64_t i) {
    float *to = a.data() + i * part;
    const float *from = b.data() + i * part;
    for (int64_t n = 0; n < part; ++n)
      to[n] += 0.5F * from[n];
  });
}

} // namespace

Roofline measureRoofline(int threads, DType dtype) {
  ThreadTeam team(std::max(1, threads), threads <= usableCores());
  const GemmKernels &kernels = bestKernels();
  Roofline r;
  r.flops = dtype == DType::F64 ? productRate(team, kernels.f64) : productRate(team, kernels.f32);
  r.bytes = streamRate(team);
  return r;
}

} // namespace cleave
