//===- Descend.cpp - improving a choice step by step ----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Descend.h"

#include <algorithm>

namespace cleave::minimizer {

namespace {
constexpr int64_t maxBlock = int64_t(1) << 18; ///< combinations tried at once
constexpr int maxRounds = 50;
} // namespace

Descent::Descent(const Folded &folded, int64_t &visited)
    : folded(folded), tablesOf(folded.sizes.size()), visited(visited) {
  for (size_t i = 0; i < folded.tables.size(); ++i)
    for (int variable : folded.tables[i].variables)
      tablesOf[variable].push_back(int(i));
}

double Descent::value(const std::vector<int> &choice, const Objective &objective) const {
  double sum = 0;
  for (const CostTable &table : folded.tables)
    sum += objective.of(table, entryOf(table.variables, folded.sizes, choice));
  return sum;
}

double Descent::memory(const std::vector<int> &choice) const {
  double sum = 0;
  for (const CostTable &table : folded.tables)
    if (!table.memory.empty())
      sum += table.memory[entryOf(table.variables, folded.sizes, choice)];
  return sum;
}

bool Descent::improve(const std::vector<int> &block, std::vector<int> &choice,
                      const Objective &objective, double &memoryNow, double memoryLimit) {
  int64_t combinations = 1;
  for (int variable : block)
    combinations *= folded.sizes[variable];
  if (combinations > maxBlock)
    return false;

  // The tables that change, where they stand with the block at its first choices, and how
  // far one step of each variable moves in them.
  std::vector<int> around;
  for (int variable : block)
    around.insert(around.end(), tablesOf[variable].begin(), tablesOf[variable].end());
  std::sort(around.begin(), around.end());
  around.erase(std::unique(around.begin(), around.end()), around.end());
  std::vector<int64_t> base;
  std::vector<std::vector<int64_t>> strides(block.size());
  for (int index : around) {
    const CostTable &table = folded.tables[index];
    base.push_back(int64_t(entryOf(table.variables, folded.sizes, choice)));
    std::vector<int64_t> stride(block.size(), 0);
    int64_t step = 1;
    for (size_t i = table.variables.size(); i-- > 0;) {
      auto found = std::find(block.begin(), block.end(), table.variables[i]);
      if (found != block.end())
        stride[found - block.begin()] = step;
      step *= folded.sizes[table.variables[i]];
    }
    for (size_t i = 0; i < block.size(); ++i) {
      strides[i].push_back(stride[i]);
      base.back() -= stride[i] * choice[block[i]];
    }
  }

  auto look = [&](const std::vector<int64_t> &at, double &value, double &memory) {
    value = memory = 0;
    for (size_t t = 0; t < around.size(); ++t) {
      const CostTable &table = folded.tables[around[t]];
      value += objective.of(table, size_t(at[t]));
      if (!table.memory.empty())
        memory += table.memory[size_t(at[t])];
    }
  };
  std::vector<int64_t> at = base;
  for (size_t i = 0; i < block.size(); ++i)
    for (size_t t = 0; t < around.size(); ++t)
      at[t] += strides[i][t] * choice[block[i]];
  double valueHere, memoryHere;
  look(at, valueHere, memoryHere);
  // A gain that rounding could make is none.
  const double below = valueHere == infinity ? infinity : valueHere - 1e-12 * valueHere;
  const double allowed = std::max(memoryLimit, memoryNow);
  double best = below, bestMemory = 0;
  int64_t bestAt = -1;
  visited += combinations * int64_t(around.size());

  std::vector<int> index(block.size(), 0);
  at = base;
  for (int64_t combination = 0; combination < combinations; ++combination) {
    double value, memory;
    look(at, value, memory);
    if (value < best && memoryNow - memoryHere + memory <= allowed) {
      best = value;
      bestMemory = memory;
      bestAt = combination;
    }
    for (size_t i = block.size(); i-- > 0;) {
      const bool carry = ++index[i] == folded.sizes[block[i]];
      const int64_t steps = carry ? 1 - index[i] : 1;
      for (size_t t = 0; t < around.size(); ++t)
        at[t] += strides[i][t] * steps;
      if (!carry)
        break;
      index[i] = 0;
    }
  }
  if (bestAt < 0)
    return false;
  for (size_t i = block.size(); i-- > 0;) {
    choice[block[i]] = int(bestAt % folded.sizes[block[i]]);
    bestAt /= folded.sizes[block[i]];
  }
  memoryNow += bestMemory - memoryHere;
  return true;
}

void Descent::run(std::vector<int> &choice, const Objective &objective, double memoryLimit,
                  bool blocks) {
  double memoryNow = memory(choice);
  bool better = true;
  for (int round = 0; better && round < maxRounds; ++round) {
    better = false;
    for (int variable = 0; variable < int(folded.sizes.size()); ++variable)
      better |= improve({variable}, choice, objective, memoryNow, memoryLimit);
    if (blocks)
      for (const CostTable &table : folded.tables)
        if (table.variables.size() > 1)
          better |= improve(table.variables, choice, objective, memoryNow, memoryLimit);
  }
}

} // namespace cleave::minimizer
