//===- Tap.cpp - named values as further results --------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/structure/Tap.h"

#include "ir/Dialect.h"

#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace cleave;

static StringRef nameOf(Operation *op) {
  if (auto loc = dyn_cast<NameLoc>(op->getLoc()))
    return loc.getName().getValue();
  return {};
}

static bool isTappable(Operation *op) {
  return !nameOf(op).empty() && op->getNumResults() >= 1 && !isa<RepeatOp>(op) &&
         isa<NamedTensorType>(op->getResult(0).getType());
}

/// The repeat once more, with one more output. Returns its new form.
static RepeatOp withOutput(RepeatOp repeat, Value inside) {
  OpBuilder b(repeat);
  SmallVector<Type> outputs;
  for (unsigned i = repeat.getNumCarried(); i < repeat.getNumResults(); ++i)
    outputs.push_back(repeat.getResult(i).getType());
  outputs.push_back(
      tensorOf(inside).withLeadingDim(repeat.getDim(), static_cast<int64_t>(repeat.getCount())));
  auto fresh =
      RepeatOp::create(b, repeat.getLoc(), repeat.getDim(), repeat.getCount(), repeat.getReverse(),
                       repeat.getInits(), repeat.getStacked(), outputs);
  fresh->setDiscardableAttrs(repeat->getDiscardableAttrDictionary());
  fresh.getBody().takeBody(repeat.getBody());
  fresh.getYield().getOperandsMutable().append(inside);
  for (auto [from, to] : llvm::zip(repeat.getResults(), fresh.getResults()))
    from.replaceAllUsesWith(to);
  repeat.erase();
  return fresh;
}

std::vector<std::string> cleave::tapNames(func::FuncOp function) {
  std::vector<std::string> names;
  llvm::StringSet<> seen;
  function.walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (isTappable(op) && seen.insert(nameOf(op)).second)
      names.push_back(nameOf(op).str());
  });
  return names;
}

LogicalResult cleave::addTaps(func::FuncOp function, const std::vector<std::string> &names) {
  for (const std::string &name : names) {
    // The last op of the name: what the name stands for at its end.
    Operation *found = nullptr;
    function.walk([&](Operation *op) {
      if (isTappable(op) && nameOf(op) == name)
        found = op;
    });
    if (!found)
      return function.emitError() << "no value of '" << function.getSymName() << "' has the name '"
                                  << name << "'";
    Value value = found->getResult(0);
    while (auto repeat = dyn_cast<RepeatOp>(value.getParentBlock()->getParentOp())) {
      RepeatOp fresh = withOutput(repeat, value);
      value = fresh.getResult(fresh.getNumResults() - 1);
    }
    auto ret = cast<func::ReturnOp>(function.getBody().front().getTerminator());
    ret.getOperandsMutable().append(value);
    SmallVector<Type> results(function.getResultTypes());
    results.push_back(value.getType());
    unsigned number = function.getNumResults();
    SmallVector<DictionaryAttr> attrs;
    Builder b(function.getContext());
    for (unsigned i = 0; i < number; ++i)
      attrs.push_back(function.getResultAttrDict(i) ? function.getResultAttrDict(i)
                                                    : b.getDictionaryAttr({}));
    attrs.push_back(b.getDictionaryAttr({b.getNamedAttr(kName, b.getStringAttr("tap:" + name))}));
    function.setType(
        FunctionType::get(function.getContext(), function.getArgumentTypes(), results));
    function.setAllResultAttrs(attrs);
  }
  return success();
}
