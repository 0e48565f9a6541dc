//===- DataTest.cpp - tensors and text in files ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/core/AtomicFile.h"
#include "runtime/data/Safetensors.h"
#include "runtime/data/TextData.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>
#include <random>

using namespace cleave;

namespace {
std::string temporary(const char *name) { return testing::TempDir() + name; }

std::string file(const std::string &header, const std::string &data = "") {
  std::string bytes(8, '\0');
  uint64_t n = header.size();
  std::memcpy(bytes.data(), &n, 8);
  return bytes + header + data;
}

Result<std::map<std::string, SafetensorsFile::Entry>> parse(const std::string &bytes) {
  int64_t at = 0;
  std::map<std::string, std::string> metadata;
  return SafetensorsFile::parseHeader(bytes, "w.safetensors", at, metadata);
}

void expectRefused(const std::string &bytes, const std::string &word) {
  auto start = std::chrono::steady_clock::now();
  auto entries = parse(bytes);
  ASSERT_FALSE(entries) << word;
  EXPECT_NE(entries.error().message.find("w.safetensors"), std::string::npos);
  EXPECT_NE(entries.error().message.find(word), std::string::npos) << entries.error().message;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

std::string tensor(const char *name, const char *dtype, const char *shape, const char *offsets) {
  return "\"" + std::string(name) + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}
} // namespace

// B71
TEST(Safetensors, HostileHeaders) {
  std::string good = "{" + tensor("k", "F32", "[1]", "[0,4]") + "}";
  ASSERT_TRUE(parse(file(good, "abcd")));
  for (uint64_t length :
       {uint64_t{0}, uint64_t{7}, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{good.size() + 13}}) {
    std::string bytes = file(good, "abcd");
    std::memcpy(bytes.data(), &length, 8);
    expectRefused(bytes, "");
  }
  expectRefused("", "0 bytes");
  expectRefused("1234567", "7 bytes");
  expectRefused(file("{" + tensor("k", "F32", "[1]", "[0,4]") + "," +
                         tensor("k", "F32", "[1]", "[4,8]") + "}",
                     "abcdefgh"),
                "'k' stands twice");
  expectRefused(
      file("{\"k\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
           "abcd"),
      "'dtype' stands twice");
  expectRefused(file("{" + tensor("\xff\xff", "F32", "[1]", "[0,4]") + "}", "abcd"), "UTF-8");
  for (const char *header : {"[]", "\"x\"", "null", "3", ""})
    expectRefused(file(header), "not a JSON object");
  expectRefused(file(std::string(1 << 20, '[')), "not a JSON object");
  expectRefused(file("{\"k\":" + std::string(1 << 20, '[')), "too deeply");
  expectRefused(file("{\"k\":" + std::string(1 << 20, '{')), "");
  for (const char *offsets : {"[-1,4]", "[0]", "[\"0\",\"4\"]", "[0,1e30]", "[0,4.0]", "[0,4,8]",
                              "{}", "[0,18446744073709551615]", "null"})
    expectRefused(file("{" + tensor("k", "F32", "[1]", offsets) + "}", "abcd"), "tensor 'k'");
  expectRefused(file("{" + tensor("k", "F32", "[1]", "[4,0]") + "}", "abcd"), "backwards");
  expectRefused(file("{" + tensor("k", "F33", "[1]", "[0,4]") + "}", "abcd"), "'F33'");
  expectRefused(file("{" + tensor("k", "F32", "[-1]", "[0,4]") + "}", "abcd"), "shape");
  expectRefused(file("{\"k\":{\"shape\":[1],\"data_offsets\":[0,4]}}", "abcd"),
                "'dtype' is missing");
  expectRefused(file("{\"k\":7}", "abcd"), "not an object");
  expectRefused(file("{\"__metadata__\":[]}"), "__metadata__");
  expectRefused(file("{\"__metadata__\":{\"a\":1}}"), "'a' is not a string");
}

// B72
TEST(Safetensors, RangesMustCoverTheFileOnce) {
  auto two = [](const char *a, const char *b) {
    return "{" + tensor("k_proj", "F32", "[2]", a) + "," + tensor("v_proj", "F32", "[2]", b) + "}";
  };
  std::string data(16, 'x');
  EXPECT_TRUE(parse(file(two("[0,8]", "[8,16]"), data)));
  EXPECT_TRUE(parse(file(two("[8,16]", "[0,8]"), data)));
  expectRefused(file(two("[0,8]", "[0,8]"), data.substr(8)), "'k_proj' and 'v_proj' overlap");
  expectRefused(file(two("[0,8]", "[4,12]"), data), "overlap");
  expectRefused(file(two("[0,8]", "[12,20]"), data + "1234"), "4 bytes before tensor 'v_proj'");
  expectRefused(file(two("[4,12]", "[12,20]"), data + "1234"), "4 bytes before tensor 'k_proj'");
  expectRefused(file("{" + tensor("k", "F32", "[1000,1000]", "[0,4]") + "}", "abcd"),
                "needs 4000000 bytes");
  expectRefused(file(two("[0,8]", "[8,16]"), data.substr(1)), "cut short");
  expectRefused(file(two("[0,8]", "[8,16]"), data + "y"), "1 bytes at its end");
  expectRefused(file("{" + tensor("k", "F32", "[4294967296,4294967296]", "[0,0]") + "}"),
                "too large");
  expectRefused(file("{}", "x"), "1 bytes at its end");
  EXPECT_TRUE(parse(file("{}")));
  EXPECT_TRUE(parse(file("{" + tensor("empty", "F32", "[0,5]", "[0,0]") + "," +
                             tensor("k", "F32", "[1]", "[0,4]") + "}   ",
                         "abcd")));
  EXPECT_TRUE(parse(file("{" + tensor("big", "F32", "[0,9223372036854775807,2]", "[0,0]") + "}")));
}

TEST(Safetensors, MutatedHeadersDoNotCrash) {
  std::string good =
      file("{\"__metadata__\":{\"a\":\"b\"}," + tensor("k", "F32", "[2,1]", "[0,8]") + "," +
               tensor("v", "BF16", "[]", "[8,10]") + "}",
           "0123456789");
  ASSERT_TRUE(parse(good));
  std::mt19937 random(4);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (unsigned n = 1 + random() % 3; n > 0; --n)
      bytes[random() % bytes.size()] = "0123456789-[]{},:\"eF\xff\0"[random() % 22];
    auto entries = parse(bytes);
    if (!entries)
      EXPECT_FALSE(entries.error().message.empty());
  }
}

