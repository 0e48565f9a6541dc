//===- Parser.h - tokens to the syntax tree -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Ast.h"

namespace cleave {

/// Reads one file. Faults go to `diagnostics`; what could be read is returned.
/// Expressions and blocks nest at most 200 deep.
ast::File parse(const SourceMap &sources, uint32_t file, Diagnostics &diagnostics);

} // namespace cleave
