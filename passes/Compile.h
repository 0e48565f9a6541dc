//===- Compile.h - from a checked program to an executable ------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The whole pipeline behind one call, without any type of MLIR in its interface:
//   emit -> expand -> differentiate, optimizer -> shard -> prepare, fuse ->
//   schedule -> machine code
//
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Checked.h"
#include "passes/differentiate/ParamGroups.h"
#include "passes/schedule/Activations.h"
#include "passes/schedule/ValueShardings.h"
#include "passes/search/Report.h"
#include "passes/structure/KeepGathered.h"
#include "runtime/core/Result.h"
#include "runtime/executable/Executable.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cleave {

/// One program of the executable.
struct EntryPoint {
  enum class Kind {
    Function,  ///< the function as it stands; program name: FUNCTION
    Gradients, ///< its results, then the gradient of the first for every param,
               ///< named "grad:PATH"; program name: FUNCTION_grads
    TrainStep, ///< params and states in and out, loss, gradient_norm; name: train_step
  };
  std::string function = "loss";
  Kind kind = Kind::TrainStep;
  /// Dropout is active; the program takes the scalars seed and step.
  bool training = true;
};

struct OptimizerSettings {
  std::string kind = "adamw"; ///< "adamw" or "sgd"
  double momentum = 0;        ///< sgd
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double decay = 0.01; ///< adamw, decoupled
  bool decayAll = false;
  double clip = 0;               ///< the largest global norm of the gradients; 0: any
  double lossScale = 65536;      ///< under precision f16: the first
  int64_t lossScaleSteps = 2000; ///< finite steps that double it
  std::vector<ParamGroup> groups;
};

/// A decision of the fusion stage.
struct FusionEntry {
  enum class Kind {
    Group,       ///< ops that are one kernel, or that run on a product's tiles
    BareProduct, ///< a product without an epilogue
    Apart,       ///< two groups that share data and are two kernels
  } kind = Kind::Group;
  std::string loops;  ///< Group: "epilogue", "elementwise", "rows", "columns", ...
  StepLabel what;     ///< ops and their source lines
  StepLabel other;    ///< Apart
  std::string reason; ///< BareProduct, Apart: the condition that failed
  int64_t bytes = 0;  ///< Group: read and written, each once; BareProduct: of its result
  int64_t times = 1;  ///< in one run (layers)
};

enum class EmitStage { None, IR, Grad, Sharded, Fused, Scheduled, LLVM };

struct CompileOptions {
  std::vector<EntryPoint> entries = {{}};
  OptimizerSettings optimizer;
  DType dtype = DType::F32; ///< of everything that the language types f32: F32 or F64
  /// Of the checked program, whose axes have sizes (CheckOptions::mesh); empty or
  /// "none": one rank.
  std::string plan;
  /// Of a plan that says `auto`: text of the profile of the cluster that it is to be fast on
  /// (runtime/emulate/Cluster.h); empty: threads of one process.
  std::string cluster;
  /// Micro-batches into which gradients and training steps cut the batch; 0: as the plan says.
  int64_t accumulate = 0;
  /// What of a layer the backward pass computes again: "none", "selective", "full" or
  /// "every(N)"; empty: as the plan says.
  std::string recompute;
  /// What the backward pass needs gathered, as the forward pass did: it is "kept", or gathered
  /// "again"; empty: as the plan says.
  std::string gathered;
  /// Mixed precision; without: as the plan says. `compute` F32: none. Under F64 there is none.
  std::optional<checked::Precision> precision;
  bool fuse = true;             ///< off: one kernel for each op
  bool reuseMemory = true;      ///< off: no two values share memory
  bool overlap = true;          ///< off: no collective runs beside other work
  double overlapWorth = 200e-6; ///< see ScheduleOptions
  int vectorBits = 256;         ///< 256 or 512
  int optLevel = 2;             ///< of the machine code, 0 to 3
  bool machineCode = true;      ///< off: the executable has no objects; it tells, but can't run
  /// Stop after this stage and give its text. Text of several entries follows one
  /// another.
  EmitStage emit = EmitStage::None;
  /// Values to give back as further results "tap:NAME" of a Function entry: named
  /// values of the source ("forward.logits"); for `cleave check`. Values inside of
  /// repeats come stacked on the layer dim. Unknown names are errors.
  std::vector<std::string> taps;
  bool listTaps = false;        ///< give the names that can be tapped, in program order
  bool listFusion = false;      ///< give the fusion stage's decisions
  bool listActivations = false; ///< give what layers save for the backward pass
  bool listShardings = false;   ///< give how values are split
  bool listGathered = false;    ///< give what the backward pass needs gathered
  /// Changes the sharded program before it is partitioned on: drops, doubles or
  /// alters the nth collective ("drop:3", "double:3", "kind:3", "axis:3"); for the
  /// mutation tests of `cleave check`.
  std::string mutation;
  std::function<void(const std::string &stage)> progress;
};

struct CompileResult {
  Executable executable;                               ///< empty when `emit` is set
  std::string text;                                    ///< of `emit`
  std::vector<std::pair<std::string, double>> seconds; ///< stage, time, in order
  std::vector<std::string> remarks;                    ///< decisions, one a line, with their places
  std::vector<std::string> taps;                       ///< with listTaps
  std::vector<FusionEntry> fusion;                     ///< with listFusion
  std::vector<LayerActivations> activations;           ///< with listActivations
  std::vector<ValueSharding> shardings;                ///< with listShardings, of the last entry
  std::vector<SearchReport> searches;   ///< of a plan that says `auto`, program by program
  std::vector<GatheredInputs> gathered; ///< with listGathered; none under `recompute full`
  bool gatheredKept = false;
  int64_t kernels = 0;
  int64_t collectives = 0; ///< collective ops in the per-rank programs, before unrolling
};

/// Errors carry file:line:col of the source where there is one.
Result<CompileResult> compile(const CheckedProgram &program, const CompileOptions &options);

} // namespace cleave
