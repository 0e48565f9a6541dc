//===- Location.cpp - places in the source --------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/Location.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

std::string cleave::locationText(Location loc) {
  return TypeSwitch<LocationAttr, std::string>(loc)
      .Case([](FileLineColLoc l) {
        return (l.getFilename().getValue() + ":" + Twine(l.getLine()) + ":" + Twine(l.getColumn()))
            .str();
      })
      .Case([](NameLoc l) { return locationText(l.getChildLoc()); })
      .Case([](CallSiteLoc l) {
        std::string text = locationText(l.getCallee());
        return text.empty() ? locationText(l.getCaller()) : text;
      })
      .Case([](FusedLoc l) {
        for (Location part : l.getLocations())
          if (std::string text = locationText(part); !text.empty())
            return text;
        return std::string();
      })
      .Case([](OpaqueLoc l) { return locationText(l.getFallbackLocation()); })
      .Default([](LocationAttr) { return std::string(); });
}
