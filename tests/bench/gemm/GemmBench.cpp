//===- GemmBench.cpp - our products against OpenBLAS ----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
// gemm_bench [seconds per product, default 2] [part of a name]
//
// Runs both in turns and compares the best times, since other programs may
// disturb either: with one thread its processor time, with two the time passed. OpenBLAS is loaded
// at run time (CLEAVE_OPENBLAS names another file); without it, only our own times are printed.
#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/GemmKernel.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <random>
#include <time.h>

using namespace cleave;

namespace {
using Sgemm = void (*)(int, int, int, int, int, int, float, const float *, int, const float *, int,
                       float, float *, int);
struct Blas {
  Sgemm sgemm = nullptr;
  void (*setThreads)(int) = nullptr;
};

Blas loadBlas() {
  const char *given = std::getenv("CLEAVE_OPENBLAS");
  for (const char *file :
       {given ? given : "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0",
        "libopenblas.so.0"})
    if (void *library = dlopen(file, RTLD_NOW))
      return {reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm")),
              reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"))};
  return {};
}

struct Shape {
  const char *name;
  int64_t batch, m, n, k;
  bool transA, transB;
};
const Shape shapes[] = {
    {"qkv          1024x2304x768   NN", 1, 1024, 2304, 768, false, false},
    {"projection   1024x768x768    NN", 1, 1024, 768, 768, false, false},
    {"projection   768x768x1024    TN", 1, 768, 768, 1024, true, false},
    {"ffn          1024x3072x768   NN", 1, 1024, 3072, 768, false, false},
    {"ffn          1024x768x3072   NN", 1, 1024, 768, 3072, false, false},
    {"ffn          1024x768x3072   NT", 1, 1024, 768, 3072, false, true},
    {"ffn grad     3072x768x1024   TN", 1, 3072, 768, 1024, true, false},
    {"head         1024x50257x768  NT", 1, 1024, 50257, 768, false, true},
    {"head input   1024x768x50257  NN", 1, 1024, 768, 50257, false, false},
    {"head grad    50257x768x1024  TN", 1, 50257, 768, 1024, true, false},
    {"scores   48x 256x256x64      NT", 48, 256, 256, 64, false, true},
    {"values   48x 256x64x256      NN", 48, 256, 64, 256, false, false},
    {"values'  48x 256x64x256      TN", 48, 256, 64, 256, true, false},
    {"scores   48x 32x32x64        NT", 48, 32, 32, 64, false, true},
    {"decode       1x3072x768      NN", 1, 1, 3072, 768, false, false},
    {"decode       1x50257x768     NT", 1, 1, 50257, 768, false, true},
    {"decode       8x3072x768      NN", 1, 8, 3072, 768, false, false},
    {"decode       8x50257x768     NT", 1, 8, 50257, 768, false, true},
    {"few columns  1024x8x768      NN", 1, 1024, 8, 768, false, false},
    {"square       16x768x768      NT", 1, 16, 768, 768, false, true},
    {"square       512x512x512     NN", 1, 512, 512, 512, false, false},
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
/// Of this thread: what other programs take does not count.
double threadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}
} // namespace

int main(int argc, char **argv) {
  double budget = argc > 1 ? std::atof(argv[1]) : 2;
  const char *filter = argc > 2 ? argv[2] : "";
  Blas blas = loadBlas();
  std::printf("%-36s %2s  %9s %9s %9s   best of each: GFLOP/s, and ratio to OpenBLAS\n", "", "",
              "best", "avx2", "OpenBLAS");
  for (const Shape &shape : shapes) {
    if (!std::strstr(shape.name, filter))
      continue;
    GemmStep s;
    s.batch = shape.batch, s.m = shape.m, s.n = shape.n, s.k = shape.k;
    s.transA = shape.transA, s.transB = shape.transB;
    // Batches lie as heads do: side by side in rows of all of them.
    s.strideA = s.transA ? s.m : s.k, s.strideB = s.transB ? s.k : s.n, s.strideC = s.n;
    s.lda = s.strideA * s.batch, s.ldb = s.strideB * s.batch, s.ldc = s.strideC * s.batch;
    std::mt19937 random(1);
    auto fill = [&](int64_t count) {
      std::vector<float> v(static_cast<size_t>(count));
      for (float &x : v)
        x = float(int(random() % 2001) - 1000) / 1000;
      return v;
    };
    std::vector<float> a = fill(s.batch * s.m * s.k), b = fill(s.batch * s.k * s.n),
                       c = fill(s.batch * s.m * s.n);
    double flops = 2.0 * double(s.batch) * double(s.m) * double(s.n) * double(s.k);
    for (int threads : {1, 2}) {
      ThreadTeam team(threads);
      auto ours = [&](const GemmKernels *kernels) {
        auto pa = reinterpret_cast<char *>(a.data()), pb = reinterpret_cast<char *>(b.data()),
             pc = reinterpret_cast<char *>(c.data());
        kernels ? cpuGemm(s, pa, pb, pc, {}, team, *kernels) : cpuGemm(s, pa, pb, pc, {}, team);
      };
      auto theirs = [&] {
        blas.setThreads(threads);
        for (int64_t p = 0; p < s.batch; ++p)
          blas.sgemm(101, s.transA ? 112 : 111, s.transB ? 112 : 111, int(s.m), int(s.n), int(s.k),
                     1, a.data() + p * s.strideA, int(s.lda), b.data() + p * s.strideB, int(s.ldb),
                     0, c.data() + p * s.strideC, int(s.ldc));
      };
      double best[3] = {1e9, 1e9, 1e9};
      const GemmKernels *second = nullptr;
#if defined(__x86_64__)
      if (gemmAvx2.rejection()[0] == '\0')
        second = &gemmAvx2;
#endif
      double end = seconds() + budget;
      for (int round = 0; round < 3 || seconds() < end; ++round)
        for (int which = 0; which < 3; ++which) {
          if ((which == 1 && !second) || (which == 2 && !blas.sgemm))
            continue;
          auto now = threads == 1 ? threadSeconds : seconds;
          double start = now();
          which == 2 ? theirs() : ours(which ? second : nullptr);
          best[which] = std::min(best[which], now() - start);
        }
      std::printf("%-36s %d    %9.1f %9.1f %9.1f   %5.2f %5.2f\n", shape.name, threads,
                  flops / best[0] / 1e9, flops / best[1] / 1e9, flops / best[2] / 1e9,
                  best[2] / best[0], best[2] / best[1]);
      std::fflush(stdout);
    }
  }
}
