//===- SentencePairs.cpp - text as BERT is trained on it ------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/data/SentencePairs.h"

#include "runtime/core/Philox.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>

namespace cleave {

/// The random numbers of one row, one after another.
class SentencePairs::Draws {
public:
  Draws(uint64_t seed, uint32_t step, int64_t row)
      : random(seed, step, siteHash("data.pairs")), at(static_cast<uint64_t>(row) << 32) {}

  /// From 0 to n - 1.
  int64_t below(int64_t n) {
    Philox::Words words = random.words(at++);
    uint64_t value = uint64_t{words[1]} << 32 | words[0];
    return static_cast<int64_t>(static_cast<unsigned __int128>(value) * static_cast<uint64_t>(n) >>
                                64);
  }

private:
  Philox random;
  uint64_t at;
};

Result<SentencePairs> SentencePairs::open(const std::string &path, int64_t seq, uint64_t seed) {
  if (seq < shortest)
    return Error{fmt::format("rows of {} tokens hold no pair of sentences with its {} special "
                             "tokens; at least {} are needed",
                             seq, shortest - 2, shortest)};
  auto file = MappedFile::open(path);
  if (!file)
    return file.error();
  SentencePairs pairs(std::move(*file), seq, seed);
  std::string_view all(pairs.file.data(), static_cast<size_t>(pairs.file.size()));
  for (size_t at = 0; at < all.size();) {
    size_t end = std::min(all.find('\n', at), all.size());
    size_t last = end > at && all[end - 1] == '\r' ? end - 1 : end;
    if (last > at)
      pairs.lines.push_back({static_cast<int64_t>(at), static_cast<int64_t>(last)});
    at = end + 1;
  }
  if (pairs.lines.size() < 3)
    return Error{fmt::format("'{}' has {} lines that are not empty; pairs of sentences need at "
                             "least 3\n  hint: each line is a sentence: put one on each",
                             path, pairs.lines.size())};
  return pairs;
}

size_t SentencePairs::fill(size_t first, int64_t bytes) const {
  size_t last = first + 1;
  while (last < lines.size() && text(first, last).size() < bytes)
    ++last;
  return last;
}

void SentencePairs::fillRow(PairBatch &to, int64_t row, Draws draws) const {
  const auto count = static_cast<int64_t>(lines.size());
  const int64_t room = seq - 3;
  int64_t wanted = draws.below(10) == 0 ? 2 + draws.below(room - 1) : room;
  // The first part leaves a line to follow it and, in a short text, one that does not.
  auto begin = static_cast<size_t>(draws.below(count - 1));
  size_t end = std::clamp(fill(begin, wanted), begin + 2, lines.size());
  auto most = std::min(static_cast<int64_t>(end - begin) - 1, count - 2);
  size_t cut = begin + 1 + static_cast<size_t>(draws.below(most));
  Span parts[2] = {text(begin, cut), text(cut, end)};
  bool follows = draws.below(2) == 0;
  if (!follows) {
    // Any line but those of the first part and the one behind it.
    auto taken = static_cast<int64_t>(cut + 1 - begin);
    auto other = static_cast<size_t>(draws.below(count - taken));
    if (other >= begin)
      other += static_cast<size_t>(taken);
    parts[1] = text(other, fill(other, std::max<int64_t>(1, wanted - parts[0].size())));
  }
  // No part has more than the row, however long a line is: what stands at the cut stays.
  parts[0].begin = std::max(parts[0].begin, parts[0].end - wanted);
  parts[1].end = std::min(parts[1].end, parts[1].begin + wanted);
  while (parts[0].size() + parts[1].size() > wanted) {
    Span &longer = parts[0].size() > parts[1].size() ? parts[0] : parts[1];
    if (draws.below(2) == 0)
      ++longer.begin;
    else
      --longer.end;
  }

  int32_t *tokens = to.tokens.as<int32_t>() + row * seq;
  int32_t *kind = to.kind.as<int32_t>() + row * seq;
  int32_t *labels = to.labels.as<int32_t>() + row * seq;
  char *valid = to.valid.as<char>() + row * seq;
  std::fill_n(tokens, seq, pad);
  std::fill_n(labels, seq, ignored);
  std::vector<int64_t> places; // of bytes
  int64_t length = 0;
  auto put = [&](int32_t token, int32_t part) {
    tokens[length] = token;
    kind[length] = part;
    valid[length++] = 1;
  };
  put(cls, 0);
  for (int32_t part : {0, 1}) {
    for (int64_t i = parts[part].begin; i < parts[part].end; ++i) {
      places.push_back(length);
      put(static_cast<uint8_t>(file.data()[i]), part);
    }
    put(sep, part);
  }
  to.next.as<int32_t>()[row] = follows ? 0 : 1;

  auto bytes = static_cast<int64_t>(places.size());
  int64_t masked = std::max<int64_t>(1, (15 * bytes + 50) / 100);
  for (int64_t i = 0; i < masked; ++i) {
    std::swap(places[static_cast<size_t>(i)],
              places[static_cast<size_t>(i + draws.below(bytes - i))]);
    int64_t at = places[static_cast<size_t>(i)];
    labels[at] = tokens[at];
    int64_t tenth = draws.below(10);
    if (tenth < 8)
      tokens[at] = mask;
    else if (tenth == 8)
      tokens[at] = static_cast<int32_t>(draws.below(256));
  }
}

PairBatch SentencePairs::batch(uint32_t step, int64_t batch) const {
  auto make = [&](DType type) { return HostTensor(type, {batch, seq}); };
  PairBatch to{make(DType::I32), make(DType::I32), make(DType::I1), make(DType::I32),
               HostTensor(DType::I32, {batch})};
  for (int64_t row = 0; row < batch; ++row)
    fillRow(to, row, Draws(seed, step, row));
  return to;
}

} // namespace cleave
