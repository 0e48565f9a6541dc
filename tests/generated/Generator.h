//===- Generator.h - random programs, meshes and plans ----------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "tests/generated/Support.h"

#include <cstdint>

namespace cleave::testing {

struct Generated {
  /// One function `loss`, with the mesh and the plan on the module.
  mlir::OwningOpRef<mlir::ModuleOp> module;
  /// The function's arguments, global.
  std::vector<Array> args;
};

/// The program of a seed. The first `steps` random ops of the seed's program are
/// made (-1: as many as the seed says): a shorter prefix of a failing program
/// often fails too, and is easier to read.
Generated generate(uint64_t seed, int steps = -1);

/// How many steps the seed's program has.
int stepsOf(uint64_t seed);

} // namespace cleave::testing
