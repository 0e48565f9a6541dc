//===- ReadmeTest.cpp - the examples of frontend/README.md -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The fences:
//   cleave         a file that is right
//   cleave frame   one with the line `# the example`, in place of which the
//   cleave body    statements of these stand
//   cleave-error   a file that is wrong; the next fence, `text`, is all that is said
//   checked        the checked program of the fence before it
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <sstream>

using namespace cleave;
using namespace cleave::test;

namespace {

struct Fence {
  std::string kind, text;
  size_t line = 0;
};

std::vector<Fence> fences() {
  std::istringstream in(readFile(CLEAVE_SOURCE_DIR "/frontend/README.md"));
  std::vector<Fence> out;
  bool open = false;
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.starts_with("```")) {
      open = !open;
      if (open)
        out.push_back({line.substr(3), "", number});
    } else if (open) {
      out.back().text += line + "\n";
    }
  }
  EXPECT_FALSE(open) << "a fence is not closed";
  return out;
}

std::string messageOf(const std::string &text) {
  auto program = check({"example.cleave", text}, inventing());
  return program ? "" : program.error().message;
}

TEST(Readme, EveryExampleIsAsItSays) {
  std::vector<Fence> all = fences();
  std::string frame, lastRight;
  size_t right = 0, bodies = 0, wrong = 0, shown = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Fence &fence = all[i];
    SCOPED_TRACE("frontend/README.md:" + std::to_string(fence.line));
    if (fence.kind == "cleave" || fence.kind == "cleave frame") {
      EXPECT_EQ(messageOf(fence.text), "");
      lastRight = fence.text;
      if (fence.kind == "cleave frame")
        frame = fence.text;
      ++right;
    } else if (fence.kind == "cleave body") {
      const std::string mark = "# the example\n";
      size_t at = frame.find(mark);
      ASSERT_NE(at, std::string::npos) << "no frame stands before";
      EXPECT_EQ(messageOf(frame.substr(0, at) + fence.text + frame.substr(at + mark.size())), "");
      ++bodies;
    } else if (fence.kind == "cleave-error") {
      ASSERT_TRUE(i + 1 < all.size() && all[i + 1].kind == "text") << "no `text` fence follows";
      EXPECT_EQ(messageOf(fence.text), all[i + 1].text);
      ++wrong;
    } else if (fence.kind == "checked") {
      auto program = check({"example.cleave", lastRight}, inventing());
      ASSERT_TRUE(program);
      EXPECT_EQ(checked::print(*program), fence.text);
      ++shown;
    } else {
      EXPECT_TRUE(fence.kind == "text" || fence.kind == "mlir") << fence.kind;
    }
  }
  EXPECT_GE(right, 8u);
  EXPECT_GE(bodies, 5u);
  EXPECT_GE(wrong, 3u);
  EXPECT_EQ(shown, 1u);
}

TEST(Readme, TheErrorOfASettingIsAsItSays) {
  CheckOptions options = inventing();
  options.settings = {{"headz", "8"}};
  auto program = check({"gpt2.cleave", readFile(CLEAVE_SOURCE_DIR "/models/gpt2.cleave")}, options);
  ASSERT_FALSE(program);
  std::string readme = readFile(CLEAVE_SOURCE_DIR "/frontend/README.md");
  EXPECT_NE(readme.find("```text\n" + program.error().message + "```"), std::string::npos)
      << program.error().message;
}

/// Each builtin has its row, and each row a builtin.
TEST(Readme, EveryWordIsExplained) {
  std::string text = readFile(CLEAVE_SOURCE_DIR "/frontend/README.md");
  for (const std::string &name :
       {"max",        "min",       "pow",          "sum",       "mean",   "where",
        "softmax",    "attention", "rope",         "dropout",   "index",  "cross_entropy",
        "layer_norm", "rms_norm",  "fill",         "broadcast", "gather", "concat",
        "exp",        "log",       "sqrt",         "rsqrt",     "tanh",   "erf",
        "sin",        "cos",       "abs",          "silu",      "relu",   "sigmoid",
        "gelu_tanh",  "gelu_erf",  "stop_gradient"})
    EXPECT_NE(text.find(name), std::string::npos) << name;
}

} // namespace
