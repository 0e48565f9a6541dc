//===- Reuse.h - how far away a step's operands lie -------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// What has just been touched is in a cache, what was touched long ago is not: the reuse distance of
// memory is how many bytes a program has touched since it last touched that (Mattson et al. 1970,
// "Evaluation techniques for storage hierarchies"; here bytes that are touched twice in between
// count twice).
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executable/Executable.h"

#include <vector>

namespace cleave {

/// Bytes that a step reads or writes, and their reuse distance, which their own step is part of.
struct Touched {
  double bytes = 0, distance = 0;
};

/// Of each step that computes or copies, when the program runs again and again. Together the bytes
/// are Step::bytes.
std::vector<std::vector<Touched>> reuseDistances(const Program &program);

} // namespace cleave
