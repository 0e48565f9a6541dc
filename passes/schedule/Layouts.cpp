//===- Layouts.cpp - IR attributes in the executable's terms --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/Layouts.h"

#include "passes/Location.h"
#include "passes/structure/Accumulate.h"

#include "mlir/IR/Matchers.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/raw_ostream.h"

#include <deque>
#include <set>

using namespace mlir;
using namespace cleave;

std::vector<MeshAxis> cleave::meshOf(ModuleOp module) {
  std::vector<MeshAxis> mesh;
  if (auto attr = module->getAttrOfType<MeshAttr>(kMeshAttr))
    for (auto [name, size] : llvm::zip_equal(attr.getNames(), attr.getSizes()))
      mesh.push_back({name.str(), size});
  return mesh;
}

DType cleave::dtypeOf(Type type) {
  if (type.isF64())
    return DType::F64;
  if (type.isBF16())
    return DType::BF16;
  if (type.isF16())
    return DType::F16;
  if (type.isInteger(1))
    return DType::I1;
  if (type.isInteger(32))
    return DType::I32;
  if (type.isInteger(64))
    return DType::I64;
  return DType::F32;
}

FailureOr<std::vector<SubAxis>> cleave::subAxes(Location loc, ArrayAttr axes,
                                                const std::vector<MeshAxis> &mesh) {
  std::vector<SubAxis> list;
  for (AxisAttr axis : axes.getAsRange<AxisAttr>()) {
    auto found = llvm::find_if(mesh, [&](const MeshAxis &m) { return m.name == axis.getName(); });
    if (found == mesh.end())
      return emitError(loc) << "the mesh has no axis '" << axis.getName().getValue() << "'";
    SubAxis sub{static_cast<int32_t>(found - mesh.begin()), axis.getPre(), axis.getSize()};
    if (sub.size == 0)
      sub = {sub.axis, 1, found->size};
    if (found->size % (sub.pre * sub.size))
      return emitError(loc) << "the axis '" << found->name << "' of " << found->size
                            << " ranks has no part " << axis;
    list.push_back(sub);
  }
  return list;
}

static FailureOr<TensorLayout> layoutOf(Location loc, NamedTensorType type,
                                        const std::vector<MeshAxis> &mesh) {
  TensorLayout layout;
  layout.dtype = dtypeOf(type.getElementType());
  for (int64_t i = 0; i < type.getRank(); ++i) {
    DimLayout dim{type.getNames()[i].str(), type.getSizes()[i], {}};
    if (type.getSharding()) {
      FailureOr<std::vector<SubAxis>> axes = subAxes(loc, type.getSharding().getDims()[i], mesh);
      if (failed(axes))
        return failure();
      dim.axes = *axes;
    }
    layout.dims.push_back(std::move(dim));
  }
  return layout;
}

