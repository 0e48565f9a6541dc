//===- Differentiate.cpp - reverse mode over functions and repeats --------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A block's ops are visited from the last to the first, and each adds to its
// operands' gradients. A repeat becomes two:
//
//   forward   %x', %saved.. = repeat (carry %x) (slices %w) { .. yield x', saved.. }
//   backward  %dx, %dw      = repeat reverse (carry %dx') (slices %w, %saved..)
//                             { .. yield dx, dw }
//
// Which forward values are saved is decided first, by one of three policies
// (Recompute). Selective: elementwise values are computed again from the results
// of contractions, reductions and attention and the carried values (the anchors),
// so only anchors are stacked. An anchor that only feeds one elementwise op of its
// own size is replaced by that op's result (a product plus its bias: the sum is
// kept, the bias isn't added again). Full: the carried values alone are anchors, and
// the backward body begins with the layer's forward pass. None: all is an anchor.
//
//===----------------------------------------------------------------------===//
#include "passes/differentiate/Differentiate.h"
#include "passes/Passes.h"
#include "passes/differentiate/Activity.h"
#include "runtime/core/NearMatch.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEDIFFERENTIATE
#include "passes/differentiate/Passes.h.inc"
} // namespace cleave

namespace {

/// Gradients of one block's values while its backward pass is built.
class BlockGradients {
public:
  /// `rounding`: the type in which sums over ranks may be rounded, or null.
  BlockGradients(OpBuilder &b, Activity &active, Recompute recompute, Type rounding)
      : b(b), active(active), recompute(recompute), rounding(rounding) {}

  void add(Location loc, Value v, Value g) {
    NamedTensorType type = tensorOf(v), have = tensorOf(g);
    SmallVector<StringRef> extra;
    for (StringAttr name : have.getNames())
      if (!type.hasDim(name))
        extra.push_back(name);
    g = reduce(b, loc, Reduction::Sum, g, extra);
    Sum &sum = gradients[v];
    if (!sum.first)
      sum.first = g;
    else
      sum.rest = sum.rest ? wideSum(loc, sum.rest, g) : g;
  }

  /// The gradient with the value's dims, as wide as it was added up; null when nothing
  /// reached the value.
  Value getWide(Value v) {
    auto it = gradients.find(v);
    if (it == gradients.end())
      return {};
    auto &[first, rest] = it->second;
    if (rest) {
      first = wideSum(rest.getLoc(), first, rest);
      rest = {};
    }
    return broadcastTo(b, v.getLoc(), first, tensorOf(v));
  }
  /// The same in the value's own type.
  Value get(Value v) {
    Value g = getWide(v);
    return g ? narrowed(g, tensorOf(v).getElementType()) : g;
  }
  Value getOrZero(Value v) {
    Value g = get(v);
    return g ? g : constant(b, v.getLoc(), tensorOf(v), 0);
  }
  bool has(Value v) const { return gradients.contains(v); }
  /// The gradient of a param, or of a layer's slice of one (or of its copy in another type): as
  /// wide as it was added up, or rounded where sums over ranks may be.
  Value ofParam(Value param) {
    NamedTensorType type = gradientTypeOf(tensorOf(param));
    Value g = getWide(param);
    return g ? narrowed(g, type.getElementType()) : constant(b, param.getLoc(), type, 0);
  }
  NamedTensorType gradientTypeOf(NamedTensorType param) const {
    Type wide = accumulatorOf(param.getElementType());
    bool inParts = rounding && wide.isF32() && param.getRank() > 0;
    return param.withElementType(inParts ? rounding : wide);
  }

  LogicalResult backward(Block &block);

private:
  LogicalResult backward(Operation *op);
  LogicalResult backward(RepeatOp repeat);

  /// Of two types the wider one: gradients of short floats are added up in f32.
  Value wideSum(Location loc, Value x, Value y) {
    Type a = tensorOf(x).getElementType(), c = tensorOf(y).getElementType();
    Type wide = holds(a, c) ? a : c;
    return binary<AddOp>(b, loc, cleave::cast(b, loc, x, wide), cleave::cast(b, loc, y, wide));
  }
  Value narrowed(Value g, Type element) {
    Value made = cleave::cast(b, g.getLoc(), g, element);
    if (auto op = made.getDefiningOp<CastOp>(); op && made != g && op.getOperand() == g)
      op.setPartial(element == rounding);
    return made;
  }

