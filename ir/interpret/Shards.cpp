//===- Shards.cpp - global arrays and their shards ------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/interpret/Interpreter.h"

#include <cmath>
#include <cstring>
#include <limits>

using namespace mlir;
using namespace cleave;

MeshAttr cleave::meshOf(Operation *op) {
  auto module = dyn_cast<ModuleOp>(op);
  if (!module)
    module = op->getParentOfType<ModuleOp>();
  if (module)
    if (auto mesh = module->getAttrOfType<MeshAttr>(kMeshAttr))
      return mesh;
  return MeshAttr::get(op->getContext(), {}, {});
}

std::vector<int64_t> cleave::shapeOf(NamedTensorType type) { return type.getSizes().vec(); }

static int64_t axisSize(MeshAttr mesh, AxisAttr axis) {
  return axis.getSize() ? axis.getSize() : mesh.sizeOf(axis.getName());
}

/// How many ranks apart (within its mesh axis) neighbours along a sub-axis are.
static int64_t minorPart(MeshAttr mesh, AxisAttr axis) {
  return mesh.sizeOf(axis.getName()) / (axis.getPre() * axisSize(mesh, axis));
}

/// How many ranks apart neighbours along a mesh axis are.
static int64_t axisStride(MeshAttr mesh, StringAttr name) {
  int64_t stride = 1;
  for (size_t i = mesh.getNames().size(); i-- > 0;) {
    if (mesh.getNames()[i] == name)
      return stride;
    stride *= mesh.getSizes()[i];
  }
  return stride;
}

static int64_t digit(MeshAttr mesh, AxisAttr axis, int64_t rank) {
  int64_t coordinate = rank / axisStride(mesh, axis.getName()) % mesh.sizeOf(axis.getName());
  return coordinate / minorPart(mesh, axis) % axisSize(mesh, axis);
}

int64_t cleave::shardCount(MeshAttr mesh, ArrayAttr axes) {
  int64_t n = 1;
  for (AxisAttr axis : axes.getAsRange<AxisAttr>())
    n *= axisSize(mesh, axis);
  return n;
}

int64_t cleave::shardIndex(MeshAttr mesh, ArrayAttr axes, int64_t rank) {
  int64_t index = 0;
  for (AxisAttr axis : axes.getAsRange<AxisAttr>())
    index = index * axisSize(mesh, axis) + digit(mesh, axis, rank);
  return index;
}

std::vector<int64_t> cleave::rankGroup(MeshAttr mesh, ArrayAttr axes, int64_t rank) {
  int64_t base = rank;
  for (AxisAttr axis : axes.getAsRange<AxisAttr>())
    base -= digit(mesh, axis, rank) * minorPart(mesh, axis) * axisStride(mesh, axis.getName());
  std::vector<int64_t> group(shardCount(mesh, axes));
  for (size_t i = 0; i < group.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), member = base;
    for (Attribute a : llvm::reverse(axes)) {
      auto axis = cast<AxisAttr>(a);
      int64_t size = axisSize(mesh, axis);
      member += rest % size * minorPart(mesh, axis) * axisStride(mesh, axis.getName());
      rest /= size;
    }
    group[i] = member;
  }
  return group;
}

std::vector<int64_t> cleave::localShape(MeshAttr mesh, NamedTensorType type) {
  std::vector<int64_t> shape = shapeOf(type);
  if (type.getSharding())
    for (auto [size, axes] : llvm::zip_equal(shape, type.getSharding().getDims())) {
      int64_t n = shardCount(mesh, axes);
      size = (size + n - 1) / n;
    }
  return shape;
}

/// Calls f(local, global) with the linear indices of each element that the rank
/// holds, without padding.
template <typename F>
static void forEachHeld(MeshAttr mesh, NamedTensorType type, int64_t rank, F f) {
  std::vector<int64_t> local = localShape(mesh, type), global = shapeOf(type), extent = local;
  std::vector<int64_t> globalStrides = rowMajorStrides(global);
  int64_t start = 0;
  for (size_t d = 0; d < local.size(); ++d) {
    if (!type.getSharding())
      continue;
    int64_t offset = shardIndex(mesh, type.getSharding().getDims()[d], rank) * local[d];
    extent[d] = std::clamp<int64_t>(global[d] - offset, 0, local[d]);
    start += offset * globalStrides[d];
  }
  walk<2>(extent, {rowMajorStrides(local), globalStrides},
          [&](auto at) { f(at[0], start + at[1]); });
}

