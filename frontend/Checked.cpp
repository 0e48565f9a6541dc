//===- Checked.cpp - the checked program as text -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Checked.h"

#include <algorithm>
#include <charconv>

namespace cleave::checked {

int TensorType::find(std::string_view name) const {
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i].name == name)
      return i;
  return -1;
}

static std::string number(double value) {
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return std::string(buffer, end);
}

std::string toString(const Setting &value) {
  if (const int64_t *integer = std::get_if<int64_t>(&value))
    return std::to_string(*integer);
  if (const bool *truth = std::get_if<bool>(&value))
    return *truth ? "true" : "false";
  return number(std::get<double>(value));
}

std::string_view name(Op op) {
  static constexpr std::string_view names[] = {"param",
                                               "constant",
                                               "iota",
                                               "neg",
                                               "abs",
                                               "exp",
                                               "log",
                                               "sqrt",
                                               "rsqrt",
                                               "tanh",
                                               "sigmoid",
                                               "erf",
                                               "sin",
                                               "cos",
                                               "not",
                                               "gelu",
                                               "silu",
                                               "relu",
                                               "stop_gradient",
                                               "cast",
                                               "broadcast",
                                               "rename",
                                               "add",
                                               "sub",
                                               "mul",
                                               "div",
                                               "max",
                                               "min",
                                               "pow",
                                               "and",
                                               "or",
                                               "eq",
                                               "ne",
                                               "lt",
                                               "le",
                                               "gt",
                                               "ge",
                                               "select",
                                               "reduce_sum",
                                               "reduce_max",
                                               "reduce_min",
                                               "contract",
                                               "gather",
                                               "slice",
                                               "concat",
                                               "softmax",
                                               "layer_norm",
                                               "rms_norm",
                                               "dropout",
                                               "rope",
                                               "cross_entropy",
                                               "attention",
                                               "repeat"};
  static_assert(std::size(names) == static_cast<size_t>(Op::Repeat) + 1);
  return names[static_cast<size_t>(op)];
}

template <typename List> static auto *byName(List &list, std::string_view name) {
  auto it =
      std::find_if(list.begin(), list.end(), [&](const auto &item) { return item.name == name; });
  return it == list.end() ? nullptr : &*it;
}
const Function *Program::function(std::string_view name) const { return byName(functions, name); }
std::optional<int64_t> layersOfEvery(std::string_view recompute) {
  constexpr std::string_view before = "every(";
  int64_t layers = 0;
  if (!recompute.starts_with(before) || !recompute.ends_with(")"))
    return std::nullopt;
  const char *first = recompute.data() + before.size();
  const char *last = recompute.data() + recompute.size() - 1;
  auto [end, error] = std::from_chars(first, last, layers);
  return error == std::errc() && end == last && layers > 0 ? std::optional(layers) : std::nullopt;
}

AxisUse Program::splitBy(const Plan &plan, std::string_view axis) const {
  AxisUse use;
  for (const ShardRule &rule : plan.rules)
    for (const ShardRule::Alternative &alternative : rule.alternatives)
      if (std::find(alternative.axes.begin(), alternative.axes.end(), axis) !=
          alternative.axes.end())
        for (const PlanDim &planned : alternative.dims) {
          const NamedDim *named = dim(planned.name);
          const PlanDim *&first = named && named->kind == NamedDim::Free ? use.free : use.other;
          first = first ? first : &planned;
        }
  return use;
}

const Plan *Program::plan(std::string_view name) const { return byName(plans, name); }
const NamedDim *Program::dim(std::string_view name) const { return byName(dims, name); }

