//===- Activations.cpp - what layers save for the backward pass -----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/Activations.h"

#include "passes/Location.h"
#include "passes/sharding/Sharding.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace cleave;

namespace {

bool isBackward(Operation *op) {
  auto phase = op->getAttrOfType<StringAttr>(kPhase);
  return phase && phase.getValue() == "backward";
}

/// A stacked result is saved if another repeat goes through it.
bool isSaved(Value stack) {
  return llvm::any_of(stack.getUses(), [](OpOperand &use) {
    auto reader = dyn_cast<RepeatOp>(use.getOwner());
    return reader && use.getOperandNumber() >= reader.getNumCarried();
  });
}

class Layers {
public:
  explicit Layers(const ShardingContext &context) : context(context) {}

  LayerActivations of(RepeatOp repeat) {
    LayerActivations found;
    found.dim = repeat.getDim().str();
    found.layers = static_cast<int64_t>(repeat.getCount());
    found.again = isBackward(repeat) || repeat->getParentOfType<RepeatOp>();
    llvm::DenseSet<Value> seen;
    for (unsigned i = repeat.getNumCarried(); i < repeat.getNumResults(); ++i) {
      Value value = repeat.getYield().getOperand(i);
      if (!isSaved(repeat.getResult(i)) || !seen.insert(value).second)
        continue;
      Operation *maker = value.getDefiningOp();
      NamedTensorType type = tensorOf(value);
      found.saved.push_back({maker ? maker->getName().stripDialect().str() : "input",
                             maker ? locationText(maker->getLoc()) : "", text(type),
                             context.localBytes(type)});
    }
    for (BlockArgument carried : repeat.getCarried())
      if (tensorOf(carried).isFloat() && tensorOf(carried).getRank() > 1) {
        found.elementBytes = tensorOf(carried).getElementBytes();
        found.sizes = sizes(repeat, tensorOf(carried));
        break;
      }
    return found;
  }

private:
  static std::string text(NamedTensorType type) {
    std::string printed;
    llvm::raw_string_ostream stream(printed);
    stream << type;
    size_t open = printed.find('<');
    return printed.substr(open + 1, printed.rfind('>') - open - 1);
  }

  std::optional<TransformerSizes> sizes(RepeatOp repeat, NamedTensorType carried) const {
    AttentionOp attention;
    repeat.getBody().walk([&](AttentionOp op) { attention = attention ? attention : op; });
    if (!attention)
      return std::nullopt;
    NamedTensorType query = tensorOf(attention.getQuery());
    Sharding split = context.of(query), through = context.of(carried);
    TransformerSizes found;
    found.rows = found.width = found.heads = 1;
    found.sequence = query.sizeOf(attention.getQueryDim());
    for (auto [name, size, atoms] : llvm::zip_equal(query.getNames(), query.getSizes(), split.dims))
      if (!carried.hasDim(name) && name.getValue() != attention.getDepthDim()) {
        found.heads *= size;
        found.ranks *= context.sizeOf(atoms);
      }
    for (auto [name, size, atoms] :
         llvm::zip_equal(carried.getNames(), carried.getSizes(), through.dims)) {
      if (name.getValue() == attention.getQueryDim())
        found.sequenceSplit = !atoms.empty();
      else if (query.hasDim(name))
        found.rows *= context.block(size, atoms);
      else
        found.width *= size;
    }
    return found;
  }

  const ShardingContext &context;
};

} // namespace

std::vector<LayerActivations> cleave::savedByLayers(ModuleOp module) {
  std::vector<LayerActivations> all;
  FailureOr<ShardingContext> context = ShardingContext::create(module);
  if (failed(context))
    return all;
  Layers layers(*context);
  module.walk<WalkOrder::PreOrder>([&](RepeatOp repeat) {
    LayerActivations found = layers.of(repeat);
    if (!found.saved.empty())
      all.push_back(std::move(found));
  });
  return all;
}
