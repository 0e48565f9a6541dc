//===- InterpreterTest.cpp - the oracle against numbers done by hand ------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "tests/generated/Support.h"

#include "runtime/core/Philox.h"

#include <cmath>
#include <cstring>
#include <limits>

using namespace cleave;
using namespace cleave::testing;

namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

Array reals(std::vector<int64_t> shape, std::vector<double> v) {
  return Array::ofReals(std::move(shape), std::move(v));
}
Array ints(std::vector<int64_t> shape, std::vector<int64_t> v) {
  return Array::ofInts(std::move(shape), std::move(v));
}

/// Runs the body of a function with the given signature.
std::vector<Array> eval(const std::string &signature, const std::string &body,
                        const std::vector<Array> &args, InterpretOptions options = {}) {
  auto module = parse(shortened("func.func @f" + signature + " {\n" + body + "\n}"));
  if (!module)
    return {Array{}, Array{}, Array{}};
  std::vector<Array> results = run(function(*module, "f"), args, options);
  results.resize(std::max<size_t>(results.size(), 3));
  return results;
}

/// A unary op on a vector.
std::vector<double> unary(const std::string &op, std::vector<double> x) {
  std::string t = "T[n=" + std::to_string(x.size()) + "]";
  int64_t n = static_cast<int64_t>(x.size());
  return eval("(%x: " + t + ") -> " + t,
              "%y = cleave." + op + " %x : " + t + " -> " + t + "\n return %y : " + t,
              {reals({n}, std::move(x))})[0]
      .reals;
}
std::vector<double> binary(const std::string &op, std::vector<double> x, std::vector<double> y) {
  std::string t = "T[n=" + std::to_string(x.size()) + "]";
  int64_t n = static_cast<int64_t>(x.size());
  return eval("(%x: " + t + ", %y: " + t + ") -> " + t,
              "%z = cleave." + op + " %x, %y : (" + t + ", " + t + ") -> " + t +
                  "\n return %z : " + t,
              {reals({n}, std::move(x)), reals({n}, std::move(y))})[0]
      .reals;
}

using Reals = std::vector<double>;
using Ints = std::vector<int64_t>;

void expectNear(const Reals &got, const Reals &want, double tolerance = 1e-14) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i]))
      EXPECT_TRUE(std::isnan(got[i])) << "element " << i << " is " << got[i];
    else if (std::isinf(want[i]))
      EXPECT_EQ(got[i], want[i]) << "element " << i;
    else
      EXPECT_NEAR(got[i], want[i], tolerance) << "element " << i;
  }
}

TEST(Elementwise, Unary) {
  expectNear(unary("neg", {1, -2, 0}), {-1, 2, 0});
  expectNear(unary("abs", {1, -2, kNan}), {1, 2, kNan});
  expectNear(unary("exp", {0, 1, -kInf}), {1, 2.718281828459045, 0});
  expectNear(unary("log", {1, 0, -1}), {0, -kInf, kNan});
  expectNear(unary("sqrt", {4, 2}), {2, 1.4142135623730951});
  expectNear(unary("rsqrt", {4, 0}), {0.5, kInf});
  expectNear(unary("tanh", {0, 0.5}), {0, 0.46211715726000979});
  expectNear(unary("sigmoid", {0, 2, -2, -800}),
             {0.5, 0.88079707797788231, 0.11920292202211757, 0});
  expectNear(unary("erf", {0, 0.5}), {0, 0.52049987781304652});
  expectNear(unary("sin", {0, 1}), {0, 0.8414709848078965});
  expectNear(unary("cos", {0, 1}), {1, 0.54030230586813977});
  expectNear(unary("stop_gradient", {3}), {3});
  expectNear(unary("barrier", {3}), {3});
}

TEST(Elementwise, Binary) {
  expectNear(binary("add", {1, 2}, {10, 20}), {11, 22});
  expectNear(binary("sub", {1, 2}, {10, 20}), {-9, -18});
  expectNear(binary("mul", {3, 2}, {10, 20}), {30, 40});
  expectNear(binary("div", {3, 1}, {2, 0}), {1.5, kInf});
  expectNear(binary("maximum", {3, 1, kNan, 1}, {2, 5, 1, kNan}), {3, 5, kNan, kNan});
  expectNear(binary("minimum", {3, 1, kNan, 1}, {2, 5, 1, kNan}), {2, 1, kNan, kNan});
  expectNear(binary("pow", {2, 9}, {10, 0.5}), {1024, 3});
}

