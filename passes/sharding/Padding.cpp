//===- Padding.cpp - what stands past the end of uneven shards ------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Blocks are ceil(n/p), so the last ranks' blocks may end in padding. One flow
// through the sharded program says for each dim of each value what its padding
// holds. Where an op would read padding that is not neutral for it (a sum needs
// zeros, a maximum -inf), `cleave-mask-padding` puts a mask and
// `cleave-verify-padding` reports an error: the same flow, two actions.
//
// Params and states have zeros in their padding, and must keep them.
//
//===----------------------------------------------------------------------===//
#include "passes/Passes.h"
#include "passes/sharding/Sharding.h"

#include <limits>

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEMASKPADDING
#define GEN_PASS_DEF_CLEAVEVERIFYPADDING
#include "passes/sharding/Passes.h.inc"
} // namespace cleave

namespace {

/// What the padding of a dim holds. None: the dim has no padding.
enum class Pad : uint8_t { None, Zero, Lowest, Highest, Anything };

StringRef text(Pad pad) {
  switch (pad) {
  case Pad::None:
    return "none";
  case Pad::Zero:
    return "0";
  case Pad::Lowest:
    return "-inf";
  case Pad::Highest:
    return "inf";
  case Pad::Anything:
    return "anything";
  }
  return "";
}

Pad neutral(FactorKind kind) {
  return kind == FactorKind::Max ? Pad::Lowest : kind == FactorKind::Min ? Pad::Highest : Pad::Zero;
}

class Flow {
public:
  Flow(const ShardingContext &context, func::FuncOp function, bool insert)
      : context(context), function(function), insert(insert) {}

  LogicalResult run() {
    for (BlockArgument arg : function.getArguments()) {
      auto role = function.getArgAttrOfType<StringAttr>(arg.getArgNumber(), kRole);
      bool zero = role && (role.getValue() == "param" || role.getValue() == "state");
      set(arg, [&](unsigned) { return zero ? Pad::Zero : Pad::Anything; });
    }
    Block &entry = function.getBody().front();
    if (failed(block(entry)))
      return failure();
    auto ret = cast<func::ReturnOp>(entry.getTerminator());
    llvm::DenseSet<int64_t> donated;
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      if (auto to = function.getArgAttrOfType<IntegerAttr>(i, kDonatedTo))
        donated.insert(to.getInt());
    for (OpOperand &operand : ret->getOpOperands())
      if (donated.contains(operand.getOperandNumber())) {
        SmallVector<unsigned> dims;
        for (unsigned d = 0; d < tensorOf(operand.get()).getRank(); ++d)
          if (Pad pad = at(operand.get(), d); pad != Pad::None && pad != Pad::Zero)
            dims.push_back(d);
        if (failed(need(operand, dims, Pad::Zero)))
          return failure();
      }
    return success();
  }

private:
  bool uneven(Value v, unsigned dim) {
    NamedTensorType type = tensorOf(v);
    return type.getSizes()[dim] % context.sizeOf(context.of(type).dims[dim]) != 0;
  }
  Pad at(Value v, unsigned dim) { return pads.lookup(v)[dim]; }
  Pad at(Value v, StringRef name) {
    int64_t d = tensorOf(v).indexOf(name);
    return d < 0 ? Pad::None : at(v, d);
  }
  void set(Value v, function_ref<Pad(unsigned)> of) {
    auto type = dyn_cast<NamedTensorType>(v.getType());
    if (!type)
      return;
    SmallVector<Pad> list;
    for (unsigned d = 0; d < type.getRank(); ++d)
      list.push_back(uneven(v, d) ? of(d) : Pad::None);
    pads[v] = list;
  }

  LogicalResult block(Block &b) {
    for (Operation &op : b.without_terminator())
      if (failed(visit(&op)))
        return failure();
    return success();
  }

  /// The padding of these dims of the operand must be `wanted`.
  LogicalResult need(OpOperand &operand, ArrayRef<unsigned> dims, Pad wanted) {
    if (dims.empty())
      return success();
    Value v = operand.get();
    NamedTensorType type = tensorOf(v);
    Operation *op = operand.getOwner();
    if (!insert)
      return op->emitOpError() << "reads the padding of dim '"
                               << type.getNames()[dims[0]].getValue() << "' of operand "
                               << operand.getOperandNumber() << ", which holds "
                               << text(at(v, dims[0])) << " and must hold " << text(wanted);
    OpBuilder b(op);
    Sharding s = context.of(type);
    SmallVector<Value> extents;
    SmallVector<StringRef> names;
    for (unsigned d : dims) {
      extents.push_back(extent(type.getSizes()[d], s.dims[d]));
      names.push_back(type.getNames()[d].getValue());
    }
    double inf = std::numeric_limits<double>::infinity();
    double fill = wanted == Pad::Lowest ? -inf : wanted == Pad::Highest ? inf : 0;
    auto mask = MaskPaddingOp::create(b, op->getLoc(), type, v, extents, b.getStrArrayAttr(names),
                                      b.getF64FloatAttr(fill));
    if (Attribute phase = op->getAttr(kPhase))
      mask->setAttr(kPhase, phase);
    (void)visit(mask);
    operand.set(mask);
    return success();
  }

