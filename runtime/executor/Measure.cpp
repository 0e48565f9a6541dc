//===- Measure.cpp - what a session has cost ------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executor/Session.h"

#include <cstdio>
#include <cstring>
#include <memory>

namespace cleave {

std::pair<int64_t, int64_t> residentBytes() {
  std::pair<int64_t, int64_t> bytes{0, 0};
  std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(std::fopen("/proc/self/status", "r"),
                                                        std::fclose);
  if (!file)
    return bytes;
  char line[256];
  long long kilobytes = 0;
  while (std::fgets(line, sizeof line, file.get())) {
    if (std::sscanf(line, "VmRSS: %lld", &kilobytes) == 1)
      bytes.first = kilobytes * 1024;
    else if (std::sscanf(line, "VmHWM: %lld", &kilobytes) == 1)
      bytes.second = kilobytes * 1024;
  }
  return bytes;
}

} // namespace cleave
