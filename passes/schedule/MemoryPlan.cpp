//===- MemoryPlan.cpp - offsets in the arena ------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/MemoryPlan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>

using namespace cleave;

static constexpr int64_t alignment = 64;

static int64_t aligned(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

namespace {

/// Intervals by length class and start: those that meet a given one are found
/// without looking at many others, however long some of them are.
class IntervalIndex {
public:
  void add(const Lifetime &life, int32_t item) {
    auto length = static_cast<uint32_t>(life.last - life.first + 1);
    classes[std::bit_width(length) - 1].emplace(life.first, item);
  }

  template <typename Function>
  void forEachMeeting(const Lifetime &life, const std::vector<Lifetime> &all, Function f) const {
    for (const auto &[log, byStart] : classes) {
      int64_t longest = (int64_t(2) << log) - 1;
      int64_t from = std::max<int64_t>(int64_t(life.first) - longest + 1, 0);
      for (auto it = byStart.lower_bound(static_cast<int32_t>(from));
           it != byStart.end() && it->first <= life.last; ++it)
        if (all[it->second].last >= life.first)
          f(it->second);
    }
  }

private:
  std::map<int, std::multimap<int32_t, int32_t>> classes;
};

} // namespace

/// Places the buffers in this order, each in the smallest gap that holds it
/// among those that live at the same time.
static MemoryPlan placeInOrder(const std::vector<Lifetime> &lifetimes,
                               const std::vector<int32_t> &order) {
  MemoryPlan plan;
  plan.offsets.assign(lifetimes.size(), 0);
  IntervalIndex placed;
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (int32_t item : order) {
    const Lifetime &life = lifetimes[item];
    int64_t size = aligned(life.bytes);
    if (life.first > life.last || size == 0)
      continue;
    taken.clear();
    placed.forEachMeeting(life, lifetimes, [&](int32_t other) {
      taken.emplace_back(plan.offsets[other],
                         plan.offsets[other] + aligned(lifetimes[other].bytes));
    });
    std::sort(taken.begin(), taken.end());
    int64_t end = 0, best = -1, bestGap = std::numeric_limits<int64_t>::max();
    for (auto [from, to] : taken) {
      int64_t gap = from - end;
      if (gap >= size && gap < bestGap) {
        best = end;
        bestGap = gap;
      }
      end = std::max(end, to);
    }
    int64_t offset = best >= 0 ? best : end;
    plan.offsets[item] = offset;
    plan.arenaBytes = std::max(plan.arenaBytes, offset + size);
    placed.add(life, item);
  }
  return plan;
}

static int64_t mostLive(const std::vector<Lifetime> &lifetimes) {
  std::map<int32_t, int64_t> change;
  for (const Lifetime &life : lifetimes)
    if (life.first <= life.last) {
      change[life.first] += aligned(life.bytes);
      change[life.last + 1] -= aligned(life.bytes);
    }
  int64_t live = 0, most = 0;
  for (auto [step, bytes] : change)
    most = std::max(most, live += bytes);
  return most;
}

MemoryPlan cleave::planMemory(const std::vector<Lifetime> &lifetimes, bool reuse) {
  std::vector<int32_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), 0);
  int64_t live = mostLive(lifetimes);
  if (!reuse) {
    MemoryPlan plan;
    plan.liveBytes = live;
    for (const Lifetime &life : lifetimes) {
      plan.offsets.push_back(plan.arenaBytes);
      plan.arenaBytes += aligned(life.bytes);
    }
    return plan;
  }
  auto length = [&](int32_t i) { return int64_t(lifetimes[i].last) - lifetimes[i].first; };
  auto bySize = [&](int32_t a, int32_t b) {
    return lifetimes[a].bytes != lifetimes[b].bytes ? lifetimes[a].bytes > lifetimes[b].bytes
                                                    : a < b;
  };
  std::sort(order.begin(), order.end(), bySize);
  MemoryPlan best = placeInOrder(lifetimes, order);
  if (best.arenaBytes > live) {
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return length(a) != length(b) ? length(a) > length(b) : bySize(a, b);
    });
    MemoryPlan other = placeInOrder(lifetimes, order);
    if (other.arenaBytes < best.arenaBytes)
      best = std::move(other);
  }
  best.liveBytes = live;
  return best;
}

