//===- SessionTest.cpp - an executable at work -----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executor/Session.h"

#include "Samples.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <gtest/gtest.h>

using namespace cleave;
using samples::Mlp;

namespace {
std::unique_ptr<Session> open(Executable executable, std::shared_ptr<KernelTable> kernels,
                              SessionOptions options = {}) {
  auto session =
      Session::create(std::make_shared<Executable>(std::move(executable)), kernels, options);
  EXPECT_TRUE(session) << session.error().message;
  return session ? std::move(*session) : nullptr;
}
std::unique_ptr<Session> open(const Mlp &mlp, SessionOptions options = {}) {
  return open(mlp.build(), Mlp::kernels(), options);
}

std::map<std::string, HostTensor> inputs(const Mlp &mlp) {
  std::vector<float> x(static_cast<size_t>(mlp.batch * mlp.width));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(static_cast<float>(i));
  std::vector<int32_t> tokens(static_cast<size_t>(mlp.batch), 3);
  tokens[0] = -1;
  return {{"x", HostTensor::of<float>(DType::F32, {mlp.batch, mlp.width}, x)},
          {"tokens", HostTensor::of<int32_t>(DType::I32, {mlp.batch}, tokens)}};
}

std::vector<float> floats(const HostTensor &t) {
  return {t.as<float>(), t.as<float>() + t.elements()};
}

/// The same in plain loops, in double.
std::vector<double> reference(const Mlp &mlp, Session &session) {
  auto w1 = floats(*session.get("mlp.w1")), b = floats(*session.get("mlp.b")),
       w2 = floats(*session.get("mlp.w2")), x = floats(inputs(mlp).at("x"));
  std::vector<double> y(static_cast<size_t>(mlp.batch * mlp.width));
  auto at = [](auto &v, int64_t i) -> auto & { return v[static_cast<size_t>(i)]; };
  for (int64_t r = 0; r < mlp.batch; ++r)
    for (int64_t f = 0; f < mlp.ffn; ++f) {
      double h = at(b, f);
      for (int64_t c = 0; c < mlp.width; ++c)
        h += double(at(x, r * mlp.width + c)) * at(w1, c * mlp.ffn + f);
      for (int64_t c = 0; c < mlp.width && h > 0; ++c)
        at(y, r * mlp.width + c) += h * at(w2, f * mlp.width + c);
    }
  return y;
}

const std::map<std::string, ScalarValue> rate = {{"lr", 0.5}};
} // namespace

TEST(Session, EveryMeshGivesWhatOneRankGives) {
  Mlp one;
  SessionOptions options;
  options.poison = true;
  auto alone = open(one, options);
  ASSERT_TRUE(alone->initialise(7));
  std::vector<double> want = reference(one, *alone);
  auto first = alone->run("step", inputs(one), rate);
  ASSERT_TRUE(first) << first.error().message;
  for (int64_t dp : {1, 2, 3})
    for (int64_t tp : {1, 2, 3, 4, 9}) { // uneven, and more ranks than columns
      Mlp mlp;
      mlp.overlap = tp % 2 == 0;
      options.beside = dp != 2;
      mlp.dp = dp;
      mlp.tp = tp;
      auto session = open(mlp, options);
      ASSERT_TRUE(session->initialise(7));
      EXPECT_EQ(session->get("mlp.w1")->data.size(), 4u * 7 * 4);
      RunOptions check;
      check.checkReplicas = true;
      auto out = session->run("step", inputs(mlp), rate, check);
      ASSERT_TRUE(out) << out.error().message;
      ASSERT_EQ(out->results.size(), 1u);
      std::vector<float> y = floats(out->results.at("y"));
      for (size_t i = 0; i < y.size(); ++i)
        EXPECT_NEAR(y[i], want[i], 1e-5) << dp << " x " << tp;
      EXPECT_EQ(session->get("mlp.w2")->data, alone->get("mlp.w2")->data); // updated in place
      EXPECT_EQ(*session->get("sgd.count")->as<int32_t>(), 1);
      ASSERT_TRUE(session->run("step", inputs(mlp), rate));
      EXPECT_EQ(*session->get("sgd.count")->as<int32_t>(), 2);
      ASSERT_TRUE(session->resetStates());
      EXPECT_EQ(*session->get("sgd.count")->as<int32_t>(), 0);
    }
}

