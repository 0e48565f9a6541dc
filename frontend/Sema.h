//===- Sema.h - the checker (internal) -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Check.h"

#include <functional>
#include <memory>
#include <set>

namespace cleave::sema {

using namespace checked;

inline bool isInteger(const Setting &s) { return std::holds_alternative<int64_t>(s); }
inline bool isBool(const Setting &s) { return std::holds_alternative<bool>(s); }
inline double real(const Setting &s) {
  return std::visit([](auto v) { return static_cast<double>(v); }, s);
}

/// What a block's hyperparameter is bound to: a dim's name or a number.
struct Static {
  bool isDim = false;
  std::string dim;
  Setting number = int64_t(0);
};

/// A part: a block with its params. The model itself is one without a block.
struct Instance {
  enum Kind { Model, Block, LayerNorm, RmsNorm } kind = Model;
  const ast::Function *block = nullptr;
  std::string path;
  std::vector<std::string> arrays; ///< atoms of all arrays of parts around it, outer first
  size_t ownArrays = 0;            ///< how many of them are its own
  std::map<std::string, uint32_t> params;
  std::map<std::string, std::unique_ptr<Instance>> parts;
  std::map<std::string, Static> statics;
  std::vector<std::string> normDims; ///< atoms
  double epsilon = 1e-5;
};

/// An instance and which of its arrays' elements is meant.
struct InstanceRef {
  const Instance *instance = nullptr;
  std::vector<LayerIndex> layers;
};

/// The value of an expression. None: an error was reported.
struct Operand {
  enum Kind { None, Number, Tensor, Tuple } kind = None;
  Setting number = int64_t(0);
  ValueId value = 0;
  std::vector<ValueId> tuple;

  static Operand of(ValueId value) { return {Tensor, int64_t(0), value, {}}; }
  static Operand of(Setting number) { return {Number, number, 0, {}}; }
  explicit operator bool() const { return kind != None; }
};

/// One call of a function or a part.
struct Frame {
  const ast::Function *function = nullptr;
  InstanceRef self;
  std::string scope;
  std::map<std::string, Operand> locals;
  unsigned sites = 0; ///< random numbers' sites met so far
  std::vector<ValueId> results;
  bool returned = false;
};

/// The entry function that is being built.
struct Build {
  Function function;
  std::vector<Region *> regions;
  std::vector<std::map<std::pair<uint32_t, std::vector<LayerIndex>>, ValueId>> reads;
  std::vector<ValueId> loops;
  std::map<ValueId, std::string> loopDims;
  std::map<ValueId, int64_t> iotaSize; ///< values of `index(dim)`
  std::map<ValueId, uint32_t> paramOf; ///< values that are a param seen another way
  std::map<std::string, unsigned> siteUses;
  std::set<uint32_t> params;
  /// Inside of a branch that is not taken: the values from this one on go with it.
  std::optional<ValueId> discardFrom;
};

/// "did you mean `f16`?" for a word that is no element type, among those that may stand there.
std::string elementHint(const std::string &word, const std::vector<std::string> &known);

class Checker {
public:
  Checker(CheckedProgram &program, const CheckOptions &options, Diagnostics &diagnostics)
      : program(program), options(options), diagnostics(diagnostics) {}

  void model(const ast::Model &model, SourceRange mapRange);
  void plans(const std::vector<ast::Plan> &plans, const std::vector<std::string> &models,
             const std::vector<ast::Plan> &extra);
  void planSettings();

private:
  CheckedProgram &program;
  const CheckOptions &options;
  Diagnostics &diagnostics;
  const ast::Model *source = nullptr;
  Instance root;
  std::map<std::string, const ast::Function *> blocks, functions;
  std::map<std::string, size_t> dimIndex, hyperIndex;
  std::set<std::string> badDims; ///< declared, but their size is an error
  std::set<std::string> valueNames;
  Build *build = nullptr;
  Frame *frame = nullptr;
  std::vector<const ast::Function *> active; ///< being inlined or instantiated
  unsigned evalDepth = 0;
  unsigned steps = 0, instances = 0;
  bool gaveUp = false;
  bool modelIsRight = false; ///< so that plans can be checked against its tensors

