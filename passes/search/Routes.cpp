//===- Routes.cpp - shardings of a type, and what lies between them -------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Routes.h"

#include <limits>

using namespace mlir;
using namespace cleave;

AtomOrder::AtomOrder(const ShardingContext &context) {
  int atoms = static_cast<int>(context.getAtoms().size()), next = 0;
  rank.assign(atoms, -1);
  for (int atom : context.atomsOfRules())
    if (rank[atom] < 0)
      rank[atom] = next++;
  for (int atom = 0; atom < atoms; ++atom)
    if (rank[atom] < 0)
      rank[atom] = next++;
}

void AtomOrder::sort(SmallVectorImpl<int> &atoms) const {
  llvm::sort(atoms, [&](int a, int b) { return rank[a] < rank[b]; });
}

std::vector<int> cleave::keyOf(const Sharding &s) {
  std::vector<int> key;
  for (auto &dim : s.dims) {
    key.insert(key.end(), dim.begin(), dim.end());
    key.push_back(-1);
  }
  SmallVector<int, 2> unreduced(s.unreduced);
  llvm::sort(unreduced);
  key.insert(key.end(), unreduced.begin(), unreduced.end());
  if (!unreduced.empty())
    key.push_back(-2 - static_cast<int>(s.reduction));
  return key;
}

Routes::Routes(const ShardingContext &context, NamedTensorType type, Prices &prices,
               std::vector<Sharding> list)
    : context(context), type(type), prices(prices), homes(static_cast<int>(list.size())) {
  for (const Sharding &s : list)
    number(s);
  homes = static_cast<int>(known.size());
  for (int from = 0; from < homes; ++from) {
    rows[from].resize(homes);
    for (int to = 0; to < homes; ++to)
      rows[from][to] = direct(known[from], known[to]);
  }
  for (int mid = 0; mid < homes; ++mid)
    for (int from = 0; from < homes; ++from)
      for (int to = 0; to < homes; ++to)
        rows[from][to] = std::min(rows[from][to], rows[from][mid] + rows[mid][to]);
}

int Routes::number(const Sharding &sharding) {
  auto [it, isNew] = numbers.try_emplace(keyOf(sharding), static_cast<int>(known.size()));
  if (isNew) {
    known.push_back(sharding);
    rows.emplace_back();
  }
  return it->second;
}

double Routes::direct(const Sharding &from, const Sharding &to) {
  double seconds = 0;
  for (const RouteStep &step : directRoute(context, type, from, to))
    seconds += prices.step(step, type.getElementBytes());
  return seconds;
}

const std::vector<double> &Routes::row(int from) {
  if (rows[from].empty()) {
    std::vector<double> first(homes), best(homes, std::numeric_limits<double>::infinity());
    for (int to = 0; to < homes; ++to)
      first[to] = direct(known[from], known[to]);
    for (int mid = 0; mid < homes; ++mid)
      for (int to = 0; to < homes; ++to)
        best[to] = std::min(best[to], first[mid] + rows[mid][to]);
    rows[from] = std::move(best);
  }
  return rows[from];
}

double Routes::price(int from, int to) {
  if (from == to)
    return 0;
  if (to < homes)
    return row(from)[to];
  auto [it, isNew] = elsewhere.try_emplace({from, to});
  if (isNew)
    it->second = direct(known[from], known[to]);
  return it->second;
}