TEST(Session, InitialWeightsAreBitEqualInEveryLayoutAndSetGetAreInverse) {
  auto alone = open(Mlp{});
  ASSERT_TRUE(alone->initialise(3));
  Mlp mlp;
  mlp.dp = 2;
  mlp.tp = 3;
  auto session = open(mlp);
  ASSERT_TRUE(session->initialise(3));
  for (const char *name : {"mlp.w1", "mlp.b", "mlp.w2"}) {
    auto a = alone->get(name), b = session->get(name);
    ASSERT_TRUE(a && b);
    EXPECT_EQ(a->data, b->data) << name;
    EXPECT_EQ(a->shape, b->shape);
  }
  HostTensor value(DType::F32, {4, 7});
  for (int i = 0; i < 28; ++i)
    value.as<float>()[i] = static_cast<float>(i);
  ASSERT_TRUE(session->set("mlp.w1", value.view()));
  EXPECT_EQ(session->get("mlp.w1")->data, value.data);
  EXPECT_EQ(session->persistentArguments().size(), 4u);
  EXPECT_EQ(session->findPersistent("mlp.b")->layout.dims[0].name, "ffn");
}

TEST(Session, TwoRunsAreBitEqual) {
  Mlp mlp;
  mlp.batch = 64, mlp.width = 48, mlp.ffn = 100, mlp.tp = 3;
  SessionOptions options;
  options.threads = 6;
  auto a = open(mlp, options), b = open(mlp, options);
  EXPECT_EQ(a->workersPerRank(), 2);
  ASSERT_TRUE(a->initialise(1) && b->initialise(1));
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(a->run("step", inputs(mlp), rate)->results.at("y").data,
              b->run("step", inputs(mlp), rate)->results.at("y").data);
}

namespace {
void expectError(const Status &status, const std::vector<std::string> &words,
                 Fault fault = Fault::User) {
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().fault, fault);
  for (const std::string &word : words)
    EXPECT_NE(status.error().message.find(word), std::string::npos)
        << word << " in: " << status.error().message;
}
template <typename T> Status asStatus(const Result<T> &result) {
  return result ? Status() : Status(result.error());
}
} // namespace

TEST(Session, ErrorsAreInTheUsersWords) {
  Mlp mlp;
  mlp.tp = 2;
  auto session = open(mlp);
  auto in = inputs(mlp);
  expectError(asStatus(session->run("step", in, rate)), {"'step' needs", "param 'mlp.w1'"});
  ASSERT_TRUE(session->initialise(0));
  expectError(asStatus(session->run("stp", in, rate)), {"'stp'", "did you mean 'step'"});
  expectError(asStatus(session->run("step", in, {})), {"scalar 'lr'"});
  expectError(asStatus(session->run("step", {}, rate)),
              {"input 'x'", "f32 [batch=5, width=4]", "input 'tokens'"});
  auto more = in;
  more["token"] = in["tokens"];
  expectError(asStatus(session->run("step", more, rate)), {"'token'", "did you mean 'tokens'"});
  auto shaped = in;
  shaped["x"] = HostTensor(DType::F32, {5, 3});
  expectError(asStatus(session->run("step", shaped, rate)),
              {"input 'x' is f32 [batch=5, width=4]", "f32 [5, 3] was given"});
  shaped["x"] = HostTensor(DType::F64, {5, 4});
  expectError(asStatus(session->run("step", shaped, rate)), {"f64 [5, 4] was given"});
  for (int32_t bad : {10, -2, INT32_MIN, INT32_MAX}) {
    auto ranged = in;
    ranged["tokens"].as<int32_t>()[3] = bad;
    expectError(asStatus(session->run("step", ranged, rate)),
                {"input 'tokens' at [batch=3] is " + std::to_string(bad), "vocab (0 to 9)",
                 "ignored value -1"});
  }
  expectError(session->set("mlp.w3", in["x"].view()), {"'mlp.w3'", "did you mean 'mlp.w"});
  expectError(session->set("mlp.w1", in["x"].view()),
              {"param 'mlp.w1' is f32 [width=4, ffn=7]", "f32 [5, 4]"});
  expectError(asStatus(session->get("nothing")), {"'nothing'", "mlp.w1"});
  EXPECT_TRUE(session->run("step", in, rate)); // none of these did harm
}

