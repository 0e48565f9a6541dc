//===- RouteTest.cpp - what lies between two shardings --------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// All placements of 2-d tensors on a mesh of 2 x 2, partial sums among them: the way from each to
// each is run by the interpreter, what it moves is counted in the program's own types, and prices
// are those of a metric.
//
//===----------------------------------------------------------------------===//
#include "passes/sharding/Route.h"
#include "ir/Auto.h"
#include "passes/search/Routes.h"
#include "tests/generated/Support.h"

#include "mlir/IR/Verifier.h"

#include <cmath>

using namespace cleave;
using namespace cleave::testing;

namespace {

using Kind = RouteStep::Kind;

/// A module with mesh x=2, y=2, and a tensor type.
struct Setting {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  NamedTensorType type;
  std::optional<ShardingContext> context;

  Setting(std::vector<int64_t> sizes, mlir::Type element, const std::string &cluster = "") {
    mlir::Builder b(&cleave::testing::context());
    module = mlir::ModuleOp::create(b.getUnknownLoc());
    (*module)->setAttr(
        kMeshAttr,
        MeshAttr::get(b.getContext(), {b.getStringAttr("x"), b.getStringAttr("y")}, {2, 2}));
    mlir::NamedAttrList settings;
    if (!cluster.empty())
      settings.set(kAutoCluster, b.getStringAttr(cluster));
    (*module)->setAttr(kAutoAttr, settings.getDictionary(b.getContext()));
    llvm::SmallVector<mlir::StringAttr> names{b.getStringAttr("a"), b.getStringAttr("b")};
    type = NamedTensorType::get(b.getContext(), element, names, sizes, {});
    auto made = ShardingContext::create(*module);
    EXPECT_TRUE(succeeded(made));
    context = *made;
  }
};

mlir::Type f32() { return mlir::Builder(&cleave::testing::context()).getF32Type(); }
mlir::Type f64() { return mlir::Builder(&cleave::testing::context()).getF64Type(); }

/// Each axis on a dim (in both orders), in a partial sum, or nowhere. Homes, without sums, first
/// and in the order of axes.
std::vector<Sharding> allPlacements() {
  std::vector<Sharding> homes, others;
  for (int x = 0; x < 4; ++x)
    for (int y = 0; y < 4; ++y)
      for (bool turned : {false, true}) {
        if (turned && (x != y || x > 1))
          continue;
        Sharding s;
        s.dims.resize(2);
        for (int atom : turned ? std::vector<int>{1, 0} : std::vector<int>{0, 1}) {
          int where = atom ? y : x;
          if (where < 2)
            s.dims[where].push_back(atom);
          else if (where == 2)
            s.unreduced.push_back(atom);
        }
        (s.unreduced.empty() && !turned ? homes : others).push_back(s);
      }
  homes.insert(homes.end(), others.begin(), others.end());
  return homes;
}
constexpr int numHomes = 9;

/// Whether a value may go from one to the other: no sum comes back.
bool allowed(const Sharding &from, const Sharding &to) {
  return llvm::all_of(to.unreduced, [&](int a) { return llvm::is_contained(from.unreduced, a); });
}

std::string placeText(const ShardingContext &context, const Sharding &s) {
  return "[" + context.text(s.dims[0]) + "] [" + context.text(s.dims[1]) + "] sum [" +
         context.text(s.unreduced) + "]";
}

using Cost = std::function<double(const Sharding &, const Sharding &)>;

/// A metric but for symmetry.
void expectMetric(const Setting &set, const Cost &cost) {
  std::vector<Sharding> all = allPlacements();
  for (const Sharding &a : all)
    for (const Sharding &c : all) {
      if (!allowed(a, c))
        continue;
      double straight = cost(a, c);
      if (a == c)
        EXPECT_EQ(straight, 0) << placeText(*set.context, a);
      for (const Sharding &b : all)
        if (allowed(a, b) && allowed(b, c))
          EXPECT_LE(straight, (cost(a, b) + cost(b, c)) * (1 + 1e-8))
              << placeText(*set.context, a) << " -> " << placeText(*set.context, c) << " by "
              << placeText(*set.context, b);
    }
}

double ringCost(const Setting &set, NamedTensorType type, const Sharding &from,
                const Sharding &to) {
  double bytes = 0;
  for (const RouteStep &step : routeOf(*set.context, type, from, to))
    bytes += ringBytes(*set.context, step, type.getElementBytes());
  return bytes;
}

TEST(Route, BytesAreAMetric) {
  for (std::vector<int64_t> sizes : {std::vector<int64_t>{8, 8}, {6, 8}}) {
    Setting set(sizes, f32());
    expectMetric(
        set, [&](const Sharding &a, const Sharding &b) { return ringCost(set, set.type, a, b); });
  }
}

TEST(Route, BytesGrowWithTheTensor) {
  Setting set({8, 8}, f32()), wide({8, 8}, f64()), large({16, 8}, f32());
  for (const Sharding &a : allPlacements())
    for (const Sharding &b : allPlacements())
      if (allowed(a, b)) {
        double bytes = ringCost(set, set.type, a, b);
        EXPECT_EQ(ringCost(wide, wide.type, a, b), 2 * bytes);
        EXPECT_EQ(ringCost(large, large.type, a, b), 2 * bytes);
      }
}

TEST(Route, BytesByTheBook) {
  Setting set({8, 8}, f32());
  const double n = 8 * 8 * 4;
  Sharding whole, sum, rows, columns, x, xOfSum;
  for (Sharding *s : {&whole, &sum, &rows, &columns, &x, &xOfSum})
    s->dims.resize(2);
  sum.unreduced = {0, 1};
  rows.dims[0] = {0, 1};
  columns.dims[1] = {0, 1};
  x.dims[0] = {0};
  xOfSum.dims[0] = {0};
  xOfSum.unreduced = {1};
  auto bytes = [&](const Sharding &a, const Sharding &b) { return ringCost(set, set.type, a, b); };
  EXPECT_EQ(bytes(rows, whole), n * 3 / 4) << "all-gather";
  EXPECT_EQ(bytes(sum, rows), n * 3 / 4) << "reduce-scatter";
  EXPECT_EQ(bytes(sum, whole), bytes(sum, rows) + bytes(rows, whole)) << "all-reduce";
  EXPECT_EQ(bytes(rows, columns), n / 4 * 3 / 4) << "all-to-all";
  EXPECT_EQ(bytes(rows, x), n / 2 / 2) << "all-gather over one axis";
  EXPECT_EQ(bytes(whole, rows), 0) << "slice";
  EXPECT_EQ(bytes(xOfSum, rows), n / 2 / 2) << "reduce-scatter of shards";
  EXPECT_EQ(bytes(xOfSum, x), 2 * n / 2 / 2) << "all-reduce of shards";
}

/// Two levels: a ring over both axes goes at the slow one's pace.
const char *twoLevels =
    R"({"name": "two", "levels": [{"name": "in", "ranks": 2, "latency_us": 1,
        "bandwidth_gb_per_s": 100}, {"name": "out", "latency_us": 20, "bandwidth_gb_per_s": 0.1}],
        "compute": {"peak_gflops": 100, "memory_gb_per_s": 10}})";
