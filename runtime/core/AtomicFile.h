//===- AtomicFile.h - files that appear whole -------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

/// A file written beside its place and renamed into it by `commit`, so that a
/// reader sees the old file or the new one, never a part. Without `commit` the
/// destructor removes what was written. A symbolic link stays, and the file that
/// it points to is replaced. A FIFO or device is written directly.
class AtomicFile {
public:
  static Result<AtomicFile> create(const std::string &path);
  AtomicFile(AtomicFile &&other) noexcept;
  AtomicFile &operator=(AtomicFile &&) = delete;
  ~AtomicFile();

  Status write(const void *data, int64_t bytes);
  Status write(std::string_view text) {
    return write(text.data(), static_cast<int64_t>(text.size()));
  }
  /// Flushes to the disk and renames.
  Status commit();

private:
  AtomicFile() = default;
  std::string path, target, temporary; ///< target: behind links
  int descriptor = -1;
};

Status writeFileAtomically(const std::string &path, std::string_view content);

/// A file's bytes, read-only, for as long as this lives. An empty file has no
/// mapping and size 0.
class MappedFile {
public:
  static Result<MappedFile> open(const std::string &path);
  MappedFile(MappedFile &&other) noexcept;
  MappedFile &operator=(MappedFile &&other) noexcept;
  ~MappedFile();

  const char *data() const { return base; }
  int64_t size() const { return bytes; }
  std::string_view view() const { return {base, static_cast<size_t>(bytes)}; }

private:
  MappedFile() = default;
  const char *base = nullptr;
  int64_t bytes = 0;
};

} // namespace cleave
