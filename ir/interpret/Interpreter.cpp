//===- Interpreter.cpp - the dialect's reference interpreter --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/interpret/Interpreter.h"
#include "ir/interpret/Composites.h"
#include "runtime/core/Philox.h"

#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>
#include <limits>
#include <memory>

using namespace mlir;
using namespace cleave;

namespace {

using Names = std::vector<std::string>;
using Ref = std::shared_ptr<const Array>;
/// A value on every rank. Ranks may share one array.
using Ranks = std::vector<Ref>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Names namesOf(NamedTensorType type) {
  Names names;
  for (StringAttr name : type.getNames())
    names.push_back(name.str());
  return names;
}

Names namesOf(ArrayAttr dims) {
  Names names;
  for (StringRef dim : dims.getAsValueRange<StringAttr>())
    names.push_back(dim.str());
  return names;
}

bool isInteger(NamedTensorType type) { return !type.isFloat(); }

/// The larger (smaller) of two, NaN if either is.
double maximum(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double minimum(double a, double b) { return std::isnan(a) || a < b ? a : b; }
int64_t maximum(int64_t a, int64_t b) { return std::max(a, b); }
int64_t minimum(int64_t a, int64_t b) { return std::min(a, b); }

template <typename T> T combine(Reduction reduction, T a, T b) {
  switch (reduction) {
  case Reduction::Sum:
    return a + b;
  case Reduction::Max:
    return maximum(a, b);
  case Reduction::Min:
    return minimum(a, b);
  }
  return a;
}

double neutral(Reduction reduction) {
  return reduction == Reduction::Sum ? 0 : reduction == Reduction::Max ? -kInfinity : kInfinity;
}
int64_t neutralInt(Reduction reduction) {
  return reduction == Reduction::Sum   ? 0
         : reduction == Reduction::Max ? std::numeric_limits<int64_t>::min()
                                       : std::numeric_limits<int64_t>::max();
}

std::vector<double> &elements(Array &a, double) { return a.reals; }
std::vector<int64_t> &elements(Array &a, int64_t) { return a.ints; }
const std::vector<double> &elements(const Array &a, double) { return a.reals; }
const std::vector<int64_t> &elements(const Array &a, int64_t) { return a.ints; }

/// Runs f with a zero of the array's kind: f(double{}) or f(int64_t{}).
template <typename F> void forKind(bool integer, F f) {
  if (integer)
    f(int64_t{});
  else
    f(double{});
}

double roundTo(Type element, double x) {
  if (element.isF32())
    return static_cast<float>(x);
  if (element.isF64())
    return x;
  llvm::APFloat value(x);
  bool lost;
  value.convert(cast<FloatType>(element).getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven,
                &lost);
  return value.convertToDouble();
}

//===----------------------------------------------------------------------===//
// One op on one rank
//===----------------------------------------------------------------------===//

/// An op, its operands' arrays on one rank, and where its results go.
class Evaluation {
public:
  Evaluation(Operation *op, ArrayRef<const Array *> in, bool perRank)
      : op(op), in(in), perRank(perRank) {
    for (Type t : op->getResultTypes())
      if (auto tensor = dyn_cast<NamedTensorType>(t))
        out.push_back(Array::zeros(shapeOf(tensor), isInteger(tensor)));
  }

  /// Empty, or why the op cannot be run.
  std::string run();
  std::vector<Array> out;

private:
  NamedArray operand(unsigned i) const {
    return {namesOf(tensorOf(op->getOperand(i))), in[i]};
  }
  NamedArray operandOf(Value v) const {
    for (unsigned i = 0; i < op->getNumOperands(); ++i)
      if (op->getOperand(i) == v)
        return operand(i);
    return {};
  }
  Names resultNames() const { return namesOf(tensorOf(op->getResult(0))); }
  std::vector<int64_t> resultShape() const { return out[0].shape; }
  int64_t indexOperand(unsigned i) const { return in[i]->ints[0]; }

  /// result = f(operand 0) by name; From and To are the kinds of element.
  template <typename To, typename From, typename F> void map1(F f) {
    const auto &x = elements(*in[0], From{});
    auto &y = elements(out[0], To{});
    size_t n = 0;
    walk<1>(resultShape(), {operand(0).stridesFor(resultNames())},
            [&](auto at) { y[n++] = static_cast<To>(f(x[at[0]])); });
  }
  template <typename To, typename From, typename F> void map2(F f) {
    const auto &a = elements(*in[0], From{});
    const auto &b = elements(*in[1], From{});
    auto &y = elements(out[0], To{});
    size_t n = 0;
    Names names = resultNames();
    walk<2>(resultShape(), {operand(0).stridesFor(names), operand(1).stridesFor(names)},
            [&](auto at) { y[n++] = static_cast<To>(f(a[at[0]], b[at[1]])); });
  }
  /// f is called with numbers of the operands' own kind.
  template <typename F> void same1(F f) {
    forKind(in[0]->integer, [&](auto zero) {
      using T = decltype(zero);
      map1<T, T>(f);
    });
  }
  template <typename F> void same2(F f) {
    forKind(in[0]->integer, [&](auto zero) {
      using T = decltype(zero);
      map2<T, T>(f);
    });
  }
  template <typename F> void real1(F f) { map1<double, double>(f); }
  void copy() {
    same1([](auto x) { return x; });
  }

  void constant(ConstantOp c);
  void random(RandomOp r);
  void castTo(CastOp c);
  void compare(CompareOp c);
  void select();
  void reduce(ReduceOp r);
  void contract();
  void gather(GatherOp g);
  void scatterAdd(ScatterAddOp s);
  void strided(StringRef dim, int64_t start, int64_t stride, bool pad);
  void maskPadding(MaskPaddingOp m);
  composite::RandomSite site(unsigned first, uint64_t path) const;
  std::string attention(AttentionOp a);
  bool composites();

  Operation *op;
  ArrayRef<const Array *> in;
  bool perRank;
};

void Evaluation::constant(ConstantOp c) {
  if (out[0].integer) {
    APInt value = cast<IntegerAttr>(c.getValue()).getValue();
    std::fill(out[0].ints.begin(), out[0].ints.end(),
              value.getBitWidth() == 1 ? static_cast<int64_t>(value.getZExtValue())
                                       : value.getSExtValue());
    return;
  }
  APFloat value = cast<FloatAttr>(c.getValue()).getValue();
  bool lost;
  value.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &lost);
  std::fill(out[0].reals.begin(), out[0].reals.end(), value.convertToDouble());
}

void Evaluation::random(RandomOp r) {
  Philox philox(static_cast<uint64_t>(in[0]->ints[0]), static_cast<uint32_t>(in[1]->ints[0]),
                static_cast<uint32_t>(r.getSite()), static_cast<uint32_t>(in[2]->ints[0]));
  std::vector<int64_t> strides = rowMajorStrides(r.getGlobalSizes().vec());
  int64_t start = 0;
  for (unsigned d = 0; d < r.getOffsets().size(); ++d)
    start += indexOperand(3 + d) * strides[d];
  size_t n = 0;
  walk<1>(resultShape(), {strides}, [&](auto at) {
    out[0].reals[n++] = philox.uniform(static_cast<uint64_t>(start + at[0]));
  });
}

void Evaluation::castTo(CastOp c) {
  Type to = c.getType().getElementType();
  bool fromInt = in[0]->integer;
  if (to.isInteger(1)) {
    if (fromInt)
      map1<int64_t, int64_t>([](int64_t x) { return x != 0; });
    else
      map1<int64_t, double>([](double x) { return x != 0; });
  } else if (out[0].integer) {
    unsigned bits = to.getIntOrFloatBitWidth();
    if (fromInt)
      map1<int64_t, int64_t>([&](int64_t x) { return llvm::SignExtend64(x, bits); });
    else
      map1<int64_t, double>([](double x) { return std::isfinite(x) ? static_cast<int64_t>(x) : 0; });
  } else if (fromInt) {
    map1<double, int64_t>([](int64_t x) { return static_cast<double>(x); });
  } else {
    map1<double, double>([](double x) { return x; });
  }
}

void Evaluation::compare(CompareOp c) {
  forKind(in[0]->integer, [&](auto zero) {
    using T = decltype(zero);
    auto run = [&](auto f) { map2<int64_t, T>(f); };
    switch (c.getPredicate()) {
    case Predicate::EQ:
      return run([](T a, T b) { return a == b; });
    case Predicate::NE:
      return run([](T a, T b) { return a != b; });
    case Predicate::LT:
      return run([](T a, T b) { return a < b; });
    case Predicate::LE:
      return run([](T a, T b) { return a <= b; });
    case Predicate::GT:
      return run([](T a, T b) { return a > b; });
    case Predicate::GE:
      return run([](T a, T b) { return a >= b; });
    }
  });
}

void Evaluation::select() {
  forKind(out[0].integer, [&](auto zero) {
    using T = decltype(zero);
    const auto &a = elements(*in[1], T{});
    const auto &b = elements(*in[2], T{});
    auto &y = elements(out[0], T{});
    size_t n = 0;
    Names names = resultNames();
    walk<3>(resultShape(),
            {operand(0).stridesFor(names), operand(1).stridesFor(names),
             operand(2).stridesFor(names)},
            [&](auto at) { y[n++] = in[0]->ints[at[0]] ? a[at[1]] : b[at[2]]; });
  });
}

void Evaluation::reduce(ReduceOp r) {
  Reduction kind = r.getReduction();
  NamedArray x = operand(0), y{resultNames(), &out[0]};
  forKind(out[0].integer, [&](auto zero) {
    using T = decltype(zero);
    const auto &from = elements(*in[0], T{});
    auto &to = elements(out[0], T{});
    if constexpr (std::is_same_v<T, double>)
      std::fill(to.begin(), to.end(), neutral(kind));
    else
      std::fill(to.begin(), to.end(), neutralInt(kind));
    walk<2>(in[0]->shape, {rowMajorStrides(in[0]->shape), y.stridesFor(x.names)}, [&](auto at) {
      to[at[1]] = combine<T>(kind, to[at[1]], from[at[0]]);
    });
  });
}

void Evaluation::contract() {
  NamedArray a = operand(0), b = operand(1);
  Names outer = resultNames(), inner;
  std::vector<int64_t> innerSizes;
  for (StringRef name : cast<ContractOp>(op).getContracted()) {
    inner.push_back(name.str());
    innerSizes.push_back(a.sizeOf(name.str()));
  }
  std::array<std::vector<int64_t>, 2> steps{a.stridesFor(inner), b.stridesFor(inner)};
  const double *pa = in[0]->reals.data(), *pb = in[1]->reals.data();
  double *py = out[0].reals.data();
  walk<2>(resultShape(), {a.stridesFor(outer), b.stridesFor(outer)}, [&](auto at) {
    double sum = 0;
    if (innerSizes.size() == 1) {
      const double *x = pa + at[0], *y = pb + at[1];
      int64_t sx = steps[0][0], sy = steps[1][0];
      for (int64_t i = 0; i < innerSizes[0]; ++i, x += sx, y += sy)
        sum += *x * *y;
    } else {
      walk<2>(innerSizes, steps,
              [&](auto k) { sum += pa[at[0] + k[0]] * pb[at[1] + k[1]]; });
    }
    *py++ = sum;
  });
}

void Evaluation::gather(GatherOp g) {
  std::string dim = g.getDim().str();
  NamedArray table = operand(0), ids = operand(1);
  int64_t rows = table.sizeOf(dim), step = table.stridesFor({dim})[0];
  int64_t first = g.getOffsets().empty() ? 0 : indexOperand(2);
  // The result may have a dim of the ids with the name of the looked-up dim.
  NamedArray row = table;
  std::replace(row.names.begin(), row.names.end(), dim, std::string());
  Names names = resultNames();
  forKind(out[0].integer, [&](auto zero) {
    using T = decltype(zero);
    const auto &from = elements(*in[0], T{});
    auto &to = elements(out[0], T{});
    size_t n = 0;
    walk<2>(resultShape(), {row.stridesFor(names), ids.stridesFor(names)}, [&](auto at) {
      int64_t id = in[1]->ints[at[1]] - first;
      to[n++] = id >= 0 && id < rows ? from[at[0] + id * step] : T{};
    });
  });
}

void Evaluation::scatterAdd(ScatterAddOp s) {
  std::string dim = s.getDim().str();
  NamedArray updates = operand(0), ids = operand(1), table{resultNames(), &out[0]};
  int64_t rows = table.sizeOf(dim), step = table.stridesFor({dim})[0];
  int64_t first = s.getOffsets().empty() ? 0 : indexOperand(2);
  NamedArray row = table;
  std::replace(row.names.begin(), row.names.end(), dim, std::string());
  walk<3>(in[0]->shape,
          {rowMajorStrides(in[0]->shape), ids.stridesFor(updates.names),
           row.stridesFor(updates.names)},
          [&](auto at) {
            int64_t id = in[1]->ints[at[1]] - first;
            if (id >= 0 && id < rows)
              out[0].reals[at[2] + id * step] += in[0]->reals[at[0]];
          });
}

/// The part's element i is the whole's element start + i * stride.
void Evaluation::strided(StringRef dim, int64_t start, int64_t stride, bool pad) {
  const Array &whole = pad ? out[0] : *in[0], &part = pad ? *in[0] : out[0];
  std::vector<int64_t> steps = rowMajorStrides(whole.shape);
  int64_t along = tensorOf(op->getOperand(0)).indexOf(dim);
  int64_t begin = start * steps[along];
  steps[along] *= stride;
  forKind(out[0].integer, [&](auto zero) {
    using T = decltype(zero);
    const auto &from = elements(*in[0], T{});
    auto &to = elements(out[0], T{});
    walk<2>(part.shape, {rowMajorStrides(part.shape), steps}, [&](auto at) {
      if (pad)
        to[begin + at[1]] = from[at[0]];
      else
        to[at[0]] = from[begin + at[1]];
    });
  });
}

void Evaluation::maskPadding(MaskPaddingOp m) {
  out[0] = *in[0];
  std::vector<int64_t> strides = rowMajorStrides(out[0].shape);
  for (auto [i, dim] : llvm::enumerate(m.getDims().getAsValueRange<StringAttr>())) {
    int64_t along = m.getType().indexOf(dim), extent = indexOperand(1 + i);
    for (int64_t n = 0; n < out[0].size(); ++n)
      if (n / strides[along] % out[0].shape[along] >= extent) {
        if (out[0].integer)
          out[0].ints[n] = static_cast<int64_t>(m.getFill().convertToDouble());
        else
          out[0].reals[n] = m.getFill().convertToDouble();
      }
  }
}

composite::RandomSite Evaluation::site(unsigned first, uint64_t path) const {
  return {static_cast<uint64_t>(in[first]->ints[0]), static_cast<uint32_t>(in[first + 1]->ints[0]),
          static_cast<uint32_t>(in[first + 2]->ints[0]), static_cast<uint32_t>(path)};
}

std::string Evaluation::attention(AttentionOp a) {
  composite::AttentionShape shape;
  shape.queryDim = a.getQueryDim().str();
  shape.keyDim = a.getKeyDim().str();
  shape.depthDim = a.getDepthDim().str();
  shape.valueDim = a.getValueDim().str();
  shape.causal = a.getCausal();
  shape.scale = a.getScale().convertToDouble();
  shape.rate = a.getRate().convertToDouble();
  NamedArray q = operandOf(a.getQuery()), k = operandOf(a.getKey()), v = operandOf(a.getValue());
  unsigned next = 3;
  NamedArray mask, bias;
  if (a.getMask())
    mask = operand(next++);
  if (a.getBias())
    bias = operand(next++);
  composite::RandomSite random;
  if (!a.getRandom().empty() && shape.rate > 0) {
    if (perRank)
      return "dropout inside attention numbers its elements globally; on one rank's part it must "
             "be expanded";
    random = site(next, a.getSite());
  } else {
    shape.rate = 0;
  }
  next += a.getRandom().size();
  if (a.getOffsets().empty()) {
    shape.shift = k.sizeOf(shape.keyDim) - q.sizeOf(shape.queryDim);
  } else {
    // The offset is the global index of the first query, counted so that query
    // and key of one index see each other.
    shape.shift = indexOperand(next);
  }
  composite::AttentionArrays y = composite::attention(
      q, k, v, mask, bias, shape, random, resultNames(), namesOf(tensorOf(op->getResult(1))));
  out = {std::move(y.result), std::move(y.lse)};
  return "";
}

/// A composite op by its definition.
bool Evaluation::composites() {
  return llvm::TypeSwitch<Operation *, bool>(op)
      .Case([&](LayerNormOp o) {
        out[0] = composite::layerNorm(operand(0), operand(1), operand(2), namesOf(o.getDims()),
                                      o.getEpsilon().convertToDouble());
        return true;
      })
      .Case([&](RmsNormOp o) {
        out[0] = composite::rmsNorm(operand(0), operand(1), namesOf(o.getDims()),
                                    o.getEpsilon().convertToDouble());
        return true;
      })
      .Case([&](SoftmaxOp o) {
        out[0] = composite::softmax(operand(0), namesOf(o.getDims()));
        return true;
      })
      .Case([&](GeluOp o) {
        out[0] = composite::gelu(*in[0], o.getTanh());
        return true;
      })
      .Case([&](SiluOp) {
        out[0] = composite::silu(*in[0]);
        return true;
      })
      .Case([&](ReluOp) {
        out[0] = composite::relu(*in[0]);
        return true;
      })
      .Case([&](DropoutOp o) {
        out[0] = composite::dropout(*in[0], o.getRate().convertToDouble(), site(1, o.getSite()));
        return true;
      })
      .Case([&](RopeOp o) {
        out[0] = composite::rope(operand(0), operand(1), o.getDim().str(),
                                 o.getBase().convertToDouble(), o.getInterleaved(), o.getRotary());
        return true;
      })
      .Case([&](ConcatOp o) {
        std::vector<NamedArray> inputs;
        for (unsigned i = 0; i < o.getInputs().size(); ++i)
          inputs.push_back(operand(i));
        out[0] = composite::concat(inputs, namesOf(o.getDims()), resultNames(),
                                   o.getResultDim().str());
        return true;
      })
      .Case([&](CrossEntropyOp o) {
        out[0] = composite::crossEntropy(operand(0), operand(1), o.getDim().str(), o.getIgnore(),
                                         o.getSmoothing().convertToDouble());
        return true;
      })
      .Default([](Operation *) { return false; });
}

std::string Evaluation::run() {
  bool known = true;
  std::string wrong;
  llvm::TypeSwitch<Operation *>(op)
      .Case([&](ConstantOp o) { constant(o); })
      .Case([&](IotaOp o) {
        int64_t first = o.getOffsets().empty() ? 0 : indexOperand(0);
        for (int64_t i = 0; i < out[0].size(); ++i) {
          if (out[0].integer)
            out[0].ints[i] = first + i;
          else
            out[0].reals[i] = static_cast<double>(first + i);
        }
      })
      .Case([&](RandomOp o) { random(o); })
      .Case([&](AddOp) { same2([](auto a, auto b) { return a + b; }); })
      .Case([&](SubOp) { same2([](auto a, auto b) { return a - b; }); })
      .Case([&](MulOp) { same2([](auto a, auto b) { return a * b; }); })
      .Case([&](DivOp) {
        if (out[0].integer)
          map2<int64_t, int64_t>([](int64_t a, int64_t b) { return b == 0 ? 0 : a / b; });
        else
          map2<double, double>([](double a, double b) { return a / b; });
      })
      .Case([&](MaximumOp) { same2([](auto a, auto b) { return maximum(a, b); }); })
      .Case([&](MinimumOp) { same2([](auto a, auto b) { return minimum(a, b); }); })
      .Case([&](PowOp) { map2<double, double>([](double a, double b) { return std::pow(a, b); }); })
      .Case([&](AndOp) { map2<int64_t, int64_t>([](int64_t a, int64_t b) { return a & b; }); })
      .Case([&](OrOp) { map2<int64_t, int64_t>([](int64_t a, int64_t b) { return a | b; }); })
      .Case([&](NotOp) { map1<int64_t, int64_t>([](int64_t a) { return !a; }); })
      .Case([&](NegOp) { same1([](auto a) { return -a; }); })
      .Case([&](AbsOp) { same1([](auto a) { return std::abs(a); }); })
      .Case([&](ExpOp) { real1([](double a) { return std::exp(a); }); })
      .Case([&](LogOp) { real1([](double a) { return std::log(a); }); })
      .Case([&](SqrtOp) { real1([](double a) { return std::sqrt(a); }); })
      .Case([&](RsqrtOp) { real1([](double a) { return 1 / std::sqrt(a); }); })
      .Case([&](TanhOp) { real1([](double a) { return std::tanh(a); }); })
      .Case([&](SigmoidOp) {
        real1([](double a) {
          double e = std::exp(-std::abs(a));
          return a >= 0 ? 1 / (1 + e) : e / (1 + e);
        });
      })
      .Case([&](ErfOp) { real1([](double a) { return std::erf(a); }); })
      .Case([&](SinOp) { real1([](double a) { return std::sin(a); }); })
      .Case([&](CosOp) { real1([](double a) { return std::cos(a); }); })
      .Case([&](CastOp o) { castTo(o); })
      .Case<BroadcastOp, StopGradientOp, BarrierOp, PinOp>([&](auto) { copy(); })
      .Case([&](RenameOp) {
        std::vector<int64_t> shape = out[0].shape;
        out[0] = *in[0];
        out[0].shape = shape;
      })
      .Case([&](CompareOp o) { compare(o); })
      .Case([&](SelectOp) { select(); })
      .Case([&](ReduceOp o) { reduce(o); })
      .Case([&](ContractOp) { contract(); })
      .Case([&](GatherOp o) { gather(o); })
      .Case([&](ScatterAddOp o) { scatterAdd(o); })
      .Case([&](SliceOp o) { strided(o.getDim(), o.getStart(), o.getStride(), false); })
      .Case([&](PadOp o) { strided(o.getDim(), o.getStart(), o.getStride(), true); })
      .Case([&](MaskPaddingOp o) { maskPadding(o); })
      .Case([&](AttentionOp o) { wrong = attention(o); })
      .Default([&](Operation *) { known = composites(); });
  if (!known)
    return "this op cannot be interpreted";
  return wrong;
}

//===----------------------------------------------------------------------===//
// The machine
//===----------------------------------------------------------------------===//

class Machine {
public:
  Machine(MeshAttr mesh, bool perRank, const InterpretOptions &options)
      : mesh(mesh), perRank(perRank), ranks(perRank ? mesh.getRanks() : 1), options(options) {}

