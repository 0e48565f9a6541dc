//===- Ops.cpp - verifiers, assembly, builders ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/Dialect.h"

#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace cleave;

#define GET_OP_CLASSES
#include "ir/CleaveOps.cpp.inc"

uint32_t cleave::siteHash(StringRef path) {
  uint32_t hash = 2166136261u;
  for (unsigned char c : path)
    hash = (hash ^ c) * 16777619u;
  return hash;
}

//===----------------------------------------------------------------------===//
// Builders
//===----------------------------------------------------------------------===//

Value cleave::constant(OpBuilder &b, Location loc, NamedTensorType type, double value) {
  TypedAttr attr;
  if (auto f = dyn_cast<FloatType>(type.getElementType()))
    attr = b.getFloatAttr(f, value);
  else
    attr = b.getIntegerAttr(type.getElementType(), static_cast<int64_t>(value));
  return ConstantOp::create(b, loc, type, attr);
}

NamedTensorType cleave::broadcastType(ArrayRef<NamedTensorType> operands, Type elementType) {
  const NamedTensorType *base = &operands.front();
  for (const NamedTensorType &t : operands)
    if (t.getRank() > base->getRank())
      base = &t;
  SmallVector<StringAttr> names(base->getNames());
  SmallVector<int64_t> sizes(base->getSizes());
  for (NamedTensorType t : operands)
    for (auto [name, size] : llvm::zip_equal(t.getNames(), t.getSizes()))
      if (!llvm::is_contained(names, name)) {
        names.push_back(name);
        sizes.push_back(size);
      }
  return NamedTensorType::get(base->getContext(), elementType, names, sizes, {});
}

Value cleave::reduce(OpBuilder &b, Location loc, Reduction kind, Value x,
                     ArrayRef<StringRef> dims) {
  if (dims.empty())
    return x;
  return ReduceOp::create(b, loc, tensorOf(x).withoutDims(dims), kind, x, b.getStrArrayAttr(dims));
}

Type cleave::accumulatorOf(Type element) {
  return isShortFloat(element) ? Float32Type::get(element.getContext()) : element;
}

bool cleave::holds(Type wide, Type narrow) {
  if (!isa<FloatType>(wide) || !isa<FloatType>(narrow))
    return false;
  return wide == narrow || wide.isF64() || (wide.isF32() && isShortFloat(narrow));
}

Value cleave::cast(OpBuilder &b, Location loc, Value x, Type elementType) {
  Type have = tensorOf(x).getElementType();
  if (have == elementType)
    return x;
  if (auto from = x.getDefiningOp<CastOp>()) {
    NamedTensorType before = tensorOf(from.getOperand());
    if (before.getElementType() == elementType && holds(have, elementType) &&
        before.getNames() == tensorOf(x).getNames())
      return from.getOperand();
  }
  return CastOp::create(b, loc, tensorOf(x).withElementType(elementType), x);
}

Value cleave::compare(OpBuilder &b, Location loc, Predicate p, Value x, Value y) {
  return CompareOp::create(b, loc, broadcastType({tensorOf(x), tensorOf(y)}, b.getI1Type()), p, x,
                           y);
}

Value cleave::select(OpBuilder &b, Location loc, Value condition, Value x, Value y) {
  NamedTensorType type =
      broadcastType({tensorOf(x), tensorOf(y), tensorOf(condition)}, tensorOf(x).getElementType());
  return SelectOp::create(b, loc, type, condition, x, y);
}

Value cleave::broadcastTo(OpBuilder &b, Location loc, Value x, NamedTensorType type) {
  NamedTensorType from = tensorOf(x);
  if (from.getNames() == type.getNames())
    return x;
  return BroadcastOp::create(b, loc, type.withElementType(from.getElementType()), x);
}

//===----------------------------------------------------------------------===//
// Verifiers
//===----------------------------------------------------------------------===//

/// Every dim of `part` is a dim of `whole` of the same size.
static LogicalResult dimsWithin(Operation *op, NamedTensorType part, NamedTensorType whole,
                                const Twine &what) {
  for (auto [name, size] : llvm::zip_equal(part.getNames(), part.getSizes())) {
    if (!whole.hasDim(name))
      return op->emitOpError() << what << " has the dim '" << name.getValue()
                               << "', which the result lacks";
    if (whole.sizeOf(name) != size)
      return op->emitOpError() << "dim '" << name.getValue() << "' has size " << size << " in "
                               << what << " but " << whole.sizeOf(name) << " in the result";
  }
  return success();
}

