//===- Reference.cpp - groups in plain loops of doubles -------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Reference.h"

#include "ir/interpret/Evaluate.h"
#include "runtime/core/Philox.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"

#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"

#include "gtest/gtest.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

using namespace mlir;
using namespace cleave;
using namespace cleave::test;

//===----------------------------------------------------------------------===//
// Interpreter
//===----------------------------------------------------------------------===//

namespace {

using Position = std::map<std::string, int64_t>;

int64_t offsetOf(NamedTensorType type, const Position &p) {
  int64_t offset = 0;
  for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
    offset = offset * size + p.at(name.str());
  return offset;
}

double at(const Tensor &t, const Position &p) { return t.data[offsetOf(t.type, p)]; }

void forEach(NamedTensorType type, const std::function<void(const Position &, int64_t)> &body) {
  Position p;
  for (int64_t i = 0; i < type.getNumElements(); ++i) {
    int64_t rest = i;
    for (int64_t d = type.getRank(); d-- > 0;) {
      p[type.getNames()[d].str()] = rest % type.getSizes()[d];
      rest /= type.getSizes()[d];
    }
    body(p, i);
  }
}

float bf16(float x) {
  if (std::isnan(x))
    return x;
  auto bits = std::bit_cast<uint32_t>(x);
  bits += 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xffff0000);
}

/// Rounded to the type; f32 results stay double, so that errors can be measured.
double rounded(double x, Type type) {
  if (type.isBF16())
    return bf16(static_cast<float>(x));
  if (type.isF16())
    return static_cast<double>(static_cast<_Float16>(static_cast<float>(x)));
  return x;
}

struct Interpreter {
  llvm::DenseMap<Value, Tensor> values;
  llvm::DenseMap<Value, int64_t> indices;

  double scalarOp(Operation *op, const std::vector<double> &x) {
    if (isa<AddOp>(op))
      return x[0] + x[1];
    if (isa<SubOp>(op))
      return x[0] - x[1];
    if (isa<MulOp>(op))
      return x[0] * x[1];
    if (isa<DivOp>(op)) {
      if (tensorOf(op->getResult(0)).isFloat())
        return x[0] / x[1];
      return x[1] == 0 ? 0 : std::trunc(x[0] / x[1]);
    }
    if (isa<MaximumOp>(op))
      return std::isnan(x[0]) || std::isnan(x[1]) ? x[0] + x[1] : std::max(x[0], x[1]);
    if (isa<MinimumOp>(op))
      return std::isnan(x[0]) || std::isnan(x[1]) ? x[0] + x[1] : std::min(x[0], x[1]);
    if (isa<PowOp>(op))
      return std::pow(x[0], x[1]);
    if (isa<AndOp>(op))
      return x[0] != 0 && x[1] != 0;
    if (isa<OrOp>(op))
      return x[0] != 0 || x[1] != 0;
    if (isa<NotOp>(op))
      return x[0] == 0;
    if (isa<NegOp>(op))
      return -x[0];
    if (isa<AbsOp>(op))
      return std::fabs(x[0]);
    if (isa<ExpOp>(op))
      return std::exp(x[0]);
    if (isa<LogOp>(op))
      return std::log(x[0]);
    if (isa<SqrtOp>(op))
      return std::sqrt(x[0]);
    if (isa<RsqrtOp>(op))
      return 1 / std::sqrt(x[0]);
    if (isa<TanhOp>(op))
      return std::tanh(x[0]);
    if (isa<SigmoidOp>(op))
      return 1 / (1 + std::exp(-x[0]));
    if (isa<ErfOp>(op))
      return std::erf(x[0]);
    if (isa<SinOp>(op))
      return std::sin(x[0]);
    if (isa<CosOp>(op))
      return std::cos(x[0]);
    if (isa<SelectOp>(op))
      return x[0] != 0 ? x[1] : x[2];
    if (auto c = dyn_cast<CompareOp>(op)) {
      switch (c.getPredicate()) {
      case Predicate::EQ:
        return x[0] == x[1];
      case Predicate::NE:
        return x[0] != x[1];
      case Predicate::LT:
        return x[0] < x[1];
      case Predicate::LE:
        return x[0] <= x[1];
      case Predicate::GT:
        return x[0] > x[1];
      case Predicate::GE:
        return x[0] >= x[1];
      }
    }
    if (isa<CastOp>(op)) {
      Type from = tensorOf(op->getOperand(0)).getElementType();
      Type to = tensorOf(op->getResult(0)).getElementType();
      if (to.isInteger(1))
        return x[0] != 0;
      if (isa<FloatType>(from) && isa<IntegerType>(to)) {
        if (std::isnan(x[0]))
          return 0;
        unsigned bits = to.getIntOrFloatBitWidth();
        double end = std::ldexp(1.0, static_cast<int>(bits) - 1);
        return std::min(std::max(std::trunc(x[0]), -end), bits == 64 ? end : end - 1);
      }
      return x[0];
    }
    ADD_FAILURE() << "no reference for " << op->getName().getStringRef().str();
    return 0;
  }

