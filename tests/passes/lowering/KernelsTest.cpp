//===- KernelsTest.cpp - compiled groups against plain loops --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Reference.h"

#include "runtime/core/Float16.h"

#include "llvm/ADT/StringExtras.h"

#include "gtest/gtest.h"

#include <bit>

using namespace cleave;
using namespace cleave::test;

namespace {

/// `T{f32 b=2 s=3}` in the text becomes the type's spelling.
std::string expand(std::string text) {
  for (size_t i; (i = text.find("T{")) != std::string::npos;) {
    size_t end = text.find('}', i);
    std::string inside = text.substr(i + 2, end - i - 2);
    size_t space = inside.find(' ');
    std::string type = "!cleave.tensor<" + inside.substr(0, space);
    if (space != std::string::npos) {
      std::string dims = inside.substr(space + 1);
      for (char &c : dims)
        if (c == ' ')
          c = ',';
      type += " [" + dims + "]";
    }
    text.replace(i, end - i + 1, type + ">");
  }
  return text;
}

/// Replaces each key by its number: sizes and element types of a family of cases.
std::string with(std::string text,
                 std::initializer_list<std::pair<const char *, std::string>> set) {
  for (auto &[key, value] : set)
    for (size_t i; (i = text.find(key)) != std::string::npos;)
      text.replace(i, std::strlen(key), value);
  return text;
}

std::vector<Tensor> check(const std::string &text, double tolerance = 2e-6, double scale = 1,
                          int64_t below = 7, const std::vector<int64_t> &indices = {}) {
  Program program(expand(text));
  if (!program.valid())
    return {};
  std::vector<Tensor> inputs = program.randomInputs(1, scale, below);
  std::vector<Tensor> want = program.reference(inputs, indices);
  std::vector<Tensor> got = program.run(inputs, indices);
  expectClose(got, want, tolerance);
  if (indices.empty() && !program.info.inPlace.empty())
    expectClose(program.runInPlace(inputs), want, tolerance);
  return got;
}

const char *layerNorm = R"(
func.func @f(%x: T{F b=2 s=5 w=N}, %weight: T{F w=N}, %bias: T{F w=N})
    -> (T{F b=2 s=5 w=N}, T{F b=2 s=5}, T{F b=2 s=5}) {
  %scale = cleave.constant INV : F : T{F}
  %eps = cleave.constant 1.0e-05 : F : T{F}
  %sum = cleave.reduce sum %x over ["w"] : T{F b=2 s=5 w=N} -> T{F b=2 s=5}
  %mean = cleave.mul %sum, %scale : (T{F b=2 s=5}, T{F}) -> T{F b=2 s=5}
  %c = cleave.sub %x, %mean : (T{F b=2 s=5 w=N}, T{F b=2 s=5}) -> T{F b=2 s=5 w=N}
  %cc = cleave.mul %c, %c : (T{F b=2 s=5 w=N}, T{F b=2 s=5 w=N}) -> T{F b=2 s=5 w=N}
  %ss = cleave.reduce sum %cc over ["w"] : T{F b=2 s=5 w=N} -> T{F b=2 s=5}
  %var = cleave.mul %ss, %scale : (T{F b=2 s=5}, T{F}) -> T{F b=2 s=5}
  %ve = cleave.add %var, %eps : (T{F b=2 s=5}, T{F}) -> T{F b=2 s=5}
  %rstd = cleave.rsqrt %ve : T{F b=2 s=5} -> T{F b=2 s=5}
  %n = cleave.mul %c, %rstd : (T{F b=2 s=5 w=N}, T{F b=2 s=5}) -> T{F b=2 s=5 w=N}
  %nw = cleave.mul %n, %weight : (T{F b=2 s=5 w=N}, T{F w=N}) -> T{F b=2 s=5 w=N}
  %y = cleave.add %nw, %bias : (T{F b=2 s=5 w=N}, T{F w=N}) -> T{F b=2 s=5 w=N}
  return %y, %mean, %rstd : T{F b=2 s=5 w=N}, T{F b=2 s=5}, T{F b=2 s=5}
})";

TEST(Rows, LayerNorm) {
  for (int n : {1, 3, 8, 17, 64, 100})
    for (const char *type : {"f32", "f64"})
      check(with(layerNorm,
                 {{"INV", std::to_string(1.0 / n)}, {"N", std::to_string(n)}, {"F", type}}),
            type[1] == '3' ? 5e-6 : 1e-13);
}

const char *softmax = R"(
func.func @f(%x: T{F b=3 h=2 q=4 k=N}) -> T{F b=3 h=2 q=4 k=N} {
  %m = cleave.reduce max %x over ["k"] : T{F b=3 h=2 q=4 k=N} -> T{F b=3 h=2 q=4}
  %s = cleave.sub %x, %m : (T{F b=3 h=2 q=4 k=N}, T{F b=3 h=2 q=4}) -> T{F b=3 h=2 q=4 k=N}
  %e = cleave.exp %s : T{F b=3 h=2 q=4 k=N} -> T{F b=3 h=2 q=4 k=N}
  %t = cleave.reduce sum %e over ["k"] : T{F b=3 h=2 q=4 k=N} -> T{F b=3 h=2 q=4}
  %y = cleave.div %e, %t : (T{F b=3 h=2 q=4 k=N}, T{F b=3 h=2 q=4}) -> T{F b=3 h=2 q=4 k=N}
  return %y : T{F b=3 h=2 q=4 k=N}
})";

