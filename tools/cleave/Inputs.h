//===- Inputs.h - values for a program's arguments --------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Checked.h"
#include "runtime/data/Safetensors.h"
#include "runtime/data/SentencePairs.h"
#include "runtime/data/TextData.h"
#include "runtime/executor/Session.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>

namespace cleave::tool {

using Inputs = std::map<std::string, HostTensor>;
using Scalars = std::map<std::string, ScalarValue>;

/// The same values in another type. Integers must fit; floats may be rounded,
/// and then `rounded` becomes true. `what` is for messages.
Result<HostTensor> exactly(const TensorView &from, DType type, const std::string &what,
                           bool &rounded);

/// The compound dims of a program; what it is compiled to has their atoms only.
using Compounds = std::vector<checked::NamedDim>;
Compounds compoundDims(const CheckedProgram &program);

/// How a file's shape is that of `dims`: for each of the file's dims the number of `dims` that it
/// stands for, 1 or the atoms of a compound dim, which lie in the same order. Nothing if it fits
/// in no way. A size of 0 is not known: any fits.
std::optional<std::vector<size_t>> groupDims(const std::vector<checked::Atom> &dims,
                                             const std::vector<int64_t> &shape,
                                             const Compounds &compounds);
/// "[batch, kv_heads=2, group=3]" and what may stand for adjacent atoms; a size of 0 is left out.
std::string dimsText(const std::vector<checked::Atom> &dims, const Compounds &compounds);

/// A file's tensor for an argument, in the argument's shape and type.
Result<HostTensor> readFor(const Argument &argument, const SafetensorsFile &file,
                           const Compounds &compounds, bool &rounded);

/// Values that depend on (seed, step, the argument's name) only, never on the
/// layout, and that float32 holds exactly: ids uniform in their range, an eighth of them ignored
/// where that is allowed; other integers count along the last dim; truth values
/// are mostly true; floats are normal.
Inputs randomInputs(const Program &program, uint64_t seed, uint32_t step);

/// The scalars that the program takes.
Scalars scalarsOf(const Program &program, uint64_t seed, int64_t step, double lr);

/// The initial value of a param as a whole, in float32 or float64.
Result<HostTensor> initialParam(const std::string &path, const std::string &init,
                                const std::vector<int64_t> &shape, DType type, uint64_t seed);

/// Gives the session's params the file's values. The file must have all; what
/// else it has is counted in `ignored`.
struct WeightsReport {
  size_t ignored = 0;
  bool rounded = false;
};
Result<WeightsReport> loadWeights(Session &session, const SafetensorsFile &file,
                                  const Compounds &compounds);

Status saveWeights(Session &session, const std::string &path,
                   const std::map<std::string, std::string> &metadata);

/// Text for the inputs of a program. Their names say what is made of it: rows for
/// tokens, labels and pos; with one of kind, valid and next, masked pairs of sentences.
class TextSource {
public:
  static Result<TextSource> open(const std::string &path, const Program &program, uint64_t seed);
  Inputs step(uint32_t step) const;
  int64_t tokensPerStep() const { return rows * seq; }
  int64_t size() const; ///< bytes

  /// Adds to an error about a token's range what to do about it.
  Error explain(Error error) const;

private:
  TextSource() = default;
  std::variant<std::monostate, TextData, SentencePairs> data;
  int64_t rows = 0, seq = 0;
  std::set<std::string> takes;
};

} // namespace cleave::tool
