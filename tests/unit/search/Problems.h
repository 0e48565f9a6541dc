//===- Problems.h - problems of choices to test the search with -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/search/Minimize.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace cleave::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// The same numbers everywhere, unlike std::uniform_int_distribution.
class Numbers {
public:
  explicit Numbers(uint64_t seed) : engine(seed) {}
  /// From low to high, both included.
  int between(int low, int high) { return low + int(engine() % uint64_t(high - low + 1)); }
  double fraction() { return double(engine() >> 11) * 0x1p-53; }

private:
  std::mt19937_64 engine;
};

inline size_t combinations(const ChoiceProblem &problem, const std::vector<int> &variables) {
  size_t count = 1;
  for (int variable : variables)
    count *= size_t(problem.sizes[size_t(variable)]);
  return count;
}

struct RandomOptions {
  int minVariables = 2, maxVariables = 9;
  int maxSize = 5, maxArity = 4;
  int forbidden = 15; ///< percent of the entries
  int maxCost = 6;    ///< small, for ties
  bool memory = false;
};

/// Whole costs, so that sums are exact in any order.
inline ChoiceProblem randomProblem(uint64_t seed, const RandomOptions &options = {}) {
  Numbers numbers(seed);
  ChoiceProblem problem;
  const int count = numbers.between(options.minVariables, options.maxVariables);
  for (int i = 0; i < count; ++i) {
    problem.sizes.push_back(numbers.between(1, options.maxSize));
    problem.names.push_back("v" + std::to_string(i));
  }
  const int forbidden = numbers.between(0, options.forbidden);
  const int tables = numbers.between(count, 2 * count);
  for (int t = 0; t < tables; ++t) {
    CostTable table;
    std::vector<int> all;
    for (int i = 0; i < count; ++i)
      all.push_back(i);
    const int arity = std::min(numbers.between(0, options.maxArity), count);
    for (int i = 0; i < arity; ++i) {
      const int at = numbers.between(0, int(all.size()) - 1);
      table.variables.push_back(all[size_t(at)]);
      all.erase(all.begin() + at);
    }
    const bool memory = options.memory && numbers.between(0, 2) != 0;
    for (size_t entry = combinations(problem, table.variables); entry > 0; --entry) {
      const bool never = arity > 0 && numbers.between(0, 99) < forbidden;
      table.costs.push_back(never ? infinity : numbers.between(0, options.maxCost));
      if (memory)
        table.memory.push_back(numbers.between(0, 9));
    }
    problem.tables.push_back(std::move(table));
  }
  return problem;
}

/// Shaped like the search over a layer: `classes` of values that share a
/// sharding, ops that run through them as a chain with side branches, each op
/// tied to three or four classes by the cost of moving the class's values to where the op wants
/// them. Choices are levels of splitting on a 2-D mesh, as vectors of small numbers: the price of
/// moving grows with how far apart two are, that of computing falls with how much is split.
inline ChoiceProblem layerProblem(uint64_t seed, int classes, int classChoices, int ops,
                                  int opChoices) {
  Numbers numbers(seed);
  ChoiceProblem problem;
  const int axes = 3;
  const int perClass = int(std::lround(std::cbrt(classChoices)));
  const int perOp = int(std::lround(std::cbrt(opChoices)));
  auto digit = [&](int choice, int axis, int base) {
    for (; axis > 0; --axis)
      choice /= base;
    return choice % base;
  };
  for (int i = 0; i < classes; ++i) {
    problem.sizes.push_back(classChoices);
    problem.names.push_back("class" + std::to_string(i));
  }
  for (int i = 0; i < ops; ++i) {
    problem.sizes.push_back(opChoices);
    problem.names.push_back("op" + std::to_string(i));
  }
  for (int i = 0; i < classes; ++i) { // what a class costs to hold
    CostTable table{{i}, {}, {}, {}};
    const double bytes = 1e6 * (1 + numbers.between(0, 99));
    for (int choice = 0; choice < classChoices; ++choice) {
      int split = 0;
      for (int axis = 0; axis < axes; ++axis)
        split += digit(choice, axis, perClass) != 0;
      table.costs.push_back(1e-4 * numbers.fraction());
      table.memory.push_back(bytes / (1 << (3 * split)));
    }
    problem.tables.push_back(std::move(table));
  }
  for (int op = 0; op < ops; ++op) {
    CostTable compute{{classes + op}, {}, {}, {}};
    const double seconds = 1e-3 * (1 + numbers.between(0, 9));
    for (int choice = 0; choice < opChoices; ++choice) {
      int split = 0;
      for (int axis = 0; axis < axes; ++axis)
        split += digit(choice, axis, perOp) != 0;
      compute.costs.push_back(seconds * (1 + 0.05 * numbers.fraction()) / (1 << split));
      compute.memory.push_back(1e5 * numbers.between(0, 9));
    }
    problem.tables.push_back(std::move(compute));
    // Along the chain the classes follow the op; one more comes from anywhere (a param, the
    // residual).
    const int near = op * classes / ops;
    std::vector<int> tied = {near, (near + 1) % classes, (near + 2) % classes};
    if (numbers.between(0, 1)) {
      const int far = numbers.between(0, classes - 1);
      if (std::find(tied.begin(), tied.end(), far) == tied.end())
        tied.push_back(far);
    }
    for (int value : tied) {
      CostTable move{{value, classes + op}, {}, {}, {}};
      const double price = 1e-4 * (1 + numbers.between(0, 49));
      std::vector<int> axisOf; // the op's axis that each of the class's dims runs along
      for (int axis = 0; axis < axes; ++axis)
        axisOf.push_back(numbers.between(0, axes - 1));
      for (int a = 0; a < classChoices; ++a)
        for (int b = 0; b < opChoices; ++b) {
          int apart = 0;
          for (int axis = 0; axis < axes; ++axis)
            apart += digit(a, axis, perClass) != digit(b, axisOf[size_t(axis)], perOp);
          move.costs.push_back(price * apart * (1 + 0.1 * numbers.fraction()));
        }
      problem.tables.push_back(std::move(move));
    }
  }
  return problem;
}

} // namespace cleave::test
