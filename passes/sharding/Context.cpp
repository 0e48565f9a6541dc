//===- Context.cpp - mesh atoms, and what a plan wants for a value --------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/Auto.h"
#include "passes/sharding/Sharding.h"
#include "passes/structure/Accumulate.h"

#include "llvm/ADT/StringSet.h"

#include <map>
#include <numeric>
#include <optional>
#include <string>

using namespace mlir;
using namespace cleave;

namespace {

/// How many of an axis's p ranks split the first atom of a compound dim; the rest
/// split the next. Fewer kv heads than ranks: as many as divide both.
int64_t shareOfMajor(int64_t size, int64_t already, int64_t p) {
  if (already * p <= size)
    return p;
  int64_t left = std::max<int64_t>(1, size / already);
  return std::gcd(left, p);
}

struct PartOfAxis {
  StringRef name;
  int64_t pre = 1, size = 0; ///< 0: the whole axis
};

/// "tp", or "tp:(2)4".
PartOfAxis partOfAxis(StringRef text) {
  PartOfAxis part{text.take_until([](char c) { return c == ':'; })};
  StringRef rest = text.drop_front(part.name.size());
  if (rest.consume_front(":(") && !rest.consumeInteger(10, part.pre))
    if (!rest.consume_front(")") || rest.getAsInteger(10, part.size))
      part.size = 0;
  return part;
}

} // namespace

FailureOr<ShardingContext> ShardingContext::create(ModuleOp module) {
  ShardingContext c;
  c.context = module.getContext();
  c.mesh = module->getAttrOfType<MeshAttr>(kMeshAttr);
  if (!c.mesh)
    c.mesh = MeshAttr::get(c.context, {}, {});
  c.plan = module->getAttrOfType<ArrayAttr>(kPlanAttr);
  if (!c.plan)
    c.plan = ArrayAttr::get(c.context, {});
  for (Attribute a : c.plan) {
    auto rule = dyn_cast<ShardRuleAttr>(a);
    if (!rule)
      return module.emitError() << "the plan holds " << a << ", which is no #cleave.shard_rule";
    for (StringAttr axis : rule.getAxes())
      if (!c.mesh.sizeOf(partOfAxis(axis).name))
        return module.emitError() << "the plan splits by '" << axis.getValue() << "', but the mesh "
                                  << c.mesh << " has no such axis";
    for (ArrayAttr dims : rule.getAlternatives())
      for (Attribute dim : dims)
        for (StringRef atom : llvm::cast<ArrayAttr>(dim).getAsValueRange<StringAttr>())
          c.mentioned.insert(atom);
  }
  c.zero = module->getAttrOfType<ZeroAttr>(kZeroAttr);
  if (c.zero)
    for (StringAttr axis : c.zero.getAxes())
      if (!c.mesh.sizeOf(axis))
        return module.emitError() << "the plan's `zero` goes over '" << axis.getValue()
                                  << "', but the mesh " << c.mesh << " has no such axis";
  if (failed(c.refineAxes(module)))
    return failure();
  return c;
}

