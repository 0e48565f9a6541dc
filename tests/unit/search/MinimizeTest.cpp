//===- MinimizeTest.cpp - the least sum of cost tables --------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Problems.h"

#include "passes/search/Eliminate.h"
#include "passes/search/Tighten.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <numeric>

using namespace cleave;
using namespace cleave::test;

namespace {

struct Sum {
  double cost = 0, memory = 0;
};

Sum sumOf(const ChoiceProblem &problem, const std::vector<int> &choice) {
  Sum sum;
  for (const CostTable &table : problem.tables) {
    size_t entry = 0;
    for (int variable : table.variables)
      entry = entry * size_t(problem.sizes[size_t(variable)]) + size_t(choice[size_t(variable)]);
    sum.cost += table.costs[entry];
    sum.memory += table.memory.empty() ? 0 : table.memory[entry];
  }
  return sum;
}

/// Every choice, odometer-like.
void forEachChoice(const ChoiceProblem &problem,
                   const std::function<void(const std::vector<int> &)> &visit) {
  std::vector<int> choice(problem.sizes.size(), 0);
  while (true) {
    visit(choice);
    size_t i = 0;
    for (; i < choice.size() && ++choice[i] == problem.sizes[i]; ++i)
      choice[i] = 0;
    if (i == choice.size())
      return;
  }
}

struct Least {
  double cost = infinity;              ///< within the limit
  double memory = infinity;            ///< least of what is allowed
  std::vector<std::vector<int>> which; ///< all choices of that cost
};

Least bruteForce(const ChoiceProblem &problem, double limit = infinity) {
  Least least;
  forEachChoice(problem, [&](const std::vector<int> &choice) {
    const Sum sum = sumOf(problem, choice);
    if (sum.cost == infinity)
      return;
    least.memory = std::min(least.memory, sum.memory);
    if (sum.memory > limit || sum.cost > least.cost)
      return;
    if (sum.cost < least.cost)
      least.which.clear();
    least.cost = sum.cost;
    least.which.push_back(choice);
  });
  return least;
}

/// No more combinations than brute force looks at in a blink.
bool isSmall(const ChoiceProblem &problem) {
  double count = 1;
  for (int size : problem.sizes)
    count *= size;
  return count <= 50000;
}

CostTable pin(const ChoiceProblem &problem, int variable, int choice) {
  CostTable table{{variable}, {}, {}, "pin " + std::to_string(variable)};
  table.costs.assign(size_t(problem.sizes[size_t(variable)]), infinity);
  table.costs[size_t(choice)] = 0;
  return table;
}

/// `count` small problems of which some choice is allowed, and as many others as come along.
template <typename Visit>
void problems(int count, const RandomOptions &options, uint64_t firstSeed, Visit visit) {
  for (uint64_t seed = firstSeed; count > 0; ++seed) {
    const ChoiceProblem problem = randomProblem(seed, options);
    if (!isSmall(problem))
      continue;
    SCOPED_TRACE(fmt::format("seed {}", seed));
    count -= visit(problem);
    if (testing::Test::HasFailure())
      return;
  }
}

/// A real-valued grid of variables, each tied to the next in both directions.
ChoiceProblem grid(int width, int height, int size, uint64_t seed) {
  Numbers numbers(seed);
  ChoiceProblem problem;
  for (int i = 0; i < width * height; ++i) {
    problem.sizes.push_back(size);
    problem.names.push_back("g" + std::to_string(i));
  }
  for (int i = 0; i < width * height; ++i)
    for (int next :
         {i % width + 1 < width ? i + 1 : -1, i + width < width * height ? i + width : -1})
      if (next >= 0) {
        CostTable table{{i, next}, {}, {}, {}};
        for (int entry = 0; entry < size * size; ++entry) {
          table.costs.push_back(numbers.fraction());
          table.memory.push_back(double(numbers.between(0, 1000)));
        }
        problem.tables.push_back(std::move(table));
      }
  return problem;
}

TEST(Minimize, EqualsBruteForce) {
  int infeasible = 0;
  problems(700, {}, 1, [&](const ChoiceProblem &problem) {
    const Least least = bruteForce(problem);
    const Result<Minimum> minimum = minimize(problem);
    if (least.cost == infinity) {
      ++infeasible;
      EXPECT_FALSE(minimum);
      return false;
    }
    EXPECT_TRUE(minimum) << minimum.error().message;
    if (!minimum)
      return false;
    EXPECT_EQ(minimum->cost, least.cost);
    EXPECT_TRUE(minimum->exact());
    EXPECT_EQ(minimum->cost, sumOf(problem, minimum->choice).cost);

    // Of equal minima the one with the smallest choices, last eliminated variable first.
    std::vector<int> order = minimizer::eliminationOrder(problem.sizes, problem.tables);
    std::reverse(order.begin(), order.end());
    auto inOrder = [&](const std::vector<int> &choice) {
      std::vector<int> values;
      for (int variable : order)
        values.push_back(choice[size_t(variable)]);
      return values;
    };
    for (const std::vector<int> &other : least.which)
      EXPECT_LE(inOrder(minimum->choice), inOrder(other));
    return true;
  });
  EXPECT_GT(infeasible, 10);
  RecordProperty("infeasible", infeasible);
}

TEST(Minimize, PinnedToItsChoiceNothingElseChanges) {
  int pinned = 0;
  auto holds = [&](ChoiceProblem problem, uint64_t seed) {
    const Result<Minimum> free = minimize(problem);
    if (!free)
      return false;
    Numbers numbers(seed);
    for (size_t i = 0; i < problem.sizes.size(); ++i)
      if (numbers.between(0, 2) == 0)
        problem.tables.insert(problem.tables.begin() +
                                  numbers.between(0, int(problem.tables.size())),
                              pin(problem, int(i), free->choice[i]));
    const Result<Minimum> again = minimize(problem);
    EXPECT_TRUE(again);
    if (again) {
      EXPECT_EQ(free->choice, again->choice);
      EXPECT_EQ(free->cost, again->cost);
    }
    ++pinned;
    return true;
  };
  problems(300, {}, 5000,
           [&](const ChoiceProblem &problem) { return holds(problem, problem.tables.size()); });
  // Costs whose sums are rounded, and problems whose choices are narrowed first.
  for (uint64_t seed = 0; seed < 3; ++seed)
    holds(grid(8, 8, 4, seed), seed);
  for (uint64_t seed = 0; seed < 3; ++seed)
    holds(layerProblem(seed, 6, 8, 24, 27), seed);
  EXPECT_EQ(pinned, 306);
}

TEST(Minimize, TheSameEveryTime) {
  for (const ChoiceProblem &problem : {layerProblem(3, 6, 8, 24, 27), grid(8, 8, 4, 3)}) {
    const Minimum first = *minimize(problem);
    const double limit = first.memory * 0.9;
    const MinimizeOptions options{limit, 1 << 20, 1 << 18};
    const Minimum limited = *minimize(problem, options);
    const Minimum again = *minimize(problem);
    EXPECT_EQ(again.choice, first.choice);
    EXPECT_EQ(again.states, first.states);
    EXPECT_EQ(minimize(problem, options)->choice, limited.choice);
  }
}

TEST(Minimize, WithinAMemoryLimit) {
  int exact = 0, total = 0, tight = 0;
  RandomOptions options;
  options.memory = true;
  problems(500, options, 20000, [&](const ChoiceProblem &problem) {
    const Least free = bruteForce(problem);
    if (free.cost == infinity)
      return false;
    const double freeMemory = sumOf(problem, minimize(problem)->choice).memory;
    // Halfway between what the cheapest takes and the least that is possible.
    const double limit = std::floor((freeMemory + free.memory) / 2);
    const Least least = bruteForce(problem, limit);
    const Result<Minimum> minimum = minimize(problem, {limit});
    EXPECT_TRUE(minimum) << minimum.error().message;
    if (!minimum)
      return false;
    EXPECT_LE(minimum->memory, limit);
    EXPECT_EQ(minimum->cost, sumOf(problem, minimum->choice).cost);
    EXPECT_EQ(minimum->memory, sumOf(problem, minimum->choice).memory);
    EXPECT_LE(minimum->lowerBound, least.cost * (1 + 1e-9));
    EXPECT_GE(minimum->cost, least.cost);
    if (minimum->exact()) {
      EXPECT_EQ(minimum->cost, least.cost);
    }
    exact += minimum->exact();
    tight += least.cost > free.cost;
    ++total;

    // Less than the least: refused, with both numbers.
    if (free.memory > 0) {
      const Result<Minimum> refused = minimize(problem, {free.memory - 1});
      EXPECT_FALSE(refused);
      if (!refused) {
        EXPECT_EQ(refused.error().message,
                  fmt::format("the memory limit is {} bytes, but at least {} are needed",
                              free.memory - 1, free.memory));
      }
    }
    return true;
  });
  fmt::print("memory limit: {} of {} exact; in {} the limit costs something\n", exact, total,
             tight);
  EXPECT_EQ(exact, total); // so small that the search always comes to its end
  EXPECT_GT(tight, total / 4);
}

TEST(Minimize, MemoryLimitOnALargerProblem) {
  const ChoiceProblem problem = layerProblem(5, 6, 8, 24, 27);
  const Minimum free = *minimize(problem);
  double last = free.cost;
  for (double share : {1.0, 0.9, 0.8, 0.7}) {
    const Result<Minimum> minimum = minimize(problem, {free.memory * share});
    ASSERT_TRUE(minimum) << minimum.error().message;
    EXPECT_LE(minimum->memory, free.memory * share);
    EXPECT_LE(minimum->lowerBound, minimum->cost);
    EXPECT_GE(minimum->lowerBound, 0.99 * minimum->cost);
    EXPECT_GE(minimum->cost, last * (1 - 1e-9)); // less memory is never cheaper
    last = minimum->cost;
    fmt::print("limit {:.1f}: cost {:.6f}, bound {:.6f}, multiplier {:.3g}\n", share, minimum->cost,
               minimum->lowerBound, minimum->multiplier);
  }
}

TEST(Minimize, TooLargeToJoin) {
  int exact = 0, total = 0;
  for (int64_t maxTable : {1, 8, 30})
    problems(200, {}, 40000, [&](const ChoiceProblem &problem) {
      const Least least = bruteForce(problem);
      const Result<Minimum> minimum =
          minimize(problem, {std::numeric_limits<double>::infinity(), maxTable});
      if (least.cost == infinity) {
        EXPECT_FALSE(minimum);
        return false;
      }
      EXPECT_TRUE(minimum) << minimum.error().message;
      if (!minimum)
        return false;
      EXPECT_LE(minimum->lowerBound, least.cost);
      EXPECT_GE(minimum->cost, least.cost);
      if (minimum->exact()) {
        EXPECT_EQ(minimum->cost, least.cost);
      }
      exact += minimum->exact();
      ++total;
      return true;
    });
  fmt::print("small tables: {} of {} exact\n", exact, total);

  // So wide that the search gives up: a bound and a choice around the minimum, which elimination
  // knows.
  const ChoiceProblem wide = grid(9, 9, 4, 7);
  const Minimum whole = *minimize(wide);
  ASSERT_TRUE(whole.exact());
  const Minimum divided = *minimize(wide, {infinity, 64, 1 << 20});
  EXPECT_LE(divided.lowerBound, whole.cost * (1 + 1e-9));
  EXPECT_GE(divided.cost, whole.cost * (1 - 1e-9));
  EXPECT_GE(divided.lowerBound, 0.8 * whole.cost);
  EXPECT_LE(divided.cost, 1.1 * whole.cost);
  fmt::print("wide: minimum {}, with small tables {} to {}\n", whole.cost, divided.lowerBound,
             divided.cost);
}

TEST(Minimize, DividedBucketsBoundFromBelow) {
  int below = 0;
  problems(300, {}, 60000, [&](const ChoiceProblem &problem) {
    const Least least = bruteForce(problem);
    const minimizer::Folded folded = minimizer::fold(problem);
    minimizer::Domains all(problem.sizes.size());
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].resize(size_t(problem.sizes[i]));
      std::iota(all[i].begin(), all[i].end(), 0);
    }
    double last = 0;
    for (int64_t maxTable : {1, 20, 1000000}) {
      minimizer::Elimination elimination(folded, problem.sizes, keep(folded, {}, all));
      elimination.run(maxTable);
      EXPECT_LE(elimination.bound(), least.cost);
      last = elimination.bound();
      below += last < least.cost;
      if (!elimination.divided()) {
        EXPECT_EQ(last, least.cost);
      }
    }
    EXPECT_EQ(last, least.cost);
    return least.cost < infinity;
  });
  EXPECT_GT(below, 100); // there was something to divide
}

