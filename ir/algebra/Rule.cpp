//===- Rule.cpp - how an op may be split ----------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/algebra/Rule.h"

#include <algorithm>

namespace cleave {

const char *toString(FactorKind kind) {
  switch (kind) {
  case FactorKind::Parallel:
    return "parallel";
  case FactorKind::Sum:
    return "sum";
  case FactorKind::Max:
    return "max";
  case FactorKind::Min:
    return "min";
  case FactorKind::Partial:
    return "partial";
  case FactorKind::Blocked:
    return "blocked";
  }
  return "";
}

bool ShardingRule::leavesUnreduced(int factor, size_t result) const {
  FactorKind kind = factors[factor].kind;
  if (kind == FactorKind::Parallel)
    return false;
  const std::vector<int> &dims = results[result];
  return std::find(dims.begin(), dims.end(), factor) == dims.end();
}

int ShardingRule::indexOf(const std::string &name) const {
  for (size_t i = 0; i < factors.size(); ++i)
    if (factors[i].name == name)
      return static_cast<int>(i);
  return -1;
}

int ShardingRule::factor(const std::string &name, int64_t size, FactorKind kind, bool needsOffset) {
  int found = indexOf(name);
  if (found >= 0)
    return found;
  factors.push_back({name, size, kind, needsOffset});
  return static_cast<int>(factors.size()) - 1;
}

static std::string dimsText(const ShardingRule &rule, const std::vector<int> &dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i)
    text += (i ? ", " : "") + rule.factors[dims[i]].name;
  return text + "]";
}

static std::string passesText(const char *kind, const std::vector<std::vector<int>> &passes) {
  if (passes.empty())
    return "";
  std::string text = std::string(" | ") + kind + " passes";
  for (size_t i = 0; i < passes.size(); ++i) {
    text += i ? ", {" : " {";
    for (size_t j = 0; j < passes[i].size(); ++j)
      text += (j ? "," : "") + std::to_string(passes[i][j]);
    text += "}";
  }
  return text;
}

std::string ShardingRule::toString() const {
  std::string text;
  for (size_t i = 0; i < factors.size(); ++i) {
    const Factor &f = factors[i];
    text += (i ? ", " : "") + f.name + "=" + std::to_string(f.size);
    if (f.kind != FactorKind::Parallel)
      text += std::string(" ") + cleave::toString(f.kind);
    if (f.needsOffset)
      text += " offset";
  }
  text += text.empty() ? "| " : " | ";
  for (size_t i = 0; i < operands.size(); ++i)
    text += (i ? " x " : "") + dimsText(*this, operands[i]);
  text += operands.empty() ? "-> " : " -> ";
  for (size_t i = 0; i < results.size(); ++i)
    text += (i ? ", " : "") + dimsText(*this, results[i]);
  return text + passesText("sum", sumPasses) + passesText("max", maxPasses);
}

} // namespace cleave
