//===- KernelTable.cpp - kernels by name ----------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/KernelTable.h"

namespace cleave {

void KernelTable::add(std::string symbol, KernelFunction function) {
  functions[std::move(symbol)] = reinterpret_cast<KernelHandle>(function);
}

void KernelTable::addEpilogue(std::string symbol, EpilogueFunction function) {
  functions[std::move(symbol)] = reinterpret_cast<KernelHandle>(function);
}

KernelHandle KernelTable::find(std::string_view symbol) const {
  auto found = functions.find(symbol);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace cleave