TEST(Minimize, TighteningKeepsAllMinima) {
  int64_t dropped = 0;
  problems(300, {}, 80000, [&](const ChoiceProblem &problem) {
    const Least least = bruteForce(problem);
    if (least.cost == infinity)
      return false;
    const minimizer::Folded folded = minimizer::fold(problem);
    const minimizer::Domains allowed = allowedChoices(folded);
    minimizer::Tightening tightening(folded, allowed, keep(folded, {}, allowed));
    for (int sweep = 0; sweep < 10; ++sweep) {
      tightening.sweep(sweep % 2 == 0, least.cost * (1 + 1e-9));
      EXPECT_FALSE(tightening.empty());
      EXPECT_LE(tightening.bound(), least.cost * (1 + 1e-9));
      if (sweep == 4)
        tightening.compact();
    }
    const minimizer::Domains left = tightening.compact();
    for (size_t i = 0; i < left.size(); ++i) {
      dropped += int64_t(allowed[i].size() - left[i].size());
      for (const std::vector<int> &choice : least.which)
        EXPECT_TRUE(std::binary_search(left[i].begin(), left[i].end(), choice[i]));
    }
    // What was moved between tables changed no sum.
    minimizer::Elimination elimination(folded, minimizer::sizesOf(left), tightening.tablesNow());
    elimination.run(int64_t(1) << 40);
    EXPECT_NEAR(elimination.bound(), least.cost, 1e-9);
    return true;
  });
  EXPECT_GT(dropped, 500);
}

