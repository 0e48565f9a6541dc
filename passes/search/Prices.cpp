//===- Prices.cpp - seconds of compute and of collectives -----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Prices.h"

#include "ir/Auto.h"

#include <limits>

using namespace mlir;
using namespace cleave;

const char *cleave::defaultCluster() {
  return R"({"name": "threads",
  "levels": [{"name": "shared memory", "latency_us": 3, "bandwidth_gb_per_s": 8}],
  "compute": {"speedup": 1, "peak_gflops": 100, "memory_gb_per_s": 15}})";
}

FailureOr<std::shared_ptr<Prices>> Prices::create(ModuleOp module, const ShardingContext &context) {
  auto settings = module->getAttrOfType<DictionaryAttr>(kAutoAttr);
  auto text = settings ? settings.getAs<StringAttr>(kAutoCluster) : StringAttr();
  Result<Cluster> cluster =
      parseCluster(text ? text.getValue().str() : defaultCluster(), "profile");
  if (!cluster) {
    emitUserError(module.getLoc()) << cluster.error().message;
    return failure();
  }
  std::vector<MeshAxis> mesh;
  auto attr = module->getAttrOfType<MeshAttr>(kMeshAttr);
  if (attr)
    for (auto [name, size] : llvm::zip_equal(attr.getNames(), attr.getSizes()))
      mesh.push_back({name.str(), size});
  Result<Network> network = Network::create(*cluster, mesh);
  if (!network) {
    emitUserError(module.getLoc()) << network.error().message;
    return failure();
  }
  std::shared_ptr<Prices> prices(new Prices(std::move(*network), context));
  for (const Atom &atom : context.getAtoms()) {
    SubAxis axis;
    for (auto [i, name] : llvm::enumerate(attr.getNames()))
      if (name == atom.axis.getName())
        axis.axis = static_cast<int32_t>(i);
    axis.pre = atom.axis.getPre();
    axis.size = atom.size;
    prices->axes.push_back(axis);
  }
  return prices;
}

double Prices::work(const OpWork &work) const {
  if (const auto *product = std::get_if<ProductShape>(&work))
    return rates.product(*product);
  if (const auto *attention = std::get_if<AttentionShape>(&work))
    return rates.attentionOf(*attention);
  const auto &pass = std::get<PassShape>(work);
  double seconds = rates.pass(pass);
  // What is fused whole into its neighbours is no kernel of its own.
  return pass.bytes == 0 ? std::max(0.0, seconds - rates.launch) : seconds;
}

double Prices::step(const RouteStep &step, int64_t elementBytes) {
  double bytes = step.elements * static_cast<double>(elementBytes);
  if (llvm::any_of(step.atoms, [&](int atom) { return context.isInTime(atom); }))
    return step.kind == RouteStep::Kind::AllReduce || step.kind == RouteStep::Kind::Slice
               ? 0
               : std::numeric_limits<double>::infinity();
  if (step.kind == RouteStep::Kind::Slice)
    return 2 * bytes / static_cast<double>(context.sizeOf(step.atoms)) / cluster().memoryBandwidth;
  auto [entry, isNew] = known.try_emplace({static_cast<int>(step.kind),
                                           std::vector<int>(step.atoms.begin(), step.atoms.end()),
                                           step.elements, elementBytes});
  if (!isNew)
    return entry->second;
  CollectiveStep c;
  c.dtype = elementBytes == 8 ? DType::F64 : elementBytes == 2 ? DType::BF16 : DType::F32;
  auto whole = static_cast<int64_t>(step.elements * static_cast<double>(elementBytes) /
                                        static_cast<double>(byteSize(c.dtype)) +
                                    0.5);
  int64_t p = context.sizeOf(step.atoms);
  int64_t part = (whole + p - 1) / p;
  c.inDim = c.outDim = whole;
  switch (step.kind) {
  case RouteStep::Kind::AllReduce:
    c.kind = CollectiveStep::Kind::AllReduce;
    break;
  case RouteStep::Kind::AllGather:
    c.kind = CollectiveStep::Kind::AllGather;
    c.inDim = part;
    break;
  case RouteStep::Kind::ReduceScatter:
    c.kind = CollectiveStep::Kind::ReduceScatter;
    c.outDim = part;
    break;
  case RouteStep::Kind::AllToAll:
    c.kind = CollectiveStep::Kind::AllToAll;
    // Each of its p - 1 steps has messages of its own; of very many ranks, those of a ring.
    if (p > 512) {
      c.kind = CollectiveStep::Kind::AllGather;
      c.inDim = part;
    }
    break;
  case RouteStep::Kind::Slice:
    break;
  }
  for (int atom : step.atoms)
    c.axes.push_back(axes[atom]);
  double slowest = 0;
  const Network::Groups &groups = network.groups(c);
  for (size_t g = 0; g < groups.members.size(); ++g)
    slowest = std::max(slowest, network.seconds(c, g));
  return entry->second = slowest;
}
