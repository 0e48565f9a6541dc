//===- Generator.cpp - the plan of a kernel and its loops -----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/lowering/Generator.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace cleave;

namespace {

/// Elements of a long row that one outer iteration of an elementwise kernel takes.
constexpr int64_t kChunk = 4096;
/// Work (element operations) that is worth handing to a thread.
constexpr double kGrainWork = 40000;

} // namespace

std::optional<ScalarFunction> Generator::functionOf(Operation *op) {
  bool isWide = op->getNumResults() == 1 && tensorOf(op->getResult(0)).getElementType().isF64();
  if (isWide && isa<ExpOp, LogOp, SigmoidOp, TanhOp, ErfOp, SinOp, CosOp>(op))
    return ScalarFunction::Pow; // of the library
  if (isa<ExpOp, LogOp, SigmoidOp>(op))
    return ScalarFunction::Exp;
  if (isa<SinOp, CosOp>(op))
    return ScalarFunction::Sin;
  if (isa<PowOp>(op))
    return ScalarFunction::Pow;
  if (isa<TanhOp>(op))
    return ScalarFunction::Tanh;
  if (isa<ErfOp>(op))
    return ScalarFunction::Erf;
  if (isa<RandomOp>(op))
    return ScalarFunction::Random;
  return std::nullopt;
}

Generator::Generator(Region &region, Operation *source, ModuleOp module,
                     const KernelOptions &options)
    : region(region), source(source), module(module), options(options), b(module.getContext()),
      loc(b.getUnknownLoc()), yield(cast<YieldOp>(region.front().getTerminator())) {}

//===----------------------------------------------------------------------===//
// Scopes and loops
//===----------------------------------------------------------------------===//

OpBuilder &Generator::in(Scope *scope) {
  if (scope->open)
    b.setInsertionPoint(scope->open);
  else if (!scope->block->empty() && scope->block->back().hasTrait<OpTrait::IsTerminator>())
    b.setInsertionPoint(&scope->block->back());
  else
    b.setInsertionPointToEnd(scope->block);
  return b;
}

Generator::Scope *Generator::newScope(Scope *parent, Block *block) {
  Scope &scope = scopes.emplace_back();
  scope.parent = parent;
  scope.block = block;
  scope.depth = parent ? parent->depth + 1 : 0;
  scope.times = parent ? parent->times : 1;
  return &scope;
}

Generator::Loop Generator::openLoop(Scope *outer, Value low, Value high, int64_t step,
                                    ValueRange carried) {
  Value by = constant(step);
  OpBuilder &at = in(outer);
  auto op = scf::ForOp::create(at, loc, low, high, by, carried);
  Loop loop{outer, outer->open, op, newScope(outer, op.getBody())};
  outer->open = op;
  std::optional<int64_t> from = getConstantIntValue(low), to = getConstantIntValue(high);
  if (from && to)
    loop.body->times *= static_cast<double>((*to - *from + step - 1) / step);
  return loop;
}

void Generator::closeLoop(Loop &loop, ValueRange carried) {
  if (!carried.empty())
    scf::YieldOp::create(in(loop.body), loc, carried);
  loop.outer->open = loop.saved;
}

Value Generator::constant(int64_t value) {
  Value &known = constants[value];
  if (!known) {
    OpBuilder at = OpBuilder::atBlockBegin(root->block);
    known = arith::ConstantOp::create(at, loc, at.getI64IntegerAttr(value));
  }
  return known;
}

Generator::Scope *Generator::deeper(Scope *x, Scope *y) {
  if (!x || !y)
    return x ? x : y;
  return x->depth >= y->depth ? x : y;
}

Generator::Scope *Generator::scopeOf(const Coordinates &coordinates) {
  Scope *scope = root;
  for (const Coordinate &c : coordinates)
    scope = deeper(scope, c.index.scope);
  return scope;
}

const Generator::Index *Generator::find(const Coordinates &all, StringAttr dim) {
  // The latest wins: a loop over a reduced dim hides an outer dim of its name.
  for (const Coordinate &c : llvm::reverse(all))
    if (c.dim == dim)
      return &c.index;
  return nullptr;
}

Generator::Coordinates Generator::restrict(const Coordinates &all, NamedTensorType type) {
  Coordinates result;
  for (StringAttr name : type.getNames()) {
    const Index *index = find(all, name);
    if (!index) {
      error(source, "has a group whose dim '" + name.getValue() + "' has no loop", {});
      result.push_back({name, {constant(0), 0, {}, root}});
      continue;
    }
    result.push_back({name, *index});
  }
  return result;
}

