//===- Reference.h - groups in plain loops of doubles -----------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// The meaning of every primitive op in the slowest and plainest way: each op
// makes its whole result, element by element, in double. And the means to run
// the compiled kernel of the same region.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"
#include "passes/lowering/Kernels.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace llvm::orc {
class LLJIT;
}

namespace cleave::test {

struct Tensor {
  NamedTensorType type;
  std::vector<double> data; ///< integers and i1 as numbers
};

/// What the ops of the block compute. `indices`: values of index arguments.
std::vector<Tensor> interpret(mlir::Block &block, std::vector<Tensor> inputs,
                              const std::vector<int64_t> &indices);

/// One op; its operands are in `values`, its result goes there.
void interpretOp(mlir::Operation *op, llvm::DenseMap<mlir::Value, Tensor> &values);

/// Floats are drawn from [-scale, scale], i32 from [0, below), i1 at random; all are
/// representable in their type.
std::vector<Tensor> randomTensors(mlir::TypeRange types, unsigned seed, double scale = 1,
                                  int64_t below = 7);

/// Machine code, loaded.
class Kernels {
public:
  Kernels();
  ~Kernels();
  bool load(KernelCompiler &compiler);
  /// Runs three ranges, last first; `inPlace`: result j over input i for the pairs
  /// that the kernel offers.
  std::vector<Tensor> run(FusedOp group, const KernelInfo &info, const std::vector<Tensor> &inputs,
                          const std::vector<int64_t> &indices = {}, bool inPlace = false);

private:
  std::unique_ptr<llvm::orc::LLJIT> jit;
};

/// A `func.func` whose body becomes one fused op.
class Program {
public:
  explicit Program(const std::string &text);
  ~Program();
  bool valid() const { return static_cast<bool>(module); }
  FusedOp fused() const { return group; }
  mlir::MLIRContext &context() { return *contextOwner; }
  /// Messages of errors since the start.
  std::string errors;

  std::vector<Tensor> randomInputs(unsigned seed, double scale = 1, int64_t below = 7);

  /// Compiles the group and runs it on the inputs, in three ranges, last first.
  std::vector<Tensor> run(const std::vector<Tensor> &inputs,
                          const std::vector<int64_t> &indices = {}, KernelOptions options = {});
  /// The same with result j written over input i for every pair that is offered.
  std::vector<Tensor> runInPlace(const std::vector<Tensor> &inputs);
  std::vector<Tensor> reference(const std::vector<Tensor> &inputs,
                                const std::vector<int64_t> &indices = {});
  KernelInfo info;

private:
  std::vector<Tensor> execute(const std::vector<Tensor> &inputs,
                              const std::vector<int64_t> &indices, KernelOptions options,
                              bool inPlace);
  std::unique_ptr<mlir::MLIRContext> contextOwner;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  FusedOp group;
};

/// Fails the test where |x - y| > tolerance * max(1, |y|), or one alone is NaN.
void expectClose(const std::vector<Tensor> &got, const std::vector<Tensor> &want, double tolerance);

} // namespace cleave::test
