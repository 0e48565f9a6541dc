//===- ProductsTest.cpp - what products do along the way ------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Big enough that products copy their operands: they sum them for the gradients of
// biases, and Q, K and V share what is copied of their input.
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <cmath>

using namespace cleave;
using namespace cleave::e2e;

namespace {

constexpr int64_t rows = 5 * 61, width = 130, heads = 3, depth = 44;

Model projections() {
  return {R"(
model projections(width = 130, heads = 3, depth = 44) {
  free batch, seq
  param wq, wk, wv: [width, heads, depth] = normal(0.1)
  param bq, bk, bv: [heads, depth] = normal(0.1)
  fn loss(x: [batch, seq, width]) -> f32 {
    return mean(tanh(x @ wq + bq) * (x @ wk + bk) * (x @ wv + bv))
  }
}
plan tensor for projections on (tp) { shard heads by tp }
plan data for projections on (dp) { shard batch by dp }
)",
          {},
          {{"batch", 5}, {"seq", 61}}};
}

class Products : public ::testing::TestWithParam<Layout> {
protected:
  static Tensors inputs() {
    HostTensor x(DType::F64, {5, 61, width});
    for (int64_t i = 0; i < x.elements(); ++i)
      x.as<double>()[i] = std::sin(double(i) * 0.37) + 0.1 * double(i % 7);
    return {{"x", x}};
  }
};
INSTANTIATE_TEST_SUITE_P(On, Products,
                         ::testing::Values(oneRank(), Layout{"tp2", "tensor", {{"tp", 2}}},
                                           Layout{"dp2", "data", {{"dp", 2}}}),
                         [](const auto &info) { return info.param.name; });

TEST_P(Products, BiasGradientsAndSharedInputs) {
  CompileOptions options = gradientsOf("loss", DType::F64);
  auto executable = compiled(projections(), GetParam(), options);
  ASSERT_TRUE(executable);
  int sums = 0, shared = 0;
  for (const Step &step : executable->programs[0].steps)
    if (auto *gemm = std::get_if<GemmStep>(&step.action)) {
      sums += gemm->sums != GemmStep::Sums::None;
      shared += gemm->sameA;
    }
  EXPECT_EQ(sums, 3);
  EXPECT_EQ(shared, 4); // K and V, forward, and their weights' gradients
  auto session = started(executable);
  ASSERT_TRUE(session && session->initialise(3));
  Tensors got = ran(*session, "loss_grads", inputs());
  Tensors w = persistent(*session);

  // The definition.
  Tensors in = inputs();
  const double *x = in.at("x").as<double>();
  constexpr int64_t columns = heads * depth;
  auto projected = [&](const std::string &letter) {
    std::vector<double> y(rows * columns);
    const double *m = w.at("w" + letter).as<double>(), *bias = w.at("b" + letter).as<double>();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < columns; ++j) {
        double sum = bias[j];
        for (int64_t i = 0; i < width; ++i)
          sum += x[r * width + i] * m[i * columns + j];
        y[static_cast<size_t>(r * columns + j)] = sum;
      }
    return y;
  };
  std::vector<double> q = projected("q"), k = projected("k"), v = projected("v");
  std::map<std::string, std::vector<double>> gradient; // of what each projection gives
  double loss = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    double t = std::tanh(q[i]), n = double(q.size());
    loss += t * k[i] * v[i] / n;
    gradient["q"].push_back((1 - t * t) * k[i] * v[i] / n);
    gradient["k"].push_back(t * v[i] / n);
    gradient["v"].push_back(t * k[i] / n);
  }
  EXPECT_NEAR(number(got, "loss"), loss, 1e-13);
  for (auto &[letter, g] : gradient) {
    HostTensor b(DType::F64, {heads, depth}), m(DType::F64, {width, heads, depth});
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < columns; ++j) {
        double y = g[static_cast<size_t>(r * columns + j)];
        b.as<double>()[j] += y;
        for (int64_t i = 0; i < width; ++i)
          m.as<double>()[i * columns + j] += x[r * width + i] * y;
      }
    EXPECT_LT(distance(got.at("grad:b" + letter), b), 1e-14 * (1 + largest(b))) << letter;
    EXPECT_LT(distance(got.at("grad:w" + letter), m), 1e-14 * (1 + largest(m))) << letter;
  }
  options.fuse = false;
  auto plain = started(compiled(projections(), GetParam(), options));
  ASSERT_TRUE(plain && plain->initialise(3));
  EXPECT_TRUE(close(got, ran(*plain, "loss_grads", inputs()), 1e-13));
}

} // namespace