const char *noLatency =
    R"({"name": "even", "levels": [{"name": "l", "latency_us": 0, "bandwidth_gb_per_s": 1}],
        "compute": {"peak_gflops": 100, "memory_gb_per_s": 100000}})";

TEST(Route, PricesAreAMetric) {
  for (const char *cluster : {twoLevels, noLatency, defaultCluster()})
    for (std::vector<int64_t> sizes : {std::vector<int64_t>{8, 8}, {6, 8}, {256, 512}}) {
      Setting set(sizes, f32(), cluster);
      auto prices = Prices::create(*set.module, *set.context);
      ASSERT_TRUE(succeeded(prices));
      std::vector<Sharding> all = allPlacements();
      Routes routes(*set.context, set.type, **prices, {all.begin(), all.begin() + numHomes});
      // Among homes, and from anywhere to them by way of them.
      for (const Sharding &a : all)
        for (int c = 0; c < numHomes; ++c) {
          double straight = routes.price(routes.number(a), c);
          if (a == all[c])
            EXPECT_EQ(straight, 0);
          else
            EXPECT_GT(straight, 0);
          for (int b = 0; b < numHomes; ++b)
            EXPECT_LE(straight,
                      (routes.price(routes.number(a), b) + routes.price(b, c)) * (1 + 1e-9))
                << cluster << placeText(*set.context, a) << " -> "
                << placeText(*set.context, all[c]) << " by " << placeText(*set.context, all[b]);
        }
    }
}

/// What the search reckons with is what `reshard` then does.
TEST(Route, PricesAreThoseOfWhatIsDone) {
  for (const char *cluster : {twoLevels, noLatency, defaultCluster()})
    for (std::vector<int64_t> sizes : {std::vector<int64_t>{8, 8}, {6, 8}, {256, 512}}) {
      Setting set(sizes, f32(), cluster);
      auto prices = Prices::create(*set.module, *set.context);
      ASSERT_TRUE(succeeded(prices));
      RoutePrice price = [&](const RouteStep &step, int64_t bytes) {
        return (*prices)->step(step, bytes);
      };
      std::vector<Sharding> all = allPlacements();
      Routes routes(*set.context, set.type, **prices, {all.begin(), all.begin() + numHomes});
      for (const Sharding &a : all)
        for (int c = 0; c < numHomes; ++c) {
          double done = 0;
          bool sends = false;
          for (const RouteStep &step : routeOf(*set.context, set.type, a, all[c], price)) {
            done += price(step, set.type.getElementBytes());
            sends |= step.kind != Kind::Slice;
          }
          if (!sends) // is not done otherwise, even where a copy is dear
            continue;
          double predicted = routes.price(routes.number(a), c);
          // From elsewhere the search goes by way of homes, which may cost more.
          EXPECT_LE(done, predicted * (a.unreduced.empty() && routes.number(a) >= numHomes
                                           ? 1.002 // the other order of axes
                                           : 1 + 1e-8))
              << cluster << sizes[0] << "x" << sizes[1] << ": " << placeText(*set.context, a)
              << " -> " << placeText(*set.context, all[c]);
          if (routes.number(a) < numHomes)
            EXPECT_NEAR(done, predicted, 1e-8 * predicted)
                << cluster << sizes[0] << "x" << sizes[1] << ": " << placeText(*set.context, a)
                << " -> " << placeText(*set.context, all[c]);
        }
    }
}

