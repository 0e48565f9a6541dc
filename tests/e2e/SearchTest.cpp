//===- SearchTest.cpp - the search of real programs against brute force ---===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A search's report has its problem, so that all that it may choose can be tried: in the problem's
// tables, and as sentences of a plan, which is compiled.
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <set>

using namespace cleave;
using namespace cleave::e2e;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

struct Case {
  std::string name;
  Model model;
  std::vector<std::pair<std::string, int64_t>> mesh;
  std::string cluster; ///< a file of models/clusters
  int stride = 1;      ///< every so many choices are tried
};
std::ostream &operator<<(std::ostream &os, const Case &c) { return os << c.name; }

Model mlp() { return {readText(sourcePath("models/mlp.cleave")), {}, {{"batch", 6}}}; }
Model llama() {
  return {readText(sourcePath("models/llama.cleave")),
          {{"vocab", "37"},
           {"width", "20"},
           {"ffn", "28"},
           {"kv_heads", "3"},
           {"group", "2"},
           {"head_dim", "4"},
           {"layers", "2"}},
          {{"batch", 3}, {"seq", 7}}};
}

/// The one search of a training step whose plan is `auto hidden 0` and these sentences: `auto`
/// alone makes several.
Result<SearchReport> searched(const Case &c, const std::vector<std::string> &sentences) {
  std::string axes, body;
  for (const auto &[axis, size] : c.mesh)
    axes += (axes.empty() ? "" : ", ") + axis + " = " + std::to_string(size);
  for (const std::string &sentence : sentences)
    body += "  " + sentence + "\n";
  Model model = c.model;
  std::string name = model.text.substr(model.text.find("model ") + 6);
  name = name.substr(0, name.find('('));
  CheckOptions check;
  check.settings = model.settings;
  check.freeSizes = model.sizes;
  check.plan = "tried";
  check.planFiles.push_back({"plan.cleave", "plan tried for " + name + " on (" + axes +
                                                ") {\n  auto hidden 0\n" + body + "}\n"});
  auto program = cleave::check(SourceFile("model.cleave", model.text), check);
  if (!program)
    return program.error();
  CompileOptions options;
  options.plan = "tried";
  options.cluster = readText(sourcePath("models/clusters/" + c.cluster + ".json"));
  options.emit = EmitStage::Sharded;
  auto result = compile(*program, options);
  if (!result)
    return result.error();
  if (result->searches.size() != 1)
    return Error{std::to_string(result->searches.size()) + " searches"};
  return std::move(result->searches[0]);
}

double entryOf(const CostTable &table, const ChoiceProblem &problem,
               const std::vector<int> &choice) {
  size_t at = 0;
  for (int v : table.variables)
    at = at * static_cast<size_t>(problem.sizes[v]) + static_cast<size_t>(choice[v]);
  return table.costs[at];
}

/// Where a plan has chosen for all variables that it can speak of, the others are tied to few
/// others: the least of each group that shares tables is found by trying all of the group's
/// choices.
class BruteForce {
public:
  explicit BruteForce(const SearchReport &report) : problem(*report.problem) {
    size_t count = problem.sizes.size();
    for (const SearchVariable &v : report.variables)
      outer.push_back(v.variable);
    std::vector<int> group(count);
    for (size_t v = 0; v < count; ++v)
      group[v] = static_cast<int>(v);
    std::set<int> said(outer.begin(), outer.end());
    std::function<int(int)> rootOf = [&](int v) { return group[v] == v ? v : rootOf(group[v]); };
    for (const CostTable &table : problem.tables) {
      int first = -1;
      for (int v : table.variables)
        if (!said.count(v)) {
          if (first < 0)
            first = v;
          group[rootOf(v)] = rootOf(first);
        }
    }
    for (size_t v = 0; v < count; ++v) {
      if (said.count(static_cast<int>(v)))
        continue;
      auto &entry = groups[rootOf(static_cast<int>(v))];
      entry.variables.push_back(static_cast<int>(v));
    }
    for (const CostTable &table : problem.tables) {
      auto inner = std::find_if(table.variables.begin(), table.variables.end(),
                                [&](int v) { return !said.count(v); });
      (inner == table.variables.end() ? plain : groups[rootOf(*inner)].tables).push_back(&table);
    }
  }

  double least() {
    std::vector<int> choice(problem.sizes.size());
    double best = never;
    each(outer, choice, [&] { best = std::min(best, costOf(choice)); });
    return best;
  }
  int64_t tried = 0;

private:
  struct Group {
    std::vector<int> variables;
    std::vector<const CostTable *> tables;
  };

