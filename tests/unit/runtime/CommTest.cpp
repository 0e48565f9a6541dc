//===- CommTest.cpp - collectives among thread ranks ----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/comm/ThreadCommunicator.h"
#include "runtime/comm/Transfers.h"
#include "runtime/core/Float16.h"
#include "runtime/core/Shard.h"
#include "runtime/core/Threads.h"

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <thread>

using namespace cleave;
using Kind = CollectiveStep::Kind;
using Reduction = CollectiveStep::Reduction;

namespace {
/// Runs `body` on every rank; the outcomes by rank. A rank that returns ends.
std::vector<Status> onRanks(ThreadWorld &world, const std::function<Status(Communicator &)> &body) {
  std::vector<Status> outcomes(static_cast<size_t>(world.size()));
  for (int i = 0; i < world.size(); ++i)
    world.rank(i).begin("test");
  std::vector<std::thread> threads;
  for (int i = 0; i < world.size(); ++i)
    threads.emplace_back([&, i] {
      Communicator &rank = world.rank(i);
      outcomes[static_cast<size_t>(i)] = body(rank);
      rank.end();
    });
  for (std::thread &thread : threads)
    thread.join();
  return outcomes;
}

const std::vector<MeshAxis> mesh = {{"dp", 2}, {"tp", 4}};
const SubAxis dp{0, 1, 2}, tp{1, 1, 4}, tpMajor{1, 1, 2}, tpMinor{1, 2, 2};

CollectiveStep step(Kind kind, std::vector<SubAxis> axes, int64_t outer, int64_t inDim,
                    int64_t outDim, int64_t inner, DType dtype = DType::F32) {
  CollectiveStep s = CollectiveStep();
  s.kind = kind;
  s.axes = std::move(axes);
  s.outer = outer;
  s.inDim = inDim;
  s.outDim = outDim;
  s.inner = inner;
  s.dtype = dtype;
  return s;
}

int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// A rank's input: small integers, so that sums are exact.
template <typename T> std::vector<T> input(const CollectiveStep &s, int rank) {
  std::vector<T> v(static_cast<size_t>(inElements(s)));
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  for (T &x : v)
    x = static_cast<T>(static_cast<int>(random() % 201) - 100);
  return v;
}

/// The definition, element by element.
template <typename T> std::vector<T> expected(const CollectiveStep &s, const RankPosition &place) {
  std::vector<std::vector<T>> in;
  for (int32_t member : place.group(s.axes))
    in.push_back(input<T>(s, member));
  int64_t me = place.shardIndex(s.axes);
  auto reduced = [&](int64_t at) {
    T value = in[0][static_cast<size_t>(at)];
    for (size_t k = 1; k < in.size(); ++k) {
      T x = in[k][static_cast<size_t>(at)];
      value = s.reduction == Reduction::Sum   ? static_cast<T>(value + x)
              : s.reduction == Reduction::Max ? std::max(value, x)
                                              : std::min(value, x);
    }
    return value;
  };
  std::vector<T> out(static_cast<size_t>(outElements(s)));
  auto set = [&](int64_t at, T value) { out[static_cast<size_t>(at)] = value; };
  switch (s.kind) {
  case Kind::AllReduce:
    for (int64_t i = 0; i < std::ssize(out); ++i)
      set(i, reduced(i));
    break;
  case Kind::AllGather:
    for (int64_t o = 0; o < s.outer; ++o)
      for (int64_t d = 0; d < s.outDim; ++d)
        for (int64_t i = 0; i < s.inner; ++i)
          set((o * s.outDim + d) * s.inner + i,
              in[static_cast<size_t>(d / s.inDim)]
                [static_cast<size_t>((o * s.inDim + d % s.inDim) * s.inner + i)]);
    break;
  case Kind::ReduceScatter:
    for (int64_t o = 0; o < s.outer; ++o)
      for (int64_t d = 0; d < s.outDim; ++d)
        for (int64_t i = 0; i < s.inner; ++i) {
          int64_t global = me * s.outDim + d;
          set((o * s.outDim + d) * s.inner + i,
              global < s.inDim ? reduced((o * s.inDim + global) * s.inner + i) : T(0));
        }
    break;
  case Kind::AllToAll:
    for (int64_t o = 0; o < s.outer; ++o)
      for (int64_t g = 0; g < s.outDim; ++g)
        for (int64_t m = 0; m < s.middle; ++m)
          for (int64_t d = 0; d < s.outDim2; ++d)
            for (int64_t i = 0; i < s.inner; ++i) {
              int64_t split = me * s.outDim2 + d, x = g % s.inDim;
              int64_t to =
                  s.dimFirst ? (((o * s.outDim + g) * s.middle + m) * s.outDim2 + d) * s.inner + i
                             : (((o * s.outDim2 + d) * s.middle + m) * s.outDim + g) * s.inner + i;
              int64_t from =
                  s.dimFirst
                      ? (((o * s.inDim + x) * s.middle + m) * s.inDim2 + split) * s.inner + i
                      : (((o * s.inDim2 + split) * s.middle + m) * s.inDim + x) * s.inner + i;
              set(to, split < s.inDim2
                          ? in[static_cast<size_t>(g / s.inDim)][static_cast<size_t>(from)]
                          : T(0));
            }
    break;
  }
  return out;
}

template <typename T> void check(const CollectiveStep &s, bool inPlace, int workers = 1) {
  ThreadWorld world(mesh, {10, false});
  auto outcomes = onRanks(world, [&](Communicator &rank) -> Status {
    ThreadTeam team(workers, false);
    std::vector<T> in = input<T>(s, rank.rank());
    std::vector<T> out(static_cast<size_t>(std::max(inElements(s), outElements(s))), T(77));
    if (inPlace)
      std::copy(in.begin(), in.end(), out.begin());
    const T *from = inPlace ? out.data() : in.data();
    for (int repeat = 0; repeat < (inPlace ? 1 : 3); ++repeat)
      if (auto status =
              rank.run(s, reinterpret_cast<const char *>(from),
                       reinterpret_cast<char *>(out.data()), "here", workers > 1 ? &team : nullptr);
          !status)
        return status;
    out.resize(static_cast<size_t>(outElements(s)));
    EXPECT_EQ(out, expected<T>(s, RankPosition(mesh, rank.rank())))
        << describe(s, mesh) << " on rank " << rank.rank();
    if (!inPlace)
      EXPECT_EQ(in, input<T>(s, rank.rank())) << "the input was changed";
    return {};
  });
  for (const Status &outcome : outcomes)
    EXPECT_TRUE(outcome) << outcome.error().message;
}

template <typename T> void checkBoth(const CollectiveStep &s) {
  check<T>(s, false);
  check<T>(s, true);
}

const std::vector<std::vector<SubAxis>> groups = {{tp}, {dp},     {tpMajor}, {tpMinor},
                                                  {},   {dp, tp}, {tp, dp},  {tpMinor, dp}};
} // namespace

