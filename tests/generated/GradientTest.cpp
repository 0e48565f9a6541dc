//===- GradientTest.cpp - every op's gradient against differences ---------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Each case is the body of a function of params (`x`, `w`, ..) and inputs that
// ends in a value %y. The loss is the sum of %y times fixed numbers. What
// cleave-differentiate makes of it must agree with central differences of the
// original, which the interpreter runs by the composite ops' definitions.
//
//===----------------------------------------------------------------------===//
#include "passes/differentiate/Differentiate.h"
#include "tests/generated/Support.h"

#include "mlir/IR/Verifier.h"

#include <cmath>
#include <random>

using namespace cleave;
using namespace cleave::testing;

namespace {

struct Arg {
  std::string name, type;
  Array value;
  bool param = true;
};

Array reals(std::vector<int64_t> shape, std::vector<double> v) {
  return Array::ofReals(std::move(shape), std::move(v));
}
Array ints(std::vector<int64_t> shape, std::vector<int64_t> v) {
  return Array::ofInts(std::move(shape), std::move(v));
}

/// Distinct numbers in (low, high), none close to another or to 0.
Array spread(std::vector<int64_t> shape, double low, double high, unsigned seed) {
  int64_t n = elementsOf(shape);
  std::vector<double> v;
  for (int64_t i = 0; i < n; ++i)
    v.push_back(low + (high - low) * (static_cast<double>(i) + 0.37) / static_cast<double>(n));
  std::mt19937 random(seed);
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(v[i], v[random() % (i + 1)]);
  return reals(std::move(shape), std::move(v));
}

/// A param with numbers in (-1.5, 1.5).
Arg param(const std::string &name, const std::string &dims, std::vector<int64_t> shape,
          double low = -1.5, double high = 1.5) {
  static unsigned seed = 0;
  return {name, "T" + dims, spread(std::move(shape), low, high, ++seed), true};
}
Arg input(const std::string &name, const std::string &type, Array value) {
  return {name, type, std::move(value), false};
}

struct Program {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::vector<Array> args;
};

Program build(const std::vector<Arg> &args, const std::string &body, const std::string &type,
              const std::string &dims, std::vector<int64_t> shape) {
  std::string text = "func.func @loss(";
  Program p;
  for (const Arg &arg : args) {
    text += "%" + arg.name + ": " + arg.type + " {cleave.name = \"" + arg.name +
            "\", cleave.role = \"" + (arg.param ? "param" : "input") + "\"}, ";
    p.args.push_back(arg.value);
  }
  text += "%fixed: " + type + " {cleave.name = \"fixed\", cleave.role = \"input\"}) -> T {\n" +
          body + "\n%product = cleave.mul %y, %fixed : (" + type + ", " + type + ") -> " + type +
          "\n";
  if (shape.empty())
    text += "return %product : T\n}";
  else
    text += "%loss = cleave.reduce sum %product over [" + dims + "] : " + type +
            " -> T\nreturn %loss : T\n}";
  p.args.push_back(spread(std::move(shape), 0.5, 2.5, 99));
  p.module = parse(shortened(text));
  return p;
}

/// The gradient of each param, from `loss_grads`.
std::vector<Array> gradientsOf(mlir::ModuleOp module, const std::vector<Array> &args) {
  std::string messages;
  mlir::ScopedDiagnosticHandler handler(&context(), [&](mlir::Diagnostic &d) {
    messages += d.str() + "\n";
    return mlir::success();
  });
  if (failed(expandComposites(module))) {
    ADD_FAILURE() << messages;
    return {};
  }
  auto made = differentiate(function(module, "loss"));
  if (failed(made) || failed(mlir::verify(module))) {
    ADD_FAILURE() << messages << textOf(module);
    return {};
  }
  return run(*made, args);
}

/// Checks the case; %y has `type`, whose dims are `dims` (quoted) of `shape`.
void check(const std::vector<Arg> &args, const std::string &body, const std::string &type,
           const std::string &dims, std::vector<int64_t> shape) {
  Program p = build(args, body, type, dims, std::move(shape));
  ASSERT_TRUE(p.module);
  auto loss = function(*p.module, "loss");
  InterpretOptions expanded;
  expanded.nativeComposites = false;
  std::vector<Array> forward = run(loss, p.args), again = run(loss, p.args, expanded);
  ASSERT_EQ(forward.size(), 1u);
  ASSERT_EQ(again.size(), 1u);
  double value = forward[0].reals[0];
  EXPECT_NEAR(again[0].reals[0], value, 1e-12 * std::max(1.0, std::abs(value)))
      << "the expansion is not the definition";

  mlir::OwningOpRef<mlir::ModuleOp> copy = p.module->clone();
  std::vector<Array> results = gradientsOf(*copy, p.args);
  ASSERT_FALSE(results.empty());
  EXPECT_NEAR(results[0].reals[0], value, 1e-12 * std::max(1.0, std::abs(value)));
  size_t next = 1;
  const double step = 1e-5;
  bool anyGradient = false;
  for (size_t a = 0; a < args.size(); ++a) {
    if (!args[a].param)
      continue;
    ASSERT_LT(next, results.size());
    const Array &gradient = results[next++];
    ASSERT_EQ(gradient.shape, args[a].value.shape);
    for (int64_t i = 0; i < gradient.size(); ++i) {
      auto at = [&](double x) {
        std::vector<Array> moved = p.args;
        moved[a].reals[i] += x;
        return run(loss, moved)[0].reals[0];
      };
      double wanted = (at(step) - at(-step)) / (2 * step);
      anyGradient |= wanted != 0;
      EXPECT_NEAR(gradient.reals[i], wanted, 2e-8 * std::max(1.0, std::abs(wanted)))
          << "d(loss)/d(" << args[a].name << ")[" << i << "]\n"
          << (::testing::Test::HasFailure() ? textOf(*copy) : "");
      if (::testing::Test::HasFailure())
        return;
    }
  }
  EXPECT_TRUE(anyGradient) << "the case has no gradient at all";
}

const std::string T3 = "T[n=3]";

void checkUnary(const std::string &op, double low, double high) {
  SCOPED_TRACE(op);
  check({param("x", "[n=3]", {3}, low, high)}, "%y = cleave." + op + " %x : T[n=3] -> T[n=3]", T3,
        "\"n\"", {3});
}

TEST(Gradient, Unary) {
  checkUnary("neg", -1, 1);
  checkUnary("abs", -1, 1);
  checkUnary("exp", -1, 1);
  checkUnary("log", 0.5, 2);
  checkUnary("sqrt", 0.5, 2);
  checkUnary("rsqrt", 0.5, 2);
  checkUnary("tanh", -1, 1);
  checkUnary("sigmoid", -3, 3);
  checkUnary("erf", -1, 1);
  checkUnary("sin", -2, 2);
  checkUnary("cos", -2, 2);
  checkUnary("broadcast", -1, 1);
  checkUnary("barrier", -1, 1);
}

TEST(Gradient, Binary) {
  for (std::string op : {"add", "sub", "mul", "div", "maximum", "minimum", "pow"}) {
    SCOPED_TRACE(op);
    check({param("x", "[n=3]", {3}, 0.3, 2), param("w", "[n=3]", {3}, 0.4, 2.2)},
          "%y = cleave." + op + " %x, %w : (T[n=3], T[n=3]) -> T[n=3]", T3, "\"n\"", {3});
    // Each side lacks a dim; the second is also transposed.
    check({param("x", "[b=2]", {2}, 0.3, 2), param("w", "[n=3, a=2]", {3, 2}, 0.4, 2.2)},
          "%y = cleave." + op + " %x, %w : (T[b=2], T[n=3, a=2]) -> T[a=2, b=2, n=3]",
          "T[a=2, b=2, n=3]", "\"a\", \"b\", \"n\"", {2, 2, 3});
  }
}

TEST(Gradient, SameValueTwice) {
  for (std::string op : {"add", "mul"}) { // x - x and x / x have none
    SCOPED_TRACE(op);
    check({param("x", "[n=3]", {3}, 0.3, 2)},
          "%e = cleave.exp %x : T[n=3] -> T[n=3]\n"
          "%y = cleave." +
              op +
              " %e, %e : (T[n=3], T[n=3]) -> T[n=3]\n"
              "%unused = cleave.log %x : T[n=3] -> T[n=3]",
          T3, "\"n\"", {3});
  }
  // Fan-out to three readers of different kinds.
  check({param("x", "[n=3]", {3})},
        "%e = cleave.tanh %x : T[n=3] -> T[n=3]\n"
        "%a = cleave.mul %e, %e : (T[n=3], T[n=3]) -> T[n=3]\n"
        "%s = cleave.reduce sum %e over [\"n\"] : T[n=3] -> T\n"
        "%b = cleave.mul %a, %s : (T[n=3], T) -> T[n=3]\n"
        "%y = cleave.add %b, %e : (T[n=3], T[n=3]) -> T[n=3]",
        T3, "\"n\"", {3});
}

TEST(Gradient, SelectCastRenameBroadcast) {
  check({param("x", "[n=4]", {4}), param("w", "[n=4]", {4})},
        "%c = cleave.compare lt %x, %w : (T[n=4], T[n=4]) -> B[n=4]\n"
        "%y = cleave.select %c, %x, %w : (B[n=4], T[n=4], T[n=4]) -> T[n=4]",
        "T[n=4]", "\"n\"", {4});
  check({param("x", "[n=2]", {2})},
        "%s = cleave.cast %x : T[n=2] -> S[n=2]\n%t = cleave.mul %s, %s : (S[n=2], S[n=2]) -> "
        "S[n=2]\n"
        "%d = cleave.cast %t : S[n=2] -> T[n=2]\n"
        "%r = cleave.rename %d : T[n=2] -> T[m=2]\n"
        "%y = cleave.broadcast %r : T[m=2] -> T[a=3, m=2]",
        "T[a=3, m=2]", "\"a\", \"m\"", {3, 2});
}

TEST(Gradient, StopGradient) {
  Program p = build({param("x", "[n=2]", {2})},
                    "%s = cleave.stop_gradient %x : T[n=2] -> T[n=2]\n"
                    "%y = cleave.mul %s, %x : (T[n=2], T[n=2]) -> T[n=2]",
                    "T[n=2]", "\"n\"", {2});
  std::vector<Array> results = gradientsOf(*p.module, p.args);
  ASSERT_EQ(results.size(), 2u);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(results[1].reals[i], p.args[0].reals[i] * p.args[1].reals[i]);
}

TEST(Gradient, ReluAtZeroAndTies) {
  Program p = build({{"x", "T[n=3]", reals({3}, {0, 1, -1}), true}},
                    "%y = cleave.relu %x : (T[n=3]) -> T[n=3]", T3, "\"n\"", {3});
  std::vector<Array> results = gradientsOf(*p.module, p.args);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[1].reals, (std::vector<double>{0, p.args[1].reals[1], 0}));
  // Equal extrema share the gradient.
  p = build({{"x", "T[n=3]", reals({3}, {2, 1, 2}), true}},
            "%y = cleave.reduce max %x over [\"n\"] : T[n=3] -> T", "T", "", {});
  results = gradientsOf(*p.module, p.args);
  ASSERT_EQ(results.size(), 2u);
  double g = p.args[1].reals[0];
  EXPECT_EQ(results[1].reals, (std::vector<double>{g / 2, 0, g / 2}));
}

