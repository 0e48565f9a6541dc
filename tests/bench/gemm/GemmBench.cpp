//===- GemmBench.cpp - our products against other libraries ---------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
// gemm_bench [--no-peers] [Google Benchmark's options]
//
// Three groups of rows, each with one and two threads:
//   fused/   products with their epilogues, as a program runs them that the compiler has made,
//            beside the others' bare product of that size
//   bare/    the products of a GPT-2 124M step
//   decode/  few rows; the weight is another one in each call, so that it comes from memory
//
// All take turns, since other programs may disturb any of them, and the best times are compared
// (with one thread, its processor time):
// `over_best` is our time over the least of the others' (below 1: ours is faster), a column with
// a library's name is our time over its. `packed` rows have B packed ahead, as a session keeps
// weights that do not change; their column `unpacked` is the time over ours with B as it lies.
#include "Peers.h"

#include "frontend/Check.h"
#include "passes/Compile.h"
#include "runtime/core/Shard.h"
#include "runtime/core/Threads.h"
#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/ObjectLoader.h"
#include "runtime/cpu/Roofline.h"

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <thread>
#include <time.h>

using namespace cleave;
using namespace cleave::bench;

namespace {

/// Seconds. With one thread, of its own time: what other programs take does not count.
double now(int threads) {
  timespec time;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

std::vector<float> numbers(int64_t count) {
  std::vector<float> v(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float &x : v) {
    state = state * 1664525 + 1013904223;
    x = float(state >> 8) / float(1 << 23) - 1;
  }
  return v;
}

template <typename T> T orExit(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "gemm_bench: %s\n", result.error().message.c_str());
    std::exit(1);
  }
  return std::move(*result);
}
//===----------------------------------------------------------------------===//
// Turns
//===----------------------------------------------------------------------===//

/// The best times up to now, ours first: a benchmark's function is called several times.
struct Best {
  double ours = std::numeric_limits<double>::infinity();
  std::vector<double> peers;
};

/// One turn of several calls, each with the next of the copies of B. Returns the seconds of all of
/// them, and keeps the best one's.
template <typename Call>
double turn(int threads, int64_t calls, int64_t copies, double &best, Call call) {
  double all = 0;
  for (int64_t i = 0; i < calls; ++i) {
    double start = now(threads);
    call(i % copies);
    double seconds = now(threads) - start;
    all += seconds;
    best = std::min(best, seconds);
  }
  return all;
}

/// `ours` takes the number of a copy of B, of which `b` has one or more. Of the peers the first
/// `libraries` are other libraries.
template <typename Ours>
void takeTurns(benchmark::State &state, const std::vector<Peer> &peers, size_t libraries,
               Best &best, const Shape &shape, int threads, const std::vector<float> &a,
               const std::vector<float> &b, std::vector<float> &c, Ours ours) {
  const double flops = 2.0 * double(shape.m) * double(shape.n) * double(shape.k);
  // Short products are called often, so that a turn is long beside the change of turns.
  const auto calls = std::max<int64_t>(1, static_cast<int64_t>(0.005 * 50e9 * threads / flops));
  const int64_t sizeB = shape.k * shape.n, copies = std::ssize(b) / sizeB;
  best.peers.resize(peers.size(), std::numeric_limits<double>::infinity());
  while (state.KeepRunningBatch(calls)) {
    state.SetIterationTime(turn(threads, calls, copies, best.ours, ours));
    for (size_t i = 0; i < peers.size(); ++i) {
      turn(threads, calls, copies, best.peers[i], [&](int64_t copy) {
        peers[i].multiply(shape, a.data(), b.data() + copy * sizeB, c.data(), threads);
      });
      if (threads > 1) // its workers may spin for a while: nobody else should pay for that
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
  }
  state.counters["GFLOP/s"] = flops / best.ours * 1e-9;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < peers.size(); ++i) {
    state.counters[peers[i].name] = best.ours / best.peers[i];
    if (i < libraries)
      least = std::min(least, best.peers[i]);
  }
  if (libraries > 0)
    state.counters["over_best"] = best.ours / least;
}

//===----------------------------------------------------------------------===//
// Products of compiled programs
//===----------------------------------------------------------------------===//

const char *const modelText = R"(
model products(width = 768, ffn = 3072, joined = 2304) {
  free rows
  param up: [width, ffn] = normal(0.02)
  param down: [ffn, width] = normal(0.02)
  param qkv: [width, joined] = normal(0.02)
  param up_bias: [ffn] = normal(0.02)
  param down_bias: [width] = normal(0.02)
  param qkv_bias: [joined] = normal(0.02)
  fn bias(x: [rows, width]) -> [rows, joined] { return x @ qkv + qkv_bias }
  fn bias_gelu(x: [rows, width]) -> [rows, ffn] { return gelu_tanh(x @ up + up_bias) }
  fn bias_residual(h: [rows, ffn], x: [rows, width]) -> [rows, width] {
    return x + (h @ down + down_bias)
  }
  fn mlp(x: [rows, width]) -> f32 { return sum(bias_residual(bias_gelu(x), x) * x) }
}
)";

