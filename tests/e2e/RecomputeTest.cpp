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
  for (const char *policy : {"selective", "full", "every(1)", "every(2)"}) {
    Tensors found = gradients(policy);
    EXPECT_TRUE(sameBits({{"loss", expected.at("loss")}}, {{"loss", found.at("loss")}})) << policy;
    EXPECT_TRUE(close(expected, found, 1e-12)) << policy;
  }
  bool splits = GetParam().name.rfind("dp", 0) == 0;
  EXPECT_TRUE(close(expected, gradients("full", splits ? 2 : 3), 1e-12));
  EXPECT_TRUE(close(expected, gradients("every(2)", splits ? 2 : 3), 1e-12));
}

/// Several groups of several layers, whose params ZeRO 3 has in shards.
TEST(RecomputeEvery, GroupsOfLayersChangeNothing) {
  auto trained = [](const std::string &policy, const Layout &layout) -> Tensors {
    Model model = gpt2With("dropout_rate", "0.3");
    for (auto &[name, value] : model.settings)
      if (name == "layers")
        value = "6";
    model.sizes["batch"] = 4;
    model.text += "\nplan lean for gpt2 on (dp) { shard batch by dp; zero 3 over dp }\n";
    auto session = started(compiled(model, layout, with(trainStep(DType::F64), policy)));
    if (!session)
      return {};
    EXPECT_TRUE(bool(session->initialise(11)));
    HostTensor tokens(DType::I32, {4, 7});
    for (int32_t i = 0; i < 28; ++i)
      tokens.as<int32_t>()[i] = (i * i + 3) % 37;
    Tensors results;
    for (int64_t step = 0; step < 2; ++step)
      results = ran(*session, "train_step", {{"tokens", tokens}, {"labels", tokens}},
                    {{"seed", int64_t(3)}, {"step", step}, {"lr", 0.01}});
    results.merge(persistent(*session, true));
    return results;
  };
  Tensors expected = trained("none", oneRank());
  ASSERT_GT(expected.size(), 40u);
  for (const char *policy : {"every(2)", "every(3)", "every(6)"}) {
    EXPECT_TRUE(close(expected, trained(policy, oneRank()), 1e-11)) << policy;
    EXPECT_TRUE(close(expected, trained(policy, Layout{"lean", "lean", {{"dp", 2}}}), 1e-9))
        << policy;
  }
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
  Cost none = cost("none"), selective = cost("selective"), full = cost("full"),
       every = cost("every(3)");
  EXPECT_LT(selective.arena, none.arena);
  EXPECT_LT(full.arena, 0.5 * static_cast<double>(selective.arena));
  EXPECT_LT(every.arena, selective.arena);
  // At most a whole forward pass more.
  EXPECT_GT(every.products, none.products);
  EXPECT_LE(3 * every.products, 4 * none.products);
  EXPECT_EQ(selective.products, none.products);
  // A forward pass more, of three.
  EXPECT_GT(static_cast<double>(full.products), 1.2 * static_cast<double>(none.products));
}

} // namespace
