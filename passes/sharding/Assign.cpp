//===- Assign.cpp - where every value is to live --------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A plan speaks of names, so a value's sharding follows from its own dims. What
// is left to propagate are dims that the plan doesn't mention and that an op ties
// to one that it does (a renamed dim): they take the axes along the factor.
// A plan that says `auto` leaves the rest to the search (passes/search).
//
//===----------------------------------------------------------------------===//
#include "ir/Auto.h"
#include "passes/Passes.h"
#include "passes/search/Search.h"
#include "passes/sharding/Sharding.h"
#include "passes/sharding/Zero.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEASSIGNSHARDINGS
#include "passes/sharding/Passes.h.inc"
} // namespace cleave

namespace {

class Assignment {
public:
  Assignment(const ShardingContext &context, std::vector<SearchReport> *reports)
      : context(context), reports(reports) {}

  LogicalResult run(func::FuncOp function) {
    ParamFlow flow(function);
    if (function->getParentOfType<ModuleOp>()->hasAttr(kAutoAttr)) {
      FailureOr<SearchResult> found = searchShardings(context, function, flow);
      if (failed(found))
        return failure();
      if (reports)
        reports->push_back(std::move(found->report));
      shardings = std::move(found->lives);
      zero = placeShards(flow, found->shards, shardings);
      write(function);
      for (auto &[op, factors] : found->factors) {
        SmallVector<Attribute> lists;
        for (auto &atoms : factors)
          lists.push_back(context.axes(atoms));
        op->setAttr(kFactors, ArrayAttr::get(op->getContext(), lists));
      }
      return success();
    }
    for (BlockArgument arg : function.getArguments())
      assign(arg, function.getArgAttrOfType<ArrayAttr>(arg.getArgNumber(), kPin),
             function.getArgAttrOfType<ArrayAttr>(arg.getArgNumber(), kPinAxes));
    function.walk([&](Operation *op) {
      if (auto pin = dyn_cast<PinOp>(op))
        assign(pin.getResult(), pin.getRules(), pin.getAxes());
      else
        for (Value r : op->getResults())
          assign(r);
      if (auto repeat = dyn_cast<RepeatOp>(op))
        for (BlockArgument arg : repeat.getBody().getArguments())
          assign(arg);
    });
    unsplitLayers(function);
    for (int round = 0; round < 3 && propagate(function); ++round) {
    }
    unsplitLayers(function); // a pinned layer dim spreads
    if (context.zeroLevel())
      zero = placeShards(flow, shardsByPlan(context, function, flow, shardings), shardings);
    write(function);
    return success();
  }

private:
  /// Layers of a repeat are run one after the other: their dim is never split.
  void unsplitLayers(func::FuncOp function) {
    auto unsplit = [&](Value v, StringRef dim) {
      auto it = shardings.find(v);
      if (it != shardings.end() && tensorOf(v).hasDim(dim))
        it->second.dims[tensorOf(v).indexOf(dim)].clear();
    };
    function.walk([&](RepeatOp repeat) {
      for (Value v : repeat.getStacked()) {
        unsplit(v, repeat.getDim());
        // A group's layers are a slice of all groups', which are a view of the stack.
        if (auto slice = dyn_cast<BlockArgument>(v))
          if (auto outer = dyn_cast<RepeatOp>(slice.getOwner()->getParentOp())) {
            Value all = outer.getStacked()[slice.getArgNumber() - 1 - outer.getNumCarried()];
            unsplit(all, repeat.getDim());
            if (auto split = all.getDefiningOp<SplitDimOp>())
              unsplit(split.getOperand(), repeat.getDim());
          }
      }
      for (Value v : repeat.getResults())
        unsplit(v, repeat.getDim());
    });
  }

  void assign(Value v, ArrayAttr pin = {}, ArrayAttr pinnedAxes = {}) {
    if (auto type = dyn_cast<NamedTensorType>(v.getType()))
      shardings[v] = context.target(type, pin, pinnedAxes);
  }

  /// Gives the axes of one dim to another that the plan doesn't mention.
  bool spread(Value from, unsigned fromDim, Value to, unsigned toDim) {
    Sharding &source = shardings[from], &sink = shardings[to];
    if (source.dims[fromDim].empty() || !sink.dims[toDim].empty() ||
        context.mentions(tensorOf(to).getNames()[toDim].getValue()) ||
        tensorOf(from).getSizes()[fromDim] != tensorOf(to).getSizes()[toDim])
      return false;
    if (auto pin = to.getDefiningOp<PinOp>())
      return false;
    for (int atom : source.dims[fromDim])
      if (sink.uses(atom))
        return false;
    sink.dims[toDim] = source.dims[fromDim];
    return true;
  }