TEST(Comm, AllReduce) {
  for (const auto &axes : groups)
    for (int64_t n : {1, 1000, 20000}) {
      CollectiveStep s = step(Kind::AllReduce, axes, 1, n, n, 3);
      for (Reduction r : {Reduction::Sum, Reduction::Max, Reduction::Min}) {
        s.reduction = r;
        checkBoth<float>(s);
      }
      s.dtype = DType::F64;
      checkBoth<double>(s);
      s.dtype = DType::I32;
      checkBoth<int32_t>(s);
      s.dtype = DType::I64;
      checkBoth<int64_t>(s);
    }
  check<float>(step(Kind::AllReduce, {tp}, 1, 100000, 100000, 1), true, 3);
}

TEST(Comm, AllGatherEvenShortAndEmptyShards) {
  for (const auto &axes : groups) {
    int64_t p = 1;
    for (const SubAxis &a : axes)
      p *= a.size;
    for (int64_t dim : {1, 3, 5, 8, 17})
      for (int64_t inner : {1, 2, 4, 9, 300})
        checkBoth<float>(step(Kind::AllGather, axes, 3, ceilDiv(dim, p), dim, inner));
    checkBoth<double>(step(Kind::AllGather, axes, 2, ceilDiv(7, p), 7, 5, DType::F64));
  }
  check<float>(step(Kind::AllGather, {tp}, 64, 100, 398, 16), false, 3);
}

