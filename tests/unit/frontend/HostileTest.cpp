//===- HostileTest.cpp - texts that try to break the frontend (B92) -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

#include "frontend/Lexer.h"

#include <chrono>

using namespace cleave;
using namespace cleave::test;

namespace {

std::string repeated(const std::string &what, size_t count) {
  std::string out;
  out.reserve(what.size() * count);
  for (size_t i = 0; i < count; ++i)
    out += what;
  return out;
}

/// A program, or an error with words; a program's text means the same when it
/// is printed and read again.
void expectVerdict(const std::string &text) {
  Diagnostics diagnostics;
  auto program = check({"test.cleave", text}, inventing(), diagnostics);
  ASSERT_EQ(static_cast<bool>(program), diagnostics.empty()) << text;
  if (!program) {
    ASSERT_NE(program.error().message.find("error: "), std::string::npos) << text;
    ASSERT_EQ(program.error().fault, cleave::Fault::User) << text;
    return;
  }
  auto once = formatSource({"test.cleave", text});
  ASSERT_TRUE(once) << text;
  auto twice = formatSource({"test.cleave", *once});
  ASSERT_TRUE(twice && *once == *twice) << *once;
}

std::string errorOf(const std::string &text) {
  auto faults = findingsOf(text);
  return faults.empty() ? "none" : faults.front().text;
}

class Damaged : public testing::TestWithParam<const char *> {
protected:
  std::string text = readFile(CLEAVE_SOURCE_DIR "/models/" + std::string(GetParam()) + ".cleave");
  std::vector<SourceRange> tokens() {
    SourceMap sources;
    Diagnostics diagnostics;
    std::vector<SourceRange> out;
    for (const Token &token : lex(sources, sources.add({"m", text}), diagnostics))
      if (token.range.end > token.range.begin)
        out.push_back(token.range);
    return out;
  }
};

TEST_P(Damaged, EachTokenRemovedOrDoubled) {
  for (SourceRange token : tokens()) {
    expectVerdict(text.substr(0, token.begin) + text.substr(token.end));
    expectVerdict(text.substr(0, token.end) + " " + text.substr(token.begin));
  }
}

TEST_P(Damaged, CutAtEachByte) {
  for (size_t i = 0; i < text.size(); ++i)
    expectVerdict(text.substr(0, i));
}

TEST_P(Damaged, EachNumberHugeNegativeOrReal) {
  for (SourceRange token : tokens())
    if (std::isdigit(static_cast<unsigned char>(text[token.begin])))
      for (const char *number : {"0", "-1", "2147483647", "9223372036854775807", "1e308", "0.5"})
        expectVerdict(text.substr(0, token.begin) + number + text.substr(token.end));
}

INSTANTIATE_TEST_SUITE_P(All, Damaged, testing::Values("bert", "gpt2", "llama", "mlp", "pythia"),
                         [](const auto &info) { return std::string(info.param); });

TEST(Hostile, NestingOfAHundredThousand) {
  constexpr size_t deep = 100000;
  std::string head = "model m(a = 2) { fn f(x: [a]) -> [a] { ", tail = " } }";
  for (auto [open, close] : std::vector<std::pair<std::string, std::string>>{{"(", ")"},
                                                                             {"[", "]"},
                                                                             {"-", ""},
                                                                             {"not ", ""},
                                                                             {"relu(", ")"},
                                                                             {"x[a = ", "]"},
                                                                             {"x @ (", ")"}})
    EXPECT_NE(errorOf(head + "return " + repeated(open, deep) + "x" + repeated(close, deep) + tail),
              "none")
        << open;
  for (const std::string &chain :
       {" + x", " @ x", ".x", "[0]", "(x)", " as [a]", " and x", " == x"})
    EXPECT_NE(errorOf(head + "return x" + repeated(chain, deep) + tail), "none") << chain;
  EXPECT_NE(errorOf(head + repeated("repeat i in a { ", deep) + repeated("}", deep) + tail),
            "none");
  EXPECT_NE(errorOf(repeated("model m { ", deep)), "none");
  EXPECT_NE(errorOf(repeated("{", deep)), "none");
  EXPECT_NE(errorOf("model m { dim a = " + repeated("(", deep)), "none");
  EXPECT_NE(errorOf("model m { param w: " + repeated("[", deep)), "none");
}

TEST(Hostile, ChainsUpToTheLimitWork) {
  std::string head = "model m(a = 2) { fn f(x: [a]) -> [a] { return x", tail = " } }";
  EXPECT_EQ(errorOf(head + repeated(" + x", 150) + tail), "none");
  EXPECT_EQ(errorOf(head + repeated(" + x", 250) + tail),
            "the expression is nested more than 200 deep | name parts of it: `part_of_it = ...`");
}

TEST(Hostile, ProgramsThatGrow) {
  // 2^30 operations after inlining.
  std::string text = "model m(a = 2) {\n  fn g0(x: [a]) -> [a] { return x + 1 }\n";
  for (int i = 1; i <= 30; ++i) {
    std::string before = "g" + std::to_string(i - 1);
    text += "  fn g" + std::to_string(i) + "(x: [a]) -> [a] { return " + before + "(" + before +
            "(x)) }\n";
  }
  auto begin = std::chrono::steady_clock::now();
  auto faults = findingsOf(text + "}");
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults.back().text, "the program is too large: more than 300000 operations | "
                                "layers that are alike stand in a `repeat`");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  // 10^5 instances of blocks.
  text = "model m(a = 2) {\n  block b0(x: [a]) -> [a] { return x }\n";
  for (int i = 1; i <= 5; ++i) {
    text += "  block b" + std::to_string(i) + "(x: [a]) -> [a] {\n    part p0";
    for (int j = 1; j < 10; ++j)
      text += ", p" + std::to_string(j);
    text += ": b" + std::to_string(i - 1) + "\n    return x\n  }\n";
  }
  EXPECT_EQ(
      errorOf(text + "  part p: b5\n  fn f() -> f32 { return 1.0 }\n}"),
      "the model has more than 10000 parts | use arrays of parts: `part body: layer[layers]`");
  // Calls and blocks in a long chain.
  text = "model m(a = 2) {\n  fn g0(x: [a]) -> [a] { return x }\n";
  for (int i = 1; i <= 100; ++i)
    text += "  fn g" + std::to_string(i) + "(x: [a]) -> [a] { return g" + std::to_string(i - 1) +
            "(x) }\n";
  EXPECT_EQ(errorOf(text + "}"), "calls are more than 64 deep");
}

