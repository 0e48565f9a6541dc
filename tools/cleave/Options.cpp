//===- Options.cpp - what the commands' options have in common ------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Options.h"

#include "frontend/Checked.h"
#include "runtime/core/NearMatch.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <numbers>

namespace cleave::tool {

CLI::App *Commands::add(const std::string &name, const std::string &what,
                        const std::string &examples) {
  CLI::App *command = app.add_subcommand(name, what);
  command->footer("\nExamples:\n" + examples);
  command->get_formatter()->column_width(32);
  return command;
}

std::string meant(const std::string &word, const std::vector<std::string> &candidates) {
  return didYouMean(word, candidates);
}

template <typename T> static std::optional<T> parseNumber(const std::string &text) {
  T value = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

CLI::Validator oneOf(std::vector<std::string> words) {
  return CLI::Validator(
      [words](std::string &text) -> std::string {
        if (std::find(words.begin(), words.end(), text) != words.end())
          return {};
        return fmt::format("'{}' is none of {}{}", text, fmt::join(words, ", "),
                           didYouMean(text, words));
      },
      "");
}

CLI::Validator wholeNumber(int64_t least, int64_t most) {
  return CLI::Validator(
      [=](std::string &text) -> std::string {
        auto value = parseNumber<int64_t>(text);
        if (!value)
          return fmt::format("'{}' is no whole number", text);
        if (*value < least || *value > most)
          return fmt::format("{} is outside {} to {}", *value, least, most);
        text = std::to_string(*value); // no octal numbers
        return {};
      },
      "");
}

CLI::Validator realNumber(double least, double most) {
  return CLI::Validator(
      [=](std::string &text) -> std::string {
        auto value = parseNumber<double>(text);
        if (!value || !std::isfinite(*value))
          return fmt::format("'{}' is no number", text);
        if (*value < least || *value > most)
          return fmt::format("{} is outside {} to {}", *value, least, most);
        return {};
      },
      "");
}

void addFile(CLI::App *app, CommonOptions &o, bool executables) {
  app->add_option("FILE", o.file,
                  executables ? "a program (.cleave) or an executable (.cleavex)"
                              : "a program (.cleave)")
      ->required()
      ->type_name("");
}

void addModel(CLI::App *app, CommonOptions &o) {
  app->add_option("--model", o.model, "which model, when FILE has several")->type_name("NAME");
  app->add_option("--set", o.settings, "hyperparameters: --set layers=2 or --set layers=2,width=96")
      ->type_name("K=V")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  app->add_option("--dtype", o.dtype, "type of all that the program calls f32 (f32)")
      ->check(oneOf({"f32", "f64"}))
      ->type_name("WORD");
}

void addMesh(CLI::App *app, CommonOptions &o) {
  app->add_option("--mesh", o.mesh, "sizes of the plan's axes: dp=2,tp=2")
      ->type_name("AXIS=N")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  app->add_option("--ranks", o.ranks,
                  "for --plan auto in place of --mesh: so many ranks, on axes "
                  "x, y, z of the search's own")
      ->check(wholeNumber(1, 65536))
      ->excludes("--mesh")
      ->type_name("N");
}

void addCluster(CLI::App *app, CommonOptions &o, const std::string &what) {
  app->add_option("--cluster", o.cluster,
                  what + ": a profile of models/clusters (threads, ethernet, pcie, nvlink-8) or a "
                         "file (threads)")
      ->type_name("PROFILE");
}

void addPlan(CLI::App *app, CommonOptions &o) {
  app->add_option("--plan", o.plan,
                  "a plan of FILE, or FILE:NAME, or auto: searched for; or none: one rank (none)")
      ->type_name("NAME");
  addMesh(app, o);
}

void addTrainingPlan(CLI::App *app, CommonOptions &o) {
  app->add_option("--accumulate", o.accumulate,
                  "cut the batch of a training step into N micro-batches, one after the other (as "
                  "the plan says, else 1)")
      ->check(wholeNumber(1, 65536))
      ->type_name("N");
  app->add_option(
         "--recompute", o.recompute,
         "what of a layer its backward pass computes again: none, selective (elementwise "
         "values), full (only what enters it is saved) or every(N) (only what enters each N "
         "layers is) (as the plan says, else selective)")
      ->check(CLI::Validator(
          [](std::string &text) -> std::string {
            if (checked::layersOfEvery(text))
              return {};
            return oneOf({"none", "selective", "full", "every(N)"})(text);
          },
          ""))
      ->type_name("WORD");
  app->add_option("--gathered", o.gathered,
                  "what the forward pass gathers for products and the backward pass needs gathered "
                  "too: again, or kept in memory (as the plan says, else again)")
      ->check(oneOf({"again", "kept"}))
      ->type_name("WORD");
  addPrecision(app, o);
}

void addPrecision(CLI::App *app, CommonOptions &o) {
  app->add_option("--precision", o.precision,
                  "mixed precision: bf16 or f16, params learning in f32 and ranks adding in f32; "
                  "f32: none (as the plan says, else f32)")
      ->check(oneOf({"bf16", "f16", "f32"}))
      ->type_name("WORD");
}

Result<checked::Precision> CommonOptions::precisionUnder(const CheckedProgram &program,
                                                         const std::string &planName) const {
  constexpr checked::Precision none{DType::F32, DType::F32};
  if (precision.empty()) {
    const checked::Plan *plan = program.plan(planName);
    return plan && plan->precision && elementType() == DType::F32 ? *plan->precision : none;
  }
  if (elementType() == DType::F64)
    return Error{fmt::format("--precision {} has no effect with --dtype f64, which computes "
                             "everything in double: give --dtype f32",
                             precision)};
  return checked::Precision{*parseDType(precision), DType::F32};
}

void addSizes(CLI::App *app, CommonOptions &o) {
  app->add_option("--batch", o.batch, "rows, of all ranks together")
      ->check(wholeNumber(1, 1 << 30))
      ->type_name("N");
  app->add_option("--seq", o.seq, "tokens in a row")
      ->check(wholeNumber(1, 1 << 30))
      ->type_name("N");
  app->add_option("--dim", o.dims, "sizes of other free dims")
      ->type_name("NAME=N")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}

void addFunction(CLI::App *app, CommonOptions &o, const std::string &fallback) {
  auto *option =
      app->add_option("--fn", o.function,
                      fallback.empty() ? "the function" : "the function (" + fallback + ")")
          ->type_name("NAME");
  if (fallback.empty())
    option->required();
  else
    o.function = fallback;
}

void addSeed(CLI::App *app, CommonOptions &o) {
  app->add_option("--seed", o.seed, "of weights, data order and dropout (0)")
      ->check(wholeNumber(0, INT64_MAX))
      ->type_name("N");
}

void addThreads(CLI::App *app, CommonOptions &o) {
  app->add_option("--threads", o.threads, "of all ranks together (the usable cores)")
      ->check(wholeNumber(1, 4096))
      ->type_name("N");
}

void addOffload(CLI::App *app, CommonOptions &o) {
  app->add_option("--offload-dir", o.offloadDirectory,
                  "where the optimizer's state lies that a plan offloads (the system's folder for "
                  "temporary files)")
      ->type_name("DIR");
}

void addEmulate(CLI::App *app, CommonOptions &o) {
  app->add_option("--emulate", o.emulate,
                  "times on a cluster that is not here: a profile of models/clusters (ethernet, "
                  "nvlink-8) or a file; each rank computes on one thread and has a virtual clock")
      ->type_name("PROFILE");
}

void addOptimizer(CLI::App *app, OptimizerChoice &o) {
  o.app = app;
  app->add_option("--optimizer", o.settings.kind, "adamw or sgd (adamw)")
      ->check(oneOf({"adamw", "sgd"}))
      ->type_name("WORD");
}

void addRate(CLI::App *app, OptimizerChoice &o) {
  app->add_option("--lr", o.lr, "learning rate (adamw: 0.001, sgd: 0.1)")
      ->check(realNumber(1e-12, 1e6))
      ->type_name("X");
}

void addSchedule(CLI::App *app, RateSchedule &o) {
  app->add_option("--schedule", o.kind,
                  "of the learning rate behind the warm-up: constant, or linear or cosine decay to "
                  "--min-lr at the last step (constant)")
      ->check(oneOf({"constant", "linear", "cosine"}))
      ->type_name("WORD");
  app->add_option("--warmup", o.warmup, "steps in which the rate rises: --lr * step / N (0)")
      ->check(wholeNumber(0, 1LL << 31))
      ->type_name("N");
  app->add_option("--min-lr", o.least, "the rate of the last step (0)")
      ->check(realNumber(0, 1e6))
      ->type_name("X");
}

Status RateSchedule::check(const CLI::App *app, int64_t steps, double peak) const {
  if (kind == "constant")
    if (auto status = requireNone(app, {"--min-lr"}, "with --schedule constant"); !status)
      return status;
  if (warmup > steps)
    return Error{fmt::format("--warmup {} is more than the {} --steps", warmup, steps)};
  if (least > peak)
    return Error{fmt::format("--min-lr {:g} is above the learning rate, {:g}", least, peak)};
  return {};
}

double RateSchedule::at(int64_t step, int64_t steps, double peak) const {
  if (step < warmup)
    return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (kind == "constant" || step <= warmup)
    return peak;
  double p = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  double share = kind == "linear" ? 1 - p : (1 + std::cos(std::numbers::pi * p)) / 2;
  return least + (peak - least) * share;
}

void addOptimizerSettings(CLI::App *app, OptimizerChoice &o) {
  app->add_option("--momentum", o.settings.momentum, "of sgd (0)")
      ->check(realNumber(0, 1))
      ->type_name("X");
  app->add_option("--decay", o.settings.decay, "of adamw, decoupled (0.01)")
      ->check(realNumber(0, 1e3))
      ->type_name("X");
  app->add_flag("--decay-all", o.settings.decayAll, "decay norms and biases too");
  app->add_option("--clip", o.settings.clip,
                  "multiply the gradients by min(1, X / (norm + 1e-6)), norm that of all of them")
      ->check(realNumber(1e-12, 1e12))
      ->type_name("X");
  app->add_option("--loss-scale", o.settings.lossScale,
                  "the first scale of the loss, under precision f16 (65536)")
      ->check(realNumber(1, 0x1p24))
      ->type_name("X");
  app->add_option("--loss-scale-steps", o.settings.lossScaleSteps,
                  "steps with a finite gradient that double it (2000)")
      ->check(wholeNumber(1, 1LL << 31))
      ->type_name("N");
  auto list = [&](const char *name, std::vector<std::string> &into, const char *what) {
    return app->add_option(name, into, what)->expected(1)->take_all()->allow_extra_args(false);
  };
  list("--group", o.groups,
       "settings of the params whose names match: 'body.*:lr=0.1x,decay=0' (a tenth of the rate, "
       "no decay); of several that match the last counts")
      ->type_name("PATTERN:K=V");
  list("--freeze", o.frozen,
       "params that do not learn: 'body.*'; they have no gradient and no state")
      ->type_name("PATTERN");
}

const std::vector<std::string> &OptimizerChoice::compiled() {
  static const std::vector<std::string> options = {
      "--optimizer", "--momentum", "--decay",      "--decay-all",       "--clip",
      "--group",     "--freeze",   "--loss-scale", "--loss-scale-steps"};
  return options;
}

Status OptimizerChoice::suits(const checked::Precision &precision) const {
  for (const char *option : {"--loss-scale", "--loss-scale-steps"})
    if (given(option) && precision.compute != DType::F16)
      return Error{fmt::format("{} has no effect without precision f16", option)};
  return {};
}

bool OptimizerChoice::given(const std::string &option) const {
  return app && app->get_option_no_throw(option) && app->count(option) > 0;
}

Status requireNone(const CLI::App *app, const std::vector<std::string> &options,
                   const std::string &where) {
  for (const std::string &option : options)
    if (app->count(option) > 0)
      return Error{fmt::format("{} has no effect {}", option, where)};
  return {};
}

Result<OptimizerSettings> OptimizerChoice::chosen(bool trains) const {
  for (const std::string &option : compiled())
    if (!trains && given(option))
      return Error{fmt::format("{} belongs to --kind train", option)};
  bool sgd = settings.kind == "sgd";
  if (!sgd && given("--momentum"))
    return Error{"--momentum belongs to --optimizer sgd"};
  for (const char *option : {"--decay", "--decay-all"})
    if (sgd && given(option))
      return Error{fmt::format("{} belongs to --optimizer adamw", option)};
  OptimizerSettings all = settings;
  for (const std::string &text : groups) {
    auto group = parseParamGroup(text);
    if (!group)
      return Error{"--group: " + group.error().message};
    if (sgd && group->decay)
      return Error{fmt::format("--group '{}': decay belongs to --optimizer adamw", text)};
    all.groups.push_back(*group);
  }
  for (const std::string &pattern : frozen)
    all.groups.push_back(frozenGroup(pattern));
  return all;
}

void addOutput(CLI::App *app, CommonOptions &o) {
  app->add_flag("--json", o.json, "machine-readable output on stdout");
  app->add_flag("--quiet", o.quiet, "results only, no progress and no notes");
}

Result<std::vector<std::string>> parseList(const std::string &flag, const std::string &text) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    size_t comma = std::min(text.find(',', at), text.size());
    words.push_back(text.substr(at, comma - at));
    if (words.back().empty())
      return Error{fmt::format("{} {}: a word is missing beside a comma", flag, text)};
    at = comma + 1;
  }
  return words;
}

