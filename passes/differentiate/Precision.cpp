//===- Precision.cpp - cleave-lower-precision -----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Mixed precision (arXiv 1710.03740) on the forward program. Ops say themselves what they
// are; none is known by name:
//
//   products            read the short type (bf16 or f16) and add up in f32
//   what moves elements keeps its operand's type
//   all else            computes in f32: operands are cast on entry
//
// Which f32 results are then rounded, so that what lies in memory between ops is short: all
// that depend on a param, but
//   - params, sums over dims, and what is computed from these alone (a mean, a count), since
//     they are small and much hangs on each. A product's copy of them is short, their
//     gradients are not;
//   - what only one op reads that is linear in it (a product on its way to a bias, a
//     dropout, the residual connection): nothing keeps it for a gradient, and it is
//     not rounded twice;
//   - scalars, and what the function returns.
//
// A sum over ranks that a product leaves is pending in f32: a sum does not pass a cast that
// narrows. With `reduce` short, products are rounded in their parts first.
//
//===----------------------------------------------------------------------===//
#include "passes/Passes.h"
#include "passes/differentiate/Activity.h"
#include "passes/differentiate/Differentiate.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVELOWERPRECISION
#include "passes/differentiate/Passes.h.inc"
} // namespace cleave

namespace {

class Lowering {
public:
  Lowering(func::FuncOp function, Type compute, bool roundsParts)
      : function(function), compute(compute), roundsParts(roundsParts), b(function.getContext()) {}

  void run() {
    Block &body = function.getBody().front();
    for (BlockArgument arg : function.getArguments())
      if (auto role = function.getArgAttrOfType<StringAttr>(arg.getArgNumber(), kRole);
          role && role.getValue() == "param" && isFull(arg)) {
        active.mark(arg);
        wide.insert(arg);
      }
    active.visit(body);
    block(body);
  }

private:
  void block(Block &block);
  void repeat(RepeatOp op);
  void visit(Operation *op);
  void settle(Operation *op, OpResult result);

  /// An f32 tensor of the source program, whatever its type is by now.
  bool isFull(Value v) const {
    auto type = dyn_cast<NamedTensorType>(v.getType());
    return type && (type.getElementType().isF32() || shortOf.lookup(v) == v);
  }
  bool isTensor(Value v) const { return isFull(v) && tensorOf(v).getRank() > 0; }
  void shorten(Value v) {
    v.setType(tensorOf(v).withElementType(compute));
    shortOf[v] = v;
  }

  bool staysWide(Operation *op, const ShardingRule &rule);
  bool isRounded(Value v);
  bool isLinearIn(Operation *op);
  Value fullBefore(Value v, Operation *reader);
  Value shortBefore(Value v, Operation *reader);

  func::FuncOp function;
  Type compute;
  bool roundsParts;
  OpBuilder b;
  Activity active;
  llvm::DenseSet<Value> wide; ///< active, and f32 nevertheless
  /// By f32 value: its rounded self, which is what readers get; itself if it is short by now.
  llvm::DenseMap<Value, Value> shortOf;
  llvm::DenseMap<std::pair<Value, Block *>, Value> copies; ///< for products, in this block
};

/// The op's active operands among tensors of f32, by number.
std::vector<int> activeOperands(Operation *op, function_ref<bool(Value)> counts) {
  std::vector<int> numbers;
  for (OpOperand &operand : op->getOpOperands())
    if (counts(operand.get()))
      numbers.push_back(static_cast<int>(operand.getOperandNumber()));
  return numbers;
}

bool sums(const ShardingRule &rule) {
  return llvm::any_of(rule.factors, [](const Factor &f) {
    return f.kind == FactorKind::Sum || f.kind == FactorKind::Max || f.kind == FactorKind::Min;
  });
}

} // namespace

//===----------------------------------------------------------------------===//
// Decisions
//===----------------------------------------------------------------------===//

