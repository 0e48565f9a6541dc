//===- Schedule.cpp - from the fused program to steps and buffers ---------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/Scheduler.h"

#include "passes/schedule/MemoryPlan.h"

#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace cleave;
using namespace cleave::scheduler;

//===----------------------------------------------------------------------===//
// What fusion left over
//===----------------------------------------------------------------------===//

Value cleave::expandShardSlice(ShardSliceOp op) {
  OpBuilder b(op);
  NamedTensorType to = tensorOf(op.getResult());
  StringRef dim = op.getDim();
  int64_t block = to.sizeOf(dim);
  auto offset = ShardOffsetOp::create(b, op.getLoc(), b.getIndexType(), op.getAxes(), block);
  NamedTensorType line =
      NamedTensorType::get(op.getContext(), b.getI32Type(), {b.getStringAttr(dim)}, {block}, {});
  auto rows = IotaOp::create(b, op.getLoc(), line, dim, ValueRange{offset.getResult()});
  auto slice = GatherOp::create(b, op.getLoc(), to, op.getOperand(), rows, dim, ValueRange{});
  for (Operation *made : {rows.getOperation(), slice.getOperation()})
    made->setDiscardableAttrs(op->getDiscardableAttrDictionary());
  op.replaceAllUsesWith(slice.getResult());
  op.erase();
  return slice;
}

std::vector<std::pair<int, int>> cleave::elementwisePairs(FusedOp op) {
  std::vector<std::pair<int, int>> pairs;
  if (!op.getNumResults())
    return pairs;
  // One loop nest: every result has the same dims in the same order.
  NamedTensorType space = tensorOf(op.getResult(0));
  for (Value result : op.getResults())
    if (tensorOf(result).getNames() != space.getNames())
      return pairs;
  for (Operation &inner : op.getBody().front().without_terminator())
    if (!isElementwise(&inner) || isa<SliceOp, PadOp, RenameOp>(inner))
      return pairs;
  int number = -1;
  for (Value input : op.getInputs()) {
    auto type = dyn_cast<NamedTensorType>(input.getType());
    if (!type)
      continue;
    ++number;
    if (type.getNames() != space.getNames())
      continue;
    for (auto [r, result] : llvm::enumerate(op.getResults()))
      if (tensorOf(result).getElementBytes() == type.getElementBytes())
        pairs.emplace_back(number, r);
  }
  return pairs;
}

/// The op gives its operand's bytes, so its result is at the operand's place.
static bool isView(Operation *op) {
  if (isa<SplitDimOp, JoinDimsOp>(op))
    return true;
  if (isa<RenameOp, StopGradientOp, BarrierOp, PinOp>(op))
    return tensorOf(op->getOperand(0)).getSizes() == tensorOf(op->getResult(0)).getSizes() &&
           (isa<RenameOp>(op) ||
            tensorOf(op->getOperand(0)).getNames() == tensorOf(op->getResult(0)).getNames());
  if (isa<BroadcastOp>(op)) {
    // Only dims of size 1 are added or move.
    NamedTensorType from = tensorOf(op->getOperand(0)), to = tensorOf(op->getResult(0));
    auto real = [](NamedTensorType type) {
      SmallVector<StringAttr> names;
      for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
        if (size != 1)
          names.push_back(name);
      return names;
    };
    return real(from) == real(to);
  }
  if (auto slice = dyn_cast<SliceOp>(op)) {
    NamedTensorType from = tensorOf(slice.getOperand());
    int64_t i = from.indexOf(slice.getDim());
    return slice.getStride() == 1 &&
           llvm::all_of(from.getSizes().take_front(i), [](int64_t size) { return size == 1; });
  }
  return false;
}

static int64_t viewOffset(Operation *op) {
  auto slice = dyn_cast<SliceOp>(op);
  if (!slice)
    return 0;
  NamedTensorType from = tensorOf(slice.getOperand());
  int64_t bytes = from.getElementBytes();
  for (int64_t size : from.getSizes().drop_front(from.indexOf(slice.getDim()) + 1))
    bytes *= size;
  return static_cast<int64_t>(slice.getStart()) * bytes;
}

