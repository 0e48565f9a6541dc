//===- Page.cpp - one self-contained page about plans ---------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Page.h"

#include "PageParts.h"
#include "Profile.h"

#include "runtime/executable/ArenaUse.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <set>

namespace cleave::tool {

namespace {

/// Ranks beyond these are named and not drawn.
constexpr size_t mostRanks = 16;

/// Strings by number, each once.
class Words {
public:
  size_t operator()(const std::string &word) {
    auto [found, isNew] = numbers.try_emplace(word, list.size());
    if (isNew)
      list.push_back(word);
    return found->second;
  }
  Json list = Json::array();

private:
  std::map<std::string, size_t> numbers;
};

double microseconds(double seconds) { return std::round(seconds * 1e8) * 1e-2; }

/// For each step its name, lines and kind; for each rank its events: step, begin, length, waiting
/// in microseconds, and whether on the stream.
Json timelineJson(const TracedRun &run) {
  Words names, sources, kinds;
  Json steps = Json::array(), ranks = Json::array();
  for (const Step &step : run.program->steps)
    steps.push_back({names(stepName(*run.program, step)), sources(stepSource(*run.program, step)),
                     kinds(kindText(step.kind))});
  double origin = run.begin();
  for (size_t rank = 0; rank < std::min(run.ranks.size(), mostRanks); ++rank) {
    Json events = Json::array();
    for (const StepEvent &e : run.ranks[rank])
      events.push_back({e.step, microseconds(e.begin - origin), microseconds(e.seconds),
                        microseconds(e.waitSeconds), e.beside ? 1 : 0});
    ranks.push_back(std::move(events));
  }
  return {{"names", names.list},
          {"sources", sources.list},
          {"kinds", kinds.list},
          {"steps", steps},
          {"ranks", std::move(ranks)},
          {"all_ranks", run.ranks.size()},
          {"us", microseconds(run.seconds())}};
}

/// Microseconds of rank 0's clock, and the bytes of the arena in use from there on.
Json memoryJson(const PagePlan &plan) {
  std::vector<int64_t> use = arenaUse(*plan.run.program);
  Json points = Json::array();
  double origin = plan.run.begin();
  int64_t last = -1;
  for (const StepEvent &e : plan.run.ranks[0]) {
    int64_t bytes = use[static_cast<size_t>(e.step)];
    if (e.beside || bytes == last)
      continue;
    points.push_back({microseconds(e.begin - origin), bytes});
    last = bytes;
  }
  return {{"persistent", plan.memory.total() - plan.memory.arena},
          {"arena", plan.memory.arena},
          {"points", points}};
}

/// The files that the lines of any plan stand in.
Json sourcesJson(const Page &page, SourceLines &source) {
  std::set<std::string> paths;
  for (const PagePlan &plan : page.plans)
    for (const auto &[place, line] : plan.side.lines)
      if (place.second)
        paths.insert(place.first);
  Json files = Json::array();
  for (const std::string &path : paths) {
    const SourceFile *file = source.file(path);
    if (!file)
      continue;
    Json lines = Json::array();
    auto count = static_cast<unsigned>(std::count(file->text().begin(), file->text().end(), '\n'));
    if (!file->text().empty() && file->text().back() != '\n')
      ++count;
    for (unsigned number = 1; number <= count; ++number)
      lines.push_back(printable(file->line(number)));
    files.push_back({{"file", path}, {"lines", std::move(lines)}});
  }
  return files;
}

std::string htmlText(const std::string &text) {
  std::string out;
  for (char c : text)
    switch (c) {
    case '&':
      out += "&amp;";
      break;
    case '<':
      out += "&lt;";
      break;
    case '>':
      out += "&gt;";
      break;
    case '"':
      out += "&quot;";
      break;
    default:
      out += c;
    }
  return out;
}

/// JSON that ends no script and begins no comment: its `<` are escapes.
std::string scriptText(const Json &json) {
  std::string out;
  for (char c : json.dump(-1, ' ', false, Json::error_handler_t::replace))
    out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

} // namespace

std::string pageText(const Page &page, SourceLines &source) {
  Json plans = Json::array();
  for (const PagePlan &plan : page.plans)
    plans.push_back({{"name", plan.side.plan},
                     {"mesh", meshText(plan.side.executable->mesh)},
                     {"how", plan.how},
                     {"seen", plan.side.seen},
                     {"predicted_seconds", plan.side.run.predicted},
                     {"timeline", timelineJson(plan.run)},
                     {"memory", memoryJson(plan)},
                     {"shardings", shardingsJson(plan.side)},
                     {"lines", linesJson(plan.side, source)}});
  Json data = {{"title", page.title},
               {"where", page.where},
               {"table", page.table},
               {"verdicts", page.verdicts},
               {"plans", std::move(plans)},
               {"differences", page.differences},
               {"sources", sourcesJson(page, source)}};
  return fmt::format("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n{}"
                     "<script type=\"application/json\" id=\"data\">{}</script>\n"
                     "<script>\n{}</script>\n</body>\n</html>\n",
                     htmlText(printable(page.title)), pageStyle, pageBody, scriptText(data),
                     pageScript);
}

} // namespace cleave::tool
