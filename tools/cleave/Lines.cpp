//===- Lines.cpp - what each source line costs ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Lines.h"

#include "runtime/core/Shard.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <numeric>
#include <set>
#include <tuple>

namespace cleave::tool {

TwoTimes LineCost::all() const {
  TwoTimes sum = compute;
  for (const LineCollective &c : collectives)
    sum += c.exposed;
  return sum;
}

TwoTimes sumOf(const LineCosts &lines) {
  TwoTimes sum;
  for (const auto &[place, line] : lines)
    sum += line.all();
  return sum;
}

std::vector<double> lastRank(const ClockedRun &run) {
  std::vector<double> last;
  double most = -1;
  for (const std::vector<ClockedStep> &steps : run.ranks) {
    std::vector<double> seconds;
    for (const ClockedStep &step : steps)
      seconds.push_back(step.seconds);
    double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    if (sum > most) {
      most = sum;
      last = std::move(seconds);
    }
  }
  return last;
}

LineCosts lineCosts(const Program &program, const std::vector<double> &predicted,
                    const std::vector<double> &seen, const std::vector<SiteTime> &sites) {
  LineCosts lines;
  auto collective = [&](size_t number) -> LineCollective & {
    const CollectiveSite &site = program.collectiveSites[number];
    auto &list = lines[splitLocation(site.location)].collectives;
    auto same = std::find_if(list.begin(), list.end(), [&](const LineCollective &c) {
      return c.kind == site.kind && c.axes == site.axes && c.phase == site.phase;
    });
    if (same == list.end()) {
      same = list.insert(list.end(), LineCollective());
      same->kind = site.kind;
      same->axes = site.axes;
      same->phase = site.phase;
    }
    return *same;
  };
  for (size_t i = 0; i < program.collectiveSites.size(); ++i) {
    LineCollective &c = collective(i);
    c.times += program.collectiveSites[i].executions;
    c.ringBytes += program.collectiveSites[i].ringBytes * program.collectiveSites[i].executions;
    c.transfer += sites[i].transfer;
  }
  for (size_t i = 0; i < program.steps.size(); ++i) {
    TwoTimes time{predicted[i], seen.empty() ? 0 : seen[i]};
    const Step &step = program.steps[i];
    const auto *await = std::get_if<AwaitStep>(&step.action);
    const auto *c = std::get_if<CollectiveStep>(
        &program.steps[await ? static_cast<size_t>(await->step) : i].action);
    if (c && c->site >= 0)
      collective(static_cast<size_t>(c->site)).exposed += time;
    else
      lines[step.location < 0
                ? std::pair<std::string, unsigned>()
                : splitLocation(program.locations[static_cast<size_t>(step.location)])]
          .compute += time;
  }
  return lines;
}

//===----------------------------------------------------------------------===//
// Differences
//===----------------------------------------------------------------------===//

namespace {

/// A collective of a line under two plans; one of them may have none.
struct CollectivePair {
  LineCollective first, second; ///< kind, axes, phase: of both
};

struct LineDifference {
  std::string file;
  unsigned line = 0;
  LineCost first, second;
  std::vector<CollectivePair> collectives;