//===----------------------------------------------------------------------===//
// Checking a program
//===----------------------------------------------------------------------===//

std::vector<BufferRef> cleave::buffersOf(const Step &step) {
  std::vector<BufferRef> refs;
  if (auto *kernel = std::get_if<KernelStep>(&step.action)) {
    refs = kernel->buffers;
  } else if (auto *gemm = std::get_if<GemmStep>(&step.action)) {
    refs = {gemm->a, gemm->b, gemm->c};
    refs.insert(refs.end(), gemm->epilogueBuffers.begin(), gemm->epilogueBuffers.end());
    if (gemm->sums != GemmStep::Sums::None)
      refs.push_back(gemm->sumsTo);
  } else if (auto *copy = std::get_if<CopyStep>(&step.action)) {
    refs = {copy->from, copy->to};
  } else if (auto *fill = std::get_if<FillStep>(&step.action)) {
    refs = {fill->to};
  } else if (auto *collective = std::get_if<CollectiveStep>(&step.action)) {
    refs = {collective->in, collective->out};
  }
  return refs;
}

/// What is awaited has its buffers until then.
static std::vector<BufferRef> held(const Program &program, const Step &step) {
  if (auto *await = std::get_if<AwaitStep>(&step.action))
    return cleave::buffersOf(program.steps[await->step]);
  return cleave::buffersOf(step);
}

std::vector<Lifetime> cleave::lifetimesOf(const Program &program) {
  std::vector<Lifetime> lifetimes;
  for (const Buffer &buffer : program.buffers)
    lifetimes.push_back({buffer.bytes, std::numeric_limits<int32_t>::max(), -1});
  for (size_t i = 0; i < program.steps.size(); ++i)
    for (BufferRef ref : held(program, program.steps[i])) {
      Lifetime &life = lifetimes[ref.buffer];
      life.first = std::min(life.first, static_cast<int32_t>(i));
      life.last = std::max(life.last, static_cast<int32_t>(i));
    }
  return lifetimes;
}

std::optional<std::string> cleave::checkMemory(const Program &program) {
  auto number = [](int64_t n) { return std::to_string(n); };
  for (size_t i = 0; i < program.steps.size(); ++i)
    for (BufferRef ref : buffersOf(program.steps[i])) {
      if (ref.buffer < 0 || ref.buffer >= static_cast<int32_t>(program.buffers.size()))
        return "step " + number(i) + " names buffer " + number(ref.buffer) + " of " +
               number(program.buffers.size());
      int64_t bytes = program.buffers[ref.buffer].bytes;
      if (ref.offset < 0 || (ref.offset >= bytes && bytes > 0))
        return "step " + number(i) + " is at byte " + number(ref.offset) + " of buffer " +
               number(ref.buffer) + ", which has " + number(bytes);
    }
  std::vector<Lifetime> lifetimes = lifetimesOf(program);
  IntervalIndex seen;
  std::optional<std::string> problem;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    const Buffer &buffer = program.buffers[i];
    if (buffer.kind != Buffer::Kind::Arena || lifetimes[i].first > lifetimes[i].last)
      continue;
    if (buffer.offset % alignment || buffer.offset < 0)
      return "buffer " + number(i) + " is at the odd offset " + number(buffer.offset);
    if (buffer.offset + buffer.bytes > program.arenaBytes)
      return "buffer " + number(i) + " ends past the arena";
    seen.forEachMeeting(lifetimes[i], lifetimes, [&](int32_t other) {
      const Buffer &with = program.buffers[other];
      bool apart =
          buffer.offset + buffer.bytes <= with.offset || with.offset + with.bytes <= buffer.offset;
      bool handedOver = buffer.offset == with.offset && buffer.bytes == with.bytes &&
                        (lifetimes[i].first == lifetimes[other].last ||
                         lifetimes[other].first == lifetimes[i].last);
      if (!apart && !handedOver)
        problem =
            "buffers " + number(other) + " and " + number(i) + " live at the same time and overlap";
    });
    if (problem)
      return problem;
    seen.add(lifetimes[i], static_cast<int32_t>(i));
  }
  return std::nullopt;
}
