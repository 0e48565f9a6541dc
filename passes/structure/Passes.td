//===- Passes.td - the program's structure in time --------*- tablegen -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
include "mlir/Pass/PassBase.td"

def CleaveGroupLayers : Pass<"cleave-group-layers", "::mlir::ModuleOp"> {
  let summary = "Nests each repeat over layers in one over groups of them (recompute every(k))";
  let description = [{
    Before `cleave-differentiate`, which saves what enters a group, and in the backward
    pass runs the group's forward pass again. The size must divide the layers.
  }];
  let options = [Option<"size", "size", "int64_t", "1", "layers of a group">];
}

def CleaveSplitMicroBatches : Pass<"cleave-split-micro-batches", "::mlir::ModuleOp"> {
  let summary = "Splits the batch by a further axis, `accumulate`, which is to become a loop";
  let description = [{
    Before `cleave-assign-shardings`: the mesh gets the axis and the plan the rule, so
    that everything that knows how to split a program over ranks splits it into
    micro-batches too.
  }];
  let options = [
    Option<"count", "count", "int64_t", "1", "micro-batches">,
    Option<"dim", "dim", "std::string", "\"batch\"", "the dim that is cut">
  ];
}

def CleaveRepeatMicroBatches : Pass<"cleave-repeat-micro-batches", "::mlir::ModuleOp"> {
  let summary = "Makes the axis `accumulate` a repeat, which carries the sums over it";
  let description = [{
    After `cleave-partition`. What an all-reduce over `accumulate` completes is added up
    from one micro-batch to the next, and reduced over the other axes once, behind the
    repeat. A sum that the micro-batches themselves need (the count of valid labels) gets
    a repeat of its own, ahead; if it depends on params the program is refused, for that
    would be a second forward pass.
  }];
}

def CleaveHoistParamCasts : Pass<"cleave-hoist-param-casts", "::mlir::ModuleOp"> {
  let summary = "Casts a param once, ahead of the layers, where each layer would cast its slice";
  let description = [{
    Behind `cleave-lower-precision`. With micro-batches the copy serves them all, forward and
    backward; with params in shards (`zero 3`) it is the copy's shards that are gathered.
  }];
}

def CleaveKeepGathered : Pass<"cleave-keep-gathered", "::mlir::ModuleOp"> {
  let summary = "Keeps for the backward pass what the forward pass gathered (gathered kept)";
  let description = [{
    Behind `cleave-insert-collectives` and CSE. Where the backward pass of a layer gathers
    an activation that the forward pass gathered as well, that is saved in its gathered form;
    what was saved for no more than to gather it again is not. Params are left alone.
  }];
}
