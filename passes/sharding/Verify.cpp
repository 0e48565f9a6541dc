//===- Verify.cpp - every op agrees with its declared rule ----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/Passes.h"
#include "passes/sharding/Sharding.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEVERIFYSHARDINGS
#include "passes/sharding/Passes.h.inc"
} // namespace cleave

namespace {

class Verifier {
public:
  explicit Verifier(const ShardingContext &context) : context(context) {}

  LogicalResult shardable(ShardableOpInterface op) {
    ShardingRule rule = op.getShardingRule();
    SmallVector<std::optional<SmallVector<int, 2>>> factors(rule.factors.size());
    auto agree = [&](Value v, const std::vector<int> &dims, const Twine &what) -> LogicalResult {
      auto type = dyn_cast<NamedTensorType>(v.getType());
      if (!type)
        return success();
      Sharding s = context.of(type);
      for (auto [d, f] : llvm::enumerate(dims)) {
        const Factor &factor = rule.factors[f];
        if (!s.dims[d].empty() &&
            (factor.kind == FactorKind::Blocked || factor.kind == FactorKind::Partial))
          return op->emitOpError() << what << " splits '" << factor.name << "' over {"
                                   << context.text(s.dims[d]) << "}, which this op needs whole";
        if (factors[f] && *factors[f] != s.dims[d])
          return op->emitOpError()
                 << what << " splits '" << factor.name << "' over {" << context.text(s.dims[d])
                 << "}, another value over {" << context.text(*factors[f]) << "}";
        factors[f] = s.dims[d];
      }
      return success();
    };
    for (auto [i, v] : llvm::enumerate(op->getOperands()))
      if (i < rule.operands.size() && failed(agree(v, rule.operands[i], "operand " + Twine(i))))
        return failure();
    for (auto [i, v] : llvm::enumerate(op->getResults()))
      if (failed(agree(v, rule.results[i], "the result")))
        return failure();

    // Unreduced operands pass only where the rule lets them.
    SmallVector<int, 2> expected;
    std::vector<int> pending;
    for (auto [i, v] : llvm::enumerate(op->getOperands())) {
      if (!isa<NamedTensorType>(v.getType()))
        continue;
      Sharding s = context.of(tensorOf(v));
      if (s.unreduced.empty())
        continue;
      if (!pending.empty() && expected != s.unreduced)
        return op->emitOpError() << "one operand is unreduced over {" << context.text(expected)
                                 << "}, another over {" << context.text(s.unreduced) << "}";
      pending.push_back(static_cast<int>(i));
      expected = s.unreduced;
    }
    if (!pending.empty()) {
      Sharding first = context.of(tensorOf(op->getOperand(pending[0])));
      auto &passes = first.reduction == Reduction::Sum ? rule.sumPasses : rule.maxPasses;
      if (!llvm::is_contained(passes, pending))
        return op->emitOpError() << "operand " << pending[0] << " is still an unreduced "
                                 << stringifyReduction(first.reduction) << " over {"
                                 << context.text(expected)
                                 << "}, which this op does not commute with; reduce it first";
    }
    for (auto [i, r] : llvm::enumerate(op->getResults())) {
      Sharding s = context.of(tensorOf(r));
      SmallVector<int, 2> have(s.unreduced), want(expected);
      for (size_t f = 0; f < rule.factors.size(); ++f)
        if (factors[f] && rule.leavesUnreduced(static_cast<int>(f), i))
          want.append(*factors[f]);
      llvm::sort(have);
      llvm::sort(want);
      if (have != want)
        return op->emitOpError() << "leaves its result unreduced over {" << context.text(want)
                                 << "}, but its type says {" << context.text(have) << "}";
    }
    return success();
  }

  LogicalResult collective(Operation *op) {
    Sharding from = context.of(tensorOf(op->getOperand(0)));
    Sharding to = context.of(tensorOf(op->getResult(0)));
    if (from == to)
      return op->emitOpError() << "changes no sharding";
    bool reduces = isa<AllReduceOp, ReduceScatterOp>(op);
    if (reduces != (from.unreduced != to.unreduced))
      return op->emitOpError() << (reduces ? "reduces nothing: its operand is unreduced over {"
                                           : "must not reduce: its operand is unreduced over {")
                               << context.text(from.unreduced) << "}, its result over {"
                               << context.text(to.unreduced) << "}";
    if (reduces) {
      auto kind = op->getAttrOfType<ReductionAttr>("reduction").getValue();
      if (kind != from.reduction)
        return op->emitOpError() << "reduces by " << stringifyReduction(kind)
                                 << " what is an unreduced " << stringifyReduction(from.reduction);
    }
    if (isa<AllReduceOp>(op) && from.dims != to.dims)
      return op->emitOpError() << "moves a dim";
    return success();
  }

private:
  const ShardingContext &context;
};

struct VerifyPass : cleave::impl::CleaveVerifyShardingsBase<VerifyPass> {
  void runOnOperation() override {
    if (failed(verifyShardings(getOperation())))
      signalPassFailure();
  }
};

} // namespace

LogicalResult cleave::verifyShardings(ModuleOp module) {
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return failure();
  Verifier verifier(*context);
  WalkResult result = module.walk([&](Operation *op) -> WalkResult {
    if (auto s = dyn_cast<ShardableOpInterface>(op))
      return verifier.shardable(s);
    if (isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp, ShardSliceOp>(op))
      return verifier.collective(op);
    if (auto ret = dyn_cast<func::ReturnOp>(op))
      for (Value v : ret.getOperands())
        if (auto t = dyn_cast<NamedTensorType>(v.getType());
            t && t.getSharding() && !t.getSharding().getUnreduced().empty())
          return ret.emitOpError() << "returns a value that is still unreduced: " << t;
    return WalkResult::advance();
  });
  return failure(result.wasInterrupted());
}
