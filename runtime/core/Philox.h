//===- Philox.h - counter-based random numbers ------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Philox4x32-10 (Salmon et al., SC'11). A number depends only on where its
// element stands in the global tensor, never on the layout:
//   counter: low and high word of the element's row-major index in global
//            unpadded coordinates, the site, the layer
//   key:     low32(seed) ^ (high32(seed) * 0x9E3779B9), low32(step)
// Each element has a counter of its own.
//
//===----------------------------------------------------------------------===//
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace cleave {

/// The step word of initial values, which belong to no step.
inline constexpr uint32_t initialStep = 0xFFFFFFFFu;

/// The site word: FNV-1a of the dotted path of what draws the numbers.
constexpr uint32_t siteHash(std::string_view path) {
  uint32_t hash = 2166136261u;
  for (char c : path)
    hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return hash;
}

class Philox {
public:
  using Words = std::array<uint32_t, 4>;

  constexpr Philox(uint64_t seed, uint32_t step, uint32_t site, uint32_t layer = 0)
      : k0(static_cast<uint32_t>(seed) ^ (static_cast<uint32_t>(seed >> 32) * 0x9E3779B9u)),
        k1(step), site(site), layer(layer) {}

  /// The four words of the element with this index.
  constexpr Words words(uint64_t index) const {
    return block({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), site, layer},
                 k0, k1);
  }

  /// In [0, 1), a multiple of 2^-24.
  constexpr double uniform(uint64_t index) const { return (words(index)[0] >> 8) * 0x1p-24; }

  /// Standard normal, by Box-Muller in double.
  double normal(uint64_t index) const {
    Words w = words(index);
    double u1 = (w[0] + 0.5) * 0x1p-32, u2 = (w[1] + 0.5) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * u2);
  }

  /// The bare cipher.
  static constexpr Words block(Words c, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; ++round) {
      uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
      c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
           static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return c;
  }

private:
  uint32_t k0, k1, site, layer;
};

} // namespace cleave
