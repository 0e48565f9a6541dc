//===- Evaluate.cpp - one op on one rank ----------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/interpret/Evaluate.h"
#include "ir/interpret/Composites.h"
#include "runtime/core/Philox.h"

#include "llvm/ADT/TypeSwitch.h"

#include <cmath>
#include <limits>
#include <map>

using namespace mlir;
using namespace cleave;

namespace {

using Names = std::vector<std::string>;
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

//===----------------------------------------------------------------------===//
// One op on one rank
//===----------------------------------------------------------------------===//

/// An op, its operands' arrays on one rank, and where its results go.
class Evaluation {
public:
  Evaluation(Operation *op, ArrayRef<const Array *> in) : op(op), in(in) {
    for (Type t : op->getResultTypes())
      if (auto tensor = dyn_cast<NamedTensorType>(t))
        out.push_back(Array::zeros(shapeOf(tensor), isInteger(tensor)));
  }

  /// Empty, or why the op cannot be run.
  std::string run();
  std::vector<Array> out;

private:
  NamedArray operand(unsigned i) const { return {namesOf(tensorOf(op->getOperand(i))), in[i]}; }
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
  template <typename Attention> composite::AttentionShape attentionShape(Attention a);
  void attention(AttentionOp a);
  void attentionGradients(AttentionGradOp a);
  bool composites();

  Operation *op;
  ArrayRef<const Array *> in;
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
      map1<int64_t, double>(
          [](double x) { return std::isfinite(x) ? static_cast<int64_t>(x) : 0; });
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
    walk<3>(
        resultShape(),
        {operand(0).stridesFor(names), operand(1).stridesFor(names), operand(2).stridesFor(names)},
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
    walk<2>(in[0]->shape, {rowMajorStrides(in[0]->shape), y.stridesFor(x.names)},
            [&](auto at) { to[at[1]] = combine<T>(kind, to[at[1]], from[at[0]]); });
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
      walk<2>(innerSizes, steps, [&](auto k) { sum += pa[at[0] + k[0]] * pb[at[1] + k[1]]; });
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
  walk<3>(
      in[0]->shape,
      {rowMajorStrides(in[0]->shape), ids.stridesFor(updates.names), row.stridesFor(updates.names)},
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

template <typename Attention> composite::AttentionShape Evaluation::attentionShape(Attention a) {
  composite::AttentionShape shape;
  shape.queryDim = a.getQueryDim().str();
  shape.keyDim = a.getKeyDim().str();
  shape.depthDim = a.getDepthDim().str();
  shape.valueDim = a.getValueDim().str();
  shape.causal = a.getCausal();
  shape.shift = static_cast<int64_t>(a.getShift());
  shape.scale = a.getScale().convertToDouble();
  if (!a.getRandom().empty())
    shape.rate = a.getRate().convertToDouble();
  std::map<std::string, int64_t> starts;
  if (!a.getOffsets().empty()) {
    unsigned next = op->getNumOperands() - a.getOffsets().size();
    for (const Factor &factor : a.getShardingRule().factors)
      if (factor.needsOffset)
        starts[factor.name] = indexOperand(next++);
  }
  shape.shift += starts[shape.queryDim];
  shape.globalSizes = a.getGlobalSizes().vec();
  if (!shape.globalSizes.empty()) {
    for (const std::string &name : namesOf(tensorOf(a.getQuery())))
      if (name != shape.depthDim && name != shape.queryDim)
        shape.starts.push_back(starts[name]);
    shape.starts.insert(shape.starts.end(), {starts[shape.queryDim], 0});
  }
  return shape;
}

void Evaluation::attention(AttentionOp a) {
  composite::AttentionShape shape = attentionShape(a);
  auto optional = [&](Value v) { return v ? operandOf(v) : NamedArray(); };
  composite::RandomSite random;
  if (shape.rate > 0)
    random = site(a.getODSOperandIndexAndLength(5).first, a.getSite());
  composite::AttentionArrays y =
      composite::attention(operandOf(a.getQuery()), operandOf(a.getKey()), operandOf(a.getValue()),
                           optional(a.getMask()), optional(a.getBias()), shape, random,
                           resultNames(), namesOf(tensorOf(op->getResult(1))));
  out = {std::move(y.result), std::move(y.lse)};
}

/// From the definition: what the op is given of the forward pass is not used.
void Evaluation::attentionGradients(AttentionGradOp a) {
  composite::AttentionShape shape = attentionShape(a);
  auto optional = [&](Value v) { return v ? operandOf(v) : NamedArray(); };
  composite::RandomSite random;
  if (shape.rate > 0)
    random = site(a.getODSOperandIndexAndLength(9).first, a.getSite());
  composite::AttentionGradients y = composite::attentionGradients(
      operandOf(a.getQuery()), operandOf(a.getKey()), operandOf(a.getValue()),
      optional(a.getMask()), optional(a.getBias()), operandOf(a.getGradient()),
      optional(a.getLseGradient()), shape, random);
  out = {std::move(y.query), std::move(y.key), std::move(y.value)};
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
        out[0] =
            composite::concat(inputs, namesOf(o.getDims()), resultNames(), o.getResultDim().str());
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
      .Case<RenameOp, SplitDimOp, JoinDimsOp>([&](auto) {
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
      .Case([&](AttentionOp o) { attention(o); })
      .Case([&](AttentionGradOp o) { attentionGradients(o); })
      .Default([&](Operation *) { known = composites(); });
  if (!known)
    return "this op cannot be interpreted";
  return wrong;
}

} // namespace

std::string cleave::evaluate(Operation *op, ArrayRef<const Array *> in, std::vector<Array> &out) {
  Evaluation evaluation(op, in);
  std::string wrong = evaluation.run();
  out = std::move(evaluation.out);
  return wrong;
}
