//===- DataTest.cpp - tensors and text in files ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/core/AtomicFile.h"
#include "runtime/data/Safetensors.h"
#include "runtime/data/SentencePairs.h"
#include "runtime/data/TextData.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>
#include <map>
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

//===----------------------------------------------------------------------===//
// Pairs of sentences
//===----------------------------------------------------------------------===//

namespace {
/// A row as it was before it was masked, and what was done to it.
struct Pair {
  std::string parts[2];
  int64_t bytes = 0, masked = 0, toMask = 0, kept = 0, changed = 0;
  bool follows = false;
};

/// Reads a row, checking everything that holds for every row.
Pair readPair(const PairBatch &batch, int64_t row) {
  Pair pair;
  const int64_t seq = batch.tokens.shape[1];
  const int32_t *tokens = batch.tokens.as<int32_t>() + row * seq;
  const int32_t *kind = batch.kind.as<int32_t>() + row * seq;
  const int32_t *labels = batch.labels.as<int32_t>() + row * seq;
  const char *valid = batch.valid.as<char>() + row * seq;
  EXPECT_EQ(tokens[0], SentencePairs::cls);
  int64_t length = 0, ends = 0;
  for (int64_t i = 0; i < seq; ++i) {
    length += valid[i];
    EXPECT_EQ(valid[i], tokens[i] != SentencePairs::pad);
    EXPECT_EQ(valid[i], i < length) << "padding comes last";
    bool special = tokens[i] == SentencePairs::cls || tokens[i] == SentencePairs::sep;
    EXPECT_EQ(kind[i], valid[i] && ends == 1 ? 1 : 0) << i;
    if (special || !valid[i]) {
      EXPECT_EQ(labels[i], SentencePairs::ignored) << "a special token is masked";
      ends += tokens[i] == SentencePairs::sep;
      continue;
    }
    ++pair.bytes;
    bool masked = labels[i] != SentencePairs::ignored;
    int32_t original = masked ? labels[i] : tokens[i];
    EXPECT_TRUE(original >= 0 && original < 256) << original;
    EXPECT_LT(ends, 2);
    pair.parts[ends == 1] += static_cast<char>(original);
    pair.masked += masked;
    pair.toMask += tokens[i] == SentencePairs::mask;
    pair.kept += masked && tokens[i] == original;
    pair.changed += masked && tokens[i] != original && tokens[i] != SentencePairs::mask;
    if (!masked)
      EXPECT_LT(tokens[i], 256);
  }
  EXPECT_EQ(ends, 2);
  EXPECT_FALSE(pair.parts[0].empty() || pair.parts[1].empty());
  EXPECT_EQ(pair.masked,
            std::max<int64_t>(1, std::llround(0.15 * static_cast<double>(pair.bytes))));
  pair.follows = batch.next.as<int32_t>()[row] == 0;
  return pair;
}

/// Within five standard deviations of a binomial distribution.
void expectShare(int64_t found, int64_t of, double share, const char *what) {
  double n = static_cast<double>(of);
  EXPECT_NEAR(static_cast<double>(found), share * n, 5 * std::sqrt(n * share * (1 - share)))
      << what;
}

/// Lines of different lengths, each with its number in it, so that all are different.
std::string numbered(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += std::to_string(1000 + i) + std::string(static_cast<size_t>(i * 7 % 23), 'a') + "\n" +
            (i % 5 == 0 ? "\n" : "");
  return text;
}
} // namespace

TEST(SentencePairs, HaveTheSharesOfThePaper) {
  std::string path = temporary("pairs.txt"), text = numbered(500);
  ASSERT_TRUE(writeFileAtomically(path, text));
  auto data = SentencePairs::open(path, 61, 7);
  ASSERT_TRUE(data) << data.error().message;
  const int64_t rows = 4000;
  PairBatch batch = data->batch(3, rows);
  int64_t follow = 0, masked = 0, toMask = 0, kept = 0, changed = 0, full = 0;
  for (int64_t row = 0; row < rows; ++row) {
    Pair pair = readPair(batch, row);
    if (HasFailure())
      FAIL() << "row " << row;
    follow += pair.follows;
    masked += pair.masked;
    toMask += pair.toMask;
    kept += pair.kept;
    changed += pair.changed;
    full += pair.bytes == 61 - 3;
    EXPECT_NE(text.find(pair.parts[0]), std::string::npos);
    EXPECT_NE(text.find(pair.parts[1]), std::string::npos);
  }
  expectShare(follow, rows, 0.5, "pairs that follow");
  expectShare(toMask, masked, 0.8, "[MASK]");
  // A random byte is the token itself once in 256.
  expectShare(kept, masked, 0.1 + 0.1 / 256, "kept");
  expectShare(changed, masked, 0.1 - 0.1 / 256, "another byte");
  EXPECT_GT(full, rows * 7 / 10) << "most rows are full";
  EXPECT_LT(full, rows * 95 / 100) << "and some are short";
  std::filesystem::remove(path);
}