Value Generator::error(Operation *op, const Twine &message, Type element) {
  if (!failed)
    (op ? op : source)->emitOpError() << "has no kernel: " << message.str();
  failed = true;
  if (!element)
    return {};
  Type type = registerType(element);
  OpBuilder at = OpBuilder::atBlockBegin(root->block);
  return arith::ConstantOp::create(at, loc, cast<TypedAttr>(at.getZeroAttr(type)));
}

void Generator::laneLoop(Scope *scope, StringAttr dim, Value low, Value high, int64_t size,
                         bool alwaysWhole, Coordinates &coordinates, Mask mask,
                         llvm::function_ref<void(Scope *, const Coordinates &, Mask)> body) {
  // [low, high) in whole vectors; the rest, which lies at the end of the dim,
  // with a mask. `alwaysWhole`: high - low is the dim's size.
  int64_t whole = size - size % lanes;
  if (whole) {
    Value end = constant(whole);
    if (!alwaysWhole)
      end = arith::MinSIOp::create(in(scope), loc, high, end);
    Loop loop = openLoop(scope, low, end, lanes);
    if (!alwaysWhole) // a chunk of it
      loop.body->times *= static_cast<double>(whole) / static_cast<double>(lanes) /
                          static_cast<double>((size + kChunk - 1) / kChunk);
    coordinates.push_back({dim, {loop.op.getInductionVar(), lanes > 1, {}, loop.body}});
    body(loop.body, coordinates, mask);
    coordinates.pop_back();
    closeLoop(loop);
  }
  if (whole == size)
    return;
  Scope *tail = scope;
  Operation *saved = scope->open;
  if (!alwaysWhole) {
    OpBuilder &at = in(scope);
    Value isLast = arith::CmpIOp::create(at, loc, arith::CmpIPredicate::eq, high, constant(size));
    auto branch = scf::IfOp::create(at, loc, isLast, /*withElseRegion=*/false);
    tail = newScope(scope, branch.thenBlock());
    scope->open = branch;
  }
  coordinates.push_back({dim, {constant(whole), 1, {}, tail}});
  body(tail, coordinates, tailMask(tail, size - whole));
  coordinates.pop_back();
  scope->open = saved;
}

Generator::Mask Generator::tailMask(Scope *scope, int64_t used) {
  SmallVector<bool> bits(lanes, false);
  std::fill(bits.begin(), bits.begin() + used, true);
  OpBuilder &at = in(scope);
  auto type = VectorType::get({lanes}, at.getI1Type());
  return {arith::ConstantOp::create(at, loc, DenseElementsAttr::get(type, bits)), scope};
}

void Generator::nest(Scope *scope, ArrayRef<StringAttr> dims, ArrayRef<int64_t> sizes,
                     Coordinates &coordinates, Mask mask,
                     llvm::function_ref<void(Scope *, const Coordinates &, Mask)> body) {
  if (dims.empty())
    return body(scope, coordinates, mask);
  if (dims[0] == laneDim && lanes > 1 && !mask.value && dims.size() == 1)
    return laneLoop(scope, dims[0], constant(0), constant(sizes[0]), sizes[0], true, coordinates,
                    mask, body);
  Loop loop = openLoop(scope, constant(0), constant(sizes[0]), 1);
  coordinates.push_back({dims[0], {loop.op.getInductionVar(), 0, {}, loop.body}});
  nest(loop.body, dims.drop_front(), sizes.drop_front(), coordinates, mask, body);
  coordinates.pop_back();
  closeLoop(loop);
}

//===----------------------------------------------------------------------===//
// Plan
//===----------------------------------------------------------------------===//

void Generator::collectAccumulators() {
  llvm::DenseMap<Value, int> rank;
  for (Operation &op : region.front().without_terminator()) {
    int most = 0;
    for (Value v : op.getOperands())
      most = std::max(most, rank.lookup(v));
    if (isa<ReduceOp, ContractOp>(op)) {
      Accumulator &a = accumulators.emplace_back();
      a.op = &op;
      a.kind = Reduction::Sum;
      if (auto reduce = dyn_cast<ReduceOp>(op)) {
        a.kind = reduce.getReduction();
        for (StringRef dim : reduce.getDims().getAsValueRange<StringAttr>())
          a.dims.push_back(StringAttr::get(op.getContext(), dim));
      } else {
        for (StringRef dim : cast<ContractOp>(op).getContracted())
          a.dims.push_back(StringAttr::get(op.getContext(), dim));
      }
      a.rank = ++most;
      accumulatorOf[&op] = &a;
    }
    for (Value v : op.getResults())
      rank[v] = most;
  }
}

