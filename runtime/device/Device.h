//===- Device.h - the device contract ---------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// What the executor asks of the hardware, and all that it knows of it. A Device
// is one rank's: its memory, its workers or stream, its share of the machine.
//
// Order: launch, gemm, copy, fill and collective are queued and take effect in
// the order of the calls, each after the one before it; a device may return
// before the work is done (CUDA) or after (CPU). Errors of queued work come out
// of a later call, at the latest of `synchronize`. `record` and `wait` order
// work between the queues of two devices. A collective that is begun runs beside
// the queue, after what was queued before it.
//
// Pointers given to queued work are device memory and must live until it is
// done. Step descriptions (GemmStep, CollectiveStep) and the arrays of a
// KernelCall must live as long: the executor resolves them once for each
// program and keeps them.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/comm/Communicator.h"
#include "runtime/core/Result.h"
#include "runtime/executable/Executable.h"

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace cleave {

/// Device memory. Owned by the holder; must not outlive its device. Aligned to
/// 64 bytes at least.
class DeviceBuffer {
public:
  virtual ~DeviceBuffer() = default;
  char *data() const { return base; }
  int64_t bytes() const { return size; }

protected:
  DeviceBuffer(char *base, int64_t size) : base(base), size(size) {}
  char *base;
  int64_t size;
};

/// A point in a device's queue, or the end of a collective that was begun.
class DeviceEvent {
public:
  virtual ~DeviceEvent() = default;
  /// Of a collective that is over: when it began on its own thread or stream, and how long it took
  /// with its waiting for other ranks, in seconds of the steady clock. Else zeros.
  virtual std::pair<double, double> span() const { return {0, 0}; }
};

/// Generated code as the device knows it: on the CPU a function pointer (see
/// KernelStep and GemmStep for the signatures), on CUDA a CUfunction.
using KernelHandle = void *;

/// The arguments of generated code.
struct KernelCall {
  KernelHandle kernel = nullptr;
  char **buffers = nullptr;
  const int64_t *scalars = nullptr;
};

class Device {
public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0; ///< "cpu"

  /// True if the host may read and write device memory by its pointers (when no
  /// work is queued): then the executor leaves out staging copies.
  virtual bool hostVisible() const = 0;
  /// Host threads that may help with host-side work, or null.
  virtual ThreadTeam *team() = 0;

  /// Zeroed memory. `bytes` may be 0. Out of memory is an error that names the
  /// bytes.
  virtual Result<std::unique_ptr<DeviceBuffer>> allocate(int64_t bytes) = 0;
  /// Zeroed memory of the host's that launches may read and write, for what a device's own is too
  /// dear for: the optimizer's state. On the CPU it lies in a file of `directory`.
  virtual Result<std::unique_ptr<DeviceBuffer>> allocateOffloaded(int64_t bytes,
                                                                  const std::string &directory) = 0;

  /// Copies between host memory and the device, in order with queued work; when
  /// they return, the host memory may be changed, or read.
  virtual Status toDevice(char *to, const void *from, int64_t bytes) = 0;
  virtual Status toHost(void *to, const char *from, int64_t bytes) = 0;

  /// Runs outer iterations [0, extent) of generated code.
  virtual Status launch(const KernelCall &call, int64_t extent, int64_t grain) = 0;

  /// See GemmStep. `epilogue.kernel` is null when there is none, and so is `sums`. `packedB`: what
  /// `packB` made of B as it is now, or null.
  virtual Status gemm(const GemmStep &step, const char *a, const char *b, char *c,
                      const KernelCall &epilogue, char *sums, const char *packedB) = 0;

  /// The bytes of a copy of B in a form that `gemm` reads faster, for a B that many calls read;
  /// 0: there is none for this product. Products that differ in `m` only may share a copy.
  virtual int64_t packedBytes(const GemmStep &step) const = 0;
  virtual Status packB(const GemmStep &step, const char *b, char *to) = 0;

  virtual Status copy(char *to, const char *from, int64_t bytes) = 0; ///< may overlap
  virtual Status fill(char *to, uint8_t value, int64_t bytes) = 0;

  /// A collective on device memory over the communicator's ranks.
  virtual Status collective(Communicator &communicator, const CollectiveStep &step, const char *in,
                            char *out, std::string_view where) = 0;

  /// The same, but beside the work that is queued later: that may touch nothing of `out` and
  /// write nothing of `in` until it has waited for the event. All collectives of a device
  /// run in the order of the calls. `synchronize` waits for them too.
  virtual Result<std::unique_ptr<DeviceEvent>> beginCollective(Communicator &communicator,
                                                               const CollectiveStep &step,
                                                               const char *in, char *out,
                                                               std::string_view where) = 0;

  virtual Result<std::unique_ptr<DeviceEvent>> record() = 0;
  /// Work queued from now on starts after `event`, of this or another device.
  virtual Status wait(const DeviceEvent &event) = 0;
  /// Returns when all queued work is done, with its first error.
  virtual Status synchronize() = 0;
};

/// Where kernels come from, by symbol: loaded objects, or a table in tests.
class KernelSource {
public:
  virtual ~KernelSource() = default;
  /// Null if there is no such symbol. Valid as long as the source.
  virtual KernelHandle find(std::string_view symbol) const = 0;
};

} // namespace cleave
