//===- Lines.h - what each source line costs --------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The steps of one rank follow each other without a gap, each moving the rank's clock on by what
// it takes: compute, or how long the clock stands still for a collective (Clocks.h). Each step has
// a source line. So the lines' costs add up to the time of the run, and their differences between
// two plans to the difference of the times.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "Load.h"
#include "Print.h"
#include "SourceLines.h"

#include "runtime/emulate/Clocks.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace cleave::tool {

/// Predicted, and what was seen: measured or emulated. Seconds.
struct TwoTimes {
  double predicted = 0, seen = 0;
  TwoTimes &operator+=(const TwoTimes &other) {
    predicted += other.predicted;
    seen += other.seen;
    return *this;
  }
};

/// The collectives of a line that are of one kind, over the same axes, in one phase.
struct LineCollective {
  std::string kind, axes, phase;
  int64_t times = 0, ringBytes = 0; ///< of one run of the program; bytes of one rank
  TwoTimes exposed;                 ///< how long the rank stands still for them
  double transfer = 0;              ///< predicted, on the stream
};

struct LineCost {
  TwoTimes compute;
  std::vector<LineCollective> collectives;
  TwoTimes all() const;
};

/// By file and line; a step without a place is at ("", 0).
using LineCosts = std::map<std::pair<std::string, unsigned>, LineCost>;

/// `predicted` and `seen`: seconds of each step of the program on one rank; `seen` may be empty.
/// `transfer`: predicted, of each site of the program.
LineCosts lineCosts(const Program &program, const std::vector<double> &predicted,
                    const std::vector<double> &seen, const std::vector<SiteTime> &transfer);
TwoTimes sumOf(const LineCosts &lines);

/// Seconds of each step of the rank whose clock is the last: their sum is the time of the run.
std::vector<double> lastRank(const ClockedRun &run);

/// One side of a comparison.
struct PlanSide {
  std::string plan;
  const Executable *executable = nullptr;
  const Program *program = nullptr;
  LineCosts lines;
  TwoTimes run;     ///< of a step; what was seen is a mean
  std::string seen; ///< "measured" or "emulated"; empty: nothing but predictions
  std::vector<ValueSharding> shardings; ///< for JSON
};

/// Why the second takes another time than the first: the lines and what of them differs, what
/// differs most first, and what lies elsewhere.
std::string differencesText(const PlanSide &first, const PlanSide &second, const std::string &where,
                            SourceLines &source);
/// Lines in the same order, all of them, and the lines whose values are split in other ways.
Json differencesJson(const PlanSide &first, const PlanSide &second, SourceLines &source);
/// By line: how its values of the forward pass are split, params and inputs with their names.
Json shardingsJson(const PlanSide &side);
/// The costs of each line of one plan, in the order of the text.
Json linesJson(const PlanSide &side, SourceLines &source);

} // namespace cleave::tool
