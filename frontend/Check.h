//===- Check.h - source text to the checked program -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Ast.h"
#include "frontend/Checked.h"
#include "runtime/core/Result.h"

namespace cleave {

/// What the command line says. All values are as the user wrote them.
struct CheckOptions {
  std::string model;                                         ///< empty: the file's only model
  std::vector<std::pair<std::string, std::string>> settings; ///< --set name=value
  std::map<std::string, int64_t> freeSizes; ///< what the user gave: batch -> 8, seq -> 128
  std::map<std::string, int64_t>
      defaultSizes; ///< for free dims of these names that have no size yet
  /// A free dim without a size gets a small one of its own instead of an error.
  bool inventSizes = false;
  /// The plan that `mesh` speaks of; its axes must all have sizes. Empty: none.
  std::string plan;
  std::vector<std::pair<std::string, int64_t>> mesh;
  /// Not 0: `mesh` is one of so many ranks, for a plan without axes of its own.
  int64_t ranks = 0;
  /// More texts whose plans (only) are read too: `--plan FILE:NAME`.
  std::vector<SourceFile> planFiles;
};

/// Reads and checks one model of the file and the plans for it. On failure all
/// errors are in `diagnostics` (sorted), and the Error's message is their
/// rendering. Never crashes, whatever the text.
Result<CheckedProgram> check(SourceFile file, const CheckOptions &options,
                             Diagnostics &diagnostics);
Result<CheckedProgram> check(SourceFile file, const CheckOptions &options = {});

/// The program as it was read, in one fixed layout (`--emit=ast`).
Result<std::string> formatSource(SourceFile file);

} // namespace cleave
