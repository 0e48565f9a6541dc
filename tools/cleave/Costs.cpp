//===- Costs.cpp - what a program's collectives cost ----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Costs.h"

#include "Emulate.h"
#include "Inputs.h"
#include "Profile.h"

#include "runtime/core/Threads.h"
#include "runtime/emulate/Volumes.h"

#include <algorithm>
#include <fmt/format.h>

namespace cleave::tool {

std::string Costs::where() const { return fmt::format("{} on {}", how(), network.cluster().name); }

static double medianOf(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

static bool computes(const Step &step) {
  return !std::holds_alternative<CollectiveStep>(step.action) &&
         !std::holds_alternative<AwaitStep>(step.action);
}

static std::vector<double> averaged(const ComputeTimes &times) {
  std::vector<double> all(times.front().size());
  for (const std::vector<double> &rank : times)
    for (size_t i = 0; i < all.size(); ++i)
      all[i] += rank[i] / double(times.size());
  return all;
}

/// After some runs.
static void countInto(Costs &costs, const Session &session, int64_t runs) {
  int64_t bytes = 0;
  for (const CollectiveStats::Kind &kind : session.collectives(0).kinds)
    bytes += kind.ringBytes;
  costs.countedRingBytes = bytes / runs;
  costs.arenaBytes = session.memory().arena;
}

static Status runSteps(Session &session, const Program &program, const CommonOptions &o,
                       int64_t steps, Progress &progress, const std::function<void(double)> &each) {
  if (auto status = session.initialise(o.seed); !status)
    return status;
  for (int64_t step = 0; step <= steps; ++step) { // the first touches memory for the first time
    progress.say(fmt::format("run {} of {}", step + 1, steps + 1));
    auto run = session.run(program.name, randomInputs(program, o.seed, 0),
                           scalarsOf(program, o.seed, step, 1e-4));
    if (!run)
      return run.error();
    if (step)
      each(run->seconds);
    else
      session.resetProfile(), session.resetCollectives();
  }
  progress.clear();
  return {};
}

/// The median time of each step of each rank.
static Result<ComputeTimes> emulate(Costs &costs, const Built &built, size_t number,
                                    const CommonOptions &o, int64_t steps, Progress &progress) {
  auto session = openSession(built, o);
  if (!session)
    return session.error();
  std::vector<ComputeTimes> runs;
  auto status = runSteps(**session, built.program(number), o, steps, progress,
                         [&](double) { runs.push_back((*session)->computeTimes()); });
  if (!status)
    return status.error();
  countInto(costs, **session, steps);
  ComputeTimes times = runs.front();
  std::vector<double> values(runs.size());
  for (size_t rank = 0; rank < times.size(); ++rank)
    for (size_t i = 0; i < times[rank].size(); ++i) {
      for (size_t run = 0; run < runs.size(); ++run)
        values[run] = runs[run][rank][i];
      times[rank][i] = medianOf(values);
    }
  return times;
}

static Result<RunTimes> measure(Costs &costs, const Built &built, size_t number,
                                const CommonOptions &o, int64_t steps, Progress &progress) {
  CommonOptions here = o;
  here.emulate.clear();
  auto session = openSession(built, here, /*profile=*/true, /*timeline=*/true);
  if (!session)
    return session.error();
  const Program &program = built.program(number);
  std::vector<double> seconds;
  auto status = runSteps(**session, program, o, steps, progress,
                         [&](double time) { seconds.push_back(time); });
  if (!status)
    return status.error();
  countInto(costs, **session, steps);
  RunTimes times{medianOf(seconds), std::vector<SiteTime>(program.collectiveSites.size()),
                 std::vector<double>(program.steps.size())};
  double share = 1 / (double(seconds.size()) * (*session)->ranks());
  for (const std::vector<StepProfile> &rank : (*session)->profile(number))
    for (size_t i = 0; i < program.steps.size(); ++i)
      if (computes(program.steps[i]))
        times.compute[i] += rank[i].seconds * share;
  for (int rank = 0; rank < (*session)->ranks(); ++rank)
    for (const StepEvent &e : (*session)->timeline(rank)) {
      const auto *await =
          std::get_if<AwaitStep>(&program.steps[static_cast<size_t>(e.step)].action);
      size_t step = static_cast<size_t>(await ? await->step : e.step);
      const auto *c = std::get_if<CollectiveStep>(&program.steps[step].action);
      if (e.program != number || !c || c->site < 0)
        continue;
      SiteTime &site = times.sites[static_cast<size_t>(c->site)];
      // Without a core for them, begun ones are done when they begin.
      if (!await || e.beside)
        site.transfer += (e.seconds - e.waitSeconds) * share;
      if (e.beside)
        continue;
      site.exposed += e.seconds * share;
      if (!await)
        site.waiting += e.waitSeconds * share;
    }
  return times;
}

Result<Costs> costsOf(const Built &built, size_t number, const CommonOptions &o,
                      const CostOptions &wanted, Progress &progress) {
  bool emulates = !o.emulate.empty();
  auto cluster = emulates ? findCluster("--emulate", o.emulate)
                          : findCluster("--cluster",
                                        wanted.cluster.empty() ? defaultCluster() : wanted.cluster);
  if (!cluster)
    return cluster.error();
  const Program &program = built.program(number);
  auto network = Network::create(*cluster, built.executable->mesh);
  if (!network)
    return network.error();
  // An emulated rank computes on one thread, as does one of a cluster.
  auto ranks = static_cast<int>(built.executable->ranks());
  int threads = emulates ? 1 : std::max(1, (o.threads ? o.threads : usableCores()) / ranks);
  Costs costs{std::move(*network),
              predictCompute(program, *cluster, built.executable->ranks(), threads),
              {},
              {},
              {},
              {},
              {},
              {}};
  costs.clocks = wind(program, costs.network, costs.times);
  costs.predicted = {costs.clocks.seconds, siteTimes(program, costs.clocks), averaged(costs.times)};
  if (emulates) {
    auto times = emulate(costs, built, number, o, wanted.steps, progress);
    if (!times)
      return times.error();
    costs.times = std::move(*times);
    costs.clocks = wind(program, costs.network, costs.times);
    costs.emulated = {costs.clocks.seconds, siteTimes(program, costs.clocks),
                      averaged(costs.times)};
  }
  if (wanted.measure) {
    auto times = measure(costs, built, number, o, wanted.steps, progress);
    if (!times)
      return times.error();
    costs.measured = std::move(*times);
  }
  return costs;
}

Result<Costs> predictCosts(const Built &built, size_t number, const CommonOptions &o,
                           const std::string &cluster, Progress &progress) {
  CommonOptions predicts = o;
  CostOptions wanted;
  wanted.cluster = cluster;
  if (!o.emulate.empty()) { // an emulated rank computes on one thread
    predicts.emulate.clear();
    predicts.threads = static_cast<int>(built.executable->ranks());
    wanted.cluster = o.emulate;
  }
  return costsOf(built, number, predicts, wanted, progress);
}

//===----------------------------------------------------------------------===//
// The table
//===----------------------------------------------------------------------===//

namespace {

/// Sites that look alike, or are of one kind and axes.
struct Row {
  const CollectiveSite *site = nullptr;
  int64_t times = 0, ringBytes = 0, steps = 0; ///< bytes: of all times; steps: of one
  SiteTime predicted, emulated, measured;

  void add(const Costs &costs, size_t i, const CollectiveSite &s, int64_t ringSteps) {
    auto sum = [i](SiteTime &to, const RunTimes &from) {
      to.transfer += from.sites[i].transfer;
      to.exposed += from.sites[i].exposed;
      to.waiting += from.sites[i].waiting;
    };
    if (!site)
      site = &s;
    times += s.executions;
    ringBytes += s.ringBytes * s.executions;
    steps = ringSteps;
    sum(predicted, costs.predicted);
    if (costs.emulated)
      sum(emulated, *costs.emulated);
    if (costs.measured)
      sum(measured, *costs.measured);
  }
};

std::vector<int64_t> ringSteps(const Program &program) {
  std::vector<int64_t> steps(program.collectiveSites.size());
  for (const Step &step : program.steps)
    if (const auto *c = std::get_if<CollectiveStep>(&step.action); c && c->site >= 0)
      steps[static_cast<size_t>(c->site)] = collectiveSteps(*c);
  return steps;
}

std::vector<Row> rowsOf(const Program &program, const Costs &costs, bool sums) {
  std::vector<int64_t> steps = ringSteps(program);
  std::vector<Row> rows;
  for (size_t i = 0; i < program.collectiveSites.size(); ++i) {
    const CollectiveSite &s = program.collectiveSites[i];
    auto same = std::find_if(rows.begin(), rows.end(), [&](const Row &row) {
      const CollectiveSite &t = *row.site;
      return t.kind == s.kind && t.axes == s.axes &&
             (sums || (t.location == s.location && t.phase == s.phase && t.moves == s.moves &&
                       t.payloadBytes == s.payloadBytes));
    });
    if (same == rows.end())
      same = rows.insert(rows.end(), Row());
    same->add(costs, i, s, steps[i]);
  }
  return rows;
}

std::string shortPlace(const std::string &location) {
  size_t column = location.rfind(':'), name = location.rfind('/');
  name = name == std::string::npos ? 0 : name + 1;
  return column == std::string::npos || column < name ? location.substr(name)
                                                      : location.substr(name, column - name);
}

std::string percent(double part, double whole) {
  return fmt::format("{:.1f} %", whole > 0 ? 100 * part / whole : 0);
}

/// Steps that compute, summed: by group of like ones, or by kind.
struct ComputeRow {
  std::string name, source;
  StepKind kind = StepKind::Elementwise;
  int64_t count = 0;
  double bytes = 0, flops = 0, predicted = 0, emulated = 0, measured = 0;

  void add(const Program &program, const Costs &costs, const KernelGroup &group) {
    for (size_t i : group.steps) {
      ++count;
      bytes += double(program.steps[i].bytes);
      flops += double(program.steps[i].flops);
      predicted += costs.predicted.compute[i];
      emulated += costs.emulated ? costs.emulated->compute[i] : 0;
      measured += costs.measured ? costs.measured->compute[i] : 0;
    }
  }
};

/// In the order of predicted times.
std::vector<ComputeRow> computeRows(const Program &program, const Costs &costs, bool byKind) {
  std::vector<ComputeRow> rows;
  for (const KernelGroup &group : kernelGroups(program)) {
    if (!computes(program.steps[group.steps.front()]))
      continue;
    auto same = byKind ? std::find_if(rows.begin(), rows.end(),
                                      [&](const ComputeRow &r) { return r.kind == group.kind; })
                       : rows.end();
    if (same == rows.end())
      same = rows.insert(rows.end(),
                         {byKind ? kindText(group.kind) : group.name, group.source, group.kind});
    same->add(program, costs, group);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ComputeRow &a, const ComputeRow &b) {
    return a.predicted > b.predicted;
  });
  return rows;
}

std::string computeText(const Program &program, const Costs &costs) {
  std::vector<std::string> header = {"compute", "times", "predicted"};
  if (costs.emulated)
    header.emplace_back("emulated");
  if (costs.measured)
    header.emplace_back("measured");
  Table t(header);
  for (const ComputeRow &row : computeRows(program, costs, true)) {
    std::vector<std::string> cells = {row.name, countText(row.count), secondsText(row.predicted)};
    if (costs.emulated)
      cells.push_back(secondsText(row.emulated));
    if (costs.measured)
      cells.push_back(secondsText(row.measured));
    t.row(cells);
  }
  return t.text();
}

/// The times of each row in the columns that there are, exposed shares of a step.
struct Columns {
  const Costs &costs;
  std::vector<std::string> header(std::vector<std::string> cells) const {
    cells.insert(cells.end(), {"predicted", "exposed"});
    if (costs.emulated)
      cells.insert(cells.end(), {"emulated exposed", "waiting"});
    if (costs.measured)
      cells.insert(cells.end(), {"measured", "exposed"});
    return cells;
  }
  std::vector<std::string> row(std::vector<std::string> cells, const Row &row) const {
    cells.push_back(secondsText(row.predicted.transfer));
    cells.push_back(percent(row.predicted.exposed, costs.predicted.seconds));
    if (costs.emulated) {
      cells.push_back(percent(row.emulated.exposed, costs.emulated->seconds));
      cells.push_back(percent(row.emulated.waiting, costs.emulated->seconds));
    }
    if (costs.measured) {
      cells.push_back(secondsText(row.measured.transfer));
      cells.push_back(percent(row.measured.exposed, costs.measured->seconds));
    }
    return cells;
  }
};

std::string volumesText(const Program &program) {
  std::string text;
  auto bytes = [](double b) { return countText(std::llround(b)); };
  for (const Volume &v : closedForms(program)) {
    Table t({fmt::format("{} over {}", v.form, v.axes), "ring bytes per rank"});
    t.row({v.formula, bytes(v.closed)});
    for (const VolumeTerm &term : v.differences)
      t.row({"  " + term.what, fmt::format("{}{}", term.bytes >= 0 ? "+" : "", bytes(term.bytes))});
    if (v.unexplained() != 0)
      t.row({"  not explained", bytes(v.unexplained())});
    t.row({"counted", countText(v.counted)});
    text += "\n" + t.text();
  }
  return text;
}

Json timesJson(const SiteTime &time, const std::string &how, Json json = Json::object()) {
  json[how + "_seconds"] = time.transfer;
  json[how + "_exposed_seconds"] = time.exposed;
  json[how + "_waiting_seconds"] = time.waiting;
  return json;
}

Json rowJson(const Row &row, const Costs &costs, Json json) {
  json["times"] = row.times;
  json["ring_bytes"] = row.ringBytes;
  json["ring_steps"] = row.steps;
  json = timesJson(row.predicted, "predicted", std::move(json));
  if (costs.emulated)
    json = timesJson(row.emulated, "emulated", std::move(json));
  if (costs.measured)
    json = timesJson(row.measured, "measured", std::move(json));
  return json;
}

Json tensorsJson(const CollectiveSite &site) {
  Json list = Json::array();
  for (const CollectiveSite::Tensor &t : site.tensors) {
    Json json = {{"dims", t.dims}, {"elements", t.elements}};
    if (!t.param.empty())
      json["param"] = t.param;
    list.push_back(std::move(json));
  }
  return list;
}

} // namespace

std::string costsText(const Program &program, const Costs &costs) {
  const Cluster &cluster = costs.network.cluster();
  std::string text = fmt::format("profile {}: {}\n", cluster.name, cluster.about);
  auto line = [&](const std::string &how, const RunTimes &times, const std::string &what) {
    SiteTime all = totalTime(times.sites);
    text += fmt::format("{}: {} a step, {} of collectives, {} exposed{}\n", how,
                        secondsText(times.seconds), secondsText(all.transfer),
                        percent(all.exposed, times.seconds), what);
  };
  line("predicted", costs.predicted,
       cluster.rates.empty()
           ? fmt::format(" (links and the devices' roofline, {:g} GFLOP/s and {:g} GB/s)",
                         cluster.flops * 1e-9, cluster.memoryBandwidth * 1e-9)
           : " (links and the devices' measured rates)");
  if (costs.emulated)
    line("emulated", *costs.emulated,
         fmt::format(" (links, and CPU time of this machine{})",
                     cluster.speedup == 1 ? "" : fmt::format(" over {:g}", cluster.speedup)));
  if (costs.measured)
    line("measured", *costs.measured, " (this machine, ranks as threads)");
  text += "\n" + computeText(program, costs);
  if (program.collectiveSites.empty())
    return text + "\nno collectives\n";

  Columns columns{costs};
  Table sites(columns.header({"collective", "source", "", "moves", "times", "ring bytes", "steps"}),
              {true, true, true, true});
  for (const Row &row : rowsOf(program, costs, false)) {
    const CollectiveSite &s = *row.site;
    sites.row(columns.row({fmt::format("{} over {}", s.kind, s.axes), shortPlace(s.location),
                           s.phase, s.moves, countText(row.times), bytesText(row.ringBytes),
                           std::to_string(row.steps)},
                          row));
  }
  Table sums(columns.header({"sum", "times", "ring bytes"}));
  for (const Row &row : rowsOf(program, costs, true))
    sums.row(columns.row({fmt::format("{} over {}", row.site->kind, row.site->axes),
                          countText(row.times), bytesText(row.ringBytes)},
                         row));
  text +=
      "\n" + sites.text() + "\n" + sums.text() +
      "\nring bytes per rank, times and seconds of all executions in a step; steps: of the ring, "
      "of one; exposed: of the step\n";
  return text + volumesText(program);
}

Json costsJson(const Program &program, const Costs &costs) {
  Json json = {{"cluster", costs.network.cluster().name},
               {"predicted_step_seconds", costs.predicted.seconds}};
  auto totals = [&](const RunTimes &times, const std::string &how) {
    json[how + "_step_seconds"] = times.seconds;
    json = timesJson(totalTime(times.sites), how + "_collectives", std::move(json));
  };
  totals(costs.predicted, "predicted");
  if (costs.emulated)
    totals(*costs.emulated, "emulated");
  if (costs.measured)
    totals(*costs.measured, "measured");
  if (costs.countedRingBytes) {
    json["counted_ring_bytes"] = *costs.countedRingBytes;
    json["arena_bytes"] = *costs.arenaBytes;
    json["planned_arena_bytes"] = program.arenaBytes;
  }
  json["compute"] = Json::array();
  for (const ComputeRow &row : computeRows(program, costs, false)) {
    Json kernel = {{"name", row.name},
                   {"kind", kindText(row.kind)},
                   {"source", row.source},
                   {"times", row.count},
                   {"flops", row.flops},
                   {"bytes", row.bytes},
                   {"predicted_seconds", row.predicted}};
    if (costs.emulated)
      kernel["emulated_seconds"] = row.emulated;
    if (costs.measured)
      kernel["measured_seconds"] = row.measured;
    json["compute"].push_back(std::move(kernel));
  }
  json["collectives"] = Json::array();
  for (const Row &row : rowsOf(program, costs, false)) {
    const CollectiveSite &s = *row.site;
    json["collectives"].push_back(rowJson(row, costs,
                                          {{"kind", s.kind},
                                           {"axes", s.axes},
                                           {"phase", s.phase},
                                           {"location", s.location},
                                           {"moves", s.moves},
                                           {"tensors", tensorsJson(s)},
                                           {"layers", s.layers},
                                           {"payload_bytes", s.payloadBytes}}));
  }
  json["sums"] = Json::array();
  for (const Row &row : rowsOf(program, costs, true))
    json["sums"].push_back(
        rowJson(row, costs, {{"kind", row.site->kind}, {"axes", row.site->axes}}));
  json["closed_forms"] = Json::array();
  for (const Volume &v : closedForms(program)) {
    Json terms = Json::array();
    for (const VolumeTerm &term : v.differences)
      terms.push_back({{"what", term.what}, {"bytes", term.bytes}});
    json["closed_forms"].push_back({{"form", v.form},
                                    {"axes", v.axes},
                                    {"ranks", v.ranks},
                                    {"formula", v.formula},
                                    {"closed_bytes", v.closed},
                                    {"differences", terms},
                                    {"unexplained_bytes", v.unexplained()},
                                    {"counted_bytes", v.counted}});
  }
  return json;
}

} // namespace cleave::tool
