//===- Auto.h - what a plan's `auto` says to the search ---------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A module whose plan says `auto` has a dictionary kAutoAttr; its keys, all optional, are below.
// The plan's rules, its `zero` and pins then bind only what they speak of.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "mlir/IR/Attributes.h"

#include "llvm/ADT/StringRef.h"

#include <string>

namespace cleave {

/// "shard heads, ffn by tp" of a ShardRuleAttr.
std::string sentenceOf(mlir::Attribute rule);

inline constexpr llvm::StringLiteral kAutoAttr = "cleave.auto";
/// Text of a cluster's profile (runtime/emulate/Cluster.h).
inline constexpr llvm::StringLiteral kAutoCluster = "cluster";
/// i64: bytes of a rank.
inline constexpr llvm::StringLiteral kAutoMemory = "memory";
/// i64: how much of gradients' sums is taken to run beside other work, in percent (0).
inline constexpr llvm::StringLiteral kAutoHidden = "hidden";
/// Unit: no param's update is split further than the param.
inline constexpr llvm::StringLiteral kAutoNoZero = "no_zero";
/// Array of arrays of names: dims that stand for products of others, major first.
inline constexpr llvm::StringLiteral kAutoCompounds = "compounds";
/// Array of [dims, rules, axes]: `at [DIMS]: ...`.
inline constexpr llvm::StringLiteral kAutoHomes = "homes";
/// Array of [kind, path]: `never KIND PATH`.
inline constexpr llvm::StringLiteral kAutoNever = "never";
/// Dictionary: a sentence of the plan, as text -> "file:line:col".
inline constexpr llvm::StringLiteral kAutoPlaces = "places";
/// On a param: `at PARAM: zero LEVEL over AXES`, an array of the level (i64) and an array of axes.
inline constexpr llvm::StringLiteral kPinZero = "cleave.pin_zero";

} // namespace cleave
