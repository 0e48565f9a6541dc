//===- CoreTest.cpp - numbers, shards, files -----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/core/AtomicFile.h"
#include "runtime/core/Float16.h"
#include "runtime/core/Init.h"
#include "runtime/core/NearMatch.h"
#include "runtime/core/Philox.h"
#include "runtime/core/Shard.h"
#include "runtime/core/Tensor.h"
#include "runtime/core/Threads.h"

#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <numeric>
#include <sys/stat.h>
#include <unistd.h>

using namespace cleave;

// The known answers of the Random123 distribution (kat_vectors).
TEST(Philox, KnownAnswers) {
  using W = Philox::Words;
  EXPECT_EQ(Philox::block({0, 0, 0, 0}, 0, 0), (W{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox::block({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (W{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox::block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (W{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, CounterAndKeyWords) {
  Philox random(0x0000000500000007u, 11, 22, 33);
  EXPECT_EQ(random.words(0x100000002u), Philox::block({2, 1, 22, 33}, 7u ^ (5u * 0x9E3779B9u), 11));
  EXPECT_EQ(siteHash(""), 2166136261u);
  EXPECT_EQ(siteHash("a"), 0xe40c292cu); // FNV-1a's published value
  for (uint64_t i = 0; i < 1000; ++i) {
    double u = random.uniform(i);
    EXPECT_TRUE(u >= 0 && u < 1);
    EXPECT_EQ(u, std::floor(u * 0x1p24) * 0x1p-24);
  }
}

TEST(Philox, NormalMoments) {
  Philox random(3, initialStep, siteHash("w"));
  double sum = 0, squares = 0;
  constexpr int n = 20000;
  for (int i = 0; i < n; ++i) {
    double z = random.normal(static_cast<uint64_t>(i));
    sum += z;
    squares += z * z;
  }
  EXPECT_NEAR(sum / n, 0, 0.03);
  EXPECT_NEAR(squares / n, 1, 0.04);
}

TEST(Float16, BF16RoundsToNearestEvenAndKeepsNaN) {
  auto bits = [](uint32_t b) { return std::bit_cast<float>(b); };
  EXPECT_EQ(fromBF16(toBF16(0.2691408770292272f)), 0.26953125f);
  EXPECT_TRUE(std::isnan(fromBF16(toBF16(bits(0x7F800001)))));
  EXPECT_TRUE(std::isnan(fromBF16(toBF16(bits(0xFFFFFFFF)))));
  EXPECT_EQ(fromBF16(toBF16(3.4028235e38f)), INFINITY);
  EXPECT_EQ(toBF16(bits(0x3F808000)), 0x3F80);
  EXPECT_EQ(toBF16(bits(0x3F818000)), 0x3F82);
  EXPECT_EQ(toBF16(-0.0f), 0x8000);
  EXPECT_EQ(toBF16(bits(0x00010000)), 0x0001); // a subnormal
  EXPECT_EQ(toBF16(bits(0x00008000)), 0x0000); // half of it: a tie, to even
  EXPECT_EQ(toBF16(-INFINITY), 0xFF80);
}

TEST(Float16, F16AgreesWithTheCompiler) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    float expected = static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(h)));
    float got = fromF16(static_cast<uint16_t>(h));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << h;
      EXPECT_TRUE(std::isnan(fromF16(toF16(got)))) << h;
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(expected)) << h;
    ASSERT_EQ(toF16(got), h);
  }
  for (uint64_t f = 0; f < 0x100000000u; f += 4099) {
    float value = std::bit_cast<float>(static_cast<uint32_t>(f));
    if (!std::isnan(value))
      ASSERT_EQ(toF16(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << f;
  }
  for (float tie : {65519.0f, 65520.0f, 0x1p-25f, 0x1.8p-24f, 2049.0f, 2051.0f})
    EXPECT_EQ(toF16(tie), std::bit_cast<uint16_t>(static_cast<_Float16>(tie))) << tie;
}

TEST(NearMatch, FindsWhatWasMeant) {
  std::vector<std::string> words = {"megatron", "batch", "seq", "heads", "b"};
  EXPECT_EQ(nearMatch("megatorn", words), "megatron");
  EXPECT_EQ(nearMatch("Heads", words), "heads");
  EXPECT_EQ(nearMatch("head", words), "heads");
  EXPECT_EQ(nearMatch("xyz", words), std::nullopt);
  EXPECT_EQ(nearMatch("a", words), std::nullopt);
  EXPECT_EQ(nearMatch("", words), std::nullopt);
  EXPECT_EQ(didYouMean("bacth", words), "; did you mean 'batch'?");
}

TEST(AtomicFile, AppearsWholeOrNotAtAll) {
  std::string path = testing::TempDir() + "atomic_file_test.bin";
  ASSERT_TRUE(writeFileAtomically(path, "first"));
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write("half"));
  } // without commit
  auto mapped = MappedFile::open(path);
  ASSERT_TRUE(mapped);
  EXPECT_EQ(mapped->view(), "first");
  ASSERT_TRUE(writeFileAtomically(path, "second"));
  EXPECT_EQ(MappedFile::open(path)->view(), "second");
  EXPECT_EQ(mapped->view(), "first"); // readers keep what they opened
  int others = 0;
  for (auto &entry : std::filesystem::directory_iterator(testing::TempDir()))
    others += entry.path().string().starts_with(path + ".");
  EXPECT_EQ(others, 0);
  std::filesystem::remove(path);
  auto missing = MappedFile::open(path);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find(path), std::string::npos);
  EXPECT_FALSE(AtomicFile::create("/nonexistent-folder/x"));
  EXPECT_FALSE(MappedFile::open(testing::TempDir()));
}

TEST(AtomicFile, KeepsLinksFoldersAndDevices) {
  namespace fs = std::filesystem;
  fs::path folder = fs::path(testing::TempDir()) / "atomic_file_places";
  fs::remove_all(folder);
  fs::create_directories(folder / "deep");
  fs::create_symlink("deep/file", folder / "link");
  fs::create_symlink("link", folder / "chain");
  for (const char *text : {"made", "replaced"}) {
    ASSERT_TRUE(writeFileAtomically((folder / "chain").string(), text));
    EXPECT_TRUE(fs::is_symlink(folder / "chain"));
    EXPECT_TRUE(fs::is_symlink(folder / "link"));
    EXPECT_EQ(MappedFile::open((folder / "deep/file").string())->view(), text);
  }
  auto refused = AtomicFile::create((folder / "deep").string());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("it is a folder"), std::string::npos);
  fs::create_symlink("loop", folder / "loop");
  EXPECT_FALSE(AtomicFile::create((folder / "loop").string()));

  fs::path fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(writeFileAtomically(fifo.string(), "through"));
  char text[16] = {};
  EXPECT_EQ(read(reader, text, sizeof text), 7);
  EXPECT_STREQ(text, "through");
  close(reader);
  EXPECT_TRUE(fs::is_fifo(fifo));
  EXPECT_TRUE(writeFileAtomically("/dev/null", "away"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 5);
  fs::remove_all(folder);
}

static const std::vector<MeshAxis> mesh = {{"dp", 2}, {"tp", 4}};
static const SubAxis dp{0, 1, 2}, tp{1, 1, 4}, tpMajor{1, 1, 2}, tpMinor{1, 2, 2};

TEST(Shard, CoordinatesAndDigits) {
  RankPosition place(mesh, 6); // dp 1, tp 2
  EXPECT_EQ(place.coordinate(0), 1);
  EXPECT_EQ(place.coordinate(1), 2);
  EXPECT_EQ(place.index(tpMajor), 1);
  EXPECT_EQ(place.index(tpMinor), 0);
  EXPECT_EQ(place.shardIndex({tp, dp}), 5);
  EXPECT_EQ(place.shardIndex({}), 0);
  EXPECT_EQ(place.group({tp}), (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_EQ(place.group({dp}), (std::vector<int32_t>{2, 6}));
  EXPECT_EQ(place.group({tpMajor}), (std::vector<int32_t>{4, 6}));
  EXPECT_EQ(place.group({tpMinor}), (std::vector<int32_t>{6, 7}));
  EXPECT_EQ(place.group({tpMinor, dp}), (std::vector<int32_t>{2, 6, 3, 7}));
  for (int rank = 0; rank < 8; ++rank)
    for (auto &axes : std::vector<std::vector<SubAxis>>{{tp, dp}, {tpMinor, dp}, {tpMajor}, {}}) {
      RankPosition p(mesh, rank);
      EXPECT_EQ(p.group(axes)[static_cast<size_t>(p.shardIndex(axes))], rank);
    }
  EXPECT_EQ(axesText({dp, tpMinor}, mesh), "dp, tp:(2)2");
  EXPECT_TRUE(axesAreValid({tpMinor, tpMajor, dp}, mesh));
  EXPECT_FALSE(axesAreValid({tp, tpMajor}, mesh));
  EXPECT_FALSE(axesAreValid({{1, 1, 3}}, mesh));
  EXPECT_FALSE(axesAreValid({{2, 1, 1}}, mesh));
  EXPECT_FALSE(axesAreValid({{1, INT64_MAX, 2}}, mesh));
}

TEST(Shard, RankScalars) {
  RankScalar offset{RankScalar::Kind::Offset, 0, 7, 2, {tp}};
  RankScalar extent{RankScalar::Kind::Extent, 0, 7, 2, {tp}};
  RankScalar constant{RankScalar::Kind::Constant, 42, 0, 0, {}};
  int64_t offsets[] = {0, 2, 4, 6}, extents[] = {2, 2, 2, 1};
  for (int rank = 0; rank < 4; ++rank) {
    RankPosition p(mesh, rank);
    EXPECT_EQ(p.resolve(offset), offsets[rank]);
    EXPECT_EQ(p.resolve(extent), extents[rank]);
    EXPECT_EQ(p.resolve(constant), 42);
  }
  extent.size = 3; // blocks of 1: the last rank is empty
  extent.block = 1;
  EXPECT_EQ(RankPosition(mesh, 3).resolve(extent), 0);
  // The third of four micro-batches: 16 shards, of which rank 2 has 8 to 11.
  RankScalar first{RankScalar::Kind::Offset, 0, 27, 2, {tp}, 4, 2};
  RankScalar rows{RankScalar::Kind::Extent, 0, 27, 2, {tp}, 4, 2};
  EXPECT_EQ(RankPosition(mesh, 2).resolve(first), 20);
  EXPECT_EQ(RankPosition(mesh, 2).resolve(rows), 2);
  EXPECT_EQ(RankPosition(mesh, 3).resolve(first), 28);
  EXPECT_EQ(RankPosition(mesh, 3).resolve(rows), 0);
}

static std::vector<TensorLayout> layouts() {
  auto make = [](std::vector<DimLayout> dims) { return TensorLayout{DType::I32, dims}; };
  return {make({}),
          make({{"a", 5, {tp}}}),
          make({{"a", 8, {dp, tp}}, {"b", 3, {}}}),
          make({{"a", 3, {}}, {"b", 7, {tp, dp}}}),
          make({{"a", 3, {tpMinor}}, {"b", 5, {}}, {"c", 6, {dp}}}),
          make({{"a", 1, {tp}}, {"b", 2, {dp}}}),
          make({{"a", 2, {}}, {"b", 3, {tpMajor}}, {"c", 4, {}}, {"d", 2, {tpMinor}}}),
          make({{"a", 0, {tp}}, {"b", 4, {}}})};
}

// Against the definition, element by element.
TEST(Shard, ExtractAndInsertEveryLayout) {
  for (const TensorLayout &layout : layouts()) {
    std::vector<int64_t> shape = globalShape(layout), block = localShape(layout);
    std::vector<int32_t> global(static_cast<size_t>(globalElements(layout)));
    std::iota(global.begin(), global.end(), 1);
    std::vector<int32_t> back(global.size(), -1);
    for (int rank = 0; rank < 8; ++rank) {
      RankPosition p(mesh, rank);
      std::vector<int32_t> local(static_cast<size_t>(localElements(layout)), -7);
      extractShard(layout, p, reinterpret_cast<const char *>(global.data()),
                   reinterpret_cast<char *>(local.data()));
      for (size_t i = 0; i < local.size(); ++i) {
        int64_t rest = static_cast<int64_t>(i), index = 0, stride = 1;
        bool inside = true;
        for (size_t d = shape.size(); d-- > 0;) {
          int64_t at = p.shardIndex(layout.dims[d].axes) * block[d] + rest % block[d];
          rest /= block[d];
          inside &= at < shape[d];
          index += at * stride;
          stride *= shape[d];
        }
        ASSERT_EQ(local[i], inside ? static_cast<int32_t>(index + 1) : 0);
      }
      insertShard(layout, p, reinterpret_cast<const char *>(local.data()),
                  reinterpret_cast<char *>(back.data()));
    }
    EXPECT_EQ(back, global);
  }
}

TEST(Init, Parses) {
  EXPECT_EQ(InitSpec::parse("normal(0.02)")->b, 0.02);
  EXPECT_EQ(InitSpec::parse(" normal( 1 , 2e-1 ) ")->a, 1);
  EXPECT_EQ(InitSpec::parse("uniform(-1,1)")->a, -1);
  EXPECT_EQ(InitSpec::parse("ones")->a, 1);
  EXPECT_EQ(InitSpec::parse("")->a, 0);
  for (const char *bad : {"normal", "normal()", "normal(x)", "normal(1", "normal(1,2,3)",
                          "zeros(1)", "uniform(1)", "constant(1,2)", "nrmal(1)", "constant(1)x"}) {
    auto spec = InitSpec::parse(bad);
    ASSERT_FALSE(spec) << bad;
    EXPECT_NE(spec.error().message.find(bad), std::string::npos);
  }
  EXPECT_NE(InitSpec::parse("nrmal(1)").error().message.find("did you mean 'normal'"),
            std::string::npos);
}

TEST(Init, SameBitsInEveryLayout) {
  ThreadTeam team(3);
  for (DType dtype : {DType::F32, DType::F64, DType::BF16, DType::F16})
    for (const char *text : {"normal(0.02)", "uniform(-1, 2)", "constant(0.5)"})
      for (TensorLayout layout : layouts()) {
        layout.dtype = dtype;
        auto spec = InitSpec::parse(text);
        TensorLayout whole = layout;
        for (DimLayout &dim : whole.dims)
          dim.axes.clear();
        auto bytes = static_cast<size_t>(globalElements(layout) * byteSize(dtype));
        std::vector<char> expected(bytes), got(bytes, 'x');
        fillInitial(*spec, 9, "body.wq", whole, RankPosition(mesh, 0), expected.data());
        for (int rank = 0; rank < 8; ++rank) {
          RankPosition p(mesh, rank);
          std::vector<char> local(static_cast<size_t>(localElements(layout) * byteSize(dtype)),
                                  'y');
          fillInitial(*spec, 9, "body.wq", layout, p, local.data(), rank % 2 ? &team : nullptr);
          insertShard(layout, p, local.data(), got.data());
          std::vector<char> fromWhole(local.size());
          extractShard(layout, p, expected.data(), fromWhole.data());
          EXPECT_EQ(local, fromWhole); // the padding too
        }
        EXPECT_EQ(got, expected);
      }
}

TEST(Init, DependsOnSeedAndPath) {
  TensorLayout layout{DType::F64, {{"n", 4, {}}}};
  auto values = [&](uint64_t seed, const char *path) {
    std::vector<double> v(4);
    fillInitial(*InitSpec::parse("normal(1)"), seed, path, layout, RankPosition({}, 0),
                reinterpret_cast<char *>(v.data()));
    return v;
  };
  EXPECT_NE(values(1, "a"), values(2, "a"));
  EXPECT_NE(values(1, "a"), values(1, "b"));
  EXPECT_NE(values(1, "a"), values(1 + (uint64_t{1} << 32), "a"));
  Philox random(1, initialStep, siteHash("a"));
  EXPECT_EQ(values(1, "a")[3], random.normal(3));
}

TEST(Tensor, Converts) {
  double values[] = {1.0 / 3, -1e300, 0.2691408770292272};
  auto wide = HostTensor::of<double>(DType::F64, {3}, values);
  auto f32 = convert(wide.view(), DType::F32);
  EXPECT_EQ(f32->as<float>()[0], 1.0f / 3);
  EXPECT_EQ(f32->as<float>()[1], -INFINITY);
  EXPECT_EQ(elementAsDouble(DType::BF16, convert(wide.view(), DType::BF16)->data.data(), 2),
            0.26953125);
  EXPECT_FALSE(convert(wide.view(), DType::I32));
  EXPECT_EQ(convert(wide.view(), DType::F64)->data, wide.data);
}
