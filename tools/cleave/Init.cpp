//===- Init.cpp - cleave init ---------------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Inputs.h"
#include "Load.h"

#include <fmt/format.h>

namespace cleave::tool {

static Status runInit(const CommonOptions &o) {
  if (auto status = requireSource(o, "init"); !status)
    return status;
  if (auto status = requireDistinct("--out", o.out, {{"FILE", o.file}}); !status)
    return status;
  auto source = Source::open(o);
  if (!source)
    return source.error();
  auto program = source->look();
  if (!program)
    return program.error();
  std::vector<std::pair<std::string, HostTensor>> values;
  int64_t elements = 0;
  for (const checked::Param &param : program->params) {
    std::vector<int64_t> shape;
    for (const checked::Atom &dim : param.type.dims)
      shape.push_back(dim.size);
    DType type = param.type.element == DType::F32 ? o.elementType() : param.type.element;
    auto value = initialParam(param.path, param.init.text, shape, type, o.seed);
    if (!value)
      return value.error();
    elements += value->elements();
    values.emplace_back(param.path, std::move(*value));
  }
  std::vector<NamedTensor> tensors;
  for (const auto &[name, value] : values)
    tensors.push_back({name, value.view()});
  if (auto status = writeSafetensors(o.out, tensors,
                                     {{"made_by", "cleave init"},
                                      {"model", program->model},
                                      {"seed", std::to_string(o.seed)}});
      !status)
    return status;
  if (o.json)
    outPretty({{"out", o.out}, {"params", tensors.size()}, {"elements", elements}});
  else if (!o.quiet)
    out(fmt::format("wrote {}: {}, {}\n", o.out,
                    countText(static_cast<int64_t>(tensors.size()), "param"),
                    countText(elements, "element")));
  return {};
}

void addInit(Commands &commands) {
  auto o = std::make_shared<CommonOptions>();
  CLI::App *app = commands.add(
      "init", "Write a model's initial weights.",
      "  cleave init models/gpt2.cleave --out w.safetensors\n"
      "  cleave init models/gpt2.cleave --set layers=2 --seed 7 --dtype f64 --out w.safetensors\n");
  addFile(app, *o, false);
  app->add_option("--out", o->out, "the safetensors file")->required()->type_name("FILE");
  addModel(app, *o);
  addSizes(app, *o);
  addSeed(app, *o);
  addOutput(app, *o);
  commands.action(app, [o] { return runInit(*o); });
}

} // namespace cleave::tool
