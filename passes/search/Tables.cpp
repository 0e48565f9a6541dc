//===- Tables.cpp - tables of a problem, in order of elimination ----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Tables.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace cleave::minimizer {

namespace {

enum class Greedy { FewestNewPairs, SmallestTable };

struct Order {
  std::vector<int> variables;
  double entries = 0; ///< of all joined tables together
};

/// Counting the new pairs around a variable with more neighbours than this
/// would take too long; all are then taken to be new.
constexpr size_t maxCounted = 64;

Order greedyOrder(const std::vector<int> &sizes, std::vector<std::set<int>> neighbours,
                  Greedy greedy) {
  const int count = int(sizes.size());
  using Rank = std::tuple<double, double, int>;
  std::vector<double> weight(count);
  auto rank = [&](int variable) -> Rank {
    const std::set<int> &around = neighbours[variable];
    weight[variable] = sizes[variable];
    for (int other : around)
      weight[variable] *= sizes[other];
    if (greedy == Greedy::SmallestTable)
      return {weight[variable], double(around.size()), variable};
    double pairs = double(around.size()) * double(around.size()) / 2;
    if (around.size() <= maxCounted) {
      pairs = 0;
      for (auto a = around.begin(); a != around.end(); ++a)
        for (auto b = std::next(a); b != around.end(); ++b)
          pairs += !neighbours[*a].contains(*b);
    }
    return {pairs, weight[variable], variable};
  };

  std::vector<Rank> ranks(count);
  std::set<Rank> queue;
  for (int variable = 0; variable < count; ++variable)
    queue.insert(ranks[variable] = rank(variable));

  Order order;
  while (!queue.empty()) {
    const int variable = std::get<2>(*queue.begin());
    queue.erase(queue.begin());
    order.variables.push_back(variable);
    order.entries += weight[variable];
    const std::vector<int> around(neighbours[variable].begin(), neighbours[variable].end());
    std::set<int> touched(around.begin(), around.end());
    for (int a : around) {
      neighbours[a].erase(variable);
      for (int b : around)
        if (a != b)
          neighbours[a].insert(b);
    }
    if (greedy == Greedy::FewestNewPairs)
      for (int a : around)
        if (neighbours[a].size() <= maxCounted)
          touched.insert(neighbours[a].begin(), neighbours[a].end());
    for (int a : touched)
      if (const Rank now = rank(a); now != ranks[a]) {
        queue.erase(ranks[a]);
        queue.insert(ranks[a] = now);
      }
  }
  return order;
}

/// Adds `from` to `into`, whose variables are the same in another order.
void addTransposed(const CostTable &from, const std::vector<int> &sizes, CostTable &into) {
  const int rank = int(into.variables.size());
  std::vector<size_t> stride(rank, 0);
  size_t step = 1;
  for (int i = int(from.variables.size()) - 1; i >= 0; --i) {
    stride[std::find(into.variables.begin(), into.variables.end(), from.variables[i]) -
           into.variables.begin()] = step;
    step *= size_t(sizes[from.variables[i]]);
  }
  std::vector<int> index(rank, 0);
  size_t source = 0;
  const bool memory = !from.memory.empty();
  if (memory && into.memory.empty())
    into.memory.assign(into.costs.size(), 0);
  for (size_t entry = 0; entry < into.costs.size(); ++entry) {
    into.costs[entry] += from.costs[source];
    if (memory)
      into.memory[entry] += from.memory[source];
    for (int i = rank - 1; i >= 0; --i) {
      source += stride[i];
      if (++index[i] < sizes[into.variables[i]])
        break;
      source -= stride[i] * size_t(index[i]);
      index[i] = 0;
    }
  }
}

} // namespace

std::vector<int> eliminationOrder(const std::vector<int> &sizes,
                                  const std::vector<CostTable> &tables) {
  std::vector<std::set<int>> neighbours(sizes.size());
  for (const CostTable &table : tables)
    for (int a : table.variables)
      for (int b : table.variables)
        if (a != b)
          neighbours[a].insert(b);
  Order pairs = greedyOrder(sizes, neighbours, Greedy::FewestNewPairs);
  Order small = greedyOrder(sizes, std::move(neighbours), Greedy::SmallestTable);
  return pairs.entries < small.entries ? pairs.variables : small.variables;
}

