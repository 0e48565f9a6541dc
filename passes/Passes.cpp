//===- Passes.cpp - registration of all passes ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/Passes.h"

#include "passes/fusion/Fusion.h"
#include "passes/schedule/Schedule.h"

void cleave::registerCleavePasses() {
  registerDifferentiatePasses();
  registerShardingPasses();
  registerStructurePasses();
  registerFusionPasses();
  registerSchedulePasses();
}
