//===- CommunicationThread.cpp - collectives beside compute ---------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/CommunicationThread.h"

#include <chrono>
#include <utility>

namespace cleave {

using Clock = std::chrono::steady_clock;

static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

std::shared_ptr<CommunicationJob> CommunicationThread::begin(const Request &r) {
  auto job = std::make_shared<CommunicationJob>(r.communicator, r.step, r.in, r.out, r.where);
  {
    std::lock_guard lock(mutex);
    jobs.push_back(job);
    if (!thread.joinable())
      thread = std::thread([this] { loop(); });
  }
  wake.notify_one();
  last = job;
  return job;
}

void CommunicationThread::loop() {
  for (;;) {
    std::shared_ptr<CommunicationJob> job;
    {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return stopping || !jobs.empty(); });
      if (jobs.empty())
        return;
      job = std::move(jobs.front());
      jobs.pop_front();
    }
    Clock::time_point start = Clock::now();
    try {
      job->status = job->communicator->run(*job->step, job->in, job->out, job->where,
                                           /*team=*/nullptr, /*beside=*/true);
    } catch (const std::bad_alloc &) {
      job->status = Error{"out of memory", Fault::Rank};
    } catch (const std::exception &problem) {
      job->status = Error{problem.what(), Fault::Rank};
    }
    job->began = seconds(start.time_since_epoch());
    job->seconds = seconds(Clock::now() - start);
    if (!job->status) {
      std::lock_guard lock(mutex);
      if (failure)
        failure = job->status;
    }
    job->over.store(true, std::memory_order_release);
    job->over.notify_all();
  }
}

Status CommunicationThread::drain() {
  if (!last)
    return {};
  last->over.wait(false, std::memory_order_acquire); // they run in order
  last = nullptr;
  std::lock_guard lock(mutex);
  return std::exchange(failure, Status());
}

CommunicationThread::~CommunicationThread() {
  {
    std::lock_guard lock(mutex);
    stopping = true;
  }
  wake.notify_one();
  if (thread.joinable())
    thread.join();
}

} // namespace cleave
