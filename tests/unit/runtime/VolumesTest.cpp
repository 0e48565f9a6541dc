//===- VolumesTest.cpp - what collectives move, beside closed forms --------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/emulate/Volumes.h"

#include "runtime/comm/Communicator.h"

#include <gtest/gtest.h>
#include <map>

using namespace cleave;
using Kind = CollectiveStep::Kind;

namespace {

/// A program of collectives over one axis of so many ranks.
struct Sites {
  int64_t ranks = 3;
  Program program;

  /// A param of so many floats.
  void param(const std::string &name, int64_t elements, bool learns = true) {
    Argument a;
    a.role = Argument::Role::Param;
    a.name = name;
    a.layout = {DType::F32, {{"n", elements, {}}}};
    a.donatedTo = learns ? 0 : -1;
    program.arguments.push_back(a);
  }
  void add(Kind kind, const char *phase, const char *moves, int64_t elements, int64_t layers,
           int64_t executions = 1, const std::string &param = "") {
    CollectiveStep step = CollectiveStep();
    step.kind = kind;
    step.axes = {{0, 1, ranks}};
    int64_t block = (elements + ranks - 1) / ranks;
    step.inDim = kind == Kind::AllGather ? block : elements;
    step.outDim = kind == Kind::ReduceScatter ? block : elements;
    step.site = static_cast<int32_t>(program.collectiveSites.size());
    CollectiveSite site;
    site.kind = kindName(kind);
    site.axes = "x";
    site.location = "a/b.cleave:7:3";
    site.phase = phase;
    site.moves = moves;
    site.payloadBytes = payloadBytes(step);
    site.ringBytes = ringBytes(step);
    site.executions = executions;
    site.layers = layers;
    site.tensors = {{"[n]", elements, param}};
    program.collectiveSites.push_back(site);
    for (int64_t i = 0; i < executions; ++i)
      program.steps.push_back({step, StepKind::Collective});
  }
  std::map<std::string, double> terms(const Volume &v) {
    std::map<std::string, double> list;
    for (const VolumeTerm &term : v.differences)
      list[term.what] = term.bytes;
    return list;
  }
};

} // namespace

TEST(Volumes, TwoAllReducesALayerAreMegatrons) {
  Sites s; // 5 layers of 12 elements, twice in each direction; once outside
  for (const char *phase : {"forward", "backward"})
    for (int i = 0; i < 2; ++i)
      s.add(Kind::AllReduce, phase, "activation", 12, 5, 5);
  s.add(Kind::AllReduce, "forward", "activation", 12, 0);
  auto forms = closedForms(s.program);
  ASSERT_EQ(forms.size(), 1u);
  const Volume &v = forms[0];
  EXPECT_EQ(v.form, "tensor parallelism");
  EXPECT_EQ(v.ranks, 3);
  EXPECT_DOUBLE_EQ(v.closed, 4 * 12 * 2 / 3.0 * 4 * 5 * 2);
  EXPECT_DOUBLE_EQ(static_cast<double>(v.counted), v.closed + 2 * 12 * 2 / 3.0 * 4);
  EXPECT_EQ(s.terms(v).size(), 1u);
  EXPECT_DOUBLE_EQ(s.terms(v)["outside of layers, forward: all_reduce of [n] at b.cleave:7"], 64);
  EXPECT_EQ(v.unexplained(), 0);
}

TEST(Volumes, GathersAndScattersMoveTheSame) {
  Sites s; // of 13 elements: blocks of 5, two of padding in each
  for (const char *phase : {"forward", "backward"})
    for (int i = 0; i < 2; ++i) {
      s.add(Kind::AllGather, phase, "activation", 13, 5, 5);
      s.add(Kind::ReduceScatter, phase, "activation", 13, 5, 5);
    }
  auto forms = closedForms(s.program);
  ASSERT_EQ(forms.size(), 1u);
  EXPECT_DOUBLE_EQ(forms[0].closed, 4 * 13 * 2 / 3.0 * 4 * 5 * 2);
  EXPECT_DOUBLE_EQ(s.terms(forms[0])["padding of blocks that are not full"],
                   4 * 2 * 2 / 3.0 * 4 * 5 * 2);
  EXPECT_EQ(forms[0].unexplained(), 0);
}

