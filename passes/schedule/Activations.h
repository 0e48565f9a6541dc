//===- Activations.h - what layers save for the backward pass ---*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mlir {
class ModuleOp;
}

namespace cleave {

/// A value that each turn of a repeat saves.
struct SavedActivation {
  std::string op;     ///< that makes it: "contract", "attention"; "input": it enters the layer
  std::string source; ///< file:line:col
  std::string type;   ///< of one layer, whole, with its sharding
  int64_t bytes = 0;  ///< of one layer on one rank, padding included
};

/// The letters of Korthikanti et al., arXiv 2205.05198, table 1, as far as a program's shapes
/// tell them: of attention's operands, and of the value that goes from layer to layer.
struct TransformerSizes {
  int64_t rows = 0;           ///< b: of a rank, in one micro-batch
  int64_t sequence = 0;       ///< s
  int64_t width = 0;          ///< h
  int64_t heads = 0;          ///< a, of all ranks together
  int64_t ranks = 1;          ///< t: over which the heads are split
  bool sequenceSplit = false; ///< what goes from layer to layer is split along s
};

struct LayerActivations {
  std::string dim;    ///< of the repeat
  int64_t layers = 0; ///< turns of it
  bool again = false; ///< computed again in the backward pass: kept while a group of layers is
  std::vector<SavedActivation> saved;
  int64_t elementBytes = 0; ///< of the value that goes from layer to layer
  std::optional<TransformerSizes> sizes;

  int64_t bytes() const {
    int64_t sum = 0;
    for (const SavedActivation &value : saved)
      sum += value.bytes;
    return sum;
  }
};

/// Of each repeat that saves something, in program order; of a module with shardings, before it
/// is partitioned.
std::vector<LayerActivations> savedByLayers(mlir::ModuleOp module);

} // namespace cleave
