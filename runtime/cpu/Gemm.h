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

/// See GemmStep. The pointers are at the step's offsets already. `kernels` must be some
/// that this processor runs. `sums`: at GemmStep::sumsTo. `packedB`: what `packB` made of B with
/// the same kernels, which is read instead, or null. The order of each element's sum depends on the
/// step's sizes, the kernels, and, with few rows, on whether B is packed; never on the number of
/// workers. Throws std::bad_alloc.
void cpuGemm(const GemmStep &step, const char *a, const char *b, char *c,
             const KernelCall &epilogue, ThreadTeam &team,
             const GemmKernels &kernels = bestKernels(), char *sums = nullptr,
             const char *packedB = nullptr);

/// The size of a copy of B that is packed once for many products; 0: this product would not
/// gain from one. Depends on B's form only where it is not 0: products with other numbers of
/// rows may share the copy.
int64_t packedBytes(const GemmStep &step, const GemmKernels &kernels = bestKernels());
/// Writes that copy. `to` is aligned to 64 bytes.
void packB(const GemmStep &step, const char *b, char *to, ThreadTeam &team,
           const GemmKernels &kernels = bestKernels());

/// A way to do a product, and why it does not apply to one (empty: it does).
struct GemmCandidate {
  std::string name, rejection;
};

/// All ways, in the order in which they are asked: the first that applies is
/// taken. For messages and tests.
std::vector<GemmCandidate> gemmCandidates(const GemmStep &step);

} // namespace cleave
