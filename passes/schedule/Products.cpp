//===- Products.cpp - contractions to steps -------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/Scheduler.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::scheduler;

FusedOp scheduler::epilogueOf(ContractOp op) {
  auto fused = dyn_cast_or_null<FusedOp>(op->getNextNode());
  bool its = fused && fused.getKind() == kEpilogue && !fused.getInputs().empty() &&
             fused.getInputs()[0] == op.getResult();
  return its ? fused : FusedOp();
}

FusedOp scheduler::sumsOf(ContractOp op) {
  FusedOp epilogue = epilogueOf(op);
  Operation *behind = epilogue ? epilogue.getOperation() : op.getOperation();
  auto fused = dyn_cast_or_null<FusedOp>(behind->getNextNode());
  bool its = fused && fused.getKind() == kSums && fused.getInputs().size() == 1 &&
             llvm::is_contained(op->getOperands(), fused.getInputs()[0]);
  return its ? fused : FusedOp();
}
bool scheduler::isOfAttention(Operation *op) {
  if (isa<AttentionOp, AttentionGradOp>(op))
    return true;
  auto part = op->getAttrOfType<StringAttr>(kPart);
  return part && part.getValue() == "attention";
}

/// Whether the result replaces an argument that the epilogue reads: it can be written
/// over it, element by element, but the bare product cannot.
bool Scheduler::replacesOperand(Place result, FusedOp epilogue, Frame &frame) {
  for (auto [r, buffer] : llvm::enumerate(resultBuffers)) {
    int32_t argument = program->results[r].aliasOf;
    if (buffer != result.buffer || argument < 0)
      continue;
    Place old = placeOf(function.getArgument(argument), frame);
    for (Value v : epilogue.getInputs().drop_front())
      if (isa<NamedTensorType>(v.getType()) && placeOf(v, frame).buffer == old.buffer)
        return true;
  }
  return false;
}

/// The group behind a product runs on its tiles. The bare product that nobody else
/// reads lies where a result of the group will: each element is read before that
/// is written. Then no operand may lie there: the product would overwrite it.
LogicalResult Scheduler::addEpilogue(ContractOp op, FusedOp epilogue, GemmStep &gemm,
                                     Recorded &step, Frame &frame) {
  FailureOr<const KernelInfo *> made = infoOf(epilogue);
  if (failed(made))
    return failure();
  const KernelInfo &info = **made;
  gemm.epilogue = info.symbol;
  // The product stays in cache.
  step.step.bytes += info.bytes - 2 * bytesOf(op.getResult());
  step.step.flops += info.flops;
  step.step.functions = info.functions;
  SmallVector<Place> results;
  for (Value result : epilogue.getResults())
    results.push_back(placeNew(result, frame));
  int over = -1; // the result whose place the product takes first
  if (op.getResult().hasOneUse())
    for (auto [j, result] : llvm::enumerate(epilogue.getResults()))
      if (over < 0 && result.getType() == op.getType() &&
          !replacesOperand(results[j], epilogue, frame))
        over = static_cast<int>(j);
  Place product = over >= 0 ? results[over] : placeNew(op.getResult(), frame);
  frame.places[op.getResult()] = product;
  gemm.c = product.ref();
  // Reads: the operands, then A and B. Writes: the results, then the product.
  std::vector<Place> operands;
  for (auto [i, input] : llvm::enumerate(epilogue.getInputs())) {
    if (!isa<NamedTensorType>(input.getType())) {
      FailureOr<RankScalar> scalar = rankScalar(epilogue, input, mesh, iterationOf);
      if (failed(scalar))
        return failure();
      gemm.epilogueScalars.push_back(*scalar);
      continue;
    }
    Place place = placeOf(input, frame);
    if (i > 0)
      operands.push_back(place);
    gemm.epilogueBuffers.push_back(place.ref());
  }
  for (const Place &result : results) {
    step.writes.push_back(result);
    gemm.epilogueBuffers.push_back(result.ref());
  }
  if (over < 0)
    step.writes.push_back(product);
  for (auto [input, result] : info.inPlace)
    if (input > 0 && result != over)
      step.inPlace.emplace_back(input - 1, result);
  step.reads.insert(step.reads.begin(), operands.begin(), operands.end());
  return success();
}

/// Each operand is read once and the product written once.
static void countGemm(const GemmStep &gemm, Step &step) {
  step.flops = 2 * gemm.batch * gemm.m * gemm.n * gemm.k;
  step.bytes = gemm.batch *
               (byteSize(gemm.dtype) * (gemm.m * gemm.k + gemm.k * gemm.n) +
                byteSize(accumulatorOf(gemm.dtype)) * gemm.m * gemm.n * (gemm.accumulate ? 2 : 1));
}

