//===- ArenaUseTest.cpp - how much of the arena holds something -----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executable/ArenaUse.h"

#include <gtest/gtest.h>

using namespace cleave;

namespace {

Buffer arena(int64_t offset, int64_t bytes) { return {Buffer::Kind::Arena, bytes, offset, 0}; }

Step of(StepAction action) {
  Step step;
  step.action = std::move(action);
  return step;
}

Step kernel(std::vector<int32_t> buffers) {
  KernelStep step;
  for (int32_t buffer : buffers)
    step.buffers.push_back({buffer, 0});
  return of(step);
}

Step allReduce(int32_t in, int32_t out, bool begun) {
  CollectiveStep step;
  step.kind = CollectiveStep::Kind::AllReduce;
  step.in = {in, 0};
  step.out = {out, 0};
  step.begun = begun;
  return of(step);
}

using Bytes = std::vector<int64_t>;

TEST(ArenaUse, FromTheFirstStepThatTouchesABufferToTheLast) {
  Program program;
  program.buffers = {
      arena(0, 64), arena(64, 128), arena(192, 32), {Buffer::Kind::Argument, 4096, 0, 0}};
  program.steps = {kernel({3, 0}), kernel({0, 1}), kernel({3}), kernel({1, 2}), kernel({2})};
  EXPECT_EQ(arenaUse(program), (Bytes{64, 192, 128, 160, 32}));
}

TEST(ArenaUse, BytesInOnePlaceCountOnce) {
  // The second lies within the first and beyond its end, the third wholly within it.
  Program program;
  program.buffers = {arena(0, 128), arena(64, 128), arena(16, 16)};
  program.steps = {kernel({0}), kernel({0, 1, 2}), kernel({0}), kernel({1})};
  EXPECT_EQ(arenaUse(program), (Bytes{128, 192, 192, 128}));
}

TEST(ArenaUse, AReusedPlaceIsInUseAgain) {
  Program program;
  program.buffers = {arena(0, 64), arena(0, 48)};
  program.steps = {kernel({0}), kernel({}), kernel({1})};
  EXPECT_EQ(arenaUse(program), (Bytes{64, 0, 48}));
}

TEST(ArenaUse, ABegunCollectiveHoldsItsBuffersUntilItIsAwaited) {
  Program program;
  program.buffers = {arena(0, 64), arena(64, 256)};
  program.steps = {kernel({0}), allReduce(0, 1, true), kernel({}), of(AwaitStep{1}), kernel({})};
  EXPECT_EQ(arenaUse(program), (Bytes{64, 320, 320, 320, 0}));
  program.steps = {kernel({0}), allReduce(0, 1, false), kernel({})};
  EXPECT_EQ(arenaUse(program), (Bytes{64, 320, 0}));
}

TEST(ArenaUse, AllBuffersOfAProductAndOfCopies) {
  Program program;
  program.buffers = {arena(0, 1), arena(1, 2), arena(3, 4), arena(7, 8), arena(15, 16)};
  GemmStep gemm;
  gemm.a = {0, 0};
  gemm.b = {1, 0};
  gemm.c = {2, 0};
  gemm.epilogueBuffers = {{3, 0}};
  gemm.sumsTo = {4, 0};
  program.steps = {of(gemm), of(CopyStep{{0, 0}, {1, 0}, 1}), of(FillStep{{4, 0}, 16})};
  EXPECT_EQ(arenaUse(program), (Bytes{31, 19, 16}));
}

} // namespace