TEST(Gradient, Reduce) {
  for (std::string kind : {"sum", "max", "min"}) {
    SCOPED_TRACE(kind);
    check({param("x", "[a=2, b=3, c=2]", {2, 3, 2})},
          "%y = cleave.reduce " + kind + " %x over [\"a\", \"c\"] : T[a=2, b=3, c=2] -> T[b=3]",
          "T[b=3]", "\"b\"", {3});
  }
}

TEST(Gradient, Contract) {
  check({param("x", "[b=2, s=3, k=2]", {2, 3, 2}), param("w", "[k=2, n=3]", {2, 3})},
        "%y = cleave.contract %x, %w : (T[b=2, s=3, k=2], T[k=2, n=3]) -> T[b=2, s=3, n=3]",
        "T[b=2, s=3, n=3]", "\"b\", \"s\", \"n\"", {2, 3, 3});
  // Batched, two summed names, an order of its own.
  check(
      {param("x", "[j=2, h=2, k=3]", {2, 2, 3}), param("w", "[k=3, n=2, h=2, j=2]", {3, 2, 2, 2})},
      "%y = cleave.contract %x, %w : (T[j=2, h=2, k=3], T[k=3, n=2, h=2, j=2]) -> T[n=2, h=2]",
      "T[n=2, h=2]", "\"n\", \"h\"", {2, 2});
  // Of a value with itself, one side renamed.
  check({param("x", "[s=3, k=2]", {3, 2})},
        "%t = cleave.rename %x : T[s=3, k=2] -> T[t=3, k=2]\n"
        "%y = cleave.contract %x, %t : (T[s=3, k=2], T[t=3, k=2]) -> T[s=3, t=3]",
        "T[s=3, t=3]", "\"s\", \"t\"", {3, 3});
  check({param("x", "[s=3, k=2]", {3, 2})},
        "%y = cleave.contract %x, %x : (T[s=3, k=2], T[s=3, k=2]) -> T[s=3]", "T[s=3]", "\"s\"",
        {3});
}

