//===- Space.cpp - the variables of the search ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Space.h"

#include "ir/Auto.h"

#include "llvm/ADT/StringExtras.h"

#include <set>

using namespace mlir;
using namespace cleave;

namespace {

/// The dims as a set: "batch=8, seq=16".
std::string keyOfDims(NamedTensorType type) {
  std::vector<std::string> parts;
  for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
    parts.push_back(name.str() + "=" + std::to_string(size));
  std::sort(parts.begin(), parts.end());
  return llvm::join(parts, ", ");
}

std::string namesOf(NamedTensorType type) {
  std::vector<std::string> names;
  for (StringAttr name : type.getNames())
    names.push_back(name.str());
  return "[" + llvm::join(names, ", ") + "]";
}

} // namespace

Space::Space(const ShardingContext &context, func::FuncOp function, const ParamFlow &flow,
             bool sentences)
    : context(context), function(function), flow(flow), withSentences(sentences),
      atomOrder(context) {
  function.walk([&](RepeatOp repeat) { layerDims.insert(repeat.getDim()); });
  function.walk([&](SplitDimOp split) {
    layerDims.insert(split.getType().getNames()[0].getValue());
    layerDims.insert(split.getType().getNames()[1].getValue());
  });
  if (auto settings =
          function->getParentOfType<ModuleOp>()->getAttrOfType<DictionaryAttr>(kAutoAttr))
    if (auto homes = settings.getAs<ArrayAttr>(kAutoHomes))
      for (Attribute a : homes) {
        auto home = cast<ArrayAttr>(a);
        std::vector<std::string> names;
        for (StringRef name : cast<ArrayAttr>(home[0]).getAsValueRange<StringAttr>())
          names.push_back(name.str());
        std::sort(names.begin(), names.end());
        auto &[rules, axes] = pinnedDims[llvm::join(names, ", ")];
        auto append = [](ArrayAttr &list, ArrayAttr more) {
          SmallVector<Attribute> all;
          if (list)
            all.append(list.begin(), list.end());
          all.append(more.begin(), more.end());
          list = ArrayAttr::get(more.getContext(), all);
        };
        append(rules, cast<ArrayAttr>(home[1]));
        append(axes, cast<ArrayAttr>(home[2]));
      }
  addParams();
  for (BlockArgument arg : function.getArguments())
    addValue(arg);
  function.walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (op == function.getOperation())
      return;
    for (Value v : op->getResults())
      addValue(v);
    if (auto repeat = dyn_cast<RepeatOp>(op))
      for (BlockArgument arg : repeat.getBody().getArguments())
        addValue(arg);
  });
}

int Space::add(SpaceVariable variable) {
  list.push_back(std::move(variable));
  return static_cast<int>(list.size()) - 1;
}

SmallVector<int> Space::freeAtoms(const Sharding &base, ArrayAttr pinnedAxes) const {
  SmallVector<int> free, pinned = context.atomsOf(pinnedAxes);
  for (int atom = 0; atom < static_cast<int>(context.getAtoms().size()); ++atom)
    if (!base.uses(atom) && !context.isInTime(atom) && !llvm::is_contained(pinned, atom))
      free.push_back(atom);
  return free;
}

std::vector<Sharding> Space::extend(NamedTensorType type, const Sharding &base,
                                    ArrayRef<int> free) const {
  std::vector<Sharding> all = {base};
  for (int atom : free) {
    std::vector<Sharding> next;
    for (const Sharding &s : all) {
      next.push_back(s);
      for (int64_t d = 0; d < type.getRank(); ++d) {
        if (isLayerDim(type.getNames()[d].getValue()))
          continue;
        Sharding more = s;
        more.dims[d].push_back(atom);
        // Major ones stand first, but for what the plan gives an order.
        SmallVector<int> tail(more.dims[d].begin() + base.dims[d].size(), more.dims[d].end());
        atomOrder.sort(tail);
        std::copy(tail.begin(), tail.end(), more.dims[d].begin() + base.dims[d].size());
        if (context.block(type.getSizes()[d], more.dims[d]) <
            context.block(type.getSizes()[d], s.dims[d]))
          next.push_back(std::move(more));
      }
    }
    all = std::move(next);
  }
  return all;
}

