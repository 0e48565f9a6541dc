//===- ErrorTest.cpp - every kind of error, its place and its words -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The cases stand in errors/*.txt:
//   == Name
//   the text; a `$` stands where an error is expected
//   -> message | hint          one line for each error, in their order
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <fstream>
#include <sstream>

using namespace cleave;
using namespace cleave::test;

namespace {

struct ErrorCase {
  std::string name, text;
  std::vector<std::string> expected;
};
void PrintTo(const ErrorCase &c, std::ostream *out) { *out << c.name; }

std::vector<ErrorCase> casesOf(const std::string &file) {
  std::ifstream in(CLEAVE_SOURCE_DIR "/tests/unit/frontend/errors/" + file);
  std::vector<ErrorCase> cases;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("== "))
      cases.push_back({line.substr(3), "", {}});
    else if (cases.empty())
      continue; // the file's comment
    else if (line.starts_with("-> "))
      cases.back().expected.push_back(line.substr(3));
    else
      cases.back().text += line + "\n";
  }
  return cases;
}

std::string asItIs(const std::string &text) { return text; }

void expectFaults(const ErrorCase &c, std::string (*frame)(const std::string &)) {
  auto [text, where] = places(frame(c.text));
  ASSERT_EQ(where.size(), c.expected.size()) << "as many `$` as errors";
  std::vector<Fault> expected;
  for (size_t i = 0; i < where.size(); ++i)
    expected.push_back({where[i].first, where[i].second, c.expected[i]});
  EXPECT_EQ(faultsOf(text), expected) << text;
}

std::string nameOf(const testing::TestParamInfo<ErrorCase> &info) { return info.param.name; }

#define CLEAVE_ERROR_SUITE(Suite, file, frame)                                                     \
  class Suite : public testing::TestWithParam<ErrorCase> {};                                       \
  TEST_P(Suite, IsSaid) { expectFaults(GetParam(), frame); }                                       \
  INSTANTIATE_TEST_SUITE_P(Error, Suite, testing::ValuesIn(casesOf(file)), nameOf)

CLEAVE_ERROR_SUITE(SyntaxError, "syntax.txt", asItIs);
CLEAVE_ERROR_SUITE(DeclarationError, "declarations.txt", asItIs);
CLEAVE_ERROR_SUITE(BodyError, "bodies.txt", inFunction);
CLEAVE_ERROR_SUITE(PlanError, "plans.txt", withPlans);

} // namespace
