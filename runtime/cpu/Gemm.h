//===- Gemm.h - matrix products on a rank's workers -------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Threads.h"
#include "runtime/device/Device.h"

#include <string>
#include <vector>

namespace cleave {

struct GemmKernels;

/// How C is cut: a worker takes one tile after the other and packs what it needs
/// of A and B for itself.
struct GemmTiling {
  int64_t rows = 1, cols = 1; ///< of a tile; the last ones may be smaller
};

/// Weighs the cost of packing A and B again for each tile against keeping all
/// workers busy.
GemmTiling chooseTiling(const GemmStep &step, int workers);

/// The kernels that this processor runs best.
const GemmKernels &bestKernels();

/// See GemmStep. The pointers are at the step's offsets already. The order of
/// each element's sum depends on the step's sizes and the processor only: the
/// bits are the same for any number of workers. Throws std::bad_alloc.
void cpuGemm(const GemmStep &step, const char *a, const char *b, char *c,
             const KernelCall &epilogue, ThreadTeam &team);

/// The same with kernels of the caller's choice; this processor must run them.
void cpuGemm(const GemmStep &step, const char *a, const char *b, char *c,
             const KernelCall &epilogue, ThreadTeam &team, const GemmKernels &kernels,
             char *sums = nullptr);

/// A way to do a product, and why it does not apply to one (empty: it does).
struct GemmCandidate {
  std::string name, rejection;
};

/// All ways, in the order in which they are asked: the first that applies is
/// taken. For messages and tests.
std::vector<GemmCandidate> gemmCandidates(const GemmStep &step);

} // namespace cleave
