//===- Steps.cpp - steps before their buffers have places -----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/Steps.h"

#include "passes/schedule/MemoryPlan.h"

#include <algorithm>
#include <limits>
#include <type_traits>

using namespace cleave;

int32_t StepList::addArena(int64_t bytes) {
  buffers.push_back({Buffer::Kind::Arena, bytes, 0, 0});
  sameAs.push_back(static_cast<int32_t>(sameAs.size()));
  return sameAs.back();
}

int32_t StepList::addArgument(int32_t index, int64_t bytes) {
  int32_t number = addArena(bytes);
  buffers[number].kind = Buffer::Kind::Argument;
  buffers[number].index = index;
  argumentBuffers.resize(std::max<size_t>(argumentBuffers.size(), index + 1), -1);
  argumentBuffers[index] = number;
  return number;
}

int32_t StepList::addResult(int32_t index, int64_t bytes) {
  int32_t number = addArena(bytes);
  buffers[number].kind = Buffer::Kind::Result;
  buffers[number].index = index;
  return number;
}

int32_t StepList::find(int32_t buffer) const {
  while (sameAs[buffer] != buffer)
    buffer = sameAs[buffer];
  return buffer;
}

//===----------------------------------------------------------------------===//
// Donations
//===----------------------------------------------------------------------===//

/// Whether the steps that write the donated buffer may write the argument's at
/// once: nothing that they write there is read as the old value later on, nor in
/// the same step but by a kernel that reads each element before it writes it, and
/// reads it as one input only.
bool StepList::mayReplace(int32_t donated, int32_t argument,
                          const std::vector<Place> &readAtEnd) const {
  struct Read {
    Place place;
    size_t step;
    int number;
  };
  std::vector<Read> reads;
  size_t firstWrite = steps.size();
  for (size_t i = 0; i < steps.size(); ++i)
    for (const Place &write : steps[i].writes)
      if (write.buffer == donated)
        firstWrite = std::min(firstWrite, i);
  for (size_t i = firstWrite; i < steps.size(); ++i)
    for (size_t j = 0; j < steps[i].reads.size(); ++j)
      if (steps[i].reads[j].buffer == argument)
        reads.push_back({steps[i].reads[j], i, static_cast<int>(j)});
  for (const Place &place : readAtEnd)
    if (place.buffer == argument)
      reads.push_back({place, steps.size(), -1});
  if (reads.empty())
    return true;
  for (size_t i = firstWrite; i < steps.size(); ++i)
    for (size_t w = 0; w < steps[i].writes.size(); ++w) {
      if (steps[i].writes[w].buffer != donated)
        continue;
      Place write = steps[i].writes[w];
      write.buffer = argument;
      int sharing = 0;
      for (const Read &read : reads) {
        if (read.step < i || !read.place.overlaps(write))
          continue;
        bool paired =
            read.step == i && read.place == write && ++sharing == 1 &&
            std::find(steps[i].inPlace.begin(), steps[i].inPlace.end(),
                      std::pair(read.number, static_cast<int>(w))) != steps[i].inPlace.end();
        if (!paired)
          return false;
      }
    }
  return true;
}

void StepList::settleDonations(const std::vector<Donation> &donations, const Recorded &copyStep) {
  struct Copy {
    Place from, to;
  };
  std::vector<Copy> copies;
  std::vector<const Donation *> candidates;
  std::vector<Place> readAtEnd;
  for (const Donation &donation : donations) {
    Place to = wholeOf(argumentBuffers[donation.argument]);
    if (donation.own >= 0 && donation.from == wholeOf(donation.own)) {
      candidates.push_back(&donation);
    } else if (donation.from != to) {
      copies.push_back({donation.from, to});
      readAtEnd.push_back(donation.from);
    }
  }
  for (const Donation *donation : candidates) {
    int32_t argument = argumentBuffers[donation->argument];
    if (mayReplace(donation->own, argument, readAtEnd))
      sameAs[donation->own] = argument;
    else
      copies.push_back({donation->from, wholeOf(argument)});
  }
  // All copies read old values: one may overwrite an argument only when no other
  // has still to read it; a ring of arguments needs a buffer in between.
  auto emit = [&](Place from, Place to) {
    Recorded step = copyStep;
    step.step.action = CopyStep{from.ref(), to.ref(), to.bytes};
    step.reads = {from};
    step.writes = {to};
    steps.push_back(std::move(step));
  };
  while (!copies.empty()) {
    auto ready = std::find_if(copies.begin(), copies.end(), [&](const Copy &copy) {
      return std::none_of(copies.begin(), copies.end(), [&](const Copy &other) {
        return &other != &copy && other.from.overlaps(copy.to);
      });
    });
    if (ready == copies.end()) {
      Place aside = wholeOf(addArena(copies.front().from.bytes));
      emit(copies.front().from, aside);
      copies.front().from = aside;
      continue;
    }
    emit(ready->from, ready->to);
    copies.erase(ready);
  }
}

