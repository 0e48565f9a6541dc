//===- LayoutTest.cpp - random numbers are the same in every layout -------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

#include "runtime/core/Philox.h"

#include <cmath>

using namespace cleave;
using namespace cleave::e2e;

namespace {

std::string nameOf(const ::testing::TestParamInfo<Layout> &info) { return info.param.name; }

//===----------------------------------------------------------------------===//
// Initial weights
//===----------------------------------------------------------------------===//

class Weights : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(On, Weights, ::testing::ValuesIn(allLayouts()), nameOf);

TEST_P(Weights, InitialValuesAreBitEqual) {
  for (DType dtype : {DType::F32, DType::F64}) {
    Tensors values[2];
    for (bool sharded : {false, true}) {
      auto session =
          started(compiled(gpt2(), sharded ? GetParam() : oneRank(), forwardOf("loss", dtype)));
      ASSERT_TRUE(session);
      auto status = session->initialise(5);
      ASSERT_TRUE(status) << status.error().message;
      values[sharded] = persistent(*session);
    }
    EXPECT_EQ(values[0].size(), 20u);
    EXPECT_TRUE(sameBits(values[0], values[1])) << name(dtype);
  }
}

TEST(WeightsOf, SeedsAndPathsDiffer) {
  auto session = started(compiled(gpt2(), oneRank(), forwardOf("loss", DType::F32)));
  ASSERT_TRUE(session);
  ASSERT_TRUE(session->initialise(5));
  Tensors five = persistent(*session);
  ASSERT_TRUE(session->initialise(6));
  Tensors six = persistent(*session);
  EXPECT_NE(five.at("wte").data, six.at("wte").data);
  EXPECT_NE(five.at("body.wq").data, five.at("body.wk").data);
  EXPECT_EQ(five.at("body.b1").data, six.at("body.b1").data); // zeros
  // The layer is a part of the element's place.
  const HostTensor &wq = five.at("body.wq");
  std::string bytes(wq.data.begin(), wq.data.end());
  EXPECT_NE(bytes.substr(0, bytes.size() / 2), bytes.substr(bytes.size() / 2));
  double sum = 0, squares = 0;
  const HostTensor &w1 = five.at("body.w1");
  for (int64_t i = 0; i < w1.elements(); ++i) {
    sum += w1.as<float>()[i];
    squares += double(w1.as<float>()[i]) * w1.as<float>()[i];
  }
  double n = static_cast<double>(w1.elements()); // 3200, normal(0.02)
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n));
}

//===----------------------------------------------------------------------===//
// Dropout
//===----------------------------------------------------------------------===//

/// `inner` is split by tp, the others are not. What is dropped is doubled, so that
/// each name stands for an op outside of training too. Nothing else is ever 0.
Model masks() {
  return {R"(
model masks(width = 6, ffn = 10, layers = 3, rate = 0.3) {
  free batch, seq
  block layer(x: [batch, seq, width]) -> [batch, seq, width] {
    param w1: [width, ffn] = normal(1.0)
    param w2: [ffn, width] = normal(1.0)
    inner = 2.0 * dropout(x @ w1, rate)
    outer = 2.0 * dropout(x @ w1 @ w2, rate)
    return x
  }
  part body: layer[layers]
  fn forward(x: [batch, seq, width]) -> [batch, seq, width] {
    first = 2.0 * dropout(x, rate)
    repeat i in layers { x = body[i](x) }
    return first + x
  }
}
plan megatron for masks on (dp = 1, tp) { shard batch by dp; shard ffn by tp }
plan megatron_sp for masks on (dp = 1, tp) { shard batch by dp; shard ffn else seq by tp }
plan data for masks on (dp) { shard batch by dp }
)",
          {},
          {{"batch", 5}, {"seq", 9}}};
}

const std::vector<std::string> sites = {"tap:forward.first", "tap:body.inner", "tap:body.outer"};

class Dropout : public ::testing::TestWithParam<Layout> {
protected:
  static Tensors inputs() {
    HostTensor x(DType::F32, {5, 9, 6});
    for (int64_t i = 0; i < x.elements(); ++i)
      x.as<float>()[i] = 1.0f + 0.01f * static_cast<float>(i % 17);
    return {{"x", x}};
  }
  static Tensors values(const Layout &layout, bool training, int64_t seed = 3, int64_t step = 4) {
    CompileOptions options = forwardOf("forward", DType::F32, training);
    for (const std::string &site : sites)
      options.taps.push_back(site.substr(4));
    auto session = started(compiled(masks(), layout, options));
    if (!session || !session->initialise(1))
      return {};
    return ran(*session, "forward", inputs(), {{"seed", seed}, {"step", step}});
  }
  /// One character for each element: kept or not.
  static std::string mask(const Tensors &all, const std::string &site) {
    auto found = all.find(site);
    if (found == all.end()) {
      ADD_FAILURE() << "no " << site;
      return "";
    }
    std::string text;
    for (int64_t i = 0; i < found->second.elements(); ++i)
      text += found->second.as<float>()[i] == 0 ? '.' : 'x';
    return text;
  }
};
INSTANTIATE_TEST_SUITE_P(On, Dropout, ::testing::ValuesIn(allLayouts()), nameOf);

