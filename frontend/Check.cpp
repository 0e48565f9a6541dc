//===- Check.cpp - source text to the checked program -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Check.h"

#include "frontend/Parser.h"
#include "frontend/Sema.h"

namespace cleave {

constexpr size_t maxFileSize = size_t(16) << 20;

static Error failure(Diagnostics &diagnostics, const SourceMap &sources) {
  diagnostics.sort();
  return {diagnostics.render(sources), Fault::User};
}

/// Reads a file of at most 16 MiB.
static ast::File read(SourceMap &sources, SourceFile file, Diagnostics &diagnostics) {
  if (file.text().size() > maxFileSize) {
    diagnostics.error({}, printable(file.name()) + ": the file is larger than 16 MiB");
    return {};
  }
  return parse(sources, sources.add(std::move(file)), diagnostics);
}

static const ast::Model *chooseModel(const ast::File &file, const CheckOptions &options,
                                     std::vector<std::string> &names, Diagnostics &diagnostics) {
  const ast::Model *chosen = nullptr;
  std::map<std::string, SourceRange> known;
  std::string list;
  for (const ast::Model &model : file.models) {
    names.push_back(model.name.text);
    list += (list.empty() ? "" : ", ") + model.name.text;
    auto [it, fresh] = known.emplace(model.name.text, model.name.range);
    if (!fresh)
      diagnostics.error(model.name.range, "the model " + quoted(model.name.text) + " stands twice")
          .notes.push_back({it->second, "the first is here"});
    if (options.model.empty() || options.model == model.name.text)
      chosen = &model;
  }
  if (!options.model.empty() && !chosen)
    diagnostics.error({}, "the file has no model " + quoted(options.model),
                      meantHint(options.model, names));
  else if (file.models.empty() && diagnostics.empty())
    diagnostics.error({}, "the file has no model", "write `model name(...) { ... }`");
  else if (options.model.empty() && known.size() > 1)
    diagnostics.error({}, "the file has several models: " + list, "say which one is meant");
  return chosen;
}

Result<CheckedProgram> check(SourceFile file, const CheckOptions &options,
                             Diagnostics &diagnostics) {
  CheckedProgram program;
  ast::File parsed = read(program.sources, std::move(file), diagnostics);
  // A text that cannot be read has follow-up errors of no use to anybody.
  bool readable = diagnostics.allReadable();
  std::vector<std::string> models;
  const ast::Model *model = chooseModel(parsed, options, models, diagnostics);
  std::vector<ast::Plan> extraPlans;
  for (const SourceFile &extra : options.planFiles) {
    ast::File more = read(program.sources, extra, diagnostics);
    readable &= diagnostics.allReadable();
    std::move(more.plans.begin(), more.plans.end(), std::back_inserter(extraPlans));
  }
  if (!model || !readable)
    return failure(diagnostics, program.sources);
  sema::Checker checker(program, options, diagnostics);
  checker.model(*model, model->range);
  checker.plans(parsed.plans, models, extraPlans);
  checker.planSettings();
  if (!diagnostics.empty())
    return failure(diagnostics, program.sources);
  return program;
}

Result<CheckedProgram> check(SourceFile file, const CheckOptions &options) {
  Diagnostics diagnostics;
  return check(std::move(file), options, diagnostics);
}

Result<std::string> formatSource(SourceFile file) {
  SourceMap sources;
  Diagnostics diagnostics;
  ast::File parsed = read(sources, std::move(file), diagnostics);
  if (!diagnostics.empty())
    return failure(diagnostics, sources);
  return print(parsed);
}

} // namespace cleave