TEST(Gradient, GatherAndScatter) {
  check({param("x", "[v=3, w=2]", {3, 2}), input("i", "I[s=4]", ints({4}, {2, 0, 2, 1}))},
        "%y = cleave.gather %x[\"v\" = %i] : (T[v=3, w=2], I[s=4]) -> T[s=4, w=2]", "T[s=4, w=2]",
        "\"s\", \"w\"", {4, 2});
  // The ids share a dim with the table.
  check({param("x", "[s=4, v=3]", {4, 3}), input("i", "I[s=4]", ints({4}, {2, 0, 2, 1}))},
        "%y = cleave.gather %x[\"v\" = %i] : (T[s=4, v=3], I[s=4]) -> T[s=4]", "T[s=4]", "\"s\"",
        {4});
  check({param("x", "[s=4, w=2]", {4, 2}), input("i", "I[s=4]", ints({4}, {2, 0, 2, 5}))},
        "%y = cleave.scatter_add %x[\"v\" = %i] : (T[s=4, w=2], I[s=4]) -> T[v=3, w=2]",
        "T[v=3, w=2]", "\"v\", \"w\"", {3, 2});
}

TEST(Gradient, SliceAndPad) {
  check({param("x", "[a=2, b=5]", {2, 5})},
        "%y = cleave.slice %x[\"b\" from 1] {stride = 2 : i64} : T[a=2, b=5] -> T[a=2, c=2]",
        "T[a=2, c=2]", "\"a\", \"c\"", {2, 2});
  check({param("x", "[c=2, a=2]", {2, 2})},
        "%y = cleave.pad %x[\"c\" at 1] {stride = 3 : i64} : T[c=2, a=2] -> T[b=5, a=2]",
        "T[b=5, a=2]", "\"b\", \"a\"", {5, 2});
}

