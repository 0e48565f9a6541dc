//===- Descend.cpp - improving a choice step by step ----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Descend.h"

#include "passes/search/Eliminate.h"

#include <algorithm>
#include <numeric>

namespace cleave::minimizer {

namespace {
constexpr int64_t maxBlock = int64_t(1) << 18; ///< combinations tried at once
constexpr int maxRounds = 50;
} // namespace

Descent::Descent(const Folded &folded, const Domains &allowed, int64_t &visited)
    : folded(folded), allowed(allowed), tablesOf(folded.sizes.size()), visited(visited) {
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

  std::vector<int> around;
  for (int variable : block)
    around.insert(around.end(), tablesOf[variable].begin(), tablesOf[variable].end());
  std::sort(around.begin(), around.end());
  around.erase(std::unique(around.begin(), around.end()), around.end());

  // Tables with one variable of the block are added up for each of its choices. Of the others:
  // where they stand with the block at its first choices, and how far one step of each variable
  // moves in them.
  struct Alone {
    double value = 0, memory = 0;
  };
  std::vector<std::vector<Alone>> alone(block.size());
  for (size_t i = 0; i < block.size(); ++i)
    alone[i].resize(size_t(folded.sizes[block[i]]));
  std::vector<const CostTable *> joint;
  std::vector<int64_t> base;
  std::vector<std::vector<int64_t>> strides(block.size());
  std::vector<int64_t> stride(block.size());
  for (int index : around) {
    const CostTable &table = folded.tables[index];
    int64_t at = int64_t(entryOf(table.variables, folded.sizes, choice));
    std::fill(stride.begin(), stride.end(), 0);
    int64_t step = 1;
    size_t members = 0, last = 0;
    for (size_t i = table.variables.size(); i-- > 0;) {
      auto found = std::find(block.begin(), block.end(), table.variables[i]);
      if (found != block.end()) {
        last = size_t(found - block.begin());
        stride[last] = step;
        at -= step * choice[block[last]];
        ++members;
      }
      step *= folded.sizes[table.variables[i]];
    }
    if (members == 1) {
      visited += folded.sizes[block[last]];
      for (Alone &sum : alone[last]) {
        sum.value += objective.of(table, size_t(at));
        sum.memory += table.memory.empty() ? 0 : table.memory[size_t(at)];
        at += stride[last];
      }
      continue;
    }
    joint.push_back(&table);
    base.push_back(at);
    for (size_t i = 0; i < block.size(); ++i)
      strides[i].push_back(stride[i]);
  }

  std::vector<int> index(block.size(), 0);
  std::vector<int64_t> at = base;
  auto look = [&](double &value, double &memory) {
    value = memory = 0;
    for (size_t i = 0; i < block.size(); ++i) {
      value += alone[i][size_t(index[i])].value;
      memory += alone[i][size_t(index[i])].memory;
    }
    for (size_t t = 0; t < joint.size(); ++t) {
      value += objective.of(*joint[t], size_t(at[t]));
      memory += joint[t]->memory.empty() ? 0 : joint[t]->memory[size_t(at[t])];
    }
  };
  for (size_t i = 0; i < block.size(); ++i) {
    index[i] = choice[block[i]];
    for (size_t t = 0; t < joint.size(); ++t)
      at[t] += strides[i][t] * index[i];
  }
  double valueHere, memoryHere;
  look(valueHere, memoryHere);
  // A gain that rounding could make is none.
  const double below = valueHere == infinity ? infinity : valueHere - 1e-12 * valueHere;
  const double allowed = std::max(memoryLimit, memoryNow);
  double best = below, bestMemory = 0;
  int64_t bestAt = -1;
  visited += combinations * int64_t(joint.size());

  std::fill(index.begin(), index.end(), 0);
  at = base;
  for (int64_t combination = 0; combination < combinations; ++combination) {
    double value, memory;
    look(value, memory);
    if (value < best && memoryNow - memoryHere + memory <= allowed) {
      best = value;
      bestMemory = memory;
      bestAt = combination;
    }
    for (size_t i = block.size(); i-- > 0;) {
      const bool carry = ++index[i] == folded.sizes[block[i]];
      const int64_t steps = carry ? 1 - index[i] : 1;
      for (size_t t = 0; t < joint.size(); ++t)
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

bool Descent::moveStars(std::vector<int> &choice, const Objective &objective) {
  Domains domains; // those of a star, and of the others what they have chosen
  for (int value : choice)
    domains.push_back({value});
  std::vector<int> local(choice.size(), -1); // a number within the star, in order of elimination
  bool better = false;
  for (size_t center = 0; center < choice.size(); ++center) {
    std::vector<int> star{int(center)}, around;
    for (int table : tablesOf[center])
      for (int variable : folded.tables[table].variables)
        star.push_back(variable);
    auto unique = [](std::vector<int> &numbers) {
      std::sort(numbers.begin(), numbers.end());
      numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    };
    unique(star);
    std::sort(star.begin(), star.end(),
              [&](int a, int b) { return folded.position[a] < folded.position[b]; });
    for (int variable : star)
      around.insert(around.end(), tablesOf[variable].begin(), tablesOf[variable].end());
    unique(around);

    // The problem that the star is by itself. A variable that stays is a dim of size 1: gone.
    Folded part;
    part.order.resize(star.size());
    std::iota(part.order.begin(), part.order.end(), 0);
    part.position = part.order;
    for (size_t i = 0; i < star.size(); ++i) {
      local[star[i]] = int(i);
      domains[star[i]] = allowed[star[i]];
      part.sizes.push_back(int(allowed[star[i]].size()));
    }
    for (int index : around) {
      part.tables.emplace_back();
      for (int variable : folded.tables[index].variables)
        if (local[variable] >= 0)
          part.tables.back().variables.push_back(local[variable]);
    }
    if (Elimination::work(part, part.sizes).total <= easy) {
      std::vector<Table> tables;
      for (size_t i = 0; i < around.size(); ++i) {
        tables.push_back(keep(folded.tables[around[i]], folded.sizes, objective, domains));
        tables.back().variables = part.tables[i].variables;
      }
      Elimination elimination(part, part.sizes, std::move(tables));
      elimination.run(int64_t(easy));
      visited += elimination.states();
      auto here = [&] {
        double sum = 0;
        for (int index : around)
          sum += objective.of(folded.tables[index],
                              entryOf(folded.tables[index].variables, folded.sizes, choice));
        return sum;
      };
      if (elimination.bound() < infinity) {
        const double before = here();
        const std::vector<int> best = elimination.choice();
        std::vector<int> old;
        for (size_t i = 0; i < star.size(); ++i) {
          old.push_back(choice[star[i]]);
          choice[star[i]] = allowed[star[i]][best[i]];
        }
        // A gain that rounding could make is none.
        if (const double now = here(); before == infinity || now < before - 1e-12 * before)
          better = true;
        else
          for (size_t i = 0; i < star.size(); ++i)
            choice[star[i]] = old[i];
      }
    }
    for (int variable : star) {
      local[variable] = -1;
      domains[variable] = {choice[variable]};
    }
  }
  return better;
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
