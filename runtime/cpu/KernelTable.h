//===- KernelTable.h - kernels by name --------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/device/Device.h"

#include <map>
#include <string>

namespace cleave {

/// The C signatures of generated code on the CPU.
using KernelFunction = void (*)(int64_t begin, int64_t end, char **buffers, const int64_t *scalars);
using EpilogueFunction = void (*)(int64_t batch, int64_t rowBegin, int64_t rowEnd, int64_t colBegin,
                                  int64_t colEnd, char **buffers, const int64_t *scalars);

/// Functions of this program under names.
class KernelTable final : public KernelSource {
public:
  void add(std::string symbol, KernelFunction function);
  void addEpilogue(std::string symbol, EpilogueFunction function);
  KernelHandle find(std::string_view symbol) const override;

private:
  std::map<std::string, KernelHandle, std::less<>> functions;
};

} // namespace cleave
