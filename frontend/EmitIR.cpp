//===- EmitIR.cpp - the checked program to the cleave dialect -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/EmitIR.h"

#include "ir/Auto.h"
#include "ir/Dialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/raw_ostream.h"

#include <limits>
#include <set>

namespace cleave {
namespace {

using checked::LayerIndex;
using checked::Node;
using checked::Op;
using checked::ValueId;
using mlir::Attribute;
using mlir::StringAttr;
using mlir::Type;

/// Whether the emitted function draws random numbers.
bool isRandom(const checked::Region &region) {
  return llvm::any_of(region.nodes, [](const Node &node) {
    return node.op == Op::Dropout || (node.op == Op::Attention && node.attention.rate > 0) ||
           (node.op == Op::Repeat && isRandom(node.body[0]));
  });
}

/// What an input of ids is used for: the bound that its ids must keep.
struct IdRange {
  int64_t bound = INT64_MAX;
  std::string dim;
  std::optional<int64_t> ignore; ///< of all its cross-entropies; none: they disagree
  bool lookedUp = false, scored = false;
};

void collectRanges(const checked::Function &f, const checked::Region &region,
                   std::map<ValueId, ValueId> &origin, std::map<ValueId, IdRange> &ranges) {
  auto source = [&](ValueId value) {
    auto it = origin.find(value);
    return it == origin.end() ? value : it->second;
  };
  for (const Node &node : region.nodes) {
    if (node.op == Op::Iota) // its bound is known, and has been checked
      origin[node.results[0]] = node.results[0];
    bool same = node.op == Op::Rename || node.op == Op::Broadcast || node.op == Op::Slice;
    if (same && origin.contains(source(node.operands[0])))
      origin[node.results[0]] = source(node.operands[0]);
    if (node.op == Op::Repeat) {
      const checked::Region &body = node.body[0];
      for (size_t i = 0; i < node.operands.size(); ++i)
        if (body.yields[i] == body.arguments[i] && // the same ids in every turn
            origin.contains(source(node.operands[i])))
          origin[body.arguments[i]] = source(node.operands[i]);
      collectRanges(f, node.body[0], origin, ranges);
    }
    if (node.op != Op::Gather && node.op != Op::CrossEntropy)
      continue;
    IdRange &range = ranges[source(node.operands[1])];
    const checked::TensorType &type = f.values[node.operands[0]].type;
    int64_t bound = type.dims[type.find(node.dims[0])].size;
    if (bound < range.bound)
      range.bound = bound, range.dim = node.dims[0];
    if (node.op == Op::CrossEntropy) {
      if (!range.scored)
        range.ignore = node.count;
      else if (range.ignore != node.count)
        range.ignore.reset();
      range.scored = true;
    }
    range.lookedUp |= node.op == Op::Gather;
  }
}

class Emitter {
public:
  Emitter(const CheckedProgram &program, const EmitOptions &options, mlir::MLIRContext &context)
      : program(program), options(options), b(&context) {}

  Result<mlir::OwningOpRef<mlir::ModuleOp>> run() {
    for (const std::string &name : options.functions)
      if (!program.function(name)) {
        std::vector<std::string> known;
        for (const checked::Function &f : program.functions)
          known.push_back(f.name);
        std::string hint = meantHint(name, known);
        return Error{"the model " + quoted(program.model) + " has no function " + quoted(name) +
                     (hint.empty() ? "" : "; " + hint)};
      }
    mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(b, location(program.range));
    if (options.precision) {
      (*module)->setAttr(kPrecisionAttr,
                         mlir::TypeAttr::get(elementType(options.precision->compute)));
      (*module)->setAttr(kReduceAttr, mlir::TypeAttr::get(elementType(options.precision->reduce)));
    }
    if (!options.plan.empty()) {
      plan = program.plan(options.plan);
      if (!plan)
        return Error{"no plan is called " + quoted(options.plan)};
      if (auto done = planAttributes(*module); !done)
        return done.error();
    }
    b.setInsertionPointToEnd(module->getBody());
    for (const checked::Function &f : program.functions)
      if (options.functions.empty() || llvm::is_contained(options.functions, f.name))
        function(f);
    std::string faults;
    mlir::ScopedDiagnosticHandler handler(b.getContext(), [&](mlir::Diagnostic &d) {
      llvm::raw_string_ostream os(faults);
      os << d.getLocation() << ": " << d << "\n";
      return mlir::success();
    });
    if (mlir::failed(mlir::verify(*module)))
      return Error{"the emitted program is not valid:\n" + faults, Fault::Internal};
    return module;
  }

private:
  const CheckedProgram &program;
  const EmitOptions &options;
  mlir::OpBuilder b;
  const checked::Plan *plan = nullptr;
  const checked::Function *current = nullptr;
  std::map<ValueId, mlir::Value> values;
  /// Params and their slices by the layers that are chosen so far.
  std::map<std::pair<uint32_t, std::vector<LayerIndex>>, mlir::Value> slices;
  std::map<ValueId, int64_t> loopCounts;
  mlir::Value seed, step;
  /// By value: the argument (or the positions) whose ids it has, as they are.
  std::map<ValueId, ValueId> origin;