TEST(Gradient, NormsAndSoftmax) {
  std::string x = "T[s=2, n=3]";
  check({param("x", "[s=2, n=3]", {2, 3}), param("w", "[n=3]", {3}), param("b", "[n=3]", {3})},
        "%y = cleave.layer_norm %x, %w, %b over [\"n\"] epsilon 0.1 : (T[s=2, n=3], T[n=3], "
        "T[n=3]) -> T[s=2, n=3]",
        x, "\"s\", \"n\"", {2, 3});
  check(
      {param("x", "[n=3, s=2]", {3, 2}), param("w", "[n=3]", {3})},
      "%y = cleave.rms_norm %x, %w over [\"n\"] epsilon 0.1 : (T[n=3, s=2], T[n=3]) -> T[n=3, s=2]",
      "T[n=3, s=2]", "\"s\", \"n\"", {3, 2});
  // A norm over two dims.
  check({param("x", "[s=2, n=3]", {2, 3}), param("w", "[s=2, n=3]", {2, 3})},
        "%y = cleave.rms_norm %x, %w over [\"n\", \"s\"] epsilon 0.1 : (T[s=2, n=3], T[s=2, n=3]) "
        "-> T[s=2, n=3]",
        x, "\"s\", \"n\"", {2, 3});
  check({param("x", "[s=2, n=3]", {2, 3})},
        "%y = cleave.softmax %x over [\"s\"] : (T[s=2, n=3]) -> T[s=2, n=3]", x, "\"s\", \"n\"",
        {2, 3});
}

