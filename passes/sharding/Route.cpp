//===- Route.cpp - by which collectives a value moves ---------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/sharding/Route.h"

#include <map>
#include <queue>

using namespace mlir;
using namespace cleave;

namespace {

using List = SmallVector<int, 2>;
using Kind = RouteStep::Kind;

/// Builds steps from a sharding on.
class Walk {
public:
  Walk(const ShardingContext &context, NamedTensorType type, const Sharding &from,
       const Sharding &to)
      : context(context), type(type), to(to), now(from) {}

  SmallVector<RouteStep> run() {
    reduce();
    slice(/*unusedOnly=*/true);
    exchange();
    gather();
    slice(/*unusedOnly=*/false);
    return std::move(steps);
  }

private:
  int64_t sizeOf(unsigned dim) { return type.getSizes()[dim]; }

  size_t commonPrefix(unsigned dim) {
    size_t n = 0;
    while (n < now.dims[dim].size() && n < to.dims[dim].size() &&
           now.dims[dim][n] == to.dims[dim][n])
      ++n;
    return n;
  }

  void step(Kind kind, Sharding next, List atoms, unsigned dim = 0, unsigned other = 0) {
    RouteStep s{kind, dim, other, std::move(atoms), std::move(next), 0};
    s.elements = elementsOfRank(context, type, kind == Kind::AllGather ? s.after : now);
    now = s.after;
    steps.push_back(std::move(s));
  }

  void allReduce(const List &atoms) {
    if (atoms.empty())
      return;
    Sharding next = now;
    llvm::erase_if(next.unreduced, [&](int a) { return llvm::is_contained(atoms, a); });
    step(Kind::AllReduce, next, atoms);
  }

  void reduce() {
    if (context.zeroLevel() == 1)
      allReduce(List(llvm::make_filter_range(now.unreduced, [&](int a) {
        return context.isInTime(a) && !llvm::is_contained(to.unreduced, a);
      })));
    // Atoms that the target has as the next minor ones of a dim: scatter there.
    for (unsigned dim = 0; dim < now.dims.size() && now.reduction == Reduction::Sum; ++dim) {
      size_t prefix = commonPrefix(dim);
      if (prefix != now.dims[dim].size())
        continue;
      List scattered;
      for (size_t i = prefix;
           i < to.dims[dim].size() && llvm::is_contained(now.unreduced, to.dims[dim][i]); ++i)
        scattered.push_back(to.dims[dim][i]);
      List fine(now.dims[dim]);
      fine.append(scattered);
      if (scattered.empty() || !context.refines(sizeOf(dim), now.dims[dim], fine))
        continue;
      Sharding next = now;
      next.dims[dim] = fine;
      llvm::erase_if(next.unreduced, [&](int a) { return llvm::is_contained(scattered, a); });
      step(Kind::ReduceScatter, next, scattered, dim);
    }
    List rest = now.unreduced;
    llvm::erase_if(rest, [&](int a) { return llvm::is_contained(to.unreduced, a); });
    allReduce(rest);
  }

  void slice(bool unusedOnly) {
    for (unsigned dim = 0; dim < now.dims.size(); ++dim) {
      size_t prefix = commonPrefix(dim);
      if (prefix != now.dims[dim].size() || prefix == to.dims[dim].size())
        continue;
      List added(to.dims[dim].begin() + prefix, to.dims[dim].end());
      if (unusedOnly && llvm::any_of(added, [&](int a) { return now.uses(a); }))
        continue;
      if (!context.refines(sizeOf(dim), now.dims[dim], to.dims[dim])) {
        if (unusedOnly)
          continue;
        gatherDim(dim, 0);
        added = to.dims[dim];
      }
      Sharding next = now;
      next.dims[dim] = to.dims[dim];
      step(Kind::Slice, next, added, dim);
    }
  }

  void exchange() {
    for (unsigned from = 0; from < now.dims.size(); ++from) {
      size_t prefix = commonPrefix(from);
      List moving(now.dims[from].begin() + prefix, now.dims[from].end());
      if (moving.empty())
        continue;
      List left(now.dims[from].begin(), now.dims[from].begin() + prefix);
      for (unsigned other = 0; other < now.dims.size(); ++other) {
        if (other == from || commonPrefix(other) != now.dims[other].size())
          continue;
        List fine(now.dims[other]);
        fine.append(moving);
        bool wanted = fine.size() <= to.dims[other].size() &&
                      std::equal(fine.begin(), fine.end(), to.dims[other].begin());
        if (!wanted || !context.refines(sizeOf(from), left, now.dims[from]) ||
            !context.refines(sizeOf(other), now.dims[other], fine))
          continue;
        Sharding next = now;
        next.dims[from] = left;
        next.dims[other] = fine;
        step(Kind::AllToAll, next, moving, from, other);
        break;
      }
    }
  }

