//===- SemaBuiltins.cpp - functions of the language -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Sema.h"

#include <algorithm>
#include <cmath>

namespace cleave::sema {

namespace {
const std::map<std::string, Op> &unaryOps() {
  static const std::map<std::string, Op> ops = {
      {"exp", Op::Exp},        {"log", Op::Log},       {"sqrt", Op::Sqrt},
      {"rsqrt", Op::Rsqrt},    {"tanh", Op::Tanh},     {"erf", Op::Erf},
      {"sin", Op::Sin},        {"cos", Op::Cos},       {"abs", Op::Abs},
      {"silu", Op::Silu},      {"relu", Op::Relu},     {"sigmoid", Op::Sigmoid},
      {"gelu_tanh", Op::Gelu}, {"gelu_erf", Op::Gelu}, {"stop_gradient", Op::StopGradient}};
  return ops;
}
} // namespace

const std::vector<std::string> &builtins() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {
        "max",        "min",       "pow",  "sum",       "mean",   "where",
        "softmax",    "attention", "rope", "dropout",   "index",  "cross_entropy",
        "layer_norm", "rms_norm",  "fill", "broadcast", "gather", "concat"};
    for (const auto &[name, op] : unaryOps())
      all.push_back(name);
    return all;
  }();
  return names;
}

/// How a builtin is written, or empty when its name says it all.
static std::string usage(const std::string &name) {
  static const std::map<std::string, std::string> known = {
      {"max", "max(x, over = dim)` or `max(a, b)"},
      {"min", "min(x, over = dim)` or `min(a, b)"},
      {"sum", "sum(x, over = dim)"},
      {"mean", "mean(x, over = dim)"},
      {"pow", "pow(x, 2)"},
      {"where", "where(condition, a, b)"},
      {"softmax", "softmax(x, over = dim)"},
      {"attention", "attention(q, k, v, over = seq, causal = true)"},
      {"rope", "rope(x, positions)"},
      {"dropout", "dropout(x, rate)"},
      {"index", "index(dim)"},
      {"cross_entropy", "cross_entropy(logits, labels)"},
      {"layer_norm", "layer_norm(x, over = dim)"},
      {"rms_norm", "rms_norm(x, over = dim)"},
      {"fill", "fill(0.0, [batch, seq])"},
      {"broadcast", "broadcast(x, [batch, seq])"},
      {"gather", "gather(x, ids, over = dim)"},
      {"concat", "concat(a, b, over = [first, rest], into = seq)"}};
  auto it = known.find(name);
  return it == known.end() ? "" : it->second;
}

bool isBuiltin(const std::string &name) {
  return std::find(builtins().begin(), builtins().end(), name) != builtins().end();
}

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

bool Checker::arguments(const ast::Expr &call, const std::string &callee, size_t least, size_t most,
                        const std::vector<std::string> &named, Arguments &out) {
  out.call = &call;
  bool ok = true;
  for (const ast::Item &item : call.items) {
    if (!item.value) {
      ok = false;
      continue;
    }
    if (item.name.text.empty()) {
      if (!out.named.empty()) {
        fail(item.value->range, "a tensor stands after the options", "options stand last");
        ok = false;
      }
      out.positional.push_back(item.value.get());
      continue;
    }
    if (std::find(named.begin(), named.end(), item.name.text) == named.end()) {
      std::string hint = meantHint(item.name.text, named);
      if (hint.empty()) {
        hint = named.empty() ? "it has no options" : "its options:";
        for (const std::string &option : named)
          hint += (option == named.front() ? " " : ", ") + option;
      }
      fail(item.name.range, quoted(callee) + " has no option " + quoted(item.name.text), hint);
      ok = false;
    } else if (!out.named.emplace(item.name.text, item.value.get()).second) {
      fail(item.name.range, "the option " + quoted(item.name.text) + " stands twice");
      ok = false;
    }
  }
  size_t count = out.positional.size();
  if (count >= least && count <= most)
    return ok;
  std::string wanted = std::to_string(least);
  if (most != least)
    wanted = most == SIZE_MAX ? "at least " + wanted : wanted + " to " + std::to_string(most);
  std::string hint = usage(callee);
  if (!hint.empty())
    hint = "write `" + hint + "`";
  fail(call.range,
       quoted(callee) + " takes " + wanted + (wanted == "1" ? " argument" : " arguments") +
           ", here are " + std::to_string(count),
       hint);
  return false;
}

