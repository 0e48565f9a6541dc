//===- Why.h - why a search has chosen so -----------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// For `cleave explain --why NAME`. Each thing that NAME could be instead is held fixed and all else
// is searched for again: what the whole step costs then, and what else changes with it.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "Load.h"

namespace cleave::tool {

struct Alternative {
  std::string choice; ///< "shard vocab by tp; zero 0"
  double seconds = 0; ///< of a step with the best of all else; infinite: not allowed
  bool chosen = false;
  std::vector<std::string> changes; ///< "body.w1: shard ffn by tp; zero 0", of named variables
};

struct Why {
  std::string name;  ///< as asked
  std::string about; ///< the variable: "[batch, seq, vocab]"
  std::string place;
  std::vector<std::string> values;       ///< named values that live so
  std::vector<Alternative> alternatives; ///< cheapest first
};

/// NAME is a param, a named value, dims in brackets, or one of these with `.` and a dim of it.
Result<Why> whyOf(const SearchReport &report, const std::string &name);
std::string whyText(const SearchReport &report, const Why &why);
Json whyJson(const SearchReport &report, const Why &why);

} // namespace cleave::tool
