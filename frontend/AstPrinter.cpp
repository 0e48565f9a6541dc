//===- AstPrinter.cpp - the program in one fixed layout -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Ast.h"

#include <charconv>

namespace cleave::ast {
namespace {

/// Binding strength; a child that binds weaker gets parentheses.
enum Level { Cast, Or, And, Not, Compare, Add, Mul, Matmul, Neg, Post };

Level levelOf(const Expr &e) {
  switch (e.kind) {
  case ExprKind::As:
    return Cast;
  case ExprKind::Contract:
    return Matmul;
  case ExprKind::Unary:
    return e.text == "not" ? Not : Neg;
  case ExprKind::Binary:
    return e.text == "or"                   ? Or
           : e.text == "and"                ? And
           : e.text == "+" || e.text == "-" ? Add
           : e.text == "*" || e.text == "/" ? Mul
                                            : Compare;
  default:
    return Post;
  }
}

class Printer {
public:
  std::string out;

  void names(const std::vector<Name> &list) {
    for (size_t i = 0; i < list.size(); ++i)
      out += (i ? ", " : "") + list[i].text;
  }

  void string(const std::string &text) {
    out += '"';
    for (char c : text) {
      if (c == '"' || c == '\\')
        out += '\\';
      out += c;
    }
    out += '"';
  }

  void items(const std::vector<Item> &list) {
    for (size_t i = 0; i < list.size(); ++i) {
      const Item &item = list[i];
      out += i ? ", " : "";
      if (!item.name.text.empty())
        out += item.name.text + " = ";
      if (!item.slice) {
        expr(*item.value, Cast);
        continue;
      }
      if (item.start)
        expr(*item.start, Cast);
      out += ':';
      if (item.stop)
        expr(*item.stop, Cast);
      if (item.stride) {
        out += ':';
        expr(*item.stride, Cast);
      }
    }
  }

  void expr(const Expr &e, Level least) {
    Level level = levelOf(e);
    bool wrap = level < least;
    out += wrap ? "(" : "";
    switch (e.kind) {
    case ExprKind::Integer:
    case ExprKind::Real:
    case ExprKind::Name:
      out += e.text;
      break;
    case ExprKind::Bool:
      out += e.flag ? "true" : "false";
      break;
    case ExprKind::String:
      string(e.text);
      break;
    case ExprKind::Member:
      expr(*e.children[0], Post);
      out += "." + e.text;
      break;
    case ExprKind::Call:
      expr(*e.children[0], Post);
      out += '(';
      items(e.items);
      out += ')';
      break;
    case ExprKind::Index:
      expr(*e.children[0], Post);
      out += '[';
      items(e.items);
      out += ']';
      break;
    case ExprKind::List:
      out += '[';
      items(e.items);
      out += ']';
      break;
    case ExprKind::As:
      expr(*e.children[0], Cast);
      out += " as [";
      items(e.items);
      out += ']';
      break;
    case ExprKind::Unary:
      out += e.text == "not" ? "not " : "-";
      expr(*e.children[0], level);
      break;
    case ExprKind::Contract:
    case ExprKind::Binary:
      expr(*e.children[0], level == Compare ? Add : level);
      if (e.kind == ExprKind::Contract) {
        out += " @";
        if (e.flag) {
          out += '[';
          names(e.names);
          out += ']';
        }
        out += ' ';
      } else {
        out += " " + e.text + " ";
      }
      expr(*e.children[1], static_cast<Level>(level + 1));
      break;
    }
    out += wrap ? ")" : "";
  }

  void type(const Type &t) {
    out += t.element;
    if (!t.hasDims)
      return;
    out += '[';
    for (size_t i = 0; i < t.dims.size(); ++i) {
      out += i ? ", " : "";
      expr(*t.dims[i], Cast);
    }
    out += ']';
  }

  void hypers(const std::vector<Hyper> &list) {
    out += '(';
    for (size_t i = 0; i < list.size(); ++i) {
      out += (i ? ", " : "") + list[i].name.text;
      if (list[i].value) {
        out += " = ";
        expr(*list[i].value, Cast);
      }
    }
    out += ')';
  }

  void param(const Param &p, const std::string &indent) {
    out += indent + "param ";
    names(p.names);
    out += ": ";
    type(p.type);
    if (p.init) {
      out += " = ";
      expr(*p.init, Cast);
    }
    out += '\n';
  }

  void part(const Part &p, const std::string &indent) {
    out += indent + "part ";
    names(p.names);
    out += ": " + p.block.text;
    if (p.hasArguments) {
      out += '(';
      items(p.arguments);
      out += ')';
    }
    for (const Name &dim : p.arrays)
      out += "[" + dim.text + "]";
    out += '\n';
  }

  void body(const Body &statements, const std::string &indent) {
    for (const Stmt &s : statements) {
      out += indent;
      if (s.kind == StmtKind::Repeat) {
        out += "repeat " + s.targets[0].text + " in " + s.over.text + " {\n";
        body(s.body, indent + "  ");
        out += indent + "}\n";
        continue;
      }
      if (s.kind == StmtKind::If) {
        out += "if ";
        expr(*s.values[0], Cast);
        out += " {\n";
        body(s.body, indent + "  ");
        if (s.hasElse) {
          out += indent + "} else {\n";
          body(s.otherwise, indent + "  ");
        }
        out += indent + "}\n";
        continue;
      }
      if (s.kind == StmtKind::Assign) {
        names(s.targets);
        out += " = ";
      } else {
        out += "return ";
      }
      for (size_t i = 0; i < s.values.size(); ++i) {
        out += i ? ", " : "";
        expr(*s.values[i], Cast);
      }
      out += '\n';
    }
  }

