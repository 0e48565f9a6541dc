//===- ExecutableTest.cpp - executables in files, several programs --------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

#include "runtime/executable/Format.h"

#include <cstring>
#include <filesystem>

using namespace cleave;
using namespace cleave::e2e;

namespace {

std::string nameOf(const ::testing::TestParamInfo<Layout> &info) { return info.param.name; }

Scalars scalars(int64_t step) { return {{"seed", int64_t(1)}, {"step", step}, {"lr", 1e-3}}; }

/// Three steps of training, then the losses, the weights and the moments.
Tensors trained(std::shared_ptr<const Executable> executable) {
  auto session = started(std::move(executable));
  if (!session)
    return {};
  setParams(*session, oracle("gpt2/weights.safetensors"));
  Tensors all;
  for (int64_t step = 0; step < 3; ++step)
    for (auto &[name, value] :
         ran(*session, "train_step", oracle("gpt2/inputs.safetensors"), scalars(step)))
      all.emplace(name + std::to_string(step), value);
  all.merge(persistent(*session, true));
  return all;
}

class File : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(On, File, ::testing::Values(oneRank(), tp(3), dpTp()), nameOf);

TEST_P(File, GivesTheSameBitsAsTheCompiler) {
  auto executable = compiled(gpt2With("dropout_rate", "0.2"), GetParam(), trainStep(DType::F32));
  ASSERT_TRUE(executable);
  std::string path = ::testing::TempDir() + "cleave_e2e_" + GetParam().name + ".cleavex";
  auto status = writeExecutable(*executable, path);
  ASSERT_TRUE(status) << status.error().message;
  auto again = readExecutable(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(again) << again.error().message;
  auto before = serialise(*executable), after = serialise(*again);
  ASSERT_TRUE(before && after);
  EXPECT_TRUE(*before == *after);
  EXPECT_TRUE(sameBits(trained(executable), trained(std::make_shared<const Executable>(*again))));
}

TEST_P(File, TwoCompilationsGiveTheSameBytes) {
  auto a = compiled(gpt2(), GetParam(), trainStep(DType::F32));
  auto b = compiled(gpt2(), GetParam(), trainStep(DType::F32));
  ASSERT_TRUE(a && b);
  auto first = serialise(*a), second = serialise(*b);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(*first == *second);
}

class DamagedFile : public ::testing::Test {
protected:
  void SetUp() override {
    auto executable = compiled(gpt2(), tp(2), forwardOf("loss", DType::F32));
    ASSERT_TRUE(executable);
    auto text = serialise(*executable);
    ASSERT_TRUE(text) << text.error().message;
    bytes = *text;
    ASSERT_TRUE(deserialise(bytes, "whole"));
    std::memcpy(&manifest, bytes.data() + 24, 8);
    ASSERT_LT(manifest + 40, bytes.size());
  }
  /// The header's checksum of the bytes as they are.
  static void seal(std::string &text) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 8; i < text.size(); ++i)
      if (i < 32 || i >= 40)
        hash = (hash ^ static_cast<uint8_t>(text[i])) * 1099511628211u;
    std::memcpy(text.data() + 32, &hash, 8);
  }
  std::string bytes;
  uint64_t manifest = 0;
};

TEST_F(DamagedFile, IsRefusedWhicheverByteIsFlipped) {
  int count = 0;
  for (size_t i = 0; i < bytes.size(); i += 97, ++count) {
    std::string text = bytes;
    text[i] = static_cast<char>(text[i] ^ (1 << i % 8));
    auto result = deserialise(text, "damaged");
    ASSERT_FALSE(result) << "byte " << i;
    EXPECT_NE(result.error().message.find("damaged"), std::string::npos) << result.error().message;
  }
  EXPECT_GT(count, 300);
}

TEST_F(DamagedFile, IsRefusedHoweverShort) {
  std::vector<size_t> lengths;
  for (size_t n = 0; n < 64; ++n)
    lengths.push_back(n);
  for (size_t n = 64; n < bytes.size(); n += 997)
    lengths.push_back(n);
  lengths.push_back(bytes.size() - 1);
  for (size_t n : lengths)
    ASSERT_FALSE(deserialise(std::string_view(bytes).substr(0, n), "short")) << n;
  EXPECT_FALSE(deserialise(bytes + '\0', "long"));
}

/// With a checksum that fits: what the manifest says is checked as well. A byte
/// of a name or a rule may be any; then it is an executable that `verify` takes.
TEST_F(DamagedFile, ForgedManifestIsRefusedOrSound) {
  {
    std::string same = bytes;
    seal(same);
    ASSERT_TRUE(same == bytes) << "the checksum is another one now";
  }
  int refused = 0, sound = 0;
  for (size_t i = 0; i < manifest; i += 97) {
    std::string text = bytes;
    char &c = text[40 + i];
    c = c >= '0' && c <= '9' ? static_cast<char>('0' + (c - '0' + 1 + i % 9) % 10)
                             : static_cast<char>(c ^ (1 << i % 8));
    seal(text);
    auto result = deserialise(text, "forged");
    if (!result) {
      ++refused;
      continue;
    }
    ++sound;
    EXPECT_TRUE(verify(*result)) << "manifest byte " << i;
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(sound, 0);
}

/// Forward, gradients and training of one model in one executable share their
/// params; each does what it does alone.
TEST_P(File, HoldsSeveralPrograms) {
  CompileOptions options = trainStep(DType::F32);
  EntryPoint step = options.entries[0];
  options.entries = {{"forward", EntryPoint::Kind::Function, false},
                     {"loss", EntryPoint::Kind::Function, false},
                     {"loss", EntryPoint::Kind::Gradients, false},
                     step};
  auto session = started(compiled(gpt2(), GetParam(), options));
  ASSERT_TRUE(session);
  setParams(*session, oracle("gpt2/weights.safetensors"));
  Tensors inputs = oracle("gpt2/inputs.safetensors");
  auto all = [&](Session &forward, Session &loss, Session &gradients) {
    Tensors results = ran(forward, "forward", inputs);
    results.merge(ran(loss, "loss", inputs));
    for (auto &[name, value] : ran(gradients, "loss_grads", inputs))
      results.emplace("grads " + name, value);
    EXPECT_EQ(results.size(), 23u);
    return results;
  };
  Tensors before = all(*session, *session, *session);
  EXPECT_EQ(number(before, "loss"), number(before, "grads loss"));
  EXPECT_EQ(number(before, "loss"),
            number(ran(*session, "train_step", inputs, scalars(0)), "loss"));
  Tensors after = all(*session, *session, *session);
  EXPECT_NE(number(before, "loss"), number(after, "loss"));

  auto forward = started(compiled(gpt2(), GetParam(), forwardOf("forward", DType::F32)));
  auto loss = started(compiled(gpt2(), GetParam(), forwardOf("loss", DType::F32)));
  auto gradients = started(compiled(gpt2(), GetParam(), gradientsOf("loss", DType::F32)));
  ASSERT_TRUE(forward && loss && gradients);
  Tensors weights = persistent(*session);
  for (Session *one : {forward.get(), loss.get(), gradients.get()})
    setParams(*one, weights);
  EXPECT_TRUE(sameBits(all(*forward, *loss, *gradients), after));
}

} // namespace