TEST(Session, RefusesExecutablesThatItCannotRun) {
  auto create = [](Executable e, std::shared_ptr<KernelTable> kernels) {
    return asStatus(Session::create(std::make_shared<Executable>(std::move(e)), kernels));
  };
  Executable e = Mlp{}.build();
  expectError(create(e, std::make_shared<KernelTable>()), {"bias_relu", "update"}, Fault::Internal);
  e.cpuFeatures = {"avx9"};
  expectError(create(e, Mlp::kernels()), {"avx9"});
  e = Mlp{}.build();
  e.programs[0].steps.push_back({FillStep{{99, 0}, 4}, StepKind::Copy, -1});
  expectError(create(e, Mlp::kernels()), {"step 7", "buffer 99"}, Fault::Internal);
  e = Mlp{}.build();
  e.programs[0].arguments[0].init = "nrmal(1)";
  expectError(create(e, Mlp::kernels()), {"mlp.w1", "did you mean 'normal'"});
}

TEST(Session, ProgramsAreChosenByTheirSizes) {
  Mlp small, large;
  large.batch = 9;
  small.tp = large.tp = 2;
  Executable e = small.build();
  e.programs.push_back(large.build().programs[0]);
  auto session = open(e, Mlp::kernels());
  ASSERT_TRUE(session->initialise(1));
  EXPECT_EQ(session->run("step", inputs(small), rate)->results.at("y").shape[0], 5);
  EXPECT_EQ(session->run("step", inputs(large), rate)->results.at("y").shape[0], 9);
  EXPECT_EQ(*session->get("sgd.count")->as<int32_t>(), 2); // one state for both
}

TEST(Session, FaultsEndAllRanksWithTheFirstCause) {
  struct Case {
    const char *fault;
    std::vector<std::string> words;
  };
  for (const Case &c :
       {Case{"rank=1,step=0,kind=throw", {"rank 1 failed", "injected"}},
        Case{"rank=2,step=3,kind=throw", {"rank 2 failed", "injected"}},
        Case{"rank=1,step=1,kind=bad_alloc", {"rank 1 failed", "out of memory"}},
        Case{"rank=0,step=2,kind=hang",
             {"watchdog", "rank 0: is computing", "all_reduce(sum)", "mlp.cleave:3:3"}},
        Case{"rank=2,step=2,kind=skip", {"disagree", "rank 2", "has ended"}}}) {
    for (bool overlap : {false, true}) {
      Mlp mlp;
      mlp.tp = 3;
      mlp.overlap = overlap;
      SessionOptions options;
      options.watchdogSeconds = 1;
      options.beside = true;
      options.fault = *FaultInjection::parse(c.fault);
      auto session = open(mlp, options);
      ASSERT_TRUE(session->initialise(1));
      auto start = std::chrono::steady_clock::now();
      expectError(asStatus(session->run("step", inputs(mlp), rate)), c.words, Fault::Rank);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(9)) << c.fault;
      // And every later call says the same.
      expectError(asStatus(session->run("step", inputs(mlp), rate)), c.words, Fault::Rank);
      expectError(asStatus(session->get("mlp.w1")), c.words, Fault::Rank);
    }
  }
  EXPECT_FALSE(FaultInjection::parse("rank=x"));
  EXPECT_FALSE(FaultInjection::parse("rank=1,kind=flood"));
  EXPECT_FALSE(FaultInjection::parse("oops"));
}