LogicalResult cleave::verifyElementwise(Operation *op) {
  NamedTensorType result = tensorOf(op->getResult(0));
  llvm::StringSet<> covered;
  bool sameElements = !isa<CompareOp, SelectOp, CastOp>(op);
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    auto type = dyn_cast<NamedTensorType>(operand.getType());
    if (!type)
      continue;
    if (failed(dimsWithin(op, type, result, "operand " + Twine(i))))
      return failure();
    for (StringAttr name : type.getNames())
      covered.insert(name);
    if (sameElements && type.getElementType() != result.getElementType())
      return op->emitOpError() << "operand " << i << " has elements of " << type.getElementType()
                               << ", the result of " << result.getElementType();
  }
  if (!isa<BroadcastOp>(op))
    for (StringAttr name : result.getNames())
      if (!covered.contains(name))
        return op->emitOpError() << "no operand has the result's dim '" << name.getValue()
                                 << "'; use cleave.broadcast";
  bool boolean = isa<AndOp, OrOp, NotOp>(op);
  bool real = isa<ExpOp, LogOp, SqrtOp, RsqrtOp, TanhOp, SigmoidOp, ErfOp, SinOp, CosOp, PowOp>(op);
  if (boolean && !result.getElementType().isInteger(1))
    return op->emitOpError() << "needs i1, not " << result.getElementType();
  if (real && !result.isFloat())
    return op->emitOpError() << "needs floats, not " << result.getElementType();
  return success();
}

LogicalResult ConstantOp::verify() {
  if (getValue().getType() != getType().getElementType())
    return emitOpError() << "the number is " << getValue().getType() << ", the elements are "
                         << getType().getElementType();
  return success();
}

static LogicalResult verifyHasDim(Operation *op, NamedTensorType type, StringRef dim,
                                  const Twine &what) {
  if (type.hasDim(dim))
    return success();
  return op->emitOpError() << what << " has no dim '" << dim << "'";
}

static LogicalResult verifyOffsets(Operation *op, OperandRange offsets, int64_t wanted) {
  if (offsets.empty() || static_cast<int64_t>(offsets.size()) == wanted)
    return success();
  return op->emitOpError() << "has " << offsets.size() << " offsets; it needs " << wanted
                           << " or none";
}

LogicalResult IotaOp::verify() {
  if (getType().getRank() != 1 || getType().getNames()[0].getValue() != getDim())
    return emitOpError() << "the result must have the one dim '" << getDim() << "'";
  return verifyOffsets(*this, getOffsets(), 1);
}

LogicalResult RandomOp::verify() {
  if (!getType().getElementType().isF32())
    return emitOpError() << "gives f32, not " << getType().getElementType();
  if (static_cast<int64_t>(getGlobalSizes().size()) != getType().getRank())
    return emitOpError() << "has " << getGlobalSizes().size() << " global sizes for "
                         << getType().getRank() << " dims";
  for (Value v : {getSeed(), getStep(), getLayer()})
    if (tensorOf(v).getRank() || tensorOf(v).isFloat())
      return emitOpError() << "seed, step and layer are integer scalars";
  return verifyOffsets(*this, getOffsets(), getType().getRank());
}

LogicalResult CompareOp::verify() {
  if (!getType().getElementType().isInteger(1))
    return emitOpError() << "gives i1, not " << getType().getElementType();
  if (tensorOf(getLhs()).getElementType() != tensorOf(getRhs()).getElementType())
    return emitOpError() << "compares " << tensorOf(getLhs()).getElementType() << " with "
                         << tensorOf(getRhs()).getElementType();
  return verifyElementwise(*this);
}

LogicalResult SelectOp::verify() {
  if (!tensorOf(getCondition()).getElementType().isInteger(1))
    return emitOpError() << "the condition must be i1";
  for (Value v : {getOnTrue(), getOnFalse()})
    if (tensorOf(v).getElementType() != getType().getElementType())
      return emitOpError() << "chooses among " << tensorOf(v).getElementType() << ", gives "
                           << getType().getElementType();
  return verifyElementwise(*this);
}

LogicalResult RenameOp::verify() {
  NamedTensorType from = tensorOf(getOperand());
  if (from.getElementType() != getType().getElementType() ||
      from.getSizes() != getType().getSizes())
    return emitOpError() << "changes more than names: " << from << " -> " << getType();
  return success();
}