PerRankArrays cleave::shardArray(const Array &global, NamedTensorType type, MeshAttr mesh,
                                 Padding padding) {
  PerRankArrays shards;
  for (int64_t rank = 0; rank < mesh.getRanks(); ++rank) {
    Array local = Array::zeros(localShape(mesh, type), global.integer);
    if (padding == Padding::Poison) {
      std::fill(local.reals.begin(), local.reals.end(), std::numeric_limits<double>::quiet_NaN());
      std::fill(local.ints.begin(), local.ints.end(),
                type.getElementType().isInteger(1) ? 1 : -0x5A5A5A5A);
    }
    forEachHeld(mesh, type, rank, [&](int64_t to, int64_t from) {
      if (global.integer)
        local.ints[to] = global.ints[from];
      else
        local.reals[to] = global.reals[from];
    });
    shards.push_back(std::move(local));
  }
  return shards;
}

static std::string indexText(std::vector<int64_t> shape, int64_t linear) {
  std::vector<int64_t> strides = rowMajorStrides(shape);
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    text += (d ? ", " : "") + std::to_string(linear / strides[d]);
    linear %= strides[d];
  }
  return text + "]";
}

Result<Array> cleave::assembleArray(const PerRankArrays &shards, NamedTensorType type,
                                    MeshAttr mesh) {
  ArrayAttr unreduced = type.getSharding() ? type.getSharding().getUnreduced()
                                           : ArrayAttr::get(mesh.getContext(), {});
  Reduction reduction = type.getSharding() ? type.getSharding().getReduction() : Reduction::Sum;
  if (static_cast<int64_t>(shards.size()) != mesh.getRanks())
    return Error{"there are arrays of " + std::to_string(shards.size()) + " ranks on a mesh of " +
                     std::to_string(mesh.getRanks()),
                 Fault::Internal};
  std::vector<int64_t> shape = shapeOf(type), local = localShape(mesh, type);
  bool integer = !type.isFloat();
  int64_t parts = shardCount(mesh, unreduced);
  std::vector<Array> sums(parts, Array::zeros(shape, integer));
  std::vector<std::vector<int64_t>> owner(parts, std::vector<int64_t>(elementsOf(shape), -1));
  for (int64_t rank = 0; rank < mesh.getRanks(); ++rank) {
    const Array &from = shards[rank];
    if (from.integer != integer || from.shape != local)
      return Error{"rank " + std::to_string(rank) + " has an array of another shape or kind",
                   Fault::Internal};
    int64_t part = shardIndex(mesh, unreduced, rank), wrong = -1;
    Array &to = sums[part];
    forEachHeld(mesh, type, rank, [&](int64_t at, int64_t global) {
      int64_t &first = owner[part][global];
      if (first < 0) {
        first = rank;
        if (integer)
          to.ints[global] = from.ints[at];
        else
          to.reals[global] = from.reals[at];
        return;
      }
      bool same = integer ? to.ints[global] == from.ints[at]
                          : std::memcmp(&to.reals[global], &from.reals[at], sizeof(double)) == 0;
      if (!same && wrong < 0)
        wrong = global;
    });
    if (wrong >= 0)
      return Error{"ranks " + std::to_string(owner[part][wrong]) + " and " + std::to_string(rank) +
                       " should hold the same element " + indexText(shape, wrong) +
                       " but differ there",
                   Fault::Differs};
  }
  Array result = std::move(sums[0]);
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < result.size(); ++i) {
      auto combine = [&](auto &a, auto b) {
        a = reduction == Reduction::Sum   ? a + b
            : reduction == Reduction::Max ? std::max(a, b)
                                          : std::min(a, b);
      };
      if (integer)
        combine(result.ints[i], sums[part].ints[i]);
      else
        combine(result.reals[i], sums[part].reals[i]);
    }
  return result;
}
