//===- FileMemory.cpp - memory that lies in a file ------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/FileMemory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace cleave {

namespace {
class FileBuffer final : public DeviceBuffer {
public:
  FileBuffer(char *base, int64_t bytes, size_t mapped)
      : DeviceBuffer(base, bytes), mapped(mapped) {}
  ~FileBuffer() override { munmap(base, mapped); }

private:
  size_t mapped;
};
} // namespace

Result<std::unique_ptr<DeviceBuffer>> fileMemory(const std::string &directory, int64_t bytes) {
  const auto size = static_cast<off_t>(bytes < 1 ? 1 : bytes);
  auto failed = [&](const char *what, int reason) {
    return Error{fmt::format("cannot {} a file of {} bytes in {}: {}", what, size, directory,
                             std::strerror(reason)),
                 Fault::Rank};
  };
  std::string path = directory + "/cleave-offload-XXXXXX";
  int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0)
    return failed("create", errno);
  unlink(path.c_str());
  if (int reason = posix_fallocate(file, 0, size)) {
    close(file);
    return failed("reserve", reason);
  }
  void *base =
      mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  int reason = errno;
  close(file);
  if (base == MAP_FAILED)
    return failed("map", reason);
  return std::unique_ptr<DeviceBuffer>(
      std::make_unique<FileBuffer>(static_cast<char *>(base), bytes, static_cast<size_t>(size)));
}

} // namespace cleave