LogicalResult ShardingContext::refineAxes(ModuleOp module) {
  auto note = [&](Type type) {
    if (auto t = dyn_cast<NamedTensorType>(type))
      for (auto [name, size] : llvm::zip_equal(t.getNames(), t.getSizes()))
        dimSizes.try_emplace(name.getValue(), size);
  };
  module.walk([&](Operation *op) {
    for (Type t : op->getResultTypes())
      note(t);
    for (Region &region : op->getRegions())
      for (Block &block : region)
        for (Type t : block.getArgumentTypes())
          note(t);
  });
  // Where each axis is cut: after the part that splits a compound's first atom.
  llvm::StringMap<std::map<int64_t, std::string>> cuts; ///< and the dims that make them
  SmallVector<ShardRuleAttr> rules;
  for (Attribute a : plan)
    rules.push_back(cast<ShardRuleAttr>(a));
  auto addPins = [&](ArrayAttr pins) {
    if (pins)
      for (Attribute a : pins)
        if (auto rule = dyn_cast<ShardRuleAttr>(a))
          rules.push_back(rule);
  };
  module.walk([&](PinOp pin) { addPins(pin.getRules()); });
  module.walk([&](func::FuncOp f) {
    for (unsigned i = 0; i < f.getNumArguments(); ++i)
      addPins(f.getArgAttrOfType<ArrayAttr>(i, kPin));
  });
  // Parts of an axis that the plan names are parts.
  auto cutParts = [&](auto &&axes) {
    for (StringAttr axis : axes)
      if (PartOfAxis part = partOfAxis(axis); part.size)
        for (int64_t cut : {part.pre, part.pre * part.size})
          if (cut > 1)
            cuts[part.name].emplace(cut, ("'" + axis.getValue() + "'").str());
  };
  auto cutPartsOf = [&](Attribute axes) {
    if (auto list = dyn_cast_if_present<ArrayAttr>(axes))
      cutParts(list.getAsRange<StringAttr>());
  };
  module.walk([&](PinOp pin) { cutPartsOf(pin.getAxes()); });
  module.walk([&](func::FuncOp f) {
    for (unsigned i = 0; i < f.getNumArguments(); ++i) {
      cutPartsOf(f.getArgAttr(i, kPinAxes));
      if (auto zero = f.getArgAttrOfType<ArrayAttr>(i, kPinZero))
        cutPartsOf(zero[1]);
    }
  });
  if (auto settings = module->getAttrOfType<DictionaryAttr>(kAutoAttr))
    if (auto homes = settings.getAs<ArrayAttr>(kAutoHomes))
      for (ArrayAttr home : homes.getAsRange<ArrayAttr>()) {
        addPins(cast<ArrayAttr>(home[1]));
        cutPartsOf(home[2]);
      }
  for (ShardRuleAttr rule : rules)
    cutParts(rule.getAxes());
  // Under `auto` any compound dim may go on any axis; those whose parts don't agree stay out.
  size_t written = rules.size();
  if (auto settings = module->getAttrOfType<DictionaryAttr>(kAutoAttr))
    if (auto compounds = settings.getAs<ArrayAttr>(kAutoCompounds)) {
      SmallVector<Attribute> dims(compounds.begin(), compounds.end());
      rules.push_back(ShardRuleAttr::get(
          context, {ArrayAttr::get(context, dims)},
          SmallVector<StringAttr>(mesh.getNames().begin(), mesh.getNames().end())));
    }
  auto textOf = [&](ArrayAttr parts) {
    std::string text;
    for (StringRef part : parts.getAsValueRange<StringAttr>())
      text +=
          (text.empty() ? "" : " * ") + part.str() + "=" + std::to_string(dimSizes.lookup(part));
    return text;
  };
  for (auto [number, rule] : llvm::enumerate(rules))
    for (ArrayAttr dims : rule.getAlternatives())
      for (Attribute dim : dims) {
        auto parts = cast<ArrayAttr>(dim);
        if (parts.size() < 2)
          continue;
        for (StringAttr axis : rule.getAxes()) {
          if (partOfAxis(axis).size)
            continue;
          int64_t p = mesh.sizeOf(axis), pre = 1;
          for (StringRef name : parts.getAsValueRange<StringAttr>()) {
            auto it = dimSizes.find(name);
            if (it == dimSizes.end() || pre == p)
              continue;
            pre *= shareOfMajor(it->second, 1, p / pre);
            std::map<int64_t, std::string> &at = cuts[axis.getValue()];
            if (number >= written &&
                llvm::any_of(at, [&](auto &cut) { return cut.first % pre && pre % cut.first; }))
              break;
            at.emplace(pre, textOf(parts));
          }
        }
      }
  for (auto [name, size] : llvm::zip_equal(mesh.getNames(), mesh.getSizes())) {
    if (size == 1)
      continue;
    std::map<int64_t, std::string> &at = cuts[name.getValue()];
    at.emplace(size, "");
    int64_t pre = 1;
    for (const auto &[cut, dims] : at) {
      if (cut == pre)
        continue;
      if (cut % pre) {
        auto places = dyn_cast<FusedLoc>(module.getLoc()); // the model's, then the plan's
        return emitUserError(places ? places.getLocations().back() : module.getLoc())
               << at[pre] << " cuts axis '" << name.getValue() << "' of " << size
               << " ranks into parts of " << size / pre << ", " << dims << " into parts of "
               << size / cut << ", and neither is made of the other; choose sizes that agree, or "
               << "split one of them by another axis";
      }
      bool whole = pre == 1 && cut == size;
      atoms.push_back(
          {AxisAttr::get(context, name, whole ? 1 : pre, whole ? 0 : cut / pre), cut / pre});
      pre = cut;
    }
  }
  return success();
}

