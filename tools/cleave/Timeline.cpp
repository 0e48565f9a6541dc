//===- Timeline.cpp - one run of a rank as text ---------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Costs.h"
#include "Profile.h"

#include <algorithm>
#include <fmt/format.h>

namespace cleave::tool {

namespace {

/// What a rank's clock or stream does for a while: steps of compute in a row, or collectives of
/// one kind that are begun, done or awaited in a row.
struct Span {
  enum class Kind { Compute, Blocking, Begun, Await } kind = Kind::Compute;
  double begin = 0, seconds = 0, waiting = 0; ///< of the clock
  double streamBegin = 0, streamEnd = 0;      ///< Begun
  int64_t count = 0, bytes = 0;
  std::string what;  ///< of a collective: kind and axes
  double hidden = 0; ///< compute between them that is not shown
  double largest = 0;
  StepKind kindOfLargest = StepKind::Gemm; ///< Compute

  double end() const { return begin + seconds; }
};

/// Compute that takes less of a run than this, together, does not part collectives.
constexpr double shortest = 0.02;
constexpr size_t barWidth = 34;
constexpr size_t mostRows = 120;

std::vector<Span> spansOf(const Program &program, const std::vector<ClockedStep> &steps,
                          double total) {
  std::vector<Span> spans;
  Span compute;
  auto flush = [&] {
    if (compute.count)
      spans.push_back(compute);
    compute = {};
  };
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step &step = program.steps[i];
    const ClockedStep &time = steps[i];
    const auto *await = std::get_if<AwaitStep>(&step.action);
    const auto *c = std::get_if<CollectiveStep>(
        &program.steps[await ? static_cast<size_t>(await->step) : i].action);
    if (!c) {
      if (!compute.count)
        compute.begin = time.begin;
      ++compute.count;
      compute.seconds += time.seconds;
      if (time.seconds >= compute.largest) {
        compute.largest = time.seconds;
        compute.kindOfLargest = step.kind;
      }
      continue;
    }
    Span span;
    span.kind = await ? Span::Kind::Await : c->begun ? Span::Kind::Begun : Span::Kind::Blocking;
    span.begin = time.begin;
    span.seconds = time.seconds;
    span.waiting = time.waiting;
    span.streamBegin = time.transferBegin;
    span.streamEnd = time.transferBegin + time.transfer;
    span.count = 1;
    const CollectiveSite *site =
        c->site >= 0 ? &program.collectiveSites[static_cast<size_t>(c->site)] : nullptr;
    span.bytes = site ? site->payloadBytes : 0;
    span.what = site ? fmt::format("{} over {}", site->kind, site->axes) : "collective";
    bool joins = !spans.empty() && spans.back().hidden + compute.seconds < shortest * total &&
                 spans.back().kind == span.kind && spans.back().what == span.what;
    if (!joins) {
      flush();
      spans.push_back(span);
      continue;
    }
    // What little was computed in between is not shown.
    Span &last = spans.back();
    last.seconds = span.end() - last.begin;
    last.waiting += span.waiting;
    last.hidden += compute.seconds;
    last.streamEnd = span.streamEnd;
    last.bytes += span.bytes;
    ++last.count;
    compute = {};
  }
  flush();
  return spans;
}

std::string describe(const Span &s) {
  std::string times = s.count > 1 ? fmt::format("{} ", s.count) : "";
  switch (s.kind) {
  case Span::Kind::Compute:
    return fmt::format("{}, most {}", countText(s.count, "step"), kindText(s.kindOfLargest));
  case Span::Kind::Blocking:
    return fmt::format("{}{}, {}", times, s.what, bytesText(s.bytes));
  case Span::Kind::Begun:
    return fmt::format("begin {}{}, {}", times, s.what, bytesText(s.bytes));
  case Span::Kind::Await:
    return fmt::format("await {}{}", times, s.what);
  }
  return "";
}

/// `#` compute, `=` transfer that the clock stands still for, `.` waiting, `~` on the stream.
std::string bar(const Span &s, double total) {
  std::string text(barWidth, ' ');
  auto draw = [&](double from, double to, char with) {
    double scale = total > 0 ? static_cast<double>(barWidth) / total : 0;
    auto first = std::min(barWidth - 1, static_cast<size_t>(from * scale));
    auto last = std::min(barWidth, std::max(first + 1, static_cast<size_t>(to * scale + 0.5)));
    for (size_t i = first; i < last; ++i)
      text[i] = with;
  };
  switch (s.kind) {
  case Span::Kind::Compute:
    draw(s.begin, s.end(), '#');
    break;
  case Span::Kind::Begun:
    draw(s.streamBegin, s.streamEnd, '~');
    break;
  case Span::Kind::Blocking:
  case Span::Kind::Await:
    if (s.seconds - s.waiting > 0)
      draw(s.begin + s.waiting, s.end(), '=');
    if (s.waiting > 0)
      draw(s.begin, s.begin + s.waiting, '.');
    break;
  }
  return text;
}

} // namespace

