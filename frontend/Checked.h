//===- Checked.h - the checked program -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// What the checker hands to emission: every hyperparameter has a value, every
// dim a size, every call and every part is inlined, and each entry function is
// a list of nodes on numbered values. A `repeat` stays a loop whose body stands
// once. Compound dims are written as their atoms, major first.
//
// Plain data that owns everything; indices in place of pointers.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Source.h"
#include "runtime/core/DType.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace cleave::checked {

/// A dim that is not compound: what tensor types are made of.
struct Atom {
  std::string name;
  int64_t size = 1;
  friend bool operator==(const Atom &, const Atom &) = default;
};

struct TensorType {
  DType element = DType::F32;
  std::vector<Atom> dims; ///< names are unique; none: a scalar

  /// Position of a dim, or -1.
  int find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) >= 0; }
  friend bool operator==(const TensorType &, const TensorType &) = default;
};

/// A compile-time number or truth value.
using Setting = std::variant<int64_t, double, bool>;
std::string toString(const Setting &value);

struct Hyperparameter {
  std::string name;
  Setting value;
  SourceRange range;
};

struct NamedDim {
  enum Kind { Hyper, Free, Declared } kind = Declared;
  std::string name;
  int64_t size = 1;
  std::vector<std::string> atoms; ///< itself alone, or the atoms of a compound dim
  SourceRange range;
};

/// How a param begins. `text` is the evaluated form: "normal(0.02)".
struct Init {
  enum Kind { Zeros, Ones, Constant, Normal, Uniform } kind = Zeros;
  double a = 0; ///< Constant: the value; Normal: the deviation; Uniform: the low end
  double b = 0; ///< Uniform: the high end
  std::string text;
};

struct Param {
  std::string path;     ///< "body.attn.wq": its name in files
  TensorType type;      ///< stacked: the dims of the arrays of parts in front
  unsigned stacked = 0; ///< how many of the dims in front are such
  Init init;
  /// Weight decay applies: it is contracted or looked up somewhere. Norm
  /// weights and biases are neither.
  bool decay = false;
  SourceRange range;
};

using ValueId = uint32_t;

struct Value {
  TensorType type;
  SourceRange range;
  /// User-visible names, "forward.logits", "body.h"; several when a value
  /// passes through calls, none for the inside of an expression.
  std::vector<std::string> names;
};

enum class Op : uint8_t {
  Param,    ///< param, layers -> its slice
  Constant, ///< number, in every element
  Iota,     ///< i32 index along dims[0]
  // Elementwise; operands' dims are subsets of the result's, in any order.
  Neg,
  Abs,
  Exp,
  Log,
  Sqrt,
  Rsqrt,
  Tanh,
  Sigmoid,
  Erf,
  Sin,
  Cos,
  Not,
  Gelu, ///< flag: tanh form, else erf
  Silu,
  Relu,
  StopGradient,
  Cast,
  Broadcast, ///< more dims, or another order of dims
  Rename,    ///< other names, by position
  Add,
  Sub,
  Mul,
  Div,
  Max,
  Min,
  Pow,
  And,
  Or,
  Eq,
  Ne,
  Lt,
  Le,
  Gt,
  Ge,
  Select, ///< condition, then, else
  // Along dims.
  ReduceSum,
  ReduceMax,
  ReduceMin, ///< over dims
  Contract,  ///< over dims; other shared dims are batched
  Gather,    ///< operands table, ids: over dims[0] of the table
  Slice,     ///< dims[0] from start every stride; the result's dim may have another name
  Concat,    ///< dims: the name in each operand; dims.back(): in the result
  Softmax,   ///< over dims
  LayerNorm, ///< operands x, weight, bias: over dims; number: epsilon
  RmsNorm,   ///< operands x, weight: over dims; number: epsilon
  Dropout,   ///< number: rate; site
  Rope, ///< operands x, positions: along dims[0]; number: base; flag: interleaved; count: rotary
        ///< elements
  CrossEntropy, ///< operands logits, labels: over dims[0]; count: ignored label; number: smoothing
  Attention,    ///< operands q, k, v, [mask], [bias]; attention
  Repeat,       ///< operands: initial carried values; body; count, dims[0]
};
std::string_view name(Op op);

/// Which instance of an array of parts: a loop's index, or a fixed one.
struct LayerIndex {
  bool fixed = false;
  ValueId loop = 0;
  int64_t index = 0;
  friend auto operator<=>(const LayerIndex &, const LayerIndex &) = default;
};

struct AttentionInfo {
  std::string queryDim, keyDim;   ///< different names
  std::string depthDim, valueDim; ///< contracted; last of the result
  bool causal = false, mask = false, bias = false;
  double scale = 1;
  double rate = 0; ///< dropout of the probabilities; site
};

struct Region;

struct Node {
  Op op = Op::Constant;
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  SourceRange range;
  std::string scope; ///< dotted path of the function or part it stands in
  std::vector<std::string> dims;
  double number = 0;
  int64_t start = 0, stride = 1;
  int64_t count = 0;
  bool flag = false;
  uint32_t param = 0;
  std::vector<LayerIndex> layers; ///< Param: one for each stacked dim
  std::string site;               ///< Dropout and Attention: path of the random numbers' site
  std::vector<ValueId>
      loops; ///< Dropout and Attention: indices of the loops around it, outer first
  AttentionInfo attention;
  std::vector<Region> body; ///< Repeat: one
};