LogicalResult ReduceOp::verify() {
  NamedTensorType from = tensorOf(getOperand());
  SmallVector<StringRef> dims(getDims().getAsValueRange<StringAttr>());
  for (StringRef dim : dims)
    if (failed(verifyHasDim(*this, from, dim, "the operand")))
      return failure();
  NamedTensorType wanted = from.withoutDims(dims);
  if (wanted.getNames() != getType().getNames() || wanted.getSizes() != getType().getSizes() ||
      wanted.getElementType() != getType().getElementType())
    return emitOpError() << "must give " << wanted << ", not " << getType();
  return success();
}

SmallVector<StringRef> ContractOp::getContracted() {
  SmallVector<StringRef> names;
  for (StringAttr name : tensorOf(getLhs()).getNames())
    if (tensorOf(getRhs()).hasDim(name) && !getType().hasDim(name))
      names.push_back(name);
  return names;
}

LogicalResult ContractOp::verify() {
  NamedTensorType lhs = tensorOf(getLhs()), rhs = tensorOf(getRhs());
  for (auto [name, size] : llvm::zip_equal(lhs.getNames(), lhs.getSizes())) {
    bool shared = rhs.hasDim(name);
    if (shared && rhs.sizeOf(name) != size)
      return emitOpError() << "dim '" << name.getValue() << "' has size " << size
                           << " on the left and " << rhs.sizeOf(name) << " on the right";
    if (!shared && !getType().hasDim(name))
      return emitOpError() << "dim '" << name.getValue()
                           << "' of the left side is neither in the right side nor in the result";
  }
  for (StringAttr name : rhs.getNames())
    if (!lhs.hasDim(name) && !getType().hasDim(name))
      return emitOpError() << "dim '" << name.getValue()
                           << "' of the right side is neither in the left side nor in the result";
  for (auto [name, size] : llvm::zip_equal(getType().getNames(), getType().getSizes())) {
    if (!lhs.hasDim(name) && !rhs.hasDim(name))
      return emitOpError() << "no side has the result's dim '" << name.getValue() << "'";
    int64_t have = lhs.hasDim(name) ? lhs.sizeOf(name) : rhs.sizeOf(name);
    if (have != size)
      return emitOpError() << "dim '" << name.getValue() << "' has size " << have
                           << " in the operands and " << size << " in the result";
  }
  Type element = lhs.getElementType(), sum = getType().getElementType();
  if (element != rhs.getElementType() || !lhs.isFloat())
    return emitOpError() << "needs floats of one type";
  if (sum != element && sum != accumulatorOf(element))
    return emitOpError() << "of " << element << " gives " << element
                         << (isShortFloat(element) ? " or f32" : "") << ", not " << sum;
  return success();
}

LogicalResult GatherOp::verify() {
  NamedTensorType table = tensorOf(getTable()), ids = tensorOf(getIds());
  if (failed(verifyHasDim(*this, table, getDim(), "the table")))
    return failure();
  if (!ids.getElementType().isInteger(32))
    return emitOpError() << "ids must be i32, not " << ids.getElementType();
  NamedTensorType row = table.withoutDims({getDim()});
  if (failed(dimsWithin(*this, row, getType(), "the table")) ||
      failed(dimsWithin(*this, ids, getType(), "the ids")))
    return failure();
  for (StringAttr name : getType().getNames())
    if (!row.hasDim(name) && !ids.hasDim(name))
      return emitOpError() << "neither table nor ids have the dim '" << name.getValue() << "'";
  return verifyOffsets(*this, getOffsets(), 1);
}

LogicalResult ScatterAddOp::verify() {
  NamedTensorType ids = tensorOf(getIds()), updates = tensorOf(getUpdates());
  if (failed(verifyHasDim(*this, getType(), getDim(), "the result")))
    return failure();
  if (!ids.getElementType().isInteger(32))
    return emitOpError() << "ids must be i32, not " << ids.getElementType();
  for (StringAttr name : ids.getNames())
    if (!updates.hasDim(name))
      return emitOpError() << "the updates lack the ids' dim '" << name.getValue() << "'";
  for (StringAttr name : getType().getNames())
    if (name.getValue() != getDim() && !updates.hasDim(name))
      return emitOpError() << "the updates lack the result's dim '" << name.getValue() << "'";
  return verifyOffsets(*this, getOffsets(), 1);
}

