//===- Check.cpp - cleave check -------------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The sharded program against the one-rank program on the same random inputs
// and weights: results, every gradient, the weights after three steps. Where
// they differ, both are compiled once more with all named values of the source
// as results, and the first that differs is named with its line.
//
//===----------------------------------------------------------------------===//
#include "Difference.h"
#include "Emulate.h"
#include "Inputs.h"
#include "Load.h"

#include "runtime/core/Philox.h"
#include "runtime/core/Shard.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <set>
#include <tuple>

namespace cleave::tool {

namespace {

struct CheckCommand : CommonOptions {
  std::string mutate;
  bool noFuse = false, everyFunction = false;

  CheckCommand() { dtype = "f64"; }
};

constexpr int trainingSteps = 3;

/// One of the programs that are compared, with its ranks.
struct Side {
  std::string plan;
  DType dtype = DType::F64;
  std::string mutation;
  Built built;
  std::unique_ptr<Session> session;

  /// Null if there is none of this name.
  const Program *program(const std::string &name) const {
    for (const Program &p : built.executable->programs)
      if (p.name == name)
        return &p;
    return nullptr;
  }
};

/// Where the source speaks of a value or of a param's first use. What stands in
/// a repeat happens once for each layer.
struct Place {
  std::string name;
  SourceRange range;
  size_t order = 0; ///< in the program
  size_t outer = 0; ///< of the outermost repeat around it, else `order`
  bool repeated = false;
};

/// Named values and uses of params in program order.
class Names {
public:
  explicit Names(const checked::Function &f) : function(f) { walk(f.body); }

  std::vector<Place> values;          ///< each name once: its last value
  std::map<uint32_t, Place> firstUse; ///< of each param

private:
  void walk(const checked::Region &region) {
    for (const checked::Node &node : region.nodes) {
      bool isRepeat = node.op == checked::Op::Repeat;
      if (isRepeat && depth++ == 0)
        outer = counter;
      if (node.op == checked::Op::Param)
        for (checked::ValueId result : node.results)
          params[result] = node.param;
      for (checked::ValueId operand : node.operands)
        if (auto found = params.find(operand); found != params.end())
          firstUse.emplace(found->second, place("", node.range));
      ++counter;
      for (const checked::Region &body : node.body)
        walk(body);
      if (isRepeat)
        --depth;
      // Of several names the first is the one that the compiler keeps.
      for (checked::ValueId result : node.results)
        if (const checked::Value &value = function.values[result];
            !isRepeat && !value.names.empty())
          add(value.names.front(), value.range);
    }
  }
  Place place(const std::string &name, SourceRange range) const {
    return {name, range, counter, depth ? outer : counter, depth > 0};
  }
  void add(const std::string &name, SourceRange range) {
    std::erase_if(values, [&](const Place &p) { return p.name == name; });
    values.push_back(place(name, range));
  }

  const checked::Function &function;
  std::map<checked::ValueId, uint32_t> params;
  size_t counter = 0, depth = 0, outer = 0;
};

class Checking {
public:
  explicit Checking(const CheckCommand &o) : o(o), progress(o.quiet || o.json) {}
  Status run();

private:
  Status load();
  Result<Side> prepare(const std::string &plan, DType dtype, const std::string &mutation,
                       const std::vector<std::string> &taps);
  Result<Built> compileAll(const CheckedProgram &program, const Side &side,
                           const std::vector<EntryPoint> &entries,
                           const std::vector<std::string> &taps);
  Status setWeights();
  Result<Inputs> inputsFor(const Side &side, const Program &program, uint32_t step);
  Result<RunResult> runOn(Side &side, const std::string &program, uint32_t step);
  Status compareProgram(const std::string &program);
  Status compareSteps();
  Result<std::string> nameTheFirst();
  std::string nameGradient() const;
  std::string where(SourceRange range) const;
  std::string collectivesAt(SourceRange range) const;
  void print(double seconds) const;

  void add(Difference d) { differences.push_back(std::move(d)); }
  bool differs() const {
    return std::any_of(differences.begin(), differences.end(),
                       [](const Difference &d) { return !d.equal; });
  }
  bool sgd() const { return o.elementType() == DType::F32; }
  double rate() const { return sgd() ? 0.1 : 1e-4; }

