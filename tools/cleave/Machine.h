//===- Machine.h - how fast this machine is ---------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// What `cleave calibrate` measures, as the profile's values (runtime/emulate/Cluster.h). Each value
// is the lower quartile of several runs. Where a rank has one thread, its CPU time counts, so that
// other programs take less from it; else the time that passed.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "Print.h"
#include "Progress.h"

#include "runtime/core/Result.h"

namespace cleave::tool {

/// Threads of a rank, and ranks that compute at the same time.
struct Setting {
  int threads = 1, ranks = 1;
};

class Machine {
public:
  /// `quick`: few sizes, few runs.
  Machine(bool quick, Progress &progress) : quick(quick), progress(progress) {}

  /// An entry of "rates".
  Result<Json> rates(const Setting &setting);
  /// Entries of "collectives" over `ranks` ranks as threads.
  Result<Json> collectives(int ranks);

private:
  Json products(const Setting &setting);
  Result<Json> attention(const Setting &setting);
  Status passes(const Setting &setting, Json &rates);

  bool quick;
  Progress &progress;
};

} // namespace cleave::tool