TEST(Rows, Softmax) {
  for (int n : {1, 2, 7, 16, 33})
    for (const char *type : {"f32", "f64"})
      check(with(softmax, {{"N", std::to_string(n)}, {"F", type}}), type[1] == '3' ? 2e-6 : 1e-14,
            30);
}

TEST(Rows, SoftmaxOverAnOuterDim) {
  check(R"(
func.func @f(%x: T{f32 b=3 k=5 h=37}) -> T{f32 b=3 k=5 h=37} {
  %m = cleave.reduce max %x over ["k"] : T{f32 b=3 k=5 h=37} -> T{f32 b=3 h=37}
  %s = cleave.sub %x, %m : (T{f32 b=3 k=5 h=37}, T{f32 b=3 h=37}) -> T{f32 b=3 k=5 h=37}
  %e = cleave.exp %s : T{f32 b=3 k=5 h=37} -> T{f32 b=3 k=5 h=37}
  %t = cleave.reduce sum %e over ["k"] : T{f32 b=3 k=5 h=37} -> T{f32 b=3 h=37}
  %y = cleave.div %e, %t : (T{f32 b=3 k=5 h=37}, T{f32 b=3 h=37}) -> T{f32 b=3 k=5 h=37}
  return %y : T{f32 b=3 k=5 h=37}
})");
}

TEST(Rows, CrossEntropyForwardAndBackward) {
  check(R"(
func.func @f(%x: T{f32 b=2 s=6 v=29}, %labels: T{i32 b=2 s=6}, %g: T{f32})
    -> (T{f32 b=2 s=6}, T{f32 b=2 s=6 v=29}) {
  %m = cleave.reduce max %x over ["v"] : T{f32 b=2 s=6 v=29} -> T{f32 b=2 s=6}
  %s = cleave.sub %x, %m : (T{f32 b=2 s=6 v=29}, T{f32 b=2 s=6}) -> T{f32 b=2 s=6 v=29}
  %e = cleave.exp %s : T{f32 b=2 s=6 v=29} -> T{f32 b=2 s=6 v=29}
  %t = cleave.reduce sum %e over ["v"] : T{f32 b=2 s=6 v=29} -> T{f32 b=2 s=6}
  %l = cleave.log %t : T{f32 b=2 s=6} -> T{f32 b=2 s=6}
  %i = cleave.iota "v" : T{i32 v=29}
  %hit = cleave.compare eq %labels, %i : (T{i32 b=2 s=6}, T{i32 v=29}) -> T{i1 b=2 s=6 v=29}
  %zero = cleave.constant 0.0 : f32 : T{f32}
  %one = cleave.constant 1.0 : f32 : T{f32}
  %picked = cleave.select %hit, %s, %zero
      : (T{i1 b=2 s=6 v=29}, T{f32 b=2 s=6 v=29}, T{f32}) -> T{f32 b=2 s=6 v=29}
  %target = cleave.reduce sum %picked over ["v"] : T{f32 b=2 s=6 v=29} -> T{f32 b=2 s=6}
  %loss = cleave.sub %l, %target : (T{f32 b=2 s=6}, T{f32 b=2 s=6}) -> T{f32 b=2 s=6}
  %ignore = cleave.constant 3 : i32 : T{i32}
  %valid = cleave.compare ne %labels, %ignore : (T{i32 b=2 s=6}, T{i32}) -> T{i1 b=2 s=6}
  %kept = cleave.select %valid, %loss, %zero : (T{i1 b=2 s=6}, T{f32 b=2 s=6}, T{f32}) -> T{f32 b=2 s=6}
  %p = cleave.div %e, %t : (T{f32 b=2 s=6 v=29}, T{f32 b=2 s=6}) -> T{f32 b=2 s=6 v=29}
  %hot = cleave.select %hit, %one, %zero : (T{i1 b=2 s=6 v=29}, T{f32}, T{f32}) -> T{f32 b=2 s=6 v=29}
  %d = cleave.sub %p, %hot : (T{f32 b=2 s=6 v=29}, T{f32 b=2 s=6 v=29}) -> T{f32 b=2 s=6 v=29}
  %gv = cleave.select %valid, %g, %zero : (T{i1 b=2 s=6}, T{f32}, T{f32}) -> T{f32 b=2 s=6}
  %dx = cleave.mul %d, %gv : (T{f32 b=2 s=6 v=29}, T{f32 b=2 s=6}) -> T{f32 b=2 s=6 v=29}
  return %kept, %dx : T{f32 b=2 s=6}, T{f32 b=2 s=6 v=29}
})",
        4e-6, 10, 9);
}

