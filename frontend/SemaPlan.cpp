//===- SemaPlan.cpp - plans -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Sema.h"

#include <algorithm>

namespace cleave::sema {

void Checker::plans(const std::vector<ast::Plan> &plans, const std::vector<std::string> &models,
                    const std::vector<ast::Plan> &extra) {
  std::map<std::string, SourceRange> known;
  modelIsRight = diagnostics.empty();
  auto textOf = [](const ast::Plan &p) { return p.name.text + " for " + p.model.text; };
  // A file of plans may hold those of other models, and its plans come before the model's own.
  std::set<std::string> replaced;
  std::vector<const ast::Plan *> all;
  for (const ast::Plan &p : extra)
    if (p.model.text == program.model || p.name.text == options.plan) {
      all.push_back(&p);
      replaced.insert(textOf(p));
    }
  for (const ast::Plan &p : plans)
    if (!replaced.count(textOf(p)))
      all.push_back(&p);
  for (const ast::Plan *each : all) {
    const ast::Plan &p = *each;
    auto [it, fresh] = known.emplace(textOf(p), p.name.range);
    if (!fresh) {
      diagnostics
          .error(p.name.range, "the plan " + quoted(p.name.text) + " for " + quoted(p.model.text) +
                                   " stands twice")
          .notes.push_back({it->second, "the first is here"});
      continue;
    }
    if (std::find(models.begin(), models.end(), p.model.text) == models.end())
      diagnostics.error(p.model.range, "no model is called " + quoted(p.model.text),
                        meantHint(p.model.text, models));
    else if (p.model.text == program.model)
      plan(p);
  }
}

namespace {

/// An axis, or a part of it: `tp:(2)4` is the digit of 4 ranks behind a major part of 2.
struct AxisPart {
  std::string axis;
  int64_t pre = 1, size = 0; ///< 0: the whole axis

