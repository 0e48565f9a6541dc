//===- RecomputeTest.cpp - memory for time, and the same gradients --------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

using namespace cleave;
using namespace cleave::e2e;

namespace {

CompileOptions with(CompileOptions options, const std::string &recompute, int64_t accumulate = 1) {
  options.recompute = recompute;
  options.accumulate = accumulate;
  return options;
}

class Recompute : public ::testing::TestWithParam<Layout> {
protected:
  Tensors gradients(const std::string &policy, int64_t accumulate = 1) {
    auto session =
        started(compiled(gpt2With("dropout_rate", "0.3"), GetParam(),
                         with(gradientsOf("loss", DType::F64, true), policy, accumulate)));
    if (!session)
      return {};
    setParams(*session, oracle("gpt2/weights.safetensors"));
    return ran(*session, "loss_grads", oracle("gpt2/inputs.safetensors"),
               {{"seed", int64_t(5)}, {"step", int64_t(2)}});
  }
};

std::string nameOf(const ::testing::TestParamInfo<Layout> &info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(On, Recompute, ::testing::ValuesIn(allLayouts()), nameOf);

/// With dropout: another mask would show in every gradient.
TEST_P(Recompute, ChangesNoGradient) {
  Tensors expected = gradients("none");
  ASSERT_EQ(expected.size(), 21u);
  for (const char *policy : {"selective", "full"}) {
    Tensors found = gradients(policy);
    EXPECT_TRUE(sameBits({{"loss", expected.at("loss")}}, {{"loss", found.at("loss")}})) << policy;
    EXPECT_TRUE(close(expected, found, 1e-12)) << policy;
  }
  bool splits = GetParam().name.rfind("dp", 0) == 0;
  EXPECT_TRUE(close(expected, gradients("full", splits ? 2 : 3), 1e-12));
}

struct Cost {
  int64_t arena = 0, products = 0; ///< multiplications of products, without their epilogues
};

TEST(RecomputeCosts, LessMemoryForMoreWork) {
  auto cost = [](const std::string &policy) -> Cost {
    Model model = gpt2();
    for (auto &[name, value] : model.settings)
      if (name == "layers")
        value = "6";
    model.sizes = {{"batch", 16}, {"seq", 11}};
    auto executable = compiled(model, oneRank(), with(trainStep(DType::F32), policy));
    Cost cost;
    if (executable) {
      cost.arena = executable->programs.front().arenaBytes;
      for (const Step &step : executable->programs.front().steps)
        if (const auto *gemm = std::get_if<GemmStep>(&step.action))
          cost.products += gemm->batch * gemm->m * gemm->n * gemm->k;
    }
    return cost;
  };
  Cost none = cost("none"), selective = cost("selective"), full = cost("full");
  EXPECT_LT(selective.arena, none.arena);
  EXPECT_LT(full.arena, 0.5 * static_cast<double>(selective.arena));
  EXPECT_EQ(selective.products, none.products);
  // A forward pass more, of three.
  EXPECT_GT(static_cast<double>(full.products), 1.2 * static_cast<double>(none.products));
}

} // namespace
