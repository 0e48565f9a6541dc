//===- ThreadCommunicator.h - ranks as threads ------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/comm/Communicator.h"

#include <memory>

namespace cleave {

struct ThreadWorldOptions {
  /// How long a rank waits for another before all end with a report of who
  /// waits where.
  double watchdogSeconds = 600;
  /// Spin a little before sleeping. Off when there are more ranks than cores:
  /// then a spinning rank keeps a working one from its core.
  bool spin = true;
};

/// The value of CLEAVE_WATCHDOG_SECONDS if it is a positive number, else 600.
double watchdogFromEnvironment();

/// The ranks of a mesh as threads of this process. Collectives read the other
/// ranks' memory directly: an all-reduce of n bytes reads and writes 2n bytes on
/// each rank, whatever the number of ranks (each reduces one part over all
/// ranks, then takes the others' parts).
class ThreadWorld {
public:
  explicit ThreadWorld(std::vector<MeshAxis> mesh, ThreadWorldOptions options = {});
  ~ThreadWorld();

  int size() const;
  /// One rank's end. Owned by the world.
  Communicator &rank(int rank);
  /// Ok, or what ended the work first, with the number of the rank it came from.
  Status check() const;

  struct State;

private:
  std::unique_ptr<State> state;
};

} // namespace cleave