TEST(Elementwise, BroadcastsByName) {
  // z[a, b] = x[b] + y[b, a]: the second operand is transposed.
  Array z = eval("(%x: T[b=3], %y: T[b=3, a=2]) -> T[a=2, b=3]",
                 "%z = cleave.add %x, %y : (T[b=3], T[b=3, a=2]) -> T[a=2, b=3]\n"
                 "return %z : T[a=2, b=3]",
                 {reals({3}, {10, 20, 30}), reals({3, 2}, {1, 2, 3, 4, 5, 6})})[0];
  EXPECT_EQ(z.reals, (Reals{11, 23, 35, 12, 24, 36}));
  Array w = eval("(%x: T[b=3]) -> T[a=2, b=3]",
                 "%z = cleave.broadcast %x : T[b=3] -> T[a=2, b=3]\n return %z : T[a=2, b=3]",
                 {reals({3}, {1, 2, 3})})[0];
  EXPECT_EQ(w.reals, (Reals{1, 2, 3, 1, 2, 3}));
}

TEST(Elementwise, CompareSelectAndLogic) {
  std::string t = "T[n=4]", b = "B[n=4]";
  std::string sig = "(%x: " + t + ", %y: " + t + ") -> (" + b + ", " + b + ", " + t + ")";
  auto r = eval(sig,
                "%lt = cleave.compare lt %x, %y : (T[n=4], T[n=4]) -> B[n=4]\n"
                "%ne = cleave.compare ne %x, %y : (T[n=4], T[n=4]) -> B[n=4]\n"
                "%no = cleave.not %lt : B[n=4] -> B[n=4]\n"
                "%both = cleave.and %no, %ne : (B[n=4], B[n=4]) -> B[n=4]\n"
                "%any = cleave.or %lt, %both : (B[n=4], B[n=4]) -> B[n=4]\n"
                "%s = cleave.select %both, %x, %y : (B[n=4], T[n=4], T[n=4]) -> T[n=4]\n"
                "return %both, %any, %s : B[n=4], B[n=4], T[n=4]",
                {reals({4}, {1, 2, 3, kNan}), reals({4}, {2, 2, 1, 0})});
  EXPECT_EQ(r[0].ints, (Ints{0, 0, 1, 1}));
  EXPECT_EQ(r[1].ints, (Ints{1, 0, 1, 1}));
  expectNear(r[2].reals, {2, 2, 3, kNan});
}

TEST(Elementwise, Casts) {
  auto r = eval("(%x: T[n=3]) -> (I[n=3], B[n=3], S[n=3])",
                "%i = cleave.cast %x : T[n=3] -> I[n=3]\n"
                "%b = cleave.cast %x : T[n=3] -> B[n=3]\n"
                "%s = cleave.cast %x : T[n=3] -> S[n=3]\n"
                "return %i, %b, %s : I[n=3], B[n=3], S[n=3]",
                {reals({3}, {-2.7, 0, 0.1})});
  EXPECT_EQ(r[0].ints, (Ints{-2, 0, 0}));
  EXPECT_EQ(r[1].ints, (Ints{1, 0, 1}));
  EXPECT_EQ(r[2].reals, (Reals{-2.7, 0, 0.1}));
}

TEST(Elementwise, RoundsWhenAsked) {
  InterpretOptions options;
  options.round = true;
  auto r = eval("(%x: T) -> (S, !cleave.tensor<bf16>)",
                "%s = cleave.cast %x : T -> S\n"
                "%h = cleave.cast %x : T -> !cleave.tensor<bf16>\n"
                "return %s, %h : S, !cleave.tensor<bf16>",
                {reals({}, {0.1})}, options);
  EXPECT_EQ(r[0].reals, Reals{static_cast<double>(0.1f)});
  EXPECT_EQ(r[1].reals, Reals{0.10009765625});
}

