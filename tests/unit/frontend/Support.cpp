//===- Support.cpp - checking small programs in tests -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <fstream>
#include <sstream>

namespace cleave::test {

std::ostream &operator<<(std::ostream &out, const Finding &fault) {
  return out << fault.line << ":" << fault.column << ": " << fault.text;
}

CheckOptions inventing() {
  CheckOptions options;
  options.inventSizes = true;
  return options;
}

std::vector<Finding> findingsOf(const std::string &text, const CheckOptions &options) {
  Diagnostics diagnostics;
  auto program = check({"test.cleave", text}, options, diagnostics);
  EXPECT_EQ(static_cast<bool>(program), diagnostics.empty());
  SourceFile source("test.cleave", text);
  std::vector<Finding> faults;
  for (const Diagnostic &d : diagnostics.all()) {
    Finding fault{0, 0, d.message + (d.hint.empty() ? "" : " | " + d.hint)};
    if (d.range.valid())
      std::tie(fault.line, fault.column) = source.lineColumn(d.range.begin);
    faults.push_back(std::move(fault));
  }
  return faults;
}

std::optional<CheckedProgram> programOf(const std::string &text, const CheckOptions &options) {
  auto program = check({"test.cleave", text}, options);
  if (program)
    return *program;
  ADD_FAILURE() << program.error().message << "in\n" << text;
  return std::nullopt;
}

std::vector<std::string> nodesOf(const std::string &text) {
  std::vector<std::string> nodes;
  auto program = programOf(text);
  std::istringstream lines(program ? checked::print(*program) : "");
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("fn ") || line == "}") {
      inside = line.starts_with("fn example(");
    } else if (inside && !line.starts_with("  return")) {
      line = line.substr(2, line.rfind(" @") - 2);
      nodes.push_back(line);
    }
  }
  return nodes;
}

std::string inFunction(const std::string &statements) {
  return R"(model frame(vocab = 16, width = 12, ffn = 32, layers = 3, copies = 2, kv_heads = 2,
            group = 2, head_dim = 4) {
  free batch, seq
  dim heads = kv_heads * group, keys = seq, keys2 = seq, pooled = width, pooled2 = width
  dim rest = seq - 1, half = width / 2, double = 2 * seq, few = 2
  param table: [vocab, width] = normal(0.02)
  param short: [few, width] = normal(0.02)
  param w: [width, ffn] = normal(0.02)
  param wq: [width, heads, head_dim] = normal(0.02)
  param wk, wv: [width, kv_heads, head_dim] = normal(0.02)
  param gain, shift: [width] = ones
  part norm: layer_norm(width)
  block layer(x: [batch, seq, width]) -> [batch, seq, width] {
    param v: [width] = ones
    return x * v
  }
  part body: layer[layers]
  fn helper(a: [batch, seq, width], b: i32[batch, seq]) -> [batch, seq, width] { return a }
  fn two(a: [batch, seq, width]) -> ([batch, seq, width], f32) { return a, 1.0 }
  fn example(x, y: [batch, seq, width], q: [batch, seq, heads, head_dim],
             ids, labels: i32[batch, seq], bias: [seq, keys], logits: [batch, seq, vocab],
             valid: i1[batch, seq]) {
)" + statements +
         "\n    return x\n  }\n}\n";
}

std::string withPlans(const std::string &plans) {
  bool weights = plans.starts_with("weights\n");
  return R"(model m(width = 8, ffn = 32, spare = 3, layers = 2) {
  free batch
  param w: [width, ffn] = normal(0.02)
  param b, c: [ffn] = zeros
  block layer(x: [batch, width]) -> [batch, width] {
    param v: [width] = ones
    return x * v
  }
  part norm: layer_norm(width)
  part body: layer[layers]
  fn f(x: [batch, width]) -> [batch, ffn] {
    h = norm(x)
    repeat i in layers { h = body[i](h) }
    return h @ w + b + c
  }
)" + (weights ? "  weights hf {\n" + plans.substr(8) + "\n  }\n}\n" : "}\n" + plans);
}

std::pair<std::string, std::vector<std::pair<size_t, size_t>>> places(const std::string &marked) {
  std::pair<std::string, std::vector<std::pair<size_t, size_t>>> out;
  size_t line = 1, column = 1;
  for (char c : marked) {
    if (c == '$') {
      out.second.push_back({line, column});
      continue;
    }
    out.first += c;
    column += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (c == '\n')
      ++line, column = 1;
  }
  return out;
}

std::string readFile(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_TRUE(in.good() && !text.str().empty()) << path << " cannot be read";
  return text.str();
}

} // namespace cleave::test