struct Region {
  ValueId index = 0;              ///< the loop's index, an i32 scalar
  std::vector<ValueId> arguments; ///< the carried values
  std::vector<Node> nodes;
  std::vector<ValueId> yields; ///< the carried values after one turn, or the function's results
};

struct Function {
  std::string name;
  std::vector<std::string> argumentNames;
  Region body; ///< arguments, nodes, results; no index
  std::vector<Value> values;
  std::vector<uint32_t> params; ///< those it reads, ascending
  SourceRange range;
};

/// Dims in the user's word, with their atoms.
struct PlanDim {
  std::string name;
  std::vector<std::string> atoms;
  SourceRange range;
};

/// `shard a, b else c by x`: for each value the first alternative whose dims it
/// has; within it the first such dim takes the axes. All alternatives have the
/// same axes.
struct ShardRule {
  struct Alternative {
    std::vector<PlanDim> dims;
    std::vector<std::string> axes;
  };
  std::vector<Alternative> alternatives;
  SourceRange range;
};

struct Pin {
  std::string path; ///< a value's or a param's name
  bool isParam = false;
  /// Replicated over these axes; else `rule` says how it is split.
  bool replicate = false;
  std::vector<std::string> axes; ///< the axes that the pin speaks of
  ShardRule rule;
  /// Of a param under `auto`: how it is split further, in place of `rule`.
  std::optional<int> zeroLevel;
  /// Instead of a path, under `auto`: of all values with just these dims (atoms).
  std::vector<std::string> dims;
  SourceRange range;
};

/// `never all_gather wte`
struct Never {
  std::string kind, path;
  SourceRange range;
};

struct MeshAxisDecl {
  std::string name;
  std::optional<int64_t> size; ///< from the settings, else from the plan
  SourceRange range;
};

/// When gradients are summed over the axes that split the data.
struct Overlap {
  std::string how; ///< "none", "layers" or "bucketed"
  int64_t bucketBytes = 0;
};

/// What of the optimizer is split over data axes: 1 its state, 2 gradients too, 3 params
/// too; 0 nothing.
struct Zero {
  int level = 0;
  std::vector<std::string> axes;
  bool offloadsOptimizer = false; ///< its state and step are the host's
};

/// Mixed precision: params and the optimizer stay f32.
struct Precision {
  DType compute = DType::BF16; ///< bf16 or f16: of activations and of what products read
  DType reduce = DType::F32;   ///< f32 or `compute`: of sums over ranks
  bool operator==(const Precision &) const = default;
};

struct Plan {
  std::string name;
  std::vector<MeshAxisDecl> axes;
  std::vector<ShardRule> rules;
  std::vector<Pin> pins;
  std::optional<Overlap> overlap;
  std::optional<Zero> zero;
  int64_t accumulate = 1; ///< micro-batches into which a training step cuts its batch
  std::string accumulateDim = "batch";
  std::string recompute = "selective"; ///< or "none", "full", "every(4)"
  std::string gathered = "again";      ///< or "kept": what the backward pass needs gathered
  std::optional<Precision> precision;
  bool automatic = false;        ///< what the plan doesn't say is searched for
  std::optional<int64_t> hidden; ///< of gradients' sums, in percent; none: tried
  std::vector<Never> nevers;
  int64_t memoryBytes = 0; ///< of a rank; 0: no limit
  SourceRange range;
};

/// 4 of "every(4)", a way to recompute; nothing of any other text, and of "every(0)".
std::optional<int64_t> layersOfEvery(std::string_view recompute);

/// The first free dim and the first other dim that rules split by an axis, or null.
struct AxisUse {
  const PlanDim *free = nullptr, *other = nullptr;
};

/// One tensor of a weights file: some params, joined along `joinDim` (a
/// position in `dims`) when there are several.
struct WeightEntry {
  std::string file; ///< "model.layers.{i}.self_attn.q_proj.weight"
  std::vector<std::vector<std::string>>
      dims; ///< for each dim its atoms, major first; empty for the join
  struct Source {
    uint32_t param = 0;
    std::vector<std::string> joined; ///< this part's atoms of the join dim
  };
  std::vector<Source> sources;
  int joinDim = -1;
  std::vector<std::string> indices; ///< the names in braces, one for each stacked dim
  SourceRange range;
};

struct WeightsFormat {
  std::string name;
  std::vector<WeightEntry> entries;
  SourceRange range;
};

struct Program {
  SourceMap sources;
  std::string model;
  std::vector<Hyperparameter> hyperparameters;
  std::vector<NamedDim> dims;
  std::vector<Param> params; ///< in the order of the text, parts after params
  std::vector<Function> functions;
  std::vector<Plan> plans;
  std::vector<WeightsFormat> weights;
  SourceRange range;

  const Function *function(std::string_view name) const;
  const Plan *plan(std::string_view name) const;
  const NamedDim *dim(std::string_view name) const;
  /// What a plan's rules split by the axis.
  AxisUse splitBy(const Plan &plan, std::string_view axis) const;
  /// `[batch=8, heads=12]`, adjacent atoms as the compound dims they make.
  std::string show(const TensorType &type) const;
};

/// The whole program as text, for tests and for people.
std::string print(const Program &program);

} // namespace cleave::checked

namespace cleave {
using CheckedProgram = checked::Program;
} // namespace cleave
