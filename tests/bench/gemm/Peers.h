//===- Peers.h - other libraries' matrix products ---------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cleave::bench {

/// C = op(A) * op(B), row-major f32, dense.
struct Shape {
  int64_t m = 0, n = 0, k = 0;
  bool transA = false, transB = false;

  int64_t lda() const { return transA ? m : k; }
  int64_t ldb() const { return transB ? k : n; }
  std::string text() const; ///< "1024x3072x768 NN"
};

struct Peer {
  std::string name;
  std::string missing; ///< why it cannot be run; empty: it can
  std::function<void(const Shape &, const float *a, const float *b, float *c, int threads)>
      multiply;
};

/// OpenBLAS, BLIS and oneDNN, each loaded when the program runs, with symbols of its own: two of
/// them define the same names.
std::vector<Peer> loadPeers();

} // namespace cleave::bench
