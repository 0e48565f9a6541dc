//===- Inspect.cpp - cleave inspect ---------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Inputs.h"
#include "Load.h"

#include "runtime/comm/Communicator.h"
#include "runtime/core/Shard.h"

#include <fmt/format.h>

namespace cleave::tool {

namespace {

struct InspectOptions : CommonOptions {
  bool steps = false;
};

constexpr std::string_view roleNames[] = {"param", "state", "input", "scalar"};
constexpr std::string_view kindNames[] = {"gemm",      "attention",  "elementwise",
                                          "optimizer", "collective", "copy"};

std::string layoutText(const TensorLayout &layout, const std::vector<MeshAxis> &mesh) {
  std::string text = std::string(name(layout.dtype)) + " [";
  for (size_t i = 0; i < layout.dims.size(); ++i) {
    const DimLayout &dim = layout.dims[i];
    text += fmt::format("{}{}={}", i ? ", " : "", dim.name, dim.size);
    if (!dim.axes.empty())
      text += fmt::format(" {{{}}}", axesText(dim.axes, mesh));
  }
  return text + "]";
}

std::string stepText(const Step &step, const Executable &executable) {
  return std::visit(
      [&](const auto &action) -> std::string {
        using T = std::decay_t<decltype(action)>;
        if constexpr (std::is_same_v<T, KernelStep>)
          return fmt::format("kernel {} x{}", action.symbol, action.extent);
        else if constexpr (std::is_same_v<T, GemmStep>)
          return fmt::format("gemm {} {}x{}x{}{}{}", name(action.dtype), action.m, action.n,
                             action.k, action.batch > 1 ? fmt::format(" x{}", action.batch) : "",
                             action.epilogue.empty() ? "" : " + " + action.epilogue);
        else if constexpr (std::is_same_v<T, CopyStep>)
          return fmt::format("copy {}", bytesText(action.bytes));
        else if constexpr (std::is_same_v<T, FillStep>)
          return fmt::format("fill {}", bytesText(action.bytes));
        else if constexpr (std::is_same_v<T, AwaitStep>)
          return fmt::format("await step {}", action.step);
        else
          return describe(action, executable.mesh) + (action.begun ? ", begun" : "");
      },
      step.action);
}

Json executableJson(const Executable &e, bool steps) {
  Json json = {{"kind", "executable"},   {"version", e.version},         {"model", e.model},
               {"plan", e.plan},         {"mesh", meshJson(e.mesh)},     {"ranks", e.ranks()},
               {"settings", e.settings}, {"cpu_features", e.cpuFeatures}};
  int64_t code = 0;
  for (const std::string &object : e.objects)
    code += static_cast<int64_t>(object.size());
  json["code_bytes"] = code;
  json["programs"] = Json::array();
  for (const Program &p : e.programs) {
    Json one = {{"name", p.name},
                {"sizes", sizesJson(p.dims)},
                {"training", p.training},
                {"steps", p.steps.size()},
                {"memory", plannedMemory(e, p).json()},
                {"collectives", collectivesJson(p)}};
    for (const Argument &a : p.arguments)
      one["arguments"].push_back({{"name", a.name},
                                  {"role", std::string(roleNames[static_cast<int>(a.role)])},
                                  {"dtype", std::string(name(a.layout.dtype))},
                                  {"shape", globalShape(a.layout)},
                                  {"layout", layoutText(a.layout, e.mesh)},
                                  {"bytes_per_rank", a.localBytes}});
    for (const ProgramResult &r : p.results)
      if (r.aliasOf < 0)
        one["results"].push_back({{"name", r.name},
                                  {"dtype", std::string(name(r.layout.dtype))},
                                  {"shape", globalShape(r.layout)}});
    if (steps)
      for (const Step &s : p.steps)
        one["step_list"].push_back(
            {{"what", stepText(s, e)},
             {"kind", std::string(kindNames[static_cast<int>(s.kind)])},
             {"location", s.location < 0 ? "" : p.locations[static_cast<size_t>(s.location)]}});
    json["programs"].push_back(one);
  }
  return json;
}

void printExecutable(const Executable &e, bool steps) {
  out(fmt::format("executable, version {}: model {}, plan {} on {}\n", e.version, e.model, e.plan,
                  meshText(e.mesh)));
  std::string settings;
  for (const auto &[key, value] : e.settings)
    settings += fmt::format("{}{}={}", settings.empty() ? "" : ", ", key, value);
  size_t code = 0;
  for (const std::string &object : e.objects)
    code += object.size();
  out(fmt::format("settings: {}\ncode: {}, needs {}\n", settings,
                  bytesText(static_cast<int64_t>(code)),
                  e.cpuFeatures.empty() ? "nothing special of the processor"
                                        : fmt::format("{}", fmt::join(e.cpuFeatures, ", "))));
  for (const Program &p : e.programs) {
    out(fmt::format("\nprogram {} for {}{}\n", p.name, sizesText(p.dims),
                    p.training ? ", dropout active" : ""));
    Table arguments({"  argument", "role", "layout", "bytes per rank"}, {true, true, true, false});
    for (const Argument &a : p.arguments)
      arguments.row({"  " + a.name, std::string(roleNames[static_cast<int>(a.role)]),
                     layoutText(a.layout, e.mesh), countText(a.localBytes)});
    out(arguments.text());
    Table results({"  result", "layout"}, {true, true});
    for (const ProgramResult &r : p.results)
      if (r.aliasOf < 0)
        results.row({"  " + r.name, layoutText(r.layout, e.mesh)});
    out(results.text());
    int64_t counts[std::size(kindNames)] = {};
    for (const Step &s : p.steps)
      ++counts[static_cast<int>(s.kind)];
    std::string kinds;
    for (size_t i = 0; i < std::size(kindNames); ++i)
      if (counts[i])
        kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", counts[i], kindNames[i]);
    out(fmt::format("  {}: {}\n", countText(static_cast<int64_t>(p.steps.size()), "step"), kinds));
    out(plannedMemory(e, p).table("  ") + collectivesTable(p, "  "));
    if (!steps)
      continue;
    for (size_t i = 0; i < p.steps.size(); ++i) {
      const Step &s = p.steps[i];
      out(fmt::format("  {:>5}  {:<11}  {}  {}\n", i, kindNames[static_cast<int>(s.kind)],
                      stepText(s, e),
                      s.location < 0 ? "" : p.locations[static_cast<size_t>(s.location)]));
    }
  }
}

Status inspectTensors(const InspectOptions &o) {
  auto file = SafetensorsFile::open(o.file);
  if (!file)
    return file.error();
  int64_t bytes = 0, elements = 0;
  Json list = Json::object();
  Table t({"tensor", "dtype", "shape", "bytes"}, {true, true, true, false});
  for (const auto &[key, entry] : file->entries()) {
    bytes += entry.end - entry.begin;
    elements += elementCount(entry.shape);
    t.row({key, entry.dtype, shapeText(entry.shape), countText(entry.end - entry.begin)});
    list[key] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"bytes", entry.end - entry.begin}};
  }
  if (o.json) {
    outPretty({{"kind", "safetensors"},
               {"metadata", file->metadata()},
               {"tensors", list},
               {"elements", elements},
               {"bytes", bytes}});
    return {};
  }
  out(t.text());
  out(fmt::format("{}, {}, {}\n", countText(static_cast<int64_t>(file->entries().size()), "tensor"),
                  countText(elements, "element"), bytesText(bytes)));
  for (const auto &[key, value] : file->metadata())
    out(fmt::format("{}: {}\n", key, value));
  return {};
}