  /// A gradient's contributions. The first, that of the last use, is added at the end: where the
  /// use is the residual connection around a block, those of the block meet before it, and if the
  /// block is split their sum is reduced once.
  struct Sum {
    Value first, rest;
  };

  OpBuilder &b;
  Activity &active;
  Recompute recompute;
  Type rounding;
  llvm::DenseMap<Value, Sum> gradients;
};

bool isScalarLike(Value v) {
  auto type = dyn_cast<NamedTensorType>(v.getType());
  return !type || type.getRank() == 0;
}

/// Decides which values of a repeat's body its backward body saves, and rewrites
/// the backward body's uses.
class SavedValues {
public:
  SavedValues(RepeatOp forward, Block &backward, Recompute policy)
      : forward(forward), backward(backward), policy(policy) {}

  /// Collects, decides, and returns the forward values to stack, in order.
  void decide() {
    backward.walk([&](Operation *op) {
      for (Value v : op->getOperands())
        if (inBody(v)) {
          needed.insert(v);
          if (!isElementwise(op))
            direct.insert(v);
        }
    });
    for (Value v : needed)
      visit(v);
    slide();
  }

  llvm::SetVector<Value> saved;  ///< to be stacked by the forward repeat
  llvm::SetVector<Value> slices; ///< slices of params (and the layer): had again
  llvm::SetVector<Operation *> recomputed;

private:
  bool inBody(Value v) {
    Region *region = v.getParentRegion();
    return region && forward.getBody().isAncestor(region) && region == &forward.getBody();
  }
  bool isAnchor(Operation *op) const {
    // A cast is cheaper than to read what it gives; its operand or its result is saved.
    if (op->getNumOperands() == 0 || policy == Recompute::Full || isa<CastOp>(op))
      return false;
    bool cheap = (isElementwise(op) || isa<RandomOp>(op)) && op->getNumRegions() == 0;
    return policy == Recompute::None || !cheap;
  }

  void visit(Value v) {
    if (!inBody(v) || !seen.insert(v).second)
      return;
    if (auto arg = dyn_cast<BlockArgument>(v)) {
      bool carried = arg.getArgNumber() >= 1 && arg.getArgNumber() <= forward.getNumCarried();
      if (carried)
        saved.insert(v);
      else
        slices.insert(v);
      return;
    }
    Operation *op = v.getDefiningOp();
    if (isAnchor(op)) {
      saved.insert(v);
      return;
    }
    llvm::SetVector<Value> operands(op->operand_begin(), op->operand_end());
    if (op->getNumRegions()) // a repeat within the layer
      getUsedValuesDefinedAbove(op->getRegions(), operands);
    for (Value operand : operands)
      visit(operand);
    recomputed.insert(op);
  }

  static int64_t bytesOf(Value v) {
    return tensorOf(v).getNumElements() * tensorOf(v).getElementBytes();
  }
  /// The one recomputed op that reads the value; null if there are others, or if the backward body
  /// itself reads it.
  Operation *onlyReader(Value v) const {
    Operation *reader = nullptr;
    for (Operation *op : v.getUsers())
      if (recomputed.contains(op)) {
        if (reader && reader != op)
          return nullptr;
        reader = op;
      }
    return needed.contains(v) ? nullptr : reader;
  }

  /// Moves saved anchors forward along elementwise ops, see the file's head.
  void slide() {
    for (bool changed = true; changed;) {
      changed = false;
      for (Value anchor : saved) {
        if (isa<BlockArgument>(anchor) || direct.contains(anchor) || isScalarLike(anchor))
          continue;
        // As far as it takes: what is widened for one op may be rounded again behind it.
        Operation *last = onlyReader(anchor);
        while (last && bytesOf(last->getResult(0)) > bytesOf(anchor))
          last = onlyReader(last->getResult(0));
        if (!last)
          continue;
        saved.remove(anchor);
        saved.insert(last->getResult(0));
        recomputed.remove(last);
        prune();
        changed = true;
        break;
      }
    }
  }

