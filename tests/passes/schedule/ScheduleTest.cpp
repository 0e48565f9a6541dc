//===- ScheduleTest.cpp - schedules compute what their programs say -------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Random programs are scheduled and run on words modulo 2^32: products and sums
// are exact in any order, and a value that is overwritten too early shows.
//
//===----------------------------------------------------------------------===//
#include "passes/schedule/Schedule.h"
#include "passes/schedule/Contraction.h"
#include "passes/schedule/Listing.h"
#include "passes/schedule/MemoryPlan.h"

#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"

#include <chrono>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

using namespace mlir;
using namespace cleave;

namespace {

using Words = std::vector<uint32_t>;
constexpr uint32_t poison = 0xdeadbeef;

uint32_t mix(uint32_t a, uint32_t b) {
  uint32_t h = (a ^ (b + 0x9e3779b9u + (a << 6) + (a >> 2))) * 0x85ebca6bu;
  return h ^ (h >> 13);
}

/// Numbers the kernels; each is a function of its number and its inputs.
class TestKernels : public KernelProvider {
public:
  explicit TestKernels(bool inPlace) : inPlace(inPlace) {}
  llvm::FailureOr<KernelInfo> kernelFor(FusedOp op) override {
    KernelInfo info;
    info.symbol = std::to_string(ops.size());
    if (inPlace)
      info.inPlace = elementwisePairs(op);
    numbers[op] = ops.size();
    ops.push_back(op);
    return info;
  }
  std::vector<FusedOp> ops;
  llvm::DenseMap<Operation *, uint32_t> numbers;

private:
  bool inPlace;
};

bool isTable(FusedOp op) { return isa<IotaOp>(op.getBody().front().front()); }

/// Element i of a kernel's result.
uint32_t kernelElement(uint32_t number, uint32_t result, const std::vector<uint32_t> &inputs) {
  uint32_t h = mix(number * 7919 + 1, result + 1);
  for (uint32_t x : inputs)
    h = mix(h, x);
  return h;
}

uint32_t reduceElement(uint32_t x) { return x * 3 + 1; }

/// What the program says, value by value.
class Reference {
public:
  explicit Reference(TestKernels &kernels) : kernels(kernels) {}

  std::vector<Words> run(func::FuncOp function, const std::vector<Words> &arguments) {
    llvm::DenseMap<Value, Words> values;
    for (auto [arg, words] : llvm::zip_equal(function.getArguments(), arguments))
      values[arg] = words;
    return block(function.getBody().front(), values);
  }

  static Words contract(ContractOp op, const Words &lhs, const Words &rhs) {
    return product(tensorOf(op.getLhs()), lhs, tensorOf(op.getRhs()), rhs, op.getType());
  }

  /// Sums, over what the result lacks, of the products by name.
  static Words product(NamedTensorType lhsType, const Words &lhs, NamedTensorType rhsType,
                       const Words &rhs, NamedTensorType resultType) {
    NamedTensorType types[] = {lhsType, rhsType, resultType};
    std::vector<StringAttr> names;
    std::vector<int64_t> sizes;
    for (NamedTensorType type : types)
      for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
        if (!llvm::is_contained(names, name)) {
          names.push_back(name);
          sizes.push_back(size);
        }
    Words out(resultType.getNumElements(), 0);
    std::vector<int64_t> index(names.size(), 0);
    auto at = [&](NamedTensorType type) {
      int64_t place = 0;
      for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
        place = place * size + index[llvm::find(names, name) - names.begin()];
      return place;
    };
    for (;;) {
      out[at(types[2])] += lhs[at(types[0])] * rhs[at(types[1])];
      size_t d = names.size();
      while (d > 0 && ++index[d - 1] == sizes[d - 1])
        index[--d] = 0;
      if (d == 0)
        return out;
    }
  }

private:
  std::vector<Words> block(Block &block, llvm::DenseMap<Value, Words> &values) {
    for (Operation &op : block.without_terminator()) {
      if (auto fused = dyn_cast<FusedOp>(op)) {
        for (auto [r, result] : llvm::enumerate(fused.getResults())) {
          Words out(tensorOf(result).getNumElements());
          for (size_t i = 0; i < out.size(); ++i) {
            std::vector<uint32_t> inputs;
            for (Value input : fused.getInputs())
              inputs.push_back(values[input][i % values[input].size()]);
            out[i] = isTable(fused) ? i : kernelElement(kernels.numbers.at(fused), r, inputs);
          }
          values[result] = out;
        }
      } else if (auto contracted = dyn_cast<ContractOp>(op)) {
        values[contracted.getResult()] =
            contract(contracted, values[contracted.getLhs()], values[contracted.getRhs()]);
      } else if (auto repeat = dyn_cast<RepeatOp>(op)) {
        loop(repeat, values);
      } else if (isa<AllReduceOp>(op)) {
        Words out = values[op.getOperand(0)];
        for (uint32_t &x : out)
          x = reduceElement(x);
        values[op.getResult(0)] = out;
      } else {
        values[op.getResult(0)] = Words(values[op.getOperand(0)]);
      }
    }
    std::vector<Words> results;
    for (Value value : block.getTerminator()->getOperands())
      results.push_back(values[value]);
    return results;
  }

