//===- Session.h - an executable at work ------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/comm/Communicator.h"
#include "runtime/core/Tensor.h"
#include "runtime/device/Device.h"
#include "runtime/emulate/Clocks.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace cleave {

/// Makes a rank fail on purpose, for tests.
struct FaultInjection {
  enum class Kind : uint8_t { Throw, BadAlloc, Hang, Skip } kind = Kind::Throw;
  int rank = 0;
  int64_t step = 0; ///< before this step; Hang: sleeps; Skip: leaves the step out

  /// "rank=1,step=5,kind=throw"; kinds: throw, bad_alloc, hang, skip.
  static Result<FaultInjection> parse(std::string_view text);
};

struct SessionOptions {
  /// All ranks together, shared evenly, at least one each. 0: the usable cores.
  int threads = 0;
  /// 0: CLEAVE_WATCHDOG_SECONDS, or 600.
  double watchdogSeconds = 0;
  /// Whether collectives that a program begins get a thread of their own on each rank. Without a
  /// word: if the ranks leave a core free. With all cores at work they would only take
  /// turns with the steps.
  std::optional<bool> beside;
  /// Fill the arena and the results with NaN before each run. Also switched on
  /// by CLEAVE_POISON=1.
  bool poison = false;
  /// Keep packed copies of weights that no program changes (see PackedWeights.h). Off: less
  /// memory, slower.
  bool packWeights = true;
  /// Where states that a plan offloads lie (Device::allocateOffloaded); empty: the system's folder
  /// for temporary files.
  std::string offloadDirectory;
  /// Keep the time of each step.
  bool profile = false;
  /// With `profile`: keep also when each step ran, up to `mostEvents` of each rank.
  bool timeline = false;
  /// Emulate this cluster (Clocks.h): each rank computes on one thread, and `threads` is not read;
  /// `timeline` has the virtual clocks' times, and `profile` nothing.
  std::optional<Cluster> emulate;
  /// Emulated ranks: the seconds that the calling thread has computed, by rank. Null: its CPU time.
  std::function<double(int)> cpuClock;
  /// For tests: before one step in eight, at random, a rank sleeps up to this long, so that ranks
  /// and their communication threads meet in every order. 0: never.
  double jitterSeconds = 0;
  /// In builds with CLEAVE_FAULTS, CLEAVE_FAULT gives one too.
  std::optional<FaultInjection> fault;
};

struct RunOptions {
  /// Compare all copies of each result's replicated parts, donated ones too.
  bool checkReplicas = false;
  /// Bring back the results that are not donated. Off saves the copies.
  bool fetch = true;
};

using ScalarValue = std::variant<int64_t, double>;

/// What one run gave: its results that are not donated, whole.
struct RunResult {
  std::map<std::string, HostTensor> results;
  double seconds = 0;         ///< of the ranks' work, without bringing results back
  double emulatedSeconds = 0; ///< of the last rank's virtual clock, with SessionOptions::emulate
};

struct StepProfile {
  int64_t runs = 0;
  double seconds = 0;     ///< of all runs, waiting included
  double waitSeconds = 0; ///< collectives: waiting for other ranks
};

/// One execution of a step on one rank.
struct StepEvent {
  size_t program = 0;
  int64_t step = 0;
  double begin = 0; ///< seconds, of one clock for all ranks
  double seconds = 0, waitSeconds = 0;
  bool beside = false; ///< a collective on the rank's communication thread, beside the steps
};
inline constexpr int64_t mostEvents = 2'000'000;

/// Bytes of one rank (all ranks are alike), and of the process.
struct MemoryReport {
  int64_t arena = 0;
  int64_t params = 0, states = 0, inputs = 0, results = 0; ///< persistent
  int64_t packed = 0;                                      ///< copies of weights, persistent too
  int64_t offloaded = 0;                                   ///< states that lie on the host
  int64_t resident = 0, peakResident = 0;                  ///< the process, all ranks

  int64_t persistent() const { return params + states + inputs + results + packed; }
};

/// An executable with its ranks running as threads, each with its device, its
/// arena and its part of the params and states. Params and states are shared by
/// name among the executable's programs.
///
/// Used by one thread at a time. When a rank fails, the call returns the first
/// cause (Fault::Rank) and every later call does the same.
class Session {
public:
  /// Verifies the executable, finds all kernels, starts the ranks. Keeps
  /// `kernels` alive.
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<const Executable> executable,
                                                 std::shared_ptr<const KernelSource> kernels,
                                                 SessionOptions options = {});
  ~Session();
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

  const Executable &executable() const;
  int ranks() const;
  int workersPerRank() const;

  /// Gives every param and state its initial value.
  Status initialise(uint64_t seed);
  /// The same for those whose role is State only: a new optimizer.
  Status resetStates();
  /// Sets a param or state from a whole tensor of its own dtype and shape.
  Status set(std::string_view name, const TensorView &value);
  /// A param or state, whole.
  Result<HostTensor> get(std::string_view name);

  /// The params and states of all programs, in the order of their first use.
  /// Null if there is none of this name.
  std::vector<const Argument *> persistentArguments() const;
  const Argument *findPersistent(std::string_view name) const;

  /// Runs a program once on all ranks. Where several programs have the name,
  /// the one whose sizes the inputs have is taken. Inputs are whole tensors;
  /// integers that are used as indices are checked first. Params must have
  /// values; states without one get their initial value.
  Result<RunResult> run(std::string_view program, const std::map<std::string, HostTensor> &inputs,
                        const std::map<std::string, ScalarValue> &scalars = {},
                        RunOptions options = {});

  /// [rank][step] of a program (by index); empty without SessionOptions::profile.
  std::vector<std::vector<StepProfile>> profile(size_t program) const;
  /// In order of time; empty without SessionOptions::timeline.
  const std::vector<StepEvent> &timeline(int rank) const;
  void resetProfile();

  /// With SessionOptions::emulate, of the last run: what its steps took of the emulated devices,
  /// and the virtual clocks.
  const ComputeTimes &computeTimes() const;
  const ClockedRun &clocks() const;

  CollectiveStats collectives(int rank) const;
  void resetCollectives();
  /// Of what has been allocated up to now.
  MemoryReport memory() const;

private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state;
};

/// This process's resident and peak resident bytes; 0 where unknown.
std::pair<int64_t, int64_t> residentBytes();

} // namespace cleave
