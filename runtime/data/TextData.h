//===- TextData.h - text as training data -----------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/AtomicFile.h"
#include "runtime/core/Tensor.h"

#include <string>

namespace cleave {

/// The inputs of a language model, i32 [batch, seq] each.
struct TextBatch {
  HostTensor tokens;
  HostTensor labels; ///< the token after each
  HostTensor pos;    ///< 0, 1, ... in each row
};

/// A text file, memory-mapped, whose tokens are its bytes (0 to 255).
class TextData {
public:
  /// Files with less than seq + 1 bytes are refused: no row would fit.
  static Result<TextData> open(const std::string &path, int64_t seq, uint64_t seed);

  int64_t size() const { return file.size(); } ///< tokens
  int64_t sequence() const { return seq; }

  /// The rows of a training step. Where row r of a step begins in the file
  /// depends on (seed, step, r) only: neither on the batch size nor on how the
  /// batch is split over ranks or accumulated.
  TextBatch batch(uint32_t step, int64_t batch) const;
  int64_t rowStart(uint32_t step, int64_t row) const;

  /// The file cut into rows one after another, for evaluation: rows
  /// [first, first + batch) of `windows()`.
  int64_t windows() const { return (file.size() - 1) / seq; }
  TextBatch window(int64_t first, int64_t batch) const;

private:
  TextData(MappedFile file, int64_t seq, uint64_t seed)
      : file(std::move(file)), seq(seq), seed(seed) {}
  void fillRow(TextBatch &to, int64_t row, int64_t start) const;
  TextBatch empty(int64_t batch) const;

  MappedFile file;
  int64_t seq;
  uint64_t seed;
};

} // namespace cleave
