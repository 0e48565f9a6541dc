//===- TextData.cpp - text as training data -------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/data/TextData.h"

#include "runtime/core/Philox.h"

#include <cassert>
#include <fmt/format.h>

namespace cleave {

Result<TextData> TextData::open(const std::string &path, int64_t seq, uint64_t seed) {
  if (seq < 1)
    return Error{fmt::format("a sequence of {} tokens", seq)};
  auto file = MappedFile::open(path);
  if (!file)
    return file.error();
  if (file->size() == 0)
    return Error{fmt::format("'{}' is empty: there is nothing to train on", path)};
  if (file->size() <= seq)
    return Error{fmt::format("'{}' has {} bytes; sequences of {} tokens need at least {}", path,
                             file->size(), seq, seq + 1)};
  return TextData(std::move(*file), seq, seed);
}

int64_t TextData::rowStart(uint32_t step, int64_t row) const {
  Philox::Words words = Philox(seed, step, siteHash("data.rows")).words(static_cast<uint64_t>(row));
  uint64_t random = uint64_t{words[1]} << 32 | words[0];
  auto starts = static_cast<unsigned __int128>(file.size() - seq); // 0 .. size - seq - 1
  return static_cast<int64_t>(random * starts >> 64);
}

TextBatch TextData::empty(int64_t batch) const {
  auto make = [&] { return HostTensor(DType::I32, {batch, seq}); };
  return {make(), make(), make()};
}

void TextData::fillRow(TextBatch &to, int64_t row, int64_t start) const {
  const char *text = file.data() + start;
  int32_t *tokens = to.tokens.as<int32_t>() + row * seq;
  int32_t *labels = to.labels.as<int32_t>() + row * seq;
  int32_t *pos = to.pos.as<int32_t>() + row * seq;
  for (int64_t i = 0; i < seq; ++i) {
    tokens[i] = static_cast<uint8_t>(text[i]);
    labels[i] = static_cast<uint8_t>(text[i + 1]);
    pos[i] = static_cast<int32_t>(i);
  }
}

TextBatch TextData::batch(uint32_t step, int64_t batch) const {
  TextBatch to = empty(batch);
  for (int64_t row = 0; row < batch; ++row)
    fillRow(to, row, rowStart(step, row));
  return to;
}

TextBatch TextData::window(int64_t first, int64_t batch) const {
  assert(first >= 0 && first + batch <= windows() && "rows outside the file");
  TextBatch to = empty(batch);
  for (int64_t row = 0; row < batch; ++row)
    fillRow(to, row, (first + row) * seq);
  return to;
}

} // namespace cleave
