//===- Communicator.h - collectives among ranks -----------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Result.h"
#include "runtime/executable/Executable.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

class ThreadTeam;

/// What one rank's collectives have cost since the last reset.
struct CollectiveStats {
  struct Kind {
    int64_t calls = 0;
    int64_t payloadBytes = 0; ///< the unreduced or gathered tensor, padding included
    int64_t ringBytes = 0;    ///< what a ring would send and receive, per rank
  };
  Kind kinds[4]; ///< by CollectiveStep::Kind
};

/// One rank's end of the collectives of a program. All ranks of a communicator
/// run the same sequence of collectives (each over groups of its own), so the
/// n-th call of any two ranks must agree in everything; ranks of different
/// programs, as in a pipeline, get communicators of their own.
///
/// Used by one thread at a time. A failure on any rank makes the pending and
/// all later calls of all ranks fail with the first cause.
class Communicator {
public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Runs a collective on this rank's memory; see CollectiveStep for shapes.
  /// `in` and `out` may be the same or overlap. Returns when `out` is complete
  /// and `in` may be overwritten. Each element's reduction goes in rank order:
  /// the result is the same bits on all ranks of the group and in every run.
  /// bf16 and f16 are summed in f32 and rounded once.
  /// When it fails, other ranks may still be reading `in` and `out`: the memory
  /// must live until all ranks have returned.
  /// `where`: the source location, for messages; it must outlive the call.
  /// `team`: null, or workers that share the copying and adding.
  /// `beside`: it runs beside other work of its rank, and never spins.
  virtual Status run(const CollectiveStep &step, const char *in, char *out, std::string_view where,
                     ThreadTeam *team, bool beside = false) = 0;

  /// Waits for all ranks of the communicator.
  virtual Status barrier(std::string_view where) = 0;

  /// Ends the work of all ranks with this rank's message as the cause, unless
  /// there is one already. Any thread may call it.
  virtual void fail(const std::string &message) = 0;

  /// Ok, or the first cause. Cheap: for calling between steps.
  virtual Status check() const = 0;

  /// Tells the others that this rank's program begins, or has ended: a rank that
  /// would wait for one that has ended gets an error. `begin` is called for all
  /// ranks of this process before any of them runs.
  virtual void begin(std::string_view program) = 0;
  virtual void end() = 0;

  /// Seconds that its calls have waited for other ranks. Any thread may ask.
  double waited() const { return waiting.load(std::memory_order_relaxed); }

  CollectiveStats stats; ///< to be read while no call runs

protected:
  std::atomic<double> waiting{0};
};

/// Bytes of the whole tensor (as payloadBytes of CollectiveSite) and the bytes
/// that a ring moves per rank: all-reduce 2n(p-1)/p, the others n(p-1)/p.
int64_t payloadBytes(const CollectiveStep &step);
int64_t ringBytes(const CollectiveStep &step);
int64_t groupSize(const CollectiveStep &step);

/// Elements of one rank's `in` and `out`.
int64_t inElements(const CollectiveStep &step);
int64_t outElements(const CollectiveStep &step);

std::string_view kindName(CollectiveStep::Kind kind);           ///< "all_reduce"
std::string_view reductionName(CollectiveStep::Reduction kind); ///< "sum"

/// "all_reduce(sum) of f32 [4, 8, 16] over tp": for messages.
std::string describe(const CollectiveStep &step, const std::vector<MeshAxis> &mesh);

} // namespace cleave
