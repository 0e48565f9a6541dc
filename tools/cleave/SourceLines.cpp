//===- SourceLines.cpp - the lines that places name -----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "SourceLines.h"

#include "runtime/core/AtomicFile.h"

#include <charconv>
#include <fmt/format.h>

namespace cleave::tool {

std::pair<std::string, unsigned> splitLocation(const std::string &location) {
  size_t second = location.rfind(':');
  size_t first = second == std::string::npos || second == 0 ? std::string::npos
                                                            : location.rfind(':', second - 1);
  if (first == std::string::npos)
    return {location, 0};
  unsigned line = 0;
  std::from_chars(location.data() + first + 1, location.data() + second, line);
  return {location.substr(0, first), line};
}

std::string shortPlace(const std::string &file, unsigned line) {
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), line);
}

const SourceFile *SourceLines::file(const std::string &path) {
  auto found = files.find(path);
  if (found == files.end()) {
    auto mapped = MappedFile::open(path);
    std::optional<SourceFile> file;
    if (mapped)
      file.emplace(path, std::string(mapped->view()));
    found = files.emplace(path, std::move(file)).first;
  }
  return found->second ? &*found->second : nullptr;
}

std::string SourceLines::line(const std::string &path, unsigned number) {
  const SourceFile *source = number ? file(path) : nullptr;
  if (!source)
    return "";
  std::string_view text = source->line(number);
  size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t\r");
  return begin == std::string_view::npos ? "" : printable(text.substr(begin, end - begin + 1));
}

std::string SourceLines::line(const std::string &location) {
  auto [path, number] = splitLocation(location);
  return line(path, number);
}

} // namespace cleave::tool