TEST(Safetensors, ScalarsEmptyAndUnalignedTensorsLoad) {
  std::string path = temporary("unaligned.safetensors");
  float value = 1.5f;
  std::string data("\x01\x02\x00", 3); // U8: true, true, false
  data += std::string(reinterpret_cast<char *>(&value), 4);
  std::string header =
      "{" + tensor("flags", "U8", "[3]", "[0,3]") + "," + tensor("s", "F32", "[]", "[3,7]") + "," +
      tensor("none", "I64", "[2,0]", "[7,7]") + "," + tensor("odd", "I8", "[]", "[7,8]") + "}";
  ASSERT_TRUE(writeFileAtomically(path, file(header, data + "z")));
  auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(*opened->read("s")->as<float>(), 1.5f);
  EXPECT_TRUE(opened->read("s")->shape.empty());
  EXPECT_EQ(opened->read("none")->elements(), 0);
  EXPECT_EQ(opened->read("flags")->data, (std::vector<char>{1, 1, 0}));
  auto odd = opened->read("odd");
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().message.find("I8"), std::string::npos);
  auto missing = opened->read("flag");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("did you mean 'flags'"), std::string::npos);
  std::filesystem::remove(path);
}

TEST(Safetensors, WritesWhatItReads) {
  std::string path = temporary("round.safetensors");
  std::vector<HostTensor> tensors;
  std::vector<NamedTensor> named;
  for (DType type :
       {DType::I1, DType::BF16, DType::F32, DType::F64, DType::F16, DType::I32, DType::I64}) {
    HostTensor t(type, {3, 1});
    for (size_t i = 0; i < t.data.size(); ++i)
      t.data[i] = type == DType::I1 ? static_cast<char>(i % 2) : static_cast<char>(i + 1);
    tensors.push_back(std::move(t));
  }
  tensors.emplace_back(DType::F32, std::vector<int64_t>{});
  tensors.emplace_back(DType::F32, std::vector<int64_t>{0});
  for (size_t i = 0; i < tensors.size(); ++i)
    named.push_back({"t\"" + std::to_string(i) + "\xc3\xa9", tensors[i].view()});
  ASSERT_TRUE(writeSafetensors(path, named, {{"model", "gpt2"}}));
  auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->metadata().at("model"), "gpt2");
  EXPECT_EQ(opened->entries().size(), named.size());
  for (size_t i = 0; i < named.size(); ++i) {
    auto back = opened->read(named[i].name);
    ASSERT_TRUE(back);
    EXPECT_EQ(back->data, tensors[i].data);
    EXPECT_EQ(back->shape, tensors[i].shape);
    EXPECT_EQ(back->dtype, tensors[i].dtype);
    auto view = opened->view(named[i].name);
    if (view->elements() > 0)
      EXPECT_EQ(
          reinterpret_cast<uintptr_t>(view->data) % static_cast<size_t>(byteSize(view->dtype)), 0u);
  }
  // The order in which they are given does not show.
  std::string first(MappedFile::open(path)->view());
  std::reverse(named.begin(), named.end());
  ASSERT_TRUE(writeSafetensors(path, named, {{"model", "gpt2"}}));
  EXPECT_EQ(MappedFile::open(path)->view(), first);
  named.push_back(named[0]);
  EXPECT_FALSE(writeSafetensors(path, named));
  EXPECT_EQ(MappedFile::open(path)->view(), first); // and a refusal leaves the file
  std::filesystem::remove(path);
}