TEST(Comm, ReduceScatter) {
  for (const auto &axes : groups) {
    int64_t p = 1;
    for (const SubAxis &a : axes)
      p *= a.size;
    for (int64_t dim : {1, 3, 5, 8, 17})
      for (int64_t inner : {1, 4, 300})
        checkBoth<float>(step(Kind::ReduceScatter, axes, 3, dim, ceilDiv(dim, p), inner));
  }
  check<float>(step(Kind::ReduceScatter, {tp}, 16, 398, 100, 16), false, 3);
}

TEST(Comm, AllToAll) {
  for (const auto &axes : groups) {
    int64_t p = 1;
    for (const SubAxis &a : axes)
      p *= a.size;
    for (bool dimFirst : {true, false})
      for (int64_t gathered : {1, 6, 9})
        for (int64_t split : {1, 5, 12}) {
          CollectiveStep s = step(Kind::AllToAll, axes, 2, ceilDiv(gathered, p), gathered, 3);
          s.middle = 2;
          s.inDim2 = split;
          s.outDim2 = ceilDiv(split, p);
          s.dimFirst = dimFirst;
          checkBoth<float>(s);
        }
  }
}

// Sums that depend on the order: every rank must have the bits of rank order.
TEST(Comm, SumsGoInRankOrder) {
  ThreadWorld world({{"tp", 3}}, {10, false});
  for (int64_t n : {2, 30000}) {
    std::vector<std::vector<float>> ins(3, std::vector<float>(static_cast<size_t>(n)));
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (auto &in : ins)
      for (float &x : in)
        x = normal(random) * std::exp2f(static_cast<float>(random() % 20));
    std::vector<float> want(static_cast<size_t>(n));
    for (size_t i = 0; i < want.size(); ++i)
      want[i] = (ins[0][i] + ins[1][i]) + ins[2][i];
    CollectiveStep s = step(Kind::AllReduce, {{0, 1, 3}}, 1, n, n, 1);
    for (const Status &outcome : onRanks(world, [&](Communicator &rank) -> Status {
           auto mine = ins[static_cast<size_t>(rank.rank())];
           std::vector<float> out(mine.size());
           auto status = rank.run(s, reinterpret_cast<char *>(mine.data()),
                                  reinterpret_cast<char *>(out.data()), "", nullptr);
           EXPECT_EQ(std::memcmp(out.data(), want.data(), out.size() * 4), 0);
           return status;
         }))
      EXPECT_TRUE(outcome);
  }
}

TEST(Comm, HalfPrecisionSumsAreRoundedOnce) {
  // 1 + 2^-8 + 2^-8 in bf16: 1.0078125; with a rounding after each add it stays 1.
  uint16_t one = toBF16(1), small = toBF16(0x1p-8f);
  const char *bf[] = {reinterpret_cast<char *>(&one), reinterpret_cast<char *>(&small),
                      reinterpret_cast<char *>(&small)};
  uint16_t out = 0;
  reduceInOrder(Reduction::Sum, DType::BF16, bf, reinterpret_cast<char *>(&out), 1);
  EXPECT_EQ(fromBF16(out), 1.0078125f);
  uint16_t a = toF16(1), b = toF16(0x1p-11f);
  const char *f16[] = {reinterpret_cast<char *>(&a), reinterpret_cast<char *>(&b),
                       reinterpret_cast<char *>(&b)};
  reduceInOrder(Reduction::Sum, DType::F16, f16, reinterpret_cast<char *>(&out), 1);
  EXPECT_EQ(fromF16(out), 1 + 0x1p-10f);
  float values[] = {1, NAN, 2};
  const char *f32[] = {reinterpret_cast<char *>(values), reinterpret_cast<char *>(values + 1),
                       reinterpret_cast<char *>(values + 2)};
  float most = 0;
  reduceInOrder(Reduction::Max, DType::F32, f32, reinterpret_cast<char *>(&most), 1);
  EXPECT_TRUE(std::isnan(most)); // a NaN is not lost
}

