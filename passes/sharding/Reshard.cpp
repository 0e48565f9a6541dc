//===- Reshard.cpp - from one sharding to another, by collectives ---------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The value's current sharding is walked towards the wanted one; each step emits
// one collective and keeps the invariant that the current sharding describes the
// current value:
//   1. unreduced atoms: reduce-scatter where the target has them on a dim, as the
//      next minor ones, else all-reduce; with `zero 1` first over micro-batches, so
//      that gradients are added up whole and scattered once;
//   2. atoms that are used nowhere yet: slice, which sends nothing and makes
//      what follows smaller;
//   3. atoms that move from one dim to another: all-to-all;
//   4. atoms that must go: all-gather; 5. what is still missing: slice.
//
// Blocks are ceil(n/p). When the blocks of a coarser split are not unions of the
// finer ones (5 rows over 2x2: blocks of 2, but of 3 over the first 2), the dim is
// gathered whole and sliced again.
//
//===----------------------------------------------------------------------===//
#include "passes/sharding/Sharding.h"

using namespace mlir;
using namespace cleave;

namespace {

class Resharder {
public:
  Resharder(OpBuilder &b, Location loc, const ShardingContext &context, Value value,
            const Sharding &to, StringRef why, Attribute phase)
      : b(b), loc(loc), context(context), value(value), to(to), why(why), phase(phase),
        now(context.of(tensorOf(value))) {}

  Value run() {
    reduce();
    slice(/*unusedOnly=*/true);
    exchange();
    gather();
    slice(/*unusedOnly=*/false);
    return value;
  }

private:
  using List = SmallVector<int, 2>;

  NamedTensorType type() { return tensorOf(value); }
  int64_t sizeOf(unsigned dim) { return type().getSizes()[dim]; }
  StringRef nameOf(unsigned dim) { return type().getNames()[dim].getValue(); }

  size_t commonPrefix(unsigned dim) {
    size_t n = 0;
    while (n < now.dims[dim].size() && n < to.dims[dim].size() &&
           now.dims[dim][n] == to.dims[dim][n])
      ++n;
    return n;
  }

  template <typename Op, typename... Args> void emit(Sharding next, Args &&...args) {
    NamedTensorType result = type().withSharding(context.toAttr(next));
    Operation *op = Op::create(b, loc, result, std::forward<Args>(args)...);
    if (!isa<ShardSliceOp>(op))
      op->setAttr(kRule, b.getStringAttr(why));
    if (phase)
      op->setAttr(kPhase, phase);
    value = op->getResult(0);
    now = std::move(next);
  }

  void allReduce(const List &atoms) {
    if (atoms.empty())
      return;
    Sharding next = now;
    llvm::erase_if(next.unreduced, [&](int a) { return llvm::is_contained(atoms, a); });
    emit<AllReduceOp>(next, value, now.reduction, context.axes(atoms));
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
      emit<ReduceScatterOp>(next, value, now.reduction, nameOf(dim), context.axes(scattered));
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
      emit<ShardSliceOp>(next, value, ValueRange{}, nameOf(dim), context.axes(added));
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
        emit<AllToAllOp>(next, value, nameOf(from), nameOf(other), context.axes(moving));
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
    emit<AllGatherOp>(next, value, nameOf(dim), context.axes(gone));
  }

  void gather() {
    for (unsigned dim = 0; dim < now.dims.size(); ++dim)
      gatherDim(dim, commonPrefix(dim));
  }

  OpBuilder &b;
  Location loc;
  const ShardingContext &context;
  Value value;
  const Sharding &to;
  StringRef why;
  Attribute phase;
  Sharding now;
};

} // namespace

Value cleave::reshard(OpBuilder &b, Location loc, const ShardingContext &context, Value value,
                      const Sharding &to, StringRef why, Attribute phase) {
  return Resharder(b, loc, context, value, to, why, phase).run();
}