  void loop(RepeatOp op, llvm::DenseMap<Value, Words> &values) {
    int64_t count = op.getCount();
    std::vector<Words> carried, stacked;
    for (Value init : op.getInits())
      carried.push_back(values[init]);
    for (Value result : op.getResults().drop_front(op.getNumCarried()))
      stacked.emplace_back(tensorOf(result).getNumElements());
    for (int64_t t = 0; t < count; ++t) {
      int64_t layer = op.getReverse() ? count - 1 - t : t;
      values[op.getLayer()] = {static_cast<uint32_t>(layer)};
      for (auto [arg, words] : llvm::zip_equal(op.getCarried(), carried))
        values[arg] = words;
      for (auto [arg, stack] : llvm::zip_equal(op.getSlices(), op.getStacked())) {
        const Words &all = values[stack];
        int64_t size = all.size() / count;
        values[arg] = Words(all.begin() + layer * size, all.begin() + (layer + 1) * size);
      }
      std::vector<Words> yielded = block(op.getBody().front(), values);
      for (size_t i = 0; i < yielded.size(); ++i)
        if (i < carried.size())
          carried[i] = yielded[i];
        else
          std::copy(yielded[i].begin(), yielded[i].end(),
                    stacked[i - carried.size()].begin() + layer * yielded[i].size());
    }
    for (auto [i, result] : llvm::enumerate(op.getResults()))
      values[result] = i < carried.size() ? carried[i] : stacked[i - carried.size()];
  }

  TestKernels &kernels;
};

/// Runs the steps on real memory that is poisoned at first. A step's outputs are
/// poisoned before its inputs are read, but where it may work in place.
class Machine {
public:
  Machine(const Program &program, TestKernels &kernels)
      : program(program), kernels(kernels), arena(program.arenaBytes / 4, poison) {
    for (const Buffer &buffer : program.buffers) {
      memory.emplace_back(buffer.kind == Buffer::Kind::Arena ? 0 : buffer.bytes / 4, poison);
      if (buffer.kind == Buffer::Kind::Argument)
        argumentBuffers.resize(std::max<size_t>(argumentBuffers.size(), buffer.index + 1)),
            argumentBuffers[buffer.index] = memory.size() - 1;
      else if (buffer.kind == Buffer::Kind::Result)
        resultBuffers.resize(std::max<size_t>(resultBuffers.size(), buffer.index + 1), -1),
            resultBuffers[buffer.index] = memory.size() - 1;
    }
  }

  void run(const std::vector<Words> &arguments) {
    for (size_t i = 0; i < arguments.size(); ++i)
      memory[argumentBuffers[i]] = arguments[i];
    for (const Step &step : program.steps)
      std::visit([&](const auto &action) { run(action); }, step.action);
  }