/// Bytes per rank in a ring of one collective of a rank's program, by its own types.
double movedBytes(mlir::Operation *op, MeshAttr mesh) {
  if (!llvm::isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp>(op))
    return 0;
  auto axes = op->getAttrOfType<mlir::ArrayAttr>("axes");
  auto bytes = [](mlir::Value v) {
    NamedTensorType t = tensorOf(v);
    return static_cast<double>(t.getNumElements() * t.getElementBytes());
  };
  auto p = static_cast<double>(shardCount(mesh, axes));
  double whole = llvm::isa<AllGatherOp>(op) ? bytes(op->getResult(0)) : bytes(op->getOperand(0));
  return (llvm::isa<AllReduceOp>(op) ? 2 : 1) * whole * (p - 1) / p;
}

/// Each way is run: the value is the same, and the bytes are those predicted.
TEST(Route, WaysAreRunAndMoveWhatIsPredicted) {
  int ways = 0, kinds[4] = {};
  for (std::vector<int64_t> sizes : {std::vector<int64_t>{8, 8}, {6, 8}}) {
    Setting set(sizes, f32());
    auto mesh = (*set.module)->getAttrOfType<MeshAttr>(kMeshAttr);
    std::vector<Array> parts; // of a sum, all different
    for (int k = 0; k < 4; ++k)
      parts.push_back(numbers(sizes, std::pow(10, k), 5 + k));
    for (const Sharding &a : allPlacements())
      for (const Sharding &c : allPlacements()) {
        if (!allowed(a, c))
          continue;
        SCOPED_TRACE(placeText(*set.context, a) + " -> " + placeText(*set.context, c));
        mlir::OwningOpRef<mlir::ModuleOp> module = set.module->clone();
        mlir::OpBuilder b(module->getBodyRegion());
        auto from = set.type.withSharding(set.context->toAttr(a));
        auto to = set.type.withSharding(set.context->toAttr(c));
        auto f =
            mlir::func::FuncOp::create(b, b.getUnknownLoc(), "f", b.getFunctionType({from}, {to}));
        b.setInsertionPointToEnd(f.addEntryBlock());
        mlir::Value moved = reshard(b, f.getLoc(), *set.context, f.getArgument(0), c, "test", {});
        ASSERT_EQ(moved.getType(), to);
        mlir::func::ReturnOp::create(b, f.getLoc(), moved);
        ASSERT_TRUE(succeeded(mlir::verify(*module)));
        ASSERT_TRUE(succeeded(partition(*module)));
        auto local = *module->getOps<mlir::func::FuncOp>().begin();

        double counted = 0;
        local.walk([&](mlir::Operation *op) {
          counted += movedBytes(op, mesh);
          kinds[0] += llvm::isa<AllReduceOp>(op);
          kinds[1] += llvm::isa<AllGatherOp>(op);
          kinds[2] += llvm::isa<ReduceScatterOp>(op);
          kinds[3] += llvm::isa<AllToAllOp>(op);
        });
        EXPECT_EQ(counted, ringCost(set, set.type, a, c));

        Sharding cut = a; // of each part
        cut.unreduced.clear();
        mlir::ArrayAttr over = set.context->axes(a.unreduced);
        int64_t count = shardCount(mesh, over);
        PerRankArrays given(mesh.getRanks());
        Array wanted = Array::zeros(sizes, false);
        for (int64_t k = 0; k < count; ++k) {
          PerRankArrays shards = shardArray(
              parts[k], set.type.withSharding(set.context->toAttr(cut)), mesh, Padding::Poison);
          for (int64_t rank = 0; rank < mesh.getRanks(); ++rank)
            if (shardIndex(mesh, over, rank) == k)
              given[rank] = shards[rank];
          for (int64_t i = 0; i < wanted.size(); ++i)
            wanted.reals[i] += parts[k].reals[i];
        }
        InterpretOptions options;
        options.perRank = true;
        auto results = interpret(local, {given}, options);
        ASSERT_TRUE(results) << results.error().message;
        auto whole = assembleArray((*results)[0], to, mesh);
        ASSERT_TRUE(whole) << whole.error().message;
        EXPECT_EQ(whole->reals, wanted.reals);
        ++ways;
      }
  }
  EXPECT_GT(ways, 400);
  for (int times : kinds)
    EXPECT_GT(times, 20);
}

} // namespace