  //===--- SemaDims.cpp, SemaModel.cpp: declarations ----------------------===//
  void hyperparameters();
  void dims();
  bool addDim(NamedDim dim);
  void declareNames();
  bool newName(std::map<std::string, SourceRange> &known, const ast::Name &name, const char *what);
  void addParams(Instance &instance, const std::vector<ast::Param> &params);
  void addParts(Instance &instance, const std::vector<ast::Part> &parts);
  std::unique_ptr<Instance> instantiate(const Instance &outer, const ast::Part &part,
                                        const ast::Name &name);
  bool bindBlock(Instance &instance, const Instance &outer, const ast::Part &part);
  bool bindNorm(Instance &instance, const Instance &outer, const ast::Part &part);
  uint32_t addParam(Instance &instance, const std::string &name, TensorType type, Init init,
                    SourceRange range);
  std::optional<Init> initialiser(const ast::Param &param, const Instance &context);
  std::optional<Setting> number(const ast::Expr &e, const Instance &context, bool exact);
  std::optional<Setting> fold(const std::string &op, const Setting &a, const Setting &b,
                              SourceRange range, bool exact);
  std::optional<Setting> foldCall(const std::string &name, const std::vector<Setting> &args,
                                  SourceRange range);
  const NamedDim *findDim(const std::string &name, const Instance &context) const;
  /// The dim's atoms; reports an unknown name.
  void accumulate(const ast::Plan &p, Plan &out);
  void recompute(const ast::Plan &p, Plan &out);
  void gathered(const ast::Plan &p, Plan &out);
  void precision(const ast::Plan &p, Plan &out);
  std::optional<std::vector<std::string>> dimAtoms(const ast::Name &name, const Instance &context);
  std::optional<std::vector<std::string>> dimAtoms(const ast::Expr &e, const Instance &context);
  std::optional<TensorType> type(const ast::Type &type, const Instance &context);
  std::optional<std::string> singleAtom(const ast::Name &name, const Instance &context,
                                        const std::string &use);
  int64_t sizeOf(const std::string &atom) const;
  bool checkSize(const TensorType &type, SourceRange range);
  void unknownDim(const ast::Name &name, const Instance &context);
  void entry(const ast::Function &function, const Instance &instance, bool keep);

  //===--- SemaBody.cpp: statements and expressions -----------------------===//
  void statements(const ast::Body &body);
  void assign(const ast::Stmt &stmt);
  void repeat(const ast::Stmt &stmt);
  void branch(const ast::Stmt &stmt);
  /// The names after a body that is checked, and leaves nothing behind unless it is `taken`.
  std::map<std::string, Operand> branchBody(const ast::Body &body, bool taken);
  bool bindable(const ast::Name &name);
  std::vector<Operand> evalAll(const std::vector<ast::ExprPtr> &values);
  Operand eval(const ast::Expr &e);
  Operand evalInner(const ast::Expr &e);
  Operand evalName(const ast::Expr &e);
  Operand evalUnary(const ast::Expr &e);
  Operand evalBinary(const ast::Expr &e);
  Operand evalContract(const ast::Expr &e);
  Operand evalIndex(const ast::Expr &e);
  Operand evalSlice(ValueId value, const ast::Item &item, SourceRange range);
  Operand evalAs(const ast::Expr &e);
  Operand evalCall(const ast::Expr &e);
  Operand readParam(const InstanceRef &ref, uint32_t param, SourceRange range);
  /// Does the expression speak of a part? Then `out` is it, or an error was
  /// reported and its instance is null.
  bool resolvePart(const ast::Expr &e, InstanceRef &out);
  bool complete(const InstanceRef &ref, const ast::Expr &e);
  Operand inlineCall(const ast::Function &callee, const InstanceRef &self, const std::string &scope,
                     const ast::Expr &call);
  Operand callNorm(const InstanceRef &ref, const ast::Expr &call);
  Operand placeholder(const ast::Function &callee, const Instance &instance, SourceRange range);
  void finish(Frame &callee, const Instance &instance);

  /// A tensor value, made from a number when it is one. None: reported.
  std::optional<ValueId> tensor(const Operand &operand, SourceRange range,
                                DType element = DType::F32);
  std::optional<ValueId> tensorOf(const ast::Expr &e, DType element = DType::F32);
  const TensorType &typeOf(ValueId value) const { return build->function.values[value].type; }
  ValueId newValue(TensorType type, SourceRange range);
  void addName(ValueId value, const std::string &name);
  Node &emit(Op op, std::vector<ValueId> operands, TensorType type, SourceRange range);
  ValueId resultOf(const Node &node) const { return node.results[0]; }
  ValueId constant(double value, TensorType type, SourceRange range);
  ValueId elementwise(Op op, std::vector<ValueId> operands, DType element, SourceRange range);
  ValueId reordered(ValueId value, const TensorType &type, SourceRange range);
  std::optional<std::vector<Atom>> broadcastDims(const std::vector<ValueId> &operands,
                                                 SourceRange range);
  bool sameDims(const TensorType &a, const TensorType &b) const;
  bool isFloat(DType type) const;
  /// Whether matrices of it can be multiplied.
  static bool hasProducts(DType type) { return type == DType::F32 || type == DType::F64; }
  std::string show(const std::vector<std::string> &atoms) const;
  std::vector<std::string> showNames(const std::vector<std::string> &atoms) const;
  Operand fail(SourceRange range, const std::string &message, const std::string &hint = {});
  bool tick(SourceRange range);
  std::string newSite(const char *what);
  /// What is contracted or looked up gets weight decay, if it is a param.
  void decay(ValueId value);