static LogicalResult verifyStrided(Operation *op, NamedTensorType part, NamedTensorType whole,
                                   int64_t partIndex, int64_t wholeIndex, int64_t start,
                                   int64_t stride) {
  if (part.getRank() != whole.getRank() || partIndex != wholeIndex)
    return op->emitOpError() << "operand and result must have the same dims, one renamed";
  for (int64_t i = 0; i < part.getRank(); ++i)
    if (i != partIndex &&
        (part.getNames()[i] != whole.getNames()[i] || part.getSizes()[i] != whole.getSizes()[i]))
      return op->emitOpError() << "dim '" << part.getNames()[i].getValue() << "' must not change";
  int64_t last = start + (part.getSizes()[partIndex] - 1) * stride;
  if (start < 0 || stride < 1 || last >= whole.getSizes()[wholeIndex])
    return op->emitOpError() << "elements " << start << " to " << last << " of a dim of size "
                             << whole.getSizes()[wholeIndex];
  return success();
}

LogicalResult SliceOp::verify() {
  NamedTensorType from = tensorOf(getOperand());
  int64_t i = from.indexOf(getDim());
  if (i < 0 || i >= getType().getRank())
    return emitOpError() << "the operand has no dim '" << getDim() << "'";
  return verifyStrided(*this, getType(), from, i, i, getStart(), getStride());
}

LogicalResult PadOp::verify() {
  NamedTensorType from = tensorOf(getOperand());
  int64_t i = from.indexOf(getDim());
  if (i < 0 || i >= getType().getRank())
    return emitOpError() << "the operand has no dim '" << getDim() << "'";
  return verifyStrided(*this, from, getType(), i, i, getStart(), getStride());
}

static LogicalResult verifyDims(Operation *op, NamedTensorType type, ArrayAttr dims) {
  for (StringRef dim : dims.getAsValueRange<StringAttr>())
    if (failed(verifyHasDim(op, type, dim, "the operand")))
      return failure();
  return success();
}

static LogicalResult verifySame(Operation *op, Value x) {
  NamedTensorType from = tensorOf(x), to = tensorOf(op->getResult(0));
  if (from.getNames() == to.getNames() && from.getSizes() == to.getSizes() &&
      from.getElementType() == to.getElementType())
    return success();
  return op->emitOpError() << "must give " << from << ", not " << to;
}

LogicalResult LayerNormOp::verify() {
  if (failed(verifyDims(*this, tensorOf(getX()), getDims())))
    return failure();
  return verifySame(*this, getX());
}
LogicalResult RmsNormOp::verify() {
  if (failed(verifyDims(*this, tensorOf(getX()), getDims())))
    return failure();
  return verifySame(*this, getX());
}
LogicalResult SoftmaxOp::verify() {
  if (failed(verifyDims(*this, tensorOf(getX()), getDims())))
    return failure();
  return verifySame(*this, getX());
}
LogicalResult GeluOp::verify() { return verifySame(*this, getX()); }
LogicalResult SiluOp::verify() { return verifySame(*this, getX()); }
LogicalResult ReluOp::verify() { return verifySame(*this, getX()); }
LogicalResult DropoutOp::verify() {
  double rate = getRate().convertToDouble();
  if (!(rate >= 0 && rate < 1))
    return emitOpError() << "rate " << rate << " is not in [0, 1)";
  return verifySame(*this, getX());
}
LogicalResult RopeOp::verify() {
  NamedTensorType x = tensorOf(getX());
  if (failed(verifyHasDim(*this, x, getDim(), "the operand")))
    return failure();
  if (getRotary() < 2 || getRotary() % 2 || static_cast<int64_t>(getRotary()) > x.sizeOf(getDim()))
    return emitOpError() << "rotates " << getRotary() << " of " << x.sizeOf(getDim())
                         << " elements of '" << getDim() << "'; it needs an even number of them";
  return verifySame(*this, getX());
}
LogicalResult ConcatOp::verify() {
  if (getInputs().empty() || getInputs().size() != getDims().size())
    return emitOpError() << "needs a dim name for each of its inputs";
  int64_t total = 0;
  for (auto [x, dim] : llvm::zip_equal(getInputs(), getDims().getAsValueRange<StringAttr>())) {
    if (failed(verifyHasDim(*this, tensorOf(x), dim, "an input")))
      return failure();
    total += tensorOf(x).sizeOf(dim);
  }
  if (failed(verifyHasDim(*this, getType(), getResultDim(), "the result")))
    return failure();
  if (total != getType().sizeOf(getResultDim()))
    return emitOpError() << "the inputs have " << total << " elements along the dim, the result "
                         << getType().sizeOf(getResultDim());
  return success();
}
LogicalResult CrossEntropyOp::verify() {
  NamedTensorType logits = tensorOf(getLogits()), labels = tensorOf(getLabels());
  if (failed(verifyHasDim(*this, logits, getDim(), "the logits")))
    return failure();
  if (getType().getRank() != 0)
    return emitOpError() << "gives a scalar";
  if (labels.getRank() + 1 != logits.getRank() || !labels.getElementType().isInteger(32))
    return emitOpError() << "labels must be i32 with the logits' dims but '" << getDim() << "'";
  return dimsWithin(*this, labels, logits, "labels");
}

