//===- Compare.cpp - cleave compare ---------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Costs.h"
#include "Difference.h"
#include "Emulate.h"
#include "Inputs.h"
#include "Lines.h"
#include "Load.h"
#include "Page.h"
#include "Pairs.h"
#include "Trace.h"

#include "runtime/comm/Communicator.h"
#include "runtime/core/AtomicFile.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

namespace cleave::tool {

namespace {

/// float32: later steps are shown and not judged.
constexpr int64_t mostJudged = 50;

struct CompareOptions : CommonOptions {
  std::string plans, data, trace, html;
  OptimizerChoice optimizer;
  int64_t steps = 20;
  bool losses = false;

  bool timelines() const { return !trace.empty() || !html.empty(); }
};

/// One plan at work.
struct Contender {
  std::string plan;
  Built built;
  size_t program = 0;
  std::unique_ptr<Session> session;
  std::optional<Costs> costs; ///< predicted
  std::vector<double> losses, seconds;
  EmulatedSteps emulated;            ///< with --emulate
  std::vector<double> secondsOfStep; ///< of the program's steps, all runs together
  TracedRun last;                    ///< the last run, with --trace or --html

  const Program &code() const { return built.program(program); }
  const std::vector<double> &judgedSeconds() const {
    return emulated.empty() ? seconds : emulated.seconds;
  }
  std::vector<double> sortedSeconds() const {
    std::vector<double> list = seconds;
    std::sort(list.begin(), list.end());
    return list;
  }
  /// Adds what the last run has taken to `secondsOfStep`: of the rank whose clock was the last, or
  /// of the mean rank of this machine.
  void addSteps();
  PlanSide side() const;
};

void Contender::addSteps() {
  secondsOfStep.resize(code().steps.size());
  if (!emulated.empty()) {
    std::vector<double> run = lastRank(session->clocks());
    for (size_t i = 0; i < run.size(); ++i)
      secondsOfStep[i] += run[i];
    return;
  }
  auto ranks = session->profile(program);
  for (const auto &steps : ranks)
    for (size_t i = 0; i < steps.size(); ++i)
      secondsOfStep[i] += steps[i].seconds / static_cast<double>(ranks.size());
}

PlanSide Contender::side() const {
  const std::vector<double> &runs = judgedSeconds();
  auto count = static_cast<double>(runs.size());
  std::vector<double> mean = secondsOfStep;
  for (double &time : mean)
    time /= count;
  return {plan,
          built.executable.get(),
          &code(),
          lineCosts(code(), lastRank(costs->clocks), mean, costs->predicted.sites),
          {costs->predicted.seconds, std::accumulate(runs.begin(), runs.end(), 0.0) / count},
          emulated.empty() ? "measured" : "emulated",
          built.info.shardings};
}

struct Curve {
  double largest = 0;   ///< relative difference to the first plan's, over all steps
  double judged = 0;    ///< the same over the judged steps
  int64_t parting = -1; ///< first judged step (from 1) with more than the tolerance
};

class Comparison {
public:
  explicit Comparison(const CompareOptions &o) : o(o), progress(o.quiet || o.json) {}
  Status run();

private:
  Result<Contender> prepare(const Source &source, const Sizes &sizes, const std::string &plan);
  Status race();
  Result<std::map<std::string, HostTensor>> step(Contender &c, const Inputs &inputs,
                                                 int64_t number) const;
  Curve curve(const Contender &c) const;
  /// Training steps amplify rounding a little more with each one. In float32 it passes any
  /// useful tolerance after some hundred steps; in float64 it stays far below.
  bool exact() const { return o.elementType() == DType::F64; }
  double tolerance() const { return exact() ? 1e-9 : std::max(1e-4, 2.5 * unit); }
  int64_t judgedSteps() const { return exact() ? o.steps : std::min(o.steps, mostJudged); }
  double tokensPerStep() const;
  std::string title() const;
  /// The figures, a column for each plan.
  std::vector<std::vector<std::string>> rows() const;
  PairVerdict verdict(const Contender &c) const {
    return judgePairs(c.judgedSeconds(), contenders[0].judgedSeconds());
  }
  std::string where() const { return contenders[0].costs->network.cluster().name; }
  void print() const;
  void printLosses() const;
  Json json() const;
  Page page() const;
  /// The files that --trace and --html name.
  Status write() const;