  //===--- SemaBuiltins.cpp ------------------------------------------------===//
  struct Arguments {
    const ast::Expr *call = nullptr;
    std::vector<const ast::Expr *> positional;
    std::map<std::string, const ast::Expr *> named;
    const ast::Expr *get(const std::string &name) const {
      auto it = named.find(name);
      return it == named.end() ? nullptr : it->second;
    }
  };
  bool arguments(const ast::Expr &call, const std::string &callee, size_t least, size_t most,
                 const std::vector<std::string> &named, Arguments &out);
  Operand callBuiltin(const std::string &name, const ast::Expr &call);
  std::optional<ValueId> floatOf(const ast::Expr &e, const std::string &callee);
  std::optional<double> realOption(const Arguments &args, const std::string &name,
                                   double otherwise);
  std::optional<int64_t> integerOption(const Arguments &args, const std::string &name,
                                       int64_t otherwise);
  std::optional<bool> flagOption(const Arguments &args, const std::string &name, bool otherwise);
  std::optional<std::vector<std::string>> dimsOption(const Arguments &args, const std::string &name,
                                                     const TensorType &of);
  std::optional<std::string> dimOption(const Arguments &args, const std::string &name,
                                       const TensorType &of);
  std::optional<std::string> lastDim(const Arguments &args, const char *option, ValueId value,
                                     const char *use);
  Operand callUnary(Op op, const std::string &name, const ast::Expr &call);
  Operand callReduce(const std::string &name, const ast::Expr &call);
  Operand callWhere(const ast::Expr &call);
  Operand callAttention(const ast::Expr &call);
  Operand callRope(const ast::Expr &call);
  Operand callDropout(const ast::Expr &call);
  Operand callCrossEntropy(const ast::Expr &call);
  Operand callNormFunction(const std::string &name, const ast::Expr &call);
  Operand callIndex(const ast::Expr &call);
  Operand callFill(const ast::Expr &call);
  Operand callBroadcast(const ast::Expr &call);
  Operand callGather(const ast::Expr &call);
  Operand callConcat(const ast::Expr &call);
  Operand callSoftmax(const ast::Expr &call);
  Operand callCast(DType element, const ast::Expr &call);
  Operand gather(ValueId table, ValueId ids, const std::string &dim, SourceRange range);
  Operand norm(bool layer, ValueId x, std::optional<ValueId> weight, std::optional<ValueId> bias,
               const std::vector<std::string> &dims, double epsilon, SourceRange range);
  bool insideOf(const TensorType &inner, const std::vector<Atom> &outer) const;

  //===--- SemaPlan.cpp ----------------------------------------------------===//
  void plan(const ast::Plan &plan);
  std::optional<ShardRule> shardRule(const ast::PlanRule &rule, const Plan &plan,
                                     std::set<std::string> &used);
  void automatic(const ast::Plan &p, Plan &out);
  bool knownPath(const std::string &path, SourceRange range);
  bool searchPin(const ast::PlanPin &entry, const Plan &plan, std::set<std::string> &used,
                 Pin &pin);
  void planOverlap(const std::vector<ast::PlanOverlap> &overlaps, Plan &plan);
  void planZero(const std::vector<ast::PlanZero> &zeros, Plan &plan, std::set<std::string> &used);
  bool anyTensorHas(const PlanDim &dim) const;
  bool axisIsNew(const ast::Name &axis, const std::vector<std::string> &axes);
  void partsFit(const Plan &plan);
  bool knownAxis(const ast::Name &axis, const Plan &plan, std::set<std::string> &used);

  //===--- SemaWeights.cpp -------------------------------------------------===//
  void weights(const ast::Weights &weights);
  bool weightEntry(const ast::Weight &entry, WeightEntry &out);
  bool weightSource(const ast::Expr &e, WeightEntry &out);
};

/// Functions of the language; a model may not use their names for its own.
bool isBuiltin(const std::string &name);
const std::vector<std::string> &builtins();

} // namespace cleave::sema
