//===- Threads.h - the workers of one rank ----------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cleave {

/// The cores that this process may use.
int usableCores();

/// Tells the processor that this is a spin loop.
inline void spinPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/// n workers: n - 1 threads, and the thread that calls `parallelFor`, which
/// takes chunks like the others. It waits only for chunks that somebody has
/// begun, never for a worker to wake up: when another process holds a core, the
/// caller does the work itself.
///
/// One thread at a time may call `parallelFor`; calls do not nest.
class ThreadTeam {
public:
  /// `spin`: a worker without work spins for about 50 microseconds before it
  /// sleeps. Off when there are more threads than cores.
  explicit ThreadTeam(int workers, bool spin = true);
  ThreadTeam(const ThreadTeam &) = delete;
  ThreadTeam &operator=(const ThreadTeam &) = delete;
  ~ThreadTeam();

  int size() const { return static_cast<int>(threads.size()) + 1; }

  /// Calls body(from, to) on parts of [begin, end), each at least `grain` long
  /// (but the last), in any order on any worker. An exception of the body is
  /// thrown here when all parts that were begun have ended.
  template <typename Body>
  void parallelFor(int64_t begin, int64_t end, int64_t grain, Body &&body) {
    if (end <= begin)
      return;
    int64_t count = end - begin;
    grain = grain < 1 ? 1 : grain;
    if (threads.empty() || count <= grain) {
      body(begin, end);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    dispatch(
        begin, end, grain,
        [](void *context, int64_t from, int64_t to) { (*static_cast<Plain *>(context))(from, to); },
        const_cast<void *>(static_cast<const void *>(&body)));
  }

private:
  using Function = void (*)(void *, int64_t, int64_t);
  void dispatch(int64_t begin, int64_t end, int64_t grain, Function function, void *context);
  bool runOne();
  void workerLoop();

  const int spinRounds;

  // The job. Written by the caller between jobs only: a worker reads it after
  // it has claimed a chunk, and the caller waits for every claimed chunk.
  Function function = nullptr;
  void *context = nullptr;
  int64_t first = 0, last = 0, chunk = 1, chunks = 0;

  /// Job number in the high half, unclaimed chunks in the low half: a worker
  /// that slept through a job cannot claim from the next one by mistake.
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<int32_t> unfinished{0};
  alignas(64) std::atomic<int32_t> epoch{0}; ///< sleeping workers wait on it
  std::atomic<bool> stopping{false};
  std::mutex failureMutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
};

} // namespace cleave