TEST(Hostile, HugeSizes) {
  EXPECT_EQ(errorOf("model m(a = 2147483647, b = 2147483646) { fn f(x: [a], y: [b]) -> [a, b] { "
                    "return x * y } }"),
            "the tensor [a=2147483647, b=2147483646] is too large | at most 2^46 elements");
  EXPECT_EQ(
      errorOf("model m(a = 40000) { dim b = a * a\n fn f(x: [b]) -> f32 { return 1.0 } }"),
      "a name stands twice in the compound dim `b` | give the second one a name of its own: `dim "
      "other = ...`");
  EXPECT_EQ(
      errorOf("model m(a = 9223372036854775807) { dim b = a + 1\n fn f() -> f32 { return 1.0 } }"),
      "the number is too large: 9223372036854775807 + 1");
}

TEST(Hostile, LargeFiles) {
  EXPECT_EQ(errorOf(std::string((size_t(16) << 20) + 1, ' ')),
            "test.cleave: the file is larger than 16 MiB");
  EXPECT_EQ(errorOf(std::string(size_t(1) << 20, '%')).substr(0, 3), "`%`");
  EXPECT_NE(errorOf(std::string(size_t(1) << 20, '\0')), "none");
  EXPECT_NE(errorOf(std::string(size_t(1) << 20, '\xff')), "none");
  EXPECT_NE(errorOf("model " + std::string(size_t(1) << 20, 'x')), "none");
  EXPECT_NE(errorOf("model m { weights hf { \"" + std::string(size_t(1) << 20, 'x')), "none");
}

TEST(Hostile, ManyErrorsStopEarly) {
  std::string text = "model m {\n";
  for (int i = 0; i < 50000; ++i)
    text += "  dim d" + std::to_string(i) + " = q\n";
  auto begin = std::chrono::steady_clock::now();
  EXPECT_LE(findingsOf(text + "}").size(), 400u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

// B90: a key that is misspelt, stands twice or stands in the wrong place is
// never silently without effect.
TEST(Keys, MisspeltTwiceOrInTheWrongPlace) {
  for (const std::string &text : {
           "model m(n_headz = 4) { fn f(x: [n_heads]) -> f32 { return 1.0 } }",
           "model m(n_heads = 4, n_heads = 4) { fn f(x: [n_heads]) -> f32 { return 1.0 } }",
           "model m(a = 4) { shard a by tp\n fn f(x: [a]) -> f32 { return 1.0 } }",
           "model m(a = 4) { tp = 2\n fn f(x: [a]) -> f32 { return 1.0 } }",
           "model m(a = 4) { fn f(x: [a]) -> f32 { return softmax(x, axis = a) } }",
           "model m(a = 4) { fn f(x: [a]) -> [a] { return softmax(x, over = a, over = a) } }",
       })
    EXPECT_NE(errorOf(text), "none") << text;
  for (const std::string &plan :
       {"plan p for m on (tp_size) { shard ffn by tp }", "plan p for m on (tp) { tp = 2 }",
        "plan p for m on (tp) { shard ffn by tp; shard ffn by tp }",
        "plan p for m on (tp, dp) { shard ffn by tp }",
        "plan p for m on (tp) { shard layerz by tp }", "plan p for m on (tp) { free batch }",
        "plan p for m on (tp) { n_heads = 4 }"})
    EXPECT_NE(errorOf(withPlans(plan)), "none") << plan;
}

} // namespace
