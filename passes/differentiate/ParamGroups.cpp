//===- ParamGroups.cpp - settings for some of the params ------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/differentiate/ParamGroups.h"

#include "passes/Passes.h"
#include "passes/differentiate/Differentiate.h"
#include "runtime/core/NearMatch.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/GlobPattern.h"

#include <charconv>
#include <cmath>

using namespace mlir;
using namespace cleave;

namespace cleave {
#define GEN_PASS_DEF_CLEAVEGROUPPARAMS
#include "passes/differentiate/Passes.h.inc"
} // namespace cleave

ParamGroup cleave::frozenGroup(const std::string &pattern) {
  ParamGroup group;
  group.text = group.pattern = pattern;
  group.frozen = true;
  return group;
}

static std::optional<double> numberOf(std::string_view text) {
  double value = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

Result<ParamGroup> cleave::parseParamGroup(const std::string &text) {
  ParamGroup group;
  group.text = text;
  size_t colon = text.find(':');
  std::string form = ": write PATTERN:lr=0.1x, PATTERN:decay=0 or both, as in 'body.*:lr=0.1x,"
                     "decay=0'";
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size())
    return Error{"the group '" + text + "' lacks its " + (colon == 0 ? "pattern" : "settings") +
                 form};
  group.pattern = text.substr(0, colon);
  for (size_t at = colon + 1; at <= text.size();) {
    size_t comma = std::min(text.find(',', at), text.size());
    std::string setting = text.substr(at, comma - at);
    at = comma + 1;
    size_t equals = setting.find('=');
    std::string key = setting.substr(0, equals);
    std::string value = equals == std::string::npos ? "" : setting.substr(equals + 1);
    auto wrong = [&](const std::string &what) {
      return Error{"the group '" + text + "': " + what};
    };
    static const std::vector<std::string> keys = {"lr", "decay"};
    if (key != "lr" && key != "decay")
      return wrong("there is no setting '" + key + "'" + didYouMean(key, keys) +
                   "; there are lr and decay");
    if (key == "lr") {
      if (group.rate)
        return wrong("lr stands twice");
      bool times = !value.empty() && value.back() == 'x';
      std::optional<double> number = numberOf(times ? value.substr(0, value.size() - 1) : value);
      if (!number)
        return wrong("'" + value +
                     "' is no factor of the learning rate; write lr=0.1x for a tenth");
      if (!times)
        return wrong("lr=" + value + " is a factor and ends in x: lr=" + value + "x is " + value +
                     " times the learning rate of the step");
      if (*number == 0)
        return wrong("a param that does not learn is frozen: --freeze '" + group.pattern + "'");
      if (*number < 0 || *number > 1e6)
        return wrong("lr=" + value + " is outside 0x to 1000000x");
      group.rate = number;
    } else {
      if (group.decay)
        return wrong("decay stands twice");
      std::optional<double> number = numberOf(value);
      if (!number)
        return wrong("'" + value + "' is no number for decay");
      if (*number < 0 || *number > 1e3)
        return wrong("decay=" + value + " is outside 0 to 1000");
      group.decay = number;
    }
  }
  return group;
}

LogicalResult cleave::groupParams(func::FuncOp function, ArrayRef<ParamGroup> groups) {
  SmallVector<std::pair<unsigned, std::string>> params;
  std::vector<std::string> paths;
  for (unsigned i = 0; i < function.getNumArguments(); ++i) {
    auto role = function.getArgAttrOfType<StringAttr>(i, kRole);
    auto name = function.getArgAttrOfType<StringAttr>(i, kName);
    if (!role || role.getValue() != "param" || !name ||
        !tensorOf(function.getArgument(i)).isFloat())
      continue;
    params.emplace_back(i, name.str());
    paths.push_back(name.str());
  }
  Builder b(function.getContext());
  for (const ParamGroup &group : groups) {
    llvm::Expected<llvm::GlobPattern> pattern = llvm::GlobPattern::create(group.pattern);
    if (!pattern)
      return emitUserError(function.getLoc())
             << "'" << group.text << "': " << llvm::toString(pattern.takeError());
    bool any = false;
    for (const auto &[i, path] : params) {
      if (!pattern->match(path))
        continue;
      any = true;
      if (group.rate)
        function.setArgAttr(i, kRate, b.getF64FloatAttr(*group.rate));
      if (group.decay)
        function.setArgAttr(i, kDecay, b.getF64FloatAttr(*group.decay));
      if (group.frozen)
        function.setArgAttr(i, kFrozen, b.getUnitAttr());
    }
    if (any)
      continue;
    std::string near = didYouMean(group.pattern, paths);
    if (near.empty())
      near = "; there are " + llvm::join(paths, ", ");
    return emitUserError(function.getLoc())
           << "'" << group.text << "': no param of '" << function.getSymName() << "' is called '"
           << group.pattern << "'" << near;
  }
  bool learns = params.empty() || llvm::any_of(params, [&](const auto &param) {
                  return !function.getArgAttr(param.first, kFrozen);
                });
  if (!learns)
    return emitUserError(function.getLoc()) << "all params of '" << function.getSymName()
                                            << "' are frozen: nothing is left to train";
  return success();
}

namespace {
struct GroupParams : cleave::impl::CleaveGroupParamsBase<GroupParams> {
  using CleaveGroupParamsBase::CleaveGroupParamsBase;
  void runOnOperation() override {
    auto target = getOperation().lookupSymbol<func::FuncOp>(function);
    if (!target) {
      getOperation().emitError() << "there is no function '" << function << "'";
      return signalPassFailure();
    }
    SmallVector<ParamGroup> list;
    // A list option is cut at commas, and so are a group's settings.
    SmallVector<StringRef> texts;
    StringRef(groups).split(texts, ';', -1, /*KeepEmpty=*/false);
    for (StringRef text : texts) {
      Result<ParamGroup> group = parseParamGroup(text.str());
      if (!group) {
        target.emitError() << group.error().message;
        return signalPassFailure();
      }
      list.push_back(*group);
    }
    texts.clear();
    StringRef(freeze).split(texts, ';', -1, /*KeepEmpty=*/false);
    for (StringRef text : texts)
      list.push_back(frozenGroup(text.str()));
    if (failed(groupParams(target, list)))
      signalPassFailure();
  }
};
} // namespace