TEST(Sources, ConstantIotaRename) {
  auto r = eval("() -> (T[n=2], I[n=3], I[m=3])",
                "%c = cleave.constant 2.5 : f64 : T[n=2]\n"
                "%i = cleave.iota \"n\" : I[n=3]\n"
                "%m = cleave.rename %i : I[n=3] -> I[m=3]\n"
                "return %c, %i, %m : T[n=2], I[n=3], I[m=3]",
                {});
  EXPECT_EQ(r[0].reals, (Reals{2.5, 2.5}));
  EXPECT_EQ(r[1].ints, (Ints{0, 1, 2}));
  EXPECT_EQ(r[2].ints, (Ints{0, 1, 2}));
}

TEST(Sources, PhiloxKnownAnswers) {
  // From the Random123 distribution's kat_vectors, philox4x32 with 10 rounds.
  EXPECT_EQ(Philox::block({0, 0, 0, 0}, 0, 0),
            (Philox::Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox::block({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (Philox::Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox::block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Philox::Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sources, Random) {
  std::string body = "%r = cleave.random \"a.b\" seed %s step %t layer %l {site = 77 : i64, "
                     "global_sizes = array<i64: 2, 3>} : (L, L, I) -> S[a=2, b=3]\n"
                     "return %r : S[a=2, b=3]";
  Array r = eval("(%s: L, %t: L, %l: I) -> S[a=2, b=3]", body,
                 {ints({}, {(int64_t(5) << 32) + 9}), ints({}, {4}), ints({}, {3})})[0];
  uint32_t key = 9u ^ (5u * 0x9E3779B9u);
  for (uint32_t i = 0; i < 6; ++i)
    EXPECT_EQ(r.reals[i], (Philox::block({i, 0, 77, 3}, key, 4)[0] >> 8) / 16777216.0);
}

TEST(AlongDims, Reduce) {
  auto r = eval("(%x: T[a=2, b=3]) -> (T[a=2], T[b=3], T)",
                "%s = cleave.reduce sum %x over [\"b\"] : T[a=2, b=3] -> T[a=2]\n"
                "%m = cleave.reduce max %x over [\"a\"] : T[a=2, b=3] -> T[b=3]\n"
                "%n = cleave.reduce min %x over [\"a\", \"b\"] : T[a=2, b=3] -> T\n"
                "return %s, %m, %n : T[a=2], T[b=3], T",
                {reals({2, 3}, {1, 2, 3, -4, 50, -6})});
  EXPECT_EQ(r[0].reals, (Reals{6, 40}));
  EXPECT_EQ(r[1].reals, (Reals{1, 50, 3}));
  EXPECT_EQ(r[2].reals, (Reals{-6}));
}

TEST(AlongDims, Contract) {
  // Batched over h, summed over k.
  auto r = eval("(%x: T[h=2, k=2], %y: T[k=2, h=2, n=1]) -> T[n=1, h=2]",
                "%z = cleave.contract %x, %y : (T[h=2, k=2], T[k=2, h=2, n=1]) -> T[n=1, h=2]\n"
                "return %z : T[n=1, h=2]",
                {reals({2, 2}, {1, 2, 3, 4}), reals({2, 2, 1}, {10, 20, 30, 40})});
  EXPECT_EQ(r[0].reals, (Reals{1 * 10 + 2 * 30, 3 * 20 + 4 * 40}));
  // Two summed names, and none.
  r = eval("(%x: T[a=2, b=2], %y: T[b=2, a=2]) -> (T, T[a=2, b=2])",
           "%z = cleave.contract %x, %y : (T[a=2, b=2], T[b=2, a=2]) -> T\n"
           "%w = cleave.contract %x, %y : (T[a=2, b=2], T[b=2, a=2]) -> T[a=2, b=2]\n"
           "return %z, %w : T, T[a=2, b=2]",
           {reals({2, 2}, {1, 2, 3, 4}), reals({2, 2}, {10, 20, 30, 40})});
  EXPECT_EQ(r[0].reals, (Reals{10 + 60 + 60 + 160}));
  EXPECT_EQ(r[1].reals, (Reals{10, 60, 60, 160}));
}

TEST(AlongDims, GatherAndScatter) {
  auto r = eval("(%t: T[v=3, w=2], %i: I[s=4], %u: T[s=4, w=2]) -> (T[s=4, w=2], T[v=3, w=2])",
                "%g = cleave.gather %t[\"v\" = %i] : (T[v=3, w=2], I[s=4]) -> T[s=4, w=2]\n"
                "%a = cleave.scatter_add %u[\"v\" = %i] : (T[s=4, w=2], I[s=4]) -> T[v=3, w=2]\n"
                "return %g, %a : T[s=4, w=2], T[v=3, w=2]",
                {reals({3, 2}, {1, 2, 3, 4, 5, 6}), ints({4}, {2, 0, 2, 7}),
                 reals({4, 2}, {1, 2, 3, 4, 10, 20, 9, 9})});
  EXPECT_EQ(r[0].reals, (Reals{5, 6, 1, 2, 5, 6, 0, 0}));
  EXPECT_EQ(r[1].reals, (Reals{3, 4, 0, 0, 11, 22}));
}

TEST(AlongDims, SliceAndPad) {
  auto r =
      eval("(%x: T[a=2, b=5]) -> (T[a=2, c=2], T[a=2, b=5])",
           "%s = cleave.slice %x[\"b\" from 1] {stride = 2 : i64} : T[a=2, b=5] -> T[a=2, c=2]\n"
           "%p = cleave.pad %s[\"c\" at 0] {stride = 3 : i64} : T[a=2, c=2] -> T[a=2, b=5]\n"
           "return %s, %p : T[a=2, c=2], T[a=2, b=5]",
           {reals({2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
  EXPECT_EQ(r[0].reals, (Reals{1, 3, 6, 8}));
  EXPECT_EQ(r[1].reals, (Reals{1, 0, 0, 3, 0, 6, 0, 0, 8, 0}));
}

TEST(Composite, NormsAndSoftmax) {
  auto r =
      eval("(%x: T[n=2], %w: T[n=2], %b: T[n=2]) -> (T[n=2], T[n=2], T[n=2])",
           "%l = cleave.layer_norm %x, %w, %b over [\"n\"] epsilon 0.75 : (T[n=2], T[n=2], T[n=2]) "
           "-> T[n=2]\n"
           "%r = cleave.rms_norm %x, %w over [\"n\"] epsilon 1.5 : (T[n=2], T[n=2]) -> T[n=2]\n"
           "%s = cleave.softmax %x over [\"n\"] : (T[n=2]) -> T[n=2]\n"
           "return %l, %r, %s : T[n=2], T[n=2], T[n=2]",
           {reals({2}, {1, 2}), reals({2}, {2, 3}), reals({2}, {10, 20})});
  // mean 1.5, variance 0.25, sqrt(1) = 1; mean square 2.5, sqrt(4) = 2.
  expectNear(r[0].reals, {10 - 1, 20 + 1.5});
  expectNear(r[1].reals, {1, 3});
  expectNear(r[2].reals, {1 / (1 + M_E), M_E / (1 + M_E)});
}

TEST(Composite, Activations) {
  auto apply = [](const std::string &op) {
    return eval("(%x: T[n=3]) -> T[n=3]",
                "%y = cleave." + op + " : (T[n=3]) -> T[n=3]\n return %y : T[n=3]",
                {reals({3}, {-1, 0, 2})})[0]
        .reals;
  };
  // torch.nn.functional.gelu in float64.
  expectNear(apply("gelu %x tanh = false"), {-0.15865525393145707, 0, 1.9544997361036416});
  expectNear(apply("gelu %x tanh = true"), {-0.15880800939172324, 0, 1.954597694087775});
  expectNear(apply("silu %x"), {-0.2689414213699951, 0, 1.7615941559557649});
  expectNear(apply("relu %x"), {0, 0, 2});
}

TEST(Composite, CrossEntropy) {
  // Two valid rows of uniform logits over 4 classes: the loss is log 4.
  auto loss = [](Ints labels, const std::string &smoothing) {
    return eval("(%x: T[s=3, v=4], %l: I[s=3]) -> T",
                "%y = cleave.cross_entropy %x, %l over \"v\" {ignore = -100 : i64, smoothing = " +
                    smoothing + " : f64} : (T[s=3, v=4], I[s=3]) -> T\n return %y : T",
                {reals({3, 4}, {5, 5, 5, 5, 0, 0, 0, 0, 1, 2, 3, 4}), ints({3}, labels)})[0]
        .reals[0];
  };
  EXPECT_NEAR(loss({0, 3, -100}, "0.0"), std::log(4.0), 1e-14);
  EXPECT_EQ(loss({-100, -100, -100}, "0.0"), 0.0);
  double lse = std::log(std::exp(1) + std::exp(2) + std::exp(3) + std::exp(4));
  EXPECT_NEAR(loss({-100, -100, 3}, "0.0"), lse - 4, 1e-14);
  EXPECT_NEAR(loss({-100, -100, 3}, "0.1"), 0.9 * (lse - 4) + 0.1 * (lse - 2.5), 1e-14);
  EXPECT_TRUE(std::isnan(loss({-100, -100, 4}, "0.0")));
}

TEST(Composite, RopeDropoutConcat) {
  auto r =
      eval("(%x: T[d=5], %p: I, %s: L, %l: I) -> (T[d=5], T[d=5], T[e=7])",
           "%a = cleave.rope %x, %p along \"d\" {base = 100.0 : f64, interleaved = false, rotary = "
           "4 : i64} : (T[d=5], I) -> T[d=5]\n"
           "%b = cleave.rope %x, %p along \"d\" {base = 100.0 : f64, interleaved = true, rotary = "
           "4 : i64} : (T[d=5], I) -> T[d=5]\n"
           "%h = cleave.slice %x[\"d\" from 3] : T[d=5] -> T[d=2]\n"
           "%c = cleave.concat %x, %h along [\"d\", \"d\"] as \"e\" : (T[d=5], T[d=2]) -> T[e=7]\n"
           "return %a, %b, %c : T[d=5], T[d=5], T[e=7]",
           {reals({5}, {1, 2, 3, 4, 5}), ints({}, {2}), ints({}, {1}), ints({}, {0})});
  double c0 = std::cos(2), s0 = std::sin(2), c1 = std::cos(0.2), s1 = std::sin(0.2);
  expectNear(r[0].reals, {1 * c0 - 3 * s0, 2 * c1 - 4 * s1, 1 * s0 + 3 * c0, 2 * s1 + 4 * c1, 5});
  expectNear(r[1].reals, {1 * c0 - 2 * s0, 1 * s0 + 2 * c0, 3 * c1 - 4 * s1, 3 * s1 + 4 * c1, 5});
  EXPECT_EQ(r[2].reals, (Reals{1, 2, 3, 4, 5, 4, 5}));

  r = eval("(%x: T[n=64], %s: L, %t: L, %l: I) -> T[n=64]",
           "%y = cleave.dropout \"p\" %x rate 0.5 seed %s step %t layer %l {site = 5 : i64} : "
           "(T[n=64], L, L, I) -> T[n=64]\n return %y : T[n=64]",
           {reals({64}, Reals(64, 3.0)), ints({}, {1}), ints({}, {2}), ints({}, {0})});
  Philox random(1, 2, 5, 0);
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(r[0].reals[i], random.uniform(i) >= 0.5 ? 6.0 : 0.0);
}

TEST(Composite, Attention) {
  // Two heads of q share the one of k and v. Equal scores: averages of v.
  std::string head = "(%q: T[s=3, h=2, d=1], %k: T[t=3, d=1], %v: T[t=3, e=1], %m: B[t=3]) -> "
                     "(T[s=3, h=2, e=1], T[s=3, h=2])";
  auto body = [](const std::string &causal, const std::string &mask) {
    return "%y, %l = cleave.attention %q, %k, %v " + mask +
           " {query_dim = \"s\", key_dim = \"t\", depth_dim = \"d\", value_dim = \"e\", causal = " +
           causal +
           ", scale = 2.0 : f64, rate = 0.0 : f64, path = \"a\", site = 0 : i64} : "
           "(T[s=3, h=2, d=1], T[t=3, d=1], T[t=3, e=1]" +
           (mask.empty() ? "" : ", B[t=3]") +
           ") -> (T[s=3, h=2, e=1], T[s=3, h=2])\n return %y, %l : T[s=3, h=2, e=1], T[s=3, h=2]";
  };
  std::vector<Array> args{reals({3, 2, 1}, {0, 1, 0, 1, 0, 1}), reals({3, 1}, {0, 0, 0}),
                          reals({3, 1}, {3, 6, 12}), ints({3}, {0, 1, 1})};
  auto r = eval(head, body("false", ""), args);
  expectNear(r[0].reals, {7, 7, 7, 7, 7, 7});
  expectNear(r[1].reals, Reals(6, std::log(3.0)));
  r = eval(head, body("true", ""), args);
  expectNear(r[0].reals, {3, 3, 4.5, 4.5, 7, 7});
  // The first key is masked: with causal, the first query sees nothing.
  r = eval(head, body("true", "mask %m"), args);
  expectNear(r[0].reals, {0, 0, 6, 6, 9, 9});
  expectNear(r[1].reals, {0, 0, 0, 0, std::log(2.0), std::log(2.0)});
  // Scores count with the scale: 2 * 1 * k.
  args[1] = reals({3, 1}, {0, 0.5, 0});
  r = eval(head, body("false", ""), args);
  expectNear({r[0].reals[1]}, {(3 + 6 * M_E + 12) / (2 + M_E)});
  expectNear({r[1].reals[1]}, {std::log(2 + M_E)});
}

TEST(Structure, Repeat) {
  auto r = eval("(%x: T, %w: T[l=3], %one: T) -> (T, T[l=3])",
                "%y:2 = cleave.repeat l = 3 %i carry(%c = %x : T) slices(%s = %w : T[l=3] -> T) -> "
                "T, T[l=3] {\n"
                "  %a = cleave.mul %c, %s : (T, T) -> T\n"
                "  %b = cleave.add %a, %one : (T, T) -> T\n"
                "  cleave.yield %b, %c : T, T\n}\n"
                "return %y#0, %y#1 : T, T[l=3]",
                {reals({}, {1}), reals({3}, {2, 3, 4}), reals({}, {1})});
  EXPECT_EQ(r[0].reals, (Reals{41})); // ((1*2+1)*3+1)*4+1
  EXPECT_EQ(r[1].reals, (Reals{1, 3, 10}));
  r = eval(
      "(%x: T, %w: T[l=3]) -> (T, I[l=3])",
      "%y:2 = cleave.repeat l = 3 reverse %i carry(%c = %x : T) slices(%s = %w : T[l=3] -> T) -> "
      "T, I[l=3] {\n"
      "  %a = cleave.sub %s, %c : (T, T) -> T\n"
      "  cleave.yield %a, %i : T, I\n}\n"
      "return %y#0, %y#1 : T, I[l=3]",
      {reals({}, {1}), reals({3}, {2, 3, 4})});
  EXPECT_EQ(r[0].reals, (Reals{2})); // 2 - (3 - (4 - 1))
  EXPECT_EQ(r[1].ints, (Ints{0, 1, 2}));
}

TEST(Structure, FusedAndTrace) {
  int ops = 0;
  InterpretOptions options;
  options.trace = [&](mlir::Operation *, llvm::ArrayRef<PerRankArrays>, llvm::ArrayRef<int64_t>) {
    ++ops;
  };
  auto r = eval("(%x: T[n=2]) -> T",
                "%y = cleave.fused rows(%a = %x : T[n=2]) -> T {\n"
                "  %b = cleave.mul %a, %a : (T[n=2], T[n=2]) -> T[n=2]\n"
                "  %s = cleave.reduce sum %b over [\"n\"] : T[n=2] -> T\n"
                "  cleave.yield %s : T\n}\n return %y : T",
                {reals({2}, {3, 4})}, options);
  EXPECT_EQ(r[0].reals, Reals{25});
  EXPECT_EQ(ops, 3);
}

//===----------------------------------------------------------------------===//
// Ranks
//===----------------------------------------------------------------------===//

/// Runs `op` (from %x) on each rank of a mesh.
PerRankArrays onRanks(const std::string &mesh, const std::string &from, const std::string &to,
                      const std::string &body, const std::vector<Array> &x) {
  auto module = parse(shortened("module attributes {cleave.mesh = #cleave.mesh<" + mesh +
                                ">} {\nfunc.func @f(%x: " + from + ") -> " + to + " {\n" + body +
                                "\n return %y : " + to + "\n}\n}"));
  if (!module)
    return PerRankArrays(x.size());
  InterpretOptions options;
  options.perRank = true;
  auto r = interpret(function(*module, "f"), {x}, options);
  if (!r) {
    ADD_FAILURE() << r.error().message;
    return PerRankArrays(x.size());
  }
  return (*r)[0];
}

std::vector<Array> rows(std::vector<Reals> values) {
  std::vector<Array> all;
  for (Reals &v : values) {
    int64_t n = static_cast<int64_t>(v.size());
    all.push_back(reals({n}, std::move(v)));
  }
  return all;
}

TEST(Ranks, AllReduceOverAxes) {
  auto x = rows({{1}, {2}, {4}, {8}, {16}, {32}});
  auto over = [&](const std::string &kind, const std::string &axes) {
    Reals out;
    for (Array &a : onRanks(
             "dp=2, tp=3", "T[n=1]", "T[n=1]",
             "%y = cleave.all_reduce " + kind + " %x over [" + axes + "] : T[n=1] -> T[n=1]", x))
      out.push_back(a.reals[0]);
    return out;
  };
  EXPECT_EQ(over("sum", "#cleave.axis<tp>"), (Reals{7, 7, 7, 56, 56, 56}));
  EXPECT_EQ(over("sum", "#cleave.axis<dp>"), (Reals{9, 18, 36, 9, 18, 36}));
  EXPECT_EQ(over("max", "#cleave.axis<dp>, #cleave.axis<tp>"), (Reals(6, 32)));
  EXPECT_EQ(over("min", "#cleave.axis<tp>"), (Reals{1, 1, 1, 8, 8, 8}));
}

TEST(Ranks, SubAxes) {
  // tp = 4 as a major digit of 2 and a minor digit of 2.
  auto x = rows({{1}, {2}, {4}, {8}});
  auto over = [&](const std::string &axes) {
    Reals out;
    for (Array &a :
         onRanks("tp=4", "T[n=1]", "T[n=1]",
                 "%y = cleave.all_reduce sum %x over [" + axes + "] : T[n=1] -> T[n=1]", x))
      out.push_back(a.reals[0]);
    return out;
  };
  EXPECT_EQ(over("#cleave.axis<tp:(1)2>"), (Reals{5, 10, 5, 10}));
  EXPECT_EQ(over("#cleave.axis<tp:(2)2>"), (Reals{3, 3, 12, 12}));
}

TEST(Ranks, GatherScatterSlice) {
  // Five elements over three ranks: blocks of 2, 2, 1 and one of padding.
  auto g =
      onRanks("tp=3", "T[n=2]", "T[n=5]",
              "%y = cleave.all_gather %x along \"n\" over [#cleave.axis<tp>] : T[n=2] -> T[n=5]",
              rows({{1, 2}, {3, 4}, {5, kNan}}));
  for (Array &a : g)
    EXPECT_EQ(a.reals, (Reals{1, 2, 3, 4, 5}));
  auto s = onRanks(
      "tp=3", "T[n=5]", "T[n=2]",
      "%y = cleave.reduce_scatter sum %x along \"n\" over [#cleave.axis<tp>] : T[n=5] -> T[n=2]",
      rows({{1, 2, 3, 4, 5}, {10, 20, 30, 40, 50}, {100, 200, 300, 400, 500}}));
  EXPECT_EQ(s[0].reals, (Reals{111, 222}));
  EXPECT_EQ(s[1].reals, (Reals{333, 444}));
  EXPECT_EQ(s[2].reals, (Reals{555, 0}));
  auto c =
      onRanks("tp=3", "T[n=5]", "T[n=2]",
              "%y = cleave.shard_slice %x along \"n\" over [#cleave.axis<tp>] : T[n=5] -> T[n=2]",
              rows({{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}}));
  EXPECT_EQ(c[1].reals, (Reals{3, 4}));
  EXPECT_EQ(c[2].reals, (Reals{5, 0}));
}

TEST(Ranks, AllToAll) {
  // x is [a=2, b=3]; a was split over tp=2, then b is.
  std::vector<Array> x{reals({1, 3}, {1, 2, 3}), reals({1, 3}, {4, 5, 6})};
  auto y = onRanks("tp=2", "T[a=1, b=3]", "T[a=2, b=2]",
                   "%y = cleave.all_to_all %x from \"a\" to \"b\" over [#cleave.axis<tp>] : "
                   "T[a=1, b=3] -> T[a=2, b=2]",
                   x);
  EXPECT_EQ(y[0].reals, (Reals{1, 2, 4, 5}));
  EXPECT_EQ(y[1].reals, (Reals{3, 0, 6, 0}));
}

TEST(Ranks, OffsetsAndPadding) {
  auto y = onRanks("tp=3", "T[n=2]", "T[n=2]",
                   "%e = cleave.shard_extent [#cleave.axis<tp>] block 2 of 5\n"
                   "%o = cleave.shard_offset [#cleave.axis<tp>] block 2\n"
                   "%i = cleave.iota \"n\" offset(%o) : T[n=2]\n"
                   "%z = cleave.add %x, %i : (T[n=2], T[n=2]) -> T[n=2]\n"
                   "%y = cleave.mask_padding %z [\"n\"] below(%e) fill -1.0 : T[n=2] -> T[n=2]",
                   rows({{0, 0}, {0, 0}, {0, kNan}}));
  EXPECT_EQ(y[0].reals, (Reals{0, 1}));
  EXPECT_EQ(y[1].reals, (Reals{2, 3}));
  EXPECT_EQ(y[2].reals, (Reals{4, -1}));
}

NamedTensorType typeOf(const std::string &text) {
  auto module = parse("func.func private @t(" + text + ")");
  return llvm::cast<NamedTensorType>(function(*module, "t").getArgumentTypes()[0]);
}

TEST(Ranks, ShardsAndBack) {
  auto module = parse("module attributes {cleave.mesh = #cleave.mesh<dp=2, tp=4>} {}");
  MeshAttr mesh = meshOf(*module);
  Array whole = numbers({5, 3}, 1, 1);
  for (const char *text :
       {"!cleave.tensor<f64 [a=5 {dp}, b=3 {tp}]>", "!cleave.tensor<f64 [a=5 {tp:(2)2}, b=3]>",
        "!cleave.tensor<f64 [a=5 {tp, dp}, b=3]>", "!cleave.tensor<f64 [a=5, b=3]>"}) {
    NamedTensorType type = typeOf(text);
    PerRankArrays shards = shardArray(whole, type, mesh, Padding::Poison);
    ASSERT_EQ(shards.size(), 8u);
    auto back = assembleArray(shards, type, mesh);
    ASSERT_TRUE(bool(back)) << back.error().message;
    EXPECT_EQ(back->reals, whole.reals) << text;
  }
  // tp is major: rank (dp=1, tp=0) has the second of 8 blocks of one.
  PerRankArrays shards =
      shardArray(whole, typeOf("!cleave.tensor<f64 [a=5 {tp, dp}, b=3]>"), mesh, Padding::Poison);
  EXPECT_EQ(shards[4].reals, (Reals{whole.reals[3], whole.reals[4], whole.reals[5]}));
  EXPECT_TRUE(std::isnan(shards[7].reals[0]));
  // A replica that differs is found.
  NamedTensorType half = typeOf("!cleave.tensor<f64 [a=5 {dp}, b=3]>");
  shards = shardArray(whole, half, mesh, Padding::Zero);
  shards[2].reals[4] += 1e-12;
  EXPECT_FALSE(bool(assembleArray(shards, half, mesh)));
  // What is unreduced is summed.
  NamedTensorType partial = typeOf("!cleave.tensor<f64 [a=1] sum {tp}>");
  auto sum = assembleArray(rows({{1}, {2}, {3}, {4}, {1}, {2}, {3}, {4}}), partial, mesh);
  ASSERT_TRUE(bool(sum));
  EXPECT_EQ(sum->reals, Reals{10});
}

} // namespace