std::string timelineText(const Program &program, const Costs &costs) {
  const ClockedRun &run = costs.clocks;
  std::vector<Span> spans = spansOf(program, run.ranks[0], run.seconds);
  std::string text =
      fmt::format("timeline of rank 0 in one run, {}: {}\n"
                  "# computes, = stands still for a transfer, . waits, ~ a collective on the "
                  "stream, beside\n\n{:>9}  {:>8}  {:<41}  |{:<34}|\n",
                  costs.where(), secondsText(run.seconds), "at", "takes", "", "");
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span &s = spans[i];
    if (spans.size() > mostRows && i == mostRows / 2) {
      size_t left = spans.size() - mostRows;
      text += fmt::format("{:>9}  {:>8}  {} more rows\n", "...", "", left);
      i += left;
    }
    std::string takes = s.kind == Span::Kind::Begun ? "" : secondsText(s.seconds);
    text += fmt::format("{:>9}  {:>8}  {:<41.41}  |{}|\n", secondsText(s.begin), takes, describe(s),
                        bar(s, run.seconds));
  }
  double compute = 0;
  for (size_t i = 0; i < program.steps.size(); ++i)
    if (program.steps[i].kind != StepKind::Collective)
      compute += run.ranks[0][i].seconds;
  double transfer = 0, exposed = 0, waiting = 0;
  for (size_t i = 0; i < program.steps.size(); ++i)
    if (program.steps[i].kind == StepKind::Collective) {
      transfer += run.ranks[0][i].transfer;
      exposed += run.ranks[0][i].seconds;
      waiting += run.ranks[0][i].waiting;
    }
  text += fmt::format(
      "\ncomputes for {}, stands still for {} ({} waiting)\nits collectives take {} on "
      "the stream\n",
      secondsText(compute), secondsText(exposed), secondsText(waiting), secondsText(transfer));
  return text;
}

Json timelineJson(const Program &program, const Costs &costs) {
  static constexpr const char *kinds[] = {"compute", "blocking", "begin", "await"};
  const std::string how = costs.how();
  Json rows = Json::array();
  for (const Span &s : spansOf(program, costs.clocks.ranks[0], costs.clocks.seconds)) {
    Json row = {{"row", kinds[static_cast<int>(s.kind)]},
                {"what", s.what},
                {"count", s.count},
                {how + "_begin_seconds", s.begin},
                {how + "_seconds", s.seconds},
                {how + "_waiting_seconds", s.waiting}};
    if (s.kind == Span::Kind::Begun) {
      row[how + "_stream_begin_seconds"] = s.streamBegin;
      row[how + "_stream_end_seconds"] = s.streamEnd;
    }
    rows.push_back(std::move(row));
  }
  return {{how + "_on", costs.network.cluster().name},
          {"rank", 0},
          {how + "_seconds", costs.clocks.seconds},
          {"rows", rows}};
}

} // namespace cleave::tool