  int64_t getRanks() const { return ranks; }
  void bind(Value v, Ranks value) { values[v] = std::move(value); }
  const Ranks &valueOf(Value v) const { return values.find(v)->second; }
  /// Runs everything but the terminator.
  Status runBlock(Block &block);

private:
  Status run(Operation *op);
  Status runOnRanks(Operation *op);
  Status runExpanded(ExpandableOpInterface op);
  Status repeat(RepeatOp op);
  Status fused(FusedOp op);
  Status collective(Operation *op, ArrayAttr axes);
  void scalar(Value result, llvm::function_ref<int64_t(int64_t rank)> f);
  void finish(Operation *op);
  Error failure(Operation *op, const llvm::Twine &why) const;

  MeshAttr mesh;
  bool perRank;
  int64_t ranks;
  const InterpretOptions &options;
  llvm::DenseMap<Value, Ranks> values;
  SmallVector<int64_t> iterations;
};

Error Machine::failure(Operation *op, const llvm::Twine &why) const {
  std::string text;
  llvm::raw_string_ostream(text) << why << ": " << op->getName() << " at " << op->getLoc();
  return {text, Fault::Internal};
}

Status Machine::runBlock(Block &block) {
  for (Operation &op : block.without_terminator())
    if (Status status = run(&op); !status)
      return status;
  return {};
}

/// Rounds if asked to, and reports to the trace.
void Machine::finish(Operation *op) {
  if (options.round)
    for (Value result : op->getResults()) {
      auto type = dyn_cast<NamedTensorType>(result.getType());
      if (!type || !type.isFloat() || type.getElementType().isF64())
        continue;
      llvm::DenseMap<const Array *, Ref> done;
      for (Ref &ref : values[result]) {
        Ref &rounded = done[ref.get()];
        if (!rounded) {
          Array copy = *ref;
          for (double &x : copy.reals)
            x = roundTo(type.getElementType(), x);
          rounded = std::make_shared<const Array>(std::move(copy));
        }
        ref = rounded;
      }
    }
  if (!options.trace || op->getNumResults() == 0 ||
      !isa<NamedTensorType>(op->getResult(0).getType()))
    return;
  std::vector<PerRankArrays> results;
  for (Value result : op->getResults()) {
    PerRankArrays &arrays = results.emplace_back();
    for (const Ref &ref : values[result])
      arrays.push_back(*ref);
  }
  options.trace(op, results, iterations);
}

void Machine::scalar(Value result, llvm::function_ref<int64_t(int64_t rank)> f) {
  Ranks value;
  for (int64_t rank = 0; rank < ranks; ++rank)
    value.push_back(std::make_shared<const Array>(Array::ofInts({}, {f(rank)})));
  values[result] = std::move(value);
}

Status Machine::run(Operation *op) {
  if (op->getName().getDialectNamespace() == "arith")
    return failure(op, "only ops of the dialect are interpreted");
  Status status;
  if (auto o = dyn_cast<RepeatOp>(op))
    status = repeat(o);
  else if (auto o = dyn_cast<FusedOp>(op))
    status = fused(o);
  else if (auto o = dyn_cast<ShardOffsetOp>(op))
    scalar(o, [&](int64_t rank) {
      return perRank ? shardIndex(mesh, o.getAxes(), rank) * static_cast<int64_t>(o.getBlock()) : 0;
    });
  else if (auto o = dyn_cast<ShardExtentOp>(op))
    scalar(o, [&](int64_t rank) -> int64_t {
      int64_t block = o.getBlock(), size = o.getSize();
      return perRank ? std::clamp<int64_t>(size - shardIndex(mesh, o.getAxes(), rank) * block, 0,
                                           block)
                     : size;
    });
  else if (isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp, ShardSliceOp>(op))
    status = collective(op, op->getAttrOfType<ArrayAttr>("axes"));
  else if (auto o = dyn_cast<ExpandableOpInterface>(op); o && !options.nativeComposites)
    return runExpanded(o);
  else
    status = runOnRanks(op);
  if (status)
    finish(op);
  return status;
}

Status Machine::runOnRanks(Operation *op) {
  SmallVector<Ranks> results(op->getNumResults());
  // Ranks whose operands are one array share the result.
  auto sameAsFirst = [&](int64_t rank) {
    return llvm::all_of(op->getOperands(), [&](Value v) {
      const Ranks &value = valueOf(v);
      return value[rank] == value[0];
    });
  };
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (rank && sameAsFirst(rank)) {
      for (Ranks &result : results)
        result.push_back(result[0]);
      continue;
    }
    SmallVector<const Array *> in;
    for (Value v : op->getOperands())
      in.push_back(valueOf(v)[rank].get());
    Evaluation evaluation(op, in, perRank && ranks > 1);
    std::string wrong = evaluation.run();
    if (!wrong.empty())
      return failure(op, wrong);
    for (auto [result, array] : llvm::zip_equal(results, evaluation.out))
      result.push_back(std::make_shared<const Array>(std::move(array)));
  }
  for (auto [value, result] : llvm::zip_equal(op->getResults(), results))
    values[value] = std::move(result);
  return {};
}

