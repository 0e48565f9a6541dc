//===- UsableKernels.h - the matrix kernels to test here --------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/cpu/GemmKernel.h"

#include <vector>

namespace cleave {

/// The kernels that this processor runs.
inline std::vector<const GemmKernels *> usableKernels() {
  std::vector<const GemmKernels *> out;
#if defined(__x86_64__)
  for (const GemmKernels *kernels : {&gemmAvx512, &gemmAvx2})
    if (kernels->rejection()[0] == '\0')
      out.push_back(kernels);
#endif
  out.push_back(&gemmPortable);
  return out;
}

} // namespace cleave
