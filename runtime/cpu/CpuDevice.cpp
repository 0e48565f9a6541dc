//===- CpuDevice.cpp - a rank's share of the processor --------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/CpuDevice.h"

#include "runtime/cpu/Gemm.h"
#include "runtime/cpu/KernelTable.h"

#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <sys/mman.h>

namespace cleave {

/// From here on memory comes in huge pages: fewer page faults and TLB misses.
static constexpr int64_t hugePage = int64_t{2} << 20;
/// Bytes of a copy worth a worker of their own.
static constexpr int64_t copyGrain = 256 * 1024;

namespace {
class CpuBuffer final : public DeviceBuffer {
public:
  CpuBuffer(char *base, int64_t bytes) : DeviceBuffer(base, bytes) {}
  ~CpuBuffer() override { std::free(base); }
};
class CpuEvent final : public DeviceEvent {
public:
  CpuEvent() = default;
  explicit CpuEvent(std::shared_ptr<CommunicationJob> job) : job(std::move(job)) {}
  std::pair<double, double> span() const override {
    return job ? std::pair(job->began, job->seconds) : std::pair(0.0, 0.0);
  }
  std::shared_ptr<CommunicationJob> job; ///< null: the point has passed
};
} // namespace

Result<std::unique_ptr<DeviceBuffer>> CpuDevice::allocate(int64_t bytes) {
  int64_t alignment = bytes >= hugePage ? hugePage : 64;
  auto size = static_cast<uint64_t>(bytes < 1 ? 1 : bytes);
  size = (size + static_cast<uint64_t>(alignment) - 1) / static_cast<uint64_t>(alignment) *
         static_cast<uint64_t>(alignment);
  auto *base = static_cast<char *>(std::aligned_alloc(static_cast<size_t>(alignment), size));
  if (!base)
    return Error{fmt::format("out of memory: cannot allocate {} bytes", bytes), Fault::Rank};
  if (alignment == hugePage)
    madvise(base, size, MADV_HUGEPAGE); // advice only: small pages work too
  // The owner touches it first, so that it lies in the owner's memory node.
  workers.parallelFor(0, static_cast<int64_t>(size), hugePage, [&](int64_t from, int64_t to) {
    std::memset(base + from, 0, static_cast<size_t>(to - from));
  });
  return std::unique_ptr<DeviceBuffer>(std::make_unique<CpuBuffer>(base, bytes));
}

Status CpuDevice::toDevice(char *to, const void *from, int64_t bytes) {
  if (bytes > 0)
    std::memcpy(to, from, static_cast<size_t>(bytes));
  return {};
}

Status CpuDevice::toHost(void *to, const char *from, int64_t bytes) {
  if (bytes > 0)
    std::memcpy(to, from, static_cast<size_t>(bytes));
  return {};
}

Status CpuDevice::launch(const KernelCall &call, int64_t extent, int64_t grain) {
  auto kernel = reinterpret_cast<KernelFunction>(call.kernel);
  workers.parallelFor(0, extent, grain, [&](int64_t from, int64_t to) {
    kernel(from, to, call.buffers, call.scalars);
  });
  return {};
}

Status CpuDevice::gemm(const GemmStep &step, const char *a, const char *b, char *c,
                       const KernelCall &epilogue, char *sums, const char *packedB) {
  cpuGemm(step, a, b, c, epilogue, workers, bestKernels(), sums, packedB);
  return {};
}

int64_t CpuDevice::packedBytes(const GemmStep &step) const { return cleave::packedBytes(step); }

Status CpuDevice::packB(const GemmStep &step, const char *b, char *to) {
  cleave::packB(step, b, to, workers);
  return {};
}

Status CpuDevice::copy(char *to, const char *from, int64_t bytes) {
  if (to == from || bytes <= 0)
    return {};
  if (to < from + bytes && from < to + bytes) {
    std::memmove(to, from, static_cast<size_t>(bytes));
    return {};
  }
  workers.parallelFor(0, bytes, copyGrain, [&](int64_t first, int64_t last) {
    std::memcpy(to + first, from + first, static_cast<size_t>(last - first));
  });
  return {};
}

Status CpuDevice::fill(char *to, uint8_t value, int64_t bytes) {
  workers.parallelFor(0, bytes, copyGrain, [&](int64_t first, int64_t last) {
    std::memset(to + first, value, static_cast<size_t>(last - first));
  });
  return {};
}

Status CpuDevice::collective(Communicator &communicator, const CollectiveStep &step, const char *in,
                             char *out, std::string_view where) {
  ThreadTeam *team = workers.size() > 1 ? &workers : nullptr;
  if (!communication.busy())
    return communicator.run(step, in, out, where, team);
  // Behind those that are under way: all ranks keep one order.
  return communication.begin({&communicator, &step, in, out, where})->wait();
}

Result<std::unique_ptr<DeviceEvent>> CpuDevice::beginCollective(Communicator &communicator,
                                                                const CollectiveStep &step,
                                                                const char *in, char *out,
                                                                std::string_view where) {
  if (!beside) {
    if (auto status = collective(communicator, step, in, out, where); !status)
      return status.error();
    return record();
  }
  return std::unique_ptr<DeviceEvent>(
      std::make_unique<CpuEvent>(communication.begin({&communicator, &step, in, out, where})));
}

// Every other call is complete when it returns, so any other event has passed.
Result<std::unique_ptr<DeviceEvent>> CpuDevice::record() {
  return std::unique_ptr<DeviceEvent>(std::make_unique<CpuEvent>());
}
Status CpuDevice::wait(const DeviceEvent &event) {
  const auto *own = dynamic_cast<const CpuEvent *>(&event);
  return own && own->job ? own->job->wait() : Status();
}
Status CpuDevice::synchronize() { return communication.drain(); }

} // namespace cleave