TEST(Minimize, ConflictsAreMinimal) {
  int several = 0;
  RandomOptions options;
  options.maxSize = 3;
  options.forbidden = 0;
  problems(150, options, 90000, [&](ChoiceProblem problem) {
    // Constraints, some over two variables, until nothing is left; every third has the source of
    // the one before.
    Numbers numbers(problem.tables.size() * 31 + problem.sizes.size());
    for (int i = 0; bruteForce(problem).cost < infinity; ++i) {
      CostTable table;
      table.variables = {numbers.between(0, int(problem.sizes.size()) - 1)};
      const int other = numbers.between(0, int(problem.sizes.size()) - 1);
      if (other != table.variables[0])
        table.variables.push_back(other);
      for (size_t n = combinations(problem, table.variables); n > 0; --n)
        table.costs.push_back(numbers.between(0, 99) < 30 ? infinity : numbers.between(0, 3));
      table.source = fmt::format("line {}", i - (i % 3 == 2));
      problem.tables.push_back(std::move(table));
    }
    const Result<Minimum> minimum = minimize(problem);
    EXPECT_FALSE(minimum);
    if (minimum)
      return false;
    std::string message = minimum.error().message;
    std::vector<std::string> named;
    const size_t colon = message.find(": ");
    EXPECT_NE(colon, std::string::npos) << message;
    message = message.substr(colon + 2);
    for (size_t at; (at = message.find("; ")) != std::string::npos;
         message = message.substr(at + 2))
      named.push_back(message.substr(0, at));
    named.push_back(message);
    several += named.size() > 1;
    EXPECT_EQ(minimum.error().message.starts_with("these cannot hold together: "),
              named.size() > 1);

    auto only = [&](const std::vector<std::string> &sources) {
      ChoiceProblem some{problem.sizes, problem.names, {}};
      for (const CostTable &table : problem.tables)
        if (table.source.empty() ||
            std::find(sources.begin(), sources.end(), table.source) != sources.end())
          some.tables.push_back(table);
      return bruteForce(some).cost;
    };
    EXPECT_EQ(only(named), infinity) << minimum.error().message;
    for (size_t i = 0; i < named.size(); ++i) {
      std::vector<std::string> fewer = named;
      fewer.erase(fewer.begin() + long(i));
      EXPECT_LT(only(fewer), infinity) << minimum.error().message;
    }
    return true;
  });
  EXPECT_GT(several, 50);
}

