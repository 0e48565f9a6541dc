//===- AccumulateTest.cpp - micro-batches are the whole batch -------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The reference's batch has 3 rows with 5, 3 and 7 valid labels, so no two
// micro-batches count alike, and a mean of means would be wrong.
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <algorithm>

using namespace cleave;
using namespace cleave::e2e;

namespace {

bool splitsBatch(const Layout &layout) {
  return std::any_of(layout.mesh.begin(), layout.mesh.end(),
                     [](const auto &axis) { return axis.first == "dp" && axis.second > 1; });
}

class Accumulate : public ::testing::TestWithParam<Layout> {
protected:
  /// One row each; under dp = 2 the second rank has a row and a padded one.
  int64_t rows() const { return splitsBatch(GetParam()) ? 2 : 3; }

  CompileOptions cut(CompileOptions options) const {
    options.accumulate = rows();
    return options;
  }
  std::unique_ptr<Session> ready(const CompileOptions &options, const Model &model = gpt2()) {
    auto session = started(compiled(model, GetParam(), options));
    if (session)
      setParams(*session, oracle("gpt2/weights.safetensors"));
    return session;
  }
  const Tensors inputs = oracle("gpt2/inputs.safetensors");
};

std::string nameOf(const ::testing::TestParamInfo<Layout> &info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(On, Accumulate, ::testing::ValuesIn(allLayouts()), nameOf);

TEST_P(Accumulate, GradientsAreTheReferences) {
  auto session = ready(cut(gradientsOf("loss", DType::F64)));
  ASSERT_TRUE(session);
  Tensors found = ran(*session, "loss_grads", inputs), expected;
  for (auto &[name, value] : oracle("gpt2/expected_f64.safetensors"))
    if (name == "loss")
      expected.emplace(name, value);
    else if (name.rfind("grad.", 0) == 0)
      expected.emplace("grad:" + name.substr(5), value);
  ASSERT_EQ(expected.size(), 21u);
  EXPECT_TRUE(close(expected, found, 1e-11));
}

TEST_P(Accumulate, StepsAreTheReferences) {
  OptimizerSettings sgd;
  sgd.kind = "sgd";
  sgd.momentum = 0.9;
  auto session = ready(cut(trainStep(DType::F64, sgd)));
  ASSERT_TRUE(session);
  for (int64_t i = 0; i < 3; ++i)
    ran(*session, "train_step", inputs, {{"seed", int64_t(5)}, {"step", i}, {"lr", 0.1}});
  EXPECT_TRUE(close(oracle("gpt2/sgd3_f64.safetensors"), persistent(*session), 1e-11));
}

/// Masks are those of the rows of the whole batch; a micro-batch without any valid label
/// adds nothing.
TEST_P(Accumulate, DropoutAndEmptyMicroBatches) {
  Model model = gpt2With("dropout_rate", "0.3");
  Tensors batch = inputs;
  for (int64_t i = 7; i < 14; ++i)
    batch.at("labels").as<int32_t>()[i] = -100;
  Scalars scalars = {{"seed", int64_t(5)}, {"step", int64_t(2)}};
  auto whole = ready(gradientsOf("loss", DType::F64, true), model);
  auto parts = ready(cut(gradientsOf("loss", DType::F64, true)), model);
  ASSERT_TRUE(whole && parts);
  Tensors expected = ran(*whole, "loss_grads", batch, scalars);
  ASSERT_EQ(expected.size(), 21u);
  EXPECT_TRUE(close(expected, ran(*parts, "loss_grads", batch, scalars), 1e-12));
  for (int64_t i = 0; i < batch.at("labels").elements(); ++i)
    batch.at("labels").as<int32_t>()[i] = -100;
  for (const auto &[name, value] : ran(*parts, "loss_grads", batch, scalars))
    EXPECT_EQ(largest(value), 0) << name;
}

//===----------------------------------------------------------------------===//
// What it costs
//===----------------------------------------------------------------------===//

struct Cost {
  int64_t arena = 0;
  int64_t reductions = 0, bytes = 0; ///< over dp, in a step
};

Cost costOf(const Layout &layout, int64_t count) {
  Model model = gpt2();
  model.sizes = {{"batch", 64}, {"seq", 11}};
  CompileOptions options = trainStep(DType::F32);
  options.accumulate = count;
  auto executable = compiled(model, layout, options);
  Cost cost;
  if (!executable)
    return cost;
  const Program &program = executable->programs.front();
  cost.arena = program.arenaBytes;
  for (const CollectiveSite &site : program.collectiveSites)
    if (site.axes == "dp") {
      cost.reductions += site.executions;
      cost.bytes += site.executions * site.payloadBytes;
    }
  return cost;
}

TEST(AccumulateCosts, ActivationsShrinkAndGradientsAreReducedOnce) {
  Cost whole = costOf(dp(2), 1), two = costOf(dp(2), 2), eight = costOf(dp(2), 8);
  EXPECT_LT(two.arena, whole.arena);
  EXPECT_LT(eight.arena, 0.5 * static_cast<double>(two.arena));
  EXPECT_GT(two.reductions, 0);
  EXPECT_EQ(two.reductions, eight.reductions);
  EXPECT_LE(two.reductions, whole.reductions);
  EXPECT_EQ(two.bytes, whole.bytes);
  EXPECT_EQ(eight.bytes, whole.bytes);
}

} // namespace
