//===- Passes.td - from forward programs to training steps -*- tablegen -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
include "mlir/Pass/PassBase.td"

def CleaveLowerPrecision : Pass<"cleave-lower-precision", "::mlir::ModuleOp"> {
  let summary = "Mixed precision: products read bf16 or f16, and what lies between ops is of that type";
  let description = [{
    The module's `cleave.precision` is the type; without it nothing changes. `cleave.reduce`, f32
    or the same type: of sums over ranks. Params and results keep their types.
  }];
}

def CleaveExpandComposites : Pass<"cleave-expand-composites", "::mlir::ModuleOp"> {
  let summary = "Replaces composite ops (norms, softmax, cross-entropy, attention, ...) by primitive ops";
}

def CleaveGroupParams : Pass<"cleave-group-params", "::mlir::ModuleOp"> {
  let summary = "Marks the params of groups with their own learning rate and decay, and frozen ones";
  let description = [{
    `cleave-differentiate` makes no gradients for frozen params, and `cleave-add-optimizer`
    reads the other marks. A pattern that matches no param is an error; of several groups
    that match a param, each setting is that of the last which has it.
  }];
  let options = [
    Option<"function", "function", "std::string", "\"loss\"", "the function to differentiate">,
    Option<"groups", "groups", "std::string", "\"\"", "PATTERN:lr=0.1x,decay=0 and so on, between them ;">,
    Option<"freeze", "freeze", "std::string", "\"\"", "patterns, between them ;">
  ];
}

def CleaveDifferentiate : Pass<"cleave-differentiate", "::mlir::ModuleOp"> {
  let summary = "Adds <function>_grads: the function's results, then the gradient of the first for every param that learns";
  let description = [{
    The first result must be a float scalar. Repeats get a reverse repeat; what
    their backward pass reads is stacked by the forward one, and cheap
    elementwise values are computed again instead.
  }];
  let options = [
    Option<"function", "function", "std::string", "\"loss\"", "the function to differentiate">,
    Option<"recompute", "recompute", "std::string", "\"selective\"", "none, selective or full: what of a layer its backward pass computes again">
  ];
}

def CleaveAddOptimizer : Pass<"cleave-add-optimizer", "::mlir::ModuleOp"> {
  let summary = "Adds train_step: params and optimizer state in, the same updated out, loss and gradient norm";
  let options = [
    Option<"function", "function", "std::string", "\"loss_grads\"", "the function that gives the gradients">,
    Option<"kind", "kind", "std::string", "\"adamw\"", "sgd or adamw">,
    Option<"momentum", "momentum", "double", "0.0", "of sgd">,
    Option<"beta1", "beta1", "double", "0.9", "of adamw">,
    Option<"beta2", "beta2", "double", "0.999", "of adamw">,
    Option<"epsilon", "epsilon", "double", "1e-8", "of adamw">,
    Option<"decay", "decay", "double", "0.01", "decoupled weight decay of adamw">,
    Option<"decayAll", "decay-all", "bool", "false", "decay norms and biases too">,
    Option<"clip", "clip", "double", "0.0", "the largest global norm of the gradients, 0: any">,
    Option<"lossScale", "loss-scale", "double", "65536.0", "the first scale of the loss, under f16">,
    Option<"lossScaleSteps", "loss-scale-steps", "int64_t", "2000", "finite steps that double it">
  ];
}
