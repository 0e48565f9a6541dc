//===- Costs.h - what a program's collectives cost --------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// For `cleave explain --costs`, `--timeline` and `--sweep`.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "Load.h"

#include "runtime/emulate/Clocks.h"

#include <optional>
#include <string>
#include <vector>

namespace cleave::tool {

struct CostOptions {
  bool costs = false, measure = false, timeline = false;
  std::string cluster, sweep, svg, plans;
  int64_t steps = 5; ///< of --measure and --emulate

  bool any() const { return costs || timeline || !sweep.empty(); }
};

/// Times of one run of a program and of its collective sites.
struct RunTimes {
  double seconds = 0;
  std::vector<SiteTime> sites;
  std::vector<double> compute; ///< of each step that computes, averaged over ranks
};

struct Costs {
  Network network;
  ComputeTimes times; ///< of the device, predicted or emulated
  ClockedRun clocks;  ///< with these times
  RunTimes predicted; ///< with the roofline of the profile
  std::optional<RunTimes> emulated, measured;
  /// With a run: what a rank's communicator counted in it, and its arena.
  std::optional<int64_t> countedRingBytes, arenaBytes;

  /// "emulated on ethernet" or "predicted on threads".
  std::string where() const;
  const char *how() const { return emulated ? "emulated" : "predicted"; }
};

/// Predicts, and with --emulate or --measure runs the program some times with random inputs.
Result<Costs> costsOf(const Built &built, size_t program, const CommonOptions &options,
                      const CostOptions &wanted, Progress &progress);

/// Predicts alone: for the profile of --emulate, else for `cluster`, else without a word.
Result<Costs> predictCosts(const Built &built, size_t program, const CommonOptions &options,
                           const std::string &cluster, Progress &progress);

std::string costsText(const Program &program, const Costs &costs);
Json costsJson(const Program &program, const Costs &costs);

/// One run of a rank, as rows in order of time, each with its place in a bar; 100 columns.
std::string timelineText(const Program &program, const Costs &costs);
Json timelineJson(const Program &program, const Costs &costs);

/// What --sweep says: a link's quantity from one value to another.
struct Sweep {
  std::string what;        ///< "bandwidth" or "latency"
  double from = 0, to = 0; ///< bytes a second or seconds
  static Result<Sweep> parse(const std::string &text);
};
struct SweepPoint {
  double value = 0, seconds = 0;
  SiteTime collectives;
};
/// A plan on links of each of some values, spread evenly by their logarithm; the links are those of
/// the outermost level that its mesh reaches.
struct SweptPlan {
  std::string plan, where, how, level; ///< "data", "emulated on ethernet", "emulated", "10 GbE"
  std::vector<SweepPoint> points;
};
/// Winds the same times again for each value.
SweptPlan sweep(const std::string &plan, const Program &program, const Costs &costs,
                const Sweep &range);
/// Of one plan, or of several beside each other. Not empty.
std::string sweepText(const Sweep &range, const std::vector<SweptPlan> &plans);
Json sweepJson(const Sweep &range, const SweptPlan &plan);
/// A self-contained SVG.
std::string sweepSvg(const std::string &title, const Sweep &range,
                     const std::vector<SweptPlan> &plans);

} // namespace cleave::tool
