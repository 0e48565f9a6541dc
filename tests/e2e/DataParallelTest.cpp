//===- DataParallelTest.cpp - trials from public bug reports --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// ZeRO with accumulation against AdamW written out in double (accumulators that are reset
// in each micro-batch, copied instead of added to, or wrong at the first step); buckets
// with accumulation and a frozen param (buffers used again too early, a bucket that never
// fires).
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include "runtime/cpu/ObjectLoader.h"

#include <cmath>

using namespace cleave;
using namespace cleave::e2e;

namespace {

constexpr int64_t rows = 16, width = 5, outputs = 3, steps = 5;
constexpr double rate = 0.3, decay = 0.1;

Model line() {
  Model model{R"(
model line(width = 5, outputs = 3) {
  free batch
  param w: [width, outputs] = normal(0.5)
  fn loss(x: [batch, width], y: [batch, outputs]) -> f32 {
    error = x @ w - y
    return mean(error * error)
  }
}
)",
              {},
              {{"batch", rows}}};
  for (int level = 0; level <= 3; ++level)
    model.text += "plan zero" + std::to_string(level) +
                  " for line on (dp) { shard batch by dp; zero " + std::to_string(level) +
                  " over dp }\n";
  return model;
}

/// The first half of the rows gives no gradient: so do whole micro-batches, and ranks.
Tensors inputs() {
  HostTensor x(DType::F64, {rows, width}), y(DType::F64, {rows, outputs});
  for (int64_t i = 0; i < rows * width; ++i)
    x.as<double>()[i] = i < rows / 2 * width ? 0 : std::sin(double(3 * i + 1));
  for (int64_t i = 0; i < rows * outputs; ++i)
    y.as<double>()[i] = std::cos(double(5 * i + 2));
  return {{"x", x}, {"y", y}};
}

struct AdamW {
  std::vector<double> w, m, v;
};

AdamW expected(std::vector<double> w) {
  const Tensors data = inputs();
  const double *x = data.at("x").as<double>(), *y = data.at("y").as<double>();
  AdamW a{std::move(w), std::vector<double>(width * outputs), std::vector<double>(width * outputs)};
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<double> g(width * outputs);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = 0; o < outputs; ++o) {
        double error = -y[r * outputs + o];
        for (int64_t i = 0; i < width; ++i)
          error += x[r * width + i] * a.w[i * outputs + o];
        for (int64_t i = 0; i < width; ++i)
          g[i * outputs + o] += 2 * error * x[r * width + i] / double(rows * outputs);
      }
    for (size_t i = 0; i < g.size(); ++i) {
      a.m[i] = 0.9 * a.m[i] + 0.1 * g[i];
      a.v[i] = 0.999 * a.v[i] + 0.001 * g[i] * g[i];
      double m = a.m[i] / (1 - std::pow(0.9, double(step)));
      double v = a.v[i] / (1 - std::pow(0.999, double(step)));
      a.w[i] -= rate * (m / (std::sqrt(v) + 1e-8) + decay * a.w[i]);
    }
  }
  return a;
}

