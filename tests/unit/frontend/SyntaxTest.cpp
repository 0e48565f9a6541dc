//===- SyntaxTest.cpp - tokens, the tree, the printed text -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

#include "frontend/Lexer.h"
#include "frontend/Parser.h"

#include <cmath>

using namespace cleave;
using namespace cleave::test;

namespace {

std::vector<Token> tokensOf(const std::string &text, size_t faults = 0) {
  SourceMap sources;
  Diagnostics diagnostics;
  auto tokens = lex(sources, sources.add({"test.cleave", text}), diagnostics);
  EXPECT_EQ(diagnostics.size(), faults) << text;
  return tokens;
}

/// The tokens' texts; `;` for the end of a statement, `.` for the end.
std::string shapeOf(const std::string &text) {
  std::string out;
  for (const Token &token : tokensOf(text))
    out += (out.empty() ? "" : " ") + (token.kind == TokenKind::Newline ? ";"
                                       : token.kind == TokenKind::End   ? "."
                                                                        : token.text);
  return out;
}

TEST(Lexer, Kinds) {
  auto tokens = tokensOf("abc _x9 model 12 1_000 0.5 .5 1. 1e3 2.5e-1 \"s\\\"\\\\\" -> == x.y");
  std::vector<TokenKind> kinds;
  for (const Token &token : tokens)
    kinds.push_back(token.kind);
  using K = TokenKind;
  EXPECT_EQ(kinds, (std::vector<K>{K::Name, K::Name, K::Keyword, K::Integer, K::Integer, K::Real,
                                   K::Real, K::Real, K::Real, K::Real, K::String, K::Symbol,
                                   K::Symbol, K::Name, K::Symbol, K::Name, K::Newline, K::End}));
  EXPECT_EQ(tokens[4].integer, 1000);
  EXPECT_EQ(tokens[4].real, 1000);
  EXPECT_EQ(tokens[6].real, 0.5);
  EXPECT_EQ(tokens[8].real, 1000);
  EXPECT_EQ(tokens[9].real, 0.25);
  EXPECT_EQ(tokens[10].text, "s\"\\");
}

TEST(Lexer, EveryKeywordIsOne) {
  for (const std::string &word : keywords()) {
    EXPECT_EQ(tokensOf(word)[0].kind, TokenKind::Keyword) << word;
    EXPECT_EQ(tokensOf(word + "_")[0].kind, TokenKind::Name) << word;
  }
  for (const char *word : {"shard", "by", "at", "over", "on", "replicate", "Model"})
    EXPECT_EQ(tokensOf(word)[0].kind, TokenKind::Name) << word;
}

TEST(Lexer, WhereStatementsEnd) {
  EXPECT_EQ(shapeOf("a\nb"), "a ; b ; .");
  EXPECT_EQ(shapeOf("a; b;\n\n\nc"), "a ; b ; c ; .");
  EXPECT_EQ(shapeOf("# only\n\n  # comments"), "; .");
  EXPECT_EQ(shapeOf("f(a\n, b)\n[1\n]\nc"), "f ( a , b ) ; [ 1 ] ; c ; .");
  EXPECT_EQ(shapeOf("a +\nb ->\nc =\nd,\ne @ # comment\nf and\nnot\ng as\n[h]"),
            "a + b -> c = d , e @ f and not g as [ h ] ; .");
  EXPECT_EQ(shapeOf("a\n+ b"), "a ; + b ; .") << "a line that is complete ends";
  EXPECT_EQ(shapeOf("a\r\nb"), "a ; b ; .");
}

TEST(Lexer, AForgottenBracketEndsWhereAStatementBegins) {
  EXPECT_EQ(shapeOf("f(a\nparam b"), "f ( a ; param b ; .");
  EXPECT_EQ(shapeOf("f(a, dim = b)"), "f ( a , dim = b ) ; .");
}

TEST(Lexer, ByteOrderMark) {
  EXPECT_TRUE(findingsOf("\xEF\xBB\xBFmodel m { fn f() -> f32 { return 1.0 } }\r\n").empty());
}

TEST(Lexer, PlacesCountCharacters) {
  // The comment and the string have characters of 2, 3 and 4 bytes.
  auto faults = findingsOf("model m { # ä€\n weights \"ä€😀\" % }");
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(std::pair(faults[0].line, faults[0].column), (std::pair<size_t, size_t>(2, 10)));
  EXPECT_EQ(std::pair(faults[1].line, faults[1].column), (std::pair<size_t, size_t>(2, 16)));
}

std::string printed(const std::string &expression) {
  auto text = formatSource({"t", "model m { fn f() { return " + expression + " } }"});
  if (!text)
    return text.error().message;
  size_t begin = text->find("return ") + 7;
  return text->substr(begin, text->find('\n', begin) - begin);
}

TEST(Parser, Precedence) {
  // Parentheses that change nothing are dropped, others are kept.
  for (auto [written, expected] : std::vector<std::pair<std::string, std::string>>{
           {"(a + (b * c))", "a + b * c"},
           {"(a + b) * c", "(a + b) * c"},
           {"a - (b - c)", "a - (b - c)"},
           {"(a - b) - c", "a - b - c"},
           {"a * (b @ c)", "a * b @ c"},
           {"(a * b) @ c", "(a * b) @ c"},
           {"a @ (b @ c)", "a @ (b @ c)"},
           {"a @[x, y] b", "a @[x, y] b"},
           {"(-a) @ b", "-a @ b"},
           {"-(a @ b)", "-(a @ b)"},
           {"(a < b) and (not (c == d))", "a < b and not c == d"},
           {"(a and b) or c", "a and b or c"},
           {"a and (b or c)", "a and (b or c)"},
           {"(a + b) as [x = y]", "a + b as [x = y]"},
           {"a + (b as [x = y])", "a + (b as [x = y])"},
           {"(a as [b]) as [c]", "a as [b] as [c]"},
           {"f(a, b = [c, d])(e)", "f(a, b = [c, d])(e)"},
           {"x[a = b[1:2:3], c]", "x[a = b[1:2:3], c]"},
           {"x[a = b[:]]", "x[a = b[:]]"},
           {"x[a = b[::2]]", "x[a = b[::2]]"},
           {"p[i].q.r", "p[i].q.r"},
           {"- - a", "--a"}}) {
    EXPECT_EQ(printed(written), expected);
    EXPECT_EQ(printed(expected), expected);
  }
}

TEST(Parser, EveryConstructIsPrintedAndReadAgain) {
  std::string text = R"(model m(a = 2, b = 0.5, c = true) {
  free batch
  free seq
  dim d = a * 3
  param w, v: [a, d] = normal(0.02)
  part n: layer_norm(a, epsilon = 0.1)
  part q: k(d, rate = 0.5)[a]

  block k(size, rate = 0.1)(x, y: [batch], z: i32[seq]) -> ([batch], f32) {
    part r: rms_norm(size)
    param u: [size] = zeros
    repeat i in a {
      x = x + 1
    }
    if c and a > 1 {
      x = -x
    } else {
      if not c {
        x = y
      }
    }
    p, q = x, y
    return p, sum(q)
  }

  fn f() {
    return 1.0
  }

  weights hf {
    "a.{i}\"\\": [a * d, batch + seq] = concat(w, q[i].u)
  }
}

plan p for m on (dp = 2, tp) {
  shard a, d by dp else batch, seq by tp
  at f.x: shard a by dp
  at w: replicate
  at w: replicate over dp, tp
}
)";
  auto once = formatSource({"t", text});
  ASSERT_TRUE(once) << once.error().message;
  auto twice = formatSource({"t", *once});
  ASSERT_TRUE(twice) << twice.error().message;
  EXPECT_EQ(*once, *twice);
  auto squeezed = [](const std::string &s) {
    std::string out;
    for (char c : s)
      if (!std::isspace(static_cast<unsigned char>(c)))
        out += c;
    return out;
  };
  EXPECT_EQ(squeezed(*once), squeezed(text)) << "nothing is lost";
}

class Models : public testing::TestWithParam<const char *> {};

TEST_P(Models, PrintingIsAFixedPointAndMeansTheSame) {
  std::string text = readFile(CLEAVE_SOURCE_DIR "/models/" + std::string(GetParam()) + ".cleave");
  auto once = formatSource({"test.cleave", text});
  ASSERT_TRUE(once) << once.error().message;
  auto twice = formatSource({"test.cleave", *once});
  ASSERT_TRUE(twice);
  EXPECT_EQ(*once, *twice);
  auto one = programOf(text), other = programOf(*once);
  ASSERT_TRUE(one && other);
  auto withoutPlaces = [](const CheckedProgram &p) {
    std::string out = checked::print(p);
    for (size_t at = 0; (at = out.find(" @", at)) != std::string::npos;)
      out.erase(at, out.find('\n', at) - at);
    return out;
  };
  EXPECT_EQ(withoutPlaces(*one), withoutPlaces(*other));
}

INSTANTIATE_TEST_SUITE_P(All, Models, testing::Values("bert", "gpt2", "llama", "mlp", "pythia"),
                         [](const auto &info) { return std::string(info.param); });

} // namespace
