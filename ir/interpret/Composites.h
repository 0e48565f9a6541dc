//===- Composites.h - composite ops by their definitions --------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Written from the definitions, not from ir/Expand.cpp, which they check. Each
// gives an array in the dims of its first operand unless it says otherwise.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/interpret/Array.h"

namespace cleave::composite {

using Names = std::vector<std::string>;

Array layerNorm(const NamedArray &x, const NamedArray &weight, const NamedArray &bias,
                const Names &dims, double epsilon);
Array rmsNorm(const NamedArray &x, const NamedArray &weight, const Names &dims, double epsilon);
Array softmax(const NamedArray &x, const Names &dims);
Array gelu(const Array &x, bool tanh);
Array silu(const Array &x);
/// NaN stays NaN.
Array relu(const Array &x);

/// Where a site's random numbers come from.
struct RandomSite {
  uint64_t seed = 0;
  uint32_t step = 0, layer = 0, site = 0;
};
Array dropout(const Array &x, double rate, const RandomSite &site);

Array rope(const NamedArray &x, const NamedArray &positions, const std::string &dim, double base,
           bool interleaved, int64_t rotary);

/// `result` gives the names; along `resultDim` its size is the sum.
Array concat(const std::vector<NamedArray> &inputs, const Names &dims, const Names &result,
             const std::string &resultDim);

/// A scalar. A label outside the classes gives NaN.
Array crossEntropy(const NamedArray &logits, const NamedArray &labels, const std::string &dim,
                   int64_t ignore, double smoothing);

struct AttentionShape {
  std::string queryDim, keyDim, depthDim, valueDim;
  bool causal = false;
  double scale = 1, rate = 0;
  /// Query i sees the keys j <= i + shift, when causal.
  int64_t shift = 0;
  /// The random numbers' global tensor: q's dims without depth and query, then query, then key; and
  /// where these arrays begin in it. Empty: they are the whole.
  std::vector<int64_t> globalSizes, starts;
};
struct AttentionArrays {
  Array result, lse;
};
struct AttentionGradients {
  Array query, key, value;
};
/// mask and bias may have no array. Results are in the dims `resultNames` and
/// `lseNames`.
AttentionArrays attention(const NamedArray &q, const NamedArray &k, const NamedArray &v,
                          const NamedArray &mask, const NamedArray &bias,
                          const AttentionShape &shape, const RandomSite &site,
                          const Names &resultNames, const Names &lseNames);
/// With respect to q, k and v, each in its operand's dims, from those of the result and
/// of lse (which may have no array).
AttentionGradients attentionGradients(const NamedArray &q, const NamedArray &k, const NamedArray &v,
                                      const NamedArray &mask, const NamedArray &bias,
                                      const NamedArray &gradient, const NamedArray &lseGradient,
                                      const AttentionShape &shape, const RandomSite &site);

} // namespace cleave::composite
