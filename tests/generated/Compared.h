//===- Compared.h - a random program, sharded and not -----------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "passes/differentiate/Differentiate.h"
#include "tests/generated/Generator.h"

#include <functional>
#include <map>

namespace cleave::testing {

/// A number of the environment.
uint64_t environment(const char *name, uint64_t otherwise);

/// What a check of one program says: empty, or what is wrong.
using Check = std::function<std::string(uint64_t seed, int steps)>;
using Make = std::function<Generated(uint64_t seed, int steps)>;

/// Runs `count` seeds; stops after three failures, and shows the shortest prefix of a program that
/// fails. `test`: a filter, to run it again.
void forSeeds(uint64_t count, const std::string &test, const Check &check,
              const Make &make = generate);

/// Collects diagnostics instead of printing them.
struct Messages {
  std::string text;
  mlir::ScopedDiagnosticHandler handler{&context(), [this](mlir::Diagnostic &d) {
                                          if (d.getSeverity() == mlir::DiagnosticSeverity::Error)
                                            text += d.str() + "\n";
                                          return mlir::success();
                                        }};
};

/// Runs globally; an error message in `wrong` when it fails.
std::vector<Array> runOne(mlir::func::FuncOp f, const std::vector<Array> &args, std::string &wrong,
                          bool native = true);

double largest(const Array &a);
/// Where two arrays differ by more than the tolerance (times the larger of 1, the
/// array's and a part of the program's largest number); empty if nowhere.
std::string difference(const Array &got, const Array &wanted, double tolerance, double scale);

/// Expands and differentiates; an error message in `wrong` when it fails.
mlir::func::FuncOp differentiated(mlir::ModuleOp module, std::string &wrong);

/// What happened to many programs.
struct Tally {
  int programs = 0, refused = 0, extents = 0, subAxes = 0;
  std::map<std::string, int> refusals, collectives;

  void print() const;
};

/// The sharded version of a module's one function: null when refused (counted) or
/// when `wrong` says why. `change`: what is done to the decisions of `cleave-assign-shardings`.
mlir::OwningOpRef<mlir::ModuleOp>
shardedCopy(mlir::func::FuncOp f, Tally *tally, std::string &wrong,
            const std::function<void(mlir::ModuleOp)> &change = {});

/// Runs the sharded module and compares with what the global function gave.
std::string compareResults(mlir::ModuleOp sharded, const std::vector<Array> &args,
                           const std::vector<Array> &wanted);

/// Arguments of `train_step`: those of the program by name, states that are not
/// zero, a learning rate.
std::vector<Array> trainingArguments(mlir::func::FuncOp loss, mlir::func::FuncOp step,
                                     const std::vector<Array> &args, uint64_t seed);

} // namespace cleave::testing