/// Builds the expansion of a clone, runs it and takes it away again.
Status Machine::runExpanded(ExpandableOpInterface op) {
  OwningOpRef<ModuleOp> scratch = ModuleOp::create(op.getLoc());
  OpBuilder b = OpBuilder::atBlockBegin(scratch->getBody());
  SmallVector<Value> made = op.expand(b);
  Status status = runBlock(*scratch->getBody());
  SmallVector<Ranks> results;
  if (status)
    for (Value v : made)
      results.push_back(valueOf(v));
  for (Operation &inner : scratch->getBody()->without_terminator())
    for (Value v : inner.getResults())
      values.erase(v);
  if (!status)
    return status;
  for (auto [value, result] : llvm::zip_equal(op->getResults(), results))
    values[value] = std::move(result);
  finish(op);
  return {};
}

static Array layerOf(const Array &stack, int64_t layer) {
  Array slice = Array::zeros({stack.shape.begin() + 1, stack.shape.end()}, stack.integer);
  int64_t n = slice.size();
  if (stack.integer)
    std::copy_n(stack.ints.begin() + layer * n, n, slice.ints.begin());
  else
    std::copy_n(stack.reals.begin() + layer * n, n, slice.reals.begin());
  return slice;
}

static void setLayer(Array &stack, int64_t layer, const Array &slice) {
  int64_t n = slice.size();
  if (stack.integer)
    std::copy_n(slice.ints.begin(), n, stack.ints.begin() + layer * n);
  else
    std::copy_n(slice.reals.begin(), n, stack.reals.begin() + layer * n);
}