/// The model's programs on one rank.
struct Compiled {
  Compiled() {
    CheckOptions check;
    check.freeSizes = {{"rows", 1024}};
    auto checked = orExit(cleave::check(SourceFile("products.cleave", modelText), check));
    CompileOptions options;
    using Kind = EntryPoint::Kind;
    options.entries = {{"bias", Kind::Function, false},
                       {"bias_gelu", Kind::Function, false},
                       {"bias_residual", Kind::Function, false},
                       {"mlp", Kind::Gradients, true}};
    executable = orExit(compile(checked, options)).executable;
    kernels = orExit(ObjectLoader::load(executable));
  }
  Executable executable;
  std::shared_ptr<const KernelSource> kernels;
};

/// One product of a program, with memory for all that the program's steps touch. The product's
/// own operands and result lie where its peers have theirs, so that no cache favours them.
class CompiledProduct {
public:
  CompiledProduct(const Compiled &compiled, const Program &program, const GemmStep &step,
                  std::vector<float> &a, std::vector<float> &b, std::vector<float> &c)
      : program(program), step(step), shared{{step.a, a}, {step.b, b}, {step.c, c}},
        arena(numbers(program.arenaBytes / 4)) {
    for (const Argument &argument : program.arguments)
      arguments.push_back(numbers(argument.localBytes / 4));
    for (const ProgramResult &result : program.results)
      results.push_back(numbers(localElements(result.layout)));
    if (step.epilogue.empty())
      return;
    RankPosition rank(compiled.executable.mesh, 0);
    for (const BufferRef &ref : step.epilogueBuffers)
      pointers.push_back(at(ref));
    for (const RankScalar &scalar : step.epilogueScalars)
      scalars.push_back(rank.resolve(scalar));
    epilogue = {compiled.kernels->find(step.epilogue), pointers.data(), scalars.data()};
  }

  void run(ThreadTeam &team) {
    char *sums = step.sums == GemmStep::Sums::None ? nullptr : at(step.sumsTo);
    cpuGemm(step, at(step.a), at(step.b), at(step.c), epilogue, team, bestKernels(), sums);
  }

private:
  char *at(const BufferRef &ref) {
    for (auto &[place, memory] : shared)
      if (place.buffer == ref.buffer && place.offset == ref.offset)
        return reinterpret_cast<char *>(memory.data());
    const Buffer &buffer = program.buffers[static_cast<size_t>(ref.buffer)];
    auto index = static_cast<size_t>(buffer.index);
    bool isArgument = buffer.kind == Buffer::Kind::Argument;
    if (buffer.kind == Buffer::Kind::Result && program.results[index].aliasOf >= 0) {
      index = static_cast<size_t>(program.results[index].aliasOf);
      isArgument = true;
    }
    std::vector<float> &memory = buffer.kind == Buffer::Kind::Arena ? arena
                                 : isArgument                       ? arguments[index]
                                                                    : results[index];
    return reinterpret_cast<char *>(memory.data()) + ref.offset +
           (buffer.kind == Buffer::Kind::Arena ? buffer.offset : 0);
  }

  const Program &program;
  const GemmStep &step;
  std::vector<std::pair<BufferRef, std::vector<float> &>> shared;
  std::vector<float> arena;
  std::vector<std::vector<float>> arguments, results;
  std::vector<char *> pointers;
  std::vector<int64_t> scalars;
  KernelCall epilogue;
};

