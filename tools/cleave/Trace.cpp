//===- Trace.cpp - when each step of each rank ran ------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Trace.h"

#include "Profile.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <set>

namespace cleave::tool {

void TracedRun::showTransfers() {
  for (std::vector<StepEvent> &events : ranks) {
    std::vector<StepEvent> all;
    std::set<int64_t> there; // without a core for it, one that is begun is done then and there
    for (const StepEvent &e : events)
      if (e.beside)
        there.insert(e.step);
    for (const StepEvent &e : events) {
      all.push_back(e);
      bool collective = std::holds_alternative<CollectiveStep>(
          program->steps[static_cast<size_t>(e.step)].action);
      if (!collective || there.count(e.step) || e.seconds <= e.waitSeconds)
        continue;
      all.push_back({e.program, e.step, e.begin + e.waitSeconds, e.seconds - e.waitSeconds, 0,
                     /*beside=*/true});
    }
    events = std::move(all);
  }
}

double TracedRun::begin() const {
  double first = std::numeric_limits<double>::infinity();
  for (const auto &events : ranks)
    for (const StepEvent &e : events)
      first = std::min(first, e.begin);
  return std::isfinite(first) ? first : 0;
}

double TracedRun::seconds() const {
  double origin = begin(), last = origin;
  for (const auto &events : ranks)
    for (const StepEvent &e : events)
      last = std::max(last, e.begin + e.seconds);
  return last - origin;
}

TracedRun runOf(const Session &session, size_t number, std::string name) {
  TracedRun run{std::move(name), &session.executable().programs[number], {}};
  for (int rank = 0; rank < session.ranks(); ++rank) {
    run.ranks.emplace_back();
    for (const StepEvent &e : session.timeline(rank))
      if (e.program == number)
        run.ranks.back().push_back(e);
  }
  return run;
}

TracedRun runOf(const ClockedRun &clocks, const Program &program, std::string name) {
  TracedRun run{std::move(name), &program, {}};
  for (const std::vector<ClockedStep> &steps : clocks.ranks) {
    std::vector<StepEvent> &events = run.ranks.emplace_back();
    for (size_t i = 0; i < steps.size(); ++i) {
      const ClockedStep &step = steps[i];
      auto number = static_cast<int64_t>(i);
      events.push_back({0, number, step.begin, step.seconds, step.waiting});
      const auto *c = std::get_if<CollectiveStep>(&program.steps[i].action);
      if (c && c->begun)
        events.push_back({0, number, step.transferBegin, step.transfer, 0, /*beside=*/true});
    }
  }
  return run;
}

std::string traceText(const std::vector<TracedRun> &runs) {
  // One event a line: files of a million events are not held twice.
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  auto event = [&](const Json &json) {
    text += json.dump(-1, ' ', false, Json::error_handler_t::replace) + ",\n";
  };
  for (size_t pid = 0; pid < runs.size(); ++pid) {
    const TracedRun &run = runs[pid];
    const Program &program = *run.program;
    std::vector<std::string> names, sources;
    for (const Step &step : program.steps) {
      names.push_back(stepName(program, step));
      sources.push_back(stepSource(program, step));
    }
    auto meta = [&](size_t tid, const char *what, const Json &args) {
      event({{"ph", "M"}, {"pid", pid}, {"tid", tid}, {"name", what}, {"args", args}});
    };
    event({{"ph", "M"}, {"pid", pid}, {"name", "process_name"}, {"args", {{"name", run.name}}}});
    double origin = run.begin();
    for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
      const std::vector<StepEvent> &events = run.ranks[rank];
      size_t stream = run.ranks.size() + rank;
      // Each stream below its rank.
      meta(rank, "thread_name", {{"name", fmt::format("rank {}", rank)}});
      meta(rank, "thread_sort_index", {{"sort_index", 2 * rank}});
      if (std::any_of(events.begin(), events.end(), [](const auto &e) { return e.beside; })) {
        meta(stream, "thread_name", {{"name", fmt::format("rank {} communication", rank)}});
        meta(stream, "thread_sort_index", {{"sort_index", 2 * rank + 1}});
      }
      for (const StepEvent &e : events) {
        auto i = static_cast<size_t>(e.step);
        const Step &step = program.steps[i];
        double time = std::max(e.seconds - e.waitSeconds, 1e-9);
        Json args = {{"step", e.step},
                     {"source", sources[i]},
                     {"bytes", step.bytes},
                     {"GB/s", double(step.bytes) / time * 1e-9}};
        if (step.flops)
          args["GFLOP/s"] = double(step.flops) / time * 1e-9;
        if (e.waitSeconds > 0)
          args["waiting_us"] = e.waitSeconds * 1e6;
        event({{"ph", "X"},
               {"pid", pid},
               {"tid", e.beside ? stream : rank},
               {"ts", (e.begin - origin) * 1e6},
               {"dur", e.seconds * 1e6},
               {"name", names[i].empty() ? kindText(step.kind) : names[i]},
               {"cat", kindText(step.kind)},
               {"args", args}});
      }
    }
  }
  text.erase(text.size() - 2); // the last comma
  return text + "\n]}\n";
}

} // namespace cleave::tool
