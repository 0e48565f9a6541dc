//===- Accumulate.cpp - micro-batches one after the other -----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A micro-batch is to time what a rank is to space. So the batch is first split by one
// more mesh axis, `accumulate`, and the sharding passes do as always: they find the
// sums over the split batch and put all-reduces behind them, give random numbers the
// offsets of their rows, mask padding. Then the axis becomes a loop:
//
//   %g = all_reduce sum %p over [dp, accumulate]
//   ->
//   %s = repeat (carry %a = 0) { ... %p ...  yield %a + %p }
//   %g = all_reduce sum %s over [dp]
//
// Sums are taken as the program has them, so a mean over valid tokens is that of the
// whole batch: the numerator and the denominator are added up each on its own. A sum
// that is needed within the loop, as the number of valid labels is by the backward
// pass, gets a loop ahead.
//
// A layer's gradients are reduced within the repeat over layers. These reductions go
// out of it first: what is stacked or added up there stays a partial sum.
//
//===----------------------------------------------------------------------===//
#include "passes/structure/Accumulate.h"
#include "passes/Passes.h"
#include "passes/sharding/Sharding.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVESPLITMICROBATCHES
#define GEN_PASS_DEF_CLEAVEREPEATMICROBATCHES
#include "passes/structure/Passes.h.inc"
} // namespace cleave

//===----------------------------------------------------------------------===//
// The axis
//===----------------------------------------------------------------------===//

/// The plan's, where the module has one.
static Location placeOf(ModuleOp module) {
  auto places = dyn_cast<FusedLoc>(module.getLoc());
  return places ? places.getLocations().back() : module.getLoc();
}

static bool isInput(func::FuncOp function, unsigned argument) {
  auto role = function.getArgAttrOfType<StringAttr>(argument, kRole);
  return !role || role.getValue() == "input";
}

LogicalResult cleave::splitMicroBatches(ModuleOp module, int64_t count, StringRef dim) {
  if (count == 1)
    return success();
  Builder b(module.getContext());
  if (count < 1)
    return module.emitError() << "there are no " << count << " micro-batches";
  auto mesh = module->getAttrOfType<MeshAttr>(kMeshAttr);
  SmallVector<StringAttr> names;
  SmallVector<int64_t> sizes;
  if (mesh) {
    names.assign(mesh.getNames().begin(), mesh.getNames().end());
    sizes.assign(mesh.getSizes().begin(), mesh.getSizes().end());
  }
  StringAttr axis = b.getStringAttr(kAccumulate);
  if (llvm::is_contained(names, axis))
    return emitUserError(placeOf(module))
           << "the plan's axis '" << kAccumulate << "' has the name of the micro-batches' axis";
  names.push_back(axis);
  sizes.push_back(count);
  SmallVector<Attribute> rules;
  if (auto plan = module->getAttrOfType<ArrayAttr>(kPlanAttr))
    rules.assign(plan.begin(), plan.end());
  rules.push_back(
      ShardRuleAttr::get(module.getContext(),
                         {b.getArrayAttr(ArrayRef<Attribute>(b.getStrArrayAttr({dim})))}, {axis}));
  module->setAttr(kMeshAttr, MeshAttr::get(module.getContext(), names, sizes));
  module->setAttr(kPlanAttr, b.getArrayAttr(rules));

  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return failure();
  for (auto function : module.getOps<func::FuncOp>()) {
    bool any = false;
    for (BlockArgument arg : function.getArguments()) {
      auto type = dyn_cast<NamedTensorType>(arg.getType());
      if (!type || !type.hasDim(dim) || !isInput(function, arg.getArgNumber()))
        continue;
      any = true;
      auto name = function.getArgAttrOfType<StringAttr>(arg.getArgNumber(), kName);
      if (type.indexOf(dim) != 0)
        return emitUserError(arg.getLoc())
               << "accumulate " << count << ": '" << dim << "' is not the first dim of the input '"
               << (name ? name.getValue() : StringRef("?")) << "', " << type
               << ": its micro-batches would not lie together";
      SmallVector<int, 2> others = context->target(type).dims[0];
      llvm::erase_if(others,
                     [&](int atom) { return context->getAtoms()[atom].axis.getName() == axis; });
      int64_t rows = context->block(type.getSizes()[0], others);
      if (rows % count)
        return emitUserError(placeOf(module))
               << "accumulate " << count << ": " << dim << "=" << type.getSizes()[0]
               << (others.empty() ? std::string() : " over " + context->text(others)) << " is "
               << rows << " rows on a rank, which " << count
               << " does not divide; choose a size of '" << dim << "' that is a multiple of "
               << count * context->sizeOf(others);
    }
    if (!any)
      return emitUserError(function.getLoc())
             << "accumulate " << count << ": '" << function.getSymName()
             << "' has no input with a dim '" << dim << "' to cut";
  }
  return success();
}