/// Sums over dims, and what is computed from wide values alone and has no further dims.
bool Lowering::staysWide(Operation *op, const ShardingRule &rule) {
  if (isa<ProductOpInterface>(op))
    return false;
  if (!op->hasTrait<MovesElements>() && sums(rule))
    return true;
  bool covered = false;
  for (int i : activeOperands(op, [&](Value v) { return isFull(v) && active(v); })) {
    if (!wide.contains(op->getOperand(i)))
      return false;
    covered |= llvm::all_of(rule.results[0],
                            [&](int f) { return llvm::is_contained(rule.operands[i], f); });
  }
  return covered;
}

/// Linear in all its active operands: their gradients need none of them.
bool Lowering::isLinearIn(Operation *op) {
  auto shardable = dyn_cast<ShardableOpInterface>(op);
  if (!shardable || isa<ProductOpInterface>(op))
    return false;
  std::vector<int> operands = activeOperands(op, [&](Value v) { return isFull(v) && active(v); });
  return llvm::any_of(shardable.getShardingRule().sumPasses, [&](const std::vector<int> &linear) {
    return llvm::all_of(operands, [&](int i) { return llvm::is_contained(linear, i); });
  });
}

bool Lowering::isRounded(Value v) {
  if (!isTensor(v) || !active(v) || wide.contains(v))
    return false;
  // Returned, or stacked by a repeat for it: as it is computed.
  SmallVector<Operation *> readers;
  for (OpOperand &use : v.getUses()) {
    Operation *reader = use.getOwner();
    auto repeat = dyn_cast<RepeatOp>(reader->getParentOp());
    bool stacked =
        isa<YieldOp>(reader) && repeat && use.getOperandNumber() >= repeat.getNumCarried();
    if (!stacked && !isa<func::ReturnOp>(reader))
      readers.push_back(reader);
  }
  if (readers.size() != 1)
    return !readers.empty();
  // Before it is moved rather than behind.
  if (readers[0]->hasTrait<MovesElements>() && readers[0]->getBlock() == v.getParentBlock())
    return isRounded(readers[0]->getResult(0));
  return readers[0]->getBlock() != v.getParentBlock() || !isLinearIn(readers[0]);
}

//===----------------------------------------------------------------------===//
// Rewriting
//===----------------------------------------------------------------------===//

Value Lowering::fullBefore(Value v, Operation *reader) {
  if (shortOf.lookup(v) != v)
    return v;
  b.setInsertionPoint(reader);
  return cleave::cast(b, v.getLoc(), v, b.getF32Type());
}

/// A value from outside of a repeat is rounded outside.
Value Lowering::shortBefore(Value v, Operation *reader) {
  if (Value known = shortOf.lookup(v))
    return known;
  Block *home = v.getParentBlock();
  while (reader->getBlock() != home)
    reader = reader->getParentOp();
  Value &copy = copies[{v, home}];
  if (!copy) {
    b.setInsertionPoint(reader);
    copy = cleave::cast(b, v.getLoc(), v, compute);
    if (auto made = copy.getDefiningOp<CastOp>(); made && made.getOperand() == v)
      made.setWideGradient(wide.contains(v));
  }
  return copy;
}

void Lowering::visit(Operation *op) {
  auto shardable = dyn_cast<ShardableOpInterface>(op);
  if (!shardable)
    return;
  ShardingRule rule = shardable.getShardingRule();
  auto product = dyn_cast<ProductOpInterface>(op);
  bool movesShort = op->hasTrait<MovesElements>() && llvm::all_of(op->getOperands(), [&](Value v) {
                      return !isFull(v) || shortOf.contains(v);
                    });
  bool movesAny = false, stays = op->getNumResults() && staysWide(op, rule);
  for (OpOperand &operand : op->getOpOperands()) {
    Value v = operand.get();
    if (!isFull(v))
      continue;
    bool isFactor = product && operand.getOperandNumber() < product.getNumFactors();
    if (isFactor || (movesShort && isTensor(v))) {
      operand.set(shortBefore(v, op));
      movesAny |= movesShort;
      continue;
    }
    Value known = shortOf.lookup(v);
    if (!known)
      continue;
    b.setInsertionPoint(op);
    operand.set(cleave::cast(b, v.getLoc(), known, b.getF32Type()));
  }
  for (OpResult result : op->getResults()) {
    if (!isFull(result))
      continue;
    if (stays && active(result))
      wide.insert(result);
    bool rounds = product && product.roundsResult() && result.getResultNumber() == 0;
    if (movesAny || rounds)
      shorten(result);
    else
      settle(op, result);
  }
}

