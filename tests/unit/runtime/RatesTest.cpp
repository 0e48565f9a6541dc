//===- RatesTest.cpp - how long a device takes for its work ---------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/emulate/Rates.h"
#include "runtime/emulate/Clocks.h"
#include "runtime/emulate/Cluster.h"

#include <gtest/gtest.h>

#include <cmath>

using namespace cleave;

namespace {

/// A profile with a value for every key.
std::string profile(const std::string &rates, const std::string &collectives = "[]") {
  return R"({"name": "p", "levels": [{"name": "l", "latency_us": 1, "bandwidth_gb_per_s": 1}],
    "collectives": )" +
         collectives + R"(, "compute": {"peak_gflops": 100, "memory_gb_per_s": 10, "rates": )" +
         rates + "}}";
}

const char *const measured = R"([{
  "threads": 1, "ranks": 1, "launch_us": 2,
  "products": [{"form": "NN", "element_bytes": 4, "m": [4, 64], "n": [8, 32, 128], "k": [16, 256],
    "gflops": [[[1, 2], [3, 5], [4, 7]], [[10, 30], [40, 50], [45, 80]]]},
   {"form": "NT", "element_bytes": 4, "m": [1], "n": [1], "k": [1], "gflops": [[[2]]]}],
  "attention": [{"pass": "forward", "causal": true, "length": [16, 256], "depth": [8, 64],
    "gflops": [[5, 10], [20, 40]]}],
  "memory": {"kb": [10, 1000, 100000], "gb_per_s": [100, 50, 10]},
  "pass_gflops": 20, "pass_gfunctions": {"exp": 2, "erf": 0.5}}])";

Rates ratesOf(const std::string &text) {
  auto cluster = parseCluster(profile(text), "p.json");
  EXPECT_TRUE(cluster) << (cluster ? "" : cluster.error().message);
  return cluster ? cluster->ratesFor(1, 1) : Rates();
}

std::string errorOf(const std::string &text) {
  auto cluster = parseCluster(text, "p.json");
  EXPECT_FALSE(cluster);
  return cluster ? "" : cluster.error().message;
}

ProductShape product(int64_t m, int64_t n, int64_t k) { return {1, m, n, k}; }

} // namespace

TEST(Rates, GridPointsAreTheMeasuredRates) {
  Rates r = ratesOf(measured);
  EXPECT_NEAR(r.product(product(64, 32, 256)), 2e-6 + 2.0 * 64 * 32 * 256 / 50e9, 1e-12);
  EXPECT_NEAR(r.product(product(4, 128, 16)), 2e-6 + 2.0 * 4 * 128 * 16 / 4e9, 1e-12);
  AttentionShape a{3, 16, 16, 64, true, false};
  EXPECT_NEAR(r.attentionOf(a), 2e-6 + a.flops() / 10e9, 1e-12);
  EXPECT_NEAR(r.pass({1e6, 0, {}}), 2e-6 + 1e6 / 50e9, 1e-12);
}

TEST(Rates, BetweenGridPointsLogarithmsAreInterpolated) {
  Rates r = ratesOf(measured);
  // Half way in the logarithm of m: the geometric mean of the two times.
  double below = r.product(product(4, 32, 16)) - 2e-6,
         above = r.product(product(64, 32, 16)) - 2e-6;
  EXPECT_NEAR(r.product(product(16, 32, 16)) - 2e-6, std::sqrt(below * above), 1e-12);
}

TEST(Rates, NoStepAtAGridPoint) {
  Rates r = ratesOf(measured);
  const TimeGrid &grid = r.products[0].grid;
  for (double m : {4, 64})
    for (double n : {8, 32, 128})
      for (double k : {16, 256})
        for (size_t dim = 0; dim < 3; ++dim) {
          std::array<double, 3> below = {m, n, k}, above = below;
          below[dim] *= 1 - 1e-9;
          above[dim] *= 1 + 1e-9;
          EXPECT_NEAR(grid.at(above) / grid.at(below), 1, 1e-8) << m << ' ' << n << ' ' << k;
        }
  for (double bytes : {1e4, 1e6, 1e8})
    EXPECT_NEAR(r.pass({bytes * 1.0001, 0, {}}) / r.pass({bytes * 0.9999, 0, {}}), 1, 1e-3)
        << bytes;
}

