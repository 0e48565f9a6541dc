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

using Frame = std::string (*)(const std::string &);
std::string asItIs(const std::string &text) { return text; }

struct ErrorCase {
  std::string name, text;
  Frame frame;
  std::vector<std::string> expected;
};
void PrintTo(const ErrorCase &c, std::ostream *out) { *out << c.name; }

std::vector<ErrorCase> allCases() {
  std::vector<ErrorCase> cases;
  for (auto [kind, frame] : {std::pair<std::string, Frame>("syntax", asItIs),
                             {"declarations", asItIs},
                             {"bodies", inFunction},
                             {"plans", withPlans}}) {
    std::ifstream in(CLEAVE_SOURCE_DIR "/tests/unit/frontend/errors/" + kind + ".txt");
    bool comment = true;
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with("== "))
        cases.push_back({kind + "_" + line.substr(3), "", frame, {}}), comment = false;
      else if (comment)
        continue;
      else if (line.starts_with("-> "))
        cases.back().expected.push_back(line.substr(3));
      else
        cases.back().text += line + "\n";
    }
  }
  return cases;
}

class ErrorTest : public testing::TestWithParam<ErrorCase> {};

TEST_P(ErrorTest, IsSaidAtItsPlace) {
  const ErrorCase &c = GetParam();
  auto [text, where] = places(c.frame(c.text));
  ASSERT_EQ(where.size(), c.expected.size()) << "as many `$` as errors";
  std::vector<Finding> expected;
  for (size_t i = 0; i < where.size(); ++i)
    expected.push_back({where[i].first, where[i].second, c.expected[i]});
  EXPECT_EQ(findingsOf(text), expected) << text;
}

INSTANTIATE_TEST_SUITE_P(All, ErrorTest, testing::ValuesIn(allCases()),
                         [](const auto &info) { return info.param.name; });

TEST(ErrorCases, AreThere) { EXPECT_GE(allCases().size(), 280u); }

} // namespace