TEST(Elementwise, GeluOfBothKinds) {
  check(R"(
func.func @f(%x: T{f32 b=3 w=1000}, %bias: T{f32 w=1000}) -> (T{f32 b=3 w=1000}, T{f32 b=3 w=1000}) {
  %h = cleave.add %x, %bias : (T{f32 b=3 w=1000}, T{f32 w=1000}) -> T{f32 b=3 w=1000}
  %c1 = cleave.constant 0.044715 : f32 : T{f32}
  %c2 = cleave.constant 1.59576912 : f32 : T{f32}
  %c3 = cleave.constant 0.70710678 : f32 : T{f32}
  %c4 = cleave.constant 0.5 : f32 : T{f32}
  %one = cleave.constant 1.0 : f32 : T{f32}
  %h2 = cleave.mul %h, %h : (T{f32 b=3 w=1000}, T{f32 b=3 w=1000}) -> T{f32 b=3 w=1000}
  %h3 = cleave.mul %h2, %h : (T{f32 b=3 w=1000}, T{f32 b=3 w=1000}) -> T{f32 b=3 w=1000}
  %k = cleave.mul %h3, %c1 : (T{f32 b=3 w=1000}, T{f32}) -> T{f32 b=3 w=1000}
  %i = cleave.add %h, %k : (T{f32 b=3 w=1000}, T{f32 b=3 w=1000}) -> T{f32 b=3 w=1000}
  %u = cleave.mul %i, %c2 : (T{f32 b=3 w=1000}, T{f32}) -> T{f32 b=3 w=1000}
  %g = cleave.sigmoid %u : T{f32 b=3 w=1000} -> T{f32 b=3 w=1000}
  %y = cleave.mul %h, %g : (T{f32 b=3 w=1000}, T{f32 b=3 w=1000}) -> T{f32 b=3 w=1000}
  %a = cleave.mul %h, %c3 : (T{f32 b=3 w=1000}, T{f32}) -> T{f32 b=3 w=1000}
  %e = cleave.erf %a : T{f32 b=3 w=1000} -> T{f32 b=3 w=1000}
  %e1 = cleave.add %e, %one : (T{f32 b=3 w=1000}, T{f32}) -> T{f32 b=3 w=1000}
  %hh = cleave.mul %h, %c4 : (T{f32 b=3 w=1000}, T{f32}) -> T{f32 b=3 w=1000}
  %z = cleave.mul %hh, %e1 : (T{f32 b=3 w=1000}, T{f32 b=3 w=1000}) -> T{f32 b=3 w=1000}
  return %y, %z : T{f32 b=3 w=1000}, T{f32 b=3 w=1000}
})",
        1e-6, 4);
}

const char *adam = R"(
func.func @f(%p: T{f32 a=A b=B}, %m: T{f32 a=A b=B}, %v: T{f32 a=A b=B}, %g: T{f32 a=A b=B},
             %lr: T{f32}, %step: T{i64}) -> (T{f32 a=A b=B}, T{f32 a=A b=B}, T{f32 a=A b=B}) {
  %b1 = cleave.constant 0.9 : f32 : T{f32}
  %b2 = cleave.constant 0.999 : f32 : T{f32}
  %o1 = cleave.constant 0.1 : f32 : T{f32}
  %o2 = cleave.constant 0.001 : f32 : T{f32}
  %one = cleave.constant 1.0 : f32 : T{f32}
  %eps = cleave.constant 1.0e-8 : f32 : T{f32}
  %t = cleave.cast %step : T{i64} -> T{f32}
  %t1 = cleave.add %t, %one : (T{f32}, T{f32}) -> T{f32}
  %p1 = cleave.pow %b1, %t1 : (T{f32}, T{f32}) -> T{f32}
  %c1 = cleave.sub %one, %p1 : (T{f32}, T{f32}) -> T{f32}
  %m1 = cleave.mul %m, %b1 : (T{f32 a=A b=B}, T{f32}) -> T{f32 a=A b=B}
  %g1 = cleave.mul %g, %o1 : (T{f32 a=A b=B}, T{f32}) -> T{f32 a=A b=B}
  %mn = cleave.add %m1, %g1 : (T{f32 a=A b=B}, T{f32 a=A b=B}) -> T{f32 a=A b=B}
  %va = cleave.abs %v : T{f32 a=A b=B} -> T{f32 a=A b=B}
  %v1 = cleave.mul %va, %b2 : (T{f32 a=A b=B}, T{f32}) -> T{f32 a=A b=B}
  %gg = cleave.mul %g, %g : (T{f32 a=A b=B}, T{f32 a=A b=B}) -> T{f32 a=A b=B}
  %g2 = cleave.mul %gg, %o2 : (T{f32 a=A b=B}, T{f32}) -> T{f32 a=A b=B}
  %vn = cleave.add %v1, %g2 : (T{f32 a=A b=B}, T{f32 a=A b=B}) -> T{f32 a=A b=B}
  %mh = cleave.div %mn, %c1 : (T{f32 a=A b=B}, T{f32}) -> T{f32 a=A b=B}
  %r = cleave.sqrt %vn : T{f32 a=A b=B} -> T{f32 a=A b=B}
  %re = cleave.add %r, %eps : (T{f32 a=A b=B}, T{f32}) -> T{f32 a=A b=B}
  %d = cleave.div %mh, %re : (T{f32 a=A b=B}, T{f32 a=A b=B}) -> T{f32 a=A b=B}
  %dl = cleave.mul %d, %lr : (T{f32 a=A b=B}, T{f32}) -> T{f32 a=A b=B}
  %pn = cleave.sub %p, %dl : (T{f32 a=A b=B}, T{f32 a=A b=B}) -> T{f32 a=A b=B}
  return %pn, %mn, %vn : T{f32 a=A b=B}, T{f32 a=A b=B}, T{f32 a=A b=B}
})";

TEST(Elementwise, AdamInPlace) {
  for (auto [a, b] : {std::pair{1, 5}, {3, 64}, {101, 203}, {16, 1024}}) {
    std::string text =
        with(adam, {{"=A", "=" + std::to_string(a)}, {"=B", "=" + std::to_string(b)}});
    check(text, 1e-5);
    Program program(expand(text));
    program.run(program.randomInputs(1));
    // p, m and v may be updated where they lie.
    for (std::pair<int, int> pair : {std::pair{0, 0}, {1, 1}, {2, 2}})
      EXPECT_NE(llvm::find(program.info.inPlace, pair), program.info.inPlace.end());
  }
}

