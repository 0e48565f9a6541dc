//===- LoaderKernels.cpp - code for the loader's tests --------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Compiled to an object that the test loads; it is not linked into it.
//
//===----------------------------------------------------------------------===//
#include <cmath>
#include <cstdint>
#include <cstring>

static const float table[] = {0.5f, 1.5f, 2.5f, 3.5f}; // read-only data, relocated

extern "C" void exponentials(int64_t begin, int64_t end, char **buffers, const int64_t *scalars) {
  auto *out = reinterpret_cast<float *>(buffers[0]);
  for (int64_t i = begin; i < end; ++i)
    out[i] = std::exp(table[(i + scalars[0]) & 3]) + std::tanh(static_cast<float>(i));
}

extern "C" void move_bytes(int64_t begin, int64_t end, char **buffers, const int64_t *) {
  std::memmove(buffers[1] + begin, buffers[0] + begin, static_cast<size_t>(end - begin));
}

#ifdef CALLS_SYSTEM
#include <cstdlib>
extern "C" void forbidden(int64_t, int64_t, char **, const int64_t *) {
  std::exit(std::system("true"));
}
#endif