/// A result that was computed in f32.
void Lowering::settle(Operation *op, OpResult result) {
  Value value = result;
  b.setInsertionPointAfter(op);
  auto rule = cast<ShardableOpInterface>(op).getShardingRule();
  if (roundsParts && sums(rule) && isTensor(value) && active(value) && !wide.contains(value)) {
    auto parts = cast<CastOp>(
        CastOp::create(b, op->getLoc(), tensorOf(value).withElementType(compute), value));
    parts.setPartial(true);
    Value whole = cleave::cast(b, op->getLoc(), parts, b.getF32Type());
    value.replaceUsesWithIf(whole, [&](OpOperand &use) { return use.getOwner() != parts; });
    value = whole;
    active.mark(value);
  }
  if (isRounded(value))
    shortOf[value] = cleave::cast(b, op->getLoc(), value, compute);
}

void Lowering::repeat(RepeatOp op) {
  unsigned carried = op.getNumCarried();
  for (unsigned i = 0; i < carried; ++i) {
    BlockArgument arg = op.getCarried()[i];
    if (!isTensor(arg) || !active(arg)) {
      op->setOperand(i, fullBefore(op.getInits()[i], op));
      continue;
    }
    op->setOperand(i, shortBefore(op.getInits()[i], op));
    shorten(arg);
    shorten(op.getResult(i));
  }
  for (auto [slice, stack] : llvm::zip_equal(op.getSlices(), op.getStacked()))
    if (wide.contains(stack))
      wide.insert(slice);
  for (unsigned i = carried; i < op->getNumOperands(); ++i)
    op->setOperand(i, fullBefore(op->getOperand(i), op));
  block(op.getBody().front());
  YieldOp yield = op.getYield();
  for (unsigned i = 0; i < yield->getNumOperands(); ++i) {
    Value v = yield->getOperand(i);
    bool isShort = i < carried && shortOf.contains(op.getCarried()[i]);
    yield->setOperand(i, isShort ? shortBefore(v, yield) : fullBefore(v, yield));
  }
}

void Lowering::block(Block &block) {
  SmallVector<Operation *> ops;
  for (Operation &op : block.without_terminator())
    ops.push_back(&op);
  for (Operation *op : ops)
    if (auto r = dyn_cast<RepeatOp>(op))
      repeat(r);
    else
      visit(op);
  if (auto ret = dyn_cast<func::ReturnOp>(block.getTerminator()))
    for (OpOperand &operand : ret->getOpOperands())
      operand.set(fullBefore(operand.get(), ret));
}

Type cleave::roundingOfSums(ModuleOp module) {
  auto reduce = module->getAttrOfType<TypeAttr>(kReduceAttr);
  return reduce && isShortFloat(reduce.getValue()) ? reduce.getValue() : Type();
}

bool cleave::scalesLoss(ModuleOp module) {
  auto compute = module->getAttrOfType<TypeAttr>(kPrecisionAttr);
  return compute && compute.getValue().isF16();
}

LogicalResult cleave::lowerPrecision(ModuleOp module) {
  auto compute = module->getAttrOfType<TypeAttr>(kPrecisionAttr);
  if (!compute)
    return success();
  if (!isShortFloat(compute.getValue()))
    return module.emitError() << "products read bf16 or f16, not " << compute.getValue();
  auto reduce = module->getAttrOfType<TypeAttr>(kReduceAttr);
  if (reduce && !reduce.getValue().isF32() && reduce != compute)
    return module.emitError() << "sums over ranks are of f32 or " << compute.getValue() << ", not "
                              << reduce.getValue();
  bool roundsParts = static_cast<bool>(roundingOfSums(module));
  for (auto function : module.getOps<func::FuncOp>())
    if (!function.isExternal())
      Lowering(function, compute.getValue(), roundsParts).run();
  return success();
}

namespace {
struct LowerPrecision : cleave::impl::CleaveLowerPrecisionBase<LowerPrecision> {
  void runOnOperation() override {
    if (failed(lowerPrecision(getOperation())))
      signalPassFailure();
  }
};
} // namespace
