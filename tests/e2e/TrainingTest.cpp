//===- TrainingTest.cpp - training steps against the reference ------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <cmath>

using namespace cleave;
using namespace cleave::e2e;

namespace {

constexpr int64_t seed = 11;

/// The settings of oracles/make_gpt2.py.
OptimizerSettings adamw() {
  OptimizerSettings o;
  o.kind = "adamw";
  o.decay = 0.1;
  return o;
}
OptimizerSettings sgd() {
  OptimizerSettings o;
  o.kind = "sgd";
  o.momentum = 0.9;
  return o;
}

/// What each step gave.
std::vector<Tensors> steps(Session &session, const Tensors &inputs, double lr, int count,
                           int from = 0, RunOptions options = {}) {
  std::vector<Tensors> all;
  for (int i = from; i < from + count && !::testing::Test::HasFailure(); ++i)
    all.push_back(ran(session, "train_step", inputs,
                      {{"seed", seed}, {"step", int64_t(i)}, {"lr", lr}}, options));
  return all;
}

class Training : public ::testing::TestWithParam<Layout> {
protected:
  /// A session with the reference's weights.
  std::unique_ptr<Session> ready(std::shared_ptr<const Executable> executable) {
    auto session = started(std::move(executable));
    if (session)
      setParams(*session, oracle("gpt2/weights.safetensors"));
    return session;
  }
  std::unique_ptr<Session> ready(const CompileOptions &options, const Model &model = gpt2()) {
    return ready(compiled(model, GetParam(), options));
  }
  const Tensors inputs = oracle("gpt2/inputs.safetensors");
};

std::string nameOf(const ::testing::TestParamInfo<Layout> &info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(On, Training, ::testing::ValuesIn(allLayouts()), nameOf);

TEST_P(Training, AdamWIsTheReferences) {
  Tensors reference = oracle("gpt2/training.safetensors");
  const double *losses = reference["adamw.losses_f64"].as<double>();
  auto session = ready(trainStep(DType::F32, adamw()));
  ASSERT_TRUE(session);
  auto single = steps(*session, inputs, 1e-3, 20);
  ASSERT_EQ(single.size(), 20u);
  for (size_t i = 0; i < 20; ++i)
    EXPECT_NEAR(number(single[i], "loss"), losses[i], 1e-5 * losses[i]) << "step " << i + 1;

  session = ready(trainStep(DType::F64, adamw()));
  ASSERT_TRUE(session);
  auto twice = steps(*session, inputs, 1e-3, 3);
  // A gradient of pure rounding, 1e-16, moves the key bias by lr * 1e-16 / epsilon a step.
  Tensors expected = oracle("gpt2/adamw3_f64.safetensors"), found = persistent(*session), keyBias;
  keyBias.insert(expected.extract("body.bk"));
  EXPECT_TRUE(close(expected, found, 1e-11));
  EXPECT_TRUE(close(keyBias, found, 1e-9));
  for (Tensors &later : steps(*session, inputs, 1e-3, 17, 3))
    twice.push_back(std::move(later));
  ASSERT_EQ(twice.size(), 20u);
  for (size_t i = 0; i < 20; ++i)
    EXPECT_NEAR(number(twice[i], "loss"), losses[i], 1e-10 * losses[i]) << "step " << i + 1;
}

TEST_P(Training, SgdIsTheReferences) {
  auto session = ready(trainStep(DType::F64, sgd()));
  ASSERT_TRUE(session);
  auto all = steps(*session, inputs, 0.1, 3);
  ASSERT_EQ(all.size(), 3u);
  Tensors reference = oracle("gpt2/training.safetensors");
  const double *losses = reference["sgd.losses_f64"].as<double>();
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(number(all[i], "loss"), losses[i], 1e-11 * losses[i]) << "step " << i + 1;
  double norm = number(oracle("gpt2/expected_f64.safetensors"), "grad_norm");
  EXPECT_NEAR(number(all[0], "gradient_norm"), norm, 1e-11 * norm);
  EXPECT_TRUE(close(oracle("gpt2/sgd3_f64.safetensors"), persistent(*session), 1e-11));
}

TEST_P(Training, ClippedSgdIsTheReferences) {
  OptimizerSettings clipped = sgd();
  clipped.clip = 1; // of 12.3 at first
  auto session = ready(trainStep(DType::F64, clipped));
  ASSERT_TRUE(session);
  steps(*session, inputs, 0.1, 3);
  EXPECT_TRUE(close(oracle("gpt2/clip3_f64.safetensors"), persistent(*session), 1e-11));
}

/// Groups by pattern, of which the last counts, and a frozen param that is used twice. It
/// has no gradient, so the norm and the optimizer's state are without it.
TEST_P(Training, GroupsAreTheReferences) {
  OptimizerSettings grouped = adamw();
  grouped.clip = 2;
  for (const char *text : {"body.*:lr=0.5x,decay=3", "wpe:decay=0", "body.*:decay=0.1",
                           "body.n?.*:decay=0", "body.b?:decay=0", "body.b1:decay=0.2"}) {
    auto group = parseParamGroup(text);
    ASSERT_TRUE(group) << group.error().message;
    grouped.groups.push_back(*group);
  }
  grouped.groups.push_back(frozenGroup("wte"));
  auto session = ready(trainStep(DType::F64, grouped));
  ASSERT_TRUE(session);
  steps(*session, inputs, 1e-3, 3);
  Tensors expected = oracle("gpt2/groups3_f64.safetensors"), found = persistent(*session), keyBias;
  keyBias.insert(expected.extract("body.bk"));
  EXPECT_TRUE(close(expected, found, 1e-11));
  EXPECT_TRUE(close(keyBias, found, 1e-9));
  Tensors states = persistent(*session, true);
  EXPECT_FALSE(states.count("adam.m:wte"));
  EXPECT_TRUE(states.count("adam.m:wpe"));
}

/// A step whose gradients are not finite leaves every bit of params and states on all
/// ranks, and AdamW's count: the next step is as if it had never been.
TEST_P(Training, StepsWithoutFiniteGradientsAreSkipped) {
  OptimizerSettings clipped = adamw();
  clipped.clip = 1;
  auto executable = compiled(gpt2(), GetParam(), trainStep(DType::F32, clipped));
  auto session = ready(executable), without = ready(executable);
  ASSERT_TRUE(session && without);
  RunOptions options;
  options.checkReplicas = true;
  steps(*session, inputs, 1e-3, 1);
  Tensors right = persistent(*session, true);
  HostTensor broken = right.at("body.b2");
  broken.as<float>()[3] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(session->set("body.b2", broken.view()));
  Tensors before = persistent(*session, true);
  auto skipped = steps(*session, inputs, 1e-3, 2, 1, options);
  ASSERT_EQ(skipped.size(), 2u);
  EXPECT_FALSE(std::isfinite(number(skipped[1], "gradient_norm")));
  EXPECT_TRUE(sameBits(before, persistent(*session, true)));
  ASSERT_TRUE(session->set("body.b2", right.at("body.b2").view()));
  steps(*session, inputs, 1e-3, 1, 1);
  steps(*without, inputs, 1e-3, 2);
  EXPECT_TRUE(sameBits(persistent(*without, true), persistent(*session, true)));
}

/// With dropout, so that the masks take part.
TEST_P(Training, TwoRunsAreBitEqual) {
  auto executable =
      compiled(gpt2With("dropout_rate", "0.3"), GetParam(), trainStep(DType::F32, adamw()));
  Tensors results[2];
  for (Tensors &values : results) {
    auto session = ready(executable);
    ASSERT_TRUE(session);
    auto all = steps(*session, inputs, 1e-3, 3);
    ASSERT_EQ(all.size(), 3u);
    values = persistent(*session, true);
    for (size_t i = 0; i < all.size(); ++i)
      for (auto &[name, value] : all[i])
        values.emplace("step " + std::to_string(i) + " " + name, value);
  }
  EXPECT_TRUE(sameBits(results[0], results[1]));
}

/// What is replicated (norms, biases of rows, their moments) stays bit-equal on
/// all ranks. The runtime compares the copies after each step.
TEST_P(Training, ReplicasStayBitEqual) {
  auto session = ready(trainStep(DType::F32, adamw()), gpt2With("dropout_rate", "0.1"));
  ASSERT_TRUE(session);
  RunOptions options;
  options.checkReplicas = true;
  EXPECT_EQ(steps(*session, inputs, 1e-3, 20, 0, options).size(), 20u);
}

/// Weights and moments brought to the host and back change nothing.
TEST_P(Training, GoesOnBitEqualFromSavedState) {
  auto executable = compiled(gpt2(), GetParam(), trainStep(DType::F32, adamw()));
  auto first = ready(executable), second = started(executable);
  ASSERT_TRUE(first && second);
  steps(*first, inputs, 1e-3, 3);
  for (const auto &[name, value] : persistent(*first, true)) {
    auto status = second->set(name, value.view());
    ASSERT_TRUE(status) << status.error().message;
  }
  auto a = steps(*first, inputs, 1e-3, 2, 3), b = steps(*second, inputs, 1e-3, 2, 3);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(sameBits(a[i], b[i])) << i;
  EXPECT_TRUE(sameBits(persistent(*first, true), persistent(*second, true)));
}

TEST_P(Training, FusionMemoryReuseAndOverlapChangeNothing) {
  Tensors weights = oracle("gpt2/weights.safetensors");
  auto results = [&](bool fuse, bool reuse, bool overlap = true) -> Tensors {
    CompileOptions options = gradientsOf("loss", DType::F64);
    options.fuse = fuse;
    options.reuseMemory = reuse;
    options.overlap = overlap;
    options.overlapWorth = 0;
    auto session = ready(options);
    return session ? ran(*session, "loss_grads", inputs) : Tensors();
  };
  Tensors normal = results(true, true);
  ASSERT_EQ(normal.size(), 21u);
  EXPECT_TRUE(sameBits(normal, results(true, false)));
  EXPECT_TRUE(sameBits(normal, results(true, true, false)));
  EXPECT_TRUE(close(normal, results(false, true), 1e-13));
}

/// The comparison of copies does notice: without the sum over tp of the gradient
/// that reaches a norm, each rank has a norm weight's gradient of its own.
TEST(Replicas, AnUnequalCopyIsAnError) {
  CompileOptions options = trainStep(DType::F32, adamw());
  options.mutation = "drop:7";
  auto session = started(compiled(gpt2(), tp(2), options));
  ASSERT_TRUE(session);
  setParams(*session, oracle("gpt2/weights.safetensors"));
  RunOptions check;
  check.checkReplicas = true;
  auto result = session->run("train_step", oracle("gpt2/inputs.safetensors"),
                             {{"seed", seed}, {"step", int64_t(0)}, {"lr", 1e-3}}, check);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("copies that differ"), std::string::npos)
      << result.error().message;
}

} // namespace
