//===- PackedWeightsTest.cpp - weights packed once for many runs ----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executor/PackedWeights.h"

#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/KernelTable.h"
#include "runtime/executor/Session.h"

#include <cmath>
#include <gtest/gtest.h>

using namespace cleave;

namespace {
constexpr int64_t width = 40, inner = 36, vocab = 53;

/// y = (x @ w) @ t', for a number of rows; w and t are params.
Program twoProducts(int64_t rows) {
  auto f32 = [](const char *first, int64_t a, const char *second, int64_t b) {
    return TensorLayout{DType::F32, {{first, a, {}}, {second, b, {}}}};
  };
  auto argument = [](Argument::Role role, const char *name, TensorLayout layout) {
    Argument a;
    a.role = role;
    a.name = name;
    a.init = role == Argument::Role::Param ? "normal(1)" : "";
    a.localBytes = 4 * layout.dims[0].size * layout.dims[1].size;
    a.layout = std::move(layout);
    return a;
  };
  Program p;
  p.name = "forward";
  p.dims = {{"rows", rows}};
  p.arguments = {argument(Argument::Role::Param, "w", f32("width", width, "inner", inner)),
                 argument(Argument::Role::Param, "t", f32("vocab", vocab, "inner", inner)),
                 argument(Argument::Role::Input, "x", f32("rows", rows, "width", width))};
  p.results = {{"y", f32("rows", rows, "vocab", vocab), -1}};
  for (int32_t i = 0; i < 3; ++i)
    p.buffers.push_back({Buffer::Kind::Argument, p.arguments[size_t(i)].localBytes, 0, i});
  p.buffers.push_back({Buffer::Kind::Result, rows * vocab * 4, 0, 0});
  p.buffers.push_back({Buffer::Kind::Arena, rows * inner * 4, 0, 0});
  p.arenaBytes = (rows * inner * 4 + 63) / 64 * 64;
  GemmStep first, second;
  first.m = rows, first.n = inner, first.k = width;
  first.lda = width, first.ldb = first.ldc = inner;
  first.a = {2, 0}, first.b = {0, 0}, first.c = {4, 0};
  second.m = rows, second.n = vocab, second.k = inner;
  second.transB = true;
  second.lda = second.ldb = inner, second.ldc = vocab;
  second.a = {4, 0}, second.b = {1, 0}, second.c = {3, 0};
  p.steps = {{first, StepKind::Gemm}, {second, StepKind::Gemm}};
  return p;
}

Executable executable(std::vector<Program> programs) {
  Executable e;
  e.model = "two_products";
  e.rankProgram = {0};
  e.programs = std::move(programs);
  return e;
}

std::unique_ptr<Session> open(const Executable &e, bool packWeights) {
  SessionOptions options;
  options.threads = 2;
  options.packWeights = packWeights;
  auto session =
      Session::create(std::make_shared<Executable>(e), std::make_shared<KernelTable>(), options);
  EXPECT_TRUE(session) << session.error().message;
  EXPECT_TRUE((*session)->initialise(7));
  return std::move(*session);
}

std::vector<float> run(Session &session, int64_t rows) {
  std::vector<float> x(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(float(i));
  auto out = session.run("forward", {{"x", HostTensor::of<float>(DType::F32, {rows, width}, x)}});
  EXPECT_TRUE(out) << out.error().message;
  const HostTensor &y = out->results.at("y");
  return {y.as<float>(), y.as<float>() + y.elements()};
}

HostTensor ramp(int64_t rows, int64_t cols) {
  std::vector<float> v(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = float(i % 29) - 11;
  return HostTensor::of<float>(DType::F32, {rows, cols}, v);
}

std::vector<std::string> reasons(const Executable &e) {
  std::vector<std::string> out;
  for (const PackDecision &decision :
       decidePacking(e, e.programs[0], [](const GemmStep &s) { return packedBytes(s); }))
    out.push_back(decision.reason);
  return out;
}
} // namespace

TEST(PackedWeights, ManyRowsGiveTheSameBits) {
  Executable e = executable({twoProducts(12)});
  auto with = open(e, true), without = open(e, false);
  for (int round = 0; round < 2; ++round)
    EXPECT_EQ(run(*with, 12), run(*without, 12));
  EXPECT_GE(with->memory().packed, (width * inner + vocab * inner) * 4);
  EXPECT_EQ(with->memory().persistent() - without->memory().persistent(), with->memory().packed);
  EXPECT_EQ(without->memory().packed, 0);
}

TEST(PackedWeights, FewRowsAgreeWithDouble) {
  for (int64_t rows : {1, 3, 8}) {
    auto session = open(executable({twoProducts(rows)}), true);
    std::vector<float> got = run(*session, rows);
    auto w = *session->get("w"), t = *session->get("t");
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t v = 0; v < vocab; ++v) {
        double want = 0, size = 0;
        for (int64_t i = 0; i < inner; ++i) {
          double h = 0, sizeH = 0;
          for (int64_t c = 0; c < width; ++c) {
            double term = std::sin(float(r * width + c)) * double(w.as<float>()[c * inner + i]);
            h += term;
            sizeH += std::fabs(term);
          }
          want += h * double(t.as<float>()[v * inner + i]);
          size += sizeH * std::fabs(double(t.as<float>()[v * inner + i]));
        }
        // Of a chain of width and one of inner roundings, and of the sine.
        EXPECT_NEAR(got[static_cast<size_t>(r * vocab + v)], want,
                    size * double(width + inner) * 6e-8);
      }
  }
}

TEST(PackedWeights, AreMadeAnewWhenParamsAreSet) {
  Executable e = executable({twoProducts(12)});
  auto with = open(e, true), without = open(e, false);
  std::vector<float> first = run(*with, 12);
  EXPECT_EQ(first, run(*without, 12));
  int64_t bytes = with->memory().packed;
  for (Session *session : {with.get(), without.get()}) {
    auto status = session->set("t", ramp(vocab, inner).view());
    ASSERT_TRUE(status) << status.error().message;
  }
  std::vector<float> second = run(*with, 12);
  EXPECT_NE(first, second);
  EXPECT_EQ(second, run(*without, 12));
  ASSERT_TRUE(with->initialise(8) && without->initialise(8));
  std::vector<float> third = run(*with, 12);
  EXPECT_NE(second, third);
  EXPECT_EQ(third, run(*without, 12));
  EXPECT_EQ(with->memory().packed, bytes);
}

TEST(PackedWeights, ProgramsOfOneSessionShareThem) {
  Executable e = executable({twoProducts(12), twoProducts(3), twoProducts(31)});
  auto session = open(e, true), without = open(e, false);
  std::vector<float> few = run(*session, 3); // the copies are made for few rows
  int64_t bytes = session->memory().packed;
  EXPECT_EQ(run(*session, 12), run(*without, 12));
  EXPECT_EQ(run(*session, 31), run(*without, 31));
  EXPECT_EQ(session->memory().packed, bytes);
  // Each program sees what was set after another one packed.
  ASSERT_TRUE(session->set("w", ramp(width, inner).view()));
  ASSERT_TRUE(without->set("w", ramp(width, inner).view()));
  EXPECT_EQ(run(*session, 31), run(*without, 31));
  EXPECT_EQ(run(*session, 12), run(*without, 12));
  EXPECT_NE(run(*session, 3), few);
}

TEST(PackedWeights, EachDecisionHasItsReason) {
  using Reasons = std::vector<std::string>;
  Executable e = executable({twoProducts(12)});
  EXPECT_EQ(reasons(e), (Reasons{"", ""}));
  e.programs[0].training = true;
  EXPECT_EQ(reasons(e), (Reasons{"the program trains", "the program trains"}));
  e.programs[0].training = false;

  // Another program of the executable updates one of them.
  Program step = twoProducts(12);
  step.name = "step";
  step.arguments[1].donatedTo = 1;
  step.results.push_back({"t", step.arguments[1].layout, 1});
  e.programs.push_back(step);
  EXPECT_EQ(reasons(e), (Reasons{"", "'step' writes 't'"}));
  e.programs.pop_back();

  std::get<GemmStep>(e.programs[0].steps[1].action).b = {2, 0};
  EXPECT_EQ(reasons(e), (Reasons{"", "B is not a param"}));
  std::get<GemmStep>(e.programs[0].steps[1].action).b = {4, 0};
  EXPECT_EQ(reasons(e), (Reasons{"", "B is not a param"}));
  auto &first = std::get<GemmStep>(e.programs[0].steps[0].action);
  for (auto change : {+[](GemmStep &s) { s.batch = 2; }, +[](GemmStep &s) { s.n = 8; },
                      +[](GemmStep &s) { s.k = 1, s.m = 1; }}) {
    GemmStep before = first;
    change(first);
    EXPECT_EQ(reasons(e)[0], "the device has no packed form for this product");
    first = before;
  }
}
