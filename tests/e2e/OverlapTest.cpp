//===- OverlapTest.cpp - when gradients are summed -------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// All gradients at the end, layer by layer, in buckets of any size: the same bits, and
// the same bytes in as many collectives as there are buckets.
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <numeric>

using namespace cleave;
using namespace cleave::e2e;

namespace {

struct How {
  std::string name, sentence;
  int sums; ///< of gradients over dp, with two layers
};
std::ostream &operator<<(std::ostream &os, const How &how) { return os << how.name; }

class Overlap : public ::testing::TestWithParam<How> {
protected:
  static Model model(const std::string &sentence) {
    Model m = gpt2();
    size_t at = m.text.find("  shard batch by dp\n");
    m.text.insert(at, "  " + sentence + "\n");
    return m;
  }
  /// `dpTp` of Support.h: no axis divides what it splits.
  static std::shared_ptr<const Executable> with(const std::string &sentence) {
    CompileOptions options = trainStep(DType::F32);
    options.overlapWorth = 0;
    return compiled(model(sentence), dpTp(), options);
  }
  static std::vector<Tensors> trained(std::shared_ptr<const Executable> executable) {
    auto session = started(std::move(executable));
    if (!session)
      return {};
    setParams(*session, oracle("gpt2/weights.safetensors"));
    std::vector<Tensors> all;
    for (int64_t i = 0; i < 3; ++i)
      all.push_back(ran(*session, "train_step", oracle("gpt2/inputs.safetensors"),
                        {{"seed", int64_t(1)}, {"step", i}, {"lr", 1e-3}}));
    all.push_back(persistent(*session, true));
    return all;
  }
  /// Ring bytes and number of the sums over dp in the backward pass.
  static std::pair<int64_t, int64_t> sums(const Executable &e) {
    int64_t bytes = 0, count = 0;
    for (const CollectiveSite &site : e.programs[0].collectiveSites)
      if (site.axes == "dp" && site.phase == "backward") {
        count += site.executions;
        bytes += site.executions * site.ringBytes;
      }
    return {count, bytes};
  }
};

// 16 params in each of two layers, 4 others; that of positions is summed before it is
// scattered into its table, which is of the backward pass: it stays alone. A float is 4 bytes; the
// largest gradient of a rank is 800 elements.
INSTANTIATE_TEST_SUITE_P(Sums, Overlap,
                         ::testing::Values(How{"none", "overlap none", 36},
                                           How{"layers", "overlap layers", 36},
                                           How{"byte", "overlap bucketed(1B)", 36},
                                           How{"some", "overlap bucketed(1kB)", 0},
                                           How{"one_and_a_half", "overlap bucketed(4800B)", 0},
                                           How{"everything", "overlap bucketed(1GB)", 2}),
                         [](const auto &info) { return info.param.name; });

TEST_P(Overlap, ChangesNoBit) {
  auto plain = with("overlap layers"), other = with(GetParam().sentence);
  ASSERT_TRUE(plain && other);
  auto [count, bytes] = sums(*other);
  auto [plainCount, plainBytes] = sums(*plain);
  EXPECT_EQ(plainCount, 36);
  EXPECT_EQ(bytes, plainBytes);
  if (GetParam().sums) {
    EXPECT_EQ(count, GetParam().sums);
  } else {
    EXPECT_GT(count, 1);
    EXPECT_LT(count, 36);
  }
  std::vector<Tensors> want = trained(plain), got = trained(other);
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(sameBits(want[i], got[i])) << i;
}

/// `none`: the layers' are behind the last step of the backward pass, and not beside anything.
TEST(OverlapOf, NoneSumsAfterTheBackwardPass) {
  Model m = gpt2();
  m.text.insert(m.text.find("  shard batch by dp\n"), "  overlap none\n");
  CompileOptions options = trainStep(DType::F32);
  options.overlapWorth = 0;
  auto e = compiled(m, dpTp(), options);
  ASSERT_TRUE(e);
  const Program &p = e->programs[0];
  size_t first = p.steps.size(), last = 0;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    auto *c = std::get_if<CollectiveStep>(&p.steps[i].action);
    const CollectiveSite *site = c ? &p.collectiveSites[static_cast<size_t>(c->site)] : nullptr;
    if (site && site->phase == "backward" && site->axes == "dp" && site->executions == 2) {
      first = std::min(first, i);
      EXPECT_FALSE(c->begun) << i;
    } else if (std::holds_alternative<GemmStep>(p.steps[i].action)) {
      last = i;
    }
  }
  EXPECT_GT(first, last); // no product behind the sums
  // By layers: products lie behind the first sums, which run beside them.
  auto layers = compiled(gpt2(), dpTp(), options);
  ASSERT_TRUE(layers);
  bool begun = false;
  for (const Step &step : layers->programs[0].steps)
    if (auto *c = std::get_if<CollectiveStep>(&step.action))
      begun |= c->begun;
  EXPECT_TRUE(begun);
}

} // namespace
