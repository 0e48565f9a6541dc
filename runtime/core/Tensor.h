//===- Tensor.h - tensors in host memory ------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/DType.h"
#include "runtime/core/Result.h"

#include <cassert>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace cleave {

/// The number of elements of a shape; a scalar has one.
inline int64_t elementCount(std::span<const int64_t> shape) {
  int64_t n = 1;
  for (int64_t size : shape)
    n *= size;
  return n;
}

/// "[4, 16]"
inline std::string shapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

/// Borrowed, dense row-major. `data` need not be aligned.
struct TensorView {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  const char *data = nullptr;

  int64_t elements() const { return elementCount(shape); }
  int64_t bytes() const { return elements() * byteSize(dtype); }
};

/// Owned, dense row-major, global shape.
struct HostTensor {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::vector<char> data;

  HostTensor() = default;
  HostTensor(DType dtype, std::vector<int64_t> shape)
      : dtype(dtype), shape(std::move(shape)),
        data(static_cast<size_t>(elementCount(this->shape) * byteSize(dtype))) {}

  /// T's size must be the dtype's.
  template <typename T>
  static HostTensor of(DType dtype, std::vector<int64_t> shape, std::span<const T> values) {
    HostTensor tensor(dtype, std::move(shape));
    assert(sizeof(T) == static_cast<size_t>(byteSize(dtype)) &&
           values.size_bytes() == tensor.data.size() && "values do not fit the shape");
    std::memcpy(tensor.data.data(), values.data(), values.size_bytes());
    return tensor;
  }

  int64_t elements() const { return elementCount(shape); }
  template <typename T> T *as() { return reinterpret_cast<T *>(data.data()); }
  template <typename T> const T *as() const { return reinterpret_cast<const T *>(data.data()); }
  TensorView view() const { return {dtype, shape, data.data()}; }
};

/// One element as a number. Floats of all widths, integers and i1 (0 or 1).
double elementAsDouble(DType dtype, const char *data, int64_t index);

/// The same values in another float type, rounded to nearest even. Integers and
/// i1 are copied to their own type only.
Result<HostTensor> convert(const TensorView &from, DType type);

} // namespace cleave
