//===- Eliminate.cpp - variable elimination over cost tables --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Eliminate.h"

#include <algorithm>
#include <set>

namespace cleave::minimizer {

namespace {

/// The least of first[i] + second[i].
double leastSum(const double *first, const double *second, int count) {
  constexpr int lanes = 8;
  double least[lanes];
  std::fill(least, least + lanes, infinity);
  int i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) {
      const double sum = first[i + lane] + second[i + lane];
      least[lane] = sum < least[lane] ? sum : least[lane];
    }
  for (; i < count; ++i)
    least[0] = std::min(least[0], first[i] + second[i]);
  return *std::min_element(least, least + lanes);
}

/// A table that is added up by join().
struct Addend {
  const double *at;            ///< the row of the choices that are looked at
  std::vector<int64_t> stride; ///< of each variable of the joined table but the eliminated one
  int depth = -1;              ///< the last of these variables that it has
};

} // namespace

Elimination::Elimination(const Folded &folded, std::vector<int> sizes, std::vector<Table> tables)
    : folded(folded), sizes(std::move(sizes)), tables(std::move(tables)),
      buckets(folded.order.size()) {
  for (size_t i = 0; i < this->tables.size(); ++i) {
    const Table &table = this->tables[i];
    if (table.variables.empty())
      least += table.values[0];
    else
      buckets[table.variables.back()].tables.push_back(int(i));
  }
}

Elimination::Work Elimination::work(const Folded &folded, const std::vector<int> &sizes) {
  std::vector<std::set<int>> joined(folded.order.size());
  for (const CostTable &table : folded.tables)
    if (!table.variables.empty())
      joined[table.variables.back()].insert(table.variables.begin(), table.variables.end());
  Work work;
  for (int variable : folded.order) {
    std::set<int> &around = joined[variable];
    double entries = around.empty() ? 0 : 1;
    for (int other : around)
      entries *= sizes[other];
    work.total += entries;
    work.largest = std::max(work.largest, entries);
    around.erase(variable);
    if (around.empty())
      continue;
    const int next = *std::min_element(around.begin(), around.end(), [&](int a, int b) {
      return folded.position[a] < folded.position[b];
    });
    if (joined[next].empty())
      joined[next] = std::move(around);
    else
      joined[next].insert(around.begin(), around.end());
    around.clear();
  }
  return work;
}

void Elimination::run(int64_t maxTable) {
  for (int variable : folded.order) {
    Bucket &bucket = buckets[variable];
    if (bucket.tables.empty())
      continue;
    std::vector<std::vector<int>> parts;
    bucket.tables = divide(bucket.tables, variable, maxTable, parts);
    isDivided |= parts.size() > 1;
    for (const std::vector<int> &part : parts)
      join(variable, part);
    if (least == infinity)
      return; // nothing is allowed
  }
}

/// The parts of a bucket, first fit, tables with most variables first; and its
/// tables in the order in which all are added up. A table that is too large by itself is a part.
std::vector<int> Elimination::divide(const std::vector<int> &members, int variable,
                                     int64_t maxTable, std::vector<std::vector<int>> &parts) const {
  std::vector<int> bySize = members;
  std::sort(bySize.begin(), bySize.end(), [&](int a, int b) {
    const size_t sizeA = tables[a].variables.size(), sizeB = tables[b].variables.size();
    return sizeA != sizeB ? sizeA > sizeB : a < b;
  });
  std::vector<std::set<int>> scopes;
  for (int index : bySize) {
    const std::vector<int> &variables = tables[index].variables;
    size_t place = 0;
    for (; place < parts.size(); ++place) {
      std::set<int> together = scopes[place];
      together.insert(variables.begin(), variables.end());
      double entries = 1;
      for (int other : together)
        entries *= sizes[other];
      if (entries <= double(maxTable) || together.size() == scopes[place].size()) {
        scopes[place] = std::move(together);
        break;
      }
    }
    if (place == parts.size()) {
      parts.emplace_back();
      scopes.emplace_back(variables.begin(), variables.end());
    }
    parts[place].push_back(index);
  }

  // Within a part: tables without the faster variables first, so that their sum is reused.
  std::vector<int> ordered;
  for (std::vector<int> &part : parts) {
    // The position of the fastest variable beside the eliminated one; none: slowest.
    auto fastest = [&](int index) {
      const std::vector<int> &variables = tables[index].variables;
      return variables.size() < 2 ? int(folded.order.size())
                                  : folded.position[variables[variables.size() - 2]];
    };
    std::sort(part.begin(), part.end(), [&](int a, int b) {
      return fastest(a) != fastest(b) ? fastest(a) > fastest(b) : a < b;
    });
    ordered.insert(ordered.end(), part.begin(), part.end());
  }
  return ordered;
}