TEST(Gradient, Activations) {
  for (std::string op : {"gelu %x tanh = true", "gelu %x tanh = false", "silu %x", "relu %x"}) {
    SCOPED_TRACE(op);
    check({param("x", "[n=5]", {5}, -2.5, 2.5)}, "%y = cleave." + op + " : (T[n=5]) -> T[n=5]",
          "T[n=5]", "\"n\"", {5});
  }
}

TEST(Gradient, RopeConcatDropout) {
  for (std::string twisted : {"true", "false"})
    check({param("x", "[s=3, d=5]", {3, 5}), input("p", "I[s=3]", ints({3}, {0, 1, 7}))},
          "%y = cleave.rope %x, %p along \"d\" {base = 100.0 : f64, interleaved = " + twisted +
              ", rotary = 4 : i64} : (T[s=3, d=5], I[s=3]) -> T[s=3, d=5]",
          "T[s=3, d=5]", "\"s\", \"d\"", {3, 5});
  check({param("x", "[a=2, n=3]", {2, 3}), param("w", "[n=2, a=2]", {2, 2})},
        "%y = cleave.concat %x, %w, %x along [\"n\", \"n\", \"n\"] as \"m\" : (T[a=2, n=3], T[n=2, "
        "a=2], T[a=2, n=3]) -> T[a=2, m=8]",
        "T[a=2, m=8]", "\"a\", \"m\"", {2, 8});
  check({param("x", "[n=40]", {40}), input("s", "L", ints({}, {7})), input("t", "L", ints({}, {3})),
         input("l", "I", ints({}, {1}))},
        "%y = cleave.dropout \"p\" %x rate 0.375 seed %s step %t layer %l {site = 5 : i64} : "
        "(T[n=40], L, L, I) -> T[n=40]",
        "T[n=40]", "\"n\"", {40});
}

TEST(Gradient, CrossEntropy) {
  for (std::string smoothing : {"0.0", "0.2"})
    check({param("x", "[v=5, s=3]", {5, 3}), input("i", "I[s=3]", ints({3}, {4, -100, 0}))},
          "%y = cleave.cross_entropy %x, %i over \"v\" {ignore = -100 : i64, smoothing = " +
              smoothing + " : f64} : (T[v=5, s=3], I[s=3]) -> T",
          "T", "", {});
  // No valid label: the loss is 0 and so are its gradients, not NaN.
  Program p = build({param("x", "[s=2, v=3]", {2, 3}), input("i", "I[s=2]", ints({2}, {-1, -1}))},
                    "%y = cleave.cross_entropy %x, %i over \"v\" {ignore = -1 : i64, smoothing = "
                    "0.1 : f64} : (T[s=2, v=3], I[s=2]) -> T",
                    "T", "", {});
  std::vector<Array> results = gradientsOf(*p.module, p.args);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].reals[0], 0);
  for (double g : results[1].reals)
    EXPECT_EQ(g, 0);
}

