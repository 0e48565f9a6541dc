//===- DType.h - element types ----------------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cleave {

/// I1 is stored as one byte, 0 or 1.
enum class DType : uint8_t { F32, F64, BF16, F16, I1, I32, I64 };

constexpr int64_t byteSize(DType type) {
  switch (type) {
  case DType::F32:
  case DType::I32:
    return 4;
  case DType::F64:
  case DType::I64:
    return 8;
  case DType::BF16:
  case DType::F16:
    return 2;
  case DType::I1:
    return 1;
  }
  return 0;
}

/// In what sums of products of this type are taken: bf16 and f16 in f32.
constexpr DType accumulatorOf(DType type) {
  return type == DType::BF16 || type == DType::F16 ? DType::F32 : type;
}

/// The spelling used in the language, the IR and all files: "f32", "i1", ...
constexpr std::string_view name(DType type) {
  constexpr std::string_view names[] = {"f32", "f64", "bf16", "f16", "i1", "i32", "i64"};
  return names[static_cast<int>(type)];
}

constexpr std::optional<DType> parseDType(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(DType::I64); ++i)
    if (name(static_cast<DType>(i)) == text)
      return static_cast<DType>(i);
  return std::nullopt;
}

} // namespace cleave