  void gatherDim(unsigned dim, size_t keep) {
    List left(now.dims[dim].begin(), now.dims[dim].begin() + keep);
    List gone(now.dims[dim].begin() + keep, now.dims[dim].end());
    if (gone.empty())
      return;
    if (!context.refines(sizeOf(dim), left, now.dims[dim]))
      return gatherDim(dim, 0);
    Sharding next = now;
    next.dims[dim] = left;
    step(Kind::AllGather, next, gone, dim);
  }

  void gather() {
    for (unsigned dim = 0; dim < now.dims.size(); ++dim)
      gatherDim(dim, commonPrefix(dim));
  }

  const ShardingContext &context;
  NamedTensorType type;
  const Sharding &to;
  Sharding now;
  SmallVector<RouteStep> steps;
};

/// A sharding as a key of a map.
std::vector<int> keyOf(const Sharding &s) {
  std::vector<int> key;
  for (auto &dim : s.dims) {
    key.insert(key.end(), dim.begin(), dim.end());
    key.push_back(-1);
  }
  List unreduced = s.unreduced;
  llvm::sort(unreduced);
  key.insert(key.end(), unreduced.begin(), unreduced.end());
  return key;
}

/// The cheapest way, if one costs less than `bound`.
class Finder {
public:
  Finder(const ShardingContext &context, NamedTensorType type, const Sharding &from,
         const Sharding &to, const RoutePrice &price)
      : context(context), type(type), from(from), to(to), price(price) {
    // Ranks along an axis that neither side has hold the same: each may move a part, and these be
    // gathered over that axis, where its links are faster.
    for (int atom = 0; atom < static_cast<int>(context.getAtoms().size()); ++atom)
      if (!context.isInTime(atom))
        atoms.push_back(atom);
  }

  std::optional<SmallVector<RouteStep>> below(double bound) {
    nodes.push_back({from, 0, -1, {}});
    best[keyOf(from)] = 0;
    queue.emplace(0, 0);
    std::vector<int> goal = keyOf(to);
    while (!queue.empty()) {
      auto [cost, at] = queue.top();
      queue.pop();
      if (best[keyOf(nodes[at].sharding)] < cost)
        continue;
      if (keyOf(nodes[at].sharding) == goal) {
        SmallVector<RouteStep> steps;
        for (int i = at; nodes[i].before >= 0; i = nodes[i].before)
          steps.push_back(nodes[i].step);
        std::reverse(steps.begin(), steps.end());
        return steps;
      }
      limit = bound;
      expand(at);
    }
    return std::nullopt;
  }

private:
  struct Node {
    Sharding sharding;
    double cost;
    int before;
    RouteStep step;
  };

  void reach(int at, Kind kind, Sharding next, List moved, unsigned dim = 0, unsigned other = 0) {
    RouteStep s{kind, dim, other, std::move(moved), std::move(next), 0};
    const Sharding &now = nodes[at].sharding;
    s.elements = elementsOfRank(context, type, kind == Kind::AllGather ? s.after : now);
    double cost = nodes[at].cost + price(s, type.getElementBytes());
    // Rounding makes no way cheaper.
    if (!(cost < limit * (1 - 1e-9)))
      return;
    auto [it, isNew] = best.try_emplace(keyOf(s.after), cost);
    if (!isNew && it->second <= cost)
      return;
    it->second = cost;
    queue.emplace(cost, static_cast<int>(nodes.size()));
    Sharding after = s.after;
    nodes.push_back({std::move(after), cost, at, std::move(s)});
  }

  /// All that the dim lacks at once: fewer steps, and blocks that need not be unions of finer ones
  /// on the way.
  void complete(int at, const Sharding &now, const List &pending, unsigned dim) {
    const auto &have = now.dims[dim], &want = to.dims[dim];
    if (want.size() < have.size() + 2 || !std::equal(have.begin(), have.end(), want.begin()))
      return;
    List added(want.begin() + have.size(), want.end());
    bool scatters = now.reduction == Reduction::Sum &&
                    llvm::all_of(added, [&](int a) { return llvm::is_contained(pending, a); });
    if ((!scatters && llvm::any_of(added, [&](int a) { return now.uses(a); })) ||
        !context.refines(type.getSizes()[dim], have, want))
      return;
    Sharding next = now;
    next.dims[dim] = want;
    llvm::erase_if(next.unreduced, [&](int a) { return llvm::is_contained(added, a); });
    reach(at, scatters ? Kind::ReduceScatter : Kind::Slice, next, added, dim);
  }

