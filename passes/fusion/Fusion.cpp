//===- Fusion.cpp - decides which ops become one kernel -------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/fusion/Planner.h"

#include <queue>

using namespace mlir;
using namespace cleave;
using namespace cleave::planner;

namespace {

/// Ops that a value may carry along when it is computed where it is used.
constexpr unsigned kMostOps = 48;
/// Tensors that a kernel of scalars reads and writes.
constexpr unsigned kMostScalarBuffers = 96;
/// A reduction of at most so many elements to a scalar is a scalar's work.
constexpr int64_t kSmallReduction = 1 << 14;
/// All that one group of scalars may reduce: one thread runs it.
constexpr double kMostScalarWork = 1 << 16;
/// Traffic that keeping a shared value must save, as a part of all its groups'.
constexpr double kWorthKeeping = 0.02;
/// What one exp costs, in bytes of memory traffic.
constexpr double kBytesPerExpensive = 3;

bool sameSet(const Dims &x, const Dims &y) {
  return x.size() == y.size() &&
         llvm::all_of(x, [&](const Dim &d) { return llvm::is_contained(y, d); });
}

double bytesOf(Value v) {
  auto type = dyn_cast<NamedTensorType>(v.getType());
  return type ? static_cast<double>(type.getNumElements() * type.getElementBytes()) : 0;
}

double elementsOf(Value v) { return static_cast<double>(tensorOf(v).getNumElements()); }

Shape shapeOf(Operation *root) {
  NamedTensorType type = tensorOf(root->getResult(0));
  Shape shape;
  if (isa<ScatterAddOp>(root)) {
    shape.kind = GroupKind::Scatter;
    shape.outer = dimsOf(type);
    return shape;
  }
  auto reduce = dyn_cast<ReduceOp>(root);
  if (!reduce) {
    shape.outer = dimsOf(type);
    if (type.getNumElements() == 1)
      shape.kind = GroupKind::Scalars;
    return shape;
  }
  NamedTensorType from = tensorOf(reduce.getOperand());
  shape.outer = dimsOf(type);
  for (const Dim &d : dimsOf(from))
    if (!type.hasDim(d.first))
      shape.reduced.push_back(d);
  if (type.getNumElements() == 1 && from.getNumElements() <= kSmallReduction) {
    shape.kind = GroupKind::Scalars;
    return shape;
  }
  // The innermost dim that is more than one element decides.
  StringAttr innermost;
  for (const Dim &d : dimsOf(from))
    if (d.second > 1 || !innermost)
      innermost = d.first;
  bool kept = innermost && type.hasDim(innermost);
  shape.kind = kept ? GroupKind::Columns : GroupKind::Rows;
  return shape;
}

/// The shape of both together, if one kernel can have both; else why not.
std::optional<Shape> unify(const Shape &x, const Shape &y, std::string &why) {
  if (x.kind > y.kind)
    return unify(y, x, why);
  if (x.kind == GroupKind::Scatter || y.kind == GroupKind::Scatter) {
    why = "a scatter_add has a kernel of its own";
    return std::nullopt;
  }
  if (x.kind == y.kind) {
    switch (x.kind) {
    case GroupKind::Elementwise:
      if (x.outer == y.outer)
        return x;
      why = "their elements have different dims";
      return std::nullopt;
    case GroupKind::Scalars:
      return x;
    default:
      if (sameSet(x.outer, y.outer) && sameSet(x.reduced, y.reduced))
        return x;
      why = "their reductions go over different dims";
      return std::nullopt;
    }
  }
  // x is elementwise, or rows before columns or scalars.
  if (x.kind == GroupKind::Elementwise && y.kind == GroupKind::Rows) {
    if (sameSet(x.outer, y.outer) || sameSet(x.outer, y.all()))
      return y;
    why = "the elements are neither the rows nor all that is reduced";
    return std::nullopt;
  }
  if (x.kind == GroupKind::Elementwise && y.kind == GroupKind::Columns) {
    if (sameSet(x.outer, y.outer))
      return y;
    why = "columns are summed in another order than elements are stored";
    return std::nullopt;
  }
  if (x.kind == GroupKind::Rows && y.kind == GroupKind::Scalars && x.outer.empty() &&
      y.reduced.empty())
    return x;
  why = "their loops differ";
  return std::nullopt;
}

} // namespace

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