TEST(InPlace, IsRefusedWhereAnElementIsReadTwice) {
  // y[a, b] = x[a, b] + x[b, a]: no iteration owns its inputs.
  Program transposed(expand(R"(
func.func @f(%x: T{f32 a=16 b=16}) -> T{f32 a=16 b=16} {
  %r = cleave.rename %x : T{f32 a=16 b=16} -> T{f32 b=16 a=16}
  %y = cleave.add %x, %r : (T{f32 a=16 b=16}, T{f32 b=16 a=16}) -> T{f32 a=16 b=16}
  return %y : T{f32 a=16 b=16}
})"));
  auto inputs = transposed.randomInputs(1);
  expectClose(transposed.run(inputs), transposed.reference(inputs), 1e-6);
  EXPECT_TRUE(transposed.info.inPlace.empty());
  // A row is read whole before it is written: allowed.
  Program rows(expand(with(softmax, {{"N", "33"}, {"F", "f32"}})));
  inputs = rows.randomInputs(1);
  expectClose(rows.runInPlace(inputs), rows.reference(inputs), 2e-6);
  EXPECT_EQ(rows.info.inPlace.size(), 1u);
  // Two results of different inner dims: the second reads what the first wrote.
  Program two(expand(R"(
func.func @f(%x: T{f32 a=8 b=24}) -> (T{f32 a=8 b=24}, T{f32 a=8 b=24 c=3}) {
  %m = cleave.reduce max %x over ["b"] : T{f32 a=8 b=24} -> T{f32 a=8}
  %y = cleave.sub %x, %m : (T{f32 a=8 b=24}, T{f32 a=8}) -> T{f32 a=8 b=24}
  %z = cleave.broadcast %x : T{f32 a=8 b=24} -> T{f32 a=8 b=24 c=3}
  return %y, %z : T{f32 a=8 b=24}, T{f32 a=8 b=24 c=3}
})"));
  inputs = two.randomInputs(1);
  expectClose(two.run(inputs), two.reference(inputs), 1e-6);
  expectClose(two.runInPlace(inputs), two.reference(inputs), 1e-6);
  EXPECT_TRUE(two.info.inPlace.empty());
}

/// How often the kernel's code computes an f32 exp, which has the only shift to the right.
int exponentials(const std::string &text) {
  Program program(expand(text));
  KernelCompiler compiler;
  EXPECT_TRUE(program.valid() && succeeded(compiler.add(program.fused())));
  std::string loops = compiler.emitLoops();
  int count = 0;
  for (size_t i = 0; (i = loops.find("arith.shrui", i)) != std::string::npos; ++i)
    ++count;
  return count;
}

/// A softmax of rows of 32, `TAIL` its result, `RESULT` the type of that.
std::string softmaxThen(const std::string &arguments, const std::string &tail) {
  return with(R"(
func.func @f(%x: T{f32 b=5 k=32}ARGUMENTS) -> T{f32 b=5 k=32} {
  %m = cleave.reduce max %x over ["k"] : T{f32 b=5 k=32} -> T{f32 b=5}
  %s = cleave.sub %x, %m : (T{f32 b=5 k=32}, T{f32 b=5}) -> T{f32 b=5 k=32}
  %e = cleave.exp %s : T{f32 b=5 k=32} -> T{f32 b=5 k=32}
  %t = cleave.reduce sum %e over ["k"] : T{f32 b=5 k=32} -> T{f32 b=5}
  %p = cleave.div %e, %t : (T{f32 b=5 k=32}, T{f32 b=5}) -> T{f32 b=5 k=32}
TAIL
  return %y : T{f32 b=5 k=32}
})",
              {{"ARGUMENTS", arguments}, {"TAIL", tail}});
}

TEST(Waiting, AnExponentialIsComputedOnce) {
  EXPECT_EQ(exponentials(with(softmax, {{"N", "32"}, {"F", "f32"}})), 1);
  // The body of the loop and its tail.
  EXPECT_EQ(exponentials(with(softmax, {{"N", "37"}, {"F", "f32"}})), 2);
  // Of the input's and the result's place only one is needed.
  std::string masked = softmaxThen(", %keep: T{i1 b=5 k=32}", R"(
  %zero = cleave.constant 0.0 : f32 : T{f32}
  %y = cleave.select %keep, %p, %zero : (T{i1 b=5 k=32}, T{f32 b=5 k=32}, T{f32}) -> T{f32 b=5 k=32})");
  EXPECT_EQ(exponentials(masked), 1);
  check(masked, 2e-6, 30);
  Program program(expand(masked));
  program.run(program.randomInputs(1));
  EXPECT_EQ(program.info.inPlace, (std::vector<std::pair<int, int>>{{0, 0}}));
}

TEST(Waiting, SumsOfItReadItBack) {
  // The gradient's sum over the row is a third loop.
  std::string text = softmaxThen(", %c: T{f32 k=32}", R"(
  %pc = cleave.mul %p, %c : (T{f32 b=5 k=32}, T{f32 k=32}) -> T{f32 b=5 k=32}
  %u = cleave.reduce sum %pc over ["k"] : T{f32 b=5 k=32} -> T{f32 b=5}
  %y = cleave.sub %pc, %u : (T{f32 b=5 k=32}, T{f32 b=5}) -> T{f32 b=5 k=32})");
  EXPECT_EQ(exponentials(text), 1);
  check(text, 2e-6, 30);
}

TEST(Waiting, NotWhereTheInputIsReadAgain) {
  std::string text = softmaxThen("", R"(
  %y = cleave.add %p, %x : (T{f32 b=5 k=32}, T{f32 b=5 k=32}) -> T{f32 b=5 k=32})");
  EXPECT_EQ(exponentials(text), 2);
  check(text, 2e-6, 30);
  Program program(expand(text));
  program.run(program.randomInputs(1));
  EXPECT_EQ(program.info.inPlace.size(), 1u);
}

TEST(Waiting, NotWhereItIsReadAtOtherPlaces) {
  std::string text = softmaxThen("", R"(
  %tail = cleave.slice %e["k" from 1] {stride = 1 : i64} : T{f32 b=5 k=32} -> T{f32 b=5 k=31}
  %moved = cleave.pad %tail["k" at 0] {stride = 1 : i64} : T{f32 b=5 k=31} -> T{f32 b=5 k=32}
  %y = cleave.add %p, %moved : (T{f32 b=5 k=32}, T{f32 b=5 k=32}) -> T{f32 b=5 k=32})");
  EXPECT_GE(exponentials(text), 2);
  check(text, 2e-6, 30);
}

TEST(Waiting, NotWhereTheRowLeavesTheCache) {
  auto wide = [](const char *type) {
    return with(R"(
func.func @f(%x: T{F b=2 k=300000}) -> T{F b=2 k=300000} {
  %e = cleave.exp %x : T{F b=2 k=300000} -> T{F b=2 k=300000}
  %t = cleave.reduce sum %e over ["k"] : T{F b=2 k=300000} -> T{F b=2}
  %y = cleave.div %e, %t : (T{F b=2 k=300000}, T{F b=2}) -> T{F b=2 k=300000}
  return %y : T{F b=2 k=300000}
})",
                {{"F", type}});
  };
  EXPECT_EQ(exponentials(wide("f32")), 2);
  check(wide("f32"), 1e-5);
}