  const Words &argument(size_t i) const { return memory[argumentBuffers[i]]; }
  Words result(size_t i) const {
    int32_t alias = program.results[i].aliasOf;
    return alias >= 0 ? argument(alias) : memory[resultBuffers.at(i)];
  }

private:
  uint32_t *at(BufferRef ref) {
    const Buffer &buffer = program.buffers[ref.buffer];
    if (buffer.kind == Buffer::Kind::Arena)
      return arena.data() + (buffer.offset + ref.offset) / 4;
    return memory[ref.buffer].data() + ref.offset / 4;
  }

  void run(const KernelStep &step) {
    FusedOp op = kernels.ops[std::stoi(step.symbol)];
    size_t inputs = op.getNumOperands();
    std::vector<int64_t> sizes;
    for (Value input : op.getInputs())
      sizes.push_back(tensorOf(input).getNumElements());
    std::vector<std::pair<int, int>> pairs = elementwisePairs(op);
    for (size_t r = 0; r < op.getNumResults(); ++r) {
      uint32_t *out = at(step.buffers[inputs + r]);
      int sharing = 0;
      for (size_t i = 0; i < inputs; ++i)
        sharing += at(step.buffers[i]) == out;
      // As KernelInfo::inPlace demands: one input and one result.
      EXPECT_LE(sharing, 1);
      for (size_t other = 0; other < r; ++other)
        EXPECT_NE(at(step.buffers[inputs + other]), out);
      bool shared = false;
      for (size_t i = 0; i < inputs; ++i)
        shared |= at(step.buffers[i]) == out && kernelsWorkInPlace &&
                  llvm::is_contained(pairs, std::pair(int(i), int(r)));
      if (!shared)
        std::fill_n(out, tensorOf(op.getResult(r)).getNumElements(), poison);
    }
    int64_t count = tensorOf(op.getResult(0)).getNumElements();
    for (int64_t i = 0; i < count; ++i) {
      std::vector<uint32_t> read;
      for (size_t k = 0; k < inputs; ++k)
        read.push_back(at(step.buffers[k])[i % sizes[k]]);
      for (size_t r = 0; r < op.getNumResults(); ++r)
        at(step.buffers[inputs + r])[i] =
            isTable(op) ? i : kernelElement(kernels.numbers.at(op), r, read);
    }
  }
  void run(const GemmStep &s) {
    if (s.epilogue.empty())
      return product(s, 0, s.n);
    // In two tiles: what the first one writes too early shows in the second.
    FusedOp op = kernels.ops[std::stoi(s.epilogue)];
    size_t inputs = op.getNumOperands();
    std::vector<std::pair<int, int>> pairs = elementwisePairs(op);
    EXPECT_EQ(at(s.epilogueBuffers[0]), at(s.c));
    for (size_t r = 0; r < op.getNumResults(); ++r) {
      uint32_t *out = at(s.epilogueBuffers[inputs + r]);
      bool shared = false;
      for (size_t i = 1; i < inputs; ++i)
        if (at(s.epilogueBuffers[i]) == out) {
          EXPECT_NE(out, at(s.c)); // the product would overwrite the operand
          shared |= kernelsWorkInPlace && llvm::is_contained(pairs, std::pair(int(i), int(r)));
        }
      if (!shared)
        std::fill_n(out, tensorOf(op.getResult(r)).getNumElements(), poison);
    }
    for (int64_t half = 0; half < 2; ++half) {
      int64_t from = half * s.n / 2, to = (half + 1) * s.n / 2;
      product(s, from, to);
      for (int64_t row = 0; row < s.m; ++row)
        for (int64_t i = row * s.n + from; i < row * s.n + to; ++i) {
          std::vector<uint32_t> read;
          for (size_t k = 0; k < inputs; ++k)
            read.push_back(
                at(s.epilogueBuffers[k])[i % tensorOf(op.getInputs()[k]).getNumElements()]);
          for (size_t r = 0; r < op.getNumResults(); ++r)
            at(s.epilogueBuffers[inputs + r])[i] = kernelElement(kernels.numbers.at(op), r, read);
        }
    }
  }
  void product(const GemmStep &s, int64_t from, int64_t end) {
    uint32_t *a = at(s.a), *b = at(s.b), *c = at(s.c);
    EXPECT_GE(s.lda, s.transA ? s.m : s.k);
    EXPECT_GE(s.ldb, s.transB ? s.k : s.n);
    EXPECT_GE(s.ldc, s.n);
    for (int64_t l = 0; l < s.batch; ++l)
      for (int64_t i = 0; i < s.m; ++i)
        for (int64_t j = from; j < end; ++j) {
          uint32_t &to = c[l * s.strideC + i * s.ldc + j];
          if (!s.accumulate)
            to = poison;
          uint32_t sum = 0;
          for (int64_t k = 0; k < s.k; ++k)
            sum += a[l * s.strideA + (s.transA ? k * s.lda + i : i * s.lda + k)] *
                   b[l * s.strideB + (s.transB ? j * s.ldb + k : k * s.ldb + j)];
          to = s.accumulate ? to + sum : sum;
        }
  }
  void run(const CopyStep &s) { std::memmove(at(s.to), at(s.from), s.bytes); }
  void run(const FillStep &s) { std::memset(at(s.to), 0, s.bytes); }
  /// What is begun happens as late as it may: who needs it earlier gets something else.
  void run(const CollectiveStep &s) {
    if (!s.begun)
      return reduce(s);
    ++begun;
    if (at(s.out) != at(s.in))
      std::fill_n(at(s.out), s.outer * s.inDim * s.inner, poison);
  }
  void run(const AwaitStep &s) { reduce(std::get<CollectiveStep>(program.steps[s.step].action)); }
  void reduce(const CollectiveStep &s) {
    Words in(at(s.in), at(s.in) + s.outer * s.inDim * s.inner);
    for (size_t i = 0; i < in.size(); ++i)
      at(s.out)[i] = reduceElement(in[i]);
  }

