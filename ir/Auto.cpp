//===- Auto.cpp - what a plan's `auto` says to the search -----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/Auto.h"

#include "ir/Dialect.h"

using namespace mlir;

std::string cleave::sentenceOf(Attribute rule) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << rule; // #cleave.shard_rule<heads, ffn by tp>
  StringRef inside(text);
  inside.consume_front("#cleave.shard_rule<");
  inside.consume_back(">");
  return ("shard " + inside).str();
}
