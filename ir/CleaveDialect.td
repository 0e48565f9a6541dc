//===- CleaveDialect.td - dialect, attributes, types -------*- tablegen -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#ifndef CLEAVE_DIALECT
#define CLEAVE_DIALECT

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"

def Cleave_Dialect : Dialect {
  let name = "cleave";
  let cppNamespace = "::cleave";
  let summary = "Transformers on tensors whose dims have names, and their sharding.";
  let description = [{
    Every tensor dim has a name; elementwise ops broadcast by name, and
    contractions sum over the names that their result lacks. A tensor type may
    say how each dim is split over named mesh axes and over which axes the value
    is still unreduced.
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let hasConstantMaterializer = 0;
}

class Cleave_Attr<string name, string attrMnemonic, list<Trait> traits = []>
    : AttrDef<Cleave_Dialect, name, traits> {
  let mnemonic = attrMnemonic;
}

//===----------------------------------------------------------------------===//
// Enums
//===----------------------------------------------------------------------===//

def Cleave_Reduction : I32EnumAttr<"Reduction", "how values are combined", [
  I32EnumAttrCase<"Sum", 0, "sum">,
  I32EnumAttrCase<"Max", 1, "max">,
  I32EnumAttrCase<"Min", 2, "min">
]> {
  let cppNamespace = "::cleave";
  let genSpecializedAttr = 0;
}
def Cleave_ReductionAttr : EnumAttr<Cleave_Dialect, Cleave_Reduction, "reduction"> {
  let assemblyFormat = "$value";
}

def Cleave_Predicate : I32EnumAttr<"Predicate", "what a comparison asks", [
  I32EnumAttrCase<"EQ", 0, "eq">, I32EnumAttrCase<"NE", 1, "ne">,
  I32EnumAttrCase<"LT", 2, "lt">, I32EnumAttrCase<"LE", 3, "le">,
  I32EnumAttrCase<"GT", 4, "gt">, I32EnumAttrCase<"GE", 5, "ge">
]> {
  let cppNamespace = "::cleave";
  let genSpecializedAttr = 0;
}
def Cleave_PredicateAttr : EnumAttr<Cleave_Dialect, Cleave_Predicate, "predicate"> {
  let assemblyFormat = "$value";
}

//===----------------------------------------------------------------------===//
// Mesh, axes, shardings, plans
//===----------------------------------------------------------------------===//

def Cleave_MeshAttr : Cleave_Attr<"Mesh", "mesh"> {
  let summary = "The device mesh: named axes and their sizes, first axis major in rank order.";
  let description = "Example: `#cleave.mesh<dp=2, tp=4>`. No axes: one rank.";
  let parameters = (ins ArrayRefParameter<"::mlir::StringAttr">:$names,
                        ArrayRefParameter<"int64_t">:$sizes);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Number of ranks.
    int64_t getRanks() const;
    /// Size of the axis, or 0 when there is none of this name.
    int64_t sizeOf(::llvm::StringRef axis) const;
  }];
}

def Cleave_AxisAttr : Cleave_Attr<"Axis", "axis"> {
  let summary = "A mesh axis, or the sub-axis of `size` ranks after a major part of `pre`.";
  let description = "Printed as `tp` (size 0: the whole axis) or `tp:(pre)size`.";
  let parameters = (ins "::mlir::StringAttr":$name, DefaultValuedParameter<"int64_t", "1">:$pre,
                        DefaultValuedParameter<"int64_t", "0">:$size);
  let hasCustomAssemblyFormat = 1;
}

def Cleave_ShardingAttr : Cleave_Attr<"Sharding", "sharding"> {
  let summary = "For each dim its axes (major first), and the axes the value is unreduced over.";
  let description = "Example: `#cleave.sharding<[{dp}, {}, {tp}] sum {ep}>`.";
  let parameters = (ins ArrayRefParameter<"::mlir::ArrayAttr">:$dims,
                        "::cleave::Reduction":$reduction,
                        "::mlir::ArrayAttr":$unreduced);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    bool isReplicated() const;
  }];
}

def Cleave_ZeroAttr : Cleave_Attr<"Zero", "zero"> {
  let summary = "`zero LEVEL over x, y` of a plan: what of the optimizer is split over data axes.";
  let description = [{
    1: the optimizer's state; 2: gradients too; 3: params too. Level 0 is no attribute.
    Example: `#cleave.zero<2 over replica, dp>`. With `offload` behind the axes the
    optimizer's state lives on the host.
  }];
  let parameters = (ins "int64_t":$level, ArrayRefParameter<"::mlir::StringAttr">:$axes,
                        "bool":$offload);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def Cleave_ShardRuleAttr : Cleave_Attr<"ShardRule", "shard_rule"> {
  let summary = "`shard A, B else C by x, y` of a plan.";
  let description = [{
    `alternatives` are tried in order: the first that has a dim in a value gets
    the axes. An alternative is a list of dims, a dim a list of atoms (compound
    dims have several, major first).
    Example: `#cleave.shard_rule<[[kv_heads * group], [ffn]] else [[seq]] by tp>` is printed as
    `#cleave.shard_rule<kv_heads * group, ffn else seq by tp>`.
  }];
  let parameters = (ins ArrayRefParameter<"::mlir::ArrayAttr">:$alternatives,
                        ArrayRefParameter<"::mlir::StringAttr">:$axes);
  let hasCustomAssemblyFormat = 1;
}

//===----------------------------------------------------------------------===//
// The tensor type
//===----------------------------------------------------------------------===//

def Cleave_TensorType : TypeDef<Cleave_Dialect, "NamedTensor"> {
  let mnemonic = "tensor";
  let summary = "A dense row-major tensor whose dims have names.";
  let description = [{
    `!cleave.tensor<f32 [batch=8 {dp}, seq=16, width=64] sum {tp}>`: sizes are
    global while the type carries a sharding, and local after partitioning.
    Names are unique within a tensor. A scalar has no dims: `!cleave.tensor<f32>`.
  }];
  let parameters = (ins "::mlir::Type":$elementType,
                        ArrayRefParameter<"::mlir::StringAttr">:$names,
                        ArrayRefParameter<"int64_t">:$sizes,
                        OptionalParameter<"::cleave::ShardingAttr">:$sharding);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    int64_t getRank() const { return getNames().size(); }
    int64_t getNumElements() const;
    /// Position of a dim, or -1.
    int64_t indexOf(::llvm::StringRef name) const;
    /// Size of a dim that the tensor has.
    int64_t sizeOf(::llvm::StringRef name) const;
    bool hasDim(::llvm::StringRef name) const { return indexOf(name) >= 0; }
    ::cleave::NamedTensorType withElementType(::mlir::Type type) const;
    ::cleave::NamedTensorType withSharding(::cleave::ShardingAttr sharding) const;
    /// The same dims but those named; drops the sharding.
    ::cleave::NamedTensorType withoutDims(::llvm::ArrayRef<::llvm::StringRef> names) const;
    /// A dim put in front; drops the sharding.
    ::cleave::NamedTensorType withLeadingDim(::llvm::StringRef name, int64_t size) const;
    /// One dim's size (and name, unless empty) changed; drops the sharding.
    ::cleave::NamedTensorType withDim(int64_t index, ::llvm::StringRef name, int64_t size) const;
    bool isFloat() const { return ::llvm::isa<::mlir::FloatType>(getElementType()); }
    int64_t getElementBytes() const;
  }];
}

#endif // CLEAVE_DIALECT