  void each(const std::vector<int> &variables, std::vector<int> &choice,
            const std::function<void()> &visit) {
    for (int v : variables)
      choice[v] = 0;
    while (true) {
      visit();
      size_t i = 0;
      while (i < variables.size() && ++choice[variables[i]] == problem.sizes[variables[i]])
        choice[variables[i++]] = 0;
      if (i == variables.size())
        return;
    }
  }
  double costOf(std::vector<int> &choice) {
    ++tried;
    double cost = 0;
    for (const CostTable *table : plain)
      cost += entryOf(*table, problem, choice);
    for (auto &[root, group] : groups) {
      double best = never;
      each(group.variables, choice, [&] {
        double sum = 0;
        for (const CostTable *table : group.tables)
          sum += entryOf(*table, problem, choice);
        best = std::min(best, sum);
      });
      cost += best;
    }
    return cost;
  }

  const ChoiceProblem &problem;
  std::vector<int> outer;
  std::map<int, Group> groups;
  std::vector<const CostTable *> plain;
};

TEST(Search, NothingThatAnMlpMayChooseIsCheaper) {
  for (std::string cluster : {"threads", "ethernet", "nvlink-8"}) {
    Case c{"mlp", mlp(), {{"tp", 2}}, cluster};
    auto report = searched(c, {});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->minimum.exact());
    BruteForce all(*report);
    double least = all.least();
    EXPECT_GT(all.tried, 1000);
    EXPECT_NEAR(report->minimum.cost, least, 1e-12 * least) << cluster;
  }
}

class PinnedSearch : public ::testing::TestWithParam<Case> {};

/// Each sentence that a report offers is understood, taken as it is meant, and costs what the
/// problem's tables say: never less than the search found without it.
TEST_P(PinnedSearch, CostsWhatTheTablesSay) {
  const Case &c = GetParam();
  auto report = searched(c, {});
  ASSERT_TRUE(report) << report.error().message;
  const Minimum &found = report->minimum;
  EXPECT_TRUE(found.exact());
  // For tests/oracles/solve_ilp.py.
  if (const char *folder = std::getenv("CLEAVE_PROBLEMS"))
    std::ofstream(std::string(folder) + "/" + c.name + ".json") << toJson(*report->problem);
  int compiled = 0, dearer = 0, unsaid = 0, number = 0;
  for (const SearchVariable &variable : report->variables) {
    for (size_t choice = 0; choice < variable.choices.size(); ++choice) {
      if (number++ % c.stride != 0)
        continue;
      if (std::any_of(variable.dims.begin(), variable.dims.end(), [](const std::string &dim) {
            return dim.find('.') != std::string::npos; // the compiler's own
          })) {
        ++unsaid;
        continue;
      }
      std::vector<std::string> sentences;
      for (const std::string &said : variable.choices[choice])
        sentences.push_back("at " + variable.name + ": " + said);
      SCOPED_TRACE(::testing::PrintToString(sentences));
      auto pinned = searched(c, sentences);
      if (!pinned && variable.kind == SearchVariable::Kind::Dims) {
        // Of no value that the source has, or with a dim that is the compiler's own.
        const std::string &why = pinned.error().message;
        EXPECT_TRUE(why.find("just these dims") != std::string::npos ||
                    why.find("no dim is called") != std::string::npos)
            << why;
        ++unsaid;
        continue;
      }
      ASSERT_TRUE(pinned) << pinned.error().message;
      ChoiceProblem fixed = *report->problem;
      CostTable only{{variable.variable}, {}, {}, "test"};
      only.costs.assign(variable.choices.size(), never);
      only.costs[choice] = 0;
      fixed.tables.push_back(only);
      auto wanted = minimize(fixed);
      ASSERT_TRUE(wanted) << wanted.error().message;
      EXPECT_NEAR(pinned->minimum.cost, wanted->cost, 1e-9 * wanted->cost);
      EXPECT_GE(pinned->minimum.cost, found.cost);
      ++compiled;
      dearer += pinned->minimum.cost > found.cost * (1 + 1e-9);
      auto same = std::find_if(pinned->variables.begin(), pinned->variables.end(),
                               [&](const SearchVariable &v) { return v.name == variable.name; });
      ASSERT_NE(same, pinned->variables.end());
      EXPECT_EQ(same->choices[pinned->minimum.choice[same->variable]], variable.choices[choice]);
    }
  }
  std::cout << compiled << " plans with one choice pinned, " << dearer << " of them dearer; "
            << unsaid << " cannot be said\n";
  EXPECT_GT(compiled, 10);
  EXPECT_GT(dearer, compiled / 4);
  EXPECT_LT(unsaid, compiled);
}

INSTANTIATE_TEST_SUITE_P(
    All, PinnedSearch,
    ::testing::Values(Case{"mlp_ethernet", mlp(), {{"tp", 2}}, "ethernet", 1},
                      Case{"mlp_nvlink", mlp(), {{"dp", 2}, {"tp", 2}}, "nvlink-8", 5},
                      Case{"gpt2", gpt2(), {{"tp", 2}}, "nvlink-8", 7},
                      Case{"llama", llama(), {{"tp", 4}}, "ethernet", 19}),
    [](const auto &info) { return info.param.name; });

} // namespace