Status Machine::repeat(RepeatOp op) {
  int64_t count = op.getCount();
  unsigned carried = op.getNumCarried();
  SmallVector<Ranks> carry;
  for (Value v : op.getInits())
    carry.push_back(valueOf(v));
  // One stack for each rank of each output.
  SmallVector<std::vector<Array>> stacks;
  for (Value v : op.getResults().drop_front(carried))
    stacks.emplace_back(ranks, Array::zeros(shapeOf(tensorOf(v)), isInteger(tensorOf(v))));
  for (int64_t step = 0; step < count; ++step) {
    int64_t layer = op.getReverse() ? count - 1 - step : step;
    iterations.push_back(layer);
    Ref index = std::make_shared<const Array>(Array::ofInts({}, {layer}));
    bind(op.getLayer(), Ranks(ranks, index));
    for (auto [arg, value] : llvm::zip_equal(op.getCarried(), carry))
      bind(arg, value);
    for (auto [arg, stack] : llvm::zip_equal(op.getSlices(), op.getStacked())) {
      const Ranks &whole = valueOf(stack);
      Ranks slice;
      for (int64_t rank = 0; rank < ranks; ++rank)
        slice.push_back(rank && whole[rank] == whole[0]
                            ? slice[0]
                            : std::make_shared<const Array>(layerOf(*whole[rank], layer)));
      bind(arg, std::move(slice));
    }
    if (Status status = runBlock(op.getBody().front()); !status)
      return status;
    YieldOp yield = op.getYield();
    for (unsigned i = 0; i < carried; ++i)
      carry[i] = valueOf(yield.getOperand(i));
    for (auto [i, stack] : llvm::enumerate(stacks))
      for (int64_t rank = 0; rank < ranks; ++rank)
        setLayer(stack[rank], layer, *valueOf(yield.getOperand(carried + i))[rank]);
    iterations.pop_back();
  }
  for (unsigned i = 0; i < carried; ++i)
    values[op.getResult(i)] = carry[i];
  for (auto [i, stack] : llvm::enumerate(stacks)) {
    Ranks result;
    for (Array &array : stack)
      result.push_back(std::make_shared<const Array>(std::move(array)));
    values[op.getResult(carried + i)] = std::move(result);
  }
  return {};
}

