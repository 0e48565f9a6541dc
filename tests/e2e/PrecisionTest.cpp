//===- PrecisionTest.cpp - training in bf16 and f16 -----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <algorithm>
#include <cmath>

using namespace cleave;
using namespace cleave::e2e;

namespace {

CompileOptions in(CompileOptions options, DType compute, DType reduce = DType::F32) {
  options.precision = checked::Precision{compute, reduce};
  return options;
}

Tensors gradients(const Model &model, const Layout &layout, const CompileOptions &options) {
  auto session = started(compiled(model, layout, options));
  if (!session)
    return {};
  setParams(*session, oracle("gpt2/weights.safetensors"));
  return ran(*session, "loss_grads", oracle("gpt2/inputs.safetensors"));
}

double at(const HostTensor &t, int64_t i) { return elementAsDouble(t.dtype, t.data.data(), i); }

/// The root of the sum of the squares of a - b.
double apart(const HostTensor &a, const HostTensor &b) {
  double sum = 0;
  for (int64_t i = 0; i < a.elements(); ++i)
    sum += (at(a, i) - at(b, i)) * (at(a, i) - at(b, i));
  return std::sqrt(sum);
}

//===----------------------------------------------------------------------===//
// Against PyTorch, which rounds in the same places (tests/oracles/make_precision.py)
//===----------------------------------------------------------------------===//

struct Oracle {
  const char *file;
  DType compute, reduce;
};

class PyTorch : public ::testing::TestWithParam<Oracle> {};
INSTANTIATE_TEST_SUITE_P(Of, PyTorch,
                         ::testing::Values(Oracle{"mixed_bf16", DType::BF16, DType::F32},
                                           Oracle{"mixed_bf16_parts", DType::BF16, DType::BF16},
                                           Oracle{"mixed_f16", DType::F16, DType::F32}),
                         [](const auto &info) { return std::string(info.param.file); });

/// A value whose last float32 bits differ may be rounded to its other neighbour, now and then:
/// the difference stays a small part of what rounding makes.
TEST_P(PyTorch, RoundsInTheSamePlaces) {
  Tensors exact = oracle("gpt2/expected_f64.safetensors");
  Tensors want = oracle("gpt2/" + std::string(GetParam().file) + ".safetensors");
  Tensors found =
      gradients(gpt2(), oneRank(),
                in(gradientsOf("loss", DType::F32), GetParam().compute, GetParam().reduce));
  ASSERT_EQ(found.size(), 21u);
  EXPECT_NEAR(number(found, "loss"), number(want, "loss"), 1e-5);
  EXPECT_GT(std::abs(number(want, "loss") - number(exact, "loss")), 1e-4);
  for (const auto &[name, value] : found) {
    if (name == "loss" || name == "grad:body.bk") // zero in mathematics: rounding alone
      continue;
    std::string other = "grad." + name.substr(5);
    ASSERT_TRUE(want.count(other)) << other;
    EXPECT_EQ(value.dtype, DType::F32) << name;
    EXPECT_LE(apart(value, want.at(other)), 0.15 * apart(want.at(other), exact.at(other))) << name;
  }
}

//===----------------------------------------------------------------------===//
// Sharded against one rank
//===----------------------------------------------------------------------===//

struct Split {
  std::string name, sentences;
  std::vector<std::pair<std::string, int64_t>> mesh;
};

class Splits : public ::testing::TestWithParam<Split> {
protected:
  static Model model(const std::string &sentences) {
    Model model = gpt2With("dropout_rate", "0.1");
    model.sizes["batch"] = 4;
    bool tensors = sentences.find("by tp") != sentences.npos;
    model.text += std::string("\nplan chosen for gpt2 on (dp") + (tensors ? ", tp" : "") +
                  ") { shard batch by dp; " + sentences + " }\n";
    return model;
  }
  static Tensors inputs() {
    HostTensor tokens(DType::I32, {4, 7}), labels(DType::I32, {4, 7});
    for (int64_t i = 0; i < 28; ++i) {
      tokens.as<int32_t>()[i] = int32_t((i * i + 3) % 37);
      labels.as<int32_t>()[i] = i % 5 ? int32_t((i * 7 + 1) % 37) : -100;
    }
    return {{"tokens", tokens}, {"labels", labels}};
  }
  static Tensors trained(const Model &model, const Layout &layout, DType dtype) {
    OptimizerSettings sgd;
    sgd.kind = "sgd";
    sgd.momentum = 0.9;
    CompileOptions options = trainStep(dtype, sgd);
    options.overlapWorth = 0;
    options.optLevel = 0;
    auto session = started(compiled(model, layout, options));
    if (!session)
      return {};
    setParams(*session, oracle("gpt2/weights.safetensors"));
    Tensors results;
    for (int64_t step = 0; step < 2; ++step)
      results = ran(*session, "train_step", inputs(),
                    {{"seed", int64_t(3)}, {"step", step}, {"lr", 0.1}});
    results.merge(persistent(*session, true));
    for (const char *scale : {"loss_scale", "loss_scale.steps"})
      results.erase(scale);
    return results;
  }
};

const std::string bf16 = "precision bf16 master f32 reduce f32; ";
const std::string bf16Parts = "precision bf16 master f32 reduce bf16; ";
const std::string f16 = "precision f16 master f32 reduce f32; ";
const std::string tensor = "shard heads, ffn, vocab by tp; ";

INSTANTIATE_TEST_SUITE_P(
    Of, Splits,
    ::testing::Values(
        Split{"tp2", bf16 + tensor, {{"dp", 1}, {"tp", 2}}},
        Split{"tp3", bf16 + tensor, {{"dp", 1}, {"tp", 3}}}, Split{"dp2", bf16, {{"dp", 2}}},
        Split{"tp2_parts", bf16Parts + tensor, {{"dp", 1}, {"tp", 2}}},
        Split{"dp2_parts", bf16Parts, {{"dp", 2}}},
        Split{"dp2_parts_accumulate", bf16Parts + "accumulate 2", {{"dp", 2}}},
        Split{"dp2_parts_zero2", bf16Parts + "zero 2 over dp", {{"dp", 2}}},
        Split{"dp2_f16", f16, {{"dp", 2}}},
        Split{"sequence", bf16 + "shard heads, ffn, vocab else seq by tp", {{"dp", 1}, {"tp", 2}}},
        Split{"zero1", bf16 + "zero 1 over dp", {{"dp", 2}}},
        Split{"zero2_buckets", bf16 + "zero 2 over dp; overlap bucketed(1kB)", {{"dp", 2}}},
        Split{"zero3", bf16 + "zero 3 over dp", {{"dp", 2}}},
        Split{"zero3_tp2_full",
              bf16 + tensor + "zero 3 over dp; recompute full",
              {{"dp", 2}, {"tp", 2}}},
        Split{"accumulate", bf16 + "accumulate 2; recompute none", {{"dp", 2}}}),
    [](const auto &info) { return info.param.name; });

TEST_P(Splits, AreAsGoodAsOneRank) {
  Model split = model(GetParam().sentences);
  size_t end = GetParam().sentences.find(';') + 1;
  Model whole = model(GetParam().sentences.substr(0, end)); // the precision alone
  Layout one{"one", "chosen", {{"dp", 1}}};
  Tensors exact = trained(whole, one, DType::F64), reference = trained(whole, one, DType::F32);
  ASSERT_EQ(exact.size(), 2 + 2 * 20u);
  Tensors found = trained(split, {"split", "chosen", GetParam().mesh}, DType::F32);
  double unit = GetParam().sentences.rfind(f16, 0) == 0 ? 0x1p-11 : 0x1p-8;
  EXPECT_TRUE(asGood(exact, reference, found, unit));
  // The layout itself, to the last bits: float64 leaves precision out.
  EXPECT_TRUE(
      close(exact, trained(split, {"split", "chosen", GetParam().mesh}, DType::F64), 1e-11));
}

//===----------------------------------------------------------------------===//
// Small integers: no sum rounds, in any order
//===----------------------------------------------------------------------===//

const char *integers = R"(
model ints(width = 6, ffn = 10, layers = 2) {
  free batch
  block layer(x: [batch, width]) -> [batch, width] {
    param up: [width, ffn] = zeros
    param bias: [ffn] = zeros
    param down: [ffn, width] = zeros
    return x + relu(x @ up + bias) @ down
  }
  part body: layer[layers]
  fn loss(x, target: [batch, width]) -> f32 {
    y = x
    repeat i in layers { y = body[i](y) }
    return sum(y * target)
  }
}
plan bf16 for ints on (dp, tp) { shard batch by dp; shard ffn by tp; precision bf16 master f32 reduce f32 }
plan parts for ints on (dp, tp) { shard batch by dp; shard ffn by tp; precision bf16 master f32 reduce bf16 }
plan lean for ints on (dp, tp) { shard batch by dp; shard ffn else width by tp; zero 3 over dp; precision bf16 master f32 reduce f32 }
)";

