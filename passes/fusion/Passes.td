//===- Passes.td - fusion passes ---------------------------*- tablegen -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#ifndef CLEAVE_FUSION_PASSES
#define CLEAVE_FUSION_PASSES

include "mlir/Pass/PassBase.td"

def Fuse : Pass<"cleave-fuse", "::mlir::ModuleOp"> {
  let summary = "Outlines groups of ops that become one kernel each.";
  let options = [
    Option<"fuse", "fuse", "bool", "true", "off: a kernel for each op">
  ];
}

def PrintFusionGroups : Pass<"cleave-print-fusion-groups", "::mlir::ModuleOp"> {
  let summary = "Prints the groups that cleave-fuse would make, and why others stay apart.";
  let options = [
    Option<"fuse", "fuse", "bool", "true", "off: a kernel for each op">
  ];
}

#endif // CLEAVE_FUSION_PASSES
