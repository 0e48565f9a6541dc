//===- Why.cpp - why a search has chosen so -------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Why.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <tuple>

namespace cleave::tool {

namespace {

std::string joined(const std::vector<std::string> &sentences) {
  return fmt::format("{}", fmt::join(sentences, "; "));
}

const SearchVariable *find(const SearchReport &report, const std::string &name) {
  for (const SearchVariable &variable : report.variables)
    if (variable.name == name)
      return &variable;
  for (const SearchVariable &variable : report.variables)
    if (std::find(variable.values.begin(), variable.values.end(), name) != variable.values.end())
      return &variable;
  return nullptr;
}

/// What the sentences say of one dim: "shard vocab by tp", or that it is whole.
std::string ofDim(const std::vector<std::string> &sentences, const std::string &dim) {
  for (const std::string &sentence : sentences)
    if (sentence.starts_with("shard " + dim + " by "))
      return sentence;
  return dim + " is whole";
}

} // namespace

Result<Why> whyOf(const SearchReport &report, const std::string &name) {
  Why why;
  why.name = name;
  std::string dim;
  const SearchVariable *variable = find(report, name);
  if (!variable)
    if (size_t dot = name.rfind('.'); dot != std::string::npos) {
      dim = name.substr(dot + 1);
      variable = find(report, name.substr(0, dot));
      if (variable &&
          std::find(variable->dims.begin(), variable->dims.end(), dim) == variable->dims.end())
        return Error{fmt::format("--why {}: {} has no dim '{}'{} (it has: {})", name,
                                 name.substr(0, dot), dim, meant(dim, variable->dims),
                                 fmt::join(variable->dims, ", "))};
    }
  if (!variable) {
    std::vector<std::string> names;
    for (const SearchVariable &v : report.variables) {
      names.push_back(v.name);
      names.insert(names.end(), v.values.begin(), v.values.end());
    }
    return Error{fmt::format("--why {}: the search knows no param or value of this name{}; `cleave "
                             "plan` lists what it has chosen",
                             name, meant(name, names))};
  }
  why.about = variable->name;
  why.place = variable->place;
  why.values = variable->values;
  const Minimum &best = report.minimum;
  int v = variable->variable, size = report.problem->sizes[static_cast<size_t>(v)];
  std::map<std::string, Alternative> byText;
  ChoiceProblem fixed = *report.problem;
  fixed.tables.push_back({{v}, {}, {}, ""});
  for (int c = 0; c < size; ++c) {
    auto &costs = fixed.tables.back().costs;
    costs.assign(static_cast<size_t>(size), std::numeric_limits<double>::infinity());
    costs[static_cast<size_t>(c)] = 0;
    const auto &sentences = variable->choices[static_cast<size_t>(c)];
    Alternative one;
    one.choice = dim.empty() ? joined(sentences) : ofDim(sentences, dim);
    one.chosen = c == best.choice[static_cast<size_t>(v)];
    auto minimum = minimize(fixed);
    one.seconds = minimum ? minimum->cost : std::numeric_limits<double>::infinity();
    if (minimum)
      for (const SearchVariable &other : report.variables) {
        auto at = static_cast<size_t>(other.variable);
        if (other.variable != v && minimum->choice[at] != best.choice[at])
          one.changes.push_back(other.name + ": " +
                                joined(other.choices[static_cast<size_t>(minimum->choice[at])]));
      }
    auto [entry, isNew] = byText.try_emplace(one.choice, one);
    if (!isNew && (one.chosen || (!entry->second.chosen && one.seconds < entry->second.seconds)))
      entry->second = one;
  }
  for (auto &[text, one] : byText)
    why.alternatives.push_back(std::move(one));
  std::sort(why.alternatives.begin(), why.alternatives.end(),
            [](const Alternative &a, const Alternative &b) {
              if (a.chosen != b.chosen)
                return a.chosen;
              return std::tie(a.seconds, a.choice) < std::tie(b.seconds, b.choice);
            });
  return why;
}

std::string whyText(const SearchReport &report, const Why &why) {
  std::string text =
      fmt::format("{}{} ({})\n", why.name,
                  why.about == why.name ? "" : ": lives as all of " + why.about, why.place);
  if (why.values.size() > 1)
    text += fmt::format("  these live so: {}\n", fmt::join(why.values, ", "));
  Table table({"choice", "a step", "more than chosen", "changes with it"},
              {true, false, false, true});
  double chosen = why.alternatives.front().seconds;
  for (const Alternative &a : why.alternatives) {
    std::string changes = a.changes.empty() ? (a.chosen ? "chosen" : "nothing") : a.changes.front();
    if (a.changes.size() > 1)
      changes += fmt::format(", and {} more", a.changes.size() - 1);
    table.row({a.choice, std::isinf(a.seconds) ? "never" : secondsText(a.seconds),
               a.chosen ? ""
               : std::isinf(a.seconds)
                   ? "the plan rules it out"
                   : fmt::format("{} (+{:.2f} %)", secondsText(a.seconds - chosen),
                                 100 * (a.seconds / chosen - 1)),
               changes});
  }
  text += "\n" + table.text();
  text += fmt::format("\na step: by the search's prices, with the best of all else{}\n",
                      report.minimum.multiplier > 0 ? "; the memory limit is left out" : "");
  return text;
}

Json whyJson(const SearchReport &report, const Why &why) {
  Json list = Json::array();
  for (const Alternative &a : why.alternatives)
    list.push_back({{"choice", a.choice},
                    {"seconds", std::isinf(a.seconds) ? Json() : Json(a.seconds)},
                    {"chosen", a.chosen},
                    {"changes", a.changes}});
  return {{"name", why.name},     {"about", why.about},   {"place", why.place},
          {"values", why.values}, {"alternatives", list}, {"function", report.function}};
}

} // namespace cleave::tool
