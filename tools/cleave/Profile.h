//===- Profile.h - where a step's time goes ---------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "Print.h"

#include "runtime/cpu/Roofline.h"
#include "runtime/executor/Session.h"

#include <string>
#include <vector>

namespace cleave::tool {

/// Steps of a program that are alike: the same ops of the same lines (in several layers) in the
/// same sizes. Seconds, bytes and flops are one rank's, of one run, averaged over ranks and runs.
struct KernelTime {
  std::string name, source;
  StepKind kind = StepKind::Elementwise;
  int64_t count = 0; ///< steps of one run
  double seconds = 0, waitSeconds = 0, bytes = 0, flops = 0;

  double working() const { return seconds - waitSeconds; }
  /// The least time of the work by the rank's roofline, over the time that it took.
  double ofRoofline(const Roofline &rank) const {
    return working() > 0 ? rank.seconds(flops, bytes) / working() : 0;
  }
};

/// "GEMM", "attention", ...
const char *kindText(StepKind kind);
/// "contract, add 64x48x32 NN": the step's ops, and the sizes of a product.
std::string stepName(const Program &program, const Step &step);
/// "gpt2.cleave:26,28": all lines of its ops.
std::string stepSource(const Program &program, const Step &step);

/// Such steps, by number.
struct KernelGroup {
  std::string name, source;
  StepKind kind = StepKind::Elementwise;
  std::vector<size_t> steps;
};
std::vector<KernelGroup> kernelGroups(const Program &program);

/// The longest first. `runs`: of the program since the session's start.
std::vector<KernelTime> kernelTimes(const Session &session, size_t program, int64_t runs);
/// By kind, then "waiting": of one run, averaged over ranks.
std::vector<std::pair<std::string, double>> timeByKind(const std::vector<KernelTime> &kernels);

/// `roofline`: of all ranks together.
std::string kernelTable(const std::vector<KernelTime> &kernels, const Roofline &roofline, int ranks,
                        double perRun);
Json kernelsJson(const std::vector<KernelTime> &kernels, const Roofline &roofline, int ranks);

} // namespace cleave::tool
