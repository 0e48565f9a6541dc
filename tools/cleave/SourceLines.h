//===- SourceLines.h - the lines that places name ---------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Source.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace cleave::tool {

/// "file:line:column": file and line; line 0: it has none.
std::pair<std::string, unsigned> splitLocation(const std::string &location);
/// "models/gpt2.cleave", 28: "gpt2.cleave:28".
std::string shortPlace(const std::string &file, unsigned line);

/// Lines of source files, read when they are asked for.
class SourceLines {
public:
  /// The file, or null if it can't be read.
  const SourceFile *file(const std::string &path);
  /// Printable, without blanks around; empty if there is no such line.
  std::string line(const std::string &path, unsigned number);
  std::string line(const std::string &location);

private:
  std::map<std::string, std::optional<SourceFile>> files;
};

} // namespace cleave::tool