  const Program &program;
  TestKernels &kernels;
  Words arena;
  std::vector<Words> memory;
  std::vector<int> argumentBuffers, resultBuffers;

public:
  bool kernelsWorkInPlace = true;
  int begun = 0; ///< collectives
};

/// A program of vectors [n], stacks [layer, n] and matrices [n, m].
class RandomProgram {
public:
  RandomProgram(MLIRContext &context, uint32_t seed) : b(&context), random(seed) {}

  OwningOpRef<ModuleOp> build() {
    Location loc = b.getUnknownLoc();
    OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
    module->getOperation()->setAttr(
        kMeshAttr, MeshAttr::get(b.getContext(), {b.getStringAttr("tp")}, {int64_t(2)}));
    layers = 1 + below(3);
    vector = type({{"n", 8}});
    matrix = type({{"n", 8}, {"m", 8}});
    stack = type({{"layer", layers}, {"n", 8}});
    SmallVector<Type> inputs{vector, vector, matrix, stack, stack};
    for (int i = below(3); i > 0; --i)
      inputs.push_back(vector);
    b.setInsertionPointToEnd(module->getBody());
    auto function = func::FuncOp::create(b, loc, "f", b.getFunctionType(inputs, {}));
    Block *body = function.addEntryBlock();
    b.setInsertionPointToStart(body);
    std::vector<Value> values(body->args_begin(), body->args_end());
    ops(values, 4 + below(8), 2);
    SmallVector<Value> results;
    SmallVector<Type> types;
    for (int i = 1 + below(5); i > 0; --i) {
      // Mostly what the program makes, now and then an argument.
      Value value = values[below(4) ? values.size() - 1 - below(std::min<int>(values.size(), 6))
                                    : below(values.size())];
      results.push_back(value);
      types.push_back(value.getType());
    }
    func::ReturnOp::create(b, loc, results);
    function.setType(b.getFunctionType(inputs, types));
    std::vector<bool> taken(types.size(), false);
    for (unsigned i = 0; i < inputs.size(); ++i)
      for (unsigned r = 0; r < types.size(); ++r)
        if (!taken[r] && types[r] == inputs[i] && below(2)) {
          function.setArgAttr(i, kDonatedTo, b.getI64IntegerAttr(r));
          taken[r] = true;
          break;
        }
    return module;
  }

private:
  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); }

  NamedTensorType type(std::vector<std::pair<const char *, int64_t>> dims) {
    SmallVector<StringAttr> names;
    SmallVector<int64_t> sizes;
    for (auto [name, size] : dims) {
      names.push_back(b.getStringAttr(name));
      sizes.push_back(size);
    }
    return NamedTensorType::get(b.getContext(), b.getF32Type(), names, sizes, {});
  }

  Value pick(const std::vector<Value> &values, Type type) {
    std::vector<Value> fitting;
    for (Value value : values)
      if (value.getType() == type)
        fitting.push_back(value);
    // The latest values are the likeliest.
    int n = fitting.size();
    return fitting[below(2) ? n - 1 - below(std::min(n, 3)) : below(n)];
  }

  void fused(std::vector<Value> &values, Type type, Value layer) {
    Location loc = b.getUnknownLoc();
    SmallVector<Value> inputs;
    for (int i = 1 + below(3); i > 0; --i)
      inputs.push_back(pick(values, type));
    if (layer && below(2))
      inputs.push_back(layer);
    int numResults = 1 + (below(4) == 0);
    auto op = FusedOp::create(b, loc, SmallVector<Type>(numResults, type), inputs,
                              b.getStringAttr("rows"));
    OpBuilder::InsertionGuard guard(b);
    Block *body = b.createBlock(&op.getBody());
    for (Value input : inputs)
      body->addArgument(input.getType(), loc);
    // Now and then a kernel that does not allow work in place.
    SmallVector<Value> yields;
    for (int r = 0; r < numResults; ++r) {
      Value x = unary<ExpOp>(b, loc, body->getArgument(0));
      if (below(3) == 0) {
        StringRef last = tensorOf(x).getNames().back();
        Value sum = reduce(b, loc, Reduction::Sum, x, {last});
        x = binary<AddOp>(b, loc, x, sum);
      }
      yields.push_back(x);
    }
    YieldOp::create(b, loc, yields);
    for (Value result : op.getResults())
      values.push_back(result);
  }

  void epilogue(std::vector<Value> &values, Value product, ArrayRef<Value> operands) {
    Location loc = b.getUnknownLoc();
    SmallVector<Value> inputs{product};
    inputs.append(operands.begin(), operands.end());
    SmallVector<Type> types(1 + below(2), product.getType());
    auto op = FusedOp::create(b, loc, types, inputs, b.getStringAttr(kEpilogue));
    {
      OpBuilder::InsertionGuard guard(b);
      Block *body = b.createBlock(&op.getBody());
      for (Value input : inputs)
        body->addArgument(input.getType(), loc);
      SmallVector<Value> yields;
      for (size_t i = 0; i < types.size(); ++i)
        yields.push_back(unary<ExpOp>(b, loc, body->getArgument(0)));
      YieldOp::create(b, loc, yields);
    }
    for (Value result : op.getResults())
      values.push_back(RenameOp::create(b, loc, vector, result));
  }

  void ops(std::vector<Value> &values, int count, int depth, Value layer = {}) {
    Location loc = b.getUnknownLoc();
    auto axes = b.getArrayAttr({AxisAttr::get(b.getContext(), b.getStringAttr("tp"), 1, 0)});
    for (int i = 0; i < count; ++i)
      switch (below(9)) {
      case 0:
      case 1:
      case 2:
        fused(values, vector, layer);
        break;
      case 3:
        if (llvm::any_of(values, [&](Value v) { return v.getType() == stack; }))
          fused(values, stack, {});
        break;
      case 4: {
        NamedTensorType other = type({{"m", 8}});
        SmallVector<Value> operands;
        for (int n = below(3); n > 0; --n)
          operands.push_back(RenameOp::create(b, loc, other, pick(values, vector)));
        Value y = ContractOp::create(b, loc, other, pick(values, vector), pick(values, matrix));
        if (below(2))
          epilogue(values, y, operands);
        if (y.use_empty() || below(3) == 0)
          values.push_back(RenameOp::create(b, loc, vector, y));
        break;
      }
      case 5: {
        Value x = pick(values, vector);
        values.push_back(AllReduceOp::create(b, loc, x.getType(), x, Reduction::Sum, axes));
        break;
      }
      case 6:
        values.push_back(unary<BarrierOp>(b, loc, pick(values, vector)));
        break;
      default:
        if (depth > 0)
          repeat(values, depth);
      }
  }

  void repeat(std::vector<Value> &values, int depth) {
    SmallVector<Value> inits, stacks;
    for (int i = below(3); i > 0; --i)
      inits.push_back(pick(values, vector));
    for (int i = below(3); i > 0; --i)
      stacks.push_back(pick(values, stack));
    SmallVector<Type> outputs(below(3), stack);
    auto op =
        RepeatOp::create(b, b.getUnknownLoc(), "layer", layers, below(2), inits, stacks, outputs);
    {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToEnd(&op.getBody().front());
      std::vector<Value> inner(values);
      for (BlockArgument arg : op.getBody().getArguments().drop_front())
        inner.push_back(arg);
      ops(inner, 1 + below(5), depth - 1, op.getLayer());
      SmallVector<Value> yields;
      for (size_t i = 0; i < inits.size() + outputs.size(); ++i)
        yields.push_back(pick(inner, vector));
      YieldOp::create(b, b.getUnknownLoc(), yields);
    }
    for (Value result : op.getResults())
      values.push_back(result);
  }

  OpBuilder b;
  std::mt19937 random;
  int64_t layers = 1;
  NamedTensorType vector, matrix, stack;
};

