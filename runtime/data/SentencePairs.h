//===- SentencePairs.h - text as BERT is trained on it ----------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Masked tokens and pairs of sentences, as in Devlin et al. (2019), section 3.1
// and appendix A.2. Tokens are the text's bytes, 0 to 255, and four special ones.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/AtomicFile.h"
#include "runtime/core/Tensor.h"

#include <string>
#include <vector>

namespace cleave {

/// Row-major, [batch, seq] where nothing else is said.
struct PairBatch {
  HostTensor tokens; ///< i32: [CLS] first [SEP] second [SEP] [PAD] ...
  HostTensor kind;   ///< i32: 0 up to the first [SEP], 1 up to the second, 0 in the padding
  HostTensor valid;  ///< i1: no padding
  HostTensor labels; ///< i32: the tokens at the masked places, -100 elsewhere
  HostTensor next;   ///< i32 [batch]: 0 where the second follows the first, 1 where it does not
};

/// A text file, memory-mapped, each of whose lines is a sentence; empty lines are none.
///
/// A row is a run of lines that fills it (a tenth of the rows: up to a random
/// length), cut in two at a random line. In half of the rows the second part is
/// replaced by as much text from a random other place. What is too long is cut
/// from either end of the longer part. Of the bytes 15 % (rounded, at least one)
/// are masked: each becomes [MASK] in 80 %, a random byte in 10 %, itself in 10 %.
class SentencePairs {
public:
  static constexpr int32_t pad = 256, cls = 257, sep = 258, mask = 259;
  static constexpr int32_t vocabulary = 260; ///< tokens that can come
  static constexpr int32_t ignored = -100;   ///< the label of what was not masked
  static constexpr int64_t shortest = 5;     ///< [CLS] a [SEP] b [SEP]

  /// Files with fewer than three lines and rows that hold no pair are refused.
  static Result<SentencePairs> open(const std::string &path, int64_t seq, uint64_t seed);

  int64_t size() const { return file.size(); } ///< bytes
  int64_t sequence() const { return seq; }

  /// The rows of a training step. Row r of a step depends on (seed, step, r)
  /// only: neither on the batch size nor on how the batch is split over ranks.
  PairBatch batch(uint32_t step, int64_t batch) const;

private:
  class Draws;
  struct Span {
    int64_t begin = 0, end = 0; ///< bytes
    int64_t size() const { return end - begin; }
  };

  SentencePairs(MappedFile file, int64_t seq, uint64_t seed)
      : file(std::move(file)), seq(seq), seed(seed) {}
  /// The lines from `first` on, until they have `bytes` or the text ends: one past the last.
  size_t fill(size_t first, int64_t bytes) const;
  Span text(size_t first, size_t last) const { return {lines[first].begin, lines[last - 1].end}; }
  void fillRow(PairBatch &to, int64_t row, Draws draws) const;

  MappedFile file;
  std::vector<Span> lines; ///< without their ends
  int64_t seq;
  uint64_t seed;
};

} // namespace cleave
