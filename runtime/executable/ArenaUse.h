//===- ArenaUse.h - how much of the arena holds something -------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executable/Executable.h"

#include <cstdint>
#include <vector>

namespace cleave {

/// For each step the bytes of the arena that lie in buffers in use: from the first step that
/// touches a buffer to the last, a collective that is begun until it is awaited. Bytes of several
/// buffers in one place count once; so no number is above the program's `arenaBytes`.
std::vector<int64_t> arenaUse(const Program &program);

} // namespace cleave
