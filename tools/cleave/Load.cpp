//===- Load.cpp - from FILE and options to something that runs ------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Load.h"

#include "Emulate.h"
#include "Inputs.h"

#include "frontend/Parser.h"
#include "runtime/core/AtomicFile.h"
#include "runtime/core/Shard.h"
#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/ObjectLoader.h"
#include "runtime/executable/Format.h"
#include "runtime/executor/PackedWeights.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <set>

namespace cleave::tool {

//===----------------------------------------------------------------------===//
// Sources
//===----------------------------------------------------------------------===//

/// Sizes for free dims that have none yet, from the first one on.
static const std::vector<std::vector<int64_t>> placeholders = {
    {3, 4, 5, 6, 7},           {16, 32, 48, 64, 80},           {67, 131, 193, 257, 317},
    {128, 256, 384, 512, 640}, {1031, 2053, 3079, 4099, 5119}, {2048, 4096, 6144, 8192, 10240}};
/// The same for checks: with little that divides them.
static const std::vector<std::vector<int64_t>> oddPlaceholders = {
    {3, 7, 5, 11, 13},   {13, 29, 17, 23, 19}, {67, 131, 193, 257, 317},
    {6, 14, 10, 22, 26}, {12, 28, 20, 44, 52}, {1031, 2053, 3079, 4099, 5119}};

/// The free dims of a model, in the order of the text; the file may have only one.
static std::vector<std::string> freeDimsOf(const SourceFile &file, const std::string &name) {
  SourceMap sources;
  Diagnostics diagnostics;
  std::vector<std::string> names;
  if (file.text().size() > UINT32_MAX)
    return names;
  ast::File parsed = parse(sources, sources.add(file), diagnostics);
  for (const ast::Model &model : parsed.models)
    for (const ast::Dim &dim : model.dims)
      if (!dim.value && (name.empty() || model.name.text == name))
        names.push_back(dim.name.text);
  return names;
}

/// The length of the header, then the header, which is JSON: no text begins so.
static bool looksLikeSafetensors(std::string_view bytes) {
  uint64_t length = 0;
  if (bytes.size() <= sizeof length)
    return false;
  std::memcpy(&length, bytes.data(), sizeof length);
  return length <= UINT32_MAX && bytes[sizeof length] == '{';
}

Result<SourceFile> readSource(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return file.error();
  if (looksLikeSafetensors(file->view()))
    return Error{fmt::format("'{}' is a safetensors file, and a program's text is needed here; "
                             "tensors go to `cleave run` with --inputs and --weights, weights to "
                             "`cleave train` with --weights, and `cleave inspect` prints them",
                             path)};
  return SourceFile(path, std::string(file->view()));
}

std::string planFile(const std::string &plan) {
  size_t colon = plan.rfind(':');
  return colon == std::string::npos ? "" : plan.substr(0, colon);
}

std::string planName(const std::string &plan) {
  if (plan.empty() || plan == "none")
    return "";
  size_t colon = plan.rfind(':');
  return colon == std::string::npos ? plan : plan.substr(colon + 1);
}

Status requireDistinct(const std::string &flag, const std::string &path,
                       const std::vector<std::pair<std::string, std::string>> &inputs) {
  for (const auto &[option, input] : inputs) {
    std::error_code missing;
    if (std::filesystem::equivalent(path, input, missing) && !missing)
      return Error{fmt::format("{} {} and {} {} are the same file, which would be written over: "
                               "give {} another",
                               flag, path, option, input, flag)};
  }
  return {};
}

Status requireOutput(const std::string &flag, const std::string &path,
                     const std::vector<std::pair<std::string, std::string>> &inputs) {
  if (path.empty())
    return {};
  if (auto status = requireDistinct(flag, path, inputs); !status)
    return status;
  std::error_code missing;
  if (std::filesystem::exists(path, missing) && !std::filesystem::is_regular_file(path, missing) &&
      !std::filesystem::is_directory(path, missing))
    return {}; // a pipe is opened once
  auto file = AtomicFile::create(path);
  return file ? Status() : Error{fmt::format("{}: {}", flag, file.error().message)};
}

/// Axes x, y, z of so many ranks together, of the most even sizes: finer axes can be split by
/// apart, and any sharding by a coarser one is one by several finer ones.
static std::vector<std::pair<std::string, int64_t>> meshOf(int64_t ranks) {
  std::vector<int64_t> sizes;
  for (int64_t p = 2; p * p <= ranks; ++p)
    for (; ranks % p == 0; ranks /= p)
      sizes.push_back(p);
  if (ranks > 1 || sizes.empty())
    sizes.push_back(ranks);
  while (sizes.size() > 3) {
    std::sort(sizes.begin(), sizes.end());
    sizes[1] *= sizes[0];
    sizes.erase(sizes.begin());
  }
  std::sort(sizes.rbegin(), sizes.rend());
  std::vector<std::pair<std::string, int64_t>> mesh;
  for (size_t i = 0; i < sizes.size(); ++i)
    mesh.emplace_back(std::string(1, static_cast<char>('x' + i)), sizes[i]);
  return mesh;
}

Result<Source> Source::open(const CommonOptions &options) {
  auto file = readSource(options.file);
  if (!file)
    return file.error();
  Source source(std::move(*file));
  source.freeDims = freeDimsOf(source.file, options.model);
  source.base.model = options.model;
  auto settings = parsePairs("--set", options.settings);
  if (!settings)
    return settings.error();
  source.base.settings = std::move(*settings);
  auto mesh = parseSizes("--mesh", options.mesh);
  if (!mesh)
    return mesh.error();
  source.mesh = std::move(*mesh);
  source.plan = options.plan;
  source.ranks = options.ranks;
  if (options.ranks)
    source.mesh = meshOf(options.ranks);
  auto dims = parseSizes("--dim", options.dims);
  if (!dims)
    return dims.error();
  if (options.batch)
    dims->emplace_back("batch", options.batch);
  if (options.seq)
    dims->emplace_back("seq", options.seq);
  for (const auto &[name, size] : *dims)
    if (!source.sizes.emplace(name, size).second)
      return Error{fmt::format("the size of '{}' is given twice", name)};
  return source;
}

Result<CheckedProgram> Source::checkWith(const CheckOptions &options) const {
  return cleave::check(file, options);
}

Sizes Source::invented(const std::vector<int64_t> &row) const {
  Sizes all;
  for (size_t i = 0; i < freeDims.size(); ++i)
    if (!sizes.count(freeDims[i]))
      all.emplace(freeDims[i],
                  row[i % row.size()] + static_cast<int64_t>(i / row.size()) * row.back());
  return all;
}

Result<CheckedProgram> Source::tryRows(const std::vector<std::vector<int64_t>> &rows) const {
  std::optional<Error> first;
  for (const std::vector<int64_t> &row : rows) {
    CheckOptions options = base;
    options.freeSizes = sizes;
    options.defaultSizes = invented(row);
    auto program = checkWith(options);
    if (program)
      return program;
    if (!first)
      first = program.error();
    if (options.defaultSizes.empty())
      break;
  }
  return *first;
}

Result<CheckedProgram> Source::look() const { return tryRows(placeholders); }

bool Source::dependsOn(const CheckedProgram &seen, const std::string &function,
                       const std::string &dim) const {
  auto text = [&](const CheckedProgram &program) {
    checked::Program alone = program;
    std::erase_if(alone.functions, [&](const auto &f) { return f.name != function; });
    alone.dims.clear();
    alone.plans.clear();
    alone.weights.clear();
    return checked::print(alone);
  };
  std::string before = text(seen);
  for (const std::vector<int64_t> &row : placeholders) {
    CheckOptions options = base;
    for (const checked::NamedDim &d : seen.dims)
      if (d.kind == checked::NamedDim::Free)
        options.freeSizes[d.name] = d.size;
    int64_t &size = options.freeSizes[dim];
    if (size == row.back())
      continue;
    size = row.back();
    if (auto other = checkWith(options))
      return text(*other) != before;
  }
  return true;
}

Result<CheckedProgram> Source::check(const Sizes &freeSizes) const {
  CheckOptions options = base;
  options.freeSizes = freeSizes;
  options.plan = planName(plan);
  options.mesh = mesh;
  options.ranks = ranks;
  if (!planFile(plan).empty()) {
    auto extra = readSource(planFile(plan));
    if (!extra)
      return extra.error();
    if (extra->name() != file.name())
      options.planFiles.push_back(std::move(*extra));
  }
  return checkWith(options);
}

Result<CheckedProgram> Source::check(const Sizes &freeSizes, const std::string &other) const {
  Source copy = *this;
  copy.plan = other;
  copy.mesh.clear();
  copy.ranks = 0;
  if (planName(other).empty())
    return copy.check(freeSizes);
  // The axes that this plan has: look at it with sizes for all of them.
  CheckOptions options = base;
  options.freeSizes = freeSizes;
  if (!planFile(other).empty()) {
    auto extra = readSource(planFile(other));
    if (!extra)
      return extra.error();
    if (extra->name() != file.name())
      options.planFiles.push_back(std::move(*extra));
  }
  auto program = checkWith(options);
  if (!program)
    return program.error();
  if (planName(other) == "auto" && !program->plan("auto"))
    copy.mesh = mesh;
  else if (const checked::Plan *found = program->plan(planName(other)))
    for (const auto &axis : mesh)
      if (std::any_of(found->axes.begin(), found->axes.end(),
                      [&](const checked::MeshAxisDecl &a) { return a.name == axis.first; }))
        copy.mesh.push_back(axis);
  return copy.check(freeSizes);
}

Result<Sizes> Source::complete(const Sizes &fallback) const {
  auto program = look();
  if (!program)
    return program.error();
  Sizes all = sizes;
  for (const checked::NamedDim &dim : program->dims)
    if (dim.kind == checked::NamedDim::Free && fallback.count(dim.name))
      all.emplace(dim.name, fallback.at(dim.name));
  return all;
}

Result<Sizes> Source::completeOdd() const {
  auto program = tryRows(oddPlaceholders);
  if (!program)
    return program.error();
  Sizes all;
  for (const checked::NamedDim &dim : program->dims)
    if (dim.kind == checked::NamedDim::Free)
      all.emplace(dim.name, dim.size);
  return all;
}

Result<const checked::Function *> findFunction(const CheckedProgram &program,
                                               const std::string &name) {
  if (const checked::Function *found = program.function(name))
    return found;
  std::vector<std::string> names;
  for (const checked::Function &f : program.functions)
    names.push_back(f.name);
  return Error{fmt::format("--fn {}: the model '{}' has no function '{}'{} (it has: {})", name,
                           program.model, name, meant(name, names), fmt::join(names, ", "))};
}

Status requireScalar(const CheckedProgram &program, const checked::Function &function) {
  if (!function.body.yields.empty()) {
    const checked::TensorType &type = function.values[function.body.yields[0]].type;
    bool isFloat =
        type.element != DType::I32 && type.element != DType::I64 && type.element != DType::I1;
    if (type.dims.empty() && isFloat)
      return {};
    return Error{fmt::format("'{}' gives {}; gradients need a function whose result is one "
                             "number, as a loss is",
                             function.name, program.show(type))};
  }
  return Error{fmt::format("'{}' gives nothing", function.name)};
}

//===----------------------------------------------------------------------===//
// Executables
//===----------------------------------------------------------------------===//

Result<size_t> Built::find(const std::string &name, const CommonOptions &options) const {
  auto dims = parseSizes("--dim", options.dims);
  if (!dims)
    return dims.error();
  if (options.batch)
    dims->emplace_back("batch", options.batch);
  if (options.seq)
    dims->emplace_back("seq", options.seq);
  std::vector<std::string> names, sizes;
  for (size_t i = 0; i < executable->programs.size(); ++i) {
    const Program &program = executable->programs[i];
    names.push_back(program.name);
    if (program.name != name)
      continue;
    sizes.push_back(sizesText(program.dims));
    if (std::all_of(dims->begin(), dims->end(), [&](const auto &dim) {
          auto found = program.dims.find(dim.first);
          return found != program.dims.end() && found->second == dim.second;
        }))
      return i;
  }
  if (!sizes.empty())
    return Error{
        fmt::format("the executable has '{}' for {} only", name, fmt::join(sizes, " and for "))};
  return Error{fmt::format("the executable has no program '{}'{} (it has: {})", name,
                           meant(name, names), fmt::join(names, ", "))};
}

Result<Built> build(const CheckedProgram &program, const std::string &plan, DType dtype,
                    CompileOptions options, Progress &progress) {
  options.dtype = dtype;
  options.plan = planName(plan);
  options.progress = [&](const std::string &stage) { progress.say("compiling: " + stage); };
  auto result = compile(program, options);
  progress.clear();
  if (!result)
    return result.error();
  Built built;
  built.executable = std::make_shared<const Executable>(std::move(result->executable));
  result->executable = {};
  built.info = std::move(*result);
  built.compounds = compoundDims(program);
  return built;
}

bool isExecutable(const CommonOptions &options) { return looksLikeExecutable(options.file); }

Status requireSource(const CommonOptions &options, const std::string &command) {
  if (!isExecutable(options))
    return {};
  return Error{fmt::format("'{}' is an executable; `cleave {}` needs the program's source",
                           options.file, command)};
}

Result<Built> readBuilt(const CommonOptions &options) {
  auto fixed = [&](std::string_view flag) {
    return Error{fmt::format("{} cannot be changed: '{}' is an executable, compiled already", flag,
                             options.file)};
  };
  if (!options.settings.empty())
    return fixed("--set");
  if (!options.plan.empty())
    return fixed("--plan");
  if (!options.mesh.empty())
    return fixed("--mesh");
  if (!options.dtype.empty())
    return fixed("--dtype");
  if (!options.precision.empty())
    return fixed("--precision");
  if (!options.model.empty())
    return fixed("--model");
  auto executable = readExecutable(options.file);
  if (!executable)
    return executable.error();
  Built built;
  built.executable = std::make_shared<const Executable>(std::move(*executable));
  return built;
}

Result<std::unique_ptr<Session>> openSession(const Built &built, const CommonOptions &options,
                                             bool profile, bool timeline) {
  constexpr int64_t mostRanks = 256;
  if (built.executable->ranks() > mostRanks)
    return Error{fmt::format("the mesh {} has {} ranks; one process runs {} at most",
                             meshText(built.executable->mesh), built.executable->ranks(),
                             mostRanks)};
  if (options.threads && options.threads < built.executable->ranks())
    return Error{
        fmt::format("--threads {}: the mesh {} has {} ranks, and each needs a thread: give "
                    "--threads {} or more",
                    options.threads, meshText(built.executable->mesh), built.executable->ranks(),
                    built.executable->ranks())};
  auto offloads = [](const Program &p) {
    return std::any_of(p.arguments.begin(), p.arguments.end(),
                       [](const Argument &a) { return a.offloaded; });
  };
  if (!options.offloadDirectory.empty() &&
      std::none_of(built.executable->programs.begin(), built.executable->programs.end(), offloads))
    return Error{fmt::format("--offload-dir {}: the plan {} offloads nothing; `zero 3 over AXES "
                             "offload optimizer` in it does",
                             options.offloadDirectory, built.executable->plan)};
  auto kernels = ObjectLoader::load(*built.executable);
  if (!kernels)
    return kernels.error();
  SessionOptions session;
  session.offloadDirectory = options.offloadDirectory;
  if (!options.emulate.empty()) {
    auto cluster = findCluster("--emulate", options.emulate);
    if (!cluster)
      return cluster.error();
    session.emulate = std::move(*cluster);
  }
  session.threads = options.threads;
  session.profile = profile || timeline;
  session.timeline = timeline;
  return Session::create(built.executable, *kernels, session);
}

//===----------------------------------------------------------------------===//
// What an executable says of itself
//===----------------------------------------------------------------------===//

PlannedMemory plannedMemory(const Executable &executable, const Program &program) {
  PlannedMemory memory;
  std::set<std::string> seen;
  auto persistent = [&](const Program &p) {
    for (const Argument &a : p.arguments) {
      bool param = a.role == Argument::Role::Param;
      if ((!param && a.role != Argument::Role::State) || !seen.insert(a.name).second)
        continue;
      (param ? memory.params : a.offloaded ? memory.offloaded : memory.states) += a.localBytes;
      if (param)
        memory.paramElements += globalElements(a.layout);
    }
  };
  persistent(program);
  for (const Program &other : executable.programs)
    persistent(other);
  for (const Argument &a : program.arguments)
    if (a.role == Argument::Role::Input || a.role == Argument::Role::Scalar)
      memory.inputs += a.localBytes;
  for (const Buffer &buffer : program.buffers)
    if (buffer.kind == Buffer::Kind::Result)
      memory.results += buffer.bytes;
  memory.arena = program.arenaBytes;
  std::set<PackedWeight> copies;
  auto bytes = [](const GemmStep &step) { return packedBytes(step); };
  for (const PackDecision &decision : decidePacking(executable, program, bytes))
    if (decision.reason.empty() && copies.insert(decision.weight).second)
      memory.packed += decision.bytes;
  return memory;
}

std::string PlannedMemory::table(std::string_view indent) const {
  Table t({"memory per rank", ""});
  t.row({"params", bytesText(params)});
  if (packed)
    t.row({"params, packed for products", bytesText(packed)});
  t.row({"optimizer state", bytesText(states)});
  if (offloaded)
    t.row({"optimizer state, in a file", bytesText(offloaded)});
  t.row({"inputs and results", bytesText(inputs + results)});
  t.row({"activations (arena)", bytesText(arena)});
  t.row({offloaded ? "total, without the file" : "total", bytesText(total())});
  return t.text(indent);
}

Json PlannedMemory::json() const {
  return {{"params", params},   {"packed", packed}, {"states", states},       {"inputs", inputs},
          {"results", results}, {"arena", arena},   {"offloaded", offloaded}, {"total", total()}};
}

Status requireUsed(const std::vector<std::string> &mesh,
                   const std::vector<std::vector<MeshAxis>> &meshes, const std::string &plans) {
  auto axes = parseSizes("--mesh", mesh);
  if (!axes)
    return axes.error();
  for (const auto &axis : *axes) {
    bool used = std::any_of(meshes.begin(), meshes.end(), [&](const std::vector<MeshAxis> &m) {
      return std::any_of(m.begin(), m.end(),
                         [&](const MeshAxis &a) { return a.name == axis.first; });
    });
    if (!used)
      return Error{fmt::format("--mesh {}={}: none of the plans {} has an axis '{}'", axis.first,
                               axis.second, plans, axis.first)};
  }
  return {};
}

std::string meshText(const std::vector<MeshAxis> &mesh) {
  std::string text;
  for (const MeshAxis &axis : mesh)
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", axis.name, axis.size);
  return text.empty() ? "one rank" : text;
}

std::string sizesText(const Sizes &sizes) {
  std::string text;
  for (const auto &[name, size] : sizes)
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, size);
  return text.empty() ? "no free dims" : text;
}