StringAttr Generator::chooseLaneDim(ArrayRef<NamedTensorType> results) {
  // The dim that is contiguous in the most bytes, of those that have a loop.
  llvm::SmallVector<std::pair<StringAttr, double>> votes;
  auto vote = [&](NamedTensorType type, double weight) {
    if (!type.getRank())
      return;
    StringAttr dim = type.getNames().back();
    bool hasLoop = llvm::any_of(results, [&](NamedTensorType t) { return t.hasDim(dim); }) ||
                   llvm::any_of(accumulators, [&](const Accumulator &a) {
                     return llvm::is_contained(a.dims, dim);
                   });
    if (!hasLoop)
      return;
    double bytes = weight * static_cast<double>(type.getNumElements() * type.getElementBytes());
    for (auto &[name, sum] : votes)
      if (name == dim) {
        sum += bytes;
        return;
      }
    votes.push_back({dim, bytes});
  };
  for (NamedTensorType t : results)
    vote(t, 2);
  for (BlockArgument arg : region.getArguments())
    if (auto t = dyn_cast<NamedTensorType>(arg.getType()))
      vote(t, 1);
  StringAttr best;
  double most = -1;
  for (auto &[name, sum] : votes)
    if (sum > most) {
      best = name;
      most = sum;
    }
  if (best)
    return best;
  for (const Accumulator &a : accumulators)
    if (!a.dims.empty())
      return a.dims.back();
  return {};
}

double Generator::workOf(Region &body) const {
  double work = 0;
  for (Operation &op : body.front()) {
    double elements = 1;
    for (Value v : op.getOperands())
      if (auto t = dyn_cast<NamedTensorType>(v.getType()))
        elements = std::max(elements, static_cast<double>(t.getNumElements()));
    for (Value v : op.getResults())
      elements = std::max(elements, static_cast<double>(tensorOf(v).getNumElements()));
    work += elements * (isExpensive(&op) ? 8 : 1);
  }
  return work;
}

void Generator::countFunction(Operation *op, Value result, const Scope *scope) {
  if (std::optional<ScalarFunction> function = functionOf(op))
    functions[static_cast<size_t>(*function)] += static_cast<int64_t>(
        scope->times * static_cast<double>(isa<VectorType>(result.getType()) ? lanes : 1));
}

double Generator::flopsOf(Region &body) {
  double flops = 0;
  for (Operation &op : body.front()) {
    if (op.getNumResults() == 0 || isa<ConstantOp, BroadcastOp, RenameOp, SliceOp, PadOp, CastOp,
                                       IotaOp, GatherOp, SelectOp, CompareOp>(op))
      continue;
    NamedTensorType type = tensorOf(op.getResult(0));
    if (!type.isFloat())
      continue;
    double elements = static_cast<double>(type.getNumElements());
    if (isa<ReduceOp, ScatterAddOp>(op))
      elements = static_cast<double>(tensorOf(op.getOperand(0)).getNumElements());
    if (auto contract = dyn_cast<ContractOp>(op))
      for (StringRef dim : contract.getContracted())
        elements *= 2 * static_cast<double>(tensorOf(contract.getLhs()).sizeOf(dim));
    flops += elements * (isExpensive(&op) ? 10 : 1);
  }
  return flops;
}

int64_t cleave::bytesOf(Region &region) {
  auto sizeOf = [](Value v) {
    NamedTensorType type = tensorOf(v);
    return type.getNumElements() * type.getElementBytes();
  };
  int64_t bytes = 0;
  for (BlockArgument arg : region.getArguments()) {
    if (!isa<NamedTensorType>(arg.getType()))
      continue;
    int64_t taken = 0;
    bool partly = !arg.use_empty();
    for (OpOperand &use : arg.getUses()) {
      partly &= isa<GatherOp, SliceOp>(use.getOwner()) && use.getOperandNumber() == 0;
      taken += partly ? sizeOf(use.getOwner()->getResult(0)) : 0;
    }
    bytes += partly ? std::min(taken, sizeOf(arg)) : sizeOf(arg);
  }
  for (Value v : region.front().getTerminator()->getOperands())
    bytes += sizeOf(v);
  return bytes;
}

