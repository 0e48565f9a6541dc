//===- Ast.h - the program as it is written -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Source.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cleave::ast {

/// A name and its place.
struct Name {
  std::string text;
  SourceRange range;
};

struct Expr;
using ExprPtr = std::shared_ptr<Expr>; ///< shared by the arguments of one type

/// In `f(a, rate = 0.1)` an argument; in `x[rest = seq[1:], 0]` an item.
struct Item {
  Name name;          ///< before `=`; empty text: none
  ExprPtr value;      ///< null for a slice
  bool slice = false; ///< `start : stop : stride`, each may be absent
  ExprPtr start, stop, stride;
};

enum class ExprKind {
  Integer,  // 12
  Real,     // 0.02
  Bool,     // true
  String,   // "..."
  Name,     // x
  Member,   // children[0] . text
  Call,     // children[0] ( items )
  Index,    // children[0] [ items ]
  As,       // children[0] as [ items ]
  Unary,    // text children[0]                text: - not
  Binary,   // children[0] text children[1]    text: + - * / == ... and or
  Contract, // children[0] @[names] children[1]
  List,     // [ items ]
};

struct Expr {
  ExprKind kind = ExprKind::Integer;
  SourceRange range;   ///< the whole expression
  SourceRange opRange; ///< the operator, callee or member name
  unsigned depth = 1;  ///< height of the tree
  std::string text;
  int64_t integer = 0;
  double real = 0;
  bool flag = false; ///< Bool: the value; Contract: names were given
  std::vector<ExprPtr> children;
  std::vector<Item> items;
  std::vector<Name> names; ///< Contract
};

/// `i32[batch, seq]`, `[batch, seq]`, `f32`.
struct Type {
  SourceRange range;
  std::string element; ///< empty: f32
  SourceRange elementRange;
  bool hasDims = false;
  std::vector<ExprPtr> dims; ///< names, products of names (sums in `weights`)
};

struct Argument {
  Name name;
  Type type;               ///< written once for several names: copied to each
  bool sharesType = false; ///< has the type that the next argument writes
};

struct Stmt;
using Body = std::vector<Stmt>;

enum class StmtKind {
  Assign, // targets = value
  Return, // return values
  Repeat, // repeat targets[0] in over { body }
  If,     // if values[0] { body } else { otherwise }
};

struct Stmt {
  StmtKind kind = StmtKind::Assign;
  SourceRange range;
  std::vector<Name> targets;
  std::vector<ExprPtr> values;
  Name over;
  Body body, otherwise;
  bool hasElse = false;
};

/// `param wk, wv: [width, kv_heads] = normal(0.02)`
struct Param {
  SourceRange range;
  std::vector<Name> names;
  Type type;
  ExprPtr init; ///< null: none was written
};

/// `part body: layer(ffn, rate = 0.1)[layers]`
struct Part {
  SourceRange range;
  std::vector<Name> names;
  Name block;
  std::vector<Item> arguments;
  bool hasArguments = false;
  std::vector<Name> arrays; ///< the dims of an array of instances
};

/// A hyperparameter of a model or a block.
struct Hyper {
  Name name;
  ExprPtr value; ///< the default, or null
};

/// A `fn` or a `block`.
struct Function {
  SourceRange range;
  Name name;
  bool isBlock = false;
  std::vector<Hyper> hypers; ///< blocks only
  std::vector<Argument> arguments;
  bool hasResults = false;
  std::vector<Type> results;
  std::vector<Param> params; ///< blocks only
  std::vector<Part> parts;   ///< blocks only
  Body body;
};

struct Dim {
  SourceRange range;
  Name name;
  ExprPtr value; ///< null: `free`
};

/// `"name in the file": [dims] = path` or `= concat(path, path)`
struct Weight {
  SourceRange range;
  std::string file;
  SourceRange fileRange;
  Type type;
  ExprPtr value;
};

struct Weights {
  SourceRange range;
  Name name;
  std::vector<Weight> entries;
};

struct Model {
  SourceRange range;
  Name name;
  std::vector<Hyper> hypers;
  std::vector<Dim> dims;
  std::vector<Param> params;
  std::vector<Part> parts;
  std::vector<Function> functions; ///< blocks and fns, in order
  std::vector<Weights> weights;
};

struct PlanAxis {
  Name name;
  std::optional<int64_t> size;
  SourceRange sizeRange;
};

struct PlanAlternative {
  std::vector<Name> dims;
  std::vector<Name> axes; ///< empty: those of the last alternative
};

/// `shard a, b by x else c by y`, or in a pin also `replicate over x`.
struct PlanRule {
  SourceRange range;
  bool replicate = false;
  std::vector<PlanAlternative> alternatives; ///< replicate: one, without dims
};

/// `at forward.x: ...`, `at body.wq: zero 2 over dp`, `at [batch, seq]: ...`
struct PlanPin {
  SourceRange range;
  std::string path; ///< empty: `dims` stand for all values that have just these
  std::vector<Name> dims;
  SourceRange pathRange;
  PlanRule rule;
  bool zero = false; ///< `level` and `rule`'s axes say how a param is split further
  int64_t level = 0;
};

/// `never all_gather wte`
struct PlanNever {
  SourceRange range;
  Name kind;
  std::string path;
  SourceRange pathRange;
};

/// `memory 24GB`
struct PlanMemory {
  SourceRange range;
  int64_t bytes = 0;
};

/// `overlap bucketed(25MB)`
struct PlanOverlap {
  SourceRange range; ///< of the sentence
  Name how;
  std::optional<int64_t> bytes;
  SourceRange bytesRange;
};

/// `zero 2 over dp`
struct PlanZero {
  SourceRange range; ///< of the word and the level
  int64_t level = 0;
  std::vector<Name> axes;
  std::optional<Name> offload; ///< `offload optimizer`
};

/// `accumulate 4 over rows`
struct PlanAccumulate {
  SourceRange range;
  int64_t count = 0;
  SourceRange countRange;
  Name dim; ///< empty: not given
};

/// `recompute full`, `recompute every(4)`
struct PlanRecompute {
  Name policy;
  std::optional<int64_t> layers; ///< every: of a group
  SourceRange layersRange;
};

/// `gathered kept`
struct PlanGathered {
  Name how;
};

/// `precision bf16 master f32 reduce f32`
struct PlanPrecision {
  SourceRange range;
  Name compute;
  Name master, reduce; ///< empty: not given
};

struct Plan {
  SourceRange range;
  Name name;
  Name model;
  std::vector<PlanAxis> axes;
  std::vector<PlanRule> rules;
  std::vector<PlanPin> pins;
  std::vector<PlanOverlap> overlaps; ///< more than one is an error
  std::vector<PlanZero> zeros;       ///< more than one is an error
  std::vector<PlanAccumulate> accumulates;
  std::vector<PlanRecompute> recomputes; ///< more than one is an error
  std::vector<PlanGathered> gathereds;   ///< more than one is an error
  std::vector<PlanPrecision> precisions;
  std::vector<SourceRange> autos; ///< `auto`, `auto hidden 100`
  std::optional<int64_t> hidden;
  SourceRange hiddenRange;
  std::vector<PlanNever> nevers;
  std::vector<PlanMemory> memories;
};

struct File {
  std::vector<Model> models;
  std::vector<Plan> plans;
};

/// The program in one fixed layout, without comments. Reading it again and
/// printing it gives the same text.
std::string print(const File &file);
std::string print(const Expr &expr);
std::string print(const Type &type);

} // namespace cleave::ast