static bool isCollective(Operation *op) {
  return isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp>(op);
}

static bool isIndexSource(Operation *op) {
  return isa<ShardOffsetOp, ShardExtentOp>(op) ||
         (op->hasTrait<OpTrait::ConstantLike>() && !isa<ConstantOp>(op));
}

/// Puts an op into a group of its own, with the constants that it takes.
static void wrap(Operation *op) {
  OpBuilder b(op);
  StringRef kind = op->getName().stripDialect().starts_with("attention") ? "attention"
                   : isa<GatherOp>(op)                                   ? "gather"
                   : isa<ScatterAddOp>(op)                               ? "scatter"
                                                                         : "rows";
  SmallVector<Value> inputs;
  // Constants go along, but tensors that attention reads as memory.
  auto goesAlong = [&](Value operand) {
    return operand.getDefiningOp<ConstantOp>() &&
           (kind != "attention" || tensorOf(operand).getRank() == 0);
  };
  for (Value operand : op->getOperands())
    if (!goesAlong(operand) && !llvm::is_contained(inputs, operand))
      inputs.push_back(operand);
  auto fused =
      FusedOp::create(b, op->getLoc(), op->getResultTypes(), inputs, b.getStringAttr(kind));
  if (Attribute phase = op->getAttr(kPhase))
    fused->setAttr(kPhase, phase);
  op->replaceAllUsesWith(fused.getResults());
  Block *body = b.createBlock(&fused.getBody());
  IRMapping inside;
  for (Value input : inputs)
    inside.map(input, body->addArgument(input.getType(), op->getLoc()));
  for (Value operand : op->getOperands())
    if (goesAlong(operand) && !inside.contains(operand))
      b.clone(*operand.getDefiningOp(), inside);
  op->remove();
  b.insert(op);
  for (OpOperand &operand : op->getOpOperands())
    operand.set(inside.lookup(operand.get()));
  YieldOp::create(b, op->getLoc(), op->getResults());
}

/// The layer index as memory: a table of all of them in front of the repeat.
static Value layerTable(RepeatOp repeat) {
  OpBuilder b(repeat);
  NamedTensorType type =
      NamedTensorType::get(b.getContext(), b.getI32Type(), {b.getStringAttr(repeat.getDim())},
                           {static_cast<int64_t>(repeat.getCount())}, {});
  auto iota = IotaOp::create(b, repeat.getLoc(), type, repeat.getDim(), ValueRange{});
  Value table = iota.getResult();
  auto fused =
      FusedOp::create(b, repeat.getLoc(), TypeRange{type}, ValueRange{}, b.getStringAttr("rows"));
  if (Attribute phase = repeat->getAttr(kPhase))
    fused->setAttr(kPhase, phase);
  b.createBlock(&fused.getBody());
  iota->remove();
  b.insert(iota);
  YieldOp::create(b, repeat.getLoc(), table);
  return fused.getResult(0);
}

//===----------------------------------------------------------------------===//
// Scheduler
//===----------------------------------------------------------------------===//

int32_t Scheduler::locationNumber(Location loc) {
  auto [it, isNew] = locationNumbers.try_emplace(loc, -1);
  if (!isNew)
    return it->second;
  std::string text = locationText(loc);
  if (text.empty())
    return -1;
  auto [entry, added] =
      locationTexts.try_emplace(text, static_cast<int32_t>(program->locations.size()));
  if (added)
    program->locations.push_back(text);
  return it->second = entry->second;
}

int32_t Scheduler::labelNumber(Operation *op, ArrayRef<Operation *> with) {
  auto [it, isNew] = labelNumbers.try_emplace(op, -1);
  if (!isNew)
    return it->second;
  SmallVector<Operation *> ops{op};
  ops.append(with.begin(), with.end());
  StepLabel label = labelOf(ops);
  auto &labels = program->labels;
  auto found = llvm::find(labels, label);
  it->second = static_cast<int32_t>(found - labels.begin());
  if (found == labels.end())
    labels.push_back(std::move(label));
  return it->second;
}