  bool propagate(func::FuncOp function) {
    bool changed = false;
    auto visit = [&](ShardableOpInterface op) {
      ShardingRule rule = op.getShardingRule();
      SmallVector<std::tuple<Value, unsigned, int>> dims;
      for (auto [i, v] : llvm::enumerate(op->getOperands()))
        if (shardings.contains(v))
          for (auto [d, f] : llvm::enumerate(rule.operands[i]))
            dims.emplace_back(v, d, f);
      for (auto [i, v] : llvm::enumerate(op->getResults()))
        for (auto [d, f] : llvm::enumerate(rule.results[i]))
          dims.emplace_back(v, d, f);
      for (auto &[from, fromDim, f] : dims)
        for (auto &[to, toDim, g] : dims)
          if (f == g && from != to &&
              (rule.factors[f].kind != FactorKind::Blocked &&
               rule.factors[f].kind != FactorKind::Partial))
            changed |= spread(from, fromDim, to, toDim);
    };
    SmallVector<ShardableOpInterface> ops;
    function.walk<WalkOrder::PreOrder>([&](Operation *op) {
      if (auto shardable = dyn_cast<ShardableOpInterface>(op))
        ops.push_back(shardable);
      if (auto repeat = dyn_cast<RepeatOp>(op)) {
        unsigned carried = repeat.getNumCarried();
        for (unsigned i = 0; i < carried; ++i)
          for (unsigned d = 0; d < tensorOf(repeat.getInits()[i]).getRank(); ++d) {
            changed |= spread(repeat.getInits()[i], d, repeat.getCarried()[i], d);
            changed |= spread(repeat.getCarried()[i], d, repeat.getResult(i), d);
          }
        for (auto [slice, stack] : llvm::zip_equal(repeat.getSlices(), repeat.getStacked()))
          for (unsigned d = 0; d < tensorOf(slice).getRank(); ++d) {
            changed |= spread(stack, d + 1, slice, d);
            changed |= spread(slice, d, stack, d + 1);
          }
        for (unsigned i = carried; i < repeat.getNumResults(); ++i)
          for (unsigned d = 0; d < tensorOf(repeat.getYield().getOperand(i)).getRank(); ++d)
            changed |= spread(repeat.getYield().getOperand(i), d, repeat.getResult(i), d + 1);
      }
    });
    for (ShardableOpInterface op : ops)
      visit(op);
    for (ShardableOpInterface op : llvm::reverse(ops))
      visit(op);
    return changed;
  }

  Attribute attrOf(Value v) { return attrOf(v, shardings); }
  Attribute attrOf(Value v, const ShardingMap &from) {
    auto it = from.find(v);
    if (it == from.end())
      return UnitAttr::get(v.getContext());
    return context.toAttr(it->second);
  }

  void write(func::FuncOp function) {
    Builder b(function.getContext());
    for (BlockArgument arg : function.getArguments()) {
      if (shardings.contains(arg))
        function.setArgAttr(arg.getArgNumber(), kSharding, attrOf(arg));
      if (zero.readAs.contains(arg))
        function.setArgAttr(arg.getArgNumber(), kReadAs, attrOf(arg, zero.readAs));
    }
    auto listOf = [&](ValueRange values, const ShardingMap &from) {
      SmallVector<Attribute> list;
      for (Value v : values)
        list.push_back(attrOf(v, from));
      return b.getArrayAttr(list);
    };
    auto any = [](ValueRange values, const ShardingMap &from) {
      return llvm::any_of(values, [&](Value v) { return from.contains(v); });
    };
    function.walk([&](Operation *op) {
      if (op->getNumResults() && op != function.getOperation()) {
        op->setAttr(kSharding, listOf(op->getResults(), shardings));
        if (any(op->getResults(), zero.restsAs))
          op->setAttr(kRestsAs, listOf(op->getResults(), zero.restsAs));
        if (any(op->getResults(), zero.readAs))
          op->setAttr(kReadAs, listOf(op->getResults(), zero.readAs));
      }
      if (auto repeat = dyn_cast<RepeatOp>(op)) {
        ValueRange arguments = repeat.getBody().getArguments();
        op->setAttr(kRegionSharding, listOf(arguments, shardings));
        if (any(arguments, zero.readAs))
          op->setAttr(kRegionReadAs, listOf(arguments, zero.readAs));
      }
    });
    auto ret = dyn_cast<func::ReturnOp>(function.getBody().front().getTerminator());
    // What replaces a donated argument lives where the argument does.
    SmallVector<Attribute> results;
    for (Value v : ret.getOperands())
      results.push_back(attrOf(v));
    for (BlockArgument arg : function.getArguments())
      if (auto to = function.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), kDonatedTo))
        if (to.getInt() >= 0 && to.getInt() < static_cast<int64_t>(results.size()))
          results[to.getInt()] = attrOf(arg);
    // A gradient lives where its param does, or as `zero` splits it.
    for (unsigned i = 0; i < function.getNumResults(); ++i) {
      auto name = function.getResultAttrOfType<StringAttr>(i, kName);
      if (name && name.getValue().starts_with("grad:"))
        for (BlockArgument arg : function.getArguments())
          if (auto path = function.getArgAttrOfType<StringAttr>(arg.getArgNumber(), kName);
              path && path.getValue() == name.getValue().drop_front(5))
            results[i] = attrOf(arg, zero.gradients.contains(arg) ? zero.gradients : shardings);
    }
    for (unsigned i = 0; i < function.getNumResults(); ++i)
      function.setResultAttr(i, kSharding, results[i]);
  }

  const ShardingContext &context;
  std::vector<SearchReport> *reports;
  ShardingMap shardings;
  ZeroPlacement zero;
};

struct AssignShardings : cleave::impl::CleaveAssignShardingsBase<AssignShardings> {
  void runOnOperation() override {
    if (failed(assignShardings(getOperation())))
      signalPassFailure();
  }
};

} // namespace

LogicalResult cleave::assignShardings(ModuleOp module, std::vector<SearchReport> *reports) {
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return failure();
  for (auto function : module.getOps<func::FuncOp>())
    if (!function.isExternal() && failed(Assignment(*context, reports).run(function)))
      return failure();
  return success();
}
