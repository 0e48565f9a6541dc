//===- Support.h - checking small programs in tests -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Check.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace cleave::test {

/// Where an error is and what it says: "message" or "message | hint".
struct Finding {
  size_t line = 0, column = 0; ///< 0: it has no place
  std::string text;
  friend bool operator==(const Finding &, const Finding &) = default;
};
std::ostream &operator<<(std::ostream &out, const Finding &fault);

/// Free dims without a size get one.
CheckOptions inventing();

/// The errors of a text, in their order; none when it is right.
std::vector<Finding> findingsOf(const std::string &text, const CheckOptions &options = inventing());

/// The checked program; a failed test and nothing when it is wrong.
std::optional<CheckedProgram> programOf(const std::string &text,
                                        const CheckOptions &options = inventing());

/// The nodes of the function `example` as text, without their places.
std::vector<std::string> nodesOf(const std::string &text);

/// A model with a function `example(x, ...)` in which the statements stand.
std::string inFunction(const std::string &statements);
/// A model `m` with these plans, or with these weights if the text starts with
/// a line `weights`.
std::string withPlans(const std::string &plans);

/// The text without its `$`, and the places where they stood, as line and column.
std::pair<std::string, std::vector<std::pair<size_t, size_t>>> places(const std::string &marked);

/// The file's content; a failed test when it cannot be read.
std::string readFile(const std::string &path);

} // namespace cleave::test
