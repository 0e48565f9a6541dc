//===- SemaLayers.cpp - functions of a transformer's layers -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Sema.h"

#include <algorithm>
#include <cmath>

namespace cleave::sema {

Operand Checker::callSoftmax(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "softmax", 1, 1, {"over"}, args))
    return {};
  auto x = floatOf(*args.positional[0], "softmax");
  if (!x)
    return {};
  TensorType type = typeOf(*x);
  auto dims = dimsOption(args, "over", type);
  if (!dims)
    return {};
  Node &node = emit(Op::Softmax, {*x}, type, call.range);
  node.dims = *dims;
  return Operand::of(resultOf(node));
}

Operand Checker::norm(bool layer, ValueId x, std::optional<ValueId> weight,
                      std::optional<ValueId> bias, const std::vector<std::string> &dims,
                      double epsilon, SourceRange range) {
  TensorType type = typeOf(x);
  if (!isFloat(type.element))
    return fail(range, "a norm takes a floating point tensor, not " + program.show(type),
                "cast it: `f32(...)`");
  TensorType over{type.element, {}};
  for (const std::string &dim : dims)
    over.dims.push_back(type.dims[type.find(dim)]);
  if (!weight)
    weight = constant(1, over, range);
  if (layer && !bias)
    bias = constant(0, over, range);
  std::vector<ValueId> operands = {x, *weight};
  if (layer)
    operands.push_back(*bias);
  for (ValueId operand : operands)
    if (typeOf(operand).element != type.element)
      return fail(range,
                  "the element types of a norm differ: " + program.show(type) + " and " +
                      program.show(typeOf(operand)),
                  "cast one side");
  Node &node = emit(layer ? Op::LayerNorm : Op::RmsNorm, operands, type, range);
  node.dims = dims;
  node.number = epsilon;
  return Operand::of(resultOf(node));
}

/// `layer_norm(x, over = width, weight = w, bias = b, epsilon = 1e-5)`
Operand Checker::callNormFunction(const std::string &name, const ast::Expr &call) {
  bool layer = name == "layer_norm";
  std::vector<std::string> options = {"over", "weight", "epsilon"};
  if (layer)
    options.push_back("bias");
  Arguments args;
  if (!arguments(call, name, 1, 1, options, args))
    return {};
  auto x = floatOf(*args.positional[0], name);
  auto epsilon = realOption(args, "epsilon", layer ? 1e-5 : 1e-6);
  if (!x || !epsilon)
    return {};
  auto dims = dimsOption(args, "over", typeOf(*x));
  if (!dims)
    return {};
  if (*epsilon < 0)
    return fail(args.get("epsilon")->range, "epsilon is negative");
  std::optional<ValueId> weight, bias;
  for (auto [option, out] : {std::pair("weight", &weight), std::pair("bias", &bias)}) {
    const ast::Expr *e = args.get(option);
    if (!e)
      continue;
    *out = floatOf(*e, name);
    if (!*out)
      return {};
    const TensorType &type = typeOf(**out);
    bool fits = type.dims.size() == dims->size() &&
                std::all_of(dims->begin(), dims->end(),
                            [&](const std::string &dim) { return type.has(dim); });
    if (!fits)
      return fail(e->range, quoted(option) + " has the dims of `over`, " + show(*dims) +
                                ", and this is " + program.show(type));
  }
  return norm(layer, *x, weight, bias, *dims, *epsilon, call.range);
}

