//===- ObjectLoader.h - generated code into memory --------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Result.h"
#include "runtime/device/Device.h"

#include <memory>
#include <string>
#include <vector>

namespace cleave {

/// An executable's ELF objects, linked into this process by LLVM's LLJIT. The
/// code may call nothing but memcpy and its like and the functions of libm: any
/// other undefined symbol is refused, by name, before anything is linked.
class ObjectLoader final : public KernelSource {
public:
  /// `objects`: ELF bytes, copied. `symbols`: the kernels that will be asked for.
  static Result<std::shared_ptr<ObjectLoader>> load(const std::vector<std::string> &objects,
                                                    const std::vector<std::string> &symbols);
  /// The objects and the kernels that the programs name.
  static Result<std::shared_ptr<ObjectLoader>> load(const Executable &executable);
  ~ObjectLoader() override;

  KernelHandle find(std::string_view symbol) const override;

  /// What generated code may call.
  static std::vector<std::string> allowedSymbols();

private:
  ObjectLoader();
  struct State;
  std::unique_ptr<State> state;
};

} // namespace cleave
