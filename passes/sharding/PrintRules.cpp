//===- PrintRules.cpp - cleave-print-sharding-rules -----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/Dialect.h"
#include "passes/Passes.h"

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEPRINTSHARDINGRULES
#include "passes/sharding/Passes.h.inc"
} // namespace cleave

namespace {
struct PrintRules : cleave::impl::CleavePrintShardingRulesBase<PrintRules> {
  void runOnOperation() override {
    getOperation().walk([](ShardableOpInterface op) {
      op->emitRemark() << "rule: " << op.getShardingRule().toString();
    });
  }
};
} // namespace