TEST(Rates, NoTimeFallsAsASizeGrows) {
  Rates r = ratesOf(measured);
  std::vector<int64_t> sizes;
  for (double x = 1; x < 5000; x = std::max(x + 1, x * 1.15))
    sizes.push_back(static_cast<int64_t>(x));
  for (int64_t a : {1, 7, 31, 200, 3000})
    for (int64_t b : {2, 16, 50, 300})
      for (size_t i = 1; i < sizes.size(); ++i) {
        int64_t x = sizes[i - 1], y = sizes[i];
        EXPECT_LE(r.product(product(x, a, b)), r.product(product(y, a, b)) * (1 + 1e-12));
        EXPECT_LE(r.product(product(a, x, b)), r.product(product(a, y, b)) * (1 + 1e-12));
        EXPECT_LE(r.product(product(a, b, x)), r.product(product(a, b, y)) * (1 + 1e-12));
        EXPECT_LE(r.attentionOf({2, x, a, b, true}),
                  r.attentionOf({2, y, a, b, true}) * (1 + 1e-12));
        EXPECT_LE(r.attentionOf({2, a, b, x, true}),
                  r.attentionOf({2, a, b, y, true}) * (1 + 1e-12));
        EXPECT_LE(r.pass({double(x) * 1e4, 0, {}}), r.pass({double(y) * 1e4, 0, {}}) * (1 + 1e-12));
      }
}

TEST(Rates, AFasterLargerSizeIsNoFaster) {
  // 1000 times the rate at twice the length: the shorter one's time holds.
  Rates r = ratesOf(R"([{"memory": {"kb": [10, 20], "gb_per_s": [1, 1000]}}])");
  EXPECT_DOUBLE_EQ(r.pass({2e4, 0, {}}), r.pass({1e4, 0, {}}));
}

TEST(Rates, BeyondTheLargestInProportionBelowTheSmallestTheSame) {
  Rates r = ratesOf(measured);
  double largest = r.product(product(64, 128, 256)) - 2e-6;
  EXPECT_NEAR(r.product(product(640, 1280, 2560)) - 2e-6, 1000 * largest, 1e-9 * largest);
  EXPECT_DOUBLE_EQ(r.product(product(1, 1, 1)), r.product(product(4, 8, 16)));
  EXPECT_NEAR(r.pass({1e9, 0, {}}), 2e-6 + 1e9 / 10e9, 1e-9);
}

TEST(Rates, BatchesAndWiderElements) {
  Rates r = ratesOf(measured);
  ProductShape one = product(64, 32, 256), three = one, wide = one, narrow = one;
  three.batch = 3;
  wide.elementBytes = 8;
  narrow.elementBytes = 2;
  EXPECT_NEAR(r.product(three) - 2e-6, 3 * (r.product(one) - 2e-6), 1e-12);
  EXPECT_NEAR(r.product(wide) - 2e-6, 2 * (r.product(one) - 2e-6), 1e-12);
  EXPECT_DOUBLE_EQ(r.product(narrow), r.product(one));
  ProductShape turned = one;
  turned.transB = true; // the second entry's rate
  EXPECT_NEAR(r.product(turned), 2e-6 + one.flops() / 2e9, 1e-9);
}

TEST(Rates, NothingTakesNothing) {
  Rates r = ratesOf(measured);
  EXPECT_EQ(r.product(product(0, 5, 5)), 0);
  EXPECT_EQ(r.attentionOf({0, 5, 5, 5}), 0);
  EXPECT_EQ(r.pass({}), 2e-6);
}