std::string Program::show(const TensorType &type) const {
  std::string out = type.element == DType::F32 && !type.dims.empty()
                        ? ""
                        : std::string(cleave::name(type.element));
  if (type.dims.empty())
    return out;
  out += '[';
  for (size_t i = 0; i < type.dims.size();) {
    const NamedDim *best = nullptr;
    for (const NamedDim &dim : dims) {
      if (dim.atoms.size() < 2 || i + dim.atoms.size() > type.dims.size() ||
          (best && best->atoms.size() >= dim.atoms.size()))
        continue;
      bool all = true;
      for (size_t j = 0; j < dim.atoms.size(); ++j)
        all &= dim.atoms[j] == type.dims[i + j].name;
      if (all)
        best = &dim;
    }
    out += i ? ", " : "";
    out += best ? best->name + "=" + std::to_string(best->size)
                : type.dims[i].name + "=" + std::to_string(type.dims[i].size);
    i += best ? best->atoms.size() : 1;
  }
  return out + "]";
}

namespace {

class Printer {
public:
  explicit Printer(const Program &program) : program(program) {}
  std::string out;

  static std::string type(const TensorType &t) {
    std::string text(cleave::name(t.element));
    if (t.dims.empty())
      return text;
    text += '[';
    for (const Atom &atom : t.dims)
      text += (text.back() == '[' ? "" : ", ") + atom.name + "=" + std::to_string(atom.size);
    return text + "]";
  }

  static std::string join(const std::vector<std::string> &list, const char *between = ", ") {
    std::string text;
    for (const std::string &item : list)
      text += (&item == &list.front() ? "" : between) + item;
    return text;
  }

  void region(const Function &f, const Region &r, const std::string &indent, const char *end) {
    for (const Node &node : r.nodes) {
      out += indent;
      for (size_t i = 0; i < node.results.size(); ++i)
        out += (i ? ", %" : "%") + std::to_string(node.results[i]);
      out += node.results.empty() ? "" : " = ";
      out += name(node.op);
      for (size_t i = 0; i < node.operands.size(); ++i)
        out += (i ? ", %" : " %") + std::to_string(node.operands[i]);
      details(node);
      if (node.op == Op::Repeat) {
        const Region &body = node.body[0];
        out += " (%" + std::to_string(body.index);
        for (ValueId carried : body.arguments)
          out += ", %" + std::to_string(carried);
        out += ") {\n";
        region(f, body, indent + "  ", "yield");
        out += indent + "}";
      }
      for (ValueId value : node.results) {
        out += (value == node.results.front() ? " : " : ", ") + type(f.values[value].type);
        if (!f.values[value].names.empty())
          out += " \"" + join(f.values[value].names, "\" \"") + "\"";
      }
      SourceLocation at = program.sources.locate(node.range);
      out += " @" + std::to_string(at.line) + ":" + std::to_string(at.column) + "\n";
    }
    out += indent + end;
    for (ValueId value : r.yields)
      out += (value == r.yields.front() ? " %" : ", %") + std::to_string(value);
    out += '\n';
  }

  void details(const Node &node) {
    if (node.op == Op::Param) {
      out += " " + program.params[node.param].path;
      for (const LayerIndex &layer : node.layers)
        out += layer.fixed ? "[" + std::to_string(layer.index) + "]"
                           : "[%" + std::to_string(layer.loop) + "]";
    }
    if (!node.dims.empty())
      out += " {" + join(node.dims) + "}";
    bool numbered = node.op == Op::Constant || node.op == Op::LayerNorm || node.op == Op::RmsNorm ||
                    node.op == Op::Dropout || node.op == Op::Rope || node.op == Op::CrossEntropy;
    if (numbered)
      out += " " + number(node.number);
    if (node.op == Op::Rope || node.op == Op::CrossEntropy || node.op == Op::Repeat)
      out += " count " + std::to_string(node.count);
    if (node.op == Op::Slice)
      out += " from " + std::to_string(node.start) + " stride " + std::to_string(node.stride);
    if (node.op == Op::Gelu)
      out += node.flag ? " tanh" : " erf";
    if (node.op == Op::Rope && node.flag)
      out += " interleaved";
    if (node.op == Op::Attention) {
      const AttentionInfo &a = node.attention;
      out += " query " + a.queryDim + " key " + a.keyDim + " depth " + a.depthDim + " value " +
             a.valueDim + (a.causal ? " causal" : "") + (a.mask ? " mask" : "") +
             (a.bias ? " bias" : "") + " scale " + number(a.scale);
      if (a.rate > 0)
        out += " dropout " + number(a.rate);
    }
    if (node.op == Op::Dropout || (node.op == Op::Attention && node.attention.rate > 0))
      out += " site " + node.site;
  }

