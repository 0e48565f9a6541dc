//===- Passes.cpp - passes around the schedule ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/Contraction.h"
#include "passes/schedule/Listing.h"
#include "passes/schedule/Schedule.h"

#include "mlir/IR/Remarks.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_PREPARECONTRACTS
#define GEN_PASS_DEF_EXPANDSHARDSLICES
#define GEN_PASS_DEF_PRINTSCHEDULE
#include "passes/schedule/Passes.h.inc"
} // namespace cleave

//===----------------------------------------------------------------------===//
// Contractions
//===----------------------------------------------------------------------===//

namespace {

using Names = SmallVector<StringAttr>;

/// The same tensor with its dims in the order of the lists; what they lack (dims
/// of size 1) goes first.
NamedTensorType reordered(NamedTensorType type, std::initializer_list<ArrayRef<StringAttr>> order) {
  Names names;
  SmallVector<int64_t> sizes;
  auto add = [&](StringAttr name) {
    names.push_back(name);
    sizes.push_back(type.sizeOf(name));
  };
  auto listed = [&](StringAttr name) {
    return llvm::any_of(order, [&](ArrayRef<StringAttr> l) { return llvm::is_contained(l, name); });
  };
  for (StringAttr name : type.getNames())
    if (!listed(name))
      add(name);
  for (ArrayRef<StringAttr> list : order)
    for (StringAttr name : list)
      add(name);
  return NamedTensorType::get(type.getContext(), type.getElementType(), names, sizes, {});
}

/// The names in the order that they have in the tensor.
Names inOrderOf(NamedTensorType type, ArrayRef<StringAttr> names) {
  Names sorted(names);
  llvm::sort(sorted, [&](StringAttr a, StringAttr b) { return type.indexOf(a) < type.indexOf(b); });
  return sorted;
}

/// The types that the contraction computes with.
struct Choice {
  NamedTensorType lhs, rhs, result;
  double cost = 0;
};

/// Tries every set of tensors to copy; each copy is in the order that the
/// uncopied ones suggest.
Choice cheapest(ContractOp op) {
  NamedTensorType lhs = tensorOf(op.getLhs()), rhs = tensorOf(op.getRhs()), result = op.getType();
  ContractDims dims = classifyDims(lhs, rhs, result);
  // Nanoseconds for a copy, and for each of its bytes, read and written.
  constexpr double copyStep = 1000, copyByte = 0.25;
  std::optional<Choice> best;
  for (unsigned copies = 0; copies < 8; ++copies) {
    bool copyL = copies & 1, copyR = copies & 2, copyC = copies & 4;
    Names batch = inOrderOf(!copyC ? result : !copyL ? lhs : rhs, dims.batch);
    Names m = inOrderOf(copyC ? lhs : result, dims.m);
    Names n = inOrderOf(copyC ? rhs : result, dims.n);
    Names k = inOrderOf(copyL ? rhs : lhs, dims.k);
    Choice choice{lhs, rhs, result};
    auto copy = [&](NamedTensorType &type, NamedTensorType wanted) {
      type = wanted;
      choice.cost +=
          copyStep + copyByte * double(type.getNumElements()) * double(type.getElementBytes());
    };
    if (copyL)
      copy(choice.lhs, reordered(lhs, {batch, m, k}));
    if (copyR)
      copy(choice.rhs, reordered(rhs, {batch, k, n}));
    if (copyC)
      copy(choice.result, reordered(result, {batch, m, n}));
    choice.cost += planGemm(choice.lhs, choice.rhs, choice.result).cost;
    if (!best || choice.cost < best->cost)
      best = choice;
  }
  return *best;
}

/// Whether the op takes its operand's dims in any order and gives the same.
bool takesAnyOrder(Operation *op) {
  if (isa<ContractOp>(op))
    return true;
  return isElementwise(op) && !isa<RenameOp, SliceOp, PadOp, PinOp, MaskPaddingOp>(op);
}

std::string text(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

struct PrepareContractsPass : cleave::impl::PrepareContractsBase<PrepareContractsPass> {
  void runOnOperation() override {
    SmallVector<ContractOp> contracts;
    getOperation().walk([&](ContractOp op) {
      if (!op->getParentOfType<FusedOp>())
        contracts.push_back(op);
    });
    for (ContractOp op : contracts)
      prepare(op);
  }

  /// A product and, where names are summed, a sum.
  void asElementwise(ContractOp op, ArrayRef<StringRef> summed) {
    OpBuilder b(op);
    NamedTensorType lhs = tensorOf(op.getLhs()), type = op.getType();
    Names names(type.getNames());
    SmallVector<int64_t> sizes(type.getSizes());
    for (StringRef name : summed) {
      names.push_back(b.getStringAttr(name));
      sizes.push_back(lhs.sizeOf(name));
    }
    NamedTensorType whole =
        NamedTensorType::get(op.getContext(), type.getElementType(), names, sizes, {});
    Type element = type.getElementType();
    Value product =
        MulOp::create(b, op.getLoc(), whole, cleave::cast(b, op.getLoc(), op.getLhs(), element),
                      cleave::cast(b, op.getLoc(), op.getRhs(), element));
    Value value = product;
    if (!summed.empty())
      value = ReduceOp::create(b, op.getLoc(), type, Reduction::Sum, product,
                               b.getStrArrayAttr(summed));
    for (Value v : {product, value})
      v.getDefiningOp()->setDiscardableAttrs(op->getDiscardableAttrDictionary());
    op.replaceAllUsesWith(value);
    op.erase();
  }

  /// Products of short floats are added up in f32; a result that is short is rounded behind.
  void addUpWide(ContractOp op) {
    NamedTensorType type = op.getType();
    Type sum = accumulatorOf(type.getElementType());
    if (sum == type.getElementType())
      return;
    OpBuilder b(op);
    b.setInsertionPointAfter(op);
    op.getResult().setType(type.withElementType(sum));
    auto rounded = CastOp::create(b, op.getLoc(), type, op.getResult());
    rounded->setDiscardableAttrs(op->getDiscardableAttrDictionary());
    op.getResult().replaceAllUsesExcept(rounded, rounded);
  }

  void prepare(ContractOp op) {
    addUpWide(op);
    NamedTensorType lhs = tensorOf(op.getLhs()), rhs = tensorOf(op.getRhs()), type = op.getType();
    ContractDims dims = classifyDims(lhs, rhs, type);
    if (dims.k.empty() || (dims.m.empty() && dims.n.empty())) {
      SmallVector<StringRef> summed = op.getContracted();
      asElementwise(op, summed);
      return;
    }
    Choice choice = cheapest(op);
    OpBuilder b(op);
    auto copying = remark::RemarkOpts::name("copied").category("contract");
    auto copied = [&](OpOperand &operand, NamedTensorType wanted) {
      if (wanted.getNames() == tensorOf(operand.get()).getNames())
        return;
      auto copy = BroadcastOp::create(b, op.getLoc(), wanted, operand.get());
      copy->setDiscardableAttrs(op->getDiscardableAttrDictionary());
      remark::passed(op.getLoc(), copying)
          << "an operand of a contraction: " << text(operand.get().getType()) << " -> "
          << text(wanted);
      operand.set(copy);
    };
    copied(op->getOpOperand(0), choice.lhs);
    copied(op->getOpOperand(1), choice.rhs);
    if (choice.result.getNames() == type.getNames())
      return;
    op.getResult().setType(choice.result);
    SmallVector<OpOperand *> strict;
    for (OpOperand &use : op.getResult().getUses())
      if (!takesAnyOrder(use.getOwner()))
        strict.push_back(&use);
    if (strict.empty())
      return;
    b.setInsertionPointAfter(op);
    auto copy = BroadcastOp::create(b, op.getLoc(), type, op.getResult());
    copy->setDiscardableAttrs(op->getDiscardableAttrDictionary());
    remark::passed(op.getLoc(), copying)
        << "the result of a contraction: " << text(choice.result) << " -> " << text(type);
    for (OpOperand *use : strict)
      use->set(copy);
  }
};

//===----------------------------------------------------------------------===//
// Shard slices
//===----------------------------------------------------------------------===//

struct ExpandShardSlicesPass : cleave::impl::ExpandShardSlicesBase<ExpandShardSlicesPass> {
  void runOnOperation() override {
    SmallVector<ShardSliceOp> slices;
    getOperation().walk([&](ShardSliceOp op) { slices.push_back(op); });
    for (ShardSliceOp op : slices)
      expandShardSlice(op);
  }
};

/// Numbers for kernels: what a schedule looks like, without machine code.
class NumberedKernels : public KernelProvider {
public:
  explicit NumberedKernels(bool inPlace) : inPlace(inPlace) {}
  FailureOr<KernelInfo> kernelFor(FusedOp op) override {
    KernelInfo info;
    info.symbol = (op.getKind() + "_" + Twine(count++)).str();
    if (op.getNumResults() && tensorOf(op.getResult(0)).getRank())
      info.extent = tensorOf(op.getResult(0)).getSizes()[0];
    if (inPlace)
      info.inPlace = elementwisePairs(op);
    return info;
  }

private:
  bool inPlace;
  int count = 0;
};

struct PrintSchedulePass : cleave::impl::PrintScheduleBase<PrintSchedulePass> {
  using PrintScheduleBase::PrintScheduleBase;
  void runOnOperation() override {
    NumberedKernels kernels(inPlace);
    ScheduleOptions options;
    options.reuseMemory = reuse;
    FailureOr<Executable> executable = buildExecutable(getOperation(), kernels, options);
    if (failed(executable))
      return signalPassFailure();
    llvm::outs() << listing(*executable);
  }
};

} // namespace
