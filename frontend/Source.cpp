//===- Source.cpp - source texts, places in them, diagnostics -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Source.h"

#include <algorithm>
#include <tuple>

namespace cleave {

SourceRange join(SourceRange first, SourceRange second) {
  if (!first.valid())
    return second;
  if (!second.valid() || second.file != first.file)
    return first;
  return {first.file, std::min(first.begin, second.begin), std::max(first.end, second.end)};
}

SourceFile::SourceFile(std::string name, std::string text)
    : fileName(std::move(name)), content(std::move(text)) {
  lineStarts.push_back(0);
  for (uint32_t i = 0; i < content.size(); ++i)
    if (content[i] == '\n')
      lineStarts.push_back(i + 1);
}

std::pair<unsigned, unsigned> SourceFile::lineColumn(uint32_t offset) const {
  offset = std::min<uint32_t>(offset, content.size());
  auto next = std::upper_bound(lineStarts.begin(), lineStarts.end(), offset);
  unsigned line = next - lineStarts.begin();
  unsigned column = 1;
  for (uint32_t i = lineStarts[line - 1]; i < offset; ++i)
    column += (static_cast<unsigned char>(content[i]) & 0xC0) != 0x80;
  return {line, column};
}

std::string_view SourceFile::line(unsigned number) const {
  if (number == 0 || number > lineStarts.size())
    return {};
  std::string_view rest = std::string_view(content).substr(lineStarts[number - 1]);
  rest = rest.substr(0, rest.find('\n'));
  if (!rest.empty() && rest.back() == '\r')
    rest.remove_suffix(1);
  return rest;
}

uint32_t SourceMap::add(SourceFile file) {
  files.push_back(std::make_shared<const SourceFile>(std::move(file)));
  return files.size() - 1;
}

SourceLocation SourceMap::locate(SourceRange range) const {
  if (!range.valid() || range.file >= files.size())
    return {};
  const SourceFile &source = file(range.file);
  auto [line, column] = source.lineColumn(range.begin);
  auto [endLine, endColumn] = source.lineColumn(std::max(range.begin, range.end));
  return {source.name(), line, column, endLine, endColumn};
}

std::string_view SourceMap::text(SourceRange range) const {
  if (!range.valid() || range.file >= files.size())
    return {};
  std::string_view all = file(range.file).text();
  uint32_t begin = std::min<uint32_t>(range.begin, all.size());
  return all.substr(begin, range.end > begin ? range.end - begin : 0);
}

//===----------------------------------------------------------------------===//
// Words
//===----------------------------------------------------------------------===//

static unsigned editDistance(std::string_view a, std::string_view b) {
  auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  std::vector<unsigned> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      unsigned change = lower(a[i - 1]) != lower(b[j - 1]);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + change});
      // Two letters swapped are one slip.
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string> &candidates) {
  // Near matches are a help, not worth minutes.
  if (word.size() > 64 || candidates.size() > 2000)
    return {};
  std::string best;
  unsigned bestDistance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string &candidate : candidates) {
    if (candidate.size() > 64 || candidate == word)
      continue;
    unsigned distance = editDistance(word, candidate);
    // A word that only misses its end or its start is near, however long.
    bool part = word.size() >= 2 && candidate.size() > word.size() &&
                (candidate.starts_with(word) || candidate.ends_with(word));
    bool longer = candidate.size() >= 2 && word.size() > candidate.size() &&
                  (word.starts_with(candidate + "_") || word.ends_with("_" + candidate));
    if (part || longer)
      distance = std::min(distance, bestDistance > 1 ? bestDistance - 1 : 1);
    if (distance < bestDistance && distance < std::max(word.size(), candidate.size()))
      best = candidate, bestDistance = distance;
  }
  return best;
}

std::string meantHint(std::string_view word, const std::vector<std::string> &candidates) {
  std::string match = nearest(word, candidates);
  return match.empty() ? match : "did you mean " + quoted(match) + "?";
}

/// Length of the valid UTF-8 sequence at the start, or 0.
static size_t utf8Length(std::string_view bytes) {
  auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  unsigned char first = at(0);
  if (first < 0x80)
    return 1;
  size_t length = first >= 0xF0 && first <= 0xF4  ? 4
                  : first >= 0xE0 && first < 0xF0 ? 3
                  : first >= 0xC2 && first < 0xE0 ? 2
                                                  : 0;
  if (length == 0 || bytes.size() < length)
    return 0;
  for (size_t i = 1; i < length; ++i)
    if ((at(i) & 0xC0) != 0x80)
      return 0;
  if ((first == 0xE0 && at(1) < 0xA0) || (first == 0xED && at(1) >= 0xA0) ||
      (first == 0xF0 && at(1) < 0x90) || (first == 0xF4 && at(1) >= 0x90))
    return 0;
  return length;
}

std::string printable(std::string_view bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  while (!bytes.empty()) {
    size_t length = utf8Length(bytes);
    unsigned char first = bytes[0];
    if (length == 0 || (length == 1 && (first < 0x20 || first == 0x7F))) {
      out += "\\x";
      out += digits[first >> 4];
      out += digits[first & 15];
      length = 1;
    } else {
      out += bytes.substr(0, length);
    }
    bytes.remove_prefix(length);
  }
  return out;
}

