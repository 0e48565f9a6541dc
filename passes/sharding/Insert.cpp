//===- Insert.cpp - splits each op, places reductions and reshards --------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Each op is decided from its declared rule alone, unless the search has (kFactors):
//
//   which factor an axis splits   One that an operand or the wanted result has the
//                                 axis on. Of several, the one that moves the
//                                 fewest bytes (operands to what the factor needs,
//                                 the result to where it is wanted).
//   where a sum is reduced        At once, unless its only user is an op through
//                                 which sums pass and that gains by it: it adds two
//                                 such sums, or gives something smaller.
//   where a result rests          Where the plan wants it, or where `zero` keeps it:
//                                 that alone never moves an operand.
//
// The function is rebuilt: types carry shardings from here on.
//
//===----------------------------------------------------------------------===//
#include "ir/Auto.h"
#include "passes/Passes.h"
#include "passes/search/Prices.h"
#include "passes/sharding/Sharding.h"

#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEINSERTCOLLECTIVES
#include "passes/sharding/Passes.h.inc"
} // namespace cleave

namespace {

constexpr int kNoFactor = -1;

class Inserter {
public:
  Inserter(const ShardingContext &context, MLIRContext *mlir) : context(context), b(mlir) {}

  LogicalResult run(func::FuncOp function);

private:
  struct Decision {
    /// For each factor its atoms, major first.
    SmallVector<SmallVector<int, 2>> factors;
    /// Operands whose pending sum passes through, and over what.
    SmallVector<int> passing;
    SmallVector<int, 2> passed;
    Reduction passedKind = Reduction::Sum;
  };

  LogicalResult block(Block &from);
  LogicalResult op(Operation *op);
  LogicalResult shardable(ShardableOpInterface op);
  LogicalResult repeat(RepeatOp op);

  Decision decide(ShardableOpInterface op, const ShardingRule &rule);
  double costOf(ShardableOpInterface op, const ShardingRule &rule, int atom, int factor);
  bool decidePassing(ShardableOpInterface op, const ShardingRule &rule, Decision &decision);

  Sharding wanted(Operation *op, unsigned result) {
    auto list = op->getAttrOfType<ArrayAttr>(kSharding);
    auto type = tensorOf(op->getResult(result));
    auto attr = list ? dyn_cast<ShardingAttr>(list[result]) : ShardingAttr();
    return attr ? context.fromAttr(attr, type.getRank()) : context.target(type);
  }
  /// Where a result goes once it is reduced.
  Sharding rests(Operation *op, unsigned result) {
    auto list = op->getAttrOfType<ArrayAttr>(kRestsAs);
    auto attr = list ? dyn_cast<ShardingAttr>(list[result]) : ShardingAttr();
    return attr ? context.fromAttr(attr, tensorOf(op->getResult(result)).getRank())
                : wanted(op, result);
  }
  Value now(Value old) { return map.lookup(old); }
  Sharding shardingOf(Value old) { return context.of(tensorOf(now(old))); }
  Attribute phase(Operation *op) { return op->getAttr(kPhase); }

  /// Reduces and moves the current value of `old` to `to`; remembers it when it is
  /// the whole value's place that changes.
  Value moved(Value old, const Sharding &to, Operation *user, StringRef why) {
    return reshard(b, user->getLoc(), context, now(old), to, why, phase(user));
  }
  /// A value whose sum is still pending becomes its wanted self, for all users.
  void settle(Value old, const Sharding &to, Operation *at, StringRef why) {
    map.map(old, reshard(b, at->getLoc(), context, now(old), to, why, phase(at)));
  }

  /// Makes params in shards whole for an op that reads them, unless it updates the
  /// shard or only looks at it in another way; gives back what stood for them before.
  SmallVector<std::pair<Value, Value>> gatherParams(Operation *reader);