Operand Checker::callAttention(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "attention", 3, 3,
                 {"over", "query", "causal", "mask", "bias", "scale", "dropout", "depth"}, args))
    return {};
  ValueId qkv[3];
  for (int i = 0; i < 3; ++i) {
    auto value = floatOf(*args.positional[i], "attention");
    if (!value)
      return {};
    qkv[i] = *value;
  }
  ValueId q = qkv[0], k = qkv[1], v = qkv[2];
  AttentionInfo info;
  auto key = dimOption(args, "over", typeOf(k));
  auto depth = lastDim(args, "depth", q, "to contract");
  auto causal = flagOption(args, "causal", false);
  auto rate = realOption(args, "dropout", 0);
  if (!key || !depth || !causal || !rate)
    return {};
  info.depthDim = *depth;
  info.causal = *causal;
  info.rate = *rate;
  if (info.rate < 0 || info.rate >= 1)
    return fail(args.get("dropout")->range, "the rate is " + toString(Setting(info.rate)),
                "from 0 to below 1");
  const TensorType written[] = {typeOf(q), typeOf(k), typeOf(v)};
  auto describe = [&](const char *what) {
    return std::string(what) + " is " + program.show(written[std::string("qkv").find(what)]);
  };
  if (!typeOf(k).has(*depth))
    return fail(args.positional[1]->range,
                "the keys lack the queries' last dim " + quoted(*depth) + ": " + describe("q") +
                    ", " + describe("k"),
                "another dim to contract: `depth = ...`");
  if (!typeOf(v).has(*key))
    return fail(args.positional[2]->range,
                "the values lack the dim " + quoted(*key) + " to attend over: " + describe("v"));
  if (typeOf(v).dims.back().name == *key)
    return fail(args.positional[2]->range,
                "the values' last dim is the depth of the result, not " + quoted(*key),
                "order it: `v as [" + *key + ", ...]`");
  info.valueDim = typeOf(v).has(*depth) ? *depth : typeOf(v).dims.back().name;
  // The dims of the queries that are neither in k nor the groups of heads.
  if (typeOf(q).has(*key)) {
    info.queryDim = *key;
    if (args.get("query"))
      return fail(args.get("query")->range,
                  "the queries have the dim " + quoted(*key) + ", which is their own",
                  "leave out `query`, or rename the keys' dim");
    // One name, two dims: the keys' side gets a name of its own.
    std::string fresh = *key + "_keys";
    while (dimIndex.count(fresh) || typeOf(q).has(fresh) || typeOf(k).has(fresh) ||
           typeOf(v).has(fresh))
      fresh += "_";
    auto rename = [&](ValueId id, SourceRange range) {
      TensorType type = typeOf(id);
      type.dims[type.find(*key)].name = fresh;
      return resultOf(emit(Op::Rename, {id}, type, range));
    };
    k = rename(k, args.positional[1]->range);
    v = rename(v, args.positional[2]->range);
    info.keyDim = fresh;
  } else {
    info.keyDim = *key;
    if (args.get("query")) {
      auto query = dimOption(args, "query", typeOf(q));
      if (!query)
        return {};
      info.queryDim = *query;
    } else {
      std::vector<std::string> own;
      for (const Atom &atom : typeOf(q).dims)
        if (!typeOf(k).has(atom.name))
          own.push_back(atom.name);
      if (own.size() != 1)
        return fail(call.range,
                    own.empty()
                        ? "the queries have no dim of their own: " + describe("q")
                        : "which dim do the queries run over? " + show(own) + " are not the keys'",
                    "say `query = ...`");
      info.queryDim = own[0];
    }
    if (info.queryDim == *depth || typeOf(k).has(info.queryDim))
      return fail(args.get("query") ? args.get("query")->range : call.range,
                  quoted(info.queryDim) + " is a dim of the keys too",
                  "rename the keys' dim: `k as [keys = " + info.queryDim + "]`, and `over = keys`");
  }
  const TensorType &tq = typeOf(q), &tk = typeOf(k), &tv = typeOf(v);
  if (tq.element != tk.element || tq.element != tv.element)
    return fail(call.range,
                "the element types differ: " + describe("q") + ", " + describe("k") + ", " +
                    describe("v"),
                "cast them to one");
  if (!hasProducts(tq.element))
    return fail(call.range,
                "attention of " + describe("q") + ": there are matrix products of f32 and f64 only",
                "cast: `f32(...)`");
  for (const Atom &atom : tk.dims)
    if (atom.name != info.keyDim && !tq.has(atom.name))
      return fail(args.positional[1]->range, "the keys have the dim " + quoted(atom.name) +
                                                 ", which the queries lack: " + describe("q"));
  bool sameValues = tk.dims.size() == tv.dims.size();
  for (const Atom &atom : tv.dims)
    sameValues &= atom.name == info.valueDim || (tk.has(atom.name) && atom.name != info.depthDim);
  if (!sameValues)
    return fail(args.positional[2]->range, "the values' dims are the keys', but for the last: " +
                                               describe("k") + ", " + describe("v"));
  TensorType result{tq.element, {}};
  for (const Atom &atom : tq.dims)
    if (atom.name != info.depthDim)
      result.dims.push_back(atom);
  if (result.has(info.valueDim))
    return fail(args.positional[2]->range,
                "the values' last dim " + quoted(info.valueDim) + " is a dim of the queries",
                "rename it: `v as [other = " + info.valueDim + "]`");
  result.dims.push_back(tv.dims[tv.find(info.valueDim)]);
  int64_t depthSize = tq.dims[tq.find(info.depthDim)].size;
  std::vector<ValueId> operands = {q, k, v};
  std::vector<Atom> scores; // the dims of the scores
  for (const Atom &atom : tq.dims)
    if (atom.name != info.depthDim)
      scores.push_back(atom);
  scores.push_back(tk.dims[tk.find(info.keyDim)]);
  std::vector<Atom> maskable;
  for (const Atom &atom : tk.dims)
    if (atom.name != info.depthDim)
      maskable.push_back(atom);
  if (const ast::Expr *e = args.get("mask")) {
    auto mask = tensorOf(*e, DType::I1);
    if (!mask)
      return {};
    TensorType type = typeOf(*mask);
    const TensorType given = type;
    if (type.element != DType::I1)
      return fail(e->range, "a key padding mask is i1, not " + program.show(type),
                  "compare: `mask != 0`");
    if (info.queryDim == *key && type.has(*key)) {
      type.dims[type.find(*key)].name = info.keyDim;
      mask = resultOf(emit(Op::Rename, {*mask}, type, e->range));
    }
    if (!type.has(info.keyDim) || !insideOf(type, maskable))
      return fail(e->range,
                  "a key padding mask has the dim " + quoted(*key) +
                      " and others of the keys; this is " + program.show(given),
                  "a mask that depends on the query is an additive `bias`");
    operands.push_back(*mask);
    info.mask = true;
  }
  if (const ast::Expr *e = args.get("bias")) {
    auto bias = floatOf(*e, "attention");
    if (!bias)
      return {};
    const TensorType &type = typeOf(*bias);
    if (!insideOf(type, scores) || type.element != typeOf(q).element)
      return fail(e->range,
                  "the bias is " + program.show(type) + ", and the scores are " +
                      program.show({typeOf(q).element, scores}),
                  info.queryDim == *key
                      ? "give the keys' dim a name of its own: `k as [keys = " + *key +
                            "]`, `v as [keys = " + *key + "]`, `over = keys`"
                      : "");
    operands.push_back(*bias);
    info.bias = true;
  }
  auto scale = realOption(args, "scale", 1 / std::sqrt(static_cast<double>(depthSize)));
  if (!scale)
    return {};
  info.scale = *scale;
  std::string site = newSite("attention");
  Node &node = emit(Op::Attention, operands, result, call.range);
  node.attention = info;
  node.site = site;
  node.loops = build->loops;
  return Operand::of(resultOf(node));
}

