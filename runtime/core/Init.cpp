//===- Init.cpp - initial values ------------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/core/Init.h"

#include "runtime/core/Float16.h"
#include "runtime/core/NearMatch.h"
#include "runtime/core/Philox.h"
#include "runtime/core/Threads.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fmt/format.h>

namespace cleave {

static std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ')
    text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ')
    text.remove_suffix(1);
  return text;
}

Result<InitSpec> InitSpec::parse(std::string_view text) {
  text = trim(text);
  auto malformed = [&](std::string_view why) {
    return Error{fmt::format("initialiser '{}': {}", text, why)};
  };
  std::string_view word = text;
  std::vector<double> values;
  if (size_t open = text.find('('); open != std::string_view::npos) {
    word = trim(text.substr(0, open));
    if (text.back() != ')')
      return malformed("expected ')' at the end");
    std::string_view rest = text.substr(open + 1, text.size() - open - 2);
    while (!trim(rest).empty()) {
      size_t comma = rest.find(',');
      std::string_view item = trim(rest.substr(0, comma));
      double value = 0;
      auto [end, failed] = std::from_chars(item.data(), item.data() + item.size(), value);
      if (failed != std::errc() || end != item.data() + item.size())
        return malformed(fmt::format("'{}' is not a number", item));
      values.push_back(value);
      rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    }
  }
  auto takes = [&](size_t least, size_t most) {
    return values.size() >= least && values.size() <= most;
  };
  if (word.empty() || word == "zeros")
    return takes(0, 0) ? Result(InitSpec{}) : malformed("zeros takes no numbers");
  if (word == "ones")
    return takes(0, 0) ? Result(InitSpec{Kind::Constant, 1, 0})
                       : malformed("ones takes no numbers");
  if (word == "constant")
    return takes(1, 1) ? Result(InitSpec{Kind::Constant, values[0], 0})
                       : malformed("constant takes one number");
  if (word == "normal")
    return takes(1, 2)
               ? Result(InitSpec{Kind::Normal, values.size() == 2 ? values[0] : 0, values.back()})
               : malformed("normal takes (std) or (mean, std)");
  if (word == "uniform")
    return takes(2, 2) ? Result(InitSpec{Kind::Uniform, values[0], values[1]})
                       : malformed("uniform takes (low, high)");
  constexpr std::array<std::string_view, 5> known = {"zeros", "ones", "constant", "normal",
                                                     "uniform"};
  return malformed(
      fmt::format("expected zeros, ones, constant, normal or uniform{}", didYouMean(word, known)));
}

namespace {
template <typename T> T narrow(double value) { return static_cast<T>(value); }
struct BF16Bits {
  uint16_t bits;
};
struct F16Bits {
  uint16_t bits;
};
template <> BF16Bits narrow(double value) { return {toBF16(static_cast<float>(value))}; }
template <> F16Bits narrow(double value) { return {toF16(static_cast<float>(value))}; }
} // namespace

template <typename T>
static void fillRuns(const InitSpec &spec, const Philox &random, const ShardRuns &runs, T *local,
                     ThreadTeam *team) {
  // Runs can be one long run or many short ones: cut their elements evenly.
  int64_t length = runs.length(), total = runs.count() * length;
  auto fill = [&](int64_t begin, int64_t end) {
    while (begin < end) {
      int64_t inRun = begin % length, count = std::min(length - inRun, end - begin);
      ShardRuns::Run run = runs.at(begin / length);
      T *to = local + run.local + inRun;
      auto index = static_cast<uint64_t>(run.global + inRun);
      for (int64_t i = 0; i < count; ++i, ++index)
        switch (spec.kind) {
        case InitSpec::Kind::Constant:
          to[i] = narrow<T>(spec.a);
          break;
        case InitSpec::Kind::Normal:
          to[i] = narrow<T>(spec.a + spec.b * random.normal(index));
          break;
        case InitSpec::Kind::Uniform:
          to[i] = narrow<T>(spec.a + (spec.b - spec.a) * random.uniform(index));
          break;
        }
      begin += count;
    }
  };
  if (team)
    team->parallelFor(0, total, 4096, fill);
  else
    fill(0, total);
}

void fillInitial(const InitSpec &spec, uint64_t seed, std::string_view path,
                 const TensorLayout &layout, const RankPosition &position, char *local,
                 ThreadTeam *team) {
  Philox random(seed, initialStep, siteHash(path));
  ShardRuns runs(layout, position);
  if (runs.hasPadding())
    std::memset(local, 0, static_cast<size_t>(localElements(layout) * byteSize(layout.dtype)));
  auto fill = [&]<typename T>(T *to) { fillRuns<T>(spec, random, runs, to, team); };
  switch (layout.dtype) {
  case DType::F32:
    return fill(reinterpret_cast<float *>(local));
  case DType::F64:
    return fill(reinterpret_cast<double *>(local));
  case DType::BF16:
    return fill(reinterpret_cast<BF16Bits *>(local));
  case DType::F16:
    return fill(reinterpret_cast<F16Bits *>(local));
  case DType::I1:
    return fill(reinterpret_cast<bool *>(local));
  case DType::I32:
    return fill(reinterpret_cast<int32_t *>(local));
  case DType::I64:
    return fill(reinterpret_cast<int64_t *>(local));
  }
}

} // namespace cleave
