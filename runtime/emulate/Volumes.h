//===- Volumes.h - what collectives move, beside closed forms ---*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The literature's volumes of a training step, in ring-equivalent bytes of a rank, and the
// program's own; what is between them has names, and nothing may be left over:
//   closed + differences = counted
//
// Tensor parallelism over t ranks (Megatron-LM, arXiv 1909.08053): two all-reduces of the residual
// stream, b*s*h elements, in each layer and direction, 4 b s h (t-1)/t. Sequence parallelism has
// two gathers and two scatters instead (arXiv 2205.05198), the same bytes. b*s*h is the payload of
// the largest activation that the layers move over the axis; their number is the repeat's.
//
// Data parallelism over N ranks, with P the params that learn, of one rank, whole over the N
// (ZeRO, arXiv 1910.02054): 2P(N-1)/N at levels 0 to 2, 3P(N-1)/N at level 3.
//
// Both count elements. Under mixed precision these have several sizes: gradients are summed in one
// type and params gathered in another, as are activations; then each half of the form has its own,
// the program's.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executable/Executable.h"

#include <string>
#include <vector>

namespace cleave {

struct VolumeTerm {
  std::string what;
  double bytes = 0; ///< ring-equivalent, of a rank, in a run
};

struct Volume {
  std::string form; ///< "tensor parallelism", "data parallelism (ZeRO 2)"
  std::string axes; ///< of the collectives that it covers: all over just these
  int64_t ranks = 1;
  std::string formula; ///< with the program's own numbers
  double closed = 0;   ///< bytes
  std::vector<VolumeTerm> differences;
  int64_t counted = 0; ///< bytes of the sites

  /// What no difference has a name for; 0 but for rounding of doubles.
  double unexplained() const;
};

/// For the axes of a program's collectives that one of the forms is about: those that layers move
/// activations over, and those over which gradients are summed or params gathered.
std::vector<Volume> closedForms(const Program &program);

} // namespace cleave
