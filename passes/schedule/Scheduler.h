//===- Scheduler.h - the state of a schedule --------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Used by Schedule.cpp and Products.cpp only.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/Location.h"
#include "passes/schedule/Contraction.h"
#include "passes/schedule/Layouts.h"
#include "passes/schedule/Schedule.h"
#include "passes/schedule/Steps.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/StringMap.h"

namespace cleave::scheduler {

using namespace mlir;

/// The group that finishes the product's tiles: it stands behind it.
FusedOp epilogueOf(ContractOp op);
/// The sum that the product makes along the way: behind it and its epilogue.
FusedOp sumsOf(ContractOp op);
bool isOfAttention(Operation *op);

/// One pass through a block: the function's body, or one iteration of a repeat.
struct Frame {
  Frame *parent = nullptr;
  llvm::DenseMap<Value, Place> places;
};

class Scheduler {
public:
  Scheduler(func::FuncOp function, const std::vector<MeshAxis> &mesh, KernelProvider &kernels,
            llvm::DenseMap<Operation *, KernelInfo> &known, const ScheduleOptions &options)
      : function(function), mesh(mesh), kernels(kernels), known(known), options(options) {}

  LogicalResult run(Program &program);

private:
  void outlineLeftovers();
  LogicalResult emitBlock(Block &block, Frame &frame);
  LogicalResult emit(Operation *op, Frame &frame);
  LogicalResult emitFused(FusedOp op, Frame &frame);
  LogicalResult emitContract(ContractOp op, Frame &frame);
  LogicalResult addSums(ContractOp op, FusedOp sums, const GemmPlan &plan, GemmStep &gemm,
                        Recorded &step, Frame &frame);
  void addGemm(ContractOp op, GemmStep gemm, Recorded step);
  LogicalResult addEpilogue(ContractOp op, FusedOp epilogue, GemmStep &gemm, Recorded &step,
                            Frame &frame);
  FailureOr<const KernelInfo *> infoOf(FusedOp op);
  bool replacesOperand(Place result, FusedOp epilogue, Frame &frame);
  LogicalResult emitCollective(Operation *op, Frame &frame);
  LogicalResult emitRepeat(RepeatOp op, Frame &frame);
  LogicalResult emitReturn(func::ReturnOp op, Frame &frame);

  Place placeOf(Value value, Frame &frame) {
    for (Frame *f = &frame; f; f = f->parent)
      if (auto found = f->places.find(value); found != f->places.end())
        return found->second;
    llvm_unreachable("values are placed before they are used");
  }

  /// Where a new value of an op belongs: at its destination, else in the arena.
  Place placeNew(Value value, Frame &frame) {
    Place place = destination(value, frame).value_or(Place());
    if (place.buffer < 0)
      place = steps.wholeOf(steps.addArena(bytesOf(value)));
    frame.places[value] = place;
    return place;
  }

  std::optional<Place> destination(Value value, Frame &frame);
  std::optional<Place> carriedDestination(RepeatOp op, unsigned carried, int64_t iteration,
                                          Frame &frame,
                                          llvm::DenseSet<std::pair<unsigned, int64_t>> &seen);
  Place stackedSlot(RepeatOp op, unsigned result, int64_t iteration, Frame &frame);
  Place resultPlace(unsigned result);

  static int64_t bytesOf(Value value) {
    NamedTensorType type = tensorOf(value);
    return type.getNumElements() * type.getElementBytes();
  }
  static int64_t layerOf(RepeatOp op, int64_t iteration) {
    return op.getReverse() ? static_cast<int64_t>(op.getCount()) - 1 - iteration : iteration;
  }

  /// `with`: what else the step makes, the same for each step of the op.
  Recorded record(Operation *op, StepKind kind, ArrayRef<Operation *> with = {}) {
    Recorded step;
    step.step.kind = kind;
    step.backward = phaseOf(op) == "backward";
    step.step.location = locationNumber(op->getLoc());
    step.step.label = labelNumber(op, with);
    return step;
  }
  int32_t labelNumber(Operation *op, ArrayRef<Operation *> with);
  int32_t locationNumber(Location loc);
  void copy(Operation *op, Place from, Place to) {
    if (from == to || !from.bytes)
      return;
    Recorded step = record(op, StepKind::Copy);
    step.step.bytes = 2 * from.bytes;
    step.step.action = CopyStep{from.ref(), to.ref(), from.bytes};
    step.reads = {from};
    step.writes = {to};
    steps.add(std::move(step));
  }

  func::FuncOp function;
  const std::vector<MeshAxis> &mesh;
  KernelProvider &kernels;
  llvm::DenseMap<Operation *, KernelInfo> &known;
  const ScheduleOptions &options;
  Program *program = nullptr;
  StepList steps;
  llvm::DenseMap<Operation *, GemmPlan> plans;
  llvm::DenseMap<Operation *, std::pair<CollectiveStep, int32_t>> collectives;
  llvm::DenseMap<Operation *, Value> layerTables;
  /// Of each frame that is an iteration: the frame of its repeat, its number.
  llvm::DenseMap<Frame *, std::pair<Frame *, int64_t>> iterations;
  llvm::DenseMap<Operation *, int64_t> iterationOf; ///< of the repeats that are being unrolled
  llvm::DenseMap<std::pair<Operation *, std::pair<Frame *, unsigned>>, Place> stacks;
  SmallVector<int> resultBuffers;
  llvm::DenseMap<Location, int32_t> locationNumbers;
  llvm::StringMap<int32_t> locationTexts;
  llvm::DenseMap<Operation *, int32_t> labelNumbers;
  std::optional<GemmStep> lastGemm;
};

} // namespace cleave::scheduler