std::optional<double> Checker::realOption(const Arguments &args, const std::string &name,
                                          double otherwise) {
  const ast::Expr *e = args.get(name);
  if (!e)
    return otherwise;
  Operand v = eval(*e);
  if (v.kind == Operand::Number && !std::holds_alternative<bool>(v.number))
    return std::visit([](auto x) { return static_cast<double>(x); }, v.number);
  if (v)
    fail(e->range, quoted(name) + " is a number known at compile time");
  return std::nullopt;
}

std::optional<int64_t> Checker::integerOption(const Arguments &args, const std::string &name,
                                              int64_t otherwise) {
  const ast::Expr *e = args.get(name);
  if (!e)
    return otherwise;
  Operand v = eval(*e);
  if (v.kind == Operand::Number && std::holds_alternative<int64_t>(v.number))
    return std::get<int64_t>(v.number);
  if (v)
    fail(e->range, quoted(name) + " is a whole number known at compile time");
  return std::nullopt;
}

std::optional<bool> Checker::flagOption(const Arguments &args, const std::string &name,
                                        bool otherwise) {
  const ast::Expr *e = args.get(name);
  if (!e)
    return otherwise;
  Operand v = eval(*e);
  if (v.kind == Operand::Number && std::holds_alternative<bool>(v.number))
    return std::get<bool>(v.number);
  if (v)
    fail(e->range, quoted(name) + " is true or false");
  return std::nullopt;
}

/// `over = a` or `over = [a, b]`: atoms, all of them dims of the tensor.
std::optional<std::vector<std::string>>
Checker::dimsOption(const Arguments &args, const std::string &name, const TensorType &of) {
  const ast::Expr *e = args.get(name);
  if (!e) {
    fail(args.call->range, "expected `" + name + " = ...`, a dim or a list of dims",
         of.dims.empty() ? "" : "one of " + program.show(of));
    return std::nullopt;
  }
  std::vector<std::string> out;
  auto add = [&](const ast::Expr &dim) {
    auto atoms = dimAtoms(dim, *frame->self.instance);
    if (!atoms)
      return false;
    for (const std::string &atom : *atoms) {
      if (!of.has(atom)) {
        fail(dim.range, program.show(of) + " has no dim " + quoted(atom));
        return false;
      }
      if (std::find(out.begin(), out.end(), atom) != out.end()) {
        fail(dim.range, "the dim " + quoted(atom) + " stands twice");
        return false;
      }
      out.push_back(atom);
    }
    return true;
  };
  if (e->kind != ast::ExprKind::List)
    return add(*e) ? std::optional(out) : std::nullopt;
  for (const ast::Item &item : e->items) {
    if (!item.value || !item.name.text.empty()) {
      fail(e->range, "expected a list of dims");
      return std::nullopt;
    }
    if (!add(*item.value))
      return std::nullopt;
  }
  if (out.empty()) {
    fail(e->range, "the list of dims is empty");
    return std::nullopt;
  }
  return out;
}

std::optional<std::string> Checker::dimOption(const Arguments &args, const std::string &name,
                                              const TensorType &of) {
  auto dims = dimsOption(args, name, of);
  if (!dims)
    return std::nullopt;
  if (dims->size() == 1)
    return dims->front();
  fail(args.get(name)->range, quoted(name) + " is one dim, and " + show(*dims) + " has " +
                                  std::to_string(dims->size()) + " parts");
  return std::nullopt;
}