Status Machine::fused(FusedOp op) {
  Block &body = op.getBody().front();
  for (auto [arg, input] : llvm::zip_equal(body.getArguments(), op.getInputs()))
    bind(arg, Ranks(valueOf(input)));
  if (Status status = runBlock(body); !status)
    return status;
  for (auto [result, value] :
       llvm::zip_equal(op->getResults(), body.getTerminator()->getOperands()))
    values[result] = Ranks(valueOf(value));
  return {};
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

/// Copies what fits of `from` into `to`, whose element 0 along `dim` is from's
/// element `start`.
static void copyAlong(const Array &from, Array &to, int64_t dim, int64_t start) {
  std::vector<int64_t> sizes = from.shape;
  int64_t begin = std::max<int64_t>(start, 0);
  int64_t end = std::min(from.shape[dim], start + to.shape[dim]);
  sizes[dim] = std::max<int64_t>(end - begin, 0);
  std::vector<int64_t> fs = rowMajorStrides(from.shape), ts = rowMajorStrides(to.shape);
  int64_t fromStart = begin * fs[dim], toStart = (begin - start) * ts[dim];
  walk<2>(sizes, {fs, ts}, [&](auto at) {
    if (from.integer)
      to.ints[toStart + at[1]] = from.ints[fromStart + at[0]];
    else
      to.reals[toStart + at[1]] = from.reals[fromStart + at[0]];
  });
}

static Array combined(const Ranks &operand, ArrayRef<int64_t> group, Reduction reduction) {
  Array sum = *operand[group[0]];
  for (int64_t member : group.drop_front()) {
    const Array &other = *operand[member];
    for (int64_t i = 0; i < sum.size(); ++i) {
      if (sum.integer)
        sum.ints[i] = combine(reduction, sum.ints[i], other.ints[i]);
      else
        sum.reals[i] = combine(reduction, sum.reals[i], other.reals[i]);
    }
  }
  return sum;
}

Status Machine::collective(Operation *op, ArrayAttr axes) {
  Value x = op->getOperand(0), y = op->getResult(0);
  const Ranks operand = valueOf(x);
  if (!perRank) {
    if (tensorOf(x).getSizes() != tensorOf(y).getSizes())
      return failure(op, "a collective of local types in a function that is run globally");
    values[y] = operand;
    return {};
  }
  for (AxisAttr axis : axes.getAsRange<AxisAttr>()) {
    int64_t whole = mesh.sizeOf(axis.getName()), size = axis.getSize() ? axis.getSize() : whole;
    if (whole == 0 || whole % (axis.getPre() * size))
      return failure(op, "the mesh has no axis '" + axis.getName().getValue() +
                             "' with such a part");
  }
  int64_t n = shardCount(mesh, axes);
  NamedTensorType from = tensorOf(x), to = tensorOf(y);
  // What the dim's size must be for nothing to be lost.
  auto gathers = [&](int64_t dim) { return to.getSizes()[dim] <= n * from.getSizes()[dim]; };
  auto splits = [&](int64_t dim) { return n * to.getSizes()[dim] >= from.getSizes()[dim]; };
  auto gathered = [&](ArrayRef<int64_t> group, int64_t dim, std::vector<int64_t> shape) {
    Array all = Array::zeros(std::move(shape), !from.isFloat());
    for (auto [i, member] : llvm::enumerate(group))
      copyAlong(*operand[member], all, dim, -static_cast<int64_t>(i) * from.getSizes()[dim]);
    return all;
  };
  auto part = [&](const Array &whole, int64_t dim, int64_t rank, std::vector<int64_t> shape) {
    Array own = Array::zeros(shape, whole.integer);
    copyAlong(whole, own, dim, shardIndex(mesh, axes, rank) * shape[dim]);
    return own;
  };
  Ranks result(ranks);
  // Members of a group that get the same share one array.
  std::vector<Ref> common(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> group = rankGroup(mesh, axes, rank);
    Ref &first = common[group[0]];
    auto shared = [&](llvm::function_ref<Array()> make) {
      if (!first)
        first = std::make_shared<const Array>(make());
      return first;
    };
    if (auto o = dyn_cast<AllReduceOp>(op)) {
      if (from.getSizes() != to.getSizes())
        return failure(op, "an all_reduce keeps the sizes");
      result[rank] = shared([&] { return combined(operand, group, o.getReduction()); });
    } else if (auto o = dyn_cast<AllGatherOp>(op)) {
      int64_t dim = from.indexOf(o.getDim());
      if (!gathers(dim))
        return failure(op, "the result is larger than all shards together");
      result[rank] = shared([&] { return gathered(group, dim, shapeOf(to)); });
    } else if (auto o = dyn_cast<ReduceScatterOp>(op)) {
      int64_t dim = from.indexOf(o.getDim());
      if (!splits(dim))
        return failure(op, "the shards together are smaller than the operand");
      Ref sum = shared([&] { return combined(operand, group, o.getReduction()); });
      result[rank] = std::make_shared<const Array>(part(*sum, dim, rank, shapeOf(to)));
    } else if (auto o = dyn_cast<ShardSliceOp>(op)) {
      int64_t dim = from.indexOf(o.getDim());
      if (!splits(dim))
        return failure(op, "the shards together are smaller than the operand");
      result[rank] = std::make_shared<const Array>(part(*operand[rank], dim, rank, shapeOf(to)));
    } else {
      auto a = cast<AllToAllOp>(op);
      int64_t gatherDim = from.indexOf(a.getGatherDim()), splitDim = from.indexOf(a.getSplitDim());
      if (!gathers(gatherDim) || !splits(splitDim))
        return failure(op, "the sizes do not fit the number of shards");
      std::vector<int64_t> whole = shapeOf(from);
      whole[gatherDim] = to.getSizes()[gatherDim];
      Ref all = shared([&] { return gathered(group, gatherDim, whole); });
      result[rank] = std::make_shared<const Array>(part(*all, splitDim, rank, shapeOf(to)));
    }
  }
  values[y] = std::move(result);
  return {};
}

} // namespace

