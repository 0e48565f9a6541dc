//===- ModelsTest.cpp - BERT and Pythia against the references ------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Training steps and collectives; logits and gradients are in bert-f64.test and
// pythia-f64.test.
//
//===----------------------------------------------------------------------===//
#include "Support.h"

using namespace cleave;
using namespace cleave::e2e;

namespace {

/// A model with what its reference was made of.
struct Case {
  std::string name;
  Model model;
  std::string folder; ///< of tests/oracles
  std::string losses; ///< the tensor of training.safetensors
  /// All-reduces over tp: in a layer, and once in a step; each way.
  int64_t layerForward = 0, layerBackward = 0, onceForward = 0, onceBackward = 0;
};

Case bert(bool preNorm) {
  std::string order = preNorm ? "pre" : "post";
  return {"bert_" + order,
          {readText(sourcePath("models/bert.cleave")),
           {{"vocab", "43"},
            {"width", "20"},
            {"heads", "5"},
            {"head_dim", "4"},
            {"layers", "2"},
            {"positions", "11"},
            {"kinds", "3"},
            {"dropout_rate", "0"},
            {"pre_norm", preNorm ? "true" : "false"}},
           {{"batch", 3}, {"seq", 7}}},
          "bert",
          order + ".losses_f64",
          2,
          2,
          4,
          1};
}

Case pythia() {
  return {"pythia",
          {readText(sourcePath("models/pythia.cleave")),
           {{"vocab", "41"},
            {"width", "20"},
            {"heads", "5"},
            {"head_dim", "6"},
            {"rotary", "4"},
            {"layers", "2"}},
           {{"batch", 3}, {"seq", 7}}},
          "pythia",
          "losses_f64",
          1,
          2,
          4,
          1};
}

std::vector<Case> allCases() { return {bert(false), bert(true), pythia()}; }

class Models : public ::testing::TestWithParam<std::tuple<Case, Layout>> {};
INSTANTIATE_TEST_SUITE_P(All, Models,
                         ::testing::Combine(::testing::ValuesIn(allCases()),
                                            ::testing::ValuesIn(allLayouts())),
                         [](const auto &info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
                         });

TEST_P(Models, AdamWIsTheReferences) {
  const auto &[model, layout] = GetParam();
  Tensors reference = oracle(model.folder + "/training.safetensors");
  const double *losses = reference.at(model.losses).as<double>();
  OptimizerSettings adamw;
  adamw.kind = "adamw";
  adamw.decay = 0.1;
  auto session = started(compiled(model.model, layout, trainStep(DType::F64, adamw)));
  ASSERT_TRUE(session);
  setParams(*session, oracle(model.folder + "/weights.safetensors"));
  Tensors inputs = oracle(model.folder + "/inputs.safetensors");
  for (int64_t i = 0; i < 20; ++i) {
    Tensors step =
        ran(*session, "train_step", inputs, {{"seed", int64_t(3)}, {"step", i}, {"lr", 1e-3}});
    ASSERT_NEAR(number(step, "loss"), losses[i], 1e-11 * losses[i]) << "step " << i + 1;
  }
}

class ModelsPattern : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, ModelsPattern, ::testing::ValuesIn(allCases()),
                         [](const auto &info) { return info.param.name; });

/// Megatron's pattern follows from the plan.
TEST_P(ModelsPattern, HasTheAllReducesOfMegatron) {
  for (int64_t n : {2, 3}) {
    auto executable = compiled(GetParam().model, tp(n), trainStep(DType::F32));
    ASSERT_TRUE(executable);
    std::map<std::string, int64_t> executions;
    for (const CollectiveSite &site : executable->programs[0].collectiveSites) {
      EXPECT_EQ(site.kind, "all_reduce");
      if (site.axes == "tp")
        executions[site.phase] += site.executions;
    }
    EXPECT_EQ(executions["forward"], 2 * GetParam().layerForward + GetParam().onceForward);
    EXPECT_EQ(executions["backward"], 2 * GetParam().layerBackward + GetParam().onceBackward);
  }
}

} // namespace