TEST(Columns, BiasAndNormWeightGradients) {
  for (int n : {1, 5, 32, 45, 768})
    check(with(R"(
func.func @f(%dy: T{f32 b=3 s=7 w=N}, %x: T{f32 b=3 s=7 w=N}, %mean: T{f32 b=3 s=7})
    -> (T{f32 w=N}, T{f32 w=N}) {
  %db = cleave.reduce sum %dy over ["b", "s"] : T{f32 b=3 s=7 w=N} -> T{f32 w=N}
  %c = cleave.sub %x, %mean : (T{f32 b=3 s=7 w=N}, T{f32 b=3 s=7}) -> T{f32 b=3 s=7 w=N}
  %m = cleave.mul %dy, %c : (T{f32 b=3 s=7 w=N}, T{f32 b=3 s=7 w=N}) -> T{f32 b=3 s=7 w=N}
  %dw = cleave.reduce sum %m over ["b", "s"] : T{f32 b=3 s=7 w=N} -> T{f32 w=N}
  return %db, %dw : T{f32 w=N}, T{f32 w=N}
})",
               {{"N", std::to_string(n)}}),
          1e-5);
}

TEST(Reductions, ToAScalarAndOverEveryDim) {
  check(R"(
func.func @f(%x: T{f32 a=5 b=19}, %i: T{i32 a=5 b=19}, %c: T{i1 a=5 b=19})
    -> (T{f32}, T{f32}, T{f32}, T{i32}, T{i1}, T{i1}) {
  %s = cleave.reduce sum %x over ["a", "b"] : T{f32 a=5 b=19} -> T{f32}
  %m = cleave.reduce max %x over ["a", "b"] : T{f32 a=5 b=19} -> T{f32}
  %n = cleave.reduce min %x over ["a", "b"] : T{f32 a=5 b=19} -> T{f32}
  %k = cleave.reduce max %i over ["a", "b"] : T{i32 a=5 b=19} -> T{i32}
  %any = cleave.reduce max %c over ["a", "b"] : T{i1 a=5 b=19} -> T{i1}
  %all = cleave.reduce min %c over ["a", "b"] : T{i1 a=5 b=19} -> T{i1}
  return %s, %m, %n, %k, %any, %all : T{f32}, T{f32}, T{f32}, T{i32}, T{i1}, T{i1}
})",
        1e-5);
  // The middle dim, then what is left.
  check(R"(
func.func @f(%x: T{f32 a=4 b=6 c=11}) -> (T{f32 a=4 c=11}, T{f32 a=4}) {
  %s = cleave.reduce sum %x over ["b"] : T{f32 a=4 b=6 c=11} -> T{f32 a=4 c=11}
  %e = cleave.exp %s : T{f32 a=4 c=11} -> T{f32 a=4 c=11}
  %t = cleave.reduce sum %e over ["c"] : T{f32 a=4 c=11} -> T{f32 a=4}
  return %s, %t : T{f32 a=4 c=11}, T{f32 a=4}
})",
        1e-5);
}