StringRef cleave::toString(GroupKind kind) {
  switch (kind) {
  case GroupKind::Elementwise:
    return "elementwise";
  case GroupKind::Rows:
    return "rows";
  case GroupKind::Columns:
    return "columns";
  case GroupKind::Scalars:
    return "scalars";
  case GroupKind::Scatter:
    return "scatter";
  case GroupKind::Epilogue:
    return "epilogue";
  case GroupKind::Sums:
    return "sums";
  }
  llvm_unreachable("no such kind");
}

bool cleave::isFusible(Operation *op) {
  return isElementwise(op) || isa<RandomOp, ReduceOp, GatherOp, ScatterAddOp>(op);
}

bool cleave::isView(Operation *op) {
  if (!isa<RenameOp, StopGradientOp, BarrierOp, PinOp>(op))
    return false;
  NamedTensorType from = tensorOf(op->getOperand(0)), to = tensorOf(op->getResult(0));
  return from.getSizes() == to.getSizes() && from.getElementType() == to.getElementType() &&
         (isa<RenameOp>(op) || from.getNames() == to.getNames());
}

void cleave::simplify(Block &block) {
  for (Operation &op : llvm::make_early_inc_range(block)) {
    // They mean something to earlier stages only.
    bool plain = isa<StopGradientOp, PinOp, BarrierOp>(op) ||
                 (isa<BroadcastOp>(op) && op.getOperand(0).getType() == op.getResult(0).getType());
    if (plain && op.getOperand(0).getType() == op.getResult(0).getType()) {
      op.getResult(0).replaceAllUsesWith(op.getOperand(0));
      op.erase();
      continue;
    }
    // Numbers and positions are made where they are used.
    if (!isa<ConstantOp, IotaOp>(op))
      continue;
    llvm::DenseMap<Block *, Operation *> copies;
    for (OpOperand &use : llvm::make_early_inc_range(op.getUses())) {
      Block *user = use.getOwner()->getBlock();
      if (user == &block)
        continue;
      Operation *&copy = copies[user];
      if (!copy)
        copy = OpBuilder::atBlockBegin(user).clone(op);
      use.set(copy->getResult(0));
    }
  }
}

void cleave::splitReductions(Block &block) {
  SmallVector<ReduceOp> reductions(block.getOps<ReduceOp>());
  for (ReduceOp op : reductions) {
    NamedTensorType from = tensorOf(op.getOperand()), to = tensorOf(op.getResult());
    if (to.getNumElements() >= 256 || from.getNumElements() < kSmallReduction)
      continue;
    // Keep the outermost reduced dims until there are rows for everyone.
    SmallVector<StringRef> first, second;
    int64_t rows = 1;
    for (auto [name, size] : llvm::zip_equal(from.getNames(), from.getSizes())) {
      if (to.hasDim(name))
        continue;
      if (rows < 64) {
        second.push_back(name);
        rows *= size;
      } else {
        first.push_back(name);
      }
    }
    if (first.empty() || second.empty())
      continue;
    OpBuilder b(op);
    Value rest = reduce(b, op.getLoc(), op.getReduction(), op.getOperand(), first);
    Value whole = reduce(b, op.getLoc(), op.getReduction(), rest, second);
    for (Value v : {rest, whole})
      v.getDefiningOp()->setDiscardableAttrs(op->getDiscardableAttrDictionary());
    op.replaceAllUsesWith(whole);
    op.erase();
  }
}

//===----------------------------------------------------------------------===//
// What is kept
//===----------------------------------------------------------------------===//

FusionPlan Planner::run() {
  unsigned n = 0;
  for (Operation &op : block)
    position[&op] = n++;
  chooseKept();
  makeGroups();
  // Values that several kernels would compute: keep those that are cheaper to
  // read. Each round keeps more, so this ends; two rounds find nearly all.
  for (int round = 0; options.fuse && round < 3 && keepShared(); ++round)
    makeGroups();
  return finish();
}