Folded fold(const ChoiceProblem &problem) {
  Folded folded;
  folded.sizes = problem.sizes;
  folded.order = eliminationOrder(problem.sizes, problem.tables);
  folded.position.resize(problem.sizes.size());
  for (size_t i = 0; i < folded.order.size(); ++i)
    folded.position[folded.order[i]] = int(i);

  std::map<std::vector<int>, size_t> places;
  for (const CostTable &table : problem.tables) {
    std::vector<int> variables = table.variables;
    std::sort(variables.begin(), variables.end(),
              [&](int a, int b) { return folded.position[a] > folded.position[b]; });
    auto [place, isNew] = places.emplace(variables, folded.tables.size());
    if (isNew)
      folded.tables.push_back({variables, std::vector<double>(table.costs.size(), 0.0), {}, {}});
    addTransposed(table, problem.sizes, folded.tables[place->second]);
  }
  return folded;
}

Domains allowedChoices(const Folded &folded) {
  std::vector<std::vector<char>> allowed(folded.sizes.size());
  for (size_t variable = 0; variable < allowed.size(); ++variable)
    allowed[variable].assign(size_t(folded.sizes[variable]), 1);
  for (const CostTable &table : folded.tables)
    if (table.variables.size() == 1)
      for (size_t entry = 0; entry < table.costs.size(); ++entry)
        if (table.costs[entry] == infinity)
          allowed[table.variables[0]][entry] = 0;
  Domains domains(folded.sizes.size());
  for (size_t variable = 0; variable < allowed.size(); ++variable)
    for (size_t value = 0; value < allowed[variable].size(); ++value)
      if (allowed[variable][value])
        domains[variable].push_back(int(value));
  return domains;
}

std::vector<int> sizesOf(const Domains &domains) {
  std::vector<int> sizes;
  for (const std::vector<int> &values : domains)
    sizes.push_back(int(values.size()));
  return sizes;
}

namespace {

/// read(entry) for each entry of a table over `variables` whose choices are left.
template <typename Read>
std::vector<double> keepEntries(const std::vector<int> &variables, const std::vector<int> &sizes,
                                const Domains &domains, Read read) {
  const int rank = int(variables.size());
  if (rank == 0)
    return {read(size_t(0))};
  size_t count = 1;
  for (int variable : variables)
    count *= domains[variable].size();
  std::vector<double> kept;
  kept.reserve(count);
  const std::vector<int> &last = domains[variables.back()];
  std::vector<int> index(rank, 0);
  while (kept.size() < count) {
    size_t row = 0;
    for (int i = 0; i < rank; ++i)
      row = row * size_t(sizes[variables[i]]) +
            size_t(i + 1 < rank ? domains[variables[i]][index[i]] : 0);
    for (int value : last)
      kept.push_back(read(row + size_t(value)));
    for (int i = rank - 2; i >= 0; --i) {
      if (++index[i] < int(domains[variables[i]].size()))
        break;
      index[i] = 0;
    }
  }
  return kept;
}

} // namespace

Table keep(const Table &table, const std::vector<int> &sizes, const Domains &domains) {
  return {table.variables, keepEntries(table.variables, sizes, domains,
                                       [&](size_t entry) { return table.values[entry]; })};
}

Table keep(const CostTable &table, const std::vector<int> &sizes, const Objective &objective,
           const Domains &domains) {
  return {table.variables, keepEntries(table.variables, sizes, domains,
                                       [&](size_t entry) { return objective.of(table, entry); })};
}

std::vector<Table> keep(const Folded &folded, const Objective &objective, const Domains &domains) {
  std::vector<Table> tables;
  for (const CostTable &table : folded.tables)
    tables.push_back(keep(table, folded.sizes, objective, domains));
  return tables;
}

size_t entryOf(const std::vector<int> &variables, const std::vector<int> &sizes,
               const std::vector<int> &choice) {
  size_t entry = 0;
  for (int variable : variables)
    entry = entry * size_t(sizes[variable]) + size_t(choice[variable]);
  return entry;
}

} // namespace cleave::minimizer
