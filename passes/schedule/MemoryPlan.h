//===- MemoryPlan.h - offsets in the arena ----------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executable/Executable.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cleave {

/// A buffer that is needed from step `first` to step `last`, both included.
struct Lifetime {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;
};

struct MemoryPlan {
  std::vector<int64_t> offsets; ///< one for each lifetime; multiples of 64
  int64_t arenaBytes = 0;
  int64_t liveBytes = 0; ///< the most that lives at one step: no plan is smaller
};

/// Offsets such that no two buffers that live at the same step overlap. Takes
/// O(n (log n + buffers alive together)). Without reuse all are apart.
MemoryPlan planMemory(const std::vector<Lifetime> &lifetimes, bool reuse = true);

/// The buffers that a step names, in the order of its fields.
std::vector<BufferRef> buffersOf(const Step &step);

/// First and last step that name each buffer; first > last: none does.
std::vector<Lifetime> lifetimesOf(const Program &program);

/// Checks a program's plan on its own: arena buffers are aligned, inside the
/// arena, and apart where their lifetimes meet (but where both are the same
/// place and one ends in the step in which the other begins, which is a kernel
/// that writes over its input); refs are inside their buffers. Says what is wrong.
std::optional<std::string> checkMemory(const Program &program);

} // namespace cleave