  /// Drops recomputed ops and saved values that nothing reads any more.
  void prune() {
    for (bool changed = true; changed;) {
      changed = false;
      for (Operation *op : llvm::reverse(recomputed.getArrayRef())) {
        bool used = needed.contains(op->getResult(0)) ||
                    llvm::any_of(op->getUsers(),
                                 [&](Operation *user) { return recomputed.contains(user); });
        if (!used) {
          recomputed.remove(op);
          changed = true;
          break;
        }
      }
    }
    auto unread = [&](Value v) {
      return !needed.contains(v) && llvm::none_of(v.getUsers(), [&](Operation *user) {
        return recomputed.contains(user);
      });
    };
    saved.remove_if(unread);
    slices.remove_if(unread);
  }

  RepeatOp forward;
  Block &backward;
  Recompute policy;
  llvm::SetVector<Value> needed, direct;
  llvm::DenseSet<Value> seen;
};

LogicalResult BlockGradients::backward(Block &block) {
  SmallVector<Operation *> ops;
  for (Operation &op : llvm::reverse(block.without_terminator()))
    ops.push_back(&op);
  for (Operation *op : ops)
    if (failed(backward(op)))
      return failure();
  return success();
}

LogicalResult BlockGradients::backward(Operation *op) {
  if (auto repeat = dyn_cast<RepeatOp>(op))
    return backward(repeat);
  if (llvm::none_of(op->getResults(), [&](Value r) { return active(r) && has(r); }))
    return success();
  SmallVector<Value> results;
  auto castOp = dyn_cast<CastOp>(op);
  for (Value r : op->getResults())
    results.push_back(castOp && castOp.getWideGradient() ? getWide(r) : get(r));
  Block *block = b.getInsertionBlock();
  Operation *next = b.getInsertionPoint() == block->end() ? nullptr : &*b.getInsertionPoint();
  Operation *last = next ? next->getPrevNode() : block->empty() ? nullptr : &block->back();
  if (failed(buildGradient(
          b, op, results, [&](Value v) { return active(v); },
          [&](Value v, Value g) { add(op->getLoc(), v, g); })))
    return failure();
  if (Attribute part = op->getAttr(kPart)) {
    Operation *made = last ? last->getNextNode() : block->empty() ? nullptr : &block->front();
    for (; made && made != next; made = made->getNextNode())
      if (made->getNumOperands())
        made->setAttr(kPart, part);
  }
  return success();
}

LogicalResult BlockGradients::backward(RepeatOp forward) {
  if (llvm::none_of(forward.getResults(), [&](Value r) { return active(r) && has(r); }))
    return success();
  Location loc = forward.getLoc();
  Block &body = forward.getBody().front();
  YieldOp yield = forward.getYield();
  unsigned carried = forward.getNumCarried();

  // What goes round: gradients of carried values, sums for values from outside.
  SmallVector<unsigned> activeCarried;
  SmallVector<Value> inits;
  for (unsigned i = 0; i < carried; ++i)
    if (active(forward.getCarried()[i])) {
      activeCarried.push_back(i);
      inits.push_back(getOrZero(forward.getResult(i)));
    }
  llvm::SetVector<Value> captured;
  getUsedValuesDefinedAbove(forward.getBody(), captured);
  SmallVector<Value> outer;
  for (Value v : captured)
    if (active(v)) {
      outer.push_back(v);
      NamedTensorType type = tensorOf(v);
      inits.push_back(
          constant(b, v.getLoc(), type.withElementType(accumulatorOf(type.getElementType())), 0));
    }
  // Gradients of stacked outputs come in slices.
  SmallVector<unsigned> outputs;
  SmallVector<Value> stacked;
  for (unsigned i = carried; i < forward.getNumResults(); ++i)
    if (active(forward.getResult(i)) && has(forward.getResult(i))) {
      outputs.push_back(i);
      stacked.push_back(get(forward.getResult(i)));
    }
  SmallVector<unsigned> activeSlices;
  SmallVector<Type> sliceGradientTypes;
  for (auto [i, slice] : llvm::enumerate(forward.getSlices()))
    if (active(slice)) {
      activeSlices.push_back(i);
      Type element = gradientTypeOf(tensorOf(slice)).getElementType();
      sliceGradientTypes.push_back(tensorOf(forward.getStacked()[i]).withElementType(element));
    }

  auto reverse = RepeatOp::create(b, loc, forward.getDim(), forward.getCount(),
                                  !forward.getReverse(), inits, stacked, sliceGradientTypes);
  Block &back = reverse.getBody().front();
  OpBuilder inner = OpBuilder::atBlockEnd(&back);
  BlockGradients gradients(inner, active, recompute, rounding);
  // One yielded value may be carried twice, or be an output too: these add up.
  for (auto [i, position] : llvm::enumerate(activeCarried))
    gradients.add(loc, yield.getOperand(position), back.getArgument(1 + i));
  for (auto [i, position] : llvm::enumerate(outputs))
    gradients.add(loc, yield.getOperand(position), back.getArgument(1 + inits.size() + i));
  if (failed(gradients.backward(body)))
    return failure();

  SmallVector<Value> yielded;
  for (unsigned position : activeCarried)
    yielded.push_back(gradients.getOrZero(forward.getCarried()[position]));
  for (auto [i, v] : llvm::enumerate(outer)) {
    Value sum = back.getArgument(1 + activeCarried.size() + i);
    if (Value g = gradients.getWide(v))
      sum = gradients.wideSum(loc, sum, g);
    yielded.push_back(sum);
  }
  for (unsigned i : activeSlices)
    yielded.push_back(gradients.ofParam(forward.getSlices()[i]));
  YieldOp::create(inner, loc, yielded);

  // A carried value that the body passes on unchanged is an argument of both.
  auto own = forward->getAttrOfType<StringAttr>(kRecompute);
  std::optional<Recompute> policy = own ? recomputeNamed(own.getValue()) : std::nullopt;
  SavedValues saves(forward, back, policy.value_or(recompute));
  saves.decide();

  // The forward repeat once more, with what is saved as further outputs.
  SmallVector<Type> outputTypes;
  for (unsigned i = carried; i < forward.getNumResults(); ++i)
    outputTypes.push_back(forward.getResult(i).getType());
  for (Value v : saves.saved)
    outputTypes.push_back(tensorOf(v).withLeadingDim(forward.getDim(), forward.getCount()));
  OpBuilder before(forward);
  auto full =
      RepeatOp::create(before, loc, forward.getDim(), forward.getCount(), forward.getReverse(),
                       forward.getInits(), forward.getStacked(), outputTypes);
  // Recomputed ops are cloned before the forward body moves away.
  IRMapping map;
  OpBuilder start = OpBuilder::atBlockBegin(&back);
  map.map(forward.getLayer(), reverse.getLayer());
  auto addSlice = [&](Value stack, Type type) -> Value {
    reverse.getStackedMutable().append(stack);
    return back.addArgument(type, stack.getLoc());
  };
  for (Value v : saves.slices)
    if (v != forward.getLayer()) {
      unsigned i = cast<BlockArgument>(v).getArgNumber() - 1 - carried;
      map.map(v, addSlice(forward.getStacked()[i], v.getType()));
    }
  for (auto [i, v] : llvm::enumerate(saves.saved))
    map.map(v, addSlice(full.getResult(forward.getNumResults() + i), v.getType()));
  for (Operation &op : body)
    if (saves.recomputed.contains(&op)) {
      Operation *clone = start.clone(op, map);
      clone->walk([&](Operation *made) { made->setAttr(kPhase, b.getStringAttr("backward")); });
    }
  back.walk([&](Operation *op) {
    for (OpOperand &operand : op->getOpOperands())
      if (Value mapped = map.lookupOrNull(operand.get()))
        operand.set(mapped);
  });

  // The body moves into the new forward repeat.
  SmallVector<Value> allYielded(yield.getOperands());
  llvm::append_range(allYielded, saves.saved);
  Block &fullBody = full.getBody().front();
  for (auto [from, to] : llvm::zip_equal(body.getArguments(), fullBody.getArguments())) {
    for (Value &v : allYielded)
      if (v == from)
        v = to;
    from.replaceAllUsesWith(to);
    active.replace(from, to);
  }
  yield->erase();
  fullBody.getOperations().splice(fullBody.end(), body.getOperations());
  OpBuilder end = OpBuilder::atBlockEnd(&fullBody);
  YieldOp::create(end, loc, allYielded);
  full->setDiscardableAttrs(forward->getDiscardableAttrDictionary());
  full->removeAttr(kRecompute);
  for (auto [from, to] : llvm::zip(forward.getResults(), full.getResults())) {
    from.replaceAllUsesWith(to);
    this->gradients.erase(from);
    active.replace(from, to);
  }

  for (auto [i, position] : llvm::enumerate(activeCarried))
    add(loc, forward.getInits()[position], reverse.getResult(i));
  for (auto [i, v] : llvm::enumerate(outer))
    add(loc, v, reverse.getResult(activeCarried.size() + i));
  for (auto [i, position] : llvm::enumerate(activeSlices))
    if (active(forward.getStacked()[position]))
      add(loc, forward.getStacked()[position], reverse.getResult(inits.size() + i));
  forward.erase();
  return success();
}

} // namespace