TEST(Gradient, Attention) {
  for (std::string causal : {"false", "true"})
    for (std::string extra : {"", "mask", "bias", "random"}) {
      SCOPED_TRACE(causal + " " + extra);
      std::vector<Arg> args{param("q", "[b=2, s=3, h=2, g=2, d=2]", {2, 3, 2, 2, 2}),
                            param("k", "[b=2, t=4, h=2, d=2]", {2, 4, 2, 2}),
                            param("v", "[b=2, t=4, h=2, e=3]", {2, 4, 2, 3})};
      std::string operands, types;
      if (extra == "mask") {
        args.push_back(input("m", "B[b=2, t=4]", ints({2, 4}, {0, 1, 0, 1, 0, 0, 1, 1})));
        operands = " mask %m";
        types = ", B[b=2, t=4]";
      } else if (extra == "bias") {
        args.push_back(param("bias", "[s=3, t=4, g=2]", {3, 4, 2}));
        operands = " bias %bias";
        types = ", T[s=3, t=4, g=2]";
      } else if (extra == "random") {
        args.push_back(input("seed", "L", ints({}, {7})));
        args.push_back(input("step", "L", ints({}, {3})));
        args.push_back(input("layer", "I", ints({}, {1})));
        operands = " random(%seed, %step, %layer)";
        types = ", L, L, I";
      }
      std::string rate = extra == "random" ? "0.375" : "0.0";
      std::string sizes = extra == "random" ? ", global_sizes = array<i64: 2, 2, 2, 3, 4>" : "";
      check(args,
            "%r, %lse = cleave.attention %q, %k, %v" + operands +
                " {query_dim = \"s\", key_dim = \"t\", depth_dim = \"d\", value_dim = \"e\", "
                "causal = " +
                causal + ", shift = 1 : i64, scale = 0.7 : f64, rate = " + rate +
                " : f64, path = \"a\", site = 3 : i64" + sizes + "} : "
                "(T[b=2, s=3, h=2, g=2, d=2], T[b=2, t=4, h=2, d=2], T[b=2, t=4, h=2, e=3]" +
                types +
                ") -> (T[b=2, s=3, h=2, g=2, e=3], T[b=2, s=3, h=2, g=2])\n"
                "%y = cleave.add %r, %lse : (T[b=2, s=3, h=2, g=2, e=3], T[b=2, s=3, h=2, g=2]) -> "
                "T[b=2, s=3, h=2, g=2, e=3]",
            "T[b=2, s=3, h=2, g=2, e=3]", "\"b\", \"s\", \"h\", \"g\", \"e\"", {2, 3, 2, 2, 3});
    }
}

TEST(Gradient, AttentionRowThatSeesNothing) {
  // The first key is masked and query 0 sees only it: zeros, and no NaN backward.
  Program p = build(
      {param("q", "[s=2, d=2]", {2, 2}), param("k", "[t=2, d=2]", {2, 2}),
       param("v", "[t=2, e=2]", {2, 2}), input("m", "B[t=2]", ints({2}, {0, 1}))},
      "%y, %lse = cleave.attention %q, %k, %v mask %m {query_dim = \"s\", key_dim = \"t\", "
      "depth_dim = \"d\", value_dim = \"e\", causal = true, scale = 1.0 : f64, rate = 0.0 : f64, "
      "path = \"a\", site = 3 : i64} : (T[s=2, d=2], T[t=2, d=2], T[t=2, e=2], B[t=2]) -> (T[s=2, "
      "e=2], T[s=2])",
      "T[s=2, e=2]", "\"s\", \"e\"", {2, 2});
  std::vector<Array> results = gradientsOf(*p.module, p.args);
  ASSERT_EQ(results.size(), 4u);
  for (const Array &a : results)
    for (double x : a.reals)
      EXPECT_TRUE(std::isfinite(x));
}

TEST(Gradient, Repeat) {
  // Stacked params, a captured one, a captured constant, two carried values, the
  // layer index, a stacked output.
  std::string body = "%one = cleave.constant 1.0 : f64 : T\n"
                     "%r:3 = cleave.repeat l = 3 %i carry(%a = %x : T[n=2], %b = %z : T[n=2]) "
                     "slices(%s = %w : T[l=3, n=2] -> T[n=2]) -> T[n=2], T[n=2], T[l=3, n=2] {\n"
                     "  %t = cleave.mul %a, %s : (T[n=2], T[n=2]) -> T[n=2]\n"
                     "  %h = cleave.tanh %t : T[n=2] -> T[n=2]\n"
                     "  %p = cleave.contract %h, %u : (T[n=2], T[n=2, m=2]) -> T[m=2]\n"
                     "  %q = cleave.rename %p : T[m=2] -> T[n=2]\n"
                     "  %c = cleave.cast %i : I -> T\n"
                     "  %d = cleave.add %c, %one : (T, T) -> T\n"
                     "  %e = cleave.mul %q, %d : (T[n=2], T) -> T[n=2]\n"
                     "  %f = cleave.add %e, %b : (T[n=2], T[n=2]) -> T[n=2]\n"
                     "  %g = cleave.mul %f, %f : (T[n=2], T[n=2]) -> T[n=2]\n"
                     "  cleave.yield %f, %a, %g : T[n=2], T[n=2], T[n=2]\n}\n";
  std::vector<Arg> args{param("x", "[n=2]", {2}), param("z", "[n=2]", {2}),
                        param("w", "[l=3, n=2]", {3, 2}), param("u", "[n=2, m=2]", {2, 2})};
  check(args, body + "%y = cleave.add %r#0, %r#1 : (T[n=2], T[n=2]) -> T[n=2]", "T[n=2]", "\"n\"",
        {2});
  check(args, body + "%y = cleave.mul %r#0, %r#2 : (T[n=2], T[l=3, n=2]) -> T[l=3, n=2]",
        "T[l=3, n=2]", "\"l\", \"n\"", {3, 2});
  check(args, body + "%y = cleave.exp %r#2 : T[l=3, n=2] -> T[l=3, n=2]", "T[l=3, n=2]",
        "\"l\", \"n\"", {3, 2});
}