/// With rows that hold all of the text nothing is cut off, and what follows is
/// plain to see.
TEST(SentencePairs, FollowInTheTextIfTheySaySo) {
  std::string path = temporary("follow.txt");
  std::string text = "first\nsecond one\n\nthe third\r\nfourth";
  ASSERT_TRUE(writeFileAtomically(path, text));
  auto data = SentencePairs::open(path, 80, 1);
  ASSERT_TRUE(data) << data.error().message;
  PairBatch batch = data->batch(0, 600);
  std::map<std::pair<std::string, std::string>, int> seen[2];
  for (int64_t row = 0; row < 600; ++row) {
    Pair pair = readPair(batch, row);
    ++seen[pair.follows][{pair.parts[0], pair.parts[1]}];
  }
  // Rows that are short on purpose are cut; all others are whole lines.
  auto whole = [&](bool follows, const char *first, const char *second) {
    return seen[follows][{first, second}];
  };
  EXPECT_GT(whole(true, "first", "second one\n\nthe third\r\nfourth"), 0);
  EXPECT_GT(whole(true, "first\nsecond one", "the third\r\nfourth"), 0);
  EXPECT_GT(whole(true, "the third", "fourth"), 0);
  EXPECT_GT(whole(false, "the third", "first\nsecond one\n\nthe third\r\nfourth"), 0);
  EXPECT_GT(whole(false, "first", "the third\r\nfourth"), 0);
  EXPECT_GT(whole(false, "first\nsecond one", "fourth"), 0);
  // Neither a part of the first nor what does follow it.
  EXPECT_EQ(whole(false, "first", "second one\n\nthe third\r\nfourth"), 0);
  EXPECT_EQ(whole(false, "the third", "fourth"), 0);
  EXPECT_EQ(whole(false, "first\nsecond one", "the third\r\nfourth"), 0);
  EXPECT_EQ(whole(false, "second one", "second one\n\nthe third\r\nfourth"), 0);
  std::filesystem::remove(path);
}

TEST(SentencePairs, RowsDependOnSeedStepAndRowOnly) {
  std::string path = temporary("rows.txt");
  ASSERT_TRUE(writeFileAtomically(path, numbered(50)));
  auto data = SentencePairs::open(path, 33, 5);
  ASSERT_TRUE(data);
  auto all = [](const PairBatch &b) {
    return std::vector{b.tokens.data, b.kind.data, b.valid.data, b.labels.data, b.next.data};
  };
  auto large = all(data->batch(3, 9)), small = all(data->batch(3, 4));
  EXPECT_EQ(large, all(SentencePairs::open(path, 33, 5)->batch(3, 9)));
  for (size_t i = 0; i < large.size(); ++i)
    EXPECT_TRUE(std::equal(small[i].begin(), small[i].end(), large[i].begin())) << i;
  EXPECT_NE(all(data->batch(4, 9))[0], large[0]);
  EXPECT_NE(all(SentencePairs::open(path, 33, 6)->batch(3, 9))[0], large[0]);
  std::string first(large[0].begin(), large[0].begin() + 33 * 4);
  EXPECT_NE(first, std::string(large[0].begin() + 33 * 4, large[0].begin() + 2 * 33 * 4));
  std::filesystem::remove(path);
}

TEST(SentencePairs, ShortRowsAndLongLines) {
  std::string path = temporary("long.txt");
  ASSERT_TRUE(writeFileAtomically(path, std::string(3000000, 'a') + "\nb\n" +
                                            std::string(2000000, 'c') + "\nd"));
  for (int64_t seq : {5, 6, 8, 40}) {
    auto data = SentencePairs::open(path, seq, 2);
    ASSERT_TRUE(data);
    EXPECT_EQ(data->sequence(), seq);
    PairBatch batch = data->batch(0, 50);
    for (int64_t row = 0; row < 50; ++row)
      EXPECT_LE(readPair(batch, row).bytes, seq - 3);
  }
  std::filesystem::remove(path);
}

TEST(SentencePairs, RefusesTextsWithoutPairs) {
  std::string path = temporary("none.txt");
  auto message = [&](int64_t seq) { return SentencePairs::open(path, seq, 0).error().message; };
  ASSERT_TRUE(writeFileAtomically(path, ""));
  EXPECT_NE(message(16).find("has 0 lines"), std::string::npos) << message(16);
  ASSERT_TRUE(writeFileAtomically(path, "one\n\n\r\ntwo\n"));
  EXPECT_NE(message(16).find("has 2 lines that are not empty; pairs of sentences need at least 3"),
            std::string::npos)
      << message(16);
  ASSERT_TRUE(writeFileAtomically(path, "one\ntwo\nthree"));
  EXPECT_TRUE(SentencePairs::open(path, 5, 0));
  EXPECT_NE(message(4).find("rows of 4 tokens"), std::string::npos) << message(4);
  std::filesystem::remove(path);
  EXPECT_FALSE(SentencePairs::open(path, 16, 0));
}
