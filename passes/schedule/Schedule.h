//===- Schedule.h - from the fused program to steps and buffers -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The per-rank program after fusion becomes an unrolled list of steps over
// numbered buffers. Values are immutable; a value's place in memory is fixed
// when it is made: where it is returned, stacked or donated to, if the step can
// write there at once, else in the arena. See README.md.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"
#include "passes/lowering/Kernels.h"
#include "runtime/executable/Executable.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace cleave {

#define GEN_PASS_DECL
#include "passes/schedule/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "passes/schedule/Passes.h.inc"

/// Makes machine code, as KernelCompiler does; asked once for each fused op.
class KernelProvider {
public:
  virtual ~KernelProvider() = default;
  /// A failure has been reported on the op.
  virtual llvm::FailureOr<KernelInfo> kernelFor(FusedOp op) = 0;
};

struct ScheduleOptions {
  std::string model;
  std::map<std::string, std::string> settings;
  std::map<std::string, int64_t> dims; ///< Program::dims
  bool reuseMemory = true;             ///< off: every buffer has its own place in the arena
  bool overlap = true;                 ///< off: every collective is waited for at once
  /// Seconds of other work, roughly, that make it worth handing a collective to another thread.
  double overlapWorth = 200e-6;
};

/// A program for each function with a body. Steps, buffers, arguments, layouts
/// and the mesh are filled in; the module says when gradients are summed (kOverlap); `objects` and
/// `cpuFeatures` are the caller's. Ops that fusion left over are put into groups of their own in
/// the module. Errors are reported on the ops.
llvm::FailureOr<Executable> buildExecutable(mlir::ModuleOp module, KernelProvider &kernels,
                                            const ScheduleOptions &options = {});

/// The pairs for KernelInfo::inPlace of a group that is one elementwise loop:
/// inputs of a result's element size, dims and order, when no op of the group
/// looks at other elements. Empty for any other group.
std::vector<std::pair<int, int>> elementwisePairs(FusedOp op);

/// Replaces a shard_slice by a look-up (see the pass); returns the new value.
mlir::Value expandShardSlice(ShardSliceOp op);

} // namespace cleave