bool Generator::generate(StringRef symbol, KernelInfo &info) {
  DimParts parts;
  bool epilogue = cast<FusedOp>(source).getKind() == kEpilogue;
  if (epilogue) {
    auto list = source->getAttrOfType<DenseI64ArrayAttr>(kParts);
    auto product = region.getNumArguments()
                       ? dyn_cast<NamedTensorType>(region.getArgument(0).getType())
                       : NamedTensorType();
    if (!list || !product || list.size() != product.getRank()) {
      source->emitOpError() << "is an epilogue without the parts of its product's dims";
      return false;
    }
    for (auto [name, part] : llvm::zip_equal(product.getNames(), list.asArrayRef()))
      parts[name] = part;
  }
  info.flops = static_cast<int64_t>(flopsOf(region));
  info.bytes = cleave::bytesOf(region);
  mergeDims(region, epilogue ? &parts : nullptr);
  collectAccumulators();
  Type i64 = b.getI64Type();
  Type pointer = LLVM::LLVMPointerType::get(b.getContext());
  b.setInsertionPointToEnd(module.getBody());
  SmallVector<Type> arguments(epilogue ? 5 : 2, i64);
  arguments.append(2, pointer);
  function = func::FuncOp::create(b, loc, symbol, b.getFunctionType(arguments, {}));
  Block *entry = function.addEntryBlock();
  b.setInsertionPointToEnd(entry);
  func::ReturnOp::create(b, loc);
  root = newScope(nullptr, entry);
  OpBuilder &at = in(root);
  Value bufferArray = entry->getArgument(arguments.size() - 2);
  Value scalarArray = entry->getArgument(arguments.size() - 1);
  auto loadSlot = [&](Value array, Type element, int64_t i) -> Value {
    Value slot = LLVM::GEPOp::create(at, loc, pointer, element, array,
                                     ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(i)});
    return LLVM::LoadOp::create(at, loc, element, slot, /*alignment=*/8);
  };
  int64_t scalarCount = 0;
  for (BlockArgument arg : region.getArguments()) {
    if (isa<NamedTensorType>(arg.getType())) {
      bufferOf[arg] = static_cast<unsigned>(buffers.size());
      buffers.push_back(loadSlot(bufferArray, pointer, static_cast<int64_t>(buffers.size())));
    } else {
      scalars[arg] = loadSlot(scalarArray, i64, scalarCount++);
    }
  }
  for (size_t i = 0; i < yield.getNumOperands(); ++i)
    buffers.push_back(loadSlot(bufferArray, pointer, static_cast<int64_t>(buffers.size())));
  auto finished = [&](bool made) {
    info.functions = functions;
    return made && !failed;
  };
  if (epilogue)
    return finished(generateEpilogue(parts, info));
  for (Value v : yield.getOperands())
    if (auto scatter = v.getDefiningOp<ScatterAddOp>()) {
      if (yield.getNumOperands() != 1) {
        error(scatter, "a scatter_add must be the only result of its group", {});
        return false;
      }
      return finished(generateScatter(scatter, info));
    }
  return finished(generateRows(info));
}

