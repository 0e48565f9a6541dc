//===- Plan.cpp - cleave plan ---------------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Which level of ZeRO a model needs on a mesh whose ranks have so much memory: the
// training step is compiled at each level, and the lowest one that fits is taken.
//
//===----------------------------------------------------------------------===//
#include "AutoPlan.h"
#include "Load.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>

namespace cleave::tool {

namespace {

struct PlanOptions : CommonOptions {
  std::string memory, over;
  OptimizerChoice optimizer;
};

/// Level 3 comes twice: the second time the optimizer's state is the host's.
constexpr int levels = 5;
constexpr int offloads = 4;
constexpr const char *splits[levels] = {"nothing", "optimizer state", "and gradients", "and params",
                                        "the same, offload optimizer"};
constexpr const char *levelNames[levels] = {"0", "1", "2", "3", "3 + offload"};
int numberOf(int level) { return std::min(level, 3); }

struct Level {
  PlannedMemory memory;
  int64_t gradients = 0; ///< a part of the arena
  int64_t ringBytes = 0; ///< of all collectives of a step
  bool fits = false;
};

/// The axes of --over, of the plan's own `zero`, or all that split nothing but data.
Result<std::vector<std::string>> axesOf(const PlanOptions &o, const CheckedProgram &program,
                                        const checked::Plan &plan) {
  std::vector<std::string> axes, known;
  for (const checked::MeshAxisDecl &axis : plan.axes) {
    known.push_back(axis.name);
    checked::AxisUse use = program.splitBy(plan, axis.name);
    if (use.free && !use.other)
      axes.push_back(axis.name);
  }
  if (o.over.empty()) {
    if (plan.zero)
      return plan.zero->axes;
    if (axes.empty())
      return Error{fmt::format("the plan '{}' has no axis that splits only data, and ZeRO goes "
                               "over such; add one, as in `shard batch by dp`",
                               plan.name)};
    return axes;
  }
  auto given = parseList("--over", o.over);
  if (!given)
    return given.error();
  for (auto axis = given->begin(); axis != given->end(); ++axis) {
    if (std::find(known.begin(), known.end(), *axis) == known.end())
      return Error{fmt::format("--over {}: the plan '{}' has no axis '{}'{} (it has: {})", o.over,
                               plan.name, *axis, meant(*axis, known), fmt::join(known, ", "))};
    if (std::find(axes.begin(), axes.end(), *axis) == axes.end()) {
      checked::AxisUse use = program.splitBy(plan, *axis);
      return Error{fmt::format("--over {}: the axis '{}' splits {}, and ZeRO goes over axes that "
                               "split only data{}",
                               o.over, *axis,
                               use.other ? fmt::format("'{}'", use.other->name) : "no data",
                               axes.empty() ? "" : fmt::format(": {}", fmt::join(axes, ", ")))};
    }
    if (std::find(given->begin(), axis, *axis) != axis)
      return Error{fmt::format("--over {}: the axis '{}' is given twice", o.over, *axis)};
  }
  return given;
}

std::string sentence(int level, const std::vector<std::string> &axes) {
  return fmt::format("zero {} over {}{}", numberOf(level), fmt::join(axes, ", "),
                     level == offloads ? " offload optimizer" : "");
}

/// What was decided, level by level, and what to do when none fits.
std::string reasons(const std::vector<Level> &all, int64_t memory, int64_t ranks) {
  std::string text;
  auto less = [](int64_t before, int64_t now) {
    return now < before   ? bytesText(before - now) + " less"
           : now > before ? bytesText(now - before) + " more"
                          : "no less";
  };
  for (int i = 0; i < levels; ++i) {
    const Level &level = all[i];
    int64_t total = level.memory.total();
    text += fmt::format("  level {}: needs {}", levelNames[i], bytesText(total));
    if (i > 0)
      text += fmt::format(", {} than level {}", less(all[i - 1].memory.total(), total),
                          levelNames[i - 1]);
    if (i == offloads)
      text += fmt::format(", and a file of {} for each rank", bytesText(level.memory.offloaded));
    if (i == 2 && total == all[1].memory.total())
      text += " (without accumulation no gradient is kept whole at level 1 either)";
    if (i >= 2 && all[i - 1].ringBytes && level.ringBytes != all[i - 1].ringBytes)
      text += fmt::format(", and moves {:.2f} times the bytes",
                          static_cast<double>(level.ringBytes) /
                              static_cast<double>(all[i - 1].ringBytes));
    text += level.fits ? fmt::format("; fits, {} to spare\n", bytesText(memory - total))
                       : fmt::format("; {} too much\n", bytesText(total - memory));
  }
  if (std::any_of(all.begin(), all.end(), [](const Level &level) { return level.fits; }))
    return text;
  const Level &last = all[levels - 1];
  int64_t states = last.memory.params + last.memory.states + last.gradients;
  int64_t rest = last.memory.total() - states;
  if (rest < memory)
    text += fmt::format("No level fits. What level 3 splits is {} on each of {} ranks: with about "
                        "{} ranks and as many rows on each it would fit.\n",
                        bytesText(states), ranks,
                        (states * ranks + memory - rest - 1) / (memory - rest));
  else
    text += fmt::format("No level fits, on no number of ranks: what ZeRO does not split needs {}. "
                        "Give each rank fewer rows, or split activations and params by another "
                        "axis.\n",
                        bytesText(rest));
  return text;
}

Status runPlan(const PlanOptions &o) {
  if (auto status = requireSource(o, "plan"); !status)
    return status;
  auto optimizer = o.optimizer.chosen();
  if (!optimizer)
    return optimizer.error();
  if (!o.out.empty())
    if (auto status =
            requireDistinct("--out", o.out, {{"FILE", o.file}, {"--plan", planFile(o.plan)}});
        !status)
      return status;
  std::optional<Result<int64_t>> given;
  if (!o.memory.empty())
    if (given = parseBytes("--memory", o.memory); !*given)
      return given->error();
  auto source = Source::open(o);
  if (!source)
    return source.error();
  auto sizes = source->complete({{"batch", 8}, {"seq", 64}});
  if (!sizes)
    return sizes.error();
  auto program = source->check(*sizes);
  if (!program)
    return program.error();
  if (planName(o.plan).empty())
    return Error{"--plan none is one rank, and ZeRO splits work over several"};
  auto function = findFunction(*program, o.function);
  if (!function)
    return function.error();
  if (auto status = requireScalar(*program, **function); !status)
    return status;
  auto mixed = o.precisionUnder(*program, planName(o.plan));
  if (!mixed)
    return mixed.error();
  auto plan = std::find_if(program->plans.begin(), program->plans.end(),
                           [&](const checked::Plan &p) { return p.name == planName(o.plan); });
  if (plan->automatic) {
    if (auto status = requireNone(o.optimizer.app, {"--over"},
                                  "with a plan that says `auto`: its search chooses the axes");
        !status)
      return status;
    if (given)
      plan->memoryBytes = **given;
    CompileOptions options;
    options.optimizer = *optimizer;
    options.precision = *mixed;
    options.entries = {{o.function, EntryPoint::Kind::TrainStep, true}};
    return runAutoPlan(*program, *sizes, std::move(options), o);
  }
  if (auto status = requireNone(o.optimizer.app, {"--out", "--cluster"},
                                "with a plan that does not say `auto`");
      !status)
    return status;
  if (!given)
    return Error{"`cleave plan` lacks --memory SIZE, which each rank has (24GiB, 80GB, or bytes); "
                 "without it, it searches for a plan that says `auto`"};
  Result<int64_t> &memory = *given;
  auto axes = axesOf(o, *program, *plan);
  if (!axes)
    return axes.error();
  int64_t ranks = 1;
  for (const checked::MeshAxisDecl &axis : plan->axes)
    if (std::find(axes->begin(), axes->end(), axis.name) != axes->end())
      ranks *= *axis.size;

  std::vector<Level> all(levels);
  Progress progress(o.quiet || o.json);
  std::vector<MeshAxis> mesh;
  int64_t params = 0;
  for (int i = 0; i < levels; ++i) {
    plan->zero = {numberOf(i), *axes, i == offloads};
    CompileOptions options;
    options.optimizer = *optimizer;
    options.precision = *mixed;
    options.machineCode = false;
    options.entries = {{o.function, EntryPoint::Kind::TrainStep, true}};
    auto built = build(*program, o.plan, o.elementType(), std::move(options), progress);
    if (!built)
      return built.error();
    const Program &step = built->program(0);
    Level &level = all[i];
    level.memory = plannedMemory(*built->executable, step);
    for (const CollectiveSum &sum : sumCollectives(step))
      level.ringBytes += sum.ringBytes;
    for (const Argument &argument : step.arguments)
      if (argument.role == Argument::Role::Param && argument.donatedTo >= 0) // it learns
        level.gradients += argument.localBytes * byteSize(mixed->reduce) / byteSize(DType::F32);
    level.fits = level.memory.total() <= *memory;
    mesh = built->executable->mesh;
    params = level.memory.paramElements;
  }
  // A gradient has its param's size: whole at level 0, and where level 1 adds those of
  // micro-batches up; else that of the shard.
  for (int i = plan->accumulate > 1 ? 2 : 1; i < levels; ++i)
    all[i].gradients = all[levels - 1].gradients;
  auto chosen = std::find_if(all.begin(), all.end(), [](const Level &level) { return level.fits; });
  int level = static_cast<int>(chosen - all.begin());

  if (o.json) {
    Json list = Json::array();
    for (int i = 0; i < levels; ++i)
      list.push_back({{"level", numberOf(i)},
                      {"offload", i == offloads},
                      {"memory", all[i].memory.json()},
                      {"gradients_in_arena", all[i].gradients},
                      {"ring_bytes", all[i].ringBytes},
                      {"fits", all[i].fits}});
    outPretty({{"model", program->model},
               {"plan", plan->name},
               {"mesh", meshJson(mesh)},
               {"over", *axes},
               {"sizes", sizesJson(*sizes)},
               {"params", params},
               {"available", *memory},
               {"levels", list},
               {"level", chosen == all.end() ? Json() : Json(numberOf(level))},
               {"sentence", chosen == all.end() ? Json() : Json(sentence(level, *axes))}});
    return {};
  }
  out(fmt::format("training step of {}: plan {} on {}, {}, {}, {}; ZeRO over {}: {}\n\n",
                  program->model, plan->name, meshText(mesh), sizesText(*sizes),
                  countText(params, "param"), optimizer->kind, fmt::join(*axes, ", "),
                  countText(ranks, "rank")));
  Table table({"level", "splits", "params", "optimizer", "arena", "(gradients)", "total",
               "ring bytes", fmt::format("in {}", bytesText(*memory))},
              {true, true});
  for (int i = 0; i < levels; ++i) {
    const PlannedMemory &m = all[i].memory;
    table.row({levelNames[i], splits[i], bytesText(m.params), bytesText(m.states),
               bytesText(m.arena), bytesText(all[i].gradients), bytesText(m.total()),
               bytesText(all[i].ringBytes), all[i].fits ? "fits" : "no"});
  }
  out(table.text() + "\n");
  out("ring bytes: what a ring moves per rank in a step; gradients lie in the arena, not all at "
      "its fullest\n\n");
  if (chosen != all.end())
    out(fmt::format("Take level {}, the lowest that fits{}.\n", levelNames[level],
                    level ? fmt::format(": `{}` in the plan", sentence(level, *axes))
                          : ": the plan needs no `zero`"));
  out(reasons(all, *memory, ranks));
  return {};
}

} // namespace

void addPlan(Commands &commands) {
  auto o = std::make_shared<PlanOptions>();
  CLI::App *app = commands.add(
      "plan",
      "Say which level of ZeRO a model needs to fit a rank's memory, and why; or search for a "
      "plan.",
      "  cleave plan models/gpt2.cleave --plan data --mesh dp=4 --memory 4MiB\n"
      "  cleave plan models/gpt2.cleave --plan megatron --mesh dp=8,tp=2 --memory 80GB --json\n"
      "  cleave plan models/gpt2.cleave --plan data --mesh dp=2 --memory 1GB --optimizer sgd\n"
      "  cleave plan models/gpt2.cleave --plan auto --ranks 4 --cluster ethernet --out "
      "found.cleave\n"
      "  cleave plan models/gpt2.cleave --plan auto --mesh dp=2,tp=2 --memory 4MiB --json\n"
      "A plan that says auto is searched for, at most of --memory SIZE a rank; --out writes it as "
      "text that\ncan be edited, and run by `--plan FILE:NAME`.\n");
  addFile(app, *o, false);
  addPlan(app, *o);
  app->get_option("--plan")->required();
  addCluster(app, *o);
  app->add_option("--out", o->out, "where to write the plan that was searched for")
      ->type_name("FILE");
  app->add_option("--memory", o->memory, "what each rank has: 24GiB, 80GB, or bytes")
      ->type_name("SIZE");
  app->add_option("--over", o->over, "the axes of ZeRO: dp or replica,dp (those that split data)")
      ->type_name("AXES");
  addFunction(app, *o, "loss");
  addOptimizer(app, o->optimizer);
  addOptimizerSettings(app, o->optimizer);
  addSizes(app, *o);
  addModel(app, *o);
  addPrecision(app, *o);
  addOutput(app, *o);
  commands.action(app, [o] { return runPlan(*o); });
}

} // namespace cleave::tool