TEST(Volumes, ALevelOfZeroIsKnownByItsCollectives) {
  Sites zero, two, three;
  for (Sites *s : {&zero, &two, &three}) {
    s->param("w", 30);
    s->param("b", 6);
    s->param("fixed", 60, /*learns=*/false);
  }
  for (auto [name, n] : {std::pair("w", 30), std::pair("b", 6)}) {
    zero.add(Kind::AllReduce, "backward", "gradient", n, 0, 1, name);
    two.add(Kind::ReduceScatter, "backward", "gradient", n, 0, 1, name);
    two.add(Kind::AllGather, "optimizer", "param", n, 0, 1, name);
    three.add(Kind::ReduceScatter, "backward", "gradient", n, 0, 1, name);
    three.add(Kind::AllGather, "forward", "param", n, 0, 1, name);
  }
  three.add(Kind::AllGather, "backward", "param", 30, 0, 1, "w");
  auto forms = closedForms(zero.program);
  ASSERT_EQ(forms.size(), 1u);
  EXPECT_EQ(forms[0].form, "data parallelism (ZeRO 0)");
  EXPECT_DOUBLE_EQ(forms[0].closed, 2 * 36 * 2 / 3.0 * 4);
  EXPECT_EQ(forms[0].counted, 192);
  EXPECT_TRUE(forms[0].differences.empty());
  forms = closedForms(two.program);
  EXPECT_EQ(forms[0].form, "data parallelism (ZeRO 1 or 2)");
  EXPECT_EQ(forms[0].counted, 192);
  EXPECT_TRUE(forms[0].differences.empty());
  forms = closedForms(three.program);
  EXPECT_EQ(forms[0].form, "data parallelism (ZeRO 3)");
  EXPECT_DOUBLE_EQ(forms[0].closed, 3 * 36 * 2 / 3.0 * 4);
  EXPECT_EQ(three.terms(forms[0]).size(), 1u);
  EXPECT_DOUBLE_EQ(
      three.terms(forms[0])["params that the backward pass has no use for: gathered once"],
      -6 * 2 / 3.0 * 4);
  EXPECT_EQ(forms[0].unexplained(), 0);
}

TEST(Volumes, WhatHasNoNameIsNotExplained) {
  Sites s;
  s.param("w", 30);
  s.add(Kind::AllReduce, "backward", "gradient", 30, 0, 1, "w");
  s.add(Kind::AllReduce, "backward", "gradient", 9, 0, 1, "");
  auto forms = closedForms(s.program);
  ASSERT_EQ(forms.size(), 1u);
  EXPECT_DOUBLE_EQ(forms[0].unexplained(), 2 * 9 * 2 / 3.0 * 4);
}

TEST(Volumes, MicroBatchesAndSeveralUsesHaveNames) {
  Sites s;
  s.param("w", 30);
  s.param("tied", 12);
  s.add(Kind::AllReduce, "backward", "gradient", 30, 0, 4, "w"); // in each of four
  s.add(Kind::AllReduce, "backward", "gradient", 12, 0, 1, "tied");
  s.add(Kind::AllReduce, "backward", "gradient", 12, 0, 1, "tied");
  auto forms = closedForms(s.program);
  ASSERT_EQ(forms.size(), 1u);
  auto terms = s.terms(forms[0]);
  EXPECT_DOUBLE_EQ(terms["gradients that are summed in each of 4 micro-batches"],
                   2 * 3 * 30 * 2 / 3.0 * 4);
  EXPECT_DOUBLE_EQ(terms["the gradient of tied is summed in 2 parts"], 2 * 12 * 2 / 3.0 * 4);
  EXPECT_EQ(terms.size(), 2u);
  EXPECT_EQ(forms[0].unexplained(), 0);
}