  /// By its definition in the dialect's interpreter.
  void runAttention(Operation *op) {
    std::vector<Array> in, out;
    for (Value v : op->getOperands()) {
      auto type = dyn_cast<NamedTensorType>(v.getType());
      if (!type)
        in.push_back(Array::ofInts({}, {indices.lookup(v)}));
      else if (type.isFloat())
        in.push_back(Array::ofReals(type.getSizes().vec(), values.find(v)->second.data));
      else
        in.push_back(Array::ofInts(type.getSizes().vec(), {values.find(v)->second.data.begin(),
                                                           values.find(v)->second.data.end()}));
    }
    std::vector<const Array *> pointers;
    for (const Array &a : in)
      pointers.push_back(&a);
    std::string wrong = evaluate(op, pointers, out);
    EXPECT_EQ(wrong, "");
    for (auto [r, a] : llvm::zip_equal(op->getResults(), out))
      values[r] = {tensorOf(r), a.reals};
  }

  void run(Operation *op) {
    if (isa<AttentionOp, AttentionGradOp>(op))
      return runAttention(op);
    auto in = [&](unsigned i) -> const Tensor & { return values.find(op->getOperand(i))->second; };
    Tensor result{tensorOf(op->getResult(0)), {}};
    NamedTensorType type = result.type;
    result.data.assign(type.getNumElements(), 0);
    auto fill = [&](const std::function<double(Position)> &f) {
      forEach(type, [&](const Position &p, int64_t i) {
        result.data[i] = rounded(f(p), type.getElementType());
      });
    };
    if (auto c = dyn_cast<ConstantOp>(op)) {
      double value =
          isa<FloatAttr>(c.getValue())
              ? cast<FloatAttr>(c.getValue()).getValueAsDouble()
              : static_cast<double>(cast<IntegerAttr>(c.getValue()).getValue().isAllOnes() &&
                                            type.getElementType().isInteger(1)
                                        ? 1
                                        : cast<IntegerAttr>(c.getValue()).getInt());
      fill([&](const Position &) { return value; });
    } else if (auto iota = dyn_cast<IotaOp>(op)) {
      int64_t offset = iota.getOffsets().empty() ? 0 : indices.lookup(iota.getOffsets()[0]);
      fill([&](const Position &p) {
        return static_cast<double>(p.at(iota.getDim().str()) + offset);
      });
    } else if (auto random = dyn_cast<RandomOp>(op)) {
      Philox philox(static_cast<uint64_t>(in(0).data[0]), static_cast<uint32_t>(in(1).data[0]),
                    static_cast<uint32_t>(random.getSite()), static_cast<uint32_t>(in(2).data[0]));
      fill([&](const Position &p) {
        uint64_t linear = 0;
        for (int64_t d = 0; d < type.getRank(); ++d) {
          int64_t offset = random.getOffsets().empty() ? 0 : indices.lookup(random.getOffsets()[d]);
          linear = linear * static_cast<uint64_t>(random.getGlobalSizes()[d]) +
                   static_cast<uint64_t>(p.at(type.getNames()[d].str()) + offset);
        }
        return philox.uniform(linear);
      });
    } else if (isa<BroadcastOp, BarrierOp, StopGradientOp, PinOp>(op)) {
      fill([&](const Position &p) { return at(in(0), p); });
    } else if (isa<RenameOp>(op)) {
      result.data = in(0).data;
    } else if (auto slice = dyn_cast<SliceOp>(op)) {
      int64_t axis = in(0).type.indexOf(slice.getDim());
      fill([&](Position p) {
        int64_t i = p.at(type.getNames()[axis].str());
        p[slice.getDim().str()] = static_cast<int64_t>(slice.getStart() + slice.getStride() * i);
        return at(in(0), p);
      });
    } else if (auto pad = dyn_cast<PadOp>(op)) {
      int64_t axis = in(0).type.indexOf(pad.getDim());
      forEach(in(0).type, [&](Position p, int64_t i) {
        int64_t from = p.at(pad.getDim().str());
        p[type.getNames()[axis].str()] =
            static_cast<int64_t>(pad.getStart() + pad.getStride() * from);
        result.data[offsetOf(type, p)] = in(0).data[i];
      });
    } else if (auto mask = dyn_cast<MaskPaddingOp>(op)) {
      fill([&](const Position &p) {
        for (auto [name, extent] :
             llvm::zip_equal(mask.getDims().getAsValueRange<StringAttr>(), mask.getExtents()))
          if (p.at(name.str()) >= indices.lookup(extent))
            return mask.getFill().convertToDouble();
        return at(in(0), p);
      });
    } else if (auto gather = dyn_cast<GatherOp>(op)) {
      int64_t offset = gather.getOffsets().empty() ? 0 : indices.lookup(gather.getOffsets()[0]);
      fill([&](Position p) {
        int64_t id = static_cast<int64_t>(at(in(1), p)) - offset;
        if (id < 0 || id >= in(0).type.sizeOf(gather.getDim()))
          return 0.0;
        p[gather.getDim().str()] = id;
        return at(in(0), p);
      });
    } else if (auto scatter = dyn_cast<ScatterAddOp>(op)) {
      int64_t offset = scatter.getOffsets().empty() ? 0 : indices.lookup(scatter.getOffsets()[0]);
      forEach(in(0).type, [&](Position p, int64_t i) {
        int64_t id = static_cast<int64_t>(at(in(1), p)) - offset;
        if (id < 0 || id >= type.sizeOf(scatter.getDim()))
          return;
        p[scatter.getDim().str()] = id;
        result.data[offsetOf(type, p)] += in(0).data[i];
      });
    } else if (auto reduce = dyn_cast<ReduceOp>(op)) {
      double inf = std::numeric_limits<double>::infinity();
      Reduction kind = reduce.getReduction();
      double start = kind == Reduction::Sum ? 0 : kind == Reduction::Max ? -inf : inf;
      result.data.assign(result.data.size(), start);
      forEach(in(0).type, [&](const Position &p, int64_t i) {
        double &y = result.data[offsetOf(type, p)], x = in(0).data[i];
        y = kind == Reduction::Sum   ? y + x
            : std::isnan(x + y)      ? std::nan("")
            : kind == Reduction::Max ? std::max(x, y)
                                     : std::min(x, y);
      });
    } else if (auto contract = dyn_cast<ContractOp>(op)) {
      NamedTensorType left = in(0).type;
      forEach(left, [&](const Position &p, int64_t i) {
        forEach(in(1).type, [&](const Position &q, int64_t j) {
          Position all = p;
          for (auto &[name, index] : q) {
            auto known = all.find(name);
            if (known != all.end() && known->second != index)
              return;
            all[name] = index;
          }
          result.data[offsetOf(type, all)] += in(0).data[i] * in(1).data[j];
        });
      });
    } else {
      fill([&](const Position &p) {
        std::vector<double> x;
        for (unsigned i = 0; i < op->getNumOperands(); ++i)
          x.push_back(at(in(i), p));
        return scalarOp(op, x);
      });
    }
    values[op->getResult(0)] = result;
  }
};

} // namespace

