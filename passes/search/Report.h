//===- Report.h - what a search has found -----------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Without types of MLIR: for tools.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/search/Minimize.h"

#include <memory>
#include <string>
#include <vector>

namespace cleave {

/// A variable of the search that the language has a name for, and what it may be.
struct SearchVariable {
  enum class Kind { Dims, Param, Value } kind;
  /// As a plan's `at` names it: "[batch, seq, width]", "body.wq", "forward.logits".
  std::string name;
  std::vector<std::string> dims; ///< in the type's order
  std::string place;             ///< file:line:col of the param or of the first such value
  int variable = -1;             ///< into the problem's
  /// What each choice says, as sentences of a plan without `at NAME:`: "shard batch by dp",
  /// "replicate over tp", "zero 2 over dp".
  std::vector<std::vector<std::string>> choices;
  /// Named values of the source that it is about, without the param's own name.
  std::vector<std::string> values;
};

struct SearchReport {
  std::string function;
  std::shared_ptr<const ChoiceProblem> problem;
  Minimum minimum;
  double seconds = 0; ///< that building and solving the problem took
  int64_t hidden = 0; ///< percent of gradients' sums that were taken to run beside other work
  /// Of the compiled step by its schedule, overlap and all: the clocks of runtime/emulate.
  double scheduled = 0;
  /// No plan of the space costs less by the search's prices, were all gradients' sums hidden.
  double bound = 0;
  std::vector<SearchVariable> variables;
};

} // namespace cleave