template <typename Attention> static LogicalResult verifyAttention(Attention op) {
  NamedTensorType q = tensorOf(op.getQuery()), k = tensorOf(op.getKey()),
                  v = tensorOf(op.getValue());
  StringRef queryDim = op.getQueryDim(), keyDim = op.getKeyDim(), depthDim = op.getDepthDim(),
            valueDim = op.getValueDim();
  if (!q.hasDim(queryDim) || !q.hasDim(depthDim))
    return op.emitOpError() << "the query lacks '" << queryDim << "' or '" << depthDim << "'";
  if (!k.hasDim(keyDim) || !k.hasDim(depthDim))
    return op.emitOpError() << "the key lacks '" << keyDim << "' or '" << depthDim << "'";
  if (!v.hasDim(keyDim) || !v.hasDim(valueDim))
    return op.emitOpError() << "the value lacks '" << keyDim << "' or '" << valueDim << "'";
  if (q.hasDim(keyDim) || k.hasDim(queryDim))
    return op.emitOpError() << "query and key length need names of their own";
  if (k.getElementType() != q.getElementType() || v.getElementType() != q.getElementType())
    return op.emitOpError() << "query, key and value are of one type, not of " << q.getElementType()
                            << ", " << k.getElementType() << " and " << v.getElementType();
  for (StringAttr name : k.getNames())
    if (name != keyDim && !q.hasDim(name))
      return op.emitOpError() << "the key has the dim '" << name.getValue()
                              << "', which the query lacks";
  bool same = k.getRank() == v.getRank();
  for (StringAttr name : v.getNames())
    same &= name == valueDim || (k.hasDim(name) && name != depthDim);
  if (!same)
    return op.emitOpError() << "the value's dims are not the key's with '" << valueDim
                            << "' in place of '" << depthDim << "'";
  if (!op.getRandom().empty() && op.getRandom().size() != 3)
    return op.emitOpError() << "random operands are seed, step and layer";
  if (!op.getRandom().empty() && static_cast<int64_t>(op.getGlobalSizes().size()) != q.getRank())
    return op.emitOpError() << "with dropout needs the global size of each dim of the scores: "
                            << q.getRank() << ", not " << op.getGlobalSizes().size();
  return success();
}

static LogicalResult verifyAttentionResult(Operation *op, Value result, NamedTensorType q,
                                           StringRef depthDim, StringRef valueDim) {
  NamedTensorType type = tensorOf(result);
  bool right = type.getRank() == q.getRank() && type.hasDim(valueDim);
  for (StringAttr name : type.getNames())
    right &= name == valueDim || (q.hasDim(name) && name != depthDim);
  if (!right)
    return op->emitOpError() << "gives the query's dims with '" << valueDim << "' in place of '"
                             << depthDim << "', not " << type;
  return success();
}

LogicalResult AttentionOp::verify() {
  if (failed(verifyAttention(*this)))
    return failure();
  return verifyAttentionResult(*this, getResult(), tensorOf(getQuery()), getDepthDim(),
                               getValueDim());
}