  //===--------------------------------------------------------------------===//
  // Types, locations, attributes
  //===--------------------------------------------------------------------===//

  Type elementType(DType type) {
    switch (type == DType::F32 ? options.dtype : type) {
    case DType::F32:
      return b.getF32Type();
    case DType::F64:
      return b.getF64Type();
    case DType::BF16:
      return b.getBF16Type();
    case DType::F16:
      return b.getF16Type();
    case DType::I1:
      return b.getI1Type();
    case DType::I32:
      return b.getI32Type();
    case DType::I64:
      return b.getI64Type();
    }
    llvm_unreachable("all element types are listed");
  }
  NamedTensorType type(const checked::TensorType &t) {
    llvm::SmallVector<StringAttr> names;
    llvm::SmallVector<int64_t> sizes;
    for (const checked::Atom &atom : t.dims) {
      names.push_back(b.getStringAttr(atom.name));
      sizes.push_back(atom.size);
    }
    return NamedTensorType::get(b.getContext(), elementType(t.element), names, sizes, {});
  }
  NamedTensorType typeOf(ValueId value) { return type(current->values[value].type); }
  NamedTensorType scalar(Type element) {
    return NamedTensorType::get(b.getContext(), element, {}, {}, {});
  }

  mlir::Location location(SourceRange range) {
    SourceLocation at = program.sources.locate(range);
    if (at.file.empty())
      return b.getUnknownLoc();
    return mlir::FileLineColLoc::get(b.getContext(), at.file, at.line, at.column);
  }
  mlir::Location location(const Node &node) {
    for (ValueId value : node.results)
      if (!current->values[value].names.empty())
        return mlir::NameLoc::get(b.getStringAttr(current->values[value].names.front()),
                                  location(node.range));
    return location(node.range);
  }
  mlir::ArrayAttr strings(const std::vector<std::string> &list) {
    llvm::SmallVector<Attribute> out;
    for (const std::string &s : list)
      out.push_back(b.getStringAttr(s));
    return b.getArrayAttr(out);
  }

  ShardRuleAttr rule(const checked::ShardRule &r) {
    llvm::SmallVector<mlir::ArrayAttr> alternatives;
    llvm::SmallVector<StringAttr> axes;
    for (const checked::ShardRule::Alternative &alternative : r.alternatives) {
      llvm::SmallVector<Attribute> dims;
      for (const checked::PlanDim &dim : alternative.dims)
        dims.push_back(strings(dim.atoms));
      alternatives.push_back(b.getArrayAttr(dims));
    }
    for (const std::string &axis : r.alternatives.front().axes)
      axes.push_back(b.getStringAttr(axis));
    return ShardRuleAttr::get(b.getContext(), alternatives, axes);
  }

