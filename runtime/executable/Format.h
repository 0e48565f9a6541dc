//===- Format.h - executables in files --------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A file, little-endian:
//   bytes 0..7    "CLEAVEX\n"
//   bytes 8..11   version
//   bytes 12..15  zero
//   bytes 16..23  length of the file
//   bytes 24..31  length of the manifest
//   bytes 32..39  FNV-1a 64 of bytes 8..31 and of all that follows byte 39
//   bytes 40..    the manifest: JSON, everything but the machine code
//   then          the ELF objects, each at a multiple of 64 bytes, zeros between
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Result.h"
#include "runtime/executable/Executable.h"

#include <string>
#include <string_view>

namespace cleave {

/// The bytes of a file. Fails only if a name is not UTF-8.
Result<std::string> serialise(const Executable &executable);

/// Reads what `serialise` made, and verifies it. Whatever the bytes are, the
/// outcome is an executable that `verify` accepts, or an error that names
/// `name` (the file, for the message) and what is wrong.
Result<Executable> deserialise(std::string_view bytes, std::string_view name);

/// `writeExecutable` verifies first, and replaces the file as a whole.
Status writeExecutable(const Executable &executable, const std::string &path);
Result<Executable> readExecutable(const std::string &path);

/// True if the file begins as an executable does (damaged or not).
bool looksLikeExecutable(const std::string &path);

/// Checks that everything the runtime relies on holds: every reference lies in
/// its buffer, every buffer in its arena or argument, sizes and strides are not
/// negative and do not overflow, axes are digits of the mesh's, donations match
/// on both sides. An error is a fault of the compiler or of a forged file; it
/// names the program, the step and the numbers.
Status verify(const Executable &executable);

/// Checks that this processor has what the code was compiled for; the error
/// lists what it lacks.
Status checkCpuFeatures(const Executable &executable);
/// This processor's vector features, by the names that `cpuFeatures` uses, for
/// `doctor` and for the compiler.
std::vector<std::string> cpuFeatures();

} // namespace cleave
