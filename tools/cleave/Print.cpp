//===- Print.cpp - tables, units, JSON on stdout --------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Print.h"

#include <cstdio>
#include <fmt/format.h>

namespace cleave::tool {

std::string bytesText(int64_t bytes) {
  constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; std::abs(value) >= 1024 && unit + 1 < std::size(units); ++unit)
    value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string secondsText(double seconds) {
  if (seconds < 1e-3)
    return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1)
    return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string countText(int64_t count) {
  std::string digits = std::to_string(count);
  for (size_t at = digits.size(); at > 3 + (count < 0 ? 1u : 0u);) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string countText(int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", countText(count), what, count == 1 ? "" : "s");
}

/// Width in characters, not bytes.
static size_t width(std::string_view text) {
  size_t n = 0;
  for (char c : text)
    n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

Table::Table(std::vector<std::string> header, std::vector<bool> left) : left(std::move(left)) {
  this->left.resize(header.size(), false);
  this->left[0] = true;
  rows.push_back(std::move(header));
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(rows[0].size());
  rows.push_back(std::move(cells));
}

std::string Table::text(std::string_view indent) const {
  std::vector<size_t> widths(rows[0].size());
  for (const auto &row : rows)
    for (size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], width(row[i]));
  std::string all;
  for (const auto &row : rows) {
    std::string line(indent);
    for (size_t i = 0; i < row.size(); ++i) {
      std::string pad(widths[i] - width(row[i]), ' ');
      line += (i ? "  " : "") + (left[i] ? row[i] + pad : pad + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    all += line + "\n";
  }
  return all;
}

void out(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

static std::string dump(const Json &value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

void outLine(const Json &value) {
  out(dump(value, -1));
  std::fflush(stdout);
}

void outPretty(const Json &value) { out(dump(value, 2)); }

void note(bool quiet, std::string_view text) {
  if (!quiet)
    fmt::print(stderr, "note: {}\n", text);
}

bool flushOutput() { return std::fflush(stdout) == 0 && !std::ferror(stdout); }

} // namespace cleave::tool