bool ShardingContext::isInTime(int atom) const {
  return atoms[atom].axis.getName().getValue() == kAccumulate;
}

bool ShardingContext::splitsInTime(StringRef dim) const {
  for (Attribute a : plan) {
    auto rule = cast<ShardRuleAttr>(a);
    if (llvm::none_of(rule.getAxes(), [](StringAttr axis) { return axis == kAccumulate; }))
      continue;
    for (ArrayAttr dims : rule.getAlternatives())
      for (Attribute d : dims)
        for (StringRef atom : cast<ArrayAttr>(d).getAsValueRange<StringAttr>())
          if (atom == dim)
            return true;
  }
  return false;
}

SmallVector<int> ShardingContext::atomsOf(StringRef axis) const {
  SmallVector<int> list;
  auto [name, pre, size] = partOfAxis(axis);
  for (auto [i, atom] : llvm::enumerate(atoms))
    if (int64_t begin = atom.axis.getPre();
        atom.axis.getName().getValue() == name &&
        (!size || (begin >= pre && begin * atom.size <= pre * size)))
      list.push_back(static_cast<int>(i));
  return list;
}

SmallVector<int> ShardingContext::atomsOf(ArrayAttr axes) const {
  SmallVector<int> list;
  if (axes)
    for (StringRef axis : axes.getAsValueRange<StringAttr>())
      list.append(atomsOf(axis));
  return list;
}

SmallVector<int> ShardingContext::atomsOfRules() const {
  SmallVector<int> list;
  for (Attribute a : plan)
    for (StringAttr axis : cast<ShardRuleAttr>(a).getAxes())
      list.append(atomsOf(axis));
  return list;
}

void ShardingContext::apply(ShardRuleAttr rule, NamedTensorType type, ArrayRef<int> skip,
                            Sharding &sharding) const {
  for (StringAttr axis : rule.getAxes()) {
    SmallVector<int> free;
    for (int atom : atomsOf(axis))
      if (!sharding.uses(atom) && !llvm::is_contained(skip, atom))
        free.push_back(atom);
    if (free.empty())
      continue;
    bool done = false;
    for (ArrayAttr dims : rule.getAlternatives()) {
      for (Attribute dim : dims) {
        // A compound's first atom takes the ranks it can use, the next the rest.
        // An atom that this tensor lacks (no group in the kv projections) takes
        // its ranks too: the tensor is replicated over them.
        auto parts = cast<ArrayAttr>(dim);
        bool any = llvm::any_of(parts.getAsValueRange<StringAttr>(),
                                [&](StringRef name) { return type.hasDim(name); });
        if (!any)
          continue;
        int64_t total = sizeOf(free), pre = 1;
        size_t next = 0;
        for (StringRef name : parts.getAsValueRange<StringAttr>()) {
          int64_t i = type.indexOf(name);
          int64_t size = i >= 0 ? type.getSizes()[i] : dimSizes.lookup(name);
          int64_t share = parts.size() == 1 ? total : shareOfMajor(size, 1, total / pre);
          int64_t taken = 1;
          while (next < free.size() && taken < share) {
            if (i >= 0)
              sharding.dims[i].push_back(free[next]);
            taken *= atoms[free[next++]].size;
          }
          pre *= taken;
        }
        done = true;
        break;
      }
      if (done)
        break;
    }
  }
}

