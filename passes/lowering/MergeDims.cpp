//===- MergeDims.cpp - dims that always stand together become one ---------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/lowering/Generator.h"

#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;

namespace {

/// Every tensor type in the region, and the dims that an op treats on their own.
struct Dims {
  llvm::SetVector<Type> types;
  llvm::DenseSet<StringAttr> alone;
  SmallVector<SmallVector<StringAttr>> together; ///< sets that an op names: all or none

  void add(Value v) {
    if (isa<NamedTensorType>(v.getType()))
      types.insert(v.getType());
  }
  void addAlone(MLIRContext *context, StringRef name) {
    alone.insert(StringAttr::get(context, name));
  }
};

} // namespace

static Dims collect(Region &region) {
  Dims dims;
  MLIRContext *context = region.front().back().getContext();
  for (BlockArgument arg : region.getArguments())
    dims.add(arg);
  for (Operation &op : region.front()) {
    for (Value v : op.getResults())
      dims.add(v);
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      auto &set = dims.together.emplace_back();
      for (StringRef name : reduce.getDims().getAsValueRange<StringAttr>())
        set.push_back(StringAttr::get(context, name));
    } else if (isa<SliceOp, PadOp>(op)) {
      NamedTensorType from = tensorOf(op.getOperand(0)), to = tensorOf(op.getResult(0));
      int64_t i =
          from.indexOf(isa<SliceOp>(op) ? cast<SliceOp>(op).getDim() : cast<PadOp>(op).getDim());
      dims.alone.insert(from.getNames()[i]);
      dims.alone.insert(to.getNames()[i]);
    } else if (isa<RenameOp>(op)) {
      for (auto [x, y] : llvm::zip_equal(tensorOf(op.getOperand(0)).getNames(),
                                         tensorOf(op.getResult(0)).getNames()))
        if (x != y) {
          dims.alone.insert(x);
          dims.alone.insert(y);
        }
    } else if (auto gather = dyn_cast<GatherOp>(op)) {
      dims.addAlone(context, gather.getDim());
    } else if (auto scatter = dyn_cast<ScatterAddOp>(op)) {
      dims.addAlone(context, scatter.getDim());
    } else if (auto iota = dyn_cast<IotaOp>(op)) {
      dims.addAlone(context, iota.getDim());
    } else if (auto mask = dyn_cast<MaskPaddingOp>(op)) {
      for (StringRef name : mask.getDims().getAsValueRange<StringAttr>())
        dims.addAlone(context, name);
    } else if (auto random = dyn_cast<RandomOp>(op)) {
      // Local and global strides agree only where nothing is split.
      bool whole =
          random.getOffsets().empty() && random.getGlobalSizes() == random.getType().getSizes();
      if (!whole)
        for (StringAttr name : random.getType().getNames())
          dims.alone.insert(name);
    }
  }
  return dims;
}

static bool mergeable(const Dims &dims, const DimParts *parts, StringAttr x, StringAttr y) {
  if (dims.alone.contains(x) || dims.alone.contains(y))
    return false;
  if (parts) {
    auto i = parts->find(x), j = parts->find(y);
    if (i == parts->end() || j == parts->end() || i->second != j->second)
      return false;
  }
  for (Type t : dims.types) {
    ArrayRef<StringAttr> names = cast<NamedTensorType>(t).getNames();
    auto *i = llvm::find(names, x), *j = llvm::find(names, y);
    if ((i == names.end()) != (j == names.end()))
      return false;
    if (i != names.end() && i + 1 != j)
      return false;
  }
  for (const auto &set : dims.together)
    if (llvm::is_contained(set, x) != llvm::is_contained(set, y))
      return false;
  return true;
}

/// One pair of dims becomes the dim "x*y" everywhere.
static void mergePair(Region &region, DimParts *parts, StringAttr x, StringAttr y) {
  MLIRContext *context = region.front().back().getContext();
  StringAttr merged = StringAttr::get(context, x.getValue() + "*" + y.getValue());
  if (parts)
    (*parts)[merged] = parts->lookup(x);
  auto change = [&](Value v) {
    auto type = dyn_cast<NamedTensorType>(v.getType());
    if (!type || !type.hasDim(x))
      return;
    SmallVector<StringAttr> names;
    SmallVector<int64_t> sizes;
    for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes())) {
      if (name == y) {
        names.back() = merged;
        sizes.back() *= size;
        continue;
      }
      names.push_back(name);
      sizes.push_back(size);
    }
    v.setType(NamedTensorType::get(context, type.getElementType(), names, sizes, {}));
  };
  for (BlockArgument arg : region.getArguments())
    change(arg);
  for (Operation &op : region.front()) {
    for (Value v : op.getResults())
      change(v);
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      SmallVector<Attribute> names;
      for (StringAttr name : reduce.getDims().getAsRange<StringAttr>())
        if (name.getValue() == x.getValue())
          names.push_back(merged);
        else if (name.getValue() != y.getValue())
          names.push_back(name);
      reduce.setDimsAttr(ArrayAttr::get(context, names));
    } else if (auto random = dyn_cast<RandomOp>(op)) {
      random.setGlobalSizes(random.getType().getSizes());
    }
  }
}

void cleave::mergeDims(Region &region, DimParts *parts) {
  for (bool changed = true; changed;) {
    changed = false;
    Dims dims = collect(region);
    for (Type t : dims.types) {
      ArrayRef<StringAttr> names = cast<NamedTensorType>(t).getNames();
      for (size_t i = 0; i + 1 < names.size() && !changed; ++i)
        if (mergeable(dims, parts, names[i], names[i + 1])) {
          mergePair(region, parts, names[i], names[i + 1]);
          changed = true;
        }
      if (changed)
        break;
    }
  }
}
