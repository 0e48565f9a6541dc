//===- Interpreter.cpp - the dialect's reference interpreter --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/interpret/Interpreter.h"
#include "ir/interpret/Evaluate.h"

#include "llvm/Support/raw_ostream.h"

#include <memory>

using namespace mlir;
using namespace cleave;

namespace {

using Ref = std::shared_ptr<const Array>;
/// A value on every rank. Ranks may share one array.
using Ranks = std::vector<Ref>;

bool isInteger(NamedTensorType type) { return !type.isFloat(); }

double roundTo(Type element, double x) {
  if (element.isF32())
    return static_cast<float>(x);
  if (element.isF64())
    return x;
  llvm::APFloat value(x);
  bool lost;
  value.convert(cast<FloatType>(element).getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven,
                &lost);
  return value.convertToDouble();
}

//===----------------------------------------------------------------------===//
// The machine
//===----------------------------------------------------------------------===//

class Machine {
public:
  Machine(MeshAttr mesh, bool perRank, const InterpretOptions &options)
      : mesh(mesh), perRank(perRank), ranks(perRank ? mesh.getRanks() : 1), options(options) {}

  int64_t getRanks() const { return ranks; }
  void bind(Value v, Ranks value) { values[v] = std::move(value); }
  const Ranks &valueOf(Value v) const { return values.find(v)->second; }
  /// Runs everything but the terminator.
  Status runBlock(Block &block);

private:
  Status run(Operation *op);
  Status runOnRanks(Operation *op);
  Status runExpanded(ExpandableOpInterface op);
  Status repeat(RepeatOp op);
  Status fused(FusedOp op);
  Status collective(Operation *op, ArrayAttr axes);
  void scalar(Value result, llvm::function_ref<int64_t(int64_t rank)> f);
  void finish(Operation *op);
  Error failure(Operation *op, const llvm::Twine &why) const;

  MeshAttr mesh;
  bool perRank;
  int64_t ranks;
  const InterpretOptions &options;
  llvm::DenseMap<Value, Ranks> values;
  SmallVector<int64_t> iterations;
};

Error Machine::failure(Operation *op, const llvm::Twine &why) const {
  std::string text;
  llvm::raw_string_ostream(text) << why << ": " << op->getName() << " at " << op->getLoc();
  return {text, Fault::Internal};
}

Status Machine::runBlock(Block &block) {
  for (Operation &op : block.without_terminator())
    if (Status status = run(&op); !status)
      return status;
  return {};
}

/// Rounds if asked to, and reports to the trace.
void Machine::finish(Operation *op) {
  if (options.round)
    for (Value result : op->getResults()) {
      auto type = dyn_cast<NamedTensorType>(result.getType());
      if (!type || !type.isFloat() || type.getElementType().isF64())
        continue;
      llvm::DenseMap<const Array *, Ref> done;
      for (Ref &ref : values[result]) {
        Ref &rounded = done[ref.get()];
        if (!rounded) {
          Array copy = *ref;
          for (double &x : copy.reals)
            x = roundTo(type.getElementType(), x);
          rounded = std::make_shared<const Array>(std::move(copy));
        }
        ref = rounded;
      }
    }
  if (!options.trace || op->getNumResults() == 0 ||
      !isa<NamedTensorType>(op->getResult(0).getType()))
    return;
  std::vector<PerRankArrays> results;
  for (Value result : op->getResults()) {
    PerRankArrays &arrays = results.emplace_back();
    for (const Ref &ref : values[result])
      arrays.push_back(*ref);
  }
  options.trace(op, results, iterations);
}

void Machine::scalar(Value result, llvm::function_ref<int64_t(int64_t rank)> f) {
  Ranks value;
  for (int64_t rank = 0; rank < ranks; ++rank)
    value.push_back(std::make_shared<const Array>(Array::ofInts({}, {f(rank)})));
  values[result] = std::move(value);
}

Status Machine::run(Operation *op) {
  if (op->getName().getDialectNamespace() == "arith")
    return failure(op, "only ops of the dialect are interpreted");
  Status status;
  if (auto o = dyn_cast<RepeatOp>(op))
    status = repeat(o);
  else if (auto o = dyn_cast<FusedOp>(op))
    status = fused(o);
  else if (auto o = dyn_cast<ShardOffsetOp>(op))
    scalar(o, [&](int64_t rank) {
      return perRank ? shardIndex(mesh, o.getAxes(), rank) * static_cast<int64_t>(o.getBlock()) : 0;
    });
  else if (auto o = dyn_cast<ShardExtentOp>(op))
    scalar(o, [&](int64_t rank) -> int64_t {
      int64_t block = o.getBlock(), size = o.getSize();
      return perRank
                 ? std::clamp<int64_t>(size - shardIndex(mesh, o.getAxes(), rank) * block, 0, block)
                 : size;
    });
  else if (isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp, ShardSliceOp>(op))
    status = collective(op, op->getAttrOfType<ArrayAttr>("axes"));
  else if (auto o = dyn_cast<ExpandableOpInterface>(op); o && !options.nativeComposites)
    return runExpanded(o);
  else
    status = runOnRanks(op);
  if (status)
    finish(op);
  return status;
}

Status Machine::runOnRanks(Operation *op) {
  SmallVector<Ranks> results(op->getNumResults());
  // Ranks whose operands are one array share the result.
  auto sameAsFirst = [&](int64_t rank) {
    return llvm::all_of(op->getOperands(), [&](Value v) {
      const Ranks &value = valueOf(v);
      return value[rank] == value[0];
    });
  };
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (rank && sameAsFirst(rank)) {
      for (Ranks &result : results)
        result.push_back(result[0]);
      continue;
    }
    SmallVector<const Array *> in;
    for (Value v : op->getOperands())
      in.push_back(valueOf(v)[rank].get());
    std::vector<Array> out;
    std::string wrong = evaluate(op, in, out);
    if (!wrong.empty())
      return failure(op, wrong);
    for (auto [result, array] : llvm::zip_equal(results, out))
      result.push_back(std::make_shared<const Array>(std::move(array)));
  }
  for (auto [value, result] : llvm::zip_equal(op->getResults(), results))
    values[value] = std::move(result);
  return {};
}