  /// What the search of an automatic plan must know (ir/Auto.h).
  mlir::DictionaryAttr searchSettings() {
    llvm::SmallVector<mlir::NamedAttribute> list;
    auto set = [&](llvm::StringRef key, Attribute value) {
      list.push_back(b.getNamedAttr(key, value));
    };
    llvm::SmallVector<Attribute> compounds, homes, nevers;
    llvm::StringMap<std::string> said;
    auto note = [&](const std::string &sentence, SourceRange range) {
      SourceLocation at = program.sources.locate(range);
      if (!at.file.empty())
        said.try_emplace(sentence,
                         at.file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column));
    };
    for (const checked::ShardRule &r : plan->rules)
      note(sentenceOf(rule(r)), r.range);
    for (const checked::Pin &pin : plan->pins) {
      std::string what;
      if (pin.zeroLevel)
        what = "zero " + std::to_string(*pin.zeroLevel);
      else
        what = pin.replicate ? "replicate" : sentenceOf(rule(pin.rule));
      note("at " + (pin.path.empty() ? "[" + llvm::join(pin.dims, ", ") + "]" : pin.path) + ": " +
               what,
           pin.range);
    }
    for (const checked::Never &never : plan->nevers)
      note("never " + never.kind + " " + never.path, never.range);
    llvm::SmallVector<mlir::NamedAttribute> places;
    for (const auto &entry : said)
      places.push_back(b.getNamedAttr(entry.getKey(), b.getStringAttr(entry.getValue())));
    if (!places.empty())
      set(kAutoPlaces, b.getDictionaryAttr(places));
    for (const checked::NamedDim &dim : program.dims)
      if (dim.atoms.size() > 1)
        compounds.push_back(strings(dim.atoms));
    for (const checked::Pin &pin : plan->pins)
      if (pin.path.empty())
        homes.push_back(b.getArrayAttr({strings(pin.dims),
                                        b.getArrayAttr(pin.replicate ? llvm::ArrayRef<Attribute>()
                                                                     : Attribute(rule(pin.rule))),
                                        strings(pin.axes)}));
    for (const checked::Never &never : plan->nevers)
      nevers.push_back(strings({never.kind, never.path}));
    if (!compounds.empty())
      set(kAutoCompounds, b.getArrayAttr(compounds));
    if (!homes.empty())
      set(kAutoHomes, b.getArrayAttr(homes));
    if (!nevers.empty())
      set(kAutoNever, b.getArrayAttr(nevers));
    if (plan->memoryBytes)
      set(kAutoMemory, b.getI64IntegerAttr(plan->memoryBytes));
    return b.getDictionaryAttr(list);
  }

  Status planAttributes(mlir::ModuleOp module) {
    llvm::SmallVector<StringAttr> names;
    llvm::SmallVector<int64_t> sizes;
    for (const checked::MeshAxisDecl &axis : plan->axes) {
      if (!axis.size)
        return Error{"the axis " + quoted(axis.name) + " of the plan " + quoted(plan->name) +
                     " has no size"};
      names.push_back(b.getStringAttr(axis.name));
      sizes.push_back(*axis.size);
    }
    llvm::SmallVector<Attribute> rules;
    for (const checked::ShardRule &r : plan->rules)
      rules.push_back(rule(r));
    module->setAttr(kMeshAttr, MeshAttr::get(b.getContext(), names, sizes));
    module->setAttr(kPlanAttr, b.getArrayAttr(rules));
    if (plan->overlap) {
      module->setAttr(kOverlap, b.getStringAttr(plan->overlap->how));
      if (plan->overlap->bucketBytes)
        module->setAttr(kBucketBytes, b.getI64IntegerAttr(plan->overlap->bucketBytes));
    }
    if (plan->zero && plan->zero->level) {
      llvm::SmallVector<StringAttr> axes;
      for (const std::string &axis : plan->zero->axes)
        axes.push_back(b.getStringAttr(axis));
      module->setAttr(kZeroAttr, ZeroAttr::get(b.getContext(), plan->zero->level, axes,
                                               plan->zero->offloadsOptimizer));
    }
    if (plan->automatic)
      module->setAttr(kAutoAttr, searchSettings());
    module->setAttr(kPlanName, b.getStringAttr(plan->name));
    if (plan->range.valid())
      module->setLoc(mlir::FusedLoc::get({module.getLoc(), location(plan->range)}, Attribute(),
                                         b.getContext()));
    return {};
  }

