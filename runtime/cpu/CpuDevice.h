//===- CpuDevice.h - a rank's share of the processor ------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Threads.h"
#include "runtime/cpu/CommunicationThread.h"
#include "runtime/cpu/FileMemory.h"
#include "runtime/device/Device.h"

namespace cleave {

/// Work is done when a call returns, on a team of workers of which the caller
/// is one.
class CpuDevice final : public Device {
public:
  /// `beside`: collectives that are begun run on a thread of their own; else they are
  /// done when `beginCollective` returns.
  explicit CpuDevice(int workers, bool spin = true, bool beside = true)
      : workers(workers, spin), beside(beside) {}

  std::string_view name() const override { return "cpu"; }
  bool hostVisible() const override { return true; }
  ThreadTeam *team() override { return &workers; }

  Result<std::unique_ptr<DeviceBuffer>> allocate(int64_t bytes) override;
  Result<std::unique_ptr<DeviceBuffer>> allocateOffloaded(int64_t bytes,
                                                          const std::string &directory) override {
    return fileMemory(directory, bytes);
  }
  Status toDevice(char *to, const void *from, int64_t bytes) override;
  Status toHost(void *to, const char *from, int64_t bytes) override;
  Status launch(const KernelCall &call, int64_t extent, int64_t grain) override;
  Status gemm(const GemmStep &step, const char *a, const char *b, char *c,
              const KernelCall &epilogue, char *sums, const char *packedB) override;
  int64_t packedBytes(const GemmStep &step) const override;
  Status packB(const GemmStep &step, const char *b, char *to) override;
  Status copy(char *to, const char *from, int64_t bytes) override;
  Status fill(char *to, uint8_t value, int64_t bytes) override;
  Status collective(Communicator &communicator, const CollectiveStep &step, const char *in,
                    char *out, std::string_view where) override;
  Result<std::unique_ptr<DeviceEvent>> beginCollective(Communicator &communicator,
                                                       const CollectiveStep &step, const char *in,
                                                       char *out, std::string_view where) override;
  Result<std::unique_ptr<DeviceEvent>> record() override;
  Status wait(const DeviceEvent &event) override;
  Status synchronize() override;

private:
  ThreadTeam workers;
  const bool beside;
  CommunicationThread communication;
};

} // namespace cleave
