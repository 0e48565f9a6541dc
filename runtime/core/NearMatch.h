//===- NearMatch.h - "did you mean" -----------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

/// Edits (insert, delete, change, swap neighbours) between two words; a change
/// of case alone costs nothing.
inline int64_t editDistance(std::string_view a, std::string_view b) {
  auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  std::vector<int64_t> previous(b.size() + 1), row(b.size() + 1), before;
  for (size_t j = 0; j <= b.size(); ++j)
    row[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before = previous;
    previous = row;
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

/// The nearest candidate, or none if all are too far to be what was meant.
/// `candidates`: any range of things that convert to string_view. The first
/// wins a tie.
template <typename Range>
std::optional<std::string> nearMatch(std::string_view word, const Range &candidates) {
  std::optional<std::string> best;
  int64_t limit = std::max<int64_t>(1, static_cast<int64_t>(word.size()) / 3);
  for (const auto &candidate : candidates) {
    std::string_view text(candidate);
    int64_t difference = static_cast<int64_t>(text.size()) - static_cast<int64_t>(word.size());
    if (text.empty() || word.empty() || text.size() > 256 || word.size() > 256 ||
        difference > limit || -difference > limit)
      continue;
    int64_t distance = editDistance(word, text);
    // Two one-letter words always lie one edit apart: that is no likeness.
    if (distance > limit || distance >= static_cast<int64_t>(std::max(word.size(), text.size())))
      continue;
    best = std::string(text);
    limit = distance - 1;
    if (limit < 0)
      break;
  }
  return best;
}

/// "; did you mean 'x'?", or nothing: to be appended to a message.
template <typename Range> std::string didYouMean(std::string_view word, const Range &candidates) {
  if (auto match = nearMatch(word, candidates))
    return "; did you mean '" + *match + "'?";
  return "";
}

} // namespace cleave