Words randomWords(int64_t count, std::mt19937 &random) {
  Words words(count);
  for (uint32_t &x : words)
    x = random();
  return words;
}

struct Context {
  Context() {
    context.disableMultithreading();
    context.loadDialect<CleaveDialect, func::FuncDialect>();
  }
  MLIRContext context;
};

} // namespace

TEST(MemoryPlan, NeverOverlapsWhatLivesTogether) {
  std::mt19937 random(1);
  auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lives;
    int steps = 1 + below(60);
    for (int i = below(120); i >= 0; --i) {
      int32_t first = below(steps);
      int32_t last =
          below(8) ? std::min(steps - 1, first + below(6)) : first + below(steps - first);
      lives.push_back({below(10) ? 1 + below(1000) : 0, first, last});
    }
    MemoryPlan plan = planMemory(lives);
    EXPECT_GE(plan.arenaBytes, plan.liveBytes);
    for (size_t i = 0; i < lives.size(); ++i) {
      ASSERT_EQ(plan.offsets[i] % 64, 0);
      ASSERT_LE(plan.offsets[i] + lives[i].bytes, plan.arenaBytes);
      for (size_t j = 0; j < i; ++j) {
        bool together = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
        bool apart = plan.offsets[i] + lives[i].bytes <= plan.offsets[j] ||
                     plan.offsets[j] + lives[j].bytes <= plan.offsets[i];
        ASSERT_TRUE(!together || apart || !lives[i].bytes || !lives[j].bytes);
      }
    }
  }
}