void cleave::test::interpretOp(Operation *op, llvm::DenseMap<Value, Tensor> &values) {
  Interpreter interpreter;
  for (Value v : op->getOperands())
    interpreter.values[v] = values[v];
  interpreter.run(op);
  values[op->getResult(0)] = interpreter.values[op->getResult(0)];
}

std::vector<Tensor> cleave::test::interpret(Block &block, std::vector<Tensor> inputs,
                                            const std::vector<int64_t> &indices) {
  Interpreter interpreter;
  size_t tensors = 0, numbers = 0;
  for (BlockArgument arg : block.getArguments()) {
    if (isa<NamedTensorType>(arg.getType()))
      interpreter.values[arg] = inputs[tensors++];
    else
      interpreter.indices[arg] = indices[numbers++];
  }
  for (Operation &op : block.without_terminator())
    interpreter.run(&op);
  std::vector<Tensor> results;
  for (Value v : block.getTerminator()->getOperands())
    results.push_back(interpreter.values[v]);
  return results;
}

//===----------------------------------------------------------------------===//
// Program
//===----------------------------------------------------------------------===//

Program::Program(const std::string &text)
    : contextOwner(std::make_unique<MLIRContext>(MLIRContext::Threading::DISABLED)) {
  contextOwner->loadDialect<CleaveDialect, func::FuncDialect>();
  contextOwner->getDiagEngine().registerHandler([this](Diagnostic &d) {
    errors += d.str() + "\n";
    return success();
  });
  module = parseSourceString<ModuleOp>(text, contextOwner.get());
  EXPECT_TRUE(module) << errors << "\n" << text;
  if (!module)
    return;
  auto function = *module->getOps<func::FuncOp>().begin();
  Block &body = function.getBody().front();
  OpBuilder b(contextOwner.get());
  b.setInsertionPointToStart(&body);
  group = FusedOp::create(b, function.getLoc(), function.getResultTypes(), body.getArguments(),
                          b.getStringAttr("rows"));
  Block *inside = new Block;
  group.getBody().push_back(inside);
  for (BlockArgument arg : body.getArguments()) {
    BlockArgument own = inside->addArgument(arg.getType(), arg.getLoc());
    arg.replaceUsesWithIf(own, [&](OpOperand &use) { return use.getOwner() != group; });
  }
  Operation *terminator = body.getTerminator();
  for (Operation &op : llvm::make_early_inc_range(llvm::drop_begin(body)))
    if (&op != terminator)
      op.moveBefore(inside, inside->end());
  b.setInsertionPointToEnd(inside);
  YieldOp::create(b, function.getLoc(), terminator->getOperands());
  terminator->setOperands(group.getResults());
}