std::vector<Sharding> Space::homesOf(NamedTensorType type) const {
  Sharding base = context.target(type);
  for (auto [d, name] : llvm::enumerate(type.getNames()))
    if (isLayerDim(name.getValue()))
      base.dims[d].clear();
  return extend(type, base, freeAtoms(base, {}));
}

void Space::allow(SpaceVariable &variable, const std::string &at, ArrayAttr pin,
                  ArrayAttr pinnedAxes, int64_t layers) const {
  if (!withSentences)
    return;
  NamedTensorType type = variable.type;
  // All that there is; the order that the plan's words give an axis is kept.
  Sharding none;
  none.dims.resize(type.getRank());
  Sharding said = context.target(type);
  for (auto [dim, atoms] : llvm::zip_equal(none.dims, said.dims))
    for (int atom : atoms)
      if (context.isInTime(atom))
        dim.push_back(atom);
  std::set<std::vector<int>> known;
  for (const Sharding &s : variable.homes)
    known.insert(keyOf(s));
  for (const Sharding &s : extend(type, none, freeAtoms(none, {})))
    if (known.insert(keyOf(s)).second)
      variable.homes.push_back(s);
  auto sentence = [&](std::string text, const Sharding &wanted, ArrayRef<int> unused) {
    SpaceVariable::Sentence made{std::move(text), {}};
    for (auto [c, home] : llvm::enumerate(variable.homes)) {
      bool right = llvm::none_of(unused, [&](int atom) { return home.uses(atom); });
      for (auto [have, want] : llvm::zip_equal(home.dims, wanted.dims))
        for (int atom : want)
          right &= context.isInTime(atom) || llvm::is_contained(have, atom);
      if (right)
        made.allowed.push_back(static_cast<int>(c));
    }
    if (made.allowed.size() < variable.homes.size())
      variable.sentences.push_back(std::move(made));
  };
  auto of = [&](ShardRuleAttr rule) {
    Sharding target = context.targetOf(rule, type);
    for (int64_t d = 0; d < layers; ++d)
      target.dims[d].clear();
    return target;
  };
  SmallVector<int> pinned = context.atomsOf(pinnedAxes), split;
  if (pin)
    for (auto rule : pin.getAsRange<ShardRuleAttr>()) {
      sentence("at " + at + ": " + sentenceOf(rule), of(rule), {});
      for (StringAttr axis : rule.getAxes())
        split.append(context.atomsOf(axis));
    }
  SmallVector<int> whole(
      llvm::make_filter_range(pinned, [&](int a) { return !llvm::is_contained(split, a); }));
  if (!whole.empty())
    sentence("at " + at + ": replicate", none, whole);
  for (ShardRuleAttr rule : context.rules())
    if (llvm::none_of(rule.getAxes(), [&](StringAttr axis) {
          return llvm::any_of(context.atomsOf(axis),
                              [&](int a) { return llvm::is_contained(pinned, a); });
        }))
      sentence(sentenceOf(rule), of(rule), {});
}

