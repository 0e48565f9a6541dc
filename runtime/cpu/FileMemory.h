//===- FileMemory.h - memory that lies in a file ----------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Result.h"
#include "runtime/device/Device.h"

#include <memory>
#include <string>

namespace cleave {

/// Zeroed memory, mapped from a file in `directory`. The file has its whole size from the start
/// (a full disk is an error here, not a signal later) and no name: it goes with the memory, and
/// when the process ends. Fault::Rank with the directory, the bytes and the system's reason.
Result<std::unique_ptr<DeviceBuffer>> fileMemory(const std::string &directory, int64_t bytes);

} // namespace cleave