TEST(PrecisionExactly, SplitSumsOfIntegersAreTheSameBits) {
  Model model{integers, {}, {{"batch", 5}}};
  auto run = [&](const Layout &layout) -> Tensors {
    auto session = started(compiled(model, layout, gradientsOf("loss", DType::F32)));
    if (!session)
      return {};
    auto fill = [](HostTensor &t, int64_t salt) {
      for (int64_t i = 0; i < t.elements(); ++i)
        t.as<float>()[i] = float((i * i + 3 * i + salt) % 7 == 0) - float((i * 5 + salt) % 11 == 0);
    };
    Tensors params{{"body.up", HostTensor(DType::F32, {2, 6, 10})},
                   {"body.bias", HostTensor(DType::F32, {2, 10})},
                   {"body.down", HostTensor(DType::F32, {2, 10, 6})}};
    int64_t salt = 1;
    for (auto &[name, value] : params)
      fill(value, salt++);
    setParams(*session, params);
    Tensors inputs{{"x", HostTensor(DType::F32, {5, 6})},
                   {"target", HostTensor(DType::F32, {5, 6})}};
    for (auto &[name, value] : inputs)
      fill(value, salt++);
    return ran(*session, "loss_grads", inputs);
  };
  Tensors want = run(oneRank());
  ASSERT_EQ(want.size(), 4u);
  EXPECT_GT(largest(want.at("grad:body.up")), 1);
  for (const char *plan : {"bf16", "parts", "lean"})
    for (auto [dp, tp] : {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}})
      EXPECT_TRUE(sameBits(want, run({"", plan, {{"dp", dp}, {"tp", tp}}})))
          << plan << " dp=" << dp << " tp=" << tp;
}

