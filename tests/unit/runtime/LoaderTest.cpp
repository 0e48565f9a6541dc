//===- LoaderTest.cpp - generated code into memory -------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/ObjectLoader.h"

#include "runtime/core/AtomicFile.h"
#include "runtime/cpu/KernelTable.h"

#include <cmath>
#include <gtest/gtest.h>

using namespace cleave;

static std::string object(const char *path) {
  auto file = MappedFile::open(path);
  EXPECT_TRUE(file) << path;
  return std::string(file->view());
}

TEST(Loader, RunsCodeThatCallsLibm) {
  auto loader = ObjectLoader::load({object(CLEAVE_KERNELS)}, {"exponentials", "move_bytes"});
  ASSERT_TRUE(loader) << loader.error().message;
  auto kernel = reinterpret_cast<KernelFunction>((*loader)->find("exponentials"));
  ASSERT_NE(kernel, nullptr);
  float out[8] = {};
  char *buffers[] = {reinterpret_cast<char *>(out)};
  int64_t shift = 2;
  kernel(1, 8, buffers, &shift);
  EXPECT_EQ(out[0], 0);
  for (int i = 1; i < 8; ++i)
    EXPECT_FLOAT_EQ(out[i], std::exp(0.5f + static_cast<float>((i + 2) & 3)) +
                                std::tanh(static_cast<float>(i)));
  auto move = reinterpret_cast<KernelFunction>((*loader)->find("move_bytes"));
  char from[] = "abcdefgh", to[] = "--------";
  char *pair[] = {from, to};
  move(2, 5, pair, nullptr);
  EXPECT_STREQ(to, "--cde---");
  EXPECT_EQ((*loader)->find("nothing"), nullptr);
}

TEST(Loader, RefusesForbiddenSymbolsByName) {
  auto loader = ObjectLoader::load({object(CLEAVE_FORBIDDEN)}, {"exponentials"});
  ASSERT_FALSE(loader);
  EXPECT_NE(loader.error().message.find("system"), std::string::npos) << loader.error().message;
  EXPECT_NE(loader.error().message.find("exit"), std::string::npos);
  EXPECT_EQ(loader.error().message.find("expf"), std::string::npos);
}

TEST(Loader, RefusesWhatIsNoObject) {
  std::string good = object(CLEAVE_KERNELS);
  for (const std::string &bad : {std::string(), std::string("not an object"), good.substr(0, 100),
                                 std::string("\x7f"
                                             "ELF") +
                                     std::string(60, '\0')}) {
    auto loader = ObjectLoader::load({bad}, {});
    ASSERT_FALSE(loader);
    EXPECT_NE(loader.error().message.find("object 0"), std::string::npos) << loader.error().message;
  }
  std::string foreign = good;
  foreign[18] = static_cast<char>(0xB7); // e_machine: AArch64
  foreign[19] = 0;
  auto loader = ObjectLoader::load({foreign}, {});
  ASSERT_FALSE(loader);
  EXPECT_NE(loader.error().message.find("aarch64"), std::string::npos) << loader.error().message;
}

TEST(Loader, NamesMissingAndDoubleKernels) {
  std::string good = object(CLEAVE_KERNELS);
  auto missing = ObjectLoader::load({good}, {"exponentials", "gelu_7"});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("gelu_7"), std::string::npos);
  auto twice = ObjectLoader::load({good, good}, {"exponentials"});
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().message.find("two code objects"), std::string::npos);
}