void Scheduler::outlineLeftovers() {
  SmallVector<ShardSliceOp> slices;
  function.walk([&](ShardSliceOp op) {
    if (!op->getParentOfType<FusedOp>())
      slices.push_back(op);
  });
  for (ShardSliceOp op : slices)
    expandShardSlice(op);
  SmallVector<Operation *> alone, constants;
  SmallVector<RepeatOp> repeats;
  function.walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (isa<FusedOp>(op))
      return WalkResult::skip();
    if (auto repeat = dyn_cast<RepeatOp>(op))
      repeats.push_back(repeat);
    else if (isa<ConstantOp>(op))
      constants.push_back(op);
    else if (!isa<func::FuncOp, func::ReturnOp, YieldOp, ContractOp>(op) && !isCollective(op) &&
             !isView(op) && !isIndexSource(op))
      alone.push_back(op);
    return WalkResult::advance();
  });
  for (Operation *op : alone)
    wrap(op);
  for (Operation *op : constants) {
    if (op->use_empty())
      op->erase();
    else
      wrap(op);
  }
  for (RepeatOp repeat : repeats)
    if (!repeat.getLayer().use_empty() && repeat.getCount() > 0)
      layerTables[repeat] = layerTable(repeat);
}

//===----------------------------------------------------------------------===//
// Destinations
//===----------------------------------------------------------------------===//

/// A reduction of a value that nothing else can see. A use inside a repeat of a
/// value from outside is one for each iteration.
static bool reducesInPlace(Operation *op) {
  if (!isa<AllReduceOp>(op))
    return false;
  Value value = op->getOperand(0);
  while (value.hasOneUse() && value.getParentBlock() == op->getBlock()) {
    Operation *producer = value.getDefiningOp();
    if (!producer)
      return false;
    if (isa<FusedOp, ContractOp>(producer) || isCollective(producer))
      return true;
    if (!isView(producer) || isa<SliceOp>(producer))
      return false;
    value = producer->getOperand(0);
  }
  return false;
}

/// A result that replaces an argument is first made in a buffer of its own; whether
/// that is the argument's is settled at the end.
Place Scheduler::resultPlace(unsigned result) {
  int32_t argument = program->results[result].aliasOf;
  if (resultBuffers[result] < 0)
    resultBuffers[result] =
        argument >= 0
            ? steps.addArena(program->arguments[argument].localBytes)
            : steps.addResult(
                  result, bytesOf(function.getBody().front().getTerminator()->getOperand(result)));
  return steps.wholeOf(resultBuffers[result]);
}

/// The part of a repeat's stacked result that an iteration makes.
Place Scheduler::stackedSlot(RepeatOp op, unsigned result, int64_t iteration, Frame &frame) {
  auto key = std::make_pair(op.getOperation(), std::make_pair(&frame, result));
  Place stack;
  if (auto found = stacks.find(key); found != stacks.end()) {
    stack = found->second;
  } else {
    Value value = op.getResult(result);
    stack = destination(value, frame).value_or(Place());
    if (stack.buffer < 0)
      stack = steps.wholeOf(steps.addArena(bytesOf(value)));
    stacks[key] = stack;
  }
  int64_t bytes = stack.bytes / static_cast<int64_t>(op.getCount());
  return {stack.buffer, stack.offset + layerOf(op, iteration) * bytes, bytes};
}