std::optional<Recompute> cleave::recomputeNamed(StringRef name) {
  for (auto [i, known] : llvm::enumerate(recomputeNames))
    if (name == known)
      return static_cast<Recompute>(i);
  return std::nullopt;
}

FailureOr<func::FuncOp> cleave::differentiate(func::FuncOp function, Recompute recompute) {
  if (function.isExternal() || function.getNumResults() == 0)
    return function.emitError() << "'" << function.getSymName()
                                << "' has no result to differentiate";
  auto lossType = dyn_cast<NamedTensorType>(function.getResultTypes()[0]);
  if (!lossType || lossType.getRank() || !lossType.isFloat())
    return function.emitError() << "the gradient of '" << function.getSymName()
                                << "' needs a float scalar as its first result, but it is "
                                << function.getResultTypes()[0];
  std::string name = (function.getSymName() + "_grads").str();
  auto module = function->getParentOfType<ModuleOp>();
  if (Operation *old = module.lookupSymbol(name))
    old->erase();
  func::FuncOp result = function.clone();
  result.setSymName(name);
  OpBuilder(function).setInsertionPointAfter(function);
  module.insert(std::next(function->getIterator()), result);

  Block &body = result.getBody().front();
  Activity active;
  SmallVector<unsigned> params;
  for (unsigned i = 0; i < result.getNumArguments(); ++i)
    if (auto role = result.getArgAttrOfType<StringAttr>(i, kRole);
        role && role.getValue() == "param" && !result.getArgAttr(i, kFrozen))
      if (tensorOf(result.getArgument(i)).isFloat()) {
        params.push_back(i);
        active.mark(result.getArgument(i));
      }
  active.visit(body);
  // The gradient of a bias is as large as the scores: the expansion gives it.
  SmallVector<AttentionOp> biased;
  result.walk([&](AttentionOp op) {
    if (op.getBias() && active(op.getBias()))
      biased.push_back(op);
  });
  for (AttentionOp op : biased)
    if (failed(expandComposite(op)))
      return failure();
  if (!biased.empty())
    active.visit(body);

  auto ret = cast<func::ReturnOp>(body.getTerminator());
  OpBuilder b(ret);
  // A mark on the op itself: an address may be a new op's by the time that it is asked for.
  StringAttr ofForward = b.getStringAttr("forward"), ofBackward = b.getStringAttr("backward");
  body.walk([&](Operation *op) { op->setAttr(kPhase, ofForward); });
  Type rounding = roundingOfSums(module);
  BlockGradients gradients(b, active, recompute, rounding);
  Value loss = ret.getOperand(0);
  Value seed;
  if (scalesLoss(module)) {
    auto type = NamedTensorType::get(b.getContext(), b.getF32Type(), {}, {}, {});
    if (failed(result.insertArgument(
            result.getNumArguments(), type,
            b.getDictionaryAttr({b.getNamedAttr(kName, b.getStringAttr(kLossScale)),
                                 b.getNamedAttr(kRole, b.getStringAttr("scalar"))}),
            ret.getLoc())))
      return failure();
    seed = cleave::cast(b, ret.getLoc(), body.getArguments().back(), lossType.getElementType());
  } else {
    seed = constant(b, ret.getLoc(), lossType, 1);
  }
  gradients.add(ret.getLoc(), loss, seed);
  if (failed(gradients.backward(body))) {
    result.erase();
    return failure();
  }
  SmallVector<Value> values(ret.getOperands());
  SmallVector<Type> types(result.getResultTypes());
  SmallVector<DictionaryAttr> attrs;
  for (unsigned i = 0; i < result.getNumResults(); ++i)
    attrs.push_back(result.getResultAttrDict(i) ? result.getResultAttrDict(i)
                                                : DictionaryAttr::get(b.getContext()));
  for (unsigned i : params) {
    Value own = gradients.ofParam(result.getArgument(i));
    values.push_back(
        cleave::cast(b, own.getLoc(), own, tensorOf(result.getArgument(i)).getElementType()));
    types.push_back(values.back().getType());
    StringAttr path = result.getArgAttrOfType<StringAttr>(i, kName);
    attrs.push_back(b.getDictionaryAttr({b.getNamedAttr(
        kName, b.getStringAttr("grad:" + (path ? path.getValue().str() : std::to_string(i))))}));
  }
  func::ReturnOp::create(b, ret.getLoc(), values);
  ret.erase();
  result.setType(FunctionType::get(b.getContext(), result.getArgumentTypes(), types));
  result.setAllResultAttrs(attrs);

  // The saving forward repeats are new ops, yet of the forward pass: their bodies are.
  result.walk([&](RepeatOp repeat) {
    if (llvm::any_of(repeat.getBody().front().without_terminator(),
                     [&](Operation &op) { return op.getAttr(kPhase) == ofForward; }))
      repeat->setAttr(kPhase, ofForward);
  });
  body.walk([&](Operation *op) {
    if (op->getAttr(kPhase) == ofForward || isa<func::ReturnOp, YieldOp>(op))
      op->removeAttr(kPhase);
    else
      op->setAttr(kPhase, ofBackward);
  });
  return result;
}

