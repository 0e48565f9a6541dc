//===- Progress.cpp - what is being done right now ------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Progress.h"

#include <fmt/format.h>
#include <unistd.h>

namespace cleave::tool {

Progress::Progress(bool quiet)
    : quiet(quiet), terminal(isatty(STDERR_FILENO) == 1), last(Clock::now()) {}

void Progress::say(std::string_view what) {
  if (quiet)
    return;
  if (terminal) {
    fmt::print(stderr, "\r\033[K{}", what.substr(0, 100));
    std::fflush(stderr);
    shown = true;
    return;
  }
  auto now = Clock::now();
  if (now - last < std::chrono::seconds(10))
    return;
  last = now;
  fmt::print(stderr, "{} ...\n", what);
}

void Progress::clear() {
  if (!shown)
    return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  shown = false;
}

} // namespace cleave::tool
