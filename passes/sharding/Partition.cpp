//===- Partition.cpp - one rank's program ---------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Types become local: blocks of ceil(n/p), the same on all ranks. Ops that need to
// know where their shard begins get offsets.
//
//===----------------------------------------------------------------------===//
#include "passes/Passes.h"
#include "passes/sharding/Sharding.h"

#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEPARTITION
#include "passes/sharding/Passes.h.inc"
} // namespace cleave

namespace {

class Partitioner {
public:
  Partitioner(const ShardingContext &context, func::FuncOp function)
      : context(context), function(function), b(function.getContext()) {}

  LogicalResult run();

private:
  NamedTensorType local(NamedTensorType type) {
    Sharding s = context.of(type);
    SmallVector<int64_t> sizes;
    for (auto [size, atoms] : llvm::zip_equal(type.getSizes(), s.dims))
      sizes.push_back(context.block(size, atoms));
    return NamedTensorType::get(type.getContext(), type.getElementType(), type.getNames(), sizes,
                                {});
  }
  void block(Block &from);
  void visit(Operation *op);
  void shardable(ShardableOpInterface op);
  void repeat(RepeatOp op);
  Value offset(int64_t size, ArrayRef<int> atoms);

  const ShardingContext &context;
  func::FuncOp function;
  OpBuilder b;
  IRMapping map;
  Block *entry = nullptr;
  llvm::DenseMap<std::pair<Attribute, int64_t>, Value> offsets;
};

Value Partitioner::offset(int64_t size, ArrayRef<int> atoms) {
  int64_t block = context.block(size, atoms);
  if (atoms.empty())
    block = 0;
  Value &v = offsets[{context.axes(atoms), block}];
  if (!v) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(entry);
    v = ShardOffsetOp::create(b, function.getLoc(), b.getIndexType(), context.axes(atoms), block);
  }
  return v;
}

void Partitioner::shardable(ShardableOpInterface op) {
  ShardingRule rule = op.getShardingRule();
  SmallVector<Value> operands;
  for (Value v : op->getOperands())
    operands.push_back(map.lookup(v));
  if (isa<PinOp>(op.getOperation())) {
    map.map(op->getResult(0), operands[0]);
    return;
  }
  SmallVector<Type> types;
  for (Value r : op->getResults())
    types.push_back(local(tensorOf(r)));
  // Offsets, when any of the factors that need one is split.
  SmallVector<Value> starts;
  bool split = false;
  for (auto [f, factor] : llvm::enumerate(rule.factors)) {
    if (!factor.needsOffset)
      continue;
    SmallVector<int, 2> atoms;
    auto look = [&](ValueRange values, ArrayRef<std::vector<int>> dims) {
      for (auto [v, list] : llvm::zip(values, dims))
        for (auto [d, g] : llvm::enumerate(list))
          if (g == static_cast<int>(f))
            atoms = context.of(tensorOf(v)).dims[d];
    };
    look(op->getOperands().take_front(rule.operands.size()), rule.operands);
    look(op->getResults(), rule.results);
    split |= !atoms.empty();
    starts.push_back(offset(factor.size, atoms));
  }
  OperationState state(op->getLoc(), op->getName());
  state.addTypes(types);
  state.addAttributes(op->getAttrs());
  if (split)
    operands.append(starts);
  state.addOperands(operands);
  if (auto sizes = op->getAttrOfType<DenseI32ArrayAttr>("operandSegmentSizes"); sizes && split) {
    SmallVector<int32_t> segments(sizes.asArrayRef()); // offsets are the last operands
    segments.back() = static_cast<int32_t>(starts.size());
    state.attributes.set("operandSegmentSizes", b.getDenseI32ArrayAttr(segments));
  }
  Operation *made = b.create(state);
  map.map(op->getResults(), made->getResults());
}