//===----------------------------------------------------------------------===//
// The loop
//===----------------------------------------------------------------------===//

namespace {

/// The axes without that of the micro-batches.
ArrayAttr otherAxes(ArrayAttr axes) {
  SmallVector<Attribute> left;
  for (Attribute a : axes)
    if (cast<AxisAttr>(a).getName().getValue() != kAccumulate)
      left.push_back(a);
  return ArrayAttr::get(axes.getContext(), left);
}
bool isOver(ArrayAttr axes) { return axes && otherAxes(axes).size() != axes.size(); }
bool isOver(Operation *op) { return isOver(op->getAttrOfType<ArrayAttr>("axes")); }
/// The reductions that the loop takes over.
bool sumsUp(Operation *op) { return isa<AllReduceOp>(op) && isOver(op); }

ArrayAttr unite(ArrayAttr a, ArrayAttr b) {
  llvm::SetVector<Attribute> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  return ArrayAttr::get(a.getContext(), all.getArrayRef());
}
ArrayAttr without(ArrayAttr a, ArrayAttr b) {
  SmallVector<Attribute> left;
  for (Attribute x : a)
    if (!llvm::is_contained(b, x))
      left.push_back(x);
  return ArrayAttr::get(a.getContext(), left);
}

/// The same reduction of another value, over other axes.
Value reduceLike(OpBuilder &b, AllReduceOp like, Value value, ArrayAttr axes) {
  auto made =
      AllReduceOp::create(b, like.getLoc(), value.getType(), value, like.getReduction(), axes);
  made->setDiscardableAttrs(like->getDiscardableAttrDictionary());
  return made;
}

class MicroBatches {
public:
  MicroBatches(func::FuncOp function, int64_t count)
      : function(function), entry(function.getBody().front()), count(count) {}

  LogicalResult run() {
    findParts();
    if (failed(sinkAll(entry)))
      return failure();
    parts.clear();
    findParts();
    if (failed(check()))
      return failure();
    widenInputs();
    return build();
  }

private:
  // Which values differ from one micro-batch to the next.
  void findParts();
  void findParts(Block &block);
  bool isPart(Operation *op);
  bool hasPart(Operation *op, unsigned but);

  // Reductions go out of the repeats over layers.
  LogicalResult sinkAll(Block &block);
  LogicalResult sink(RepeatOp repeat);
  struct Sunk {
    unsigned result;
    AllReduceOp reduction;
    SmallVector<ReduceScatterOp, 2> scatters; ///< of what is reduced
  };
  LogicalResult sink(RepeatOp repeat, AllReduceOp reduction, SmallVectorImpl<Sunk> &out);
  LogicalResult refuse(Operation *at) {
    return emitUserError(at->getLoc())
           << "accumulate " << count
           << ": a layer needs what is summed over the whole batch here; micro-batches have it "
              "only when all of them are done";
  }

  LogicalResult check();
  void widenInputs();
  LogicalResult build();
  SmallVector<Operation *> bodyOf(ArrayRef<AllReduceOp> sums);
  void loop(ArrayRef<AllReduceOp> sums);

