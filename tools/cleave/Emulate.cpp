//===- Emulate.cpp - profiles of clusters, and emulated figures -----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Emulate.h"

#include "Load.h"

#include "runtime/core/AtomicFile.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <numeric>

namespace cleave::tool {

/// Where the profiles lie: CMake knows the source tree.
static const std::filesystem::path clusters = CLEAVE_CLUSTERS;

std::string machineProfilePath() {
  if (const char *config = std::getenv("XDG_CONFIG_HOME"); config && *config)
    return (std::filesystem::path(config) / "cleave" / "machine.json").string();
  if (const char *home = std::getenv("HOME"); home && *home)
    return (std::filesystem::path(home) / ".config" / "cleave" / "machine.json").string();
  return "";
}

std::string defaultCluster() {
  std::error_code failed;
  std::string path = machineProfilePath();
  return !path.empty() && std::filesystem::exists(path, failed) ? machineProfile : "threads";
}

static bool isPath(const std::string &name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}
static std::string clusterFile(const std::string &name) {
  return name == machineProfile ? machineProfilePath()
         : isPath(name)         ? name
                                : (clusters / (name + ".json")).string();
}

Result<Cluster> findCluster(const std::string &flag, const std::string &name) {
  if (name == machineProfile) {
    if (defaultCluster() == name)
      return readCluster(machineProfilePath());
    return Error{fmt::format("{} {}: this machine has no profile yet: `cleave calibrate` makes {}",
                             flag, name, machineProfilePath())};
  }
  if (isPath(name))
    return readCluster(name);
  std::vector<std::string> names;
  std::error_code failed;
  for (const auto &entry : std::filesystem::directory_iterator(clusters, failed))
    if (entry.path().extension() == ".json")
      names.push_back(entry.path().stem().string());
  names.emplace_back(machineProfile);
  std::sort(names.begin(), names.end());
  if (std::find(names.begin(), names.end(), name) != names.end())
    return readCluster(clusterFile(name));
  return Error{
      fmt::format("{} {}: there is no such profile in {}{} (there are {}); a file is named "
                  "by its path, with a `/` or `.json`",
                  flag, name, clusters.string(), meant(name, names), fmt::join(names, ", "))};
}

Status chooseCluster(CompileOptions &options, const CheckedProgram &program,
                     const std::string &plan, const CommonOptions &o) {
  const checked::Plan *found = planName(plan).empty() ? nullptr : program.plan(planName(plan));
  if (!found || !found->automatic) {
    if (!o.cluster.empty())
      return Error{fmt::format("--cluster {}: the plan {} searches for nothing; a plan that says "
                               "`auto` does, or --plan auto",
                               o.cluster, plan.empty() ? "none" : plan)};
    return {};
  }
  const char *flag = o.cluster.empty() ? "--emulate" : "--cluster";
  std::string name = !o.cluster.empty()   ? o.cluster
                     : !o.emulate.empty() ? o.emulate
                                          : defaultCluster();
  auto cluster = findCluster(flag, name); // checks it, in the user's words
  if (!cluster)
    return cluster.error();
  auto text = MappedFile::open(clusterFile(name));
  if (!text)
    return text.error();
  options.cluster = std::string(text->view());
  return {};
}

Status checkEmulation(const CLI::App *app, const CommonOptions &options) {
  if (options.emulate.empty())
    return {};
  if (auto status = requireNone(app, {"--threads"},
                                "with --emulate: each emulated rank computes on one thread");
      !status)
    return status;
  if (app->get_option_no_throw("--profile") && app->count("--profile") > 0)
    return Error{"--profile measures this machine, and --emulate stands for another one: `cleave "
                 "explain --costs --emulate` shows where emulated time goes"};
  auto cluster = findCluster("--emulate", options.emulate);
  return cluster ? Status() : cluster.error();
}

void EmulatedSteps::add(const Session &session, size_t program) {
  const ClockedRun &run = session.clocks();
  seconds.push_back(run.seconds);
  collectives.push_back(totalTime(siteTimes(session.executable().programs[program], run)));
}

size_t EmulatedSteps::median() const {
  std::vector<size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), 0);
  // The first run touches memory for the first time.
  order.erase(order.begin(), order.begin() + (order.size() > 2));
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return seconds[a] < seconds[b]; });
  return order[order.size() / 2];
}

std::string EmulatedSteps::exposedText() const {
  size_t run = median();
  double all = std::max(seconds[run], 1e-12);
  return fmt::format("{:.1f} % ({:.1f} % waiting for ranks)", 100 * collectives[run].exposed / all,
                     100 * collectives[run].waiting / all);
}

void EmulatedSteps::into(Json &json, size_t run, double tokens) const {
  json["emulated_seconds"] = seconds[run];
  json["emulated_tokens_per_second"] = seconds[run] > 0 ? Json(tokens / seconds[run]) : Json();
  json["emulated_communication_seconds"] = collectives[run].transfer;
  json["emulated_exposed_seconds"] = collectives[run].exposed;
  json["emulated_waiting_seconds"] = collectives[run].waiting;
}

} // namespace cleave::tool