TEST(TextData, RowsDependOnSeedStepAndRowOnly) {
  std::string path = temporary("text.txt"), text;
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i)
    text += static_cast<char>(random());
  ASSERT_TRUE(writeFileAtomically(path, text));
  auto data = TextData::open(path, 16, 5);
  ASSERT_TRUE(data);
  EXPECT_EQ(data->size(), 1000);
  TextBatch large = data->batch(3, 8), small = data->batch(3, 2);
  EXPECT_EQ(large.tokens.shape, (std::vector<int64_t>{8, 16}));
  EXPECT_EQ(
      std::memcmp(large.tokens.data.data(), small.tokens.data.data(), small.tokens.data.size()), 0);
  EXPECT_EQ(data->batch(3, 8).tokens.data, large.tokens.data);
  EXPECT_NE(data->batch(4, 8).tokens.data, large.tokens.data);
  EXPECT_NE(TextData::open(path, 16, 6)->batch(3, 8).tokens.data, large.tokens.data);
  for (int64_t row = 0; row < 8; ++row)
    for (int64_t i = 0; i < 16; ++i) {
      int64_t at = data->rowStart(3, row) + i;
      EXPECT_EQ(large.tokens.as<int32_t>()[row * 16 + i],
                static_cast<uint8_t>(text[static_cast<size_t>(at)]));
      EXPECT_EQ(large.labels.as<int32_t>()[row * 16 + i],
                static_cast<uint8_t>(text[static_cast<size_t>(at + 1)]));
      EXPECT_EQ(large.pos.as<int32_t>()[row * 16 + i], i);
    }
  int64_t least = 1000, most = 0;
  for (uint32_t step = 0; step < 20000; ++step) {
    int64_t start = data->rowStart(step, 0);
    least = std::min(least, start);
    most = std::max(most, start);
  }
  EXPECT_EQ(least, 0);
  EXPECT_EQ(most, 1000 - 16 - 1); // the last start whose last label exists
  EXPECT_EQ(data->windows(), 62);
  EXPECT_EQ(data->window(61, 1).labels.as<int32_t>()[15], static_cast<uint8_t>(text[992]));
  std::filesystem::remove(path);
}

TEST(TextData, RefusesFilesWithoutARow) {
  std::string path = temporary("short.txt");
  ASSERT_TRUE(writeFileAtomically(path, ""));
  EXPECT_NE(TextData::open(path, 4, 0).error().message.find("empty"), std::string::npos);
  ASSERT_TRUE(writeFileAtomically(path, "abcd"));
  EXPECT_NE(TextData::open(path, 4, 0).error().message.find("at least 5"), std::string::npos);
  ASSERT_TRUE(writeFileAtomically(path, "abcde"));
  auto exact = TextData::open(path, 4, 0);
  ASSERT_TRUE(exact);
  EXPECT_EQ(exact->batch(0, 1).labels.as<int32_t>()[3], 'e');
  EXPECT_EQ(exact->windows(), 1);
  EXPECT_FALSE(TextData::open(path, 0, 0));
  std::filesystem::remove(path);
  EXPECT_FALSE(TextData::open(path, 4, 0));
}