Operand Checker::callRope(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "rope", 2, 2, {"along", "base", "interleaved", "rotary"}, args))
    return {};
  auto x = floatOf(*args.positional[0], "rope");
  auto positions = tensorOf(*args.positional[1], DType::I32);
  auto base = realOption(args, "base", 10000);
  auto interleaved = flagOption(args, "interleaved", false);
  if (!x || !positions || !base || !interleaved)
    return {};
  TensorType type = typeOf(*x);
  const TensorType at = typeOf(*positions);
  auto dim = lastDim(args, "along", *x, "to rotate");
  if (!dim)
    return {};
  int64_t size = type.dims[type.find(*dim)].size;
  auto rotary = integerOption(args, "rotary", size);
  if (!rotary)
    return {};
  if (at.element != DType::I32 || at.has(*dim) || !insideOf(at, type.dims))
    return fail(args.positional[1]->range, "positions are i32 with dims of the tensor but " +
                                               quoted(*dim) + "; this is " + program.show(at) +
                                               " and the tensor " + program.show(type));
  if (*rotary < 2 || *rotary > size || *rotary % 2)
    return fail(args.get("rotary") ? args.get("rotary")->range : call.range,
                std::to_string(*rotary) + " elements of " + quoted(*dim) + " (" +
                    std::to_string(size) + ") cannot be rotated in pairs",
                "an even number from 2");
  if (*base <= 0)
    return fail(args.get("base")->range, "the base is not positive");
  Node &node = emit(Op::Rope, {*x, *positions}, type, call.range);
  node.dims = {*dim};
  node.number = *base;
  node.flag = *interleaved;
  node.count = *rotary;
  return Operand::of(resultOf(node));
}