//===----------------------------------------------------------------------===//
// The entry
//===----------------------------------------------------------------------===//

Result<std::vector<PerRankArrays>> cleave::interpret(func::FuncOp function,
                                                     const std::vector<PerRankArrays> &args,
                                                     const InterpretOptions &options) {
  auto refuse = [&](const llvm::Twine &why) {
    return Error{(function.getName() + ": " + why).str(), Fault::Internal};
  };
  if (function.isExternal())
    return refuse("has no body");
  bool perRank = options.perRank.value_or(function->hasAttr(kLayouts));
  Machine machine(meshOf(function), perRank, options);
  if (args.size() != function.getNumArguments())
    return refuse("takes " + llvm::Twine(function.getNumArguments()) + " arguments, not " +
                  llvm::Twine(args.size()));
  for (auto [i, arg] : llvm::enumerate(function.getArguments())) {
    auto type = dyn_cast<NamedTensorType>(arg.getType());
    if (!type)
      return refuse("argument " + llvm::Twine(i) + " is no tensor");
    if (static_cast<int64_t>(args[i].size()) != machine.getRanks())
      return refuse("argument " + llvm::Twine(i) + " is there for " + llvm::Twine(args[i].size()) +
                    " ranks, not " + llvm::Twine(machine.getRanks()));
    Ranks value;
    for (const Array &array : args[i]) {
      if (array.shape != shapeOf(type) || array.integer != isInteger(type) ||
          array.size() != type.getNumElements())
        return refuse("argument " + llvm::Twine(i) + " is no array of the argument's type");
      bool again = !value.empty() && array.reals.size() + array.ints.size() == 1 &&
                   array.reals == args[i][0].reals && array.ints == args[i][0].ints;
      value.push_back(again ? value[0] : std::make_shared<const Array>(array));
    }
    machine.bind(arg, std::move(value));
  }
  Block &body = function.getBody().front();
  if (Status status = machine.runBlock(body); !status)
    return status.error();
  std::vector<PerRankArrays> results;
  for (Value v : body.getTerminator()->getOperands()) {
    PerRankArrays &arrays = results.emplace_back();
    for (const Ref &ref : machine.valueOf(v))
      arrays.push_back(*ref);
  }
  return results;
}