TEST(MemoryPlan, ManyLayersAreFastAndTight) {
  // 96 layers forward and backward, 60 kernels each, a few long-lived stacks.
  std::vector<Lifetime> lives;
  int32_t perPass = 96 * 60;
  std::mt19937 random(2);
  for (int32_t i = 0; i < 2 * perPass; ++i)
    lives.push_back({int64_t(1 + random() % 16) << 16, i, i + 1 + int32_t(random() % 6)});
  for (int s = 0; s < 12; ++s)
    lives.push_back({int64_t(96) << 20, s, 2 * perPass - s});
  auto start = std::chrono::steady_clock::now();
  MemoryPlan plan = planMemory(lives);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 1.0);
  EXPECT_LE(plan.arenaBytes, plan.liveBytes + plan.liveBytes / 10);
}

TEST(MemoryPlan, CheckFindsFaults) {
  Program program;
  program.arenaBytes = 128;
  program.buffers = {{Buffer::Kind::Arena, 64, 0, 0}, {Buffer::Kind::Arena, 64, 64, 0}};
  program.steps.push_back({CopyStep{{0, 0}, {1, 0}, 64}, StepKind::Copy, -1});
  EXPECT_EQ(checkMemory(program), std::nullopt);
  program.steps.push_back({CopyStep{{1, 0}, {0, 0}, 64}, StepKind::Copy, -1});
  program.buffers[1].offset = 0;
  EXPECT_EQ(checkMemory(program), "buffers 0 and 1 live at the same time and overlap");
  program.buffers[1].offset = 32;
  EXPECT_EQ(checkMemory(program), "buffer 1 is at the odd offset 32");
  program.buffers[1].offset = 128;
  EXPECT_EQ(checkMemory(program), "buffer 1 ends past the arena");
  program.buffers[1].offset = 64;
  std::get<CopyStep>(program.steps[0].action).to.offset = 64;
  EXPECT_EQ(checkMemory(program), "step 0 is at byte 64 of buffer 1, which has 64");
}