Program::~Program() = default;

static void toBytes(const Tensor &t, char *out) {
  Type type = t.type.getElementType();
  for (double x : t.data) {
    auto put = [&](auto value) {
      std::memcpy(out, &value, sizeof value);
      out += sizeof value;
    };
    if (type.isF64())
      put(x);
    else if (type.isF32())
      put(static_cast<float>(x));
    else if (type.isBF16())
      put(static_cast<uint16_t>(std::bit_cast<uint32_t>(bf16(static_cast<float>(x))) >> 16));
    else if (type.isF16())
      put(static_cast<_Float16>(static_cast<float>(x)));
    else if (type.isInteger(1))
      put(static_cast<uint8_t>(x != 0));
    else if (type.isInteger(32))
      put(static_cast<int32_t>(x));
    else
      put(static_cast<int64_t>(x));
  }
}

static void fromBytes(Tensor &t, const char *in) {
  Type type = t.type.getElementType();
  t.data.resize(t.type.getNumElements());
  for (double &x : t.data) {
    auto get = [&](auto value) {
      std::memcpy(&value, in, sizeof value);
      in += sizeof value;
      return value;
    };
    if (type.isF64())
      x = get(double{});
    else if (type.isF32())
      x = get(float{});
    else if (type.isBF16())
      x = std::bit_cast<float>(uint32_t{get(uint16_t{})} << 16);
    else if (type.isF16())
      x = static_cast<double>(get(_Float16{}));
    else if (type.isInteger(1))
      x = get(uint8_t{});
    else if (type.isInteger(32))
      x = get(int32_t{});
    else
      x = static_cast<double>(get(int64_t{}));
  }
}

