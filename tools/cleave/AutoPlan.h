//===- AutoPlan.h - cleave plan, for a plan that says auto ------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "Load.h"

namespace cleave::tool {

/// A plan of this name that says what the search of `plan` has found, for people to edit. Compiled
/// with the same sizes and the same profile it gives the identical program.
std::string planText(const CheckedProgram &program, const checked::Plan &plan,
                     const SearchReport &report, const std::string &name);

/// What was chosen for each variable, how good that is, and what finding it took.
std::string searchText(const SearchReport &report);
Json searchJson(const SearchReport &report);

/// Searches, tells, and with --out writes the plan's text.
Status runAutoPlan(const CheckedProgram &program, const Sizes &sizes, CompileOptions options,
                   const CommonOptions &o);

} // namespace cleave::tool