// Any order of any dims, of size 1 too: the products give the contraction.
TEST(Contraction, RandomShapesAndOrders) {
  Context c;
  OpBuilder b(&c.context);
  std::mt19937 random(3);
  auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  PassManager prepare(&c.context);
  registerSchedulePasses();
  ASSERT_TRUE(succeeded(parsePassPipeline("cleave-prepare-contracts", prepare)));
  int kept = 0, rewritten = 0;
  for (int round = 0; round < 1500; ++round) {
    std::vector<StringAttr> names[3];
    llvm::StringMap<int64_t> sizes;
    int dims = 1 + below(6);
    for (int d = 0; d < dims; ++d) {
      StringAttr name = b.getStringAttr(std::string(1, 'a' + d));
      sizes[name] = below(4) ? 2 + below(3) : 1;
      int part = below(4); // batch, m, n, k
      for (int t = 0; t < 3; ++t)
        if ((part == 0) || (part == 1 && t != 1) || (part == 2 && t != 0) || (part == 3 && t != 2))
          names[t].push_back(name);
    }
    NamedTensorType types[3];
    for (int t = 0; t < 3; ++t) {
      std::shuffle(names[t].begin(), names[t].end(), random);
      SmallVector<int64_t> local;
      for (StringAttr name : names[t])
        local.push_back(sizes[name]);
      types[t] = NamedTensorType::get(&c.context, b.getF32Type(), names[t], local, {});
    }
    OwningOpRef<ModuleOp> module = ModuleOp::create(b.getUnknownLoc());
    b.setInsertionPointToEnd(module->getBody());
    auto function = func::FuncOp::create(b, b.getUnknownLoc(), "f",
                                         b.getFunctionType({types[0], types[1]}, {types[2]}));
    Block *body = function.addEntryBlock();
    b.setInsertionPointToStart(body);
    auto op = ContractOp::create(b, b.getUnknownLoc(), types[2], body->getArgument(0),
                                 body->getArgument(1));
    func::ReturnOp::create(b, b.getUnknownLoc(), op.getResult());
    std::vector<Words> arguments{randomWords(types[0].getNumElements(), random),
                                 randomWords(types[1].getNumElements(), random)};
    Words expected = Reference::contract(op, arguments[0], arguments[1]);
    {
      OwningOpRef<ModuleOp> copy = module->clone();
      TestKernels kernels(false);
      FailureOr<Executable> executable = buildExecutable(*copy, kernels);
      ASSERT_TRUE(succeeded(executable));
      Machine machine(executable->programs[0], kernels);
      machine.run(arguments);
      ASSERT_EQ(machine.result(0), expected) << listing(*executable);
    }
    ASSERT_TRUE(succeeded(prepare.run(*module)));
    ASSERT_TRUE(succeeded(verify(*module)));
    // The form for matrix products says the same.
    llvm::DenseMap<Value, Words> values;
    values[body->getArgument(0)] = arguments[0];
    values[body->getArgument(1)] = arguments[1];
    NamedTensorType scalar = NamedTensorType::get(&c.context, b.getF32Type(), {}, {}, {});
    bool same = true;
    for (Operation &now : body->without_terminator()) {
      same &= isa<ContractOp>(now);
      ASSERT_TRUE((isa<ContractOp, MulOp, BroadcastOp, ReduceOp>(now)));
      Value x = now.getOperand(0);
      bool two = now.getNumOperands() == 2;
      values[now.getResult(0)] = Reference::product(
          tensorOf(x), values[x], two ? tensorOf(now.getOperand(1)) : scalar,
          two ? values[now.getOperand(1)] : Words{1}, tensorOf(now.getResult(0)));
    }
    ASSERT_EQ(values[body->getTerminator()->getOperand(0)], expected);
    ++(same ? kept : rewritten);
  }
  EXPECT_GT(kept, 200);
  EXPECT_GT(rewritten, 100);
}