  func::FuncOp function;
  Block &entry;
  int64_t count;
  llvm::DenseSet<Value> parts;
  llvm::MapVector<Value, Value> stacks; ///< input: all its micro-batches
};

//===----------------------------------------------------------------------===//
// What differs from one micro-batch to the next
//===----------------------------------------------------------------------===//

bool MicroBatches::isPart(Operation *op) {
  if (isa<ShardOffsetOp, ShardExtentOp>(op))
    return isOver(op);
  return !sumsUp(op) && llvm::any_of(op->getOperands(), [&](Value v) { return parts.contains(v); });
}

bool MicroBatches::hasPart(Operation *op, unsigned but) {
  for (OpOperand &operand : op->getOpOperands())
    if (operand.getOperandNumber() != but && parts.contains(operand.get()))
      return true;
  return false;
}

void MicroBatches::findParts() {
  auto layouts = function->getAttrOfType<ArrayAttr>(kLayouts);
  for (BlockArgument arg : entry.getArguments())
    if (auto global = cast<NamedTensorType>(cast<TypeAttr>(layouts[arg.getArgNumber()]).getValue())
                          .getSharding())
      if (llvm::any_of(global.getDims(), [](ArrayAttr dim) { return isOver(dim); }))
        parts.insert(arg);
  findParts(entry);
}

void MicroBatches::findParts(Block &block) {
  for (Operation &op : block.without_terminator()) {
    auto repeat = dyn_cast<RepeatOp>(op);
    if (!repeat) {
      if (isPart(&op))
        parts.insert(op.getResults().begin(), op.getResults().end());
      continue;
    }
    auto follow = [&](Value from, Value to) {
      return parts.contains(from) && parts.insert(to).second;
    };
    for (auto [slice, stack] : llvm::zip_equal(repeat.getSlices(), repeat.getStacked()))
      follow(stack, slice);
    for (bool changed = true; changed;) {
      changed = false;
      for (auto [arg, init] : llvm::zip_equal(repeat.getCarried(), repeat.getInits()))
        changed |= follow(init, arg);
      findParts(repeat.getBody().front());
      for (unsigned i = 0; i < repeat.getNumCarried(); ++i)
        changed |= follow(repeat.getYield().getOperand(i), repeat.getCarried()[i]);
    }
    for (auto [yielded, result] :
         llvm::zip_equal(repeat.getYield().getOperands(), repeat.getResults()))
      follow(yielded, result);
    for (unsigned i = 0; i < repeat.getNumCarried(); ++i)
      follow(repeat.getCarried()[i], repeat.getResult(i));
  }
}

//===----------------------------------------------------------------------===//
// Out of the repeats over layers
//===----------------------------------------------------------------------===//

LogicalResult MicroBatches::sinkAll(Block &block) {
  for (Operation &op : llvm::make_early_inc_range(block.without_terminator()))
    if (auto repeat = dyn_cast<RepeatOp>(op)) {
      if (failed(sinkAll(repeat.getBody().front())) || failed(sink(repeat)))
        return failure();
    }
  return success();
}

LogicalResult MicroBatches::sink(RepeatOp repeat) {
  SmallVector<AllReduceOp> inside;
  for (Operation &op : repeat.getBody().front())
    if (sumsUp(&op))
      inside.push_back(cast<AllReduceOp>(op));
  SmallVector<Sunk> done;
  while (!inside.empty()) {
    AllReduceOp next = inside.front();
    inside.erase(inside.begin());
    // Two sums that are added: one, over what both are reduced over.
    Operation *user = next.getResult().hasOneUse() ? *next.getResult().user_begin() : nullptr;
    if (auto add = dyn_cast_or_null<AddOp>(user)) {
      Value other = add.getLhs() == next.getResult() ? add.getRhs() : add.getLhs();
      auto second = other.getDefiningOp<AllReduceOp>();
      if (second && llvm::is_contained(inside, second) && other.hasOneUse()) {
        ArrayAttr common = without(next.getAxes(), without(next.getAxes(), second.getAxes()));
        for (AllReduceOp part : {next, second}) {
          OpBuilder b(part);
          Value value = part.getOperand();
          if (ArrayAttr own = without(part.getAxes(), common); !own.empty())
            value = reduceLike(b, part, value, own);
          part.replaceAllUsesWith(value);
        }
        OpBuilder b(add->getBlock(), std::next(add->getIterator()));
        Value sum = reduceLike(b, next, add.getResult(), common);
        add.getResult().replaceAllUsesExcept(sum, sum.getDefiningOp());
        inside.erase(llvm::find(inside, second));
        next.erase();
        second.erase();
        inside.push_back(sum.getDefiningOp<AllReduceOp>());
        continue;
      }
    }
    if (failed(sink(repeat, next, done)))
      return failure();
  }
  OpBuilder b(repeat->getBlock(), std::next(repeat->getIterator()));
  for (auto &[number, reduction, scatters] : done) {
    Value result = repeat.getResult(number);
    auto ofAllLayers = [&](Value v) {
      return tensorOf(v).withLeadingDim(repeat.getDim(), static_cast<int64_t>(repeat.getCount()));
    };
    if (!scatters.empty())
      result.setType(ofAllLayers(scatters.front().getOperand()));
    Value sum = reduceLike(b, reduction, result, reduction.getAxes()), moved = sum;
    for (ReduceScatterOp scatter : scatters) {
      auto again =
          ReduceScatterOp::create(b, scatter.getLoc(), ofAllLayers(scatter.getResult()), moved,
                                  scatter.getReduction(), scatter.getDim(), scatter.getAxes());
      again->setDiscardableAttrs(scatter->getDiscardableAttrDictionary());
      moved = again.getResult();
    }
    for (ReduceScatterOp scatter : llvm::reverse(scatters))
      scatter.erase();
    result.replaceAllUsesExcept(moved, sum.getDefiningOp());
    reduction.erase();
  }
  return success();
}

/// Moves one reduction behind its users, as far as the yield, and gives the number of the
/// result that is to be reduced in its place.
LogicalResult MicroBatches::sink(RepeatOp repeat, AllReduceOp reduction,
                                 SmallVectorImpl<Sunk> &out) {
  if (reduction.getReduction() != Reduction::Sum)
    return refuse(reduction);
  while (true) {
    Value result = reduction.getResult();
    if (!result.hasOneUse())
      return refuse(reduction);
    OpOperand &use = *result.use_begin();
    Operation *user = use.getOwner();
    unsigned position = use.getOperandNumber();
    if (isa<YieldOp>(user)) {
      if (position < repeat.getNumCarried())
        return refuse(reduction);
      use.set(reduction.getOperand());
      out.push_back({position, reduction, {}});
      return success();
    }
    // A layer's gradient that is scattered once it is complete: of all layers at once. Over other
    // axes, those of a split sequence, it may be scattered or reduced besides.
    if (isa<ReduceScatterOp>(user)) {
      Sunk sunk{0, reduction, {}};
      OpOperand *next = &use;
      while (auto scatter = dyn_cast<ReduceScatterOp>(next->getOwner())) {
        if (scatter.getReduction() != Reduction::Sum || !scatter.getResult().hasOneUse())
          return refuse(reduction);
        sunk.scatters.push_back(scatter);
        next = &*scatter.getResult().use_begin();
      }
      // What is summed behind is so before it is scattered.
      if (auto again = dyn_cast<AllReduceOp>(next->getOwner());
          again && again.getReduction() == Reduction::Sum && !isOver(again)) {
        OpBuilder b(reduction);
        Value both = reduceLike(b, again, reduction.getOperand(),
                                unite(reduction.getAxes(), again.getAxes()));
        use.set(both);
        again.replaceAllUsesWith(again.getOperand());
        again.erase();
        reduction.erase();
        reduction = both.getDefiningOp<AllReduceOp>();
        continue;
      }
      if (!isa<YieldOp>(next->getOwner()) || next->getOperandNumber() < repeat.getNumCarried())
        return refuse(reduction);
      next->set(reduction.getOperand());
      sunk.result = next->getOperandNumber();
      out.push_back(sunk);
      return success();
    }
    // What is added up from layer to layer.
    if (auto add = dyn_cast<AddOp>(user)) {
      auto sum = dyn_cast<BlockArgument>(add.getOperand(1 - position));
      bool carried = sum && sum.getOwner() == add->getBlock() && sum.getArgNumber() >= 1 &&
                     sum.getArgNumber() <= repeat.getNumCarried() && sum.hasOneUse() &&
                     add.getResult().hasOneUse();
      if (carried) {
        unsigned number = sum.getArgNumber() - 1;
        auto zero = repeat.getInits()[number].getDefiningOp<ConstantOp>();
        auto value = zero ? dyn_cast<FloatAttr>(zero.getValue()) : FloatAttr();
        if (repeat.getYield().getOperand(number) == add.getResult() && value &&
            value.getValue().isZero()) {
          use.set(reduction.getOperand());
          out.push_back({number, reduction, {}});
          return success();
        }
      }
    }
    auto shardable = dyn_cast<ShardableOpInterface>(user);
    std::vector<int> alone{static_cast<int>(position)};
    bool passes = shardable && user->getNumResults() == 1 && !hasPart(user, position) &&
                  llvm::is_contained(shardable.getShardingRule().sumPasses, alone);
    auto again = dyn_cast<AllReduceOp>(user);
    if (again && again.getReduction() == Reduction::Sum) {
      use.set(reduction.getOperand());
      OpBuilder b(again);
      Value both =
          reduceLike(b, again, again.getOperand(), unite(reduction.getAxes(), again.getAxes()));
      again.replaceAllUsesWith(both);
      again.erase();
      reduction.erase();
      reduction = both.getDefiningOp<AllReduceOp>();
      continue;
    }
    if (!passes && !isa<ShardSliceOp>(user))
      return refuse(reduction);
    use.set(reduction.getOperand());
    OpBuilder b(user->getBlock(), std::next(user->getIterator()));
    Value moved = reduceLike(b, reduction, user->getResult(0), reduction.getAxes());
    user->getResult(0).replaceAllUsesExcept(moved, moved.getDefiningOp());
    reduction.erase();
    reduction = moved.getDefiningOp<AllReduceOp>();
  }
}

//===----------------------------------------------------------------------===//
// The repeats over micro-batches
//===----------------------------------------------------------------------===//

LogicalResult MicroBatches::check() {
  WalkResult walked = function.walk([&](Operation *op) -> WalkResult {
    bool moves = isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp, ShardSliceOp>(op);
    if (!moves || !isOver(op))
      return WalkResult::advance();
    auto sum = dyn_cast<AllReduceOp>(op);
    if (sum && sum.getReduction() == Reduction::Sum)
      return WalkResult::advance();
    auto why = op->getAttrOfType<StringAttr>(kRule);
    InFlightDiagnostic error = emitUserError(op->getLoc())
                               << "accumulate " << count
                               << ": this needs rows of all micro-batches at once";
    if (why)
      error << " (" << why.getValue() << ")";
    return WalkResult(error);
  });
  if (walked.wasInterrupted())
    return failure();
  for (OpOperand &result : entry.getTerminator()->getOpOperands())
    if (parts.contains(result.get())) {
      auto name = function.getResultAttrOfType<StringAttr>(result.getOperandNumber(), kName);
      return emitUserError(result.get().getLoc())
             << "accumulate " << count << ": the result '"
             << (name ? name.getValue() : StringRef("?"))
             << "' is one of the rows; a training step gives sums over them only";
    }
  return success();
}

/// The inputs have all of a rank's rows again.
void MicroBatches::widenInputs() {
  OpBuilder b = OpBuilder::atBlockBegin(&entry);
  SmallVector<Attribute> layouts(function->getAttrOfType<ArrayAttr>(kLayouts).getValue());
  for (BlockArgument arg : entry.getArguments()) {
    if (!parts.contains(arg))
      continue;
    NamedTensorType part = tensorOf(arg);
    NamedTensorType stack = part.withLeadingDim(kAccumulate, count);
    arg.setType(part.withDim(0, part.getNames()[0].getValue(), count * part.getSizes()[0]));
    stacks[arg] = SplitDimOp::create(b, arg.getLoc(), stack, arg);
    auto global = cast<NamedTensorType>(cast<TypeAttr>(layouts[arg.getArgNumber()]).getValue());
    SmallVector<ArrayAttr> dims;
    for (ArrayAttr dim : global.getSharding().getDims())
      dims.push_back(otherAxes(dim));
    layouts[arg.getArgNumber()] = TypeAttr::get(global.withSharding(
        ShardingAttr::get(b.getContext(), dims, Reduction::Sum, b.getArrayAttr({}))));
  }
  function->setAttr(kLayouts, b.getArrayAttr(layouts));
  function.setType(FunctionType::get(b.getContext(), TypeRange(entry.getArguments()),
                                     function.getResultTypes()));
}

void operandsOf(Operation *op, llvm::SetVector<Value> &out) {
  out.insert(op->getOperands().begin(), op->getOperands().end());
  if (op->getNumRegions())
    getUsedValuesDefinedAbove(op->getRegions(), out);
}

/// Cheaper to make again in each iteration than to keep: constants, indices, and what
/// lays a number out. A param's copy in another type is made once.
bool isMadeAgain(Operation *op) {
  return op->getNumRegions() == 0 && isElementwise(op) && !isa<CastOp>(op) &&
         (op->getNumOperands() == 0 || tensorOf(op->getResult(0)).getRank() > 0);
}

/// The ops that the repeat holds, in order.
SmallVector<Operation *> MicroBatches::bodyOf(ArrayRef<AllReduceOp> sums) {
  llvm::DenseSet<Operation *> needed;
  SmallVector<Value> open;
  for (AllReduceOp sum : sums)
    open.push_back(sum.getOperand());
  while (!open.empty()) {
    Operation *op = open.pop_back_val().getDefiningOp();
    if (!op || sumsUp(op) || op->getBlock() != &entry || isa<SplitDimOp>(op))
      continue;
    bool part = llvm::any_of(op->getResults(), [&](Value r) { return parts.contains(r); });
    if ((!part && !isMadeAgain(op)) || !needed.insert(op).second)
      continue;
    llvm::SetVector<Value> operands;
    operandsOf(op, operands);
    llvm::append_range(open, operands);
  }
  SmallVector<Operation *> body;
  for (Operation &op : entry)
    if (needed.contains(&op))
      body.push_back(&op);
  return body;
}

/// Builds one repeat before the return, and behind it what the sums still are to be
/// reduced over.
void MicroBatches::loop(ArrayRef<AllReduceOp> sums) {
  SmallVector<Operation *> ops = bodyOf(sums);
  OpBuilder b(entry.getTerminator());
  Location loc = function.getLoc();
  SmallVector<Value> inits, stacked;
  for (AllReduceOp sum : sums) {
    // Parts that are rounded for the ranks' sum are added up wide here.
    NamedTensorType type = tensorOf(sum.getOperand());
    inits.push_back(
        constant(b, sum.getLoc(), type.withElementType(accumulatorOf(type.getElementType())), 0));
    inits.back().getDefiningOp()->setAttr(kPhase, b.getStringAttr("backward"));
  }
  llvm::SetVector<Value> used;
  for (Operation *op : ops)
    operandsOf(op, used);
  for (AllReduceOp sum : sums)
    used.insert(sum.getOperand());
  SmallVector<Value> inputs;
  for (auto [input, stack] : stacks)
    if (used.contains(input)) {
      inputs.push_back(input);
      stacked.push_back(stack);
    }
  auto repeat =
      RepeatOp::create(b, loc, kAccumulate, count, /*reverse=*/false, inits, stacked, TypeRange());
  IRMapping map;
  map.map(inputs, repeat.getSlices());
  OpBuilder inner = OpBuilder::atBlockEnd(&repeat.getBody().front());
  for (Operation *op : ops)
    inner.clone(*op, map);
  SmallVector<Value> yielded;
  for (auto [i, carried] : llvm::enumerate(repeat.getCarried())) {
    AllReduceOp sum = sums[i];
    Value part = map.lookupOrDefault(sum.getOperand());
    if (auto rounded = part.getDefiningOp<CastOp>(); rounded && rounded.getPartial())
      part = rounded.getOperand();
    part = cleave::cast(inner, sum.getLoc(), part, tensorOf(carried).getElementType());
    yielded.push_back(binary<AddOp>(inner, sum.getLoc(), carried, part));
    Operation *add = yielded.back().getDefiningOp();
    add->setAttr(kPhase, b.getStringAttr("backward"));
    add->setAttr(kPart, b.getStringAttr(kAccumulate));
  }
  YieldOp::create(inner, loc, yielded);
  for (auto [i, result] : llvm::enumerate(repeat.getResults())) {
    AllReduceOp sum = sums[i];
    Value whole =
        cleave::cast(b, sum.getLoc(), result, tensorOf(sum.getOperand()).getElementType());
    if (whole != result)
      whole.getDefiningOp()->setAttr(kPhase, b.getStringAttr("backward"));
    if (ArrayAttr axes = otherAxes(sum.getAxes()); !axes.empty())
      whole = reduceLike(b, sum, whole, axes);
    sum.replaceAllUsesWith(whole);
  }
}

LogicalResult MicroBatches::build() {
  SmallVector<AllReduceOp> sums;
  llvm::DenseMap<Operation *, unsigned> number;
  for (Operation &op : entry)
    if (sumsUp(&op)) {
      number[&op] = sums.size();
      sums.push_back(cast<AllReduceOp>(op));
    }
  // Which sums each op needs.
  llvm::DenseMap<Operation *, llvm::BitVector> needs;
  for (Operation &op : entry) {
    llvm::BitVector set(sums.size());
    llvm::SetVector<Value> operands;
    operandsOf(&op, operands);
    for (Value v : operands)
      if (Operation *def = v.getDefiningOp(); def && def->getBlock() == &entry) {
        set |= needs.lookup(def);
        if (auto sum = number.find(def); sum != number.end())
          set.set(sum->second);
      }
    needs[&op] = std::move(set);
  }
  // How many loops come after a sum's own: a sum is taken in the last loop that it can.
  SmallVector<unsigned> height(sums.size(), 0);
  unsigned highest = 0;
  for (unsigned s = sums.size(); s-- > 0;)
    for (unsigned t : needs[sums[s]].set_bits()) {
      height[t] = std::max(height[t], height[s] + 1);
      highest = std::max(highest, height[t]);
    }
  // What stands outside of the loops, each op behind the loops that it needs.
  SmallVector<SmallVector<Operation *>> outside(highest + 2);
  SmallVector<Operation *> replaced;
  for (Operation &op : entry.without_terminator()) {
    bool part = llvm::any_of(op.getResults(), [&](Value r) { return parts.contains(r); });
    if (part || sumsUp(&op)) {
      replaced.push_back(&op);
      continue;
    }
    unsigned stage = 0;
    for (unsigned t : needs[&op].set_bits())
      stage = std::max(stage, highest - height[t] + 1);
    outside[stage].push_back(&op);
  }
  for (unsigned stage = 0; stage < outside.size(); ++stage) {
    for (Operation *op : outside[stage])
      op->moveBefore(entry.getTerminator());
    if (stage > highest)
      break;
    SmallVector<AllReduceOp> now;
    for (auto [s, sum] : llvm::enumerate(sums))
      if (height[s] == highest - stage)
        now.push_back(sum);
    for (Operation *op : stage < highest ? bodyOf(now) : SmallVector<Operation *>()) {
      llvm::SetVector<Value> operands;
      operandsOf(op, operands);
      for (Value v : operands)
        if (auto arg = dyn_cast<BlockArgument>(v); arg && arg.getOwner() == &entry)
          if (auto role = function.getArgAttrOfType<StringAttr>(arg.getArgNumber(), kRole);
              role && (role.getValue() == "param" || role.getValue() == "state"))
            return emitUserError(now.front().getLoc())
                   << "accumulate " << count << ": this sum over the whole batch is needed before "
                   << "the backward pass of its first micro-batch, and it depends on the param '"
                   << function.getArgAttrOfType<StringAttr>(arg.getArgNumber(), kName).getValue()
                   << "': that would be a second forward pass; a sum of the inputs alone, such as "
                      "a count of labels, may be needed there";
    }
    loop(now);
  }
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
  return success();
}

struct SplitMicroBatches : cleave::impl::CleaveSplitMicroBatchesBase<SplitMicroBatches> {
  using CleaveSplitMicroBatchesBase::CleaveSplitMicroBatchesBase;
  void runOnOperation() override {
    if (failed(splitMicroBatches(getOperation(), count, dim)))
      signalPassFailure();
  }
};
struct RepeatMicroBatches : cleave::impl::CleaveRepeatMicroBatchesBase<RepeatMicroBatches> {
  void runOnOperation() override {
    if (failed(repeatMicroBatches(getOperation())))
      signalPassFailure();
  }
};

} // namespace