void addFused(const std::shared_ptr<Compiled> &compiled, const std::vector<Peer> &peers) {
  for (const Program &program : compiled->executable.programs)
    for (const Step &one : program.steps) {
      const auto *step = std::get_if<GemmStep>(&one.action);
      if (!step)
        continue;
      Shape shape{step->m, step->n, step->k, step->transA, step->transB};
      std::string ops = one.label < 0 ? "" : program.labels[static_cast<size_t>(one.label)].ops;
      for (int threads : {1, 2}) {
        auto best = std::make_shared<Best>();
        benchmark::RegisterBenchmark(
            fmt::format("fused/{} {} [{}]/{}", program.name, shape.text(), ops, threads).c_str(),
            [=, &peers, &program](benchmark::State &state) {
              std::vector<float> a = numbers(shape.m * shape.k), b = numbers(shape.k * shape.n),
                                 c = numbers(shape.m * shape.n);
              CompiledProduct product(*compiled, program, *step, a, b, c);
              ThreadTeam team(threads);
              takeTurns(state, peers, peers.size(), *best, shape, threads, a, b, c,
                        [&](int64_t) { product.run(team); });
            })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
}

//===----------------------------------------------------------------------===//
// Bare products
//===----------------------------------------------------------------------===//

/// As B is packed.
struct alignas(64) Line {
  char bytes[64];
};

GemmStep stepOf(const Shape &shape) {
  GemmStep s;
  s.m = shape.m, s.n = shape.n, s.k = shape.k;
  s.transA = shape.transA, s.transB = shape.transB;
  s.lda = shape.lda(), s.ldb = shape.ldb(), s.ldc = shape.n;
  return s;
}

const Shape stepShapes[] = {
    {1024, 2304, 768, false, false},  {1024, 768, 768, false, false},
    {768, 768, 1024, true, false},    {1024, 3072, 768, false, false},
    {1024, 768, 3072, false, false},  {1024, 768, 3072, false, true},
    {3072, 768, 1024, true, false},   {1024, 50257, 768, false, true},
    {1024, 768, 50257, false, false}, {50257, 768, 1024, true, false},
};

/// A product of ours, of operands that lie dense.
void multiply(const Shape &shape, const float *a, const float *b, float *c, ThreadTeam &team,
              const char *packedB = nullptr) {
  GemmStep s = stepOf(shape);
  cpuGemm(s, reinterpret_cast<const char *>(a), reinterpret_cast<const char *>(b),
          reinterpret_cast<char *>(c), {}, team, bestKernels(), nullptr, packedB);
}

/// `packed`: B is packed ahead, as weights are that do not change; the others then have one more,
/// ours with B as it lies.
void addBare(const std::string &group, const Shape &shape, int64_t copies, double bandwidth,
             int threads, bool packed, const std::vector<Peer> &peers) {
  auto best = std::make_shared<Best>();
  benchmark::RegisterBenchmark(
      fmt::format("{}/{}{}/{}", group, shape.text(), packed ? " packed" : "", threads).c_str(),
      [=, &peers](benchmark::State &state) {
        std::vector<float> a = numbers(shape.m * shape.k), b = numbers(shape.k * shape.n * copies),
                           c = numbers(shape.m * shape.n);
        ThreadTeam team(threads);
        const GemmStep s = stepOf(shape);
        const int64_t sizeB = shape.k * shape.n, bytes = packed ? packedBytes(s) : 0;
        std::vector<Line> packs(static_cast<size_t>(copies * bytes / int64_t{sizeof(Line)}));
        auto packAt = [&](int64_t i) {
          return packed ? reinterpret_cast<char *>(packs.data()) + i * bytes : nullptr;
        };
        std::vector<Peer> others = peers;
        if (packed) {
          for (int64_t i = 0; i < copies; ++i)
            packB(s, reinterpret_cast<const char *>(b.data() + i * sizeB), packAt(i), team);
          others.push_back(
              {"unpacked", {}, [&](const Shape &, const float *x, const float *y, float *z, int) {
                 multiply(shape, x, y, z, team);
               }});
        }
        takeTurns(state, others, peers.size(), *best, shape, threads, a, b, c, [&](int64_t i) {
          multiply(shape, a.data(), b.data() + i * sizeB, c.data(), team, packAt(i));
        });
        if (bandwidth > 0) {
          double moved =
              double(sizeof(float)) * double(shape.m * shape.k + sizeB + shape.m * shape.n);
          state.counters["GB/s"] = moved / best->ours * 1e-9;
          state.counters["of_memory"] = moved / best->ours / bandwidth;
        }
      })
      ->UseManualTime()
      ->Unit(group == "decode" ? benchmark::kMicrosecond : benchmark::kMillisecond);
}

void addAllBare(const std::vector<Peer> &peers) {
  for (const Shape &shape : stepShapes)
    for (int threads : {1, 2})
      addBare("bare", shape, 1, 0, threads, false, peers);
  for (int threads : {1, 2}) {
    double bandwidth = measureRoofline(threads, DType::F32).bytes;
    benchmark::AddCustomContext(fmt::format("memory, {} thread(s)", threads),
                                fmt::format("{:.1f} GB/s", bandwidth * 1e-9));
    for (auto [n, k] : {std::pair<int64_t, int64_t>{3072, 768}, {768, 3072}, {50257, 768}})
      for (bool transposed : {false, true})
        for (int64_t m : {1, 2, 4, 8})
          for (bool packed : {false, true}) {
            // Together far more than the last-level cache holds.
            int64_t copies = std::max<int64_t>(1, (int64_t{192} << 20) / (n * k * 4));
            addBare("decode", {m, n, k, false, transposed}, copies, bandwidth, threads, packed,
                    peers);
          }
  }
}
} // namespace

int main(int argc, char **argv) {
  // What is given comes later, and wins.
  std::vector<char *> arguments{argv[0]};
  std::string defaults[] = {"--benchmark_counters_tabular=true", "--benchmark_min_time=1"};
  for (std::string &text : defaults)
    arguments.push_back(text.data());
  std::vector<Peer> peers = loadPeers();
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--no-peers") == 0)
      peers.clear();
    else
      arguments.push_back(argv[i]);
  for (const Peer &peer : peers)
    benchmark::AddCustomContext(peer.name, peer.missing.empty() ? "loaded" : peer.missing);
  std::erase_if(peers, [](const Peer &peer) { return !peer.missing.empty(); });

  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data()))
    return 1;
  addFused(std::make_shared<Compiled>(), peers);
  addAllBare(peers);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