  void rule(const ShardRule &r) {
    out += "shard";
    for (const ShardRule::Alternative &alternative : r.alternatives) {
      out += &alternative == &r.alternatives.front() ? " " : " else ";
      for (const PlanDim &dim : alternative.dims)
        out += (&dim == &alternative.dims.front() ? "" : ", ") + join(dim.atoms, " * ");
      out += " by " + join(alternative.axes);
    }
  }

  void run() {
    out += "model " + program.model + "\n";
    for (const Hyperparameter &h : program.hyperparameters)
      out += "hyper " + h.name + " = " + toString(h.value) + "\n";
    for (const NamedDim &d : program.dims)
      if (d.kind != NamedDim::Hyper)
        out += (d.kind == NamedDim::Free ? "free " : "dim ") + d.name + " = " +
               std::to_string(d.size) +
               (d.atoms.size() > 1 ? " (" + join(d.atoms, " * ") + ")" : "") + "\n";
    for (const Param &p : program.params)
      out += "param " + p.path + ": " + type(p.type) +
             (p.stacked ? " stacked " + std::to_string(p.stacked) : "") + " = " + p.init.text +
             (p.decay ? " decay" : "") + "\n";
    for (const Function &f : program.functions) {
      out += "fn " + f.name + "(";
      for (size_t i = 0; i < f.body.arguments.size(); ++i)
        out += (i ? ", %" : "%") + std::to_string(f.body.arguments[i]) + " " + f.argumentNames[i] +
               ": " + type(f.values[f.body.arguments[i]].type);
      out += ") {\n";
      region(f, f.body, "  ", "return");
      out += "}\n";
    }
    for (const Plan &p : program.plans) {
      out += "plan " + p.name + " on (";
      for (const MeshAxisDecl &axis : p.axes)
        out += (&axis == &p.axes.front() ? "" : ", ") + axis.name +
               (axis.size ? "=" + std::to_string(*axis.size) : "");
      out += ")\n";
      if (p.automatic)
        out += "  auto" + (p.hidden ? " hidden " + std::to_string(*p.hidden) : "") + "\n";
      if (p.memoryBytes)
        out += "  memory " + std::to_string(p.memoryBytes) + "B\n";
      for (const Never &never : p.nevers)
        out += "  never " + never.kind + " " + never.path + "\n";
      for (const ShardRule &r : p.rules) {
        out += "  ";
        rule(r);
        out += '\n';
      }
      if (p.overlap)
        out += "  overlap " + p.overlap->how +
               (p.overlap->bucketBytes ? "(" + std::to_string(p.overlap->bucketBytes) + "B)" : "") +
               "\n";
      if (p.zero)
        out += "  zero " + std::to_string(p.zero->level) + " over " + join(p.zero->axes) + "\n";
      for (const Pin &pin : p.pins) {
        out += "  at " + (pin.path.empty() ? "[" + join(pin.dims) + "]" : pin.path) + ": ";
        if (pin.zeroLevel)
          out += "zero " + std::to_string(*pin.zeroLevel) +
                 (*pin.zeroLevel ? " over " + join(pin.axes) : "");
        else if (pin.replicate)
          out += "replicate over " + join(pin.axes);
        else
          rule(pin.rule);
        out += '\n';
      }
    }
    for (const WeightsFormat &w : program.weights) {
      out += "weights " + w.name + "\n";
      for (const WeightEntry &e : w.entries) {
        out += "  \"" + e.file + "\" =";
        for (const WeightEntry::Source &s : e.sources)
          out += " " + program.params[s.param].path;
        out += '\n';
      }
    }
  }

private:
  const Program &program;
};

} // namespace

std::string print(const Program &program) {
  Printer printer(program);
  printer.run();
  return std::move(printer.out);
}

} // namespace cleave::checked