TEST_P(Dropout, MasksAreBitEqual) {
  Tensors expected = values(oneRank(), true), found = values(GetParam(), true);
  for (const std::string &site : sites)
    EXPECT_EQ(mask(expected, site), mask(found, site)) << site;
  EXPECT_TRUE(sameBits({{"x", expected.at(sites[0])}}, {{"x", found.at(sites[0])}}));
}

TEST_P(Dropout, NothingIsDroppedOutsideOfTraining) {
  Tensors all = values(GetParam(), false);
  for (const std::string &site : sites)
    EXPECT_EQ(mask(all, site).find('.'), std::string::npos) << site;
}

TEST_F(Dropout, KeepsTheRateAndTheScale) {
  Tensors dropped = values(oneRank(), true), whole = values(oneRank(), false);
  for (const std::string &site : sites) {
    const HostTensor &a = dropped.at(site), &b = whole.at(site);
    double n = static_cast<double>(a.elements()), kept = 0;
    for (int64_t i = 0; i < a.elements(); ++i)
      if (float value = a.as<float>()[i]; value != 0) {
        ++kept;
        EXPECT_NEAR(value, b.as<float>()[i] / 0.7, 1e-6 * std::abs(value)) << site << " " << i;
      }
    EXPECT_NEAR(kept / n, 0.7, 5 * std::sqrt(0.21 / n)) << site;
  }
}

/// Rows, halves of a split dim, layers, sites, steps and seeds have masks of
/// their own.
TEST_F(Dropout, MasksDiffer) {
  Tensors all = values(oneRank(), true);
  std::string first = mask(all, sites[0]), inner = mask(all, sites[1]), outer = mask(all, sites[2]);
  ASSERT_EQ(first.size(), 5u * 9 * 6);
  ASSERT_EQ(inner.size(), 3u * 5 * 9 * 10);
  ASSERT_EQ(outer.size(), 3u * 5 * 9 * 6);
  size_t row = 9 * 6, layer = 5 * 9 * 6;
  for (size_t i = 0; i < 5; ++i)
    for (size_t j = i + 1; j < 5; ++j)
      EXPECT_NE(first.substr(i * row, row), first.substr(j * row, row)) << i << " " << j;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NE(outer.substr(i * layer, layer), first) << i;
    EXPECT_NE(outer.substr(i * layer, layer), outer.substr((i + 1) % 3 * layer, layer)) << i;
  }
  // ffn's halves, which two tp ranks hold.
  std::string halves[2];
  for (size_t i = 0; i < inner.size(); ++i)
    halves[i % 10 / 5] += inner[i];
  EXPECT_NE(halves[0], halves[1]);
  EXPECT_NE(mask(values(oneRank(), true, 3, 5), sites[0]), first);
  EXPECT_NE(mask(values(oneRank(), true, 4, 4), sites[0]), first);
}

/// The documented function: Philox of the element's global index, the seed, the
/// step, the path of the site and the layer.
TEST_F(Dropout, MasksAreTheDocumentedFunction) {
  Tensors all = values(dpTp(), true);
  const char *paths[] = {"forward.dropout0", "body.dropout0", "body.dropout1"};
  for (size_t site = 0; site < 3; ++site) {
    std::string expected, found = mask(all, sites[site]);
    uint32_t layers = site == 0 ? 1 : 3;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      Philox random(3, 4, siteHash(paths[site]), layer);
      for (size_t i = 0; i < found.size() / layers; ++i)
        expected += random.uniform(i) >= 0.3 ? 'x' : '.';
    }
    EXPECT_EQ(found, expected) << sites[site];
  }
}

/// Attention's probabilities included: the loss and all gradients with dropout.
class DropoutOfGpt2 : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(On, DropoutOfGpt2,
                         ::testing::Values(tp(2), tp(3), dp(2), dpTp(), sequence(2)), nameOf);

TEST_P(DropoutOfGpt2, GradientsAreOneRanks) {
  Tensors results[2];
  for (bool sharded : {false, true}) {
    auto session =
        started(compiled(gpt2With("dropout_rate", "0.3"), sharded ? GetParam() : oneRank(),
                         gradientsOf("loss", DType::F64, true)));
    ASSERT_TRUE(session);
    setParams(*session, oracle("gpt2/weights.safetensors"));
    results[sharded] = ran(*session, "loss_grads", oracle("gpt2/inputs.safetensors"),
                           {{"seed", int64_t(9)}, {"step", int64_t(2)}});
  }
  double without = number(oracle("gpt2/expected_f64.safetensors"), "loss");
  EXPECT_GT(std::abs(number(results[0], "loss") - without), 1e-3);
  EXPECT_TRUE(close(results[0], results[1], 1e-11));
}

} // namespace
