//===- SemaDims.cpp - compile-time numbers, dims, types -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Sema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace cleave::sema {

constexpr int64_t maxDimSize = (int64_t(1) << 31) - 1;
constexpr int64_t maxElements = int64_t(1) << 46;

//===----------------------------------------------------------------------===//
// Compile-time numbers
//===----------------------------------------------------------------------===//

std::optional<Setting> Checker::fold(const std::string &op, const Setting &a, const Setting &b,
                                     SourceRange range, bool exact) {
  if (isBool(a) || isBool(b)) {
    if (isBool(a) && isBool(b)) {
      bool x = std::get<bool>(a), y = std::get<bool>(b);
      if (op == "and" || op == "or" || op == "==" || op == "!=")
        return Setting(op == "and" ? x && y : op == "or" ? x || y : op == "==" ? x == y : x != y);
    }
    diagnostics.error(range, quoted(op) + " does not take `true` or `false` here");
    return std::nullopt;
  }
  if (op == "and" || op == "or") {
    diagnostics.error(range, quoted(op) + " takes truth values, not numbers");
    return std::nullopt;
  }
  double x = real(a), y = real(b);
  if (op == "==" || op == "!=" || op == "<" || op == "<=" || op == ">" || op == ">=")
    return Setting(op == "=="   ? x == y
                   : op == "!=" ? x != y
                   : op == "<"  ? x < y
                   : op == "<=" ? x <= y
                   : op == ">"  ? x > y
                                : x >= y);
  if (op == "/" && y == 0) {
    diagnostics.error(range, "division by zero");
    return std::nullopt;
  }
  if (isInteger(a) && isInteger(b)) {
    int64_t i = std::get<int64_t>(a), j = std::get<int64_t>(b), out = 0;
    bool overflow = op == "+"   ? __builtin_add_overflow(i, j, &out)
                    : op == "-" ? __builtin_sub_overflow(i, j, &out)
                    : op == "*" ? __builtin_mul_overflow(i, j, &out)
                                : j == -1 && i == INT64_MIN;
    if (overflow) {
      diagnostics.error(range,
                        "the number is too large: " + toString(a) + " " + op + " " + toString(b));
      return std::nullopt;
    }
    if (op != "/")
      return Setting(out);
    if (i % j == 0)
      return Setting(i / j);
    if (exact) {
      diagnostics.error(range, toString(a) + " is not divisible by " + toString(b),
                        "a dim's size is a whole number");
      return std::nullopt;
    }
  }
  double out = op == "+" ? x + y : op == "-" ? x - y : op == "*" ? x * y : x / y;
  if (!std::isfinite(out)) {
    diagnostics.error(range,
                      "the number is too large: " + toString(a) + " " + op + " " + toString(b));
    return std::nullopt;
  }
  return Setting(out);
}

std::optional<Setting> Checker::foldCall(const std::string &name, const std::vector<Setting> &args,
                                         SourceRange range) {
  for (const Setting &s : args)
    if (isBool(s)) {
      diagnostics.error(range, quoted(name) + " takes numbers");
      return std::nullopt;
    }
  double x = real(args[0]), out = 0;
  if (name == "max" || name == "min" || name == "pow") {
    double y = real(args[1]);
    if (name != "pow")
      return (name == "max") == (x > y) ? args[0] : args[1];
    out = std::pow(x, y);
  } else if (name == "abs" && isInteger(args[0]) && std::get<int64_t>(args[0]) != INT64_MIN) {
    return Setting(std::abs(std::get<int64_t>(args[0])));
  } else {
    out = name == "sqrt"      ? std::sqrt(x)
          : name == "rsqrt"   ? 1 / std::sqrt(x)
          : name == "exp"     ? std::exp(x)
          : name == "log"     ? std::log(x)
          : name == "tanh"    ? std::tanh(x)
          : name == "sin"     ? std::sin(x)
          : name == "cos"     ? std::cos(x)
          : name == "abs"     ? std::fabs(x)
          : name == "erf"     ? std::erf(x)
          : name == "sigmoid" ? 1 / (1 + std::exp(-x))
                              : NAN;
  }
  if (std::isfinite(out))
    return Setting(out);
  diagnostics.error(range, quoted(name) + " of " + toString(args[0]) + " is not a finite number");
  return std::nullopt;
}

