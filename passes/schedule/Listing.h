//===- Listing.h - a schedule as text ---------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executable/Executable.h"

#include <string>

namespace cleave {

/// Arguments, results, steps in order, and the buffers with their places and
/// the steps between which they are needed.
std::string listing(const Program &program, const std::vector<MeshAxis> &mesh);
std::string listing(const Executable &executable);

} // namespace cleave