  /// What the plan's pins of one name say; `replicate` is no rule at all.
  bool pinsOf(const std::string &path, llvm::SmallVector<Attribute> &rules,
              std::vector<std::string> &axes) {
    bool any = false;
    for (const checked::Pin &pin : plan ? plan->pins : std::vector<checked::Pin>()) {
      if (pin.path != path || pin.zeroLevel)
        continue;
      any = true;
      axes.insert(axes.end(), pin.axes.begin(), pin.axes.end());
      if (!pin.replicate)
        rules.push_back(rule(pin.rule));
    }
    return any;
  }

  //===--------------------------------------------------------------------===//
  // Functions
  //===--------------------------------------------------------------------===//

  void function(const checked::Function &f) {
    current = &f;
    values.clear();
    slices.clear();
    loopCounts.clear();
    llvm::SmallVector<Type> inputs, results;
    llvm::SmallVector<mlir::Location> places;
    for (uint32_t index : f.params) {
      inputs.push_back(type(program.params[index].type));
      places.push_back(mlir::NameLoc::get(b.getStringAttr(program.params[index].path),
                                          location(program.params[index].range)));
    }
    for (ValueId argument : f.body.arguments) {
      inputs.push_back(typeOf(argument));
      places.push_back(mlir::NameLoc::get(b.getStringAttr(f.values[argument].names.front()),
                                          location(f.values[argument].range)));
    }
    bool random = options.train && isRandom(f.body);
    if (random) {
      inputs.append(2, scalar(b.getI64Type()));
      places.append(2, location(f.range));
    }
    for (ValueId result : f.body.yields)
      results.push_back(typeOf(result));
    mlir::func::FuncOp func =
        mlir::func::FuncOp::create(location(f.range), f.name, b.getFunctionType(inputs, results));
    b.insert(func);
    mlir::OpBuilder::InsertionGuard guard(b);
    mlir::Block *block = new mlir::Block;
    func.getBody().push_back(block);
    block->addArguments(inputs, places);
    b.setInsertionPointToEnd(block);
    unsigned number = 0;
    auto describe = [&](llvm::StringRef name, llvm::StringRef role) {
      func.setArgAttr(number, kName, b.getStringAttr(name));
      func.setArgAttr(number, kRole, b.getStringAttr(role));
    };
    for (uint32_t index : f.params) {
      const checked::Param &param = program.params[index];
      describe(param.path, "param");
      func.setArgAttr(number, kInit, b.getStringAttr(param.init.text));
      if (param.stacked)
        func.setArgAttr(number, kStacked, b.getI64IntegerAttr(param.stacked));
      if (!param.decay)
        func.setArgAttr(number, kNoDecay, b.getUnitAttr());
      llvm::SmallVector<Attribute> rules;
      std::vector<std::string> axes;
      if (pinsOf(param.path, rules, axes)) {
        func.setArgAttr(number, "cleave.pin", b.getArrayAttr(rules));
        func.setArgAttr(number, "cleave.pin_axes", strings(axes));
      }
      for (const checked::Pin &pin : plan ? plan->pins : std::vector<checked::Pin>())
        if (pin.path == param.path && pin.zeroLevel)
          func.setArgAttr(number, kPinZero,
                          b.getArrayAttr({b.getI64IntegerAttr(*pin.zeroLevel), strings(pin.axes)}));
      slices[{index, {}}] = block->getArgument(number++);
    }
    origin.clear();
    for (ValueId argument : f.body.arguments)
      origin[argument] = argument;
    std::map<ValueId, IdRange> ranges;
    collectRanges(f, f.body, origin, ranges);
    for (size_t i = 0; i < f.body.arguments.size(); ++i) {
      ValueId argument = f.body.arguments[i];
      describe(f.argumentNames[i], "input");
      if (auto it = ranges.find(argument); it != ranges.end()) {
        func.setArgAttr(number, kRange, b.getI64IntegerAttr(it->second.bound));
        func.setArgAttr(number, kRangeDim, b.getStringAttr(it->second.dim));
        if (it->second.ignore && !it->second.lookedUp)
          func.setArgAttr(number, kIgnore, b.getI64IntegerAttr(*it->second.ignore));
      }
      define(argument, block->getArgument(number++));
    }
    seed = step = {};
    if (random) {
      describe("seed", "scalar");
      seed = block->getArgument(number++);
      describe("step", "scalar");
      step = block->getArgument(number++);
    }
    region(f.body);
    llvm::SmallVector<mlir::Value> returned;
    std::set<std::string> taken;
    for (auto [i, result] : llvm::enumerate(f.body.yields)) {
      returned.push_back(values.at(result));
      // The variable that is returned ("logits"), else the function.
      std::string shown = f.body.yields.size() == 1 ? f.name : f.name + "." + std::to_string(i);
      for (const std::string &name : f.values[result].names)
        if (name.starts_with(f.name + ".") && name.find('.', f.name.size() + 1) == name.npos) {
          shown = name.substr(f.name.size() + 1);
          break;
        }
      if (!taken.insert(shown).second)
        taken.insert(shown += "." + std::to_string(i));
      func.setResultAttr(i, kName, b.getStringAttr(shown));
    }
    mlir::func::ReturnOp::create(b, location(f.range), returned);
  }

