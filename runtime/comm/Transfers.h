//===- Transfers.h - the arithmetic of collectives --------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executable/Executable.h"

#include <cstdint>
#include <span>

namespace cleave {

/// out[i] = inputs[0][i] op inputs[1][i] op ... in this order, for i < count.
/// `out` may be one of the inputs. All pointers are aligned to the element.
void reduceInOrder(CollectiveStep::Reduction reduction, DType dtype,
                   std::span<const char *const> inputs, char *out, int64_t count);

/// Copies `rows` pieces of `bytes`, whose starts are a stride (in bytes) apart.
void copyRows(char *to, int64_t toStride, const char *from, int64_t fromStride, int64_t bytes,
              int64_t rows);

} // namespace cleave