// Reuse of memory, work in place, donation, renaming, collectives beside other
// steps: nothing changes what the program computes (B66, B68).
TEST(Schedule, RandomProgramsKeepTheirMeaning) {
  Context c;
  int direct = 0, copied = 0, shared = 0, begun = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    OwningOpRef<ModuleOp> module = RandomProgram(c.context, seed).build();
    ASSERT_TRUE(succeeded(verify(*module))) << "seed " << seed;
    for (bool inPlace : {false, true})
      for (bool reuse : {false, true}) {
        OwningOpRef<ModuleOp> copy = module->clone();
        TestKernels kernels(inPlace);
        ScheduleOptions options;
        options.reuseMemory = reuse;
        options.overlap = seed % 4 != 0;
        options.overlapWorth = 0;
        FailureOr<Executable> executable = buildExecutable(*copy, kernels, options);
        ASSERT_TRUE(succeeded(executable)) << "seed " << seed;
        const Program &program = executable->programs[0];
        std::mt19937 random(seed);
        std::vector<Words> arguments;
        for (const Argument &argument : program.arguments)
          arguments.push_back(randomWords(argument.localBytes / 4, random));
        auto function = *copy->getOps<func::FuncOp>().begin();
        std::vector<Words> expected = Reference(kernels).run(function, arguments);
        Machine machine(program, kernels);
        machine.kernelsWorkInPlace = inPlace;
        machine.run(arguments);
        begun += machine.begun;
        for (size_t i = 0; i < expected.size(); ++i)
          ASSERT_EQ(machine.result(i), expected[i])
              << "seed " << seed << " result " << i << " in place " << inPlace << " reuse " << reuse
              << "\n"
              << listing(*executable);
        for (size_t i = 0; i < arguments.size(); ++i)
          if (program.arguments[i].donatedTo < 0)
            ASSERT_EQ(machine.argument(i), arguments[i]) << "seed " << seed;
        for (const Step &step : program.steps)
          if (auto *kernel = std::get_if<KernelStep>(&step.action)) {
            size_t inputs = kernels.ops[std::stoi(kernel->symbol)].getNumOperands();
            for (size_t r = inputs; r < kernel->buffers.size(); ++r) {
              direct += program.buffers[kernel->buffers[r].buffer].kind == Buffer::Kind::Argument;
              for (size_t i = 0; i < inputs; ++i)
                shared += kernel->buffers[i].buffer == kernel->buffers[r].buffer &&
                          kernel->buffers[i].offset == kernel->buffers[r].offset;
            }
          } else if (auto *copied1 = std::get_if<CopyStep>(&step.action)) {
            copied += program.buffers[copied1->to.buffer].kind == Buffer::Kind::Argument;
          }
      }
  }
  // All of it happens.
  EXPECT_GT(direct, 100);
  EXPECT_GT(copied, 100);
  EXPECT_GT(shared, 100);
  EXPECT_GT(begun, 1000);
}
