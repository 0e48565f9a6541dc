//===- GeneratedTest.cpp - random programs, sharded and not ---------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// To see one seed again, or to try others:
//   CLEAVE_SEED=17 CLEAVE_PROGRAMS=1 cleave_generated_tests --gtest_filter='Generated.*'
//
//===----------------------------------------------------------------------===//
#include "passes/differentiate/Differentiate.h"
#include "passes/sharding/Mutate.h"
#include "passes/sharding/Sharding.h"
#include "tests/generated/Generator.h"

#include "mlir/IR/PatternMatch.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Transforms/RegionUtils.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <set>

using namespace cleave;
using namespace cleave::testing;

namespace {

uint64_t environment(const char *name, uint64_t otherwise) {
  const char *text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

uint64_t firstSeed() { return environment("CLEAVE_SEED", 1); }

/// What a check of one program says: empty, or what is wrong.
using Check = std::function<std::string(uint64_t seed, int steps)>;

/// Shows the shortest prefix of the program that fails.
void report(uint64_t seed, const std::string &what, const Check &check, const std::string &test) {
  std::string message = what;
  int shortest = stepsOf(seed);
  for (int steps = 0; steps < shortest; ++steps) {
    std::string shorter = check(seed, steps);
    if (!shorter.empty()) {
      message = shorter;
      shortest = steps;
      break;
    }
  }
  Generated program = generate(seed, shortest);
  ADD_FAILURE() << "seed " << seed << ": " << message << "\nits first " << shortest
                << " steps, which fail so:\n"
                << textOf(*program.module) << "\nrerun: CLEAVE_SEED=" << seed
                << " CLEAVE_PROGRAMS=1 cleave_generated_tests --gtest_filter='" << test << "'";
}

/// Runs `count` seeds; stops after three failures.
void forSeeds(uint64_t count, const std::string &test, const Check &check) {
  int failures = 0;
  for (uint64_t seed = firstSeed(); seed < firstSeed() + count && failures < 3; ++seed) {
    std::string wrong = check(seed, -1);
    if (wrong.empty())
      continue;
    ++failures;
    report(seed, wrong, check, test);
  }
}

/// Collects diagnostics instead of printing them.
struct Messages {
  std::string text;
  mlir::ScopedDiagnosticHandler handler{&context(), [this](mlir::Diagnostic &d) {
                                          if (d.getSeverity() == mlir::DiagnosticSeverity::Error)
                                            text += d.str() + "\n";
                                          return mlir::success();
                                        }};
};

/// Runs globally; an error message in `wrong` when it fails.
std::vector<Array> runOne(mlir::func::FuncOp f, const std::vector<Array> &args, std::string &wrong,
                          bool native = true) {
  std::vector<PerRankArrays> all;
  for (const Array &a : args)
    all.push_back({a});
  InterpretOptions options;
  options.perRank = false;
  options.nativeComposites = native;
  auto results = interpret(f, all, options);
  std::vector<Array> out;
  if (!results) {
    wrong = results.error().message;
    return out;
  }
  for (PerRankArrays &r : *results)
    out.push_back(std::move(r[0]));
  return out;
}

double largest(const Array &a) {
  double most = 0;
  for (int64_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(a.number(i)));
  return most;
}

/// Where two arrays differ by more than the tolerance (times the larger of 1, the
/// array's and a part of the program's largest number); empty if nowhere.
std::string difference(const Array &got, const Array &wanted, double tolerance, double scale) {
  if (got.shape != wanted.shape || got.integer != wanted.integer)
    return "it has another shape";
  double allowed = tolerance * std::max({1.0, largest(wanted), scale});
  for (int64_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got.number(i) - wanted.number(i)) <= allowed))
      return "element " + std::to_string(i) + " is " + std::to_string(got.number(i)) +
             ", should be " + std::to_string(wanted.number(i)) +
             " (allowed: " + std::to_string(allowed * 1e12) + "e-12)";
  return "";
}

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

