//===- Compared.cpp - a random program, sharded and not -------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "tests/generated/Compared.h"

#include "passes/sharding/Sharding.h"

#include "mlir/IR/Verifier.h"

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <random>
#include <set>

using namespace cleave;
using namespace cleave::testing;

uint64_t cleave::testing::environment(const char *name, uint64_t otherwise) {
  const char *text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

static uint64_t firstSeed() { return environment("CLEAVE_SEED", 1); }

/// Shows the shortest prefix of the program that fails.
static void report(uint64_t seed, const std::string &what, const Check &check,
                   const std::string &test, const Make &make) {
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
  Generated program = make(seed, shortest);
  ADD_FAILURE() << "seed " << seed << ": " << message << "\nits first " << shortest
                << " steps, which fail so:\n"
                << textOf(*program.module) << "\nrerun: CLEAVE_SEED=" << seed
                << " CLEAVE_PROGRAMS=1 cleave_generated_tests --gtest_filter='" << test << "'";
}

void cleave::testing::forSeeds(uint64_t count, const std::string &test, const Check &check,
                               const Make &make) {
  int failures = 0;
  for (uint64_t seed = firstSeed(); seed < firstSeed() + count && failures < 3; ++seed) {
    std::string wrong = check(seed, -1);
    if (wrong.empty())
      continue;
    ++failures;
    report(seed, wrong, check, test, make);
  }
}

std::vector<Array> cleave::testing::runOne(mlir::func::FuncOp f, const std::vector<Array> &args,
                                           std::string &wrong, bool native) {
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

double cleave::testing::largest(const Array &a) {
  double most = 0;
  for (int64_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(a.number(i)));
  return most;
}

std::string cleave::testing::difference(const Array &got, const Array &wanted, double tolerance,
                                        double scale) {
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

mlir::func::FuncOp cleave::testing::differentiated(mlir::ModuleOp module, std::string &wrong) {
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

/// The tensor type that an argument or result of a per-rank function is a part of.
static NamedTensorType layoutOf(mlir::func::FuncOp f, unsigned i) {
  auto layouts = f->getAttrOfType<mlir::ArrayAttr>(kLayouts);
  return llvm::cast<NamedTensorType>(llvm::cast<mlir::TypeAttr>(layouts[i]).getValue());
}

/// Runs the per-rank function on the shards of global arguments, and joins the
/// results. Padding starts as NaN, but that of params and states as zeros, and what
/// is given back for those must have zeros there again.
static std::vector<Array> runSharded(mlir::func::FuncOp f, const std::vector<Array> &args,
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
static std::string kindOf(std::string message) {
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

void Tally::print() const {
  std::cout << programs << " programs, " << refused << " refused\n";
  for (auto &[why, times] : refusals)
    std::cout << "  refused " << times << ": " << why << "\n";
  for (auto &[name, times] : collectives)
    std::cout << "  " << times << " " << name << "\n";
  std::cout << "  " << extents << " extents of uneven shards; sub-axes in " << subAxes
            << " programs\n";
}

mlir::OwningOpRef<mlir::ModuleOp>
cleave::testing::shardedCopy(mlir::func::FuncOp f, Tally *tally, std::string &wrong,
                             const std::function<void(mlir::ModuleOp)> &change) {
  mlir::OwningOpRef<mlir::ModuleOp> sharded = f->getParentOfType<mlir::ModuleOp>().clone();
  for (auto other : llvm::make_early_inc_range(sharded->getOps<mlir::func::FuncOp>()))
    if (other.getSymName() != f.getSymName())
      other.erase();
  Messages messages;
  if (tally)
    ++tally->programs;
  auto shard = [&] {
    if (!change)
      return shardModule(*sharded);
    if (failed(assignShardings(*sharded)))
      return mlir::failure();
    change(*sharded);
    return mlir::success(succeeded(insertCollectives(*sharded)) &&
                         succeeded(maskPadding(*sharded)) && succeeded(verifyShardings(*sharded)) &&
                         succeeded(verifyPadding(*sharded)) && succeeded(partition(*sharded)));
  };
  if (failed(shard())) {
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

std::string cleave::testing::compareResults(mlir::ModuleOp sharded, const std::vector<Array> &args,
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

std::vector<Array> cleave::testing::trainingArguments(mlir::func::FuncOp loss,
                                                      mlir::func::FuncOp step,
                                                      const std::vector<Array> &args,
                                                      uint64_t seed) {
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