  const CompareOptions &o;
  Progress progress;
  std::vector<Contender> contenders;
  mutable SourceLines source;
  double unit = 0; ///< of the narrowest type that any of them stores; 0: f32 or wider
};

Result<Contender> Comparison::prepare(const Source &source, const Sizes &sizes,
                                      const std::string &plan) {
  auto program = source.check(sizes, plan);
  if (!program)
    return program.error();
  auto function = findFunction(*program, o.function);
  if (!function)
    return function.error();
  if (auto status = requireScalar(*program, **function); !status)
    return status.error();
  CompileOptions options;
  if (const checked::Plan *found = program->plan(planName(plan)); found && found->automatic)
    if (auto status = chooseCluster(options, *program, plan, o); !status)
      return status.error();
  options.entries = {{o.function, EntryPoint::Kind::TrainStep, true}};
  options.optimizer = o.optimizer.settings;
  auto mixed = o.precisionUnder(*program, planName(plan));
  if (!mixed)
    return mixed.error();
  options.precision = *mixed;
  options.listShardings = !o.html.empty() || o.json;
  unit = std::max(unit, unitOf(mixed->compute));
  auto built = build(*program, plan, o.elementType(), std::move(options), progress);
  if (!built)
    return Error{fmt::format("plan {}: {}", plan, built.error().message), built.error().fault};
  Contender c;
  c.plan = plan;
  c.built = std::move(*built);
  auto number = c.built.find("train_step", {});
  if (!number)
    return number.error();
  c.program = *number;
  auto costs = predictCosts(c.built, c.program, o, o.cluster, progress);
  if (!costs)
    return costs.error();
  c.costs = std::move(*costs);
  auto session = openSession(c.built, o, /*profile=*/true, o.timelines());
  if (!session)
    return session.error();
  c.session = std::move(*session);
  if (auto status = c.session->initialise(o.seed); !status)
    return status.error();
  return c;
}

Result<std::map<std::string, HostTensor>> Comparison::step(Contender &c, const Inputs &inputs,
                                                           int64_t number) const {
  c.session->resetProfile();
  auto result = c.session->run(c.code().name, inputs,
                               scalarsOf(c.code(), o.seed, number, o.optimizer.rate()));
  if (!result)
    return result.error();
  c.seconds.push_back(result->seconds);
  if (!o.emulate.empty())
    c.emulated.add(*c.session, c.program);
  c.addSteps();
  return std::move(result->results);
}

Status Comparison::race() {
  const Program &first = contenders[0].code();
  std::optional<TextSource> text;
  if (!o.data.empty()) {
    auto opened = TextSource::open(o.data, first, o.seed);
    if (!opened)
      return opened.error();
    text.emplace(std::move(*opened));
  }
  auto failed = [&](const Contender &c, const Error &why) {
    progress.clear();
    Error error = text ? text->explain(why) : why;
    if (error.fault != Fault::User)
      error.message = fmt::format("plan {}: {}", c.plan, error.message);
    return error;
  };
  auto inputsOf = [&](int64_t step) {
    auto number = static_cast<uint32_t>(step);
    return text ? text->step(number) : randomInputs(first, o.seed, number);
  };
  // A step that touches the memory for the first time, and counts for nothing.
  for (Contender &c : contenders) {
    progress.say(fmt::format("warming up {}", c.plan));
    if (auto results = step(c, inputsOf(0), 0); !results)
      return failed(c, results.error());
    c.seconds.clear();
    c.emulated = {};
    c.secondsOfStep.clear();
    c.session->resetCollectives();
    if (auto status = c.session->initialise(o.seed); !status)
      return status.error();
  }
  for (int64_t number = 0; number < o.steps; ++number) {
    progress.say(fmt::format("step {} of {}", number + 1, o.steps));
    Inputs inputs = inputsOf(number);
    for (size_t i = 0; i < contenders.size(); ++i) {
      // Each plan goes first as often as the others.
      Contender &c = contenders[(i + static_cast<size_t>(number)) % contenders.size()];
      auto results = step(c, inputs, number);
      if (!results)
        return failed(c, results.error());
      auto loss = results->find("loss");
      c.losses.push_back(loss == results->end()
                             ? std::nan("")
                             : elementAsDouble(loss->second.dtype, loss->second.data.data(), 0));
    }
  }
  progress.clear();
  if (!o.timelines())
    return {};
  for (Contender &c : contenders) {
    std::string how = o.emulate.empty() ? "" : fmt::format(" (emulated on {})", o.emulate);
    c.last = runOf(*c.session, c.program,
                   fmt::format("{} on {}: {}{}", c.plan, meshText(c.built.executable->mesh),
                               c.code().name, how));
    c.last.showTransfers();
  }
  return {};
}

Curve Comparison::curve(const Contender &c) const {
  Curve curve;
  const std::vector<double> &reference = contenders[0].losses;
  for (size_t i = 0; i < reference.size(); ++i) {
    double difference =
        std::abs(c.losses[i] - reference[i]) / std::max(std::abs(reference[i]), 1e-30);
    if (c.losses[i] == reference[i])
      difference = 0;
    if (!(difference <= curve.largest))
      curve.largest = difference; // NaN stays
    if (static_cast<int64_t>(i) >= judgedSteps())
      continue;
    if (!(difference <= curve.judged))
      curve.judged = difference;
    if (!(difference <= tolerance()) && curve.parting < 0)
      curve.parting = static_cast<int64_t>(i) + 1;
  }
  return curve;
}

double Comparison::tokensPerStep() const {
  double n = 1;
  for (const auto &[name, size] : contenders[0].built.program(contenders[0].program).dims)
    n *= static_cast<double>(size);
  return n;
}

void Comparison::printLosses() const {
  std::vector<std::string> header = {"loss at step"};
  for (const Contender &c : contenders)
    header.push_back(c.plan);
  if (contenders.size() > 1)
    header.push_back("largest difference");
  Table t(header);
  auto steps = static_cast<int64_t>(contenders[0].losses.size());
  constexpr int64_t points = 8;
  for (int64_t i = 0; i < steps; ++i) {
    // Evenly spaced, the first and the last among them.
    bool wanted = o.losses || steps <= points || i == steps - 1 ||
                  i * (points - 1) % (steps - 1) < points - 1;
    if (!wanted)
      continue;
    std::vector<std::string> row = {std::to_string(i + 1)};
    double largest = 0, reference = contenders[0].losses[static_cast<size_t>(i)];
    for (const Contender &c : contenders) {
      double loss = c.losses[static_cast<size_t>(i)];
      row.push_back(fmt::format("{:.6f}", loss));
      largest =
          std::max(largest, std::abs(loss - reference) / std::max(std::abs(reference), 1e-30));
    }
    if (contenders.size() > 1)
      row.push_back(largest == 0 ? "0" : fmt::format("{:.1e}", largest));
    t.row(row);
  }
  out(t.text());
}

std::string Comparison::title() const {
  const Executable &first = *contenders[0].built.executable;
  const Program &program = contenders[0].code();
  return fmt::format("{}: {}, {}, {} of {} under each plan, interleaved, {}", first.model,
                     countText(plannedMemory(first, program).paramElements, "param"),
                     sizesText(program.dims), countText(o.steps, "step"), o.optimizer.settings.kind,
                     o.data.empty() ? "random inputs" : "on " + o.data);
}

void Comparison::print() const {
  out(title() + "\n\n");
  printLosses();
  for (size_t i = 1; i < contenders.size(); ++i) {
    Curve c = curve(contenders[i]);
    auto size = [](double largest) {
      return largest == 0 ? "bit for bit"
                          : fmt::format("largest relative difference {:.1e}", largest);
    };
    std::string judged, all;
    if (judgedSteps() < o.steps) {
      judged = fmt::format(" over the first {}", countText(judgedSteps(), "step"));
      all = fmt::format("; over all {}, not judged in f32: {}", countText(o.steps, "step"),
                        size(c.largest));
    }
    out(fmt::format("losses of {} and {}: {}, {}{} (tolerance {:g}){}\n", contenders[0].plan,
                    contenders[i].plan,
                    c.parting < 0 ? "equal" : fmt::format("they part at step {}", c.parting),
                    size(c.judged), judged, tolerance(), all));
  }
  std::vector<std::vector<std::string>> all = rows();
  Table t(all[0]);
  for (size_t i = 1; i < all.size(); ++i)
    t.row(all[i]);
  out("\n" + t.text());
  out(fmt::format("predicted: with the links and devices of {}; bytes: what a ring moves per rank; "
                  "memory as planned\n",
                  where()));
  if (!o.emulate.empty())
    out(fmt::format("emulated: virtual clocks on the profile {}\n", o.emulate));
  if (contenders.size() > 1)
    out("\n");
  for (size_t i = 1; i < contenders.size(); ++i)
    out(verdict(contenders[i]).text(contenders[i].plan, contenders[0].plan) + "\n");
  for (size_t i = 1; i < contenders.size(); ++i)
    out("\n" + differencesText(contenders[0].side(), contenders[i].side(), where(), source));
}

std::vector<std::vector<std::string>> Comparison::rows() const {
  std::vector<std::string> header = {""};
  std::vector<PlannedMemory> memory;
  for (const Contender &c : contenders) {
    header.push_back(c.plan);
    memory.push_back(plannedMemory(*c.built.executable, c.built.program(c.program)));
  }
  std::vector<std::vector<std::string>> all = {header};
  auto row = [&](const std::string &what, auto &&cell) {
    std::vector<std::string> cells = {what};
    for (size_t i = 0; i < contenders.size(); ++i)
      cells.push_back(cell(contenders[i], memory[i]));
    all.push_back(cells);
  };
  row("mesh",
      [](const Contender &c, const PlannedMemory &) { return meshText(c.built.executable->mesh); });
  row("threads per rank", [](const Contender &c, const PlannedMemory &) {
    return std::to_string(c.session->workersPerRank());
  });
  row("predicted step time", [](const Contender &c, const PlannedMemory &) {
    return secondsText(c.costs->predicted.seconds);
  });
  row("predicted exposed communication", [](const Contender &c, const PlannedMemory &) {
    const RunTimes &times = c.costs->predicted;
    return fmt::format("{:.1f} %",
                       100 * totalTime(times.sites).exposed / std::max(times.seconds, 1e-12));
  });
  double tokens = tokensPerStep();
  bool emulates = !o.emulate.empty();
  if (emulates) {
    using Column = const Contender &;
    auto seconds = [](Column c) { return c.emulated.seconds[c.emulated.median()]; };
    row("emulated step time, median",
        [&](Column c, const PlannedMemory &) { return secondsText(seconds(c)); });
    row("emulated step time, least to most", [](Column c, const PlannedMemory &) {
      auto [least, most] =
          std::minmax_element(c.emulated.seconds.begin(), c.emulated.seconds.end());
      return secondsText(*least) + " to " + secondsText(*most);
    });
    row("emulated tokens/s", [&](Column c, const PlannedMemory &) {
      return countText(std::llround(tokens / std::max(seconds(c), 1e-12)));
    });
    row("emulated exposed communication",
        [](Column c, const PlannedMemory &) { return c.emulated.exposedText(); });
  }
  row(emulates ? "computed here, median" : "step time, median",
      [](const Contender &c, const PlannedMemory &) {
        auto s = c.sortedSeconds();
        return secondsText(s[s.size() / 2]);
      });
  if (!emulates) {
    row("step time, least to most", [](const Contender &c, const PlannedMemory &) {
      auto s = c.sortedSeconds();
      return secondsText(s.front()) + " to " + secondsText(s.back());
    });
    row("tokens/s", [tokens](const Contender &c, const PlannedMemory &) {
      auto s = c.sortedSeconds();
      return countText(std::llround(tokens / s[s.size() / 2]));
    });
  }
  constexpr CollectiveStep::Kind kinds[] = {
      CollectiveStep::Kind::AllReduce, CollectiveStep::Kind::AllGather,
      CollectiveStep::Kind::ReduceScatter, CollectiveStep::Kind::AllToAll};
  for (CollectiveStep::Kind kind : kinds) {
    auto stats = [kind](const Contender &c) {
      return c.session->collectives(0).kinds[static_cast<int>(kind)];
    };
    if (std::all_of(contenders.begin(), contenders.end(),
                    [&](const Contender &c) { return stats(c).calls == 0; }))
      continue;
    row(fmt::format("{} bytes per step", kindName(kind)),
        [&](const Contender &c, const PlannedMemory &) {
          auto s = stats(c);
          return fmt::format("{} in {}", bytesText(s.ringBytes / o.steps),
                             countText(s.calls / o.steps));
        });
  }
  row("memory per rank",
      [](const Contender &, const PlannedMemory &m) { return bytesText(m.total()); });
  row("  params", [](const Contender &, const PlannedMemory &m) { return bytesText(m.params); });
  row("  optimizer state",
      [](const Contender &, const PlannedMemory &m) { return bytesText(m.states); });
  if (std::any_of(contenders.begin(), contenders.end(), [](const Contender &c) {
        return plannedMemory(*c.built.executable, c.built.program(c.program)).offloaded > 0;
      }))
    row("  in a file, not counted",
        [](const Contender &, const PlannedMemory &m) { return bytesText(m.offloaded); });
  row("  activations (arena)",
      [](const Contender &, const PlannedMemory &m) { return bytesText(m.arena); });
  return all;
}

Json Comparison::json() const {
  Json json = {{"model", contenders[0].built.executable->model},
               {"sizes", sizesJson(contenders[0].built.program(contenders[0].program).dims)},
               {"steps", o.steps},
               {"judged_steps", judgedSteps()},
               {"tolerance", tolerance()}};
  if (!o.emulate.empty())
    json["emulated_on"] = o.emulate;
  for (const Contender &c : contenders) {
    auto s = c.sortedSeconds();
    Curve difference = curve(c);
    Json bytes = Json::object();
    CollectiveStats stats = c.session->collectives(0);
    for (int kind = 0; kind < 4; ++kind)
      if (stats.kinds[kind].calls)
        bytes[std::string(kindName(static_cast<CollectiveStep::Kind>(kind)))] = {
            {"calls", stats.kinds[kind].calls / o.steps},
            {"ring_bytes", stats.kinds[kind].ringBytes / o.steps}};
    json["plans"].push_back(
        {{"plan", c.plan},
         {"mesh", meshJson(c.built.executable->mesh)},
         {"threads_per_rank", c.session->workersPerRank()},
         {"step_seconds", {{"least", s.front()}, {"median", s[s.size() / 2]}, {"most", s.back()}}},
         {"seconds_of_steps", c.seconds},
         {"predicted_on", where()},
         {"predicted_seconds", c.costs->predicted.seconds},
         {"predicted_exposed_seconds", totalTime(c.costs->predicted.sites).exposed},
         {"tokens_per_second", tokensPerStep() / s[s.size() / 2]},
         {"collectives_per_step", bytes},
         {"memory", plannedMemory(*c.built.executable, c.built.program(c.program)).json()},
         {"losses", c.losses},
         {"largest_difference", difference.largest},
         {"largest_judged_difference", difference.judged},
         {"equal", difference.parting < 0},
         {"parts_at_step", difference.parting < 0 ? Json() : Json(difference.parting)}});
    Json &plan = json["plans"].back();
    if (!o.emulate.empty()) {
      c.emulated.into(plan, c.emulated.median(), tokensPerStep());
      plan["emulated_seconds_of_steps"] = c.emulated.seconds;
    }
    if (&c != &contenders[0])
      plan["verdict"] = verdict(c).json(contenders[0].plan);
    plan["lines"] = linesJson(c.side(), source);
  }
  json["differences"] = Json::array();
  for (size_t i = 1; i < contenders.size(); ++i)
    json["differences"].push_back(
        differencesJson(contenders[0].side(), contenders[i].side(), source));
  return json;
}

Page Comparison::page() const {
  Page page;
  page.title = title();
  page.where = where();
  page.table = rows();
  for (const Contender &c : contenders)
    page.plans.push_back({c.side(), c.last,
                          o.emulate.empty()
                              ? "measured, the last step"
                              : fmt::format("emulated on {}, the last step", o.emulate),
                          plannedMemory(*c.built.executable, c.code())});
  for (size_t i = 1; i < contenders.size(); ++i) {
    page.verdicts.push_back(verdict(contenders[i]).text(contenders[i].plan, contenders[0].plan));
    page.differences.push_back(differencesJson(page.plans[0].side, page.plans[i].side, source));
  }
  return page;
}

Status Comparison::write() const {
  auto file = [&](const std::string &path, const std::string &text) {
    Status status = writeFileAtomically(path, text);
    if (status && !o.json)
      out(fmt::format("wrote {}\n", path));
    return status;
  };
  if (!o.trace.empty()) {
    std::vector<TracedRun> runs;
    for (const Contender &c : contenders)
      runs.push_back(c.last);
    if (auto status = file(o.trace, traceText(runs)); !status)
      return status;
  }
  return o.html.empty() ? Status() : file(o.html, pageText(page(), source));
}

Status Comparison::run() {
  if (auto status = requireSource(o, "compare"); !status)
    return status;
  if (auto status = checkEmulation(o.optimizer.app, o); !status)
    return status;
  if (!o.cluster.empty())
    if (auto cluster = findCluster("--cluster", o.cluster); !cluster)
      return cluster.error();
  auto plans = parseList("--plans", o.plans);
  if (!plans)
    return plans.error();
  std::vector<std::pair<std::string, std::string>> inputs = {{"FILE", o.file}, {"--data", o.data}};
  for (const std::string &plan : *plans)
    inputs.emplace_back("--plans", planFile(plan));
  if (auto status = requireOutput("--trace", o.trace, inputs); !status)
    return status;
  if (auto status = requireOutput("--html", o.html, inputs); !status)
    return status;
  if (!o.trace.empty() && o.trace == o.html)
    return Error{fmt::format("--trace {} and --html {} are the same file", o.trace, o.html)};
  auto source = Source::open(o);
  if (!source)
    return source.error();
  auto sizes = source->complete({{"batch", 8}, {"seq", 64}});
  if (!sizes)
    return sizes.error();
  for (const std::string &plan : *plans) {
    auto contender = prepare(*source, *sizes, plan);
    progress.clear();
    if (!contender)
      return contender.error();
    contenders.push_back(std::move(*contender));
  }
  std::vector<std::vector<MeshAxis>> meshes;
  for (const Contender &c : contenders)
    meshes.push_back(c.built.executable->mesh);
  if (auto status = requireUsed(o.mesh, meshes, o.plans); !status)
    return status;
  if (auto status = race(); !status)
    return status;
  if (o.json)
    outPretty(json());
  else
    print();
  if (auto status = write(); !status)
    return status;
  std::vector<std::string> parted;
  for (const Contender &c : contenders)
    if (Curve difference = curve(c); difference.parting >= 0)
      parted.push_back(fmt::format("{} at step {}", c.plan, difference.parting));
  if (!parted.empty())
    return Error{fmt::format("the losses part from those of {}: {}", contenders[0].plan,
                             fmt::join(parted, ", ")),
                 Fault::Differs};
  return {};
}

} // namespace

void addCompare(Commands &commands) {
  auto o = std::make_shared<CompareOptions>();
  CLI::App *app = commands.add(
      "compare", "Train under several plans, interleaved, and compare time, memory, bytes, loss.",
      "  cleave compare models/gpt2.cleave --plans none,megatron --mesh tp=2 --data text.txt "
      "--steps 60\n"
      "  cleave compare models/gpt2.cleave --plans none,megatron,data --mesh dp=2,tp=2 --losses\n"
      "  cleave compare models/gpt2.cleave --plans none,megatron,data --mesh dp=4,tp=4 --emulate "
      "ethernet\n"
      "  cleave compare models/gpt2.cleave --plans megatron,auto --mesh tp=2 --emulate ethernet "
      "--trace trace.json --html plans.html\n"
      "Each plan takes the axes of --mesh that it has. Exit code 3: the losses part; in f32 the "
      "first 50 steps\n"
      "are judged, as rounding grows with each step, in f64 all.\n");
  addFile(app, *o, false);
  app->add_option("--plans", o->plans,
                  "plans with commas: of FILE, or FILE:NAME, or auto: searched for; none is one "
                  "rank; the others are judged against the first")
      ->required()
      ->type_name("A,B");
  addMesh(app, *o);
  addCluster(app, *o, "what predictions are for, and what a plan that says auto is to be fast on");
  app->add_option("--trace", o->trace,
                  "write when each step of each rank ran under each plan, in the last training "
                  "step, for Perfetto")
      ->type_name("OUT.json");
  app->add_option("--html", o->html,
                  "write one page with the figures, timelines and memory of the last step, the "
                  "program's lines and what they cost, and the differences; it loads nothing")
      ->type_name("OUT.html");
  app->add_option("--data", o->data, "a text; without it, random inputs")->type_name("TEXT");
  addFunction(app, *o, "loss");
  app->add_option("--steps", o->steps, "training steps (20)")
      ->check(wholeNumber(1, 1LL << 31))
      ->type_name("N");
  addSizes(app, *o);
  addOptimizer(app, o->optimizer);
  addRate(app, o->optimizer);
  app->add_flag("--losses", o->losses, "print the loss of every step");
  addModel(app, *o);
  addPrecision(app, *o);
  addSeed(app, *o);
  addThreads(app, *o);
  addOffload(app, *o);
  addEmulate(app, *o);
  addOutput(app, *o);
  commands.action(app, [o] { return Comparison(*o).run(); });
}

} // namespace cleave::tool
