//===- Init.h - initial values ----------------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Result.h"
#include "runtime/core/Shard.h"

#include <cstdint>
#include <string_view>

namespace cleave {

class ThreadTeam;

/// A parsed initialiser: "zeros", "ones", "constant(c)", "normal(std)",
/// "normal(mean, std)", "uniform(low, high)".
struct InitSpec {
  enum class Kind : uint8_t { Constant, Normal, Uniform } kind = Kind::Constant;
  double a = 0; ///< constant, mean or low
  double b = 0; ///< std or high

  /// Empty text is zeros.
  static Result<InitSpec> parse(std::string_view text);
};

/// Fills a rank's block of the param at this dotted path. Each value depends on
/// (seed, path, global index) only, so that all layouts hold the same bits;
/// padding becomes zero. It is computed in double and rounded once, integers
/// toward zero. `team`: null, or who helps.
void fillInitial(const InitSpec &spec, uint64_t seed, std::string_view path,
                 const TensorLayout &layout, const RankPosition &position, char *local,
                 ThreadTeam *team = nullptr);

} // namespace cleave