std::optional<ValueId> Checker::floatOf(const ast::Expr &e, const std::string &callee) {
  auto value = tensorOf(e);
  if (value && !isFloat(typeOf(*value).element)) {
    fail(e.range,
         quoted(callee) + " takes a floating point tensor, not " + program.show(typeOf(*value)),
         "cast it: `f32(...)`");
    return std::nullopt;
  }
  return value;
}

/// The option's dim, or the last dim of the value.
std::optional<std::string> Checker::lastDim(const Arguments &args, const char *option,
                                            ValueId value, const char *use) {
  const TensorType &type = typeOf(value);
  if (args.get(option))
    return dimOption(args, option, type);
  if (!type.dims.empty())
    return type.dims.back().name;
  fail(args.call->range, std::string("a scalar has no dim ") + use);
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

Operand Checker::callBuiltin(const std::string &name, const ast::Expr &call) {
  if (auto unary = unaryOps().find(name); unary != unaryOps().end())
    return callUnary(unary->second, name, call);
  if (name == "sum" || name == "mean" || name == "max" || name == "min" || name == "pow")
    return callReduce(name, call);
  using Handler = Operand (Checker::*)(const ast::Expr &);
  static const std::map<std::string, Handler> handlers = {
      {"where", &Checker::callWhere},     {"softmax", &Checker::callSoftmax},
      {"rope", &Checker::callRope},       {"attention", &Checker::callAttention},
      {"dropout", &Checker::callDropout}, {"cross_entropy", &Checker::callCrossEntropy},
      {"index", &Checker::callIndex},     {"fill", &Checker::callFill},
      {"gather", &Checker::callGather},   {"broadcast", &Checker::callBroadcast},
      {"concat", &Checker::callConcat}};
  if (auto handler = handlers.find(name); handler != handlers.end())
    return (this->*handler->second)(call);
  return callNormFunction(name, call);
}

Operand Checker::callUnary(Op op, const std::string &name, const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, name, 1, 1, {}, args))
    return {};
  Operand x = eval(*args.positional[0]);
  bool foldable = op != Op::Gelu && op != Op::Silu && op != Op::Relu && op != Op::StopGradient;
  if (x.kind == Operand::Number && foldable) {
    auto value = foldCall(name, {x.number}, call.range);
    return value ? Operand::of(*value) : Operand();
  }
  auto value = tensor(x, args.positional[0]->range);
  if (!value)
    return {};
  TensorType type = typeOf(*value);
  if (!isFloat(type.element) && op != Op::StopGradient &&
      !(op == Op::Abs && type.element != DType::I1))
    return fail(args.positional[0]->range,
                quoted(name) + " takes a floating point tensor, not " + program.show(type),
                "cast it: `f32(...)`");
  Node &node = emit(op, {*value}, type, call.range);
  node.flag = name == "gelu_tanh";
  return Operand::of(resultOf(node));
}

