//===- Communicator.cpp - collectives among ranks -------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/comm/Communicator.h"

#include "runtime/core/Shard.h"

#include <algorithm>
#include <fmt/format.h>

namespace cleave {

using Kind = CollectiveStep::Kind;

int64_t groupSize(const CollectiveStep &step) {
  int64_t p = 1;
  for (const SubAxis &axis : step.axes)
    p *= axis.size;
  return p;
}

int64_t inElements(const CollectiveStep &s) {
  int64_t n = s.outer * s.inDim * s.inner;
  return s.kind == Kind::AllToAll ? n * s.middle * s.inDim2 : n;
}

int64_t outElements(const CollectiveStep &s) {
  int64_t n = s.outer * (s.kind == Kind::AllReduce ? s.inDim : s.outDim) * s.inner;
  return s.kind == Kind::AllToAll ? n * s.middle * s.outDim2 : n;
}

int64_t payloadBytes(const CollectiveStep &s) {
  int64_t elements = inElements(s);
  if (s.kind == Kind::AllGather)
    elements *= groupSize(s); // padding included
  else if (s.kind == Kind::ReduceScatter)
    elements = outElements(s) * groupSize(s);
  return elements * byteSize(s.dtype);
}

int64_t ringBytes(const CollectiveStep &s) {
  int64_t p = groupSize(s), n = payloadBytes(s);
  return (s.kind == Kind::AllReduce ? 2 : 1) * (n / p * (p - 1) + n % p * (p - 1) / p);
}

std::string_view kindName(Kind kind) {
  constexpr std::string_view names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
  return names[static_cast<int>(kind)];
}

std::string_view reductionName(CollectiveStep::Reduction kind) {
  constexpr std::string_view names[] = {"sum", "max", "min"};
  return names[static_cast<int>(kind)];
}

std::string describe(const CollectiveStep &s, const std::vector<MeshAxis> &mesh) {
  std::string text(kindName(s.kind));
  if (s.kind == Kind::AllReduce || s.kind == Kind::ReduceScatter)
    text += fmt::format("({})", reductionName(s.reduction));
  text += fmt::format(" of {} ", name(s.dtype));
  if (s.kind == Kind::AllToAll)
    text +=
        s.dimFirst
            ? fmt::format("[{}, {}, {}, {}, {}]", s.outer, s.inDim, s.middle, s.inDim2, s.inner)
            : fmt::format("[{}, {}, {}, {}, {}]", s.outer, s.inDim2, s.middle, s.inDim, s.inner);
  else
    text += fmt::format("[{}, {}, {}]", s.outer, s.inDim, s.inner);
  if (s.kind == Kind::AllGather || s.kind == Kind::ReduceScatter)
    text += fmt::format(" -> [{}, {}, {}]", s.outer, s.outDim, s.inner);
  if (s.kind == Kind::AllToAll)
    text += fmt::format(" -> {} and {}", s.outDim, s.outDim2);
  return text + " over " + axesText(s.axes, mesh);
}

} // namespace cleave
