//===- Layouts.h - IR attributes in the executable's terms ------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"
#include "passes/schedule/Steps.h"
#include "runtime/executable/Executable.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace cleave {

std::vector<MeshAxis> meshOf(mlir::ModuleOp module);
DType dtypeOf(mlir::Type type);

/// The axes as indices into the mesh. Fails, with an error at `loc`, on an axis
/// that the mesh lacks.
llvm::FailureOr<std::vector<SubAxis>> subAxes(mlir::Location loc, mlir::ArrayAttr axes,
                                              const std::vector<MeshAxis> &mesh);

/// Arguments and results of a function; also checks the donations: a donated
/// argument's local type is that of its result, and no result has two donors.
llvm::LogicalResult describeSignature(mlir::func::FuncOp function,
                                      const std::vector<MeshAxis> &mesh, Program &program);

/// What a step of these ops is called: a composite's by the composite's name, with all their source
/// lines. Of a `cleave.fused` its ops count.
StepLabel labelOf(llvm::ArrayRef<mlir::Operation *> ops);

/// The step of a collective, without its buffers; and what is told of its site.
llvm::FailureOr<CollectiveStep> collectiveStep(mlir::Operation *op,
                                               const std::vector<MeshAxis> &mesh);
CollectiveSite collectiveSite(mlir::Operation *op, const CollectiveStep &step);

/// The number that an index operand stands for: a constant, a shard's offset or
/// its extent. `iterations`: where each of the repeats around it is.
llvm::FailureOr<RankScalar>
rankScalar(mlir::Operation *user, mlir::Value value, const std::vector<MeshAxis> &mesh,
           const llvm::DenseMap<mlir::Operation *, int64_t> &iterations);

/// "forward", "backward" or "optimizer": the op's, or for a group its first
/// inner op's that says.
llvm::StringRef phaseOf(mlir::Operation *op);

/// What the module says of the sums of gradients; without a word, layers.
llvm::FailureOr<GradientOverlap> gradientOverlap(mlir::ModuleOp module);

} // namespace cleave
