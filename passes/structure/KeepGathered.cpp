//===- KeepGathered.cpp - cleave-keep-gathered ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
//   forward   %g  = all_gather %h                  .. yield %x', %saved..
//   backward  %h' = (of %saved..)  %g' = all_gather %h'
//   ->
//   forward   %g  = all_gather %h                  .. yield %x', %saved.., %g
//   backward  (slices %g' = of the stacked %g)
//
// That %g' is %g is found by numbering: values of the two bodies have one number if the
// same op makes them of operands with the same numbers, a slice of what the forward repeat
// stacked being what it yielded. So it does not matter whether %h was saved or is computed
// again. What then nothing in the backward body reads any more is not saved either.
//
// Which gathers: those of activations. One of params alone (`zero 3` has them in shards so that
// no rank has to hold them) stays, and one that is the same in all layers.
//
//===----------------------------------------------------------------------===//
#include "passes/structure/KeepGathered.h"

#include "ir/Dialect.h"
#include "passes/Location.h"
#include "passes/Passes.h"
#include "passes/sharding/Sharding.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

#include <map>

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEKEEPGATHERED
#include "passes/structure/Passes.h.inc"
} // namespace cleave

namespace {

bool isOf(StringRef phase, Operation *op) {
  auto attr = op->getAttrOfType<StringAttr>(kPhase);
  return (attr ? attr.getValue() : "forward") == phase;
}

/// One number for equal values.
class Numbers {
public:
  unsigned of(Value v) {
    auto [entry, fresh] = numbers.try_emplace(v, next);
    next += fresh;
    return entry->second;
  }
  void equal(Value v, Value known) { numbers[v] = of(known); }

  void add(Block &block) {
    for (Operation &op : block.without_terminator()) {
      // A region is not looked into.
      if (op.getNumRegions() || isa<BarrierOp>(op))
        continue;
      std::vector<const void *> key = {op.getName().getAsOpaquePointer()};
      for (NamedAttribute attr : op.getAttrDictionary())
        if (!llvm::is_contained({kPhase, kRule, kPart}, attr.getName().getValue())) {
          key.push_back(attr.getName().getAsOpaquePointer());
          key.push_back(attr.getValue().getAsOpaquePointer());
        }
      for (Value operand : op.getOperands())
        key.push_back(reinterpret_cast<const void *>(uintptr_t(of(operand))));
      for (Type type : op.getResultTypes())
        key.push_back(type.getAsOpaquePointer());
      auto [first, fresh] = ops.try_emplace(std::move(key), &op);
      if (!fresh)
        for (auto [result, known] : llvm::zip_equal(op.getResults(), first->second->getResults()))
          equal(result, known);
    }
  }

private:
  llvm::DenseMap<Value, unsigned> numbers;
  std::map<std::vector<const void *>, Operation *> ops;
  unsigned next = 0;
};

/// On what a value depends besides params.
struct Sources {
  bool data = false;  ///< on any input, or on what layers make
  bool layer = false; ///< on values of its own layer
};

class SourcesOf {
public:
  Sources operator()(Value v) {
    auto [entry, fresh] = known.try_emplace(v);
    if (!fresh)
      return entry->second;
    Sources found = find(v);
    known[v] = found;
    return found;
  }

private:
  Sources find(Value v) {
    if (auto arg = dyn_cast<BlockArgument>(v)) {
      Operation *parent = arg.getOwner()->getParentOp();
      if (auto function = dyn_cast<func::FuncOp>(parent)) {
        auto role = function.getArgAttrOfType<StringAttr>(arg.getArgNumber(), kRole);
        return {!role || role.getValue() == "input", false};
      }
      auto repeat = cast<RepeatOp>(parent);
      if (arg == repeat.getLayer())
        return {};
      if (arg.getArgNumber() <= repeat.getNumCarried())
        return {true, true};
      bool data =
          (*this)(repeat.getStacked()[arg.getArgNumber() - 1 - repeat.getNumCarried()]).data;
      return {data, data};
    }
    Operation *op = v.getDefiningOp();
    if (op->getNumRegions())
      return {true, op->getParentOfType<RepeatOp>() != nullptr};
    Sources all;
    for (Value operand : op->getOperands()) {
      Sources one = (*this)(operand);
      all.data |= one.data;
      // What is computed outside of the layer is the same in all.
      all.layer |= one.layer && operand.getParentBlock() == op->getBlock();
    }
    return all;
  }

