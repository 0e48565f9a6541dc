//===- Gemm.h - matrix products on a rank's workers -------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Threads.h"
#include "runtime/device/Device.h"

namespace cleave {

/// How C is cut: one call of BLAS, on the caller's thread, for
/// each tile.
struct GemmTiling {
  int64_t rows = 1, cols = 1; ///< of a tile; the last ones may be smaller
};

/// Weighs the cost of packing A and B again for each tile against keeping all
/// workers busy and, with an epilogue, the tile in cache.
GemmTiling chooseTiling(const GemmStep &step, int workers);

/// See GemmStep. The pointers are at the step's offsets already.
void cpuGemm(const GemmStep &step, const char *a, const char *b, char *c,
             const KernelCall &epilogue, ThreadTeam &team);

} // namespace cleave
