//===- ProblemJson.cpp - a problem of choices as JSON ---------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Minimize.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace cleave {

using Json = nlohmann::ordered_json;

std::string toJson(const ChoiceProblem &problem) {
  Json tables = Json::array();
  for (const CostTable &table : problem.tables) {
    Json costs = Json::array();
    for (double cost : table.costs)
      costs.push_back(std::isinf(cost) ? Json(nullptr) : Json(cost));
    tables.push_back({{"variables", table.variables},
                      {"costs", std::move(costs)},
                      {"memory", table.memory},
                      {"source", table.source}});
  }
  return Json{{"sizes", problem.sizes}, {"names", problem.names}, {"tables", std::move(tables)}}
      .dump();
}

Result<ChoiceProblem> choiceProblemFromJson(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    ChoiceProblem problem;
    problem.sizes = json.at("sizes").get<std::vector<int>>();
    problem.names = json.at("names").get<std::vector<std::string>>();
    for (const Json &entry : json.at("tables")) {
      CostTable table;
      table.variables = entry.at("variables").get<std::vector<int>>();
      for (const Json &cost : entry.at("costs"))
        table.costs.push_back(cost.is_null() ? std::numeric_limits<double>::infinity()
                                             : cost.get<double>());
      table.memory = entry.at("memory").get<std::vector<double>>();
      table.source = entry.at("source").get<std::string>();
      problem.tables.push_back(std::move(table));
    }
    return problem;
  } catch (const nlohmann::json::exception &error) {
    return Error{fmt::format("this is no problem of choices: {}", error.what())};
  }
}

} // namespace cleave
