//===- FuzzFrontend.cpp - libFuzzer target for lexer to checker -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Check.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string text(reinterpret_cast<const char *>(data), size);
  cleave::CheckOptions options;
  options.inventSizes = true;
  cleave::Diagnostics diagnostics;
  auto checked = cleave::check({"fuzz.cleave", text}, options, diagnostics);
  // A program is right, or there is an error that says why not.
  if (static_cast<bool>(checked) != diagnostics.empty())
    std::abort();
  if (checked)
    (void)cleave::checked::print(*checked);
  // Printing what was read and reading it again changes nothing.
  if (auto once = cleave::formatSource({"fuzz.cleave", text})) {
    auto twice = cleave::formatSource({"fuzz.cleave", *once});
    if (!twice || *twice != *once)
      std::abort();
  }
  return 0;
}