void Space::addParams() {
  bool learns =
      llvm::any_of(flow.places,
                   [](auto &entry) { return entry.second.role == ParamFlow::Role::Renewed; }) ||
      llvm::any_of(flow.gradientResults, [](Value v) { return static_cast<bool>(v); });
  if (auto settings =
          function->getParentOfType<ModuleOp>()->getAttrOfType<DictionaryAttr>(kAutoAttr))
    learns &= !settings.contains(kAutoNoZero);
  auto zeroOfPlan = function->getParentOfType<ModuleOp>()->getAttrOfType<ZeroAttr>(kZeroAttr);
  for (auto [p, param] : llvm::enumerate(flow.params)) {
    NamedTensorType type = tensorOf(param);
    unsigned number = param.getArgNumber();
    auto attr = [&](StringRef name) { return function.getArgAttrOfType<ArrayAttr>(number, name); };
    int64_t layerDimsOf = flow.layerDims[p];
    auto path = function.getArgAttrOfType<StringAttr>(number, kName);
    SpaceVariable variable(SpaceVariable::Kind::Param, path ? path.str() : "param", type);
    variable.param = static_cast<int>(p);
    Sharding base = context.target(type, attr(kPin), attr(kPinAxes));
    for (int64_t d = 0; d < layerDimsOf; ++d)
      base.dims[d].clear();
    // What the plan says of its update: a level, and the axes.
    std::optional<int> level;
    SmallVector<int> over;
    if (ArrayAttr zero = attr(kPinZero)) {
      level = static_cast<int>(cast<IntegerAttr>(zero[0]).getInt());
      over = context.atomsOf(cast<ArrayAttr>(zero[1]));
    } else if (zeroOfPlan) {
      level = static_cast<int>(zeroOfPlan.getLevel());
      for (StringAttr axis : zeroOfPlan.getAxes())
        over.append(context.atomsOf(axis));
    }
    SmallVector<int> free = freeAtoms(base, attr(kPinAxes));
    if (attr(kPinZero)) // these axes are its own
      llvm::erase_if(free, [&](int atom) { return llvm::is_contained(over, atom); });
    if (withSentences) {
      variable.homes = extend(type, base, free);
      allow(variable, variable.name, attr(kPin), attr(kPinAxes), layerDimsOf);
      for (const Sharding &home : variable.homes)
        variable.shards.push_back({home, 0});
      variable.place = param.getLoc();
      add(std::move(variable));
      continue;
    }
    for (const Sharding &home : extend(type, base, free)) {
      variable.homes.push_back(home);
      variable.shards.push_back({home, 0});
      SmallVector<int> unused = freeAtoms(home, attr(kPinAxes));
      if (level) {
        unused = freeAtoms(home, {});
        llvm::erase_if(unused, [&](int atom) { return !llvm::is_contained(over, atom); });
        if (*level > 0 && !unused.empty())
          variable.shards.back() = {context.splitFurther(type, home, layerDimsOf, unused), *level};
        continue;
      }
      if (!learns)
        continue;
      std::set<std::vector<int>> seen = {keyOf(home)};
      for (unsigned set = 1; set < (1u << unused.size()); ++set) {
        SmallVector<int> atoms;
        for (auto [i, atom] : llvm::enumerate(unused))
          if (set >> i & 1)
            atoms.push_back(atom);
        Sharding shard = context.splitFurther(type, home, layerDimsOf, atoms);
        if (!seen.insert(keyOf(shard)).second)
          continue;
        for (int level : {2, 3}) {
          variable.homes.push_back(home);
          variable.shards.push_back({shard, level});
        }
      }
    }
    variable.place = param.getLoc();
    add(std::move(variable));
  }
}

SpacePlace Space::dimsOf(NamedTensorType type, Location loc) {
  SmallVector<StringAttr> names;
  SmallVector<int64_t> sizes;
  for (auto [name, size] : llvm::zip_equal(type.getNames(), type.getSizes()))
    if (!isLayerDim(name.getValue())) {
      names.push_back(name);
      sizes.push_back(size);
    }
  if (names.empty())
    return {};
  auto own = NamedTensorType::get(type.getContext(), type.getElementType(), names, sizes, {});
  auto [it, isNew] = byDims.try_emplace(keyOfDims(own), 0);
  if (isNew) {
    std::vector<std::string> sorted;
    for (StringAttr name : names)
      sorted.push_back(name.str());
    std::sort(sorted.begin(), sorted.end());
    auto pinned = pinnedDims.find(llvm::join(sorted, ", "));
    std::vector<Sharding> homes;
    if (pinned == pinnedDims.end()) {
      homes = homesOf(own);
    } else {
      Sharding base = context.target(own, pinned->second.first, pinned->second.second);
      homes = extend(own, base, freeAtoms(base, pinned->second.second));
    }
    SpaceVariable variable(SpaceVariable::Kind::Dims, namesOf(own), own);
    variable.homes = std::move(homes);
    variable.place = loc;
    bool isPinned = pinned != pinnedDims.end();
    allow(variable, variable.name, isPinned ? pinned->second.first : ArrayAttr(),
          isPinned ? pinned->second.second : ArrayAttr(), 0);
    it->second = add(std::move(variable));
  }
  return {it->second, false};
}

