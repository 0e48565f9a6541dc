//===- Shard.cpp - which part of a tensor a rank holds --------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/core/Shard.h"

#include <algorithm>
#include <cstring>

namespace cleave {

RankPosition::RankPosition(const std::vector<MeshAxis> &mesh, int64_t rank)
    : number(rank), sizes(mesh.size()), coordinates(mesh.size()) {
  for (size_t i = mesh.size(); i-- > 0;) {
    sizes[i] = mesh[i].size;
    coordinates[i] = rank % mesh[i].size;
    rank /= mesh[i].size;
  }
}

int64_t RankPosition::index(const SubAxis &axis) const {
  auto i = static_cast<size_t>(axis.axis);
  return coordinates[i] / (sizes[i] / (axis.pre * axis.size)) % axis.size;
}

int64_t RankPosition::shardIndex(const std::vector<SubAxis> &axes) const {
  int64_t number = 0;
  for (const SubAxis &axis : axes)
    number = number * axis.size + index(axis);
  return number;
}

int64_t RankPosition::resolve(const RankScalar &scalar) const {
  if (scalar.kind == RankScalar::Kind::Constant)
    return scalar.value;
  int64_t offset = (shardIndex(scalar.axes) * scalar.parts + scalar.part) * scalar.block;
  if (scalar.kind == RankScalar::Kind::Offset)
    return offset;
  return std::min(scalar.block, std::max<int64_t>(0, scalar.size - offset));
}

std::vector<int32_t> RankPosition::group(const std::vector<SubAxis> &axes) const {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;)
    strides[i - 1] = strides[i] * sizes[i];
  std::vector<int32_t> members{static_cast<int32_t>(number)};
  for (const SubAxis &axis : axes) {
    auto i = static_cast<size_t>(axis.axis);
    int64_t step = sizes[i] / (axis.pre * axis.size) * strides[i];
    std::vector<int32_t> wider;
    for (int32_t member : members)
      for (int64_t digit = 0; digit < axis.size; ++digit)
        wider.push_back(static_cast<int32_t>(member + (digit - index(axis)) * step));
    members = std::move(wider);
  }
  return members;
}

bool axesAreValid(const std::vector<SubAxis> &axes, const std::vector<MeshAxis> &mesh) {
  for (size_t i = 0; i < axes.size(); ++i) {
    const SubAxis &a = axes[i];
    if (a.axis < 0 || static_cast<size_t>(a.axis) >= mesh.size() || a.pre < 1 || a.size < 1)
      return false;
    int64_t whole = mesh[static_cast<size_t>(a.axis)].size;
    if (a.pre > whole || a.size > whole || whole % (a.pre * a.size) != 0)
      return false;
    for (size_t j = 0; j < i; ++j) {
      const SubAxis &b = axes[j];
      if (a.axis == b.axis && a.size > 1 && b.size > 1 && a.pre < b.pre * b.size &&
          b.pre < a.pre * a.size)
        return false;
    }
  }
  return true;
}

std::string axesText(const std::vector<SubAxis> &axes, const std::vector<MeshAxis> &mesh) {
  std::string text;
  for (const SubAxis &a : axes) {
    const MeshAxis &axis = mesh[static_cast<size_t>(a.axis)];
    text += (text.empty() ? "" : ", ") + axis.name;
    if (a.pre != 1 || a.size != axis.size)
      text += ":(" + std::to_string(a.pre) + ")" + std::to_string(a.size);
  }
  return text;
}

int64_t localElements(const TensorLayout &layout) {
  int64_t n = 1;
  for (const DimLayout &dim : layout.dims)
    n *= dim.block();
  return n;
}

int64_t globalElements(const TensorLayout &layout) {
  int64_t n = 1;
  for (const DimLayout &dim : layout.dims)
    n *= dim.size;
  return n;
}

std::vector<int64_t> globalShape(const TensorLayout &layout) {
  std::vector<int64_t> shape;
  for (const DimLayout &dim : layout.dims)
    shape.push_back(dim.size);
  return shape;
}

std::vector<int64_t> localShape(const TensorLayout &layout) {
  std::vector<int64_t> shape;
  for (const DimLayout &dim : layout.dims)
    shape.push_back(dim.block());
  return shape;
}

bool sameLayout(const TensorLayout &a, const TensorLayout &b) {
  auto sameAxis = [](const SubAxis &x, const SubAxis &y) {
    return x.axis == y.axis && x.pre == y.pre && x.size == y.size;
  };
  auto sameDim = [&](const DimLayout &x, const DimLayout &y) {
    return x.size == y.size &&
           std::equal(x.axes.begin(), x.axes.end(), y.axes.begin(), y.axes.end(), sameAxis);
  };
  return a.dtype == b.dtype &&
         std::equal(a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(), sameDim);
}

ShardRuns::ShardRuns(const TensorLayout &layout, const RankPosition &position) {
  // The run covers the trailing dims up to and including the first that is cut.
  int64_t localStride = 1, globalStride = 1;
  bool inRun = true;
  for (size_t i = layout.dims.size(); i-- > 0;) {
    const DimLayout &dim = layout.dims[i];
    int64_t block = dim.block(), offset = position.shardIndex(dim.axes) * block;
    int64_t extent = std::min(block, std::max<int64_t>(0, dim.size - offset));
    padded |= extent < block;
    if (extent == 0)
      offset = 0; // nothing is held: keep all indices inside the tensor
    if (inRun) {
      runLength *= extent;
      globalStart += offset * globalStride;
      inRun = extent == dim.size && block == dim.size;
    } else {
      outer.push_back({extent, localStride, globalStride, offset});
      runs *= extent;
    }
    localStride *= block;
    globalStride *= dim.size;
  }
  std::reverse(outer.begin(), outer.end());
  if (runLength == 0)
    runs = 0;
}

ShardRuns::Run ShardRuns::at(int64_t index) const {
  Run run{0, globalStart};
  for (size_t i = outer.size(); i-- > 0;) {
    const Dim &dim = outer[i];
    int64_t digit = index % dim.extent;
    index /= dim.extent;
    run.local += digit * dim.localStride;
    run.global += (digit + dim.globalOffset) * dim.globalStride;
  }
  return run;
}

void extractShard(const TensorLayout &layout, const RankPosition &position, const char *global,
                  char *local) {
  ShardRuns runs(layout, position);
  int64_t width = byteSize(layout.dtype);
  if (runs.hasPadding())
    std::memset(local, 0, static_cast<size_t>(localElements(layout) * width));
  for (int64_t i = 0; i < runs.count(); ++i) {
    ShardRuns::Run run = runs.at(i);
    std::memcpy(local + run.local * width, global + run.global * width,
                static_cast<size_t>(runs.length() * width));
  }
}

void insertShard(const TensorLayout &layout, const RankPosition &position, const char *local,
                 char *global) {
  ShardRuns runs(layout, position);
  int64_t width = byteSize(layout.dtype);
  for (int64_t i = 0; i < runs.count(); ++i) {
    ShardRuns::Run run = runs.at(i);
    std::memcpy(global + run.global * width, local + run.local * width,
                static_cast<size_t>(runs.length() * width));
  }
}

} // namespace cleave
