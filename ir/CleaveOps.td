//===- CleaveOps.td - the ops ------------------------------*- tablegen -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#ifndef CLEAVE_OPS
#define CLEAVE_OPS

include "CleaveDialect.td"
include "CleaveInterfaces.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Cleave_Op<string mnemonic, list<Trait> traits = []>
    : Op<Cleave_Dialect, mnemonic, traits>;

/// Value-semantics ops on tensors: pure, and each says how it may be split.
class Cleave_TensorOp<string mnemonic, list<Trait> traits = []>
    : Cleave_Op<mnemonic, !listconcat(traits, [Pure,
        DeclareOpInterfaceMethods<ShardableOpInterface, ["getShardingRule"]>])>;

def ElementwiseTrait : NativeOpTrait<"Elementwise"> { let cppNamespace = "::cleave"; }
/// The result's elements are the operands', in other places: the type does not matter.
def MovesElementsTrait : NativeOpTrait<"MovesElements"> { let cppNamespace = "::cleave"; }
/// An element of the result depends on its position in the global tensor: when
/// its dim is split, the op takes offsets.
def Offsets : Variadic<Index>;

//===----------------------------------------------------------------------===//
// Sources
//===----------------------------------------------------------------------===//

def Cleave_ConstantOp : Cleave_TensorOp<"constant", [ElementwiseTrait]> {
  let summary = "One number in every element.";
  let arguments = (ins TypedAttrInterface:$value);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$value attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Cleave_IotaOp : Cleave_TensorOp<"iota", [ElementwiseTrait]> {
  let summary = "The global index along one dim, plus the offset operand if there is one.";
  let arguments = (ins StrAttr:$dim, Offsets:$offsets);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$dim (`offset` `(` $offsets^ `)`)? attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Cleave_RandomOp : Cleave_TensorOp<"random"> {
  let summary = "Uniform f32 in [0, 1) from Philox4x32-10, a function of the global index alone.";
  let description = [{
    counter = (low index, high index, site, layer), key from seed and step; see
    runtime/core/Philox.h. The index is the row-major index in `global_sizes`
    (the unsplit tensor), so masks are equal bit for bit in every layout.
    `offsets`: one for each dim, or none.
  }];
  let arguments = (ins Cleave_TensorType:$seed, Cleave_TensorType:$step,
                       Cleave_TensorType:$layer, Offsets:$offsets,
                       StrAttr:$path, I64Attr:$site, DenseI64ArrayAttr:$global_sizes);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = [{
    $path `seed` $seed `step` $step `layer` $layer (`offset` `(` $offsets^ `)`)?
    attr-dict `:` functional-type(operands, $result)
  }];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Elementwise. Operands broadcast by name: an operand's dims are a subset of
// the result's, in any order.
//===----------------------------------------------------------------------===//

class Cleave_UnaryOp<string mnemonic, string text, list<Trait> traits = []>
    : Cleave_TensorOp<mnemonic, !listconcat(traits, [ElementwiseTrait])> {
  let summary = text;
  let arguments = (ins Cleave_TensorType:$operand);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
  let extraClassDefinition = "::llvm::LogicalResult $cppClass::verify() { return ::cleave::verifyElementwise(*this); }";
}
class Cleave_BinaryOp<string mnemonic, string text>
    : Cleave_TensorOp<mnemonic, [ElementwiseTrait]> {
  let summary = text;
  let arguments = (ins Cleave_TensorType:$lhs, Cleave_TensorType:$rhs);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` functional-type(operands, $result)";
  let hasVerifier = 1;
  let extraClassDefinition = "::llvm::LogicalResult $cppClass::verify() { return ::cleave::verifyElementwise(*this); }";
}

def Cleave_AddOp : Cleave_BinaryOp<"add", "lhs + rhs">;
def Cleave_SubOp : Cleave_BinaryOp<"sub", "lhs - rhs">;
def Cleave_MulOp : Cleave_BinaryOp<"mul", "lhs * rhs">;
def Cleave_DivOp : Cleave_BinaryOp<"div", "lhs / rhs">;
def Cleave_MaximumOp : Cleave_BinaryOp<"maximum", "the larger; NaN if either is">;
def Cleave_MinimumOp : Cleave_BinaryOp<"minimum", "the smaller; NaN if either is">;
def Cleave_PowOp : Cleave_BinaryOp<"pow", "lhs to the power of rhs">;
def Cleave_AndOp : Cleave_BinaryOp<"and", "both (i1)">;
def Cleave_OrOp : Cleave_BinaryOp<"or", "either (i1)">;
def Cleave_NotOp : Cleave_UnaryOp<"not", "not (i1)">;
def Cleave_NegOp : Cleave_UnaryOp<"neg", "-x">;
def Cleave_AbsOp : Cleave_UnaryOp<"abs", "|x|">;
def Cleave_ExpOp : Cleave_UnaryOp<"exp", "e^x">;
def Cleave_LogOp : Cleave_UnaryOp<"log", "natural logarithm">;
def Cleave_SqrtOp : Cleave_UnaryOp<"sqrt", "square root">;
def Cleave_RsqrtOp : Cleave_UnaryOp<"rsqrt", "1 / sqrt(x)">;
def Cleave_TanhOp : Cleave_UnaryOp<"tanh", "hyperbolic tangent">;
def Cleave_SigmoidOp : Cleave_UnaryOp<"sigmoid", "1 / (1 + e^-x), accurate for negative x">;
def Cleave_ErfOp : Cleave_UnaryOp<"erf", "error function">;
def Cleave_SinOp : Cleave_UnaryOp<"sin", "sine">;
def Cleave_CosOp : Cleave_UnaryOp<"cos", "cosine">;
def Cleave_CastOp : Cleave_TensorOp<"cast", [ElementwiseTrait]> {
  let summary = "another element type; floats round to nearest even";
  let description = [{
    `partial`: a sum over ranks that is still pending may be rounded in its parts, and then
    moves as few bytes. `wide_gradient`: the gradient does not stop in the result's type, but
    comes to the operand as wide as it was added up (a param that is read in bf16).
  }];
  let arguments = (ins Cleave_TensorType:$operand, UnitAttr:$partial, UnitAttr:$wide_gradient);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = [{
    $operand (`partial` $partial^)? (`wide_gradient` $wide_gradient^)? attr-dict
    `:` type($operand) `->` type($result)
  }];
  let builders = [OpBuilder<(ins "::mlir::Type":$result, "::mlir::Value":$operand), [{
    build($_builder, $_state, result, operand, /*partial=*/false, /*wide_gradient=*/false);
  }]>];
  let hasVerifier = 1;
  let extraClassDefinition = "::llvm::LogicalResult $cppClass::verify() { return ::cleave::verifyElementwise(*this); }";
}
def Cleave_BroadcastOp : Cleave_UnaryOp<"broadcast", "the same numbers along more dims, or dims in another order", [MovesElementsTrait]>;
def Cleave_StopGradientOp : Cleave_UnaryOp<"stop_gradient", "x, whose gradient is zero", [MovesElementsTrait]>;
def Cleave_BarrierOp : Cleave_UnaryOp<"barrier", "x, which no pass may merge with another x (recompute)", [MovesElementsTrait]>;

def Cleave_CompareOp : Cleave_TensorOp<"compare", [ElementwiseTrait]> {
  let summary = "i1: whether the predicate holds (false for NaN, but `ne`).";
  let arguments = (ins Cleave_PredicateAttr:$predicate, Cleave_TensorType:$lhs, Cleave_TensorType:$rhs);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "`` $predicate $lhs `,` $rhs attr-dict `:` functional-type(operands, $result)";
  let hasVerifier = 1;
}
def Cleave_SelectOp : Cleave_TensorOp<"select", [ElementwiseTrait]> {
  let summary = "where the condition holds the first, else the second.";
  let arguments = (ins Cleave_TensorType:$condition, Cleave_TensorType:$on_true, Cleave_TensorType:$on_false);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$condition `,` $on_true `,` $on_false attr-dict `:` functional-type(operands, $result)";
  let hasVerifier = 1;
}
def Cleave_RenameOp : Cleave_TensorOp<"rename", [ElementwiseTrait, MovesElementsTrait]> {
  let summary = "The same tensor whose dims have other names (by position).";
  let arguments = (ins Cleave_TensorType:$operand);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Along dims
//===----------------------------------------------------------------------===//

def Cleave_ReduceOp : Cleave_TensorOp<"reduce"> {
  let summary = "Sum, max or min over the named dims.";
  let arguments = (ins Cleave_ReductionAttr:$reduction, Cleave_TensorType:$operand, StrArrayAttr:$dims);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "`` $reduction $operand `over` $dims attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
}
def Cleave_ContractOp : Cleave_TensorOp<"contract", [ProductOpInterface]> {
  let summary = "Sum over the names that both sides share and the result lacks, of their product.";
  let description = [{
    Names that both sides share and the result has are batched. Sides of bf16 or f16 may
    give f32: what is added up, not rounded.
  }];
  let arguments = (ins Cleave_TensorType:$lhs, Cleave_TensorType:$rhs);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` functional-type(operands, $result)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The names that are summed, in the order of lhs.
    ::llvm::SmallVector<::llvm::StringRef> getContracted();
    unsigned getNumFactors() { return 2; }
    bool roundsResult() { return false; }
  }];
}
def Cleave_GatherOp : Cleave_TensorOp<"gather", [MovesElementsTrait]> {
  let summary = "Rows of a table by i32 ids along `dim`; ids outside the table's part give zeros.";
  let description = "An offset operand (global index of the table's first row) is subtracted from the ids.";
  let arguments = (ins Cleave_TensorType:$table, Cleave_TensorType:$ids, StrAttr:$dim, Offsets:$offsets);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$table `[` $dim `=` $ids `]` (`offset` `(` $offsets^ `)`)? attr-dict `:` functional-type(operands, $result)";
  let hasVerifier = 1;
}
def Cleave_ScatterAddOp : Cleave_TensorOp<"scatter_add"> {
  let summary = "The gradient of gather: a table of zeros to which each update is added at its id.";
  let description = "Names of the ids that the result lacks are summed, in row-major order of the ids.";
  let arguments = (ins Cleave_TensorType:$updates, Cleave_TensorType:$ids, StrAttr:$dim, Offsets:$offsets);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$updates `[` $dim `=` $ids `]` (`offset` `(` $offsets^ `)`)? attr-dict `:` functional-type(operands, $result)";
  let hasVerifier = 1;
}
def Cleave_SliceOp : Cleave_TensorOp<"slice", [ElementwiseTrait, MovesElementsTrait]> {
  let summary = "Every `stride`-th element along one dim, from `start`; the dim may get a new name.";
  let arguments = (ins Cleave_TensorType:$operand, StrAttr:$dim, I64Attr:$start, DefaultValuedAttr<I64Attr, "1">:$stride);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$operand `[` $dim `from` $start `]` attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
}
def Cleave_PadOp : Cleave_TensorOp<"pad", [ElementwiseTrait, MovesElementsTrait]> {
  let summary = "The gradient of slice: zeros, but the operand's elements at start + i * stride.";
  let description = "`dim` is the name in the operand.";
  let arguments = (ins Cleave_TensorType:$operand, StrAttr:$dim, I64Attr:$start, DefaultValuedAttr<I64Attr, "1">:$stride);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$operand `[` $dim `at` $start `]` attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Composites
//===----------------------------------------------------------------------===//

class Cleave_CompositeOp<string mnemonic, list<Trait> traits = []>
    : Cleave_TensorOp<mnemonic, !listconcat(traits, [DeclareOpInterfaceMethods<ExpandableOpInterface, ["expand"]>])> {
  let hasVerifier = 1;
}
def Cleave_LayerNormOp : Cleave_CompositeOp<"layer_norm"> {
  let summary = "(x - mean) / sqrt(var + epsilon) * weight + bias over `dims`.";
  let arguments = (ins Cleave_TensorType:$x, Cleave_TensorType:$weight, Cleave_TensorType:$bias,
                       StrArrayAttr:$dims, F64Attr:$epsilon);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$x `,` $weight `,` $bias `over` $dims `epsilon` $epsilon attr-dict `:` functional-type(operands, $result)";
}
def Cleave_RmsNormOp : Cleave_CompositeOp<"rms_norm"> {
  let summary = "x / sqrt(mean(x^2) + epsilon) * weight over `dims`.";
  let arguments = (ins Cleave_TensorType:$x, Cleave_TensorType:$weight, StrArrayAttr:$dims, F64Attr:$epsilon);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$x `,` $weight `over` $dims `epsilon` $epsilon attr-dict `:` functional-type(operands, $result)";
}
def Cleave_SoftmaxOp : Cleave_CompositeOp<"softmax"> {
  let summary = "e^x / sum e^x over `dims`.";
  let arguments = (ins Cleave_TensorType:$x, StrArrayAttr:$dims);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$x `over` $dims attr-dict `:` functional-type(operands, $result)";
}
def Cleave_GeluOp : Cleave_CompositeOp<"gelu"> {
  let summary = "GELU: by erf, or its tanh approximation (arXiv 1606.08415).";
  let arguments = (ins Cleave_TensorType:$x, BoolAttr:$tanh);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$x `tanh` `=` $tanh attr-dict `:` functional-type(operands, $result)";
}
def Cleave_SiluOp : Cleave_CompositeOp<"silu"> {
  let summary = "x * sigmoid(x)";
  let arguments = (ins Cleave_TensorType:$x);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, $result)";
}
def Cleave_ReluOp : Cleave_CompositeOp<"relu"> {
  let summary = "max(x, 0); its gradient at 0 is 0.";
  let arguments = (ins Cleave_TensorType:$x);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, $result)";
}
def Cleave_DropoutOp : Cleave_CompositeOp<"dropout"> {
  let summary = "x / (1 - rate) where random >= rate, else 0.";
  let arguments = (ins Cleave_TensorType:$x, Cleave_TensorType:$seed, Cleave_TensorType:$step,
                       Cleave_TensorType:$layer, F64Attr:$rate, StrAttr:$path, I64Attr:$site);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$path $x `rate` $rate `seed` $seed `step` $step `layer` $layer attr-dict `:` functional-type(operands, $result)";
}
def Cleave_RopeOp : Cleave_CompositeOp<"rope"> {
  let summary = "Rotary positions along `dim` (arXiv 2104.09864).";
  let description = [{
    Angles are formed in f64 and cast last: pos * base^(-2i/d). Pairs are
    (i, i + d/2), or (2i, 2i+1) when interleaved. Only the first `rotary`
    elements of the dim are rotated.
  }];
  let arguments = (ins Cleave_TensorType:$x, Cleave_TensorType:$positions, StrAttr:$dim,
                       F64Attr:$base, BoolAttr:$interleaved, I64Attr:$rotary);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$x `,` $positions `along` $dim attr-dict `:` functional-type(operands, $result)";
}
def Cleave_ConcatOp : Cleave_CompositeOp<"concat", [MovesElementsTrait]> {
  let summary = "The operands one after the other along a dim; `dims` is its name in each.";
  let arguments = (ins Variadic<Cleave_TensorType>:$inputs, StrArrayAttr:$dims, StrAttr:$result_dim);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$inputs `along` $dims `as` $result_dim attr-dict `:` functional-type(operands, $result)";
}
def Cleave_CrossEntropyOp : Cleave_CompositeOp<"cross_entropy"> {
  let summary = "Sum over valid labels of -log softmax(logits)[label], over their global count.";
  let description = [{
    Label smoothing a as in torch: (1 - a) * nll + a / V * sum of -log softmax.
    Labels equal to `ignore` do not count; with no valid label the loss is 0 and
    so are its gradients.
  }];
  let arguments = (ins Cleave_TensorType:$logits, Cleave_TensorType:$labels, StrAttr:$dim,
                       I64Attr:$ignore, F64Attr:$smoothing);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$logits `,` $labels `over` $dim attr-dict `:` functional-type(operands, $result)";
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// What attention and its gradient share.
class Cleave_AttentionLikeOp<string mnemonic, list<Trait> traits = []>
    : Cleave_TensorOp<mnemonic, !listconcat(traits, [AttrSizedOperandSegments])> {
  dag tensors = (ins Cleave_TensorType:$query, Cleave_TensorType:$key, Cleave_TensorType:$value);
  dag settings = (ins Optional<Cleave_TensorType>:$mask, Optional<Cleave_TensorType>:$bias,
                      Variadic<Cleave_TensorType>:$random, Offsets:$offsets,
                      StrAttr:$query_dim, StrAttr:$key_dim, StrAttr:$depth_dim, StrAttr:$value_dim,
                      BoolAttr:$causal, DefaultValuedAttr<I64Attr, "0">:$shift, F64Attr:$scale, F64Attr:$rate,
                      StrAttr:$path, I64Attr:$site, DefaultValuedAttr<DenseI64ArrayAttr, "{}">:$global_sizes);
  let hasVerifier = 1;
}
def Cleave_AttentionOp : Cleave_AttentionLikeOp<"attention", [ProductOpInterface,
    DeclareOpInterfaceMethods<ExpandableOpInterface, ["expand", "hasKernel"]>]> {
  let summary = "softmax(scale * q k + bias, masked) v, and the log of the sum of exponentials.";
  let description = [{
    q: [..., query_dim, heads..., depth]; k: [..., key_dim, kv heads..., depth]; v: as k with
    value depth `value_dim` in place of `depth_dim`. Heads of q that k lacks (the group) share
    k's and v's head. `query_dim` and `key_dim` are different names. mask (i1) is over keys:
    dims among k's batch dims and key_dim. bias: dims among q's heads and batch, query_dim, key_dim. causal:
    query i of the global tensor sees keys j <= i + shift. A row that sees no key
    is 0, and so is its lse. seed, step, layer: only with dropout (rate > 0), whose numbers
    are those of `cleave.random` over q's dims without depth and query, then query, then key,
    of `global_sizes`. Offsets: of the query dim; with dropout of all dims of the scores but the keys.
    Results: [q's dims, value depth last] and lse [q's dims without depth]. q, k, v and the first
    result have one type; lse of bf16 or f16 is f32.
  }];
  let arguments = !con(tensors, settings);
  let results = (outs Cleave_TensorType:$result, Cleave_TensorType:$lse);
  let assemblyFormat = [{
    $query `,` $key `,` $value (`mask` $mask^)? (`bias` $bias^)? (`random` `(` $random^ `)`)?
    (`offset` `(` $offsets^ `)`)? attr-dict `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = [{
    unsigned getNumFactors() { return 3; }
    bool roundsResult() { return true; }
  }];
}
def Cleave_AttentionGradOp : Cleave_AttentionLikeOp<"attention_grad"> {
  let summary = "The gradients of attention with respect to q, k and v.";
  let description = [{
    output, lse: attention's results; gradient, lse_gradient: of these. The scores are
    computed again, block by block (arXiv 2205.14135, section 3.1 and algorithm 4). The gradients of
    k and v are sums over the queries and the group: split, they are partial sums. Of bf16 or
    f16 they are f32: what is added up, not rounded.
  }];
  let arguments = !con(tensors, (ins Cleave_TensorType:$output, Cleave_TensorType:$lse,
                                     Cleave_TensorType:$gradient,
                                     Optional<Cleave_TensorType>:$lse_gradient), settings);
  let results = (outs Cleave_TensorType:$query_gradient, Cleave_TensorType:$key_gradient,
                      Cleave_TensorType:$value_gradient);
  let assemblyFormat = [{
    $query `,` $key `,` $value `output` $output `,` $lse `gradient` $gradient (`,` $lse_gradient^)?
    (`mask` $mask^)? (`bias` $bias^)? (`random` `(` $random^ `)`)?
    (`offset` `(` $offsets^ `)`)? attr-dict `:` functional-type(operands, results)
  }];
}

//===----------------------------------------------------------------------===//
// Structure
//===----------------------------------------------------------------------===//

def Cleave_YieldOp : Cleave_Op<"yield", [Pure, Terminator, ReturnLike]> {
  let summary = "Ends a region: the carried values, then the values that are stacked.";
  let arguments = (ins Variadic<AnyType>:$operands);
  let assemblyFormat = "attr-dict ($operands^ `:` type($operands))?";
  let builders = [OpBuilder<(ins), [{ (void)$_state; }]>];
}
def Cleave_RepeatOp : Cleave_Op<"repeat", [AttrSizedOperandSegments, RecursiveMemoryEffects,
    SingleBlockImplicitTerminator<"YieldOp">]> {
  let summary = "The same layer `count` times, over params stacked on the dim `dim`.";
  let description = [{
    Region arguments: the layer index (i32 scalar), the carried values, and for
    each stacked input its slice of this layer. The region yields the carried
    values and then outputs, which are stacked on `dim` in front. With
    `reverse` the layers go from the last to the first. Values from outside may
    be used.
  }];
  let arguments = (ins Variadic<Cleave_TensorType>:$inits, Variadic<Cleave_TensorType>:$stacked,
                       StrAttr:$dim, I64Attr:$count, UnitAttr:$reverse);
  let results = (outs Variadic<Cleave_TensorType>:$results);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
  let skipDefaultBuilders = 1;
  let builders = [OpBuilder<(ins "::llvm::StringRef":$dim, "int64_t":$count, "bool":$reverse,
      "::mlir::ValueRange":$inits, "::mlir::ValueRange":$stacked, "::mlir::TypeRange":$stackedOutputs)>];
  let extraClassDeclaration = [{
    ::mlir::BlockArgument getLayer() { return getBody().getArgument(0); }
    ::mlir::Block::BlockArgListType getCarried() {
      return getBody().getArguments().slice(1, getInits().size());
    }
    ::mlir::Block::BlockArgListType getSlices() {
      return getBody().getArguments().drop_front(1 + getInits().size());
    }
    YieldOp getYield();
    unsigned getNumCarried() { return getInits().size(); }
  }];
}

//===----------------------------------------------------------------------===//
// Collectives and what depends on the rank. Types carry global sizes and
// shardings before partitioning, local sizes after it.
//===----------------------------------------------------------------------===//

class Cleave_CollectiveOp<string mnemonic, dag attributes> : Cleave_Op<mnemonic, [Pure]> {
  let arguments = !con((ins Cleave_TensorType:$operand), attributes);
  let results = (outs Cleave_TensorType:$result);
  let hasVerifier = 1;
}
def Cleave_AllReduceOp : Cleave_CollectiveOp<"all_reduce",
    (ins Cleave_ReductionAttr:$reduction, ArrayAttr:$axes)> {
  let summary = "Combines over the axes; every rank has the result.";
  let assemblyFormat = "`` $reduction $operand `over` $axes attr-dict `:` type($operand) `->` type($result)";
}
def Cleave_AllGatherOp : Cleave_CollectiveOp<"all_gather", (ins StrAttr:$dim, ArrayAttr:$axes)> {
  let summary = "Joins the shards of one dim over the axes (its minor ones).";
  let assemblyFormat = "$operand `along` $dim `over` $axes attr-dict `:` type($operand) `->` type($result)";
}
def Cleave_ReduceScatterOp : Cleave_CollectiveOp<"reduce_scatter",
    (ins Cleave_ReductionAttr:$reduction, StrAttr:$dim, ArrayAttr:$axes)> {
  let summary = "Combines over the axes; each rank keeps its shard of one dim.";
  let assemblyFormat = "`` $reduction $operand `along` $dim `over` $axes attr-dict `:` type($operand) `->` type($result)";
}
def Cleave_AllToAllOp : Cleave_CollectiveOp<"all_to_all",
    (ins StrAttr:$gather_dim, StrAttr:$split_dim, ArrayAttr:$axes)> {
  let summary = "The axes move from one dim to another.";
  let assemblyFormat = "$operand `from` $gather_dim `to` $split_dim `over` $axes attr-dict `:` type($operand) `->` type($result)";
}
def Cleave_ShardSliceOp : Cleave_Op<"shard_slice", [Pure, ElementwiseTrait]> {
  let summary = "Each rank keeps its shard of a dim that it has whole; nothing is sent.";
  let description = [{
    After partitioning it has the offset of the shard within the operand's dim:
    result[i] = operand[offset + i], and 0 where that is past the operand's end.
  }];
  let arguments = (ins Cleave_TensorType:$operand, Offsets:$offsets, StrAttr:$dim, ArrayAttr:$axes);
  let results = (outs Cleave_TensorType:$result);
  let hasVerifier = 1;
  let assemblyFormat = "$operand `along` $dim `over` $axes (`offset` `(` $offsets^ `)`)? attr-dict `:` type($operand) `->` type($result)";
}
def Cleave_SplitDimOp : Cleave_TensorOp<"split_dim"> {
  let summary = "The same bytes with the first dim in two: a new major one in front of it.";
  let arguments = (ins Cleave_TensorType:$operand);
  let results = (outs Cleave_TensorType:$result);
  let hasVerifier = 1;
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
}
def Cleave_JoinDimsOp : Cleave_TensorOp<"join_dims"> {
  let summary = "The same bytes with the first two dims as one, which has the second's name.";
  let arguments = (ins Cleave_TensorType:$operand);
  let results = (outs Cleave_TensorType:$result);
  let hasVerifier = 1;
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
}
def Cleave_PinOp : Cleave_TensorOp<"pin", [ElementwiseTrait, MovesElementsTrait]> {
  let summary = "x, a named value whose sharding the plan fixes: `at NAME: ...`.";
  let description = "`rules` replaces the plan's; an empty list replicates. `axes`: the axes that the pin speaks of.";
  let arguments = (ins Cleave_TensorType:$operand, StrAttr:$name, ArrayAttr:$rules, StrArrayAttr:$axes);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$name $operand $rules `axes` $axes attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
}
def Cleave_ShardOffsetOp : Cleave_Op<"shard_offset", [Pure]> {
  let summary = "Global index of the first element of this rank's shard: shard index * block.";
  let description = [{
    The last of the axes may be the dim of a repeat around the op: an iteration then counts as a
    rank does. So too for `cleave.shard_extent`.
  }];
  let arguments = (ins ArrayAttr:$axes, I64Attr:$block);
  let results = (outs Index:$result);
  let assemblyFormat = "$axes `block` $block attr-dict";
}
def Cleave_ShardExtentOp : Cleave_Op<"shard_extent", [Pure]> {
  let summary = "Number of valid elements of this rank's shard of a dim of `size`.";
  let arguments = (ins ArrayAttr:$axes, I64Attr:$block, I64Attr:$size);
  let results = (outs Index:$result);
  let assemblyFormat = "$axes `block` $block `of` $size attr-dict";
}
def Cleave_MaskPaddingOp : Cleave_TensorOp<"mask_padding", [ElementwiseTrait]> {
  let summary = "x where each index is below its dim's extent, `fill` in the padding.";
  let arguments = (ins Cleave_TensorType:$operand, Variadic<Index>:$extents, StrArrayAttr:$dims, F64Attr:$fill);
  let results = (outs Cleave_TensorType:$result);
  let assemblyFormat = "$operand $dims `below` `(` $extents `)` `fill` $fill attr-dict `:` type($operand) `->` type($result)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// After fusion
//===----------------------------------------------------------------------===//

def Cleave_FusedOp : Cleave_Op<"fused", [Pure, IsolatedFromAbove, SingleBlockImplicitTerminator<"YieldOp">]> {
  let summary = "A group that becomes one kernel; its region holds primitive ops.";
  let arguments = (ins Variadic<AnyType>:$inputs, StrAttr:$kind);
  let results = (outs Variadic<Cleave_TensorType>:$results);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

#endif // CLEAVE_OPS
