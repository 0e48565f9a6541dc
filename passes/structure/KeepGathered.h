//===- KeepGathered.h - gathered inputs, kept or gathered again -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llvm {
struct LogicalResult;
}
namespace mlir {
class ModuleOp;
}

namespace cleave {

/// An activation that the forward pass gathers and the backward pass needs gathered.
struct GatheredInput {
  std::string source;    ///< of the op that needs it in the backward pass, file:line:col
  std::string type;      ///< gathered, with its sharding
  int64_t ringBytes = 0; ///< to gather it once more: ring-equivalent, of a rank
  int64_t bytes = 0;     ///< of it on a rank: what keeping it takes
};

/// Those of one repeat over layers, or of what stands outside of any.
struct GatheredInputs {
  std::string dim;    ///< of the repeat; empty: outside
  int64_t layers = 1; ///< turns of it: each keeps its own
  int64_t times = 1;  ///< the backward pass of a layer runs, in a step, of all its layers
  std::vector<GatheredInput> inputs; ///< in a layer
  int64_t freed = 0; ///< bytes on a rank that each layer saves for no more than to gather them

  /// What a step moves less where they are kept: ring-equivalent, of a rank.
  int64_t ringBytes() const;
  /// What is kept more at one time, on a rank.
  int64_t bytes() const;
};

/// Of a module with collectives, before it is partitioned; changes nothing.
std::vector<GatheredInputs> gatheredAgain(mlir::ModuleOp module);

/// Keeps them all, and says each as a remark.
llvm::LogicalResult keepGathered(mlir::ModuleOp module);

} // namespace cleave
