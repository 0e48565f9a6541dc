//===- Passes.td - passes around the schedule --------------*- tablegen -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#ifndef CLEAVE_SCHEDULE_PASSES
#define CLEAVE_SCHEDULE_PASSES

include "mlir/Pass/PassBase.td"

def PrepareContracts : Pass<"cleave-prepare-contracts", "::mlir::ModuleOp"> {
  let summary = "Gives every contraction a form that matrix products compute.";
  let description = [{
    Contractions without a summed dim, or with nothing but batched and summed
    dims, become elementwise products and sums. The others stay when some
    batched or looped matrix product reads and writes the tensors where they
    lie; only where none does (or only slowly), a `cleave.broadcast` puts the
    dims of an operand or the result in another order. Runs before fusion, so
    that such copies merge into their neighbours.
  }];
}

def ExpandShardSlices : Pass<"cleave-expand-shard-slices", "::mlir::ModuleOp"> {
  let summary = "Local shards of replicated values, as look-ups at the rank's offset.";
  let description = [{
    `shard_slice` becomes a `gather` of the rows from this rank's shard offset
    on. Rows past the end (the padding of the last shards) are zeros. Runs
    before fusion, so that the look-up merges into what reads it.
  }];
}

def PrintSchedule : Pass<"cleave-print-schedule", "::mlir::ModuleOp"> {
  let summary = "Prints the steps, buffers and memory plan of each function.";
  let description = "Kernels are numbered, not compiled: for reading and for tests.";
  let options = [
    Option<"reuse", "reuse", "bool", "true", "let buffers that do not live together share memory">,
    Option<"inPlace", "in-place", "bool", "false", "let elementwise kernels write over their inputs">
  ];
}

#endif // CLEAVE_SCHEDULE_PASSES
