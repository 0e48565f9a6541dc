//===- Dialect.h - the cleave dialect ---------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/algebra/Rule.h"

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "ir/CleaveDialect.h.inc"
#include "ir/CleaveEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "ir/CleaveAttrs.h.inc"

#define GET_TYPEDEF_CLASSES
#include "ir/CleaveTypes.h.inc"

namespace cleave {

/// Element i of the result depends on element i (by name) of the operands only.
/// The fusion pass merges such ops into whatever reads or writes them.
template <typename ConcreteType>
class Elementwise : public mlir::OpTrait::TraitBase<ConcreteType, Elementwise> {};

/// The result's elements are the operands', in other places.
template <typename ConcreteType>
class MovesElements : public mlir::OpTrait::TraitBase<ConcreteType, MovesElements> {};

/// Operand dims must be dims of the result, with equal sizes, and the result's
/// dims must all come from an operand (except for broadcast).
llvm::LogicalResult verifyElementwise(mlir::Operation *op);

/// FNV-1a of a site's dotted path: a word of the random counter.
uint32_t siteHash(llvm::StringRef path);

// Attributes on functions, their arguments and results.
inline constexpr llvm::StringLiteral kMeshAttr = "cleave.mesh"; // module: MeshAttr
inline constexpr llvm::StringLiteral kPlanAttr = "cleave.plan"; // module: array of ShardRuleAttr
inline constexpr llvm::StringLiteral kZeroAttr = "cleave.zero"; // module: ZeroAttr
inline constexpr llvm::StringLiteral kPrecisionAttr =
    "cleave.precision";                                             // module: type of activations
inline constexpr llvm::StringLiteral kReduceAttr = "cleave.reduce"; // module: type of sums of ranks
inline constexpr llvm::StringLiteral kPlanName = "cleave.plan_name"; // module: string
inline constexpr llvm::StringLiteral kName = "cleave.name"; // argument, result: dotted path
inline constexpr llvm::StringLiteral kRole = "cleave.role"; // argument: param state input scalar
inline constexpr llvm::StringLiteral kInit = "cleave.init"; // param: initialiser's text
inline constexpr llvm::StringLiteral kStacked =
    "cleave.stacked"; // param, state: how many leading dims count layers
inline constexpr llvm::StringLiteral kNoDecay = "cleave.no_decay"; // param: norm or bias
inline constexpr llvm::StringLiteral kFrozen = "cleave.frozen";    // param: does not learn
inline constexpr llvm::StringLiteral kRate =
    "cleave.lr_factor";                                       // param: f64, times the learning rate
inline constexpr llvm::StringLiteral kDecay = "cleave.decay"; // param: f64, its own
inline constexpr llvm::StringLiteral kDonatedTo = "cleave.donated_to"; // argument: result number
inline constexpr llvm::StringLiteral kRange = "cleave.range"; // input: exclusive bound of its ids
inline constexpr llvm::StringLiteral kRangeDim =
    "cleave.range_dim"; // input: the dim that the bound is the size of
inline constexpr llvm::StringLiteral kIgnore =
    "cleave.ignore"; // input: an id that is allowed besides
inline constexpr llvm::StringLiteral kOverlap = "cleave.overlap"; // module: none layers bucketed
inline constexpr llvm::StringLiteral kBucketBytes = "cleave.bucket_bytes"; // module: i64
inline constexpr llvm::StringLiteral kPhase = "cleave.phase"; // op: forward backward optimizer
inline constexpr llvm::StringLiteral kRecompute = "cleave.recompute"; // repeat: a policy of its own
inline constexpr llvm::StringLiteral kPart = "cleave.part"; // op: the composite it comes from
inline constexpr llvm::StringLiteral kLayouts =
    "cleave.layouts"; // function: global types of arguments and results, set by partition
inline constexpr llvm::StringLiteral kRule = "cleave.why"; // collective: what made it necessary

} // namespace cleave

#include "ir/CleaveInterfaces.h.inc"

#define GET_OP_CLASSES
#include "ir/CleaveOps.h.inc"

namespace cleave {

inline NamedTensorType tensorOf(mlir::Value value) {
  return llvm::cast<NamedTensorType>(value.getType());
}
/// bf16 or f16.
inline bool isShortFloat(mlir::Type element) { return element.isBF16() || element.isF16(); }
/// The type in which sums of the element type are taken: f32 for bf16 and f16, else itself.
mlir::Type accumulatorOf(mlir::Type element);
/// Whether both are floats, and every number of `narrow` is one of `wide`.
bool holds(mlir::Type wide, mlir::Type narrow);
inline bool isElementwise(mlir::Operation *op) { return op->hasTrait<Elementwise>(); }

/// An error that is the user's fault, not ours: see isUserError.
mlir::InFlightDiagnostic emitUserError(mlir::Location loc);
bool isUserError(mlir::Diagnostic &diagnostic);

/// A scalar or splat constant of the type (numbers are cast to its element type).
mlir::Value constant(mlir::OpBuilder &b, mlir::Location loc, NamedTensorType type, double value);

/// The type that elementwise ops give: the dims of the operand with most of
/// them, then what the others add in order.
NamedTensorType broadcastType(llvm::ArrayRef<NamedTensorType> operands, mlir::Type elementType);

/// An elementwise op of the broadcast type of its operands.
template <typename Op>
mlir::Value binary(mlir::OpBuilder &b, mlir::Location loc, mlir::Value x, mlir::Value y) {
  return Op::create(b, loc, broadcastType({tensorOf(x), tensorOf(y)}, tensorOf(x).getElementType()),
                    x, y);
}
template <typename Op> mlir::Value unary(mlir::OpBuilder &b, mlir::Location loc, mlir::Value x) {
  return Op::create(b, loc, x.getType(), x);
}
mlir::Value reduce(mlir::OpBuilder &b, mlir::Location loc, Reduction kind, mlir::Value x,
                   llvm::ArrayRef<llvm::StringRef> dims);
/// x itself where it has the type, or what x was cast from where nothing was lost.
mlir::Value cast(mlir::OpBuilder &b, mlir::Location loc, mlir::Value x, mlir::Type elementType);
mlir::Value compare(mlir::OpBuilder &b, mlir::Location loc, Predicate p, mlir::Value x,
                    mlir::Value y);
mlir::Value select(mlir::OpBuilder &b, mlir::Location loc, mlir::Value condition, mlir::Value x,
                   mlir::Value y);
/// x with exactly the dims of the type, in its order (nothing when it has them).
mlir::Value broadcastTo(mlir::OpBuilder &b, mlir::Location loc, mlir::Value x,
                        NamedTensorType type);

} // namespace cleave
