//===- PackedWeights.cpp - weights packed once for many runs --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executor/PackedWeights.h"

#include <algorithm>
#include <fmt/format.h>

namespace cleave {

/// The program that updates this param in place, or null.
static const Program *writerOf(const Executable &executable, const std::string &param) {
  auto writes = [&](const Program &program) {
    return std::any_of(program.arguments.begin(), program.arguments.end(),
                       [&](const Argument &a) { return a.name == param && a.donatedTo >= 0; });
  };
  auto found = std::find_if(executable.programs.begin(), executable.programs.end(), writes);
  return found == executable.programs.end() ? nullptr : &*found;
}

static PackDecision decide(const Executable &executable, const Program &program,
                           const GemmStep &step,
                           const std::function<int64_t(const GemmStep &)> &packedBytes) {
  PackDecision decision;
  const Buffer &buffer = program.buffers[static_cast<size_t>(step.b.buffer)];
  const Argument *argument = buffer.kind == Buffer::Kind::Argument
                                 ? &program.arguments[static_cast<size_t>(buffer.index)]
                                 : nullptr;
  if (!argument || argument->role != Argument::Role::Param) {
    decision.reason = "B is not a param";
    return decision;
  }
  decision.weight = {argument->name, step.b.offset, step.dtype, step.transB,
                     step.ldb,       step.n,        step.k};
  if (program.training)
    decision.reason = "the program trains";
  else if (const Program *writer = writerOf(executable, argument->name))
    decision.reason = fmt::format("'{}' writes '{}'", writer->name, argument->name);
  else if ((decision.bytes = packedBytes(step)) == 0)
    decision.reason = "the device has no packed form for this product";
  return decision;
}

std::vector<PackDecision>
decidePacking(const Executable &executable, const Program &program,
              const std::function<int64_t(const GemmStep &)> &packedBytes) {
  std::vector<PackDecision> decisions;
  for (size_t i = 0; i < program.steps.size(); ++i)
    if (const auto *step = std::get_if<GemmStep>(&program.steps[i].action)) {
      decisions.push_back(decide(executable, program, *step, packedBytes));
      decisions.back().step = static_cast<int32_t>(i);
    }
  return decisions;
}

} // namespace cleave