  /// Binds a value, through a pin when the plan has one for a name of it.
  void define(ValueId id, mlir::Value value) {
    for (const std::string &name : current->values[id].names) {
      llvm::SmallVector<Attribute> rules;
      std::vector<std::string> axes;
      // A param is pinned as an argument, not where it is read.
      bool isParam = llvm::any_of(program.params,
                                  [&](const checked::Param &param) { return param.path == name; });
      if (!isParam && pinsOf(name, rules, axes))
        value = PinOp::create(b, value.getLoc(), value.getType(), value, b.getStringAttr(name),
                              b.getArrayAttr(rules), strings(axes));
    }
    values[id] = value;
  }

  void region(const checked::Region &r) {
    for (const Node &node : r.nodes)
      this->node(node);
  }

  //===--------------------------------------------------------------------===//
  // Params and loops
  //===--------------------------------------------------------------------===//

  /// A param with the first of its stacked dims chosen.
  mlir::Value slice(uint32_t param, std::vector<LayerIndex> layers, mlir::Location loc) {
    auto known = slices.find({param, layers});
    if (known != slices.end())
      return known->second;
    // Loops have put their slices there; this one has a fixed index.
    LayerIndex last = layers.back();
    layers.pop_back();
    mlir::Value whole = slice(param, layers, loc);
    NamedTensorType full = tensorOf(whole);
    llvm::StringRef dim = full.getNames()[0].getValue();
    mlir::Value one = SliceOp::create(b, loc, full.withDim(0, dim, 1), whole, b.getStringAttr(dim),
                                      b.getI64IntegerAttr(last.index), b.getI64IntegerAttr(1));
    return reduce(b, loc, Reduction::Sum, one, {dim});
  }

  /// The stacked params that a loop's body reads by its index: what is chosen
  /// before this index, once each.
  static void collectStacked(const checked::Region &body, ValueId loop,
                             std::vector<std::pair<uint32_t, std::vector<LayerIndex>>> &out) {
    for (const Node &node : body.nodes) {
      if (node.op == Op::Repeat)
        collectStacked(node.body[0], loop, out);
      if (node.op != Op::Param)
        continue;
      for (size_t i = 0; i < node.layers.size(); ++i)
        if (!node.layers[i].fixed && node.layers[i].loop == loop) {
          std::pair key(node.param, std::vector(node.layers.begin(), node.layers.begin() + i));
          if (!llvm::is_contained(out, key))
            out.push_back(std::move(key));
        }
    }
  }

  void repeat(const Node &node) {
    mlir::Location loc = location(node);
    const checked::Region &body = node.body[0];
    std::vector<std::pair<uint32_t, std::vector<LayerIndex>>> keys;
    collectStacked(body, body.index, keys);
    llvm::SmallVector<mlir::Value> inits, stacked;
    for (ValueId operand : node.operands)
      inits.push_back(values.at(operand));
    for (const auto &[param, layers] : keys)
      stacked.push_back(slice(param, layers, loc));
    RepeatOp op = RepeatOp::create(b, loc, node.dims[0], node.count, false, inits, stacked,
                                   mlir::TypeRange());
    {
      mlir::OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(&op.getBody().front());
      values[body.index] = op.getLayer();
      loopCounts[body.index] = node.count;
      for (auto [id, value] : llvm::zip_equal(body.arguments, op.getCarried()))
        values[id] = value;
      for (auto [key, value] : llvm::zip_equal(keys, op.getSlices())) {
        auto layers = key.second;
        layers.push_back({false, body.index, 0});
        slices[{key.first, layers}] = value;
      }
      region(body);
      llvm::SmallVector<mlir::Value> yields;
      for (ValueId id : body.yields)
        yields.push_back(values.at(id));
      YieldOp::create(b, loc, yields);
    }
    for (auto [id, value] : llvm::zip(node.results, op.getResults()))
      define(id, value);
  }

