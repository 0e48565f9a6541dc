//===- Minimize.cpp - the least sum of cost tables ------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Minimize.h"

#include "passes/search/Descend.h"
#include "passes/search/Eliminate.h"
#include "passes/search/Tighten.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace cleave {

using namespace minimizer;

namespace {

/// Of one table when joining all is out of the question.
constexpr int64_t miniBucket = int64_t(1) << 22;
constexpr int maxSweeps = 200;
/// How often a search that found something better is followed by another.
constexpr int maxRounds = 3;
/// Multipliers tried, and how many of them may end without a minimum.
constexpr int maxMultipliers = 40, maxUnsure = 4;
/// Of a price that rises until the memory fits.
constexpr int maxSteps = 40;
/// Sums in another order differ by less than this part of them.
constexpr double rounding = 1e-10;

double above(double value) { return value + rounding * value; }
double below(double value) { return value == infinity ? infinity : value - rounding * value; }

struct Solution {
  enum { Optimal, Bounded, Infeasible, NotFound } kind = NotFound;
  std::vector<int> choice;
  double value = infinity;
  double lowerBound = 0;
};

class Solver {
public:
  Solver(const ChoiceProblem &problem, const MinimizeOptions &options)
      : folded(fold(problem)), options(options), allowed(allowedChoices(folded)),
        descent(folded, allowed, visited) {}

  /// `start`: a choice that may be good, or nothing.
  Solution solve(const Objective &objective, const std::vector<int> &start = {});
  /// Needs the solution without a limit, which is above it, and that of least memory, within it.
  Minimum limit(double memoryLimit, const Solution &free, const Solution &least);

  double memory(const std::vector<int> &choice) const { return descent.memory(choice); }
  int64_t states() const { return visited; }
  int width() const { return mostVariables; }

private:
  bool narrow(Tightening &tightening, const std::function<double()> &cutoff,
              const std::function<void(std::vector<int>)> &offer);
  void run(Elimination &elimination, int64_t largest);

