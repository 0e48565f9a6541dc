//===- AutoPlan.cpp - cleave plan, for a plan that says auto --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "AutoPlan.h"

#include "Emulate.h"

#include "runtime/core/AtomicFile.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>

namespace cleave::tool {

namespace {

/// Whether the language can speak of the variable: some value of the program has just its dims.
bool canBeSaid(const CheckedProgram &program, const SearchVariable &variable) {
  if (variable.kind != SearchVariable::Kind::Dims)
    return true;
  std::set<std::string> dims(variable.dims.begin(), variable.dims.end());
  for (const std::string &dim : dims)
    if (!program.dim(dim)) // the compiler's own
      return false;
  for (const checked::Function &f : program.functions)
    for (const checked::Value &value : f.values) {
      std::set<std::string> own;
      for (const checked::Atom &atom : value.type.dims)
        own.insert(atom.name);
      if (own == dims)
        return true;
    }
  return false;
}

std::string joined(const std::vector<std::string> &sentences) {
  return fmt::format("{}", fmt::join(sentences, "; "));
}

} // namespace

std::string planText(const CheckedProgram &program, const checked::Plan &plan,
                     const SearchReport &report, const std::string &name) {
  std::string axes;
  for (const checked::MeshAxisDecl &axis : plan.axes)
    axes += (axes.empty() ? "" : ", ") + fmt::format("{} = {}", axis.name, axis.size.value_or(1));
  std::string text = fmt::format("plan {} for {} on ({}) {{\n", name, program.model, axes);
  text += fmt::format("  auto hidden {} # what is not said below is searched for again\n",
                      report.hidden);
  if (plan.overlap)
    text += "  overlap " + plan.overlap->how +
            (plan.overlap->bucketBytes ? fmt::format("({}B)", plan.overlap->bucketBytes) : "") +
            "\n";
  if (plan.accumulate > 1)
    text += fmt::format("  accumulate {} over {}\n", plan.accumulate, plan.accumulateDim);
  if (plan.recompute != "selective")
    text += "  recompute " + plan.recompute + "\n";
  if (plan.gathered != "again")
    text += "  gathered " + plan.gathered + "\n";
  if (plan.precision)
    text +=
        fmt::format("  precision {} master f32 reduce {}\n", cleave::name(plan.precision->compute),
                    cleave::name(plan.precision->reduce));
  std::set<std::string> said;
  for (const SearchVariable &variable : report.variables) {
    if (!canBeSaid(program, variable))
      continue;
    for (const std::string &sentence :
         variable.choices[static_cast<size_t>(report.minimum.choice[variable.variable])]) {
      std::string line = fmt::format("  at {}: {}\n", variable.name, sentence);
      if (said.insert(line).second)
        text += line;
    }
  }
  return text + "}\n";
}

std::string searchText(const SearchReport &report) {
  const Minimum &m = report.minimum;
  Table table({"", "chosen", "of"}, {true, true});
  for (const SearchVariable &variable : report.variables)
    table.row({variable.name,
               joined(variable.choices[static_cast<size_t>(m.choice[variable.variable])]),
               countText(static_cast<int64_t>(variable.choices.size()), "choice")});
  std::string text = table.text() + "\n";
  text += fmt::format("predicted by the search's prices: {} a step{}\n", secondsText(m.cost),
                      m.exact() ? ", and nothing that may be chosen is less"
                                : fmt::format("; nothing is less than {}: at most {:.2f} % from "
                                              "the least",
                                              secondsText(m.lowerBound),
                                              100 * (m.cost / m.lowerBound - 1)));
  if (report.scheduled > 0)
    text += fmt::format("predicted by its schedule, with overlap: {} a step ({} % of gradients' "
                        "sums were priced as hidden; with all hidden no plan is less than {})\n",
                        secondsText(report.scheduled), report.hidden, secondsText(report.bound));
  text += fmt::format("searched: {} of {}, width {}, {} visited, {}\n",
                      countText(static_cast<int64_t>(report.problem->sizes.size()), "variable"),
                      countText(static_cast<int64_t>(report.problem->tables.size()), "table"),
                      m.width, countText(m.states, "state"), secondsText(report.seconds));
  if (m.memory > 0)
    text += fmt::format("params, optimizer state, inputs and what layers save: {} a rank\n",
                        bytesText(static_cast<int64_t>(m.memory)));
  return text;
}

Json searchJson(const SearchReport &report) {
  const Minimum &m = report.minimum;
  Json list = Json::array();
  for (const SearchVariable &variable : report.variables)
    list.push_back({{"name", variable.name},
                    {"place", variable.place},
                    {"chosen", variable.choices[static_cast<size_t>(m.choice[variable.variable])]},
                    {"choices", variable.choices.size()}});
  return {{"function", report.function},
          {"predicted_seconds", m.cost},
          {"lower_bound_seconds", m.lowerBound},
          {"exact", m.exact()},
          {"hidden_percent", report.hidden},
          {"scheduled_seconds", report.scheduled},
          {"bound_seconds", report.bound},
          {"memory", m.memory},
          {"variables", report.problem->sizes.size()},
          {"tables", report.problem->tables.size()},
          {"width", m.width},
          {"states", m.states},
          {"search_seconds", report.seconds},
          {"chosen", list}};
}

Status runAutoPlan(const CheckedProgram &program, const Sizes &sizes, CompileOptions options,
                   const CommonOptions &o) {
  const checked::Plan *plan = program.plan(planName(o.plan));
  if (auto status = chooseCluster(options, program, o.plan, o); !status)
    return status.error();
  options.machineCode = false;
  Progress progress(o.quiet || o.json);
  auto built = build(program, o.plan, o.elementType(), std::move(options), progress);
  if (!built)
    return built.error();
  if (built->info.searches.empty())
    return Error{"the search has found nothing to decide", Fault::Internal};
  const SearchReport &report = built->info.searches.front();
  std::string name = plan->name == "auto" ? "found" : plan->name + "_found";
  std::string text = planText(program, *plan, report, name);
  if (!o.out.empty())
    if (auto status = writeFileAtomically(o.out, text); !status)
      return status.error();
  const Program &step = built->program(0);
  int64_t ring = 0;
  for (const CollectiveSum &sum : sumCollectives(step))
    ring += sum.ringBytes;
  PlannedMemory memory = plannedMemory(*built->executable, step);
  if (o.json) {
    Json json = searchJson(report);
    json["model"] = program.model;
    json["plan"] = plan->name;
    json["mesh"] = meshJson(built->executable->mesh);
    json["sizes"] = sizesJson(sizes);
    json["ring_bytes"] = ring;
    json["planned_memory"] = memory.json();
    json["text"] = text;
    outPretty(json);
    return {};
  }
  out(fmt::format("training step of {}: plan {} on {}, {}\n\n", program.model, plan->name,
                  meshText(built->executable->mesh), sizesText(sizes)));
  out(searchText(report));
  out(fmt::format("moves {} a step in a ring, takes {} a rank\n", bytesText(ring),
                  bytesText(memory.total())));
  if (!o.out.empty())
    out(fmt::format("\n{}: `cleave train {} --plan {}:{}` runs it\n", o.out, o.file, o.out, name));
  return {};
}

} // namespace cleave::tool