  void expand(int at) {
    Sharding now = nodes[at].sharding;
    auto sizeOf = [&](unsigned dim) { return type.getSizes()[dim]; };
    List pending;
    for (int a : now.unreduced)
      if (!llvm::is_contained(to.unreduced, a))
        pending.push_back(a);
    if (!pending.empty()) {
      Sharding next = now;
      llvm::erase_if(next.unreduced, [&](int a) { return llvm::is_contained(pending, a); });
      reach(at, Kind::AllReduce, next, pending);
    }
    for (unsigned dim = 0; dim < now.dims.size(); ++dim) {
      for (int a : atoms) {
        bool scatters = llvm::is_contained(pending, a) && now.reduction == Reduction::Sum;
        if (!scatters && now.uses(a))
          continue;
        Sharding next = now;
        next.dims[dim].push_back(a);
        llvm::erase_if(next.unreduced, [&](int b) { return a == b; });
        if (context.refines(sizeOf(dim), now.dims[dim], next.dims[dim]))
          reach(at, scatters ? Kind::ReduceScatter : Kind::Slice, next, {a}, dim);
      }
      complete(at, now, pending, dim);
      for (size_t keep = 0; keep < now.dims[dim].size(); ++keep) {
        List left(now.dims[dim].begin(), now.dims[dim].begin() + keep);
        List gone(now.dims[dim].begin() + keep, now.dims[dim].end());
        if (!context.refines(sizeOf(dim), left, now.dims[dim]))
          continue;
        Sharding next = now;
        next.dims[dim] = left;
        reach(at, Kind::AllGather, next, gone, dim);
        for (unsigned other = 0; other < now.dims.size(); ++other) {
          if (other == dim)
            continue;
          Sharding moved = next;
          moved.dims[other].append(gone);
          if (context.refines(sizeOf(other), now.dims[other], moved.dims[other]))
            reach(at, Kind::AllToAll, moved, gone, dim, other);
        }
      }
    }
  }

  const ShardingContext &context;
  NamedTensorType type;
  const Sharding &from, &to;
  const RoutePrice &price;
  double limit = 0;
  List atoms;
  std::vector<Node> nodes;
  std::map<std::vector<int>, double> best;
  /// Of equal costs the one found first.
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>>
      queue;
};

} // namespace

double cleave::elementsOfRank(const ShardingContext &context, NamedTensorType type,
                              const Sharding &sharding) {
  double elements = 1;
  for (auto [size, atoms] : llvm::zip_equal(type.getSizes(), sharding.dims))
    elements *= static_cast<double>(context.block(size, atoms));
  return elements;
}

double cleave::ringBytes(const ShardingContext &context, const RouteStep &step,
                         int64_t elementBytes) {
  if (step.kind == Kind::Slice)
    return 0;
  auto p = static_cast<double>(context.sizeOf(step.atoms));
  double bytes = step.elements * static_cast<double>(elementBytes) * (p - 1) / p;
  return step.kind == Kind::AllReduce ? 2 * bytes : bytes;
}

SmallVector<RouteStep> cleave::directRoute(const ShardingContext &context, NamedTensorType type,
                                           const Sharding &from, const Sharding &to) {
  return Walk(context, type, from, to).run();
}

SmallVector<RouteStep> cleave::routeOf(const ShardingContext &context, NamedTensorType type,
                                       const Sharding &from, const Sharding &to,
                                       const RoutePrice &price) {
  SmallVector<RouteStep> steps = directRoute(context, type, from, to);
  RoutePrice bytes = [&](const RouteStep &step, int64_t elementBytes) {
    return ringBytes(context, step, elementBytes);
  };
  const RoutePrice &by = price ? price : bytes;
  double cost = 0;
  bool sends = false;
  for (const RouteStep &step : steps) {
    cost += by(step, type.getElementBytes());
    sends |= step.kind != Kind::Slice;
    // Sums over micro-batches have an order of their own.
    if (llvm::any_of(step.atoms, [&](int atom) { return context.isInTime(atom); }))
      return steps;
  }
  // By bytes, one collective over one axis is the least that there is.
  if (sends && (price || steps.size() > 1 || steps[0].atoms.size() > 1))
    if (auto better = Finder(context, type, from, to, by).below(cost))
      return *better;
  return steps;
}