  const Folded folded;
  const MinimizeOptions options;
  const Domains allowed;
  int64_t visited = 0; ///< table entries
  Descent descent;
  int mostVariables = 0;
};

void Solver::run(Elimination &elimination, int64_t largest) {
  elimination.run(largest);
  visited += elimination.states();
  mostVariables = std::max(mostVariables, elimination.width());
}

/// Sweeps until elimination is easy or little changes. False: nothing is left at the cutoff.
bool Solver::narrow(Tightening &tightening, const std::function<double()> &cutoff,
                    const std::function<void(std::vector<int>)> &offer) {
  const int64_t before = tightening.states();
  double lastGap = infinity;
  int64_t lastLeft = tightening.left(), compacted = lastLeft;
  for (int sweeps = 0; sweeps < maxSweeps && !tightening.empty(); ++sweeps) {
    tightening.sweep(true, above(cutoff()));
    if (tightening.empty())
      break;
    if (sweeps % 8 == 0)
      offer(tightening.guess());
    tightening.sweep(false, above(cutoff()));
    if (tightening.empty())
      break;
    const int64_t left = tightening.left();
    if (left < compacted - compacted / 10) {
      compacted = left;
      const Elimination::Work work = Elimination::work(folded, sizesOf(tightening.compact()));
      if (work.largest <= double(options.maxTable) &&
          work.total <= std::max(easy, 4.0 * double(tightening.entries())))
        break;
    }
    if (sweeps % 8 == 7) {
      const double gap = cutoff() - tightening.bound();
      if (!(gap < 0.95 * lastGap) && left > lastLeft - lastLeft / 50)
        break;
      lastGap = gap;
      lastLeft = left;
    }
  }
  visited += tightening.states() - before;
  if (!tightening.empty())
    tightening.compact();
  return !tightening.empty();
}

Solution Solver::solve(const Objective &objective, const std::vector<int> &start) {
  Solution best;
  enum class Moves { Variables, Stars, Tables };
  auto offer = [&](std::vector<int> choice, Moves moves) {
    descent.run(choice, objective, infinity, false);
    if (moves != Moves::Variables)
      while (descent.moveStars(choice, objective)) {
      }
    if (moves == Moves::Tables)
      descent.run(choice, objective, infinity, true);
    const double value = descent.value(choice, objective);
    if (value < best.value) {
      best.value = value;
      best.choice = std::move(choice);
    }
  };
  auto infeasible = [&] {
    best.kind = Solution::Infeasible;
    return best;
  };

  Domains domains = allowed;
  for (const std::vector<int> &values : domains)
    if (values.empty())
      return infeasible();
  std::vector<Table> tables = keep(folded, objective, domains);
  double entries = 0;
  for (const Table &table : tables)
    entries += double(table.values.size());
  Elimination::Work work = Elimination::work(folded, sizesOf(domains));
  double bound = 0;
  if (work.largest > double(options.maxTable) || work.total > std::max(easy, 4 * entries)) {
    if (!start.empty())
      offer(start, Moves::Variables);
    Tightening tightening(folded, domains, std::move(tables));
    bool again = true;
    for (int round = 1; again; ++round) {
      again = false;
      if (!narrow(
              tightening, [&] { return best.value; },
              [&](std::vector<int> choice) { offer(std::move(choice), Moves::Stars); }))
        return infeasible(); // with a solution at hand, that is among what is left
      domains = tightening.compact();
      bound = std::max(bound, tightening.bound());
      work = Elimination::work(folded, sizesOf(domains));
      if (work.largest <= double(options.maxTable))
        break;

      // Too much is left: bounds from mini-buckets, and a search below the best known.
      Elimination divided(folded, sizesOf(domains), tightening.tablesNow());
      run(divided, std::min(options.maxTable, miniBucket));
      if (divided.bound() == infinity)
        return infeasible();
      bound = std::max(bound, divided.bound());
      auto global = [&](std::vector<int> choice) {
        for (size_t i = 0; i < choice.size(); ++i)
          choice[i] = domains[i][choice[i]];
        return choice;
      };
      const double before = best.value;
      offer(global(divided.choice()), Moves::Tables);
      if (!best.choice.empty())
        offer(best.choice, Moves::Tables);
      auto leaf = [&](const std::vector<int> &choice) {
        offer(global(choice), Moves::Variables);
        return below(best.value);
      };
      const bool complete = searchBelow(folded, divided, below(best.value), nullptr, infinity,
                                        visited, visited + options.maxSearch, leaf);
      if (complete && best.value == infinity)
        return infeasible();
      if (complete)
        bound = best.value;
      again = round < maxRounds && best.value < below(before) && bound < best.value;
      if (again)
        continue;
      best.lowerBound = std::min(bound, best.value);
      best.kind = best.value == infinity ? Solution::NotFound
                  : complete             ? Solution::Optimal
                                         : Solution::Bounded;
      return best;
    }
    tables = keep(folded, objective, domains);
  }

  Elimination elimination(folded, sizesOf(domains), std::move(tables));
  run(elimination, options.maxTable);
  if (elimination.bound() == infinity)
    return infeasible();
  best.choice = elimination.choice();
  for (size_t i = 0; i < best.choice.size(); ++i)
    best.choice[i] = domains[i][best.choice[i]];
  best.value = best.lowerBound = descent.value(best.choice, objective);
  best.kind = Solution::Optimal;
  return best;
}

/// For each multiplier, the least of cost + multiplier * (memory - limit) is a lower bound of the
/// least cost within the limit (Lagrange). Each solution is a line above these bounds. The
/// multiplier that is tried next is where the lines known so far leave most room (Kelley's cutting
/// planes, 1960); once the solution there is on those lines, no multiplier has a higher bound. A
/// search among what lies between bound and best known closes the gap if it comes to its end.
Minimum Solver::limit(double memoryLimit, const Solution &free, const Solution &least) {
  struct Point {
    std::vector<int> choice;
    double cost, memory;
  };
  const Objective costOnly{1, 0};
  Point best{{}, infinity, infinity};
  std::vector<Point> lines;
  auto offer = [&](std::vector<int> choice, bool blocks) {
    descent.run(choice, costOnly, memoryLimit, blocks);
    const double cost = descent.value(choice, costOnly), memory = descent.memory(choice);
    if (memory <= memoryLimit && cost < best.cost) {
      best = {std::move(choice), cost, memory};
      lines.push_back(best);
    }
  };
  auto add = [&](const std::vector<int> &choice) {
    lines.push_back({choice, descent.value(choice, costOnly), descent.memory(choice)});
  };
  add(free.choice);
  add(least.choice);
  offer(least.choice, false);

  double bound = free.lowerBound, multiplier = 0;
  int unsure = 0;
  for (int round = 0; round < maxMultipliers && unsure < maxUnsure; ++round) {
    auto lowest = [&](double at) {
      double value = infinity;
      for (const Point &line : lines)
        value = std::min(value, line.cost + at * (line.memory - memoryLimit));
      return value;
    };
    double next = 0, most = -infinity;
    for (const Point &over : lines)
      for (const Point &within : lines)
        if (over.memory > memoryLimit && within.memory <= memoryLimit && within.cost > over.cost)
          if (const double at = (within.cost - over.cost) / (over.memory - within.memory);
              std::isfinite(at) && lowest(at) > most) {
            most = lowest(at);
            next = at;
          }
    if (next == 0 || most <= bound)
      break;
    const Solution solution = solve({1, next}, best.choice);
    if (solution.choice.empty())
      break;
    if (const double here = solution.lowerBound - next * memoryLimit;
        here > bound || multiplier == 0) {
      bound = std::max(bound, here);
      multiplier = next;
    }
    if (solution.value >= below(most + next * memoryLimit))
      break;
    unsure += solution.kind != Solution::Optimal;
    add(solution.choice);
    offer(solution.choice, false);
  }
  // From the best of those above the limit, by small steps to higher prices, down to it.
  const Point *over = nullptr;
  auto priceOf = [&](const Point &line) { return line.cost + multiplier * line.memory; };
  for (const Point &line : lines)
    if (line.memory > memoryLimit && (!over || priceOf(line) < priceOf(*over)))
      over = &line;
  if (over && below(best.cost) > bound) {
    std::vector<int> choice = over->choice;
    double price = multiplier;
    for (int step = 0; step < maxSteps && descent.memory(choice) > memoryLimit; ++step) {
      price *= 1.05;
      descent.run(choice, {1, price}, infinity, false);
      descent.moveStars(choice, {1, price});
    }
    offer(std::move(choice), true);
  }
  offer(best.choice, true);

  // The search. Its sums are with the multiplier; so are its cutoffs.
  const Objective priced{1, multiplier};
  auto cutoff = [&] { return best.cost + multiplier * memoryLimit; };
  bool complete = below(best.cost) <= bound;
  Tightening tightening(folded, allowed, keep(folded, priced, allowed));
  if (!complete && !narrow(tightening, cutoff,
                           [&](std::vector<int> choice) { offer(std::move(choice), false); }))
    complete = true;
  if (!complete) {
    const Domains domains = tightening.compact();
    const std::vector<int> sizes = sizesOf(domains);
    Elimination prices(folded, sizes, tightening.tablesNow());
    Elimination bytes(folded, sizes, keep(folded, {0, 1}, domains));
    run(prices, std::min(options.maxTable, miniBucket));
    run(bytes, std::min(options.maxTable, miniBucket));
    bound = std::max(bound, prices.bound() - multiplier * memoryLimit);
    auto leaf = [&](std::vector<int> choice) {
      for (size_t i = 0; i < choice.size(); ++i)
        choice[i] = domains[i][choice[i]];
      offer(std::move(choice), false);
      return below(cutoff());
    };
    complete = bytes.bound() > memoryLimit ||
               searchBelow(folded, prices, below(cutoff()), &bytes, memoryLimit * (1 + rounding),
                           visited, visited + options.maxSearch, leaf);
  }

  Minimum minimum;
  minimum.choice = best.choice;
  minimum.lowerBound = complete ? infinity : bound; // capped by the cost
  minimum.multiplier = multiplier;
  return minimum;
}

// What is wrong with a problem ----------------------------------------------

std::string nameOf(const ChoiceProblem &problem, int variable) {
  return fmt::format("variable {} ('{}')", variable, problem.names[size_t(variable)]);
}

Status check(const ChoiceProblem &problem, const MinimizeOptions &options) {
  auto wrong = [](std::string message) {
    return Error{"minimize: " + std::move(message), Fault::Internal};
  };
  const size_t count = problem.sizes.size();
  if (problem.names.size() != count)
    return wrong(fmt::format("{} sizes, but {} names", count, problem.names.size()));
  for (size_t i = 0; i < count; ++i)
    if (problem.sizes[i] < 1)
      return wrong(fmt::format("{} has {} choices; it needs at least 1", nameOf(problem, int(i)),
                               problem.sizes[i]));
  for (size_t i = 0; i < problem.tables.size(); ++i) {
    const CostTable &table = problem.tables[i];
    const std::string place =
        fmt::format("table {}{}", i, table.source.empty() ? "" : " (" + table.source + ")");
    double entries = 1;
    for (size_t v = 0; v < table.variables.size(); ++v) {
      const int variable = table.variables[v];
      if (variable < 0 || size_t(variable) >= count)
        return wrong(fmt::format("{} has variable {}, but there are {}", place, variable, count));
      if (std::find(table.variables.begin(), table.variables.begin() + int(v), variable) !=
          table.variables.begin() + int(v))
        return wrong(fmt::format("{} has {} twice", place, nameOf(problem, variable)));
      entries *= problem.sizes[size_t(variable)];
    }
    if (double(table.costs.size()) != entries)
      return wrong(fmt::format("{} has {} costs, but its variables have {:.0f} combinations", place,
                               table.costs.size(), entries));
    if (!table.memory.empty() && double(table.memory.size()) != entries)
      return wrong(
          fmt::format("{} has {} numbers of bytes, but its variables have {:.0f} combinations",
                      place, table.memory.size(), entries));
    for (double cost : table.costs)
      if (!(cost >= 0))
        return wrong(
            fmt::format("{} has a cost of {}; costs are 0 or more, or infinity", place, cost));
    for (double bytes : table.memory)
      if (!(bytes >= 0) || bytes == infinity)
        return wrong(fmt::format("{} has {} bytes; they are 0 or more, and finite", place, bytes));
  }
  if (!(options.memoryLimit >= 0))
    return wrong(fmt::format("the memory limit is {} bytes; it is 0 or more", options.memoryLimit));
  if (options.maxSearch < 0)
    return wrong(fmt::format("maxSearch is {}; it is 0 or more", options.maxSearch));
  if (options.maxTable < 1)
    return wrong(fmt::format("maxTable is {}; it is 1 or more", options.maxTable));
  return {};
}

// Why nothing is allowed ----------------------------------------------------

/// A least set of sources without any of which `impossible` no longer holds of the problem.
/// `impossible` gets the problem with the tables of some sources left out.
std::vector<std::string> conflict(const ChoiceProblem &problem,
                                  const std::function<bool(const ChoiceProblem &)> &impossible) {
  std::vector<std::string> sources;
  for (const CostTable &table : problem.tables)
    if (!table.source.empty() &&
        std::find(sources.begin(), sources.end(), table.source) == sources.end())
      sources.push_back(table.source);

  auto without = [](const ChoiceProblem &problem, const std::vector<std::string> &left) {
    ChoiceProblem fewer{problem.sizes, problem.names, {}};
    for (const CostTable &table : problem.tables)
      if (std::find(left.begin(), left.end(), table.source) == left.end())
        fewer.tables.push_back(table);
    return fewer;
  };
  // Many at a time first, half as many each time.
  ChoiceProblem rest = problem;
  for (size_t size = std::max<size_t>(sources.size(), 1);; size /= 2) {
    for (size_t first = 0; first < sources.size();) {
      const auto begin = sources.begin() + long(first);
      const auto end = sources.begin() + long(std::min(first + size, sources.size()));
      ChoiceProblem fewer = without(rest, {begin, end});
      if (impossible(fewer)) {
        rest = std::move(fewer);
        sources.erase(begin, end);
      } else {
        first += size;
      }
    }
    if (size <= 1)
      break;
  }
  return sources;
}

/// Only what is allowed: 0 or infinity, without tables that allow everything.
ChoiceProblem onlyAllowed(const ChoiceProblem &problem) {
  ChoiceProblem allowed{problem.sizes, problem.names, {}};
  for (const CostTable &table : problem.tables)
    if (std::find(table.costs.begin(), table.costs.end(), infinity) != table.costs.end()) {
      allowed.tables.push_back(table);
      allowed.tables.back().memory.clear();
      for (double &cost : allowed.tables.back().costs)
        cost = cost == infinity ? infinity : 0;
    }
  return allowed;
}

std::string join(const std::vector<std::string> &sources) {
  return fmt::format("{}", fmt::join(sources, "; "));
}

Error nothingAllowed(const ChoiceProblem &problem, const MinimizeOptions &options) {
  const std::vector<std::string> sources =
      conflict(onlyAllowed(problem), [&](const ChoiceProblem &some) {
        return Solver(some, options).solve({1, 0}).kind == Solution::Infeasible;
      });
  if (sources.empty())
    return {"no combination of choices is allowed, even without any constraint of the plan"};
  if (sources.size() == 1)
    return {fmt::format("this cannot hold: {}", sources[0])};
  return {fmt::format("these cannot hold together: {}", join(sources))};
}

Error tooMuchMemory(const ChoiceProblem &problem, const MinimizeOptions &options, double need) {
  const std::vector<std::string> sources = conflict(problem, [&](const ChoiceProblem &some) {
    const Solution least = Solver(some, options).solve({0, 1});
    return least.kind == Solution::Infeasible || least.lowerBound > options.memoryLimit;
  });
  std::string message =
      fmt::format("the memory limit is {:.0f} bytes, but at least {:.0f} are needed",
                  options.memoryLimit, need);
  if (!sources.empty())
    message += fmt::format(". The limit cannot hold together with: {}", join(sources));
  return {message};
}

} // namespace

