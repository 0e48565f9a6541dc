//===- Reuse.cpp - how far away a step's operands lie ---------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/emulate/Reuse.h"

#include <algorithm>
#include <map>
#include <set>

namespace cleave {

namespace {

/// Memory in pieces, each with how much had been touched when it was.
class Memory {
public:
  explicit Memory(const Program &program) : program(program), starts(program.buffers.size()) {
    // The arena, then arguments, then results that lie in no argument.
    int64_t total = program.arenaBytes;
    std::map<std::pair<Buffer::Kind, int32_t>, int64_t> places;
    for (size_t i = 0; i < program.buffers.size(); ++i) {
      Buffer b = program.buffers[i];
      if (b.kind == Buffer::Kind::Arena) {
        starts[i] = b.offset;
        continue;
      }
      if (b.kind == Buffer::Kind::Result)
        if (int32_t of = program.results[size_t(b.index)].aliasOf; of >= 0)
          b.kind = Buffer::Kind::Argument, b.index = of;
      auto [place, isNew] = places.try_emplace({b.kind, b.index}, total);
      starts[i] = place->second;
      if (isNew)
        total += b.bytes;
    }
    constexpr int64_t mostPieces = 1'000'000;
    piece = std::max<int64_t>(int64_t{16} << 10, total / mostPieces + 1);
    last.assign(static_cast<size_t>(total / piece + 1), 0);
    // A layer's slice of a stacked tensor ends where the next one begins.
    for (const Step &step : program.steps)
      for (const BufferRef &ref : operandsOf(step))
        offsets[ref.buffer].insert(ref.offset);
  }

  /// Operands of a step, with sizes and each once; touches them.
  std::vector<Touched> touch(const Step &step) {
    std::set<std::pair<int64_t, int64_t>> ranges; // first byte, size
    double sum = 0;
    for (const BufferRef &ref : operandsOf(step))
      if (int64_t size = sizeOf(ref); size > 0)
        if (ranges.insert({starts[size_t(ref.buffer)] + ref.offset, size}).second)
          sum += double(size);
    // A gather touches a part of its table.
    double bytes = double(step.bytes), scale = sum > 0 ? bytes / sum : 0;
    double own = std::min(bytes, sum);
    std::vector<Touched> list;
    for (auto [begin, size] : ranges) {
      int64_t first = begin / piece, end = (begin + size - 1) / piece + 1;
      double each = double(size) * scale / double(end - first);
      for (int64_t i = first; i < end; ++i) {
        double &when = last[static_cast<size_t>(i)];
        double distance = now - when + own;
        if (list.empty() || list.back().distance != distance)
          list.push_back({0, distance});
        list.back().bytes += each;
      }
    }
    now += own;
    for (auto [begin, size] : ranges)
      for (int64_t i = begin / piece; i <= (begin + size - 1) / piece; ++i)
        last[static_cast<size_t>(i)] = now;
    return list;
  }

private:
  static std::vector<BufferRef> operandsOf(const Step &step) {
    std::vector<BufferRef> refs;
    if (const auto *s = std::get_if<KernelStep>(&step.action)) {
      refs = s->buffers;
    } else if (const auto *s = std::get_if<GemmStep>(&step.action)) {
      refs = s->epilogueBuffers;
      refs.insert(refs.end(), {s->a, s->b, s->c});
      if (s->sums != GemmStep::Sums::None)
        refs.push_back(s->sumsTo);
    } else if (const auto *s = std::get_if<CopyStep>(&step.action)) {
      refs = {s->from, s->to};
    } else if (const auto *s = std::get_if<FillStep>(&step.action)) {
      refs = {s->to};
    } else if (const auto *s = std::get_if<CollectiveStep>(&step.action)) {
      refs = {s->in, s->out};
    }
    std::erase_if(refs, [](const BufferRef &ref) { return ref.buffer < 0; });
    return refs;
  }

  int64_t sizeOf(const BufferRef &ref) const {
    const std::set<int64_t> &known = offsets.at(ref.buffer);
    auto next = known.upper_bound(ref.offset);
    int64_t end = program.buffers[size_t(ref.buffer)].bytes;
    return (next == known.end() ? end : std::min(end, *next)) - ref.offset;
  }

  const Program &program;
  std::vector<int64_t> starts; ///< of each buffer, in one row
  std::map<int32_t, std::set<int64_t>> offsets;
  int64_t piece = 1; ///< bytes
  std::vector<double> last;
  double now = 0;
};

} // namespace

std::vector<std::vector<Touched>> reuseDistances(const Program &program) {
  Memory memory(program);
  std::vector<std::vector<Touched>> all(program.steps.size());
  for (int run = 0; run < 2; ++run) // the second finds what the first left
    for (size_t i = 0; i < program.steps.size(); ++i)
      all[i] = memory.touch(program.steps[i]);
  return all;
}

} // namespace cleave
