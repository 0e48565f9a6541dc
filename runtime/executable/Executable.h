//===- Executable.h - what the compiler hands to the runtime ----*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// An executable holds one or more programs (entry points), each an unrolled
// list of steps over numbered buffers, plus the machine code of its kernels as
// ELF objects. All ranks of a mesh run the same program; what differs between
// them (offsets and extents of their shards) are `RankScalar`s, resolved from
// the rank's mesh coordinates when the executable is loaded.
//
// Sizes are in elements and bytes as named; layouts are dense row-major.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/DType.h"
#include "runtime/core/Work.h"

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace cleave {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
};

/// A part of a mesh axis. Axis coordinate c of an axis of size A is seen as
/// digits; this is the digit of `size` values after a major part of `pre`:
/// index = (c / (A / (pre * size))) % size. The whole axis: pre 1, size A.
struct SubAxis {
  int32_t axis = 0; ///< index into Executable::mesh
  int64_t pre = 1;
  int64_t size = 1;
};

/// One dimension of a global tensor and how it is split. The shard index is the
/// mixed-radix number of the sub-axes' indices, first sub-axis major; p is the
/// product of their sizes; a block is ceil(size / p) elements, and the last
/// blocks are short or empty (their padding lies in the buffer).
struct DimLayout {
  std::string name;
  int64_t size = 1; ///< global
  std::vector<SubAxis> axes;

  int64_t shards() const {
    int64_t p = 1;
    for (const SubAxis &a : axes)
      p *= a.size;
    return p;
  }
  int64_t block() const { return (size + shards() - 1) / shards(); }
};

struct TensorLayout {
  DType dtype = DType::F32;
  std::vector<DimLayout> dims;
};

/// A number that depends on the rank and, in an unrolled loop over micro-batches, on
/// which of them it is: its shard is number `rank's shard index * parts + part`.
/// Offset: that number * block. Extent: min(block, max(0, size - offset)).
struct RankScalar {
  enum class Kind : uint8_t { Constant, Offset, Extent } kind = Kind::Constant;
  int64_t value = 0; ///< Constant
  int64_t size = 0;  ///< global size of the dim
  int64_t block = 0;
  std::vector<SubAxis> axes;
  int64_t parts = 1, part = 0;
};

/// Where bytes live. `Argument`: persistent, owned by the caller, one for each
/// program argument (params, states, inputs, scalars). `Result`: persistent,
/// one for each result that isn't donated. `Arena`: offset in the arena.
struct Buffer {
  enum class Kind : uint8_t { Arena, Argument, Result } kind = Kind::Arena;
  int64_t bytes = 0;
  int64_t offset = 0; ///< Arena: byte offset, a multiple of 64
  int32_t index = 0;  ///< Argument, Result: its number
};

/// A place inside a buffer (layers of stacked tensors start at an offset).
struct BufferRef {
  int32_t buffer = -1;
  int64_t offset = 0; ///< bytes
};

/// Generated code. Its C signature:
///   void kernel(int64_t begin, int64_t end, char **buffers, const int64_t *scalars)
/// computes outer iterations [begin, end) of `extent`. Iterations are
/// independent: ranges may run on any thread in any order. `grain`: the least
/// number of iterations worth a thread.
struct KernelStep {
  std::string symbol;
  std::vector<BufferRef> buffers;
  std::vector<RankScalar> scalars;
  int64_t extent = 1;
  int64_t grain = 1;
};