  double predicted() const { return second.all().predicted - first.all().predicted; }
  double seen() const { return second.all().seen - first.all().seen; }
};

std::vector<CollectivePair> pairUp(const LineCost &first, const LineCost &second) {
  std::vector<CollectivePair> pairs;
  auto find = [&](const LineCollective &c) -> CollectivePair & {
    auto same = std::find_if(pairs.begin(), pairs.end(), [&](const CollectivePair &p) {
      return p.first.kind == c.kind && p.first.axes == c.axes && p.first.phase == c.phase;
    });
    if (same != pairs.end())
      return *same;
    CollectivePair pair;
    for (LineCollective *side : {&pair.first, &pair.second}) {
      side->kind = c.kind;
      side->axes = c.axes;
      side->phase = c.phase;
    }
    pairs.push_back(pair);
    return pairs.back();
  };
  for (const LineCollective &c : first.collectives)
    find(c).first = c;
  for (const LineCollective &c : second.collectives)
    find(c).second = c;
  return pairs;
}

/// What differs most first; lines of the same difference in the order of the text.
std::vector<LineDifference> differences(const PlanSide &first, const PlanSide &second) {
  std::vector<LineDifference> list;
  std::set<std::pair<std::string, unsigned>> places;
  for (const PlanSide *side : {&first, &second})
    for (const auto &[place, line] : side->lines)
      places.insert(place);
  for (const auto &place : places) {
    LineDifference d{place.first, place.second, {}, {}, {}};
    if (auto found = first.lines.find(place); found != first.lines.end())
      d.first = found->second;
    if (auto found = second.lines.find(place); found != second.lines.end())
      d.second = found->second;
    d.collectives = pairUp(d.first, d.second);
    list.push_back(std::move(d));
  }
  std::sort(list.begin(), list.end(), [](const auto &a, const auto &b) {
    return std::tuple(-std::abs(a.predicted()), a.file, a.line) <
           std::tuple(-std::abs(b.predicted()), b.file, b.line);
  });
  return list;
}

std::string placeText(const std::string &file, unsigned line) {
  return line ? shortPlace(file, line) : "without a line";
}

/// With its sign; nothing for nothing.
std::string signedText(double seconds) {
  if (std::abs(seconds) < 5e-11)
    return "0";
  return fmt::format("{}{}", seconds > 0 ? "+" : "-", secondsText(std::abs(seconds)));
}

/// "[vocab by tp, width]"
std::string layoutText(const TensorLayout &layout, const std::vector<MeshAxis> &mesh) {
  std::string text;
  for (const DimLayout &dim : layout.dims) {
    std::vector<SubAxis> axes;
    for (const SubAxis &axis : dim.axes)
      if (axis.size > 1)
        axes.push_back(axis);
    text += (text.empty() ? "" : ", ") + dim.name;
    if (!axes.empty())
      text += " by " + axesText(axes, mesh);
  }
  return "[" + text + "]";
}

/// Where the params, inputs and, where it lies elsewhere than its param, the optimizer's state of a
/// program lie.
std::vector<std::pair<std::string, std::string>> layouts(const PlanSide &side) {
  std::vector<std::pair<std::string, std::string>> list;
  for (const Argument &a : side.program->arguments) {
    if (a.role == Argument::Role::Scalar || a.layout.dims.empty())
      continue;
    std::string text = layoutText(a.layout, side.executable->mesh);
    if (a.offloaded)
      text += ", in a file";
    list.emplace_back(a.name, text);
  }
  return list;
}

struct ArgumentDifference {
  std::string name, first, second;
};

std::vector<ArgumentDifference> argumentDifferences(const PlanSide &first, const PlanSide &second) {
  std::map<std::string, std::string> there;
  for (const auto &[name, text] : layouts(second))
    there.emplace(name, text);
  std::vector<ArgumentDifference> list;
  std::map<std::string, std::pair<std::string, std::string>> params;
  for (const auto &[name, text] : layouts(first)) {
    auto found = there.find(name);
    if (found == there.end())
      continue;
    // A state "adam.m:PARAM" that lies as its param does says nothing more.
    size_t colon = name.find(':');
    auto param = colon == std::string::npos ? params.end() : params.find(name.substr(colon + 1));
    params[name] = {text, found->second};
    if (param != params.end() && param->second == std::pair(text, found->second))
      continue;
    if (text != found->second)
      list.push_back({name, text, found->second});
  }
  return list;
}

constexpr size_t mostLines = 12, mostArguments = 16;

std::string collectiveText(const CollectivePair &pair) {
  const LineCollective &a = pair.first, &b = pair.second;
  std::string text = fmt::format("  {} over {}, {}", a.kind, a.axes, a.phase);
  auto side = [](const LineCollective &c) {
    return c.times ? fmt::format("{} in {}", bytesText(c.ringBytes), countText(c.times)) : "none";
  };
  if (a.times == b.times && a.ringBytes == b.ringBytes)
    return text + ": " + side(a);
  return text + fmt::format(": {} -> {}", side(a), side(b));
}

/// Whether what two plans do is worth a row of its own.
bool differs(double first, double second, double whole) {
  return std::abs(first - second) > 1e-4 * whole;
}

} // namespace

std::string differencesText(const PlanSide &first, const PlanSide &second, const std::string &where,
                            SourceLines &source) {
  std::vector<LineDifference> list = differences(first, second);
  double whole = std::max(first.run.predicted, second.run.predicted);
  std::string text =
      fmt::format("why {} and {} differ, by the source line that the time is spent for\n",
                  second.plan, first.plan);
  Table t({"", first.plan, second.plan, "difference", second.seen, "source"},
          {true, false, false, false, false, true});
  auto row = [&](const std::string &what, const TwoTimes &a, const TwoTimes &b,
                 const std::string &line) {
    t.row({what, secondsText(a.predicted), secondsText(b.predicted),
           signedText(b.predicted - a.predicted), signedText(b.seen - a.seen), line});
  };
  TwoTimes restOfFirst, restOfSecond;
  int64_t left = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const LineDifference &d = list[i];
    TwoTimes a = d.first.all(), b = d.second.all();
    if (i >= mostLines || !differs(a.predicted, b.predicted, whole)) {
      restOfFirst += a;
      restOfSecond += b;
      ++left;
      continue;
    }
    std::string line = source.line(d.file, d.line);
    if (line.size() > 60)
      line = printable(line.substr(0, 57)) + "...";
    row(placeText(d.file, d.line), a, b, line);
    bool parts = false;
    for (const CollectivePair &pair : d.collectives)
      if (pair.first.ringBytes != pair.second.ringBytes || pair.first.times != pair.second.times ||
          differs(pair.first.exposed.predicted, pair.second.exposed.predicted, whole)) {
        row(collectiveText(pair), pair.first.exposed, pair.second.exposed, "");
        parts = true;
      }
    if (parts && differs(d.first.compute.predicted, d.second.compute.predicted, whole))
      row("  compute", d.first.compute, d.second.compute, "");
  }
  if (left)
    row(countText(left, left == static_cast<int64_t>(list.size()) ? "line" : "more line"),
        restOfFirst, restOfSecond, "");
  TwoTimes a = sumOf(first.lines), b = sumOf(second.lines);
  TwoTimes outA{0, first.run.seen - a.seen}, outB{0, second.run.seen - b.seen};
  if (differs(outA.seen, outB.seen, std::max(first.run.seen, second.run.seen)))
    row("between steps", outA, outB, "");
  row("a step", first.run, second.run, "");
  text +=
      t.text() + fmt::format("times predicted on {}, of the last rank, waiting included; {}: the "
                             "difference of the means of all steps\n",
                             where, second.seen);
  std::vector<ArgumentDifference> arguments = argumentDifferences(first, second);
  if (arguments.empty())
    return text;
  Table elsewhere({"what lies elsewhere", first.plan, second.plan}, {true, true, true});
  for (size_t i = 0; i < std::min(arguments.size(), mostArguments); ++i)
    elsewhere.row({arguments[i].name, arguments[i].first, arguments[i].second});
  text += "\n" + elsewhere.text();
  if (arguments.size() > mostArguments)
    text +=
        fmt::format("{} more\n", countText(static_cast<int64_t>(arguments.size() - mostArguments)));
  return text;
}

