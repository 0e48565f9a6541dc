//===- Rank.h - one rank of a session ---------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Shard.h"
#include "runtime/device/Device.h"
#include "runtime/executor/PackedWeights.h"
#include "runtime/executor/Session.h"

#include <functional>
#include <random>

namespace cleave {

/// One rank's memory and its programs with all pointers resolved. All members
/// are called by the rank's own thread, but the const ones, which others may
/// call while the rank is idle.
class Rank {
public:
  Rank(const Executable &executable, const KernelSource &kernels, Communicator &communicator,
       std::unique_ptr<Device> device, const SessionOptions &options);

  const RankPosition &place() const { return position; }
  Communicator &comm() { return communicator; }
  const Communicator &comm() const { return communicator; }

  /// Allocates the arena, the params and the states.
  Status allocate();
  Status initialise(const Argument &argument, uint64_t seed);
  Status store(const Argument &argument, const char *global);
  /// Writes this rank's part into a whole tensor.
  Status load(const Argument &argument, char *global);

  /// Allocates and resolves what the program needs, once.
  Status prepare(size_t program);
  /// `inputs`: by argument, the whole tensor of inputs and scalars, else null.
  Status run(size_t program, const std::vector<const char *> &inputs);
  /// After a failure, when the communicator knows of it: ends what is still under way.
  void drain() { (void)device->synchronize(); }
  Status loadResult(size_t program, size_t result, char *global);
  /// This rank's block of a result, donated or not, padding included.
  Status copyResult(size_t program, size_t result, std::vector<char> &local);

  std::vector<StepProfile> profile(size_t program) const;
  const std::vector<StepEvent> &events() const { return timeline; }
  /// Emulated: seconds of the device for each step of the last run.
  const std::vector<double> &computeTimes() const { return computed; }
  void resetProfile();
  MemoryReport memory() const; ///< without the resident bytes

private:
  struct Resolved {
    char *a = nullptr, *b = nullptr, *c = nullptr, *sums = nullptr;
    const char *packedB = nullptr;
    KernelCall call;
  };
  struct Packed {
    std::unique_ptr<DeviceBuffer> copy;
    const GemmStep *step = nullptr; ///< one of those that read it
    const char *b = nullptr;
    bool current = false; ///< the param has not been set since
  };
  struct Prepared {
    bool ready = false;
    std::vector<std::unique_ptr<DeviceBuffer>> inputs, results; ///< by index; null: elsewhere
    std::vector<Resolved> steps;
    std::vector<Packed *> packed; ///< what its steps read
    std::vector<char *> pointers; ///< of all kernel calls, one after another
    std::vector<int64_t> scalars;
    std::vector<StepProfile> profile;
  };

  Result<std::unique_ptr<DeviceBuffer>> allocateFor(std::string_view what, int64_t bytes,
                                                    bool offloaded = false);
  char *argumentData(size_t program, size_t index) const;
  char *resultData(size_t program, size_t index) const;
  char *at(size_t program, const BufferRef &ref) const;
  Status storeInto(char *local, const TensorLayout &layout, const char *global);
  Status loadFrom(const char *local, const TensorLayout &layout, char *global);
  /// Allocates the copies of weights that the program's products read.
  Status preparePacked(size_t program);
  /// Packs those whose params have been set since the last time.
  Status refreshPacked(const Prepared &program);
  void hasChanged(const Argument &argument);
  Status execute(const Program &program, const Step &step, const Resolved &resolved);
  /// Executes a step and counts its CPU time.
  Status count(const Program &program, size_t step, const Resolved &resolved);
  Status injectFault();
  void sleepAtRandom();

  const Executable &executable;
  const KernelSource &kernels;
  Communicator &communicator;
  const SessionOptions &options;
  RankPosition position;
  std::unique_ptr<Device> device;
  std::unique_ptr<DeviceBuffer> arena;
  std::map<std::string, std::unique_ptr<DeviceBuffer>, std::less<>> persistent;
  std::map<PackedWeight, Packed> packed;
  std::vector<Prepared> programs;
  std::vector<StepEvent> timeline;
  std::vector<double> computed;
  std::map<int32_t, std::unique_ptr<DeviceEvent>> begun; ///< collectives under way, by step
  std::unique_ptr<DeviceEvent> awaited;                  ///< the last of them that is over
  int64_t faultStep = -1;
  std::minstd_rand jitter; ///< of this rank
};

} // namespace cleave
