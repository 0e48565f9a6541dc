//===- Passes.td - from a global program to one rank's -----*- tablegen -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
include "mlir/Pass/PassBase.td"

def CleavePrintShardingRules : Pass<"cleave-print-sharding-rules", "::mlir::ModuleOp"> {
  let summary = "Prints how each op may be split, as a remark on it";
}

def CleaveAssignShardings : Pass<"cleave-assign-shardings", "::mlir::ModuleOp"> {
  let summary = "Decides from the plan where every value is to live, and writes it as attributes";
}

def CleaveInsertCollectives : Pass<"cleave-insert-collectives", "::mlir::ModuleOp"> {
  let summary = "Decides how each op is split, places the reductions, and inserts collectives";
  let description = [{
    From here on types carry shardings; every op agrees with its rule.
  }];
}

def CleaveVerifyShardings : Pass<"cleave-verify-shardings", "::mlir::ModuleOp"> {
  let summary = "Refuses ops whose types disagree with their declared rule, and unreduced values "
                "where they may not be";
}

def CleaveMaskPadding : Pass<"cleave-mask-padding", "::mlir::ModuleOp"> {
  let summary =
      "Masks the padding of uneven shards where a sum or a maximum would read it, and only there";
}

def CleaveVerifyPadding : Pass<"cleave-verify-padding", "::mlir::ModuleOp"> {
  let summary = "Refuses ops that read padding that is not neutral for them, and params that lose "
                "their zeros";
}

def CleavePartition : Pass<"cleave-partition", "::mlir::ModuleOp"> {
  let summary =
      "Makes it one rank's program: local sizes, and offsets for what depends on the global index";
}
