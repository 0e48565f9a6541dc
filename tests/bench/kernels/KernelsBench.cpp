//===- KernelsBench.cpp - generated kernels beside the roofline -----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Small programs in the language, of GPT-2 124M's sizes and without products, compiled and
// run as any program. A row's time is that of the program's steps; `roofline` is its share of the
// roofline (the least time of each step over the time of all), measured in the same run.
//
//===----------------------------------------------------------------------===//
#include "frontend/Check.h"
#include "passes/Compile.h"
#include "runtime/cpu/ObjectLoader.h"
#include "runtime/cpu/Roofline.h"
#include "runtime/executor/Session.h"

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

using namespace cleave;

namespace {

struct Case {
  std::string name;
  EntryPoint::Kind kind;
  std::string text;
};

/// Inputs are named x, y, g (floats) and labels.
std::vector<Case> cases() {
  using Kind = EntryPoint::Kind;
  auto model = [](const std::string &sizes, const std::string &body) {
    return "model m(" + sizes + ") {\n" + body + "}\n";
  };
  std::string wide = "rows = 1024, ffn = 3072", narrow = "rows = 1024, width = 768",
              small = "rows = 16384, width = 64";
  auto elementwise = [&](const std::string &value) {
    return model(wide, "  fn loss(x, y: [rows, ffn]) -> [rows, ffn] { return " + value + " }\n");
  };
  auto normForward = [&](const std::string &sizes, const std::string &norm) {
    return model(sizes, "  part n: " + norm +
                            "(width)\n"
                            "  fn loss(x: [rows, width]) -> [rows, width] { return n(x) }\n");
  };
  // The param stands for an activation: params are what gradients are asked for.
  auto normBackward = [&](const std::string &sizes, const std::string &norm) {
    return model(sizes, "  param a: [rows, width] = normal(1)\n  part n: " + norm +
                            "(width)\n"
                            "  fn loss(g: [rows, width]) -> f32 { return sum(n(a) * g) }\n");
  };
  std::string logits = "  param a: [rows, vocab] = normal(1)\n";
  return {
      {"gelu_erf", Kind::Function, elementwise("gelu_erf(x)")},
      {"gelu_tanh", Kind::Function, elementwise("gelu_tanh(x)")},
      {"residual", Kind::Function, elementwise("x + y")},
      {"dropout_residual", Kind::Function, elementwise("x + dropout(y, 0.1)")},
      {"layer_norm", Kind::Function, normForward(narrow, "layer_norm")},
      {"layer_norm_64", Kind::Function, normForward(small, "layer_norm")},
      {"rms_norm", Kind::Function, normForward(narrow, "rms_norm")},
      {"rms_norm_64", Kind::Function, normForward(small, "rms_norm")},
      {"layer_norm_and_gradients", Kind::Gradients, normBackward(narrow, "layer_norm")},
      {"rms_norm_and_gradients", Kind::Gradients, normBackward(narrow, "rms_norm")},
      {"softmax_256", Kind::Function,
       model("rows = 12288, keys = 256",
             "  fn loss(x: [rows, keys]) -> [rows, keys] { return softmax(x, over = keys) }\n")},
      {"softmax_vocab", Kind::Function,
       model("rows = 1024, vocab = 50257",
             "  fn loss(x: [rows, vocab]) -> [rows, vocab] { return softmax(x, over = vocab) }\n")},
      {"cross_entropy_and_gradient", Kind::Gradients,
       model("rows = 1024, vocab = 50257",
             logits + "  fn loss(labels: i32[rows]) -> f32 { return cross_entropy(a, labels) }\n")},
      {"adamw", Kind::TrainStep,
       model("width = 768, ffn = 12288",
             "  param a: [width, ffn] = normal(1)\n"
             "  fn loss(g: [width, ffn]) -> f32 { return sum(a * g) }\n")},
  };
}

struct Bench {
  std::unique_ptr<Session> session;
  std::map<std::string, HostTensor> inputs;
  std::map<std::string, ScalarValue> scalars;
};

Result<Bench> prepare(const Case &c, int threads) {
  auto program = check(SourceFile(c.name + ".cleave", c.text), CheckOptions{});
  if (!program)
    return program.error();
  CompileOptions options;
  options.entries = {{"loss", c.kind, /*training=*/true}};
  auto compiled = compile(*program, options);
  if (!compiled)
    return compiled.error();
  auto executable = std::make_shared<const Executable>(std::move(compiled->executable));
  auto kernels = ObjectLoader::load(*executable);
  if (!kernels)
    return kernels.error();
  SessionOptions run;
  run.threads = threads;
  run.profile = true;
  auto session = Session::create(executable, *kernels, run);
  if (!session)
    return session.error();
  if (auto status = (*session)->initialise(1); !status)
    return status.error();
  Bench bench;
  bench.session = std::move(*session);
  for (const Argument &a : executable->programs[0].arguments) {
    if (a.role == Argument::Role::Scalar)
      bench.scalars[a.name] = a.layout.dtype == DType::F32 || a.layout.dtype == DType::F64
                                  ? ScalarValue(1e-3)
                                  : ScalarValue(int64_t{1});
    if (a.role != Argument::Role::Input)
      continue;
    std::vector<int64_t> shape;
    for (const DimLayout &d : a.layout.dims)
      shape.push_back(d.size);
    HostTensor tensor(a.layout.dtype, shape);
    for (int64_t i = 0; i < tensor.elements(); ++i)
      if (a.layout.dtype == DType::F32)
        tensor.as<float>()[i] = 3 * std::sin(static_cast<float>(i % 10007));
      else
        tensor.as<int32_t>()[i] = static_cast<int32_t>(i * 7919 % 50257);
    bench.inputs.emplace(a.name, std::move(tensor));
  }
  return bench;
}

bool anyFailed = false;

void skip(benchmark::State &state, const Error &error) {
  anyFailed = true;
  state.SkipWithError(error.message.c_str());
}

void run(benchmark::State &state, const Case &c) {
  auto threads = static_cast<int>(state.range(0));
  auto bench = prepare(c, threads);
  if (!bench) {
    skip(state, bench.error());
    return;
  }
  Session &session = *bench->session;
  const Program &program = session.executable().programs[0];
  auto once = [&]() -> Result<double> {
    session.resetProfile();
    RunOptions options;
    options.fetch = false;
    if (auto result = session.run(program.name, bench->inputs, bench->scalars, options); !result)
      return result.error();
    double seconds = 0;
    auto ranks = session.profile(0);
    for (const StepProfile &step : ranks[0])
      seconds += step.seconds;
    return seconds;
  };
  // The first run touches its memory for the first time.
  if (auto first = once(); !first) {
    skip(state, first.error());
    return;
  }
  double best = INFINITY;
  for (auto _ : state) {
    auto seconds = once();
    if (!seconds) {
      skip(state, seconds.error());
      return;
    }
    state.SetIterationTime(*seconds);
    best = std::min(best, *seconds);
  }
  Roofline roofline = measureRoofline(threads, DType::F32);
  double least = 0, bytes = 0;
  for (const Step &step : program.steps) {
    least += roofline.seconds(static_cast<double>(step.flops), static_cast<double>(step.bytes));
    bytes += static_cast<double>(step.bytes);
  }
  state.counters["best_ms"] = best * 1e3;
  state.counters["GB/s"] = bytes / best * 1e-9;
  state.counters["roofline"] = least / best;
}

} // namespace

int main(int argc, char **argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv))
    return 1;
  for (const Case &c : cases())
    for (int threads : {1, 2})
      benchmark::RegisterBenchmark(c.name.c_str(), [c](benchmark::State &state) { run(state, c); })
          ->ArgName("threads")
          ->Arg(threads)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  return anyFailed ? 1 : 0;
}
