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

ProfileSummary Session::profileSummary(size_t program, int rank) const {
  ProfileSummary summary;
  auto all = profile(program);
  const Program &steps = executable().programs[program];
  const auto &mine = all[static_cast<size_t>(rank)];
  for (size_t i = 0; i < mine.size(); ++i) {
    summary.byKind[steps.steps[i].kind] += mine[i].seconds - mine[i].waitSeconds;
    summary.waiting += mine[i].waitSeconds;
    summary.total += mine[i].seconds;
  }
  return summary;
}

} // namespace cleave