  /// The layer's number in the random counter, outer loops major.
  mlir::Value layerNumber(const Node &node, mlir::Location loc) {
    NamedTensorType i32 = scalar(b.getI32Type());
    mlir::Value number;
    for (ValueId loop : node.loops) {
      mlir::Value index = values.at(loop);
      if (number) {
        mlir::Value count = constant(b, loc, i32, loopCounts.at(loop));
        number = binary<AddOp>(b, loc, binary<MulOp>(b, loc, number, count), index);
      } else {
        number = index;
      }
    }
    return number ? number : constant(b, loc, i32, 0);
  }

  //===--------------------------------------------------------------------===//
  // Nodes
  //===--------------------------------------------------------------------===//

  void node(const Node &node) {
    if (node.op == Op::Repeat)
      return repeat(node);
    mlir::Location loc = location(node);
    if (node.op == Op::Param) {
      define(node.results[0], slice(node.param, node.layers, loc));
      return;
    }
    llvm::SmallVector<mlir::Value> operands;
    for (ValueId operand : node.operands)
      operands.push_back(values.at(operand));
    define(node.results[0], emit(node, loc, typeOf(node.results[0]), operands));
  }

  template <typename T>
  mlir::Value one(mlir::Location loc, Type result, llvm::ArrayRef<mlir::Value> operands) {
    return T::create(b, loc, result, operands[0]);
  }
  template <typename T>
  mlir::Value two(mlir::Location loc, Type result, llvm::ArrayRef<mlir::Value> operands) {
    return T::create(b, loc, result, operands[0], operands[1]);
  }
  mlir::Value reduction(Reduction kind, const Node &node, mlir::Location loc, Type result,
                        mlir::Value x) {
    return ReduceOp::create(b, loc, result, ReductionAttr::get(b.getContext(), kind), x,
                            strings(node.dims));
  }
  mlir::Value comparison(Predicate p, mlir::Location loc, Type result,
                         llvm::ArrayRef<mlir::Value> operands) {
    return CompareOp::create(b, loc, result, PredicateAttr::get(b.getContext(), p), operands[0],
                             operands[1]);
  }

  mlir::Value attention(const Node &node, mlir::Location loc, NamedTensorType result,
                        llvm::ArrayRef<mlir::Value> operands) {
    const checked::AttentionInfo &a = node.attention;
    size_t next = 3;
    mlir::Value mask = a.mask ? operands[next++] : mlir::Value();
    mlir::Value bias = a.bias ? operands[next++] : mlir::Value();
    bool drops = options.train && a.rate > 0;
    llvm::SmallVector<mlir::Value> random;
    if (drops)
      random = {seed, step, layerNumber(node, loc)};
    NamedTensorType lse = tensorOf(operands[0]).withoutDims({a.depthDim});
    int64_t queries = lse.sizeOf(a.queryDim), keys = tensorOf(operands[1]).sizeOf(a.keyDim);
    // The scores' dims: queries and keys stand last.
    llvm::SmallVector<int64_t> sizes;
    if (drops) {
      sizes = llvm::to_vector(lse.withoutDims({a.queryDim}).getSizes());
      sizes.append({queries, keys});
    }
    return AttentionOp::create(b, loc, mlir::TypeRange{result, lse}, operands[0], operands[1],
                               operands[2], mask, bias, random, mlir::ValueRange(),
                               b.getStringAttr(a.queryDim), b.getStringAttr(a.keyDim),
                               b.getStringAttr(a.depthDim), b.getStringAttr(a.valueDim),
                               b.getBoolAttr(a.causal), b.getI64IntegerAttr(keys - queries),
                               b.getF64FloatAttr(a.scale), b.getF64FloatAttr(drops ? a.rate : 0),
                               b.getStringAttr(node.site), b.getI64IntegerAttr(siteHash(node.site)),
                               b.getDenseI64ArrayAttr(sizes))
        .getResult();
  }

