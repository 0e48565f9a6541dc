//===- Support.cpp - running IR text in tests -----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "tests/generated/Support.h"

#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"

#include <random>
#include <regex>

using namespace mlir;
using namespace cleave;

MLIRContext &cleave::testing::context() {
  static MLIRContext *shared = [] {
    auto *c = new MLIRContext(MLIRContext::Threading::DISABLED);
    c->loadDialect<CleaveDialect, func::FuncDialect>();
    return c;
  }();
  return *shared;
}

OwningOpRef<ModuleOp> cleave::testing::parse(const std::string &text) {
  std::string messages;
  ScopedDiagnosticHandler handler(&context(), [&](Diagnostic &d) {
    messages += d.str() + "\n";
    return success();
  });
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context());
  EXPECT_TRUE(module) << messages << text;
  return module;
}

std::string cleave::testing::shortened(const std::string &text) {
  std::string out = text;
  for (auto [letter, element] :
       {std::pair{"T", "f64"}, {"I", "i32"}, {"B", "i1"}, {"L", "i64"}, {"S", "f32"}}) {
    std::string dims = std::string("\\b") + letter + "(\\[[^\\]]*\\])";
    out = std::regex_replace(out, std::regex(dims),
                             std::string("!cleave.tensor<") + element + " $1>");
    std::string bare = std::string("([(>,: ])") + letter + "(?=[),} \n]|$)";
    out =
        std::regex_replace(out, std::regex(bare), std::string("$1!cleave.tensor<") + element + ">");
  }
  return out;
}

func::FuncOp cleave::testing::function(ModuleOp module, const std::string &name) {
  auto f = module.lookupSymbol<func::FuncOp>(name);
  EXPECT_TRUE(f) << "no function " << name;
  return f;
}

std::vector<Array> cleave::testing::run(func::FuncOp f, const std::vector<Array> &args,
                                        InterpretOptions options) {
  std::vector<PerRankArrays> all;
  for (const Array &a : args)
    all.push_back({a});
  options.perRank = false;
  Result<std::vector<PerRankArrays>> results = interpret(f, all, options);
  if (!results) {
    ADD_FAILURE() << results.error().message;
    return {};
  }
  std::vector<Array> out;
  for (PerRankArrays &r : *results)
    out.push_back(std::move(r[0]));
  return out;
}

Array cleave::testing::numbers(std::vector<int64_t> shape, double scale, unsigned seed) {
  int64_t n = elementsOf(shape);
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back((i % 2 ? -1.0 : 1.0) * static_cast<double>(i % 9 + 1) * scale);
  std::mt19937 random(seed);
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(values[i], values[random() % (i + 1)]);
  return Array::ofReals(std::move(shape), std::move(values));
}

std::string cleave::testing::textOf(Operation *op) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  op->print(stream);
  return text;
}