LogicalResult cleave::describeSignature(func::FuncOp function, const std::vector<MeshAxis> &mesh,
                                        Program &program) {
  Location loc = function.getLoc();
  unsigned numArguments = function.getNumArguments(), numResults = function.getNumResults();
  auto layouts = function->getAttrOfType<ArrayAttr>(kLayouts);
  if (layouts && layouts.size() != numArguments + numResults)
    return function.emitError() << "has " << layouts.size() << " layouts for " << numArguments
                                << " arguments and " << numResults << " results";
  auto globalType = [&](unsigned number, Type local) {
    return cast<NamedTensorType>(layouts ? cast<TypeAttr>(layouts[number]).getValue() : local);
  };
  // The layout's blocks must be what the local type says.
  auto layoutFor = [&](unsigned number, Type type) -> FailureOr<TensorLayout> {
    auto local = dyn_cast<NamedTensorType>(type);
    if (!local)
      return function.emitError() << "takes and gives tensors only, not " << type;
    NamedTensorType global = globalType(number, type);
    FailureOr<TensorLayout> layout = layoutOf(loc, global, mesh);
    if (failed(layout))
      return failure();
    for (int64_t i = 0; i < local.getRank(); ++i)
      if (global.getRank() != local.getRank() || layout->dims[i].block() != local.getSizes()[i])
        return function.emitError() << "one rank's part of " << global << " is not " << local;
    return layout;
  };
  for (unsigned i = 0; i < numResults; ++i) {
    ProgramResult result;
    auto name = function.getResultAttrOfType<StringAttr>(i, kName);
    result.name = name ? name.str() : "result" + std::to_string(i);
    FailureOr<TensorLayout> layout = layoutFor(numArguments + i, function.getResultTypes()[i]);
    if (failed(layout))
      return failure();
    result.layout = std::move(*layout);
    program.results.push_back(std::move(result));
  }
  for (unsigned i = 0; i < numArguments; ++i) {
    Argument argument;
    auto get = [&](StringRef attr) { return function.getArgAttr(i, attr); };
    auto text = [&](StringRef attr) {
      auto value = dyn_cast_or_null<StringAttr>(get(attr));
      return value ? value.str() : std::string();
    };
    argument.name = text(kName);
    if (argument.name.empty())
      argument.name = "arg" + std::to_string(i);
    std::string role = text(kRole);
    argument.role = role == "param"    ? Argument::Role::Param
                    : role == "state"  ? Argument::Role::State
                    : role == "scalar" ? Argument::Role::Scalar
                                       : Argument::Role::Input;
    auto local = dyn_cast<NamedTensorType>(function.getArgumentTypes()[i]);
    FailureOr<TensorLayout> layout = layoutFor(i, function.getArgumentTypes()[i]);
    if (failed(layout))
      return failure();
    argument.layout = std::move(*layout);
    argument.localBytes = local.getNumElements() * local.getElementBytes();
    auto zero = function->getParentOfType<ModuleOp>()->getAttrOfType<ZeroAttr>(kZeroAttr);
    argument.offloaded = zero && zero.getOffload() && argument.role == Argument::Role::State &&
                         local.getRank() > 0; // a count of steps is no burden
    argument.init = text(kInit);
    if (auto range = dyn_cast_or_null<IntegerAttr>(get(kRange)))
      argument.rangeEnd = range.getInt();
    argument.rangeWhat = text(kRangeDim);
    if (auto ignore = dyn_cast_or_null<IntegerAttr>(get(kIgnore))) {
      argument.hasIgnore = true;
      argument.ignore = ignore.getInt();
    }
    if (auto donated = dyn_cast_or_null<IntegerAttr>(get(kDonatedTo))) {
      int64_t to = donated.getInt();
      if (to < 0 || to >= numResults)
        return function.emitError() << "argument '" << argument.name << "' is donated to result "
                                    << to << " of " << numResults;
      if (program.results[to].aliasOf >= 0)
        return function.emitError()
               << "both '" << program.arguments[program.results[to].aliasOf].name << "' and '"
               << argument.name << "' are donated to result " << to;
      if (function.getResultTypes()[to] != function.getArgumentTypes()[i])
        return function.emitError()
               << "argument '" << argument.name << "' of type " << function.getArgumentTypes()[i]
               << " is donated to a result of type " << function.getResultTypes()[to];
      argument.donatedTo = static_cast<int32_t>(to);
      program.results[to].aliasOf = static_cast<int32_t>(i);
    }
    program.arguments.push_back(std::move(argument));
  }
  return success();
}

static void collectLabel(Operation *op, SmallVectorImpl<std::string> &names,
                         llvm::MapVector<StringRef, std::set<unsigned>> &lines,
                         std::deque<std::string> &files) {
  std::string text = locationText(op->getLoc());
  StringRef file = StringRef(text).rsplit(':').first.rsplit(':').first;
  unsigned line = 0;
  if (!StringRef(text).rsplit(':').first.rsplit(':').second.getAsInteger(10, line)) {
    auto known = lines.find(file);
    if (known == lines.end()) {
      files.push_back(file.str());
      known = lines.insert({StringRef(files.back()), {}}).first;
    }
    known->second.insert(line);
  }
  if (isa<ConstantOp, BroadcastOp, RenameOp, YieldOp>(op))
    return;
  auto part = op->getAttrOfType<StringAttr>(kPart);
  std::string name = part ? part.str() : op->getName().stripDialect().str();
  if (!llvm::is_contained(names, name))
    names.push_back(name);
}