Operand Checker::callDropout(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "dropout", 2, 2, {}, args))
    return {};
  auto x = floatOf(*args.positional[0], "dropout");
  args.named["rate"] = args.positional[1];
  auto rate = realOption(args, "rate", 0);
  std::string site = newSite("dropout");
  if (!x || !rate)
    return {};
  if (*rate < 0 || *rate >= 1)
    return fail(args.positional[1]->range, "the rate is " + toString(Setting(*rate)),
                "from 0 to below 1");
  if (*rate == 0)
    return Operand::of(*x);
  Node &node = emit(Op::Dropout, {*x}, typeOf(*x), call.range);
  node.number = *rate;
  node.site = site;
  node.loops = build->loops;
  return Operand::of(resultOf(node));
}

Operand Checker::callCrossEntropy(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "cross_entropy", 2, 2, {"over", "ignore", "smoothing"}, args))
    return {};
  auto logits = tensorOf(*args.positional[0]);
  auto labels = tensorOf(*args.positional[1], DType::I32);
  if (logits && !isFloat(typeOf(*logits).element))
    return fail(args.positional[0]->range,
                "the logits are floating point, not " + program.show(typeOf(*logits)),
                "they stand first: `cross_entropy(logits, labels)`");
  auto ignore = integerOption(args, "ignore", -100);
  auto smoothing = realOption(args, "smoothing", 0);
  if (!logits || !labels || !ignore || !smoothing)
    return {};
  const TensorType &x = typeOf(*logits), &y = typeOf(*labels);
  if (y.element != DType::I32)
    return fail(args.positional[1]->range, "labels are i32, not " + program.show(y),
                "declare them so: `labels: i32[...]`");
  std::string dim;
  if (args.get("over")) {
    auto given = dimOption(args, "over", x);
    if (!given)
      return {};
    dim = *given;
  } else {
    std::vector<std::string> own;
    for (const Atom &atom : x.dims)
      if (!y.has(atom.name))
        own.push_back(atom.name);
    if (own.size() != 1)
      return fail(call.range, "the logits have one dim more than the labels; these are " +
                                  program.show(x) + " and " + program.show(y));
    dim = own[0];
  }
  TensorType without = x;
  without.dims.erase(without.dims.begin() + without.find(dim));
  if (!sameDims(without, y))
    return fail(args.positional[1]->range, "the labels are " + program.show(y) +
                                               " and the logits but " + quoted(dim) + " " +
                                               program.show(without));
  if (*smoothing < 0 || *smoothing >= 1)
    return fail(args.get("smoothing")->range, "the smoothing is " + toString(Setting(*smoothing)),
                "from 0 to below 1");
  if (*ignore < INT32_MIN || *ignore > INT32_MAX)
    return fail(args.get("ignore")->range, "the ignored label is no i32");
  if (*ignore >= 0 && *ignore < sizeOf(dim))
    return fail(args.get("ignore")->range,
                "the ignored label " + std::to_string(*ignore) + " is a valid label of " +
                    quoted(dim),
                "use a negative one, such as -100");
  Node &node = emit(Op::CrossEntropy, {*logits, *labels}, {x.element, {}}, call.range);
  node.dims = {dim};
  node.count = *ignore;
  node.number = *smoothing;
  return Operand::of(resultOf(node));
}

} // namespace cleave::sema