void Elimination::join(int variable, const std::vector<int> &part) {
  std::set<int> together;
  for (int index : part)
    together.insert(tables[index].variables.begin(), tables[index].variables.end());
  mostVariables = std::max(mostVariables, int(together.size()));
  together.erase(variable);

  Table message;
  message.variables.assign(together.begin(), together.end());
  std::sort(message.variables.begin(), message.variables.end(),
            [&](int a, int b) { return folded.position[a] > folded.position[b]; });
  const int rank = int(message.variables.size());
  const int count = sizes[variable];
  int64_t rows = 1;
  for (int other : message.variables)
    rows *= sizes[other];
  visited += rows * count;
  message.values.resize(size_t(rows));

  std::vector<Addend> addends;
  for (int index : part) {
    const Table &table = tables[index];
    Addend addend{table.values.data(), std::vector<int64_t>(size_t(rank), 0), -1};
    int64_t step = count;
    for (int i = int(table.variables.size()) - 2, dim = rank - 1; i >= 0; --i) {
      while (message.variables[dim] != table.variables[i])
        --dim;
      addend.stride[dim] = step;
      addend.depth = std::max(addend.depth, dim);
      step *= sizes[table.variables[i]];
    }
    addends.push_back(std::move(addend));
  }

  // sums[k]: the first k + 1 addends; valid as long as none of their variables changes.
  // divide() ordered them by depth.
  const int addendCount = int(addends.size());
  std::vector<std::vector<double>> sums(addends.size());
  for (std::vector<double> &sum : sums)
    sum.resize(size_t(count));
  const std::vector<double> zeros(size_t(count), 0.0);
  auto sumBefore = [&](int k) {
    return k == 0 ? zeros.data() : k == 1 ? addends[0].at : sums[k - 1].data();
  };
  int first = 0; // addends before it are summed already
  std::vector<int> index(size_t(rank), 0);
  for (int64_t row = 0;; ++row) {
    for (int k = std::max(first, 1); k + 1 < addendCount; ++k) {
      const double *before = sumBefore(k);
      const double *add = addends[k].at;
      double *sum = sums[k].data();
      for (int i = 0; i < count; ++i)
        sum[i] = before[i] + add[i];
    }
    message.values[size_t(row)] =
        leastSum(sumBefore(addendCount - 1), addends[addendCount - 1].at, count);
    if (row + 1 == rows)
      break;
    int dim = rank - 1;
    for (; ++index[dim] == sizes[message.variables[dim]]; --dim) {
      for (Addend &addend : addends)
        addend.at -= addend.stride[dim] * (index[dim] - 1);
      index[dim] = 0;
    }
    for (first = addendCount; first > 0 && addends[first - 1].depth >= dim; --first)
      addends[first - 1].at += addends[first - 1].stride[dim];
  }

  if (rank == 0) {
    least += message.values[0];
  }
  buckets[variable].messages.push_back(int(tables.size()));
  if (rank > 0)
    buckets[message.variables.back()].tables.push_back(int(tables.size()));
  tables.push_back(std::move(message));
}

void Elimination::bucketValues(int variable, const std::vector<int> &choice,
                               std::vector<double> &values) const {
  values.assign(size_t(sizes[variable]), 0.0);
  for (int index : buckets[variable].tables) {
    const Table &table = tables[index];
    size_t row = 0;
    for (size_t i = 0; i + 1 < table.variables.size(); ++i)
      row = row * size_t(sizes[table.variables[i]]) + size_t(choice[table.variables[i]]);
    const double *at = table.values.data() + row * values.size();
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += at[i];
  }
}

double Elimination::told(int variable, const std::vector<int> &choice) const {
  double sum = 0;
  for (int index : buckets[variable].messages)
    sum += tables[index].values[entryOf(tables[index].variables, sizes, choice)];
  return sum;
}

std::vector<int> Elimination::choice() const {
  std::vector<int> choice(folded.order.size(), 0);
  std::vector<double> values;
  for (auto variable = folded.order.rbegin(); variable != folded.order.rend(); ++variable) {
    bucketValues(*variable, choice, values);
    choice[*variable] = int(std::min_element(values.begin(), values.end()) - values.begin());
  }
  return choice;
}

bool searchBelow(const Folded &folded, const Elimination &objective, double cutoff,
                 const Elimination *memory, double memoryLimit, int64_t &visited, int64_t most,
                 const std::function<double(const std::vector<int> &)> &leaf) {
  struct Child {
    double bound, memory;
    int value;
  };
  struct Level {
    std::vector<Child> children; ///< best first
    size_t next = 0;
  };
  const int count = int(folded.order.size());
  std::vector<int> choice(size_t(count), 0);
  std::vector<Level> levels(size_t(count) + 1);
  std::vector<double> values, bytes;

  // The bound of a partial choice is its own sum and what the buckets below told those
  // above. Assigning one more variable replaces what its bucket told by what is in it.
  auto open = [&](int depth, double bound, double memoryBound) {
    const int variable = folded.order[size_t(count - 1 - depth)];
    Level &level = levels[size_t(depth)];
    level.children.clear();
    level.next = 0;
    objective.bucketValues(variable, choice, values);
    const double told = objective.told(variable, choice);
    double memoryTold = 0;
    if (memory) {
      memory->bucketValues(variable, choice, bytes);
      memoryTold = memory->told(variable, choice);
    }
    visited += int64_t(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const Child child{bound + (values[i] - told),
                        memory ? memoryBound + (bytes[i] - memoryTold) : 0, int(i)};
      if (child.bound < cutoff && child.memory <= memoryLimit)
        level.children.push_back(child);
    }
    std::sort(level.children.begin(), level.children.end(), [](const Child &a, const Child &b) {
      return a.bound != b.bound ? a.bound < b.bound : a.value < b.value;
    });
  };

  if (objective.bound() >= cutoff)
    return true;
  if (count == 0) {
    leaf(choice);
    return true;
  }
  open(0, objective.bound(), memory ? memory->bound() : 0);
  for (int depth = 0; depth >= 0;) {
    Level &level = levels[size_t(depth)];
    if (level.next == level.children.size() || level.children[level.next].bound >= cutoff) {
      --depth;
      continue;
    }
    const Child child = level.children[level.next++];
    choice[size_t(folded.order[size_t(count - 1 - depth)])] = child.value;
    if (depth + 1 == count) {
      cutoff = std::min(cutoff, leaf(choice));
      continue;
    }
    if (visited >= most)
      return false;
    open(++depth, child.bound, child.memory);
  }
  return true;
}

} // namespace cleave::minimizer