void Space::addValue(Value v) {
  auto type = dyn_cast<NamedTensorType>(v.getType());
  if (!type)
    return;
  if (auto it = flow.places.find(v); it != flow.places.end()) {
    using Role = ParamFlow::Role;
    Role role = it->second.role;
    bool shard = role == Role::State || role == Role::Update || role == Role::Renewed ||
                 role == Role::Gradient || role == Role::KeptGradient;
    places[v] = {static_cast<int>(it->second.param), shard};
    return;
  }
  if (auto pin = v.getDefiningOp<PinOp>()) {
    Sharding base = context.target(type, pin.getRules(), pin.getAxes());
    // A value's gradient lives where it does.
    std::string name = pin.getName().str();
    auto [it, isNew] = byDims.try_emplace("at " + name + ": " + keyOfDims(type), 0);
    if (isNew) {
      SpaceVariable variable(SpaceVariable::Kind::Pin, name, type);
      variable.homes = extend(type, base, freeAtoms(base, pin.getAxes()));
      variable.place = pin.getLoc();
      allow(variable, name, pin.getRules(), pin.getAxes(), 0);
      it->second = add(std::move(variable));
    }
    places[v] = {it->second, false};
    return;
  }
  if (SpacePlace place = dimsOf(type, v.getLoc()); place.variable >= 0)
    places[v] = place;
}

SpacePlace Space::restOf(Value v) const {
  SpacePlace place = placeOf(v);
  if (auto it = flow.places.find(v);
      it != flow.places.end() && it->second.role == ParamFlow::Role::Renewed)
    place.ofShard = false; // level 3: seen to by the caller
  return place;
}

Sharding Space::shardingOf(SpacePlace place, int choice, NamedTensorType type) const {
  if (place.variable < 0) {
    Sharding whole;
    whole.dims.resize(type.getRank());
    return whole;
  }
  const SpaceVariable &variable = list[place.variable];
  const Sharding &of = place.ofShard && !variable.shards.empty() ? variable.shards[choice].shard
                                                                 : variable.homes[choice];
  return shardingOfPart(of, variable.type, type);
}

std::vector<Factors> Space::factorsOf(Operation *op, const ShardingRule &rule) const {
  std::vector<Factors> all = {Factors(rule.factors.size())};
  auto extent = [&](const Factors &factors, size_t f) {
    return context.block(rule.factors[f].size, factors[f]);
  };
  for (int atom : [&] {
         SmallVector<int> atoms;
         for (int a = 0; a < static_cast<int>(context.getAtoms().size()); ++a)
           atoms.push_back(a);
         return atoms;
       }()) {
    std::vector<Factors> next;
    for (const Factors &one : all) {
      bool inTime = context.isInTime(atom), placed = false;
      for (auto [f, factor] : llvm::enumerate(rule.factors)) {
        if (factor.kind == FactorKind::Blocked || factor.kind == FactorKind::Partial ||
            isLayerDim(factor.name) || (inTime && !context.splitsInTime(factor.name)))
          continue;
        Factors more = one;
        more[f].push_back(atom);
        atomOrder.sort(more[f]);
        if (extent(more, f) < extent(one, f) || inTime) {
          next.push_back(std::move(more));
          placed = true;
        }
      }
      if (!inTime || !placed)
        next.push_back(one);
    }
    all = std::move(next);
  }
  return all;
}