Json sizesJson(const Sizes &sizes) {
  Json json = Json::object();
  for (const auto &[name, size] : sizes)
    json[name] = size;
  return json;
}

Json meshJson(const std::vector<MeshAxis> &mesh) {
  Json json = Json::object();
  for (const MeshAxis &axis : mesh)
    json[axis.name] = axis.size;
  return json;
}

std::vector<CollectiveSum> sumCollectives(const Program &program) {
  std::vector<CollectiveSum> sums;
  for (const CollectiveSite &site : program.collectiveSites) {
    auto found = std::find_if(sums.begin(), sums.end(), [&](const CollectiveSum &s) {
      return s.kind == site.kind && s.axes == site.axes;
    });
    if (found == sums.end())
      found = sums.insert(sums.end(), {site.kind, site.axes, 0, 0, 0});
    found->count += site.executions;
    found->payloadBytes += site.executions * site.payloadBytes;
    found->ringBytes += site.executions * site.ringBytes;
  }
  return sums;
}

std::string collectivesTable(const Program &program, std::string_view indent) {
  auto sums = sumCollectives(program);
  if (sums.empty())
    return std::string(indent) + "no collectives\n";
  Table t({"collectives of a run", "axes", "times", "payload", "ring bytes per rank"},
          {true, true});
  CollectiveSum all{"all", "", 0, 0, 0};
  for (const CollectiveSum &sum : sums) {
    t.row({sum.kind, sum.axes, countText(sum.count), bytesText(sum.payloadBytes),
           bytesText(sum.ringBytes)});
    all.count += sum.count;
    all.payloadBytes += sum.payloadBytes;
    all.ringBytes += sum.ringBytes;
  }
  if (sums.size() > 1)
    t.row({all.kind, all.axes, countText(all.count), bytesText(all.payloadBytes),
           bytesText(all.ringBytes)});
  return t.text(indent);
}

Json collectivesJson(const Program &program) {
  Json list = Json::array();
  for (const CollectiveSum &sum : sumCollectives(program))
    list.push_back({{"kind", sum.kind},
                    {"axes", sum.axes},
                    {"count", sum.count},
                    {"payload_bytes", sum.payloadBytes},
                    {"ring_bytes", sum.ringBytes}});
  return list;
}

} // namespace cleave::tool
