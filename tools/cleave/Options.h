//===- Options.h - what the commands' options have in common ----*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Each option is spelt, described and checked here, once, for all commands.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/Compile.h"
#include "runtime/core/DType.h"
#include "runtime/core/Result.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cleave::tool {

/// The text of an option as the user wrote it; empty or 0: not given.
struct CommonOptions {
  std::string file;
  std::string model, function, plan, dtype, out, recompute, gathered, precision, emulate, cluster;
  std::vector<std::string> settings, mesh, dims;
  int64_t batch = 0, seq = 0, accumulate = 0, ranks = 0;
  uint64_t seed = 0;
  int threads = 0;
  std::string offloadDirectory;
  bool json = false, quiet = false;

  DType elementType() const { return dtype == "f64" ? DType::F64 : DType::F32; }
  /// What --precision says (sums over ranks are f32 then), else the plan, else f32: none. Fails
  /// where --precision stands beside --dtype f64.
  Result<checked::Precision> precisionUnder(const CheckedProgram &program,
                                            const std::string &planName) const;
};

/// The optimizer of a training step, as the command line has it.
struct OptimizerChoice {
  OptimizerSettings settings;
  double lr = 0; ///< 0: the optimizer's own
  std::vector<std::string> groups, frozen;

  /// The settings, with the groups. Fails if an option belongs to the other optimizer, or if one
  /// is given and nothing is trained.
  Result<OptimizerSettings> chosen(bool trains = true) const;
  /// Fails if an option has no effect in this precision.
  Status suits(const checked::Precision &precision) const;
  /// Whether the user wrote the option.
  bool given(const std::string &option) const;
  double rate() const { return rate(settings.kind); }
  double rate(std::string_view kind) const { return lr > 0 ? lr : kind == "sgd" ? 0.1 : 1e-3; }
  /// The options that say what a training step computes: an executable has them already.
  static const std::vector<std::string> &compiled();
  const CLI::App *app = nullptr;
};

/// How the learning rate goes from step to step.
struct RateSchedule {
  std::string kind = "constant"; ///< "constant", "linear" or "cosine"
  int64_t warmup = 0;
  double least = 0;

  /// Fails if the settings contradict each other or one has no effect.
  Status check(const CLI::App *app, int64_t steps, double peak) const;
  /// Of a step, counted from 1: peak * step / warmup up to `warmup`; behind it, with p going from
  /// 0 at `warmup` to 1 at `steps`, least + (peak - least) * f(p), f(p) = 1 - p (linear),
  /// (1 + cos(pi p)) / 2 (cosine; arXiv 1608.03983 without restarts), or peak (constant).
  double at(int64_t step, int64_t steps, double peak) const;
};

/// The program's commands, each with what it does once its options are read.
struct Commands {
  CLI::App &app;
  std::vector<std::pair<CLI::App *, std::function<Status()>>> list;

  /// `examples`: lines for the end of --help.
  CLI::App *add(const std::string &name, const std::string &what, const std::string &examples);
  void action(CLI::App *command, std::function<Status()> run) {
    list.emplace_back(command, std::move(run));
  }
};

void addFile(CLI::App *app, CommonOptions &o, bool executables);
void addModel(CLI::App *app, CommonOptions &o); ///< --model --set --dtype
void addPlan(CLI::App *app, CommonOptions &o);  ///< --plan --mesh
void addTrainingPlan(CLI::App *app,
                     CommonOptions &o); ///< --accumulate --recompute --gathered --precision
void addPrecision(CLI::App *app, CommonOptions &o); ///< --precision
void addMesh(CLI::App *app, CommonOptions &o);      ///< --mesh --ranks
/// --cluster; `what` it says a profile for.
void addCluster(CLI::App *app, CommonOptions &o,
                const std::string &what = "what a plan that says auto is to be fast on");
void addSizes(CLI::App *app, CommonOptions &o); ///< --batch --seq --dim
void addFunction(CLI::App *app, CommonOptions &o, const std::string &fallback);
void addSeed(CLI::App *app, CommonOptions &o);
void addOffload(CLI::App *app, CommonOptions &o); ///< --offload-dir
void addThreads(CLI::App *app, CommonOptions &o);
void addEmulate(CLI::App *app, CommonOptions &o);
void addOutput(CLI::App *app, CommonOptions &o);              ///< --json --quiet
void addOptimizer(CLI::App *app, OptimizerChoice &o);         ///< --optimizer
void addRate(CLI::App *app, OptimizerChoice &o);              ///< --lr
void addSchedule(CLI::App *app, RateSchedule &o);             ///< --schedule --warmup --min-lr
void addOptimizerSettings(CLI::App *app, OptimizerChoice &o); ///< the rest of compiled()

/// Fails if one of the options is given: it has no effect, `where` says with what.
Status requireNone(const CLI::App *app, const std::vector<std::string> &options,
                   const std::string &where);

/// "; did you mean 'x'?" or nothing, for the end of a message.
std::string meant(const std::string &word, const std::vector<std::string> &candidates);

/// Validators with a near match in the message.
CLI::Validator oneOf(std::vector<std::string> words);
CLI::Validator wholeNumber(int64_t least, int64_t most);
CLI::Validator realNumber(double least, double most);

/// "a=1,b=2" and several of these: pairs in order. `flag` is for messages.
Result<std::vector<std::pair<std::string, std::string>>>
parsePairs(const std::string &flag, const std::vector<std::string> &texts);
Result<std::vector<std::pair<std::string, int64_t>>>
parseSizes(const std::string &flag, const std::vector<std::string> &texts);
/// "24GiB", "80GB", "1.5TiB", or bytes.
Result<int64_t> parseBytes(const std::string &flag, const std::string &text);
/// "a,b": its words; empty ones are errors.
Result<std::vector<std::string>> parseList(const std::string &flag, const std::string &text);

void addTrain(Commands &commands);
void addRun(Commands &commands);
void addCheck(Commands &commands);
void addCompare(Commands &commands);
void addExplain(Commands &commands);
void addInit(Commands &commands);
void addInspect(Commands &commands);
void addCalibrate(Commands &commands);
void addDoctor(Commands &commands);
void addCompile(Commands &commands);
void addPlan(Commands &commands);

} // namespace cleave::tool
