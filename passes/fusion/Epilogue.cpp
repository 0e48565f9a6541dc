//===- Epilogue.cpp - what is done on the tiles of products ---------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/fusion/Planner.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::planner;

static std::string listOf(ArrayRef<Dim> dims) {
  std::string text = "[";
  for (auto [i, d] : llvm::enumerate(dims))
    text += (i ? ", " : "") + d.first.str();
  return text + "]";
}

/// Why the root's loops are not those of a product of the type; else empty.
static std::string whyOtherLoops(Operation *root, const Shape &shape, NamedTensorType type) {
  switch (shape.kind) {
  case GroupKind::Rows:
    return "a reduction over " + listOf(shape.reduced) + " needs whole rows";
  case GroupKind::Columns:
    return "a sum over " + listOf(shape.reduced) + " takes rows of all tiles";
  case GroupKind::Scatter:
    return "scatter_add puts its elements elsewhere";
  default:
    if (isa<ReduceOp>(root))
      return "a reduction over " + listOf(shape.reduced) + " takes all tiles";
  }
  NamedTensorType to = tensorOf(root->getResult(0));
  if (to.getNames() == type.getNames() && to.getSizes() == type.getSizes())
    return "";
  Dims have = dimsOf(type);
  bool same = to.getRank() == type.getRank() &&
              llvm::all_of(dimsOf(to), [&](const Dim &d) { return llvm::is_contained(have, d); });
  return same ? "what follows stores its elements in another order"
              : "what follows has other dims than the product";
}

void Planner::fuseEpilogues() {
  for (unsigned i = 0; i < clusters.size(); ++i) {
    if (clusters[i].stays)
      continue;
    // The last product that it reads: the others are operands then.
    llvm::SetVector<unsigned> set;
    for (auto &[v, inPlace] : clusters[i].leaves)
      if (inBlock(v))
        if (unsigned x = find(clusterOf.lookup(v.getDefiningOp()));
            isa_and_nonnull<ContractOp>(clusters[x].stays))
          set.insert(x);
    SmallVector<unsigned> products = set.takeVector();
    llvm::sort(products, [&](unsigned x, unsigned y) {
      return position.lookup(clusters[x].stays) > position.lookup(clusters[y].stays);
    });
    for (unsigned x : products) {
      std::string why = parent[i] == i ? joinEpilogue(x, i) : "another product's epilogue reads it";
      if (why.empty())
        parent[i] = x;
      else
        refusedEpilogue.try_emplace(clusters[x].stays, why);
    }
  }
  // What shares an exp or its like with an epilogue (an activation that is computed
  // again, beside its derivative) is made there, too.
  llvm::DenseMap<Operation *, unsigned> expensive;
  for (unsigned x = 0; x < clusters.size(); ++x)
    if (clusters[x].product)
      for (Operation *op : clusters[x].ops)
        if (weightOf(op) > 0 && isInline(op->getResult(0)))
          expensive.try_emplace(op, x);
  for (unsigned i = 0; i < clusters.size(); ++i) {
    if (clusters[i].stays || parent[i] != i)
      continue;
    auto shared =
        llvm::find_if(clusters[i].ops, [&](Operation *op) { return expensive.contains(op); });
    if (shared == clusters[i].ops.end())
      continue;
    unsigned x = expensive.lookup(*shared);
    if (joinEpilogue(x, i).empty())
      parent[i] = x;
  }
}

std::string Planner::joinEpilogue(unsigned x, unsigned i) {
  Cluster &a = clusters[x], &b = clusters[i];
  auto contract = cast<ContractOp>(a.stays);
  NamedTensorType type = contract.getType();
  Operation *root = b.roots[0];
  if (std::string why = whyOtherLoops(root, b.shape, type); !why.empty())
    return why;
  if (auto phase = root->getAttrOfType<StringAttr>(kPhase); phase && phase == "optimizer")
    return "the optimizer's update is one kernel for all it reads";
  Dims dims = dimsOf(type);
  for (Operation *op : b.ops) {
    bool fits = isElementwise(op) || isa<RandomOp>(op);
    if (!fits || isa<RenameOp, SliceOp, PadOp, ShardSliceOp>(op))
      return "a " + op->getName().stripDialect().str() +
             " between takes elements from other places";
    for (const Dim &d : dimsOf(tensorOf(op->getResult(0))))
      if (!llvm::is_contained(dims, d))
        return "'" + d.first.str() + "' is none of the product's dims";
  }
  auto [parts, isNew] = partsOfProduct.try_emplace(contract);
  if (isNew)
    parts->second =
        partsOf(planGemm(tensorOf(contract.getLhs()), tensorOf(contract.getRhs()), type), type);
  if (!parts->second)
    return "the product is several matrix products";
  if (!llvm::is_contained(*parts->second, static_cast<int64_t>(GemmPart::Column)))
    return "the product is a single column";
  llvm::SetVector<Value> buffers;
  for (const auto *leaves : {&a.operands, &b.leaves})
    for (auto &[v, inPlace] : *leaves)
      if (tensorOf(v).getRank())
        buffers.insert(v);
  if (buffers.size() + a.roots.size() + 1 > kMostBuffers)
    return "together they would read and write too many tensors";
  if (wouldCycle(x, i))
    return "what else it reads needs the whole product first";

  if (!a.product)
    a.operands.insert({contract.getResult(), true});
  a.product = contract;
  a.parts = *parts->second;
  a.shape.kind = GroupKind::Epilogue;
  a.shape.outer = dims;
  a.roots.append(b.roots);
  a.ops.insert(b.ops.begin(), b.ops.end());
  a.indices.insert(b.indices.begin(), b.indices.end());
  for (auto &[v, inPlace] : b.leaves) {
    a.operands.insert({v, inPlace});
    if (v != contract.getResult())
      a.leaves.insert({v, inPlace});
  }
  for (Operation *made : a.roots) {
    a.operands.erase(made->getResult(0));
    a.leaves.erase(made->getResult(0));
  }
  b.alive = false;
  b.roots.clear();
  joinOrder(x, i);
  return "";
}

std::string Planner::whyBare(ContractOp op) const {
  if (auto known = refusedEpilogue.find(op); known != refusedEpilogue.end())
    return known->second;
  if (!options.fuse)
    return "fusion is off";
  std::string why = "nobody reads it";
  SmallVector<Operation *> users(op->getUsers());
  for (size_t i = 0; i < users.size(); ++i) {
    Operation *user = users[i];
    if (isView(user)) {
      users.append(user->user_begin(), user->user_end());
      continue;
    }
    std::string name = user->getName().stripDialect().str();
    if (isa<AllReduceOp, ReduceScatterOp>(user))
      return "its result is reduced by " + name + " first";
    if (isa<AllGatherOp, AllToAllOp>(user))
      return "its result goes through " + name + " first";
    if (isa<ContractOp>(user))
      why = "another product reads it as it is";
    else if (user->hasTrait<OpTrait::IsTerminator>())
      why = "it is a result as it is";
    else
      why = name + " reads it as it is";
  }
  return why;
}