LogicalResult cleave::repeatMicroBatches(ModuleOp module) {
  auto mesh = module->getAttrOfType<MeshAttr>(kMeshAttr);
  int64_t count = mesh ? mesh.sizeOf(StringAttr::get(module.getContext(), kAccumulate)) : 0;
  if (!count)
    return success();
  for (auto function : module.getOps<func::FuncOp>())
    if (function->hasAttr(kLayouts))
      if (failed(MicroBatches(function, count).run()))
        return failure();
  // The axis is none of the ranks'.
  SmallVector<StringAttr> names;
  SmallVector<int64_t> sizes;
  for (auto [name, size] : llvm::zip_equal(mesh.getNames(), mesh.getSizes()))
    if (name.getValue() != kAccumulate) {
      names.push_back(name);
      sizes.push_back(size);
    }
  module->setAttr(kMeshAttr, MeshAttr::get(module.getContext(), names, sizes));
  SmallVector<Attribute> rules;
  for (Attribute a : module->getAttrOfType<ArrayAttr>(kPlanAttr))
    if (!llvm::any_of(cast<ShardRuleAttr>(a).getAxes(),
                      [](StringAttr axis) { return axis.getValue() == kAccumulate; }))
      rules.push_back(a);
  module->setAttr(kPlanAttr, ArrayAttr::get(module.getContext(), rules));
  return success();
}