  llvm::DenseMap<Value, Sources> known;
};

struct Kept {
  AllGatherOp again, forward;
  SmallVector<Operation *> gone; ///< collectives of the backward pass: `again`, and what led to it
};

/// What is decided of a pair of repeats, or of a block that has both passes.
struct Decision {
  RepeatOp forward, backward; ///< null: of a block
  SmallVector<Kept> kept;
  SmallVector<unsigned> unread; ///< slices of the backward body that nothing needs any more
};

class Decider {
public:
  explicit Decider(bool remarks) : remarks(remarks) {}

  SmallVector<Decision> decide(ModuleOp module) {
    SmallVector<Decision> all;
    auto take = [&](Decision decision) {
      if (!decision.kept.empty())
        all.push_back(std::move(decision));
    };
    for (auto function : module.getOps<func::FuncOp>()) {
      if (function.isExternal())
        continue;
      take(of(function.getBody().front()));
      function.walk([&](RepeatOp backward) {
        llvm::SetVector<Operation *> makers;
        for (Value stack : backward.getStacked())
          if (auto forward = stack.getDefiningOp<RepeatOp>();
              forward && isOf("backward", backward) &&
              cast<OpResult>(stack).getResultNumber() >= forward.getNumCarried())
            makers.insert(forward);
        for (Operation *forward : makers)
          take(of(cast<RepeatOp>(forward), backward));
      });
    }
    return all;
  }

private:
  Decision of(Block &block) {
    Numbers numbers;
    numbers.add(block);
    Decision decision;
    match(decision, numbers, block, block);
    return decision;
  }

  Decision of(RepeatOp forward, RepeatOp backward) {
    Numbers numbers;
    numbers.add(forward.getBody().front());
    numbers.equal(backward.getLayer(), forward.getLayer());
    for (auto [stack, slice] : llvm::zip_equal(backward.getStacked(), backward.getSlices())) {
      Value same;
      if (stack.getDefiningOp() == forward) {
        unsigned number = cast<OpResult>(stack).getResultNumber();
        same = number < forward.getNumCarried() ? Value() : forward.getYield().getOperand(number);
      } else if (auto at = llvm::find(forward.getStacked(), stack);
                 at != forward.getStacked().end()) {
        same = forward.getSlices()[at - forward.getStacked().begin()];
      }
      if (same && same.getType() == slice.getType())
        numbers.equal(slice, same);
    }
    Block &body = backward.getBody().front();
    numbers.add(body);
    Decision decision{forward, backward, {}, {}};
    match(decision, numbers, forward.getBody().front(), body);
    for (auto [i, slice] : llvm::enumerate(backward.getSlices()))
      if (!slice.use_empty() && !isRead(slice, body))
        decision.unread.push_back(static_cast<unsigned>(i));
    return decision;
  }

  /// Whether something reads it that is left in the block.
  bool isRead(Value v, Block &block) {
    return llvm::any_of(v.getUsers(), [&](Operation *user) {
      Operation *reader = block.findAncestorOpInBlock(*user);
      return needed.contains(reader) && !replaced.contains(reader);
    });
  }

  void match(Decision &decision, Numbers &numbers, Block &forward, Block &backward) {
    replaced.clear();
    needed.clear();
    llvm::DenseSet<unsigned> computed;
    llvm::DenseMap<unsigned, AllGatherOp> gathered;
    for (BlockArgument arg : forward.getArguments())
      computed.insert(numbers.of(arg));
    for (Operation &op : forward)
      if (decision.forward || isOf("forward", &op)) {
        for (Value result : op.getResults())
          computed.insert(numbers.of(result));
        if (auto gather = dyn_cast<AllGatherOp>(op))
          gathered.try_emplace(numbers.of(gather.getResult()), gather);
      }
    for (auto gather : backward.getOps<AllGatherOp>()) {
      AllGatherOp known = gathered.lookup(numbers.of(gather.getResult()));
      if (!isOf("backward", gather) ||
          (!known && !computed.contains(numbers.of(gather.getOperand()))))
        continue;
      Sources sources = sourcesOf((known ? known : gather).getOperand());
      if (!sources.data)
        continue;
      if (!known)
        say(gather, "the forward pass does not gather it so");
      else if (decision.forward && !sources.layer)
        say(gather, "it is the same in all layers, and each would keep its own");
      else
        replaced.insert({gather, known});
    }
    for (Operation &op : llvm::reverse(backward))
      if (op.hasTrait<OpTrait::IsTerminator>() ||
          llvm::any_of(op.getResults(), [&](Value v) { return isRead(v, backward); }))
        needed.insert(&op);
    llvm::DenseSet<Operation *> counted;
    for (auto [again, known] : replaced) {
      if (!needed.contains(again))
        continue;
      Kept kept{cast<AllGatherOp>(again), cast<AllGatherOp>(known), {}};
      Operation *op = again;
      do {
        kept.gone.push_back(op);
        op = op->getOperand(0).getDefiningOp();
      } while (op && isa<AllGatherOp, AllToAllOp>(op) && op->getBlock() == &backward &&
               !needed.contains(op) && counted.insert(op).second);
      decision.kept.push_back(std::move(kept));
    }
  }

