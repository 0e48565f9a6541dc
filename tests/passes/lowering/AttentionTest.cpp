//===- AttentionTest.cpp - attention's kernels ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Against the definition, in double: forward and backward, over sizes on both sides of the
// blocks, dims in any order, everything that the op can have.
//
//===----------------------------------------------------------------------===//
#include "Reference.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <cmath>
#include <random>

using namespace cleave;
using namespace cleave::test;

namespace {

struct Case {
  std::string element = "f32";
  int64_t batch = 2, heads = 3, group = 1, queries = 5, keys = 5, depth = 4, values = 4;
  bool causal = true, mask = false, dropout = false, offset = false, lseGradient = false;
  int64_t shift = 0;
  int bias = 0;  ///< 1: with queries, 2: without
  int order = 0; ///< 0: as models have it, 1: shuffled
  int bits = 256;
};

using Dims = std::vector<std::pair<std::string, int64_t>>;

std::string typeOf(const std::string &element, const Dims &dims) {
  std::string text = "!cleave.tensor<" + element;
  for (size_t i = 0; i < dims.size(); ++i)
    text += (i ? ", " : " [") + dims[i].first + "=" + std::to_string(dims[i].second);
  return text + (dims.empty() ? ">" : "]>");
}

/// A function of one op; its first inputs are q, k, v and, for the gradient, those of the results.
std::string textOf(const Case &c, bool gradient) {
  std::mt19937 random(static_cast<unsigned>(c.queries * 31 + c.keys + c.order));
  auto ordered = [&](Dims dims) {
    if (c.order)
      std::shuffle(dims.begin(), dims.end(), random);
    return dims;
  };
  Dims heads{{"b", c.batch}, {"h", c.heads}};
  Dims q{{"b", c.batch}, {"s", c.queries}, {"h", c.heads}, {"d", c.depth}};
  Dims y{{"b", c.batch}, {"s", c.queries}, {"h", c.heads}, {"e", c.values}};
  Dims lse{{"b", c.batch}, {"s", c.queries}, {"h", c.heads}};
  if (c.group > 1)
    for (Dims *dims : {&q, &y, &lse})
      dims->insert(dims->begin() + 3, {"g", c.group});
  Dims k{{"b", c.batch}, {"t", c.keys}, {"h", c.heads}, {"d", c.depth}};
  Dims v{{"b", c.batch}, {"t", c.keys}, {"h", c.heads}, {"e", c.values}};
  q = ordered(q), k = ordered(k), v = ordered(v), y = ordered(y), lse = ordered(lse);
  std::string arguments, operands, types;
  auto input = [&](const std::string &name, const std::string &type) {
    arguments += (arguments.empty() ? "%" : ", %") + name + ": " + type;
    types += (types.empty() ? "" : ", ") + type;
  };
  std::string e = c.element;
  input("q", typeOf(e, q));
  input("k", typeOf(e, k));
  input("v", typeOf(e, v));
  if (gradient) {
    input("y", typeOf(e, y));
    input("lse", typeOf(e, lse));
    input("dy", typeOf(e, y));
    operands += " output %y, %lse gradient %dy";
    if (c.lseGradient) {
      input("dlse", typeOf(e, lse));
      operands += ", %dlse";
    }
  }
  if (c.mask) {
    input("mask", typeOf("i1", {{"b", c.batch}, {"t", c.keys}}));
    operands += " mask %mask";
  }
  if (c.bias) {
    Dims bias{{"h", c.heads}, {"t", c.keys}};
    if (c.bias == 1)
      bias.insert(bias.begin() + 1, {"s", c.queries});
    input("bias", typeOf(e, ordered(bias)));
    operands += " bias %bias";
  }
  std::string sizes;
  if (c.dropout) {
    input("seed", "!cleave.tensor<i64>");
    input("step", "!cleave.tensor<i64>");
    input("layer", "!cleave.tensor<i32>");
    operands += " random(%seed, %step, %layer)";
    // The scores: q's dims without depth and query, then query and key; of a larger tensor.
    for (auto &[name, size] : q)
      if (name != "d" && name != "s")
        sizes += std::to_string(size + 2) + ", ";
    sizes = ", global_sizes = array<i64: " + sizes + std::to_string(c.queries + 9) + ", " +
            std::to_string(c.keys) + ">";
  }
  int offsets = c.offset ? (c.dropout ? static_cast<int>(q.size()) - 1 : 1) : 0;
  for (int i = 0; i < offsets; ++i) {
    input("o" + std::to_string(i), "index");
    operands += (i ? ", %o" : " offset(%o") + std::to_string(i) + (i + 1 == offsets ? ")" : "");
  }
  std::string results = gradient ? typeOf(e, q) + ", " + typeOf(e, k) + ", " + typeOf(e, v)
                                 : typeOf(e, y) + ", " + typeOf(e, lse);
  std::string names = gradient ? "%0, %1, %2" : "%0, %1";
  return "func.func @f(" + arguments + ") -> (" + results + ") {\n  " + names +
         " = cleave.attention" + (gradient ? "_grad" : "") + " %q, %k, %v" + operands +
         " {query_dim = \"s\", key_dim = \"t\", depth_dim = \"d\", value_dim = \"e\", causal = " +
         (c.causal ? "true" : "false") + ", shift = " + std::to_string(c.shift) +
         " : i64, scale = " + std::to_string(1 / std::sqrt(c.depth)) +
         " : f64, rate = " + (c.dropout ? "0.25" : "0.0") +
         " : f64, path = \"p\", site = 77 : i64" + sizes + "} : (" + types + ") -> (" + results +
         ")\n  return " + names + " : " + results + "\n}";
}

void check(const Case &c) {
  SCOPED_TRACE(textOf(c, false));
  double tolerance = c.element == "f64" ? 1e-13 : 4e-6;
  KernelOptions options;
  options.vectorBits = c.bits;
  std::vector<int64_t> offsets;
  if (c.offset)
    offsets = c.dropout ? std::vector<int64_t>{3, 1, 2, 1} : std::vector<int64_t>{3};
  if (c.offset && c.dropout && c.group == 1)
    offsets.pop_back();
  Program forward(textOf(c, false));
  ASSERT_TRUE(forward.valid()) << forward.errors;
  std::vector<Tensor> inputs = forward.randomInputs(7, 1.5);
  std::vector<Tensor> want = forward.reference(inputs, offsets);
  expectClose(forward.run(inputs, offsets, options), want, tolerance);

  Program backward(textOf(c, true));
  ASSERT_TRUE(backward.valid()) << backward.errors;
  std::vector<Tensor> more = backward.randomInputs(8, 1.5);
  // What the forward pass had and gave; the gradients stay random.
  size_t given = c.lseGradient ? 7 : 6;
  std::copy(inputs.begin(), inputs.begin() + 3, more.begin());
  std::copy(want.begin(), want.end(), more.begin() + 3);
  std::copy(inputs.begin() + 3, inputs.end(), more.begin() + static_cast<int64_t>(given));
  expectClose(backward.run(more, offsets, options), backward.reference(more, offsets),
              tolerance * 4);
}

TEST(Attention, SizesAroundTheBlocks) {
  for (int64_t queries : {1, 6, 17, 47, 48, 49, 97, 200})
    for (const char *element : {"f32", "f64"})
      check({.element = element, .batch = 1, .heads = 2, .queries = queries, .keys = queries});
  for (int64_t keys : {1, 5, 95, 96, 97, 193})
    check({.queries = 50, .keys = keys, .causal = false});
}

TEST(Attention, Depths) {
  for (int64_t depth : {1, 3, 8, 16, 17, 64})
    for (const char *element : {"f32", "f64"})
      check({.element = element,
             .queries = 19,
             .keys = 19,
             .depth = depth,
             .values = 40 - depth / 2});
  check({.batch = 1, .heads = 1, .queries = 60, .keys = 60, .depth = 700, .values = 1000});
}

TEST(Attention, GroupsAndOrders) {
  for (int64_t group : {1, 2, 5})
    for (int order : {0, 1})
      for (const char *element : {"f32", "f64"})
        check({.element = element,
               .group = group,
               .queries = 53,
               .keys = 53,
               .depth = 9,
               .values = 20,
               .order = order});
}

TEST(Attention, CausalShifts) {
  // Fewer queries than keys, as with a cache; more, so that the first see nothing.
  for (int64_t shift : {-60, -7, 0, 13, 49, 100})
    for (int64_t queries : {3, 51, 110})
      check({.queries = queries, .keys = 101, .depth = 8, .shift = shift});
}

TEST(Attention, MasksAndBiases) {
  for (bool causal : {false, true})
    for (int bias : {0, 1, 2})
      for (int order : {0, 1})
        check({.group = 2,
               .queries = 33,
               .keys = 40,
               .causal = causal,
               .mask = true,
               .shift = 2,
               .bias = bias,
               .order = order});
}

TEST(Attention, Dropout) {
  for (bool offset : {false, true})
    for (int64_t group : {1, 3})
      for (const char *element : {"f32", "f64"})
        check({.element = element,
               .group = group,
               .queries = 50,
               .keys = 59,
               .dropout = true,
               .offset = offset,
               .shift = 9});
}

TEST(Attention, OffsetsAndTheGradientOfLse) {
  check({.queries = 20, .keys = 31, .offset = true, .lseGradient = true, .shift = 1});
  check({.element = "f64", .group = 2, .queries = 70, .keys = 31, .lseGradient = true, .bias = 1});
}

TEST(Attention, WiderVectors) {
  if (!__builtin_cpu_supports("avx512f"))
    GTEST_SKIP() << "this processor has no AVX-512";
  for (int64_t queries : {1, 50, 130})
    for (const char *element : {"f32", "f64"})
      check({.element = element, .group = 2, .queries = queries, .keys = queries, .bits = 512});
}

} // namespace