  explicit AxisPart(const std::string &text) : axis(text.substr(0, text.find(':'))) {
    if (axis.size() == text.size())
      return;
    pre = std::atoll(text.c_str() + axis.size() + 2);
    size = std::atoll(text.c_str() + text.find(')') + 1);
  }
  /// Whether both speak of some of the same digits of one axis.
  bool overlaps(const AxisPart &other) const {
    if (axis != other.axis || !size || !other.size)
      return axis == other.axis;
    return pre < other.pre * other.size && other.pre < pre * size;
  }
};

/// The first of `axes` that overlaps with `axis`.
const std::string *overlapping(const std::string &axis, const std::vector<std::string> &axes) {
  for (const std::string &other : axes)
    if (AxisPart(axis).overlaps(AxisPart(other)))
      return &other;
  return nullptr;
}

} // namespace

/// An error where the list has the axis, or some of its ranks, already.
bool Checker::axisIsNew(const ast::Name &axis, const std::vector<std::string> &axes) {
  const std::string *other = overlapping(axis.text, axes);
  if (!other)
    return true;
  if (*other == axis.text)
    diagnostics.error(axis.range, "the axis " + quoted(axis.text) + " stands twice");
  else
    diagnostics.error(axis.range,
                      quoted(axis.text) + " and " + quoted(*other) + " have ranks in common",
                      "parts that make up an axis of 8: `tp:(1)2, tp:(2)4`");
  return false;
}

/// Known once the mesh has sizes: whether the parts of axes are such.
void Checker::partsFit(const Plan &plan) {
  auto fits = [&](const std::string &text, SourceRange range) {
    AxisPart part(text);
    if (!part.size)
      return;
    for (const MeshAxisDecl &axis : plan.axes)
      if (axis.name == part.axis && axis.size && *axis.size % (part.pre * part.size) != 0)
        diagnostics.error(range,
                          quoted(text) + ": the axis " + quoted(axis.name) + " has " +
                              std::to_string(*axis.size) + " ranks, which are not in groups of " +
                              std::to_string(part.pre) + " and " + std::to_string(part.size),
                          std::to_string(part.pre) + " * " + std::to_string(part.size) +
                              " must divide " + std::to_string(*axis.size));
  };
  for (const ShardRule &rule : plan.rules)
    for (const std::string &axis : rule.alternatives.front().axes)
      fits(axis, rule.range);
  for (const Pin &pin : plan.pins)
    for (const std::string &axis : pin.axes)
      fits(axis, pin.range);
}

bool Checker::knownAxis(const ast::Name &axis, const Plan &plan, std::set<std::string> &used) {
  std::vector<std::string> known;
  for (const MeshAxisDecl &a : plan.axes)
    known.push_back(a.name);
  AxisPart part(axis.text);
  const std::string &whole = part.axis;
  if (std::find(known.begin(), known.end(), whole) != known.end()) {
    used.insert(whole);
    if (whole.size() == axis.text.size() ||
        (part.pre >= 1 && part.size >= 2 && part.pre <= 65536 && part.size <= 65536))
      return true;
    diagnostics.error(axis.range, quoted(axis.text) + " is no part of an axis",
                      "as in `tp:(2)4`: groups of at least 1 and 2 ranks");
    return false;
  }
  std::string hint = meantHint(whole, known);
  if (hint.empty())
    hint = "add it to the mesh: `on (..., " + printable(whole) + ")`";
  diagnostics.error(axis.range, "the plan's mesh has no axis " + quoted(whole), hint);
  return false;
}

std::optional<ShardRule> Checker::shardRule(const ast::PlanRule &rule, const Plan &plan,
                                            std::set<std::string> &used) {
  ShardRule out;
  out.range = rule.range;
  bool ok = true;
  std::set<std::string> seen;
  std::vector<std::string> axes;
  // Read from the back: an alternative without axes has those of the next one.
  for (size_t i = rule.alternatives.size(); i-- > 0;) {
    const ast::PlanAlternative &alternative = rule.alternatives[i];
    if (!alternative.axes.empty()) {
      axes.clear();
      for (const ast::Name &axis : alternative.axes) {
        ok &= knownAxis(axis, plan, used) && axisIsNew(axis, axes);
        axes.push_back(axis.text);
      }
    }
    if (ok && !out.alternatives.empty() && axes != out.alternatives.front().axes) {
      diagnostics.error(alternative.axes.front().range,
                        "the two sides of `else` have different axes",
                        "`else` is for the values that leave an axis unused; for other axes write "
                        "a rule of its own");
      ok = false;
    }
    ShardRule::Alternative next;
    next.axes = axes;
    for (const ast::Name &dim : alternative.dims) {
      auto atoms = dimAtoms(dim, root);
      if (!atoms) {
        ok = false;
        continue;
      }
      if (!seen.insert(dim.text).second) {
        diagnostics.error(dim.range, "the dim " + quoted(dim.text) + " stands twice in the rule");
        ok = false;
      }
      next.dims.push_back({dim.text, *atoms, dim.range});
    }
    out.alternatives.insert(out.alternatives.begin(), std::move(next));
  }
  return ok ? std::optional(out) : std::nullopt;
}

/// Whether a param or a value has one of the dim's atoms.
bool Checker::anyTensorHas(const PlanDim &dim) const {
  auto has = [&](const TensorType &type) {
    return std::any_of(dim.atoms.begin(), dim.atoms.end(),
                       [&](const std::string &atom) { return type.has(atom); });
  };
  for (const Param &param : program.params)
    if (has(param.type))
      return true;
  for (const Function &f : program.functions)
    for (const Value &value : f.values)
      if (has(value.type))
        return true;
  return false;
}

void Checker::planOverlap(const std::vector<ast::PlanOverlap> &overlaps, Plan &plan) {
  for (const ast::PlanOverlap &o : overlaps) {
    if (&o != &overlaps.front()) {
      diagnostics.error(o.range, "`overlap` stands twice in the plan")
          .notes.push_back({overlaps.front().range, "the first is here"});
      continue;
    }
    static const std::vector<std::string> known = {"none", "layers", "bucketed"};
    if (std::find(known.begin(), known.end(), o.how.text) == known.end()) {
      std::string near = nearest(o.how.text, known);
      diagnostics.error(o.how.range, "gradients are not summed " + quoted(o.how.text),
                        near.empty()
                            ? "none: after the backward pass; layers: as soon as a layer's "
                              "are there; bucketed(SIZE): packed into buckets"
                            : "did you mean " + quoted(near) + "?");
      continue;
    }
    bool bucketed = o.how.text == "bucketed";
    if (bucketed && !o.bytes)
      diagnostics.error(o.how.range, "`bucketed` lacks the size of a bucket",
                        "as in `overlap bucketed(25MB)`");
    else if (!bucketed && o.bytes)
      diagnostics.error(o.bytesRange, quoted(o.how.text) + " takes no size",
                        "`overlap bucketed(25MB)` does");
    else if (bucketed && *o.bytes < 1)
      diagnostics.error(o.bytesRange, "a bucket has at least one byte");
    bool data = plan.automatic ||
                std::any_of(plan.axes.begin(), plan.axes.end(), [&](const MeshAxisDecl &axis) {
                  return program.splitBy(plan, axis.name).free != nullptr;
                });
    if (!data)
      diagnostics.error(o.range, "no rule of the plan splits data, so no gradient is summed",
                        "add `shard batch by` an axis, or take the sentence out");
    plan.overlap = Overlap{o.how.text, bucketed && o.bytes ? *o.bytes : 0};
  }
}

/// Over axes that split only what comes with the data, so that the ranks along them would
/// hold the same params.
void Checker::planZero(const std::vector<ast::PlanZero> &zeros, Plan &plan,
                       std::set<std::string> &used) {
  for (const ast::PlanZero &zero : zeros) {
    if (&zero != &zeros.front()) {
      diagnostics.error(zero.range, "`zero` stands twice in the plan")
          .notes.push_back({zeros.front().range, "the first is here"});
      continue;
    }
    if (zero.level < 0 || zero.level > 3)
      diagnostics.error(zero.range, "ZeRO has no level " + std::to_string(zero.level),
                        "0 splits nothing, 1 the optimizer's state, 2 gradients too, 3 params too");
    Zero out;
    out.level = static_cast<int>(zero.level);
    if (zero.offload) {
      out.offloadsOptimizer = true;
      if (zero.offload->text != "optimizer")
        diagnostics.error(zero.offload->range, quoted(zero.offload->text) + " cannot be offloaded",
                          "`offload optimizer` keeps the optimizer's state and step on the host");
      else if (zero.level == 0)
        diagnostics.error(zero.offload->range,
                          "`zero 0` splits nothing, and has nothing to offload",
                          "`offload optimizer` goes with levels 1 to 3");
    }
    for (const ast::Name &axis : zero.axes) {
      if (!knownAxis(axis, plan, used))
        continue;
      if (std::find(out.axes.begin(), out.axes.end(), axis.text) != out.axes.end())
        diagnostics.error(axis.range, "the axis " + quoted(axis.text) + " stands twice");
      out.axes.push_back(axis.text);
      AxisUse use = program.splitBy(plan, axis.text);
      if (plan.automatic)
        continue;
      if (use.other)
        diagnostics.error(axis.range,
                          "the axis " + quoted(axis.text) + " splits " + quoted(use.other->name) +
                              ", so its ranks have parts of the params already",
                          "ZeRO goes over an axis that splits only free dims, such as the batch");
      else if (!use.free)
        diagnostics.error(axis.range,
                          "the axis " + quoted(axis.text) +
                              " splits no data, so its ranks would all do the same",
                          "add `shard batch by " + printable(axis.text) + "`");
    }
    plan.zero = std::move(out);
  }
}

void Checker::accumulate(const ast::Plan &p, Plan &out) {
  for (const ast::PlanAccumulate &a : p.accumulates) {
    if (&a != &p.accumulates.front()) {
      diagnostics.error(a.range, "`accumulate` stands twice")
          .notes.push_back({p.accumulates.front().range, "the first is here"});
      continue;
    }
    if (a.count < 1 || a.count > 65536)
      diagnostics.error(a.countRange,
                        "the batch is cut into " + std::to_string(a.count) + " micro-batches",
                        "from 1 to 65536");
    std::string dim = a.dim.text.empty() ? out.accumulateDim : a.dim.text;
    const NamedDim *found = findDim(dim, root);
    std::vector<std::string> free;
    for (const NamedDim &known : program.dims)
      if (known.kind == NamedDim::Free)
        free.push_back(known.name);
    if (!found || found->kind != NamedDim::Free)
      diagnostics.error(a.dim.text.empty() ? a.range : a.dim.range,
                        "the model " + quoted(program.model) + " has no free dim " + quoted(dim) +
                            " to cut into micro-batches",
                        a.dim.text.empty() ? "write `accumulate " + std::to_string(a.count) +
                                                 " over DIM` with a dim that comes with the data"
                                           : meantHint(dim, free));
    out.accumulate = a.count;
    out.accumulateDim = dim;
  }
}

void Checker::recompute(const ast::Plan &p, Plan &out) {
  static const std::vector<std::string> policies = {"none", "selective", "full", "every"};
  for (const ast::PlanRecompute &r : p.recomputes) {
    const ast::Name &policy = r.policy;
    bool every = policy.text == "every";
    if (&r != &p.recomputes.front())
      diagnostics.error(policy.range, "`recompute` stands twice")
          .notes.push_back({p.recomputes.front().policy.range, "the first is here"});
    else if (std::find(policies.begin(), policies.end(), policy.text) == policies.end())
      diagnostics.error(policy.range, "there is no way to recompute called " + quoted(policy.text),
                        meantHint(policy.text, policies));
    else if (every != r.layers.has_value())
      diagnostics.error(every ? policy.range : r.layersRange,
                        every ? "`every` needs the number of layers of a group"
                              : quoted(policy.text) + " takes no number",
                        "as in `recompute every(4)`");
    else if (every && *r.layers < 1)
      diagnostics.error(r.layersRange,
                        "there are no groups of " + std::to_string(*r.layers) + " layers",
                        "`every(1)` saves what enters each layer, as `full` does");
    out.recompute = policy.text + (r.layers ? "(" + std::to_string(*r.layers) + ")" : "");
  }
}

void Checker::gathered(const ast::Plan &p, Plan &out) {
  static const std::vector<std::string> ways = {"again", "kept"};
  for (const ast::PlanGathered &g : p.gathereds) {
    if (&g != &p.gathereds.front())
      diagnostics.error(g.how.range, "`gathered` stands twice")
          .notes.push_back({p.gathereds.front().how.range, "the first is here"});
    else if (std::find(ways.begin(), ways.end(), g.how.text) == ways.end())
      diagnostics.error(g.how.range,
                        "what is gathered is not " + quoted(g.how.text) + " for the backward pass",
                        "`again`: gathered once more; `kept`: saved as it was gathered");
    else if (g.how.text == "kept" && out.recompute == "full")
      diagnostics
          .error(g.how.range, "nothing is `kept` under `recompute full` but what enters a layer",
                 "`gathered again`, or recompute none, selective or every(N)")
          .notes.push_back({p.recomputes.front().policy.range, "recomputed in full here"});
    out.gathered = g.how.text;
  }
}

void Checker::precision(const ast::Plan &p, Plan &out) {
  for (const ast::PlanPrecision &precision : p.precisions) {
    if (&precision != &p.precisions.front()) {
      diagnostics.error(precision.range, "`precision` stands twice")
          .notes.push_back({p.precisions.front().range, "the first is here"});
      continue;
    }
    auto oneOf = [&](const ast::Name &word, const std::vector<std::string> &words,
                     const std::string &fault, const std::string &hint) {
      if (std::find(words.begin(), words.end(), word.text) != words.end())
        return true;
      if (parseDType(word.text))
        diagnostics.error(word.range, fault, hint);
      else
        diagnostics.error(word.range, "no element type is called " + quoted(word.text),
                          elementHint(word.text, words));
      return false;
    };
    const std::string &compute = precision.compute.text;
    std::string shown = printable(compute);
    if (!oneOf(precision.compute, {"bf16", "f16"},
               "activations are not computed in " + quoted(compute) + " by `precision`",
               compute == "f32" ? "without the sentence everything is f32"
                                : "`bf16` or `f16`; everything in double is `--dtype f64`"))
      continue;
    if (!precision.master.text.empty())
      oneOf(precision.master, {"f32"}, "params do not learn in " + quoted(precision.master.text),
            "an update is often less than the last bit of a short param: `master f32`");
    Precision made;
    made.compute = *parseDType(compute);
    if (!precision.reduce.text.empty() &&
        oneOf(precision.reduce, {"f32", compute},
              "ranks do not add in " + quoted(precision.reduce.text) + " under `precision " +
                  shown + "`",
              "`reduce f32`, or `reduce " + shown + "`, which moves half the bytes"))
      made.reduce = *parseDType(precision.reduce.text);
    out.precision = made;
  }
}

/// `auto`, and what goes with it.
void Checker::automatic(const ast::Plan &p, Plan &out) {
  out.automatic = !p.autos.empty();
  out.hidden = p.hidden;
  if (p.hidden && (*p.hidden < 0 || *p.hidden > 100))
    diagnostics.error(p.hiddenRange,
                      std::to_string(*p.hidden) +
                          " percent of the gradients' sums cannot be hidden",
                      "from 0 to 100");
  if (p.autos.size() > 1)
    diagnostics.error(p.autos[1], "`auto` stands twice")
        .notes.push_back({p.autos[0], "the first is here"});
  if (p.name.text == "auto" && !out.automatic)
    diagnostics.error(p.name.range, "the plan is called `auto` and does not say `auto`",
                      "add the sentence `auto`, or give the plan another name");
  auto needsAuto = [&](SourceRange range, const std::string &what) {
    if (!out.automatic)
      diagnostics.error(range, what + " is for the search of a plan that says `auto`",
                        "add the sentence `auto`, or take this one out");
  };
  for (const ast::PlanMemory &memory : p.memories) {
    needsAuto(memory.range, "`memory`");
    if (&memory != &p.memories.front())
      diagnostics.error(memory.range, "`memory` stands twice")
          .notes.push_back({p.memories.front().range, "the first is here"});
    if (memory.bytes < 1)
      diagnostics.error(memory.range, "a rank has at least one byte");
    out.memoryBytes = memory.bytes;
  }
  static const std::vector<std::string> kinds = {"all_reduce", "all_gather", "reduce_scatter",
                                                 "all_to_all"};
  for (const ast::PlanNever &never : p.nevers) {
    needsAuto(never.range, "`never`");
    if (std::find(kinds.begin(), kinds.end(), never.kind.text) == kinds.end()) {
      std::string near = nearest(never.kind.text, kinds);
      diagnostics.error(never.kind.range, "no collective is called " + quoted(never.kind.text),
                        near.empty()
                            ? "there are all_reduce, all_gather, reduce_scatter and all_to_all"
                            : "did you mean " + quoted(near) + "?");
      continue;
    }
    knownPath(never.path, never.pathRange);
    for (const Never &other : out.nevers)
      if (other.kind == never.kind.text && other.path == never.path)
        diagnostics
            .error(never.range, "`never " + printable(never.kind.text) + " " +
                                    printable(never.path) + "` stands twice")
            .notes.push_back({other.range, "the first is here"});
    out.nevers.push_back({never.kind.text, never.path, never.range});
  }
  for (const ast::PlanPin &pin : p.pins)
    if (pin.path.empty() || pin.zero)
      needsAuto(pin.range, pin.zero ? "`zero` of one param" : "`at [DIMS]`");
}

/// Whether a param (true) or a value has the path; an error where neither does.
bool Checker::knownPath(const std::string &path, SourceRange range) {
  std::vector<std::string> names(valueNames.begin(), valueNames.end());
  for (const Param &param : program.params)
    names.push_back(param.path);
  bool isParam = std::any_of(program.params.begin(), program.params.end(),
                             [&](const Param &param) { return param.path == path; });
  if (!isParam && !valueNames.count(path)) {
    std::string hint = meantHint(path, names);
    if (hint.empty())
      hint =
          "a value's name is its function's or part's, a dot, and its own: `forward.x`, `body.h`";
    diagnostics.error(range, "no value or param is called " + quoted(path), hint);
  }
  return isParam;
}

/// `at [DIMS]: ...` and `at PARAM: zero ...`.
bool Checker::searchPin(const ast::PlanPin &entry, const Plan &plan, std::set<std::string> &used,
                        Pin &pin) {
  size_t before = diagnostics.size();
  for (const ast::Name &dim : entry.dims)
    if (auto atoms = dimAtoms(dim, root)) {
      if (std::find(pin.dims.begin(), pin.dims.end(), atoms->front()) != pin.dims.end())
        diagnostics.error(dim.range, "the dim " + quoted(dim.text) + " stands twice");
      pin.dims.insert(pin.dims.end(), atoms->begin(), atoms->end());
    }
  if (entry.path.empty() && diagnostics.size() == before && modelIsRight) {
    std::set<std::string> dims(pin.dims.begin(), pin.dims.end());
    auto same = [&](const TensorType &type) {
      std::set<std::string> own;
      for (const Atom &atom : type.dims)
        own.insert(atom.name);
      return own == dims;
    };
    bool any = false;
    for (const Function &f : program.functions)
      for (const Value &value : f.values)
        any |= same(value.type);
    if (!any)
      diagnostics.error(entry.pathRange,
                        "no value of " + quoted(program.model) + " has just these dims",
                        "a value's own name stands without brackets: `at forward.x: ...`");
  }
  auto axesOf = [&](const std::vector<ast::Name> &axes) {
    for (const ast::Name &axis : axes)
      if (knownAxis(axis, plan, used)) {
        axisIsNew(axis, pin.axes);
        pin.axes.push_back(axis.text);
      }
    if (axes.empty() && !entry.zero)
      for (const MeshAxisDecl &axis : plan.axes)
        pin.axes.push_back(axis.name);
  };
  if (entry.zero) {
    if (entry.path.empty()) {
      diagnostics.error(entry.range, "`zero` is of a param, and this is no param's name",
                        "as in `at body.wq: zero 2 over dp`");
      return false;
    }
    pin.isParam = knownPath(entry.path, entry.pathRange);
    if (!pin.isParam && diagnostics.size() == before)
      diagnostics.error(entry.pathRange, quoted(entry.path) + " is no param, and has no optimizer",
                        "as in `at body.wq: zero 2 over dp`");
    if (entry.level < 0 || entry.level > 3)
      diagnostics.error(entry.rule.range, "ZeRO has no level " + std::to_string(entry.level),
                        "0 splits nothing, 1 the optimizer's state, 2 gradients too, 3 params too");
    bool over = !entry.rule.alternatives[0].axes.empty();
    if (entry.level > 0 && entry.level <= 3 && !over)
      diagnostics.error(entry.rule.range,
                        "`zero " + std::to_string(entry.level) + "` lacks the axes",
                        "as in `zero 2 over dp`");
    if (entry.level == 0 && over)
      diagnostics.error(entry.rule.range, "`zero 0` splits nothing, and has no axes");
    for (const Pin &other : plan.pins)
      if (other.zeroLevel && other.path == entry.path)
        diagnostics.error(entry.range, quoted(entry.path) + " has `zero` twice")
            .notes.push_back({other.range, "the first is here"});
    pin.zeroLevel = static_cast<int>(entry.level);
    axesOf(entry.rule.alternatives[0].axes);
    for (const Pin &other : plan.pins)
      if (other.path == pin.path && !other.zeroLevel && !other.replicate)
        for (const std::string &axis : pin.axes)
          if (overlapping(axis, other.axes))
            diagnostics
                .error(entry.range, quoted(pin.path) + " is split by " + quoted(axis) +
                                        " already, and ZeRO goes over axes that do not split it")
                .notes.push_back({other.range, "here"});
  } else if (entry.rule.replicate) {
    axesOf(entry.rule.alternatives[0].axes);
  } else if (auto rule = shardRule(entry.rule, plan, used)) {
    for (const ShardRule::Alternative &alternative : rule->alternatives) {
      for (const std::string &axis : alternative.axes)
        if (std::find(pin.axes.begin(), pin.axes.end(), axis) == pin.axes.end())
          pin.axes.push_back(axis);
      for (const PlanDim &dim : alternative.dims)
        for (const std::string &atom : dim.atoms)
          if (std::find(pin.dims.begin(), pin.dims.end(), atom) == pin.dims.end())
            diagnostics.error(dim.range, "the values have no dim " + quoted(dim.name));
    }
    pin.rule = std::move(*rule);
  }
  if (!entry.zero)
    for (const Pin &other : plan.pins)
      if (other.path.empty() && std::is_permutation(other.dims.begin(), other.dims.end(),
                                                    pin.dims.begin(), pin.dims.end()))
        for (const std::string &axis : pin.axes)
          if (overlapping(axis, other.axes))
            diagnostics
                .error(entry.range, "these values are pinned over " + quoted(axis) + " twice")
                .notes.push_back({other.range, "the first is here"});
  return diagnostics.size() == before;
}

void Checker::plan(const ast::Plan &p) {
  Plan out;
  size_t before = diagnostics.size();
  out.name = p.name.text;
  out.range = p.name.range;
  for (const ast::PlanAxis &axis : p.axes) {
    for (const MeshAxisDecl &known : out.axes)
      if (known.name == axis.name.text)
        diagnostics.error(axis.name.range, "the axis " + quoted(axis.name.text) + " stands twice");
    if (axis.size && (*axis.size < 1 || *axis.size > 65536))
      diagnostics.error(axis.sizeRange,
                        "the axis " + quoted(axis.name.text) + " has " +
                            std::to_string(*axis.size) + " ranks",
                        "from 1 to 65536");
    if (findDim(axis.name.text, root))
      diagnostics.error(axis.name.range,
                        "the axis " + quoted(axis.name.text) + " has the name of a dim",
                        "give the axis another name");
    else if (axis.name.text == "accumulate")
      diagnostics.error(axis.name.range, "the axis `accumulate` has the name of the micro-batches",
                        "give the axis another name");
    out.axes.push_back({axis.name.text, axis.size, axis.name.range});
  }
  accumulate(p, out);
  recompute(p, out);
  gathered(p, out);
  precision(p, out);
  automatic(p, out);
  std::set<std::string> used;
  // The same dim may not get the same axis twice.
  std::map<std::pair<std::string, std::string>, SourceRange> given;
  for (const ast::PlanRule &r : p.rules) {
    auto rule = shardRule(r, out, used);
    if (!rule)
      continue;
    for (const ShardRule::Alternative &alternative : rule->alternatives)
      for (const PlanDim &dim : alternative.dims)
        for (const std::string &axis : alternative.axes) {
          auto [it, fresh] = given.emplace(std::pair(dim.name, axis), dim.range);
          if (!fresh)
            diagnostics
                .error(dim.range, quoted(dim.name) + " is split by " + quoted(axis) + " twice")
                .notes.push_back({it->second, "the first is here"});
        }
    out.rules.push_back(std::move(*rule));
  }
  if (modelIsRight)
    for (const ShardRule &rule : out.rules)
      for (const ShardRule::Alternative &alternative : rule.alternatives)
        for (const PlanDim &dim : alternative.dims)
          if (!anyTensorHas(dim))
            diagnostics.error(dim.range,
                              "no tensor of " + quoted(program.model) + " has the dim " +
                                  quoted(dim.name) + ", so the plan splits nothing by it",
                              "a plan splits dims that stand in a tensor's type");
  std::vector<std::string> names(valueNames.begin(), valueNames.end());
  for (const Param &param : program.params)
    names.push_back(param.path);
  for (const ast::PlanPin &entry : p.pins) {
    Pin pin;
    pin.path = entry.path;
    pin.range = entry.pathRange;
    pin.replicate = entry.rule.replicate;
    if (entry.path.empty() || entry.zero) {
      if (searchPin(entry, out, used, pin))
        out.pins.push_back(std::move(pin));
      continue;
    }
    pin.isParam = std::any_of(program.params.begin(), program.params.end(),
                              [&](const Param &param) { return param.path == entry.path; });
    if (!pin.isParam && !valueNames.count(entry.path)) {
      std::string hint = meantHint(entry.path, names);
      if (hint.empty())
        hint =
            "a value's name is its function's or part's, a dot, and its own: `forward.x`, `body.h`";
      diagnostics.error(entry.pathRange, "no value or param is called " + quoted(entry.path), hint);
    }
    if (pin.replicate) {
      for (const ast::Name &axis : entry.rule.alternatives[0].axes)
        if (knownAxis(axis, out, used)) {
          axisIsNew(axis, pin.axes);
          pin.axes.push_back(axis.text);
        }
      if (entry.rule.alternatives[0].axes.empty())
        for (const MeshAxisDecl &axis : out.axes)
          pin.axes.push_back(axis.name);
    } else if (auto rule = shardRule(entry.rule, out, used)) {
      for (const ShardRule::Alternative &alternative : rule->alternatives) {
        for (const std::string &axis : alternative.axes)
          if (std::find(pin.axes.begin(), pin.axes.end(), axis) == pin.axes.end())
            pin.axes.push_back(axis);
        for (const PlanDim &dim : alternative.dims) {
          auto hasDim = [&](const TensorType &type) {
            return std::all_of(dim.atoms.begin(), dim.atoms.end(),
                               [&](const auto &a) { return type.has(a); });
          };
          bool any =
              std::any_of(program.params.begin(), program.params.end(), [&](const Param &param) {
                return param.path == pin.path && hasDim(param.type);
              });
          std::string example;
          for (const Function &f : program.functions)
            for (const Value &value : f.values)
              if (std::find(value.names.begin(), value.names.end(), pin.path) !=
                  value.names.end()) {
                any |= hasDim(value.type);
                example = program.show(value.type);
              }
          if (!any && (pin.isParam || valueNames.count(pin.path)))
            diagnostics.error(dim.range, quoted(pin.path) + " has no dim " + quoted(dim.name),
                              example.empty() ? "" : "it is " + example);
        }
      }
      pin.rule = std::move(*rule);
    } else {
      continue;
    }
    for (const Pin &other : out.pins)
      if (other.path == pin.path && !(other.zeroLevel && pin.replicate))
        for (const std::string &axis : pin.axes)
          if (overlapping(axis, other.axes))
            diagnostics
                .error(entry.range, quoted(pin.path) + " is pinned over " + quoted(axis) + " twice")
                .notes.push_back({other.range, "the first is here"});
    out.pins.push_back(std::move(pin));
  }
  planOverlap(p.overlaps, out);
  planZero(p.zeros, out, used);
  bool right = diagnostics.size() == before;
  for (const MeshAxisDecl &axis : out.axes)
    if (right && !out.automatic && !used.count(axis.name))
      diagnostics.error(axis.range, "nothing uses the axis " + quoted(axis.name),
                        "shard something by it, or take it from the mesh");
  program.plans.push_back(std::move(out));
}

/// The mesh sizes of the command line, for the plan that it names.
void Checker::planSettings() {
  if (options.plan.empty()) {
    if (!options.mesh.empty())
      diagnostics.error(
          {}, options.ranks ? "--ranks is given, and no plan" : "--mesh is given, and no plan",
          options.ranks ? "add `--plan auto`" : "add `--plan NAME`");
    return;
  }
  // `--plan auto` needs no plan in the file: its axes are those of the mesh.
  if (options.plan == "auto" && !program.plan("auto")) {
    Plan made;
    made.name = "auto";
    made.automatic = true;
    for (const auto &[name, size] : options.mesh)
      if (bool dim = findDim(name, root); dim || name == "accumulate") {
        diagnostics.error({},
                          "--mesh " + printable(name) + "=" + std::to_string(size) +
                              ": the axis has the name of " + (dim ? "a dim" : "the micro-batches"),
                          "give the axis another name");
        return;
      } else if (std::none_of(made.axes.begin(), made.axes.end(),
                              [&](const MeshAxisDecl &axis) { return axis.name == name; }))
        made.axes.push_back({name, std::nullopt, {}});
    if (options.mesh.empty())
      diagnostics.error({}, "--plan auto: there is no mesh to split over",
                        "add `--mesh tp=2`, or `--ranks 2`");
    program.plans.push_back(std::move(made));
  }
  Plan *plan = nullptr;
  std::vector<std::string> known = {"none", "auto"};
  for (Plan &p : program.plans) {
    known.push_back(p.name);
    if (p.name == options.plan)
      plan = &p;
  }
  if (!plan) {
    std::string hint = meantHint(options.plan, known);
    if (hint.empty()) {
      hint = "the plans are";
      for (const std::string &name : known)
        hint += (name == "none" ? " " : ", ") + name;
    }
    diagnostics.error({},
                      "--plan " + printable(options.plan) + ": the model " + quoted(program.model) +
                          " has no plan " + quoted(options.plan),
                      hint);
    return;
  }
  std::vector<std::string> axes;
  for (const MeshAxisDecl &axis : plan->axes)
    axes.push_back(axis.name);
  std::string example;
  for (const std::string &axis : axes)
    example += (example.empty() ? "" : ",") + axis + "=2";
  bool own = std::any_of(plan->axes.begin(), plan->axes.end(),
                         [](const MeshAxisDecl &axis) { return axis.range.valid(); });
  if (options.ranks && own) {
    diagnostics.error({},
                      "--ranks " + std::to_string(options.ranks) + ": the plan " +
                          quoted(plan->name) + " has axes of its own",
                      "write `--mesh " + example + "` instead, or `--plan auto`");
    return;
  }
  std::set<std::string> seen;
  for (const auto &[name, size] : options.mesh) {
    std::string flag = "--mesh " + printable(name) + "=" + std::to_string(size);
    auto axis = std::find(axes.begin(), axes.end(), name);
    if (axis == axes.end())
      diagnostics.error({},
                        flag + ": the plan " + quoted(plan->name) + " has no axis " + quoted(name),
                        meantHint(name, axes));
    else if (!seen.insert(name).second)
      diagnostics.error({}, flag + ": the axis " + quoted(name) + " is given twice");
    else if (size < 1 || size > 65536)
      diagnostics.error({}, flag + ": an axis has 1 to 65536 ranks");
    else
      plan->axes[axis - axes.begin()].size = size;
  }
  for (const MeshAxisDecl &axis : plan->axes)
    if (!axis.size && !seen.count(axis.name))
      diagnostics.error({},
                        "the axis " + quoted(axis.name) + " of the plan " + quoted(plan->name) +
                            " has no size",
                        "add `--mesh " + example + "`");
  partsFit(*plan);
}

} // namespace cleave::sema
