//===- Emulate.h - profiles of clusters, and emulated figures ---*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "Options.h"
#include "Print.h"

#include "runtime/emulate/Clocks.h"
#include "runtime/executor/Session.h"

#include <string>
#include <vector>

namespace cleave::tool {

/// The name of this machine's profile, where `cleave calibrate` puts it (empty: nobody says where
/// settings lie), and the name of the processor.
inline constexpr const char *machineProfile = "this";
std::string machineProfilePath();
std::string processorName();
/// What predictions are for without a word: this machine's profile if there is one, else `threads`.
std::string defaultCluster();

/// A profile by its name in models/clusters, `this`, or by its path (with a `/` or `.json`).
/// `flag`: for messages.
Result<Cluster> findCluster(const std::string &flag, const std::string &name);
/// Sets the profile that a plan that says `auto` is searched for: that of --cluster, or of
/// --emulate. Fails if --cluster has no effect.
Status chooseCluster(CompileOptions &options, const CheckedProgram &program,
                     const std::string &plan, const CommonOptions &o);

/// Fails, before anything is compiled, if the profile of --emulate is none, or if an option is
/// given that has no effect with it.
Status checkEmulation(const CLI::App *app, const CommonOptions &options);

/// What emulated runs of one program have taken, step for step of the training.
struct EmulatedSteps {
  std::vector<double> seconds;
  std::vector<SiteTime> collectives; ///< of each run, all sites together

  void add(const Session &session, size_t program);
  bool empty() const { return seconds.empty(); }
  /// The run whose time is the median, without the first one if there are others.
  size_t median() const;
  /// "12.3 % (4.0 % waiting)" of the median run.
  std::string exposedText() const;
  /// Keys `emulated_*` of a run.
  void into(Json &json, size_t run, double tokens) const;
};

} // namespace cleave::tool
