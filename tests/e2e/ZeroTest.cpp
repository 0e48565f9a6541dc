//===- ZeroTest.cpp - the optimizer's work split over data axes -----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Levels 0 to 3 of ZeRO against one rank, and their bytes and memory against the
// formulas of arXiv 1910.02054 (with Psi the params of a rank without ZeRO, N the
// ranks along the axes, K the states of a param):
//   bytes of a step   2 Psi (N-1)/N, at level 3: 3 Psi (N-1)/N; a param that the backward
//                     pass does not read (a bias) is not gathered again for it
//   params and states (1 + K) Psi; at levels 1, 2: Psi + K Psi/N; at 3: (1 + K) Psi/N
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include "runtime/cpu/ObjectLoader.h"

#include <cmath>
#include <set>

using namespace cleave;
using namespace cleave::e2e;

namespace {

/// Plans for every level; GPT-2's sizes in the tests' oracles are odd.
struct Mesh {
  std::string name, axes, over, rules;
  std::vector<std::pair<std::string, int64_t>> sizes;
  int64_t ranks; ///< along the axes of `over`
};
std::ostream &operator<<(std::ostream &os, const Mesh &mesh) { return os << mesh.name; }

Mesh data(int64_t n) {
  return {"dp" + std::to_string(n), "dp", "dp", "shard batch by dp", {{"dp", n}}, n};
}
Mesh dataTensor(int64_t n, int64_t m) {
  return {"dp" + std::to_string(n) + "_tp" + std::to_string(m),
          "dp, tp",
          "dp",
          "shard batch by dp; shard heads, ffn, vocab by tp",
          {{"dp", n}, {"tp", m}},
          n};
}
Mesh dataSequence() {
  return {"dp2_sp2",
          "dp, tp",
          "dp",
          "shard batch by dp; shard heads, ffn, vocab else seq by tp",
          {{"dp", 2}, {"tp", 2}},
          2};
}
Mesh twoAxes() {
  return {"replica2_x_dp2",
          "replica, dp",
          "replica, dp",
          "shard batch by replica, dp",
          {{"replica", 2}, {"dp", 2}},
          4};
}
Mesh oneOfTwo() {
  return {"replica2_dp2",
          "replica, dp",
          "dp",
          "shard batch by replica, dp",
          {{"replica", 2}, {"dp", 2}},
          2};
}
std::vector<Mesh> meshes() {
  return {data(2), data(3), dataTensor(2, 2), dataSequence(), twoAxes(), oneOfTwo()};
}
using MeshLevel = std::tuple<Mesh, int>;
std::string nameOf(const ::testing::TestParamInfo<MeshLevel> &info) {
  return std::get<0>(info.param).name + "_level" + std::to_string(std::get<1>(info.param));
}

Layout layoutOf(const Mesh &mesh, int level) {
  return {mesh.name, "zero" + std::to_string(level), mesh.sizes};
}

/// The model with the plans zero0 to zero3 on the mesh.
Model withPlans(Model model, const std::string &name, const Mesh &mesh) {
  for (int level = 0; level <= 3; ++level)
    model.text += "\nplan zero" + std::to_string(level) + " for " + name + " on (" + mesh.axes +
                  ") { " + mesh.rules + "; zero " + std::to_string(level) + " over " + mesh.over +
                  " }\n";
  return model;
}

OptimizerSettings adamw() {
  OptimizerSettings o;
  o.decay = 0.1;
  return o;
}
OptimizerSettings sgd(double momentum) {
  OptimizerSettings o;
  o.kind = "sgd";
  o.momentum = momentum;
  return o;
}

/// Losses and norms as "loss 0", "gradient_norm 0", ..., then params and states.
Tensors trained(Session &session, const Tensors &inputs, double lr, int count, int from = 0,
                bool checkReplicas = true) {
  Tensors all;
  RunOptions options;
  options.checkReplicas = checkReplicas;
  for (int step = from; step < from + count && !::testing::Test::HasFailure(); ++step) {
    Tensors results = ran(session, "train_step", inputs,
                          {{"seed", int64_t(1)}, {"step", int64_t(step)}, {"lr", lr}}, options);
    for (auto &[name, value] : results)
      all.emplace(name + " " + std::to_string(step), value);
  }
  all.merge(persistent(session, true));
  return all;
}

class Zero : public ::testing::TestWithParam<MeshLevel> {
protected:
  std::unique_ptr<Session> ready(const Layout &layout, const CompileOptions &options) {
    auto session = started(compiled(model, layout, options));
    if (session)
      setParams(*session, oracle("gpt2/weights.safetensors"));
    return session;
  }
  const Mesh &mesh = std::get<0>(GetParam());
  const int level = std::get<1>(GetParam());
  const Layout split = layoutOf(mesh, level);
  const Model model = withPlans(gpt2(), "gpt2", mesh);
  const Tensors inputs = oracle("gpt2/inputs.safetensors");
};
INSTANTIATE_TEST_SUITE_P(On, Zero,
                         ::testing::Combine(::testing::ValuesIn(meshes()), ::testing::Range(1, 4)),
                         nameOf);

/// The key bias has a gradient of pure rounding, which Adam divides by itself.
void expectOneRanks(const Tensors &expected, const Tensors &found) {
  Tensors keyBias, rest;
  for (const auto &entry : expected)
    (entry.first.ends_with("body.bk") ? keyBias : rest).insert(entry);
  ASSERT_EQ(expected.size(), found.size());
  EXPECT_TRUE(close(rest, found, 1e-11));
  for (const auto &[name, value] : keyBias)
    EXPECT_LE(distance(value, found.at(name)), 1e-9) << name;
}

TEST_P(Zero, FiveStepsOfAdamWAreOneRanks) {
  CompileOptions options = trainStep(DType::F64, adamw());
  auto alone = ready(oneRank(), options), session = ready(split, options);
  ASSERT_TRUE(alone && session);
  Tensors expected = trained(*alone, inputs, 1e-2, 5);
  EXPECT_EQ(expected.size(), 2 * 5 + 3 * 20u + 1); // the tied param has one state; adam.t
  expectOneRanks(expected, trained(*session, inputs, 1e-2, 5));
}

TEST_P(Zero, FiveStepsOfSgdAreOneRanks) {
  CompileOptions options = trainStep(DType::F64, sgd(level == 1 ? 0 : 0.9));
  auto alone = ready(oneRank(), options), session = ready(split, options);
  ASSERT_TRUE(alone && session);
  expectOneRanks(trained(*alone, inputs, 0.1, 5), trained(*session, inputs, 0.1, 5));
}

/// float32: at most 4 times as far from float64 as one rank is, floor 8 ulp of the largest.
TEST_P(Zero, InFloat32RoundingIsOneRanks) {
  auto run = [&](const Layout &layout, DType dtype) {
    auto session = ready(layout, trainStep(dtype, sgd(0.9)));
    return session ? trained(*session, inputs, 0.1, 5) : Tensors();
  };
  Tensors exact = run(oneRank(), DType::F64), alone = run(oneRank(), DType::F32);
  Tensors found = run(split, DType::F32);
  ASSERT_EQ(found.size(), exact.size());
  auto off = [&](const Tensors &values, const std::string &name) {
    auto wide = convert(values.at(name).view(), DType::F64);
    return distance(exact.at(name), *wide);
  };
  for (const auto &[name, value] : exact) {
    double floor = 8 * std::ldexp(largest(value), -23);
    if (name.ends_with("body.bk")) // zero in mathematics: rounding of the other gradients
      floor = 1e-7;
    EXPECT_LE(off(found, name), std::max(4 * off(alone, name), floor)) << name;
  }
}

/// As one program gives them, params read in shards at level 3.
TEST_P(Zero, GradientsAndForwardAreOneRanks) {
  CompileOptions options = gradientsOf("loss", DType::F64);
  options.entries.push_back({"forward", EntryPoint::Kind::Function, false});
  auto values = [&](const Layout &layout) {
    auto session = ready(layout, options);
    if (!session)
      return Tensors();
    Tensors all = ran(*session, "loss_grads", inputs);
    all.merge(ran(*session, "forward", inputs));
    return all;
  };
  EXPECT_TRUE(close(values(oneRank()), values(split), 1e-11));
}

TEST_P(Zero, GoesOnBitEqualFromGlobalTensors) {
  auto executable = compiled(model, split, trainStep(DType::F32, adamw()));
  auto first = started(executable), second = started(executable);
  ASSERT_TRUE(first && second);
  setParams(*first, oracle("gpt2/weights.safetensors"));
  trained(*first, inputs, 1e-3, 2);
  for (const auto &[name, value] : persistent(*first, true)) {
    auto status = second->set(name, value.view());
    ASSERT_TRUE(status) << status.error().message;
  }
  EXPECT_TRUE(sameBits(trained(*first, inputs, 1e-3, 2, 2), trained(*second, inputs, 1e-3, 2, 2)));
}

/// At level 3 the second of two layers has its params gathered beside the first's work (and
/// the other way round in the backward pass): begun before the work, awaited behind it.
TEST_P(Zero, GathersOneLayerAhead) {
  Tensors results[2];
  for (bool overlap : {false, true}) {
    CompileOptions options = trainStep(DType::F32, adamw());
    options.overlap = overlap;
    options.overlapWorth = 0;
    auto executable = compiled(model, split, options);
    ASSERT_TRUE(executable);
    const Program &program = executable->programs[0];
    std::map<int32_t, int> seen; // by site of the layers' gathers
    std::map<int32_t, int> workBefore;
    int ahead = 0, layers = 0;
    for (const Step &step : program.steps) {
      auto *gather = std::get_if<CollectiveStep>(&step.action);
      if (!gather) {
        bool works = std::holds_alternative<GemmStep>(step.action);
        for (auto &[site, work] : workBefore)
          work += works;
        continue;
      }
      const CollectiveSite &site = program.collectiveSites[gather->site];
      if (site.kind != "all_gather" || site.executions != 2 || site.phase == "optimizer" ||
          site.axes != mesh.over)
        continue;
      if (++seen[gather->site] == 2) {
        ++layers;
        ahead += gather->begun && workBefore[gather->site] == 0;
      } else {
        workBefore[gather->site] = 0;
      }
    }
    if (level == 3)
      EXPECT_GE(layers, 16 + 8);
    else
      EXPECT_EQ(layers, 0);
    EXPECT_EQ(ahead, overlap ? layers : 0);
    auto session = started(executable);
    ASSERT_TRUE(session);
    setParams(*session, oracle("gpt2/weights.safetensors"));
    results[overlap] = trained(*session, inputs, 1e-3, 2);
  }
  EXPECT_TRUE(sameBits(results[0], results[1]));
}

TEST_P(Zero, InitialWeightsAreBitEqual) {
  auto alone = started(compiled(model, oneRank(), forwardOf("loss", DType::F32)));
  auto session = started(compiled(model, split, forwardOf("loss", DType::F32)));
  ASSERT_TRUE(alone && session);
  ASSERT_TRUE(alone->initialise(5));
  ASSERT_TRUE(session->initialise(5));
  EXPECT_TRUE(sameBits(persistent(*alone), persistent(*session)));
}

//===----------------------------------------------------------------------===//
// Bytes and memory
//===----------------------------------------------------------------------===//

/// Bytes of all params on one rank, as level 0 has them; how many more they are when
/// each is cut into N blocks, all blocks of one size; and those (with padding) of params
/// that the backward pass does not read.
struct Psi {
  int64_t bytes = 0, padding = 0, unread = 0;
};
Psi psiOf(const Program &program, const Program &sharded, int64_t ranks,
          const std::set<std::string> &unread) {
  Psi psi;
  for (size_t i = 0; i < program.arguments.size(); ++i) {
    const Argument &param = program.arguments[i];
    if (param.role != Argument::Role::Param)
      continue;
    int64_t padded = sharded.arguments[i].localBytes * ranks;
    psi.bytes += param.localBytes;
    psi.padding += padded - param.localBytes;
    psi.unread += unread.count(param.name) ? padded : 0;
  }
  return psi;
}

int64_t bytesOf(const Program &program, Argument::Role role) {
  int64_t bytes = 0;
  for (const Argument &argument : program.arguments)
    bytes += argument.role == role ? argument.localBytes : 0;
  return bytes;
}

/// Bytes in the ring over these axes; of the loss and the gradient's norm apart.
int64_t ringOf(const Program &program, const std::string &axes, int64_t &scalars) {
  int64_t bytes = 0;
  for (const CollectiveSite &site : program.collectiveSites)
    if (site.axes == axes)
      (site.payloadBytes <= 8 ? scalars : bytes) += site.ringBytes * site.executions;
  return bytes;
}

struct Sized {
  std::string name, model;
  Model program;
  bool even; ///< 2, 3 and 4 divide all sizes: nothing is padded
  std::set<std::string> unread;
};
std::ostream &operator<<(std::ostream &os, const Sized &sized) { return os << sized.name; }

Sized gpt2Sized(bool even) {
  Model model = gpt2();
  if (even)
    model.settings = {{"vocab", "48"}, {"width", "24"},   {"heads", "12"},
                      {"layers", "3"}, {"head_dim", "2"}, {"positions", "12"}};
  // As long as there are positions: the gradients of others would not be sent.
  model.sizes = {{"batch", 4}, {"seq", even ? 12 : 11}};
  return {even ? "gpt2_even" : "gpt2_odd",
          "gpt2",
          model,
          even,
          {"wpe", "body.bq", "body.bk", "body.bv", "body.bo", "body.b1", "body.b2", "last.bias"}};
}
/// Without biases and positions: the backward pass reads every param.
Sized llamaSized() {
  return {"llama",
          "llama",
          {readText(sourcePath("models/llama.cleave")),
           {{"vocab", "48"},
            {"width", "24"},
            {"ffn", "36"},
            {"kv_heads", "12"},
            {"group", "1"},
            {"head_dim", "2"},
            {"layers", "3"}},
           {{"batch", 4}, {"seq", 5}}},
          true,
          {}};
}

class ZeroCosts : public ::testing::TestWithParam<std::tuple<Mesh, Sized>> {};
INSTANTIATE_TEST_SUITE_P(
    On, ZeroCosts,
    ::testing::Combine(::testing::Values(data(2), data(3), data(4), dataTensor(2, 2), twoAxes()),
                       ::testing::Values(gpt2Sized(false), gpt2Sized(true), llamaSized())),
    [](const auto &info) {
      return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
    });

TEST_P(ZeroCosts, AreTheFormulas) {
  const auto &[mesh, sized] = GetParam();
  Model model = withPlans(sized.program, sized.model, mesh);
  std::shared_ptr<const Executable> levels[4];
  CompileOptions options = trainStep(DType::F32, adamw());
  options.machineCode = false;
  for (int level = 0; level <= 3; ++level)
    ASSERT_TRUE(levels[level] = compiled(model, layoutOf(mesh, level), options));
  int64_t n = mesh.ranks, states = 2;
  Psi psi = psiOf(levels[0]->programs[0], levels[3]->programs[0], n, sized.unread);
  EXPECT_GE(psi.padding, 0);
  if (sized.even)
    EXPECT_EQ(psi.padding, 0);
  else if (n == 3)
    EXPECT_GT(psi.padding, 0);
  int64_t share = (psi.bytes + psi.padding) / n;
  for (int level = 0; level <= 3; ++level) {
    const Program &program = levels[level]->programs[0];
    int64_t scalars = 0, ring = ringOf(program, mesh.over, scalars);
    if (level == 0) // of each all-reduce a part of a byte is rounded down
      EXPECT_NEAR(double(ring), 2.0 * double(psi.bytes) * double(n - 1) / double(n), 2 * 20 * 3);
    else if (level < 3)
      EXPECT_EQ(ring, 2 * share * (n - 1)) << level;
    else
      EXPECT_EQ(ring, (3 * share - psi.unread / n) * (n - 1));
    EXPECT_LE(scalars, 3 * 2 * 8) << level; // the loss's sum and count, the gradient's norm
    EXPECT_EQ(bytesOf(program, Argument::Role::Param), level == 3 ? share : psi.bytes) << level;
    constexpr int64_t stepsTaken = 8; // adam.t, a number
    EXPECT_EQ(bytesOf(program, Argument::Role::State),
              states * (level > 0 ? share : psi.bytes) + stepsTaken)
        << level;
  }
}

/// With micro-batches level 1 adds whole gradients up and scatters them once; levels 2 and 3
/// scatter those of each, and keep shards. Level 3 gathers a layer's params for each micro-batch
/// and pass, the others once for each pass.
TEST_P(ZeroCosts, WithMicroBatches) {
  const auto &[mesh, sized] = GetParam();
  constexpr int64_t micro = 2;
  Model model = withPlans(sized.program, sized.model, mesh);
  model.sizes["batch"] = 24;
  CompileOptions options = trainStep(DType::F32, adamw());
  options.machineCode = false;
  options.accumulate = micro;
  std::shared_ptr<const Executable> levels[4];
  for (int level = 0; level <= 3; ++level)
    ASSERT_TRUE(levels[level] = compiled(model, layoutOf(mesh, level), options));
  auto shareOf = [&, n = mesh.ranks](bool layers, bool all) {
    int64_t bytes = 0;
    for (const Argument &param : levels[3]->programs[0].arguments)
      if (param.role == Argument::Role::Param && param.name.starts_with("body.") == layers &&
          (all || sized.unread.count(param.name)))
        bytes += param.localBytes * (n - 1);
    return bytes;
  };
  const int64_t layers = shareOf(true, true), others = shareOf(false, true);
  int64_t scalars = 0, ring[4], arena[4];
  for (int level = 0; level <= 3; ++level) {
    ring[level] = ringOf(levels[level]->programs[0], mesh.over, scalars);
    arena[level] = levels[level]->programs[0].arenaBytes;
  }
  EXPECT_EQ(ring[1], 2 * (layers + others));
  EXPECT_EQ(ring[2], (micro + 1) * (layers + others));
  EXPECT_EQ(ring[3], 3 * micro * layers - micro * shareOf(true, false) + (micro + 2) * others -
                         shareOf(false, false));
  EXPECT_LT(arena[2], arena[1]);
}

/// The gradients as results of a program.
TEST_P(ZeroCosts, GradientsAreInShardsFromLevelTwo) {
  const auto &[mesh, sized] = GetParam();
  Model model = withPlans(sized.program, sized.model, mesh);
  CompileOptions options = gradientsOf("loss", DType::F32);
  options.machineCode = false;
  int64_t bytes[4] = {}, params[4] = {};
  for (int level = 0; level <= 3; ++level) {
    auto grads = compiled(model, layoutOf(mesh, level), options);
    ASSERT_TRUE(grads);
    const Program &program = grads->programs[0];
    params[level] = bytesOf(program, Argument::Role::Param);
    for (const Buffer &buffer : program.buffers)
      if (buffer.kind == Buffer::Kind::Result &&
          program.results[buffer.index].name.starts_with("grad:"))
        bytes[level] += buffer.bytes;
  }
  EXPECT_LT(params[3], params[0]);
  EXPECT_EQ(bytes[0], params[0]);
  EXPECT_EQ(bytes[1], params[0]);
  EXPECT_EQ(bytes[2], params[3]);
  EXPECT_EQ(bytes[3], params[3]);
}

//===----------------------------------------------------------------------===//
// Offload
//===----------------------------------------------------------------------===//

/// The optimizer's state in a file: the same bits, and none of it in memory.
TEST(ZeroOffload, ChangesNoBit) {
  auto trainedWith = [](const std::string &offload, MemoryReport &memory) -> Tensors {
    Model model = gpt2();
    model.text +=
        "\nplan lean for gpt2 on (dp, tp) { shard batch by dp; shard heads, ffn, vocab by "
        "tp; zero 3 over dp" +
        offload + " }\n";
    auto session = started(
        compiled(model, {"", "lean", {{"dp", 2}, {"tp", 2}}}, trainStep(DType::F32, adamw())));
    if (!session)
      return {};
    setParams(*session, oracle("gpt2/weights.safetensors"));
    Tensors all = trained(*session, oracle("gpt2/inputs.safetensors"), 0.01, 3);
    memory = session->memory();
    return all;
  };
  MemoryReport kept, offloaded;
  Tensors want = trainedWith("", kept), got = trainedWith(" offload optimizer", offloaded);
  EXPECT_TRUE(sameBits(want, got));
  EXPECT_EQ(kept.offloaded, 0);
  EXPECT_EQ(offloaded.states, 8); // the count of steps
  EXPECT_EQ(offloaded.offloaded + offloaded.states, kept.states);
}

TEST(ZeroOffload, ReportsAFolderThatIsNotThere) {
  Model model = gpt2();
  model.text += "\nplan lean for gpt2 on (dp) { shard batch by dp; zero 1 over dp offload "
                "optimizer }\n";
  auto executable = compiled(model, {"", "lean", {{"dp", 2}}}, trainStep(DType::F32, adamw()));
  ASSERT_TRUE(executable);
  auto kernels = ObjectLoader::load(*executable);
  ASSERT_TRUE(bool(kernels));
  SessionOptions options;
  options.offloadDirectory = "/nowhere/at/all";
  auto session = Session::create(executable, *kernels, options);
  ASSERT_FALSE(bool(session));
  EXPECT_NE(session.error().message.find("/nowhere/at/all: No such file or directory"),
            std::string::npos)
      << session.error().message;
}

//===----------------------------------------------------------------------===//
// Corners
//===----------------------------------------------------------------------===//

/// Params smaller than the axis (some ranks hold nothing of them), one of a single
/// element, one that has only the layers' dim, and a batch of less rows than ranks.
Model corners() {
  return {R"(
model corners(width = 5, two = 2, layers = 3) {
  free batch
  param first: [two] = normal(0.5)
  param factor: f32 = constant(1.5)
  param mix: [width, two] = normal(0.5)
  block layer(x: [batch, width]) -> [batch, width] {
    param gain: f32 = constant(0.5)
    param w: [width] = normal(0.5)
    return x + gain * tanh(x * w)
  }
  part body: layer[layers]
  fn loss(x: [batch, width]) -> f32 {
    repeat i in layers { x = body[i](x) }
    y = x @ mix + first
    return mean(y * y) * factor
  }
}
)",
          {},
          {{"batch", 1}}};
}

class ZeroCorners : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ZeroCorners, ::testing::Values(2, 3, 4));

TEST_P(ZeroCorners, AreOneRanks) {
  Model model = withPlans(corners(), "corners", data(GetParam()));
  HostTensor x(DType::F64, {1, 5});
  for (int64_t i = 0; i < 5; ++i)
    x.as<double>()[i] = 0.3 * static_cast<double>(i) - 0.7;
  Tensors expected;
  for (int level = 0; level <= 3; ++level) {
    auto session =
        started(compiled(model, level == 0 ? oneRank() : layoutOf(data(GetParam()), level),
                         trainStep(DType::F64, adamw())));
    ASSERT_TRUE(session && session->initialise(3));
    Tensors found = trained(*session, {{"x", x}}, 0.05, 5);
    if (level == 0)
      expected = found;
    EXPECT_TRUE(close(expected, found, 1e-11)) << "level " << level;
  }
}

} // namespace