/// C[b] (+)= op(A[b]) * op(B[b]), row-major, for b < batch. A and B are of `dtype`; C is f64 if
/// that is, else f32: numbers of bf16 and f16 are widened as they are read.
/// A is M x K, or K x M when transA (likewise B). lda, ldb, ldc: elements
/// between rows as stored. Batches are elements apart as given (0: shared).
/// If there is an epilogue, it is called after each finished tile of C:
///   void epilogue(int64_t batch, int64_t rowBegin, int64_t rowEnd, int64_t colBegin,
///                 int64_t colEnd, char **buffers, const int64_t *scalars)
/// It may read C and others, and writes C or others at these rows and columns.
/// `sums`, if any, are made while the operand is at hand, with batch 1: of B, for each of
/// its n columns the sum over k; of A, for each of its m rows. (The gradient of a bias
/// beside that of its weight.)
struct GemmStep {
  enum class Sums : uint8_t { None, OfA, OfB };
  DType dtype = DType::F32;
  bool transA = false, transB = false, accumulate = false;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t strideA = 0, strideB = 0, strideC = 0;
  BufferRef a, b, c;
  std::string epilogue; ///< empty: none
  std::vector<BufferRef> epilogueBuffers;
  std::vector<RankScalar> epilogueScalars;
  Sums sums = Sums::None;
  BufferRef sumsTo; ///< m or n numbers of C's type
  /// A is, with its sizes and form, that of the product before this one, and unchanged:
  /// what was packed of it serves again.
  bool sameA = false;
};

/// Copies bytes (memmove semantics; source and target may be the same).
struct CopyStep {
  BufferRef from, to;
  int64_t bytes = 0;
};

struct FillStep { ///< zero bytes
  BufferRef to;
  int64_t bytes = 0;
};

/// A collective among the ranks that differ only in `axes`. Tensors are seen as
/// [outer, dim, inner]; `outer` and `inner` are in elements.
///   AllReduce:     in and out have outer*dim*inner elements (dim = local)
///   AllGather:     in [outer, block, inner] -> out [outer, outDim, inner]; the
///                  shards are concatenated and the tail past outDim is dropped
///   ReduceScatter: in [outer, inDim, inner] -> out [outer, block, inner]; what
///                  lies past inDim is filled with zeros
///   AllToAll:      the axes move from dim (gathered, as AllGather) to dim2 (split, as
///                  ReduceScatter without the sum). in: [outer, d1, middle, d2, inner] where
///                  d1 = dim if dimFirst, else dim2.
/// All reductions go in rank order, so that each element's sum has one order.
struct CollectiveStep {
  enum class Kind : uint8_t { AllReduce, AllGather, ReduceScatter, AllToAll } kind;
  enum class Reduction : uint8_t { Sum, Max, Min } reduction = Reduction::Sum;
  DType dtype = DType::F32;
  std::vector<SubAxis> axes; ///< first is major
  int64_t outer = 1, inDim = 1, outDim = 1, inner = 1;
  int64_t middle = 1, inDim2 = 1, outDim2 = 1; ///< AllToAll: the other dim
  bool dimFirst = true; ///< AllToAll: gathered dim stands before the split one
  BufferRef in, out;
  int32_t site = -1; ///< index into Program::collectiveSites
  /// Only begun here: it runs beside the steps up to the AwaitStep that names it, which
  /// touch no byte of `out` and write none of `in`. All collectives, begun ones too, run
  /// in the order of the steps.
  bool begun = false;
};

/// Waits for a collective that was begun.
struct AwaitStep {
  int32_t step = -1; ///< of the collective
};

using StepAction =
    std::variant<KernelStep, GemmStep, CopyStep, FillStep, CollectiveStep, AwaitStep>;

/// What a step is, for profiles.
enum class StepKind : uint8_t { Gemm, Attention, Elementwise, Optimizer, Collective, Copy };

struct Step {
  StepAction action;
  StepKind kind = StepKind::Elementwise;
  int32_t location = -1; ///< index into Program::locations
  int32_t label = -1;    ///< index into Program::labels
  /// What it does, for profiles. bytes: all operands read and results written once;
  /// flops: 2 for a product and its sum, 1 for another arithmetic op, 10 for a function.
  int64_t bytes = 0, flops = 0;
  FunctionCounts functions = {};
  AttentionShape attention; ///< of a KernelStep that is a whole attention
};

