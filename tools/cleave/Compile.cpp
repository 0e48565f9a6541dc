//===- Compile.cpp - cleave compile ---------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Emulate.h"
#include "Load.h"

#include "runtime/core/AtomicFile.h"
#include "runtime/executable/Format.h"

#include <fmt/format.h>

namespace cleave::tool {

namespace {

struct CompileCommand : CommonOptions {
  std::vector<std::string> kinds;
  std::string emit;
  OptimizerChoice optimizer;
  const CLI::App *app = nullptr;
  bool training = false, remarks = false, noFuse = false, noOverlap = false;
};

constexpr std::pair<const char *, EmitStage> stages[] = {{"ir", EmitStage::IR},
                                                         {"grad", EmitStage::Grad},
                                                         {"sharded", EmitStage::Sharded},
                                                         {"fused", EmitStage::Fused},
                                                         {"scheduled", EmitStage::Scheduled},
                                                         {"llvm", EmitStage::LLVM}};

Status writeText(const CompileCommand &o, const std::string &text) {
  if (!o.out.empty())
    return writeFileAtomically(o.out, text);
  out(text);
  return {};
}

Status emitAst(const CompileCommand &o) {
  std::vector<std::string> options = {
      "--kind",    "--fn",         "--batch",      "--seq",       "--dim",      "--training",
      "--no-fuse", "--no-overlap", "--remarks",    "--model",     "--set",      "--dtype",
      "--plan",    "--mesh",       "--accumulate", "--recompute", "--gathered", "--precision"};
  options.insert(options.end(), OptimizerChoice::compiled().begin(),
                 OptimizerChoice::compiled().end());
  if (auto status =
          requireNone(o.app, options, "with --emit=ast, which prints the text as it was read");
      !status)
    return status;
  auto file = readSource(o.file);
  if (!file)
    return file.error();
  auto text = formatSource(std::move(*file));
  if (!text)
    return text.error();
  return writeText(o, *text);
}

Status runCompile(const CompileCommand &o) {
  if (auto status = requireSource(o, "compile"); !status)
    return status;
  if (auto status = requireDistinct("-o", o.out, {{"FILE", o.file}, {"--plan", planFile(o.plan)}});
      !status)
    return status;
  if (!o.emit.empty())
    if (auto status = requireNone(o.app, {"--json"}, "with --emit, which prints text"); !status)
      return status;
  if (o.emit == "ast")
    return emitAst(o);
  if (o.emit.empty() && o.out.empty())
    return Error{"-o FILE is required: where the executable goes; or --emit=STAGE, which prints"};
  auto kinds =
      parseList("--kind", o.kinds.empty() ? "train" : fmt::format("{}", fmt::join(o.kinds, ",")));
  if (!kinds)
    return kinds.error();
  for (auto kind = kinds->begin(); kind != kinds->end(); ++kind)
    if (std::find(kinds->begin(), kind, *kind) != kind)
      return Error{fmt::format("--kind {}: '{}' is given twice", fmt::join(*kinds, ","), *kind)};
  bool trains = std::find(kinds->begin(), kinds->end(), "train") != kinds->end();
  auto optimizer = o.optimizer.chosen(trains);
  if (!optimizer)
    return optimizer.error();
  if (trains && kinds->size() == 1)
    if (auto status = requireNone(o.app, {"--training"},
                                  "with --kind train alone, where dropout is always active");
        !status)
      return status;
  auto source = Source::open(o);
  if (!source)
    return source.error();
  auto sizes = source->complete({{"batch", 8}, {"seq", 64}});
  if (!sizes)
    return sizes.error();
  auto program = source->check(*sizes);
  if (!program)
    return program.error();
  CompileOptions options;
  if (auto status = chooseCluster(options, *program, o.plan, o); !status)
    return status.error();
  options.optimizer = *optimizer;
  options.accumulate = o.accumulate;
  options.recompute = o.recompute;
  options.gathered = o.gathered;
  auto mixed = o.precisionUnder(*program, planName(o.plan));
  if (!mixed)
    return mixed.error();
  if (auto suited = o.optimizer.suits(*mixed); !suited)
    return suited;
  options.precision = *mixed;
  options.fuse = !o.noFuse;
  options.overlap = !o.noOverlap;
  options.entries.clear();
  for (const std::string &kind : *kinds) {
    EntryPoint entry;
    // The function of a kind, unless one is named.
    entry.function = !o.function.empty() ? o.function : kind == "forward" ? "forward" : "loss";
    if (kind == "forward")
      entry.kind = EntryPoint::Kind::Function;
    else if (kind == "grads")
      entry.kind = EntryPoint::Kind::Gradients;
    else if (kind == "train")
      entry.kind = EntryPoint::Kind::TrainStep;
    else
      return Error{fmt::format("--kind {}: there are train, forward, grads", kind)};
    entry.training = entry.kind == EntryPoint::Kind::TrainStep || o.training;
    auto function = findFunction(*program, entry.function);
    if (!function)
      return function.error();
    if (entry.kind != EntryPoint::Kind::Function)
      if (auto status = requireScalar(*program, **function); !status)
        return status;
    options.entries.push_back(entry);
  }
  for (const auto &[name, stage] : stages)
    if (o.emit == name)
      options.emit = stage;
  Progress progress(o.quiet || o.json);
  auto built = build(*program, o.plan, o.elementType(), std::move(options), progress);
  if (!built)
    return built.error();
  if (o.remarks)
    for (const std::string &remark : built->info.remarks)
      fmt::print(stderr, "{}\n", remark);
  if (!o.emit.empty())
    return writeText(o, built->info.text);
  if (auto status = writeExecutable(*built->executable, o.out); !status)
    return status;

  const Executable &executable = *built->executable;
  double seconds = 0;
  Json times = Json::object();
  for (const auto &[stage, time] : built->info.seconds) {
    seconds += time;
    times[stage] = time;
  }
  std::vector<std::string> names;
  for (const Program &p : executable.programs)
    names.push_back(p.name);
  if (o.json)
    outPretty({{"out", o.out},
               {"programs", names},
               {"sizes", sizesJson(*sizes)},
               {"kernels", built->info.kernels},
               {"collectives", built->info.collectives},
               {"compile_seconds", times}});
  else if (!o.quiet)
    out(fmt::format("wrote {}: {} for {}, plan {} on {}; {}, {}, {}\n", o.out,
                    fmt::join(names, ", "), sizesText(*sizes), executable.plan,
                    meshText(executable.mesh), countText(built->info.kernels, "kernel"),
                    countText(built->info.collectives, "collective"), secondsText(seconds)));
  return {};
}

} // namespace

void addCompile(Commands &commands) {
  auto o = std::make_shared<CompileCommand>();
  CLI::App *app = commands.add(
      "compile", "Compile a program into an executable, or print what a stage makes of it.",
      "  cleave compile models/gpt2.cleave -o gpt2.cleavex --plan megatron --mesh tp=2 --batch 8 "
      "--seq 64\n"
      "  cleave compile models/gpt2.cleave -o gpt2.cleavex --kind train,forward\n"
      "  cleave compile models/gpt2.cleave --emit=sharded --plan megatron --mesh tp=2\n"
      "  cleave compile models/gpt2.cleave --emit=ir --kind forward --fn forward\n");
  o->app = app;
  addFile(app, *o, false);
  app->add_option("-o,--out", o->out, "the executable (.cleavex), or the text of --emit")
      ->type_name("FILE");
  app->add_option("--kind", o->kinds, "train, forward, grads; several with commas (train)")
      ->type_name("KIND")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  app->add_option("--fn", o->function, "the function (loss; forward for --kind forward)")
      ->type_name("NAME");
  app->add_option("--emit", o->emit, "print: ast, ir, grad, sharded, fused, scheduled or llvm")
      ->check(oneOf({"ast", "ir", "grad", "sharded", "fused", "scheduled", "llvm"}))
      ->type_name("STAGE");
  addSizes(app, *o);
  addOptimizer(app, o->optimizer);
  addOptimizerSettings(app, o->optimizer);
  app->add_flag("--training", o->training, "dropout is active in forward and grads too");
  app->add_flag("--no-fuse", o->noFuse, "one kernel for each op");
  app->add_flag("--no-overlap", o->noOverlap, "wait for each collective at once");
  app->add_flag("--remarks", o->remarks, "print the compiler's decisions on stderr");
  addModel(app, *o);
  addPlan(app, *o);
  addCluster(app, *o);
  addTrainingPlan(app, *o);
  addOutput(app, *o);
  commands.action(app, [o] { return runCompile(*o); });
}

} // namespace cleave::tool