void Planner::chooseKept() {
  // What is kept under another name is kept under its first one.
  llvm::DenseSet<Value> renamed;
  for (Operation &op : llvm::reverse(block)) {
    if (!isFusible(&op) || !isView(&op) || !(mustKeep(&op) || renamed.contains(op.getResult(0))))
      continue;
    Operation *first = op.getOperand(0).getDefiningOp();
    if (inBlock(op.getOperand(0)) && isFusible(first) && !isa<ConstantOp, IotaOp>(first))
      renamed.insert(op.getOperand(0));
  }
  llvm::DenseMap<Value, unsigned> carried; // ops that come along with a value
  for (Operation &op : block) {
    if (!isFusible(&op))
      continue;
    Value v = op.getResult(0);
    unsigned ops = 1;
    for (Value operand : op.getOperands())
      if (isInline(operand))
        ops += carried.lookup(operand);
    bool keep = !options.fuse || mustKeep(&op) || isa<ReduceOp, ScatterAddOp>(op) ||
                ops > kMostOps || extra.contains(v) || renamed.contains(v);
    if (keep && isView(&op) && !isInline(op.getOperand(0)))
      views.insert(&op);
    if (keep)
      kept.insert(v);
    carried[v] = ops;
  }
  // Constants and positions stay with their users: a kernel for a number is none.
  for (Operation &op : block)
    if (isa<ConstantOp, IotaOp>(op) && !mustKeep(&op))
      kept.erase(op.getResult(0));
}

Closure Planner::closureOf(Operation *root, Value without) const {
  Closure closure;
  SmallVector<std::pair<Operation *, bool>> stack{{root, true}};
  llvm::DenseMap<Operation *, bool> seen{{root, true}};
  while (!stack.empty()) {
    auto [op, inPlace] = stack.pop_back_val();
    closure.ops.insert(op);
    for (OpOperand &use : op->getOpOperands()) {
      Value v = use.get();
      if (!isa<NamedTensorType>(v.getType())) {
        closure.indices.insert(v);
        continue;
      }
      bool here = inPlace && !movesElements(op, use.getOperandNumber());
      if (!isInline(v) || v == without) {
        auto [it, isNew] = closure.leaves.insert({v, here});
        if (!isNew)
          it->second &= here;
        continue;
      }
      // Once more if it turns out that it is read elsewhere, too.
      Operation *producer = v.getDefiningOp();
      auto [it, isNew] = seen.try_emplace(producer, here);
      if (!isNew && !(it->second && !here))
        continue;
      it->second = here;
      stack.push_back({producer, here});
    }
  }
  return closure;
}

//===----------------------------------------------------------------------===//
// Groups
//===----------------------------------------------------------------------===//

void Planner::makeGroups() {
  clusters.clear();
  clusterOf.clear();
  refused.clear();
  refusedEpilogue.clear();
  refusedSum.clear();
  for (Operation &op : block.without_terminator()) {
    bool isRoot = isFusible(&op) && kept.contains(op.getResult(0)) && !views.contains(&op);
    if (isFusible(&op) && !isRoot && !views.contains(&op))
      continue;
    clusterOf[&op] = clusters.size();
    Cluster &c = clusters.emplace_back();
    if (!isRoot) {
      c.stays = &op;
      op.walk([&](Operation *inner) {
        for (Value v : inner->getOperands())
          if (inBlock(v))
            c.leaves.insert({v, false});
      });
      continue;
    }
    c.shape = shapeOf(&op);
    if (auto reduce = dyn_cast<ReduceOp>(op); reduce && c.shape.kind == GroupKind::Scalars)
      c.scalarWork = elementsOf(reduce.getOperand());
    c.roots.push_back(&op);
    Closure closure = closureOf(&op);
    c.ops = std::move(closure.ops);
    c.leaves = std::move(closure.leaves);
    c.indices = std::move(closure.indices);
  }
  size_t n = clusters.size();
  before.assign(n, llvm::BitVector(n));
  for (size_t i = 0; i < n; ++i) {
    auto needs = [&](Value v) {
      if (!inBlock(v))
        return;
      unsigned j = clusterOf.lookup(v.getDefiningOp());
      before[i] |= before[j];
      before[i].set(j);
    };
    for (auto &[v, inPlace] : clusters[i].leaves)
      needs(v);
    for (Value v : clusters[i].indices)
      needs(v);
  }
  if (!options.fuse)
    return;

  parent.resize(n);
  for (unsigned i = 0; i < n; ++i)
    parent[i] = i;
  fuseEpilogues();
  fuseSums();
  // Big tensors first; scalars then, so that they do not stand in the way.
  mergeNeighbours(/*scalars=*/false);
  mergeNeighbours(/*scalars=*/true);
  std::optional<unsigned> last;
  for (unsigned i = 0; i < n; ++i) {
    if (!clusters[i].alive || clusters[i].stays || clusters[i].shape.kind != GroupKind::Scalars)
      continue;
    if (last && tryMerge(*last, i))
      parent[i] = *last;
    else
      last = i;
  }
  for (auto &[op, index] : clusterOf)
    index = find(index);
}

