//===- Tensor.cpp - tensors in host memory --------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/core/Tensor.h"

#include "runtime/core/Float16.h"

#include <fmt/format.h>

namespace cleave {

double elementAsDouble(DType dtype, const char *data, int64_t index) {
  auto load = [&]<typename T>(T value) {
    std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  };
  switch (dtype) {
  case DType::F32:
    return load(float{});
  case DType::F64:
    return load(double{});
  case DType::BF16:
    return fromBF16(load(uint16_t{}));
  case DType::F16:
    return fromF16(load(uint16_t{}));
  case DType::I1:
    return load(uint8_t{}) ? 1 : 0;
  case DType::I32:
    return load(int32_t{});
  case DType::I64:
    return static_cast<double>(load(int64_t{}));
  }
  return 0;
}

template <typename T> static void store(HostTensor &tensor, int64_t index, T value) {
  std::memcpy(tensor.data.data() + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

static bool isFloat(DType type) {
  return type == DType::F32 || type == DType::F64 || type == DType::BF16 || type == DType::F16;
}

Result<HostTensor> convert(const TensorView &from, DType type) {
  if (from.dtype != type && (!isFloat(from.dtype) || !isFloat(type)))
    return Error{
        fmt::format("a tensor of {} does not become one of {}", name(from.dtype), name(type))};
  HostTensor to(type, from.shape);
  if (from.dtype == type) {
    if (!to.data.empty())
      std::memcpy(to.data.data(), from.data, to.data.size());
    return to;
  }
  int64_t n = from.elements();
  for (int64_t i = 0; i < n; ++i) {
    double value = elementAsDouble(from.dtype, from.data, i);
    switch (type) {
    case DType::F32:
      store(to, i, static_cast<float>(value));
      break;
    case DType::F64:
      store(to, i, value);
      break;
    case DType::BF16:
      store(to, i, toBF16(static_cast<float>(value)));
      break;
    default:
      store(to, i, toF16(static_cast<float>(value)));
      break;
    }
  }
  return to;
}

} // namespace cleave