  Value extent(int64_t size, ArrayRef<int> atoms) {
    Value &v = extents[{context.axes(atoms), size}];
    if (!v) {
      OpBuilder b = OpBuilder::atBlockBegin(&function.getBody().front());
      v = ShardExtentOp::create(b, function.getLoc(), b.getIndexType(), context.axes(atoms),
                                context.block(size, atoms), size);
    }
    return v;
  }

  LogicalResult visit(Operation *op) {
    if (auto r = dyn_cast<RepeatOp>(op))
      return repeat(r);
    if (auto s = dyn_cast<ShardableOpInterface>(op))
      if (failed(reads(s)))
        return failure();
    for (Value r : op->getResults())
      if (auto type = dyn_cast<NamedTensorType>(r.getType()))
        set(r, [&](unsigned d) { return made(op, type.getNames()[d].getValue(), d); });
    return success();
  }

  /// What the op sums or maximises over must be neutral in the padding.
  LogicalResult reads(ShardableOpInterface op) {
    ShardingRule rule = op.getShardingRule();
    for (OpOperand &operand : op->getOpOperands()) {
      auto type = dyn_cast<NamedTensorType>(operand.get().getType());
      if (!type || !type.isFloat())
        continue;
      SmallVector<unsigned> dims;
      Pad wanted = Pad::Zero;
      for (auto [d, f] : llvm::enumerate(rule.operands[operand.getOperandNumber()])) {
        const Factor &factor = rule.factors[f];
        if (factor.kind == FactorKind::Parallel || factor.lookedUp)
          continue;
        Pad pad = at(operand.get(), d);
        if (pad == Pad::None || pad == neutral(factor.kind))
          continue;
        wanted = neutral(factor.kind);
        dims.push_back(static_cast<unsigned>(d));
      }
      if (failed(need(operand, dims, wanted)))
        return failure();
    }
    return success();
  }

  /// What the op leaves in the padding of the result's dim.
  Pad made(Operation *op, StringRef name, unsigned dim) {
    if (auto mask = dyn_cast<MaskPaddingOp>(op)) {
      if (!llvm::is_contained(mask.getDims().getAsValueRange<StringAttr>(), name))
        return at(mask.getOperand(), dim);
      double fill = mask.getFill().convertToDouble();
      return fill == 0 ? Pad::Zero : fill < 0 ? Pad::Lowest : Pad::Highest;
    }
    auto shardable = dyn_cast<ShardableOpInterface>(op);
    if (!shardable) {
      // A collective or a slice moves the value; where it cuts a dim finer, what is
      // new past the end is filled with zeros.
      Value from = op->getOperand(0);
      Pad before = at(from, name);
      bool cuts = isa<ReduceScatterOp, ShardSliceOp, AllToAllOp>(op);
      return before != Pad::None ? before : cuts ? Pad::Zero : Pad::Anything;
    }
    PaddingFlow padding = shardable.getShardingRule().padding;
    bool any = false;
    for (Value v : op->getOperands()) {
      auto type = dyn_cast<NamedTensorType>(v.getType());
      if (!type)
        continue;
      Pad pad = at(v, name);
      if (padding == PaddingFlow::Same)
        return pad == Pad::None ? Pad::Anything : pad;
      // A product is zero times the other side's padding, which need not be finite.
      bool ignored = padding == PaddingFlow::Product && !type.hasDim(name);
      if (padding == PaddingFlow::Anything || (pad != Pad::Zero && !ignored))
        return Pad::Anything;
      any |= !ignored;
    }
    return any ? Pad::Zero : Pad::Anything;
  }

  LogicalResult repeat(RepeatOp op) {
    for (BlockArgument arg : op.getCarried())
      set(arg, [](unsigned) { return Pad::Anything; });
    for (auto [slice, stack] : llvm::zip_equal(op.getSlices(), op.getStacked()))
      set(slice, [&, stack = stack](unsigned d) { return at(stack, d + 1); });
    if (failed(block(op.getBody().front())))
      return failure();
    for (auto [i, r] : llvm::enumerate(op.getResults())) {
      Value yielded = op.getYield().getOperand(i);
      bool stacks = i >= op.getNumCarried();
      set(r, [&](unsigned d) { return stacks ? at(yielded, d - 1) : Pad::Anything; });
    }
    return success();
  }

  const ShardingContext &context;
  func::FuncOp function;
  bool insert;
  llvm::DenseMap<Value, SmallVector<Pad>> pads;
  llvm::DenseMap<std::pair<Attribute, int64_t>, Value> extents;
};

LogicalResult flow(ModuleOp module, bool insert) {
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return failure();
  for (auto function : module.getOps<func::FuncOp>())
    if (!function.isExternal() && !function->hasAttr(kLayouts))
      if (failed(Flow(*context, function, insert).run()))
        return failure();
  return success();
}

struct MaskPaddingPass : cleave::impl::CleaveMaskPaddingBase<MaskPaddingPass> {
  void runOnOperation() override {
    if (failed(maskPadding(getOperation())))
      signalPassFailure();
  }
};
struct VerifyPaddingPass : cleave::impl::CleaveVerifyPaddingBase<VerifyPaddingPass> {
  void runOnOperation() override {
    if (failed(verifyPadding(getOperation())))
      signalPassFailure();
  }
};

} // namespace

LogicalResult cleave::maskPadding(ModuleOp module) { return flow(module, /*insert=*/true); }
LogicalResult cleave::verifyPadding(ModuleOp module) { return flow(module, /*insert=*/false); }