/// Builds the expansion of a clone, runs it and takes it away again.
Status Machine::runExpanded(ExpandableOpInterface op) {
  OwningOpRef<ModuleOp> scratch = ModuleOp::create(op.getLoc());
  OpBuilder b = OpBuilder::atBlockBegin(scratch->getBody());
  SmallVector<Value> made = op.expand(b);
  Status status = runBlock(*scratch->getBody());
  SmallVector<Ranks> results;
  if (status)
    for (Value v : made)
      results.push_back(valueOf(v));
  for (Operation &inner : scratch->getBody()->without_terminator())
    for (Value v : inner.getResults())
      values.erase(v);
  if (!status)
    return status;
  for (auto [value, result] : llvm::zip_equal(op->getResults(), results))
    values[value] = std::move(result);
  finish(op);
  return {};
}

static Array layerOf(const Array &stack, int64_t layer) {
  Array slice = Array::zeros({stack.shape.begin() + 1, stack.shape.end()}, stack.integer);
  int64_t n = slice.size();
  if (stack.integer)
    std::copy_n(stack.ints.begin() + layer * n, n, slice.ints.begin());
  else
    std::copy_n(stack.reals.begin() + layer * n, n, slice.reals.begin());
  return slice;
}

static void setLayer(Array &stack, int64_t layer, const Array &slice) {
  int64_t n = slice.size();
  if (stack.integer)
    std::copy_n(slice.ints.begin(), n, stack.ints.begin() + layer * n);
  else
    std::copy_n(slice.reals.begin(), n, stack.reals.begin() + layer * n);
}

Status Machine::repeat(RepeatOp op) {
  int64_t count = op.getCount();
  unsigned carried = op.getNumCarried();
  SmallVector<Ranks> carry;
  for (Value v : op.getInits())
    carry.push_back(valueOf(v));
  // One stack for each rank of each output.
  SmallVector<std::vector<Array>> stacks;
  for (Value v : op.getResults().drop_front(carried))
    stacks.emplace_back(ranks, Array::zeros(shapeOf(tensorOf(v)), isInteger(tensorOf(v))));
  for (int64_t step = 0; step < count; ++step) {
    int64_t layer = op.getReverse() ? count - 1 - step : step;
    iterations.push_back(layer);
    Ref index = std::make_shared<const Array>(Array::ofInts({}, {layer}));
    bind(op.getLayer(), Ranks(ranks, index));
    for (auto [arg, value] : llvm::zip_equal(op.getCarried(), carry))
      bind(arg, value);
    for (auto [arg, stack] : llvm::zip_equal(op.getSlices(), op.getStacked())) {
      const Ranks &whole = valueOf(stack);
      Ranks slice;
      for (int64_t rank = 0; rank < ranks; ++rank)
        slice.push_back(rank && whole[rank] == whole[0]
                            ? slice[0]
                            : std::make_shared<const Array>(layerOf(*whole[rank], layer)));
      bind(arg, std::move(slice));
    }
    if (Status status = runBlock(op.getBody().front()); !status)
      return status;
    YieldOp yield = op.getYield();
    for (unsigned i = 0; i < carried; ++i)
      carry[i] = valueOf(yield.getOperand(i));
    for (auto [i, stack] : llvm::enumerate(stacks))
      for (int64_t rank = 0; rank < ranks; ++rank)
        setLayer(stack[rank], layer, *valueOf(yield.getOperand(carried + i))[rank]);
    iterations.pop_back();
  }
  for (unsigned i = 0; i < carried; ++i)
    values[op.getResult(i)] = carry[i];
  for (auto [i, stack] : llvm::enumerate(stacks)) {
    Ranks result;
    for (Array &array : stack)
      result.push_back(std::make_shared<const Array>(std::move(array)));
    values[op.getResult(carried + i)] = std::move(result);
  }
  return {};
}

