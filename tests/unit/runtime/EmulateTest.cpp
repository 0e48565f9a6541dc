//===- EmulateTest.cpp - clusters that are not here, and their clocks ------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/emulate/Clocks.h"

#include "Samples.h"
#include "runtime/executor/Session.h"

#include <gtest/gtest.h>

using namespace cleave;
using samples::Mlp;
using Kind = CollectiveStep::Kind;

namespace {

/// Two ranks a node: 1 s and 8 bytes/s within, 3 s and 2 bytes/s between, one link a node.
Cluster toy(int64_t links = 1) {
  Cluster c;
  c.name = "toy";
  c.levels = {{"inner", 2, 1, 8, 1}, {"outer", 0, 3, 2, links}};
  c.flops = c.memoryBandwidth = 1;
  return c;
}

CollectiveStep collective(Kind kind, std::vector<SubAxis> axes, int64_t floats) {
  CollectiveStep step = CollectiveStep();
  step.kind = kind;
  step.axes = std::move(axes);
  int64_t p = 1;
  for (const SubAxis &axis : step.axes)
    p *= axis.size;
  step.inDim = kind == Kind::AllGather ? floats / p : floats;
  step.outDim = kind == Kind::ReduceScatter ? floats / p : floats;
  if (kind == Kind::AllToAll) {
    step.inDim = floats / p, step.outDim = floats;
    step.inDim2 = p, step.outDim2 = 1; // of one rank: floats
  }
  return step;
}

Network network(Cluster cluster, std::vector<MeshAxis> mesh) {
  auto made = Network::create(std::move(cluster), std::move(mesh));
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

/// A program of nothing but steps.
struct Steps {
  Program program;
  Steps &compute() {
    program.steps.push_back({CopyStep(), StepKind::Copy});
    return *this;
  }
  Steps &add(CollectiveStep step, bool begun = false) {
    step.begun = begun;
    step.site = static_cast<int32_t>(program.collectiveSites.size());
    program.collectiveSites.emplace_back();
    program.steps.push_back({step, StepKind::Collective});
    return *this;
  }
  Steps &await(int32_t step) {
    program.steps.push_back({AwaitStep{step}, StepKind::Collective});
    return *this;
  }
};

std::string errorOf(std::string_view text) {
  auto cluster = parseCluster(text, "my.json");
  return cluster ? "" : cluster.error().message;
}

std::string with(std::string_view from, std::string_view to) {
  std::string text = R"({"name": "a", "levels": [{"name": "x", "ranks": 4, "latency_us": 1,
    "bandwidth_gb_per_s": 2}, {"name": "y", "latency_us": 5, "bandwidth_gb_per_s": 1, "links": 4}],
    "compute": {"speedup": 3, "peak_gflops": 10, "memory_gb_per_s": 20}})";
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

} // namespace

TEST(Emulate, AProfileIsReadInSecondsAndBytes) {
  auto c = parseCluster(with("", ""), "my.json");
  ASSERT_TRUE(c) << c.error().message;
  ASSERT_EQ(c->levels.size(), 2u);
  EXPECT_EQ(c->levels[0].ranks, 4);
  EXPECT_DOUBLE_EQ(c->levels[0].latency, 1e-6);
  EXPECT_DOUBLE_EQ(c->levels[0].bandwidth, 2e9);
  EXPECT_EQ(c->levels[1].ranks, 0);
  EXPECT_EQ(c->levels[1].links, 4);
  EXPECT_EQ(c->speedup, 3);
  EXPECT_DOUBLE_EQ(c->flops, 1e10);
  EXPECT_DOUBLE_EQ(c->memoryBandwidth, 2e10);
}