Result<Minimum> minimize(const ChoiceProblem &problem, const MinimizeOptions &options) {
  if (Status status = check(problem, options); !status)
    return status.error();
  Solver solver(problem, options);
  const Solution free = solver.solve({1, 0});
  if (free.kind == Solution::Infeasible)
    return nothingAllowed(problem, options);
  if (free.kind == Solution::NotFound)
    return Error{
        fmt::format("no allowed choice was found among {} table entries; raise the largest table "
                    "of the search ({} entries)",
                    solver.states(), options.maxTable)};

  Minimum minimum;
  if (solver.memory(free.choice) <= options.memoryLimit) {
    minimum.choice = free.choice;
    minimum.lowerBound = free.kind == Solution::Optimal ? infinity : free.lowerBound;
  } else {
    const Solution least = solver.solve({0, 1});
    if (least.lowerBound > options.memoryLimit)
      return tooMuchMemory(problem, options, least.lowerBound);
    if (least.value > options.memoryLimit)
      return Error{fmt::format(
          "no choice was found within the memory limit of {:.0f} bytes: the least found "
          "needs {:.0f}, and none can need less than {:.0f}",
          options.memoryLimit, least.value, least.lowerBound)};
    minimum = solver.limit(options.memoryLimit, free, least);
  }

  for (const CostTable &table : problem.tables) {
    const size_t entry = entryOf(table.variables, problem.sizes, minimum.choice);
    minimum.cost += table.costs[entry];
    if (!table.memory.empty())
      minimum.memory += table.memory[entry];
  }
  minimum.lowerBound = std::min(minimum.lowerBound, minimum.cost);
  minimum.states = solver.states();
  minimum.width = solver.width();
  return minimum;
}

} // namespace cleave