/// Where a value that enters an iteration as carried is wanted: it may be
/// stacked there, or go on as a later iteration's, or be the result.
std::optional<Place> Scheduler::carriedDestination(RepeatOp op, unsigned carried, int64_t iteration,
                                                   Frame &frame,
                                                   DenseSet<std::pair<unsigned, int64_t>> &seen) {
  if (iteration == static_cast<int64_t>(op.getCount()))
    return destination(op.getResult(carried), frame);
  if (!seen.insert({carried, iteration}).second)
    return std::nullopt;
  for (OpOperand &use : op.getCarried()[carried].getUses()) {
    if (use.getOwner() != op.getYield())
      continue;
    unsigned number = use.getOperandNumber();
    if (number >= op.getNumCarried())
      return stackedSlot(op, number, iteration, frame);
    if (auto place = carriedDestination(op, number, iteration + 1, frame, seen))
      return place;
  }
  return std::nullopt;
}

/// Where the program wants a value in the end. Each such place belongs to one
/// value of one iteration, so that it can be written when the value is made.
std::optional<Place> Scheduler::destination(Value value, Frame &frame) {
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    if (user->getBlock() != value.getParentBlock())
      continue;
    if (isa<func::ReturnOp>(user))
      return resultPlace(use.getOperandNumber());
    if (isa<YieldOp>(user)) {
      auto repeat = cast<RepeatOp>(user->getParentOp());
      auto [parent, iteration] = iterations.at(&frame);
      unsigned number = use.getOperandNumber();
      if (number >= repeat.getNumCarried())
        return stackedSlot(repeat, number, iteration, *parent);
      DenseSet<std::pair<unsigned, int64_t>> seen;
      if (auto place = carriedDestination(repeat, number, iteration + 1, *parent, seen))
        return place;
    } else if (auto repeat = dyn_cast<RepeatOp>(user)) {
      DenseSet<std::pair<unsigned, int64_t>> seen;
      if (use.getOperandNumber() < repeat.getNumCarried() && repeat.getCount() > 0)
        if (auto place = carriedDestination(repeat, use.getOperandNumber(), 0, frame, seen))
          return place;
    } else if ((isView(user) && !isa<SliceOp>(user)) || reducesInPlace(user)) {
      if (auto place = destination(user->getResult(0), frame))
        return place;
    }
  }
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

LogicalResult Scheduler::emitBlock(Block &block, Frame &frame) {
  for (Operation &op : block)
    if (!isa<YieldOp>(op) && failed(emit(&op, frame)))
      return failure();
  return success();
}

LogicalResult Scheduler::emit(Operation *op, Frame &frame) {
  if (isIndexSource(op))
    return success();
  if (isView(op)) {
    Place from = placeOf(op->getOperand(0), frame);
    frame.places[op->getResult(0)] = {from.buffer, from.offset + viewOffset(op),
                                      bytesOf(op->getResult(0))};
    return success();
  }
  if (auto fused = dyn_cast<FusedOp>(op))
    return emitFused(fused, frame);
  if (auto contract = dyn_cast<ContractOp>(op))
    return emitContract(contract, frame);
  if (auto repeat = dyn_cast<RepeatOp>(op))
    return emitRepeat(repeat, frame);
  if (auto ret = dyn_cast<func::ReturnOp>(op))
    return emitReturn(ret, frame);
  if (isCollective(op))
    return emitCollective(op, frame);
  return op->emitOpError() << "can't be scheduled";
}

/// A group counts as attention when most of its ops come from there.
static StepKind kindOf(FusedOp op) {
  if (auto part = op->getAttrOfType<StringAttr>(kPart); part && part.getValue() == "attention")
    return StepKind::Attention;
  unsigned attention = 0, all = 0;
  for (Operation &inner : op.getBody().front().without_terminator()) {
    attention += isOfAttention(&inner);
    all += inner.getNumOperands() != 0;
  }
  if (2 * attention > all)
    return StepKind::Attention;
  return phaseOf(op) == "optimizer" ? StepKind::Optimizer : StepKind::Elementwise;
}

FailureOr<const KernelInfo *> Scheduler::infoOf(FusedOp op) {
  auto found = known.find(op);
  if (found == known.end()) {
    FailureOr<KernelInfo> info = kernels.kernelFor(op);
    if (failed(info))
      return failure();
    found = known.try_emplace(op, *info).first;
  }
  return &found->second;
}