LogicalResult Scheduler::addSums(ContractOp op, FusedOp sums, const GemmPlan &plan, GemmStep &gemm,
                                 Recorded &step, Frame &frame) {
  Value operand = sums.getInputs()[0], a = plan.swapped ? op.getRhs() : op.getLhs();
  if (plan.steps() != 1 || plan.batch != 1)
    return sums.emitOpError() << "stands behind a product that is " << describe(plan)
                              << ", which sums no operand along the way";
  gemm.sums = operand == a ? GemmStep::Sums::OfA : GemmStep::Sums::OfB;
  int64_t count = operand == a ? plan.m : plan.n;
  if (tensorOf(sums.getResult(0)).getNumElements() != count)
    return sums.emitOpError() << "has " << tensorOf(sums.getResult(0)).getNumElements()
                              << " sums beside a product that makes " << count;
  Place place = placeNew(sums.getResult(0), frame);
  gemm.sumsTo = place.ref();
  step.writes.push_back(place);
  step.step.flops += count * plan.k;
  step.step.bytes += place.bytes;
  return success();
}

void Scheduler::addGemm(ContractOp op, GemmStep gemm, Recorded step) {
  auto left = [](const GemmStep &g) {
    return std::tuple(g.dtype, g.transA, g.batch, g.m, g.k, g.lda, g.a.buffer, g.a.offset);
  };
  gemm.sameA =
      op->hasAttr(kSameLeft) && lastGemm && gemm.batch == 1 && left(gemm) == left(*lastGemm);
  lastGemm = gemm;
  step.step.action = std::move(gemm);
  steps.add(std::move(step));
}

LogicalResult Scheduler::emitContract(ContractOp op, Frame &frame) {
  auto found = plans.find(op);
  if (found == plans.end()) {
    Type element = tensorOf(op.getLhs()).getElementType();
    if (op.getType().getElementType() != accumulatorOf(element))
      return op.emitOpError() << "of " << element << " gives " << op.getType().getElementType()
                              << "; cleave-prepare-contracts, run before fusion, makes it "
                              << accumulatorOf(element) << " and a cast";
    constexpr int64_t mostSteps = 4096;
    GemmPlan plan = planGemm(tensorOf(op.getLhs()), tensorOf(op.getRhs()), op.getType());
    if (plan.steps() > mostSteps)
      return op.emitOpError() << "would be " << plan.steps()
                              << " matrix products; cleave-prepare-contracts, run before fusion, "
                                 "puts its dims in a better order";
    found = plans.try_emplace(op, plan).first;
  }
  const GemmPlan &plan = found->second;
  Place a = placeOf(plan.swapped ? op.getRhs() : op.getLhs(), frame);
  Place b = placeOf(plan.swapped ? op.getLhs() : op.getRhs(), frame);
  FusedOp epilogue = epilogueOf(op), sums = sumsOf(op);
  SmallVector<Operation *> with;
  for (FusedOp part : {epilogue, sums})
    if (part)
      with.push_back(part);
  StepKind kind = isOfAttention(op) ? StepKind::Attention : StepKind::Gemm;
  Place c;
  if (!epilogue)
    c = placeNew(op.getResult(), frame);
  else if (plan.steps() != 1)
    return op.emitOpError() << "is " << plan.steps() << " matrix products and has an epilogue";
  GemmStep gemm;
  gemm.dtype = dtypeOf(tensorOf(op.getLhs()).getElementType());
  gemm.transA = plan.transA;
  gemm.transB = plan.transB;
  gemm.batch = plan.batch;
  gemm.m = plan.m;
  gemm.n = plan.n;
  gemm.k = plan.k;
  gemm.lda = plan.lda;
  gemm.ldb = plan.ldb;
  gemm.ldc = plan.ldc;
  gemm.strideA = plan.strideA;
  gemm.strideB = plan.strideB;
  gemm.strideC = plan.strideC;
  if (epilogue) {
    gemm.a = a.ref();
    gemm.b = b.ref();
    Recorded step = record(op, kind, with);
    countGemm(gemm, step.step);
    step.reads = {a, b};
    if (failed(addEpilogue(op, epilogue, gemm, step, frame)) ||
        (sums && failed(addSums(op, sums, plan, gemm, step, frame))))
      return failure();
    addGemm(op, std::move(gemm), std::move(step));
    return success();
  }
  int64_t width = byteSize(gemm.dtype), sumWidth = byteSize(accumulatorOf(gemm.dtype));
  int64_t count = plan.steps();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, atA = 0, atB = 0, atC = 0;
    gemm.accumulate = false;
    for (const GemmPlan::Loop &loop : llvm::reverse(plan.loops)) {
      int64_t index = rest % loop.size;
      rest /= loop.size;
      atA += index * loop.strideA;
      atB += index * loop.strideB;
      atC += index * loop.strideC;
      gemm.accumulate |= loop.summed && index > 0;
    }
    gemm.a = {a.buffer, a.offset + atA * width};
    gemm.b = {b.buffer, b.offset + atB * width};
    gemm.c = {c.buffer, c.offset + atC * sumWidth};
    Recorded step = record(op, kind, with);
    countGemm(gemm, step.step);
    step.reads = {a, b};
    if (gemm.accumulate)
      step.reads.push_back(c);
    step.writes = {c};
    if (sums && failed(addSums(op, sums, plan, gemm, step, frame)))
      return failure();
    addGemm(op, gemm, std::move(step));
  }
  return success();
}
