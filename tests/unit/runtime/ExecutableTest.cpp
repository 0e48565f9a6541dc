//===- ExecutableTest.cpp - executables in files ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executable/Format.h"

#include "Samples.h"
#include "runtime/core/AtomicFile.h"

#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>
#include <random>

using namespace cleave;
using samples::Mlp;

namespace {
/// One of everything.
Executable full() {
  Mlp mlp;
  mlp.dp = 2;
  mlp.tp = 4;
  Executable e = mlp.build();
  Program &p = e.programs[0];
  CollectiveStep s = CollectiveStep();
  s.kind = CollectiveStep::Kind::AllToAll;
  s.axes = {{1, 2, 2}};
  s.outer = 1, s.inDim = 1, s.outDim = 2, s.middle = 1, s.inDim2 = 2, s.outDim2 = 1;
  s.inner = 1;
  s.dimFirst = false;
  s.in = {8, 0}, s.out = {9, 4};
  p.steps.push_back({s, StepKind::Collective, 0});
  s.kind = CollectiveStep::Kind::ReduceScatter;
  s.reduction = CollectiveStep::Reduction::Max;
  s.axes = {{1, 1, 2}, {0, 1, 2}};
  s.inDim = 4, s.outDim = 1;
  p.steps.push_back({s, StepKind::Collective, -1});
  e.objects = {std::string("\x7f"
                           "ELF first\0object",
                           17),
               "", "third"};
  e.cpuFeatures = {"avx2", "fma"};
  return e;
}

// The format's checksum, to forge files that only deeper checks can refuse.
std::string withChecksum(std::string bytes) {
  uint64_t h = 14695981039346656037u;
  auto add = [&](std::string_view part) {
    for (char c : part)
      h = (h ^ static_cast<uint8_t>(c)) * 1099511628211u;
  };
  add(std::string_view(bytes).substr(8, 24));
  add(std::string_view(bytes).substr(40));
  std::memcpy(&bytes[32], &h, 8);
  return bytes;
}
std::string withLength(std::string bytes) {
  uint64_t n = bytes.size();
  std::memcpy(&bytes[16], &n, 8);
  return withChecksum(std::move(bytes));
}

void expectRefused(const std::string &bytes, const std::string &word) {
  auto e = deserialise(bytes, "file.clx");
  ASSERT_FALSE(e) << word;
  EXPECT_NE(e.error().message.find("file.clx"), std::string::npos);
  EXPECT_NE(e.error().message.find(word), std::string::npos) << e.error().message;
}
} // namespace

TEST(Executable, GoesOutAndComesBack) {
  Executable e = full();
  e.programs[0].training = true;
  ASSERT_TRUE(verify(e)) << verify(e).error().message;
  auto bytes = serialise(e);
  ASSERT_TRUE(bytes);
  auto back = deserialise(*bytes, "x");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->objects, e.objects);
  EXPECT_EQ(back->settings, e.settings);
  EXPECT_TRUE(back->programs[0].training);
  const auto &s = std::get<CollectiveStep>(back->programs[0].steps[7].action);
  EXPECT_EQ(s.kind, CollectiveStep::Kind::AllToAll);
  EXPECT_FALSE(s.dimFirst);
  EXPECT_EQ(s.axes[0].pre, 2);
  const Argument &tokens = back->programs[0].arguments[5];
  EXPECT_TRUE(tokens.hasIgnore);
  EXPECT_EQ(tokens.rangeEnd, 10);
  EXPECT_EQ(*serialise(*back), *bytes); // nothing was lost
  Mlp beside;
  beside.overlap = true;
  ASSERT_TRUE(verify(beside.build())) << verify(beside.build()).error().message;
  back = deserialise(*serialise(beside.build()), "x");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_TRUE(std::get<CollectiveStep>(back->programs[0].steps[2].action).begun);
  EXPECT_EQ(std::get<AwaitStep>(back->programs[0].steps[6].action).step, 2);

  std::string path = testing::TempDir() + "executable_test.clx";
  ASSERT_TRUE(writeExecutable(e, path));
  EXPECT_TRUE(looksLikeExecutable(path));
  EXPECT_EQ(*serialise(*readExecutable(path)), *bytes);
  ASSERT_TRUE(writeFileAtomically(path, "model gpt2 {}"));
  EXPECT_FALSE(looksLikeExecutable(path));
  EXPECT_FALSE(readExecutable(path));
  std::filesystem::remove(path);
  EXPECT_FALSE(readExecutable(path));
}

TEST(Executable, RefusesForeignCutAndNewerFiles) {
  std::string bytes = *serialise(full());
  expectRefused("", "not a Cleave executable");
  expectRefused("\x7f"
                "ELF and so on, a shared library or another program",
                "not a Cleave executable");
  expectRefused(bytes.substr(0, 20), "cut short");
  expectRefused(bytes + "x", "damaged");
  std::string newer = bytes;
  constexpr int version = Executable::currentVersion;
  newer[8] = version + 1;
  expectRefused(withChecksum(newer), "format version " + std::to_string(version + 1) +
                                         ", this program reads version " + std::to_string(version));
  for (size_t n = 0; n < bytes.size(); ++n)
    ASSERT_FALSE(deserialise(bytes.substr(0, n), "x")) << n;
}

