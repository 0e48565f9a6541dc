//===- Values.cpp - code for one value at given coordinates ---------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/lowering/Generator.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include "llvm/Support/SaveAndRestore.h"

#include <limits>

using namespace mlir;
using namespace cleave;

static Type elementTypeOf(Value v) { return tensorOf(v).getElementType(); }
static Type shaped(Value like, Type element) {
  if (auto vector = dyn_cast<VectorType>(like.getType()))
    return VectorType::get(vector.getShape(), element);
  return element;
}

//===----------------------------------------------------------------------===//
// Lanes
//===----------------------------------------------------------------------===//

Value Generator::splat(OpBuilder &at, Value x) {
  if (isa<VectorType>(x.getType()) || lanes == 1)
    return x;
  return vector::BroadcastOp::create(at, loc, VectorType::get({lanes}, x.getType()), x);
}

Value Generator::laneNumbers(OpBuilder &at) {
  SmallVector<int64_t> numbers(lanes);
  for (int64_t i = 0; i < lanes; ++i)
    numbers[i] = i;
  auto type = VectorType::get({lanes}, at.getI64Type());
  return arith::ConstantOp::create(at, loc, DenseElementsAttr::get(type, ArrayRef(numbers)));
}

Value Generator::vectorOf(OpBuilder &at, const Index &index) {
  if (index.vector || index.lane == 0)
    return index.vector ? index.vector : index.base;
  Value steps = laneNumbers(at);
  if (index.lane != 1)
    steps = arith::MulIOp::create(at, loc, steps, splat(at, constant(index.lane)));
  return arith::AddIOp::create(at, loc, splat(at, index.base), steps);
}

//===----------------------------------------------------------------------===//
// Element types: as held and as stored
//===----------------------------------------------------------------------===//

Type Generator::registerType(Type element) {
  if (element.isF64())
    return b.getF64Type();
  if (isa<FloatType>(element))
    return b.getF32Type(); // f16 and bf16 are held as f32, rounded after each op
  return b.getIntegerType(element.getIntOrFloatBitWidth());
}

Type Generator::storageType(Type element) {
  if (element.isBF16())
    return b.getI16Type();
  if (element.isF16())
    return b.getF16Type();
  if (element.isInteger(1))
    return b.getI8Type();
  return registerType(element);
}

Value Generator::toRegister(OpBuilder &at, Value x, Type element) {
  VectorMath m(at, loc);
  if (element.isBF16())
    return m.unpackBF16(x);
  if (element.isF16())
    return arith::ExtFOp::create(at, loc, shaped(x, at.getF32Type()), x);
  if (element.isInteger(1))
    return arith::CmpIOp::create(at, loc, arith::CmpIPredicate::ne, x, m.integer(x, 0));
  return x;
}

Value Generator::toStorage(OpBuilder &at, Value x, Type element) {
  if (element.isBF16())
    return VectorMath(at, loc).packBF16(x);
  if (element.isF16())
    return arith::TruncFOp::create(at, loc, shaped(x, at.getF16Type()), x);
  if (element.isInteger(1))
    return arith::ExtUIOp::create(at, loc, shaped(x, at.getI8Type()), x);
  return x;
}

Value Generator::roundTo(OpBuilder &at, Value x, Type element) {
  if (element.isBF16())
    return VectorMath(at, loc).roundToBF16(x);
  if (element.isF16()) {
    Value half = arith::TruncFOp::create(at, loc, shaped(x, at.getF16Type()), x);
    return arith::ExtFOp::create(at, loc, x.getType(), half);
  }
  return x;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Generator::Address Generator::address(OpBuilder &at, Value buffer, NamedTensorType type,
                                      const Coordinates &coordinates) {
  Value offset, perLane;
  int64_t stride = 1, lane = 0;
  auto scaled = [&](Value x, int64_t by) -> Value {
    if (by == 1)
      return x;
    Value factor = splat(at, constant(by));
    if (!isa<VectorType>(x.getType()))
      factor = constant(by);
    return arith::MulIOp::create(at, loc, x, factor);
  };
  for (size_t i = coordinates.size(); i-- > 0;) {
    const Index &index = coordinates[i].index;
    Value &sum = index.vector ? perLane : offset;
    Value term = scaled(index.vector ? index.vector : index.base, stride);
    sum = sum ? Value(arith::AddIOp::create(at, loc, sum, term)) : term;
    if (!index.vector)
      lane += index.lane * stride;
    stride *= type.getSizes()[i];
  }
  Type element = storageType(type.getElementType());
  Type pointer = LLVM::LLVMPointerType::get(at.getContext());
  Address result;
  result.pointer = buffer;
  if (offset)
    result.pointer =
        LLVM::GEPOp::create(at, loc, pointer, element, buffer, ArrayRef<LLVM::GEPArg>{offset});
  result.vector = perLane || lane;
  if (!perLane && lane <= 1)
    return result;
  if (lane) {
    Value steps = scaled(laneNumbers(at), lane);
    perLane = perLane ? Value(arith::AddIOp::create(at, loc, perLane, steps)) : steps;
  }
  result.perLane = true;
  result.pointer = LLVM::GEPOp::create(at, loc, VectorType::get({lanes}, pointer), element,
                                       result.pointer, ArrayRef<LLVM::GEPArg>{perLane});
  return result;
}

static Value allLanes(OpBuilder &b, Location loc, int64_t lanes) {
  auto type = VectorType::get({lanes}, b.getI1Type());
  return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, true));
}