/// sum, mean, max, min over dims; max, min and pow of two.
Operand Checker::callReduce(const std::string &name, const ast::Expr &call) {
  Arguments args;
  bool two = name == "pow" || ((name == "max" || name == "min") && call.items.size() == 2 &&
                               call.items[1].name.text.empty());
  if (!arguments(call, name, two ? 2 : 1, two ? 2 : 1,
                 two ? std::vector<std::string>{} : std::vector<std::string>{"over"}, args))
    return {};
  Operand a = eval(*args.positional[0]);
  if (two) {
    Operand b = eval(*args.positional[1]);
    if (!a || !b)
      return {};
    if (a.kind == Operand::Number && b.kind == Operand::Number) {
      auto value = foldCall(name, {a.number, b.number}, call.range);
      return value ? Operand::of(*value) : Operand();
    }
    DType element = a.kind == Operand::Tensor   ? typeOf(a.value).element
                    : b.kind == Operand::Tensor ? typeOf(b.value).element
                                                : DType::F32;
    auto x = tensor(a, args.positional[0]->range, element);
    auto y = tensor(b, args.positional[1]->range, element);
    if (!x || !y)
      return {};
    DType first = typeOf(*x).element, second = typeOf(*y).element;
    if (first != second || first == DType::I1 || (name == "pow" && !isFloat(first)))
      return fail(call.range,
                  quoted(name) + " does not take " + program.show(typeOf(*x)) + " and " +
                      program.show(typeOf(*y)),
                  "cast: `f32(...)`");
    return Operand::of(elementwise(name == "max"   ? Op::Max
                                   : name == "min" ? Op::Min
                                                   : Op::Pow,
                                   {*x, *y}, first, call.range));
  }
  auto value = tensor(a, args.positional[0]->range);
  if (!value)
    return {};
  TensorType type = typeOf(*value);
  if (type.element == DType::I1 || (name == "mean" && !isFloat(type.element)))
    return fail(args.positional[0]->range, quoted(name) + " does not take " + program.show(type),
                "cast it: `f32(...)`");
  std::vector<std::string> dims;
  if (args.get("over")) {
    auto given = dimsOption(args, "over", type);
    if (!given)
      return {};
    dims = *given;
  } else {
    for (const Atom &atom : type.dims)
      dims.push_back(atom.name);
  }
  if (dims.empty())
    return Operand::of(*value);
  double count = 1;
  for (const std::string &dim : dims) {
    count *= type.dims[type.find(dim)].size;
    type.dims.erase(type.dims.begin() + type.find(dim));
  }
  Op op = name == "max" ? Op::ReduceMax : name == "min" ? Op::ReduceMin : Op::ReduceSum;
  Node &node = emit(op, {*value}, type, call.range);
  node.dims = dims;
  ValueId out = resultOf(node);
  if (name != "mean")
    return Operand::of(out);
  ValueId divisor = constant(count, {type.element, {}}, call.range);
  return Operand::of(elementwise(Op::Div, {out, divisor}, type.element, call.range));
}

Operand Checker::callWhere(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "where", 3, 3, {}, args))
    return {};
  auto condition = tensorOf(*args.positional[0], DType::I1);
  Operand a = eval(*args.positional[1]), b = eval(*args.positional[2]);
  if (!condition || !a || !b)
    return {};
  if (typeOf(*condition).element != DType::I1)
    return fail(args.positional[0]->range,
                "the condition of `where` is i1, not " + program.show(typeOf(*condition)),
                "compare: `x != 0`");
  auto isTruth = [](const Operand &o) {
    return o.kind == Operand::Number && std::holds_alternative<bool>(o.number);
  };
  DType element = a.kind == Operand::Tensor   ? typeOf(a.value).element
                  : b.kind == Operand::Tensor ? typeOf(b.value).element
                  : isTruth(a)                ? DType::I1
                                              : DType::F32;
  auto x = tensor(a, args.positional[1]->range, element);
  auto y = tensor(b, args.positional[2]->range, element);
  if (!x || !y)
    return {};
  if (typeOf(*x).element != typeOf(*y).element)
    return fail(call.range,
                "the element types differ: " + program.show(typeOf(*x)) + " and " +
                    program.show(typeOf(*y)),
                "cast one: `f32(...)`");
  // A tensor's order of dims counts, not the mask's.
  auto dims = broadcastDims({*x, *y, *condition}, call.range);
  TensorType type{typeOf(*x).element, *dims};
  return Operand::of(resultOf(emit(Op::Select, {*condition, *x, *y}, type, call.range)));
}