bool Generator::generateRows(KernelInfo &info) {
  SmallVector<NamedTensorType> results;
  for (Value v : yield.getOperands())
    results.push_back(tensorOf(v));
  laneDim = chooseLaneDim(results);
  NamedTensorType lead =
      *std::max_element(results.begin(), results.end(), [](NamedTensorType x, NamedTensorType y) {
        return x.getNumElements() * x.getElementBytes() < y.getNumElements() * y.getElementBytes();
      });

  // Parallel dims: those of all results, and of what the reductions leave.
  auto inAll = [&](StringAttr dim) {
    int64_t size = lead.sizeOf(dim);
    for (NamedTensorType t : results)
      if (!t.hasDim(dim) || t.sizeOf(dim) != size)
        return false;
    for (const Accumulator &a : accumulators) {
      NamedTensorType left = tensorOf(a.op->getResult(0));
      if (llvm::is_contained(a.dims, dim) || !left.hasDim(dim) || left.sizeOf(dim) != size)
        return false;
    }
    return true;
  };
  SmallVector<StringAttr> parallel;
  SmallVector<int64_t> parallelSizes;
  for (auto [name, size] : llvm::zip_equal(lead.getNames(), lead.getSizes()))
    if (inAll(name)) {
      parallel.push_back(name);
      parallelSizes.push_back(size);
    }
  bool laneIsParallel = laneDim && llvm::is_contained(parallel, laneDim);
  int64_t laneSize = 0;
  auto note = [&](NamedTensorType t) {
    if (laneDim && t.hasDim(laneDim))
      laneSize = std::max(laneSize, t.sizeOf(laneDim));
  };
  int64_t width = 4;
  for (BlockArgument arg : region.getArguments())
    if (auto t = dyn_cast<NamedTensorType>(arg.getType())) {
      note(t);
      if (t.isFloat() && t.getRank())
        width = std::max(width, t.getElementBytes());
    }
  for (NamedTensorType t : results) {
    note(t);
    if (t.isFloat() && t.getRank())
      width = std::max(width, t.getElementBytes());
  }
  if (laneIsParallel)
    laneSize = lead.sizeOf(laneDim);
  bool reduces = !accumulators.empty();
  lanes = options.vectorBits / 8 / width;
  // A function is one long chain of instructions, and a loop's next turn begins late: several
  // chains beside each other. libm works lane by lane.
  auto isChain = [&](Operation &op) { return isExpensive(&op) && !isa<PowOp>(op); };
  if (reduces)
    lanes *= laneIsParallel ? 4 : 2;
  else if (width == 4 && llvm::any_of(region.front(), isChain) && laneSize >= 16 * lanes)
    lanes *= 4;
  while (lanes > 1 && lanes / 2 >= std::max<int64_t>(laneSize, 1))
    lanes /= 2;

  // What the outer iterations are.
  bool chunked = false;
  int64_t chunks = 1, blocks = 1;
  if (laneIsParallel) {
    size_t i = llvm::find(parallel, laneDim) - parallel.begin();
    int64_t size = parallelSizes[i];
    parallel.erase(parallel.begin() + i);
    parallelSizes.erase(parallelSizes.begin() + i);
    if (reduces) {
      blocks = (size + lanes - 1) / lanes;
    } else {
      chunked = true;
      if (size > 2 * kChunk)
        chunks = (size + kChunk - 1) / kChunk;
    }
  }
  info.extent = chunks * blocks;
  for (int64_t size : parallelSizes)
    info.extent *= size;
  info.grain = std::max<int64_t>(
      1, static_cast<int64_t>(kGrainWork * static_cast<double>(info.extent) / workOf(region)));

  // Results whose inner dims agree are stored by one loop; rows' scalars first.
  for (unsigned i = 0; i < results.size(); ++i) {
    SmallVector<StringAttr> dims;
    for (StringAttr name : results[i].getNames())
      if (!llvm::is_contained(parallel, name) && name != laneDim)
        dims.push_back(name);
    bool laneInside = laneDim && results[i].hasDim(laneDim) && !(laneIsParallel && reduces);
    if (laneInside)
      dims.push_back(laneDim);
    auto same = [&](const StoreGroup &g) {
      if (g.dims.size() != dims.size())
        return false;
      for (StringAttr d : dims)
        if (!llvm::is_contained(g.dims, d) ||
            results[g.results[0]].sizeOf(d) != results[i].sizeOf(d))
          return false;
      return true;
    };
    auto known = llvm::find_if(storeGroups, same);
    if (known != storeGroups.end())
      known->results.push_back(i);
    else
      storeGroups.push_back({{i}, dims});
  }
  llvm::sort(storeGroups, [](const StoreGroup &x, const StoreGroup &y) {
    return std::pair(x.dims.size(), x.results[0]) < std::pair(y.dims.size(), y.results[0]);
  });

  Loop outer = openLoop(root, function.getArgument(0), function.getArgument(1), 1);
  outer.body->times = static_cast<double>(info.extent);
  Scope *row = outer.body;
  Value rest = outer.op.getInductionVar();
  auto digit = [&](int64_t size) -> Value {
    OpBuilder &at = in(row);
    if (size == 1)
      return constant(0);
    Value n = constant(size);
    Value d = arith::RemUIOp::create(at, loc, rest, n);
    rest = arith::DivUIOp::create(at, loc, rest, n);
    return d;
  };
  Value chunk = chunked && chunks > 1 ? digit(chunks) : Value();
  Value block = laneIsParallel && reduces ? digit(blocks) : Value();
  Coordinates coordinates;
  for (size_t i = parallel.size(); i-- > 0;)
    coordinates.push_back({parallel[i], {digit(parallelSizes[i]), 0, {}, row}});
  Mask mask;
  if (block) {
    OpBuilder &at = in(row);
    Value base = arith::MulIOp::create(at, loc, block, constant(lanes));
    Index index{base, 1, {}, row};
    if (laneSize % lanes) {
      Value end = splat(at, constant(laneSize));
      if (lanes > 1)
        mask = {arith::CmpIOp::create(at, loc, arith::CmpIPredicate::slt, vectorOf(at, index), end),
                row};
    }
    if (lanes == 1)
      index.lane = 0;
    coordinates.push_back({laneDim, index});
  }
  rowCoordinates = coordinates;
  rowBlock = row->block;
  planWaiting(parallel.size() + (block ? 1 : 0));
  for (const Waiting &w : waiting)
    eval(w.madeBy->op->getResult(0), coordinates, mask);
  for (const StoreGroup &group : storeGroups) {
    ++groupsBegun;
    NamedTensorType type = results[group.results[0]];
    SmallVector<int64_t> sizes;
    for (StringAttr d : group.dims)
      sizes.push_back(type.sizeOf(d));
    auto body = [&](Scope *scope, const Coordinates &at, Mask m) {
      storeResults(scope, group.results, at, m);
    };
    if (!chunk) {
      nest(row, group.dims, sizes, coordinates, mask, body);
      continue;
    }
    // Chunked: the lane dim is the only inner dim.
    OpBuilder &at = in(row);
    Value low = arith::MulIOp::create(at, loc, chunk, constant(kChunk));
    Value high = arith::AddIOp::create(at, loc, low, constant(kChunk));
    high = arith::MinSIOp::create(at, loc, high, constant(sizes[0]));
    laneLoop(row, laneDim, low, high, sizes[0], false, coordinates, mask, body);
  }
  closeLoop(outer);
  findInPlace(info);
  return true;
}