TEST(Session, CollectivesBesideStepsGiveTheSameBits) {
  for (int threads : {1, 6}) {
    std::vector<char> bits[2];
    for (bool overlap : {false, true}) {
      Mlp mlp;
      mlp.dp = 2, mlp.tp = 3;
      mlp.overlap = overlap;
      SessionOptions options;
      options.threads = threads;
      options.profile = options.timeline = true;
      options.beside = true;
      options.poison = true;
      auto session = open(mlp, options);
      ASSERT_TRUE(session->initialise(1));
      RunOptions check;
      check.checkReplicas = true;
      for (int i = 0; i < 20; ++i) {
        auto run = session->run("step", inputs(mlp), rate, check);
        ASSERT_TRUE(run) << run.error().message;
        auto &y = run->results.at("y").data;
        bits[overlap].insert(bits[overlap].end(), y.begin(), y.end());
      }
      // Its time is on a row of its own, within begin and await.
      int64_t beside = 0;
      for (const StepEvent &e : session->timeline(1))
        beside += e.beside && e.step == 2 && e.seconds > 0;
      EXPECT_EQ(beside, overlap ? 20 : 0);
      EXPECT_EQ(session->collectives(0).kinds[0].calls, 20);
    }
    EXPECT_EQ(bits[0], bits[1]);
  }
}

TEST(Session, AFailureWhileACollectiveIsUnderWay) {
  // Rank 0 fails between begin and await, while the others' sums wait for it or go on.
  auto kernels = Mlp::kernels();
  std::atomic<int> calls{0};
  static std::atomic<int> *count;
  count = &calls;
  kernels->add("update", [](int64_t, int64_t, char **, const int64_t *) {
    if (count->fetch_add(1) == 7)
      throw std::runtime_error("the update went wrong");
  });
  Mlp mlp;
  mlp.tp = 4;
  mlp.overlap = true;
  SessionOptions options;
  options.beside = true;
  auto session = open(mlp.build(), kernels, options);
  ASSERT_TRUE(session->initialise(1));
  Status status;
  for (int i = 0; i < 4 && status; ++i)
    status = asStatus(session->run("step", inputs(mlp), rate));
  expectError(status, {"failed", "the update went wrong"}, Fault::Rank);
}

TEST(Session, AKernelThatThrowsEndsAllRanks) {
  auto kernels = Mlp::kernels();
  kernels->add("count", [](int64_t, int64_t, char **, const int64_t *) { throw std::bad_alloc(); });
  Mlp mlp;
  mlp.tp = 2;
  auto session = open(mlp.build(), kernels);
  ASSERT_TRUE(session->initialise(1));
  expectError(asStatus(session->run("step", inputs(mlp), rate)), {"failed", "out of memory"},
              Fault::Rank);
}

TEST(Session, CopiesThatDifferAreFound) {
  auto kernels = Mlp::kernels();
  Mlp mlp;
  mlp.tp = 2;
  Executable e = mlp.build();
  // Each rank adds its own shard's offset to the replicated counter.
  KernelStep wrong;
  wrong.symbol = "wrong";
  wrong.buffers = {{3, 0}};
  wrong.scalars = {{RankScalar::Kind::Offset, 0, 7, 4, {{1, 1, 2}}}};
  e.programs[0].steps.push_back({wrong, StepKind::Elementwise, -1});
  kernels->add("wrong", [](int64_t, int64_t, char **buffers, const int64_t *scalars) {
    *reinterpret_cast<int32_t *>(buffers[0]) += static_cast<int32_t>(scalars[0]);
  });
  auto session = open(e, kernels);
  ASSERT_TRUE(session->initialise(1));
  RunOptions check;
  check.checkReplicas = true;
  expectError(asStatus(session->run("step", inputs(mlp), rate, check)),
              {"result 'sgd.count'", "is 1 on rank 0 and 5 on rank 1"}, Fault::Differs);
}