TEST(Gradient, RepeatReverseAndTied) {
  // The same stack read by two repeats, one of them in reverse, and outside.
  auto loop = [](const std::string &name, const std::string &from, const std::string &how) {
    return "%" + name + " = cleave.repeat l = 2 " + how + " %i carry(%a = %" + from +
           " : T[n=2]) "
           "slices(%s = %w : T[l=2, n=2] -> T[n=2]) -> T[n=2] {\n"
           "  %t = cleave.mul %a, %s : (T[n=2], T[n=2]) -> T[n=2]\n"
           "  %h = cleave.sin %t : T[n=2] -> T[n=2]\n"
           "  %f = cleave.add %h, %a : (T[n=2], T[n=2]) -> T[n=2]\n"
           "  cleave.yield %f : T[n=2]\n}\n";
  };
  check({param("x", "[n=2]", {2}), param("w", "[l=2, n=2]", {2, 2})},
        loop("first", "x", "") + loop("second", "first", "reverse") +
            "%all = cleave.reduce sum %w over [\"l\"] : T[l=2, n=2] -> T[n=2]\n"
            "%y = cleave.mul %second, %all : (T[n=2], T[n=2]) -> T[n=2]",
        "T[n=2]", "\"n\"", {2});
}

TEST(Gradient, RepeatOfComposites) {
  check({param("x", "[s=2, n=3]", {2, 3}), param("w", "[l=2, n=3, m=3]", {2, 3, 3}),
         param("g", "[l=2, n=3]", {2, 3}), param("b", "[l=2, n=3]", {2, 3}),
         input("seed", "L", ints({}, {7})), input("step", "L", ints({}, {3}))},
        "%y = cleave.repeat l = 2 %i carry(%a = %x : T[s=2, n=3]) "
        "slices(%ws = %w : T[l=2, n=3, m=3] -> T[n=3, m=3], %gs = %g : T[l=2, n=3] -> T[n=3], "
        "%bs = %b : T[l=2, n=3] -> T[n=3]) -> T[s=2, n=3] {\n"
        "  %h = cleave.layer_norm %a, %gs, %bs over [\"n\"] epsilon 0.1 : (T[s=2, n=3], T[n=3], "
        "T[n=3]) -> T[s=2, n=3]\n"
        "  %p = cleave.contract %h, %ws : (T[s=2, n=3], T[n=3, m=3]) -> T[s=2, m=3]\n"
        "  %q = cleave.gelu %p tanh = true : (T[s=2, m=3]) -> T[s=2, m=3]\n"
        "  %d = cleave.dropout \"p\" %q rate 0.375 seed %seed step %step layer %i {site = 5 : i64} "
        ": (T[s=2, m=3], L, L, I) -> T[s=2, m=3]\n"
        "  %r = cleave.contract %d, %ws : (T[s=2, m=3], T[n=3, m=3]) -> T[s=2, n=3]\n"
        "  %o = cleave.add %a, %r : (T[s=2, n=3], T[s=2, n=3]) -> T[s=2, n=3]\n"
        "  cleave.yield %o : T[s=2, n=3]\n}",
        "T[s=2, n=3]", "\"s\", \"n\"", {2, 3});
}

} // namespace