std::vector<Tensor> Program::randomInputs(unsigned seed, double scale, int64_t below) {
  return randomTensors(group.getInputs().getTypes(), seed, scale, below);
}

std::vector<Tensor> cleave::test::randomTensors(TypeRange types, unsigned seed, double scale,
                                                int64_t below) {
  std::mt19937 random(seed);
  std::vector<Tensor> inputs;
  for (Type type : types) {
    auto t = dyn_cast<NamedTensorType>(type);
    if (!t)
      continue;
    Tensor x{t, std::vector<double>(t.getNumElements())};
    for (double &value : x.data) {
      if (t.isFloat())
        value = std::uniform_real_distribution<double>(-scale, scale)(random);
      else
        value = static_cast<double>(random() % (t.getElementType().isInteger(1) ? 2 : below));
    }
    // As the type holds them.
    std::vector<char> bytes(t.getNumElements() * t.getElementBytes());
    toBytes(x, bytes.data());
    fromBytes(x, bytes.data());
    inputs.push_back(x);
  }
  return inputs;
}

Kernels::Kernels() : jit(nullptr) {}
Kernels::~Kernels() = default;

bool Kernels::load(KernelCompiler &compiler) {
  std::string error;
  FailureOr<std::string> object = compiler.emitObject(error);
  if (failed(object)) {
    ADD_FAILURE() << error << "\n" << compiler.emitLoops();
    return false;
  }
  static const bool ready =
      !llvm::InitializeNativeTarget() && !llvm::InitializeNativeTargetAsmPrinter();
  EXPECT_TRUE(ready);
  jit = llvm::cantFail(llvm::orc::LLJITBuilder().create());
  llvm::cantFail(jit->addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(*object, "kernels")));
  return true;
}

/// An epilogue on a product's tiles of uneven sizes, last first.
static void runTiles(FusedOp group, uint64_t address, char **buffers, const int64_t *indices) {
  auto *kernel = reinterpret_cast<void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, char **,
                                           const int64_t *)>(address);
  NamedTensorType product = tensorOf(group.getInputs()[0]);
  int64_t sizes[3] = {1, 1, 1}; // batch, rows, columns
  for (auto [size, part] : llvm::zip_equal(
           product.getSizes(), group->getAttrOfType<DenseI64ArrayAttr>(kParts).asArrayRef()))
    sizes[part] *= size;
  auto cuts = [](int64_t size, int64_t step) {
    std::vector<int64_t> at{0};
    while (at.back() < size)
      at.push_back(std::min(at.back() + step, size));
    return at;
  };
  std::vector<int64_t> rows = cuts(sizes[1], 5), columns = cuts(sizes[2], 11);
  for (int64_t batch = sizes[0]; batch-- > 0;)
    for (size_t r = rows.size() - 1; r-- > 0;)
      for (size_t c = columns.size() - 1; c-- > 0;)
        kernel(batch, rows[r], rows[r + 1], columns[c], columns[c + 1], buffers, indices);
}