TEST(Session, PoisonShowsWhatIsReadBeforeItIsWritten) {
  Mlp mlp;
  Executable e = mlp.build();
  auto &steps = e.programs[0].steps;
  steps.erase(steps.begin() + 1); // the product that writes what is reduced
  SessionOptions options;
  for (bool poison : {true, false}) {
    options.poison = poison;
    auto session = open(e, Mlp::kernels(), options);
    ASSERT_TRUE(session->initialise(1));
    float y = session->run("step", inputs(mlp), rate)->results.at("y").as<float>()[0];
    EXPECT_EQ(std::isnan(y), poison);
  }
}

TEST(Session, ProfilesAndReports) {
  Mlp mlp;
  mlp.tp = 2;
  SessionOptions options;
  options.profile = true;
  auto session = open(mlp, options);
  ASSERT_TRUE(session->initialise(1));
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(session->run("step", inputs(mlp), rate));
  auto profile = session->profile(0);
  ASSERT_EQ(profile.size(), 2u);
  ASSERT_EQ(profile[1].size(), 7u);
  for (const StepProfile &step : profile[1]) {
    EXPECT_EQ(step.runs, 3);
    EXPECT_GE(step.seconds, step.waitSeconds);
  }
  EXPECT_EQ(session->collectives(0).kinds[0].calls, 3);
  EXPECT_EQ(session->collectives(0).kinds[0].ringBytes, 3 * 80);
  MemoryReport memory = session->memory();
  EXPECT_EQ(memory.arena, mlp.build().programs[0].arenaBytes);
  EXPECT_EQ(memory.params, (4 * 4 + 4 + 4 * 4) * 4);
  EXPECT_EQ(memory.states, 4);
  EXPECT_EQ(memory.inputs, 5 * 4 * 4 + 5 * 4 + 4);
  EXPECT_EQ(memory.results, 80);
  EXPECT_GT(memory.resident, 0);
  session->resetProfile();
  session->resetCollectives();
  EXPECT_EQ(session->profile(0)[0][0].runs, 0);
  EXPECT_EQ(session->collectives(1).kinds[0].calls, 0);
  EXPECT_TRUE(open(mlp)->profile(0)[0].empty());
}

TEST(Session, ScalarsOfEveryType) {
  Executable e = Mlp{}.build();
  auto tryScalar = [&](DType dtype, ScalarValue value) {
    Executable changed = e;
    // Its own argument, which no step reads.
    Argument a;
    a.role = Argument::Role::Scalar;
    a.name = "s";
    a.layout.dtype = dtype;
    a.localBytes = byteSize(dtype);
    changed.programs[0].arguments.push_back(a);
    auto session = open(changed, Mlp::kernels());
    EXPECT_TRUE(session->initialise(1));
    auto scalars = rate;
    scalars["s"] = value;
    return asStatus(session->run("step", inputs(Mlp{}), scalars));
  };
  for (DType type : {DType::F32, DType::F64, DType::BF16, DType::F16}) {
    EXPECT_TRUE(tryScalar(type, 0.25));
    EXPECT_TRUE(tryScalar(type, int64_t{3}));
  }
  EXPECT_TRUE(tryScalar(DType::I64, int64_t{1} << 40));
  EXPECT_TRUE(tryScalar(DType::I32, int64_t{0xFFFFFFFF}));
  EXPECT_TRUE(tryScalar(DType::I32, 4.0));
  expectError(tryScalar(DType::I32, int64_t{1} << 32), {"scalar 's' is i32", "4294967296"});
  expectError(tryScalar(DType::I64, 0.5), {"scalar 's' is i64", "0.5"});
  expectError(tryScalar(DType::I1, int64_t{2}), {"scalar 's' is i1"});
}
