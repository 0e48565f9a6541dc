//===- ConstructTest.cpp - what each construct becomes -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <fstream>
#include <sstream>

using namespace cleave;
using namespace cleave::test;

namespace {

//===----------------------------------------------------------------------===//
// Statements: the cases stand in constructs.txt, as in ErrorTest.cpp
//===----------------------------------------------------------------------===//

struct Construct {
  std::string name, text;
  std::vector<std::string> nodes;
};
void PrintTo(const Construct &c, std::ostream *out) { *out << c.name; }

std::vector<Construct> constructs() {
  std::ifstream in(CLEAVE_SOURCE_DIR "/tests/unit/frontend/constructs.txt");
  std::vector<Construct> cases;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("== "))
      cases.push_back({line.substr(3), "", {}});
    else if (cases.empty())
      continue;
    else if (line.starts_with("-> "))
      cases.back().nodes.push_back(line.substr(3));
    else
      cases.back().text += line + "\n";
  }
  return cases;
}

class ConstructTest : public testing::TestWithParam<Construct> {};

TEST_P(ConstructTest, Becomes) {
  EXPECT_EQ(nodesOf(inFunction(GetParam().text)), GetParam().nodes);
}

TEST_P(ConstructTest, ReadsTheSameWhenPrinted) {
  std::string text = inFunction(GetParam().text);
  auto printed = formatSource({"test.cleave", text});
  ASSERT_TRUE(printed);
  EXPECT_EQ(nodesOf(*printed), GetParam().nodes);
  auto again = formatSource({"test.cleave", *printed});
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, *printed);
}

INSTANTIATE_TEST_SUITE_P(Statements, ConstructTest, testing::ValuesIn(constructs()),
                         [](const auto &info) { return info.param.name; });

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

TEST(Declarations, NumbersAndDims) {
  auto p = programOf(R"(model m(a = 3, rate = 0.5, flag = true, root = sqrt(16), deep = -2) {
    free batch
    dim b = 2 * a, c = a * b, d = c * batch, e = max(a, 7) - 1, f = a
    fn g(x: [d]) -> [c, batch] { return x }
  })");
  ASSERT_TRUE(p);
  EXPECT_EQ(checked::toString(p->hyperparameters[1].value), "0.5");
  EXPECT_EQ(checked::toString(p->hyperparameters[2].value), "true");
  EXPECT_EQ(checked::toString(p->hyperparameters[3].value), "4");
  using Atoms = std::vector<std::string>;
  EXPECT_EQ(p->dim("a")->kind, checked::NamedDim::Hyper);
  EXPECT_EQ(p->dim("batch")->kind, checked::NamedDim::Free);
  EXPECT_EQ(p->dim("b")->atoms, Atoms{"b"}) << "2 is no name, so b is a dim of its own";
  EXPECT_EQ(p->dim("c")->atoms, (Atoms{"a", "b"}));
  EXPECT_EQ(p->dim("c")->size, 18);
  EXPECT_EQ(p->dim("d")->atoms, (Atoms{"a", "b", "batch"}));
  EXPECT_EQ(p->dim("e")->size, 6);
  EXPECT_EQ(p->dim("f")->atoms, Atoms{"f"}) << "a second dim of the same size";
  EXPECT_FALSE(p->dim("rate")) << "0.5 is no size";
  EXPECT_FALSE(p->dim("deep")) << "nor is -2";
  EXPECT_EQ(p->show(p->functions[0].values[0].type), "[d=54]");
}

