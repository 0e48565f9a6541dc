//===- Run.cpp - cleave run -----------------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Emulate.h"
#include "Inputs.h"
#include "Load.h"

#include "runtime/core/Shard.h"

#include <algorithm>
#include <fmt/format.h>

namespace cleave::tool {

namespace {

struct RunCommand : CommonOptions {
  std::string inputs, weights;
  bool grads = false, train = false;
  int64_t step = 0;
  const CLI::App *app = nullptr;
};

std::vector<std::string> namesIn(const SafetensorsFile &file) {
  std::vector<std::string> names;
  for (const auto &[key, entry] : file.entries())
    names.push_back(key);
  return names;
}

Error missingInput(const SafetensorsFile &file, const std::string &name) {
  return Error{fmt::format("'{}' has no tensor '{}', which the function takes{}", file.path(), name,
                           meant(name, namesIn(file)))};
}

/// The sizes of the free dims, from the inputs' shapes.
Result<Sizes> sizesFromInputs(const CheckedProgram &program, const checked::Function &function,
                              const SafetensorsFile &file, const Sizes &given) {
  Sizes sizes = given;
  Compounds compounds = compoundDims(program);
  std::map<std::string, std::string> from;
  for (const auto &[name, size] : given)
    from[name] = "the command line";
  for (size_t i = 0; i < function.argumentNames.size(); ++i) {
    const std::string &name = function.argumentNames[i];
    auto entry = file.entries().find(name);
    if (entry == file.entries().end())
      return missingInput(file, name);
    const checked::TensorType &type = function.values[function.body.arguments[i]].type;
    const std::vector<int64_t> &shape = entry->second.shape;
    // Dims of the program, with the sizes that are not known yet as 0.
    std::vector<checked::Atom> dims = type.dims;
    for (checked::Atom &atom : dims)
      if (const checked::NamedDim *dim = program.dim(atom.name);
          dim && dim->kind == checked::NamedDim::Free)
        atom.size = sizes.count(atom.name) ? sizes[atom.name] : 0;
    std::vector<size_t> groups(dims.size(), 1);
    if (shape.size() != dims.size()) {
      auto found = groupDims(dims, shape, compounds);
      if (!found)
        return Error{fmt::format("the input '{}' is {}, but '{}' has {}", name,
                                 dimsText(dims, compounds), file.path(), shapeText(shape))};
      groups = *found;
    }
    for (size_t d = 0, atom = 0; d < shape.size(); atom += groups[d++]) {
      const std::string &dimName = dims[atom].name;
      const checked::NamedDim *dim = program.dim(dimName);
      if (groups[d] > 1)
        continue;
      if (!dim || dim->kind != checked::NamedDim::Free)
        continue;
      if (shape[d] < 1)
        return Error{fmt::format("the input '{}' is empty: its {} is 0", name, dimName)};
      auto [known, isNew] = sizes.emplace(dimName, shape[d]);
      if (!isNew && known->second != shape[d])
        return Error{fmt::format("{} is {} in {} and {} in the input '{}'", dimName, known->second,
                                 from[dimName], shape[d], name)};
      if (isNew)
        from[dimName] = fmt::format("the input '{}'", name);
    }
  }
  return sizes;
}

class Running {
public:
  explicit Running(const RunCommand &o) : o(o), progress(o.quiet || o.json) {}
  Status run();

private:
  Result<Built> compileOrRead(const SafetensorsFile &inputs);
  Result<Inputs> readInputs(const SafetensorsFile &file, const Program &program,
                            const Compounds &compounds);
  Status setParams(Session &session, const SafetensorsFile &inputs, const Program &program,
                   const Compounds &compounds);
  Status requireTraining(const Program &program) const;
  /// Of the seed: neither dropout nor the weights, which come from the option's file, need it.
  Status requireUsedSeed(const std::string &option) const {
    if (o.train)
      return {};
    return requireNone(o.app, {"--seed"},
                       fmt::format("with the weights of {} and without --train", option));
  }
  std::string programName() const { return o.function + (o.grads ? "_grads" : ""); }