//===----------------------------------------------------------------------===//
// The scale of the loss
//===----------------------------------------------------------------------===//

class LossScale : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(On, LossScale, ::testing::Values(oneRank(), dp(2), tp(3)),
                         [](const auto &info) { return info.param.name; });

/// 2^24 times the loss overflows in f16, whichever rank sees it.
TEST_P(LossScale, IsHalvedUntilTheGradientsFitAndDoubledAgain) {
  OptimizerSettings adamw;
  adamw.lossScale = 0x1p24;
  adamw.lossScaleSteps = 3;
  auto session =
      started(compiled(gpt2(), GetParam(), in(trainStep(DType::F32, adamw), DType::F16)));
  ASSERT_TRUE(session);
  setParams(*session, oracle("gpt2/weights.safetensors"));
  auto state = [&](const char *name) { return number(persistent(*session, true), name); };
  int64_t skipped = 0, taken = 0;
  double scale = 0x1p24;
  for (int64_t step = 0; step < 16; ++step) {
    Tensors before = persistent(*session, true);
    Tensors results = ran(*session, "train_step", oracle("gpt2/inputs.safetensors"),
                          {{"seed", int64_t(1)}, {"step", step}, {"lr", 1e-3}});
    ASSERT_FALSE(results.empty());
    EXPECT_TRUE(std::isfinite(number(results, "loss")));
    Tensors after = persistent(*session, true);
    if (std::isfinite(number(results, "gradient_norm"))) {
      ++taken;
      if (taken % 3 == 0 && skipped)
        scale *= 2;
      EXPECT_FALSE(sameBits(before, after));
      // The gradient's own norm, whatever the scale; it falls as the model learns.
      if (taken == step - skipped + 1 && taken == 1)
        EXPECT_NEAR(number(results, "gradient_norm"), 12.33, 0.1);
      EXPECT_LT(number(results, "gradient_norm"), 12.5);
    } else {
      ++skipped;
      taken = 0;
      scale /= 2;
      for (Tensors *values : {&before, &after})
        for (const char *name : {"loss_scale", "loss_scale.steps"})
          values->erase(name);
      EXPECT_TRUE(sameBits(before, after)) << "a step that is skipped changes nothing else";
    }
    EXPECT_EQ(state("loss_scale"), scale) << "behind step " << step;
  }
  EXPECT_GT(skipped, 2);
  EXPECT_GT(state("adam.t"), 3);
  EXPECT_EQ(state("adam.t"), 16 - double(skipped));
}