void Partitioner::repeat(RepeatOp old) {
  SmallVector<Value> inits, stacked;
  SmallVector<Type> outputs;
  for (Value v : old.getInits())
    inits.push_back(map.lookup(v));
  for (Value v : old.getStacked())
    stacked.push_back(map.lookup(v));
  for (unsigned i = old.getNumCarried(); i < old.getNumResults(); ++i)
    outputs.push_back(local(tensorOf(old.getResult(i))));
  auto made = RepeatOp::create(b, old.getLoc(), old.getDim(), old.getCount(), old.getReverse(),
                               inits, stacked, outputs);
  made->setDiscardableAttrs(old->getDiscardableAttrDictionary());
  map.map(old.getBody().getArguments(), made.getBody().getArguments());
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToEnd(&made.getBody().front());
  block(old.getBody().front());
  SmallVector<Value> yielded;
  for (Value v : old.getYield().getOperands())
    yielded.push_back(map.lookup(v));
  YieldOp::create(b, old.getYield().getLoc(), yielded);
  map.map(old.getResults(), made.getResults());
}

void Partitioner::visit(Operation *op) {
  if (auto r = dyn_cast<RepeatOp>(op))
    return repeat(r);
  if (auto s = dyn_cast<ShardableOpInterface>(op))
    return shardable(s);
  // Collectives and shard slices: local types, and for slices their offset.
  OperationState state(op->getLoc(), op->getName());
  for (Value v : op->getOperands())
    state.operands.push_back(map.lookup(v));
  for (Value r : op->getResults()) {
    auto type = dyn_cast<NamedTensorType>(r.getType());
    state.types.push_back(type ? Type(local(type)) : r.getType());
  }
  state.addAttributes(op->getAttrs());
  if (auto slice = dyn_cast<ShardSliceOp>(op)) {
    // Within what this rank has of the dim: only the new axes count.
    NamedTensorType to = tensorOf(slice.getResult());
    int64_t d = to.indexOf(slice.getDim());
    Sharding from = context.of(tensorOf(slice.getOperand())), made = context.of(to);
    SmallVector<int, 2> added(made.dims[d].begin() + from.dims[d].size(), made.dims[d].end());
    int64_t block = context.block(to.getSizes()[d], made.dims[d]);
    Value &v = offsets[{context.axes(added), block}];
    if (!v) {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(entry);
      v = ShardOffsetOp::create(b, function.getLoc(), b.getIndexType(), context.axes(added), block);
    }
    state.operands.push_back(v);
  }
  Operation *made = b.create(state);
  map.map(op->getResults(), made->getResults());
}

void Partitioner::block(Block &from) {
  for (Operation &op : from.without_terminator())
    visit(&op);
}

LogicalResult Partitioner::run() {
  Block &old = function.getBody().front();
  SmallVector<Attribute> layouts;
  SmallVector<Type> argTypes, resultTypes;
  entry = new Block;
  for (BlockArgument arg : old.getArguments()) {
    layouts.push_back(TypeAttr::get(arg.getType()));
    argTypes.push_back(local(tensorOf(arg)));
    map.map(arg, entry->addArgument(argTypes.back(), arg.getLoc()));
  }
  function.getBody().push_back(entry);
  b.setInsertionPointToEnd(entry);
  block(old);
  auto ret = cast<func::ReturnOp>(old.getTerminator());
  SmallVector<Value> results;
  for (Value v : ret.getOperands()) {
    Value value = map.lookup(v);
    layouts.push_back(TypeAttr::get(v.getType()));
    results.push_back(value);
    resultTypes.push_back(value.getType());
  }
  func::ReturnOp::create(b, ret.getLoc(), results);
  old.dropAllDefinedValueUses();
  old.erase();
  function.setType(FunctionType::get(b.getContext(), argTypes, resultTypes));
  function->setAttr(kLayouts, b.getArrayAttr(layouts));
  return success();
}

struct PartitionPass : cleave::impl::CleavePartitionBase<PartitionPass> {
  void runOnOperation() override {
    if (failed(partition(getOperation())))
      signalPassFailure();
  }
};

} // namespace

LogicalResult cleave::partition(ModuleOp module) {
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return failure();
  for (auto function : llvm::make_early_inc_range(module.getOps<func::FuncOp>()))
    if (!function.isExternal() && !function->hasAttr(kLayouts))
      if (failed(Partitioner(*context, function).run()))
        return failure();
  return success();
}

LogicalResult cleave::shardModule(ModuleOp module) {
  return success(succeeded(assignShardings(module)) && succeeded(insertCollectives(module)) &&
                 succeeded(maskPadding(module)) && succeeded(verifyShardings(module)) &&
                 succeeded(verifyPadding(module)) && succeeded(partition(module)));
}