Result<std::vector<std::pair<std::string, std::string>>>
parsePairs(const std::string &flag, const std::vector<std::string> &texts) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string &text : texts) {
    auto words = parseList(flag, text);
    if (!words)
      return words.error();
    for (const std::string &word : *words) {
      size_t equals = word.find('=');
      if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
        return Error{fmt::format("{} {}: expected NAME=VALUE, found '{}'", flag, text, word)};
      pairs.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    }
  }
  return pairs;
}

Result<std::vector<std::pair<std::string, int64_t>>>
parseSizes(const std::string &flag, const std::vector<std::string> &texts) {
  auto pairs = parsePairs(flag, texts);
  if (!pairs)
    return pairs.error();
  std::vector<std::pair<std::string, int64_t>> sizes;
  for (const auto &[name, text] : *pairs) {
    auto value = parseNumber<int64_t>(text);
    if (!value || *value < 1)
      return Error{fmt::format("{} {}={}: the size is a whole number from 1 on", flag, name, text)};
    sizes.emplace_back(name, *value);
  }
  return sizes;
}

Result<int64_t> parseBytes(const std::string &flag, const std::string &text) {
  static const std::vector<std::pair<std::string, double>> units = {
      {"B", 1},     {"kB", 1e3},      {"KB", 1e3},      {"MB", 1e6},      {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1LL << 40}};
  double number = 0;
  const char *last = text.data() + text.size();
  auto [end, failed] = std::from_chars(text.data(), last, number, std::chars_format::fixed);
  if (failed != std::errc())
    return Error{fmt::format("{} {}: expected a size, as in {} 24GiB", flag, text, flag)};
  std::string unit(end, last);
  std::vector<std::string> names;
  for (const auto &[name, factor] : units) {
    names.push_back(name);
    if (unit != name && !(unit.empty() && name == "B"))
      continue;
    double bytes = number * factor;
    if (!(bytes >= 1) || bytes > 1e18)
      return Error{fmt::format("{} {}: the size is from 1 byte to 10^18", flag, text)};
    return static_cast<int64_t>(bytes);
  }
  std::string near = meant(unit, names);
  return Error{
      fmt::format("{} {}: there is no unit '{}'{}", flag, text, unit,
                  near.empty() ? fmt::format(" (there are {})", fmt::join(names, ", ")) : near)};
}

} // namespace cleave::tool