/// Powers of 2 in front of a gradient that no f16 in between is too small or too large for.
TEST(LossScale, IsTakenOutOfTheGradientsAgain) {
  auto step = [&](double scale) -> Tensors {
    OptimizerSettings sgd;
    sgd.kind = "sgd";
    sgd.lossScale = scale;
    sgd.clip = 1;
    auto session = started(compiled(gpt2(), oneRank(), in(trainStep(DType::F32, sgd), DType::F16)));
    if (!session)
      return {};
    setParams(*session, oracle("gpt2/weights.safetensors"));
    Tensors results = ran(*session, "train_step", oracle("gpt2/inputs.safetensors"),
                          {{"seed", int64_t(1)}, {"step", int64_t(0)}, {"lr", 0.1}});
    results.merge(persistent(*session));
    return results;
  };
  Tensors want = step(4096);
  ASSERT_EQ(want.size(), 22u);
  EXPECT_TRUE(close(want, step(8192), 2e-3));
  EXPECT_NEAR(number(want, "gradient_norm"), 12.33, 0.05);
}

//===----------------------------------------------------------------------===//
// What it is for
//===----------------------------------------------------------------------===//

struct Cost {
  double arena = 0, ring = 0;
};
Cost costOf(const Layout &layout, std::optional<checked::Precision> precision) {
  Model model = gpt2();
  for (auto &[name, value] : model.settings)
    if (name == "layers")
      value = "6";
  model.sizes = {{"batch", 16}, {"seq", 11}};
  CompileOptions options = trainStep(DType::F32);
  options.precision = precision;
  auto executable = compiled(model, layout, options);
  Cost cost;
  if (!executable)
    return cost;
  cost.arena = double(executable->programs[0].arenaBytes);
  for (const CollectiveSite &site : executable->programs[0].collectiveSites)
    cost.ring += double(site.ringBytes * site.executions);
  return cost;
}

TEST(PrecisionCosts, ActivationsTakeHalfTheMemoryAndShortSumsHalfTheBytes) {
  checked::Precision wide{DType::BF16, DType::F32}, narrow{DType::BF16, DType::BF16};
  Cost full = costOf(oneRank(), {}), mixed = costOf(oneRank(), wide);
  EXPECT_LT(mixed.arena, 0.7 * full.arena);
  for (const Layout &layout : {dp(2), tp(2)}) {
    double f32 = costOf(layout, {}).ring, f32Sums = costOf(layout, wide).ring;
    EXPECT_EQ(f32, f32Sums) << layout;
    double shortSums = costOf(layout, narrow).ring;
    EXPECT_LT(shortSums, 0.55 * f32) << layout;
    EXPECT_GT(shortSums, 0.45 * f32) << layout;
  }
}

/// Sixty steps of the model as it comes, on the bytes of a text, from any places in it.
TEST(PrecisionTraining, FollowsFloat32) {
  constexpr int64_t rows = 8, positions = 64;
  Model model{
      readText(sourcePath("models/gpt2.cleave")), {}, {{"batch", rows}, {"seq", positions}}};
  std::string text = readText(sourcePath("LICENSE"));
  auto losses = [&](std::optional<checked::Precision> precision) {
    CompileOptions options = trainStep(DType::F32);
    options.precision = precision;
    std::vector<double> all;
    auto session = started(compiled(model, oneRank(), options));
    if (!session || !session->initialise(1))
      return all;
    for (int64_t step = 0; step < 60; ++step) {
      HostTensor tokens(DType::I32, {rows, positions}), labels(DType::I32, {rows, positions});
      for (int64_t i = 0; i < rows * positions; ++i) {
        int64_t row = step * rows + i / positions;
        auto at =
            static_cast<size_t>(row * 7919 % (std::ssize(text) - positions - 1) + i % positions);
        tokens.as<int32_t>()[i] = static_cast<unsigned char>(text[at]);
        labels.as<int32_t>()[i] = static_cast<unsigned char>(text[at + 1]);
      }
      Tensors results = ran(*session, "train_step", {{"tokens", tokens}, {"labels", labels}},
                            {{"seed", int64_t(1)}, {"step", step}, {"lr", 1e-3}});
      all.push_back(number(results, "loss"));
    }
    return all;
  };
  std::vector<double> want = losses({});
  ASSERT_EQ(want.size(), 60u);
  EXPECT_LT(want.back(), 0.75 * want.front());
  for (DType type : {DType::BF16, DType::F16}) {
    std::vector<double> found = losses(checked::Precision{type, DType::F32});
    ASSERT_EQ(found.size(), 60u);
    for (size_t i = 0; i < 60; ++i)
      EXPECT_NEAR(found[i], want[i], 0.01 * want[i]) << name(type) << " step " << i;
    EXPECT_NE(found, want);
  }
}

} // namespace
