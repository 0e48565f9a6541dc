//===- Transfers.cpp - the arithmetic of collectives ----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/comm/Transfers.h"

#include "runtime/core/Float16.h"

#include <algorithm>
#include <cstring>

namespace cleave {

using Reduction = CollectiveStep::Reduction;

namespace {
// How an element is held while it is reduced.
template <typename T> struct Plain {
  using Stored = T;
  using Held = T;
  static Held load(Stored value) { return value; }
  static Stored store(Held value) { return value; }
};
struct BF16 {
  using Stored = uint16_t;
  using Held = float;
  static Held load(Stored bits) { return fromBF16(bits); }
  static Stored store(Held value) { return toBF16(value); }
};
struct F16 {
  using Stored = uint16_t;
  using Held = float;
  static Held load(Stored bits) { return fromF16(bits); }
  static Stored store(Held value) { return toF16(value); }
};

template <Reduction op, typename T> T combine(T a, T b) {
  if constexpr (op == Reduction::Sum) {
    if constexpr (std::is_integral_v<T>) // wraps, as the generated code does
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    else
      return a + b;
  } else if constexpr (op == Reduction::Max) {
    // A NaN on either side stays.
    return a > b || a != a ? a : b;
  } else {
    return a < b || a != a ? a : b;
  }
}
} // namespace

/// Elements that are reduced over all inputs before the next: `held` stays in
/// the first-level cache while the inputs stream past.
static constexpr int64_t stripe = 1024;

template <Reduction op, typename Format>
static void reduceStripes(std::span<const char *const> inputs, char *out, int64_t count) {
  using Stored = typename Format::Stored;
  using Held = typename Format::Held;
  alignas(64) Held held[stripe];
  auto *to = reinterpret_cast<Stored *>(out);
  for (int64_t begin = 0; begin < count; begin += stripe) {
    int64_t n = std::min(stripe, count - begin);
    auto *first = reinterpret_cast<const Stored *>(inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i)
      held[i] = Format::load(first[i]);
    for (size_t k = 1; k < inputs.size(); ++k) {
      auto *from = reinterpret_cast<const Stored *>(inputs[k]) + begin;
      for (int64_t i = 0; i < n; ++i)
        held[i] = combine<op>(held[i], Format::load(from[i]));
    }
    for (int64_t i = 0; i < n; ++i)
      to[begin + i] = Format::store(held[i]);
  }
}

template <Reduction op>
static void reduceTyped(DType dtype, std::span<const char *const> inputs, char *out,
                        int64_t count) {
  switch (dtype) {
  case DType::F32:
    return reduceStripes<op, Plain<float>>(inputs, out, count);
  case DType::F64:
    return reduceStripes<op, Plain<double>>(inputs, out, count);
  case DType::BF16:
    return reduceStripes<op, BF16>(inputs, out, count);
  case DType::F16:
    return reduceStripes<op, F16>(inputs, out, count);
  case DType::I1: // sum is "or" and max too; min is "and"
    return op == Reduction::Min ? reduceStripes<Reduction::Min, Plain<uint8_t>>(inputs, out, count)
                                : reduceStripes<Reduction::Max, Plain<uint8_t>>(inputs, out, count);
  case DType::I32:
    return reduceStripes<op, Plain<int32_t>>(inputs, out, count);
  case DType::I64:
    return reduceStripes<op, Plain<int64_t>>(inputs, out, count);
  }
}

void reduceInOrder(Reduction reduction, DType dtype, std::span<const char *const> inputs, char *out,
                   int64_t count) {
  switch (reduction) {
  case Reduction::Sum:
    return reduceTyped<Reduction::Sum>(dtype, inputs, out, count);
  case Reduction::Max:
    return reduceTyped<Reduction::Max>(dtype, inputs, out, count);
  case Reduction::Min:
    return reduceTyped<Reduction::Min>(dtype, inputs, out, count);
  }
}

template <int64_t bytes>
static void copyFixed(char *to, int64_t toStride, const char *from, int64_t fromStride,
                      int64_t rows) {
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(to + i * toStride, from + i * fromStride, bytes);
}

void copyRows(char *to, int64_t toStride, const char *from, int64_t fromStride, int64_t bytes,
              int64_t rows) {
  if (bytes <= 0 || rows <= 0)
    return;
  if (toStride == bytes && fromStride == bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes * rows));
    return;
  }
  switch (bytes) { // a call per element would cost more than the copy
  case 2:
    return copyFixed<2>(to, toStride, from, fromStride, rows);
  case 4:
    return copyFixed<4>(to, toStride, from, fromStride, rows);
  case 8:
    return copyFixed<8>(to, toStride, from, fromStride, rows);
  case 16:
    return copyFixed<16>(to, toStride, from, fromStride, rows);
  case 32:
    return copyFixed<32>(to, toStride, from, fromStride, rows);
  default:
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(to + i * toStride, from + i * fromStride, static_cast<size_t>(bytes));
  }
}

} // namespace cleave