void Planner::mergeNeighbours(bool scalars) {
  // In program order, each with the groups that make or read what it reads; the
  // largest tensor first.
  llvm::DenseMap<Value, SmallVector<unsigned>> readers;
  for (unsigned i = 0; i < clusters.size(); ++i) {
    if (clusters[i].stays || !clusters[i].alive)
      continue;
    SmallVector<std::tuple<double, unsigned, Value>> sorted;
    for (auto &[v, inPlace] : clusters[i].leaves)
      sorted.push_back({-bytesOf(v), sorted.size(), v});
    llvm::sort(sorted, [](auto &x, auto &y) {
      return std::pair(std::get<0>(x), std::get<1>(x)) < std::pair(std::get<0>(y), std::get<1>(y));
    });
    auto attempt = [&](unsigned other) {
      unsigned x = find(other), y = find(i);
      if (x == y || clusters[x].stays)
        return;
      bool isScalar = clusters[y].shape.kind == GroupKind::Scalars;
      if (isScalar != (clusters[x].shape.kind == GroupKind::Scalars) || isScalar != scalars)
        return;
      if (tryMerge(x, y))
        parent[y] = x;
    };
    double own = bytesOf(clusters[i].roots[0]->getResult(0));
    for (auto &[bytes, number, v] : sorted) {
      if (inBlock(v))
        attempt(clusterOf.lookup(v.getDefiningOp()));
      // Reading the same small tensor is no reason.
      auto &list = readers[v];
      if (bytesOf(v) * 4 >= own && bytesOf(v) > 8)
        for (unsigned other : llvm::reverse(ArrayRef(list).take_back(8)))
          attempt(other);
      list.push_back(i);
    }
  }
}

bool Planner::wouldCycle(unsigned x, unsigned y) const {
  // Some other cluster between the two.
  for (auto [first, second] : {std::pair(x, y), std::pair(y, x)})
    for (unsigned between : before[second].set_bits())
      if (between != first && between != second && before[between].test(first))
        return true;
  return false;
}

bool Planner::tryMerge(unsigned x, unsigned y) {
  Cluster &a = clusters[x], &b = clusters[y];
  auto refuse = [&](const std::string &why) {
    refused[{std::min(x, y), std::max(x, y)}] = why;
    return false;
  };
  std::string why;
  std::optional<Shape> shape = unify(a.shape, b.shape, why);
  if (!shape)
    return refuse(why);
  // One reads the other's values at other places: it would compute them anew.
  for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &a)})
    for (Operation *root : from->roots) {
      auto it = to->leaves.find(root->getResult(0));
      if (it != to->leaves.end() && !it->second)
        return refuse("one reads the other's elements at other places");
    }
  llvm::SetVector<Value> buffers;
  auto count = [&](const Cluster &c) {
    for (auto &[v, inPlace] : c.leaves)
      if (tensorOf(v).getRank())
        buffers.insert(v);
    for (Operation *root : c.roots)
      buffers.insert(root->getResult(0));
  };
  count(a);
  count(b);
  bool scalars = shape->kind == GroupKind::Scalars;
  if (buffers.size() > (scalars ? kMostScalarBuffers : kMostBuffers))
    return refuse("together they would read and write too many tensors");
  if (a.ops.size() + b.ops.size() > 6 * kMostOps)
    return refuse("together they would be too big");
  if (scalars && a.scalarWork + b.scalarWork > kMostScalarWork)
    return refuse("together they are too much for one thread");
  if (wouldCycle(x, y))
    return refuse("what lies between them needs one and feeds the other");
  a.shape = *shape;
  a.scalarWork += b.scalarWork;
  a.roots.append(b.roots);
  a.ops.insert(b.ops.begin(), b.ops.end());
  a.indices.insert(b.indices.begin(), b.indices.end());
  for (auto &[v, inPlace] : b.leaves) {
    auto [it, isNew] = a.leaves.insert({v, inPlace});
    if (!isNew)
      it->second &= inPlace;
  }
  for (Operation *root : a.roots)
    a.leaves.erase(root->getResult(0));
  b.alive = false;
  b.roots.clear();
  joinOrder(x, y);
  return true;
}