Status Machine::fused(FusedOp op) {
  Block &body = op.getBody().front();
  for (auto [arg, input] : llvm::zip_equal(body.getArguments(), op.getInputs()))
    bind(arg, Ranks(valueOf(input)));
  if (Status status = runBlock(body); !status)
    return status;
  for (auto [result, value] :
       llvm::zip_equal(op->getResults(), body.getTerminator()->getOperands()))
    values[result] = Ranks(valueOf(value));
  return {};
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

/// Copies what fits of `from` into `to`, whose element 0 along `dim` is from's
/// element `start`.
static void copyAlong(const Array &from, Array &to, int64_t dim, int64_t start) {
  std::vector<int64_t> sizes = from.shape;
  int64_t begin = std::max<int64_t>(start, 0);
  int64_t end = std::min(from.shape[dim], start + to.shape[dim]);
  sizes[dim] = std::max<int64_t>(end - begin, 0);
  std::vector<int64_t> fs = rowMajorStrides(from.shape), ts = rowMajorStrides(to.shape);
  int64_t fromStart = begin * fs[dim], toStart = (begin - start) * ts[dim];
  walk<2>(sizes, {fs, ts}, [&](auto at) {
    if (from.integer)
      to.ints[toStart + at[1]] = from.ints[fromStart + at[0]];
    else
      to.reals[toStart + at[1]] = from.reals[fromStart + at[0]];
  });
}

static Array combined(const Ranks &operand, ArrayRef<int64_t> group, Reduction reduction) {
  Array sum = *operand[group[0]];
  for (int64_t member : group.drop_front()) {
    const Array &other = *operand[member];
    for (int64_t i = 0; i < sum.size(); ++i) {
      if (sum.integer)
        sum.ints[i] = combine(reduction, sum.ints[i], other.ints[i]);
      else
        sum.reals[i] = combine(reduction, sum.reals[i], other.reals[i]);
    }
  }
  return sum;
}

Status Machine::collective(Operation *op, ArrayAttr axes) {
  Value x = op->getOperand(0), y = op->getResult(0);
  const Ranks operand = valueOf(x);
  if (!perRank) {
    if (tensorOf(x).getSizes() != tensorOf(y).getSizes())
      return failure(op, "a collective of local types in a function that is run globally");
    values[y] = operand;
    return {};
  }
  for (AxisAttr axis : axes.getAsRange<AxisAttr>()) {
    int64_t whole = mesh.sizeOf(axis.getName()), size = axis.getSize() ? axis.getSize() : whole;
    if (whole == 0 || whole % (axis.getPre() * size))
      return failure(op,
                     "the mesh has no axis '" + axis.getName().getValue() + "' with such a part");
  }
  int64_t n = shardCount(mesh, axes);
  NamedTensorType from = tensorOf(x), to = tensorOf(y);
  // What the dim's size must be for nothing to be lost.
  auto gathers = [&](int64_t dim) { return to.getSizes()[dim] <= n * from.getSizes()[dim]; };
  auto splits = [&](int64_t dim) { return n * to.getSizes()[dim] >= from.getSizes()[dim]; };
  auto gathered = [&](ArrayRef<int64_t> group, int64_t dim, std::vector<int64_t> shape) {
    Array all = Array::zeros(std::move(shape), !from.isFloat());
    for (auto [i, member] : llvm::enumerate(group))
      copyAlong(*operand[member], all, dim, -static_cast<int64_t>(i) * from.getSizes()[dim]);
    return all;
  };
  // This rank's shard of a dim that the array has whole.
  auto part = [&](const Array &whole, int64_t dim, int64_t rank) {
    Array own = Array::zeros(shapeOf(to), whole.integer);
    copyAlong(whole, own, dim, shardIndex(mesh, axes, rank) * to.getSizes()[dim]);
    return own;
  };
  Ranks result(ranks);
  // Members of a group that get the same share one array.
  std::vector<Ref> common(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> group = rankGroup(mesh, axes, rank);
    Ref &first = common[group[0]];
    auto shared = [&](llvm::function_ref<Array()> make) {
      if (!first)
        first = std::make_shared<const Array>(make());
      return first;
    };
    if (auto o = dyn_cast<AllReduceOp>(op)) {
      if (from.getSizes() != to.getSizes())
        return failure(op, "an all_reduce keeps the sizes");
      result[rank] = shared([&] { return combined(operand, group, o.getReduction()); });
    } else if (auto o = dyn_cast<AllGatherOp>(op)) {
      int64_t dim = from.indexOf(o.getDim());
      if (!gathers(dim))
        return failure(op, "the result is larger than all shards together");
      result[rank] = shared([&] { return gathered(group, dim, shapeOf(to)); });
    } else if (auto o = dyn_cast<ReduceScatterOp>(op)) {
      int64_t dim = from.indexOf(o.getDim());
      if (!splits(dim))
        return failure(op, "the shards together are smaller than the operand");
      Ref sum = shared([&] { return combined(operand, group, o.getReduction()); });
      result[rank] = std::make_shared<const Array>(part(*sum, dim, rank));
    } else if (auto o = dyn_cast<ShardSliceOp>(op)) {
      int64_t dim = from.indexOf(o.getDim());
      if (!splits(dim))
        return failure(op, "the shards together are smaller than the operand");
      int64_t start = o.getOffsets().empty() ? shardIndex(mesh, axes, rank) * to.getSizes()[dim]
                                             : valueOf(o.getOffsets()[0])[rank]->ints[0];
      Array own = Array::zeros(shapeOf(to), !to.isFloat());
      copyAlong(*operand[rank], own, dim, start);
      result[rank] = std::make_shared<const Array>(std::move(own));
    } else {
      auto a = cast<AllToAllOp>(op);
      int64_t gatherDim = from.indexOf(a.getGatherDim()), splitDim = from.indexOf(a.getSplitDim());
      if (!gathers(gatherDim) || !splits(splitDim))
        return failure(op, "the sizes do not fit the number of shards");
      std::vector<int64_t> whole = shapeOf(from);
      whole[gatherDim] = to.getSizes()[gatherDim];
      Ref all = shared([&] { return gathered(group, gatherDim, whole); });
      result[rank] = std::make_shared<const Array>(part(*all, splitDim, rank));
    }
  }
  values[y] = std::move(result);
  return {};
}

} // namespace