TEST(Comm, RandomSequencesOverSeveralGroups) {
  for (bool spin : {false, true}) {
    ThreadWorld world(mesh, {20, spin});
    auto outcomes = onRanks(world, [&](Communicator &rank) -> Status {
      std::mt19937 random(11);
      for (int call = 0; call < 200; ++call) {
        int64_t n = 1 + static_cast<int64_t>(random() % 3000);
        CollectiveStep s = step(Kind::AllReduce, groups[random() % groups.size()], 1, n, n, 1);
        std::vector<float> data = input<float>(s, rank.rank());
        if (auto status = rank.run(s, reinterpret_cast<char *>(data.data()),
                                   reinterpret_cast<char *>(data.data()), "", nullptr);
            !status)
          return status;
        if (data != expected<float>(s, RankPosition(mesh, rank.rank())))
          return Error{"wrong sum"};
        if (call % 50 == 0)
          if (auto status = rank.barrier("between"); !status)
            return status;
      }
      return {};
    });
    for (const Status &outcome : outcomes)
      EXPECT_TRUE(outcome) << outcome.error().message;
  }
}

TEST(Comm, CountsBytesAsARing) {
  CollectiveStep s = step(Kind::AllReduce, {tp}, 1, 1000, 1000, 1);
  EXPECT_EQ(payloadBytes(s), 4000);
  EXPECT_EQ(ringBytes(s), 2 * 4000 * 3 / 4);
  EXPECT_EQ(ringBytes(step(Kind::AllGather, {tp}, 1, 250, 1000, 1)), 3000);
  EXPECT_EQ(ringBytes(step(Kind::ReduceScatter, {tp}, 1, 1000, 250, 1)), 3000);
  EXPECT_EQ(ringBytes(step(Kind::AllReduce, {}, 1, 1000, 1000, 1)), 0);
  ThreadWorld world(mesh, {10, false});
  onRanks(world, [&](Communicator &rank) {
    std::vector<float> data(1000);
    return rank.run(s, reinterpret_cast<char *>(data.data()), reinterpret_cast<char *>(data.data()),
                    "", nullptr);
  });
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(world.rank(i).stats.kinds[0].calls, 1);
    EXPECT_EQ(world.rank(i).stats.kinds[0].ringBytes, 6000);
  }
}