LogicalResult AttentionGradOp::verify() {
  if (failed(verifyAttention(*this)))
    return failure();
  for (Value v : {getOutput(), getGradient()})
    if (failed(verifyAttentionResult(*this, v, tensorOf(getQuery()), getDepthDim(), getValueDim())))
      return failure();
  for (auto [result, of] : llvm::zip_equal(getResults(), getOperands().take_front(3)))
    if (tensorOf(result).getNames() != tensorOf(of).getNames())
      return emitOpError() << "the gradient of " << of.getType() << " is " << result.getType();
  return success();
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

static LogicalResult verifyCollective(Operation *op, ArrayRef<StringRef> dims) {
  NamedTensorType from = tensorOf(op->getOperand(0)), to = tensorOf(op->getResult(0));
  if (from.getNames() != to.getNames() || from.getElementType() != to.getElementType())
    return op->emitOpError() << "changes names or element type: " << from << " -> " << to;
  for (StringRef dim : dims)
    if (failed(verifyHasDim(op, from, dim, "the operand")))
      return failure();
  for (int64_t i = 0; i < from.getRank(); ++i)
    if (!llvm::is_contained(dims, from.getNames()[i].getValue()) &&
        from.getSizes()[i] != to.getSizes()[i])
      return op->emitOpError() << "changes the size of '" << from.getNames()[i].getValue() << "'";
  if (auto axes = op->getAttrOfType<ArrayAttr>("axes"))
    for (Attribute a : axes)
      if (!isa<AxisAttr>(a))
        return op->emitOpError() << "axes are #cleave.axis<...>, not " << a;
  return success();
}

LogicalResult AllReduceOp::verify() { return verifyCollective(*this, {}); }
LogicalResult AllGatherOp::verify() { return verifyCollective(*this, {getDim()}); }
LogicalResult ReduceScatterOp::verify() { return verifyCollective(*this, {getDim()}); }
LogicalResult AllToAllOp::verify() {
  if (getGatherDim() == getSplitDim())
    return emitOpError() << "needs two different dims";
  return verifyCollective(*this, {getGatherDim(), getSplitDim()});
}
LogicalResult ShardSliceOp::verify() { return verifyCollective(*this, {getDim()}); }
/// `parts` is `whole` with its first dim in two.
static bool splitsFirstDim(NamedTensorType whole, NamedTensorType parts) {
  return whole.getRank() > 0 && parts.getRank() == whole.getRank() + 1 &&
         parts.getElementType() == whole.getElementType() &&
         parts.getNames().drop_front() == whole.getNames() &&
         parts.getSizes().drop_front(2) == whole.getSizes().drop_front() &&
         parts.getSizes()[0] * parts.getSizes()[1] == whole.getSizes()[0];
}
LogicalResult SplitDimOp::verify() {
  NamedTensorType from = tensorOf(getOperand()), to = getType();
  if (!splitsFirstDim(from, to))
    return emitOpError() << "splits the first dim of " << from << " in two, which does not give "
                         << to;
  return success();
}
LogicalResult JoinDimsOp::verify() {
  NamedTensorType from = tensorOf(getOperand()), to = getType();
  if (!splitsFirstDim(to, from))
    return emitOpError() << "joins the first two dims of " << from << ", which does not give "
                         << to;
  return success();
}
LogicalResult PinOp::verify() { return verifyElementwise(*this); }
LogicalResult MaskPaddingOp::verify() {
  if (getExtents().size() != getDims().size())
    return emitOpError() << "has " << getExtents().size() << " extents for " << getDims().size()
                         << " dims";
  if (failed(verifyDims(*this, tensorOf(getOperand()), getDims())))
    return failure();
  return verifySame(*this, getOperand());
}

//===----------------------------------------------------------------------===//
// Repeat
//===----------------------------------------------------------------------===//

void RepeatOp::build(OpBuilder &b, OperationState &state, StringRef dim, int64_t count,
                     bool reverse, ValueRange inits, ValueRange stacked, TypeRange stackedOutputs) {
  state.addOperands(inits);
  state.addOperands(stacked);
  state.addAttribute(getDimAttrName(state.name), b.getStringAttr(dim));
  state.addAttribute(getCountAttrName(state.name), b.getI64IntegerAttr(count));
  if (reverse)
    state.addAttribute(getReverseAttrName(state.name), b.getUnitAttr());
  state.getOrAddProperties<Properties>().operandSegmentSizes = {
      static_cast<int32_t>(inits.size()), static_cast<int32_t>(stacked.size())};
  state.addTypes(inits.getTypes());
  state.addTypes(stackedOutputs);
  Region *region = state.addRegion();
  Block *block = new Block;
  region->push_back(block);
  block->addArgument(NamedTensorType::get(b.getContext(), b.getI32Type(), {}, {}, {}),
                     state.location);
  for (Value v : inits)
    block->addArgument(v.getType(), v.getLoc());
  for (Value v : stacked)
    block->addArgument(tensorOf(v).withoutDims({dim}), v.getLoc());
}

ParseResult RepeatOp::parse(OpAsmParser &parser, OperationState &result) {
  Builder &b = parser.getBuilder();
  StringAttr dim;
  std::string name;
  int64_t count;
  if (parser.parseKeywordOrString(&name) || parser.parseEqual() || parser.parseInteger(count))
    return failure();
  dim = b.getStringAttr(name);
  result.addAttribute("dim", dim);
  result.addAttribute("count", b.getI64IntegerAttr(count));
  if (succeeded(parser.parseOptionalKeyword("reverse")))
    result.addAttribute("reverse", b.getUnitAttr());
  SmallVector<OpAsmParser::Argument> arguments;
  OpAsmParser::Argument layer;
  if (parser.parseArgument(layer))
    return failure();
  layer.type = NamedTensorType::get(b.getContext(), b.getI32Type(), {}, {}, {});
  arguments.push_back(layer);
  SmallVector<OpAsmParser::UnresolvedOperand> operands[2];
  SmallVector<Type> types[2];
  SmallVector<OpAsmParser::Argument> slices;
  SmallVector<Type> resultTypes;
  auto parseCarried = [&]() -> ParseResult {
    auto &arg = arguments.emplace_back();
    if (parser.parseArgument(arg) || parser.parseEqual() ||
        parser.parseOperand(operands[0].emplace_back()) || parser.parseColonType(arg.type))
      return failure();
    types[0].push_back(arg.type);
    return success();
  };
  auto parseSlice = [&]() -> ParseResult {
    auto &arg = slices.emplace_back();
    if (parser.parseArgument(arg) || parser.parseEqual() ||
        parser.parseOperand(operands[1].emplace_back()) ||
        parser.parseColonType(types[1].emplace_back()) || parser.parseArrow() ||
        parser.parseType(arg.type))
      return failure();
    return success();
  };
  using D = AsmParser::Delimiter;
  if (succeeded(parser.parseOptionalKeyword("carry")) &&
      parser.parseCommaSeparatedList(D::Paren, parseCarried))
    return failure();
  if (succeeded(parser.parseOptionalKeyword("slices")) &&
      parser.parseCommaSeparatedList(D::Paren, parseSlice))
    return failure();
  if (succeeded(parser.parseOptionalArrow()) && parser.parseTypeList(resultTypes))
    return failure();
  llvm::append_range(arguments, slices);
  if (parser.parseOptionalAttrDictWithKeyword(result.attributes))
    return failure();
  Region *body = result.addRegion();
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseRegion(*body, arguments))
    return failure();
  for (int i : {0, 1})
    if (parser.resolveOperands(operands[i], types[i], loc, result.operands))
      return failure();
  result.getOrAddProperties<Properties>().operandSegmentSizes = {
      static_cast<int32_t>(types[0].size()), static_cast<int32_t>(types[1].size())};
  result.addTypes(resultTypes);
  return success();
}

