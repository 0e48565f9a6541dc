//===- SemaBody.cpp - statements, calls, names -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Sema.h"

#include <algorithm>

namespace cleave::sema {

constexpr unsigned maxSteps = 300000;
constexpr size_t maxCallDepth = 64;

Operand Checker::fail(SourceRange range, const std::string &message, const std::string &hint) {
  diagnostics.error(range, message, hint);
  return {};
}

/// Counts work: small programs can call themselves into huge ones.
bool Checker::tick(SourceRange range) {
  gaveUp |= diagnostics.full();
  if (gaveUp)
    return false;
  if (++steps <= maxSteps)
    return true;
  gaveUp = true;
  diagnostics.error(
      range, "the program is too large: more than " + std::to_string(maxSteps) + " operations",
      "layers that are alike stand in a `repeat`");
  return false;
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

ValueId Checker::newValue(TensorType type, SourceRange range) {
  build->function.values.push_back({std::move(type), range, {}});
  return build->function.values.size() - 1;
}

void Checker::addName(ValueId value, const std::string &name) {
  if (build->discardFrom && value < *build->discardFrom)
    return;
  std::vector<std::string> &names = build->function.values[value].names;
  if (std::find(names.begin(), names.end(), name) == names.end())
    names.push_back(name);
}

Node &Checker::emit(Op op, std::vector<ValueId> operands, TensorType type, SourceRange range) {
  checkSize(type, range);
  Node node;
  node.op = op;
  node.operands = std::move(operands);
  node.results = {newValue(std::move(type), range)};
  node.range = range;
  node.scope = frame->scope;
  std::vector<Node> &nodes = build->regions.back()->nodes;
  nodes.push_back(std::move(node));
  return nodes.back();
}

ValueId Checker::constant(double value, TensorType type, SourceRange range) {
  Node &node = emit(Op::Constant, {}, std::move(type), range);
  node.number = value;
  return resultOf(node);
}

bool Checker::isFloat(DType type) const {
  return type == DType::F32 || type == DType::F64 || type == DType::BF16 || type == DType::F16;
}

std::optional<ValueId> Checker::tensor(const Operand &operand, SourceRange range, DType element) {
  switch (operand.kind) {
  case Operand::None:
    return std::nullopt;
  case Operand::Tensor:
    return operand.value;
  case Operand::Tuple:
    fail(range, "this is " + std::to_string(operand.tuple.size()) + " values where one is wanted",
         "name them: `a, b = ...`");
    return std::nullopt;
  case Operand::Number:
    break;
  }
  bool isBool = std::holds_alternative<bool>(operand.number);
  double value = std::visit([](auto v) { return static_cast<double>(v); }, operand.number);
  if (isBool != (element == DType::I1)) {
    fail(range, isBool ? "a truth value where a number is wanted"
                       : "a number where a truth value is wanted");
    return std::nullopt;
  }
  if (!isFloat(element) && !isBool) {
    const int64_t *integer = std::get_if<int64_t>(&operand.number);
    bool fits =
        integer && (element == DType::I64 || (*integer >= INT32_MIN && *integer <= INT32_MAX));
    if (!fits) {
      std::string wanted(cleave::name(element));
      fail(range,
           integer ? toString(operand.number) + " is no " + wanted
                   : "a real number where " + wanted + " is wanted",
           integer ? "" : "cast the tensor: `f32(...)`");
      return std::nullopt;
    }
  }
  return constant(value, {element, {}}, range);
}

std::optional<ValueId> Checker::tensorOf(const ast::Expr &e, DType element) {
  return tensor(eval(e), e.range, element);
}

bool Checker::sameDims(const TensorType &a, const TensorType &b) const {
  return a.dims.size() == b.dims.size() && insideOf(a, b.dims);
}

bool Checker::insideOf(const TensorType &inner, const std::vector<Atom> &outer) const {
  return std::all_of(inner.dims.begin(), inner.dims.end(), [&](const Atom &atom) {
    return std::find(outer.begin(), outer.end(), atom) != outer.end();
  });
}

/// The dims of the result of an elementwise op: those of the operand that has
/// all of them, else the first operand's and then the others'.
std::optional<std::vector<Atom>> Checker::broadcastDims(const std::vector<ValueId> &operands,
                                                        SourceRange) {
  std::vector<Atom> dims;
  for (ValueId value : operands)
    for (const Atom &atom : typeOf(value).dims)
      if (std::find(dims.begin(), dims.end(), atom) == dims.end())
        dims.push_back(atom);
  for (ValueId value : operands)
    if (typeOf(value).dims.size() == dims.size())
      return typeOf(value).dims;
  return dims;
}

ValueId Checker::elementwise(Op op, std::vector<ValueId> operands, DType element,
                             SourceRange range) {
  TensorType type{element, *broadcastDims(operands, range)};
  return resultOf(emit(op, std::move(operands), std::move(type), range));
}

/// The same value with its dims in the type's order.
ValueId Checker::reordered(ValueId value, const TensorType &type, SourceRange range) {
  if (typeOf(value).dims == type.dims)
    return value;
  ValueId out = resultOf(emit(Op::Broadcast, {value}, {typeOf(value).element, type.dims}, range));
  if (auto it = build->paramOf.find(value); it != build->paramOf.end())
    build->paramOf[out] = it->second;
  return out;
}

/// Atoms as the user's names: compound dims where all their atoms are there.
std::vector<std::string> Checker::showNames(const std::vector<std::string> &atoms) const {
  std::vector<std::string> left = atoms, out;
  for (size_t i = 0; i < left.size();) {
    const NamedDim *best = nullptr;
    for (const NamedDim &dim : program.dims) {
      if (dim.atoms.size() < 2 || dim.atoms[0] != left[i] ||
          (best && best->atoms.size() >= dim.atoms.size()))
        continue;
      bool all = std::all_of(dim.atoms.begin(), dim.atoms.end(), [&](const std::string &atom) {
        return std::find(left.begin() + i, left.end(), atom) != left.end();
      });
      if (all)
        best = &dim;
    }
    out.push_back(best ? best->name : left[i]);
    if (!best) {
      ++i;
      continue;
    }
    for (const std::string &atom : best->atoms)
      left.erase(std::find(left.begin() + i, left.end(), atom));
  }
  return out;
}

std::string Checker::show(const std::vector<std::string> &atoms) const {
  std::string out;
  for (const std::string &name : showNames(atoms))
    out += (out.empty() ? "" : ", ") + name;
  return out;
}

std::string Checker::newSite(const char *what) {
  if (build->discardFrom)
    return frame->scope + "." + what;
  std::string path = frame->scope + "." + what + std::to_string(frame->sites++);
  unsigned use = build->siteUses[path]++;
  return use ? path + "'" + std::to_string(use) : path;
}

void Checker::decay(ValueId value) {
  if (auto it = build->paramOf.find(value);
      it != build->paramOf.end() && it->second < program.params.size() && !build->discardFrom)
    program.params[it->second].decay = true;
}

//===----------------------------------------------------------------------===//
// Statements
//===----------------------------------------------------------------------===//

void Checker::statements(const ast::Body &body) {
  for (const ast::Stmt &stmt : body) {
    if (gaveUp)
      return;
    if (frame->returned) {
      fail(stmt.range, "nothing after `return` is reached");
      return;
    }
    switch (stmt.kind) {
    case ast::StmtKind::Assign:
      assign(stmt);
      break;
    case ast::StmtKind::Repeat:
      repeat(stmt);
      break;
    case ast::StmtKind::If:
      branch(stmt);
      break;
    case ast::StmtKind::Return: {
      frame->returned = true;
      std::vector<Operand> values = evalAll(stmt.values);
      bool ok = true;
      for (size_t i = 0; i < values.size(); ++i) {
        SourceRange range = i < stmt.values.size() ? stmt.values[i]->range : stmt.range;
        auto value = tensor(values[i], range);
        ok &= value.has_value();
        frame->results.push_back(value.value_or(0));
      }
      if (!ok)
        frame->results.clear();
      break;
    }
    }
  }
}

/// The values of `a, b` or of one call with several results.
std::vector<Operand> Checker::evalAll(const std::vector<ast::ExprPtr> &values) {
  std::vector<Operand> out;
  for (const ast::ExprPtr &e : values) {
    Operand value = eval(*e);
    if (value.kind == Operand::Tuple && values.size() == 1) {
      for (ValueId id : value.tuple)
        out.push_back(Operand::of(id));
    } else {
      out.push_back(std::move(value));
    }
  }
  return out;
}

bool Checker::bindable(const ast::Name &name) {
  const Instance &self = *frame->self.instance;
  std::string what;
  auto local = frame->locals.find(name.text);
  if (local != frame->locals.end() && local->second.kind == Operand::Tensor &&
      build->loopDims.count(local->second.value))
    what = "the index of a loop";
  else if (local != frame->locals.end())
    return true;
  else if (self.params.count(name.text) || root.params.count(name.text))
    what = "a param";
  else if (self.parts.count(name.text) || root.parts.count(name.text))
    what = "a part";
  else if (functions.count(name.text) || blocks.count(name.text))
    what = functions.count(name.text) ? "a function" : "a block";
  else if (findDim(name.text, self) || badDims.count(name.text))
    what = "a dim";
  else if (hyperIndex.count(name.text) || self.statics.count(name.text))
    what = "a hyperparameter";
  else
    return true;
  fail(name.range, quoted(name.text) + " is " + what + ", which cannot be assigned",
       "use another name for the value");
  return false;
}

void Checker::assign(const ast::Stmt &stmt) {
  std::vector<Operand> values = evalAll(stmt.values);
  bool unknown = std::any_of(values.begin(), values.end(), [](const Operand &v) { return !v; });
  if (values.size() != stmt.targets.size() && !unknown)
    fail(stmt.range,
         std::to_string(stmt.targets.size()) + (stmt.targets.size() == 1 ? " name" : " names") +
             " for " + std::to_string(values.size()) + (values.size() == 1 ? " value" : " values"));
  for (size_t i = 0; i < stmt.targets.size(); ++i) {
    const ast::Name &target = stmt.targets[i];
    if (!bindable(target))
      continue;
    Operand value =
        i < values.size() && values.size() == stmt.targets.size() ? values[i] : Operand();
    if (value.kind == Operand::Tuple) {
      fail(stmt.range, "one name for " + std::to_string(value.tuple.size()) + " values");
      value = {};
    }
    if (value.kind == Operand::Tensor)
      addName(value.value, frame->scope + "." + target.text);
    frame->locals[target.text] = value;
  }
}

static void assigned(const ast::Body &body, std::vector<std::string> &out) {
  for (const ast::Stmt &stmt : body) {
    if (stmt.kind == ast::StmtKind::Assign)
      for (const ast::Name &name : stmt.targets)
        if (std::find(out.begin(), out.end(), name.text) == out.end())
          out.push_back(name.text);
    assigned(stmt.body, out);
    assigned(stmt.otherwise, out);
  }
}

void Checker::repeat(const ast::Stmt &stmt) {
  for (const Instance *instance : {frame->self.instance, const_cast<const Instance *>(&root)})
    if (auto part = instance->parts.find(stmt.over.text); part != instance->parts.end()) {
      const Instance *array = part->second.get();
      bool many = array && array->ownArrays > 0;
      fail(stmt.over.range, quoted(stmt.over.text) + " is a part, and a loop runs over a dim",
           many ? "write `repeat i in " + array->arrays[array->arrays.size() - array->ownArrays] +
                      " { ... }` and call `" + stmt.over.text + "[i]`"
                : "");
      return;
    }
  auto dim = singleAtom(stmt.over, *frame->self.instance, "repeated over");
  const ast::Name &indexName = stmt.targets[0];
  if (frame->locals.count(indexName.text)) {
    fail(indexName.range,
         "the loop's index " + quoted(indexName.text) + " has the name of a value");
    return;
  }
  if (!bindable(indexName) || !tick(stmt.range))
    return;
  for (ValueId loop : build->loops)
    if (dim && build->loopDims[loop] == *dim) {
      fail(stmt.over.range, "a loop over " + quoted(stmt.over.text) + " stands in another one",
           "give the second dim a name of its own: `dim other = " + printable(stmt.over.text) +
               "`");
      dim.reset();
    }
  std::vector<std::string> names;
  assigned(stmt.body, names);
  std::erase_if(names, [&](const std::string &name) { return !frame->locals.count(name); });
  Node node;
  node.op = Op::Repeat;
  node.range = stmt.range;
  node.scope = frame->scope;
  node.dims = {dim.value_or("?")};
  node.count = sizeOf(node.dims[0]);
  std::erase_if(names, [&](const std::string &name) {
    auto value = tensor(frame->locals[name], stmt.range);
    if (value)
      node.operands.push_back(*value);
    return !value;
  });
  auto before = frame->locals;
  node.body.emplace_back();
  Region region;
  region.index = newValue({DType::I32, {}}, indexName.range);
  addName(region.index, frame->scope + "." + indexName.text);
  frame->locals[indexName.text] = Operand::of(region.index);
  for (size_t i = 0; i < names.size(); ++i) {
    ValueId carried = newValue(typeOf(node.operands[i]), stmt.range);
    addName(carried, frame->scope + "." + names[i]);
    region.arguments.push_back(carried);
    frame->locals[names[i]] = Operand::of(carried);
  }
  build->loopDims[region.index] = node.dims[0];
  build->loops.push_back(region.index);
  build->regions.push_back(&region);
  build->reads.emplace_back();
  statements(stmt.body);
  if (frame->returned && frame->function) {
    fail(stmt.range, "a loop's body cannot return",
         "assign the value and return it after the loop");
    frame->returned = false;
    frame->results.clear();
  }
  auto after = frame->locals;
  frame->locals = before;
  for (size_t i = 0; i < names.size(); ++i) {
    const TensorType type = typeOf(region.arguments[i]);
    Operand end = after[names[i]];
    auto value = tensor(end, stmt.range, type.element);
    Operand &out = frame->locals[names[i]];
    out = {};
    if (!value)
      continue;
    if (typeOf(*value).element != type.element || !sameDims(typeOf(*value), type)) {
      fail(stmt.range,
           quoted(names[i]) + " is " + program.show(type) + " before the loop and " +
               program.show(typeOf(*value)) + " after a turn",
           typeOf(region.arguments[i]).dims.empty()
               ? "begin with `fill(0.0, [...])`: what a loop carries keeps its type"
               : "what a loop carries keeps its type");
      continue;
    }
    region.yields.push_back(reordered(*value, type, stmt.range));
    ValueId result = newValue(type, stmt.range);
    addName(result, frame->scope + "." + names[i]);
    node.results.push_back(result);
    out = Operand::of(result);
  }
  build->reads.pop_back();
  build->regions.pop_back();
  build->loops.pop_back();
  node.body[0] = std::move(region);
  build->regions.back()->nodes.push_back(std::move(node));
}

std::map<std::string, Operand> Checker::branchBody(const ast::Body &body, bool taken) {
  auto before = frame->locals;
  std::vector<std::string> own;
  bool outermost = !taken && !build->discardFrom;
  Region scratch;
  if (outermost) {
    build->discardFrom = build->function.values.size();
    build->regions.push_back(&scratch);
    build->reads.emplace_back();
  }
  statements(body);
  if (outermost) {
    ValueId from = *build->discardFrom;
    build->discardFrom.reset();
    build->regions.pop_back();
    build->reads.pop_back();
    build->function.values.resize(from);
    build->loopDims.erase(build->loopDims.lower_bound(from), build->loopDims.end());
    build->iotaSize.erase(build->iotaSize.lower_bound(from), build->iotaSize.end());
    build->paramOf.erase(build->paramOf.lower_bound(from), build->paramOf.end());
  }
  std::swap(before, frame->locals);
  return before;
}

/// `if` on what is known at compile time: both bodies are checked, one is built.
void Checker::branch(const ast::Stmt &stmt) {
  const ast::Expr &e = *stmt.values[0];
  Operand condition = eval(e);
  const bool *truth =
      condition.kind == Operand::Number ? std::get_if<bool>(&condition.number) : nullptr;
  if (condition && !truth)
    fail(e.range,
         "`if` takes a truth value that is known at compile time, and this is " +
             (condition.kind == Operand::Number ? "the number " + toString(condition.number)
              : condition.kind == Operand::Tensor
                  ? program.show(typeOf(condition.value))
                  : std::to_string(condition.tuple.size()) + " values"),
         condition.kind == Operand::Number
             ? "compare: `x != 0`"
             : "`where(condition, a, b)` chooses between values as the program runs");
  if (!tick(stmt.range))
    return;
  bool first = !truth || *truth;
  auto yes = branchBody(stmt.body, first);
  auto no = branchBody(stmt.otherwise, !first);
  if (frame->returned && frame->function) {
    fail(stmt.range, "the body of an `if` cannot return",
         "assign the value and return it after the `if`");
    frame->returned = false;
    frame->results.clear();
  }
  // A name that only one of them assigns ends with it: whether it is there must not depend on a
  // hyperparameter.
  for (auto &[name, value] : first ? yes : no)
    if (frame->locals.count(name) || (yes.count(name) && no.count(name)))
      frame->locals[name] = truth ? value : Operand();
}

/// Compares what a function returned with what it declares, and gives the
/// results the declared order of dims.
void Checker::finish(Frame &callee, const Instance &instance) {
  const ast::Function &f = *callee.function;
  const char *kind = f.isBlock ? "block " : "function ";
  if (!callee.returned && !gaveUp)
    fail(f.name.range,
         std::string("the ") + kind + quoted(f.name.text) + " does not return a value",
         "end it with `return ...`");
  if (callee.results.empty())
    return;
  if (!f.hasResults)
    return;
  if (f.results.size() != callee.results.size()) {
    fail(f.name.range, std::string("the ") + kind + quoted(f.name.text) + " declares " +
                           std::to_string(f.results.size()) + " results and returns " +
                           std::to_string(callee.results.size()));
    callee.results.clear();
    return;
  }
  for (size_t i = 0; i < callee.results.size(); ++i) {
    auto declared = type(f.results[i], instance);
    if (!declared)
      continue;
    ValueId &value = callee.results[i];
    const TensorType &actual = typeOf(value);
    SourceRange range = f.body.empty() ? f.name.range : f.body.back().range;
    if (f.body.size() && f.body.back().kind == ast::StmtKind::Return &&
        i < f.body.back().values.size())
      range = f.body.back().values[i]->range;
    if (actual.element != declared->element || !sameDims(actual, *declared)) {
      diagnostics
          .error(range, "the " + std::string(kind) + quoted(f.name.text) + " returns " +
                            program.show(actual) + " and declares " + program.show(*declared))
          .notes.push_back({f.results[i].range, "the declaration"});
      callee.results.clear();
      return;
    }
    value = reordered(value, *declared, range);
  }
}

//===----------------------------------------------------------------------===//
// Names, params, parts
//===----------------------------------------------------------------------===//

Operand Checker::readParam(const InstanceRef &ref, uint32_t index, SourceRange range) {
  if (index == UINT32_MAX || index >= program.params.size())
    return {};
  const Param &param = program.params[index];
  if (ref.layers.size() != param.stacked)
    return {};
  std::pair key(index, ref.layers);
  for (auto &reads : build->reads)
    if (auto it = reads.find(key); it != reads.end())
      return Operand::of(it->second);
  TensorType type = param.type;
  type.dims.erase(type.dims.begin(), type.dims.begin() + param.stacked);
  // A read that depends on no loop belongs to the outermost region, where all
  // later reads find it.
  size_t home = 0;
  for (const LayerIndex &layer : ref.layers)
    if (!layer.fixed) {
      size_t level = std::find(build->loops.begin(), build->loops.end(), layer.loop) -
                     build->loops.begin() + 1;
      if (level < home)
        return fail(range,
                    "the loops stand in another order than the arrays of " + quoted(param.path),
                    "put the loop over " + quoted(param.type.dims[0].name) + " outside");
      home = level;
    }
  if (build->discardFrom)
    home = build->regions.size() - 1;
  Node node;
  node.op = Op::Param;
  node.results = {newValue(std::move(type), range)};
  node.range = range;
  node.scope = frame->scope;
  node.param = index;
  node.layers = ref.layers;
  ValueId value = node.results[0];
  build->regions[home]->nodes.push_back(std::move(node));
  build->reads[home][key] = value;
  build->paramOf[value] = index;
  if (!build->discardFrom)
    build->params.insert(index);
  addName(value, param.path);
  return Operand::of(value);
}

Operand Checker::evalName(const ast::Expr &e) {
  const std::string &name = e.text;
  const Instance &self = *frame->self.instance;
  if (auto local = frame->locals.find(name); local != frame->locals.end())
    return local->second;
  if (auto bound = self.statics.find(name); bound != self.statics.end())
    return Operand::of(bound->second.number);
  if (auto param = self.params.find(name); param != self.params.end())
    return readParam(frame->self, param->second, e.range);
  if (auto param = root.params.find(name); param != root.params.end())
    return readParam({&root, {}}, param->second, e.range);
  if (self.parts.count(name) || root.parts.count(name))
    return fail(e.range, quoted(name) + " is a part, not a value",
                "call it, `" + name + "(x)`, or take a param of it");
  if (functions.count(name) || blocks.count(name) || isBuiltin(name))
    return fail(e.range,
                quoted(name) + " is a " + (blocks.count(name) ? "block" : "function") +
                    ", not a value",
                functions.count(name) || isBuiltin(name) ? "call it: `" + name + "(...)`" : "");
  if (badDims.count(name))
    return {};
  if (auto hyper = hyperIndex.find(name); hyper != hyperIndex.end())
    return Operand::of(program.hyperparameters[hyper->second].value);
  if (const NamedDim *dim = findDim(name, self))
    return Operand::of(Setting(dim->size));
  std::vector<std::string> known;
  for (const auto &[local, value] : frame->locals)
    known.push_back(local);
  for (const Instance *instance : {&self, const_cast<const Instance *>(&root)}) {
    for (const auto &[param, index] : instance->params)
      known.push_back(param);
    for (const auto &[part, child] : instance->parts)
      known.push_back(part);
    for (const auto &[bound, value] : instance->statics)
      known.push_back(bound);
  }
  for (const NamedDim &dim : program.dims)
    known.push_back(dim.name);
  for (const Hyperparameter &hyper : program.hyperparameters)
    known.push_back(hyper.name);
  known.insert(known.end(), {"true", "false"});
  return fail(e.range, "nothing here is called " + quoted(name), meantHint(name, known));
}

bool Checker::resolvePart(const ast::Expr &e, InstanceRef &out) {
  out = {};
  const Instance &self = *frame->self.instance;
  if (e.kind == ast::ExprKind::Name) {
    if (frame->locals.count(e.text) || self.params.count(e.text))
      return false;
    bool own = self.parts.count(e.text);
    if (!own && !root.parts.count(e.text))
      return false;
    out.instance = (own ? self : root).parts.at(e.text).get();
    if (own)
      out.layers = frame->self.layers;
    return true;
  }
  if (e.kind == ast::ExprKind::Member) {
    InstanceRef base;
    if (!resolvePart(*e.children[0], base))
      return false;
    if (!base.instance || !complete(base, *e.children[0]))
      return true;
    auto part = base.instance->parts.find(e.text);
    if (part == base.instance->parts.end())
      return false;
    out.instance = part->second.get();
    out.layers = base.layers;
    return true;
  }
  if (e.kind != ast::ExprKind::Index || !resolvePart(*e.children[0], out))
    return false;
  if (!out.instance)
    return true;
  const Instance &array = *out.instance;
  for (const ast::Item &item : e.items) {
    auto reject = [&](SourceRange range, const std::string &message, const std::string &hint = {}) {
      fail(range, message, hint);
      out = {};
      return true;
    };
    if (out.layers.size() == array.arrays.size())
      return reject(e.range, quoted(array.path) + (array.ownArrays ? " has too many indices"
                                                                   : " is no array of parts"));
    const std::string &dim = array.arrays[out.layers.size()];
    if (!item.value || !item.name.text.empty())
      return reject(e.range, "a part is indexed by a loop's index or a number");
    Operand index = eval(*item.value);
    if (!index) {
      out = {};
      return true;
    }
    std::string advice = "write `repeat i in " + dim + " { ... }` and use `i`";
    if (index.kind == Operand::Tensor && build->loopDims.count(index.value)) {
      const std::string &loop = build->loopDims[index.value];
      if (loop != dim && loop != "?")
        return reject(item.value->range,
                      quoted(array.path) + " is an array over " + quoted(dim) +
                          ", and the loop runs over " + quoted(loop),
                      advice);
      out.layers.push_back({false, index.value, 0});
    } else if (index.kind == Operand::Number && std::holds_alternative<int64_t>(index.number)) {
      int64_t value = std::get<int64_t>(index.number);
      if (value < 0 || value >= sizeOf(dim))
        return reject(item.value->range, "the index " + std::to_string(value) + " is outside of " +
                                             quoted(array.path) + ", which has " +
                                             std::to_string(sizeOf(dim)));
      out.layers.push_back({true, 0, value});
    } else {
      return reject(item.value->range, "a part is indexed by a loop's index or a number", advice);
    }
  }
  return true;
}

bool Checker::complete(const InstanceRef &ref, const ast::Expr &e) {
  if (ref.layers.size() == ref.instance->arrays.size())
    return true;
  const std::string &dim = ref.instance->arrays[ref.layers.size()];
  fail(e.range, quoted(ref.instance->path) + " is an array of parts over " + quoted(dim),
       "write `repeat i in " + dim + " { ... }` and take `" + ref.instance->path + "[i]`");
  return false;
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

Operand Checker::evalCall(const ast::Expr &e) {
  const ast::Expr &callee = *e.children[0];
  InstanceRef part;
  if (resolvePart(callee, part)) {
    if (!part.instance || !complete(part, callee))
      return {};
    if (part.instance->kind != Instance::Block)
      return callNorm(part, e);
    return inlineCall(*part.instance->block, part, part.instance->path, e);
  }
  if (callee.kind == ast::ExprKind::Member &&
      (isBuiltin(callee.text) || functions.count(callee.text)))
    return fail(callee.opRange, "a tensor has no members",
                "write " + quoted(callee.text + "(" +
                                  std::string(program.sources.text(callee.children[0]->range)) +
                                  (e.items.empty() ? ")" : ", ...)")));
  if (callee.kind == ast::ExprKind::Member && !eval(callee))
    return {};
  if (callee.kind != ast::ExprKind::Name)
    return fail(callee.range, "this cannot be called");
  const std::string &name = callee.text;
  if (frame->locals.count(name) || frame->self.instance->params.count(name))
    return fail(callee.range, quoted(name) + " is a value, which cannot be called",
                "a look-up is " + quoted(name + "[ids]"));
  if (auto f = functions.find(name); f != functions.end())
    return inlineCall(*f->second, {&root, {}}, name, e);
  if (blocks.count(name))
    return fail(callee.range, quoted(name) + " is a block, which has params of its own",
                "make a part of it, `part some_name: " + name + "`, and call the part");
  if (auto element = parseDType(name))
    return callCast(*element, e);
  if (isBuiltin(name))
    return callBuiltin(name, e);
  if (root.params.count(name))
    return fail(callee.range, quoted(name) + " is a param, which cannot be called",
                "a look-up is " + quoted(name + "[ids]"));
  if (findDim(name, *frame->self.instance) || hyperIndex.count(name))
    return fail(callee.range, quoted(name) + " cannot be called");
  std::vector<std::string> known = builtins();
  for (const auto &[function, f] : functions)
    known.push_back(function);
  for (const Instance *instance : {frame->self.instance, const_cast<const Instance *>(&root)})
    for (const auto &[name, child] : instance->parts)
      known.push_back(name);
  if (name == "gelu")
    return fail(callee.range, "there are two forms of GELU",
                "write `gelu_tanh(x)` (GPT-2) or `gelu_erf(x)` (BERT)");
  // What other frameworks call it.
  static const std::map<std::string, const char *> elsewhere = {
      {"embedding", "a look-up is `table[ids]`"},
      {"matmul", "a product is `a @ b`"},
      {"einsum", "a product is `a @ b`, or `a @[names] b`"},
      {"linear", "a product is `x @ w + b`"},
      {"dense", "a product is `x @ w + b`"},
      {"transpose", "another order of dims is `x as [b, a]`"},
      {"permute", "another order of dims is `x as [b, a]`"},
      {"reshape", "compound dims split and join by name: `x as [heads, head_dim]`"},
      {"view", "compound dims split and join by name: `x as [heads, head_dim]`"},
      {"cat", "write `concat(a, b, over = [first, rest], into = seq)`"},
      {"split", "a slice is `x[first = seq[0:4]]`"},
      {"arange", "positions along a dim are `index(seq)`"},
      {"zeros", "write `fill(0.0, [batch, seq])`"},
      {"ones", "write `fill(1.0, [batch, seq])`"},
      {"swish", "write `silu(x)`"},
      {"float", "a cast is `f32(x)`"},
      {"int", "a cast is `i32(x)`"},
      {"log_softmax", "write `log(softmax(x, over = dim))`, or `cross_entropy(logits, labels)`"}};
  auto other = elsewhere.find(name);
  return fail(callee.range, "no function or part is called " + quoted(name),
              other != elsewhere.end() ? other->second : meantHint(name, known));
}

/// A value of the declared type, so that checking can go on after a fault.
Operand Checker::placeholder(const ast::Function &callee, const Instance &instance,
                             SourceRange range) {
  if (!callee.hasResults)
    return {};
  Operand out{Operand::Tuple, int64_t(0), 0, {}};
  for (const ast::Type &result : callee.results) {
    auto type = this->type(result, instance);
    if (!type)
      return {};
    out.tuple.push_back(newValue(*type, range));
  }
  return out.tuple.size() == 1 ? Operand::of(out.tuple[0]) : out;
}

Operand Checker::inlineCall(const ast::Function &callee, const InstanceRef &self,
                            const std::string &scope, const ast::Expr &call) {
  const char *kind = callee.isBlock ? "part" : "function";
  std::vector<Operand> values;
  for (const ast::Item &item : call.items) {
    if (!item.name.text.empty()) {
      std::vector<std::string> known;
      for (const ast::Argument &argument : callee.arguments)
        known.push_back(argument.name.text);
      fail(item.name.range,
           "arguments of a " + std::string(kind) + " are given by place, not by name",
           "leave out `" + item.name.text + " =`");
    }
    values.push_back(item.value ? eval(*item.value) : Operand());
  }
  if (std::find(active.begin(), active.end(), &callee) != active.end())
    return fail(call.range, quoted(callee.name.text) + " calls itself",
                "a program has no recursion");
  if (active.size() > maxCallDepth)
    return fail(call.range, "calls are more than " + std::to_string(maxCallDepth) + " deep");
  if (values.size() != callee.arguments.size()) {
    diagnostics
        .error(call.range, "the " + std::string(kind) + " " +
                               quoted(program.sources.text(call.children[0]->range)) + " takes " +
                               std::to_string(callee.arguments.size()) +
                               (callee.arguments.size() == 1 ? " argument" : " arguments") +
                               ", here are " + std::to_string(values.size()))
        .notes.push_back({callee.name.range, "it is declared here"});
    return placeholder(callee, *self.instance, call.range);
  }
  Frame inner;
  inner.function = &callee;
  inner.self = self;
  inner.scope = scope;
  bool ok = true;
  for (size_t i = 0; i < values.size(); ++i) {
    const ast::Argument &argument = callee.arguments[i];
    auto declared = type(argument.type, *self.instance);
    auto value = tensor(values[i], call.items[i].value ? call.items[i].value->range : call.range,
                        declared ? declared->element : DType::F32);
    ok &= declared && value;
    if (!declared || !value)
      continue;
    const TensorType &actual = typeOf(*value);
    if (actual.element != declared->element || !sameDims(actual, *declared)) {
      std::string hint;
      if (sameDims(actual, *declared))
        hint = "cast it: `" + std::string(cleave::name(declared->element)) + "(...)`";
      diagnostics
          .error(call.items[i].value->range,
                 "the argument " + quoted(argument.name.text) + " of the " + kind + " is " +
                     program.show(*declared) + ", and this is " + program.show(actual),
                 hint)
          .notes.push_back({argument.name.range, "it is declared here"});
      ok = false;
      continue;
    }
    ValueId ordered = reordered(*value, *declared, call.items[i].value->range);
    addName(ordered, scope + "." + argument.name.text);
    inner.locals[argument.name.text] = Operand::of(ordered);
  }
  if (!ok || gaveUp)
    return placeholder(callee, *self.instance, call.range);
  Frame *outer = frame;
  frame = &inner;
  active.push_back(&callee);
  statements(callee.body);
  finish(inner, *self.instance);
  active.pop_back();
  frame = outer;
  if (inner.results.empty())
    return placeholder(callee, *self.instance, call.range);
  for (ValueId value : inner.results)
    addName(value, scope);
  if (inner.results.size() == 1)
    return Operand::of(inner.results[0]);
  return {Operand::Tuple, int64_t(0), 0, inner.results};
}

Operand Checker::callNorm(const InstanceRef &ref, const ast::Expr &call) {
  const Instance &instance = *ref.instance;
  if (call.items.size() != 1 || !call.items[0].value || !call.items[0].name.text.empty())
    return fail(call.range, quoted(instance.path) + " takes one argument");
  auto x = tensorOf(*call.items[0].value);
  if (!x)
    return {};
  bool layer = instance.kind == Instance::LayerNorm;
  for (const std::string &dim : instance.normDims)
    if (!typeOf(*x).has(dim))
      return fail(call.items[0].value->range, quoted(instance.path) + " normalises over " +
                                                  quoted(show(instance.normDims)) +
                                                  ", and this is " + program.show(typeOf(*x)));
  auto weight = tensor(readParam(ref, instance.params.at("weight"), call.range), call.range);
  std::optional<ValueId> bias;
  if (layer)
    bias = tensor(readParam(ref, instance.params.at("bias"), call.range), call.range);
  addName(*x, instance.path + ".x");
  Operand out = norm(layer, *x, weight, bias, instance.normDims, instance.epsilon, call.range);
  if (out.kind == Operand::Tensor)
    addName(out.value, instance.path);
  return out;
}

} // namespace cleave::sema
