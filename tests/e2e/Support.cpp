//===- Support.cpp - models to run, for the end-to-end tests --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

#include "runtime/cpu/ObjectLoader.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace cleave::e2e {

//===----------------------------------------------------------------------===//
// Models and layouts
//===----------------------------------------------------------------------===//

Layout oneRank() { return {"none", "none", {}}; }
Layout tp(int64_t n) { return {"tp" + std::to_string(n), "megatron", {{"tp", n}}}; }
Layout dp(int64_t n) { return {"dp" + std::to_string(n), "data", {{"dp", n}}}; }
Layout dpTp() { return {"dp2_tp2", "megatron", {{"dp", 2}, {"tp", 2}}}; }
Layout sequence(int64_t n) { return {"sp" + std::to_string(n), "megatron_sp", {{"tp", n}}}; }
std::vector<Layout> allLayouts() {
  return {oneRank(), tp(2), tp(3), tp(4), dp(2), dpTp(), sequence(2)};
}

std::string sourcePath(const std::string &path) {
  return std::string(CLEAVE_SOURCE_DIR) + "/" + path;
}

std::string readText(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << path;
  return text.str();
}

Model gpt2() {
  return {readText(sourcePath("models/gpt2.cleave")),
          {{"vocab", "37"},
           {"width", "20"},
           {"heads", "5"},
           {"head_dim", "4"},
           {"layers", "2"},
           {"positions", "11"}},
          {{"batch", 3}, {"seq", 7}}};
}

Model gpt2With(const std::string &name, const std::string &value) {
  Model model = gpt2();
  model.settings.emplace_back(name, value);
  return model;
}

static Result<CompileResult> compileModel(const Model &model, const Layout &layout,
                                          CompileOptions options) {
  CheckOptions check;
  check.settings = model.settings;
  check.freeSizes = model.sizes;
  check.plan = layout.plan == "none" ? "" : layout.plan;
  check.mesh = layout.mesh;
  auto program = cleave::check(SourceFile("model.cleave", model.text), check);
  if (!program)
    return program.error();
  options.plan = layout.plan;
  return compile(*program, options);
}

std::shared_ptr<const Executable> compiled(const Model &model, const Layout &layout,
                                           CompileOptions options) {
  auto result = compileModel(model, layout, std::move(options));
  if (!result) {
    ADD_FAILURE() << layout << ": " << result.error().message;
    return nullptr;
  }
  return std::make_shared<const Executable>(std::move(result->executable));
}

std::string emitted(const Model &model, const Layout &layout, CompileOptions options) {
  auto result = compileModel(model, layout, std::move(options));
  if (!result) {
    ADD_FAILURE() << layout << ": " << result.error().message;
    return "";
  }
  return result->text;
}

static CompileOptions single(EntryPoint entry, DType dtype) {
  CompileOptions options;
  options.entries = {std::move(entry)};
  options.dtype = dtype;
  return options;
}

CompileOptions trainStep(DType dtype, OptimizerSettings optimizer) {
  CompileOptions options = single({"loss", EntryPoint::Kind::TrainStep, true}, dtype);
  options.optimizer = std::move(optimizer);
  return options;
}

CompileOptions forwardOf(const std::string &function, DType dtype, bool training) {
  return single({function, EntryPoint::Kind::Function, training}, dtype);
}

CompileOptions gradientsOf(const std::string &function, DType dtype, bool training) {
  return single({function, EntryPoint::Kind::Gradients, training}, dtype);
}

//===----------------------------------------------------------------------===//
// Sessions
//===----------------------------------------------------------------------===//

std::unique_ptr<Session> started(std::shared_ptr<const Executable> executable) {
  if (!executable)
    return nullptr; // has failed already
  auto kernels = ObjectLoader::load(*executable);
  if (!kernels) {
    ADD_FAILURE() << kernels.error().message;
    return nullptr;
  }
  SessionOptions options;
  options.threads = 2;
  options.watchdogSeconds = 8;
  options.poison = true;
  options.beside = true;
  auto session = Session::create(std::move(executable), *kernels, options);
  if (!session) {
    ADD_FAILURE() << session.error().message;
    return nullptr;
  }
  return std::move(*session);
}

Tensors oracle(const std::string &name) {
  auto file = SafetensorsFile::open(sourcePath("tests/oracles/" + name));
  if (!file) {
    ADD_FAILURE() << file.error().message;
    return {};
  }
  Tensors tensors;
  for (const auto &[key, entry] : file->entries()) {
    auto value = file->read(key);
    if (value)
      tensors.emplace(key, std::move(*value));
    else
      ADD_FAILURE() << value.error().message;
  }
  return tensors;
}

