//===- Load.h - from FILE and options to something that runs ----*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "Options.h"
#include "Print.h"
#include "Progress.h"

#include "frontend/Check.h"
#include "passes/Compile.h"
#include "runtime/executor/Session.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cleave::tool {

using Sizes = std::map<std::string, int64_t>;

/// A file of program text.
Result<SourceFile> readSource(const std::string &path);

/// A program's text with all that the command line says about it. It is checked
/// as often as needed: first to learn its dims, then with their sizes.
class Source {
public:
  static Result<Source> open(const CommonOptions &options);

  /// Sizes that the options give: --batch, --seq, --dim.
  const Sizes &given() const { return sizes; }
  /// Without a plan; free dims that nobody gave get small sizes, and larger ones
  /// where the program cannot have these. Errors are those of the small ones.
  Result<CheckedProgram> look() const;
  /// With exactly these sizes and the options' plan and mesh.
  Result<CheckedProgram> check(const Sizes &freeSizes) const;
  /// The same with another plan ("none", NAME, FILE:NAME) on the axes of the
  /// mesh that it has.
  Result<CheckedProgram> check(const Sizes &freeSizes, const std::string &plan) const;
  /// The given sizes, and for the model's other free dims those of `fallback`.
  Result<Sizes> complete(const Sizes &fallback) const;
  /// The given sizes, and others that little divides, as small as the program allows.
  Result<Sizes> completeOdd() const;
  /// Whether anything in the function changes with the size of a free dim of `seen`, which
  /// `look` gave.
  bool dependsOn(const CheckedProgram &seen, const std::string &function,
                 const std::string &dim) const;

private:
  Source(SourceFile file) : file(std::move(file)) {}
  Result<CheckedProgram> checkWith(const CheckOptions &options) const;
  /// The sizes of a row of `placeholders` for free dims that nobody gave.
  Sizes invented(const std::vector<int64_t> &row) const;
  /// With the first of the rows that the program can have.
  Result<CheckedProgram> tryRows(const std::vector<std::vector<int64_t>> &rows) const;

  SourceFile file;
  CheckOptions base;                 ///< model, settings
  std::vector<std::string> freeDims; ///< in the order of the text
  Sizes sizes;
  std::string plan;
  std::vector<std::pair<std::string, int64_t>> mesh;
  int64_t ranks = 0; ///< not 0: `mesh` is one of so many
};

/// The name of a plan: "FILE:NAME" is NAME, "none" is "".
std::string planName(const std::string &plan);
/// The file of a plan "FILE:NAME", else "".
std::string planFile(const std::string &plan);

/// Fails if the output `path` of the option `flag` is one of the inputs: (option, path).
Status requireDistinct(const std::string &flag, const std::string &path,
                       const std::vector<std::pair<std::string, std::string>> &inputs);

/// The same, and fails if nothing can be written there; an empty path is none. Before what takes
/// long, so that its results have a place.
Status requireOutput(const std::string &flag, const std::string &path,
                     const std::vector<std::pair<std::string, std::string>> &inputs);

/// A function by name; the error knows near matches.
Result<const checked::Function *> findFunction(const CheckedProgram &program,
                                               const std::string &name);
/// The function's result can be differentiated: one number of float type.
Status requireScalar(const CheckedProgram &program, const checked::Function &function);

/// An executable, compiled or read, and how that went.
struct Built {
  std::shared_ptr<const Executable> executable;
  CompileResult info; ///< its executable has moved out
  /// Of the source; an executable that was read has none.
  std::vector<checked::NamedDim> compounds;

  /// The program of this name; batch and seq choose among several.
  Result<size_t> find(const std::string &name, const CommonOptions &options) const;
  const Program &program(size_t index) const { return executable->programs[index]; }
};

/// Compiles under a plan of the checked program; dtype: of this compilation.
Result<Built> build(const CheckedProgram &program, const std::string &plan, DType dtype,
                    CompileOptions options, Progress &progress);
/// Fails if an option is given that only a source can follow.
Result<Built> readBuilt(const CommonOptions &options);
bool isExecutable(const CommonOptions &options);
/// The error for commands that need the source.
Status requireSource(const CommonOptions &options, const std::string &command);

Result<std::unique_ptr<Session>> openSession(const Built &built, const CommonOptions &options,
                                             bool profile = false, bool timeline = false);

/// Memory of a rank as the executable plans it, and what a session on this processor adds: packed
/// copies of weights.
struct PlannedMemory {
  int64_t params = 0, packed = 0, states = 0, inputs = 0, results = 0, arena = 0;
  int64_t offloaded = 0; ///< states on the host, none of the total
  int64_t total() const { return params + packed + states + inputs + results + arena; }
  int64_t paramElements = 0; ///< whole, not of one rank
  std::string table(std::string_view indent) const;
  Json json() const;
};
PlannedMemory plannedMemory(const Executable &executable, const Program &program);

/// Fails if --mesh has an axis that none of the plans' meshes has: it would be left out without a
/// word.
Status requireUsed(const std::vector<std::string> &mesh,
                   const std::vector<std::vector<MeshAxis>> &meshes, const std::string &plans);

/// "dp=2, tp=2" or "one rank".
std::string meshText(const std::vector<MeshAxis> &mesh);
/// "batch=8, seq=64"
std::string sizesText(const Sizes &sizes);
Json sizesJson(const Sizes &sizes);
Json meshJson(const std::vector<MeshAxis> &mesh);

/// Collectives of one run of a program, summed by kind and axes.
struct CollectiveSum {
  std::string kind, axes;
  int64_t count = 0, payloadBytes = 0, ringBytes = 0;
};
std::vector<CollectiveSum> sumCollectives(const Program &program);
std::string collectivesTable(const Program &program, std::string_view indent);
Json collectivesJson(const Program &program);

} // namespace cleave::tool