//===----------------------------------------------------------------------===//
// JSON
//===----------------------------------------------------------------------===//

static Json timesJson(const TwoTimes &time, const std::string &seen) {
  Json json = {{"predicted_seconds", time.predicted}};
  if (!seen.empty())
    json[seen + "_seconds"] = time.seen;
  return json;
}

static Json collectiveJson(const LineCollective &c, const std::string &seen) {
  Json json = {{"times", c.times},
               {"ring_bytes", c.ringBytes},
               {"predicted_transfer_seconds", c.transfer},
               {"predicted_exposed_seconds", c.exposed.predicted}};
  if (!seen.empty())
    json[seen + "_exposed_seconds"] = c.exposed.seen;
  return json;
}

static Json placeJson(const std::string &file, unsigned number, SourceLines &source) {
  return {{"file", file}, {"line", number}, {"text", source.line(file, number)}};
}

Json linesJson(const PlanSide &side, SourceLines &source) {
  Json list = Json::array();
  for (const auto &[place, line] : side.lines) {
    Json json = placeJson(place.first, place.second, source);
    json["compute"] = timesJson(line.compute, side.seen);
    json["collectives"] = Json::array();
    for (const LineCollective &c : line.collectives) {
      Json one = {{"kind", c.kind}, {"axes", c.axes}, {"phase", c.phase}};
      one.update(collectiveJson(c, side.seen));
      json["collectives"].push_back(std::move(one));
    }
    list.push_back(std::move(json));
  }
  return list;
}