void setParams(Session &session, const Tensors &values) {
  for (const Argument *param : session.persistentArguments()) {
    if (param->role != Argument::Role::Param)
      continue;
    auto value = values.find(param->name);
    ASSERT_NE(value, values.end()) << param->name;
    auto converted = convert(value->second.view(), param->layout.dtype);
    ASSERT_TRUE(converted) << converted.error().message;
    auto status = session.set(param->name, converted->view());
    ASSERT_TRUE(status) << status.error().message;
  }
}

Tensors persistent(Session &session, bool states) {
  Tensors values;
  for (const Argument *argument : session.persistentArguments()) {
    if (argument->role == Argument::Role::State && !states)
      continue;
    auto value = session.get(argument->name);
    if (value)
      values.emplace(argument->name, std::move(*value));
    else
      ADD_FAILURE() << value.error().message;
  }
  return values;
}

Tensors ran(Session &session, const std::string &name, const Tensors &inputs, Scalars scalars,
            RunOptions options) {
  std::set<std::string> takes;
  Tensors own;
  for (const Program &program : session.executable().programs) {
    if (program.name != name)
      continue;
    for (const Argument &a : program.arguments) {
      takes.insert(a.name);
      if (a.role == Argument::Role::Input)
        if (auto found = inputs.find(a.name); found != inputs.end())
          own.insert(*found);
    }
  }
  std::erase_if(scalars, [&](const auto &scalar) { return !takes.count(scalar.first); });
  auto result = session.run(name, own, scalars, options);
  if (!result) {
    ADD_FAILURE() << name << ": " << result.error().message;
    return {};
  }
  return std::move(result->results);
}

double number(const Tensors &results, const std::string &name) {
  auto found = results.find(name);
  if (found == results.end() || found->second.elements() != 1) {
    ADD_FAILURE() << "no number '" << name << "'";
    return std::nan("");
  }
  return elementAsDouble(found->second.dtype, found->second.data.data(), 0);
}

//===----------------------------------------------------------------------===//
// Comparing
//===----------------------------------------------------------------------===//

double largest(const HostTensor &tensor) {
  double most = 0;
  for (int64_t i = 0; i < tensor.elements(); ++i)
    most = std::max(most, std::abs(elementAsDouble(tensor.dtype, tensor.data.data(), i)));
  return most;
}

double distance(const HostTensor &a, const HostTensor &b) {
  if (a.shape != b.shape)
    return INFINITY;
  double most = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    double d = std::abs(elementAsDouble(a.dtype, a.data.data(), i) -
                        elementAsDouble(b.dtype, b.data.data(), i));
    if (!(d <= most)) // NaN too
      most = std::isnan(d) ? INFINITY : d;
  }
  return most;
}

::testing::AssertionResult sameBits(const Tensors &a, const Tensors &b) {
  if (a.empty())
    return ::testing::AssertionFailure() << "nothing to compare";
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " tensors";
  for (const auto &[name, value] : a) {
    auto other = b.find(name);
    if (other == b.end())
      return ::testing::AssertionFailure() << "no '" << name << "'";
    if (value.dtype != other->second.dtype || value.shape != other->second.shape)
      return ::testing::AssertionFailure() << "'" << name << "' has another type";
    if (value.data != other->second.data)
      return ::testing::AssertionFailure()
             << "'" << name << "' differs by " << distance(value, other->second) << " of "
             << largest(value);
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult close(const Tensors &expected, const Tensors &found, double relative) {
  if (expected.empty())
    return ::testing::AssertionFailure() << "nothing to compare";
  double overall = 0;
  for (const auto &[name, value] : expected)
    overall = std::max(overall, largest(value));
  for (const auto &[name, value] : expected) {
    auto other = found.find(name);
    if (other == found.end())
      return ::testing::AssertionFailure() << "no '" << name << "'";
    double scale = largest(value);
    if (scale <= 1e-12 * overall)
      scale = overall;
    double off = distance(value, other->second);
    if (!(off <= relative * scale))
      return ::testing::AssertionFailure()
             << "'" << name << "' differs by " << off << ", allowed " << relative * scale;
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult asGood(const Tensors &exact, const Tensors &one, const Tensors &found,
                                  double unit) {
  if (exact.empty())
    return ::testing::AssertionFailure() << "nothing to compare";
  double overall = 0;
  for (const auto &[name, value] : exact)
    if (value.elements() > 1)
      overall = std::max(overall, largest(value));
  for (const auto &[name, value] : exact) {
    auto reference = one.find(name), other = found.find(name);
    if (reference == one.end() || other == found.end())
      return ::testing::AssertionFailure() << "no '" << name << "'";
    double scale = largest(value);
    if (scale <= 1e-12 * overall)
      scale = overall;
    double off = distance(value, other->second);
    double allowed = std::max(4 * distance(value, reference->second), 8 * unit * scale);
    if (!(off <= allowed))
      return ::testing::AssertionFailure()
             << "'" << name << "' differs by " << off << ", allowed " << allowed;
  }
  return ::testing::AssertionSuccess();
}

} // namespace cleave::e2e