Operand Checker::callIndex(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "index", 1, 1, {}, args))
    return {};
  const ast::Expr &e = *args.positional[0];
  if (e.kind != ast::ExprKind::Name)
    return fail(e.range, "`index` takes a dim", "write `index(seq)`");
  auto dim = singleAtom({e.text, e.range}, *frame->self.instance, "indexed");
  if (!dim)
    return {};
  Node &node = emit(Op::Iota, {}, {DType::I32, {{*dim, sizeOf(*dim)}}}, call.range);
  node.dims = {*dim};
  build->iotaSize[resultOf(node)] = sizeOf(*dim);
  return Operand::of(resultOf(node));
}

/// The dims of a list: `[batch, seq]`.
static std::optional<ast::Type> listType(const ast::Expr &e) {
  if (e.kind != ast::ExprKind::List)
    return std::nullopt;
  ast::Type type;
  type.range = e.range;
  type.hasDims = true;
  for (const ast::Item &item : e.items) {
    if (!item.value || !item.name.text.empty())
      return std::nullopt;
    type.dims.push_back(item.value);
  }
  return type;
}

Operand Checker::callFill(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "fill", 2, 2, {}, args))
    return {};
  args.named["value"] = args.positional[0];
  auto value = realOption(args, "value", 0);
  auto list = listType(*args.positional[1]);
  if (!list)
    return fail(args.positional[1]->range, "expected a list of dims",
                "write `fill(0.0, [batch, seq])`");
  auto type = this->type(*list, *frame->self.instance);
  if (!value || !type)
    return {};
  return Operand::of(constant(*value, *type, call.range));
}

Operand Checker::callBroadcast(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "broadcast", 2, 2, {}, args))
    return {};
  auto x = tensorOf(*args.positional[0]);
  auto list = listType(*args.positional[1]);
  if (!list)
    return fail(args.positional[1]->range, "expected a list of dims",
                "write `broadcast(x, [batch, seq])`");
  auto type = this->type(*list, *frame->self.instance);
  if (!x || !type)
    return {};
  type->element = typeOf(*x).element;
  for (const Atom &atom : typeOf(*x).dims)
    if (!type->has(atom.name))
      return fail(args.positional[1]->range, "the list lacks the dim " + quoted(atom.name) +
                                                 " of " + program.show(typeOf(*x)));
  return Operand::of(reordered(*x, *type, call.range));
}

Operand Checker::gather(ValueId table, ValueId ids, const std::string &dim, SourceRange range) {
  const TensorType &t = typeOf(table), &i = typeOf(ids);
  if (i.element != DType::I32)
    return fail(range, "a look-up takes i32 ids, not " + program.show(i));
  if (i.has(dim))
    return fail(range, "the ids have the dim " + quoted(dim) + " that is looked up",
                "rename it: `ids as [other = " + dim + "]`");
  if (auto iota = build->iotaSize.find(ids);
      iota != build->iotaSize.end() && iota->second > sizeOf(dim))
    return fail(range,
                "the ids go to " + std::to_string(iota->second - 1) + ", and the size of " +
                    quoted(dim) + " is " + std::to_string(sizeOf(dim)),
                "make " + quoted(i.dims[0].name) + " shorter or " + quoted(dim) + " larger");
  TensorType result{t.element, {}};
  for (const Atom &atom : t.dims) {
    if (atom.name != dim) {
      result.dims.push_back(atom);
      continue;
    }
    for (const Atom &id : i.dims)
      if (!t.has(id.name))
        result.dims.push_back(id);
  }
  decay(table);
  Node &node = emit(Op::Gather, {table, ids}, result, range);
  node.dims = {dim};
  return Operand::of(resultOf(node));
}

Operand Checker::callGather(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "gather", 2, 2, {"over"}, args))
    return {};
  auto table = tensorOf(*args.positional[0]);
  auto ids = tensorOf(*args.positional[1], DType::I32);
  if (!table || !ids)
    return {};
  auto dim = dimOption(args, "over", typeOf(*table));
  return dim ? gather(*table, *ids, *dim, call.range) : Operand();
}

