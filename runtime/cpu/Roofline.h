//===- Roofline.h - what this processor can do ------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/DType.h"

#include <algorithm>

namespace cleave {

/// Measured rates of a number of threads together. A kernel's roofline (Williams, Waterman,
/// Patterson, CACM 52(4), 2009) is the longer of the times that its flops and its bytes
/// take at these rates.
struct Roofline {
  double flops = 0; ///< per second: matrix products of numbers in the first cache
  double bytes = 0; ///< per second: read and written by a = a + s * b, far larger than the caches

  /// The least seconds that this work can take.
  double seconds(double workFlops, double workBytes) const {
    return std::max(flops > 0 ? workFlops / flops : 0, bytes > 0 ? workBytes / bytes : 0);
  }
};

/// Takes about 0.2 s. Best of several; other work on the machine makes it lower. f32 or f64.
Roofline measureRoofline(int threads, DType dtype);

} // namespace cleave