TEST(Layout, TransposeBroadcastSliceAndPad) {
  check(R"(
func.func @f(%x: T{f32 a=9 b=21}, %v: T{f32 b=21}) -> T{f32 b=21 c=3 a=9} {
  %y = cleave.broadcast %x : T{f32 a=9 b=21} -> T{f32 b=21 c=3 a=9}
  %z = cleave.mul %y, %v : (T{f32 b=21 c=3 a=9}, T{f32 b=21}) -> T{f32 b=21 c=3 a=9}
  return %z : T{f32 b=21 c=3 a=9}
})");
  for (const char *stride : {"1", "2", "3"})
    check(with(R"(
func.func @f(%x: T{f32 a=4 b=30}, %y: T{f32 a=4 k=7}) -> (T{f32 a=4 k=7}, T{f32 a=4 b=30}) {
  %s = cleave.slice %x["b" from 5] {stride = S : i64} : T{f32 a=4 b=30} -> T{f32 a=4 k=7}
  %t = cleave.add %s, %y : (T{f32 a=4 k=7}, T{f32 a=4 k=7}) -> T{f32 a=4 k=7}
  %p = cleave.pad %y["k" at 5] {stride = S : i64} : T{f32 a=4 k=7} -> T{f32 a=4 b=30}
  %q = cleave.add %p, %x : (T{f32 a=4 b=30}, T{f32 a=4 b=30}) -> T{f32 a=4 b=30}
  return %t, %q : T{f32 a=4 k=7}, T{f32 a=4 b=30}
})",
               {{"S ", std::string(stride) + " "}}));
  // Concatenation of an outer dim.
  check(R"(
func.func @f(%x: T{f32 s=4 w=10}, %y: T{f32 t=3 w=10}) -> T{f32 u=7 w=10} {
  %p = cleave.pad %x["s" at 0] : T{f32 s=4 w=10} -> T{f32 u=7 w=10}
  %q = cleave.pad %y["t" at 4] : T{f32 t=3 w=10} -> T{f32 u=7 w=10}
  %z = cleave.add %p, %q : (T{f32 u=7 w=10}, T{f32 u=7 w=10}) -> T{f32 u=7 w=10}
  return %z : T{f32 u=7 w=10}
})");
}

TEST(Layout, SquareBroadcastsAreByName) { // B65
  check(R"(
func.func @f(%x: T{f32 a=4 b=4}, %v: T{f32 a=4}, %w: T{f32 b=4}) -> (T{f32 a=4 b=4}, T{f32 a=4 b=4}) {
  %y = cleave.add %x, %v : (T{f32 a=4 b=4}, T{f32 a=4}) -> T{f32 a=4 b=4}
  %z = cleave.add %x, %w : (T{f32 a=4 b=4}, T{f32 b=4}) -> T{f32 a=4 b=4}
  return %y, %z : T{f32 a=4 b=4}, T{f32 a=4 b=4}
})",
        1e-7);
}

TEST(Lookup, GatherAndItsGradient) {
  const char *text = R"(
func.func @f(%table: T{f32 v=V w=20}, %ids: T{i32 b=3 s=5}, %pos: T{f32 s=5 w=20}, %first: index)
    -> T{f32 b=3 s=5 w=20} {
  %x = cleave.gather %table["v" = %ids] offset(%first)
      : (T{f32 v=V w=20}, T{i32 b=3 s=5}, index) -> T{f32 b=3 s=5 w=20}
  %y = cleave.add %x, %pos : (T{f32 b=3 s=5 w=20}, T{f32 s=5 w=20}) -> T{f32 b=3 s=5 w=20}
  return %y : T{f32 b=3 s=5 w=20}
})";
  check(with(text, {{"V", "6"}}), 1e-7, 1, 9, {2});
  const char *gradient = R"(
func.func @f(%g: T{f32 b=3 s=5 w=20}, %ids: T{i32 b=3 s=5}, %scale: T{f32}, %first: index) -> T{f32 v=V w=20} {
  %h = cleave.mul %g, %scale : (T{f32 b=3 s=5 w=20}, T{f32}) -> T{f32 b=3 s=5 w=20}
  %t = cleave.scatter_add %h["v" = %ids] offset(%first)
      : (T{f32 b=3 s=5 w=20}, T{i32 b=3 s=5}, index) -> T{f32 v=V w=20}
  return %t : T{f32 v=V w=20}
})";
  for (const char *v : {"1", "6", "200"})
    check(with(gradient, {{"V", v}}), 2e-6, 1, 9, {1});
  // One value out of each row, and back: batched ids.
  check(R"(
func.func @f(%x: T{f32 b=3 v=11}, %ids: T{i32 b=3}, %g: T{f32 b=3}) -> T{f32 b=3} {
  %y = cleave.gather %x["v" = %ids] : (T{f32 b=3 v=11}, T{i32 b=3}) -> T{f32 b=3}
  %z = cleave.add %y, %g : (T{f32 b=3}, T{f32 b=3}) -> T{f32 b=3}
  return %z : T{f32 b=3}
})",
        1e-7, 1, 14);
  check(R"(
func.func @f(%ids: T{i32 b=3}, %g: T{f32 b=3}) -> T{f32 b=3 v=11} {
  %y = cleave.scatter_add %g["v" = %ids] : (T{f32 b=3}, T{i32 b=3}) -> T{f32 b=3 v=11}
  return %y : T{f32 b=3 v=11}
})",
        1e-7, 1, 14);
}