//===----------------------------------------------------------------------===//
// The program's buffers
//===----------------------------------------------------------------------===//

/// A kernel's result takes the place of an input that nobody reads afterwards.
void StepList::shareInPlace() {
  constexpr int32_t never = -1;
  std::vector<int32_t> first(buffers.size(), never), last(buffers.size(), never);
  auto touch = [&](int32_t buffer, int32_t step) {
    buffer = find(buffer);
    if (first[buffer] == never)
      first[buffer] = step;
    last[buffer] = step;
  };
  for (size_t i = 0; i < steps.size(); ++i)
    for (const std::vector<Place> *list : {&steps[i].reads, &steps[i].writes})
      for (const Place &place : *list)
        touch(place.buffer, static_cast<int32_t>(i));
  for (size_t i = 0; i < steps.size(); ++i)
    for (auto [r, w] : steps[i].inPlace) {
      const Place &read = steps[i].reads[r], &write = steps[i].writes[w];
      int32_t in = find(read.buffer), out = find(write.buffer);
      auto step = static_cast<int32_t>(i);
      if (in == out || buffers[in].kind != Buffer::Kind::Arena ||
          buffers[out].kind != Buffer::Kind::Arena || last[in] != step || first[out] != step ||
          read.offset || write.offset || read.bytes != write.bytes ||
          read.bytes != buffers[in].bytes || write.bytes != buffers[out].bytes)
        continue;
      // No other input or result of the kernel may be the same memory.
      bool other = false;
      for (size_t k = 0; k < steps[i].reads.size(); ++k)
        other |= static_cast<int>(k) != r && find(steps[i].reads[k].buffer) == in;
      for (size_t k = 0; k < steps[i].writes.size(); ++k)
        other |= static_cast<int>(k) != w && find(steps[i].writes[k].buffer) == in;
      if (other)
        continue;
      sameAs[out] = in;
      last[in] = last[out];
    }
}

void StepList::finish(Program &program, bool reuseMemory) {
  if (reuseMemory)
    shareInPlace();
  // Arguments, then results, then the arena in order of first use.
  std::vector<int32_t> number(buffers.size(), -1);
  auto take = [&](Buffer::Kind kind) {
    for (size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].kind == kind) {
        number[i] = static_cast<int32_t>(program.buffers.size());
        program.buffers.push_back(buffers[i]);
      }
  };
  take(Buffer::Kind::Argument);
  take(Buffer::Kind::Result);
  auto renumber = [&](BufferRef &ref) {
    int32_t buffer = find(ref.buffer);
    if (number[buffer] < 0) {
      number[buffer] = static_cast<int32_t>(program.buffers.size());
      program.buffers.push_back(buffers[buffer]);
    }
    ref.buffer = number[buffer];
  };
  for (Recorded &recorded : steps) {
    std::visit(
        [&](auto &action) {
          using T = std::decay_t<decltype(action)>;
          if constexpr (std::is_same_v<T, KernelStep>) {
            for (BufferRef &ref : action.buffers)
              renumber(ref);
          } else if constexpr (std::is_same_v<T, GemmStep>) {
            renumber(action.a);
            renumber(action.b);
            renumber(action.c);
            for (BufferRef &ref : action.epilogueBuffers)
              renumber(ref);
            if (action.sums != GemmStep::Sums::None)
              renumber(action.sumsTo);
          } else if constexpr (std::is_same_v<T, CopyStep>) {
            renumber(action.from);
            renumber(action.to);
          } else if constexpr (std::is_same_v<T, FillStep>) {
            renumber(action.to);
          } else if constexpr (std::is_same_v<T, CollectiveStep>) {
            renumber(action.in);
            renumber(action.out);
          }
        },
        recorded.step.action);
    program.steps.push_back(std::move(recorded.step));
  }
  std::vector<Lifetime> all = lifetimesOf(program), arena;
  std::vector<size_t> which;
  for (size_t i = 0; i < all.size(); ++i)
    if (program.buffers[i].kind == Buffer::Kind::Arena) {
      arena.push_back(all[i]);
      which.push_back(i);
    }
  MemoryPlan plan = planMemory(arena, reuseMemory);
  for (size_t i = 0; i < which.size(); ++i)
    program.buffers[which[i]].offset = plan.offsets[i];
  program.arenaBytes = plan.arenaBytes;
}
