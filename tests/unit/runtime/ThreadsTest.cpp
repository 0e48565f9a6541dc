//===- ThreadsTest.cpp - the workers of one rank --------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/core/Threads.h"

#include <chrono>
#include <gtest/gtest.h>
#include <numeric>
#include <stdexcept>

using namespace cleave;

TEST(Threads, EveryElementOnce) {
  for (int workers : {1, 2, 4})
    for (int64_t count : {0, 1, 7, 64, 1000})
      for (int64_t grain : {1, 3, 16, 5000}) {
        ThreadTeam team(workers);
        EXPECT_EQ(team.size(), workers);
        std::vector<int> seen(static_cast<size_t>(count));
        team.parallelFor(10, 10 + count, grain, [&](int64_t from, int64_t to) {
          EXPECT_TRUE(to - from >= grain || to == 10 + count || count <= grain);
          for (int64_t i = from; i < to; ++i)
            ++seen[static_cast<size_t>(i - 10)];
        });
        EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(count), 1));
      }
}

TEST(Threads, ManyShortJobs) {
  ThreadTeam team(3);
  int64_t total = 0;
  for (int job = 0; job < 3000; ++job) {
    std::atomic<int64_t> sum{0};
    team.parallelFor(0, 12, 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i)
        sum += i;
    });
    total += sum;
  }
  EXPECT_EQ(total, 3000 * 66);
}

TEST(Threads, WakesAfterSleep) {
  for (bool spin : {true, false}) {
    ThreadTeam team(2, spin);
    for (int round = 0; round < 5; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      std::atomic<int> chunks{0};
      team.parallelFor(0, 8, 1, [&](int64_t from, int64_t to) {
        chunks += static_cast<int>(to - from);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      });
      EXPECT_EQ(chunks, 8);
    }
  }
}

TEST(Threads, ThrowsWhatABodyThrew) {
  ThreadTeam team(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(team.parallelFor(0, 100, 1,
                                  [&](int64_t from, int64_t to) {
                                    if (from <= 57 && 57 < to)
                                      throw std::runtime_error("57");
                                  }),
                 std::runtime_error);
    int64_t sum = 0;
    std::mutex mutex;
    team.parallelFor(0, 100, 1, [&](int64_t from, int64_t to) {
      std::lock_guard lock(mutex);
      sum += to - from;
    });
    EXPECT_EQ(sum, 100);
  }
}