//===----------------------------------------------------------------------===//
// The entry
//===----------------------------------------------------------------------===//

Result<std::vector<PerRankArrays>> cleave::interpret(func::FuncOp function,
                                                     const std::vector<PerRankArrays> &args,
                                                     const InterpretOptions &options) {
  auto refuse = [&](const llvm::Twine &why) {
    return Error{(function.getName() + ": " + why).str(), Fault::Internal};
  };
  if (function.isExternal())
    return refuse("has no body");
  bool perRank = options.perRank.value_or(function->hasAttr(kLayouts));
  Machine machine(meshOf(function), perRank, options);
  if (args.size() != function.getNumArguments())
    return refuse("takes " + llvm::Twine(function.getNumArguments()) + " arguments, not " +
                  llvm::Twine(args.size()));
  for (auto [i, arg] : llvm::enumerate(function.getArguments())) {
    auto type = dyn_cast<NamedTensorType>(arg.getType());
    if (!type)
      return refuse("argument " + llvm::Twine(i) + " is no tensor");
    if (static_cast<int64_t>(args[i].size()) != machine.getRanks())
      return refuse("argument " + llvm::Twine(i) + " is there for " + llvm::Twine(args[i].size()) +
                    " ranks, not " + llvm::Twine(machine.getRanks()));
    Ranks value;
    for (const Array &array : args[i]) {
      if (array.shape != shapeOf(type) || array.integer != isInteger(type) ||
          array.size() != type.getNumElements())
        return refuse("argument " + llvm::Twine(i) + " is no array of the argument's type");
      bool again = !value.empty() && array.reals.size() + array.ints.size() == 1 &&
                   array.reals == args[i][0].reals && array.ints == args[i][0].ints;
      value.push_back(again ? value[0] : std::make_shared<const Array>(array));
    }
    machine.bind(arg, std::move(value));
  }
  Block &body = function.getBody().front();
  if (Status status = machine.runBlock(body); !status)
    return status.error();
  std::vector<PerRankArrays> results;
  for (Value v : body.getTerminator()->getOperands()) {
    PerRankArrays &arrays = results.emplace_back();
    for (const Ref &ref : machine.valueOf(v))
      arrays.push_back(*ref);
  }
  return results;
}