Value Generator::load(Value buffer, NamedTensorType type, const Coordinates &coordinates, Mask mask,
                      Scope *scope) {
  OpBuilder &at = in(scope);
  Address a = address(at, buffer, type, coordinates);
  Type element = storageType(type.getElementType());
  auto align = static_cast<unsigned>(type.getElementBytes());
  Value x;
  if (!a.vector) {
    x = LLVM::LoadOp::create(at, loc, element, a.pointer, align);
  } else {
    auto vector = VectorType::get({lanes}, element);
    Value zero;
    if (mask.value)
      zero = arith::ConstantOp::create(at, loc, cast<TypedAttr>(at.getZeroAttr(vector)));
    if (a.perLane) {
      Value used = mask.value ? mask.value : allLanes(at, loc, lanes);
      x = LLVM::masked_gather::create(at, loc, vector, a.pointer, used,
                                      zero ? ValueRange(zero) : ValueRange(),
                                      at.getI32IntegerAttr(align));
    } else if (mask.value) {
      x = LLVM::MaskedLoadOp::create(at, loc, vector, a.pointer, mask.value, zero,
                                     at.getI32IntegerAttr(align), UnitAttr());
    } else {
      x = LLVM::LoadOp::create(at, loc, vector, a.pointer, align);
    }
  }
  return toRegister(at, x, type.getElementType());
}