LogicalResult Scheduler::emitFused(FusedOp op, Frame &frame) {
  if (op.getKind() == kEpilogue) {
    auto product =
        op.getInputs().empty() ? ContractOp() : op.getInputs()[0].getDefiningOp<ContractOp>();
    if (product && epilogueOf(product) == op)
      return success(); // part of the product's step
    return op.emitOpError() << "is an epilogue and must stand behind the product it reads first";
  }
  if (op.getKind() == kSums) {
    bool isPart = op.getInputs().size() == 1 &&
                  llvm::any_of(op.getInputs()[0].getUsers(), [&](Operation *user) {
                    auto product = dyn_cast<ContractOp>(user);
                    return product && sumsOf(product) == op;
                  });
    if (isPart)
      return success(); // of the product's step
    return op.emitOpError() << "is a sum and must stand behind the product whose operand it sums";
  }
  FailureOr<const KernelInfo *> made = infoOf(op);
  if (failed(made))
    return failure();
  const KernelInfo &info = **made;
  Recorded step = record(op, kindOf(op));
  step.step.flops = info.flops;
  step.step.functions = info.functions;
  step.step.attention = info.attention;
  step.step.bytes = info.bytes;
  KernelStep kernel{info.symbol, {}, {}, info.extent, info.grain};
  for (Value input : op.getInputs()) {
    if (!isa<NamedTensorType>(input.getType())) {
      FailureOr<RankScalar> scalar = rankScalar(op, input, mesh, iterationOf);
      if (failed(scalar))
        return failure();
      kernel.scalars.push_back(*scalar);
      continue;
    }
    Place place = placeOf(input, frame);
    step.reads.push_back(place);
    kernel.buffers.push_back(place.ref());
  }
  for (Value result : op.getResults()) {
    Place place = placeNew(result, frame);
    step.writes.push_back(place);
    kernel.buffers.push_back(place.ref());
  }
  step.inPlace = info.inPlace; // both number the tensor inputs and the results
  step.step.action = std::move(kernel);
  steps.add(std::move(step));
  return success();
}

LogicalResult Scheduler::emitCollective(Operation *op, Frame &frame) {
  auto found = collectives.find(op);
  if (found == collectives.end()) {
    FailureOr<CollectiveStep> made = collectiveStep(op, mesh);
    if (failed(made))
      return failure();
    auto site = static_cast<int32_t>(program->collectiveSites.size());
    program->collectiveSites.push_back(collectiveSite(op, *made));
    made->site = site;
    found = collectives.try_emplace(op, *made, site).first;
  }
  CollectiveStep collective = found->second.first;
  ++program->collectiveSites[found->second.second].executions;
  Place in = placeOf(op->getOperand(0), frame), out;
  if (reducesInPlace(op))
    frame.places[op->getResult(0)] = out = in;
  else
    out = placeNew(op->getResult(0), frame);
  collective.in = in.ref();
  collective.out = out.ref();
  Recorded step = record(op, StepKind::Collective);
  step.step.bytes = program->collectiveSites[found->second.second].payloadBytes;
  step.reads = {in};
  step.writes = {out};
  step.step.action = collective;
  steps.add(std::move(step));
  return success();
}