/// `concat(a, b, over = [first, rest], into = seq)`
Operand Checker::callConcat(const ast::Expr &call) {
  Arguments args;
  if (!arguments(call, "concat", 2, SIZE_MAX, {"over", "into"}, args))
    return {};
  std::vector<ValueId> values;
  for (const ast::Expr *e : args.positional) {
    auto value = tensorOf(*e);
    if (!value)
      return {};
    values.push_back(*value);
  }
  const ast::Expr *over = args.get("over"), *into = args.get("into");
  std::vector<const ast::Expr *> names;
  if (over && over->kind == ast::ExprKind::List) {
    for (const ast::Item &item : over->items)
      names.push_back(item.value.get());
  } else if (over) {
    names.assign(values.size(), over);
  }
  if (!over || !into || names.size() != values.size())
    return fail(over ? over->range : call.range,
                "`concat` needs `over`, the dim of each tensor, and `into`, the dim of the result",
                "write `concat(a, b, over = [first, rest], into = seq)`");
  std::vector<std::string> dims;
  names.push_back(into);
  for (const ast::Expr *e : names) {
    if (!e || e->kind != ast::ExprKind::Name)
      return fail(e ? e->range : call.range, "expected the name of a dim");
    auto dim = singleAtom({e->text, e->range}, *frame->self.instance, "joined");
    if (!dim)
      return {};
    dims.push_back(*dim);
  }
  int64_t total = 0;
  TensorType result = typeOf(values[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    const TensorType &type = typeOf(values[i]);
    int position = type.find(dims[i]);
    if (position < 0)
      return fail(args.positional[i]->range, program.show(type) + " has no dim " + quoted(dims[i]));
    total += type.dims[position].size;
    TensorType other = typeOf(values[0]), mine = type;
    if (other.find(dims[0]) < 0 || mine.element != other.element)
      return fail(args.positional[i]->range, "the element types differ: " + program.show(other) +
                                                 " and " + program.show(mine));
    other.dims.erase(other.dims.begin() + other.find(dims[0]));
    mine.dims.erase(mine.dims.begin() + position);
    if (!sameDims(mine, other) || mine.has(dims.back()))
      return fail(args.positional[i]->range,
                  mine.has(dims.back())
                      ? "the tensor has the dim " + quoted(dims.back()) + " already"
                      : "but for the joined dims the tensors differ: " +
                            program.show(typeOf(values[0])) + " and " + program.show(type));
  }
  if (total != sizeOf(dims.back()))
    return fail(into->range,
                "together the tensors have " + std::to_string(total) +
                    " elements, and the size of " + quoted(dims.back()) + " is " +
                    std::to_string(sizeOf(dims.back())),
                "declare a dim of this size");
  result.dims[result.find(dims[0])] = {dims.back(), total};
  Node &node = emit(Op::Concat, values, result, call.range);
  node.dims = dims;
  return Operand::of(resultOf(node));
}

Operand Checker::callCast(DType element, const ast::Expr &call) {
  Arguments args;
  std::string callee(cleave::name(element));
  if (!arguments(call, callee, 1, 1, {}, args))
    return {};
  Operand x = eval(*args.positional[0]);
  if (x.kind == Operand::Number && !(std::holds_alternative<double>(x.number) && !isFloat(element)))
    if (std::holds_alternative<bool>(x.number) == (element == DType::I1)) {
      auto value = tensor(x, call.range, element);
      return value ? Operand::of(*value) : Operand();
    }
  auto value = tensor(x, args.positional[0]->range);
  if (!value)
    return {};
  TensorType type = typeOf(*value);
  if (type.element == element)
    return Operand::of(*value);
  type.element = element;
  ValueId out = resultOf(emit(Op::Cast, {*value}, type, call.range));
  if (auto it = build->paramOf.find(*value); it != build->paramOf.end())
    build->paramOf[out] = it->second;
  return Operand::of(out);
}

} // namespace cleave::sema
