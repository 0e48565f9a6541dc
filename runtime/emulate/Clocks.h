//===- Clocks.h - the virtual clocks of emulated ranks ----------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// An emulated run is a real one, whose ranks count the CPU time of each step; when it is over, its
// clocks are wound through the program's steps:
// - each rank has a clock, 0 at the start, that a step of compute moves on by its time;
// - each rank has a stream, on which its collectives run in the order of the steps;
// - a collective starts when all ranks of its group have come to it and their streams are free,
//   and takes what the cluster's links take (Cluster.h);
// - one that is not begun moves the clocks of its group on to its end; one that is begun leaves
//   them alone, and its await moves the clock on to its end, if that is later.
// Clocks of different runs know nothing of each other: the host waits for all ranks after each.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/emulate/Cluster.h"

#include <vector>

namespace cleave {

/// Seconds of a device for each step, [rank][step]; those of collectives and awaits are not read.
using ComputeTimes = std::vector<std::vector<double>>;

/// A step by the clock of its rank, in seconds.
struct ClockedStep {
  double begin = 0;
  double seconds = 0; ///< a collective's or await's: how long the clock stood still for it
  /// Of these: until the collective began, for other ranks or for the rank's own stream. The rest
  /// of a collective's or await's is the transfer itself.
  double waiting = 0;
  /// A collective's, begun or not, on its stream.
  double transferBegin = 0, transfer = 0;
};

struct ClockedRun {
  double seconds = 0;                          ///< of the last rank
  std::vector<std::vector<ClockedStep>> ranks; ///< [rank][step]
};

/// Winds the clocks through a program. `times`: a list for each rank of the network, a time for
/// each step.
ClockedRun wind(const Program &program, Network &network, const ComputeTimes &times);

/// What the rates of the cluster's devices give for each step; without measured ones, the roofline:
/// the longer of its arithmetic and its bytes. `threads`: of each rank.
ComputeTimes predictCompute(const Program &program, const Cluster &cluster, int64_t ranks,
                            int threads = 1);

/// What a collective's site cost in a run: of one rank, averaged over them, in seconds.
struct SiteTime {
  int64_t times = 0;
  double transfer = 0; ///< on the stream
  double exposed = 0;  ///< how long the clock stood still for it
  double waiting = 0;  ///< part of `exposed`
};
/// For each collective site of the program.
std::vector<SiteTime> siteTimes(const Program &program, const ClockedRun &run);
/// All sites together.
SiteTime totalTime(const std::vector<SiteTime> &sites);

} // namespace cleave