  void say(AllGatherOp gather, StringRef why) {
    if (remarks)
      emitRemark(gather.getLoc()) << "gathered again in the backward pass: " << why;
  }

  bool remarks;
  SourcesOf sourcesOf;
  llvm::MapVector<Operation *, Operation *> replaced; ///< in the backward pass: by the forward's
  llvm::DenseSet<Operation *> needed;                 ///< of the backward block
};

std::string text(Type type) {
  std::string printed;
  llvm::raw_string_ostream stream(printed);
  stream << type;
  size_t open = printed.find('<');
  return printed.substr(open + 1, printed.rfind('>') - open - 1);
}

/// The yielded values that only the decision's unread slices were for.
SmallVector<Value> freedBy(const Decision &decision) {
  llvm::SmallMapVector<Value, bool, 8> freed;
  RepeatOp forward = decision.forward, backward = decision.backward;
  for (unsigned i = forward.getNumCarried(); i < forward.getNumResults(); ++i) {
    auto unread = [&](OpOperand &use) {
      return use.getOwner() == backward.getOperation() &&
             llvm::is_contained(decision.unread, use.getOperandNumber() - backward.getNumCarried());
    };
    if (forward.getResult(i).use_empty())
      continue;
    auto [entry, fresh] = freed.try_emplace(forward.getYield().getOperand(i), true);
    entry->second &= llvm::all_of(forward.getResult(i).getUses(), unread);
  }
  SmallVector<Value> values;
  for (auto [value, free] : freed)
    if (free && llvm::none_of(decision.kept, [&, v = value](const Kept &k) {
          return v == AllGatherOp(k.forward).getResult();
        }))
      values.push_back(value);
  return values;
}

/// Ring-equivalent, of a rank.
int64_t ringBytes(const ShardingContext &context, Operation *collective) {
  NamedTensorType in = tensorOf(collective->getOperand(0));
  int64_t ranks = 1;
  for (auto [before, after] :
       llvm::zip_equal(context.of(in).dims, context.of(tensorOf(collective->getResult(0))).dims))
    ranks *= std::max<int64_t>(1, context.sizeOf(before) / context.sizeOf(after));
  int64_t n = context.localBytes(in) * (isa<AllGatherOp>(collective) ? ranks : 1);
  return n / ranks * (ranks - 1) + n % ranks * (ranks - 1) / ranks;
}

GatheredInputs describe(const ShardingContext &context, const Decision &decision) {
  GatheredInputs found;
  for (const Kept &kept : decision.kept) {
    AllGatherOp again = kept.again;
    int64_t moved = 0;
    for (Operation *op : kept.gone)
      moved += ringBytes(context, op);
    found.inputs.push_back({locationText(again.getLoc()), text(again.getType()), moved,
                            context.localBytes(tensorOf(again.getResult()))});
  }
  for (int atom = 0; atom < static_cast<int>(context.getAtoms().size()); ++atom)
    if (context.isInTime(atom))
      found.times *= context.getAtoms()[atom].size;
  if (RepeatOp forward = decision.forward) {
    found.dim = forward.getDim().str();
    found.layers = static_cast<int64_t>(forward.getCount());
    for (Operation *op = decision.backward; op; op = op->getParentOp())
      if (auto repeat = dyn_cast<RepeatOp>(op))
        found.times *= static_cast<int64_t>(repeat.getCount());
    for (Value value : freedBy(decision))
      found.freed += context.localBytes(tensorOf(value));
  }
  return found;
}

void eraseUnused(Block &block) {
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
    if (isOpTriviallyDead(&op))
      op.erase();
}

/// The forward repeat once more, without the outputs that nothing reads and with these, whose
/// stacks are its last results.
RepeatOp withOutputs(const ShardingContext &context, RepeatOp forward, ArrayRef<Value> added) {
  SmallVector<Value> results, yielded;
  SmallVector<Type> types;
  for (unsigned i = 0; i < forward.getNumResults(); ++i) {
    bool carried = i < forward.getNumCarried();
    if (!carried && forward.getResult(i).use_empty())
      continue;
    results.push_back(forward.getResult(i));
    yielded.push_back(forward.getYield().getOperand(i));
    if (!carried)
      types.push_back(forward.getResult(i).getType());
  }
  for (Value v : added) {
    Sharding whole = context.of(tensorOf(v));
    whole.dims.insert(whole.dims.begin(), {{}});
    yielded.push_back(v);
    types.push_back(tensorOf(v)
                        .withLeadingDim(forward.getDim(), forward.getCount())
                        .withSharding(context.toAttr(whole)));
  }
  OpBuilder b(forward);
  auto made =
      RepeatOp::create(b, forward.getLoc(), forward.getDim(), forward.getCount(),
                       forward.getReverse(), forward.getInits(), forward.getStacked(), types);
  made->setDiscardableAttrs(forward->getDiscardableAttrDictionary());
  made.getBody().takeBody(forward.getBody());
  made.getYield()->setOperands(yielded);
  for (auto [old, now] : llvm::zip(results, made.getResults()))
    old.replaceAllUsesWith(now);
  forward.erase();
  return made;
}

void rewrite(const ShardingContext &context, Decision &decision,
             MutableArrayRef<Decision> decisions) {
  if (!decision.forward) {
    for (Kept &kept : decision.kept)
      kept.again.replaceAllUsesWith(kept.forward.getResult());
    eraseUnused(*decision.kept[0].forward->getBlock());
    return;
  }
  RepeatOp backward = decision.backward, forward = decision.forward;
  Block &body = backward.getBody().front();
  llvm::MapVector<Value, BlockArgument> slices; // by what the forward body yields for it
  for (Kept &kept : decision.kept) {
    BlockArgument &slice = slices[kept.forward.getResult()];
    if (!slice)
      slice = body.addArgument(kept.again.getType(), kept.again.getLoc());
    kept.again.replaceAllUsesWith(slice);
  }
  eraseUnused(body);
  for (unsigned i : llvm::reverse(decision.unread)) {
    backward.getStackedMutable().erase(i);
    backward.getBody().eraseArgument(1 + backward.getNumCarried() + i);
  }
  SmallVector<Value> outputs(llvm::make_first_range(slices));
  RepeatOp made = withOutputs(context, forward, outputs);
  backward.getStackedMutable().append(made.getResults().take_back(outputs.size()));
  for (Decision &other : decisions)
    for (RepeatOp *repeat : {&other.forward, &other.backward})
      if (*repeat == forward)
        *repeat = made;
}

void say(Decision &decision, const GatheredInputs &found) {
  std::string each =
      found.dim.empty() ? "" : ", for each of " + found.dim + "=" + std::to_string(found.layers);
  for (auto [kept, input] : llvm::zip_equal(decision.kept, found.inputs))
    emitRemark(kept.again.getLoc())
        << "kept gathered for the backward pass, " << input.type << ": " << input.bytes
        << " bytes more on a rank, " << input.ringBytes << " bytes less in the ring" << each;
  if (found.freed)
    emitRemark(decision.forward.getLoc())
        << "saved no more, since what was gathered of it is kept: " << found.freed
        << " bytes on a rank" << each;
}

struct KeepGathered : cleave::impl::CleaveKeepGatheredBase<KeepGathered> {
  void runOnOperation() override {
    if (failed(keepGathered(getOperation())))
      signalPassFailure();
  }
};

} // namespace

int64_t GatheredInputs::ringBytes() const {
  int64_t sum = 0;
  for (const GatheredInput &input : inputs)
    sum += input.ringBytes;
  return sum * times;
}

int64_t GatheredInputs::bytes() const {
  int64_t sum = -freed;
  for (const GatheredInput &input : inputs)
    sum += input.bytes;
  return sum * layers;
}

std::vector<GatheredInputs> cleave::gatheredAgain(ModuleOp module) {
  std::vector<GatheredInputs> all;
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return all;
  for (const Decision &decision : Decider(/*remarks=*/false).decide(module))
    all.push_back(describe(*context, decision));
  return all;
}

LogicalResult cleave::keepGathered(ModuleOp module) {
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return failure();
  SmallVector<Decision> decisions = Decider(/*remarks=*/true).decide(module);
  for (Decision &decision : decisions)
    say(decision, describe(*context, decision));
  for (Decision &decision : decisions)
    rewrite(*context, decision, decisions);
  return success();
}