TEST(Rates, PassesAreTheLongerOfBytesAndArithmetic) {
  Rates r = ratesOf(measured);
  EXPECT_NEAR(r.pass({1e4, 2e6, {}}), 2e-6 + 2e6 / 20e9, 1e-12);
  EXPECT_NEAR(r.pass({1e4, 2e6, {1000, 0, 1000, 0, 0, 0}}), 2e-6 + 1e-4 + 1000 / 2e9 + 1000 / 0.5e9,
              1e-12);
  // No rate for tanh: ten flops at the peak.
  EXPECT_NEAR(r.pass({0, 0, {0, 1000, 0, 0, 0, 0}}), 2e-6 + 1000 * 10 / 100e9, 1e-12);
  // Operands that lie further away than the pass is long.
  EXPECT_NEAR(r.pass({1e4, 0, {}}, 1e8), 2e-6 + 1e4 / 10e9, 1e-12);
}

TEST(Rates, APlainProfileIsARoofline) {
  auto cluster = parseCluster(profile("[]"), "p.json");
  ASSERT_TRUE(cluster);
  Rates r = cluster->ratesFor(4, 2);
  EXPECT_DOUBLE_EQ(r.product(product(100, 100, 100)), 2e6 / 100e9);
  EXPECT_DOUBLE_EQ(r.product(product(1, 1000, 1000)), 4 * (1e6 + 2000) / 10e9);
  AttentionShape a{2, 64, 64, 32, false, true};
  EXPECT_DOUBLE_EQ(r.attentionOf(a), a.flops() / 100e9);
  EXPECT_DOUBLE_EQ(r.pass({1e6, 1e6, {}}), 1e-4);
  EXPECT_DOUBLE_EQ(r.pass({0, 1e6, {1000, 0, 0, 0, 0, 1000}}), 1e-5 + 20000 / 100e9);
}

TEST(Rates, TheNearestThreadsThenRanks) {
  auto cluster = parseCluster(profile(R"([{"threads": 1, "ranks": 1, "launch_us": 1},
    {"threads": 1, "ranks": 4, "launch_us": 2}, {"threads": 4, "ranks": 1, "launch_us": 3}])"),
                              "p.json");
  ASSERT_TRUE(cluster);
  auto launch = [&](int threads, int64_t ranks) {
    return std::lround(cluster->ratesFor(threads, ranks).launch * 1e6);
  };
  EXPECT_EQ(launch(1, 1), 1);
  EXPECT_EQ(launch(1, 3), 2);
  EXPECT_EQ(launch(1, 64), 2);
  EXPECT_EQ(launch(8, 64), 3);
}

TEST(Rates, MeasuredCollectivesTakeTheLinksPlace) {
  auto cluster = parseCluster(
      profile("[]", R"([{"kind": "all_gather", "ranks": 2, "kb": [1, 100], "us": [7, 70]}])"),
      "p.json");
  ASSERT_TRUE(cluster) << cluster.error().message;
  CollectiveStep step{CollectiveStep::Kind::AllGather};
  step.axes = {{0, 1, 2}};
  step.outDim = 25'000, step.inDim = 12'500;
  auto network = Network::create(*cluster, {{"tp", 2}});
  ASSERT_TRUE(network);
  EXPECT_NEAR(network->seconds(step, 0), 70e-6, 1e-15);
  step.outDim = 100, step.inDim = 50; // below the smallest
  EXPECT_NEAR(network->seconds(step, 0), 7e-6, 1e-15);
  step.kind = CollectiveStep::Kind::ReduceScatter;
  step.outDim = 50, step.inDim = 100;
  EXPECT_NEAR(network->seconds(step, 0), 1e-6 + 200 / 1e9, 1e-15);
}