TEST(Emulate, WhatIsWrongWithAProfileIsSaidWithKeyAndValue) {
  EXPECT_EQ(errorOf(with("latency_us", "latency_uss")),
            "my.json: levels[0]: there is no key 'latency_uss'; did you mean 'latency_us'?");
  EXPECT_EQ(errorOf(with("\"speedup\"", "\"colour\"")),
            "my.json: compute: there is no key 'colour' (there are speedup, peak_gflops, "
            "memory_gb_per_s, rates)");
  EXPECT_EQ(errorOf(with("\"latency_us\": 5,", "")),
            "my.json: levels[1]: the key 'latency_us' is missing");
  EXPECT_EQ(errorOf(with("\"latency_us\": 5", "\"latency_us\": -5")),
            "my.json: levels[1].latency_us: -5 is outside 0 to 1e+06");
  EXPECT_EQ(errorOf(with("\"latency_us\": 5", "\"latency_us\": \"5\"")),
            "my.json: levels[1].latency_us: \"5\" is no number");
  EXPECT_EQ(errorOf(with("\"bandwidth_gb_per_s\": 1", "\"bandwidth_gb_per_s\": 0")),
            "my.json: levels[1].bandwidth_gb_per_s: 0 is outside 1e-06 to 1e+06");
  EXPECT_EQ(errorOf(with("\"ranks\": 4", "\"ranks\": 2.5")),
            "my.json: levels[0].ranks: 2.5 is no whole number");
  EXPECT_EQ(errorOf(with("\"ranks\": 4,", "")),
            "my.json: levels[0].ranks: only the outermost level may leave it out");
  EXPECT_EQ(errorOf(with("\"links\": 4", "\"ranks\": 6")),
            "my.json: levels[1].ranks: 6 is no multiple of the 4 ranks of the level within");
  EXPECT_EQ(errorOf(with("\"speedup\": 3", "\"speedup\": 0")),
            "my.json: compute.speedup: 0 is outside 1e-06 to 1e+09");
  EXPECT_EQ(errorOf(with("\"a\"", "7")), "my.json: name: 7 is no text");
  EXPECT_EQ(errorOf(with("\"name\": \"a\"", "\"name\": \"a\", \"name\": \"b\"")),
            "my.json: the key 'name' stands twice in one object");
  EXPECT_EQ(errorOf("[]"), "my.json: [] is no object, which {...} is");
  EXPECT_EQ(errorOf(R"({"name": "a", "levels": [], "compute": {}})"),
            "my.json: levels: [] is no list of at least one level");
  EXPECT_NE(errorOf("{").find("my.json: not a profile of a cluster: parse error at line 1"),
            std::string::npos);
  EXPECT_FALSE(readCluster("no/such.json"));
}

TEST(Emulate, AMeshMustFit) {
  Cluster c = toy();
  c.levels[1].ranks = 4;
  EXPECT_TRUE(Network::create(c, {{"tp", 4}}));
  auto more = Network::create(c, {{"dp", 2}, {"tp", 3}});
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().message,
            "the mesh has 6 ranks, and the profile 'toy' joins 4 at most: its "
            "outermost level, outer, has \"ranks\": 4");
}

TEST(Emulate, ARingGoesAsFastAsItsSlowestLink) {
  // dp=2 x tp=2: tp pairs 0,1 and 2,3 are nodes; dp pairs 0,2 and 1,3 cross.
  std::vector<MeshAxis> mesh = {{"dp", 2}, {"tp", 2}};
  const SubAxis dp{0, 1, 2}, tp{1, 1, 2};
  Network one = network(toy(), mesh), two = network(toy(2), mesh);
  // 16 floats are 64 bytes, 32 a message. Within a node: 1 + 32/8 = 5 s.
  EXPECT_DOUBLE_EQ(one.seconds(collective(Kind::AllReduce, {tp}, 16), 0), 2 * 5);
  EXPECT_DOUBLE_EQ(one.seconds(collective(Kind::AllGather, {tp}, 16), 1), 5);
  EXPECT_DOUBLE_EQ(one.seconds(collective(Kind::ReduceScatter, {tp}, 16), 0), 5);
  // Between nodes two rings share one link: 3 + 32/1; with two links: 3 + 32/2.
  EXPECT_DOUBLE_EQ(one.seconds(collective(Kind::AllGather, {dp}, 16), 0), 35);
  EXPECT_DOUBLE_EQ(two.seconds(collective(Kind::AllGather, {dp}, 16), 1), 19);
  // All four: 0-1-2-3-0 crosses twice, once out of each node: 3 + 16/2 = 11 s a step.
  EXPECT_DOUBLE_EQ(one.seconds(collective(Kind::AllReduce, {dp, tp}, 16), 0), 6 * 11);
  // In the order tp, dp the ring is 0-2-1-3-0: two messages leave each node at once.
  EXPECT_DOUBLE_EQ(one.seconds(collective(Kind::AllReduce, {tp, dp}, 16), 0), 6 * 19);
  // All to all of 64 bytes a rank: one place on 11 s; two on, each node sends two messages over one
  // link, 3 + 16/1; three on as one.
  EXPECT_DOUBLE_EQ(one.seconds(collective(Kind::AllToAll, {dp, tp}, 16), 0), 11 + 19 + 11);
  EXPECT_EQ(collectiveSteps(collective(Kind::AllReduce, {dp, tp}, 16)), 6);
  EXPECT_EQ(collectiveSteps(collective(Kind::AllToAll, {dp, tp}, 16)), 3);
  // Three ranks: 0,1 in a node, 2 in another; the ring is as slow as 1-2.
  Network three = network(toy(), {{"tp", 3}});
  EXPECT_DOUBLE_EQ(three.seconds(collective(Kind::AllReduce, {{0, 1, 3}}, 12), 0),
                   4 * (3 + 16.0 / 2));
  // Five: the last group of two is within a node, and pays nothing for the others' link.
  Network six = network(toy(), {{"dp", 2}, {"tp", 3}});
  const SubAxis rows{0, 1, 2};
  // dp pairs: 0,3  1,4  2,5: all cross; nodes are 01 23 45. Out of node 01 go two, of 23 one each
  // way (3 to 0, 2 to 5): two; of 45 two.
  EXPECT_DOUBLE_EQ(six.seconds(collective(Kind::AllGather, {rows}, 16), 2), 3 + 32.0);
  // One rank talks to nobody.
  EXPECT_EQ(network(toy(), {{"tp", 1}}).seconds(collective(Kind::AllReduce, {{0, 1, 1}}, 16), 0),
            0);
}

