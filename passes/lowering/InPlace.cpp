//===- InPlace.cpp - what a result's buffer may hold besides --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Before a result is stored, its buffer is free: an input may lie there, and a value
// that one loop over the row makes may wait there for the next one. Both at once where
// each element is read before it is written.
//
//===----------------------------------------------------------------------===//
#include "passes/lowering/Generator.h"

using namespace mlir;
using namespace cleave;

//===----------------------------------------------------------------------===//
// Values that wait for a later loop over the row
//===----------------------------------------------------------------------===//

namespace {

/// A row that stays in a processor's second cache from one loop to the next.
constexpr int64_t kRowInCache = 512 << 10;
/// What computing an exp or its like costs, in bytes to and from memory.
constexpr int64_t kBytesPerExpensive = 3;

bool movesElements(Operation *op) { return isa<RenameOp, SliceOp, PadOp, GatherOp>(op); }

/// What is computed element by element for `v`, at its coordinates, in the same loop.
/// `cut`: taken as given.
void addElementwise(Value v, llvm::SetVector<Value> &all, Value cut = {}) {
  if (v == cut || !isa<NamedTensorType>(v.getType()) || !all.insert(v))
    return;
  Operation *op = v.getDefiningOp();
  if (op && !isa<ReduceOp, ContractOp>(op) && !movesElements(op))
    for (Value operand : op->getOperands())
      addElementwise(operand, all, cut);
}

bool sameElements(NamedTensorType x, NamedTensorType y) {
  if (x.getElementType() != y.getElementType() || x.getRank() != y.getRank())
    return false;
  for (auto [name, size] : llvm::zip_equal(x.getNames(), x.getSizes()))
    if (!y.hasDim(name) || y.sizeOf(name) != size)
      return false;
  return true;
}

} // namespace

void Generator::planWaiting(size_t outerDims) {
  // All that is stored last has one loop; every loop before it may leave something.
  const StoreGroup &last = storeGroups.back();
  auto overRow = [&](const Accumulator &a) {
    return static_cast<size_t>(tensorOf(a.op->getResult(0)).getRank()) == outerDims &&
           a.dims.size() == last.dims.size() &&
           llvm::all_of(a.dims, [&](StringAttr d) { return llvm::is_contained(last.dims, d); });
  };
  // The last loop overwrites it: nothing may read it at other places than its own.
  llvm::SetVector<Value> readElsewhere;
  for (Operation &op : region.front().without_terminator()) {
    Accumulator *a = accumulatorOf.lookup(&op);
    if (movesElements(&op) || (a && !overRow(*a)))
      for (Value operand : op.getOperands())
        addElementwise(operand, readElsewhere);
  }
  llvm::DenseSet<Value> known; // expensive values that need not be computed again
  for (unsigned result : last.results) {
    NamedTensorType type = tensorOf(yield.getOperand(result));
    for (Accumulator &a : accumulators) {
      if (!overRow(a) || type.getRank() != static_cast<int64_t>(outerDims + a.dims.size()))
        continue;
      llvm::SetVector<Value> here;
      for (Value operand : a.op->getOperands())
        addElementwise(operand, here);
      auto later = [&](Value cut) {
        llvm::SetVector<Value> all;
        for (unsigned r : last.results)
          addElementwise(yield.getOperand(r), all, cut);
        for (Accumulator &other : accumulators)
          if (other.rank > a.rank)
            for (Value operand : other.op->getOperands())
              addElementwise(operand, all, cut);
        return all;
      };
      // The last one that both need and that has the result's elements.
      llvm::SetVector<Value> again = later({});
      Value best;
      int64_t cost = 0;
      for (Operation &op : region.front().without_terminator()) {
        Value v = op.getResult(0);
        if (!here.contains(v) || !again.contains(v) || readElsewhere.contains(v) ||
            !sameElements(tensorOf(v), type))
          continue;
        llvm::SetVector<Value> made;
        addElementwise(v, made);
        int64_t expensive = llvm::count_if(made, [&](Value x) {
          Operation *by = x.getDefiningOp();
          return by && isExpensive(by) && !known.contains(x) && sameElements(tensorOf(x), type);
        });
        if (expensive) {
          best = v;
          cost = expensive * kBytesPerExpensive;
        }
      }
      if (!best)
        continue;
      // Cheap while the row is in cache; else it goes to memory and back.
      int64_t rowBytes = type.getElementBytes();
      for (StringAttr d : last.dims)
        rowBytes *= type.sizeOf(d);
      if (type.getElementType().isF64())
        cost *= 8; // libm
      if (rowBytes > kRowInCache && cost < 2 * type.getElementBytes())
        continue;
      // An input that is read later, too, could no longer lie in the result's place.
      bool inputAgain = llvm::any_of(later(best), [&](Value v) {
        return isa<BlockArgument>(v) && sameElements(tensorOf(v), type);
      });
      if (inputAgain)
        continue;
      Operation *op = best.getDefiningOp();
      source->emitRemark() << "'" << op->getName().stripDialect()
                           << "' of a row waits in the place of result " << result
                           << " between two loops (" << rowBytes << " bytes)";
      waiting.push_back({best, result, &a});
      llvm::SetVector<Value> made;
      addElementwise(best, made);
      known.insert(made.begin(), made.end());
      break;
    }
  }
}