TEST(Random, BitsAreThoseOfTheRuntime) {
  const char *text = R"(
func.func @f(%x: T{f32 b=3 w=N}, %seed: T{i64}, %step: T{i64}, %layer: T{i32}) -> T{f32 b=3 w=N} {
  %u = cleave.random "a.drop" seed %seed step %step layer %layer
      {global_sizes = array<i64: 3, N>, site = 2654435769 : i64} : (T{i64}, T{i64}, T{i32}) -> T{f32 b=3 w=N}
  %y = cleave.add %u, %x : (T{f32 b=3 w=N}, T{f32 b=3 w=N}) -> T{f32 b=3 w=N}
  %z = cleave.sub %y, %x : (T{f32 b=3 w=N}, T{f32 b=3 w=N}) -> T{f32 b=3 w=N}
  return %u : T{f32 b=3 w=N}
})";
  for (const char *n : {"1", "13", "16", "40"})
    check(with(text, {{"N", n}}), 0, 1, 1 << 20);
  check(R"(
func.func @f(%seed: T{i64}, %step: T{i64}, %layer: T{i32}, %o0: index, %o1: index) -> T{f32 b=3 w=13} {
  %u = cleave.random "a.drop" seed %seed step %step layer %layer offset(%o0, %o1)
      {global_sizes = array<i64: 70000, 100003>, site = 77 : i64}
      : (T{i64}, T{i64}, T{i32}, index, index) -> T{f32 b=3 w=13}
  return %u : T{f32 b=3 w=13}
})",
        0, 1, 1 << 20, {65000, 90000});
}

TEST(Padding, MaskIsByExtent) {
  check(R"(
func.func @f(%x: T{f32 h=5 k=21}, %eh: index, %ek: index) -> T{f32 h=5} {
  %m = cleave.mask_padding %x ["h", "k"] below(%eh, %ek) fill -1.0e30 : T{f32 h=5 k=21} -> T{f32 h=5 k=21}
  %y = cleave.reduce max %m over ["k"] : T{f32 h=5 k=21} -> T{f32 h=5}
  return %y : T{f32 h=5}
})",
        1e-7, 1, 7, {4, 18});
}

TEST(Types, HalfPrecisionRoundsAfterEachOp) {
  for (const char *type : {"bf16", "f16"})
    check(with(R"(
func.func @f(%x: T{F a=3 b=19}, %w: T{F b=19}) -> (T{F a=3 b=19}, T{f32 a=3 b=19}, T{F a=3 b=19}) {
  %y = cleave.mul %x, %w : (T{F a=3 b=19}, T{F b=19}) -> T{F a=3 b=19}
  %z = cleave.add %y, %x : (T{F a=3 b=19}, T{F a=3 b=19}) -> T{F a=3 b=19}
  %c = cleave.cast %z : T{F a=3 b=19} -> T{f32 a=3 b=19}
  %k = cleave.constant 1.2345 : f32 : T{f32}
  %d = cleave.mul %c, %k : (T{f32 a=3 b=19}, T{f32}) -> T{f32 a=3 b=19}
  %e = cleave.cast %d : T{f32 a=3 b=19} -> T{F a=3 b=19}
  return %z, %c, %e : T{F a=3 b=19}, T{f32 a=3 b=19}, T{F a=3 b=19}
})",
               {{"F ", std::string(type) + " "}}),
          type[0] == 'b' ? 0 : 0, 3);
}

TEST(Types, Bfloat16CastsAtTheEdges) { // B12
  Program program(expand(R"(
func.func @f(%x: T{f32 a=9}) -> T{bf16 a=9} {
  %y = cleave.cast %x : T{f32 a=9} -> T{bf16 a=9}
  return %y : T{bf16 a=9}
})"));
  auto bits = [](uint32_t b) { return static_cast<double>(std::bit_cast<float>(b)); };
  std::vector<Tensor> inputs = program.randomInputs(1);
  inputs[0].data = {0.2691408770292272, bits(0x7F800001), 3.4028235e38,
                    bits(0x3F808000),   bits(0x3F818000), -0.0,
                    bits(0x00012345),   bits(0x7F800000), -1.0};
  std::vector<Tensor> got = program.run(inputs);
  ASSERT_EQ(got.size(), 1u);
  const auto &y = got[0].data;
  EXPECT_EQ(y[0], 0.26953125);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_TRUE(std::isinf(y[2]));
  EXPECT_EQ(y[3], bits(0x3F800000));
  EXPECT_EQ(y[4], bits(0x3F820000));
  EXPECT_TRUE(y[5] == 0 && std::signbit(y[5]));
  EXPECT_EQ(y[6], bits(0x00010000));
  EXPECT_TRUE(std::isinf(y[7]));
  EXPECT_EQ(y[8], -1.0);
}

/// Every number of 16 bits, both of its neighbours' middles and what lies beside these, and the
/// same once more where a vector ends: stored as the runtime's conversion has it, read as it was.
TEST(Types, ShortFloatsRoundAsInTheRuntime) {
  for (auto [type, widen, narrow] :
       {std::tuple("bf16", &fromBF16, &toBF16), std::tuple("f16", &fromF16, &toF16)}) {
    std::vector<double> values;
    auto add = [&](float x) { values.push_back(x); };
    for (uint32_t bits = 0; bits < 0x8000; ++bits) {
      float x = widen(static_cast<uint16_t>(bits)), next = widen(static_cast<uint16_t>(bits + 1));
      add(x);
      if (!std::isfinite(x))
        continue;
      float middle = std::isfinite(next) ? x + (next - x) / 2 : x * (1 + 0x1p-9F);
      for (float y : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, INFINITY)}) {
        add(y);
        add(-y);
      }
    }
    for (uint32_t nan : {0x7F800001U, 0xFFFFFFFFU, 0x7FC00000U, 0xFF80FFFFU})
      add(std::bit_cast<float>(nan));
    add(3.4028235e38F);
    add(-INFINITY);
    while (values.size() % 16 != 5) // a tail of 5 in either width of vector
      values.push_back(values[values.size() % 999]);
    std::string size = std::to_string(values.size());
    Program program(expand(with(R"(
func.func @f(%x: T{f32 a=N}) -> (T{F a=N}, T{f32 a=N}) {
  %y = cleave.cast %x : T{f32 a=N} -> T{F a=N}
  %z = cleave.cast %y : T{F a=N} -> T{f32 a=N}
  return %y, %z : T{F a=N}, T{f32 a=N}
})",
                                {{"N", size}, {"F ", std::string(type) + " "}})));
    std::vector<Tensor> inputs = program.randomInputs(1);
    inputs[0].data = values;
    for (int bits : {256, 512}) {
      if (bits == 512 && !__builtin_cpu_supports("avx512f"))
        continue;
      std::vector<Tensor> got = program.run(inputs, {}, {bits, 2});
      ASSERT_EQ(got.size(), 2u);
      for (size_t i = 0; i < values.size(); ++i) {
        auto x = static_cast<float>(values[i]);
        float want = widen(narrow(x));
        for (const Tensor &y : got)
          ASSERT_TRUE(std::isnan(x)
                          ? std::isnan(y.data[i]) && std::isnan(want)
                          : y.data[i] == want && std::signbit(y.data[i]) == std::signbit(want))
              << type << " of " << x << " is " << y.data[i] << ", not " << want;
      }
    }
  }
}