void Generator::storeResults(Scope *scope, ArrayRef<unsigned> results,
                             const Coordinates &coordinates, Mask mask) {
  // All values before the first store: a result may lie in an input's place.
  SmallVector<Value> values;
  for (unsigned i : results)
    values.push_back(eval(yield.getOperand(i), coordinates, mask));
  for (auto [i, value] : llvm::zip_equal(results, values)) {
    NamedTensorType type = tensorOf(yield.getOperand(i));
    Coordinates own = restrict(coordinates, type);
    if (failed)
      return;
    store(buffers[bufferOf.size() + i], type, own, value, mask, scope);
    writes.push_back({i, own});
  }
}

//===----------------------------------------------------------------------===//
// Epilogue: a tile of a product's rows and columns
//===----------------------------------------------------------------------===//

/// A tile's rows are short pieces far apart, which the processor does not foresee:
/// what is not in cache as the product is, the operands and the results, is fetched
/// some rows ahead.
void Generator::prefetchRows(Scope *scope, const Coordinates &coordinates, StringAttr rowDim) {
  constexpr int64_t ahead = 4;
  if (!rowDim)
    return;
  OpBuilder &at = in(scope);
  auto fetch = [&](Value buffer, NamedTensorType type, bool toWrite) {
    int64_t step = ahead * type.getElementBytes();
    for (int64_t size : type.getSizes().drop_front(type.indexOf(rowDim) + 1))
      step *= size;
    Value place = address(at, buffer, type, restrict(coordinates, type)).pointer;
    place = LLVM::GEPOp::create(at, loc, place.getType(), at.getI8Type(), place,
                                ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(step)});
    LLVM::Prefetch::create(at, loc, place, /*rw=*/toWrite, /*hint=*/3, /*cache=*/1);
  };
  NamedTensorType product = tensorOf(region.getArgument(0));
  for (BlockArgument arg : region.getArguments().drop_front())
    if (auto type = dyn_cast<NamedTensorType>(arg.getType()))
      if (type.getNames() == product.getNames())
        fetch(buffers[bufferOf[arg]], type, false);
  for (unsigned i = 0; i < yield.getNumOperands(); ++i)
    fetch(buffers[bufferOf.size() + i], tensorOf(yield.getOperand(i)), true);
}

void Generator::storeColumns(Scope *scope, Value low, Value high, Coordinates &coordinates,
                             StringAttr rowDim) {
  SmallVector<unsigned> results;
  for (unsigned i = 0; i < yield.getNumOperands(); ++i)
    results.push_back(i);
  auto body = [&](Scope *where, const Index &column, Mask mask) {
    coordinates.push_back({laneDim, column});
    storeResults(where, results, coordinates, mask);
    coordinates.pop_back();
  };
  Value whole = high;
  if (lanes > 1) {
    OpBuilder &at = in(scope);
    Value count = arith::SubIOp::create(at, loc, high, low);
    Value rest = arith::RemUIOp::create(at, loc, count, constant(lanes));
    whole = arith::SubIOp::create(at, loc, high, rest);
  }
  Loop loop = openLoop(scope, low, whole, lanes);
  // The tiles together.
  loop.body->times = static_cast<double>(tensorOf(region.getArgument(0)).getNumElements() / lanes);
  Index index{loop.op.getInductionVar(), lanes > 1, {}, loop.body};
  body(loop.body, index, {});
  coordinates.push_back({laneDim, index});
  prefetchRows(loop.body, coordinates, rowDim);
  coordinates.pop_back();
  closeLoop(loop);
  if (lanes == 1)
    return;
  OpBuilder &at = in(scope);
  Value isLeft = arith::CmpIOp::create(at, loc, arith::CmpIPredicate::slt, whole, high);
  auto branch = scf::IfOp::create(at, loc, isLeft, /*withElseRegion=*/false);
  Scope *tail = newScope(scope, branch.thenBlock());
  Operation *saved = scope->open;
  scope->open = branch;
  Index column{whole, 1, {}, tail};
  OpBuilder &inside = in(tail);
  Value used = arith::CmpIOp::create(inside, loc, arith::CmpIPredicate::slt,
                                     vectorOf(inside, column), splat(inside, high));
  body(tail, column, {used, tail});
  scope->open = saved;
}