TEST(Minimize, SaysWhatConflicts) {
  ChoiceProblem problem{{2, 2}, {"a", "b"}, {}};
  problem.tables.push_back({{0, 1}, {0, infinity, infinity, 0}, {}, ""}); // equal
  problem.tables.push_back({{0}, {0, infinity}, {}, "plan line 3: a first"});
  problem.tables.push_back({{0}, {1, 2}, {}, "plan line 4: harmless"});
  problem.tables.push_back({{1}, {infinity, 0}, {}, "plan line 5: b second"});
  EXPECT_EQ(minimize(problem).error().message,
            "these cannot hold together: plan line 3: a first; plan line 5: b second");

  problem.tables[3].costs = {infinity, infinity};
  EXPECT_EQ(minimize(problem).error().message, "this cannot hold: plan line 5: b second");

  problem.tables[3].source = "";
  EXPECT_EQ(minimize(problem).error().message,
            "no combination of choices is allowed, even without any constraint of the plan");

  // Memory and a constraint together.
  ChoiceProblem memory{
      {2}, {"a"}, {{{0}, {1, 2}, {100, 10}, ""}, {{0}, {0, infinity}, {}, "line 7"}}};
  EXPECT_EQ(minimize(memory, {50}).error().message,
            "the memory limit is 50 bytes, but at least 100 are needed. The limit cannot hold "
            "together with: line 7");
  memory.tables.pop_back();
  EXPECT_EQ(minimize(memory, {50})->choice, std::vector<int>{1});
  EXPECT_EQ(minimize(memory, {5}).error().message,
            "the memory limit is 5 bytes, but at least 10 are needed");
}

