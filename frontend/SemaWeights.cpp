//===- SemaWeights.cpp - weights in files -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Sema.h"

#include <algorithm>

namespace cleave::sema {

void Checker::weights(const ast::Weights &w) {
  for (const WeightsFormat &known : program.weights)
    if (known.name == w.name.text)
      diagnostics.error(w.name.range, "the weights " + quoted(w.name.text) + " stand twice")
          .notes.push_back({known.range, "the first is here"});
  WeightsFormat out;
  out.name = w.name.text;
  out.range = w.name.range;
  std::map<std::string, SourceRange> files;
  std::map<uint32_t, SourceRange> params;
  for (const ast::Weight &entry : w.entries) {
    WeightEntry next;
    next.file = entry.file;
    next.range = entry.range;
    auto [it, fresh] = files.emplace(entry.file, entry.fileRange);
    if (!fresh)
      diagnostics.error(entry.fileRange, "the weight " + quoted(entry.file) + " stands twice")
          .notes.push_back({it->second, "the first is here"});
    if (!weightEntry(entry, next))
      continue;
    for (const WeightEntry::Source &s : next.sources) {
      auto [at, first] = params.emplace(s.param, entry.range);
      if (!first)
        diagnostics
            .error(entry.range,
                   "the param " + quoted(program.params[s.param].path) + " is read twice")
            .notes.push_back({at->second, "the first is here"});
    }
    out.entries.push_back(std::move(next));
  }
  program.weights.push_back(std::move(out));
}

/// `wte`, `last.weight`, `body[i].wq`: the param and the indices' names.
bool Checker::weightSource(const ast::Expr &e, WeightEntry &out) {
  // The path from the outside in.
  std::vector<const ast::Expr *> steps;
  for (const ast::Expr *at = &e;; at = at->children[0].get()) {
    steps.push_back(at);
    if (at->kind == ast::ExprKind::Name)
      break;
    if (at->kind != ast::ExprKind::Member && at->kind != ast::ExprKind::Index) {
      fail(e.range, "expected a param, such as `wte` or `body[i].wq`");
      return false;
    }
  }
  std::reverse(steps.begin(), steps.end());
  const Instance *instance = &root;
  std::vector<std::string> indices;
  for (const ast::Expr *step : steps) {
    if (step->kind == ast::ExprKind::Index) {
      for (const ast::Item &item : step->items) {
        if (!item.value || item.value->kind != ast::ExprKind::Name || !item.name.text.empty()) {
          fail(step->opRange, "expected the name of an index, such as `body[i]`");
          return false;
        }
        indices.push_back(item.value->text);
      }
      continue;
    }
    auto part = instance->parts.find(step->text);
    if (part != instance->parts.end()) {
      if (!part->second)
        return false;
      instance = part->second.get();
      continue;
    }
    auto param = instance->params.find(step->text);
    if (param != instance->params.end() && step != steps.back()) {
      const ast::Expr &after =
          *steps[std::find(steps.begin(), steps.end(), step) - steps.begin() + 1];
      fail(after.opRange, quoted(step->text) + " is a param",
           "indices stand after a part, as in `body[i].wq`");
      return false;
    }
    if (param == instance->params.end()) {
      std::vector<std::string> known;
      for (const auto &[name, index] : instance->params)
        known.push_back(name);
      for (const auto &[name, child] : instance->parts)
        known.push_back(name);
      fail(step->opRange,
           (instance->path.empty() ? "the model" : "the part " + quoted(instance->path)) +
               " has no param " + quoted(step->text),
           meantHint(step->text, known));
      return false;
    }
    if (param->second == UINT32_MAX)
      return false;
    const Param &p = program.params[param->second];
    if (indices.size() != p.stacked) {
      fail(e.range,
           quoted(p.path) + " has " + std::to_string(p.stacked) +
               (p.stacked == 1 ? " index, here are " : " indices, here are ") +
               std::to_string(indices.size()),
           p.stacked ? "write `part[i].param`" : "");
      return false;
    }
    if (!out.sources.empty() && indices != out.indices) {
      fail(e.range, "the joined params have different indices");
      return false;
    }
    out.indices = indices;
    out.sources.push_back({param->second, {}});
    return true;
  }
  fail(e.range, quoted(instance->path) + " is a part; name a param of it");
  return false;
}

static bool sumTerms(const ast::ExprPtr &e, std::vector<ast::ExprPtr> &out) {
  if (e->kind == ast::ExprKind::Binary && e->text == "+")
    return sumTerms(e->children[0], out) && sumTerms(e->children[1], out);
  out.push_back(e);
  return true;
}

bool Checker::weightEntry(const ast::Weight &entry, WeightEntry &out) {
  const ast::Expr &value = *entry.value;
  bool joined = value.kind == ast::ExprKind::Call &&
                value.children[0]->kind == ast::ExprKind::Name &&
                value.children[0]->text == "concat";
  if (joined) {
    for (const ast::Item &item : value.items)
      if (!item.value || !item.name.text.empty() || !weightSource(*item.value, out)) {
        if (!item.value || !item.name.text.empty())
          fail(value.range, "`concat` takes only params here");
        return false;
      }
    if (out.sources.size() < 2) {
      fail(value.range, "`concat` joins at least two params");
      return false;
    }
  } else if (!weightSource(value, out)) {
    return false;
  }
  // The braces of the name and the indices of the params.
  std::vector<std::string> braces;
  for (size_t i = 0; i < entry.file.size(); ++i)
    if (entry.file[i] == '{') {
      size_t end = entry.file.find('}', i);
      if (end == std::string::npos) {
        fail(entry.fileRange, "`{` without `}` in a weight's name");
        return false;
      }
      braces.push_back(entry.file.substr(i + 1, end - i - 1));
      i = end;
    }
  std::set<std::string> a(braces.begin(), braces.end()), b(out.indices.begin(), out.indices.end());
  if (a != b || b.size() != out.indices.size()) {
    fail(entry.fileRange, "the names in braces and the indices of the param differ",
         "as in `\"layers.{i}.weight\": [...] = body[i].weight`");
    return false;
  }
  // The dims in the file, and the one that is joined.
  std::set<std::string> plain;
  for (size_t i = 0; i < entry.type.dims.size(); ++i) {
    std::vector<ast::ExprPtr> terms;
    sumTerms(entry.type.dims[i], terms);
    if (terms.size() > 1 && (out.joinDim >= 0 || terms.size() != out.sources.size())) {
      fail(entry.type.dims[i]->range, "a sum of dims has one term for each param of `concat`");
      return false;
    }
    if (terms.size() > 1) {
      out.joinDim = i;
      out.dims.emplace_back();
    }
    for (size_t t = 0; t < terms.size(); ++t) {
      auto atoms = dimAtoms(*terms[t], root);
      if (!atoms)
        return false;
      if (terms.size() > 1) {
        out.sources[t].joined = *atoms;
        continue;
      }
      for (const std::string &atom : *atoms)
        if (!plain.insert(atom).second) {
          fail(entry.type.dims[i]->range, "the dim " + quoted(atom) + " stands twice");
          return false;
        }
      out.dims.push_back(*atoms);
    }
  }
  if (joined && out.joinDim < 0) {
    fail(entry.type.range, "no dim says where the params are joined",
         "write it as a sum: `[a + b, width]`");
    return false;
  }
  for (const WeightEntry::Source &s : out.sources) {
    const Param &p = program.params[s.param];
    TensorType own = p.type;
    own.dims.erase(own.dims.begin(), own.dims.begin() + p.stacked);
    std::set<std::string> has = plain, wants;
    has.insert(s.joined.begin(), s.joined.end());
    for (const Atom &atom : own.dims)
      wants.insert(atom.name);
    if (has != wants || has.size() != plain.size() + s.joined.size()) {
      fail(entry.type.range, "the param " + quoted(p.path) + " is " + program.show(own) +
                                 ", and the dims in the file are others");
      return false;
    }
  }
  return true;
}

} // namespace cleave::sema
