//===- Kernels.h - machine code for fused groups ----------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Turns `cleave.fused` ops into kernels with the C signature of KernelStep in
// runtime/executable/Executable.h:
//   void kernel(int64_t begin, int64_t end, char **buffers, const int64_t *scalars)
// `buffers`: the op's tensor inputs in order, then its results; dense row-major,
// aligned to their elements (i1: one byte each, 0 or 1). `scalars`: the index
// inputs in order. Equal groups (by content, wherever they stand) share a kernel.
//
// A group of kind "epilogue" has the signature of GemmStep's epilogue instead. Its
// first input is the product, whose `cleave.parts` say which of its dims are batch,
// rows and columns; its results have the same dims in the same order.
//
// Kernels call at most these functions: exp log tanh erf sin cos pow of libm.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Dialect.h"
#include "runtime/core/Work.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cleave {

inline constexpr llvm::StringLiteral kEpilogue = "epilogue";
/// Kinds of group that a product's step makes: not compiled by itself, and with an epilogue.
inline constexpr llvm::StringLiteral kSums = "sums";
/// On a contraction behind another: the same left side (GemmStep::sameA).
inline constexpr llvm::StringLiteral kSameLeft = "cleave.same_left";
/// On an epilogue: DenseI64ArrayAttr, a GemmPart (passes/schedule/Contraction.h)
/// for each dim of the first input.
inline constexpr llvm::StringLiteral kParts = "cleave.parts";

struct KernelInfo {
  std::string symbol;
  int64_t extent = 1; ///< outer iterations, independent of each other
  int64_t grain = 1;  ///< the least number of them worth a thread
  /// Of all iterations, as Step counts.
  int64_t flops = 0, bytes = 0;
  FunctionCounts functions = {};
  AttentionShape attention;
  /// (tensor input, result): they may be one buffer, for each outer iteration
  /// reads an element of the input only before it writes that same element.
  /// A result may share with one input only.
  std::vector<std::pair<int, int>> inPlace;
};

struct KernelOptions {
  int vectorBits = 256; ///< 256 (AVX2) or 512 (AVX-512)
  int optLevel = 2;     ///< 0 to 3
};

class KernelCompiler {
public:
  explicit KernelCompiler(KernelOptions options = {});
  ~KernelCompiler();
  KernelCompiler(const KernelCompiler &) = delete;
  KernelCompiler &operator=(const KernelCompiler &) = delete;

  /// The kernel of this group. Failure: an error was emitted at the op (or at
  /// the op inside of it that has no code).
  llvm::FailureOr<KernelInfo> add(FusedOp fused);

  size_t size() const;

  /// All kernels so far as one ELF object for this machine's kind of processor;
  /// on failure `error` says why.
  llvm::FailureOr<std::string> emitObject(std::string &error);
  /// The optimised LLVM IR of the same.
  llvm::FailureOr<std::string> emitLLVM(std::string &error);
  /// The loops before they are lowered (scf, vector, arith), as MLIR text.
  std::string emitLoops() const;
  /// What the object needs: "avx2", "fma", "f16c", ...
  std::vector<std::string> cpuFeatures() const;

private:
  struct State;
  std::unique_ptr<State> state;
};

} // namespace cleave