void RepeatOp::print(OpAsmPrinter &p) {
  p << " ";
  p.printKeywordOrString(getDim());
  p << " = " << getCount() << (getReverse() ? " reverse " : " ");
  p.printRegionArgument(getLayer(), {}, /*omitType=*/true);
  auto printList = [&](StringRef word, Block::BlockArgListType args, OperandRange values,
                       bool withArgType) {
    if (args.empty())
      return;
    p << " " << word << "(";
    llvm::interleaveComma(llvm::zip_equal(args, values), p, [&](auto pair) {
      p.printRegionArgument(std::get<0>(pair), {}, /*omitType=*/true);
      p << " = " << std::get<1>(pair) << " : " << std::get<1>(pair).getType();
      if (withArgType)
        p << " -> " << std::get<0>(pair).getType();
    });
    p << ")";
  };
  printList("carry", getCarried(), getInits(), false);
  printList("slices", getSlices(), getStacked(), true);
  if (getNumResults())
    p << " -> " << getResultTypes();
  p.printOptionalAttrDictWithKeyword((*this)->getAttrs(),
                                     {"dim", "count", "reverse", getOperandSegmentSizesAttrName()});
  p << " ";
  p.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}

LogicalResult RepeatOp::verify() {
  Block &block = getBody().front();
  size_t carried = getInits().size(), slices = getStacked().size();
  if (block.getNumArguments() != 1 + carried + slices)
    return emitOpError() << "the region has " << block.getNumArguments() << " arguments; it needs "
                         << 1 + carried + slices;
  if (getNumResults() < carried)
    return emitOpError() << "has " << getNumResults() << " results for " << carried
                         << " carried values";
  if (getYield().getNumOperands() != getNumResults())
    return emitOpError() << "yields " << getYield().getNumOperands() << " values for "
                         << getNumResults() << " results";
  for (size_t i = 0; i < carried; ++i) {
    Type type = getInits()[i].getType();
    if (block.getArgument(1 + i).getType() != type || getYield().getOperand(i).getType() != type ||
        getResult(i).getType() != type)
      return emitOpError() << "carried value " << i << " changes its type: " << type << ", "
                           << block.getArgument(1 + i).getType() << ", "
                           << getYield().getOperand(i).getType() << ", " << getResult(i).getType();
  }
  auto checkStack = [&](Type stack, Type slice, StringRef what) -> LogicalResult {
    NamedTensorType whole = llvm::cast<NamedTensorType>(stack),
                    part = llvm::cast<NamedTensorType>(slice);
    if (whole.getRank() != part.getRank() + 1 || whole.getNames()[0].getValue() != getDim() ||
        whole.getSizes()[0] != static_cast<int64_t>(getCount()) ||
        whole.getNames().drop_front() != part.getNames() ||
        whole.getSizes().drop_front() != part.getSizes() ||
        whole.getElementType() != part.getElementType())
      return emitOpError() << what << " " << whole << " is not " << part << " stacked on '"
                           << getDim() << "'";
    return success();
  };
  for (size_t i = 0; i < slices; ++i)
    if (failed(checkStack(getStacked()[i].getType(), getSlices()[i].getType(), "input")))
      return failure();
  for (size_t i = carried; i < getNumResults(); ++i)
    if (failed(checkStack(getResult(i).getType(), getYield().getOperand(i).getType(), "output")))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// Fused
//===----------------------------------------------------------------------===//

ParseResult FusedOp::parse(OpAsmParser &parser, OperationState &result) {
  std::string kind;
  SmallVector<OpAsmParser::Argument> arguments;
  SmallVector<OpAsmParser::UnresolvedOperand> operands;
  SmallVector<Type> types, resultTypes;
  if (parser.parseKeywordOrString(&kind))
    return failure();
  result.addAttribute("kind", parser.getBuilder().getStringAttr(kind));
  auto parseOne = [&]() -> ParseResult {
    auto &arg = arguments.emplace_back();
    if (parser.parseArgument(arg) || parser.parseEqual() ||
        parser.parseOperand(operands.emplace_back()) || parser.parseColonType(arg.type))
      return failure();
    types.push_back(arg.type);
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren, parseOne))
    return failure();
  if (succeeded(parser.parseOptionalArrow()) && parser.parseTypeList(resultTypes))
    return failure();
  if (parser.parseOptionalAttrDictWithKeyword(result.attributes))
    return failure();
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseRegion(*result.addRegion(), arguments) ||
      parser.resolveOperands(operands, types, loc, result.operands))
    return failure();
  result.addTypes(resultTypes);
  return success();
}

void FusedOp::print(OpAsmPrinter &p) {
  p << " ";
  p.printKeywordOrString(getKind());
  p << "(";
  llvm::interleaveComma(llvm::zip_equal(getBody().getArguments(), getInputs()), p, [&](auto pair) {
    p.printRegionArgument(std::get<0>(pair), {}, /*omitType=*/true);
    p << " = " << std::get<1>(pair) << " : " << std::get<1>(pair).getType();
  });
  p << ")";
  if (getNumResults())
    p << " -> " << getResultTypes();
  p.printOptionalAttrDictWithKeyword((*this)->getAttrs(), {"kind"});
  p << " ";
  p.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}

LogicalResult FusedOp::verify() {
  if (getBody().front().getArgumentTypes() != getInputs().getTypes())
    return emitOpError() << "the region's arguments differ from the inputs";
  Operation *yield = getBody().front().getTerminator();
  if (yield->getOperandTypes() != getResultTypes())
    return emitOpError() << "the region yields other types than the results";
  return success();
}

YieldOp RepeatOp::getYield() { return llvm::cast<YieldOp>(getBody().front().getTerminator()); }
