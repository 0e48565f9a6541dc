//===- Progress.h - what is being done right now ----------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <chrono>
#include <string_view>

namespace cleave::tool {

/// On stderr: a line that is written over where that is a terminal; elsewhere a
/// line now and then, for what takes long.
class Progress {
public:
  explicit Progress(bool quiet);
  ~Progress() { clear(); }
  Progress(const Progress &) = delete;
  Progress &operator=(const Progress &) = delete;

  void say(std::string_view what);
  /// Takes the line away, before anything else is printed.
  void clear();

private:
  using Clock = std::chrono::steady_clock;
  bool quiet, terminal, shown = false;
  Clock::time_point last;
};

} // namespace cleave::tool
