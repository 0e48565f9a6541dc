//===- Shard.h - which part of a tensor a rank holds ------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Example: a mesh (dp=2, tp=3) has six ranks, first axis major: rank 4 is dp=1,
// tp=1. A dim of size 7 split over tp has blocks of ceil(7/3) = 3 elements; the
// ranks with tp=1 hold elements 3..5, those with tp=2 hold element 6 and two
// elements of padding.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executable/Executable.h"

#include <cstdint>
#include <vector>

namespace cleave {

/// A rank's place in a mesh.
class RankPosition {
public:
  /// A mesh without axes has one rank, 0.
  RankPosition(const std::vector<MeshAxis> &mesh, int64_t rank);

  int64_t rank() const { return number; }
  int64_t coordinate(int32_t axis) const { return coordinates[static_cast<size_t>(axis)]; }

  /// The digit of this rank that the sub-axis names.
  int64_t index(const SubAxis &axis) const;
  /// The mixed-radix number of the digits, first major.
  int64_t shardIndex(const std::vector<SubAxis> &axes) const;
  int64_t resolve(const RankScalar &scalar) const;

  /// The ranks that differ from this one in `axes` only, in the order of their
  /// shard index over `axes`; `group(axes)[shardIndex(axes)]` is this rank.
  std::vector<int32_t> group(const std::vector<SubAxis> &axes) const;

private:
  int64_t number;
  std::vector<int64_t> sizes, coordinates;
};

/// True if each sub-axis is a digit of its axis and no two overlap.
bool axesAreValid(const std::vector<SubAxis> &axes, const std::vector<MeshAxis> &mesh);

/// "tp", "tp:(1)2", "dp, tp": for messages.
std::string axesText(const std::vector<SubAxis> &axes, const std::vector<MeshAxis> &mesh);

/// Elements of one rank's buffer, padding included, and of the whole tensor.
int64_t localElements(const TensorLayout &layout);
int64_t globalElements(const TensorLayout &layout);
std::vector<int64_t> globalShape(const TensorLayout &layout);
std::vector<int64_t> localShape(const TensorLayout &layout);
bool sameLayout(const TensorLayout &a, const TensorLayout &b);

/// What a rank holds of a tensor, as runs of elements that are contiguous in
/// the rank's buffer and in the global tensor alike. Padding is in no run.
class ShardRuns {
public:
  struct Run {
    int64_t local, global; ///< first element, linear, in each
  };
  ShardRuns(const TensorLayout &layout, const RankPosition &position);

  int64_t count() const { return runs; }
  int64_t length() const { return runLength; } ///< elements of every run
  bool hasPadding() const { return padded; }
  Run at(int64_t index) const;

private:
  struct Dim {
    int64_t extent, localStride, globalStride, globalOffset;
  };
  std::vector<Dim> outer; ///< first is major
  int64_t runs = 1, runLength = 1, globalStart = 0;
  bool padded = false;
};

/// Takes a rank's block out of a global tensor; padding becomes zero bytes.
void extractShard(const TensorLayout &layout, const RankPosition &position, const char *global,
                  char *local);
/// Puts it back; padding is left out.
void insertShard(const TensorLayout &layout, const RankPosition &position, const char *local,
                 char *global);

} // namespace cleave