bool Generator::generateEpilogue(const DimParts &parts, KernelInfo &info) {
  NamedTensorType product = tensorOf(region.getArgument(0));
  int64_t width = product.getElementBytes();
  for (Value v : yield.getOperands()) {
    NamedTensorType type = tensorOf(v);
    if (type.getNames() != product.getNames() || type.getSizes() != product.getSizes()) {
      error(v.getDefiningOp(), "an epilogue's results have the product's dims", {});
      return false;
    }
    if (type.isFloat())
      width = std::max(width, type.getElementBytes());
  }
  for (Operation &op : region.front().without_terminator())
    if (isa<ReduceOp, ContractOp, GatherOp, ScatterAddOp, RenameOp, SliceOp, PadOp>(op)) {
      error(&op, "an epilogue has the elements of one tile only", {});
      return false;
    }
  // The dims of the batch, of rows and of columns, outermost first.
  SmallVector<StringAttr> dims[3];
  SmallVector<int64_t> sizes[3];
  for (auto [name, size] : llvm::zip_equal(product.getNames(), product.getSizes())) {
    int64_t part = parts.lookup(name);
    dims[part].push_back(name);
    sizes[part].push_back(size);
  }
  Coordinates coordinates;
  auto split = [&](Scope *scope, Value index, ArrayRef<StringAttr> names,
                   ArrayRef<int64_t> counts) {
    for (size_t i = names.size(); i-- > 0;) {
      Value digit = index;
      if (i > 0) {
        OpBuilder &at = in(scope);
        Value n = constant(counts[i]);
        digit = arith::RemUIOp::create(at, loc, index, n);
        index = arith::DivUIOp::create(at, loc, index, n);
      }
      coordinates.push_back({names[i], {digit, 0, {}, scope}});
    }
  };
  auto argument = [&](unsigned i) -> Value { return function.getArgument(i); };
  split(root, argument(0), dims[0], sizes[0]);
  Loop rows = openLoop(root, argument(1), argument(2), 1);
  split(rows.body, rows.op.getInductionVar(), dims[1], sizes[1]);
  if (dims[2].empty()) {
    SmallVector<unsigned> results;
    for (unsigned i = 0; i < yield.getNumOperands(); ++i)
      results.push_back(i);
    lanes = 1;
    storeResults(rows.body, results, coordinates, {});
  } else {
    laneDim = dims[2].pop_back_val();
    StringAttr rowDim = dims[1].empty() ? StringAttr() : dims[1].back();
    int64_t inner = sizes[2].pop_back_val();
    lanes = options.vectorBits / 8 / width;
    while (lanes > 1 && lanes / 2 >= inner)
      lanes /= 2;
    Value begin = argument(3), end = argument(4);
    if (dims[2].empty()) {
      storeColumns(rows.body, begin, end, coordinates, rowDim);
    } else {
      // Columns of several dims: the part of the tile under each index of the outer ones.
      OpBuilder &at = in(rows.body);
      Value size = constant(inner);
      Value first = arith::DivUIOp::create(at, loc, begin, size);
      Value last = arith::AddIOp::create(at, loc, end, constant(inner - 1));
      last = arith::DivUIOp::create(at, loc, last, size);
      Loop outer = openLoop(rows.body, first, last, 1);
      Value index = outer.op.getInductionVar();
      size_t known = coordinates.size();
      split(outer.body, index, dims[2], sizes[2]);
      OpBuilder &here = in(outer.body);
      Value base = arith::MulIOp::create(here, loc, index, size);
      Value low = arith::SubIOp::create(here, loc, begin, base);
      low = arith::MaxSIOp::create(here, loc, low, constant(0));
      Value high = arith::SubIOp::create(here, loc, end, base);
      high = arith::MinSIOp::create(here, loc, high, size);
      storeColumns(outer.body, low, high, coordinates, rowDim);
      coordinates.truncate(known);
      closeLoop(outer);
    }
  }
  closeLoop(rows);
  // All ops are elementwise: an operand of the results' dims is read where they are written.
  for (BlockArgument arg : region.getArguments()) {
    auto type = dyn_cast<NamedTensorType>(arg.getType());
    if (!type || type.getNames() != product.getNames())
      continue;
    for (unsigned j = 0; j < yield.getNumOperands(); ++j)
      if (tensorOf(yield.getOperand(j)).getElementBytes() == type.getElementBytes())
        info.inPlace.push_back({static_cast<int>(bufferOf[arg]), static_cast<int>(j)});
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Scatter: rows of the table are dealt out in blocks; each block is zeroed, then
// takes the updates of its rows in the order of the ids.
//===----------------------------------------------------------------------===//

bool Generator::generateScatter(ScatterAddOp scatter, KernelInfo &info) {
  NamedTensorType table = scatter.getType(), ids = tensorOf(scatter.getIds());
  NamedTensorType updates = tensorOf(scatter.getUpdates());
  StringAttr dim = StringAttr::get(scatter.getContext(), scatter.getDim());
  for (StringAttr name : updates.getNames())
    if (!ids.hasDim(name) && !table.hasDim(name)) {
      error(scatter, "the updates' dim '" + name.getValue() + "' is in neither ids nor table", {});
      return false;
    }
  laneDim = table.getRank() ? table.getNames().back() : StringAttr();
  if (laneDim == dim || ids.hasDim(laneDim))
    laneDim = {};
  lanes = options.vectorBits / 8 / std::max<int64_t>(4, table.getElementBytes());
  if (!laneDim)
    lanes = 1;
  while (lanes > 1 && lanes / 2 >= table.sizeOf(laneDim))
    lanes /= 2;
  int64_t rows = table.sizeOf(dim);
  int64_t blockRows = std::max<int64_t>(1, (rows + 63) / 64);
  info.extent = (rows + blockRows - 1) / blockRows;
  info.grain = 1;

  Loop outer = openLoop(root, function.getArgument(0), function.getArgument(1), 1);
  outer.body->times = static_cast<double>(info.extent);
  Scope *scope = outer.body;
  OpBuilder *at = &in(scope);
  Value low = arith::MulIOp::create(*at, loc, outer.op.getInductionVar(), constant(blockRows));
  Value high = arith::AddIOp::create(*at, loc, low, constant(blockRows));
  high = arith::MinSIOp::create(*at, loc, high, constant(rows));
  Value buffer = buffers.back();
  Type element = registerType(table.getElementType());

  // Zeros.
  {
    SmallVector<StringAttr> dims;
    SmallVector<int64_t> sizes;
    for (auto [name, size] : llvm::zip_equal(table.getNames(), table.getSizes()))
      if (name != dim) {
        dims.push_back(name);
        sizes.push_back(size);
      }
    Loop loop = openLoop(scope, low, high, 1);
    Coordinates coordinates{{dim, {loop.op.getInductionVar(), 0, {}, loop.body}}};
    nest(loop.body, dims, sizes, coordinates, {},
         [&](Scope *inner, const Coordinates &c, Mask mask) {
           OpBuilder &here = in(inner);
           Value zero =
               arith::ConstantOp::create(here, loc, cast<TypedAttr>(here.getZeroAttr(element)));
           store(buffer, table, restrict(c, table), zero, mask, inner);
         });
    closeLoop(loop);
  }

  // Updates. The ids' loops are scalar: laneDim is none of theirs.
  Coordinates coordinates;
  nest(scope, SmallVector<StringAttr>(ids.getNames()), SmallVector<int64_t>(ids.getSizes()),
       coordinates, {}, [&](Scope *each, const Coordinates &position, Mask) {
         Value id = eval(scatter.getIds(), position, {});
         OpBuilder &here = in(each);
         id = arith::ExtSIOp::create(here, loc, here.getI64Type(), id);
         if (!scatter.getOffsets().empty())
           id = arith::SubIOp::create(here, loc, id, scalars.lookup(scatter.getOffsets()[0]));
         using P = arith::CmpIPredicate;
         Value above = arith::CmpIOp::create(here, loc, P::sge, id, low);
         Value below = arith::CmpIOp::create(here, loc, P::slt, id, high);
         Value inside = arith::AndIOp::create(here, loc, above, below);
         auto branch = scf::IfOp::create(here, loc, inside, /*withElseRegion=*/false);
         Scope *hit = newScope(each, branch.thenBlock());
         Operation *saved = each->open;
         each->open = branch;
         Coordinates inner = position;
         SmallVector<StringAttr> dims;
         SmallVector<int64_t> sizes;
         for (auto [name, size] : llvm::zip_equal(table.getNames(), table.getSizes()))
           if (name != dim && !ids.hasDim(name)) {
             dims.push_back(name);
             sizes.push_back(size);
           }
         nest(hit, dims, sizes, inner, {}, [&](Scope *last, const Coordinates &c, Mask mask) {
           Value update = eval(scatter.getUpdates(), c, mask);
           Coordinates target = c;
           target.push_back({dim, {id, 0, {}, last}});
           target = restrict(target, table);
           Value old = load(buffer, table, target, mask, last);
           OpBuilder &now = in(last);
           if (isa<VectorType>(old.getType()))
             update = splat(now, update);
           Value sum =
               roundTo(now, combine(now, Reduction::Sum, old, update), table.getElementType());
           store(buffer, table, target, sum, mask, last);
         });
         each->open = saved;
       });
  closeLoop(outer);
  return true;
}
