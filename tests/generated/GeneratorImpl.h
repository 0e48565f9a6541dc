//===- GeneratorImpl.h - the state of a program that is made ----*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "tests/generated/Generator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>

namespace cleave::testing {

using namespace mlir;

using Names = std::vector<std::string>;

struct Val {
  Value v;
  double bound = 1;
};

class Generator {
public:
  explicit Generator(uint64_t seed)
      : random(seed * 0x9E3779B97F4A7C15ull + 1), b(&context()), loc(b.getUnknownLoc()) {}

  int planned() { return steps = 3 + pick(10); }
  Generated make(int limit);

private:
  // Chance.
  int pick(int64_t n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); }
  bool chance(double p) { return static_cast<double>(random() >> 11) * 0x1p-53 < p; }
  template <typename T> const T &oneOf(const std::vector<T> &list) {
    return list[pick(list.size())];
  }
  template <typename T> void shuffle(std::vector<T> &list) {
    for (size_t i = list.size(); i > 1; --i)
      std::swap(list[i - 1], list[pick(i)]);
  }
  Names some(Names list, int64_t least, int64_t most) {
    shuffle(list);
    most = std::min<int64_t>(most, list.size());
    least = std::min(least, most);
    list.resize(least + pick(most - least + 1));
    return list;
  }

  // Types.
  NamedTensorType type(const Names &names, Type element);
  NamedTensorType type(const Names &names) { return type(names, element); }
  Names dims(Value v) const;
  int64_t count(const Names &names) const;
  bool fits(const Names &names) const { return names.size() <= 5 && count(names) <= 700; }
  std::string freshDim(int64_t size);
  Names newDims(const Names &besides, int64_t least, int64_t most);
  ArrayAttr list(const Names &names);

  // Arguments.
  Value argument(const std::string &name, const char *role, NamedTensorType t, Array value,
                 int64_t range = 0, StringRef rangeDim = "", bool ignored = false);
  Val param(const Names &names, bool mayTie = true);
  Val fixed(const Names &names);
  Val jitter(Val x);
  Value ids(const Names &names, const std::string &rangeDim, bool ignored = false);
  void needRandom();

  // Building blocks.
  Value scalar(double value) { return constant(b, loc, type({}), value); }
  Val scale(Val x, double factor) {
    return {binary<MulOp>(b, loc, x.v, scalar(factor)), x.bound * std::abs(factor)};
  }
  Val fit(Val x, double limit);
  Val inOrder(Val x, const Names &names) {
    return {broadcastTo(b, loc, x.v, type(names)), x.bound};
  }
  Val contract(Val x, Val y, const Names &result);
  Val sumOver(Val x, const Names &names);
  Val take();
  const Val &latest() { return pool.back(); }

  // Steps. None when it does not apply to the values at hand.
  using Step = std::optional<Val> (Generator::*)();
  std::optional<Val> smooth();
  std::optional<Val> kinked();
  std::optional<Val> arithmetic();
  std::optional<Val> withParam();
  std::optional<Val> square();
  std::optional<Val> linear();
  std::optional<Val> product();
  std::optional<Val> reduction();
  std::optional<Val> normed();
  std::optional<Val> moved();
  std::optional<Val> joined();
  std::optional<Val> lookup();
  std::optional<Val> scattered();
  std::optional<Val> attend();
  std::optional<Val> dropped();
  std::optional<Val> rotated();
  std::optional<Val> masked();
  std::optional<Val> quotient();
  std::optional<Val> plain();
  std::optional<Val> pinned();
  std::optional<Val> repeated();
  void step(bool inRepeat);

  void makeMesh();
  ShardRuleAttr rule(const std::vector<StringAttr> &axes);
  void makePlan();
  void pinParams();
  void makeZero();
  Value makeLoss();
  func::FuncOp finish(ArrayRef<Value> results);

  struct Arg {
    BlockArgument value;
    std::string name, role;
    Array array;
    int64_t range;
    std::string rangeDim;
    bool ignored;
  };

  std::mt19937_64 random;
  OpBuilder b;
  Location loc;
  Type element;
  std::map<std::string, int64_t> sizes;
  Names baseDims;
  std::vector<Arg> args;
  std::vector<Val> pool, params;
  OwningOpRef<ModuleOp> module;
  func::FuncOp function;
  Block *entry = nullptr;
  Value seed, stepNumber, layer;
  MeshAttr mesh;
  int names = 0, steps = 0;
  bool compound = false, inBody = false;
};

inline bool has(const Names &list, const std::string &name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

inline Names without(Names list, const Names &dropped) {
  std::erase_if(list, [&](const std::string &name) { return has(dropped, name); });
  return list;
}

inline Names joinedWith(Names list, const Names &more) {
  for (const std::string &name : more)
    if (!has(list, name))
      list.push_back(name);
  return list;
}

} // namespace cleave::testing