LogicalResult cleave::fixLossScale(func::FuncOp gradients, double scale) {
  unsigned last = gradients.getNumArguments();
  auto name = last ? gradients.getArgAttrOfType<StringAttr>(last - 1, kName) : StringAttr();
  if (!name || name.getValue() != kLossScale)
    return success();
  Block &body = gradients.getBody().front();
  OpBuilder b = OpBuilder::atBlockBegin(&body);
  BlockArgument argument = body.getArguments().back();
  argument.replaceAllUsesWith(constant(b, argument.getLoc(), tensorOf(argument), scale));
  Operation *ret = body.getTerminator();
  b.setInsertionPoint(ret);
  for (OpOperand &operand : ret->getOpOperands()) {
    auto result = gradients.getResultAttrOfType<StringAttr>(operand.getOperandNumber(), kName);
    if (!result || !result.getValue().starts_with("grad:"))
      continue;
    Value g = operand.get();
    NamedTensorType number =
        NamedTensorType::get(b.getContext(), tensorOf(g).getElementType(), {}, {}, {});
    operand.set(binary<MulOp>(b, g.getLoc(), g, constant(b, g.getLoc(), number, 1 / scale)));
    for (Operation *made : {operand.get().getDefiningOp(),
                            operand.get().getDefiningOp()->getOperand(1).getDefiningOp()})
      made->setAttr(kPhase, b.getStringAttr("backward"));
  }
  return gradients.eraseArgument(last - 1);
}

namespace {
struct Differentiate : cleave::impl::CleaveDifferentiateBase<Differentiate> {
  using CleaveDifferentiateBase::CleaveDifferentiateBase;
  void runOnOperation() override {
    auto target = getOperation().lookupSymbol<func::FuncOp>(function);
    if (!target) {
      getOperation().emitError() << "there is no function '" << function << "'";
      return signalPassFailure();
    }
    std::optional<Recompute> policy = recomputeNamed(recompute);
    if (!policy) {
      target.emitError() << "there is no recompute policy '" << recompute << "'"
                         << didYouMean(std::string(recompute), recomputeNames)
                         << "; there are none, selective and full";
      return signalPassFailure();
    }
    if (failed(differentiate(target, *policy)))
      signalPassFailure();
  }
};
} // namespace
