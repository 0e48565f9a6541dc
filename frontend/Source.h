//===- Source.h - source texts, places in them, diagnostics -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cleave {

/// A half-open range of bytes in one of the files of a SourceMap. The default
/// value is no place at all (a setting from the command line).
struct SourceRange {
  uint32_t file = UINT32_MAX;
  uint32_t begin = 0;
  uint32_t end = 0;

  bool valid() const { return file != UINT32_MAX; }
  friend bool operator==(const SourceRange &, const SourceRange &) = default;
};

/// From the begin of the first to the end of the second.
SourceRange join(SourceRange first, SourceRange second);

/// A place for people and for MLIR locations. Lines and columns count from 1,
/// columns in characters (UTF-8 code points).
struct SourceLocation {
  std::string file;
  unsigned line = 0, column = 0;
  unsigned endLine = 0, endColumn = 0;
};

/// One text and its name. Owns both.
class SourceFile {
public:
  SourceFile(std::string name, std::string text);

  const std::string &name() const { return fileName; }
  std::string_view text() const { return content; }
  /// Line and column of a byte, both from 1.
  std::pair<unsigned, unsigned> lineColumn(uint32_t offset) const;
  /// The line's text without its end; empty when there is no such line.
  std::string_view line(unsigned number) const;

private:
  std::string fileName;
  std::string content;
  std::vector<uint32_t> lineStarts;
};

/// The files that ranges point into.
class SourceMap {
public:
  uint32_t add(SourceFile file);
  const SourceFile &file(uint32_t index) const { return *files[index]; }
  size_t size() const { return files.size(); }
  /// An invalid range gives a SourceLocation with an empty file name.
  SourceLocation locate(SourceRange range) const;
  std::string_view text(SourceRange range) const;

private:
  std::vector<std::shared_ptr<const SourceFile>> files;
};

/// One error. `notes` show second places; `hint` says what to do.
struct Diagnostic {
  SourceRange range;
  std::string message;
  std::string hint;
  std::vector<std::pair<SourceRange, std::string>> notes;
};

/// Collects errors. Says each one once, however often it is found.
class Diagnostics {
public:
  Diagnostic &error(SourceRange range, std::string message, std::string hint = {});
  /// The same for what could be read around: the rest of the text means what it says.
  Diagnostic &readableError(SourceRange range, std::string message, std::string hint = {}) {
    size_t before = list.size();
    Diagnostic &made = error(range, std::move(message), std::move(hint));
    readable += list.size() - before;
    return made;
  }
  bool allReadable() const { return readable == list.size(); }
  bool empty() const { return list.empty(); }
  size_t size() const { return list.size(); }
  /// No more errors are kept: the caller may stop.
  bool full() const { return list.size() >= maxKept; }
  const std::vector<Diagnostic> &all() const { return list; }
  /// By place in the text, errors without a place first; drops repetitions.
  void sort();
  /// `file:line:col: error: ...`, the line, the caret, the hint; at most
  /// `limit` errors and then a count of the rest.
  std::string render(const SourceMap &sources, size_t limit = 20) const;

private:
  static constexpr size_t maxKept = 400;
  std::vector<Diagnostic> list;
  size_t readable = 0; ///< how many of them
  Diagnostic overflow;
};

/// The candidate that is most like `word`, or empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string> &candidates);
/// "did you mean `x`?", or empty.
std::string meantHint(std::string_view word, const std::vector<std::string> &candidates);
/// The bytes as valid, printable UTF-8: others become `\xNN`.
std::string printable(std::string_view bytes);
/// `text` in backquotes, shortened when it is long.
std::string quoted(std::string_view text);

} // namespace cleave
