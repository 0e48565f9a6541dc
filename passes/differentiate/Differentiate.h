//===- Differentiate.h - the training step of a program ---------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"
#include "passes/differentiate/ParamGroups.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

#include <array>
#include <optional>
#include <string>

namespace cleave {

/// Mixed precision as the module's kPrecisionAttr and kReduceAttr say (Precision.cpp); before
/// composites are expanded.
llvm::LogicalResult lowerPrecision(mlir::ModuleOp module);
/// Under f16 the loss is differentiated times a scale, lest small gradients become zero
/// (arXiv 1710.03740, section 3.2).
bool scalesLoss(mlir::ModuleOp module);
/// The name of the scale: a scalar f32 argument of `<name>_grads`, a state of `train_step`.
inline constexpr llvm::StringLiteral kLossScale = "loss_scale";
/// The short float to which sums over ranks are rounded in their parts; null: they are not.
mlir::Type roundingOfSums(mlir::ModuleOp module);

/// Expands composites everywhere in the module, in place, but those that have a
/// kernel and that the module's plan doesn't split where they need a dim whole.
llvm::LogicalResult expandComposites(mlir::ModuleOp module);
llvm::LogicalResult expandComposite(ExpandableOpInterface op);

/// Marks the function's params with what the groups say (kRate, kDecay, kFrozen).
llvm::LogicalResult groupParams(mlir::func::FuncOp function, llvm::ArrayRef<ParamGroup> groups);

/// Which values of a layer the backward pass has from the forward pass, and which it
/// computes again. What it computes again has the same bits, masks too.
enum class Recompute {
  None,      ///< all that it reads is saved
  Selective, ///< elementwise values are computed again
  Full,      ///< only what enters a layer is saved; its forward pass runs again
};
inline constexpr std::array<llvm::StringLiteral, 3> recomputeNames = {"none", "selective", "full"};
std::optional<Recompute> recomputeNamed(llvm::StringRef name);

/// Adds `<name>_grads` beside the function: the same arguments; its results, then
/// d(first result)/d(param) for every param in order that is not marked as frozen,
/// each of the param's type.
/// The function must hold primitive ops and attention only and have a float scalar as its
/// first result; else an error is emitted at the place. If the module scales the loss, a
/// last argument, kLossScale, is a factor of all gradients.
llvm::FailureOr<mlir::func::FuncOp> differentiate(mlir::func::FuncOp function,
                                                  Recompute recompute = Recompute::Selective);

/// Makes the scale of a function that `differentiate` made this number, and takes it out of the
/// gradients again; nothing to do where there is none.
llvm::LogicalResult fixLossScale(mlir::func::FuncOp gradients, double scale = 1024);

struct OptimizerOptions {
  std::string kind = "adamw"; ///< "adamw" or "sgd"
  double momentum = 0;        ///< sgd: buf = momentum * buf + g; p -= lr * buf
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double decay = 0.01;   ///< adamw, decoupled (arXiv 1711.05101): p -= lr * decay * p
  bool decayAll = false; ///< else not for norms and biases
  /// Above 0: all gradients are multiplied by min(1, clip / (norm + 1e-6)), norm the square root
  /// of the sum of all their squares (arXiv 1211.5063; torch's clip_grad_norm_).
  double clip = 0;
  /// Where the loss is scaled: the first scale, and how many finite steps in a row double it.
  double lossScale = 65536;
  int64_t lossScaleSteps = 2000;
};

/// Adds `train_step` to the module, from a function that `differentiate` made:
/// arguments params, states (`adam.m:PATH`, `adam.v:PATH`, then `adam.t`, the f64 count of
/// steps taken; `sgd.momentum:PATH`; where the loss is scaled kLossScale and `loss_scale.steps`,
/// f64: the scale of the next step and the steps since it changed), frozen params, inputs, seed,
/// step (i64, of the random numbers), lr (f64); results: new params, new states (both donated),
/// then the loss and the gradients' global norm (f64), before it is clipped. A norm that is not
/// finite: the step is skipped, params and states keep their bits, but a scale of the loss is
/// halved, down to 1.
llvm::FailureOr<mlir::func::FuncOp> addOptimizer(mlir::func::FuncOp gradients,
                                                 const OptimizerOptions &options);

/// The gradient of one op: given the results' gradients (null: zero), adds to
/// the operands'. `accumulate(operand, gradient)`: a gradient may lack dims that
/// the operand has never; it may have more dims, which are summed.
using Accumulate = llvm::function_ref<void(mlir::Value operand, mlir::Value gradient)>;
llvm::LogicalResult buildGradient(mlir::OpBuilder &b, mlir::Operation *op,
                                  llvm::ArrayRef<mlir::Value> resultGradients,
                                  llvm::function_ref<bool(mlir::Value)> isActive,
                                  Accumulate accumulate);

} // namespace cleave