namespace {
/// A rank that fails may leave while others still read its memory.
char *lastingBytes(Communicator &rank) {
  static std::array<std::array<double, 1024>, 8> memory;
  return reinterpret_cast<char *>(memory[static_cast<size_t>(rank.rank())].data());
}
/// Rank 1 does something else in the third call; all must say so, soon.
void expectDisagreement(const std::function<Status(Communicator &)> &other,
                        const std::vector<std::string> &words) {
  const std::vector<MeshAxis> two = {{"tp", 2}};
  ThreadWorld world(two, {5, false});
  CollectiveStep s = step(Kind::AllReduce, {{0, 1, 2}}, 1, 64, 64, 1);
  auto start = std::chrono::steady_clock::now();
  auto outcomes = onRanks(world, [&](Communicator &rank) -> Status {
    char *bytes = lastingBytes(rank);
    for (int call = 0; call < 2; ++call)
      if (auto status = rank.run(s, bytes, bytes, "model.cleave:3:1", nullptr); !status)
        return status;
    if (rank.rank() == 1)
      return other(rank);
    return rank.run(s, bytes, bytes, "model.cleave:3:1", nullptr);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
  for (const Status &outcome : outcomes) {
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().fault, Fault::Rank);
    for (const std::string &word : words)
      EXPECT_NE(outcome.error().message.find(word), std::string::npos)
          << word << " in: " << outcome.error().message;
  }
}
Status runOther(Communicator &rank, CollectiveStep s) {
  char *bytes = lastingBytes(rank);
  return rank.run(s, bytes, bytes, "model.cleave:9:5", nullptr);
}
} // namespace

TEST(Comm, DisagreementsShowBothSides) {
  const std::vector<SubAxis> axes = {{0, 1, 2}};
  std::vector<std::string> both = {
      "collectives disagree",
      "rank 0: all_reduce(sum) of f32 [1, 64, 1] over tp at model.cleave:3:1"};
  auto expectWith = [&](CollectiveStep s, const std::string &text) {
    auto words = both;
    words.push_back("rank 1: " + text);
    expectDisagreement([&](Communicator &rank) { return runOther(rank, s); }, words);
  };
  expectWith(step(Kind::AllReduce, axes, 1, 65, 65, 1),
             "all_reduce(sum) of f32 [1, 65, 1] over tp at model.cleave:9:5");
  expectWith(step(Kind::AllReduce, axes, 1, 64, 64, 1, DType::F64), "all_reduce(sum) of f64");
  expectWith(step(Kind::AllGather, axes, 1, 32, 64, 1),
             "all_gather of f32 [1, 32, 1] -> [1, 64, 1]");
  expectWith(step(Kind::ReduceScatter, axes, 1, 64, 32, 1), "reduce_scatter(sum) of f32");
  CollectiveStep s = step(Kind::AllReduce, axes, 1, 64, 64, 1);
  s.reduction = Reduction::Max;
  expectWith(s, "all_reduce(max)");
  s = step(Kind::AllReduce, axes, 1, 64, 64, 1);
  s.site = 4; // the same in all but the place in the program: an order that differs
  expectWith(s, "all_reduce(sum)");
  expectDisagreement([](Communicator &rank) { return rank.barrier("the end"); },
                     {"rank 1: a barrier at the end"});
}

TEST(Comm, ARankThatEndsEarlyIsADisagreement) {
  expectDisagreement(
      [](Communicator &rank) -> Status {
        rank.end();
        while (rank.check())
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return rank.check();
      },
      {"rank 0 waits for rank 1, which has ended", "model.cleave:3:1"});
}

TEST(Comm, OtherGroupsAreADisagreementToo) {
  ThreadWorld world(mesh, {5, false});
  auto outcomes = onRanks(world, [&](Communicator &rank) -> Status {
    auto status = runOther(rank, step(Kind::AllReduce, {rank.rank() == 5 ? dp : tp}, 1, 64, 64, 1));
    // Those that had no part in it learn of it in their next call.
    return status ? runOther(rank, step(Kind::AllReduce, {dp, tp}, 1, 64, 64, 1)) : status;
  });
  for (const Status &outcome : outcomes) {
    ASSERT_FALSE(outcome);
    EXPECT_NE(outcome.error().message.find("over dp"), std::string::npos);
    EXPECT_NE(outcome.error().message.find("rank 5"), std::string::npos);
  }
}

TEST(Comm, AFailureWakesAllWithTheFirstCause) {
  for (int when = 0; when < 3; ++when) { // before, between, after many calls
    ThreadWorld world(mesh, {60, false});
    auto start = std::chrono::steady_clock::now();
    std::vector<std::vector<float>> memory(8, std::vector<float>(5000));
    auto outcomes = onRanks(world, [&](Communicator &rank) -> Status {
      CollectiveStep s = step(Kind::AllReduce, {dp, tp}, 1, 5000, 5000, 1);
      auto &data = memory[static_cast<size_t>(rank.rank())];
      auto *bytes = reinterpret_cast<char *>(data.data());
      for (int call = 0; call < 50; ++call) {
        if (rank.rank() == 3 && call == when * 20) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          rank.fail("the disk is on fire");
          rank.fail("and more"); // the first cause stays
          return rank.check();
        }
        if (auto status = rank.run(s, bytes, bytes, "", nullptr); !status)
          return status;
      }
      return {};
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    for (const Status &outcome : outcomes) {
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().message, "rank 3 failed: the disk is on fire");
      EXPECT_EQ(outcome.error().fault, Fault::Rank);
    }
  }
}

TEST(Comm, TheWatchdogNamesWhoWaitsWhere) {
  ThreadWorld world({{"tp", 3}}, {0.2, false});
  CollectiveStep s = step(Kind::AllReduce, {{0, 1, 3}}, 1, 8, 8, 1);
  auto outcomes = onRanks(world, [&](Communicator &rank) -> Status {
    char *bytes = lastingBytes(rank);
    if (rank.rank() == 2) { // hangs
      while (rank.check())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return rank.check();
    }
    return rank.run(s, bytes, bytes, "gpt2.cleave:7:2", nullptr);
  });
  for (const Status &outcome : outcomes) {
    ASSERT_FALSE(outcome);
    const std::string &text = outcome.error().message;
    EXPECT_NE(text.find("watchdog"), std::string::npos) << text;
    EXPECT_NE(text.find("waits in all_reduce(sum) of f32 [1, 8, 1] over tp at gpt2.cleave:7:2"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("rank 2: is computing, after 0 collectives"), std::string::npos) << text;
  }
}
