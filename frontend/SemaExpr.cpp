//===- SemaExpr.cpp - expressions -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Sema.h"

#include <algorithm>

namespace cleave::sema {

constexpr unsigned maxEvalDepth = 400;

Operand Checker::eval(const ast::Expr &e) {
  if (!tick(e.range))
    return {};
  if (evalDepth >= maxEvalDepth)
    return fail(e.range, "calls and expressions are nested too deep here",
                "name parts of the expression: `part_of_it = ...`");
  ++evalDepth;
  Operand out = evalInner(e);
  --evalDepth;
  return out;
}

Operand Checker::evalInner(const ast::Expr &e) {
  using ast::ExprKind;
  switch (e.kind) {
  case ExprKind::Integer:
    return Operand::of(Setting(e.integer));
  case ExprKind::Real:
    return Operand::of(Setting(e.real));
  case ExprKind::Bool:
    return Operand::of(Setting(e.flag));
  case ExprKind::String:
    return fail(e.range, "a string is no value", "strings are for names in `weights`");
  case ExprKind::List:
    return fail(e.range, "a list of dims is no value",
                "lists stand in options, such as `over = [a, b]`");
  case ExprKind::Name:
    return evalName(e);
  case ExprKind::Call:
    return evalCall(e);
  case ExprKind::Unary:
    return evalUnary(e);
  case ExprKind::Binary:
    return evalBinary(e);
  case ExprKind::Contract:
    return evalContract(e);
  case ExprKind::Index:
    return evalIndex(e);
  case ExprKind::As:
    return evalAs(e);
  case ExprKind::Member:
    break;
  }
  InstanceRef base;
  if (!resolvePart(*e.children[0], base)) {
    // An unknown name is a fault of its own.
    if (e.children[0]->kind == ExprKind::Name && !eval(*e.children[0]))
      return {};
    return fail(e.opRange, "a tensor has no members",
                e.text == "T" ? "dims have names, so nothing is transposed; another order is "
                                "`x as [b, a]`"
                              : "a param of a part is `part.param`");
  }
  if (!base.instance || !complete(base, *e.children[0]))
    return {};
  if (auto param = base.instance->params.find(e.text); param != base.instance->params.end())
    return readParam(base, param->second, e.range);
  if (base.instance->parts.count(e.text))
    return fail(e.range, quoted(base.instance->path + "." + e.text) + " is a part, not a value",
                "call it");
  std::vector<std::string> known;
  for (const auto &[name, param] : base.instance->params)
    known.push_back(name);
  for (const auto &[name, part] : base.instance->parts)
    known.push_back(name);
  return fail(e.opRange,
              "the part " + quoted(base.instance->path) + " has no param " + quoted(e.text),
              meantHint(e.text, known));
}

Operand Checker::evalUnary(const ast::Expr &e) {
  Operand operand = eval(*e.children[0]);
  if (!operand)
    return {};
  bool negate = e.text == "-";
  if (operand.kind == Operand::Number) {
    const bool *truth = std::get_if<bool>(&operand.number);
    if (!negate && truth)
      return Operand::of(Setting(!*truth));
    if (!negate)
      return fail(e.range, "`not` takes truth values, not numbers", "compare: `x != 0`");
    auto value = fold("-", Setting(int64_t(0)), operand.number, e.range, false);
    return value ? Operand::of(*value) : Operand();
  }
  auto value = tensor(operand, e.children[0]->range);
  if (!value)
    return {};
  TensorType type = typeOf(*value);
  if (negate == (type.element == DType::I1))
    return fail(e.range,
                std::string(negate ? "`-`" : "`not`") + " does not take " + program.show(type),
                negate ? "cast it: `f32(...)`" : "compare: `x != 0`");
  return Operand::of(resultOf(emit(negate ? Op::Neg : Op::Not, {*value}, type, e.range)));
}

Operand Checker::evalBinary(const ast::Expr &e) {
  static const std::map<std::string, Op> ops = {{"+", Op::Add}, {"-", Op::Sub},   {"*", Op::Mul},
                                                {"/", Op::Div}, {"and", Op::And}, {"or", Op::Or},
                                                {"==", Op::Eq}, {"!=", Op::Ne},   {"<", Op::Lt},
                                                {"<=", Op::Le}, {">", Op::Gt},    {">=", Op::Ge}};
  Operand a = eval(*e.children[0]);
  Operand b = eval(*e.children[1]);
  if (!a || !b)
    return {};
  if (a.kind == Operand::Number && b.kind == Operand::Number) {
    auto value = fold(e.text, a.number, b.number, e.range, false);
    return value ? Operand::of(*value) : Operand();
  }
  DType element = a.kind == Operand::Tensor   ? typeOf(a.value).element
                  : b.kind == Operand::Tensor ? typeOf(b.value).element
                                              : DType::F32;
  auto left = tensor(a, e.children[0]->range, element);
  auto right = tensor(b, e.children[1]->range, element);
  if (!left || !right)
    return {};
  const TensorType &x = typeOf(*left), &y = typeOf(*right);
  if (x.element != y.element)
    return fail(e.opRange,
                quoted(e.text) + " of " + program.show(x) + " and " + program.show(y) +
                    ": the element types differ",
                "cast one side: `" +
                    std::string(cleave::name(isFloat(x.element) ? x.element : y.element)) +
                    "(...)`");
  Op op = ops.at(e.text);
  bool logic = op == Op::And || op == Op::Or;
  bool compare = op >= Op::Eq && op <= Op::Ge;
  bool boolean = x.element == DType::I1;
  if (logic != boolean && !(compare && (op == Op::Eq || op == Op::Ne)))
    return fail(e.opRange, quoted(e.text) + " does not take " + program.show(x),
                logic ? "compare: `x != 0`" : "cast it: `f32(...)`");
  if (op == Op::Div && !isFloat(x.element))
    return fail(e.opRange, "`/` divides floating point tensors, and this is " + program.show(x),
                "cast it: `f32(...)`");
  return Operand::of(elementwise(op, {*left, *right}, compare ? DType::I1 : x.element, e.range));
}

/// `a @ b` and `a @[names] b`.
Operand Checker::evalContract(const ast::Expr &e) {
  auto left = tensorOf(*e.children[0]);
  auto right = tensorOf(*e.children[1]);
  if (!left || !right)
    return {};
  const TensorType &a = typeOf(*left), &b = typeOf(*right);
  std::string both = program.show(a) + " and " + program.show(b);
  if (a.element != b.element || !isFloat(a.element))
    return fail(e.opRange,
                a.element != b.element ? "`@` of " + both + ": the element types differ"
                                       : "`@` takes floating point tensors, not " + program.show(a),
                "cast: `f32(...)`");
  if (!hasProducts(a.element))
    return fail(e.opRange, "`@` of " + both + ": there are matrix products of f32 and f64 only",
                "cast: `f32(...) @ f32(...)`");
  std::vector<std::string> shared, contracted;
  for (const Atom &atom : a.dims)
    if (b.has(atom.name))
      shared.push_back(atom.name);
  if (shared.empty()) {
    std::string hint = "for the product of each with each write `*`";
    std::vector<std::string> right;
    for (const Atom &atom : b.dims)
      right.push_back(atom.name);
    for (const Atom &atom : a.dims)
      for (const Atom &other : b.dims)
        if (atom.size == other.size && atom.size > 1)
          hint = "if " + quoted(atom.name) + " and " + quoted(other.name) +
                 " are the same, rename one: `(... as [" + other.name + " = " + atom.name + "])`";
    return fail(e.opRange, "the sides of `@` share no name: " + both, hint);
  }
  if (!e.flag) {
    std::set<std::string> set(shared.begin(), shared.end());
    bool one = shared.size() == 1 ||
               std::any_of(program.dims.begin(), program.dims.end(), [&](const NamedDim &dim) {
                 return dim.atoms.size() == shared.size() &&
                        std::set<std::string>(dim.atoms.begin(), dim.atoms.end()) == set;
               });
    if (!one)
      return fail(e.opRange,
                  "the sides of `@` share several names: " + show(shared) + ", of " + both,
                  "write `@[" + show(shared) +
                      "]` to contract them all, or name only some: the others are kept");
    contracted = shared;
  }
  for (const ast::Name &name : e.names) {
    auto atoms = dimAtoms(name, *frame->self.instance);
    if (!atoms)
      return {};
    for (const std::string &atom : *atoms) {
      if (!a.has(atom) || !b.has(atom))
        return fail(name.range,
                    std::string("the ") + (a.has(atom) ? "right" : "left") +
                        " side of `@` has no " + quoted(atoms->size() == 1 ? name.text : atom) +
                        ": it is " + program.show(a.has(atom) ? b : a),
                    "the shared names are " + show(shared));
      if (std::find(contracted.begin(), contracted.end(), atom) != contracted.end())
        return fail(name.range, quoted(name.text) + " stands twice");
      contracted.push_back(atom);
    }
  }
  TensorType type{a.element, {}};
  auto isContracted = [&](const Atom &atom) {
    return std::find(contracted.begin(), contracted.end(), atom.name) != contracted.end();
  };
  for (const Atom &atom : a.dims)
    if (!isContracted(atom))
      type.dims.push_back(atom);
  for (const Atom &atom : b.dims)
    if (!isContracted(atom) && !type.has(atom.name))
      type.dims.push_back(atom);
  for (ValueId side : {*left, *right})
    decay(side);
  Node &node = emit(Op::Contract, {*left, *right}, std::move(type), e.range);
  node.dims = contracted;
  return Operand::of(resultOf(node));
}

//===----------------------------------------------------------------------===//
// x[...] and x as [...]
//===----------------------------------------------------------------------===//

Operand Checker::evalIndex(const ast::Expr &e) {
  InstanceRef part;
  if (resolvePart(e, part))
    return part.instance ? fail(e.range, quoted(part.instance->path) + " is a part, not a value",
                                "call it, or take a param of it")
                         : Operand();
  auto value = tensorOf(*e.children[0]);
  if (!value)
    return {};
  if (e.items.empty())
    return fail(e.range, "expected ids, or a slice such as `rest = seq[1:]`, in the brackets");
  std::set<std::string> seen;
  for (const ast::Item &item : e.items) {
    Operand next;
    if (!item.name.text.empty()) {
      next = evalSlice(*value, item, e.range);
    } else if (item.slice) {
      return fail(e.range, "a slice says along which dim, and the new dim's name",
                  "write `x[rest = seq[1:]]`, or for one element `x[seq = 0]`");
    } else if (e.items.size() > 1) {
      return fail(e.range, "a look-up takes one tensor of ids",
                  "for another dim than the first: "
                  "`gather(x, ids, over = dim)`");
    } else {
      if (typeOf(*value).dims.empty())
        return fail(e.range, "a scalar cannot be looked up in");
      Operand ids = eval(*item.value);
      if (ids.kind == Operand::Number)
        return fail(item.value->range, "a look-up takes i32 ids; this is a number",
                    "for one element along a dim: `x[seq = 0]`");
      auto idsValue = tensor(ids, item.value->range, DType::I32);
      if (!idsValue)
        return {};
      next = gather(*value, *idsValue, typeOf(*value).dims[0].name, e.range);
    }
    if (next.kind != Operand::Tensor)
      return {};
    value = next.value;
  }
  return Operand::of(*value);
}

/// `rest = seq[1:]`, or `seq = 0`, which drops the dim.
Operand Checker::evalSlice(ValueId value, const ast::Item &item, SourceRange range) {
  const Instance &self = *frame->self.instance;
  TensorType type = typeOf(value);
  if (item.slice || !item.value)
    return fail(range, "the new dim needs a name: `rest = seq[1:]`");
  auto integer = [&](const ast::ExprPtr &e, int64_t otherwise) -> std::optional<int64_t> {
    if (!e)
      return otherwise;
    Operand v = eval(*e);
    if (!v)
      return std::nullopt;
    if (v.kind == Operand::Number && std::holds_alternative<int64_t>(v.number))
      return std::get<int64_t>(v.number);
    fail(e->range, "the bounds of a slice are whole numbers known at compile time",
         "for positions that are data: `gather(x, ids, over = dim)`");
    return std::nullopt;
  };
  const ast::Expr &source = *item.value;
  bool isSlice = source.kind == ast::ExprKind::Index &&
                 source.children[0]->kind == ast::ExprKind::Name && source.items.size() == 1 &&
                 source.items[0].slice;
  ast::Name oldName =
      isSlice ? ast::Name{source.children[0]->text, source.children[0]->range} : item.name;
  auto old = singleAtom(oldName, self, "sliced");
  if (!old)
    return {};
  int position = type.find(*old);
  if (position < 0)
    return fail(oldName.range, program.show(type) + " has no dim " + quoted(oldName.text));
  int64_t size = type.dims[position].size;
  auto wrap = [&](int64_t index) { return index < 0 ? index + size : index; };
  auto alias = [&](ValueId out) {
    if (auto it = build->paramOf.find(value); it != build->paramOf.end())
      build->paramOf[out] = it->second;
    return Operand::of(out);
  };
  if (!isSlice) {
    auto index = integer(item.value, 0);
    if (!index)
      return {};
    if (wrap(*index) < 0 || wrap(*index) >= size)
      return fail(source.range, "the index " + std::to_string(*index) + " is outside of " +
                                    quoted(oldName.text) + ", whose size is " +
                                    std::to_string(size));
    TensorType one = type, without = type;
    one.dims[position].size = 1;
    without.dims.erase(without.dims.begin() + position);
    Node &node = emit(Op::Slice, {value}, one, range);
    node.dims = {*old};
    node.start = wrap(*index);
    ValueId sliced = resultOf(node);
    bool truth = type.element == DType::I1; // sums are of numbers
    if (truth) {
      one.element = without.element = DType::I32;
      sliced = resultOf(emit(Op::Cast, {sliced}, one, range));
    }
    Node &sum = emit(Op::ReduceSum, {sliced}, without, range);
    sum.dims = {*old};
    ValueId out = resultOf(sum);
    if (truth)
      out = elementwise(Op::Ne, {out, constant(0, {DType::I32, {}}, range)}, DType::I1, range);
    return alias(out);
  }
  const ast::Item &slice = source.items[0];
  auto stride = integer(slice.stride, 1);
  auto start = integer(slice.start, 0);
  auto stop = integer(slice.stop, size);
  if (!stride || !start || !stop)
    return {};
  if (*stride < 1)
    return fail(slice.stride->range, "the stride is " + std::to_string(*stride),
                "strides are from 1");
  int64_t from = wrap(*start), to = wrap(*stop);
  if (from < 0 || to > size || from >= to)
    return fail(source.range,
                "the slice " + std::to_string(*start) + " : " + std::to_string(*stop) + " is " +
                    (from >= to ? "empty" : "outside of " + quoted(oldName.text)) +
                    "; the size of " + quoted(oldName.text) + " is " + std::to_string(size));
  int64_t count = (to - from - 1) / *stride + 1;
  auto fresh = singleAtom(item.name, self, "the result of a slice");
  if (!fresh)
    return {};
  if (sizeOf(*fresh) != count)
    return fail(item.name.range,
                "the slice has " + std::to_string(count) + " elements, and the size of " +
                    quoted(item.name.text) + " is " + std::to_string(sizeOf(*fresh)),
                "declare a dim of this size");
  if (*fresh != *old && type.has(*fresh))
    return fail(item.name.range, "the tensor has a dim " + quoted(item.name.text) + " already");
  type.dims[position] = {*fresh, count};
  Node &node = emit(Op::Slice, {value}, type, range);
  node.dims = {*old};
  node.start = from;
  node.stride = *stride;
  return alias(resultOf(node));
}

/// `x as [keys = seq]` renames; `x as [seq, batch]` orders (and so splits and
/// joins compound dims). Both may stand in one list.
Operand Checker::evalAs(const ast::Expr &e) {
  const Instance &self = *frame->self.instance;
  auto value = tensorOf(*e.children[0]);
  if (!value)
    return {};
  TensorType type = typeOf(*value);
  std::map<std::string, std::string> renamed;
  std::vector<std::string> order;
  bool ordered = false, ok = true;
  for (const ast::Item &item : e.items) {
    if (!item.value) {
      ok = false;
      fail(e.opRange, "expected a dim, or `new = old`, after `as`");
      continue;
    }
    auto atoms = dimAtoms(*item.value, self);
    if (!atoms) {
      ok = false;
      continue;
    }
    for (const std::string &atom : *atoms)
      if (!type.has(atom)) {
        fail(item.value->range, program.show(type) + " has no dim " + quoted(atom));
        ok = false;
      }
    if (item.name.text.empty()) {
      ordered = true;
      order.insert(order.end(), atoms->begin(), atoms->end());
      continue;
    }
    auto fresh = dimAtoms(item.name, self);
    if (!fresh || !ok) {
      ok = false;
      continue;
    }
    bool fits = fresh->size() == atoms->size();
    for (size_t i = 0; fits && i < atoms->size(); ++i)
      fits = sizeOf((*fresh)[i]) == type.dims[type.find((*atoms)[i])].size;
    if (!fits) {
      auto sizes = [&](const std::vector<std::string> &list) {
        std::string out;
        for (const std::string &atom : list)
          out += (out.empty() ? "" : " * ") + std::to_string(sizeOf(atom));
        return out;
      };
      fail(item.name.range,
           quoted(item.name.text) + " has size " + sizes(*fresh) + " and " +
               quoted(program.sources.text(item.value->range)) + " has " + sizes(*atoms),
           fresh->size() == atoms->size()
               ? "a new name has the same size"
               : "a compound dim can only be renamed to a compound dim alike");
      ok = false;
      continue;
    }
    for (size_t i = 0; i < atoms->size(); ++i)
      if (!renamed.emplace((*atoms)[i], (*fresh)[i]).second) {
        fail(item.value->range, quoted((*atoms)[i]) + " is renamed twice");
        ok = false;
      }
    order.insert(order.end(), atoms->begin(), atoms->end());
  }
  if (!ok)
    return {};
  if (e.items.empty())
    return fail(e.opRange, "expected a dim, or `new = old`, after `as`");
  TensorType result{type.element, {}};
  if (ordered) {
    std::set<std::string> unique(order.begin(), order.end());
    if (unique.size() != order.size() || unique.size() != type.dims.size()) {
      std::vector<std::string> missing;
      for (const Atom &atom : type.dims)
        if (!unique.count(atom.name))
          missing.push_back(atom.name);
      return fail(e.range,
                  missing.empty() ? "a dim stands twice after `as`"
                                  : "the order of dims lacks " + show(missing),
                  "name each dim once, or only renames: `as [new = old]`");
    }
    TensorType permuted{type.element, {}};
    for (const std::string &atom : order)
      permuted.dims.push_back(type.dims[type.find(atom)]);
    value = reordered(*value, permuted, e.range);
    type = permuted;
  }
  std::set<std::string> names;
  for (const Atom &atom : type.dims) {
    auto it = renamed.find(atom.name);
    result.dims.push_back({it == renamed.end() ? atom.name : it->second, atom.size});
    if (!names.insert(result.dims.back().name).second)
      return fail(e.range, "the tensor would have two dims " + quoted(result.dims.back().name));
  }
  if (renamed.empty())
    return Operand::of(*value);
  ValueId out = resultOf(emit(Op::Rename, {*value}, result, e.range));
  if (auto it = build->paramOf.find(*value); it != build->paramOf.end())
    build->paramOf[out] = it->second;
  return Operand::of(out);
}

} // namespace cleave::sema