/// Expands and differentiates; an error message in `wrong` when it fails.
mlir::func::FuncOp differentiated(mlir::ModuleOp module, std::string &wrong) {
  Messages messages;
  if (failed(expandComposites(module))) {
    wrong = "expanding failed: " + messages.text;
    return {};
  }
  auto made = differentiate(module.lookupSymbol<mlir::func::FuncOp>("loss"));
  if (failed(made) || failed(mlir::verify(module))) {
    wrong = "differentiating failed: " + messages.text;
    return {};
  }
  return *made;
}

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

/// The tensor type that an argument or result of a per-rank function is a part of.
NamedTensorType layoutOf(mlir::func::FuncOp f, unsigned i) {
  auto layouts = f->getAttrOfType<mlir::ArrayAttr>(kLayouts);
  return llvm::cast<NamedTensorType>(llvm::cast<mlir::TypeAttr>(layouts[i]).getValue());
}

/// Runs the per-rank function on the shards of global arguments, and joins the
/// results. Padding starts as NaN, but that of params and states as zeros, and what
/// is given back for those must have zeros there again.
std::vector<Array> runSharded(mlir::func::FuncOp f, const std::vector<Array> &args,
                              std::string &wrong) {
  MeshAttr mesh = meshOf(f);
  std::vector<PerRankArrays> shards;
  std::vector<Array> out;
  std::set<int64_t> donated;
  for (auto [i, arg] : llvm::enumerate(args)) {
    auto role = f.getArgAttrOfType<mlir::StringAttr>(i, kRole).getValue();
    Padding padding = role == "input" ? Padding::Poison : Padding::Zero;
    shards.push_back(shardArray(arg, layoutOf(f, i), mesh, padding));
    if (auto to = f.getArgAttrOfType<mlir::IntegerAttr>(i, kDonatedTo)) {
      donated.insert(to.getInt());
      if (layoutOf(f, i) != layoutOf(f, args.size() + to.getInt()))
        wrong = "argument " + std::to_string(i) + " is replaced by a result that lies elsewhere";
    }
  }
  InterpretOptions options;
  options.perRank = true;
  auto results = interpret(f, shards, options);
  if (!results)
    wrong = results.error().message;
  if (!wrong.empty())
    return out;
  for (auto [i, result] : llvm::enumerate(*results)) {
    NamedTensorType layout = layoutOf(f, args.size() + i);
    auto whole = assembleArray(result, layout, mesh);
    if (!whole) {
      wrong = "result " + std::to_string(i) + ": " + whole.error().message;
      return out;
    }
    if (donated.contains(static_cast<int64_t>(i))) {
      PerRankArrays clean = shardArray(*whole, layout, mesh, Padding::Zero);
      for (auto [rank, local] : llvm::enumerate(result))
        if (local.reals != clean[rank].reals)
          wrong = "result " + std::to_string(i) + " has no zeros in its padding on rank " +
                  std::to_string(rank);
    }
    out.push_back(std::move(*whole));
  }
  return out;
}

/// "dim 'kv' of size 3 ..." -> "dim '_' of size # ...", to count refusals by kind.
std::string kindOf(std::string message) {
  std::string kind;
  bool quoted = false;
  for (char c : message.substr(0, message.find('\n'))) {
    if (c == '\'')
      quoted = !quoted;
    if (quoted && c != '\'')
      continue;
    if (std::isdigit(static_cast<unsigned char>(c))) {
      if (kind.empty() || kind.back() != '#')
        kind += '#';
      continue;
    }
    kind += c;
  }
  return kind;
}

/// What happened to many programs.
struct Tally {
  int programs = 0, refused = 0, extents = 0, subAxes = 0;
  std::map<std::string, int> refusals, collectives;

  void print() const {
    std::cout << programs << " programs, " << refused << " refused\n";
    for (auto &[why, times] : refusals)
      std::cout << "  refused " << times << ": " << why << "\n";
    for (auto &[name, times] : collectives)
      std::cout << "  " << times << " " << name << "\n";
    std::cout << "  " << extents << " extents of uneven shards; sub-axes in " << subAxes
              << " programs\n";
  }
};