Status runInspect(const InspectOptions &o) {
  if (!isExecutable(o)) {
    if (o.file.size() > 7 && o.file.compare(o.file.size() - 7, 7, ".cleave") == 0)
      return Error{fmt::format("'{}' is a program's source; `inspect` reads executables and "
                               "safetensors files (`cleave compile --emit=ast` prints a source)",
                               o.file)};
    if (o.steps)
      return Error{
          fmt::format("--steps lists the steps of an executable, which '{}' is not", o.file)};
    return inspectTensors(o);
  }
  auto built = readBuilt(o);
  if (!built)
    return built.error();
  if (o.json)
    outPretty(executableJson(*built->executable, o.steps));
  else
    printExecutable(*built->executable, o.steps);
  return {};
}

} // namespace

void addInspect(Commands &commands) {
  auto o = std::make_shared<InspectOptions>();
  CLI::App *app = commands.add("inspect", "Print an executable or a safetensors file.",
                               "  cleave inspect gpt2.cleavex\n"
                               "  cleave inspect gpt2.cleavex --steps\n"
                               "  cleave inspect run1/weights.safetensors --json\n");
  app->add_option("FILE", o->file, "an executable or a safetensors file")
      ->required()
      ->type_name("");
  app->add_flag("--steps", o->steps, "list every step of an executable's programs");
  addOutput(app, *o);
  commands.action(app, [o] { return runInspect(*o); });
}

} // namespace cleave::tool