  const RunCommand &o;
  Progress progress;
};

Result<Built> Running::compileOrRead(const SafetensorsFile &inputs) {
  if (isExecutable(o))
    return readBuilt(o);
  auto source = Source::open(o);
  if (!source)
    return source.error();
  auto seen = source->look();
  if (!seen)
    return seen.error();
  auto function = findFunction(*seen, o.function);
  if (!function)
    return function.error();
  if (o.grads)
    if (auto status = requireScalar(*seen, **function); !status)
      return status.error();
  auto sizes = sizesFromInputs(*seen, **function, inputs, source->given());
  if (!sizes)
    return sizes.error();
  for (const checked::NamedDim &dim : seen->dims)
    if (dim.kind == checked::NamedDim::Free && !sizes->count(dim.name) &&
        !source->dependsOn(*seen, o.function, dim.name))
      sizes->emplace(dim.name, dim.size);
  auto program = source->check(*sizes);
  if (!program)
    return program.error();
  auto mixed = o.precisionUnder(*program, planName(o.plan));
  if (!mixed)
    return mixed.error();
  CompileOptions options;
  if (auto status = chooseCluster(options, *program, o.plan, o); !status)
    return status.error();
  options.precision = *mixed;
  options.entries = {
      {o.function, o.grads ? EntryPoint::Kind::Gradients : EntryPoint::Kind::Function, o.train}};
  return build(*program, o.plan, o.elementType(), std::move(options), progress);
}

Result<Inputs> Running::readInputs(const SafetensorsFile &file, const Program &program,
                                   const Compounds &compounds) {
  Inputs inputs;
  std::vector<std::string> roundedNames;
  for (const Argument &argument : program.arguments) {
    if (argument.role != Argument::Role::Input)
      continue;
    if (!file.contains(argument.name))
      return missingInput(file, argument.name);
    bool rounded = false;
    auto value = readFor(argument, file, compounds, rounded);
    if (!value)
      return value.error();
    if (rounded)
      roundedNames.push_back(argument.name);
    inputs.emplace(argument.name, std::move(*value));
  }
  if (!roundedNames.empty())
    note(o.quiet, fmt::format("{}: rounded to {}; --dtype f64 keeps all digits",
                              fmt::join(roundedNames, ", "), name(o.elementType())));
  return inputs;
}

/// From the weights file; else from the inputs file if it has params; else
/// initial values.
Status Running::setParams(Session &session, const SafetensorsFile &inputs, const Program &program,
                          const Compounds &compounds) {
  std::optional<SafetensorsFile> weights;
  const SafetensorsFile *from = nullptr;
  if (!o.weights.empty()) {
    auto file = SafetensorsFile::open(o.weights);
    if (!file)
      return file.error();
    weights.emplace(std::move(*file));
    from = &*weights;
  }
  std::vector<std::string> extra;
  for (const auto &[key, entry] : inputs.entries()) {
    const Argument *param = session.findPersistent(key);
    if (param && param->role == Argument::Role::Param && !from)
      from = &inputs;
    bool taken =
        (param && from == &inputs) ||
        std::any_of(program.arguments.begin(), program.arguments.end(), [&](const Argument &a) {
          return a.role == Argument::Role::Input && a.name == key;
        });
    if (!taken)
      extra.push_back(key);
  }
  if (!extra.empty())
    note(o.quiet, fmt::format("'{}': not taken by '{}' and ignored: {}", inputs.path(), o.function,
                              fmt::join(extra, ", ")));
  if (!from) {
    note(o.quiet, fmt::format("no --weights: initial weights of seed {}", o.seed));
    return session.initialise(o.seed);
  }
  if (from == &inputs)
    if (auto status = requireUsedSeed("--inputs"); !status)
      return status;
  auto report = loadWeights(session, *from, compounds);
  if (!report)
    return report.error();
  if (report->rounded)
    note(o.quiet, fmt::format("'{}': weights rounded to {}; --dtype f64 keeps all digits",
                              from->path(), name(o.elementType())));
  if (report->ignored && from != &inputs)
    note(o.quiet,
         fmt::format("'{}' has {} that '{}' does not take", from->path(),
                     countText(static_cast<int64_t>(report->ignored), "tensor"), o.function));
  return {};
}

/// Whether dropout is active was settled when the executable was compiled.
Status Running::requireTraining(const Program &program) const {
  if (!isExecutable(o) || program.training == o.train)
    return {};
  if (program.training)
    return Error{fmt::format("'{}' of '{}' was compiled with dropout active: give --train, or "
                             "compile it without --training",
                             program.name, o.file)};
  return Error{fmt::format("--train: '{}' of '{}' was compiled without dropout: leave --train out, "
                           "or compile it with --training",
                           program.name, o.file)};
}

Status Running::run() {
  if (auto status = requireDistinct("--out", o.out,
                                    {{"FILE", o.file},
                                     {"--inputs", o.inputs},
                                     {"--weights", o.weights},
                                     {"--plan", planFile(o.plan)}});
      !status)
    return status;
  if (!o.train)
    if (auto status = requireNone(o.app, {"--step"}, "without --train: it chooses the dropout");
        !status)
      return status;
  if (!o.weights.empty())
    if (auto status = requireUsedSeed("--weights"); !status)
      return status;
  auto inputs = SafetensorsFile::open(o.inputs);
  if (!inputs)
    return inputs.error();
  auto built = compileOrRead(*inputs);
  if (!built)
    return built.error();
  auto number = built->find(programName(), o);
  if (!number)
    return number.error();
  // Several programs of the name: the one whose shapes the inputs have.
  for (size_t i = 0; i < built->executable->programs.size(); ++i) {
    const Program &candidate = built->program(i);
    bool fits =
        candidate.name == programName() &&
        std::all_of(candidate.arguments.begin(), candidate.arguments.end(), [&](const Argument &a) {
          auto found = inputs->entries().find(a.name);
          return a.role != Argument::Role::Input ||
                 (found != inputs->entries().end() && found->second.shape == globalShape(a.layout));
        });
    if (fits) {
      number = i;
      break;
    }
  }
  const Program &program = built->program(*number);
  if (auto status = requireTraining(program); !status)
    return status;
  auto values = readInputs(*inputs, program, built->compounds);
  if (!values)
    return values.error();
  auto session = openSession(*built, o);
  if (!session)
    return session.error();
  if (auto status = setParams(**session, *inputs, program, built->compounds); !status)
    return status;
  auto result = (*session)->run(program.name, *values, scalarsOf(program, o.seed, o.step, 0));
  if (!result)
    return result.error();

  std::vector<std::string> names;
  for (const ProgramResult &r : program.results)
    if (r.aliasOf < 0)
      names.push_back(r.name);
  std::vector<NamedTensor> tensors;
  for (const std::string &name : names) {
    std::string shown = name;
    if (name.rfind("grad:", 0) == 0)
      shown = "grad." + name.substr(5);
    tensors.push_back({shown, result->results.find(name)->second.view()});
  }
  if (auto status = writeSafetensors(o.out, tensors,
                                     {{"made_by", "cleave run"},
                                      {"model", built->executable->model},
                                      {"function", o.function}});
      !status)
    return status;

  if (o.json) {
    Json list = Json::object();
    for (const NamedTensor &t : tensors) {
      Json one = {{"dtype", std::string(name(t.tensor.dtype))}, {"shape", t.tensor.shape}};
      if (t.tensor.elements() == 1)
        one["value"] = elementAsDouble(t.tensor.dtype, t.tensor.data, 0);
      list[t.name] = one;
    }
    outPretty({{"out", o.out}, {"seconds", result->seconds}, {"results", list}});
    return {};
  }
  int64_t gradients = 0;
  for (const NamedTensor &t : tensors) {
    if (t.name.rfind("grad.", 0) == 0)
      ++gradients;
    else if (t.tensor.elements() == 1)
      out(fmt::format("{} = {:.17g}\n", t.name, elementAsDouble(t.tensor.dtype, t.tensor.data, 0)));
    else
      out(fmt::format("{}: {} {}\n", t.name, name(t.tensor.dtype), shapeText(t.tensor.shape)));
  }
  if (gradients)
    out(fmt::format("{}, grad.PATH\n", countText(gradients, "gradient")));
  if (!o.quiet)
    out(fmt::format("wrote {}\n", o.out));
  return {};
}

} // namespace

void addRun(Commands &commands) {
  auto o = std::make_shared<RunCommand>();
  CLI::App *app =
      commands.add("run", "Run any function of a model on tensors from a file.",
                   "  cleave run models/gpt2.cleave --fn forward --inputs in.safetensors --weights "
                   "run1/weights.safetensors --out logits.safetensors\n"
                   "  cleave run models/gpt2.cleave --fn loss --grads --dtype f64 --inputs "
                   "in.safetensors --out grads.safetensors\n"
                   "  cleave run models/gpt2.cleave --fn loss --train --set dropout_rate=0.1 "
                   "--plan megatron --mesh tp=2 --inputs in.safetensors --out loss.safetensors\n"
                   "Sizes of batch and seq come from the tensors' shapes. Without --weights the "
                   "params are those of the\n"
                   "inputs file, if it has them, else the initial ones of --seed.\n");
  o->app = app;
  addFile(app, *o, true);
  addFunction(app, *o, "");
  app->add_option("--inputs", o->inputs, "safetensors with the function's arguments, by name")
      ->required()
      ->type_name("FILE");
  app->add_option("--weights", o->weights, "safetensors with the params, by dotted name")
      ->type_name("FILE");
  app->add_option("--out", o->out, "safetensors for the results, by name")
      ->required()
      ->type_name("FILE");
  app->add_flag("--grads", o->grads, "the gradient of the result for every param too: grad.PATH");
  app->add_flag("--train", o->train, "as in training: dropout is active");
  app->add_option("--step", o->step, "the step whose dropout it is (0)")
      ->check(wholeNumber(0, (1LL << 32) - 2))
      ->type_name("N");
  addModel(app, *o);
  addPlan(app, *o);
  addCluster(app, *o);
  addPrecision(app, *o);
  addSizes(app, *o);
  addSeed(app, *o);
  addThreads(app, *o);
  addOutput(app, *o);
  commands.action(app, [o] { return Running(*o).run(); });
}

} // namespace cleave::tool
