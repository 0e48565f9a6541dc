//===- SemaModel.cpp - declarations -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Sema.h"

#include <algorithm>

namespace cleave::sema {

constexpr unsigned maxInstances = 10000;
constexpr size_t maxBlockDepth = 64;

//===----------------------------------------------------------------------===//
// Params and parts
//===----------------------------------------------------------------------===//

std::optional<Init> Checker::initialiser(const ast::Param &param, const Instance &context) {
  static const std::vector<std::string> known = {"normal", "zeros", "ones", "uniform", "constant"};
  if (!param.init) {
    diagnostics.error(
        param.range, "the param " + quoted(param.names[0].text) + " has no initialiser",
        "add `= normal(0.02)`, `= zeros`, `= ones`, `= uniform(low, high)` or `= constant(c)`");
    return std::nullopt;
  }
  const ast::Expr &e = *param.init;
  const ast::Expr &head = e.kind == ast::ExprKind::Call ? *e.children[0] : e;
  if (head.kind != ast::ExprKind::Name ||
      std::find(known.begin(), known.end(), head.text) == known.end()) {
    std::string hint = head.kind == ast::ExprKind::Name ? meantHint(head.text, known) : "";
    if (hint.empty())
      hint = "normal(deviation), zeros, ones, uniform(low, high) or constant(c)";
    diagnostics.error(head.range, "expected an initialiser", hint);
    return std::nullopt;
  }
  std::vector<double> args;
  size_t wanted = head.text == "uniform" ? 2 : head.text == "zeros" || head.text == "ones" ? 0 : 1;
  if (e.items.size() != wanted || (e.kind == ast::ExprKind::Call) != (wanted > 0)) {
    diagnostics.error(e.range,
                      wanted == 0 ? quoted(head.text) + " takes no arguments"
                                  : quoted(head.text) + " takes " + std::to_string(wanted) +
                                        (wanted == 1 ? " number" : " numbers"),
                      wanted == 0   ? "write `" + head.text + "`"
                      : wanted == 1 ? "write `" + head.text + "(0.02)`"
                                    : "write `uniform(low, high)`");
    return std::nullopt;
  }
  for (const ast::Item &item : e.items) {
    auto value =
        item.value && item.name.text.empty() ? number(*item.value, context, false) : std::nullopt;
    if (!value)
      return std::nullopt;
    if (isBool(*value)) {
      diagnostics.error(item.value->range, "expected a number");
      return std::nullopt;
    }
    args.push_back(real(*value));
  }
  Init init;
  init.kind = head.text == "normal"     ? Init::Normal
              : head.text == "ones"     ? Init::Ones
              : head.text == "uniform"  ? Init::Uniform
              : head.text == "constant" ? Init::Constant
                                        : Init::Zeros;
  init.text = head.text;
  if (!args.empty())
    init.a = args[0];
  if (args.size() > 1)
    init.b = args[1];
  if ((init.kind == Init::Normal && init.a < 0) ||
      (init.kind == Init::Uniform && init.b < init.a)) {
    diagnostics.error(e.range, init.kind == Init::Normal ? "the deviation is negative"
                                                         : "the high end is below the low end");
    return std::nullopt;
  }
  for (size_t i = 0; i < args.size(); ++i)
    init.text += (i ? ", " : "(") + toString(Setting(args[i]));
  if (!args.empty())
    init.text += ")";
  return init;
}

uint32_t Checker::addParam(Instance &instance, const std::string &name, TensorType type, Init init,
                           SourceRange range) {
  Param param;
  param.path = instance.path.empty() ? name : instance.path + "." + name;
  param.stacked = instance.arrays.size();
  param.type.element = type.element;
  for (const std::string &array : instance.arrays) {
    if (type.has(array))
      diagnostics.error(range,
                        "the param " + quoted(param.path) + " has the dim " + quoted(array) +
                            ", over which its part is an array",
                        "a second dim of this size needs a name of its own: `dim other = " + array +
                            "`");
    param.type.dims.push_back({array, sizeOf(array)});
  }
  param.type.dims.insert(param.type.dims.end(), type.dims.begin(), type.dims.end());
  param.init = std::move(init);
  param.range = range;
  checkSize(param.type, range);
  program.params.push_back(std::move(param));
  return instance.params[name] = program.params.size() - 1;
}

void Checker::addParams(Instance &instance, const std::vector<ast::Param> &params) {
  for (const ast::Param &param : params) {
    auto type = this->type(param.type, instance);
    auto init = initialiser(param, instance);
    if (type && type->element != DType::F32) {
      diagnostics.error(param.type.elementRange, "params are f32",
                        "leave out " + quoted(param.type.element));
      type->element = DType::F32;
    }
    for (const ast::Name &name : param.names)
      if (!instance.params.count(name.text)) {
        if (type)
          addParam(instance, name.text, *type, init.value_or(Init()), name.range);
        else
          instance.params[name.text] = UINT32_MAX; // its fault is said; uses are silent
      }
  }
}

void Checker::addParts(Instance &instance, const std::vector<ast::Part> &parts) {
  for (const ast::Part &part : parts)
    for (const ast::Name &name : part.names)
      if (!instance.parts.count(name.text))
        instance.parts[name.text] = instantiate(instance, part, name);
}

/// Null when the part is wrong: reported.
std::unique_ptr<Instance> Checker::instantiate(const Instance &outer, const ast::Part &part,
                                               const ast::Name &name) {
  if (gaveUp)
    return nullptr;
  if (++instances > maxInstances) {
    diagnostics.error(part.range,
                      "the model has more than " + std::to_string(maxInstances) + " parts",
                      "use arrays of parts: `part body: layer[layers]`");
    gaveUp = true;
    return nullptr;
  }
  auto instance = std::make_unique<Instance>();
  instance->path = outer.path.empty() ? name.text : outer.path + "." + name.text;
  instance->arrays = outer.arrays;
  instance->ownArrays = part.arrays.size();
  for (const ast::Name &dim : part.arrays) {
    auto atom = singleAtom(dim, outer, "the dim of an array of parts");
    if (!atom)
      return nullptr;
    if (std::find(instance->arrays.begin(), instance->arrays.end(), *atom) !=
        instance->arrays.end()) {
      diagnostics.error(
          dim.range, "an array of parts over " + quoted(dim.text) + " stands in another one",
          "give the second one a name of its own: `dim other = " + printable(dim.text) + "`");
      return nullptr;
    }
    instance->arrays.push_back(*atom);
  }
  if (part.block.text == "layer_norm" || part.block.text == "rms_norm")
    return bindNorm(*instance, outer, part) ? std::move(instance) : nullptr;
  return bindBlock(*instance, outer, part) ? std::move(instance) : nullptr;
}

bool Checker::bindNorm(Instance &instance, const Instance &outer, const ast::Part &part) {
  bool layer = part.block.text == "layer_norm";
  instance.kind = layer ? Instance::LayerNorm : Instance::RmsNorm;
  instance.epsilon = layer ? 1e-5 : 1e-6;
  TensorType type;
  std::string usage = "write `part norm: " + part.block.text + "(width)`";
  for (const ast::Item &item : part.arguments) {
    if (!item.value || (item.name.text.empty() && !type.dims.empty())) {
      diagnostics.error(part.block.range, quoted(part.block.text) + " takes one dim and `epsilon`",
                        usage);
      return false;
    }
    if (item.name.text == "epsilon") {
      auto value = number(*item.value, outer, false);
      if (!value)
        return false;
      if (isBool(*value) || real(*value) < 0) {
        diagnostics.error(item.value->range, "epsilon is a number that is not negative");
        return false;
      }
      instance.epsilon = real(*value);
      continue;
    }
    if (!item.name.text.empty()) {
      std::string hint = meantHint(item.name.text, {"epsilon"});
      diagnostics.error(item.name.range,
                        quoted(part.block.text) + " has no argument " + quoted(item.name.text),
                        hint.empty() ? usage : hint);
      return false;
    }
    auto atoms = dimAtoms(*item.value, outer);
    if (!atoms)
      return false;
    for (const std::string &atom : *atoms) {
      if (type.has(atom)) {
        diagnostics.error(item.value->range, "the dim " + quoted(atom) + " stands twice");
        return false;
      }
      type.dims.push_back({atom, sizeOf(atom)});
    }
    instance.normDims = *atoms;
  }
  if (type.dims.empty()) {
    diagnostics.error(part.range, quoted(part.block.text) + " needs the dim that it normalises",
                      usage);
    return false;
  }
  addParam(instance, "weight", type, {Init::Ones, 0, 0, "ones"}, part.range);
  if (layer)
    addParam(instance, "bias", type, {Init::Zeros, 0, 0, "zeros"}, part.range);
  return true;
}

bool Checker::bindBlock(Instance &instance, const Instance &outer, const ast::Part &part) {
  auto it = blocks.find(part.block.text);
  if (it == blocks.end()) {
    std::vector<std::string> known = {"layer_norm", "rms_norm"};
    for (const auto &[name, block] : blocks)
      known.push_back(name);
    std::string hint = functions.count(part.block.text) ? "a function has no parts: call it" : "";
    diagnostics.error(part.block.range, "no block is called " + quoted(part.block.text),
                      hint.empty() ? meantHint(part.block.text, known) : hint);
    return false;
  }
  const ast::Function &block = *it->second;
  instance.kind = Instance::Block;
  instance.block = &block;
  if (std::find(active.begin(), active.end(), &block) != active.end() ||
      active.size() > maxBlockDepth) {
    diagnostics.error(part.range,
                      active.size() > maxBlockDepth
                          ? "blocks stand in blocks more than " + std::to_string(maxBlockDepth) +
                                " deep"
                          : "the block " + quoted(part.block.text) + " is a part of itself");
    return false;
  }
  std::vector<std::string> known;
  for (const ast::Hyper &hyper : block.hypers)
    known.push_back(hyper.name.text);
  size_t next = 0;
  auto bind = [&](const std::string &name, const ast::Expr &value, const Instance &context) {
    Static bound;
    const NamedDim *dim =
        value.kind == ast::ExprKind::Name ? findDim(value.text, context) : nullptr;
    if (dim) {
      bound = {true, dim->name, Setting(dim->size)};
    } else {
      auto constant = number(value, context, false);
      if (!constant)
        return false;
      bound.number = *constant;
    }
    if (instance.statics.emplace(name, bound).second)
      return true;
    diagnostics.error(value.range, "the hyperparameter " + quoted(name) + " is given twice");
    return false;
  };
  for (const ast::Item &item : part.arguments) {
    std::string name = item.name.text;
    if (name.empty()) {
      if (next >= known.size() || !item.value) {
        diagnostics
            .error(item.value ? item.value->range : part.range,
                   "the block " + quoted(block.name.text) + " has " +
                       (known.empty() ? "no" : std::to_string(known.size())) +
                       (known.size() == 1 ? " hyperparameter" : " hyperparameters"))
            .notes.push_back({block.name.range, "it is declared here"});
        return false;
      }
      name = known[next++];
    } else if (std::find(known.begin(), known.end(), name) == known.end()) {
      diagnostics.error(item.name.range,
                        "the block " + quoted(block.name.text) + " has no hyperparameter " +
                            quoted(name),
                        meantHint(name, known));
      return false;
    }
    if (!bind(name, *item.value, outer))
      return false;
  }
  for (const ast::Hyper &hyper : block.hypers) {
    if (instance.statics.count(hyper.name.text))
      continue;
    if (!hyper.value) {
      diagnostics
          .error(part.range, "the part does not give " + quoted(hyper.name.text) +
                                 " of the block " + quoted(block.name.text))
          .notes.push_back({hyper.name.range, "it has no default"});
      return false;
    }
    if (!bind(hyper.name.text, *hyper.value, instance))
      return false;
  }
  active.push_back(&block);
  addParams(instance, block.params);
  addParts(instance, block.parts);
  active.pop_back();
  return true;
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

bool Checker::newName(std::map<std::string, SourceRange> &known, const ast::Name &name,
                      const char *what) {
  if (isBuiltin(name.text) || parseDType(name.text)) {
    diagnostics.error(name.range, quoted(name.text) + " is a function of the language",
                      std::string("give the ") + what + " another name");
    return false;
  }
  auto [it, fresh] = known.emplace(name.text, name.range);
  if (!fresh)
    diagnostics
        .error(name.range,
               std::string("the name of the ") + what + " " + quoted(name.text) + " is taken")
        .notes.push_back({it->second, "the first is here"});
  return fresh;
}

void Checker::declareNames() {
  std::map<std::string, SourceRange> known;
  for (const NamedDim &dim : program.dims)
    known.emplace(dim.name, dim.range);
  for (const Hyperparameter &hyper : program.hyperparameters)
    known.emplace(hyper.name, hyper.range);
  for (const ast::Param &param : source->params)
    for (const ast::Name &name : param.names)
      newName(known, name, "param");
  for (const ast::Part &part : source->parts)
    for (const ast::Name &name : part.names)
      newName(known, name, "part");
  for (const ast::Function &f : source->functions) {
    if (newName(known, f.name, f.isBlock ? "block" : "function"))
      (f.isBlock ? blocks : functions)[f.name.text] = &f;
    std::map<std::string, SourceRange> inner;
    for (const ast::Hyper &hyper : f.hypers)
      newName(inner, hyper.name, "hyperparameter");
    for (const ast::Param &param : f.params)
      for (const ast::Name &name : param.names)
        newName(inner, name, "param");
    for (const ast::Part &part : f.parts)
      for (const ast::Name &name : part.names)
        newName(inner, name, "part");
    for (const ast::Argument &argument : f.arguments)
      newName(inner, argument.name, "argument");
  }
}

/// Checks a function as an entry, or a block that no part uses.
void Checker::entry(const ast::Function &function, const Instance &instance, bool keep) {
  Build current;
  Frame top;
  build = &current;
  frame = &top;
  current.function.name = function.name.text;
  current.function.range = function.name.range;
  current.regions.push_back(&current.function.body);
  current.reads.emplace_back();
  top.function = &function;
  top.self.instance = &instance;
  for (size_t i = 0; i < instance.arrays.size(); ++i)
    top.self.layers.push_back({true, 0, 0});
  top.scope = function.isBlock ? instance.path : function.name.text;
  bool known = true;
  for (const ast::Argument &argument : function.arguments) {
    auto type = this->type(argument.type, instance);
    if (!type) {
      known = false;
      top.locals[argument.name.text] = {};
      continue;
    }
    ValueId value = newValue(*type, argument.name.range);
    addName(value, top.scope + "." + argument.name.text);
    current.function.body.arguments.push_back(value);
    current.function.argumentNames.push_back(argument.name.text);
    top.locals[argument.name.text] = Operand::of(value);
  }
  active.push_back(&function);
  statements(function.body);
  finish(top, instance);
  for (ValueId value : top.results)
    addName(value, top.scope);
  active.pop_back();
  if (known && keep) {
    current.function.body.yields = top.results;
    current.function.params.assign(current.params.begin(), current.params.end());
    for (const Value &value : current.function.values)
      valueNames.insert(value.names.begin(), value.names.end());
    program.functions.push_back(std::move(current.function));
  }
  build = nullptr;
  frame = nullptr;
}

void Checker::model(const ast::Model &model, SourceRange mapRange) {
  source = &model;
  program.model = model.name.text;
  program.range = mapRange;
  hyperparameters();
  dims();
  declareNames();
  addParams(root, model.params);
  addParts(root, model.parts);
  std::set<const ast::Function *> used;
  std::function<void(const Instance &)> collect = [&](const Instance &instance) {
    used.insert(instance.block);
    for (const auto &[name, part] : instance.parts)
      if (part)
        collect(*part);
  };
  collect(root);
  for (const ast::Function &f : model.functions)
    if (!f.isBlock && functions.count(f.name.text) && functions[f.name.text] == &f)
      entry(f, root, true);
  // Blocks without a part are checked too, if that can be done without one.
  for (const ast::Function &f : model.functions) {
    bool closed = std::all_of(f.hypers.begin(), f.hypers.end(),
                              [](const auto &h) { return h.value != nullptr; });
    if (!f.isBlock || used.count(&f) || !closed || blocks[f.name.text] != &f || gaveUp)
      continue;
    size_t params = program.params.size();
    ast::Part part;
    part.range = f.name.range;
    part.block = f.name;
    if (auto instance = instantiate(root, part, f.name))
      entry(f, *instance, false);
    program.params.resize(params);
  }
  for (const ast::Weights &w : model.weights)
    weights(w);
}

} // namespace cleave::sema
