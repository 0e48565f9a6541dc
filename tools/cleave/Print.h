//===- Print.h - tables, units, JSON on stdout ------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::tool {

/// Fields stand in the order in which they are set.
using Json = nlohmann::ordered_json;

std::string bytesText(int64_t bytes);    ///< "12.5 MiB"
std::string secondsText(double seconds); ///< "12.5 ms"
std::string countText(int64_t count);    ///< "1,234,567"
/// "1 step", "1,234 steps"
std::string countText(int64_t count, std::string_view what);

/// Columns padded to their widest cell; the first is left-aligned, the others
/// as `left` says.
class Table {
public:
  explicit Table(std::vector<std::string> header, std::vector<bool> left = {});
  void row(std::vector<std::string> cells);
  bool empty() const { return rows.size() == 1; }
  std::string text(std::string_view indent = "") const;

private:
  std::vector<std::vector<std::string>> rows;
  std::vector<bool> left;
};

void out(std::string_view text);              ///< to stdout, as it is
void outLine(const Json &value);              ///< one line of JSON
void outPretty(const Json &value);            ///< indented
void note(bool quiet, std::string_view text); ///< "note: ..." to stderr

/// Whether all that went to stdout has arrived.
bool flushOutput();

} // namespace cleave::tool
