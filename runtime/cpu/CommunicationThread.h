//===- CommunicationThread.h - collectives beside compute --------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/comm/Communicator.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace cleave {

/// A collective that runs on a rank's communication thread.
struct CommunicationJob {
  Communicator *communicator = nullptr;
  const CollectiveStep *step = nullptr;
  const char *in = nullptr;
  char *out = nullptr;
  std::string_view where;

  /// Once it is over.
  Status status;
  double began = 0, seconds = 0; ///< of the steady clock
  std::atomic<bool> over{false};

  CommunicationJob(Communicator *communicator, const CollectiveStep *step, const char *in,
                   char *out, std::string_view where)
      : communicator(communicator), step(step), in(in), out(out), where(where) {}
  /// Sleeps until it is over.
  Status wait() const {
    over.wait(false, std::memory_order_acquire);
    return status;
  }
};

/// Runs collectives in the order in which they are begun. There is no thread before
/// the first one, and it sleeps while there is nothing to move. Used by the rank's thread.
class CommunicationThread {
public:
  CommunicationThread() = default;
  CommunicationThread(const CommunicationThread &) = delete;
  CommunicationThread &operator=(const CommunicationThread &) = delete;
  /// Waits for what was begun.
  ~CommunicationThread();

  struct Request {
    Communicator *communicator;
    const CollectiveStep *step;
    const char *in;
    char *out;
    std::string_view where;
  };
  std::shared_ptr<CommunicationJob> begin(const Request &request);
  /// Whether something that was begun is not over.
  bool busy() const { return last && !last->over.load(std::memory_order_acquire); }
  /// Waits for all; the first failure since the last call.
  Status drain();

private:
  void loop();

  std::shared_ptr<CommunicationJob> last;
  std::mutex mutex; ///< guards the rest
  std::condition_variable wake;
  std::deque<std::shared_ptr<CommunicationJob>> jobs;
  Status failure;
  bool stopping = false;
  std::thread thread;
};

} // namespace cleave