/// What the steps of one group of ops are called in profiles.
struct StepLabel {
  std::string ops;    ///< "add, layer_norm"
  std::string source; ///< "gpt2.cleave:26,28": all source lines of its ops
  bool operator==(const StepLabel &) const = default;
};

/// Where a collective comes from, for `cleave explain`: one for each collective
/// in the per-rank program before unrolling.
struct CollectiveSite {
  std::string kind;     ///< "all_reduce", ...
  std::string axes;     ///< "tp"
  std::string rule;     ///< why: e.g. "contract over heads leaves a partial sum"
  std::string location; ///< file:line:column of the source
  std::string phase;    ///< "forward", "backward", "optimizer"
  int64_t payloadBytes =
      0;                  ///< of one execution, the unreduced or gathered tensor, padding included
  int64_t ringBytes = 0;  ///< of one execution, ring-equivalent, per rank
  int64_t executions = 1; ///< in one run of the program
  /// What it moves: "gradient" (a sum of the backward pass that no product in it reads), "param" (a
  /// param, or what becomes one), "norm" (other sums of the optimizer) or "activation".
  std::string moves;
  struct Tensor {
    std::string dims;     ///< "[batch=8, seq=64, width=64]"
    int64_t elements = 0; ///< without padding
    std::string param;    ///< "gradient" and "param": whose
  };
  std::vector<Tensor> tensors; ///< what the payload is; a bucket has several
  int64_t layers = 0; ///< of the repeats that it stands in (micro-batches are none); 0: in none
};

struct Argument {
  enum class Role : uint8_t { Param, State, Input, Scalar } role = Role::Input;
  std::string name; ///< dotted path; states: "adam.m:" + path and so on
  TensorLayout layout;
  int32_t donatedTo = -1; ///< the result that is written in place, or -1
  /// Integer inputs used as indices: 0 <= value < rangeEnd, or value == ignore.
  int64_t rangeEnd = -1; ///< -1: unchecked
  bool hasIgnore = false;
  int64_t ignore = 0;
  std::string rangeWhat; ///< what the range is, in the user's words: "vocab"
  /// Params: "normal(0.02)", "zeros", "ones", "uniform(a, b)", "constant(c)"; states: "zeros"
  std::string init;
  int64_t localBytes = 0; ///< of one rank, padding included
  /// States: live on the host, whose update of them it is (Device::allocateOffloaded).
  bool offloaded = false;
};

struct ProgramResult {
  std::string name;
  TensorLayout layout;
  int32_t aliasOf = -1; ///< the donated argument, or -1
};

struct Program {
  std::string name;                    ///< "train_step", "forward", ...
  std::map<std::string, int64_t> dims; ///< sizes of the free dims: batch, seq
  std::vector<Argument> arguments;
  std::vector<ProgramResult> results;
  std::vector<Buffer> buffers;
  std::vector<Step> steps;
  int64_t arenaBytes = 0;
  bool training = false; ///< dropout is active
  std::vector<std::string> locations;
  std::vector<StepLabel> labels;
  std::vector<CollectiveSite> collectiveSites;
};

struct Executable {
  static constexpr int32_t currentVersion = 6;
  int32_t version = currentVersion;
  std::string model;
  std::string plan;
  std::map<std::string, std::string> settings; ///< hyperparameters, optimizer, dtype, ...
  std::vector<MeshAxis> mesh;
  std::vector<int32_t> rankProgram; ///< rank -> program group (all 0 without a pipeline)
  std::vector<Program> programs;
  std::vector<std::string> objects;     ///< ELF bytes
  std::vector<std::string> cpuFeatures; ///< needed: "avx2", "fma"

  int64_t ranks() const {
    int64_t n = 1;
    for (const MeshAxis &a : mesh)
      n *= a.size;
    return n;
  }
};

} // namespace cleave
