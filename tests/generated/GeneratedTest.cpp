//===- GeneratedTest.cpp - random programs, sharded and not ---------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// To see one seed again, or to try others:
//   CLEAVE_SEED=17 CLEAVE_PROGRAMS=1 cleave_generated_tests --gtest_filter='Generated.*'
//
//===----------------------------------------------------------------------===//
#include "passes/sharding/Mutate.h"
#include "tests/generated/Compared.h"

#include "mlir/IR/PatternMatch.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Transforms/RegionUtils.h"

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

using namespace cleave;
using namespace cleave::testing;

namespace {

//===----------------------------------------------------------------------===//
// The generator and the interpreter
//===----------------------------------------------------------------------===//

TEST(Generated, ProgramsAreValidAndExpansionsAgree) {
  std::map<std::string, int> ops;
  Check check = [&](uint64_t seed, int steps) -> std::string {
    Messages messages;
    Generated program = generate(seed, steps);
    if (failed(mlir::verify(*program.module)))
      return messages.text;
    program.module->walk([&](mlir::Operation *op) { ++ops[op->getName().getStringRef().str()]; });
    std::string wrong;
    auto loss = program.module->lookupSymbol<mlir::func::FuncOp>("loss");
    std::vector<Array> native = runOne(loss, program.args, wrong);
    std::vector<Array> expanded = runOne(loss, program.args, wrong, false);
    for (size_t i = 0; i < native.size() && wrong.empty(); ++i) {
      if (!std::isfinite(largest(native[i])))
        return "result " + std::to_string(i) + " is not finite";
      // Constants of an f32 program are rounded in the expansions.
      bool doubles =
          tensorOf(loss.getBody().front().getTerminator()->getOperand(0)).getElementType().isF64();
      wrong = difference(expanded[i], native[i], doubles ? 1e-11 : 1e-5, 0);
      if (!wrong.empty())
        wrong = "result " + std::to_string(i) + ": " + wrong;
    }
    return wrong;
  };
  forSeeds(environment("CLEAVE_PROGRAMS", 300), "Generated.ProgramsAreValid*", check);
  if (!std::getenv("CLEAVE_PROGRAMS"))
    for (const char *op :
         {"add",           "mul",       "div",      "maximum", "exp",         "erf",   "select",
          "rename",        "reduce",    "contract", "gather",  "scatter_add", "slice", "pad",
          "layer_norm",    "rms_norm",  "softmax",  "gelu",    "dropout",     "rope",  "concat",
          "cross_entropy", "attention", "repeat",   "pin"})
      EXPECT_GT(ops[std::string("cleave.") + op], 0) << "no program has a " << op;
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

TEST(Generated, GradientsAgreeWithDifferences) {
  int kinks = 0, skipped = 0;
  uint64_t count = environment("CLEAVE_PROGRAMS", 300);
  Check check = [&](uint64_t seed, int steps) -> std::string {
    Generated program = generate(seed, steps);
    bool stops = false; // differences know nothing of a stopped gradient
    program.module->walk([&](StopGradientOp) { stops = true; });
    if (stops) {
      ++skipped;
      return "";
    }
    mlir::OwningOpRef<mlir::ModuleOp> copy = program.module->clone();
    std::string wrong;
    auto gradients = differentiated(*copy, wrong);
    if (!wrong.empty())
      return wrong;
    // The expanded original, so that f32 constants are the same.
    auto loss = copy->lookupSymbol<mlir::func::FuncOp>("loss");
    std::vector<Array> results = runOne(gradients, program.args, wrong);
    if (!wrong.empty())
      return wrong;
    // The slope along a random direction through all params.
    std::mt19937_64 random(seed);
    std::vector<Array> direction;
    double slope = 0, size = 0;
    size_t next = loss.getNumResults();
    std::vector<unsigned> params;
    for (unsigned i = 0; i < loss.getNumArguments(); ++i) {
      if (loss.getArgAttrOfType<mlir::StringAttr>(i, kRole).getValue() != "param")
        continue;
      params.push_back(i);
      Array along = program.args[i];
      const Array &gradient = results[next++];
      if (gradient.shape != along.shape)
        return "a gradient has another shape than its param";
      for (int64_t k = 0; k < along.size(); ++k) {
        along.reals[k] = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
        slope += along.reals[k] * gradient.reals[k];
        size += std::abs(along.reals[k] * gradient.reals[k]);
      }
      direction.push_back(std::move(along));
    }
    auto at = [&](double t) {
      std::vector<Array> moved = program.args;
      for (size_t p = 0; p < params.size(); ++p)
        for (int64_t k = 0; k < direction[p].size(); ++k)
          moved[params[p]].reals[k] += t * direction[p].reals[k];
      return runOne(loss, moved, wrong)[0].reals[0];
    };
    auto difference = [&](double h) {
      // Of fourth order.
      return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
    };
    double coarse = difference(4e-4), fine = difference(2e-4);
    double scale = std::max({1.0, size, std::abs(fine)});
    if (std::abs(coarse - fine) > 1e-7 * scale) {
      ++kinks; // a kink or a jump lies between
      return "";
    }
    if (!(std::abs(fine - slope) <= 1e-6 * scale))
      return "the slope is " + std::to_string(slope) + ", by differences " + std::to_string(fine) +
             "\n" + textOf(gradients);
    return "";
  };
  forSeeds(count, "Generated.Gradients*", check);
  std::cout << "of " << count << " programs, " << skipped << " stop gradients and " << kinks
            << " have a kink nearby: not compared\n";
  EXPECT_LE(kinks + skipped, static_cast<int>(count / 3));
}

//===----------------------------------------------------------------------===//
// Sharded and not
//===----------------------------------------------------------------------===//

/// The interpreter rounds nothing, so a program in mixed precision is the program, and its
/// gradients are, split or not: casts stand where they change neither sums nor shardings.
TEST(Generated, MixedPrecisionIsTheProgramButForRounding) {
  int lowered = 0, partial = 0;
  Check check = [&](uint64_t seed, int steps) -> std::string {
    Generated program = generate(seed, steps);
    mlir::OwningOpRef<mlir::ModuleOp> mixed = program.module->clone();
    mlir::Builder b(&context());
    auto bf16 = mlir::TypeAttr::get(b.getBF16Type());
    (*mixed)->setAttr(kPrecisionAttr, bf16);
    (*mixed)->setAttr(kReduceAttr, seed % 2 ? bf16 : mlir::TypeAttr::get(b.getF32Type()));
    std::string wrong;
    auto wanted = differentiated(*program.module, wrong);
    if (!wrong.empty())
      return wrong;
    Messages messages;
    if (failed(lowerPrecision(*mixed)) || failed(mlir::verify(*mixed)))
      return "lowering failed: " + messages.text + textOf(*mixed);
    auto gradients = differentiated(*mixed, wrong);
    if (!wrong.empty())
      return wrong;
    int casts = 0;
    gradients.walk([&](CastOp op) {
      casts += isShortFloat(op.getType().getElementType());
      partial += op.getPartial();
    });
    lowered += casts > 0;
    std::vector<Array> exact = runOne(wanted, program.args, wrong);
    std::vector<Array> found = runOne(gradients, program.args, wrong);
    double scale = 0;
    for (const Array &a : exact)
      scale = std::max(scale, largest(a));
    for (size_t i = 0; i < exact.size() && wrong.empty(); ++i)
      wrong = difference(found[i], exact[i], 1e-11, scale * 1e-3);
    if (!wrong.empty())
      return wrong + textOf(gradients);
    auto sharded = shardedCopy(gradients, nullptr, wrong);
    return sharded ? compareResults(*sharded, program.args, exact) : wrong;
  };
  forSeeds(environment("CLEAVE_PROGRAMS", 1000), "Generated.MixedPrecision*", check);
  if (!std::getenv("CLEAVE_PROGRAMS")) {
    EXPECT_GT(lowered, 100);
    EXPECT_GT(partial, 100);
  }
}

TEST(Generated, ShardedAgreesWithUnsharded) {
  Tally tally;
  Check check = [&](uint64_t seed, int steps) -> std::string {
    Generated program = generate(seed, steps);
    std::string wrong;
    auto gradients = differentiated(*program.module, wrong);
    if (!wrong.empty())
      return wrong;
    auto sharded = shardedCopy(gradients, steps < 0 ? &tally : nullptr, wrong);
    if (!sharded)
      return wrong;
    std::vector<Array> wanted = runOne(gradients, program.args, wrong);
    if (!wrong.empty())
      return wrong;
    wrong = compareResults(*sharded, program.args, wanted);
    return wrong.empty() ? "" : wrong + "\n" + textOf(*sharded);
  };
  forSeeds(environment("CLEAVE_PROGRAMS", 2000), "Generated.Sharded*", check);
  tally.print();
  EXPECT_LT(tally.refused * 10, tally.programs);
}

TEST(Generated, TrainingStepsAgree) {
  Tally tally;
  Check check = [&](uint64_t seed, int steps) -> std::string {
    Generated program = generate(seed, steps);
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
    auto sharded = shardedCopy(*step, steps < 0 ? &tally : nullptr, wrong);
    if (!sharded)
      return wrong;
    std::vector<Array> wanted = runOne(*step, args, wrong);
    if (!wrong.empty())
      return wrong;
    wrong = compareResults(*sharded, args, wanted);
    return wrong.empty() ? "" : wrong + "\n" + textOf(*sharded);
  };
  forSeeds(environment("CLEAVE_PROGRAMS", 300), "Generated.Training*", check);
  tally.print();
  EXPECT_LT(tally.refused * 10, tally.programs);
}

//===----------------------------------------------------------------------===//
// Whether these tests would notice
//===----------------------------------------------------------------------===//

TEST(Generated, FaultsAreNoticed) {
  int faults = 0, noticed = 0;
  std::map<std::string, int> unseen;
  Check check = [&](uint64_t seed, int steps) -> std::string {
    Generated program = generate(seed, steps);
    std::string wrong;
    auto gradients = differentiated(*program.module, wrong);
    if (!wrong.empty())
      return wrong;
    auto sharded = shardedCopy(gradients, nullptr, wrong);
    if (!sharded)
      return wrong;
    // A fault in what nothing reads is none.
    mlir::IRRewriter rewriter(&context());
    (void)mlir::runRegionDCE(rewriter, sharded->getOperation()->getRegions());
    int count = 0;
    std::vector<std::string> names;
    std::vector<bool> idempotent;
    sharded->walk([&](mlir::Operation *op) {
      if (llvm::isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp>(op)) {
        ++count;
        names.push_back(op->getName().getStringRef().str());
        auto reduction = op->getAttrOfType<ReductionAttr>("reduction");
        idempotent.push_back(reduction && reduction.getValue() != Reduction::Sum);
      }
    });
    if (count == 0)
      return "";
    std::vector<Array> wanted = runOne(gradients, program.args, wrong);
    std::mt19937_64 random(seed);
    for (std::string kind : {"drop", "double", "kind", "axis"}) {
      int n = static_cast<int>(random() % static_cast<uint64_t>(count));
      if (kind == "double" && idempotent[n])
        continue; // the maximum of a maximum is no fault
      mlir::OwningOpRef<mlir::ModuleOp> faulty = sharded->clone();
      Messages messages;
      if (failed(mutateCollective(*faulty, kind + ":" + std::to_string(n))))
        return "the fault cannot be put in: " + messages.text;
      ++faults;
      if (!compareResults(*faulty, program.args, wanted).empty())
        ++noticed;
      else {
        ++unseen[kind + " " + names[n]];
        if (std::getenv("CLEAVE_SHOW_UNSEEN"))
          std::cout << "unseen: seed " << seed << " " << kind << ":" << n << "\n"
                    << textOf(*sharded) << "\n";
      }
    }
    return wrong;
  };
  forSeeds(environment("CLEAVE_PROGRAMS", 150), "Generated.Faults*", check);
  std::cout << noticed << " of " << faults << " faults noticed\n";
  for (auto &[what, times] : unseen)
    std::cout << "  unseen " << times << ": " << what << "\n";
  // The rest: what is multiplied by a dropped element, a softmax's shift, zeros.
  EXPECT_GE(noticed, faults * 4 / 5);
}

} // namespace
