//===- FusionTest.cpp - random programs, fused and not --------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/fusion/Fusion.h"
#include "tests/passes/lowering/Reference.h"

#include "mlir/IR/Verifier.h"

#include "gtest/gtest.h"

#include <chrono>
#include <random>

using namespace mlir;
using namespace cleave;
using namespace cleave::test;

namespace {

/// A function of random elementwise ops, reductions, layout changes, look-ups and
/// contractions over a handful of dims.
class RandomProgram {
public:
  RandomProgram(MLIRContext &context, unsigned seed)
      : context(context), random(seed), b(&context), loc(b.getUnknownLoc()) {
    module = ModuleOp::create(loc);
    SmallVector<Type> types;
    for (auto dims : {std::vector<int>{0, 1, 2}, {0, 1, 2}, {2}, {0, 1}, {1, 2}, {}})
      types.push_back(type(dims));
    types.push_back(type({3, 2}));                                 // a table
    types.push_back(type({0, 1}).withElementType(b.getI32Type())); // ids
    b.setInsertionPointToEnd(module->getBody());
    function = func::FuncOp::create(b, loc, "f", b.getFunctionType(types, {}));
    Block *block = function.addEntryBlock();
    b.setInsertionPointToEnd(block);
    values.assign(block->args_begin(), block->args_end() - 1);
    ids = block->getArguments().back();
  }

  func::FuncOp build(unsigned ops) {
    for (unsigned i = 0; i < ops; ++i)
      addOp();
    SmallVector<Value> results;
    for (Value v : values)
      if (v.getDefiningOp() && (v.use_empty() || random() % 6 == 0))
        results.push_back(v);
    func::ReturnOp::create(b, loc, results);
    SmallVector<Type> resultTypes;
    for (Value v : results)
      resultTypes.push_back(v.getType());
    function.setFunctionType(
        b.getFunctionType(function.getFunctionType().getInputs(), resultTypes));
    return function;
  }
  OwningOpRef<ModuleOp> module;

private:
  NamedTensorType type(const std::vector<int> &dims) {
    static const char *names[] = {"a", "b", "c", "v"};
    static const int64_t sizes[] = {3, 5, 19, 4};
    SmallVector<StringAttr> n;
    SmallVector<int64_t> s;
    for (int d : dims) {
      n.push_back(b.getStringAttr(names[d]));
      s.push_back(sizes[d]);
    }
    return NamedTensorType::get(&context, b.getF64Type(), n, s, {});
  }
  /// Values of late ops are more likely, so that chains arise.
  Value pick() {
    size_t n = values.size();
    return values[n - 1 - std::min<size_t>(random() % n, random() % n)];
  }
  void push(Value v) { values.push_back(v); }

