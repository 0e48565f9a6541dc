//===- Machine.cpp - how fast this machine is -----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Machine.h"

#include "frontend/Check.h"
#include "passes/Compile.h"
#include "runtime/comm/ThreadCommunicator.h"
#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/ObjectLoader.h"
#include "runtime/executor/Session.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <fmt/format.h>
#include <random>
#include <thread>

namespace cleave::tool {

using Kind = CollectiveStep::Kind;

//===----------------------------------------------------------------------===//
// Timing
//===----------------------------------------------------------------------===//

namespace {

/// Of the thread where it works alone, else of the wall.
double now(const Setting &setting) {
  timespec time = {};
  clock_gettime(setting.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

/// One run of a piece of work: the seconds of its parts.
using Run = std::function<Result<std::vector<double>>()>;

struct Patience {
  double seconds = 0.03; ///< for all runs
  size_t least = 5;      ///< runs, even if they take longer
};

/// The lower quartile of each part of the first of `runs`; the others run beside it.
Result<std::vector<double>> measure(std::vector<Run> runs, const Patience &patience) {
  for (Run &run : runs) // memory that is touched for the first time
    if (auto first = run(); !first)
      return first.error();
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (size_t i = 1; i < runs.size(); ++i)
    others.emplace_back([&, i] {
      while (!stop.load())
        if (!runs[i]())
          return;
    });
  auto begin = std::chrono::steady_clock::now();
  auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<std::vector<double>> parts;
  std::optional<Error> error;
  for (size_t i = 0; i < patience.least || passed() < patience.seconds; ++i) {
    auto times = runs[0]();
    if (!times) {
      error = times.error();
      break;
    }
    parts.resize(times->size());
    for (size_t part = 0; part < parts.size(); ++part)
      parts[part].push_back((*times)[part]);
  }
  stop = true;
  for (std::thread &other : others)
    other.join();
  if (error)
    return *error;
  std::vector<double> quartiles;
  for (std::vector<double> &times : parts) {
    auto quartile = times.begin() + std::ssize(times) / 4;
    std::nth_element(times.begin(), quartile, times.end());
    quartiles.push_back(*quartile);
  }
  return quartiles;
}

Json rounded(double x) { return Json(std::strtod(fmt::format("{:.4g}", x).c_str(), nullptr)); }

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

class ProductRuns {
public:
  ProductRuns(const Setting &setting, int64_t largest)
      : setting(setting), a(static_cast<size_t>(largest), 1.0F), b(a), c(a),
        team(setting.threads, setting.threads > 1) {}

  /// So many at a time that the clock does not count.
  std::vector<double> run(const GemmStep &step, int64_t times) {
    auto bytes = [](std::vector<float> &x) { return reinterpret_cast<char *>(x.data()); };
    double begin = now(setting);
    for (int64_t i = 0; i < times; ++i)
      cpuGemm(step, bytes(a), bytes(b), bytes(c), {}, team);
    return {(now(setting) - begin) / double(times)};
  }

private:
  Setting setting;
  std::vector<float> a, b, c;
  ThreadTeam team;
};

GemmStep productStep(bool transA, bool transB, int64_t m, int64_t n, int64_t k) {
  GemmStep step;
  step.transA = transA, step.transB = transB;
  step.m = m, step.n = n, step.k = k;
  step.lda = transA ? m : k, step.ldb = transB ? k : n, step.ldc = n;
  return step;
}

} // namespace

Json Machine::products(const Setting &setting) {
  // Factors of two and three, as models have them: no powers of two only, whose rows share the
  // same sets of a cache.
  std::vector<int64_t> rows = {1, 8, 16, 64, 256, 1024}, across = {16, 64, 192, 768, 3072};
  if (quick)
    rows = {1, 16, 256}, across = {16, 192};
  int64_t largest = std::max(rows.back(), across.back()) * across.back();
  std::vector<std::unique_ptr<ProductRuns>> runs;
  for (int i = 0; i < setting.ranks; ++i)
    runs.push_back(std::make_unique<ProductRuns>(setting, largest));
  Json list = Json::array();
  for (const char *form : {"NN", "NT", "TN"}) {
    Json table = Json::array();
    for (int64_t m : rows) {
      Json ofRow = Json::array();
      for (int64_t n : across) {
        Json ofCol = Json::array();
        for (int64_t k : across) {
          progress.say(fmt::format("products {} {}x{}x{}, {} ranks on {} threads each", form, m, n,
                                   k, setting.ranks, setting.threads));
          GemmStep step = productStep(form[0] == 'T', form[1] == 'T', m, n, k);
          double flops = 2 * double(m) * double(n) * double(k);
          auto times = static_cast<int64_t>(std::max(1.0, 2e6 / flops));
          std::vector<Run> each;
          for (auto &run : runs)
            each.push_back(
                [&, &one = *run] { return Result<std::vector<double>>(one.run(step, times)); });
          auto seconds = measure(std::move(each), {quick ? 0.0 : 0.02, quick ? 3u : 5u});
          ofCol.push_back(rounded(flops / (*seconds)[0] * 1e-9));
        }
        ofRow.push_back(std::move(ofCol));
      }
      table.push_back(std::move(ofRow));
    }
    list.push_back({{"form", form},
                    {"element_bytes", 4},
                    {"m", rows},
                    {"n", across},
                    {"k", across},
                    {"gflops", std::move(table)}});
  }
  return list;
}

//===----------------------------------------------------------------------===//
// Small programs, compiled and run as any other
//===----------------------------------------------------------------------===//

namespace {

class SmallProgram {
public:
  static Result<std::unique_ptr<SmallProgram>>
  compile(const Setting &setting, EntryPoint::Kind kind, const std::string &text) {
    auto checked = check(SourceFile("calibrate.cleave", text), CheckOptions{});
    if (!checked)
      return Error{checked.error().message, Fault::Internal};
    CompileOptions options;
    options.entries = {{"loss", kind, /*training=*/true}};
    auto compiled = cleave::compile(*checked, options);
    if (!compiled)
      return Error{compiled.error().message, Fault::Internal};
    auto made = std::unique_ptr<SmallProgram>(new SmallProgram);
    made->executable = std::make_shared<const Executable>(std::move(compiled->executable));
    made->setting = setting;
    auto kernels = ObjectLoader::load(*made->executable);
    if (!kernels)
      return kernels.error();
    for (int rank = 0; rank < setting.ranks; ++rank)
      if (auto status = made->addRank(*kernels); !status)
        return status.error();
    return made;
  }

  const std::vector<Step> &steps() const { return executable->programs[0].steps; }
  /// Of each step.
  Result<std::vector<double>> seconds(const Patience &patience) {
    std::vector<Run> runs;
    for (auto &session : sessions)
      runs.push_back([this, &one = *session] { return runOnce(one); });
    return measure(std::move(runs), patience);
  }

private:
  Status addRank(const std::shared_ptr<ObjectLoader> &kernels) {
    SessionOptions options;
    options.threads = setting.threads;
    options.profile = true;
    if (setting.threads == 1) { // an emulated rank counts CPU time
      options.emulate = Cluster();
      options.emulate->levels = {{"none", 0, 0, 1, 1}};
    }
    auto session = Session::create(executable, kernels, options);
    if (!session)
      return session.error();
    if (auto status = (*session)->initialise(1); !status)
      return status;
    sessions.push_back(std::move(*session));
    if (sessions.size() > 1)
      return {};
    for (const Argument &a : executable->programs[0].arguments) {
      bool real = a.layout.dtype == DType::F32;
      if (a.role == Argument::Role::Scalar)
        scalars[a.name] = real ? ScalarValue(1e-3) : ScalarValue(int64_t{1});
      if (a.role != Argument::Role::Input)
        continue;
      std::vector<int64_t> shape;
      for (const DimLayout &d : a.layout.dims)
        shape.push_back(d.size);
      HostTensor tensor(a.layout.dtype, shape);
      for (int64_t i = 0; i < tensor.elements(); ++i)
        if (real)
          tensor.as<float>()[i] = float(i % 10007) / 5000 - 1;
        else
          tensor.as<int32_t>()[i] = static_cast<int32_t>(i % a.rangeEnd);
      inputs.emplace(a.name, std::move(tensor));
    }
    return {};
  }

  Result<std::vector<double>> runOnce(Session &session) {
    session.resetProfile();
    RunOptions options;
    options.fetch = false;
    if (auto run = session.run(executable->programs[0].name, inputs, scalars, options); !run)
      return run.error();
    if (setting.threads == 1)
      return session.computeTimes()[0];
    std::vector<double> times;
    auto profile = session.profile(0); // [rank][step]
    for (const StepProfile &step : profile[0])
      times.push_back(step.seconds);
    return times;
  }

  Setting setting;
  std::shared_ptr<const Executable> executable;
  std::vector<std::unique_ptr<Session>> sessions;
  std::map<std::string, HostTensor> inputs;
  std::map<std::string, ScalarValue> scalars;
};

std::string functionText(const std::string &dims, const std::string &params,
                         const std::string &inputs, const std::string &result,
                         const std::string &value) {
  return fmt::format("model m({}) {{\n{}  fn loss({}) -> {} {{ return {} }}\n}}\n", dims, params,
                     inputs, result, value);
}

} // namespace

Result<Json> Machine::attention(const Setting &setting) {
  std::vector<int64_t> lengths = {16, 64, 128, 256, 1024}, depths = {16, 32, 64, 128};
  if (quick)
    lengths = {16, 128}, depths = {32};
  // [gradient][causal][length][depth]
  Json rates[2][2];
  for (int causal = 0; causal < 2; ++causal)
    for (int64_t length : lengths) {
      Json ofLength[2] = {Json::array(), Json::array()};
      for (int64_t depth : depths) {
        progress.say(fmt::format("attention of {} positions, depth {}, {} ranks on {} threads each",
                                 length, depth, setting.ranks, setting.threads));
        // Several heads of several sequences, some 20 million multiply-adds.
        int64_t heads = 4;
        int64_t batch = std::clamp<int64_t>(10'000'000 / (heads * length * length * depth), 1, 64);
        std::string shape = "[batch, seq, heads, depth]";
        std::string params;
        for (const char *name : {"q", "k", "v"})
          params += fmt::format("  param {}: {} = normal(1)\n", name, shape);
        auto program = SmallProgram::compile(
            setting, EntryPoint::Kind::Gradients,
            functionText(fmt::format("batch = {}, seq = {}, heads = {}, depth = {}", batch, length,
                                     heads, depth),
                         params, "g: " + shape, "f32",
                         fmt::format("sum(attention(q, k, v, over = seq{}) * g)",
                                     causal ? ", causal = true" : "")));
        if (!program)
          return program.error();
        auto seconds = (*program)->seconds({quick ? 0.0 : 0.05, quick ? 3u : 7u});
        if (!seconds)
          return seconds.error();
        bool found[2] = {};
        for (size_t i = 0; i < seconds->size(); ++i)
          if (const AttentionShape &a = (*program)->steps()[i].attention; a.heads) {
            found[a.gradient] = true;
            ofLength[a.gradient].push_back(rounded(a.flops() / (*seconds)[i] * 1e-9));
          }
        if (!found[0] || !found[1])
          return Error{"the program of an attention has no step of one", Fault::Internal};
      }
      for (int gradient = 0; gradient < 2; ++gradient)
        rates[gradient][causal].push_back(std::move(ofLength[gradient]));
    }
  Json list = Json::array();
  for (int gradient = 0; gradient < 2; ++gradient)
    for (int causal = 0; causal < 2; ++causal)
      list.push_back({{"pass", gradient ? "backward" : "forward"},
                      {"causal", causal == 1},
                      {"length", lengths},
                      {"depth", depths},
                      {"gflops", rates[gradient][causal]}});
  return list;
}

Status Machine::passes(const Setting &setting, Json &rates) {
  using Entry = EntryPoint::Kind;
  Patience patience{quick ? 0.0 : 0.05, quick ? 3u : 7u};
  auto longest = [&](Entry kind, int64_t rows, int64_t width, const std::string &params,
                     const std::string &value,
                     std::string result = "[rows, width]") -> Result<std::pair<Step, double>> {
    auto program =
        SmallProgram::compile(setting, kind,
                              functionText(fmt::format("rows = {}, width = {}", rows, width),
                                           params, "x, y: [rows, width]", result, value));
    if (!program)
      return program.error();
    auto seconds = (*program)->seconds(patience);
    if (!seconds)
      return seconds.error();
    auto most = std::max_element(seconds->begin(), seconds->end());
    return std::pair((*program)->steps()[static_cast<size_t>(most - seconds->begin())], *most);
  };
  auto least = longest(Entry::Function, 1, 1, "", "x + y");
  if (!least)
    return least.error();
  double launch = least->second;
  std::vector<int64_t> sizes = {16, 128, 512, 2048, 8192, 32768, 98304}; // kB, about
  if (quick)
    sizes = {16, 2048};
  Json kilobytes = Json::array(), gigabytes = Json::array();
  for (int64_t size : sizes) {
    progress.say(fmt::format("passes over {} kB", size));
    // AdamW: of each element four numbers, of which three are written in place.
    auto program = SmallProgram::compile(
        setting, Entry::TrainStep,
        functionText(fmt::format("rows = {}, width = 64", size * 1024 / (4 * 4 * 64)),
                     "  param a: [rows, width] = normal(1)\n", "x: [rows, width]", "f32",
                     "sum(a * x)"));
    if (!program)
      return program.error();
    auto all = (*program)->seconds(patience);
    if (!all)
      return all.error();
    const std::vector<Step> &steps = (*program)->steps();
    size_t update = 0;
    for (size_t i = 0; i < steps.size(); ++i)
      if (steps[i].kind == StepKind::Optimizer &&
          (steps[update].kind != StepKind::Optimizer || steps[i].bytes > steps[update].bytes))
        update = i;
    double seconds = std::max((*all)[update] - launch, (*all)[update] / 10);
    kilobytes.push_back(rounded(double(size) * 1.024));
    gigabytes.push_back(rounded(double(steps[update].bytes) / seconds * 1e-9));
  }
  rates["launch_us"] = rounded(launch * 1e6);
  rates["memory"] = {{"kb", kilobytes}, {"gb_per_s", gigabytes}};
  progress.say("arithmetic in passes");
  // In the cache: what is left is arithmetic.
  auto norm = longest(Entry::Function, 128, 256, "  part n: layer_norm(width)\n", "n(x)");
  if (!norm)
    return norm.error();
  rates["pass_gflops"] = rounded(double(norm->first.flops) / norm->second * 1e-9);
  constexpr std::array<const char *, scalarFunctionNames.size()> functions = {
      "exp(x)", "tanh(x)", "erf(x)", "sin(x)", "pow(3.0, x)", "dropout(x, 0.1)"};
  for (size_t f = 0; f < functions.size(); ++f) {
    auto made = longest(Entry::Function, 128, 256, "", functions[f]);
    if (!made)
      return made.error();
    auto &[step, seconds] = *made;
    rates["pass_gfunctions"][scalarFunctionNames[f]] =
        rounded(double(step.functions[f]) / seconds * 1e-9);
  }
  return {};
}

Result<Json> Machine::rates(const Setting &setting) {
  Json rates = {{"threads", setting.threads}, {"ranks", setting.ranks}};
  if (auto status = passes(setting, rates); !status)
    return status.error();
  auto ofAttention = attention(setting);
  if (!ofAttention)
    return ofAttention.error();
  rates["attention"] = std::move(*ofAttention);
  rates["products"] = products(setting);
  return rates;
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

Result<Json> Machine::collectives(int ranks) {
  std::vector<int64_t> sizes = {256, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216};
  if (quick)
    sizes = {256, 65536, 1048576};
  ThreadWorldOptions options;
  ThreadWorld world({{"ranks", ranks}}, options);
  Json list = Json::array();
  for (Kind kind : {Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll}) {
    Json kilobytes = Json::array(), micros = Json::array();
    for (int64_t bytes : sizes) {
      progress.say(fmt::format("{} of {} over {} ranks", kindName(kind), bytesText(bytes), ranks));
      int64_t part = bytes / 4 / ranks, whole = part * ranks;
      CollectiveStep step{kind};
      step.axes = {{0, 1, ranks}};
      step.inDim = kind == Kind::AllGather ? part : whole;
      step.outDim = kind == Kind::ReduceScatter ? part : whole;
      if (kind == Kind::AllToAll) // rows of which each rank has some become columns
        step.inDim = 1, step.outDim = ranks, step.inDim2 = whole / ranks * ranks,
        step.outDim2 = part;
      auto runs = static_cast<size_t>(quick ? 5 : std::clamp<int64_t>(40'000'000 / bytes, 9, 400));
      // Ranks come at different times, as from different work: from the last arrival to the last
      // end.
      struct Called {
        std::vector<double> begins, ends;
        Status status;
      };
      std::vector<Called> ofRank(static_cast<size_t>(ranks));
      std::vector<std::thread> threads;
      for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
          Called &called = ofRank[static_cast<size_t>(rank)];
          Communicator &comm = world.rank(rank);
          std::vector<float> in(static_cast<size_t>(inElements(step)), 1.0F),
              out(static_cast<size_t>(outElements(step)), 0.0F);
          std::minstd_rand random(static_cast<unsigned>(rank) + 1);
          for (size_t i = 0; i < runs && called.status; ++i) {
            double until = now({2, ranks}) + 1e-6 * double(50 + random() % 100);
            do
              std::fill(in.begin(), in.end(), float(i));
            while (now({2, ranks}) < until);
            called.begins.push_back(now({2, ranks}));
            called.status = comm.run(step, reinterpret_cast<const char *>(in.data()),
                                     reinterpret_cast<char *>(out.data()), "calibrate", nullptr);
            called.ends.push_back(now({2, ranks}));
          }
        });
      for (std::thread &thread : threads)
        thread.join();
      std::vector<double> times(runs, 0);
      for (const Called &called : ofRank)
        if (!called.status)
          return called.status.error();
      for (size_t i = 0; i < runs; ++i) {
        double begin = 0, end = 0;
        for (const Called &called : ofRank) {
          begin = std::max(begin, called.begins[i]);
          end = std::max(end, called.ends[i]);
        }
        times[i] = end - begin;
      }
      auto quartile = times.begin() + std::ssize(times) / 4;
      std::nth_element(times.begin(), quartile, times.end());
      kilobytes.push_back(rounded(double(payloadBytes(step)) * 1e-3));
      micros.push_back(rounded(*quartile * 1e6));
    }
    list.push_back({{"kind", kindName(kind)}, {"ranks", ranks}, {"kb", kilobytes}, {"us", micros}});
  }
  return list;
}

} // namespace cleave::tool