TEST(Minimize, RefusesWhatIsMalformed) {
  auto message = [](const ChoiceProblem &problem, const MinimizeOptions &options = {}) {
    const Result<Minimum> minimum = minimize(problem, options);
    EXPECT_FALSE(minimum);
    return minimum ? "" : minimum.error().message;
  };
  const std::vector<int> sizes{2, 3};
  const std::vector<std::string> names{"a", "b"};
  auto with = [&](CostTable table) { return ChoiceProblem{sizes, names, {std::move(table)}}; };
  EXPECT_EQ(message({sizes, {"a"}, {}}), "minimize: 2 sizes, but 1 names");
  EXPECT_EQ(message({{2, 0}, names, {}}),
            "minimize: variable 1 ('b') has 0 choices; it needs at least 1");
  EXPECT_EQ(message(with({{2}, {0}, {}, "x"})),
            "minimize: table 0 (x) has variable 2, but there are 2");
  EXPECT_EQ(message(with({{-1}, {0}, {}, ""})),
            "minimize: table 0 has variable -1, but there are 2");
  EXPECT_EQ(message(with({{1, 1}, std::vector<double>(9), {}, ""})),
            "minimize: table 0 has variable 1 ('b') twice");
  EXPECT_EQ(message(with({{0, 1}, {1, 2}, {}, ""})),
            "minimize: table 0 has 2 costs, but its variables have 6 combinations");
  EXPECT_EQ(message(with({{0}, {1, 2}, {1}, ""})),
            "minimize: table 0 has 1 numbers of bytes, but its variables have 2 combinations");
  EXPECT_EQ(message(with({{0}, {1, std::nan("")}, {}, ""})),
            "minimize: table 0 has a cost of nan; costs are 0 or more, or infinity");
  EXPECT_EQ(message(with({{0}, {1, -1}, {}, ""})),
            "minimize: table 0 has a cost of -1; costs are 0 or more, or infinity");
  EXPECT_EQ(message(with({{0}, {1, 1}, {0, infinity}, ""})),
            "minimize: table 0 has inf bytes; they are 0 or more, and finite");
  EXPECT_EQ(message({sizes, names, {}}, {-1.0}),
            "minimize: the memory limit is -1 bytes; it is 0 or more");
  EXPECT_EQ(message({sizes, names, {}}, {infinity, 1, -1}),
            "minimize: maxSearch is -1; it is 0 or more");
  EXPECT_EQ(message({sizes, names, {}}, {infinity, 0}), "minimize: maxTable is 0; it is 1 or more");
}

