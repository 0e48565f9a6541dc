//===- ArenaUse.cpp - how much of the arena holds something ---------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executable/ArenaUse.h"

#include <algorithm>
#include <set>
#include <utility>

namespace cleave {

static std::vector<BufferRef> refsOf(const StepAction &action) {
  std::vector<BufferRef> refs;
  auto add = [&](const std::vector<BufferRef> &more) {
    refs.insert(refs.end(), more.begin(), more.end());
  };
  if (const auto *kernel = std::get_if<KernelStep>(&action)) {
    add(kernel->buffers);
  } else if (const auto *gemm = std::get_if<GemmStep>(&action)) {
    add({gemm->a, gemm->b, gemm->c, gemm->sumsTo});
    add(gemm->epilogueBuffers);
  } else if (const auto *copy = std::get_if<CopyStep>(&action)) {
    add({copy->from, copy->to});
  } else if (const auto *fill = std::get_if<FillStep>(&action)) {
    add({fill->to});
  } else if (const auto *collective = std::get_if<CollectiveStep>(&action)) {
    add({collective->in, collective->out});
  }
  return refs;
}

std::vector<int64_t> arenaUse(const Program &program) {
  struct Life {
    size_t first = SIZE_MAX, last = 0;
  };
  std::vector<Life> lives(program.buffers.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const StepAction *action = &program.steps[i].action;
    if (const auto *await = std::get_if<AwaitStep>(action))
      action = &program.steps[static_cast<size_t>(await->step)].action;
    for (const BufferRef &ref : refsOf(*action))
      if (ref.buffer >= 0) {
        Life &life = lives[static_cast<size_t>(ref.buffer)];
        life.first = std::min(life.first, i);
        life.last = std::max(life.last, i);
      }
  }
  std::vector<std::vector<size_t>> begins(program.steps.size()), ends(program.steps.size());
  for (size_t b = 0; b < lives.size(); ++b)
    if (program.buffers[b].kind == Buffer::Kind::Arena && lives[b].first != SIZE_MAX) {
      begins[lives[b].first].push_back(b);
      ends[lives[b].last].push_back(b);
    }
  std::set<std::pair<int64_t, size_t>> live; // by offset
  std::vector<int64_t> use;
  int64_t bytes = 0;
  bool changed = true;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    for (size_t b : begins[i])
      live.emplace(program.buffers[b].offset, b);
    if (changed || !begins[i].empty()) {
      bytes = 0;
      int64_t end = 0;
      for (const auto &[offset, b] : live) {
        int64_t last = offset + program.buffers[b].bytes;
        bytes += std::max<int64_t>(0, last - std::max(end, offset));
        end = std::max(end, last);
      }
    }
    use.push_back(bytes);
    for (size_t b : ends[i])
      live.erase({program.buffers[b].offset, b});
    changed = !ends[i].empty();
  }
  return use;
}

} // namespace cleave
