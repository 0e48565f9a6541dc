//===- Safetensors.h - tensors in files -------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/AtomicFile.h"
#include "runtime/core/Tensor.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

/// A safetensors file, memory-mapped. Opening checks all of its header: what
/// the format forbids (ranges that overlap, leave gaps, do not match the shape
/// or do not cover the file; names twice; text that is not UTF-8) is an error
/// that names the file and the tensor.
class SafetensorsFile {
public:
  struct Entry {
    std::string dtype; ///< the file's spelling: "F32", "BF16", "BOOL", ...
    std::vector<int64_t> shape;
    int64_t begin = 0, end = 0; ///< bytes after the header
  };

  static Result<SafetensorsFile> open(const std::string &path);
  /// The same on bytes; `name` is for messages. For the parser's tests.
  static Result<std::map<std::string, Entry>>
  parseHeader(std::string_view bytes, std::string_view name, int64_t &dataAt,
              std::map<std::string, std::string> &metadata);

  const std::string &path() const { return file; }
  const std::map<std::string, Entry> &entries() const { return tensors; }
  const std::map<std::string, std::string> &metadata() const { return notes; }
  bool contains(std::string_view name) const { return tensors.count(std::string(name)) != 0; }

  /// A tensor in its place in the file: no copy, perhaps unaligned, valid as
  /// long as this. BOOL and U8 are i1; their bytes may be other than 0 and 1.
  /// Types that Cleave lacks, and unknown names, are errors.
  Result<TensorView> view(std::string_view name) const;
  /// A copy, aligned; i1 is 0 or 1.
  Result<HostTensor> read(std::string_view name) const;

private:
  SafetensorsFile(MappedFile mapping) : mapping(std::move(mapping)) {}
  MappedFile mapping;
  std::string file;
  std::map<std::string, Entry> tensors;
  std::map<std::string, std::string> notes;
  int64_t dataAt = 0;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;
};

/// Writes a file that replaces `path` as a whole. Tensors are sorted by width,
/// then name, and begin at multiples of 8 bytes where their width allows; equal
/// tensors give equal files. A name twice is an error.
Status writeSafetensors(const std::string &path, const std::vector<NamedTensor> &tensors,
                        const std::map<std::string, std::string> &metadata = {});

/// The file's spelling of a type: "F32", "BOOL".
std::string_view safetensorsName(DType type);

} // namespace cleave