/// The sharded version of a module's one function: null when refused (counted) or
/// when `wrong` says why.
mlir::OwningOpRef<mlir::ModuleOp> shardedCopy(mlir::func::FuncOp f, Tally *tally,
                                              std::string &wrong) {
  mlir::OwningOpRef<mlir::ModuleOp> sharded = f->getParentOfType<mlir::ModuleOp>().clone();
  for (auto other : llvm::make_early_inc_range(sharded->getOps<mlir::func::FuncOp>()))
    if (other.getSymName() != f.getSymName())
      other.erase();
  Messages messages;
  if (tally)
    ++tally->programs;
  if (failed(shardModule(*sharded))) {
    if (messages.text.empty())
      wrong = "refused without a message";
    if (tally) {
      ++tally->refused;
      ++tally->refusals[kindOf(messages.text)];
    }
    return {};
  }
  if (failed(mlir::verify(*sharded))) {
    wrong = "the sharded program does not verify: " + messages.text + textOf(*sharded);
    return {};
  }
  auto local = *sharded->getOps<mlir::func::FuncOp>().begin();
  if (!local->hasAttr(kLayouts)) {
    wrong = "the sharded function has no layouts";
    return {};
  }
  if (tally) {
    bool sub = false;
    local.walk([&](mlir::Operation *op) {
      if (llvm::isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp>(op)) {
        ++tally->collectives[op->getName().getStringRef().str()];
        for (mlir::Attribute axis : op->getAttrOfType<mlir::ArrayAttr>("axes"))
          sub |= llvm::cast<AxisAttr>(axis).getSize() != 0;
      }
      tally->extents += llvm::isa<ShardExtentOp>(op);
    });
    tally->subAxes += sub;
  }
  return sharded;
}

/// Runs the sharded module and compares with what the global function gave.
std::string compareResults(mlir::ModuleOp sharded, const std::vector<Array> &args,
                           const std::vector<Array> &wanted) {
  auto local = *sharded.getOps<mlir::func::FuncOp>().begin();
  std::string wrong;
  std::vector<Array> got = runSharded(local, args, wrong);
  if (!wrong.empty())
    return wrong;
  if (got.size() != wanted.size())
    return "it has another number of results";
  double scale = 0;
  for (const Array &a : wanted)
    scale = std::max(scale, largest(a));
  for (size_t i = 0; i < wanted.size(); ++i) {
    wrong = difference(got[i], wanted[i], 1e-11, scale * 1e-3);
    if (!wrong.empty()) {
      auto name = local.getResultAttrOfType<mlir::StringAttr>(i, kName);
      return "result " + std::to_string(i) + " (" + (name ? name.str() : "") + "): " + wrong;
    }
  }
  return "";
}

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

/// Arguments of `train_step`: those of the program by name, states that are not
/// zero, a learning rate.
std::vector<Array> trainingArguments(mlir::func::FuncOp loss, mlir::func::FuncOp step,
                                     const std::vector<Array> &args, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<std::string, Array> byName;
  for (unsigned i = 0; i < args.size(); ++i)
    byName[loss.getArgAttrOfType<mlir::StringAttr>(i, kName).str()] = args[i];
  std::vector<Array> out;
  for (unsigned i = 0; i < step.getNumArguments(); ++i) {
    std::string name = step.getArgAttrOfType<mlir::StringAttr>(i, kName).str();
    auto type = tensorOf(step.getArgument(i));
    if (auto found = byName.find(name); found != byName.end()) {
      out.push_back(found->second);
      continue;
    }
    Array a = Array::zeros(shapeOf(type), !type.isFloat());
    for (double &x : a.reals)
      x = name == "lr" ? 0.01 : 0.1 + static_cast<double>(random() >> 11) * 0x1p-53;
    for (int64_t &x : a.ints)
      x = 3;
    out.push_back(std::move(a));
  }
  return out;
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
