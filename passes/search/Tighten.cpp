//===- Tighten.cpp - shifting costs between tables, for bounds ------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Tighten.h"

#include <algorithm>
#include <numeric>

namespace cleave::minimizer {

Tightening::Tightening(const Folded &folded, Domains domainsLeft, std::vector<Table> all)
    : folded(folded), domains(std::move(domainsLeft)), sizes(sizesOf(domains)), own(sizes.size()),
      places(sizes.size()), leastOwn(sizes.size(), 0.0) {
  for (size_t variable = 0; variable < sizes.size(); ++variable)
    own[variable].assign(size_t(sizes[variable]), 0.0);
  for (Table &table : all) {
    const std::vector<int> &variables = table.variables;
    if (variables.empty()) {
      constant += table.values[0];
    } else if (variables.size() == 1) {
      for (size_t i = 0; i < table.values.size(); ++i)
        own[variables[0]][i] += table.values[i];
    } else {
      // Variables stand by falling position.
      for (size_t dim = 0; dim < variables.size(); ++dim)
        places[variables[dim]].push_back(
            {int(tables.size()), int(dim), dim + 1 < variables.size(), dim > 0});
      tables.push_back(std::move(table));
    }
  }
  total = constant;
  for (size_t variable = 0; variable < own.size(); ++variable)
    total += leastOwn[variable] = *std::min_element(own[variable].begin(), own[variable].end());
  for (const Table &table : tables) {
    leastTable.push_back(*std::min_element(table.values.begin(), table.values.end()));
    total += leastTable.back();
  }
  isEmpty = total == infinity;
}

Tightening::Shape Tightening::shapeAround(const Place &place, int variable) const {
  Shape shape{1, sizes[variable], 1};
  const std::vector<int> &variables = tables[place.table].variables;
  for (int dim = 0; dim < int(variables.size()); ++dim)
    (dim < place.dim ? shape.outer : shape.inner) *= dim == place.dim ? 1 : sizes[variables[dim]];
  return shape;
}

void Tightening::sweep(bool forwards, double cutoff) {
  std::vector<std::vector<double>> least;
  std::vector<double> shift;
  for (size_t step = 0; step < folded.order.size() && !isEmpty; ++step) {
    const int variable = folded.order[forwards ? step : folded.order.size() - 1 - step];
    const std::vector<Place> &around = places[variable];
    std::vector<double> &cost = own[variable];
    const size_t count = cost.size();

    // Take from each table the least for each choice, ...
    double others = total - leastOwn[variable];
    least.resize(std::max(least.size(), around.size()));
    int before = 0, behind = 0;
    for (size_t p = 0; p < around.size(); ++p) {
      const Place &place = around[p];
      const Shape shape = shapeAround(place, variable);
      least[p].assign(count, infinity);
      const double *at = tables[place.table].values.data();
      for (int64_t o = 0; o < shape.outer; ++o)
        for (size_t a = 0; a < count; ++a) {
          if (shape.inner == 1) {
            least[p][a] = std::min(least[p][a], *at++);
            continue;
          }
          double smallest = least[p][a];
          for (int64_t i = 0; i < shape.inner; ++i)
            smallest = std::min(smallest, at[i]);
          least[p][a] = smallest;
          at += shape.inner;
        }
      visited += int64_t(tables[place.table].values.size());
      for (size_t a = 0; a < count; ++a)
        cost[a] += least[p][a];
      others -= leastTable[place.table];
      before += place.earlier;
      behind += place.later;
    }
    if (!forwards)
      std::swap(before, behind);

    // ... drop what cannot be in a good solution, ...
    for (double &value : cost)
      if (others + value > cutoff)
        value = infinity;
    const double smallest = *std::min_element(cost.begin(), cost.end());
    if (smallest == infinity) {
      isEmpty = true;
      return;
    }

    // ... and give to each table that goes on an equal share.
    const int shares = std::max(before, behind);
    const double part = shares ? 1.0 / shares : 0;
    for (size_t p = 0; p < around.size(); ++p) {
      const Place &place = around[p];
      const bool goesOn = forwards ? place.later : place.earlier;
      shift.resize(count);
      for (size_t a = 0; a < count; ++a)
        shift[a] = cost[a] == infinity ? infinity : (goesOn ? part * cost[a] : 0) - least[p][a];
      const Shape shape = shapeAround(place, variable);
      double *at = tables[place.table].values.data();
      for (int64_t o = 0; o < shape.outer; ++o)
        if (shape.inner == 1) {
          for (size_t a = 0; a < count; ++a)
            at[a] += shift[a];
          at += count;
        } else {
          for (size_t a = 0; a < count; ++a, at += shape.inner)
            for (int64_t i = 0; i < shape.inner; ++i)
              at[i] += shift[a];
        }
      leastTable[place.table] = goesOn ? part * smallest : 0;
    }
    const double rest = shares && behind == shares ? 0 : 1 - part * behind;
    for (double &value : cost)
      value = value == infinity ? infinity : rest * value;
    leastOwn[variable] = rest * smallest;
    total = others + smallest;
  }
  if (!isEmpty) // without what rounding adds up
    total = constant + std::accumulate(leastOwn.begin(), leastOwn.end(), 0.0) +
            std::accumulate(leastTable.begin(), leastTable.end(), 0.0);
}

const Domains &Tightening::compact() {
  Domains kept(domains.size()); // among those now
  bool same = true;
  for (size_t variable = 0; variable < own.size(); ++variable) {
    for (size_t i = 0; i < own[variable].size(); ++i)
      if (own[variable][i] != infinity)
        kept[variable].push_back(int(i));
    same &= kept[variable].size() == own[variable].size();
  }
  if (same)
    return domains;
  for (Table &table : tables)
    table = keep(table, sizes, kept);
  for (size_t variable = 0; variable < own.size(); ++variable)
    for (size_t i = 0; i < kept[variable].size(); ++i) {
      own[variable][i] = own[variable][kept[variable][i]];
      domains[variable][i] = domains[variable][kept[variable][i]];
    }
  for (size_t variable = 0; variable < own.size(); ++variable) {
    own[variable].resize(kept[variable].size());
    domains[variable].resize(kept[variable].size());
  }
  sizes = sizesOf(domains);
  return domains;
}

int64_t Tightening::entries() const {
  int64_t sum = 0;
  for (const Table &table : tables)
    sum += int64_t(table.values.size());
  return sum;
}

int64_t Tightening::left() const {
  int64_t sum = 0;
  for (const std::vector<double> &values : own)
    sum += std::count_if(values.begin(), values.end(), [](double v) { return v != infinity; });
  return sum;
}

std::vector<int> Tightening::guess() const {
  std::vector<int> choice(own.size(), 0);
  std::vector<char> done(own.size(), 0);
  std::vector<int> index;
  for (int variable : folded.order) {
    std::vector<double> cost = own[variable];
    for (const Place &place : places[variable]) {
      // The least over the rows in which the variables before have their choice.
      const Table &table = tables[place.table];
      const int rank = int(table.variables.size());
      std::vector<int64_t> stride(static_cast<size_t>(rank), 1);
      for (int dim = rank - 2; dim >= 0; --dim)
        stride[dim] = stride[dim + 1] * sizes[table.variables[dim + 1]];
      int64_t base = 0;
      std::vector<int> open;
      for (int dim = 0; dim < rank; ++dim)
        if (done[table.variables[dim]])
          base += stride[dim] * choice[table.variables[dim]];
        else if (dim != place.dim)
          open.push_back(dim);
      std::vector<double> least(cost.size(), infinity);
      index.assign(open.size(), 0);
      for (bool more = true; more;) {
        for (size_t a = 0; a < cost.size(); ++a)
          least[a] =
              std::min(least[a], table.values[size_t(base + stride[place.dim] * int64_t(a))]);
        more = false;
        for (int i = int(open.size()) - 1; i >= 0 && !more; --i) {
          base += stride[open[i]];
          if (++index[i] < sizes[table.variables[open[i]]]) {
            more = true;
          } else {
            base -= stride[open[i]] * index[i];
            index[i] = 0;
          }
        }
      }
      for (size_t a = 0; a < cost.size(); ++a)
        cost[a] += least[a];
    }
    choice[variable] = int(std::min_element(cost.begin(), cost.end()) - cost.begin());
    done[variable] = 1;
  }
  for (size_t variable = 0; variable < choice.size(); ++variable)
    choice[variable] = domains[variable][choice[variable]];
  return choice;
}

std::vector<Table> Tightening::tablesNow() const {
  std::vector<Table> now = tables;
  for (size_t variable = 0; variable < own.size(); ++variable)
    now.push_back({{int(variable)}, own[variable]});
  now.push_back({{}, {constant}});
  return now;
}

} // namespace cleave::minimizer