  mlir::Value number(mlir::Location loc, mlir::Value like, double value) {
    Type element = tensorOf(like).getElementType();
    return constant(b, loc, NamedTensorType::get(b.getContext(), element, {}, {}, {}), value);
  }
  /// Inputs of ids are checked before the program runs. Ids that it computes are not: what is
  /// looked up or scored with one outside of its range is no number.
  bool areInputs(ValueId ids) const { return origin.contains(ids); }
  mlir::Value notANumber(mlir::Location loc, mlir::Value like) {
    return number(loc, like, std::numeric_limits<double>::quiet_NaN());
  }
  mlir::Value outside(mlir::Location loc, mlir::Value ids, int64_t size) {
    mlir::Value low = compare(b, loc, Predicate::LT, ids, number(loc, ids, 0));
    mlir::Value high =
        compare(b, loc, Predicate::GE, ids, number(loc, ids, static_cast<double>(size)));
    return binary<OrOp>(b, loc, low, high);
  }

  mlir::Value emit(const Node &node, mlir::Location loc, NamedTensorType result,
                   llvm::ArrayRef<mlir::Value> operands) {
    switch (node.op) {
    case Op::Param:
    case Op::Repeat:
      break; // they are not here
    case Op::Constant:
      return constant(b, loc, result, node.number);
    case Op::Iota:
      return IotaOp::create(b, loc, result, b.getStringAttr(node.dims[0]), mlir::ValueRange());
    case Op::Neg:
      return one<NegOp>(loc, result, operands);
    case Op::Abs:
      return one<AbsOp>(loc, result, operands);
    case Op::Exp:
      return one<ExpOp>(loc, result, operands);
    case Op::Log:
      return one<LogOp>(loc, result, operands);
    case Op::Sqrt:
      return one<SqrtOp>(loc, result, operands);
    case Op::Rsqrt:
      return one<RsqrtOp>(loc, result, operands);
    case Op::Tanh:
      return one<TanhOp>(loc, result, operands);
    case Op::Sigmoid:
      return one<SigmoidOp>(loc, result, operands);
    case Op::Erf:
      return one<ErfOp>(loc, result, operands);
    case Op::Sin:
      return one<SinOp>(loc, result, operands);
    case Op::Cos:
      return one<CosOp>(loc, result, operands);
    case Op::Not:
      return one<NotOp>(loc, result, operands);
    case Op::Gelu:
      return GeluOp::create(b, loc, result, operands[0], b.getBoolAttr(node.flag));
    case Op::Silu:
      return one<SiluOp>(loc, result, operands);
    case Op::Relu:
      return one<ReluOp>(loc, result, operands);
    case Op::StopGradient:
      return one<StopGradientOp>(loc, result, operands);
    case Op::Cast: // f64 of what is f64 already, under --dtype f64
      return operands[0].getType() == result ? operands[0] : one<CastOp>(loc, result, operands);
    case Op::Broadcast:
      return one<BroadcastOp>(loc, result, operands);
    case Op::Rename:
      return one<RenameOp>(loc, result, operands);
    case Op::Add:
      return two<AddOp>(loc, result, operands);
    case Op::Sub:
      return two<SubOp>(loc, result, operands);
    case Op::Mul:
      return two<MulOp>(loc, result, operands);
    case Op::Div:
      return two<DivOp>(loc, result, operands);
    case Op::Max:
      return two<MaximumOp>(loc, result, operands);
    case Op::Min:
      return two<MinimumOp>(loc, result, operands);
    case Op::Pow:
      return two<PowOp>(loc, result, operands);
    case Op::And:
      return two<AndOp>(loc, result, operands);
    case Op::Or:
      return two<OrOp>(loc, result, operands);
    case Op::Eq:
      return comparison(Predicate::EQ, loc, result, operands);
    case Op::Ne:
      return comparison(Predicate::NE, loc, result, operands);
    case Op::Lt:
      return comparison(Predicate::LT, loc, result, operands);
    case Op::Le:
      return comparison(Predicate::LE, loc, result, operands);
    case Op::Gt:
      return comparison(Predicate::GT, loc, result, operands);
    case Op::Ge:
      return comparison(Predicate::GE, loc, result, operands);
    case Op::Select:
      return SelectOp::create(b, loc, result, operands[0], operands[1], operands[2]);
    case Op::ReduceSum:
      return reduction(Reduction::Sum, node, loc, result, operands[0]);
    case Op::ReduceMax:
      return reduction(Reduction::Max, node, loc, result, operands[0]);
    case Op::ReduceMin:
      return reduction(Reduction::Min, node, loc, result, operands[0]);
    case Op::Contract:
      return two<ContractOp>(loc, result, operands);
    case Op::Gather: {
      mlir::Value rows = GatherOp::create(b, loc, result, operands[0], operands[1],
                                          b.getStringAttr(node.dims[0]), mlir::ValueRange());
      if (areInputs(node.operands[1]) || !result.isFloat())
        return rows;
      int64_t size = tensorOf(operands[0]).sizeOf(node.dims[0]);
      return select(b, loc, outside(loc, operands[1], size), notANumber(loc, rows), rows);
    }
    case Op::Slice:
      return SliceOp::create(b, loc, result, operands[0], b.getStringAttr(node.dims[0]),
                             b.getI64IntegerAttr(node.start), b.getI64IntegerAttr(node.stride));
    case Op::Concat: {
      std::vector<std::string> dims(node.dims.begin(), node.dims.end() - 1);
      return ConcatOp::create(b, loc, result, operands, strings(dims),
                              b.getStringAttr(node.dims.back()));
    }
    case Op::Softmax:
      return SoftmaxOp::create(b, loc, result, operands[0], strings(node.dims));
    case Op::LayerNorm:
      return LayerNormOp::create(b, loc, result, operands[0], operands[1], operands[2],
                                 strings(node.dims), b.getF64FloatAttr(node.number));
    case Op::RmsNorm:
      return RmsNormOp::create(b, loc, result, operands[0], operands[1], strings(node.dims),
                               b.getF64FloatAttr(node.number));
    case Op::Dropout:
      if (!options.train)
        return operands[0];
      return DropoutOp::create(b, loc, result, operands[0], seed, step, layerNumber(node, loc),
                               b.getF64FloatAttr(node.number), b.getStringAttr(node.site),
                               b.getI64IntegerAttr(siteHash(node.site)));
    case Op::Rope:
      return RopeOp::create(b, loc, result, operands[0], operands[1], b.getStringAttr(node.dims[0]),
                            b.getF64FloatAttr(node.number), b.getBoolAttr(node.flag),
                            b.getI64IntegerAttr(node.count));
    case Op::CrossEntropy: {
      mlir::Value labels = operands[1];
      mlir::Value loss =
          CrossEntropyOp::create(b, loc, result, operands[0], labels, b.getStringAttr(node.dims[0]),
                                 b.getI64IntegerAttr(node.count), b.getF64FloatAttr(node.number));
      if (areInputs(node.operands[1]))
        return loss;
      int64_t classes = tensorOf(operands[0]).sizeOf(node.dims[0]);
      mlir::Value counts = compare(b, loc, Predicate::NE, labels,
                                   number(loc, labels, static_cast<double>(node.count)));
      mlir::Value wrong = binary<AndOp>(b, loc, outside(loc, labels, classes), counts);
      mlir::Value many = cleave::cast(b, loc, wrong, result.getElementType());
      llvm::SmallVector<llvm::StringRef> all;
      for (mlir::StringAttr name : tensorOf(labels).getNames())
        all.push_back(name);
      many = reduce(b, loc, Reduction::Sum, many, all);
      mlir::Value any = compare(b, loc, Predicate::GT, many, number(loc, many, 0));
      return select(b, loc, any, notANumber(loc, loss), loss);
    }
    case Op::Attention:
      return attention(node, loc, result, operands);
    }
    llvm_unreachable("all ops are listed");
  }
};

} // namespace

Result<mlir::OwningOpRef<mlir::ModuleOp>>
emitIR(const CheckedProgram &program, const EmitOptions &options, mlir::MLIRContext &context) {
  return Emitter(program, options, context).run();
}

} // namespace cleave