  void addOp() {
    Value x = pick(), y = pick();
    NamedTensorType t = tensorOf(x);
    switch (random() % 16) {
    case 0:
      return push(unary<TanhOp>(b, loc, x));
    case 1:
      return push(unary<SigmoidOp>(b, loc, x));
    case 2:
      return push(unary<ExpOp>(b, loc, unary<TanhOp>(b, loc, x)));
    case 3:
    case 4:
      return pushBinary<AddOp>(x, y);
    case 5:
      return pushBinary<SubOp>(x, y);
    case 6:
      return pushBinary<MulOp>(unary<TanhOp>(b, loc, x), y);
    case 7:
      return pushBinary<MaximumOp>(x, y);
    case 8:
    case 9:
    case 10: { // a reduction of some dims
      SmallVector<StringRef> dims;
      for (StringAttr name : t.getNames())
        if (random() % 2)
          dims.push_back(name);
      if (dims.empty())
        return;
      auto kind = random() % 3 ? Reduction::Sum : Reduction::Max;
      return push(cleave::reduce(b, loc, kind, unary<TanhOp>(b, loc, x), dims));
    }
    case 11: { // other order, more dims
      NamedTensorType whole = random() % 2 ? type({2, 0, 1}) : type({0, 1, 2});
      for (StringAttr name : t.getNames())
        if (!whole.hasDim(name))
          return;
      return push(BroadcastOp::create(b, loc, whole, x));
    }
    case 12: { // a slice and its padding
      if (!t.hasDim("c") || t.sizeOf("c") != 19)
        return;
      int64_t axis = t.indexOf("c");
      int64_t stride = 1 + random() % 2, start = random() % 3;
      NamedTensorType part = t.withDim(axis, "part", 8);
      Value s = SliceOp::create(b, loc, part, x, "c", start, stride);
      s = unary<NegOp>(b, loc, s);
      return push(PadOp::create(b, loc, t, s, "part", 2 - start, stride));
    }
    case 13: { // transposed: renamed there and back
      if (t.getRank() != 2 || t.getNames()[0].getValue() != "a" ||
          t.getNames()[1].getValue() != "b")
        return;
      Value r = RenameOp::create(b, loc,
                                 NamedTensorType::get(&context, t.getElementType(),
                                                      {b.getStringAttr("p"), b.getStringAttr("b")},
                                                      t.getSizes(), {}),
                                 x);
      Value product = binary<MulOp>(b, loc, r, x); // [p, b] x [a, b]
      return push(cleave::reduce(b, loc, Reduction::Max, product, {"p"}));
    }
    case 14: { // look-up in a table, or its gradient
      if (t.getRank() == 2 && t.hasDim("v") && t.hasDim("c"))
        return push(GatherOp::create(b, loc, type({0, 1, 2}), x, ids, "v", ValueRange{}));
      if (t.getRank() == 3 && t.hasDim("a") && t.hasDim("b") && t.hasDim("c"))
        return push(ScatterAddOp::create(b, loc, type({3, 2}), x, ids, "v", ValueRange{}));
      return;
    }
    default: // what stays between groups
      if (t.getRank() == 3 && t.hasDim("a") && t.hasDim("b") && t.hasDim("c") &&
          tensorOf(y).getRank() == 2 && tensorOf(y).hasDim("v") && tensorOf(y).hasDim("c"))
        push(unary<TanhOp>(b, loc, ContractOp::create(b, loc, type({0, 1, 3}), x, y)));
    }
  }
  template <typename Op> void pushBinary(Value x, Value y) {
    NamedTensorType t = broadcastType({tensorOf(x), tensorOf(y)}, b.getF64Type());
    if (t.getNumElements() > 4000)
      return;
    push(Op::create(b, loc, t, x, y));
  }