std::string quoted(std::string_view text) {
  bool cut = text.size() > 60;
  return "`" + printable(text.substr(0, cut ? 57 : text.size())) + (cut ? "...`" : "`");
}

//===----------------------------------------------------------------------===//
// Diagnostics
//===----------------------------------------------------------------------===//

Diagnostic &Diagnostics::error(SourceRange range, std::string message, std::string hint) {
  for (Diagnostic &known : list)
    if (known.range == range && known.message == message)
      return known;
  if (full()) {
    overflow = {};
    return overflow;
  }
  list.push_back({range, std::move(message), std::move(hint), {}});
  return list.back();
}

void Diagnostics::sort() {
  // A function that is inlined twice notes its places twice.
  for (Diagnostic &d : list) {
    auto &notes = d.notes;
    for (size_t i = 0; i < notes.size(); ++i)
      notes.erase(std::remove(notes.begin() + i + 1, notes.end(), notes[i]), notes.end());
  }
  auto key = [](const Diagnostic &d) {
    // +1 wraps "no place" to the front.
    return std::tuple(d.range.file + 1, d.range.begin, d.range.end, std::string_view(d.message));
  };
  std::sort(list.begin(), list.end(),
            [&](const Diagnostic &a, const Diagnostic &b) { return key(a) < key(b); });
}

/// The line with its underline. Long lines are shown around the place.
static std::string renderPlace(const SourceMap &sources, SourceRange range) {
  const SourceFile &source = sources.file(range.file);
  auto [lineNumber, column] = source.lineColumn(range.begin);
  std::string_view line = source.line(lineNumber);
  size_t lineBegin = line.data() ? line.data() - source.text().data() : 0;
  size_t begin =
      std::min<size_t>(range.begin - std::min<size_t>(range.begin, lineBegin), line.size());
  size_t end =
      std::clamp<size_t>(range.end > lineBegin ? range.end - lineBegin : 0, begin, line.size());
  constexpr size_t window = 120;
  bool cutLeft = false, cutRight = false;
  if (line.size() > window) {
    size_t from = begin > window / 2 ? begin - window / 2 : 0;
    // Not inside a character; bytes that are no text may go on for long.
    for (unsigned i = 0; i < 3 && from > 0 && from < line.size() &&
                         (static_cast<unsigned char>(line[from]) & 0xC0) == 0x80;
         ++i)
      --from;
    size_t length = std::min(window, line.size() - from);
    cutLeft = from > 0;
    cutRight = from + length < line.size();
    line = line.substr(from, length);
    begin -= from;
    end = std::clamp(end - from, begin, line.size());
  }
  std::string number = std::to_string(lineNumber);
  std::string gutter(std::max<size_t>(number.size(), 4), ' ');
  std::string shown, under;
  auto put = [&](std::string_view bytes, bool marked) {
    std::string text;
    std::string pad;
    while (!bytes.empty()) {
      size_t tab = bytes.find('\t');
      std::string piece = printable(bytes.substr(0, tab));
      text += piece;
      for (char c : piece)
        if ((static_cast<unsigned char>(c) & 0xC0) != 0x80)
          pad += marked ? '~' : ' ';
      if (tab == std::string_view::npos)
        break;
      text += '\t';
      pad += marked ? '~' : '\t';
      bytes.remove_prefix(tab + 1);
    }
    shown += text;
    under += pad;
  };
  if (cutLeft)
    shown = under = "...", under = "   ";
  put(line.substr(0, begin), false);
  size_t caret = under.size();
  put(line.substr(begin, end - begin), true);
  put(line.substr(end), false);
  if (cutRight)
    shown += "...";
  if (caret < under.size())
    under[caret] = '^';
  else
    under += '^';
  under.erase(under.find_last_not_of(" \t") + 1);
  return gutter.substr(number.size()) + number + " | " + shown + "\n" + gutter + " | " + under +
         "\n";
}

std::string Diagnostics::render(const SourceMap &sources, size_t limit) const {
  std::string out;
  size_t count = 0;
  auto head = [&](SourceRange range) {
    SourceLocation place = sources.locate(range);
    return place.file.empty() ? std::string()
                              : place.file + ":" + std::to_string(place.line) + ":" +
                                    std::to_string(place.column) + ": ";
  };
  for (const Diagnostic &d : list) {
    if (count++ == limit) {
      size_t rest = list.size() - limit;
      out += "and " + std::to_string(rest) + (full() ? " or more" : "") +
             (rest == 1 ? " other error\n" : " other errors\n");
      break;
    }
    out += head(d.range) + "error: " + d.message + "\n";
    if (d.range.valid())
      out += renderPlace(sources, d.range);
    if (!d.hint.empty())
      out += "  hint: " + d.hint + "\n";
    for (const auto &[range, text] : d.notes) {
      out += head(range) + "note: " + text + "\n";
      if (range.valid())
        out += renderPlace(sources, range);
    }
  }
  return out;
}

} // namespace cleave