TEST(Types, IntegersAndCasts) {
  check(R"(
func.func @f(%x: T{f32 a=37}, %i: T{i32 a=37}, %j: T{i32 a=37}, %c: T{i1 a=37})
    -> (T{i32 a=37}, T{i32 a=37}, T{f32 a=37}, T{i1 a=37}, T{i64 a=37}, T{f64 a=37}) {
  %k = cleave.cast %x : T{f32 a=37} -> T{i32 a=37}
  %d = cleave.div %i, %j : (T{i32 a=37}, T{i32 a=37}) -> T{i32 a=37}
  %e = cleave.cast %d : T{i32 a=37} -> T{f32 a=37}
  %lt = cleave.compare lt %i, %j : (T{i32 a=37}, T{i32 a=37}) -> T{i1 a=37}
  %no = cleave.not %c : T{i1 a=37} -> T{i1 a=37}
  %or = cleave.or %lt, %no : (T{i1 a=37}, T{i1 a=37}) -> T{i1 a=37}
  %w = cleave.cast %or : T{i1 a=37} -> T{i64 a=37}
  %f = cleave.cast %x : T{f32 a=37} -> T{f64 a=37}
  return %k, %d, %e, %or, %w, %f
      : T{i32 a=37}, T{i32 a=37}, T{f32 a=37}, T{i1 a=37}, T{i64 a=37}, T{f64 a=37}
})",
        0, 100, 5);
}

TEST(Contract, AsPlainLoops) {
  check(R"(
func.func @f(%x: T{f32 b=3 q=4 d=19}, %y: T{f32 b=3 k=5 d=19}) -> T{f32 b=3 q=4 k=5} {
  %z = cleave.contract %x, %y : (T{f32 b=3 q=4 d=19}, T{f32 b=3 k=5 d=19}) -> T{f32 b=3 q=4 k=5}
  return %z : T{f32 b=3 q=4 k=5}
})",
        1e-5);
}

TEST(Wide, Avx512CodeGivesTheSame) {
  if (!__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bw"))
    GTEST_SKIP() << "no AVX-512 here";
  Program program(expand(with(softmax, {{"N", "45"}, {"F", "f32"}})));
  auto inputs = program.randomInputs(3, 20);
  KernelOptions options;
  options.vectorBits = 512;
  expectClose(program.run(inputs, {}, options), program.reference(inputs), 2e-6);
}

TEST(Compiler, EqualGroupsShareAKernel) {
  std::string text = expand(with(softmax, {{"N", "8"}, {"F", "f32"}}));
  Program one(text), two(text), other(expand(with(softmax, {{"N", "9"}, {"F", "f32"}})));
  KernelCompiler compiler;
  auto a = compiler.add(one.fused()), b = compiler.add(two.fused()),
       c = compiler.add(other.fused());
  ASSERT_TRUE(succeeded(a) && succeeded(b) && succeeded(c));
  EXPECT_EQ(a->symbol, b->symbol);
  EXPECT_NE(a->symbol, c->symbol);
  EXPECT_EQ(compiler.size(), 2u);
}

TEST(Compiler, SaysWhatHasNoKernel) {
  Program program(expand(R"(
func.func @f(%x: T{f32 a=4}) -> T{f32 a=4} {
  %y = cleave.all_reduce sum %x over [#cleave.axis<tp>] : T{f32 a=4} -> T{f32 a=4}
  return %y : T{f32 a=4}
})"));
  KernelCompiler compiler;
  EXPECT_TRUE(failed(compiler.add(program.fused())));
  EXPECT_NE(program.errors.find("'cleave.all_reduce' op has no kernel"), std::string::npos)
      << program.errors;
  EXPECT_EQ(compiler.size(), 0u);
}

} // namespace
