//===- Explain.cpp - cleave explain ---------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Activations.h"
#include "Costs.h"
#include "Emulate.h"
#include "Inputs.h"
#include "Load.h"
#include "Page.h"
#include "SourceLines.h"
#include "Why.h"

#include "runtime/core/AtomicFile.h"

#include <algorithm>
#include <fmt/format.h>

namespace cleave::tool {

namespace {

struct ExplainOptions : CommonOptions {
  std::string kind = "train";
  OptimizerChoice optimizer;
  bool fusion = false, activations = false;
  CostOptions cost;
  std::string overlaps; ///< of --timeline
  std::string why, html;
};

/// Sites that look alike as one, with the number of them. The phases keep their
/// order.
std::vector<std::pair<CollectiveSite, int64_t>> merged(const std::vector<CollectiveSite> &sites) {
  std::vector<std::pair<CollectiveSite, int64_t>> list;
  for (const CollectiveSite &s : sites) {
    auto same = std::find_if(list.begin(), list.end(), [&](const auto &entry) {
      const CollectiveSite &t = entry.first;
      return t.kind == s.kind && t.axes == s.axes && t.location == s.location && t.rule == s.rule &&
             t.phase == s.phase && t.payloadBytes == s.payloadBytes;
    });
    if (same == list.end()) {
      list.emplace_back(s, 1);
      continue;
    }
    same->first.executions += s.executions;
    ++same->second;
  }
  std::vector<std::string> phases;
  for (const auto &entry : list)
    if (std::find(phases.begin(), phases.end(), entry.first.phase) == phases.end())
      phases.push_back(entry.first.phase);
  std::vector<std::pair<CollectiveSite, int64_t>> ordered;
  for (const std::string &phase : phases)
    for (const auto &entry : list)
      if (entry.first.phase == phase)
        ordered.push_back(entry);
  return ordered;
}

std::string programName(const ExplainOptions &o) {
  if (o.kind == "train")
    return "train_step";
  return o.kind == "grads" ? o.function + "_grads" : o.function;
}

/// "none", "layers" or "bucketed(SIZE)", as a plan's sentence has it.
Result<checked::Overlap> parseOverlap(const std::string &text) {
  if (text == "none" || text == "layers")
    return checked::Overlap{text, 0};
  constexpr std::string_view bucketed = "bucketed(";
  if (text.rfind(bucketed, 0) != 0 || text.back() != ')')
    return Error{fmt::format("--overlap {}: expected none, layers or bucketed(SIZE){}", text,
                             meant(text, {"none", "layers", "bucketed"}))};
  auto bytes =
      parseBytes("--overlap", text.substr(bucketed.size(), text.size() - bucketed.size() - 1));
  if (!bytes)
    return bytes.error();
  return checked::Overlap{"bucketed", *bytes};
}

Status setOverlap(CheckedProgram &program, const std::string &plan,
                  const checked::Overlap &overlap) {
  auto found = std::find_if(program.plans.begin(), program.plans.end(),
                            [&](const checked::Plan &p) { return p.name == planName(plan); });
  bool data = found != program.plans.end() &&
              std::any_of(found->axes.begin(), found->axes.end(), [&](const auto &axis) {
                return program.splitBy(*found, axis.name).free != nullptr;
              });
  if (!data)
    return Error{"--overlap says when gradients are summed over the axes that split the data, and "
                 "the plan has none"};
  found->overlap = overlap;
  return {};
}

/// `overlap`: null, or in place of the plan's own. `plan`: null, or in place of --plan, on the axes
/// of --mesh that it has.
Result<Built> compileOrRead(const ExplainOptions &o, const checked::Overlap *overlap = nullptr,
                            const std::string *plan = nullptr) {
  if (isExecutable(o)) {
    if (o.fusion)
      return Error{fmt::format("--fusion tells of decisions that an executable does not hold: give "
                               "the source of '{}'",
                               o.file)};
    if (o.activations)
      return Error{fmt::format("--activations tells of decisions that an executable does not hold: "
                               "give the source of '{}'",
                               o.file)};
    if (overlap)
      return Error{fmt::format(
          "--overlap cannot be changed: '{}' is an executable, compiled already", o.file)};
    if (o.optimizer.given("--optimizer"))
      return Error{fmt::format(
          "--optimizer cannot be changed: '{}' is an executable, compiled already", o.file)};
    return readBuilt(o);
  }
  auto optimizer = o.optimizer.chosen(o.kind == "train");
  if (!optimizer)
    return optimizer.error();
  auto source = Source::open(o);
  if (!source)
    return source.error();
  auto sizes = source->complete({{"batch", 8}, {"seq", 64}});
  if (!sizes)
    return sizes.error();
  auto program = plan ? source->check(*sizes, *plan) : source->check(*sizes);
  if (!program)
    return program.error();
  if (overlap)
    if (auto status = setOverlap(*program, o.plan, *overlap); !status)
      return status.error();
  auto function = findFunction(*program, o.function);
  if (!function)
    return function.error();
  if (o.kind != "forward")
    if (auto status = requireScalar(*program, **function); !status)
      return status.error();
  CompileOptions options;
  const checked::Plan *chosen = program->plan(planName(plan ? *plan : o.plan));
  if (chosen && chosen->automatic)
    if (auto status = chooseCluster(options, *program, plan ? *plan : o.plan, o); !status)
      return status.error();
  options.listFusion = o.fusion;
  options.listActivations = o.activations;
  options.listShardings = !o.html.empty();
  options.listGathered = o.activations || o.cost.costs;
  options.machineCode = o.cost.measure || !o.emulate.empty(); // else nothing runs
  options.optimizer = *optimizer;
  options.accumulate = o.accumulate;
  options.recompute = o.recompute;
  options.gathered = o.gathered;
  auto mixed = o.precisionUnder(*program, planName(o.plan));
  if (!mixed)
    return mixed.error();
  options.precision = *mixed;
  options.entries = {{o.function,
                      o.kind == "train"   ? EntryPoint::Kind::TrainStep
                      : o.kind == "grads" ? EntryPoint::Kind::Gradients
                                          : EntryPoint::Kind::Function,
                      o.kind == "train"}};
  Progress progress(o.quiet || o.json);
  return build(*program, plan ? *plan : o.plan, o.elementType(), std::move(options), progress);
}

std::string shortSource(const StepLabel &label) {
  return label.source.substr(label.source.rfind('/') + 1);
}

Json fusionJson(const std::vector<FusionEntry> &entries) {
  Json list = Json::array();
  for (const FusionEntry &e : entries) {
    Json json = {{"ops", e.what.ops}, {"source", e.what.source}, {"times", e.times}};
    switch (e.kind) {
    case FusionEntry::Kind::Group:
      json["kernel"] = e.loops;
      json["bytes"] = e.bytes;
      break;
    case FusionEntry::Kind::BareProduct:
      json["no_epilogue"] = e.reason;
      break;
    case FusionEntry::Kind::Apart:
      json["apart_from"] = {{"ops", e.other.ops}, {"source", e.other.source}};
      json["because"] = e.reason;
      break;
    }
    list.push_back(std::move(json));
  }
  return list;
}

/// Kernels, then what was not fused and why.
std::string fusionText(const std::vector<FusionEntry> &entries) {
  Table groups({"kernels", "times", "bytes", "ops", "source"}, {true, false, false, true, true});
  std::string bare, apart;
  auto times = [](const FusionEntry &e) {
    return e.times > 1 ? fmt::format(" ({} times)", e.times) : "";
  };
  for (const FusionEntry &e : entries) {
    std::string source = shortSource(e.what);
    switch (e.kind) {
    case FusionEntry::Kind::Group:
      groups.row({e.loops, std::to_string(e.times), bytesText(e.bytes), e.what.ops, source});
      break;
    case FusionEntry::Kind::BareProduct:
      bare += fmt::format("  {}{}: {}\n", source, times(e), e.reason);
      break;
    case FusionEntry::Kind::Apart:
      apart += fmt::format("  {} [{}] and {} [{}]{}: {}\n", source, e.what.ops,
                           shortSource(e.other), e.other.ops, times(e), e.reason);
      break;
    }
  }
  std::string text = groups.text("");
  if (!bare.empty())
    text += "\nproducts without an epilogue\n" + bare;
  if (!apart.empty())
    text += "\nkernels that share data and stay apart\n" + apart;
  return text;
}

/// Which options go together.
Status checkOptions(const ExplainOptions &o) {
  const CLI::App *app = o.optimizer.app;
  if (o.activations)
    if (auto status = requireNone(app, {"--fusion", "--costs", "--timeline", "--sweep"},
                                  "with --activations");
        !status)
      return status;
  if (!o.why.empty())
    if (auto status = requireNone(
            app, {"--fusion", "--activations", "--costs", "--timeline", "--sweep", "--emulate"},
            "with --why");
        !status)
      return status;
  if (!o.cost.any()) {
    if (auto status = requireNone(app, {"--emulate", "--measure", "--steps", "--threads"},
                                  "without --costs, --timeline or --sweep");
        !status)
      return status;
    if (o.why.empty() && planName(o.plan) != "auto" && planFile(o.plan).empty())
      if (auto status =
              requireNone(app, {"--cluster"}, "without --costs, --timeline, --sweep or --why");
          !status)
        return status;
  } else if (auto status = requireNone(app, {"--fusion"}, "with --costs, --timeline or --sweep");
             !status) {
    return status;
  }
  if (o.cost.sweep.empty())
    if (auto status = requireNone(app, {"--svg", "--plans"}, "without --sweep"); !status)
      return status;
  if (!o.cost.plans.empty())
    if (auto status = requireNone(app, {"--plan", "--costs", "--timeline"},
                                  "with --plans, which is for --sweep alone");
        !status)
      return status;
  if (!o.cost.timeline)
    if (auto status = requireNone(app, {"--overlap", "--html"}, "without --timeline"); !status)
      return status;
  if (!o.overlaps.empty())
    if (auto status = requireNone(app, {"--costs", "--sweep", "--html"},
                                  "with --overlap, which is for --timeline alone");
        !status)
      return status;
  if (!o.cost.costs)
    if (auto status = requireNone(app, {"--measure"}, "without --costs"); !status)
      return status;
  if (!o.emulate.empty())
    if (auto status = requireNone(app, {"--cluster"}, "with --emulate, which names a profile too");
        !status)
      return status;
  if (!o.cost.measure && o.emulate.empty())
    if (auto status = requireNone(app, {"--steps"}, "without --measure or --emulate"); !status)
      return status;
  if (!o.cost.measure)
    if (auto status = requireNone(app, {"--threads"}, "without --measure"); !status)
      return status;
  if (!o.cost.cluster.empty())
    if (auto cluster = findCluster("--cluster", o.cost.cluster); !cluster)
      return cluster.error();
  if (!o.emulate.empty())
    if (auto cluster = findCluster("--emulate", o.emulate); !cluster)
      return cluster.error();
  if (!o.cost.sweep.empty())
    if (auto range = Sweep::parse(o.cost.sweep); !range)
      return range.error();
  if (auto status =
          requireOutput("--html", o.html, {{"FILE", o.file}, {"--plan", planFile(o.plan)}});
      !status)
    return status;
  return requireDistinct("--svg", o.cost.svg, {{"FILE", o.file}, {"--plan", planFile(o.plan)}});
}

/// One plan's figures, timeline, memory and lines, predicted and, with --emulate, emulated.
Status writePage(const ExplainOptions &o, const Built &built, size_t number, const Costs &costs,
                 const std::string &title) {
  if (o.html.empty())
    return {};
  const Program &program = built.program(number);
  Progress progress(true);
  auto predicted = predictCosts(built, number, o, o.cost.cluster, progress);
  if (!predicted)
    return predicted.error();
  std::vector<double> seen;
  if (costs.emulated)
    seen = lastRank(costs.clocks);
  PagePlan plan{{built.executable->plan.empty() ? "none" : built.executable->plan,
                 built.executable.get(),
                 &program,
                 lineCosts(program, lastRank(predicted->clocks), seen, predicted->predicted.sites),
                 {predicted->predicted.seconds, costs.emulated ? costs.emulated->seconds : 0},
                 costs.emulated ? "emulated" : "",
                 built.info.shardings},
                runOf(costs.clocks, program, title),
                costs.where(),
                plannedMemory(*built.executable, program)};
  plan.run.showTransfers();
  Page page;
  page.title = title;
  page.where = costs.network.cluster().name;
  page.table = {{"", plan.side.plan},
                {"mesh", meshText(built.executable->mesh)},
                {"predicted step time", secondsText(plan.side.run.predicted)}};
  if (costs.emulated)
    page.table.push_back({"emulated step time", secondsText(costs.emulated->seconds)});
  for (const CollectiveSum &sum : sumCollectives(program))
    page.table.push_back({fmt::format("{} over {}, bytes per step", sum.kind, sum.axes),
                          fmt::format("{} in {}", bytesText(sum.ringBytes), countText(sum.count))});
  const PlannedMemory &memory = plan.memory;
  page.table.push_back({"memory per rank", bytesText(memory.total())});
  page.table.push_back({"  params", bytesText(memory.params)});
  page.table.push_back({"  optimizer state", bytesText(memory.states)});
  page.table.push_back({"  activations (arena)", bytesText(memory.arena)});
  page.plans.push_back(std::move(plan));
  SourceLines source;
  return writeFileAtomically(o.html, pageText(page, source));
}

Status writeSvg(const ExplainOptions &o, const std::string &title, const Sweep &range,
                const std::vector<SweptPlan> &plans, std::string &text) {
  if (o.cost.svg.empty())
    return {};
  text += fmt::format("wrote {}\n", o.cost.svg);
  return writeFileAtomically(o.cost.svg, sweepSvg(title, range, plans));
}

/// Several plans beside each other.
Status sweepPlans(const ExplainOptions &o) {
  if (auto status = requireSource(o, "explain --plans"); !status)
    return status;
  auto plans = parseList("--plans", o.cost.plans);
  if (!plans)
    return plans.error();
  auto range = Sweep::parse(o.cost.sweep);
  Progress progress(o.quiet || o.json);
  std::vector<SweptPlan> swept;
  std::vector<std::vector<MeshAxis>> meshes;
  std::string title;
  for (const std::string &plan : *plans) {
    auto built = compileOrRead(o, nullptr, &plan);
    if (!built)
      return built.error();
    auto number = built->find(programName(o), o);
    if (!number)
      return number.error();
    auto costs = costsOf(*built, *number, o, o.cost, progress);
    progress.clear();
    if (!costs)
      return costs.error();
    const Program &program = built->program(*number);
    const auto &mesh = built->executable->mesh;
    meshes.push_back(mesh);
    title = fmt::format("{} of {}, {}", program.name, built->executable->model,
                        sizesText(program.dims));
    swept.push_back(sweep(fmt::format("{} ({})", built->executable->plan, meshText(mesh)), program,
                          *costs, *range));
  }
  if (auto status = requireUsed(o.mesh, meshes, o.cost.plans); !status)
    return status;
  std::string text = title + "\n" + sweepText(*range, swept);
  if (auto status = writeSvg(o, title, *range, swept, text); !status)
    return status;
  if (!o.json) {
    out(text);
    return {};
  }
  Json json = Json::array();
  for (const SweptPlan &plan : swept)
    json.push_back(sweepJson(*range, plan));
  outPretty({{"sweeps", json}});
  return {};
}

/// What --costs, --timeline and --sweep ask for.
Status explainCosts(const ExplainOptions &o, const Built &built, size_t number) {
  Progress progress(o.quiet || o.json);
  auto costs = costsOf(built, number, o, o.cost, progress);
  progress.clear();
  if (!costs)
    return costs.error();
  const Executable &executable = *built.executable;
  const Program &program = built.program(number);
  std::string title =
      fmt::format("{} of {}: plan {} on {}, {}", program.name, executable.model, executable.plan,
                  meshText(executable.mesh), sizesText(program.dims));
  Json json = {{"model", executable.model},
               {"plan", executable.plan},
               {"mesh", meshJson(executable.mesh)},
               {"program", program.name},
               {"sizes", sizesJson(program.dims)}};
  std::string text = title + "\n";
  if (o.cost.costs) {
    text += costsText(program, *costs);
    json.update(costsJson(program, *costs));
    if (!isExecutable(o)) {
      const CompileResult &info = built.info;
      text += (info.gathered.empty() ? "" : "\n") + gatheredText(info.gathered, info.gatheredKept);
      json["gathered"] = gatheredJson(info.gathered, info.gatheredKept);
    }
  }
  if (o.cost.timeline) {
    text += "\n" + timelineText(program, *costs);
    json["timeline"] = timelineJson(program, *costs);
    if (auto status = writePage(o, built, number, *costs, title); !status)
      return status;
    if (!o.html.empty())
      text += fmt::format("wrote {}\n", o.html);
  }
  if (!o.cost.sweep.empty()) {
    auto range = Sweep::parse(o.cost.sweep);
    std::vector<SweptPlan> swept = {sweep(executable.plan, program, *costs, *range)};
    text += "\n" + sweepText(*range, swept);
    json["sweep"] = sweepJson(*range, swept[0]);
    if (auto status = writeSvg(o, title, *range, swept, text); !status)
      return status;
  }
  if (o.json)
    outPretty(json);
  else
    out(text);
  return {};
}

/// A timeline for each of several ways to sum the gradients.
Status explainOverlaps(const ExplainOptions &o) {
  auto words = parseList("--overlap", o.overlaps);
  if (!words)
    return words.error();
  std::vector<checked::Overlap> overlaps;
  for (const std::string &word : *words) {
    auto overlap = parseOverlap(word);
    if (!overlap)
      return overlap.error();
    overlaps.push_back(*overlap);
  }
  Json json = Json::array();
  for (size_t i = 0; i < overlaps.size(); ++i) {
    const std::string &word = (*words)[i];
    auto built = compileOrRead(o, &overlaps[i]);
    if (!built)
      return built.error();
    auto number = built->find(programName(o), o);
    if (!number)
      return number.error();
    Progress progress(o.quiet || o.json);
    auto costs = costsOf(*built, *number, o, o.cost, progress);
    progress.clear();
    if (!costs)
      return costs.error();
    const Program &program = built->program(*number);
    if (o.json) {
      json.push_back({{"overlap", word}});
      json.back().update(timelineJson(program, *costs));
    } else {
      out(fmt::format("{}overlap {}\n{}", i ? "\n" : "", word, timelineText(program, *costs)));
    }
  }
  if (o.json)
    outPretty({{"timelines", json}});
  return {};
}

Status runExplain(const ExplainOptions &o) {
  if (auto status = checkOptions(o); !status)
    return status;
  if (!o.overlaps.empty())
    return explainOverlaps(o);
  if (!o.cost.plans.empty())
    return sweepPlans(o);
  auto built = compileOrRead(o);
  if (!built)
    return built.error();
  if (!o.why.empty()) {
    if (built->info.searches.empty())
      return Error{
          fmt::format("--why {}: nothing was searched for; it answers for a plan that says "
                      "`auto`, or for --plan auto",
                      o.why)};
    const SearchReport &report = built->info.searches.front();
    auto why = whyOf(report, o.why);
    if (!why)
      return why.error();
    if (o.json)
      outPretty(whyJson(report, *why));
    else
      out(whyText(report, *why));
    return {};
  }
  if (o.fusion) {
    if (o.json)
      outPretty(fusionJson(built->info.fusion));
    else
      out(fusionText(built->info.fusion));
    return {};
  }
  if (o.activations) {
    const CompileResult &info = built->info;
    if (o.json)
      outPretty({{"layers", activationsJson(info.activations)},
                 {"gathered", gatheredJson(info.gathered, info.gatheredKept)}});
    else
      out(activationsText(info.activations, info.gatheredKept) +
          (info.gathered.empty() ? "" : "\n") + gatheredText(info.gathered, info.gatheredKept));
    return {};
  }
  auto number = built->find(programName(o), o);
  if (!number)
    return number.error();
  if (o.cost.any())
    return explainCosts(o, *built, *number);
  const Executable &executable = *built->executable;
  const Program &program = built->program(*number);
  PlannedMemory memory = plannedMemory(executable, program);
  SourceLines lines;
  if (o.json) {
    Json sites = Json::array();
    for (const CollectiveSite &s : program.collectiveSites)
      sites.push_back({{"kind", s.kind},
                       {"axes", s.axes},
                       {"phase", s.phase},
                       {"location", s.location},
                       {"line", lines.line(s.location)},
                       {"rule", s.rule},
                       {"times", s.executions},
                       {"payload_bytes", s.payloadBytes},
                       {"ring_bytes", s.ringBytes}});
    outPretty({{"model", executable.model},
               {"plan", executable.plan},
               {"mesh", meshJson(executable.mesh)},
               {"program", program.name},
               {"sizes", sizesJson(program.dims)},
               {"params", memory.paramElements},
               {"collectives", sites},
               {"sums", collectivesJson(program)},
               {"memory", memory.json()}});
    return {};
  }
  out(fmt::format("{} of {}: plan {} on {}, {}, {}\n", program.name, executable.model,
                  executable.plan, meshText(executable.mesh), sizesText(program.dims),
                  countText(memory.paramElements, "param")));
  std::string phase;
  for (const auto &[s, sites] : merged(program.collectiveSites)) {
    if (s.phase != phase)
      out(fmt::format("\n{}\n", phase = s.phase));
    int64_t times = s.executions;
    out(fmt::format("  {} over {}, {}: {} payload, {} in the ring per rank{}\n", s.kind, s.axes,
                    times == 1 ? "once" : fmt::format("{} times", times), bytesText(s.payloadBytes),
                    bytesText(s.ringBytes), times == 1 ? "" : ", each"));
    out(fmt::format("    {}  {}\n", s.location, lines.line(s.location)));
    if (!s.rule.empty())
      out(fmt::format("    {}{}\n", s.rule,
                      sites > 1 ? fmt::format(" ({} such places)", sites) : ""));
  }
  out("\n" + collectivesTable(program, "") + "\n" + memory.table(""));
  return {};
}

} // namespace

void addExplain(Commands &commands) {
  auto o = std::make_shared<ExplainOptions>();
  CLI::App *app = commands.add(
      "explain", "Show every collective, the line that caused it and why, and the memory.",
      "  cleave explain models/gpt2.cleave --plan megatron --mesh dp=2,tp=2\n"
      "  cleave explain models/gpt2.cleave --plan megatron --mesh tp=2 --kind forward --fn "
      "forward\n"
      "  cleave explain gpt2.cleavex --json\n"
      "  cleave explain models/gpt2.cleave --fusion\n"
      "  cleave explain models/gpt2.cleave --plan megatron_sp --mesh tp=2 --activations\n"
      "  cleave explain models/gpt2.cleave --plan megatron --mesh dp=2,tp=2 --costs --emulate "
      "ethernet\n"
      "  cleave explain models/gpt2.cleave --plan auto --mesh tp=2 --why wte.vocab\n"
      "  cleave explain models/gpt2.cleave --plan megatron --mesh tp=2 --timeline --cluster "
      "ethernet "
      "--html step.html\n"
      "  cleave explain models/gpt2.cleave --plan data --mesh dp=4 --sweep bandwidth=1..900GB/s "
      "--svg "
      "sweep.svg\n");
  addFile(app, *o, true);
  addPlan(app, *o);
  addTrainingPlan(app, *o);
  addFunction(app, *o, "loss");
  app->add_option("--kind", o->kind, "train, grads or forward (train)")
      ->check(oneOf({"train", "grads", "forward"}))
      ->type_name("WORD");
  addOptimizer(app, o->optimizer);
  app->add_flag("--fusion", o->fusion, "which ops are one kernel, which are not and why");
  app->add_flag("--activations", o->activations,
                "what layers save for the backward pass, by op, beside the published formulas");
  app->add_flag("--costs", o->cost.costs,
                "what each collective costs, sums, and the closed forms of the literature");
  app->add_flag("--timeline", o->cost.timeline, "when a rank computes and communicates in one run");
  app->add_option("--html", o->html,
                  "with --timeline: write one page with the figures, each rank's timeline, memory "
                  "over time, and the program's lines, what they cost and how they are split")
      ->type_name("OUT.html");
  app->add_option("--overlap", o->overlaps,
                  "with --timeline: when gradients are summed, in place of the plan's own; one "
                  "timeline for each of none,layers,bucketed(1MB)")
      ->type_name("LIST");
  app->add_option("--sweep", o->cost.sweep,
                  "the same with links of other speeds: bandwidth=1..900GB/s or latency=1..100us")
      ->type_name("RANGE");
  app->add_option("--plans", o->cost.plans,
                  "with --sweep: several plans beside each other, each on the axes of --mesh that "
                  "it has")
      ->type_name("A,B");
  app->add_option("--svg", o->cost.svg, "plot the sweep into this file")->type_name("OUT.svg");
  app->add_option("--why", o->why,
                  "of a plan that says auto: why a param, a value or one of its dims is split so, "
                  "and what else would cost: wte, forward.logits, wte.vocab")
      ->type_name("NAME");
  app->add_option("--cluster", o->cluster,
                  "predict, and search for a plan that says auto, for this profile of "
                  "models/clusters, or a file; nothing runs (threads)")
      ->type_name("PROFILE");
  addEmulate(app, *o);
  app->add_flag("--measure", o->cost.measure, "with --costs: run some steps here and time them");
  app->add_option("--steps", o->cost.steps, "of --emulate and --measure (5)")
      ->check(wholeNumber(1, 10000))
      ->type_name("N");
  addThreads(app, *o);
  addSizes(app, *o);
  addModel(app, *o);
  addOutput(app, *o);
  commands.action(app, [o] {
    o->cost.cluster = o->cluster;
    return runExplain(*o);
  });
}

} // namespace cleave::tool