TEST(Minimize, LittleToDo) {
  EXPECT_EQ(minimize({})->cost, 0);
  EXPECT_TRUE(minimize({})->exact());
  const Minimum free = *minimize({{3, 2}, {"a", "b"}, {{{}, {1.5}, {7}, ""}}});
  EXPECT_EQ(free.choice, (std::vector<int>{0, 0}));
  EXPECT_EQ(free.cost, 1.5);
  EXPECT_EQ(free.memory, 7);
  EXPECT_FALSE(minimize({{}, {}, {{{}, {infinity}, {}, "line 1"}}}));
  // Two tables over the same variables, in both orders of them.
  const Minimum twice =
      *minimize({{2, 3},
                 {"a", "b"},
                 {{{0, 1}, {5, 5, 1, 5, 5, 5}, {}, ""}, {{1, 0}, {5, 5, 5, 5, 9, 2}, {}, ""}}});
  EXPECT_EQ(twice.choice, (std::vector<int>{1, 2}));
  EXPECT_EQ(twice.cost, 7);
}

TEST(Minimize, LongChain) {
  ChoiceProblem problem;
  Numbers numbers(1);
  const int count = 10000;
  for (int i = 0; i < count; ++i) {
    problem.sizes.push_back(5);
    problem.names.push_back("v" + std::to_string(i));
    if (i == 0)
      continue;
    CostTable table{{i - 1, i}, {}, {}, {}};
    for (int entry = 0; entry < 25; ++entry) {
      table.costs.push_back(numbers.between(0, 20));
      table.memory.push_back(numbers.between(0, 20));
    }
    problem.tables.push_back(std::move(table));
  }
  // The recurrence along the chain, by itself.
  std::vector<double> best(5, 0.0);
  for (const CostTable &table : problem.tables) {
    std::vector<double> next(5, infinity);
    for (size_t a = 0; a < 5; ++a)
      for (size_t b = 0; b < 5; ++b)
        next[b] = std::min(next[b], best[a] + table.costs[a * 5 + b]);
    best = next;
  }
  const auto start = std::chrono::steady_clock::now();
  const Minimum minimum = *minimize(problem);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(minimum.cost, *std::min_element(best.begin(), best.end()));
  EXPECT_EQ(minimum.width, 1);
  fmt::print("10000 variables in a chain: {:.3f} s\n", seconds);
  EXPECT_LT(seconds, 10); // far from what it takes, sanitizers included

  const Minimum limited = *minimize(problem, {minimum.memory * 0.9, 1 << 20, 1 << 18});
  EXPECT_LE(limited.memory, minimum.memory * 0.9);
  EXPECT_GE(limited.lowerBound, 0.999 * limited.cost);
  fmt::print("within 0.9 of its memory: {} to {}\n", limited.lowerBound, limited.cost);
}

TEST(Minimize, JsonAndBack) {
  problems(50, {2, 9, 5, 4, 15, 6, true}, 1, [&](ChoiceProblem problem) {
    problem.tables[0].source = "line \"1\"";
    for (double &cost : problem.tables[0].costs)
      cost /= 3;
    const Result<ChoiceProblem> back = choiceProblemFromJson(toJson(problem));
    EXPECT_TRUE(back) << back.error().message;
    if (!back)
      return false;
    EXPECT_EQ(back->sizes, problem.sizes);
    EXPECT_EQ(back->names, problem.names);
    EXPECT_EQ(back->tables.size(), problem.tables.size());
    for (size_t i = 0; i < problem.tables.size(); ++i) {
      EXPECT_EQ(back->tables[i].variables, problem.tables[i].variables);
      EXPECT_EQ(back->tables[i].costs, problem.tables[i].costs);
      EXPECT_EQ(back->tables[i].memory, problem.tables[i].memory);
      EXPECT_EQ(back->tables[i].source, problem.tables[i].source);
    }
    return true;
  });
  EXPECT_FALSE(choiceProblemFromJson("{\"sizes\": [1]}"));
  EXPECT_FALSE(choiceProblemFromJson("{"));
  EXPECT_FALSE(choiceProblemFromJson("[]"));
}

} // namespace