std::optional<Setting> Checker::number(const ast::Expr &e, const Instance &context, bool exact) {
  using ast::ExprKind;
  switch (e.kind) {
  case ExprKind::Integer:
    return Setting(e.integer);
  case ExprKind::Real:
    return Setting(e.real);
  case ExprKind::Bool:
    return Setting(e.flag);
  case ExprKind::Name: {
    auto bound = context.statics.find(e.text);
    if (bound != context.statics.end() && !bound->second.isDim)
      return bound->second.number;
    if (badDims.count(e.text) || diagnostics.full())
      return std::nullopt;
    // A free dim or a dim first: a hyperparameter of that name is the same.
    if (const NamedDim *dim = findDim(e.text, context))
      return Setting(dim->size);
    auto hyper = hyperIndex.find(e.text);
    if (hyper != hyperIndex.end())
      return program.hyperparameters[hyper->second].value;
    for (const ast::Dim &later : source->dims)
      if (later.name.text == e.text) {
        diagnostics.error(e.range, "the dim " + quoted(e.text) + " is declared further down",
                          "declare it above this line");
        return std::nullopt;
      }
    std::vector<std::string> known;
    for (const auto &[name, index] : dimIndex)
      known.push_back(name);
    for (const auto &[name, index] : hyperIndex)
      known.push_back(name);
    for (const auto &[name, value] : context.statics)
      known.push_back(name);
    diagnostics.error(e.range, "no hyperparameter or dim is called " + quoted(e.text),
                      meantHint(e.text, known));
    return std::nullopt;
  }
  case ExprKind::Unary: {
    auto a = number(*e.children[0], context, exact);
    if (!a)
      return std::nullopt;
    if (e.text == "not") {
      if (isBool(*a))
        return Setting(!std::get<bool>(*a));
      diagnostics.error(e.range, "`not` takes a truth value");
      return std::nullopt;
    }
    return fold("-", Setting(int64_t(0)), *a, e.range, exact);
  }
  case ExprKind::Binary: {
    auto a = number(*e.children[0], context, exact);
    auto b = number(*e.children[1], context, exact);
    return a && b ? fold(e.text, *a, *b, e.range, exact) : std::nullopt;
  }
  case ExprKind::Call: {
    const ast::Expr &callee = *e.children[0];
    static const std::vector<std::string> known = {"sqrt", "rsqrt", "exp", "log",
                                                   "abs",  "max",   "min", "pow"};
    size_t wanted = callee.text == "max" || callee.text == "min" || callee.text == "pow" ? 2 : 1;
    if (callee.kind == ExprKind::Name &&
        std::find(known.begin(), known.end(), callee.text) != known.end()) {
      std::vector<Setting> args;
      for (const ast::Item &item : e.items) {
        if (!item.value || !item.name.text.empty())
          break;
        auto value = number(*item.value, context, exact);
        if (!value)
          return std::nullopt;
        args.push_back(*value);
      }
      if (args.size() == wanted && e.items.size() == wanted)
        return foldCall(callee.text, args, e.range);
      diagnostics.error(e.range, quoted(callee.text) + " takes " + std::to_string(wanted) +
                                     (wanted == 1 ? " number" : " numbers") + " here");
      return std::nullopt;
    }
    break;
  }
  default:
    break;
  }
  diagnostics.error(e.range, "this is not known at compile time",
                    "use numbers, hyperparameters and dims");
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Hyperparameters and dims
//===----------------------------------------------------------------------===//

static std::optional<Setting> parseSetting(const std::string &text) {
  if (text == "true" || text == "false")
    return Setting(text == "true");
  const char *first = text.data(), *last = first + text.size();
  int64_t integer = 0;
  if (auto r = std::from_chars(first, last, integer); r.ec == std::errc() && r.ptr == last)
    return Setting(integer);
  double value = 0;
  if (auto r = std::from_chars(first, last, value);
      r.ec == std::errc() && r.ptr == last && std::isfinite(value))
    return Setting(value);
  return std::nullopt;
}

void Checker::hyperparameters() {
  std::map<std::string, std::string> given;
  std::vector<std::string> known;
  for (const ast::Hyper &hyper : source->hypers)
    known.push_back(hyper.name.text);
  for (const auto &[name, text] : options.settings) {
    std::string flag = "--set " + printable(name) + "=" + printable(text);
    if (!given.emplace(name, text).second)
      diagnostics.error({}, flag + ": " + quoted(name) + " is set twice");
    if (std::find(known.begin(), known.end(), name) == known.end())
      diagnostics.error({},
                        flag + ": the model " + quoted(source->name.text) +
                            " has no hyperparameter " + quoted(name),
                        meantHint(name, known));
  }
  for (const ast::Hyper &hyper : source->hypers) {
    const std::string &name = hyper.name.text;
    if (hyperIndex.count(name)) {
      diagnostics.error(hyper.name.range, "the hyperparameter " + quoted(name) + " stands twice")
          .notes.push_back({program.hyperparameters[hyperIndex[name]].range, "the first is here"});
      continue;
    }
    std::optional<Setting> value;
    if (hyper.value)
      value = number(*hyper.value, root, true);
    auto set = given.find(name);
    if (set != given.end()) {
      std::optional<Setting> parsed = parseSetting(set->second);
      std::string flag = "--set " + printable(name) + "=" + printable(set->second);
      if (!parsed)
        diagnostics.error({}, flag + ": the value is neither a number nor true or false");
      else if (value && isBool(*value) != isBool(*parsed))
        diagnostics.error({}, flag + ": " + quoted(name) + " is " +
                                  (isBool(*value) ? "true or false" : "a number") +
                                  ", as its default " + toString(*value));
      else
        value = parsed;
    } else if (!hyper.value) {
      diagnostics.error(hyper.name.range, "the hyperparameter " + quoted(name) + " has no value",
                        "give it one, `--set " + name + "=...`, or a default, `" + name +
                            " = ...`");
    }
    if (!value) {
      badDims.insert(name);
      value = Setting(int64_t(1));
    }
    hyperIndex[name] = program.hyperparameters.size();
    program.hyperparameters.push_back({name, *value, hyper.name.range});
    if (!isInteger(*value) || std::get<int64_t>(*value) < 1)
      continue; // a number, but no dim
    addDim({NamedDim::Hyper, name, std::get<int64_t>(*value), {name}, hyper.name.range});
  }
}

bool Checker::addDim(NamedDim dim) {
  if (dim.size < 1 || dim.size > maxDimSize) {
    if (dim.kind == NamedDim::Hyper)
      return false; // such a number may be no dim; its use as one is an error
    diagnostics.error(dim.range,
                      "the dim " + quoted(dim.name) + " has size " + std::to_string(dim.size),
                      "sizes are from 1 to " + std::to_string(maxDimSize));
    badDims.insert(dim.name);
    dim.size = 1;
  }
  auto known = dimIndex.find(dim.name);
  if (known != dimIndex.end() || hyperIndex.count(dim.name) > (dim.kind == NamedDim::Hyper)) {
    SourceRange first = known != dimIndex.end()
                            ? program.dims[known->second].range
                            : program.hyperparameters[hyperIndex[dim.name]].range;
    diagnostics.error(dim.range, "the dim " + quoted(dim.name) + " is declared twice")
        .notes.push_back({first, "the first is here"});
    return false;
  }
  dimIndex[dim.name] = program.dims.size();
  program.dims.push_back(std::move(dim));
  return true;
}

/// `a * b` of two or more names: their names, else nothing.
static bool product(const ast::Expr &e, std::vector<ast::Name> &out) {
  if (e.kind == ast::ExprKind::Name) {
    out.push_back({e.text, e.range});
    return true;
  }
  return e.kind == ast::ExprKind::Binary && e.text == "*" && product(*e.children[0], out) &&
         product(*e.children[1], out);
}

void Checker::dims() {
  std::set<std::string> free;
  for (const ast::Dim &dim : source->dims)
    if (!dim.value)
      free.insert(dim.name.text);
  std::vector<std::string> freeNames(free.begin(), free.end());
  for (const auto &[name, size] : options.freeSizes)
    if (!free.count(name))
      diagnostics.error({},
                        "the model " + quoted(source->name.text) + " has no free dim " +
                            quoted(name) + ", whose size is given as " + std::to_string(size),
                        meantHint(name, freeNames));
  int64_t invented = 2;
  for (const ast::Dim &d : source->dims) {
    if (diagnostics.full())
      return;
    if (!d.value) {
      int64_t size = ++invented;
      auto given = options.freeSizes.find(d.name.text);
      auto fallback = options.defaultSizes.find(d.name.text);
      if (given != options.freeSizes.end())
        size = given->second;
      else if (fallback != options.defaultSizes.end())
        size = fallback->second;
      else if (!options.inventSizes)
        diagnostics.error(d.range, "the free dim " + quoted(d.name.text) + " has no size",
                          "it comes with the data, or give " +
                              (d.name.text == "batch" || d.name.text == "seq"
                                   ? quoted("--" + d.name.text)
                                   : quoted("--dim " + d.name.text + "=...")));
      addDim({NamedDim::Free, d.name.text, size, {d.name.text}, d.name.range});
      continue;
    }
    NamedDim dim{NamedDim::Declared, d.name.text, 1, {d.name.text}, d.name.range};
    std::vector<ast::Name> factors;
    std::optional<Setting> value = number(*d.value, root, true);
    if (!value || !isInteger(*value)) {
      if (value)
        diagnostics.error(d.value->range, std::string("a dim's size is a whole number, not ") +
                                              (isBool(*value) ? "" : "the real number ") +
                                              toString(*value));
      badDims.insert(dim.name);
    } else {
      dim.size = std::get<int64_t>(*value);
      if (product(*d.value, factors) && factors.size() > 1) {
        dim.atoms.clear();
        for (const ast::Name &factor : factors) {
          auto atoms = dimAtoms(factor, root);
          if (!atoms) {
            dim.atoms = {dim.name};
            break;
          }
          dim.atoms.insert(dim.atoms.end(), atoms->begin(), atoms->end());
        }
        std::set<std::string> unique(dim.atoms.begin(), dim.atoms.end());
        if (unique.size() != dim.atoms.size()) {
          diagnostics.error(d.value->range,
                            "a name stands twice in the compound dim " + quoted(dim.name),
                            "give the second one a name of its own: `dim other = ...`");
          dim.atoms = {dim.name};
        }
      }
    }
    addDim(std::move(dim));
  }
}

const NamedDim *Checker::findDim(const std::string &name, const Instance &context) const {
  auto bound = context.statics.find(name);
  const std::string *real = &name;
  if (bound != context.statics.end()) {
    if (!bound->second.isDim)
      return nullptr;
    real = &bound->second.dim;
  }
  auto it = dimIndex.find(*real);
  return it == dimIndex.end() ? nullptr : &program.dims[it->second];
}

void Checker::unknownDim(const ast::Name &name, const Instance &context) {
  if (badDims.count(name.text) || diagnostics.full())
    return; // said where it is declared
  auto hyper = hyperIndex.find(name.text);
  auto bound = context.statics.find(name.text);
  if (bound != context.statics.end() && !bound->second.isDim) {
    diagnostics.error(name.range,
                      quoted(name.text) + " is bound to the number " +
                          toString(bound->second.number) + ", so it cannot be a dim",
                      "give the part the name of a dim");
    return;
  }
  if (hyper != hyperIndex.end()) {
    diagnostics.error(name.range,
                      quoted(name.text) + " is " +
                          toString(program.hyperparameters[hyper->second].value) +
                          ", which is no size of a dim",
                      "sizes are whole numbers from 1 to " + std::to_string(maxDimSize));
    return;
  }
  for (const ast::Dim &later : source->dims)
    if (later.name.text == name.text) {
      diagnostics.error(name.range, "the dim " + quoted(name.text) + " is declared further down",
                        "declare it above this line");
      return;
    }
  std::vector<std::string> known;
  for (const NamedDim &dim : program.dims)
    known.push_back(dim.name);
  for (const auto &[static_, value] : context.statics)
    if (value.isDim)
      known.push_back(static_);
  std::string hint = meantHint(name.text, known);
  if (hint.empty())
    hint = "declare it: `free " + printable(name.text) + "` or `dim " + printable(name.text) +
           " = ...`";
  diagnostics.error(name.range, "no dim is called " + quoted(name.text), hint);
}

std::optional<std::vector<std::string>> Checker::dimAtoms(const ast::Name &name,
                                                          const Instance &context) {
  if (const NamedDim *dim = findDim(name.text, context))
    return dim->atoms;
  unknownDim(name, context);
  return std::nullopt;
}

std::optional<std::vector<std::string>> Checker::dimAtoms(const ast::Expr &e,
                                                          const Instance &context) {
  std::vector<ast::Name> names;
  if (!product(e, names)) {
    bool literal = e.kind == ast::ExprKind::Integer;
    diagnostics.error(
        e.range,
        literal ? "a dim has a name, not only the size " + std::to_string(e.integer)
                : "expected the name of a dim, or a product of names",
        literal ? "declare it in the model: `dim some_name = " + std::to_string(e.integer) + "`"
        : e.kind == ast::ExprKind::String ? "dims stand without quotes"
                                          : "declare it in the model: `dim some_name = ...`");
    return std::nullopt;
  }
  std::vector<std::string> atoms;
  for (const ast::Name &name : names) {
    auto more = dimAtoms(name, context);
    if (!more)
      return std::nullopt;
    atoms.insert(atoms.end(), more->begin(), more->end());
  }
  return atoms;
}

std::optional<std::string> Checker::singleAtom(const ast::Name &name, const Instance &context,
                                               const std::string &use) {
  auto atoms = dimAtoms(name, context);
  if (!atoms)
    return std::nullopt;
  if (atoms->size() == 1)
    return atoms->front();
  std::string parts;
  for (const std::string &atom : *atoms)
    parts += (parts.empty() ? "" : " * ") + atom;
  diagnostics.error(name.range, quoted(name.text) + " is a compound dim (" + parts +
                                    "), which cannot be " + use);
  return std::nullopt;
}

int64_t Checker::sizeOf(const std::string &atom) const {
  auto it = dimIndex.find(atom);
  return it == dimIndex.end() ? 1 : program.dims[it->second].size;
}

bool Checker::checkSize(const TensorType &type, SourceRange range) {
  int64_t elements = 1;
  for (const Atom &atom : type.dims)
    if (__builtin_mul_overflow(elements, atom.size, &elements) || elements > maxElements) {
      diagnostics.error(range, "the tensor " + program.show(type) + " is too large",
                        "at most 2^46 elements");
      return false;
    }
  return true;
}

std::string elementHint(const std::string &word, const std::vector<std::string> &known) {
  static const std::map<std::string, const char *> elsewhere = {
      {"float", "f32"}, {"float32", "f32"}, {"fp32", "f32"},      {"double", "f64"},
      {"fp64", "f64"},  {"float64", "f64"}, {"half", "f16"},      {"float16", "f16"},
      {"fp16", "f16"},  {"bfloat", "bf16"}, {"bfloat16", "bf16"}, {"int", "i32"},
      {"int32", "i32"}, {"long", "i64"},    {"int64", "i64"},     {"bool", "i1"}};
  auto other = elsewhere.find(word);
  if (other != elsewhere.end() &&
      std::find(known.begin(), known.end(), other->second) != known.end())
    return "did you mean " + quoted(other->second) + "?";
  return meantHint(word, known);
}

std::optional<TensorType> Checker::type(const ast::Type &type, const Instance &context) {
  TensorType out;
  if (!type.element.empty()) {
    std::optional<DType> element = parseDType(type.element);
    if (!element) {
      std::string hint =
          elementHint(type.element, {"f32", "f64", "bf16", "f16", "i1", "i32", "i64"});
      if (!type.hasDims && dimIndex.count(type.element))
        hint = "dims stand in brackets: `[" + type.element + "]`";
      diagnostics.error(type.elementRange, "no element type is called " + quoted(type.element),
                        hint.empty() ? "f32, f64, bf16, f16, i32, i64 or i1" : hint);
      return std::nullopt;
    }
    out.element = *element;
  }
  bool ok = true;
  std::map<std::string, SourceRange> seen;
  for (const ast::ExprPtr &dim : type.dims) {
    auto atoms = dimAtoms(*dim, context);
    if (!atoms) {
      ok = false;
      continue;
    }
    for (const std::string &atom : *atoms) {
      if (!seen.emplace(atom, dim->range).second) {
        diagnostics.error(
            dim->range, "the dim " + quoted(atom) + " stands twice in one tensor",
            "a second dim of this size needs a name of its own: `dim other = " + atom + "`");
        ok = false;
        continue;
      }
      out.dims.push_back({atom, sizeOf(atom)});
    }
  }
  if (!ok || !checkSize(out, type.range))
    return std::nullopt;
  return out;
}

} // namespace cleave::sema
