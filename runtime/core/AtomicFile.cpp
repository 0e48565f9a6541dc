//===- AtomicFile.cpp - files that appear whole ---------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/core/AtomicFile.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cleave {

static Error fileError(std::string_view what, const std::string &path) {
  return Error{fmt::format("cannot {} '{}': {}", what, path, std::strerror(errno))};
}

/// The path behind symbolic links, whether or not there is a file yet.
static std::string behindLinks(const std::string &path) {
  constexpr int mostLinks = 40; // as the system has it
  std::filesystem::path target = path;
  std::error_code failed;
  for (int i = 0; i < mostLinks && std::filesystem::is_symlink(target, failed); ++i) {
    auto next = std::filesystem::read_symlink(target, failed);
    if (failed)
      break;
    target = target.parent_path() / next;
  }
  return target.string();
}

Result<AtomicFile> AtomicFile::create(const std::string &path) {
  static std::atomic<int> counter{0};
  AtomicFile file;
  file.path = path;
  struct stat info{};
  bool exists = stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT)
    return fileError("write", path);
  if (exists && S_ISDIR(info.st_mode))
    return Error{fmt::format("cannot write '{}': it is a folder", path)};
  if (exists && !S_ISREG(info.st_mode)) {
    file.descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file.descriptor < 0)
      return fileError("write", path);
    return file;
  }
  file.target = behindLinks(path);
  file.temporary = fmt::format("{}.{}.{}.tmp", file.target, getpid(), counter++);
  file.descriptor = open(file.temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file.descriptor < 0)
    return fileError("write", path);
  return file;
}

AtomicFile::AtomicFile(AtomicFile &&other) noexcept
    : path(std::move(other.path)), target(std::move(other.target)),
      temporary(std::move(other.temporary)), descriptor(std::exchange(other.descriptor, -1)) {
  other.temporary.clear();
}

AtomicFile::~AtomicFile() {
  if (descriptor >= 0)
    close(descriptor);
  if (!temporary.empty())
    unlink(temporary.c_str());
}

Status AtomicFile::write(const void *data, int64_t bytes) {
  auto *from = static_cast<const char *>(data);
  while (bytes > 0) {
    ssize_t done = ::write(descriptor, from, static_cast<size_t>(bytes));
    if (done < 0 && errno == EINTR)
      continue;
    if (done < 0)
      return fileError("write", path);
    from += done;
    bytes -= done;
  }
  return {};
}

Status AtomicFile::commit() {
  if (fsync(descriptor) != 0 && errno != EINVAL && errno != EROFS)
    return fileError("write", path);
  if (close(std::exchange(descriptor, -1)) != 0)
    return fileError("write", path);
  if (temporary.empty())
    return {};
  if (rename(temporary.c_str(), target.c_str()) != 0)
    return fileError("write", path);
  temporary.clear();
  return {};
}

Status writeFileAtomically(const std::string &path, std::string_view content) {
  auto file = AtomicFile::create(path);
  if (!file)
    return file.error();
  if (auto status = file->write(content); !status)
    return status;
  return file->commit();
}

Result<MappedFile> MappedFile::open(const std::string &path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return fileError("read", path);
  struct stat info{};
  MappedFile file;
  if (fstat(descriptor, &info) != 0) {
    Error error = fileError("read", path);
    close(descriptor);
    return error;
  }
  if (!S_ISREG(info.st_mode)) {
    close(descriptor);
    return Error{fmt::format("cannot read '{}': not a regular file", path)};
  }
  if (info.st_size > 0) {
    void *base =
        mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (base == MAP_FAILED) {
      Error error = fileError("read", path);
      close(descriptor);
      return error;
    }
    file.base = static_cast<const char *>(base);
    file.bytes = info.st_size;
  }
  close(descriptor);
  return file;
}

MappedFile::MappedFile(MappedFile &&other) noexcept
    : base(std::exchange(other.base, nullptr)), bytes(std::exchange(other.bytes, 0)) {}

MappedFile &MappedFile::operator=(MappedFile &&other) noexcept {
  std::swap(base, other.base);
  std::swap(bytes, other.bytes);
  return *this;
}

MappedFile::~MappedFile() {
  if (base)
    munmap(const_cast<char *>(base), static_cast<size_t>(bytes));
}

} // namespace cleave