TEST(Emulate, ASubAxisHasGroupsOfItsOwn) {
  // tp=4 as 2 x 2: the minor digit pairs 0,1 and 2,3 (nodes), the major one 0,2 and 1,3.
  Network n = network(toy(), {{"tp", 4}});
  EXPECT_DOUBLE_EQ(n.seconds(collective(Kind::AllGather, {{0, 2, 2}}, 16), 0), 5);
  EXPECT_DOUBLE_EQ(n.seconds(collective(Kind::AllGather, {{0, 1, 2}}, 16), 0), 35);
}

TEST(Emulate, ABlockingCollectiveWaitsForTheLast) {
  Network n = network(toy(), {{"tp", 2}});
  Steps s;
  s.compute().add(collective(Kind::AllGather, {{0, 1, 2}}, 16)).compute(); // 5 s
  ClockedRun run = wind(s.program, n, {{10, 99, 1}, {4, 99, 2}});
  EXPECT_EQ(run.seconds, 17);
  EXPECT_EQ(run.ranks[0][1].begin, 10);
  EXPECT_EQ(run.ranks[0][1].seconds, 5);
  EXPECT_EQ(run.ranks[0][1].waiting, 0);
  EXPECT_EQ(run.ranks[1][1].begin, 4);
  EXPECT_EQ(run.ranks[1][1].seconds, 11); // 6 of them for rank 0
  EXPECT_EQ(run.ranks[1][1].waiting, 6);
  EXPECT_EQ(run.ranks[1][1].transferBegin, 10);
  EXPECT_EQ(run.ranks[1][2].begin, 15);
  auto sites = siteTimes(s.program, run);
  ASSERT_EQ(sites.size(), 1u);
  EXPECT_EQ(sites[0].times, 1);
  EXPECT_EQ(sites[0].transfer, 5);
  EXPECT_EQ(sites[0].exposed, (5 + 11) / 2.0);
  EXPECT_EQ(sites[0].waiting, 3);
}

TEST(Emulate, ABegunCollectiveRunsBesideTheSteps) {
  Network n = network(toy(), {{"tp", 2}});
  Steps s;
  s.add(collective(Kind::AllGather, {{0, 1, 2}}, 16), true).compute().await(0);
  // Wholly behind the compute.
  ClockedRun hidden = wind(s.program, n, {{0, 7, 0}, {0, 6, 0}});
  EXPECT_EQ(hidden.seconds, 7);
  EXPECT_EQ(totalTime(siteTimes(s.program, hidden)).exposed, 0);
  // In part: rank 0 stands for 3 s, rank 1 for one.
  ClockedRun part = wind(s.program, n, {{0, 2, 0}, {0, 4, 0}});
  EXPECT_EQ(part.seconds, 5);
  EXPECT_EQ(part.ranks[0][2].seconds, 3);
  EXPECT_EQ(part.ranks[0][2].waiting, 0);
  EXPECT_EQ(part.ranks[1][2].seconds, 1);
  EXPECT_EQ(part.ranks[0][0].seconds, 0);
  EXPECT_EQ(part.ranks[0][0].transfer, 5);
  EXPECT_EQ(totalTime(siteTimes(s.program, part)).exposed, 2);
}

