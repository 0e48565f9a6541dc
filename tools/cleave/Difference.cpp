//===- Difference.cpp - when two tensors are equal ------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Difference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cleave::tool {

double largestMagnitude(const HostTensor &tensor) {
  double most = 0;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    double value = std::abs(elementAsDouble(tensor.dtype, tensor.data.data(), i));
    if (std::isfinite(value))
      most = std::max(most, value);
  }
  return most;
}

int64_t leadingIndex(const std::vector<int64_t> &shape, int64_t index) {
  if (shape.empty() || index < 0)
    return -1;
  return index / (elementCount(shape) / shape[0]);
}

static std::string placeText(const std::vector<int64_t> &shape, int64_t index) {
  std::vector<int64_t> place(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    place[d] = index % shape[d];
    index /= shape[d];
  }
  return shapeText(place);
}

/// Not-a-number and infinity must stand in the same places.
static double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b)))
    return 0;
  double d = std::abs(a - b);
  return std::isfinite(d) ? d : std::numeric_limits<double>::infinity();
}

/// The unit in the last place of float32 at this magnitude.
static double unitOf32(double magnitude) {
  return magnitude > 0 ? std::ldexp(1.0, std::max(std::ilogb(magnitude), -126) - 23) : 0;
}

Difference compareTensors(std::string what, std::string name, const HostTensor &oneRank,
                          const HostTensor &sharded, const Tolerance &tolerance) {
  Difference result{std::move(what), std::move(name), 0, 0, 0, -1, -1, -1, true, {}, {}};
  if (oneRank.shape != sharded.shape || oneRank.dtype != sharded.dtype) {
    result.equal = false;
    result.place = shapeText(oneRank.shape) + " and " + shapeText(sharded.shape);
    return result;
  }
  bool isFloat =
      oneRank.dtype != DType::I1 && oneRank.dtype != DType::I32 && oneRank.dtype != DType::I64;
  const HostTensor &reference = tolerance.exact ? *tolerance.exact : oneRank;
  auto at = [](const HostTensor &t, int64_t i) {
    return elementAsDouble(t.dtype, t.data.data(), i);
  };
  result.shape = sharded.shape;
  result.magnitude = largestMagnitude(reference);
  double scale = std::max(result.magnitude, tolerance.floor);
  double allowed = 0;
  if (isFloat && tolerance.exact) {
    double oneError = 0;
    for (int64_t i = 0; i < oneRank.elements(); ++i)
      oneError = std::max(oneError, distance(at(oneRank, i), at(reference, i)));
    allowed = std::max(4 * oneError, 8 * unitOf32(scale));
  } else if (isFloat) {
    allowed = 1e-11 * scale;
  }
  allowed = std::max(allowed, 4 * tolerance.rounding * scale);
  result.allowed = allowed;
  // The element that is furthest beyond its bound; else the one with the
  // largest error.
  std::pair<bool, double> worst = {false, -1};
  for (int64_t i = 0; i < sharded.elements(); ++i) {
    double error = distance(at(sharded, i), at(reference, i));
    double bound = allowed + (tolerance.slack ? (*tolerance.slack)[static_cast<size_t>(i)] : 0);
    std::pair<bool, double> rank = {error > bound, error > bound ? error - bound : error};
    if (rank.first) {
      result.equal = false;
      result.lastBad = i;
      if (result.firstBad < 0)
        result.firstBad = i;
    }
    if (rank <= worst)
      continue;
    worst = rank;
    result.error = error;
    result.allowed = bound;
    result.index = i;
  }
  if (result.index >= 0)
    result.place = placeText(sharded.shape, result.index);
  return result;
}

} // namespace cleave::tool
