//===- Trace.h - when each step of each rank ran ----------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executor/Session.h"

#include <string>
#include <vector>

namespace cleave::tool {

/// One or more runs of a program on its ranks.
struct TracedRun {
  std::string name; ///< "train_step (emulated on ethernet)"
  const Program *program = nullptr;
  /// [rank], in order of time; a collective's that ran on the rank's stream is `beside`.
  std::vector<std::vector<StepEvent>> ranks;

  /// Adds to each collective that its rank stood still for the transfer itself, on the stream.
  void showTransfers();
  /// When the first event began, and how long after that the last one ended.
  double begin() const;
  double seconds() const;
};

/// What the session's timeline has of a program (by index). Needs SessionOptions::timeline.
TracedRun runOf(const Session &session, size_t program, std::string name);

/// The same of virtual clocks.
TracedRun runOf(const ClockedRun &clocks, const Program &program, std::string name);

/// The Trace Event Format (Google's "Trace Event Format", 2016), which Perfetto and Chrome read: a
/// process for each run, all beginning at 0; in it for each rank a thread, and one for its stream
/// if anything ran there.
std::string traceText(const std::vector<TracedRun> &runs);

} // namespace cleave::tool
