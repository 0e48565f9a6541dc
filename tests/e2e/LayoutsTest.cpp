//===- LayoutsTest.cpp - all of a plan's sentences together ----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// 150 layouts in which every value of a setting meets every value of every other:
// after one step and after five, the loss, the gradient's norm, weights and moments are
// one rank's, in float64, or in the plan's precision as near to float64 as one rank's. A
// momentum after one step is the gradient itself. Dropout is on; rows have unequal numbers of
// valid labels, one has none.
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <array>
#include <random>
#include <set>

using namespace cleave;
using namespace cleave::e2e;

namespace {

/// Numbers of the choices of each setting.
enum Setting {
  Tensor,
  Sequence,
  Data,
  Zero,
  Accumulate,
  Recompute,
  Gathered,
  Overlap,
  Precision,
  Settings
};
constexpr std::array<int, Settings> choices = {4, 2, 3, 4, 3, 4, 2, 3, 4};
using Choice = std::array<int, Settings>;

constexpr size_t layouts = 150, perTest = 1;

/// `gathered kept` with `recompute full`.
bool refused(const Choice &c) { return c[Gathered] == 1 && c[Recompute] == 2; }

/// Pairs of choices first, then anything else.
std::vector<Choice> cover() {
  std::mt19937 random(7);
  std::set<std::array<int, 4>> open;
  for (int a = 0; a < Settings; ++a)
    for (int b = a + 1; b < Settings; ++b)
      for (int i = 0; i < choices[a]; ++i)
        for (int j = 0; j < choices[b]; ++j)
          open.insert({a, i, b, j});
  open.erase({Recompute, 2, Gathered, 1});
  std::vector<Choice> all;
  std::set<Choice> taken;
  while (all.size() < layouts) {
    Choice best{};
    int most = -1;
    for (int trial = 0; trial < 60; ++trial) {
      Choice c{};
      for (int s = 0; s < Settings; ++s)
        c[s] = int(random() % unsigned(choices[s]));
      int covered = 0;
      for (const auto &[a, i, b, j] : open)
        covered += c[a] == i && c[b] == j;
      if (covered > most && !taken.count(c) && !refused(c)) {
        most = covered;
        best = c;
      }
    }
    std::erase_if(open, [&](const std::array<int, 4> &p) {
      return best[size_t(p[0])] == p[1] && best[size_t(p[2])] == p[3];
    });
    taken.insert(best);
    all.push_back(best);
  }
  EXPECT_TRUE(open.empty());
  return all;
}

constexpr int64_t rows = 16, positions = 7;

/// By the choice: the sentence, and the unit of its type.
constexpr std::array<std::pair<const char *, double>, 4> precisions = {
    {{"", 0},
     {"; precision bf16 master f32 reduce f32", 0x1p-8},
     {"; precision bf16 master f32 reduce bf16", 0x1p-8},
     {"; precision f16 master f32 reduce f32", 0x1p-11}}};

std::string sentences(const Choice &c) {
  static const char *recompute[] = {"none", "selective", "full", "every(2)"};
  static const char *overlap[] = {"none", "layers", "bucketed(1kB)"};
  return std::string("shard batch by dp; shard heads, ffn, vocab ") +
         (c[Sequence] ? "else seq " : "") + "by tp; zero " + std::to_string(c[Zero]) +
         " over dp; accumulate " + std::to_string(1 << c[Accumulate]) + "; recompute " +
         recompute[c[Recompute]] + "; gathered " + (c[Gathered] ? "kept" : "again") + "; overlap " +
         overlap[c[Overlap]] + precisions[size_t(c[Precision])].first;
}

Model withPlan(const std::string &plan) {
  Model model = gpt2With("dropout_rate", "0.1");
  model.sizes["batch"] = rows;
  bool tensors = plan.find("by tp") != plan.npos;
  model.text += std::string("\nplan chosen for gpt2 on (dp") + (tensors ? ", tp" : "") + ") { " +
                plan + " }\n";
  return model;
}

Tensors inputs() {
  HostTensor tokens(DType::I32, {rows, positions}), labels(DType::I32, {rows, positions});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t p = 0; p < positions; ++p) {
      tokens.as<int32_t>()[r * positions + p] = int32_t((r * 11 + p * p * 5 + 3) % 37);
      bool valid = r != 5 && p < 1 + (r * 3) % positions;
      labels.as<int32_t>()[r * positions + p] = valid ? int32_t((r * 7 + p * 13 + 1) % 37) : -100;
    }
  return {{"tokens", tokens}, {"labels", labels}};
}

/// After one step, and after five.
std::vector<Tensors> trained(const Model &model, const Layout &layout, DType dtype) {
  OptimizerSettings sgd;
  sgd.kind = "sgd";
  sgd.momentum = 0.9;
  sgd.lossScale = 256;
  CompileOptions options = trainStep(dtype, sgd);
  options.overlapWorth = 0;
  options.optLevel = 0; // most of the time is the compiler's
  auto session = started(compiled(model, layout, options));
  if (!session)
    return {};
  setParams(*session, oracle("gpt2/weights.safetensors"));
  std::vector<Tensors> all;
  for (int64_t step = 0; step < 5; ++step) {
    Tensors results =
        ran(*session, "train_step", inputs(), {{"seed", int64_t(3)}, {"step", step}, {"lr", 0.1}});
    if (step == 0 || step == 4) {
      results.merge(persistent(*session, true));
      for (const char *name : {"loss_scale", "loss_scale.steps"})
        results.erase(name);
      all.push_back(std::move(results));
    }
  }
  return all;
}

class Layouts : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Of, Layouts, ::testing::Range(size_t(0), layouts / perTest));

TEST_P(Layouts, AreOneRank) {
  std::vector<Choice> all = cover();
  std::vector<Tensors> want = trained(withPlan(sentences({})), oneRank(), DType::F64);
  ASSERT_EQ(want.size(), 2u);
  ASSERT_EQ(want[0].size(), 2 + 2 * 20u);
  for (size_t i = GetParam() * perTest; i < (GetParam() + 1) * perTest; ++i) {
    const Choice &c = all[i];
    Layout layout{"", "chosen", {{"dp", int64_t(1) << c[Data]}, {"tp", 1 + c[Tensor]}}};
    layout.name = sentences(c) + " on dp=" + std::to_string(layout.mesh[0].second) +
                  ", tp=" + std::to_string(layout.mesh[1].second);
    auto [precision, unit] = precisions[size_t(c[Precision])];
    std::vector<Tensors> found =
        trained(withPlan(sentences(c)), layout, unit ? DType::F32 : DType::F64);
    ASSERT_EQ(found.size(), 2u) << layout.name;
    if (!unit) {
      EXPECT_TRUE(close(want[0], found[0], 1e-11)) << layout.name;
      EXPECT_TRUE(close(want[1], found[1], 1e-11)) << layout.name;
      continue;
    }
    std::vector<Tensors> one = trained(withPlan(std::string("shard batch by dp") + precision),
                                       {"one", "chosen", {{"dp", 1}}}, DType::F32);
    ASSERT_EQ(one.size(), 2u);
    EXPECT_TRUE(asGood(want[0], one[0], found[0], unit)) << layout.name;
    EXPECT_TRUE(asGood(want[1], one[1], found[1], unit)) << layout.name;
  }
}

} // namespace