  const ShardingContext &context;
  OpBuilder b;
  IRMapping map;
  llvm::DenseMap<Value, Sharding> readAs; ///< by old value: params in shards
  llvm::DenseMap<std::tuple<Value, Block *, Attribute>, Value>
      gathered;                                  ///< in this block and phase
  llvm::DenseMap<Value, std::string> pendingWhy; ///< by old value: what left it unreduced
};

std::string opText(Operation *op) { return op->getName().stripDialect().str(); }

double bytesOf(NamedTensorType type) {
  return static_cast<double>(type.getNumElements()) * type.getElementBytes();
}

double Inserter::costOf(ShardableOpInterface op, const ShardingRule &rule, int atom, int factor) {
  double p = static_cast<double>(context.getAtoms()[atom].size);
  double share = (p - 1) / p, cost = 0;
  for (auto [i, v] : llvm::enumerate(op->getOperands())) {
    if (!isa<NamedTensorType>(v.getType()))
      continue;
    Sharding have = shardingOf(v);
    int at = kNoFactor, needs = kNoFactor;
    bool known = false;
    for (auto [d, f] : llvm::enumerate(rule.operands[i])) {
      if (llvm::is_contained(have.dims[d], atom)) {
        at = f;
        known = true;
      }
      if (f == factor)
        needs = f;
    }
    if (known && at != factor)
      cost += bytesOf(tensorOf(v)) * share / (needs == kNoFactor ? 1 : p);
  }
  for (unsigned r = 0; r < op->getNumResults(); ++r) {
    Sharding want = wanted(op, r);
    bool onFactor = false, wantedThere = false, wantedSomewhere = false;
    for (auto [d, f] : llvm::enumerate(rule.results[r])) {
      bool wants = llvm::is_contained(want.dims[d], atom);
      wantedSomewhere |= wants;
      onFactor |= f == factor;
      wantedThere |= f == factor && wants;
    }
    double bytes = bytesOf(tensorOf(op->getResult(r))) * share;
    if (wantedThere)
      continue;
    if (rule.leavesUnreduced(factor, r))
      cost += bytes * (wantedSomewhere ? 1 : 2); // reduce-scatter, else all-reduce
    else if (onFactor)
      cost += bytes / (wantedSomewhere ? p : 1); // all-to-all, else all-gather
  }
  return cost;
}

bool Inserter::decidePassing(ShardableOpInterface op, const ShardingRule &rule,
                             Decision &decision) {
  std::vector<int> pending;
  for (auto [i, v] : llvm::enumerate(op->getOperands()))
    if (isa<NamedTensorType>(v.getType()) && !shardingOf(v).unreduced.empty())
      pending.push_back(static_cast<int>(i));
  if (pending.empty())
    return false;
  Sharding first = shardingOf(op->getOperand(pending[0]));
  for (int i : pending) {
    Sharding s = shardingOf(op->getOperand(i));
    if (s.unreduced != first.unreduced || s.reduction != first.reduction)
      return false;
  }
  if (first.reduction != Reduction::Sum || !llvm::is_contained(rule.sumPasses, pending))
    return false;
  // Bytes of reducing the operands, or the results: to where results rest, once if each atom
  // is on a dim there (a reduce-scatter), else twice. A sum over micro-batches sends nothing.
  auto ways = [&](unsigned result, const std::vector<int> *operand) {
    Sharding rest = rests(op, result);
    bool scatters = llvm::all_of(first.unreduced, [&](int atom) {
      if (context.isInTime(atom))
        return true;
      for (auto [d, f] : llvm::enumerate(rule.results[result]))
        if (llvm::is_contained(rest.dims[d], atom))
          return !operand || llvm::is_contained(*operand, f);
      return false;
    });
    return scatters ? 1 : 2;
  };
  double in = 0;
  for (int i : pending)
    in += bytesOf(tensorOf(op->getOperand(i))) * ways(0, &rule.operands[i]);
  double out = 0;
  for (auto [r, result] : llvm::enumerate(op->getResults()))
    out += bytesOf(tensorOf(result)) * ways(static_cast<unsigned>(r), nullptr);
  if (out >= in)
    return false;
  decision.passing.assign(pending.begin(), pending.end());
  decision.passed = first.unreduced;
  decision.passedKind = first.reduction;
  return true;
}

SmallVector<std::pair<Value, Value>> Inserter::gatherParams(Operation *reader) {
  SmallVector<std::pair<Value, Value>> before;
  if (auto list = reader->getAttrOfType<ArrayAttr>(kReadAs)) {
    for (auto [result, attr] : llvm::zip_equal(reader->getResults(), list))
      if (auto sharding = dyn_cast<ShardingAttr>(attr))
        readAs[result] = context.fromAttr(sharding, tensorOf(result).getRank());
    return before;
  }
  for (Value v : reader->getOperands()) {
    auto it = readAs.find(v);
    if (it == readAs.end())
      continue;
    NamedTensorType param = tensorOf(v);
    bool updates = false;
    for (auto [r, result] : llvm::enumerate(reader->getResults()))
      if (auto type = dyn_cast<NamedTensorType>(result.getType()))
        updates |= type.getNames() == param.getNames() && type.getSizes() == param.getSizes() &&
                   wanted(reader, r) == shardingOf(v);
    if (updates || shardingOf(v) == it->second)
      continue;
    Value &whole = gathered[{v, b.getInsertionBlock(), phase(reader)}];
    if (!whole)
      whole = moved(v, it->second, reader, "a param in shards is read");
    before.emplace_back(v, now(v));
    map.map(v, whole);
  }
  return before;
}

Inserter::Decision Inserter::decide(ShardableOpInterface op, const ShardingRule &rule) {
  Decision decision;
  decision.factors.resize(rule.factors.size());
  decidePassing(op, rule, decision);
  if (auto found = op->getAttrOfType<ArrayAttr>(kFactors);
      found && found.size() == rule.factors.size()) {
    for (auto [atoms, axes] : llvm::zip_equal(decision.factors, found)) {
      atoms = context.atomsIn(cast<ArrayAttr>(axes));
      llvm::erase_if(atoms, [&](int a) { return llvm::is_contained(decision.passed, a); });
    }
    return decision;
  }

  // Atoms in the order in which operands and wanted results have them, so that a
  // factor's list keeps that order.
  SmallVector<SmallVector<std::pair<int, double>>> candidates(context.getAtoms().size());
  SmallVector<int> order;
  auto offer = [&](int atom, int factor) {
    FactorKind kind = rule.factors[factor].kind;
    if (kind == FactorKind::Blocked || kind == FactorKind::Partial ||
        llvm::is_contained(decision.passed, atom))
      return;
    if (!llvm::is_contained(order, atom))
      order.push_back(atom);
    for (auto &c : candidates[atom])
      if (c.first == factor)
        return;
    candidates[atom].push_back({factor, 0});
  };
  for (unsigned r = 0; r < op->getNumResults(); ++r) {
    Sharding want = wanted(op, r);
    for (auto [d, f] : llvm::enumerate(rule.results[r]))
      for (int atom : want.dims[d])
        offer(atom, f);
  }
  for (auto [i, v] : llvm::enumerate(op->getOperands())) {
    if (!isa<NamedTensorType>(v.getType()))
      continue;
    Sharding have = shardingOf(v);
    for (auto [d, f] : llvm::enumerate(rule.operands[i]))
      for (int atom : have.dims[d])
        offer(atom, f);
  }
  // Where a result is to rest counts for axes that split no operand.
  SmallVector<int> taken(order);
  for (unsigned r = 0; r < op->getNumResults(); ++r) {
    Sharding rest = rests(op, r);
    for (auto [d, f] : llvm::enumerate(rule.results[r]))
      for (int atom : rest.dims[d])
        if (!llvm::is_contained(taken, atom))
          offer(atom, f);
  }
  for (int atom : order) {
    int best = candidates[atom][0].first;
    if (candidates[atom].size() > 1) {
      double least = costOf(op, rule, atom, best);
      for (auto &c : ArrayRef(candidates[atom]).drop_front())
        if (double cost = costOf(op, rule, atom, c.first); cost < least) {
          least = cost;
          best = c.first;
        }
    }
    decision.factors[best].push_back(atom);
  }
  return decision;
}

LogicalResult Inserter::shardable(ShardableOpInterface op) {
  ShardingRule rule = op.getShardingRule();
  auto shards = gatherParams(op);
  Decision decision = decide(op, rule);
  OperationState state(op->getLoc(), op->getName());
  for (auto [i, v] : llvm::enumerate(op->getOperands())) {
    auto type = dyn_cast<NamedTensorType>(v.getType());
    if (!type) {
      state.operands.push_back(now(v));
      continue;
    }
    Sharding need;
    need.dims.resize(type.getRank());
    for (auto [d, f] : llvm::enumerate(rule.operands[i]))
      need.dims[d] = decision.factors[f];
    if (llvm::is_contained(decision.passing, static_cast<int>(i))) {
      need.unreduced = decision.passed;
      need.reduction = decision.passedKind;
    }
    std::string why = pendingWhy.lookup(v);
    if (why.empty() || shardingOf(v).unreduced.empty())
      why = opText(op) + " needs it so";
    state.operands.push_back(moved(v, need, op, why));
  }
  // What the op leaves unreduced: what passes through it, and what it sums.
  SmallVector<SmallVector<int, 2>> unreduced(op->getNumResults(), decision.passed);
  SmallVector<std::string> left(op->getNumResults());
  Reduction kind = decision.passedKind;
  bool any = !decision.passed.empty();
  for (auto [f, atoms] : llvm::enumerate(decision.factors)) {
    const Factor &factor = rule.factors[f];
    if (atoms.empty() || factor.kind == FactorKind::Parallel)
      continue;
    Reduction own = factor.kind == FactorKind::Max   ? Reduction::Max
                    : factor.kind == FactorKind::Min ? Reduction::Min
                                                     : Reduction::Sum;
    if (any && own != kind)
      return op->emitOpError() << "would be left with a " << stringifyReduction(own) << " and a "
                               << stringifyReduction(kind) << " at once";
    kind = own;
    any = true;
    for (unsigned r = 0; r < op->getNumResults(); ++r)
      if (rule.leavesUnreduced(static_cast<int>(f), r)) {
        unreduced[r].append(atoms);
        left[r] += (left[r].empty() ? "" : ", ") + factor.name;
      }
  }
  for (unsigned r = 0; r < op->getNumResults(); ++r) {
    auto type = cast<NamedTensorType>(op->getResult(r).getType());
    Sharding made;
    made.dims.resize(type.getRank());
    for (auto [d, f] : llvm::enumerate(rule.results[r]))
      made.dims[d] = decision.factors[f];
    made.unreduced = unreduced[r];
    made.reduction = kind;
    state.types.push_back(type.withSharding(context.toAttr(made)));
  }
  for (NamedAttribute a : op->getAttrs())
    if (a.getName() != kSharding && a.getName() != kRestsAs && a.getName() != kReadAs &&
        a.getName() != kFactors)
      state.attributes.push_back(a);
  Operation *made = b.create(state);
  for (auto [param, shard] : llvm::reverse(shards))
    map.map(param, shard);
  if (auto list = op->getAttrOfType<ArrayAttr>(kReadAs))
    for (auto [result, attr] : llvm::zip_equal(op->getResults(), list))
      if (auto sharding = dyn_cast<ShardingAttr>(attr))
        readAs[result] = context.fromAttr(sharding, tensorOf(result).getRank());
  for (auto [r, old] : llvm::enumerate(op->getResults())) {
    map.map(old, made->getResult(r));
    Sharding have = shardingOf(old), want = rests(op, r);
    if (have.unreduced.empty()) {
      // Moved at once when something needs it there; else users decide.
      if (!(have == want))
        settle(old, want, op,
               want == wanted(op, r) ? "the plan wants it so" : "each rank has updated its shard");
      continue;
    }
    std::string why;
    if (!left[r].empty())
      why = opText(op) + " over the split " + left[r] + " leaves a partial " +
            stringifyReduction(kind).str();
    for (int i : decision.passing)
      if (why.empty())
        why = pendingWhy.lookup(op->getOperand(i));
    pendingWhy[old] = why;
    // A pending sum goes on only into one user of this block that may take it.
    bool mayWait = false;
    if (old.hasOneUse() && kind == Reduction::Sum)
      if (Operation *user = *old.getUsers().begin(); user->getBlock() == op->getBlock())
        if (auto next = dyn_cast<ShardableOpInterface>(user)) {
          unsigned position = old.getUses().begin()->getOperandNumber();
          for (const std::vector<int> &set : next.getShardingRule().sumPasses)
            mayWait |= llvm::is_contained(set, static_cast<int>(position));
        }
    if (!mayWait)
      settle(old, want, op, why);
  }
  return success();
}

LogicalResult Inserter::repeat(RepeatOp old) {
  auto regionShardings = old->getAttrOfType<ArrayAttr>(kRegionSharding);
  auto argTarget = [&](BlockArgument arg) {
    auto type = tensorOf(arg);
    auto attr = regionShardings ? dyn_cast<ShardingAttr>(regionShardings[arg.getArgNumber()])
                                : ShardingAttr();
    return attr ? context.fromAttr(attr, type.getRank()) : context.target(type);
  };
  if (auto list = old->getAttrOfType<ArrayAttr>(kRegionReadAs))
    for (auto [arg, attr] : llvm::zip_equal(old.getBody().getArguments(), list))
      if (auto sharding = dyn_cast<ShardingAttr>(attr))
        readAs[arg] = context.fromAttr(sharding, tensorOf(arg).getRank());
  SmallVector<Value> inits, stacked;
  for (auto [arg, init] : llvm::zip_equal(old.getCarried(), old.getInits()))
    inits.push_back(moved(init, argTarget(arg), old, "carried through the repeat"));
  for (auto [arg, stack] : llvm::zip_equal(old.getSlices(), old.getStacked())) {
    Sharding slice = argTarget(arg), whole;
    whole.dims.emplace_back();
    whole.dims.append(slice.dims.begin(), slice.dims.end());
    stacked.push_back(moved(stack, whole, old, "a layer of it is used so"));
  }
  // Outputs are stacked as the plan wants one layer's value.
  SmallVector<Type> outputTypes;
  SmallVector<Sharding> outputs;
  for (unsigned i = old.getNumCarried(); i < old.getNumResults(); ++i) {
    Sharding whole = wanted(old, i), slice = whole;
    slice.dims.erase(slice.dims.begin());
    outputs.push_back(slice);
    outputTypes.push_back(tensorOf(old.getResult(i)).withSharding(context.toAttr(whole)));
  }
  auto made = RepeatOp::create(b, old.getLoc(), old.getDim(), old.getCount(), old.getReverse(),
                               inits, stacked, outputTypes);
  for (NamedAttribute a : old->getDiscardableAttrs())
    if (a.getName() != kSharding && a.getName() != kRegionSharding && a.getName() != kRegionReadAs)
      made->setAttr(a.getName(), a.getValue());
  Block &body = made.getBody().front();
  for (auto [from, to] : llvm::zip_equal(old.getBody().getArguments(), body.getArguments())) {
    map.map(from, to);
    // A slice's type comes from the stack's: with its sharding.
    if (from.getArgNumber() > old.getNumCarried())
      to.setType(tensorOf(from).withSharding(context.toAttr(argTarget(from))));
  }
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToEnd(&body);
  if (failed(block(old.getBody().front())))
    return failure();
  YieldOp yield = old.getYield();
  SmallVector<Value> yielded;
  for (auto [i, v] : llvm::enumerate(yield.getOperands())) {
    Sharding to =
        i < old.getNumCarried() ? argTarget(old.getCarried()[i]) : outputs[i - old.getNumCarried()];
    std::string why = pendingWhy.lookup(v);
    yielded.push_back(reshard(b, yield.getLoc(), context, now(v), to,
                              why.empty() ? "carried to the next layer" : StringRef(why),
                              phase(old)));
  }
  YieldOp::create(b, yield.getLoc(), yielded);
  for (auto [from, to] : llvm::zip_equal(old.getResults(), made.getResults()))
    map.map(from, to);
  return success();
}

LogicalResult Inserter::op(Operation *op) {
  if (auto r = dyn_cast<RepeatOp>(op))
    return repeat(r);
  if (auto s = dyn_cast<ShardableOpInterface>(op))
    return shardable(s);
  return op->emitOpError() << "doesn't say how it may be split";
}

LogicalResult Inserter::block(Block &from) {
  for (Operation &o : from.without_terminator())
    if (failed(op(&o)))
      return failure();
  return success();
}

LogicalResult Inserter::run(func::FuncOp function) {
  Block &old = function.getBody().front();
  auto *fresh = new Block;
  SmallVector<Type> argTypes, resultTypes;
  for (BlockArgument arg : old.getArguments()) {
    Type type = arg.getType();
    if (auto t = dyn_cast<NamedTensorType>(type))
      if (auto s = function.getArgAttrOfType<ShardingAttr>(arg.getArgNumber(), kSharding))
        type = t.withSharding(s);
    if (auto s = function.getArgAttrOfType<ShardingAttr>(arg.getArgNumber(), kReadAs))
      readAs[arg] = context.fromAttr(s, tensorOf(arg).getRank());
    argTypes.push_back(type);
    map.map(arg, fresh->addArgument(type, arg.getLoc()));
  }
  function.getBody().push_back(fresh);
  b.setInsertionPointToEnd(fresh);
  if (failed(block(old))) {
    fresh->dropAllUses();
    return failure();
  }
  auto ret = cast<func::ReturnOp>(old.getTerminator());
  SmallVector<Value> results;
  for (auto [i, v] : llvm::enumerate(ret.getOperands())) {
    Sharding to = shardingOf(v);
    to.unreduced.clear();
    if (auto s = function.getResultAttrOfType<ShardingAttr>(i, kSharding))
      to = context.fromAttr(s, tensorOf(v).getRank());
    std::string why = pendingWhy.lookup(v);
    results.push_back(reshard(b, ret.getLoc(), context, now(v), to,
                              why.empty() ? "returned" : StringRef(why),
                              v.getDefiningOp() ? phase(v.getDefiningOp()) : Attribute()));
    resultTypes.push_back(results.back().getType());
  }
  func::ReturnOp::create(b, ret.getLoc(), results);
  old.dropAllDefinedValueUses();
  old.erase();
  function.setType(FunctionType::get(b.getContext(), argTypes, resultTypes));
  for (unsigned i = 0; i < argTypes.size(); ++i) {
    function.removeArgAttr(i, kSharding);
    function.removeArgAttr(i, kReadAs);
  }
  for (unsigned i = 0; i < resultTypes.size(); ++i)
    function.removeResultAttr(i, b.getStringAttr(kSharding));
  return success();
}

struct InsertCollectives : cleave::impl::CleaveInsertCollectivesBase<InsertCollectives> {
  void runOnOperation() override {
    if (failed(insertCollectives(getOperation())))
      signalPassFailure();
  }
};

} // namespace

LogicalResult cleave::insertCollectives(ModuleOp module) {
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return failure();
  if (module->hasAttr(kAutoAttr)) {
    FailureOr<std::shared_ptr<Prices>> prices = Prices::create(module, *context);
    if (failed(prices))
      return failure();
    context->setPrice([prices = *prices](const RouteStep &step, int64_t bytes) {
      return prices->step(step, bytes);
    });
  }
  for (auto function : llvm::make_early_inc_range(module.getOps<func::FuncOp>()))
    if (!function.isExternal())
      if (failed(Inserter(*context, module.getContext()).run(function)))
        return failure();
  return success();
}
