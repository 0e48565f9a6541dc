//===- AutoTest.cpp - whatever the search may choose computes the same ----===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The programs of the generator under plans that say `auto`, on clusters so different that the
// search comes to very different shardings: from links of 0.1 GB/s and 1 ms to 400 GB/s without
// latency. Beside `auto` stand some of the plan's rules, its `zero` and pins, and more pins of
// dims and params at random: with these, most of what may be chosen is chosen at some time. What
// ops split is also drawn at random, in place of what the search takes.
//
//===----------------------------------------------------------------------===//
#include "ir/Auto.h"
#include "passes/search/Search.h"
#include "tests/generated/Compared.h"

#include <cmath>
#include <iostream>
#include <random>
#include <set>

using namespace cleave;
using namespace cleave::testing;

namespace {

class Chance {
public:
  explicit Chance(uint64_t seed) : random(seed * 0x9E3779B97F4A7C15ull + 77) {}
  size_t pick(size_t n) { return random() % n; }
  double real() { return static_cast<double>(random() >> 11) * 0x1p-53; }
  bool chance(double p) { return real() < p; }
  template <typename T> const T &oneOf(const std::vector<T> &list) {
    return list[pick(list.size())];
  }
  /// Even in the logarithm.
  double between(double least, double most) { return least * std::pow(most / least, real()); }

private:
  std::mt19937_64 random;
};

std::string randomCluster(Chance &random) {
  auto number = [&](double least, double most) {
    return std::to_string(random.between(least, most));
  };
  auto level = [&](const std::string &ranks) {
    return R"({"name": "link", )" + ranks + R"("latency_us": )" +
           (random.chance(0.2) ? "0" : number(0.01, 1000)) + R"(, "bandwidth_gb_per_s": )" +
           number(0.1, 400) + "}";
  };
  std::string levels =
      random.chance(0.25) ? level(R"("ranks": 2, )") + ", " + level("") : level("");
  return R"({"name": "random", "levels": [)" + levels + R"(], "compute": {"peak_gflops": )" +
         number(1e-3, 1000) + R"(, "memory_gb_per_s": )" + number(1e-2, 1000) + "}}";
}

/// 2, 3, 4, 2x2, 2x3 or 2x2x2 ranks; the axes that the program's rules and pins speak of are kept.
MeshAttr randomMesh(MeshAttr old, Chance &random) {
  std::vector<int64_t> sizes =
      random.oneOf(old.getNames().size() == 1
                       ? std::vector<std::vector<int64_t>>{{2}, {3}, {4}, {2, 2}, {2, 3}}
                       : std::vector<std::vector<int64_t>>{{2, 2}, {2, 3}, {3, 2}, {2, 2, 2}});
  llvm::SmallVector<mlir::StringAttr> names(old.getNames());
  for (mlir::Builder b(&context()); names.size() < sizes.size();)
    names.insert(names.begin() + random.pick(names.size() + 1),
                 b.getStringAttr("more" + std::to_string(names.size())));
  return MeshAttr::get(&context(), names, sizes);
}

/// `auto` in place of the plan that the generator makes.
Generated generateAuto(uint64_t seed, int steps) {
  Generated program = generate(seed, steps);
  Chance random(seed);
  mlir::ModuleOp module = *program.module;
  mlir::Builder b(&context());
  auto function = module.lookupSymbol<mlir::func::FuncOp>("loss");
  MeshAttr mesh = randomMesh(module->getAttrOfType<MeshAttr>(kMeshAttr), random);
  module->setAttr(kMeshAttr, mesh);
  // An axis, or a part of one of 4 ranks.
  auto axis = [&] {
    size_t i = random.pick(mesh.getNames().size());
    std::string name = mesh.getNames()[i].str();
    if (mesh.getSizes()[i] == 4 && random.chance(0.5))
      name += random.chance(0.5) ? ":(1)2" : ":(2)2";
    return b.getStringAttr(name);
  };
  llvm::SmallVector<mlir::Attribute> rules, homes, nevers;
  for (mlir::Attribute rule : module->getAttrOfType<mlir::ArrayAttr>(kPlanAttr))
    if (random.chance(0.25))
      rules.push_back(rule);
  module->setAttr(kPlanAttr, b.getArrayAttr(rules));
  if (module->hasAttr(kZeroAttr) && random.chance(0.6))
    module->removeAttr(kZeroAttr);

  // `at [DIMS]: shard DIM by AXIS`, or `replicate over AXIS`.
  std::set<std::vector<std::string>> classes;
  bool compound = false;
  function.walk([&](mlir::Operation *op) {
    for (mlir::Value v : op->getResults())
      if (auto type = llvm::dyn_cast<NamedTensorType>(v.getType())) {
        std::vector<std::string> names;
        for (mlir::StringAttr name : type.getNames())
          names.push_back(name.str());
        std::sort(names.begin(), names.end());
        compound |= type.hasDim("kv") && type.hasDim("group");
        if (!names.empty())
          classes.insert(names);
      }
  });
  for (const std::vector<std::string> &names : classes)
    if (random.chance(0.25)) {
      mlir::StringAttr by = axis();
      llvm::SmallVector<mlir::Attribute> said;
      if (random.chance(0.7))
        said.push_back(ShardRuleAttr::get(
            b.getContext(),
            {b.getArrayAttr({b.getArrayAttr({b.getStringAttr(random.oneOf(names))})})}, {by}));
      llvm::SmallVector<llvm::StringRef> refs(names.begin(), names.end());
      homes.push_back(
          b.getArrayAttr({b.getStrArrayAttr(refs), b.getArrayAttr(said), b.getArrayAttr({by})}));
    }

  // `at PARAM: zero LEVEL over AXES`, `never KIND PARAM`.
  for (unsigned i = 0; i < function.getNumArguments(); ++i) {
    if (function.getArgAttrOfType<mlir::StringAttr>(i, kRole).getValue() != "param")
      continue;
    if (random.chance(0.15)) {
      int64_t level = static_cast<int64_t>(random.pick(4));
      llvm::SmallVector<mlir::Attribute> over;
      if (level)
        over.push_back(axis());
      function.setArgAttr(i, kPinZero,
                          b.getArrayAttr({b.getI64IntegerAttr(level), b.getArrayAttr(over)}));
    }
    if (random.chance(0.1))
      nevers.push_back(
          b.getArrayAttr({b.getStringAttr(random.oneOf(std::vector<std::string>{
                              "all_reduce", "all_gather", "reduce_scatter", "all_to_all"})),
                          function.getArgAttrOfType<mlir::StringAttr>(i, kName)}));
  }

  mlir::NamedAttrList settings;
  settings.set(kAutoCluster, b.getStringAttr(randomCluster(random)));
  settings.set(kAutoHomes, b.getArrayAttr(homes));
  if (!nevers.empty())
    settings.set(kAutoNever, b.getArrayAttr(nevers));
  if (compound && random.chance(0.5))
    settings.set(kAutoCompounds, b.getArrayAttr({b.getStrArrayAttr({"kv", "group"})}));
  if (random.chance(0.1))
    settings.set(kAutoMemory,
                 b.getI64IntegerAttr(static_cast<int64_t>(random.between(500, 50000))));
  module->setAttr(kAutoAttr, settings.getDictionary(b.getContext()));
  return program;
}

/// What the search decided, over all programs.
struct Shown {
  int splitParams = 0, gatheredParams = 0, sumsLate = 0, factors = 0;
  void print() const {
    std::cout << splitParams << " params are split, " << gatheredParams
              << " of them gathered for their readers\n";
  }
};

void look(mlir::ModuleOp module, Shown &shown) {
  for (auto f : module.getOps<mlir::func::FuncOp>())
    for (unsigned i = 0; i < f.getNumArguments(); ++i)
      if (f.getArgAttrOfType<mlir::StringAttr>(i, kRole).getValue() == "param") {
        auto sharding = f.getArgAttrOfType<ShardingAttr>(i, kSharding);
        shown.splitParams +=
            sharding && llvm::any_of(sharding.getDims(), [](auto axes) { return !axes.empty(); });
        shown.gatheredParams += f.getArgAttr(i, kReadAs) != nullptr;
      }
}

/// Puts ops' axes on other factors than the search has: on any that it might have taken.
void shuffleFactors(mlir::ModuleOp module, Chance &random, Shown &shown) {
  auto context = ShardingContext::create(module);
  if (failed(context))
    return;
  llvm::StringSet<> layers;
  module.walk([&](RepeatOp repeat) { layers.insert(repeat.getDim()); });
  module.walk([&](ShardableOpInterface op) {
    ShardingRule rule = op.getShardingRule();
    auto list = op->getAttrOfType<mlir::ArrayAttr>(kFactors);
    if (!list || list.size() != rule.factors.size() || rule.results.empty() || !random.chance(0.5))
      return;
    bool chosen = false; // others go as their result does
    std::vector<int> may;
    for (auto [f, factor] : llvm::enumerate(rule.factors)) {
      bool whole = factor.kind == FactorKind::Blocked || factor.kind == FactorKind::Partial;
      chosen |= !whole && (factor.kind != FactorKind::Parallel ||
                           !llvm::is_contained(rule.results[0], static_cast<int>(f)));
      if (!whole && !layers.contains(factor.name))
        may.push_back(static_cast<int>(f));
    }
    if (!chosen || may.empty())
      return;
    std::vector<llvm::SmallVector<int, 2>> factors(rule.factors.size());
    for (int atom = 0; atom < static_cast<int>(context->getAtoms().size()); ++atom) {
      if (random.chance(0.2))
        continue;
      int f = random.oneOf(may);
      auto more = factors[f];
      more.push_back(atom);
      if (context->block(rule.factors[f].size, more) <
          context->block(rule.factors[f].size, factors[f]))
        factors[f] = more;
    }
    llvm::SmallVector<mlir::Attribute> lists;
    for (auto &atoms : factors)
      lists.push_back(context->axes(atoms));
    auto made = mlir::ArrayAttr::get(module.getContext(), lists);
    shown.factors += made != list;
    op->setAttr(kFactors, made);
  });
}

void expectVaried(const Tally &tally, const Shown &shown) {
  tally.print();
  shown.print();
  if (std::getenv("CLEAVE_PROGRAMS"))
    return;
  EXPECT_LT(tally.refused * 5, tally.programs);
  EXPECT_GT(shown.splitParams, tally.programs / 2);
  for (const char *kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
    EXPECT_GT(tally.collectives.at(std::string("cleave.") + kind), tally.programs / 20) << kind;
}

std::string checkGradients(uint64_t seed, int steps, Tally *tally, Shown &shown, bool shuffled) {
  Generated program = generateAuto(seed, steps);
  std::string wrong;
  auto gradients = differentiated(*program.module, wrong);
  if (!wrong.empty())
    return wrong;
  Chance random(seed ^ 0x5bd1e995);
  auto sharded = shardedCopy(gradients, tally, wrong, [&](mlir::ModuleOp module) {
    look(module, shown);
    if (shuffled)
      shuffleFactors(module, random, shown);
  });
  if (!sharded)
    return wrong;
  std::vector<Array> wanted = runOne(gradients, program.args, wrong);
  if (!wrong.empty())
    return wrong;
  wrong = compareResults(*sharded, program.args, wanted);
  return wrong.empty() ? "" : wrong + "\n" + textOf(*sharded);
}

TEST(Auto, GradientsAgree) {
  Tally tally;
  Shown shown;
  Check check = [&](uint64_t seed, int steps) {
    return checkGradients(seed, steps, steps < 0 ? &tally : nullptr, shown, false);
  };
  forSeeds(environment("CLEAVE_PROGRAMS", 250), "Auto.Gradients*", check, generateAuto);
  expectVaried(tally, shown);
}

/// The optimum takes some factors seldom: here any is taken as often as another.
TEST(Auto, AnyFactorsAgree) {
  Tally tally;
  Shown shown;
  Check check = [&](uint64_t seed, int steps) {
    return checkGradients(seed, steps, steps < 0 ? &tally : nullptr, shown, true);
  };
  forSeeds(environment("CLEAVE_PROGRAMS", 250), "Auto.AnyFactors*", check, generateAuto);
  expectVaried(tally, shown);
  std::cout << shown.factors << " ops are split otherwise than the search does\n";
  if (!std::getenv("CLEAVE_PROGRAMS"))
    EXPECT_GT(shown.factors, tally.programs);
}

TEST(Auto, TrainingStepsAgree) {
  Tally tally;
  Shown shown;
  Check check = [&](uint64_t seed, int steps) -> std::string {
    Generated program = generateAuto(seed, steps);
    std::string wrong;
    auto gradients = differentiated(*program.module, wrong);
    if (!wrong.empty())
      return wrong;
    OptimizerOptions optimizer;
    optimizer.kind = seed % 3 ? "adamw" : "sgd";
    optimizer.momentum = seed % 2 ? 0.9 : 0;
    auto step = addOptimizer(gradients, optimizer);
    if (failed(step))
      return "there is no training step";
    auto loss = program.module->lookupSymbol<mlir::func::FuncOp>("loss");
    std::vector<Array> args = trainingArguments(loss, *step, program.args, seed);
    auto sharded = shardedCopy(*step, steps < 0 ? &tally : nullptr, wrong,
                               [&](mlir::ModuleOp module) { look(module, shown); });
    if (!sharded)
      return wrong;
    std::vector<Array> wanted = runOne(*step, args, wrong);
    if (!wrong.empty())
      return wrong;
    wrong = compareResults(*sharded, args, wanted);
    return wrong.empty() ? "" : wrong + "\n" + textOf(*sharded);
  };
  forSeeds(environment("CLEAVE_PROGRAMS", 250), "Auto.Training*", check, generateAuto);
  expectVaried(tally, shown);
  if (!std::getenv("CLEAVE_PROGRAMS"))
    EXPECT_GT(shown.gatheredParams, 0);
}

} // namespace
