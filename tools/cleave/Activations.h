//===- Activations.h - what layers save, as text ----------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "Print.h"
#include "passes/schedule/Activations.h"
#include "passes/structure/KeepGathered.h"

namespace cleave::tool {

/// Bytes of a layer by Korthikanti et al., arXiv 2205.05198, section 4, for 16-bit values and
/// masks of a byte, with the scores of attention stored or not:
///   one rank               s b h (34 + 5 a s / h)
///   tensor                 s b h (10 + 24 / t + 5 a s / (h t))
///   tensor and sequence    s b h / t (34 + 5 a s / h)
double publishedBytes(const TransformerSizes &sizes, bool withScores);

/// `kept`: the plan's `gathered kept`.
std::string activationsText(const std::vector<LayerActivations> &all, bool kept);
Json activationsJson(const std::vector<LayerActivations> &all);

/// What the backward pass needs gathered: the bytes of gathering it again, the memory of keeping
/// it.
std::string gatheredText(const std::vector<GatheredInputs> &all, bool kept);
Json gatheredJson(const std::vector<GatheredInputs> &all, bool kept);

} // namespace cleave::tool