  const CheckCommand &o;
  Progress progress;
  std::optional<Source> source;
  Sizes sizes;
  std::optional<CheckedProgram> checked; ///< with the plan
  bool differentiable = false;
  double rounding = 0;          ///< see Tolerance
  checked::Precision precision; ///< of both sides
  OptimizerSettings optimizer;
  std::vector<EntryPoint> entries;
  std::vector<std::string> others; ///< further functions, whose results are compared too
  Side oneRank, sharded;
  std::optional<Side> exact; ///< float32: one rank in float64
  std::vector<Difference> differences;
  std::string named;
};

//===----------------------------------------------------------------------===//
// Both sides
//===----------------------------------------------------------------------===//

Status Checking::load() {
  if (auto status = requireSource(o, "check"); !status)
    return status;
  if (o.plan == "none")
    return Error{"--plan none is one rank, and there is nothing to check it against: give a plan "
                 "that splits the program"};
  if (o.plan.empty())
    return Error{"--plan NAME is required: the plan to check against one rank"};
  auto opened = Source::open(o);
  if (!opened)
    return opened.error();
  source.emplace(std::move(*opened));
  auto completed = source->completeOdd();
  if (!completed)
    return completed.error();
  sizes = *completed;
  auto program = source->check(sizes);
  if (!program)
    return program.error();
  checked.emplace(std::move(*program));
  auto function = findFunction(*checked, o.function);
  if (!function)
    return function.error();
  differentiable = static_cast<bool>(requireScalar(*checked, **function));
  for (const checked::Function &f : checked->functions)
    for (const checked::Value &value : f.values)
      rounding = std::max(rounding, unitOf(value.type.element));
  auto mixed = o.precisionUnder(*checked, planName(o.plan));
  if (!mixed)
    return mixed.error();
  precision = *mixed;
  rounding = std::max(rounding, unitOf(precision.compute));
  if (rounding > 0)
    note(o.quiet || o.json,
         fmt::format("the program rounds to {}: values are compared to {:.2g} of a tensor's "
                     "largest magnitude",
                     rounding == 0x1p-8 ? "bf16" : "f16", 4 * rounding));
  optimizer.kind = sgd() ? "sgd" : "adamw";
  entries = {{o.function, EntryPoint::Kind::Function, true}};
  if (differentiable) {
    entries.push_back({o.function, EntryPoint::Kind::Gradients, true});
    entries.push_back({o.function, EntryPoint::Kind::TrainStep, true});
  }
  if (o.everyFunction && o.mutate.empty())
    for (const checked::Function &f : checked->functions)
      if (f.name != o.function)
        others.push_back(f.name);
  for (const std::string &name : others)
    entries.insert(entries.begin() + 1, {name, EntryPoint::Kind::Function, true});
  return {};
}

Result<Built> Checking::compileAll(const CheckedProgram &program, const Side &side,
                                   const std::vector<EntryPoint> &entries,
                                   const std::vector<std::string> &taps) {
  CompileOptions options;
  if (side.plan != "none")
    if (auto status = chooseCluster(options, program, side.plan, o); !status)
      return status.error();
  options.entries = entries;
  options.optimizer = optimizer;
  options.fuse = !o.noFuse;
  options.taps = taps;
  options.listTaps = taps.empty();
  options.mutation = side.mutation;
  options.accumulate = side.plan == "none" ? 1 : o.accumulate;
  options.recompute = o.recompute;
  options.gathered = o.gathered;
  options.precision = precision; // not of the exact side, which is f64
  if (!o.mutate.empty())
    options.optLevel = 0; // many short checks; compiling is most of each
  return build(program, side.plan, side.dtype, std::move(options), progress);
}

/// A mutation counts the collectives of the training step; the forward program
/// has only the first of them, and may lack the one that is meant.
Result<Side> Checking::prepare(const std::string &plan, DType dtype, const std::string &mutation,
                               const std::vector<std::string> &taps) {
  Side side{plan, dtype, mutation, {}, nullptr};
  auto program = source->check(sizes, plan);
  if (!program)
    return program.error();
  std::vector<EntryPoint> wanted = entries;
  if (!taps.empty())
    wanted = {entries[0]};
  auto built = [&]() -> Result<Built> {
    if (mutation.empty() || wanted.size() == 1)
      return compileAll(*program, side, wanted, taps);
    // The last one must have the collective. Those before it only where they can.
    for (size_t first = 0; first + 1 < wanted.size(); ++first) {
      auto some = compileAll(*program, side,
                             {wanted.begin() + static_cast<ptrdiff_t>(first), wanted.end()}, taps);
      if (some)
        return some;
    }
    return compileAll(*program, side, {wanted.back()}, taps);
  }();
  if (!built) {
    Error error = built.error();
    if (!mutation.empty() && error.message.find("mutation") != std::string::npos)
      error.fault = Fault::User;
    return error;
  }
  side.built = std::move(*built);
  auto session = openSession(side.built, o);
  if (!session)
    return session.error();
  side.session = std::move(*session);
  return side;
}

/// The same weights on all sides: the initial ones, and where these are alike
/// in all elements (zeros, ones) some noise, so that no mistake hides in them.
/// All are exact in float32.
Status Checking::setWeights() {
  for (const Argument *param : oneRank.session->persistentArguments()) {
    if (param->role != Argument::Role::Param)
      continue;
    bool isFloat = param->layout.dtype == DType::F32 || param->layout.dtype == DType::F64;
    auto value = initialParam(param->name, param->init, globalShape(param->layout),
                              isFloat ? DType::F32 : param->layout.dtype, o.seed);
    if (!value)
      return value.error();
    bool alike = param->init.rfind("normal", 0) != 0 && param->init.rfind("uniform", 0) != 0;
    if (isFloat && alike) {
      Philox random(o.seed, 0, siteHash("check." + param->name));
      for (int64_t i = 0; i < value->elements(); ++i)
        value->as<float>()[i] += static_cast<float>(0.05 * random.normal(static_cast<uint64_t>(i)));
    }
    for (Side *side : {&oneRank, &sharded, exact ? &*exact : nullptr}) {
      if (!side)
        continue;
      const Argument *own = side->session->findPersistent(param->name);
      if (!own)
        return Error{fmt::format("the program under the plan '{}' has no param '{}'", side->plan,
                                 param->name),
                     Fault::Internal};
      bool rounded = false;
      auto converted = exactly(value->view(), own->layout.dtype, param->name, rounded);
      if (!converted)
        return converted.error();
      if (auto status = side->session->set(param->name, converted->view()); !status)
        return status;
    }
  }
  return {};
}

Result<RunResult> Checking::runOn(Side &side, const std::string &name, uint32_t step) {
  const Program *program = side.program(name);
  return side.session->run(name, randomInputs(*program, o.seed, step),
                           scalarsOf(*program, o.seed, step, rate()),
                           {.checkReplicas = false, .fetch = true});
}

//===----------------------------------------------------------------------===//
// Comparing
//===----------------------------------------------------------------------===//

/// The largest magnitude of all gradients.
double gradientScale(const RunResult &run) {
  double scale = 0;
  for (const auto &[name, value] : run.results)
    if (name.rfind("grad:", 0) == 0)
      scale = std::max(scale, largestMagnitude(value));
  return scale;
}

Status Checking::compareProgram(const std::string &name) {
  if (!sharded.program(name))
    return {}; // left out under a mutation
  progress.say("running " + name);
  auto a = runOn(oneRank, name, 0);
  if (!a)
    return a.error();
  auto b = runOn(sharded, name, 0);
  if (!b)
    return b.error();
  std::optional<RunResult> reference;
  if (exact) {
    auto c = runOn(*exact, name, 0);
    if (!c)
      return c.error();
    reference.emplace(std::move(*c));
  }
  double scale = gradientScale(reference ? *reference : *a);
  bool withGradients = scale > 0;
  for (const ProgramResult &result : oneRank.program(name)->results) {
    if (result.aliasOf >= 0)
      continue;
    bool gradient = result.name.rfind("grad:", 0) == 0;
    // The results beside the gradients have been compared already.
    if (!gradient && withGradients && sharded.program(o.function))
      continue;
    auto other = b->results.find(result.name);
    if (other == b->results.end())
      return Error{fmt::format("the sharded program has no result '{}'", result.name),
                   Fault::Internal};
    const HostTensor &mine = a->results.find(result.name)->second;
    Tolerance tolerance;
    tolerance.rounding = rounding;
    if (reference)
      tolerance.exact = &reference->results.find(result.name)->second;
    if (gradient && largestMagnitude(tolerance.exact ? *tolerance.exact : mine) < 1e-12 * scale)
      tolerance.floor = scale;
    std::string shown = result.name;
    if (gradient)
      shown = result.name.substr(5);
    else if (result.name == name)
      shown = name;
    else if (result.name.rfind("tap:", 0) != 0)
      shown = name + "." + result.name;
    add(compareTensors(gradient ? "gradient" : "result", shown, mine, other->second, tolerance));
  }
  return {};
}

/// Three steps, each side from the same weights on the same inputs.
Status Checking::compareSteps() {
  // Adam divides a gradient by its own size: one that is zero in mathematics is
  // pure rounding, and moves its weight by up to lr in any direction. For such
  // elements that movement is allowed.
  std::map<std::string, std::vector<double>> largest;
  double scale = 0;
  std::string gradients = o.function + "_grads";
  for (uint32_t step = 0; step < trainingSteps; ++step) {
    progress.say(fmt::format("step {} of {}", step + 1, trainingSteps));
    if (!sgd()) {
      auto run = runOn(oneRank, gradients, step);
      if (!run)
        return run.error();
      scale = std::max(scale, gradientScale(*run));
      for (const auto &[name, value] : run->results) {
        if (name.rfind("grad:", 0) != 0)
          continue;
        auto &most = largest[name.substr(5)];
        most.resize(static_cast<size_t>(value.elements()));
        for (size_t i = 0; i < most.size(); ++i)
          most[i] = std::max(most[i], std::abs(elementAsDouble(value.dtype, value.data.data(),
                                                               static_cast<int64_t>(i))));
      }
    }
    auto a = runOn(oneRank, "train_step", step);
    if (!a)
      return a.error();
    auto b = runOn(sharded, "train_step", step);
    if (!b)
      return b.error();
    std::optional<RunResult> reference;
    if (exact) {
      auto c = runOn(*exact, "train_step", step);
      if (!c)
        return c.error();
      reference.emplace(std::move(*c));
    }
    for (const auto &[name, value] : a->results) {
      auto other = b->results.find(name);
      if (other == b->results.end())
        continue;
      Tolerance tolerance;
      tolerance.rounding = rounding;
      if (reference)
        tolerance.exact = &reference->results.find(name)->second;
      add(compareTensors("step " + std::to_string(step + 1), name, value, other->second,
                         tolerance));
    }
  }
  for (const Argument *param : oneRank.session->persistentArguments()) {
    if (param->role != Argument::Role::Param)
      continue;
    auto a = oneRank.session->get(param->name);
    if (!a)
      return a.error();
    auto b = sharded.session->get(param->name);
    if (!b)
      return b.error();
    Tolerance tolerance;
    tolerance.rounding = rounding;
    HostTensor reference;
    if (exact) {
      auto c = exact->session->get(param->name);
      if (!c)
        return c.error();
      reference = std::move(*c);
      tolerance.exact = &reference;
    }
    std::vector<double> slack;
    if (auto most = largest.find(param->name); most != largest.end()) {
      for (double g : most->second)
        slack.push_back(g < 1e-12 * scale && g > 0
                            ? 2 * trainingSteps * rate() *
                                  std::min(1.0, 4 * (g + 1e-16 * scale) / optimizer.epsilon)
                            : 0);
      tolerance.slack = &slack;
    }
    add(compareTensors("weights", param->name, *a, *b, tolerance));
  }
  return {};
}

//===----------------------------------------------------------------------===//
// Naming the place
//===----------------------------------------------------------------------===//

std::string Checking::where(SourceRange range) const {
  if (!range.valid())
    return "";
  SourceLocation place = checked->sources.locate(range);
  std::string_view line = checked->sources.file(range.file).line(place.line);
  size_t begin = line.find_first_not_of(" \t");
  std::string text = begin == std::string_view::npos ? "" : printable(line.substr(begin));
  return fmt::format("{}:{}:{}\n  {} | {}", place.file, place.line, place.column, place.line, text);
}

/// Those of the sharded step that come from the same line.
std::string Checking::collectivesAt(SourceRange range) const {
  const Program *step = sharded.program("train_step");
  if (!step)
    step = sharded.program(o.function);
  if (!step || !range.valid())
    return "";
  SourceLocation place = checked->sources.locate(range);
  std::string prefix = fmt::format("{}:{}:", place.file, place.line), text;
  std::set<std::string> seen;
  for (const CollectiveSite &site : step->collectiveSites) {
    std::string one = fmt::format("{} over {} ({})", site.kind, site.axes, site.phase);
    if (site.location.rfind(prefix, 0) == 0 && seen.insert(one).second)
      text += fmt::format("{}{}", text.empty() ? "\n  collectives of this line: " : ", ", one);
  }
  return text;
}

/// On the way back a gradient is complete when its param's first use has been
/// reached, layer by layer from the last one.
std::string Checking::nameGradient() const {
  const checked::Function &function = *checked->function(o.function);
  Names names(function);
  const Difference *first = nullptr;
  Place at;
  std::tuple<size_t, int64_t, size_t> key;
  for (const Difference &d : differences) {
    if (d.equal || d.what != "gradient")
      continue;
    for (const auto &[number, use] : names.firstUse) {
      if (checked->params[number].path != d.name)
        continue;
      std::tuple<size_t, int64_t, size_t> own = {
          use.outer, use.repeated ? leadingIndex(d.shape, d.lastBad) : 0, use.order};
      if (first && own <= key)
        continue;
      first = &d;
      key = own;
      at = use;
    }
  }
  if (first)
    return fmt::format("all named values agree; on the way back, the gradient of '{}'{} differs "
                       "first, used at {}{}",
                       first->name,
                       at.repeated ? fmt::format(" of layer {}", std::get<1>(key)) : "",
                       where(at.range), collectivesAt(at.range));
  for (const Difference &d : differences) {
    if (d.equal)
      continue;
    if (d.what != "weights")
      break;
    for (const checked::Param &param : checked->params)
      if (param.path == d.name)
        return fmt::format("all named values and gradients agree; the {} of '{}' differ after {} "
                           "steps, declared at {}",
                           d.what, d.name, trainingSteps, where(param.range));
  }
  for (const Difference &d : differences)
    if (!d.equal)
      return fmt::format(
          "all gradients agree; '{}' of {} differs first, in the step of '{}' at {}{}", d.name,
          d.what, function.name, where(function.range), collectivesAt(function.range));
  return "";
}

Result<std::string> Checking::nameTheFirst() {
  const checked::Function &function = *checked->function(o.function);
  Names names(function);
  std::vector<std::string> taps = oneRank.built.info.taps;
  if (taps.empty())
    return nameGradient();
  progress.say("looking for the first value that differs");
  auto a = prepare("none", oneRank.dtype, "", taps);
  if (!a)
    return a.error();
  auto b = prepare(o.plan, sharded.dtype, o.mutate, taps);
  if (!b) {
    // A collective of the way back only: nothing forward is changed.
    if (!o.mutate.empty() && b.error().fault != Fault::Rank)
      return nameGradient();
    return b.error();
  }
  std::optional<Side> c;
  if (exact) {
    auto side = prepare("none", DType::F64, "", taps);
    if (!side)
      return side.error();
    c.emplace(std::move(*side));
  }
  std::swap(oneRank, *a);
  std::swap(sharded, *b);
  if (c)
    std::swap(exact, c);
  auto restore = [&] {
    std::swap(oneRank, *a);
    std::swap(sharded, *b);
    if (c)
      std::swap(exact, c);
  };
  std::vector<Difference> kept;
  std::swap(kept, differences);
  auto status = setWeights();
  if (status)
    status = compareProgram(o.function);
  std::swap(kept, differences);
  restore();
  if (!status)
    return status.error();
  const Place *first = nullptr;
  std::tuple<size_t, int64_t, size_t> key;
  for (const Place &place : names.values)
    for (const Difference &d : kept) {
      if (d.name != "tap:" + place.name || d.equal)
        continue;
      std::tuple<size_t, int64_t, size_t> own = {
          place.outer, place.repeated ? leadingIndex(d.shape, d.firstBad) : 0, place.order};
      if (first && own >= key)
        continue;
      first = &place;
      key = own;
    }
  if (first)
    return fmt::format("'{}'{} differs first, at {}{}", first->name,
                       first->repeated ? fmt::format(" of layer {}", std::get<1>(key)) : "",
                       where(first->range), collectivesAt(first->range));
  for (const Difference &d : kept)
    if (!d.equal)
      return fmt::format("'{}' differs first",
                         d.name.rfind("tap:", 0) == 0 ? d.name.substr(4) : d.name);
  return nameGradient();
}

//===----------------------------------------------------------------------===//
// The command
//===----------------------------------------------------------------------===//

void Checking::print(double seconds) const {
  size_t unequal = 0;
  for (const Difference &d : differences)
    unequal += !d.equal;
  if (o.json) {
    Json rows = Json::array();
    for (const Difference &d : differences)
      rows.push_back({{"what", d.what},
                      {"name", d.name},
                      {"error", d.error},
                      {"allowed", d.allowed},
                      {"magnitude", d.magnitude},
                      {"equal", d.equal},
                      {"worst_at", d.place}});
    outPretty({{"model", checked->model},
               {"plan", planName(o.plan)},
               {"mesh", meshJson(sharded.built.executable->mesh)},
               {"sizes", sizesJson(sizes)},
               {"dtype", o.dtype},
               {"optimizer", optimizer.kind},
               {"equal", unequal == 0},
               {"differ", unequal},
               {"first", named},
               {"seconds", seconds},
               {"values", rows}});
    return;
  }
  if (!o.quiet || unequal) {
    Table t({"", "name", "largest error", "allowed", "magnitude", "worst at", ""},
            {true, true, false, false, false, true, true});
    for (const Difference &d : differences)
      if (!o.quiet || !d.equal)
        t.row({d.what, d.name, fmt::format("{:.2e}", d.error), fmt::format("{:.2e}", d.allowed),
               fmt::format("{:.2e}", d.magnitude), d.error > 0 || !d.equal ? d.place : "",
               d.equal ? "equal" : "DIFFERS"});
    out(t.text());
  }
  out(fmt::format("{} under {} on {}, {}, {}: {}, {}\n", checked->model, planName(o.plan),
                  meshText(sharded.built.executable->mesh), sizesText(sizes), o.dtype,
                  countText(static_cast<int64_t>(differences.size()), "value"),
                  unequal ? fmt::format("{} differ{}", unequal, unequal == 1 ? "s" : "")
                          : std::string("all equal to one rank's")));
}

Status Checking::run() {
  auto start = std::chrono::steady_clock::now();
  if (auto status = load(); !status)
    return status;
  auto a = prepare("none", o.elementType(), "", {});
  if (!a)
    return a.error();
  oneRank = std::move(*a);
  auto b = prepare(o.plan, o.elementType(), o.mutate, {});
  if (!b)
    return b.error();
  sharded = std::move(*b);
  if (sgd()) {
    auto c = prepare("none", DType::F64, "", {});
    if (!c)
      return c.error();
    exact.emplace(std::move(*c));
  }
  if (auto status = setWeights(); !status)
    return status;
  for (const std::string &name : others)
    if (auto status = compareProgram(name); !status)
      return status;
  if (auto status = compareProgram(o.function); !status)
    return status;
  if (differentiable) {
    if (auto status = compareProgram(o.function + "_grads"); !status)
      return status;
    if (auto status = compareSteps(); !status)
      return status;
  } else {
    note(o.quiet,
         fmt::format("'{}' has no scalar result: gradients and steps are left out", o.function));
  }
  if (differs()) {
    auto found = nameTheFirst();
    if (!found)
      return found.error();
    named = *found;
  }
  progress.clear();
  print(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (!differs())
    return {};
  return Error{fmt::format("the sharded program differs from the one-rank program: {}", named),
               Fault::Differs};
}

} // namespace

void addCheck(Commands &commands) {
  auto o = std::make_shared<CheckCommand>();
  CLI::App *app = commands.add(
      "check", "Compare the sharded program with the one-rank program, value by value.",
      "  cleave check models/gpt2.cleave --plan megatron --mesh dp=2,tp=2\n"
      "  cleave check models/gpt2.cleave --plan megatron --mesh tp=3 --set "
      "heads=5,dropout_rate=0.1\n"
      "  cleave check models/gpt2.cleave --plan myplans.cleave:ours --mesh tp=2 --dtype f32\n"
      "Inputs are random; weights are the initial ones, zeros and ones with noise. Compared are "
      "the\n"
      "results, every gradient and the weights after 3 steps (f64: AdamW, f32: SGD).\n"
      "Exit code 3: something differs; the first such value is named with its line.\n");
  addFile(app, *o, false);
  addPlan(app, *o);
  addCluster(app, *o);
  addTrainingPlan(app, *o);
  addFunction(app, *o, "loss");
  addSizes(app, *o);
  addModel(app, *o);
  app->get_option("--dtype")->description("f64: to 1e-11; f32: against f64 (f64)");
  addSeed(app, *o);
  addThreads(app, *o);
  app->add_flag("--no-fuse", o->noFuse, "one kernel for each op");
  // Puts a fault into the sharded program: this command's own test.
  app->add_option("--mutate", o->mutate)->group("");
  addOutput(app, *o);
  commands.action(app, [o, app] {
    o->everyFunction = app->count("--fn") == 0;
    return Checking(*o).run();
  });
}

} // namespace cleave::tool