  MLIRContext &context;
  std::mt19937 random;
  OpBuilder b;
  Location loc;
  func::FuncOp function;
  std::vector<Value> values;
  Value ids;
};

/// Runs a fused function: kernels where there are groups, plain loops elsewhere.
std::vector<Tensor> runFused(func::FuncOp function, const std::vector<Tensor> &inputs,
                             bool inPlace) {
  Block &block = function.getBody().front();
  KernelCompiler compiler;
  llvm::DenseMap<Operation *, KernelInfo> infos;
  for (auto fused : block.getOps<FusedOp>()) {
    FailureOr<KernelInfo> info = compiler.add(fused);
    EXPECT_TRUE(succeeded(info));
    if (failed(info))
      return {};
    infos[fused] = *info;
  }
  Kernels kernels;
  if (compiler.size() && !kernels.load(compiler))
    return {};
  llvm::DenseMap<Value, Tensor> values;
  for (auto [arg, tensor] : llvm::zip_equal(block.getArguments(), inputs))
    values[arg] = tensor;
  for (Operation &op : block.without_terminator()) {
    auto fused = dyn_cast<FusedOp>(op);
    if (!fused) {
      EXPECT_FALSE(isFusible(&op) && !isView(&op)) << op.getName().getStringRef().str();
      interpretOp(&op, values);
      continue;
    }
    std::vector<Tensor> in;
    for (Value v : fused.getInputs())
      in.push_back(values[v]);
    std::vector<Tensor> out = kernels.run(fused, infos[fused], in, {}, inPlace);
    for (auto [result, tensor] : llvm::zip_equal(fused.getResults(), out))
      values[result] = tensor;
  }
  std::vector<Tensor> results;
  for (Value v : block.getTerminator()->getOperands())
    results.push_back(values[v]);
  return results;
}

TEST(Fusion, RandomProgramsAreUnchanged) {
  MLIRContext context(MLIRContext::Threading::DISABLED);
  context.loadDialect<CleaveDialect, func::FuncDialect>();
  size_t kernels = 0, ops = 0;
  for (unsigned seed = 0; seed < 120 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomProgram program(context, seed);
    func::FuncOp function = program.build(6 + seed % 30);
    ASSERT_TRUE(succeeded(verify(*program.module)));
    std::vector<Tensor> inputs = randomTensors(function.getArgumentTypes(), seed, 1, 5);
    std::vector<Tensor> want = interpret(function.getBody().front(), inputs, {});
    std::string before;
    llvm::raw_string_ostream(before) << *program.module;
    ops += llvm::range_size(function.getBody().front());
    ASSERT_TRUE(succeeded(fuse(*program.module)));
    ASSERT_TRUE(succeeded(verify(*program.module))) << before;
    std::vector<Tensor> got = runFused(function, inputs, seed % 2);
    kernels += llvm::range_size(function.getBody().front().getOps<FusedOp>());
    expectClose(got, want, 1e-11);
    if (::testing::Test::HasFailure()) {
      std::string after;
      llvm::raw_string_ostream(after) << *program.module;
      FAIL() << before << "\n" << after;
    }
  }
  printf("%zu ops in %zu kernels\n", ops, kernels);
  EXPECT_LT(kernels * 2, ops);
}

/// Products with chains behind them: operands of rows, of columns, whole and single
/// ones; several results; a square; rows, columns and batches of several dims (B64,
/// B65, B66).
class RandomEpilogues {
public:
  RandomEpilogues(MLIRContext &context, unsigned seed)
      : random(seed), b(&context), loc(b.getUnknownLoc()) {
    // Sizes: batch, rows, rows, columns, columns, summed.
    static const std::vector<int64_t> shapes[] = {{1, 3, 4, 5, 3, 6},  {1, 1, 12, 1, 12, 5},
                                                  {2, 1, 7, 1, 19, 3}, {1, 13, 1, 33, 1, 4},
                                                  {3, 2, 3, 2, 9, 2},  {1, 1, 1, 3, 8, 4}};
    const std::vector<int64_t> &sizes = shapes[seed % std::size(shapes)];
    bool f64 = random() % 2;
    auto type = [&](const std::vector<int> &dims) {
      static const char *names[] = {"g", "r", "q", "c", "d", "k"};
      SmallVector<StringAttr> n;
      SmallVector<int64_t> s;
      for (int d : dims) {
        n.push_back(b.getStringAttr(names[d]));
        s.push_back(sizes[d]);
      }
      Type element = f64 ? Type(b.getF64Type()) : Type(b.getF32Type());
      return NamedTensorType::get(&context, element, n, s, {});
    };
    product = type({0, 1, 2, 3, 4});
    SmallVector<Type> types{type({0, 1, 2, 5}), type({0, 5, 3, 4}), product,
                            type({3, 4}),       type({1, 2}),       type({4}),
                            type({2, 4}),       type({}),           type({2, 1, 4, 3})};
    module = ModuleOp::create(loc);
    b.setInsertionPointToEnd(module->getBody());
    function = func::FuncOp::create(b, loc, "f", b.getFunctionType(types, {}));
    Block *block = function.addEntryBlock();
    b.setInsertionPointToEnd(block);
    operands.assign(block->args_begin() + 2, block->args_end());
    std::vector<Value> values;
    for (unsigned products = 1 + random() % 3; products > 0; --products) {
      Value x = ContractOp::create(b, loc, product, block->getArgument(0), block->getArgument(1));
      values.push_back(x);
      for (unsigned n = 1 + random() % 6; n > 0; --n)
        values.push_back(link(random() % 4 ? values.back() : values[random() % values.size()]));
    }
    SmallVector<Value> results;
    SmallVector<Type> resultTypes;
    for (Value v : values)
      if (v.use_empty() || random() % 5 == 0) {
        results.push_back(v);
        resultTypes.push_back(v.getType());
      }
    func::ReturnOp::create(b, loc, results);
    function.setFunctionType(b.getFunctionType(types, resultTypes));
  }

