//===- ParamGroups.h - settings for some of the params ----------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// `body.*:lr=0.1x,decay=0`: the params whose paths match the pattern (`*` and `?`,
// which match dots too) learn at a tenth of the step's rate and do not decay. Of
// several groups that match a param, each setting is that of the last which has it.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Result.h"

#include <optional>
#include <string>
#include <vector>

namespace cleave {

struct ParamGroup {
  std::string text;            ///< as the user wrote it, for messages
  std::string pattern;         ///< of dotted paths
  std::optional<double> rate;  ///< times the step's learning rate
  std::optional<double> decay; ///< of AdamW, in place of the optimizer's
  bool frozen = false;         ///< no gradient, no state, no update
};

/// "PATTERN:SETTING,SETTING" with `lr=0.1x` and `decay=0`.
Result<ParamGroup> parseParamGroup(const std::string &text);

/// What `--freeze PATTERN` asks for.
ParamGroup frozenGroup(const std::string &pattern);

} // namespace cleave
