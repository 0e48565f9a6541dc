//===- Location.h - places in the source ------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "mlir/IR/Location.h"

#include <string>

namespace cleave {

/// "file:line:column" of the first place in the source that the location leads
/// to; empty if there is none.
std::string locationText(mlir::Location loc);

} // namespace cleave