TEST(Rates, StepsOfAProgram) {
  auto cluster = parseCluster(profile(measured), "p.json");
  ASSERT_TRUE(cluster);
  Rates r = cluster->ratesFor(1, 1);
  Program program;
  GemmStep gemm;
  gemm.m = 64, gemm.n = 32, gemm.k = 256;
  Step fused{gemm, StepKind::Gemm};
  fused.bytes = int64_t(product(64, 32, 256).bytes()) + 10'000;
  fused.flops = 2 * 64 * 32 * 256 + 1000 + 10 * 2048;
  fused.functions = {2048, 0, 0, 0, 0, 0};
  Step attention{KernelStep(), StepKind::Attention};
  attention.attention = {6, 40, 40, 16, true, false};
  Step pass{KernelStep(), StepKind::Elementwise};
  pass.bytes = 1'000'000;
  program.steps = {fused, attention, pass, {CollectiveStep(), StepKind::Collective}};
  ComputeTimes times = predictCompute(program, *cluster, 3);
  ASSERT_EQ(times.size(), 3u);
  double epilogue = 1000 / 20e9 + 2048 / 2e9;
  EXPECT_NEAR(times[2][0], r.product(product(64, 32, 256)) + epilogue, 1e-12);
  EXPECT_DOUBLE_EQ(times[2][1], r.attentionOf(attention.attention));
  EXPECT_DOUBLE_EQ(times[2][2], r.pass({1e6, 0, {}}));
  EXPECT_EQ(times[2][3], 0);
}

TEST(Rates, MalformedProfilesAreRefusedByTheirKey) {
  auto rates = [](const std::string &text) { return errorOf(profile("[{" + text + "}]")); };
  EXPECT_EQ(rates(R"("lunch_us": 1)"),
            "p.json: compute.rates[0]: there is no key 'lunch_us'; did you mean 'launch_us'?");
  EXPECT_EQ(rates(R"("memory": {"kb": [5, 5], "gb_per_s": [1, 1]})"),
            "p.json: compute.rates[0].memory.kb: 5 stands behind 5: sizes increase");
  EXPECT_EQ(
      rates(R"("memory": {"kb": [5, 6], "gb_per_s": [1]})"),
      "p.json: compute.rates[0].memory.gb_per_s: [1] is no list of 2 values, one for each size");
  EXPECT_EQ(rates(R"("memory": {"kb": [5], "gb_per_s": [-1]})"),
            "p.json: compute.rates[0].memory.gb_per_s[0]: -1 is no number above 0");
  EXPECT_EQ(rates(R"("memory": {"kb": [], "gb_per_s": []})"),
            "p.json: compute.rates[0].memory.kb: [] is no list of sizes");
  EXPECT_EQ(rates(R"("memory": {"kb": [0], "gb_per_s": [1]})"),
            "p.json: compute.rates[0].memory.kb: 0 is no size above 0");
  EXPECT_EQ(rates(R"("products": {})"), "p.json: compute.rates[0].products: {} is no list");
  EXPECT_EQ(rates(R"("products": [{"form": "MN"}])"),
            "p.json: compute.rates[0].products[0].form: 'MN' is none of NN, NT, TN, TT");
  EXPECT_EQ(
      rates(R"("products": [{"form": "NN", "m": [1], "n": [1], "k": [1, 2], "gflops": [[[1]]]}])"),
      "p.json: compute.rates[0].products[0].gflops[0][0]: [1] is no list of 2 values, one for each "
      "size");
  EXPECT_EQ(rates(R"("attention": [{"pass": "forward", "causal": 1}])"),
            "p.json: compute.rates[0].attention[0].causal: 1 is neither true nor false");
  EXPECT_EQ(rates(R"("pass_gfunctions": {"exp": 0})"),
            "p.json: compute.rates[0].pass_gfunctions.exp: 0 is outside 1e-06 to 1e+09");
  EXPECT_EQ(
      errorOf(profile("[]", R"([{"kind": "all_sum", "ranks": 2, "kb": [1], "us": [1]}])")),
      "p.json: collectives[0].kind: 'all_sum' is none of all_reduce, all_gather, reduce_scatter, "
      "all_to_all");
}
