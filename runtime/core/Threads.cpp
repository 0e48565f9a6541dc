//===- Threads.cpp - the workers of one rank ------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/core/Threads.h"

#include <algorithm>
#include <sched.h>
#include <utility>

namespace cleave {

/// About 50 microseconds: longer than the gap between two steps of a program,
/// shorter than what a sleep and a wake-up would save.
static constexpr int roundsOfSpinning = 2000;

int usableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    if (int count = CPU_COUNT(&set); count > 0)
      return count;
  return std::max(1u, std::thread::hardware_concurrency());
}

ThreadTeam::ThreadTeam(int workers, bool spin) : spinRounds(spin ? roundsOfSpinning : 1) {
  for (int i = 1; i < workers; ++i)
    threads.emplace_back([this] { workerLoop(); });
}

ThreadTeam::~ThreadTeam() {
  stopping.store(true);
  epoch.fetch_add(1);
  epoch.notify_all();
  for (std::thread &thread : threads)
    thread.join();
}

bool ThreadTeam::runOne() {
  uint64_t seen = ticket.load(std::memory_order_acquire);
  do {
    if (static_cast<uint32_t>(seen) == 0)
      return false;
  } while (!ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire));
  int64_t index = chunks - static_cast<int64_t>(static_cast<uint32_t>(seen));
  int64_t from = first + index * chunk, to = std::min(last, from + chunk);
  try {
    function(context, from, to);
  } catch (...) {
    std::lock_guard lock(failureMutex);
    if (!failure)
      failure = std::current_exception();
  }
  if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1)
    unfinished.notify_one();
  return true;
}

void ThreadTeam::workerLoop() {
  for (;;) {
    int32_t seenEpoch = epoch.load(std::memory_order_acquire);
    if (stopping.load())
      return;
    for (int round = 0; round < spinRounds; ++round) {
      while (runOne())
        round = 0;
      spinPause();
    }
    epoch.wait(seenEpoch, std::memory_order_acquire); // returns at once if it has changed
  }
}

void ThreadTeam::dispatch(int64_t begin, int64_t end, int64_t grain, Function body, void *data) {
  int64_t count = end - begin;
  // A few chunks for each worker, so that a slow one delays the others little.
  int64_t wanted = std::min<int64_t>((count + grain - 1) / grain, 4 * int64_t{size()});
  wanted = std::max<int64_t>(1, wanted);
  chunk = (count + wanted - 1) / wanted;
  if (chunk > grain) // whole grains, so that a grain can be a vector width
    chunk = (chunk + grain - 1) / grain * grain;
  chunks = (count + chunk - 1) / chunk;
  function = body;
  context = data;
  first = begin;
  last = end;
  unfinished.store(static_cast<int32_t>(chunks), std::memory_order_relaxed);
  uint64_t job = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
  ticket.store((job << 32) | static_cast<uint64_t>(chunks), std::memory_order_release);
  epoch.fetch_add(1, std::memory_order_acq_rel);
  epoch.notify_all();

  while (runOne()) {
  }
  for (int round = 0; round < spinRounds; ++round) {
    if (unfinished.load(std::memory_order_acquire) == 0)
      break;
    spinPause();
  }
  for (int32_t left; (left = unfinished.load(std::memory_order_acquire)) != 0;)
    unfinished.wait(left, std::memory_order_acquire);
  if (failure) {
    std::exception_ptr thrown = std::exchange(failure, nullptr);
    std::rethrow_exception(thrown);
  }
}

} // namespace cleave