TEST(Emulate, AnAwaitTellsTheLateRankFromTheTransfer) {
  Network n = network(toy(), {{"tp", 2}});
  Steps s;
  s.compute().add(collective(Kind::AllGather, {{0, 1, 2}}, 16), true).compute().await(1);
  // Rank 1 comes at 9: it begins then and ends at 14. Rank 0 awaits it from 3 on.
  ClockedRun run = wind(s.program, n, {{1, 0, 2, 0}, {9, 0, 2, 0}});
  EXPECT_EQ(run.seconds, 14);
  EXPECT_EQ(run.ranks[0][3].begin, 3);
  EXPECT_EQ(run.ranks[0][3].seconds, 11);
  EXPECT_EQ(run.ranks[0][3].waiting, 6);
  EXPECT_EQ(run.ranks[1][3].begin, 11);
  EXPECT_EQ(run.ranks[1][3].seconds, 3);
  EXPECT_EQ(run.ranks[1][3].waiting, 0);
}

TEST(Emulate, AStreamRunsOneCollectiveAfterAnother) {
  Network n = network(toy(), {{"tp", 2}});
  const SubAxis tp{0, 1, 2};
  Steps s; // two begun at 0: 0 to 5 and 5 to 14 (1 + 64/8); then one that blocks: 14 to 19
  s.add(collective(Kind::AllGather, {tp}, 16), true)
      .add(collective(Kind::AllGather, {tp}, 32), true)
      .compute()
      .add(collective(Kind::AllGather, {tp}, 16))
      .await(0)
      .await(1);
  ClockedRun run = wind(s.program, n, {{0, 0, 1, 0, 0, 0}, {0, 0, 1, 0, 0, 0}});
  EXPECT_EQ(run.ranks[0][1].transferBegin, 5);
  EXPECT_EQ(run.ranks[0][3].transferBegin, 14);
  EXPECT_EQ(run.ranks[0][3].waiting, 13); // for its own stream
  EXPECT_EQ(run.ranks[0][4].seconds, 0);
  EXPECT_EQ(run.ranks[0][5].seconds, 0);
  EXPECT_EQ(run.seconds, 19);
}

TEST(Emulate, GroupsGoTheirOwnWays) {
  // dp=2 x tp=2. Ranks 0,1 are fast, 2,3 slow; tp groups are apart, then dp joins them.
  Network n = network(toy(2), {{"dp", 2}, {"tp", 2}});
  const SubAxis dp{0, 1, 2}, tp{1, 1, 2};
  Steps s;
  s.compute()
      .add(collective(Kind::AllGather, {tp}, 16))
      .compute()
      .add(collective(Kind::AllGather, {dp}, 16));
  ClockedRun run = wind(s.program, n, {{1, 0, 1, 0}, {2, 0, 1, 0}, {10, 0, 1, 0}, {12, 0, 1, 0}});
  EXPECT_EQ(run.ranks[0][2].begin, 7);  // 2 + 5
  EXPECT_EQ(run.ranks[3][2].begin, 17); // 12 + 5
  EXPECT_EQ(run.ranks[0][3].waiting, 10);
  EXPECT_EQ(run.ranks[0][3].seconds, 10 + 19);
  EXPECT_EQ(run.ranks[3][3].waiting, 0);
  EXPECT_EQ(run.seconds, 18 + 19);
}

TEST(Emulate, PredictionsFollowTheRoofline) {
  Cluster c = toy();
  c.flops = 10;
  c.memoryBandwidth = 2;
  Steps s;
  s.compute().compute();
  s.program.steps[0].flops = 50, s.program.steps[0].bytes = 4;
  s.program.steps[1].flops = 5, s.program.steps[1].bytes = 4;
  ComputeTimes times = predictCompute(s.program, c, 3);
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times[2], (std::vector<double>{5, 2}));
}

//===----------------------------------------------------------------------===//
// Sessions
//===----------------------------------------------------------------------===//

namespace {

std::map<std::string, HostTensor> inputs(const Mlp &mlp) {
  return {{"x", HostTensor(DType::F32, {mlp.batch, mlp.width})},
          {"tokens", HostTensor(DType::I32, {mlp.batch})}};
}

/// A clock that a rank's look at it moves on by 1 + rank seconds.
std::function<double(int)> ticking(size_t ranks) {
  auto now = std::make_shared<std::vector<double>>(ranks);
  return [now](int rank) { return (*now)[static_cast<size_t>(rank)] += 1 + rank; };
}

} // namespace