  OwningOpRef<ModuleOp> module;
  func::FuncOp function;
  bool isF64() const { return product.getElementType().isF64(); }

private:
  Value link(Value x) {
    Value y = operands[random() % operands.size()];
    switch (random() % 9) {
    case 0:
      return unary<TanhOp>(b, loc, x);
    case 1:
      return unary<SigmoidOp>(b, loc, x);
    case 2:
      return SubOp::create(b, loc, product, y, x);
    case 3:
      return MulOp::create(b, loc, product, x, y);
    case 4: { // gelu's shape: one value several times
      Value half = unary<SigmoidOp>(b, loc, MulOp::create(b, loc, product, x, x));
      return MulOp::create(b, loc, product, x, half);
    }
    case 5: { // a mask
      Type bits = product.withElementType(b.getI1Type());
      Value positive = CompareOp::create(b, loc, bits, Predicate::GT, x, y);
      return SelectOp::create(b, loc, product, positive, x, y);
    }
    case 6: { // there and back
      auto half = cast<NamedTensorType>(product.withElementType(b.getBF16Type()));
      return CastOp::create(b, loc, product,
                            CastOp::create(b, loc, half, unary<TanhOp>(b, loc, x)));
    }
    default:
      return AddOp::create(b, loc, product, x, y);
    }
  }

  std::mt19937 random;
  OpBuilder b;
  Location loc;
  NamedTensorType product;
  std::vector<Value> operands;
};

TEST(Fusion, RandomEpiloguesAreUnchanged) {
  MLIRContext context(MLIRContext::Threading::DISABLED);
  context.loadDialect<CleaveDialect, func::FuncDialect>();
  size_t products = 0, fused = 0, kernels = 0;
  for (unsigned seed = 0; seed < 120 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomEpilogues program(context, seed);
    ASSERT_TRUE(succeeded(verify(*program.module)));
    Block &block = program.function.getBody().front();
    std::vector<Tensor> inputs = randomTensors(program.function.getArgumentTypes(), seed);
    std::vector<Tensor> want = interpret(block, inputs, {});
    std::string before;
    llvm::raw_string_ostream(before) << *program.module;
    ASSERT_TRUE(succeeded(fuse(*program.module)));
    ASSERT_TRUE(succeeded(verify(*program.module))) << before;
    for (Operation &op : block) {
      products += isa<ContractOp>(op);
      if (auto group = dyn_cast<FusedOp>(op)) {
        bool epilogue = group.getKind() == "epilogue";
        ++(epilogue ? fused : kernels);
        if (epilogue) // behind its product
          EXPECT_EQ(op.getPrevNode(), group.getInputs()[0].getDefiningOp());
      }
    }
    expectClose(runFused(program.function, inputs, seed % 2), want, program.isF64() ? 1e-12 : 1e-5);
    if (::testing::Test::HasFailure()) {
      std::string after;
      llvm::raw_string_ostream(after) << *program.module;
      FAIL() << before << "\n" << after;
    }
  }
  printf("%zu products, %zu epilogues, %zu other kernels\n", products, fused, kernels);
  EXPECT_GT(fused * 10, products * 7);
}

TEST(Fusion, WithoutItEachOpIsAKernel) {
  MLIRContext context(MLIRContext::Threading::DISABLED);
  context.loadDialect<CleaveDialect, func::FuncDialect>();
  for (unsigned seed = 0; seed < 10; ++seed) {
    RandomProgram program(context, seed);
    func::FuncOp function = program.build(12);
    std::vector<Tensor> inputs = randomTensors(function.getArgumentTypes(), seed, 1, 5);
    std::vector<Tensor> want = interpret(function.getBody().front(), inputs, {});
    ASSERT_TRUE(succeeded(fuse(*program.module, {.fuse = false, .report = {}})));
    for (auto fused : function.getBody().front().getOps<FusedOp>()) {
      int own = 0;
      for (Operation &op : fused.getBody().front().without_terminator())
        own += !isa<ConstantOp, IotaOp>(op);
      EXPECT_LE(own, 1);
    }
    expectClose(runFused(function, inputs, false), want, 1e-11);
  }
}

/// Planning is about linear in the number of ops.
TEST(Fusion, PlansLongProgramsQuickly) {
  MLIRContext context(MLIRContext::Threading::DISABLED);
  context.loadDialect<CleaveDialect, func::FuncDialect>();
  auto seconds = [&](unsigned ops) {
    RandomProgram program(context, 1);
    func::FuncOp function = program.build(ops);
    auto start = std::chrono::steady_clock::now();
    planFusion(function.getBody().front());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double small = seconds(500), large = seconds(4000);
  printf("500 ops: %.1f ms, 4000 ops: %.1f ms\n", small * 1e3, large * 1e3);
  EXPECT_LT(large, 3.0);
}

} // namespace
