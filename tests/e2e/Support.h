//===- Support.h - models to run, for the end-to-end tests ------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Check.h"
#include "passes/Compile.h"
#include "runtime/data/Safetensors.h"
#include "runtime/executor/Session.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace cleave::e2e {

using Tensors = std::map<std::string, HostTensor>;
using Scalars = std::map<std::string, ScalarValue>;
using Pairs = std::vector<std::pair<std::string, std::string>>;

/// A plan and the sizes of its mesh.
struct Layout {
  std::string name; ///< for the test's name: "dp2_tp2"
  std::string plan = "none";
  std::vector<std::pair<std::string, int64_t>> mesh;
};
inline std::ostream &operator<<(std::ostream &os, const Layout &layout) {
  return os << layout.name;
}

/// One rank; tp = 2, 3, 4; dp = 2; dp = 2 x tp = 2; and sequence parallel.
/// None of the tp divides heads (5) or vocab (37); dp does not divide batch (3).
Layout oneRank();
Layout tp(int64_t n);
Layout dp(int64_t n);
Layout dpTp();
Layout sequence(int64_t n);
std::vector<Layout> allLayouts();

/// A model's text with everything that it takes to compile it.
struct Model {
  std::string text;
  Pairs settings;
  std::map<std::string, int64_t> sizes; ///< of the free dims
};

/// models/gpt2.cleave with the sizes of tests/oracles/gpt2.
Model gpt2();
/// The same with one more setting, "dropout_rate=0.3".
Model gpt2With(const std::string &name, const std::string &value);

std::string sourcePath(const std::string &path); ///< of a file of the repository
std::string readText(const std::string &path);

/// Fails the test, and gives nothing, if there is an error.
std::shared_ptr<const Executable> compiled(const Model &model, const Layout &layout,
                                           CompileOptions options);
/// The text of a stage.
std::string emitted(const Model &model, const Layout &layout, CompileOptions options);

/// With poisoned buffers and a watchdog of some seconds.
std::unique_ptr<Session> started(std::shared_ptr<const Executable> executable);

/// A file of tests/oracles/, whole.
Tensors oracle(const std::string &file);
/// Sets all params from these, converted to their types.
void setParams(Session &session, const Tensors &values);
/// All params (and states), by name.
Tensors persistent(Session &session, bool states = false);

/// Runs once; fails the test if that fails. Keeps only the scalars that the
/// program takes.
Tensors ran(Session &session, const std::string &program, const Tensors &inputs,
            Scalars scalars = {}, RunOptions options = {});
double number(const Tensors &results, const std::string &name);

CompileOptions trainStep(DType dtype, OptimizerSettings optimizer = {});
CompileOptions forwardOf(const std::string &function, DType dtype, bool training = false);
CompileOptions gradientsOf(const std::string &function, DType dtype, bool training = false);

double largest(const HostTensor &tensor);
/// The largest difference of two tensors of one shape.
double distance(const HostTensor &a, const HostTensor &b);
/// Same names, types, shapes and bits.
::testing::AssertionResult sameBits(const Tensors &a, const Tensors &b);
/// Within `relative` of each tensor's largest magnitude; tensors that are zero
/// in mathematics (below 1e-12 of the largest of all) within that of the largest.
::testing::AssertionResult close(const Tensors &expected, const Tensors &found, double relative);

/// In low precision: the error against float64 is at most 4 times that of one rank in the same
/// precision; floor: 8 units of the tensor's largest magnitude (2^-8 for bf16, 2^-11 for f16).
::testing::AssertionResult asGood(const Tensors &exact, const Tensors &one, const Tensors &found,
                                  double unit);

} // namespace cleave::e2e