void Planner::joinOrder(unsigned x, unsigned y) {
  llvm::BitVector all = before[x];
  all |= before[y];
  all.reset(x);
  all.reset(y);
  before[x] = before[y] = all;
  for (size_t i = 0; i < before.size(); ++i)
    if (i != x && i != y && (before[i].test(x) || before[i].test(y))) {
      before[i] |= all;
      before[i].set(x);
      before[i].set(y);
    }
}

//===----------------------------------------------------------------------===//
// Values that several kernels compute
//===----------------------------------------------------------------------===//

bool Planner::keepShared() {
  llvm::MapVector<Value, SmallVector<unsigned>> computing;
  for (unsigned i = 0; i < clusters.size(); ++i)
    if (clusters[i].isGroup())
      for (Operation *op : clusters[i].ops)
        if (isInline(op->getResult(0)))
          computing[op->getResult(0)].push_back(i);
  SmallVector<std::pair<Value, SmallVector<unsigned>>> candidates(computing.begin(),
                                                                  computing.end());
  llvm::sort(candidates, [&](auto &x, auto &y) {
    return position.lookup(x.first.getDefiningOp()) > position.lookup(y.first.getDefiningOp());
  });
  bool any = false;
  llvm::DenseSet<Operation *> covered; // feed a value that has just been kept
  for (auto &[v, groups] : candidates) {
    Operation *op = v.getDefiningOp();
    if (covered.contains(op) || isa<ConstantOp>(op))
      continue;
    Closure closure = closureOf(op);
    double weight = 0;
    for (Operation *o : closure.ops)
      weight += weightOf(o) * elementsOf(o->getResult(0));
    bool keep = false;
    // Expensive, and computed again along dims that it doesn't have.
    NamedTensorType type = tensorOf(v);
    if (weight >= elementsOf(v) && type.getRank())
      for (unsigned g : groups) {
        Dims all = clusters[g].shape.all();
        double visited = 1;
        // A value without the innermost dim is computed once a row anyway. (Read
        // through a rename or a pad, its dims are none of the group's.)
        bool innermost = llvm::none_of(all, [&](const Dim &d) { return type.hasDim(d.first); });
        for (const Dim &d : all) {
          visited *= static_cast<double>(d.second);
          innermost |= type.getNames().back() == d.first;
        }
        keep |= innermost && visited >= 4 * elementsOf(v);
      }
    if (!keep && groups.size() >= 2) {
      double traffic = 0;
      for (unsigned g : groups) {
        for (auto &[leaf, inPlace] : clusters[g].leaves)
          traffic += bytesOf(leaf);
        for (Operation *root : clusters[g].roots)
          traffic += bytesOf(root->getResult(0));
      }
      double inlined = kBytesPerExpensive * weight * static_cast<double>(groups.size() - 1);
      for (unsigned g : groups) {
        llvm::DenseSet<Value> needed;
        for (Operation *root : clusters[g].roots) {
          Closure rest = closureOf(root, v);
          for (auto &[leaf, inPlace] : rest.leaves)
            needed.insert(leaf);
        }
        if (clusters[g].product) // in cache there
          needed.insert(clusters[g].product.getResult());
        for (auto &[leaf, inPlace] : closure.leaves)
          if (!needed.contains(leaf))
            inlined += bytesOf(leaf);
      }
      double saved = inlined - bytesOf(v) * static_cast<double>(groups.size() + 1);
      keep = saved > kWorthKeeping * traffic;
    }
    if (!keep)
      continue;
    any = true;
    kept.insert(v);
    extra.insert(v);
    covered.insert(closure.ops.begin(), closure.ops.end());
  }
  return any;
}

//===----------------------------------------------------------------------===//
// Order
//===----------------------------------------------------------------------===//