TEST(Executable, RefusesEveryChangedByte) {
  std::string bytes = *serialise(full());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    ASSERT_FALSE(deserialise(changed, "x")) << i;
  }
}

// Whatever a forged manifest says: an error, or what the verifier accepts.
TEST(Executable, ForgedManifestsDoNotCrash) {
  std::string bytes = *serialise(full());
  std::mt19937 random(1);
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string changed = bytes;
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      size_t at = 40 + random() % (bytes.size() - 40);
      const char alphabet[] = "0123456789-[]{},\"e.tn\xff";
      changed[at] = alphabet[random() % (sizeof alphabet - 1)];
    }
    auto e = deserialise(withChecksum(changed), "x");
    if (e) {
      ++accepted;
      ASSERT_TRUE(verify(*e));
    }
  }
  EXPECT_GT(accepted, 30); // names and numbers that may be anything
  EXPECT_LT(accepted, 5800);
}

TEST(Executable, RefusesHostileManifests) {
  std::string bytes = *serialise(full());
  uint64_t length = 0;
  std::memcpy(&length, &bytes[24], 8);
  auto forge = [&](const std::string &manifest) {
    std::string forged = bytes.substr(0, 40) + manifest;
    uint64_t n = manifest.size();
    std::memcpy(&forged[24], &n, 8);
    return withLength(forged);
  };
  expectRefused(forge("[]"), "expected an object");
  expectRefused(forge("{}"), "'model' is missing");
  expectRefused(forge("nonsense"), "parse error");
  expectRefused(forge(std::string(1 << 20, '[')), "too deeply");
  expectRefused(forge("{\"model\": 3}"), "manifest.model: expected a string");
  std::string manifest = bytes.substr(40, length);
  auto replaced = [&](const std::string &from, const std::string &to) {
    std::string text = manifest;
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return forge(text.replace(at, from.size(), to));
  };
  expectRefused(replaced("\"arena_bytes\":", "\"arena_bytes\":1e30,\"x\":"), "expected an integer");
  expectRefused(replaced("\"arena_bytes\":", "\"arena_bytes\":99999999999999999999,\"x\":"),
                "expected an integer");
  expectRefused(replaced("\"op\":\"gemm\"", "\"op\":\"gems\""), "expected one of");
  expectRefused(replaced("\"objects\":[17", "\"objects\":[-1"), "passes the end");
}

