//===- Page.h - one self-contained page about plans -------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// For --html. What the page shows is JSON in it; page/page.js draws that with what browsers have,
// page/page.css holds its two sets of colours. All text of the user's is data that the script sets
// as text: none of it is markup.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "Lines.h"
#include "Load.h"
#include "Trace.h"

#include <string>
#include <vector>

namespace cleave::tool {

struct PagePlan {
  PlanSide side;
  TracedRun run;   ///< one run, with transfers
  std::string how; ///< what its times are: "measured", "emulated on ethernet"
  PlannedMemory memory;
};

struct Page {
  std::string title;
  std::string where;                           ///< what predictions are for
  std::vector<std::vector<std::string>> table; ///< its first row is the header
  std::vector<std::string> verdicts;
  std::vector<PagePlan> plans; ///< not empty
  Json differences = Json::array();
};

/// A whole HTML document, which loads nothing.
std::string pageText(const Page &page, SourceLines &source);

} // namespace cleave::tool