Json shardingsJson(const PlanSide &side) {
  std::map<std::pair<std::string, unsigned>, Json> lines;
  for (const ValueSharding &value : side.shardings) {
    auto place = splitLocation(value.source);
    if (value.phase != "forward" || !place.second)
      continue;
    Json &list = lines.try_emplace(place, Json::array()).first->second;
    Json one = {{"name", value.name}, {"layout", value.layout}, {"times", value.times}};
    if (std::find(list.begin(), list.end(), one) == list.end())
      list.push_back(std::move(one));
  }
  Json json = Json::array();
  for (auto &[place, list] : lines)
    json.push_back({{"file", place.first}, {"line", place.second}, {"values", std::move(list)}});
  return json;
}

/// Lines that have layouts under one plan that they don't have under the other.
static Json valueDifferencesJson(const PlanSide &first, const PlanSide &second,
                                 SourceLines &source) {
  std::map<std::pair<std::string, unsigned>, std::array<std::vector<std::string>, 2>> lines;
  for (int i = 0; i < 2; ++i)
    for (const Json &line : shardingsJson(i ? second : first)) {
      auto &list = lines[{line["file"], line["line"]}][static_cast<size_t>(i)];
      for (const Json &value : line["values"]) {
        std::string name = value["name"], layout = value["layout"];
        list.push_back(name.empty() ? layout : name + " " + layout);
      }
    }
  Json json = Json::array();
  for (const auto &[place, lists] : lines) {
    auto without = [&](size_t i) {
      Json own = Json::array();
      for (const std::string &text : lists[i])
        if (std::find(lists[1 - i].begin(), lists[1 - i].end(), text) == lists[1 - i].end())
          own.push_back(text);
      return own;
    };
    Json own = placeJson(place.first, place.second, source);
    own["first"] = without(0);
    own["second"] = without(1);
    if (!own["first"].empty() || !own["second"].empty())
      json.push_back(std::move(own));
  }
  return json;
}

Json differencesJson(const PlanSide &first, const PlanSide &second, SourceLines &source) {
  const std::string &seen = second.seen;
  Json lines = Json::array();
  for (const LineDifference &d : differences(first, second)) {
    Json json = placeJson(d.file, d.line, source);
    json["predicted_difference_seconds"] = d.predicted();
    json[seen + "_difference_seconds"] = d.seen();
    json["compute"] = {{"first", timesJson(d.first.compute, seen)},
                       {"second", timesJson(d.second.compute, seen)}};
    json["collectives"] = Json::array();
    for (const CollectivePair &pair : d.collectives)
      json["collectives"].push_back({{"kind", pair.first.kind},
                                     {"axes", pair.first.axes},
                                     {"phase", pair.first.phase},
                                     {"first", collectiveJson(pair.first, seen)},
                                     {"second", collectiveJson(pair.second, seen)}});
    lines.push_back(std::move(json));
  }
  Json arguments = Json::array();
  for (const ArgumentDifference &a : argumentDifferences(first, second))
    arguments.push_back({{"name", a.name}, {"first", a.first}, {"second", a.second}});
  return {{"first", first.plan},
          {"second", second.plan},
          {"predicted_difference_seconds", second.run.predicted - first.run.predicted},
          {seen + "_difference_seconds", second.run.seen - first.run.seen},
          {"lines", std::move(lines)},
          {"arguments", std::move(arguments)},
          {"values", valueDifferencesJson(first, second, source)}};
}

} // namespace cleave::tool