Sharding ShardingContext::target(NamedTensorType type, ArrayAttr pin, ArrayAttr pinnedAxes) const {
  Sharding sharding;
  sharding.dims.resize(type.getRank());
  SmallVector<int> skip;
  if (pin) {
    for (Attribute a : pin)
      if (auto rule = dyn_cast<ShardRuleAttr>(a)) {
        apply(rule, type, {}, sharding);
        for (StringAttr axis : rule.getAxes())
          skip.append(atomsOf(axis));
      }
    skip.append(atomsOf(pinnedAxes));
  }
  for (Attribute a : plan)
    apply(llvm::cast<ShardRuleAttr>(a), type, skip, sharding);
  return sharding;
}

Sharding ShardingContext::targetOf(ShardRuleAttr rule, NamedTensorType type) const {
  Sharding sharding;
  sharding.dims.resize(type.getRank());
  apply(rule, type, {}, sharding);
  return sharding;
}

SmallVector<ShardRuleAttr> ShardingContext::rules() const {
  SmallVector<ShardRuleAttr> list;
  for (Attribute a : plan)
    if (auto rule = cast<ShardRuleAttr>(a);
        llvm::none_of(rule.getAxes(), [](StringAttr axis) { return axis == kAccumulate; }))
      list.push_back(rule);
  return list;
}

Sharding ShardingContext::zeroTarget(NamedTensorType type, const Sharding &base, int64_t layerDims,
                                     ArrayAttr pinnedAxes) const {
  SmallVector<int> added, pinned = atomsOf(pinnedAxes);
  if (zero)
    for (StringAttr axis : zero.getAxes())
      for (int atom : atomsOf(axis))
        if (!base.uses(atom) && !llvm::is_contained(pinned, atom))
          added.push_back(atom);
  return splitFurther(type, base, layerDims, added);
}

Sharding ShardingContext::splitFurther(NamedTensorType type, const Sharding &base,
                                       int64_t layerDims, ArrayRef<int> added) const {
  Sharding best = base;
  if (added.empty())
    return best;
  std::optional<std::tuple<int64_t, bool>> least; // a rank's elements; already split
  for (int64_t d = layerDims; d < type.getRank(); ++d) {
    Sharding next = base;
    next.dims[d].append(added.begin(), added.end());
    if (!refines(type.getSizes()[d], base.dims[d], next.dims[d]))
      continue;
    int64_t elements = 1;
    for (auto [size, atoms] : llvm::zip_equal(type.getSizes(), next.dims))
      elements *= block(size, atoms);
    if (std::tuple cost(elements, !base.dims[d].empty()); !least || cost < *least) {
      least = cost;
      best = next;
    }
  }
  return best;
}

ArrayAttr ShardingContext::axes(ArrayRef<int> list) const {
  SmallVector<Attribute> attrs;
  for (int a : list)
    attrs.push_back(atoms[a].axis);
  return ArrayAttr::get(context, attrs);
}

std::string ShardingContext::text(ArrayRef<int> list) const {
  std::string text;
  for (int a : list) {
    AxisAttr axis = atoms[a].axis;
    text += (text.empty() ? "" : ", ") + axis.getName().str();
    if (axis.getSize())
      text += ":(" + std::to_string(axis.getPre()) + ")" + std::to_string(axis.getSize());
  }
  return text;
}

ShardingAttr ShardingContext::toAttr(const Sharding &sharding) const {
  SmallVector<ArrayAttr> dims;
  for (auto &d : sharding.dims)
    dims.push_back(axes(d));
  return ShardingAttr::get(context, dims, sharding.reduction, axes(sharding.unreduced));
}

SmallVector<int, 2> ShardingContext::atomsIn(ArrayAttr axes) const {
  SmallVector<int, 2> list;
  for (Attribute a : axes)
    for (auto [i, atom] : llvm::enumerate(atoms))
      if (atom.axis == a)
        list.push_back(static_cast<int>(i));
  return list;
}

Sharding ShardingContext::fromAttr(ShardingAttr attr, int64_t rank) const {
  Sharding sharding;
  sharding.dims.resize(rank);
  if (!attr)
    return sharding;
  for (auto [i, list] : llvm::enumerate(attr.getDims()))
    sharding.dims[i] = atomsIn(list);
  sharding.unreduced = atomsIn(attr.getUnreduced());
  sharding.reduction = attr.getReduction();
  return sharding;
}