std::vector<Tensor> Kernels::run(FusedOp group, const KernelInfo &info,
                                 const std::vector<Tensor> &inputs,
                                 const std::vector<int64_t> &indices, bool inPlace) {
  auto symbol = llvm::cantFail(jit->lookup(info.symbol));
  auto *kernel = symbol.toPtr<void (*)(int64_t, int64_t, char **, const int64_t *)>();

  // Every tensor ends where its memory ends, behind a guard that must not change.
  constexpr size_t guard = 64;
  std::vector<std::vector<char>> memory;
  std::vector<char *> buffers;
  auto place = [&](NamedTensorType type) {
    size_t bytes = type.getNumElements() * type.getElementBytes();
    memory.emplace_back(bytes + 2 * guard, static_cast<char>(0xff)); // NaN in every float type
    buffers.push_back(memory.back().data() + guard);
  };
  memory.reserve(inputs.size() + group.getNumResults());
  for (const Tensor &t : inputs) {
    place(t.type);
    toBytes(t, buffers.back());
  }
  for (unsigned j = 0; j < group.getNumResults(); ++j) {
    place(tensorOf(group.getResult(j)));
    if (!inPlace)
      continue;
    for (auto [i, result] : info.inPlace)
      if (result == static_cast<int>(j) && llvm::count(buffers, buffers[i]) == 1) {
        buffers.back() = buffers[i];
        break;
      }
  }
  if (group.getKind() == kEpilogue)
    runTiles(group, symbol.getValue(), buffers.data(), indices.data());
  int64_t third = group.getKind() == kEpilogue ? 0 : (info.extent + 2) / 3;
  for (int64_t begin : {2 * third, third, int64_t{0}}) {
    int64_t end = std::min(begin + third, info.extent);
    if (begin < end)
      kernel(begin, end, buffers.data(), indices.data());
  }
  for (const auto &m : memory)
    for (size_t i = 0; i < guard; ++i)
      EXPECT_TRUE(m[i] == static_cast<char>(0xff) && m[m.size() - 1 - i] == static_cast<char>(0xff))
          << "written outside of a tensor";
  std::vector<Tensor> results;
  for (unsigned j = 0; j < group.getNumResults(); ++j) {
    Tensor t{tensorOf(group.getResult(j)), {}};
    fromBytes(t, buffers[inputs.size() + j]);
    results.push_back(t);
  }
  return results;
}

std::vector<Tensor> Program::execute(const std::vector<Tensor> &inputs,
                                     const std::vector<int64_t> &indices, KernelOptions options,
                                     bool inPlace) {
  KernelCompiler compiler(options);
  FailureOr<KernelInfo> added = compiler.add(group);
  if (failed(added)) {
    ADD_FAILURE() << errors;
    return {};
  }
  info = *added;
  Kernels kernels;
  if (!kernels.load(compiler))
    return {};
  return kernels.run(group, info, inputs, indices, inPlace);
}

std::vector<Tensor> Program::run(const std::vector<Tensor> &inputs,
                                 const std::vector<int64_t> &indices, KernelOptions options) {
  return execute(inputs, indices, options, false);
}
std::vector<Tensor> Program::runInPlace(const std::vector<Tensor> &inputs) {
  return execute(inputs, {}, {}, true);
}
std::vector<Tensor> Program::reference(const std::vector<Tensor> &inputs,
                                       const std::vector<int64_t> &indices) {
  return interpret(group.getBody().front(), inputs, indices);
}

void cleave::test::expectClose(const std::vector<Tensor> &got, const std::vector<Tensor> &want,
                               double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t r = 0; r < got.size(); ++r) {
    ASSERT_EQ(got[r].data.size(), want[r].data.size());
    int bad = 0;
    for (size_t i = 0; i < got[r].data.size() && bad < 5; ++i) {
      double x = got[r].data[i], y = want[r].data[i];
      bool equal = x == y || (std::isnan(x) && std::isnan(y)) ||
                   std::fabs(x - y) <= tolerance * std::max(1.0, std::fabs(y));
      if (equal)
        continue;
      ++bad;
      ADD_FAILURE() << "result " << r << ", element " << i << ": " << x << ", should be " << y;
    }
  }
}