TEST(Executable, VerifyFindsEachFault) {
  ASSERT_TRUE(verify(full()));
  auto expect = [](const std::string &word, auto &&change) {
    Executable e = full();
    change(e, e.programs[0]);
    auto status = verify(e);
    ASSERT_FALSE(status) << word;
    EXPECT_EQ(status.error().fault, Fault::Internal);
    EXPECT_NE(status.error().message.find(word), std::string::npos) << status.error().message;
  };
  auto gemm = [](Program &p) -> GemmStep & { return std::get<GemmStep>(p.steps[0].action); };
  auto reduce = [](Program &p) -> CollectiveStep & {
    return std::get<CollectiveStep>(p.steps[2].action);
  };
  using E = Executable;
  using P = Program;
  expect("no program", [](E &e, P &) { e.programs.clear(); });
  expect("same sizes", [](E &e, P &p) {
    P copy = p;
    e.programs.push_back(copy);
  });
  expect("mesh axis 'tp' has size 0", [](E &e, P &) { e.mesh[1].size = 0; });
  expect("two mesh axes", [](E &e, P &) { e.mesh[1].name = "dp"; });
  expect("rank table", [](E &e, P &) { e.rankProgram.pop_back(); });
  expect("arena", [](E &, P &p) { p.arenaBytes = -1; });
  expect("of an arena", [](E &, P &p) { p.arenaBytes = 64; });
  expect("of an arena", [](E &, P &p) { p.buffers[8].offset = 4; });
  expect("of an arena", [](E &, P &p) { p.buffers[8].offset = INT64_MAX - 63; });
  expect("buffer 3", [](E &, P &p) { p.buffers[3].bytes = 8; });
  expect("argument 70 does not exist", [](E &, P &p) { p.buffers[3].index = 70; });
  expect("use the argument", [](E &, P &p) { p.buffers[7].index = 1; });
  expect("localBytes", [](E &, P &p) { ++p.arguments[0].localBytes; });
  expect("argument 'mlp.w2': it is donated", [](E &, P &p) { p.arguments[2].donatedTo = 0; });
  expect("donated to result 9", [](E &, P &p) { p.arguments[2].donatedTo = 9; });
  expect("result 'y'", [](E &, P &p) { p.results[0].aliasOf = 0; });
  expect("dim 'ffn'", [](E &, P &p) { p.arguments[0].layout.dims[1].axes = {{1, 1, 3}}; });
  expect("another dim uses", [](E &, P &p) { p.arguments[0].layout.dims[0].axes = {{1, 1, 4}}; });
  expect("does not hold integers", [](E &, P &p) { p.arguments[4].rangeEnd = 3; });
  expect("location", [](E &, P &p) { p.steps[0].location = 2; });
  expect("label", [](E &, P &p) { p.steps[0].label = 5; });
  expect("work", [](E &, P &p) { p.steps[0].flops = -1; });
  expect("step 0: A:", [&](E &, P &p) { gemm(p).a.offset = 4; });
  expect("step 0: C:", [&](E &, P &p) { gemm(p).c.buffer = 1; });
  expect("step 0: B: buffer -1", [&](E &, P &p) { gemm(p).b.buffer = -1; });
  expect("step 0", [&](E &, P &p) { gemm(p).m = INT64_MAX; });
  expect("step 0", [&](E &, P &p) { gemm(p).k = -1; });
  expect("longer than", [&](E &, P &p) { gemm(p).lda = 1; });
  expect("step 0: A", [&](E &, P &p) {
    gemm(p).batch = 2;
    gemm(p).strideC = 100;
    gemm(p).strideA = INT64_MAX / 8;
  });
  expect("matrices of C overlap", [&](E &, P &p) { gemm(p).batch = 2; });
  expect("product of i32", [&](E &, P &p) { gemm(p).dtype = DType::I32; });
  expect("step 0: the sums", [&](E &, P &p) { gemm(p).sums = GemmStep::Sums::OfB; });
  expect("sums of an operand beside a batch", [&](E &, P &p) {
    gemm(p).sums = GemmStep::Sums::OfB;
    gemm(p).batch = 0;
  });
  expect("step 0 takes A from the product before", [&](E &, P &p) { gemm(p).sameA = true; });
  expect("step 1 takes A from the product before",
         [&](E &, P &p) { std::get<GemmStep>(p.steps[1].action).sameA = true; });
  expect("bias_relu", [&](E &, P &p) { gemm(p).epilogueBuffers[0].offset = 1000; });
  expect("scalar", [&](E &, P &p) {
    gemm(p).epilogueScalars[0] = {RankScalar::Kind::Offset, 0, 4, 2, {{5, 1, 1}}};
  });
  expect("a scalar of part 2 of 2", [&](E &, P &p) {
    gemm(p).epilogueScalars[0] = {RankScalar::Kind::Offset, 0, 4, 2, {}, 2, 2};
  });
  expect("out:", [&](E &, P &p) { reduce(p).out.offset = 1 << 20; });
  expect("out of range", [&](E &, P &p) { reduce(p).outer = INT64_MAX; });
  expect("in:", [&](E &, P &p) { reduce(p).inDim = 1000; });
  expect("site 3", [&](E &, P &p) { reduce(p).site = 3; });
  expect("over axes", [&](E &, P &p) { reduce(p).axes[0].axis = 2; });
  expect("do not hold",
         [&](E &, P &p) { std::get<CollectiveStep>(p.steps[8].action).axes.pop_back(); });
  expect("do not fill", [&](E &, P &p) { std::get<CollectiveStep>(p.steps[7].action).outDim = 3; });
  expect("from:", [](E &, P &p) { std::get<CopyStep>(p.steps[3].action).bytes = -4; });
  expect("to:", [](E &, P &p) { std::get<FillStep>(p.steps[5].action).to.offset = -4; });
  expect("grain 0", [](E &, P &p) { std::get<KernelStep>(p.steps[4].action).grain = 0; });
  expect("step 3: it awaits step 0, which begins no collective",
         [](E &, P &p) { p.steps[3].action = AwaitStep{0}; });
  expect("it awaits step 99", [](E &, P &p) { p.steps[3].action = AwaitStep{99}; });
  expect("step 2 begins a collective that no step awaits",
         [&](E &, P &p) { reduce(p).begun = true; });
  expect("step 4 awaits step 2, which is not under way", [&](E &, P &p) {
    reduce(p).begun = true;
    p.steps[3].action = p.steps[4].action = AwaitStep{2};
  });
  expect("without a name", [](E &, P &p) { std::get<KernelStep>(p.steps[4].action).symbol = ""; });
}

TEST(Executable, SaysWhichCpuFeaturesAreMissing) {
  Executable e = full();
  e.cpuFeatures = cpuFeatures();
  EXPECT_TRUE(checkCpuFeatures(e));
  e.cpuFeatures = {"avx2", "avx9"};
  auto status = checkCpuFeatures(e);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("no avx9"), std::string::npos) << status.error().message;
}