TEST(Declarations, Params) {
  auto p = programOf(R"(model m(a = 2, b = 3, n = 4, k = 5) {
    param w: [a, b] = normal(1 / a)
    param s: f32 = constant(2)
    param u: [b] = uniform(-1, 0.5)
    block inner(x: [a]) -> [a] {
      param v: [a] = ones
      return x * v
    }
    block outer(size, rate = 0.5)(x: [a]) -> [a] {
      part norm: rms_norm(a, epsilon = 1e-3)
      part child: inner[k]
      param z: [size] = zeros
      return norm(x) + sum(z) * rate
    }
    part first: outer(b)
    part body: outer(rate = 0.25, size = a)[n]
    fn f(x: [a]) -> [b] { return first(x) @ w + u * s }
    fn g(x: [a]) -> [a] {
      repeat i in n { x = body[i](x); repeat j in k { x = body[i].child[j](x) } }
      return x
    }
  })");
  ASSERT_TRUE(p);
  std::string text = checked::print(*p);
  for (const char *line :
       {"param w: f32[a=2, b=3] = normal(0.5) decay\n", "param s: f32 = constant(2)\n",
        "param u: f32[b=3] = uniform(-1, 0.5)\n", "param first.z: f32[b=3] = zeros\n",
        "param first.norm.weight: f32[a=2] = ones\n",
        "param first.child.v: f32[k=5, a=2] stacked 1 = ones\n",
        "param body.z: f32[n=4, a=2] stacked 1 = zeros\n",
        "param body.child.v: f32[n=4, k=5, a=2] stacked 2 = ones\n",
        "param body.child.v[%1][%10] : f32[a=2]"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
}

TEST(Declarations, DecayIsForWhatIsContractedOrLookedUp) {
  auto p = programOf(R"(model m(a = 2, b = 3) {
    free batch
    param looked, tied, cast, renamed: [b, a] = ones
    param bias, unused: [a] = ones
    dim c = a
    part norm: layer_norm(a)
    fn f(ids: i32[batch]) -> [batch] {
      x = norm(looked[ids] + bias)
      y = x @ tied + x @ f32(cast) + (x as [c = a]) @ (renamed as [c = a])
      return sum(y, over = b)
    }
  })");
  ASSERT_TRUE(p);
  std::vector<std::string> decay;
  for (const checked::Param &param : p->params)
    if (param.decay)
      decay.push_back(param.path);
  EXPECT_EQ(decay, (std::vector<std::string>{"looked", "tied", "cast", "renamed"}));
}

TEST(Declarations, FunctionsAndCalls) {
  auto p = programOf(R"(model m(a = 2) {
    part norm: rms_norm(a)
    fn inner(x: [a], s: f32) -> ([a], f32) {
      y = norm(x) * s
      return y, sum(y)
    }
    fn outer(x: [a]) -> f32 {
      first, total = inner(x, 2)
      second, more = inner(first, total)
      return total + more
    }
  })");
  ASSERT_TRUE(p);
  ASSERT_EQ(p->functions.size(), 2u);
  const checked::Function *outer = p->function("outer");
  ASSERT_TRUE(outer);
  EXPECT_EQ(outer->argumentNames, std::vector<std::string>{"x"});
  EXPECT_EQ(outer->params.size(), 1u) << "called twice, read once";
  EXPECT_FALSE(p->function("norm"));
  std::set<std::string> names;
  for (const checked::Value &value : outer->values)
    names.insert(value.names.begin(), value.names.end());
  for (const char *name : {"outer.x", "inner.x", "inner.y", "inner", "norm", "norm.x",
                           "outer.first", "outer.total", "norm.weight", "outer"})
    EXPECT_TRUE(names.count(name)) << name;
}

TEST(Declarations, DropoutSitesAreStablePaths) {
  auto p = programOf(R"(model m(a = 2, n = 3) {
    block k(x: [a]) -> [a] { return dropout(x, 0.1) + dropout(x, 0.1) }
    part body: k[n]
    part once: k
    fn f(x: [a]) -> [a] {
      repeat i in n { x = body[i](x) }
      return once(once(dropout(x, 0.5)))
    }
  })");
  ASSERT_TRUE(p);
  std::string text = checked::print(*p);
  for (const char *site : {"site body.dropout0 ", "site body.dropout1 ", "site f.dropout0 ",
                           "site once.dropout0 ", "site once.dropout0'1 ", "site once.dropout1'1 "})
    EXPECT_NE(text.find(site), std::string::npos) << site << "in\n" << text;
}

TEST(Declarations, Locations) {
  auto p = programOf(
      "model m(a = 2) {\n  fn f(x: [a]) -> [a] {\n    return x +\n      exp(x)\n  }\n}\n");
  ASSERT_TRUE(p);
  const checked::Node &exp = p->functions[0].body.nodes[0];
  SourceLocation at = p->sources.locate(exp.range);
  EXPECT_EQ(std::tuple(at.file, at.line, at.column, at.endLine, at.endColumn),
            std::tuple(std::string("test.cleave"), 4u, 7u, 4u, 13u));
}

} // namespace