LogicalResult Scheduler::emitRepeat(RepeatOp op, Frame &frame) {
  SmallVector<Place> carried;
  for (Value init : op.getInits())
    carried.push_back(placeOf(init, frame));
  auto count = static_cast<int64_t>(op.getCount());
  unsigned numCarried = op.getNumCarried();
  if (count == 0 && op.getNumResults() > numCarried)
    return op.emitOpError() << "stacks values of no iteration";
  for (int64_t t = 0; t < count; ++t) {
    Frame body;
    body.parent = &frame;
    iterations[&body] = {&frame, t};
    int64_t layer = iterationOf[op] = layerOf(op, t);
    if (Value table = layerTables.lookup(op)) {
      Place place = placeOf(table, frame);
      body.places[op.getLayer()] = {place.buffer, place.offset + 4 * layer, 4};
    }
    for (auto [arg, place] : llvm::zip_equal(op.getCarried(), carried))
      body.places[arg] = place;
    for (auto [arg, stack] : llvm::zip_equal(op.getSlices(), op.getStacked())) {
      Place place = placeOf(stack, frame);
      int64_t bytes = bytesOf(arg);
      body.places[arg] = {place.buffer, place.offset + layer * bytes, bytes};
    }
    if (failed(emitBlock(op.getBody().front(), body)))
      return failure();
    YieldOp yield = op.getYield();
    for (unsigned i = numCarried; i < op.getNumResults(); ++i)
      copy(op, placeOf(yield.getOperand(i), body), stackedSlot(op, i, t, frame));
    for (unsigned i = 0; i < numCarried; ++i)
      carried[i] = placeOf(yield.getOperand(i), body);
    iterations.erase(&body);
  }
  for (unsigned i = 0; i < numCarried; ++i)
    frame.places[op.getResult(i)] = carried[i];
  for (unsigned i = numCarried; i < op.getNumResults(); ++i) {
    auto key = std::make_pair(op.getOperation(), std::make_pair(&frame, i));
    frame.places[op.getResult(i)] = stacks.at(key);
    stacks.erase(key); // the frame's address may serve another iteration
  }
  return success();
}

LogicalResult Scheduler::emitReturn(func::ReturnOp op, Frame &frame) {
  // Results of their own first: they are never read as arguments.
  for (auto [i, value] : llvm::enumerate(op.getOperands()))
    if (program->results[i].aliasOf < 0)
      copy(op, placeOf(value, frame), resultPlace(i));
  std::vector<Donation> donations;
  for (auto [i, value] : llvm::enumerate(op.getOperands()))
    if (int32_t argument = program->results[i].aliasOf; argument >= 0)
      donations.push_back({argument, placeOf(value, frame), resultBuffers[i]});
  Recorded copyStep = record(op, StepKind::Copy);
  steps.settleDonations(donations, copyStep);
  return success();
}

LogicalResult Scheduler::run(Program &target) {
  program = &target;
  program->name = function.getName().str();
  program->dims = options.dims;
  if (!llvm::hasSingleElement(function.getBody()))
    return function.emitError() << "must have one block";
  if (failed(describeSignature(function, mesh, *program)))
    return failure();
  outlineLeftovers();
  resultBuffers.assign(program->results.size(), -1);
  Frame frame;
  for (auto [i, arg] : llvm::enumerate(function.getArguments()))
    frame.places[arg] = steps.wholeOf(steps.addArgument(i, bytesOf(arg)));
  if (failed(emitBlock(function.getBody().front(), frame)))
    return failure();
  FailureOr<GradientOverlap> gradients = gradientOverlap(function->getParentOfType<ModuleOp>());
  if (failed(gradients))
    return failure();
  steps.sayWhatMoves(*program);
  steps.placeGradients(*gradients, program->collectiveSites);
  if (options.overlap) {
    steps.prefetchGathers(options.overlapWorth);
    steps.overlapCollectives(options.overlapWorth);
  }
  steps.finish(*program, options.reuseMemory);
  if (std::optional<std::string> problem = checkMemory(*program))
    return function.emitError() << "the memory plan is wrong: " << *problem;
  return success();
}

FailureOr<Executable> cleave::buildExecutable(ModuleOp module, KernelProvider &kernels,
                                              const ScheduleOptions &options) {
  Executable executable;
  executable.model = options.model;
  executable.settings = options.settings;
  if (auto plan = module->getAttrOfType<StringAttr>(kPlanName))
    executable.plan = plan.str();
  executable.mesh = meshOf(module);
  executable.rankProgram.assign(executable.ranks(), 0);
  DenseMap<Operation *, KernelInfo> known;
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function.isExternal())
      continue;
    Program program;
    if (failed(Scheduler(function, executable.mesh, kernels, known, options).run(program)))
      return failure();
    executable.programs.push_back(std::move(program));
  }
  return executable;
}