TEST(Emulate, ASessionWindsItsClocks) {
  for (bool overlap : {false, true}) {
    Mlp mlp;
    mlp.tp = 2;
    mlp.overlap = overlap;
    SessionOptions options;
    options.emulate = toy();
    options.emulate->speedup = 2;
    options.cpuClock = ticking(2);
    options.timeline = true;
    options.threads = 7; // not read
    auto session =
        Session::create(std::make_shared<Executable>(mlp.build()), Mlp::kernels(), options);
    ASSERT_TRUE(session) << session.error().message;
    EXPECT_EQ((*session)->workersPerRank(), 1);
    ASSERT_TRUE((*session)->initialise(1));
    auto out = (*session)->run("step", inputs(mlp), {{"lr", 0.5}});
    ASSERT_TRUE(out) << out.error().message;
    // A step takes 0.5 s of rank 0 and 1 s of rank 1; the sum of 5 x 4 floats 2 (1 + 40/8) = 12 s.
    // Blocking: two steps, the sum, four more: 1 (or 2) + 12 + 4. Overlapped: two, then beside
    // three others and up to 2 + 12; then the copy.
    EXPECT_EQ(out->emulatedSeconds, overlap ? 15 : 18);
    const ClockedRun &run = (*session)->clocks();
    EXPECT_EQ(run.ranks[0][2].waiting, overlap ? 0 : 1);
    EXPECT_EQ(run.ranks[0][2].begin, 1);
    const SiteTime cost = totalTime(siteTimes((*session)->executable().programs[0], run));
    EXPECT_EQ(cost.transfer, 12);
    // Rank 0 awaits from 1 + 1.5 on, rank 1 from 2 + 3.
    EXPECT_EQ(cost.exposed, overlap ? (11.5 + 9) / 2 : (13 + 12) / 2.0);
    // The same times give the same clocks.
    Network n = network(toy(), {{"dp", 1}, {"tp", 2}});
    EXPECT_EQ(wind((*session)->executable().programs[0], n, (*session)->computeTimes()).seconds,
              out->emulatedSeconds);
    // The second run lies behind the first.
    ASSERT_TRUE((*session)->run("step", inputs(mlp), {{"lr", 0.5}}));
    const auto &events = (*session)->timeline(1);
    size_t perRun = events.size() / 2;
    EXPECT_EQ(perRun, overlap ? 9u : 7u);
    EXPECT_EQ(events[0].begin, 0);
    EXPECT_EQ(events[perRun].begin, out->emulatedSeconds);
  }
}

TEST(Emulate, BitsAreThoseOfAnyRunAndARankThatFailsEndsAll) {
  Mlp mlp;
  mlp.tp = 3;
  mlp.dp = 2;
  mlp.overlap = true;
  std::vector<std::vector<char>> y;
  for (bool emulate : {false, true}) {
    SessionOptions options;
    if (emulate)
      options.emulate = toy();
    auto session =
        Session::create(std::make_shared<Executable>(mlp.build()), Mlp::kernels(), options);
    ASSERT_TRUE(session) << session.error().message;
    ASSERT_TRUE((*session)->initialise(1));
    auto in = inputs(mlp);
    for (int i = 0; i < 20; ++i)
      in.at("x").as<float>()[i] = static_cast<float>(i % 7);
    auto out = (*session)->run("step", in, {{"lr", 0.5}});
    ASSERT_TRUE(out) << out.error().message;
    EXPECT_EQ(out->emulatedSeconds > 0, emulate);
    y.push_back(out->results.at("y").data);
  }
  EXPECT_EQ(y[0], y[1]);
  SessionOptions options;
  options.emulate = toy();
  options.fault = FaultInjection{FaultInjection::Kind::Throw, 1, 4};
  auto session =
      Session::create(std::make_shared<Executable>(mlp.build()), Mlp::kernels(), options);
  ASSERT_TRUE((*session)->initialise(1));
  auto out = (*session)->run("step", inputs(mlp), {{"lr", 0.5}});
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().fault, Fault::Rank);
  EXPECT_NE(out.error().message.find("rank 1 failed: a fault was injected"), std::string::npos)
      << out.error().message;
  EXPECT_FALSE((*session)->run("step", inputs(mlp), {{"lr", 0.5}}));
  // A mesh that the cluster does not join is refused before any rank starts.
  options.emulate->levels[1].ranks = 4;
  EXPECT_FALSE(Session::create(std::make_shared<Executable>(mlp.build()), Mlp::kernels(), options));
}
