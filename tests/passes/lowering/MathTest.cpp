//===- MathTest.cpp - how far functions are from double -------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Reference.h"

#include "gtest/gtest.h"

#include <cmath>
#include <limits>

using namespace cleave;
using namespace cleave::test;

namespace {

constexpr int64_t kPoints = 200000;

/// The op on many numbers of [low, high]; the largest error in ulp of f32.
double worst(const std::string &op, double low, double high, double (*exact)(double),
             double floor = 0) {
  std::string type = "!cleave.tensor<f32 [n=" + std::to_string(kPoints) + "]>";
  Program program("func.func @f(%x: " + type + ") -> " + type + " {\n  %y = cleave." + op +
                  " %x : " + type + " -> " + type + "\n  return %y : " + type + "\n}");
  Tensor x{tensorOf(program.fused().getResult(0)), std::vector<double>(kPoints)};
  for (int64_t i = 0; i < kPoints; ++i)
    x.data[i] = static_cast<float>(low + (high - low) * static_cast<double>(i) / (kPoints - 1));
  std::vector<Tensor> got = program.run({x});
  if (got.empty())
    return std::numeric_limits<double>::infinity();
  double most = 0;
  for (int64_t i = 0; i < kPoints; ++i) {
    double want = exact(x.data[i]), have = got[0].data[i];
    auto nearest = static_cast<float>(want);
    if (std::isinf(nearest) || std::isnan(nearest)) {
      EXPECT_TRUE(std::isnan(nearest) ? std::isnan(have) : have == nearest)
          << op << "(" << x.data[i] << ") = " << have << ", should be " << nearest;
      continue;
    }
    int exponent;
    std::frexp(std::max(std::fabs(want), floor), &exponent);
    double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
    double error = std::fabs(have - want) / ulp;
    if (!(error <= most)) {
      most = error;
      if (!(error <= 4))
        ADD_FAILURE() << op << "(" << x.data[i] << ") = " << have << ", should be " << want;
    }
  }
  printf("%-8s [%g, %g]: %.2f ulp\n", op.c_str(), low, high, most);
  return most;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double rsqrt(double x) { return 1 / std::sqrt(x); }

TEST(Math, WithinFewUlp) {
  EXPECT_LE(worst("exp", -20, 20, std::exp), 2);
  EXPECT_LE(worst("exp", -104, 89, std::exp), 2);
  EXPECT_LE(worst("exp", -1e-3, 1e-3, std::exp), 2);
  EXPECT_LE(worst("log", 1e-3, 4, std::log), 2);
  EXPECT_LE(worst("log", 0.9, 1.1, std::log), 2);
  EXPECT_LE(worst("log", 0, 1e-38, std::log), 2);
  EXPECT_LE(worst("log", 1, 3.4e38, std::log), 2);
  EXPECT_LE(worst("tanh", -10, 10, std::tanh), 3);
  EXPECT_LE(worst("tanh", -0.7, 0.7, std::tanh), 3);
  EXPECT_LE(worst("sigmoid", -87.3, 100, sigmoid), 3);
  EXPECT_LE(worst("sigmoid", -10, 10, sigmoid), 3);
  EXPECT_LE(worst("erf", -5, 5, std::erf), 2);
  EXPECT_LE(worst("erf", -1, 1, std::erf), 2);
  EXPECT_LE(worst("sin", -10, 10, std::sin), 1);
  EXPECT_LE(worst("cos", -10, 10, std::cos), 1);
  EXPECT_LE(worst("sin", 0, 131072, std::sin), 1);
  EXPECT_LE(worst("cos", -131072, 1e6, std::cos), 1);
  EXPECT_LE(worst("rsqrt", 1e-6, 100, rsqrt), 1.5);
  EXPECT_LE(worst("sqrt", 0, 100, std::sqrt), 0.5);
}

/// Ends of the ranges, infinities, NaN; f64 is libm's.
TEST(Math, SpecialValues) {
  double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  std::vector<double> xs = {0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 1000, -1000, 1e-40, 88.8, -103.9};
  for (const char *type : {"f32", "f64"})
    for (auto [op, exact] :
         std::initializer_list<std::pair<const char *, double (*)(double)>>{{"exp", std::exp},
                                                                            {"log", std::log},
                                                                            {"tanh", std::tanh},
                                                                            {"sigmoid", sigmoid},
                                                                            {"erf", std::erf},
                                                                            {"sqrt", std::sqrt},
                                                                            {"rsqrt", rsqrt}}) {
      std::string t = "!cleave.tensor<" + std::string(type) + " [n=12]>";
      Program program("func.func @f(%x: " + t + ") -> " + t + " {\n  %y = cleave." + op +
                      " %x : " + t + " -> " + t + "\n  return %y : " + t + "\n}");
      bool narrow = type[1] == '3';
      Tensor x{tensorOf(program.fused().getResult(0)), xs};
      for (double &v : x.data)
        v = narrow ? static_cast<float>(v) : v;
      std::vector<Tensor> got = program.run({x});
      ASSERT_EQ(got.size(), 1u);
      for (size_t i = 0; i < xs.size(); ++i) {
        double want = exact(x.data[i]), have = got[0].data[i];
        if (narrow)
          want = static_cast<float>(want);
        if (narrow && std::string(op) == "sigmoid" && want < std::numeric_limits<float>::min())
          want = 0; // no denormals
        if (std::isnan(want))
          EXPECT_TRUE(std::isnan(have)) << op << "(" << xs[i] << ") = " << have;
        else if (std::isinf(want))
          EXPECT_EQ(have, want) << op << "(" << xs[i] << ") in " << type;
        else
          EXPECT_NEAR(have, want, std::max(1e-44, std::fabs(want) * (narrow ? 3e-7 : 1e-15)))
              << op << "(" << xs[i] << ") in " << type;
      }
    }
}

TEST(Math, DoubleIsExact) {
  std::string t = "!cleave.tensor<f64 [n=1001]>";
  for (auto [op, exact] :
       std::initializer_list<std::pair<const char *, double (*)(double)>>{{"exp", std::exp},
                                                                          {"tanh", std::tanh},
                                                                          {"sigmoid", sigmoid},
                                                                          {"erf", std::erf},
                                                                          {"sin", std::sin},
                                                                          {"cos", std::cos}}) {
    Program program("func.func @f(%x: " + t + ") -> " + t + " {\n  %y = cleave." + op +
                    " %x : " + t + " -> " + t + "\n  return %y : " + t + "\n}");
    std::vector<Tensor> inputs = program.randomInputs(5, 20);
    std::vector<Tensor> got = program.run(inputs);
    ASSERT_EQ(got.size(), 1u);
    for (size_t i = 0; i < inputs[0].data.size(); ++i) {
      double want = exact(inputs[0].data[i]);
      EXPECT_NEAR(got[0].data[i], want, 1e-15 * std::fabs(want) + 1e-300) << op;
    }
  }
}

} // namespace