Generator::Waiting *Generator::waitingFor(Value v) {
  for (Waiting &w : waiting)
    if (w.value == v)
      return &w;
  return nullptr;
}

bool Generator::sameIndex(const Index &x, const Index &y) {
  return x.base == y.base && x.lane == y.lane && x.vector == y.vector;
}

/// At these coordinates of the row that the loops are in.
bool Generator::isInThisRow(const Coordinates &coordinates) {
  return llvm::all_of(rowCoordinates, [&](const Coordinate &c) {
    const Index *index = find(coordinates, c.dim);
    return index && sameIndex(*index, c.index);
  });
}

Value Generator::loadWaiting(const Waiting &w, const Coordinates &coordinates, Mask mask,
                             Scope *scope) {
  NamedTensorType type = tensorOf(yield.getOperand(w.result));
  return load(buffers[bufferOf.size() + w.result], type, restrict(coordinates, type), mask, scope);
}

void Generator::storeWaiting(Waiting &w, const Coordinates &coordinates, Value x, Mask mask,
                             Scope *scope) {
  NamedTensorType type = tensorOf(yield.getOperand(w.result));
  Coordinates own = restrict(coordinates, type);
  Operation *op = store(buffers[bufferOf.size() + w.result], type, own, x, mask, scope);
  w.stores.push_back({op, scope, own});
}

/// An input in the result's place is read before a value waits there.
bool Generator::isReadBeforeWaiting(const Read &read, const Waiting &w) {
  for (const Waiting::Store &s : w.stores) {
    bool identical = s.scope == read.scope && s.op->getBlock() == read.op->getBlock() &&
                     read.op->isBeforeInBlock(s.op);
    if (identical)
      for (auto [x, y] : llvm::zip_equal(s.coordinates, read.coordinates))
        identical = identical && sameIndex(x.index, y.index);
    if (identical)
      return true;
  }
  Operation *first = rowBlock->findAncestorOpInBlock(*w.stores.front().op);
  Operation *place = rowBlock->findAncestorOpInBlock(*read.op);
  return place && place != first && place->isBeforeInBlock(first);
}

//===----------------------------------------------------------------------===//
// Inputs in a result's place
//===----------------------------------------------------------------------===//

void Generator::findInPlace(KernelInfo &info) {
  auto groupOf = [&](unsigned result) {
    for (size_t g = 0; g < storeGroups.size(); ++g)
      if (llvm::is_contained(storeGroups[g].results, result))
        return static_cast<int>(g) + 1;
    return 0;
  };
  auto safe = [&](unsigned input, unsigned result) {
    int group = groupOf(result);
    // Loops of the store, inside of the outer iteration.
    llvm::DenseSet<Scope *> storing;
    for (auto &[r, c] : writes)
      if (groupOf(r) == group)
        for (Scope *s = scopeOf(c); s && s->depth > 1; s = s->parent)
          storing.insert(s);
    for (const Read &read : reads) {
      if (read.input != input)
        continue;
      for (const Waiting &w : waiting)
        if (w.result == result && w.filled && !isReadBeforeWaiting(read, w))
          return false;
      bool identical = llvm::any_of(writes, [&](auto &write) {
        if (write.first != result || scopeOf(write.second) != read.scope)
          return false;
        for (auto [x, y] : llvm::zip_equal(write.second, read.coordinates))
          if (!sameIndex(x.index, y.index))
            return false;
        return true;
      });
      if (identical && read.group <= group)
        continue;
      // Otherwise it must lie in this iteration's part of the tensor and come
      // before the loop that stores.
      if (read.group > group)
        return false;
      for (Scope *s = read.scope; s; s = s->parent)
        if (storing.contains(s))
          return false;
      if (read.scope->depth < 1)
        return false;
      const Coordinates &written =
          llvm::find_if(writes, [&](auto &w) { return w.first == result; })->second;
      for (auto [x, y] : llvm::zip_equal(written, read.coordinates))
        if (x.index.scope->depth <= 1 &&
            !(x.index.scope->depth == 1 && sameIndex(x.index, y.index)))
          return false;
    }
    return true;
  };
  for (BlockArgument arg : region.getArguments()) {
    auto type = dyn_cast<NamedTensorType>(arg.getType());
    if (!type)
      continue;
    for (unsigned j = 0; j < yield.getNumOperands(); ++j) {
      NamedTensorType to = tensorOf(yield.getOperand(j));
      if (to.getNames() == type.getNames() && to.getSizes() == type.getSizes() &&
          to.getElementBytes() == type.getElementBytes() && safe(bufferOf[arg], j))
        info.inPlace.push_back({static_cast<int>(bufferOf[arg]), static_cast<int>(j)});
    }
  }
}