class ZeroAccumulated : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(Of, ZeroAccumulated,
                         ::testing::Combine(::testing::Values(1, 2, 4), // data ranks
                                            ::testing::Values(1, 2, 4)),
                         [](const auto &info) {
                           return "dp" + std::to_string(std::get<0>(info.param)) + "_accumulate" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST_P(ZeroAccumulated, IsAdamWOfTheWholeBatch) {
  auto [ranks, micro] = GetParam();
  HostTensor start(DType::F64, {width, outputs});
  for (int64_t i = 0; i < width * outputs; ++i)
    start.as<double>()[i] = std::sin(double(i)) / 2;
  AdamW want =
      expected(std::vector<double>(start.as<double>(), start.as<double>() + width * outputs));
  for (int level = 0; level <= 3; ++level) {
    OptimizerSettings adamw;
    adamw.decay = decay;
    CompileOptions options = trainStep(DType::F64, adamw);
    options.accumulate = micro;
    auto session =
        started(compiled(line(), {"", "zero" + std::to_string(level), {{"dp", ranks}}}, options));
    ASSERT_TRUE(session);
    setParams(*session, {{"w", start}});
    for (int64_t step = 0; step < steps; ++step)
      ran(*session, "train_step", inputs(), {{"seed", int64_t(1)}, {"step", step}, {"lr", rate}});
    Tensors found = persistent(*session, true);
    for (auto &[name, values] : {std::pair<std::string, std::vector<double> &>{"w", want.w},
                                 {"adam.m:w", want.m},
                                 {"adam.v:w", want.v}}) {
      ASSERT_TRUE(found.count(name)) << name;
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_NEAR(found.at(name).as<double>()[i], values[i], 1e-12)
            << name << "[" << i << "] at level " << level;
    }
  }
}

class Buckets : public ::testing::TestWithParam<std::pair<const char *, const char *>> {};
INSTANTIATE_TEST_SUITE_P(Of, Buckets,
                         ::testing::Values(std::pair{"element", "bucketed(8B)"},
                                           std::pair{"param", "bucketed(3200B)"},
                                           std::pair{"one_and_a_half", "bucketed(4800B)"},
                                           std::pair{"everything", "bucketed(1GB)"}),
                         [](const auto &info) { return info.param.first; });

/// Three micro-batches; the last gradient of the backward pass, that of the positions, is frozen.
TEST_P(Buckets, SumOncePerStepWhatNoBucketsSum) {
  auto trained = [](const std::string &sentence, int64_t &sums) -> Tensors {
    Model model = gpt2();
    model.sizes["batch"] = 6;
    model.text +=
        "\nplan chosen for gpt2 on (dp) { shard batch by dp; overlap " + sentence + " }\n";
    OptimizerSettings sgd;
    sgd.kind = "sgd";
    sgd.groups = {frozenGroup("wpe")};
    CompileOptions options = trainStep(DType::F64, sgd);
    options.accumulate = 3;
    options.overlapWorth = 0;
    auto executable = compiled(model, {"", "chosen", {{"dp", 2}}}, options);
    if (!executable)
      return {};
    sums = 0;
    for (const CollectiveSite &site : executable->programs[0].collectiveSites)
      if (site.axes == "dp" && site.phase == "backward" && site.payloadBytes > 8)
        sums += site.executions;
    auto session = started(executable);
    setParams(*session, oracle("gpt2/weights.safetensors"));
    HostTensor tokens(DType::I32, {6, 7}), labels(DType::I32, {6, 7});
    for (int32_t i = 0; i < 42; ++i) {
      tokens.as<int32_t>()[i] = (i * i + 3) % 37;
      labels.as<int32_t>()[i] = i % 5 ? (7 * i + 1) % 37 : -100;
    }
    for (int64_t step = 0; step < 2; ++step)
      ran(*session, "train_step", {{"tokens", tokens}, {"labels", labels}},
          {{"seed", int64_t(1)}, {"step", step}, {"lr", 0.1}});
    return persistent(*session, true);
  };
  int64_t apart = 0, bucketed = 0;
  Tensors want = trained("none", apart), got = trained(GetParam().second, bucketed);
  EXPECT_TRUE(sameBits(want, got));
  EXPECT_EQ(apart, 19); // the params but wpe, each once in three micro-batches
  if (std::string(GetParam().first) == "everything")
    EXPECT_EQ(bucketed, 1);
  else if (std::string(GetParam().first) == "element")
    EXPECT_EQ(bucketed, 19);
  else
    EXPECT_LT(bucketed, 19);
  HostTensor positions = oracle("gpt2/weights.safetensors").at("wpe");
  EXPECT_EQ(distance(positions, got.at("wpe")), 0);
}

/// 200 steps, before which and in which ranks sleep at random, all from the same state.
class Jitter : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Runs, Jitter, ::testing::Range(0, 10));

TEST_P(Jitter, RunsAreBitEqual) {
  Model model = gpt2With("dropout_rate", "0.1");
  model.text += "\nplan chosen for gpt2 on (dp, tp) { shard batch by dp; shard heads, ffn, vocab "
                "else seq by tp; zero 3 over dp; overlap layers }\n";
  model.sizes["batch"] = 4;
  CompileOptions options = trainStep(DType::F32);
  options.overlapWorth = 0;
  auto executable = compiled(model, {"", "chosen", {{"dp", 2}, {"tp", 2}}}, options);
  ASSERT_TRUE(executable);
  auto kernels = ObjectLoader::load(*executable);
  ASSERT_TRUE(bool(kernels));
  auto open = [&](double jitter) {
    SessionOptions session;
    session.jitterSeconds = jitter;
    session.beside = true; // a communication thread for each rank
    session.watchdogSeconds = 8;
    return std::move(*Session::create(executable, *kernels, session));
  };
  HostTensor tokens(DType::I32, {4, 7});
  for (int32_t i = 0; i < 28; ++i)
    tokens.as<int32_t>()[i] = (i * i + 3) % 37;
  auto step = [&](Session &session) {
    setParams(session, oracle("gpt2/weights.safetensors"));
    for (auto &[name, value] : persistent(session, true))
      if (name.starts_with("adam."))
        EXPECT_TRUE(bool(session.set(name, HostTensor(value.dtype, value.shape).view())));
    Tensors results = ran(session, "train_step", {{"tokens", tokens}, {"labels", tokens}},
                          {{"seed", int64_t(3)}, {"step", int64_t(GetParam())}, {"lr", 0.01}});
    results.merge(persistent(session, true));
    return results;
  };
  auto still = open(0), shaken = open(5e-5);
  const Tensors want = step(*still);
  for (int run = 0; run < 20; ++run)
    ASSERT_TRUE(sameBits(want, step(*shaken))) << run;
}

} // namespace
