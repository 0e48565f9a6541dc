//===- CleaveInterfaces.td - what ops say about themselves -*- tablegen -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#ifndef CLEAVE_INTERFACES
#define CLEAVE_INTERFACES

include "mlir/IR/OpBase.td"

def ShardableOpInterface : OpInterface<"ShardableOpInterface"> {
  let cppNamespace = "::cleave";
  let description = [{
    The one declaration of how an op may be split. Propagation, reshard
    decisions, partition, byte counts, verification and the generated tests
    read it; none of them knows ops by name.
  }];
  let methods = [
    InterfaceMethod<"The op's factors, and how its operands and results use them.",
                    "::cleave::ShardingRule", "getShardingRule">
  ];
}

def ExpandableOpInterface : OpInterface<"ExpandableOpInterface"> {
  let cppNamespace = "::cleave";
  let description = [{
    A composite op. Its expansion into primitive ops is its meaning: the form
    that is differentiated, and the partial form when a dim that it reduces is
    split (a softmax over a split dim becomes ops with max and sum). An op that has a
    kernel and a gradient of its own stays whole where it can.
  }];
  let methods = [
    InterfaceMethod<"Builds the expansion at the builder's place; returns the results' values.",
                    "::llvm::SmallVector<::mlir::Value>", "expand",
                    (ins "::mlir::OpBuilder &":$builder)>,
    InterfaceMethod<"Whether the op has a kernel of its own, and a gradient with one.",
                    "bool", "hasKernel", (ins), [{}], [{ return false; }]>
  ];
}

def ProductOpInterface : OpInterface<"ProductOpInterface"> {
  let cppNamespace = "::cleave";
  let description = [{
    An op that multiplies and adds up. Its factors may be bf16 or f16: their products are then
    exact and added in f32.
  }];
  let methods = [
    InterfaceMethod<"How many of the operands, from the first on, are factors.",
                    "unsigned", "getNumFactors">,
    InterfaceMethod<"Whether the first result has the factors' type, rather than that of the sums.",
                    "bool", "roundsResult">
  ];
}

#endif // CLEAVE_INTERFACES