Operation *Generator::store(Value buffer, NamedTensorType type, const Coordinates &coordinates,
                            Value value, Mask mask, Scope *scope) {
  OpBuilder &at = in(scope);
  Address a = address(at, buffer, type, coordinates);
  auto align = static_cast<unsigned>(type.getElementBytes());
  if (a.vector)
    value = splat(at, value);
  value = toStorage(at, value, type.getElementType());
  if (a.perLane) {
    Value used = mask.value ? mask.value : allLanes(at, loc, lanes);
    return LLVM::masked_scatter::create(at, loc, value, a.pointer, used,
                                        at.getI32IntegerAttr(align));
  }
  if (a.vector && mask.value)
    return LLVM::MaskedStoreOp::create(at, loc, value, a.pointer, mask.value,
                                       at.getI32IntegerAttr(align));
  return LLVM::StoreOp::create(at, loc, value, a.pointer, align);
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

Value Generator::eval(Value v, const Coordinates &all, Mask mask) {
  NamedTensorType type = tensorOf(v);
  Coordinates coordinates = restrict(all, type);
  bool uniform = llvm::all_of(coordinates, [](const Coordinate &c) { return c.index.uniform(); });
  if (uniform)
    mask = {};
  Scope *scope = deeper(scopeOf(coordinates), mask.scope);
  std::vector<uintptr_t> key{reinterpret_cast<uintptr_t>(v.getAsOpaquePointer()),
                             reinterpret_cast<uintptr_t>(mask.value.getAsOpaquePointer())};
  for (const Coordinate &c : coordinates) {
    key.push_back(reinterpret_cast<uintptr_t>(c.index.base.getAsOpaquePointer()));
    key.push_back(static_cast<uintptr_t>(c.index.lane));
    key.push_back(reinterpret_cast<uintptr_t>(c.index.vector.getAsOpaquePointer()));
  }
  auto known = scope->memo.find(key);
  if (known != scope->memo.end())
    return known->second;
  Value result;
  if (auto arg = dyn_cast<BlockArgument>(v)) {
    unsigned input = bufferOf.lookup(arg);
    result = load(buffers[input], type, coordinates, mask, scope);
    reads.push_back({input, scope, coordinates, groupsBegun, result.getDefiningOp()});
  } else if (Waiting *w = waitingFor(v); w && w->filled && isInThisRow(coordinates)) {
    result = loadWaiting(*w, coordinates, mask, scope);
  } else {
    const Coordinates *here = w ? filling : nullptr;
    bool isMade = here && llvm::is_contained(fillingBy, w->madeBy);
    if (isMade)
      for (auto [x, y] : llvm::zip_equal(coordinates, restrict(*here, type)))
        isMade = isMade && sameIndex(x.index, y.index);
    result = evalOp(v.getDefiningOp(), coordinates, mask, scope);
    if (isMade)
      storeWaiting(*w, coordinates, result, mask, scope);
  }
  scope->memo[key] = result;
  return result;
}

Value Generator::evalOp(Operation *op, const Coordinates &coordinates, Mask mask, Scope *scope) {
  Type element = elementTypeOf(op->getResult(0));
  if (auto constantOp = dyn_cast<ConstantOp>(op)) {
    OpBuilder at = OpBuilder::atBlockBegin(root->block);
    if (auto f = dyn_cast<FloatAttr>(constantOp.getValue())) {
      APFloat value = f.getValue();
      bool inexact;
      value.convert(element.isF64() ? APFloat::IEEEdouble() : APFloat::IEEEsingle(),
                    APFloat::rmNearestTiesToEven, &inexact);
      return arith::ConstantOp::create(
          at, loc, FloatAttr::get(cast<FloatType>(registerType(element)), value));
    }
    return arith::ConstantOp::create(
        at, loc,
        IntegerAttr::get(registerType(element),
                         cast<IntegerAttr>(constantOp.getValue()).getValue()));
  }
  auto counted = [&](Value result) {
    countFunction(op, result, scope);
    return result;
  };
  if (auto iota = dyn_cast<IotaOp>(op))
    return evalIota(iota, coordinates, scope);
  if (auto random = dyn_cast<RandomOp>(op))
    return counted(evalRandom(random, coordinates, scope));
  if (isa<BroadcastOp, BarrierOp, StopGradientOp, PinOp>(op))
    return eval(op->getOperand(0), coordinates, mask);
  if (isa<RenameOp>(op)) {
    Coordinates renamed;
    for (auto [name, c] : llvm::zip_equal(tensorOf(op->getOperand(0)).getNames(), coordinates))
      renamed.push_back({name, c.index});
    return eval(op->getOperand(0), renamed, mask);
  }
  if (auto slice = dyn_cast<SliceOp>(op)) {
    NamedTensorType from = tensorOf(slice.getOperand());
    int64_t i = from.indexOf(slice.getDim());
    auto start = static_cast<int64_t>(slice.getStart()),
         step = static_cast<int64_t>(slice.getStride());
    Coordinates moved = coordinates;
    Index &index = moved[i].index;
    moved[i].dim = from.getNames()[i];
    OpBuilder &at = in(index.scope);
    auto affine = [&](Value x) -> Value {
      bool isVector = isa<VectorType>(x.getType());
      auto number = [&](int64_t n) { return isVector ? splat(at, constant(n)) : constant(n); };
      if (step != 1)
        x = arith::MulIOp::create(at, loc, x, number(step));
      return start ? Value(arith::AddIOp::create(at, loc, x, number(start))) : x;
    };
    // One set of index values for all elements read this way: the memo compares them.
    std::vector<uintptr_t> key{reinterpret_cast<uintptr_t>(op), 1,
                               reinterpret_cast<uintptr_t>(index.base.getAsOpaquePointer()),
                               reinterpret_cast<uintptr_t>(index.vector.getAsOpaquePointer())};
    Value &known = index.scope->memo[key];
    if (!known)
      known = affine(index.vector ? index.vector : index.base);
    (index.vector ? index.vector : index.base) = known;
    index.lane *= step;
    return eval(slice.getOperand(), moved, mask);
  }
  if (auto pad = dyn_cast<PadOp>(op))
    return evalPad(pad, coordinates, mask, scope);
  if (auto gather = dyn_cast<GatherOp>(op))
    return evalGather(gather, coordinates, mask, scope);
  if (auto padding = dyn_cast<MaskPaddingOp>(op))
    return evalMaskPadding(padding, coordinates, mask, scope);
  if (isa<ReduceOp, ContractOp>(op))
    return evalAccumulators(op, coordinates, mask, scope);
  if (isElementwise(op)) {
    SmallVector<Value> operands;
    for (Value v : op->getOperands())
      operands.push_back(eval(v, coordinates, mask));
    if (failed)
      return error(op, "", element);
    return counted(evalArithmetic(op, operands, scope));
  }
  return error(op, "this op cannot be part of a group", element);
}

Value Generator::evalIota(IotaOp op, const Coordinates &coordinates, Scope *scope) {
  OpBuilder &at = in(scope);
  const Index &index = coordinates[0].index;
  Value x = vectorOf(at, index);
  if (!op.getOffsets().empty()) {
    Value offset = scalars.lookup(op.getOffsets()[0]);
    if (isa<VectorType>(x.getType()))
      offset = splat(at, offset);
    x = arith::AddIOp::create(at, loc, x, offset);
  }
  return evalCast(at, x, IntegerType::get(op.getContext(), 64), op.getType().getElementType());
}

Value Generator::evalRandom(RandomOp op, const Coordinates &coordinates, Scope *scope) {
  Value words[3];
  words[0] = eval(op.getSeed(), {}, {});
  words[1] = eval(op.getStep(), {}, {});
  words[2] = eval(op.getLayer(), {}, {});
  OpBuilder &at = in(scope);
  Type i32 = at.getI32Type(), i64 = at.getI64Type();
  auto resize = [&](Value x, Type to) -> Value {
    unsigned have = x.getType().getIntOrFloatBitWidth(), want = to.getIntOrFloatBitWidth();
    if (have == want)
      return x;
    if (have < want)
      return arith::ExtSIOp::create(at, loc, to, x);
    return arith::TruncIOp::create(at, loc, to, x);
  };
  // Row-major index in the global tensor.
  Index sum{constant(0), 0, {}, scope};
  int64_t stride = 1;
  for (size_t i = coordinates.size(); i-- > 0;) {
    const Index &index = coordinates[i].index;
    auto scaled = [&](Value x) -> Value {
      Value factor = constant(stride);
      if (isa<VectorType>(x.getType()))
        factor = splat(at, factor);
      return arith::MulIOp::create(at, loc, x, factor);
    };
    if (index.vector) {
      Value term = scaled(index.vector);
      sum.vector = sum.vector ? Value(arith::AddIOp::create(at, loc, sum.vector, term)) : term;
    } else {
      sum.base = arith::AddIOp::create(at, loc, sum.base, scaled(index.base));
      sum.lane += index.lane * stride;
    }
    if (!op.getOffsets().empty())
      sum.base =
          arith::AddIOp::create(at, loc, sum.base, scaled(scalars.lookup(op.getOffsets()[i])));
    stride *= op.getGlobalSizes()[i];
  }
  Value linear;
  if (sum.vector) {
    Value affine = vectorOf(at, {sum.base, sum.lane, {}, scope});
    linear = arith::AddIOp::create(at, loc, sum.vector, splat(at, affine));
  } else {
    linear = vectorOf(at, sum);
  }
  return VectorMath(at, loc).uniform(linear, resize(words[0], i64), resize(words[1], i32),
                                     resize(words[2], i32), static_cast<int64_t>(op.getSite()),
                                     stride <= kShortIndices);
}

Value Generator::evalPad(PadOp op, const Coordinates &coordinates, Mask mask, Scope *scope) {
  NamedTensorType from = tensorOf(op.getOperand());
  int64_t i = from.indexOf(op.getDim()), size = from.getSizes()[i];
  auto start = static_cast<int64_t>(op.getStart()), step = static_cast<int64_t>(op.getStride());
  Coordinates moved = coordinates;
  Index &index = moved[i].index;
  moved[i].dim = from.getNames()[i];
  Scope *where = index.scope;
  using P = arith::CmpIPredicate;
  Value inside; // scalar, or of each lane
  {
    OpBuilder &at = in(where);
    VectorMath m(at, loc);
    bool affine = index.lane && step == 1 && !index.vector;
    Value x = affine ? index.base : vectorOf(at, index);
    Value position = arith::SubIOp::create(at, loc, x, m.integer(x, start));
    if (affine) {
      index.base = position;
      Value each = vectorOf(at, index);
      inside = arith::CmpIOp::create(at, loc, P::ult, each, m.integer(each, size));
    } else {
      // Unsigned: positions before `start` become huge.
      Value quotient = position;
      if (step != 1)
        quotient = arith::DivUIOp::create(at, loc, position, m.integer(x, step));
      inside = arith::CmpIOp::create(at, loc, P::ult, quotient, m.integer(x, size));
      if (step != 1) {
        Value back = arith::MulIOp::create(at, loc, quotient, m.integer(x, step));
        Value exact = arith::CmpIOp::create(at, loc, P::eq, back, position);
        inside = arith::AndIOp::create(at, loc, inside, exact);
      }
      Value clamped = arith::SelectOp::create(at, loc, inside, quotient, m.integer(x, 0));
      bool isVector = isa<VectorType>(clamped.getType());
      index = {isVector ? Value() : clamped, 0, isVector ? clamped : Value(), where};
    }
  }
  Mask within = mask;
  if (isa<VectorType>(inside.getType())) {
    within.scope = deeper(mask.scope, where);
    within.value = mask.value
                       ? Value(arith::AndIOp::create(in(within.scope), loc, mask.value, inside))
                       : inside;
  }
  Value x = eval(op.getOperand(), moved, within);
  OpBuilder &at = in(scope);
  if (isa<VectorType>(inside.getType()))
    x = splat(at, x);
  Value zero = VectorMath(at, loc).number(x, 0);
  return arith::SelectOp::create(at, loc, inside, x, zero);
}

Value Generator::evalGather(GatherOp op, const Coordinates &coordinates, Mask mask, Scope *scope) {
  NamedTensorType table = tensorOf(op.getTable());
  Coordinates idCoordinates = restrict(coordinates, tensorOf(op.getIds()));
  Value id = eval(op.getIds(), coordinates, mask);
  bool lanewise = isa<VectorType>(id.getType());
  Scope *where = scopeOf(idCoordinates);
  if (lanewise)
    where = deeper(where, mask.scope);
  OpBuilder &at = in(where);
  VectorMath m(at, loc);
  id = arith::ExtSIOp::create(at, loc, shaped(id, at.getI64Type()), id);
  if (!op.getOffsets().empty()) {
    Value offset = scalars.lookup(op.getOffsets()[0]);
    id = arith::SubIOp::create(at, loc, id, lanewise ? splat(at, offset) : offset);
  }
  Value inside = arith::CmpIOp::create(at, loc, arith::CmpIPredicate::ult, id,
                                       m.integer(id, table.sizeOf(op.getDim())));
  Value row = arith::SelectOp::create(at, loc, inside, id, m.integer(id, 0));
  Mask within = mask;
  if (lanewise) {
    within.scope = where;
    within.value = mask.value ? Value(arith::AndIOp::create(at, loc, mask.value, inside)) : inside;
  }
  Coordinates moved = coordinates;
  moved.push_back({StringAttr::get(op.getContext(), op.getDim()),
                   {lanewise ? Value() : row, 0, lanewise ? row : Value(), where}});
  Value x = eval(op.getTable(), moved, within);
  OpBuilder &here = in(scope);
  if (lanewise)
    x = splat(here, x);
  Value zero = VectorMath(here, loc).number(x, 0);
  return arith::SelectOp::create(here, loc, inside, x, zero);
}

Value Generator::evalMaskPadding(MaskPaddingOp op, const Coordinates &coordinates, Mask mask,
                                 Scope *scope) {
  Value x = eval(op.getOperand(), coordinates, mask);
  OpBuilder &at = in(scope);
  Value inside;
  for (auto [name, extent] :
       llvm::zip_equal(op.getDims().getAsRange<StringAttr>(), op.getExtents())) {
    StringAttr dim = StringAttr::get(op.getContext(), name.getValue());
    Value i = vectorOf(at, *find(coordinates, dim));
    Value end = scalars.lookup(extent);
    if (isa<VectorType>(i.getType()))
      end = splat(at, end);
    Value below = arith::CmpIOp::create(at, loc, arith::CmpIPredicate::slt, i, end);
    if (!inside) {
      inside = below;
      continue;
    }
    if (isa<VectorType>(inside.getType()) != isa<VectorType>(below.getType())) {
      inside = splat(at, inside);
      below = splat(at, below);
    }
    inside = arith::AndIOp::create(at, loc, inside, below);
  }
  if (!inside)
    return x;
  if (isa<VectorType>(inside.getType()))
    x = splat(at, x);
  Value fill = VectorMath(at, loc).number(x, op.getFill().convertToDouble());
  return arith::SelectOp::create(at, loc, inside, x,
                                 roundTo(at, fill, elementTypeOf(op.getResult())));
}

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

Value Generator::evalCast(OpBuilder &at, Value x, Type from, Type to) {
  VectorMath m(at, loc);
  Type target = shaped(x, registerType(to));
  bool fromFloat = isa<FloatType>(from), toFloat = isa<FloatType>(to);
  if (fromFloat && toFloat) {
    unsigned have = getElementTypeOrSelf(x.getType()).getIntOrFloatBitWidth();
    unsigned want = getElementTypeOrSelf(target).getIntOrFloatBitWidth();
    if (have < want)
      x = arith::ExtFOp::create(at, loc, target, x);
    else if (have > want)
      x = arith::TruncFOp::create(at, loc, target, x);
    return roundTo(at, x, to);
  }
  if (toFloat) {
    if (from.isInteger(1))
      x = arith::UIToFPOp::create(at, loc, target, x);
    else
      x = arith::SIToFPOp::create(at, loc, target, x);
    return roundTo(at, x, to);
  }
  using P = arith::CmpFPredicate;
  if (fromFloat) {
    if (to.isInteger(1))
      return arith::CmpFOp::create(at, loc, P::UNE, x, m.number(x, 0));
    // Towards zero; what does not fit becomes the nearest end, NaN becomes 0.
    unsigned bits = to.getIntOrFloatBitWidth();
    double end = std::ldexp(1.0, static_cast<int>(bits) - 1);
    Value tooBig = arith::CmpFOp::create(at, loc, P::OGE, x, m.number(x, end));
    Value tooSmall = arith::CmpFOp::create(at, loc, P::OLT, x, m.number(x, -end));
    Value fits = arith::CmpFOp::create(at, loc, P::OEQ, x, x);
    fits = arith::AndIOp::create(
        at, loc, fits, Value(arith::CmpFOp::create(at, loc, P::OLT, x, m.number(x, end))));
    fits = arith::AndIOp::create(
        at, loc, fits, Value(arith::CmpFOp::create(at, loc, P::OGE, x, m.number(x, -end))));
    Value safe = arith::SelectOp::create(at, loc, fits, x, m.number(x, 0));
    Value y = arith::FPToSIOp::create(at, loc, target, safe);
    APInt high = APInt::getSignedMaxValue(bits), low = APInt::getSignedMinValue(bits);
    y = arith::SelectOp::create(at, loc, tooBig, m.integer(y, high.getSExtValue()), y);
    return arith::SelectOp::create(at, loc, tooSmall, m.integer(y, low.getSExtValue()), y);
  }
  unsigned have = from.getIntOrFloatBitWidth(), want = to.getIntOrFloatBitWidth();
  if (have == want)
    return x;
  if (want == 1)
    return arith::CmpIOp::create(at, loc, arith::CmpIPredicate::ne, x, m.integer(x, 0));
  if (have == 1)
    return arith::ExtUIOp::create(at, loc, target, x);
  if (have < want)
    return arith::ExtSIOp::create(at, loc, target, x);
  return arith::TruncIOp::create(at, loc, target, x);
}

Value Generator::evalInteger(OpBuilder &at, Operation *op, ArrayRef<Value> v) {
  VectorMath m(at, loc);
  using P = arith::CmpIPredicate;
  if (isa<AddOp>(op))
    return arith::AddIOp::create(at, loc, v[0], v[1]);
  if (isa<SubOp>(op))
    return arith::SubIOp::create(at, loc, v[0], v[1]);
  if (isa<MulOp>(op))
    return arith::MulIOp::create(at, loc, v[0], v[1]);
  if (isa<AndOp>(op))
    return arith::AndIOp::create(at, loc, v[0], v[1]);
  if (isa<OrOp>(op))
    return arith::OrIOp::create(at, loc, v[0], v[1]);
  if (isa<NotOp>(op))
    return arith::XOrIOp::create(at, loc, v[0], m.integer(v[0], 1));
  if (isa<MaximumOp>(op))
    return combine(at, Reduction::Max, v[0], v[1]);
  if (isa<MinimumOp>(op))
    return combine(at, Reduction::Min, v[0], v[1]);
  if (isa<NegOp>(op))
    return arith::SubIOp::create(at, loc, m.integer(v[0], 0), v[0]);
  if (isa<AbsOp>(op)) {
    Value negative = arith::CmpIOp::create(at, loc, P::slt, v[0], m.integer(v[0], 0));
    Value turned = arith::SubIOp::create(at, loc, m.integer(v[0], 0), v[0]);
    return arith::SelectOp::create(at, loc, negative, turned, v[0]);
  }
  if (isa<DivOp>(op)) {
    // Towards zero. x / 0 = 0 and the overflowing x / -1 = -x trap nowhere.
    Value zero = m.integer(v[0], 0), one = m.integer(v[0], 1);
    Value byZero = arith::CmpIOp::create(at, loc, P::eq, v[1], zero);
    Value byMinusOne = arith::CmpIOp::create(at, loc, P::eq, v[1], m.integer(v[0], -1));
    Value special = arith::OrIOp::create(at, loc, byZero, byMinusOne);
    Value divisor = arith::SelectOp::create(at, loc, special, one, v[1]);
    Value q = arith::DivSIOp::create(at, loc, v[0], divisor);
    Value turned = arith::SubIOp::create(at, loc, zero, v[0]);
    q = arith::SelectOp::create(at, loc, byMinusOne, turned, q);
    return arith::SelectOp::create(at, loc, byZero, zero, q);
  }
  return {};
}

Value Generator::evalArithmetic(Operation *op, MutableArrayRef<Value> v, Scope *scope) {
  OpBuilder &at = in(scope);
  VectorMath m(at, loc);
  Type element = elementTypeOf(op->getResult(0));
  if (llvm::any_of(v, [](Value x) { return isa<VectorType>(x.getType()); }))
    for (Value &x : v)
      x = splat(at, x);
  if (auto castOp = dyn_cast<CastOp>(op))
    return evalCast(at, v[0], elementTypeOf(castOp.getOperand()), element);
  if (isa<SelectOp>(op))
    return arith::SelectOp::create(at, loc, v[0], v[1], v[2]);
  if (auto compare = dyn_cast<CompareOp>(op)) {
    auto i = static_cast<unsigned>(compare.getPredicate());
    if (tensorOf(compare.getLhs()).isFloat()) {
      using P = arith::CmpFPredicate;
      constexpr P table[] = {P::OEQ, P::UNE, P::OLT, P::OLE, P::OGT, P::OGE};
      return arith::CmpFOp::create(at, loc, table[i], v[0], v[1]);
    }
    using P = arith::CmpIPredicate;
    constexpr P table[] = {P::eq, P::ne, P::slt, P::sle, P::sgt, P::sge};
    constexpr P unsignedTable[] = {P::eq, P::ne, P::ult, P::ule, P::ugt, P::uge};
    bool boolean = elementTypeOf(compare.getLhs()).isInteger(1);
    return arith::CmpIOp::create(at, loc, boolean ? unsignedTable[i] : table[i], v[0], v[1]);
  }
  Value y;
  if (isa<IntegerType>(element)) {
    y = evalInteger(at, op, v);
    return y ? y : error(op, "not on integers", element);
  }
  if (isa<AddOp>(op))
    y = arith::AddFOp::create(at, loc, v[0], v[1]);
  else if (isa<SubOp>(op))
    y = arith::SubFOp::create(at, loc, v[0], v[1]);
  else if (isa<MulOp>(op))
    y = arith::MulFOp::create(at, loc, v[0], v[1]);
  else if (isa<DivOp>(op))
    y = arith::DivFOp::create(at, loc, v[0], v[1]);
  else if (isa<MaximumOp>(op))
    y = combine(at, Reduction::Max, v[0], v[1]);
  else if (isa<MinimumOp>(op))
    y = combine(at, Reduction::Min, v[0], v[1]);
  else if (isa<PowOp>(op))
    y = m.pow(v[0], v[1]);
  else if (isa<NegOp>(op))
    y = arith::NegFOp::create(at, loc, v[0]);
  else if (isa<AbsOp>(op))
    y = math::AbsFOp::create(at, loc, v[0]);
  else if (isa<ExpOp>(op))
    y = m.exp(v[0]);
  else if (isa<LogOp>(op))
    y = m.log(v[0]);
  else if (isa<SqrtOp>(op))
    y = m.sqrt(v[0]);
  else if (isa<RsqrtOp>(op))
    y = m.rsqrt(v[0]);
  else if (isa<TanhOp>(op))
    y = m.tanh(v[0]);
  else if (isa<SigmoidOp>(op))
    y = m.sigmoid(v[0]);
  else if (isa<ErfOp>(op))
    y = m.erf(v[0]);
  else if (isa<SinOp>(op))
    y = m.sin(v[0]);
  else if (isa<CosOp>(op))
    y = m.cos(v[0]);
  else
    return error(op, "no code for this op", element);
  return roundTo(at, y, element);
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

Value Generator::combine(OpBuilder &at, Reduction kind, Value x, Value y) {
  Type element = getElementTypeOrSelf(x.getType());
  if (isa<FloatType>(element)) {
    if (kind == Reduction::Sum)
      return arith::AddFOp::create(at, loc, x, y);
    if (kind == Reduction::Max)
      return arith::MaximumFOp::create(at, loc, x, y, arith::FastMathFlags::nsz);
    return arith::MinimumFOp::create(at, loc, x, y, arith::FastMathFlags::nsz);
  }
  if (element.isInteger(1)) { // sum and max: any, min: all
    if (kind == Reduction::Min)
      return arith::AndIOp::create(at, loc, x, y);
    return arith::OrIOp::create(at, loc, x, y);
  }
  if (kind == Reduction::Sum)
    return arith::AddIOp::create(at, loc, x, y);
  if (kind == Reduction::Max)
    return arith::MaxSIOp::create(at, loc, x, y);
  return arith::MinSIOp::create(at, loc, x, y);
}

Value Generator::neutral(OpBuilder &at, Accumulator &a, bool asVector) {
  Type type = registerType(elementTypeOf(a.op->getResult(0)));
  if (asVector && lanes > 1)
    type = VectorType::get({lanes}, type);
  Value zero = arith::ConstantOp::create(at, loc, cast<TypedAttr>(at.getZeroAttr(type)));
  VectorMath m(at, loc);
  if (a.kind == Reduction::Sum)
    return zero;
  Type element = getElementTypeOrSelf(type);
  if (isa<FloatType>(element)) {
    double inf = std::numeric_limits<double>::infinity();
    return m.number(zero, a.kind == Reduction::Max ? -inf : inf);
  }
  unsigned bits = element.getIntOrFloatBitWidth();
  if (bits == 1)
    return a.kind == Reduction::Max ? zero : m.integer(zero, 1);
  APInt end =
      a.kind == Reduction::Max ? APInt::getSignedMinValue(bits) : APInt::getSignedMaxValue(bits);
  return m.integer(zero, end.getSExtValue());
}

Value Generator::horizontal(OpBuilder &at, Reduction kind, Value x) {
  // A tree over the lanes, the same for every row.
  for (int64_t n = lanes; n > 1; n /= 2) {
    SmallVector<int64_t> low(n / 2), high(n / 2);
    for (int64_t i = 0; i < n / 2; ++i) {
      low[i] = i;
      high[i] = i + n / 2;
    }
    Value l = vector::ShuffleOp::create(at, loc, x, x, low);
    Value h = vector::ShuffleOp::create(at, loc, x, x, high);
    x = combine(at, kind, l, h);
  }
  return isa<VectorType>(x.getType()) ? Value(vector::ExtractOp::create(at, loc, x, int64_t{0}))
                                      : x;
}

Value Generator::elementOf(Accumulator &a, const Coordinates &coordinates, Mask mask,
                           Scope *scope) {
  if (auto reduce = dyn_cast<ReduceOp>(a.op))
    return eval(reduce.getOperand(), coordinates, mask);
  auto contract = cast<ContractOp>(a.op);
  Value x = eval(contract.getLhs(), coordinates, mask);
  Value y = eval(contract.getRhs(), coordinates, mask);
  OpBuilder &at = in(scope);
  if (isa<VectorType>(x.getType()) != isa<VectorType>(y.getType())) {
    x = splat(at, x);
    y = splat(at, y);
  }
  return arith::MulFOp::create(at, loc, x, y);
}

SmallVector<Value> Generator::accumulate(Scope *scope, ArrayRef<Accumulator *> group,
                                         ArrayRef<Coordinate> dims, ArrayRef<int64_t> sizes,
                                         bool vectorise, Coordinates &coordinates, Mask mask,
                                         SmallVector<Value> carried) {
  if (dims.empty()) {
    // Reductions that this loop's elements need have loops of their own.
    llvm::SaveAndRestore place(filling, static_cast<const Coordinates *>(&coordinates));
    llvm::SaveAndRestore by(fillingBy, group);
    for (auto [a, sum] : llvm::zip_equal(group, carried)) {
      Value x = elementOf(*a, coordinates, mask, scope);
      OpBuilder &at = in(scope);
      if (isa<VectorType>(sum.getType()))
        x = splat(at, x);
      if (vectorise && mask.value)
        x = arith::SelectOp::create(at, loc, mask.value, x, neutral(at, *a, true));
      sum = combine(at, a->kind, sum, x);
    }
    return carried;
  }
  StringAttr dim = dims[0].dim;
  bool last = dims.size() == 1;
  int64_t step = vectorise && last ? lanes : 1;
  int64_t whole = sizes[0] - sizes[0] % step;
  if (whole) {
    Loop loop = openLoop(scope, constant(0), constant(whole), step, carried);
    coordinates.push_back({dim, {loop.op.getInductionVar(), step > 1 ? 1 : 0, {}, loop.body}});
    SmallVector<Value> inner(loop.op.getRegionIterArgs());
    inner = accumulate(loop.body, group, dims.drop_front(), sizes.drop_front(), vectorise,
                       coordinates, mask, inner);
    coordinates.pop_back();
    closeLoop(loop, inner);
    carried.assign(loop.op.getResults().begin(), loop.op.getResults().end());
  }
  if (whole < sizes[0]) {
    coordinates.push_back({dim, {constant(whole), 1, {}, scope}});
    carried = accumulate(scope, group, {}, {}, vectorise, coordinates,
                         tailMask(scope, sizes[0] - whole), carried);
    coordinates.pop_back();
  }
  return carried;
}

Value Generator::evalAccumulators(Operation *op, const Coordinates &coordinates, Mask mask,
                                  Scope *scope) {
  Accumulator &wanted = *accumulatorOf.lookup(op);
  NamedTensorType left = tensorOf(op->getResult(0)), from = tensorOf(op->getOperand(0));
  auto sizeOf = [&](Accumulator &a, StringAttr dim) {
    return tensorOf(a.op->getOperand(0)).sizeOf(dim);
  };
  // Others that the same loop can compute: same dims, same rank, so none needs another.
  SmallVector<Accumulator *> group{&wanted};
  for (Accumulator &a : accumulators) {
    NamedTensorType other = tensorOf(a.op->getResult(0));
    bool same = &a != &wanted && a.rank == wanted.rank && a.dims.size() == wanted.dims.size() &&
                other.getRank() == left.getRank();
    for (StringAttr dim : wanted.dims)
      same = same && llvm::is_contained(a.dims, dim) && sizeOf(a, dim) == sizeOf(wanted, dim);
    if (same)
      for (auto [name, size] : llvm::zip_equal(left.getNames(), left.getSizes()))
        same = same && other.hasDim(name) && other.sizeOf(name) == size;
    if (same)
      group.push_back(&a);
  }
  // Loops in the operand's order, the lane dim innermost.
  SmallVector<Coordinate> dims;
  SmallVector<int64_t> sizes;
  for (StringAttr name : from.getNames())
    if (llvm::is_contained(wanted.dims, name) && name != laneDim)
      dims.push_back({name, {}});
  if (llvm::is_contained(wanted.dims, laneDim))
    dims.push_back({laneDim, {}});
  for (const Coordinate &d : dims)
    sizes.push_back(from.sizeOf(d.dim));
  bool uniform = llvm::all_of(coordinates, [](const Coordinate &c) { return c.index.uniform(); });
  bool vectorise = uniform && lanes > 1 && !dims.empty() && dims.back().dim == laneDim;
  bool asVector = vectorise || !uniform;
  SmallVector<Value> carried;
  for (Accumulator *a : group)
    carried.push_back(neutral(in(scope), *a, asVector));
  Coordinates inner = coordinates;
  carried =
      accumulate(scope, group, dims, sizes, vectorise, inner, vectorise ? Mask() : mask, carried);
  for (Waiting &w : waiting)
    w.filled |= !w.stores.empty() && llvm::is_contained(group, w.madeBy);
  OpBuilder &at = in(scope);
  Value result;
  for (auto [a, sum] : llvm::zip_equal(group, carried)) {
    if (vectorise)
      sum = horizontal(at, a->kind, sum);
    sum = roundTo(at, sum, tensorOf(a->op->getResult(0)).getElementType());
    if (a == &wanted)
      result = sum;
    // The others under their own key, as eval would look for them.
    NamedTensorType type = tensorOf(a->op->getResult(0));
    std::vector<uintptr_t> key{
        reinterpret_cast<uintptr_t>(a->op->getResult(0).getAsOpaquePointer()),
        reinterpret_cast<uintptr_t>(mask.value.getAsOpaquePointer())};
    for (StringAttr name : type.getNames()) {
      const Index *index = find(coordinates, name);
      key.push_back(reinterpret_cast<uintptr_t>(index->base.getAsOpaquePointer()));
      key.push_back(static_cast<uintptr_t>(index->lane));
      key.push_back(reinterpret_cast<uintptr_t>(index->vector.getAsOpaquePointer()));
    }
    scope->memo[key] = sum;
  }
  return result;
}