FusionPlan Planner::finish() {
  FusionPlan plan;
  size_t n = clusters.size();
  // Stable topological order: by the place of the last root.
  std::vector<unsigned> waiting(n, 0), place(n, 0);
  std::vector<SmallVector<unsigned>> next(n);
  for (unsigned i = 0; i < n; ++i) {
    Cluster &c = clusters[i];
    if (!c.alive)
      continue;
    if (c.stays)
      place[i] = position.lookup(c.stays);
    for (Operation *root : c.roots)
      place[i] = std::max(place[i], position.lookup(root));
    llvm::SetVector<unsigned> needs;
    auto need = [&](Value v) {
      if (inBlock(v) && clusterOf.lookup(v.getDefiningOp()) != i)
        needs.insert(clusterOf.lookup(v.getDefiningOp()));
    };
    for (auto &[v, inPlace] : c.leaves)
      need(v);
    for (Value v : c.indices)
      need(v);
    for (unsigned j : needs)
      next[j].push_back(i);
    waiting[i] = needs.size();
  }
  using Ready = std::pair<unsigned, unsigned>; // place, cluster
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (unsigned i = 0; i < n; ++i)
    if (clusters[i].alive && !waiting[i])
      ready.push({place[i], i});
  std::vector<int> groupOf(n, -1);
  // Read by whom: outputs are the roots that other clusters or the terminator read.
  llvm::DenseSet<Value> read;
  for (Cluster &c : clusters)
    if (c.alive)
      for (auto &[v, inPlace] : c.leaves)
        read.insert(v);
  block.getTerminator()->walk([&](Operation *inner) {
    for (Value v : inner->getOperands())
      read.insert(v);
  });
  while (!ready.empty()) {
    unsigned i = ready.top().second;
    ready.pop();
    Cluster &c = clusters[i];
    for (unsigned j : next[i])
      if (--waiting[j] == 0)
        ready.push({place[j], j});
    if (c.stays)
      plan.order.push_back({c.stays, 0});
    if (auto contract = dyn_cast_or_null<ContractOp>(c.stays); contract && !c.product)
      plan.bare.push_back({contract, whyBare(contract)});
    auto addSums = [&] {
      if (!c.sum || !read.contains(c.sum.getResult()))
        return;
      Group group;
      group.kind = GroupKind::Sums;
      group.roots = {c.sum};
      group.ops = {c.sum};
      if (Value operand = operandOf(c.sum); operand != c.sum.getOperand())
        group.ops.insert(group.ops.begin(), c.sum.getOperand().getDefiningOp());
      group.inputs = {operandOf(c.sum)};
      group.outputs = {c.sum.getResult()};
      for (const Dim &d : dimsOf(c.sum.getType()))
        group.outer.push_back(d.first);
      for (const Dim &d : dimsOf(tensorOf(c.sum.getOperand())))
        if (!c.sum.getType().hasDim(d.first))
          group.reduced.push_back(d.first);
      group.product = cast<ContractOp>(c.stays);
      plan.order.push_back({nullptr, static_cast<unsigned>(plan.groups.size())});
      plan.groups.push_back(std::move(group));
    };
    if (!c.isGroup()) {
      addSums();
      continue;
    }
    Group group;
    group.kind = c.shape.kind;
    for (const Dim &d : c.shape.outer)
      group.outer.push_back(d.first);
    for (const Dim &d : c.shape.reduced)
      group.reduced.push_back(d.first);
    auto byPlace = [&](Operation *x, Operation *y) {
      return position.lookup(x) < position.lookup(y);
    };
    group.roots = c.roots;
    llvm::sort(group.roots, byPlace);
    group.ops.append(c.ops.begin(), c.ops.end());
    llvm::sort(group.ops, byPlace);
    group.product = c.product;
    group.parts = c.parts;
    group.keepsProduct = c.product && read.contains(c.product.getResult());
    for (auto &[v, inPlace] : c.product ? c.operands : c.leaves)
      group.inputs.push_back(v);
    group.inputs.append(c.indices.begin(), c.indices.end());
    for (Operation *root : group.roots)
      if (read.contains(root->getResult(0)))
        group.outputs.push_back(root->getResult(0));
    if (!group.outputs.empty()) { // else nobody reads it
      groupOf[i] = static_cast<int>(plan.groups.size());
      plan.order.push_back({nullptr, static_cast<unsigned>(plan.groups.size())});
      plan.groups.push_back(std::move(group));
    }
    addSums();
  }
  for (auto &[pair, reason] : refused) {
    int x = groupOf[pair.first], y = groupOf[pair.second];
    if (x >= 0 && y >= 0 && x != y)
      plan.refusals.push_back(
          {static_cast<unsigned>(std::min(x, y)), static_cast<unsigned>(std::max(x, y)), reason});
  }
  for (Operation &op : block)
    if (auto why = refusedSum.find(&op); why != refusedSum.end())
      plan.loneSums.push_back({cast<ReduceOp>(op), why->second});
  if (options.fuse)
    bringTogether(plan);
  return plan;
}

FusionPlan cleave::planFusion(Block &block, const FusionOptions &options) {
  return Planner(block, options).run();
}