StepLabel cleave::labelOf(ArrayRef<Operation *> ops) {
  constexpr size_t mostNames = 8;
  SmallVector<std::string> names;
  llvm::MapVector<StringRef, std::set<unsigned>> lines;
  std::deque<std::string> files;
  SmallVector<Operation *> all;
  llvm::DenseMap<Operation *, StringAttr> named; // by the group that they are in
  for (Operation *op : ops) {
    auto fused = dyn_cast<FusedOp>(op);
    if (!fused) {
      all.push_back(op);
      continue;
    }
    auto part = op->getAttrOfType<StringAttr>(kPart);
    for (Operation &inner : fused.getBody().front().without_terminator()) {
      all.push_back(&inner);
      if (part)
        named[&inner] = part;
    }
  }
  // Arithmetic on single numbers beside that on tensors says nothing.
  auto isNumber = [](Operation *op) {
    if (!op->getNumResults())
      return false;
    auto type = dyn_cast<NamedTensorType>(op->getResult(0).getType());
    return type && type.getNumElements() == 1 && !isa<ReduceOp>(op);
  };
  bool numbersOnly = llvm::all_of(all, isNumber);
  for (Operation *op : all)
    if (numbersOnly || !isNumber(op)) {
      StringAttr part = named.lookup(op);
      if (part && !llvm::is_contained(names, part.getValue()))
        names.push_back(part.str());
      SmallVector<std::string> ignored;
      collectLabel(op, part ? ignored : names, lines, files);
    }
  StepLabel label;
  if (names.size() > mostNames) {
    names.resize(mostNames);
    names.push_back("...");
  }
  label.ops = llvm::join(names, ", ");
  for (const auto &[file, numbers] : lines) {
    label.source += (label.source.empty() ? "" : "; ") + file.str() + ":";
    bool first = true;
    for (unsigned n : numbers) {
      label.source += (first ? "" : ",") + std::to_string(n);
      first = false;
    }
  }
  return label;
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

static int64_t product(ArrayRef<int64_t> sizes) {
  int64_t n = 1;
  for (int64_t size : sizes)
    n *= size;
  return n;
}

FailureOr<CollectiveStep> cleave::collectiveStep(Operation *op, const std::vector<MeshAxis> &mesh) {
  NamedTensorType in = tensorOf(op->getOperand(0)), out = tensorOf(op->getResult(0));
  CollectiveStep step;
  step.dtype = dtypeOf(in.getElementType());
  FailureOr<std::vector<SubAxis>> axes =
      subAxes(op->getLoc(), op->getAttrOfType<ArrayAttr>("axes"), mesh);
  if (failed(axes))
    return failure();
  step.axes = *axes;
  int64_t ranks = 1;
  for (const SubAxis &axis : step.axes)
    ranks *= axis.size;
  auto along = [&](StringRef dim) {
    int64_t i = in.indexOf(dim);
    step.outer = product(in.getSizes().take_front(i));
    step.inner = product(in.getSizes().drop_front(i + 1));
    step.inDim = in.getSizes()[i];
    step.outDim = out.getSizes()[i];
  };
  auto isBlock = [&](int64_t block, int64_t whole) { return block == (whole + ranks - 1) / ranks; };
  auto wrongSizes = [&]() {
    return op->emitError() << "over " << ranks << " ranks does not turn " << in << " into " << out;
  };
  auto reduction = [](Reduction kind) {
    return static_cast<CollectiveStep::Reduction>(static_cast<uint32_t>(kind));
  };
  if (auto reduce = dyn_cast<AllReduceOp>(op)) {
    step.kind = CollectiveStep::Kind::AllReduce;
    step.reduction = reduction(reduce.getReduction());
    step.inDim = step.outDim = in.getNumElements();
  } else if (auto gather = dyn_cast<AllGatherOp>(op)) {
    step.kind = CollectiveStep::Kind::AllGather;
    along(gather.getDim());
    if (!isBlock(step.inDim, step.outDim))
      return wrongSizes();
  } else if (auto scatter = dyn_cast<ReduceScatterOp>(op)) {
    step.kind = CollectiveStep::Kind::ReduceScatter;
    step.reduction = reduction(scatter.getReduction());
    along(scatter.getDim());
    if (!isBlock(step.outDim, step.inDim))
      return wrongSizes();
  } else {
    auto exchange = cast<AllToAllOp>(op);
    step.kind = CollectiveStep::Kind::AllToAll;
    int64_t gathered = in.indexOf(exchange.getGatherDim());
    int64_t split = in.indexOf(exchange.getSplitDim());
    int64_t first = std::min(gathered, split), second = std::max(gathered, split);
    step.dimFirst = gathered < split;
    step.outer = product(in.getSizes().take_front(first));
    step.middle = product(in.getSizes().slice(first + 1, second - first - 1));
    step.inner = product(in.getSizes().drop_front(second + 1));
    step.inDim = in.getSizes()[gathered];
    step.outDim = out.getSizes()[gathered];
    step.inDim2 = in.getSizes()[split];
    step.outDim2 = out.getSizes()[split];
    if (!isBlock(step.inDim, step.outDim) || !isBlock(step.outDim2, step.inDim2))
      return wrongSizes();
  }
  return step;
}

CollectiveSite cleave::collectiveSite(Operation *op, const CollectiveStep &step) {
  CollectiveSite site;
  site.kind = op->getName().stripDialect().str();
  llvm::raw_string_ostream axes(site.axes);
  llvm::interleave(
      op->getAttrOfType<ArrayAttr>("axes").getAsRange<AxisAttr>(), axes,
      [&](AxisAttr axis) {
        axes << axis.getName().getValue();
        if (axis.getSize())
          axes << ":(" << axis.getPre() << ")" << axis.getSize();
      },
      ", ");
  if (auto why = op->getAttrOfType<StringAttr>(kRule))
    site.rule = why.str();
  site.location = locationText(op->getLoc());
  site.phase = phaseOf(op).str();
  int64_t ranks = 1;
  for (const SubAxis &axis : step.axes)
    ranks *= axis.size;
  NamedTensorType in = tensorOf(op->getOperand(0)), out = tensorOf(op->getResult(0));
  // The whole tensor: with the padding that the blocks of all ranks have.
  int64_t elements = in.getNumElements();
  if (step.kind == CollectiveStep::Kind::AllGather)
    elements *= ranks;
  else if (step.kind == CollectiveStep::Kind::ReduceScatter)
    elements = out.getNumElements() * ranks;
  int64_t n = elements * in.getElementBytes();
  site.payloadBytes = n;
  site.ringBytes = (step.kind == CollectiveStep::Kind::AllReduce ? 2 : 1) *
                   (n / ranks * (ranks - 1) + n % ranks * (ranks - 1) / ranks);
  site.executions = 0;
  NamedTensorType whole = step.kind == CollectiveStep::Kind::AllGather ? out : in;
  site.tensors.emplace_back();
  site.tensors[0].elements = whole.getNumElements();
  llvm::raw_string_ostream dims(site.tensors[0].dims);
  dims << "[";
  for (int64_t i = 0; i < whole.getRank(); ++i)
    dims << (i ? ", " : "") << whole.getNames()[i].getValue() << "=" << whole.getSizes()[i];
  dims << "]";
  for (auto repeat = op->getParentOfType<RepeatOp>(); repeat;
       repeat = repeat->getParentOfType<RepeatOp>())
    if (repeat.getDim() != kAccumulate)
      site.layers = std::max<int64_t>(1, site.layers) * static_cast<int64_t>(repeat.getCount());
  return site;
}

FailureOr<RankScalar> cleave::rankScalar(Operation *user, Value value,
                                         const std::vector<MeshAxis> &mesh,
                                         const DenseMap<Operation *, int64_t> &iterations) {
  RankScalar scalar;
  APInt number;
  Operation *op = value.getDefiningOp();
  if (op && matchPattern(value, m_ConstantInt(&number))) {
    scalar.value = number.getSExtValue();
    return scalar;
  }
  ArrayAttr axes;
  if (auto offset = dyn_cast_or_null<ShardOffsetOp>(op)) {
    scalar.kind = RankScalar::Kind::Offset;
    scalar.block = offset.getBlock();
    axes = offset.getAxes();
  } else if (auto extent = dyn_cast_or_null<ShardExtentOp>(op)) {
    scalar.kind = RankScalar::Kind::Extent;
    scalar.block = extent.getBlock();
    scalar.size = extent.getSize();
    axes = extent.getAxes();
  } else {
    return user->emitError() << "an index must be a constant, a shard's offset or its extent";
  }
  // The last axis may be a repeat's dim.
  if (!axes.empty())
    for (auto repeat = op->getParentOfType<RepeatOp>(); repeat;
         repeat = repeat->getParentOfType<RepeatOp>())
      if (repeat.getDim() == cast<AxisAttr>(axes[axes.size() - 1]).getName()) {
        scalar.parts = static_cast<int64_t>(repeat.getCount());
        scalar.part = iterations.at(repeat);
        axes = ArrayAttr::get(op->getContext(), axes.getValue().drop_back());
        break;
      }
  FailureOr<std::vector<SubAxis>> list = subAxes(op->getLoc(), axes, mesh);
  if (failed(list))
    return failure();
  scalar.axes = *list;
  return scalar;
}

StringRef cleave::phaseOf(Operation *op) {
  if (auto phase = op->getAttrOfType<StringAttr>(kPhase))
    return phase.getValue();
  if (auto fused = dyn_cast<FusedOp>(op))
    for (Operation &inner : fused.getBody().front())
      if (auto phase = inner.getAttrOfType<StringAttr>(kPhase))
        return phase.getValue();
  return "forward";
}

FailureOr<GradientOverlap> cleave::gradientOverlap(ModuleOp module) {
  GradientOverlap how;
  auto word = module->getAttrOfType<StringAttr>(kOverlap);
  if (!word || word == "layers")
    return how;
  if (word == "none") {
    how.kind = GradientOverlap::Kind::None;
    return how;
  }
  auto bytes = module->getAttrOfType<IntegerAttr>(kBucketBytes);
  if (word != "bucketed" || !bytes || bytes.getInt() < 1)
    return module.emitError() << "'" << kOverlap << "' is none, layers or bucketed, the last with '"
                              << kBucketBytes << "' of at least 1";
  how.kind = GradientOverlap::Kind::Bucketed;
  how.bucketBytes = bytes.getInt();
  return how;
}