  void function(const Function &f) {
    out += f.isBlock ? "\n  block " : "\n  fn ";
    out += f.name.text;
    if (!f.hypers.empty())
      hypers(f.hypers);
    out += '(';
    for (size_t i = 0; i < f.arguments.size(); ++i) {
      out += (i ? ", " : "") + f.arguments[i].name.text;
      if (f.arguments[i].sharesType)
        continue;
      out += ": ";
      type(f.arguments[i].type);
    }
    out += ')';
    if (f.hasResults) {
      out += " -> ";
      bool many = f.results.size() != 1;
      out += many ? "(" : "";
      for (size_t i = 0; i < f.results.size(); ++i) {
        out += i ? ", " : "";
        type(f.results[i]);
      }
      out += many ? ")" : "";
    }
    out += " {\n";
    for (const Part &p : f.parts)
      part(p, "    ");
    for (const Param &p : f.params)
      param(p, "    ");
    body(f.body, "    ");
    out += "  }\n";
  }

  void model(const Model &m) {
    out += "model " + m.name.text;
    hypers(m.hypers);
    out += " {\n";
    for (const Dim &d : m.dims) {
      out += d.value ? "  dim " : "  free ";
      out += d.name.text;
      if (d.value) {
        out += " = ";
        expr(*d.value, Cast);
      }
      out += '\n';
    }
    for (const Param &p : m.params)
      param(p, "  ");
    for (const Part &p : m.parts)
      part(p, "  ");
    for (const Function &f : m.functions)
      function(f);
    for (const Weights &w : m.weights) {
      out += "\n  weights " + w.name.text + " {\n";
      for (const Weight &entry : w.entries) {
        out += "    ";
        string(entry.file);
        out += ": ";
        type(entry.type);
        out += " = ";
        expr(*entry.value, Cast);
        out += '\n';
      }
      out += "  }\n";
    }
    out += "}\n";
  }

  void rule(const PlanRule &r) {
    if (r.replicate) {
      out += "replicate";
      if (!r.alternatives[0].axes.empty()) {
        out += " over ";
        names(r.alternatives[0].axes);
      }
      return;
    }
    out += "shard ";
    for (size_t i = 0; i < r.alternatives.size(); ++i) {
      out += i ? " else " : "";
      names(r.alternatives[i].dims);
      if (!r.alternatives[i].axes.empty()) {
        out += " by ";
        names(r.alternatives[i].axes);
      }
    }
  }

  void plan(const Plan &p) {
    out += "plan " + p.name.text + " for " + p.model.text + " on (";
    for (size_t i = 0; i < p.axes.size(); ++i) {
      out += (i ? ", " : "") + p.axes[i].name.text;
      if (p.axes[i].size)
        out += " = " + std::to_string(*p.axes[i].size);
    }
    out += ") {\n";
    if (!p.autos.empty())
      out += "  auto" + (p.hidden ? " hidden " + std::to_string(*p.hidden) : "") + "\n";
    for (const PlanMemory &m : p.memories)
      out += "  memory " + std::to_string(m.bytes) + "B\n";
    for (const PlanNever &n : p.nevers)
      out += "  never " + n.kind.text + " " + n.path + "\n";
    for (const PlanRule &r : p.rules) {
      out += "  ";
      rule(r);
      out += '\n';
    }
    for (const PlanOverlap &o : p.overlaps)
      out +=
          "  overlap " + o.how.text + (o.bytes ? "(" + std::to_string(*o.bytes) + "B)" : "") + "\n";
    for (const PlanZero &zero : p.zeros) {
      out += "  zero " + std::to_string(zero.level) + " over ";
      names(zero.axes);
      if (zero.offload)
        out += " offload " + zero.offload->text;
      out += '\n';
    }
    for (const PlanAccumulate &a : p.accumulates)
      out += "  accumulate " + std::to_string(a.count) +
             (a.dim.text.empty() ? "" : " over " + a.dim.text) + "\n";
    for (const PlanRecompute &r : p.recomputes)
      out += "  recompute " + r.policy.text +
             (r.layers ? "(" + std::to_string(*r.layers) + ")" : "") + "\n";
    for (const PlanGathered &g : p.gathereds)
      out += "  gathered " + g.how.text + "\n";
    for (const PlanPrecision &precision : p.precisions)
      out += "  precision " + precision.compute.text +
             (precision.master.text.empty() ? "" : " master " + precision.master.text) +
             (precision.reduce.text.empty() ? "" : " reduce " + precision.reduce.text) + "\n";
    for (const PlanPin &pin : p.pins) {
      out += "  at ";
      if (pin.path.empty()) {
        out += '[';
        names(pin.dims);
        out += ']';
      }
      out += pin.path + ": ";
      if (pin.zero) {
        out += "zero " + std::to_string(pin.level);
        if (pin.level) {
          out += " over ";
          names(pin.rule.alternatives[0].axes);
        }
      } else {
        rule(pin.rule);
      }
      out += '\n';
    }
    out += "}\n";
  }
};

} // namespace

std::string print(const File &file) {
  Printer printer;
  bool first = true;
  for (const Model &m : file.models) {
    printer.out += first ? "" : "\n";
    printer.model(m);
    first = false;
  }
  for (const Plan &p : file.plans) {
    printer.out += first ? "" : "\n";
    printer.plan(p);
    first = false;
  }
  return std::move(printer.out);
}

std::string print(const Expr &expr) {
  Printer printer;
  printer.expr(expr, Cast);
  return std::move(printer.out);
}

std::string print(const Type &type) {
  Printer printer;
  printer.type(type);
  return std::move(printer.out);
}

} // namespace cleave::ast
