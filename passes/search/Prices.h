//===- Prices.h - seconds of compute and of collectives ---------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// What the search adds up, from the profile of a cluster (runtime/emulate/Cluster.h): of a
// collective what its links take, of an op the longer of its arithmetic and its bytes. The same
// numbers choose the way between two shardings (Route.h).
//
//===----------------------------------------------------------------------===//
#pragma once

#include "ir/Work.h"
#include "passes/sharding/Route.h"
#include "runtime/emulate/Cluster.h"

#include <map>
#include <memory>

namespace cleave {

class Prices {
public:
  /// The module's mesh on the cluster of its `cleave.auto`. Errors go to the module's place.
  static mlir::FailureOr<std::shared_ptr<Prices>> create(mlir::ModuleOp module,
                                                         const ShardingContext &context);

  /// Of a collective of one rank, in seconds; a slice costs a copy. Sums over micro-batches are
  /// free, other ways along that axis impossible (infinite).
  double step(const RouteStep &step, int64_t elementBytes);
  /// Of a rank's share of an op.
  double work(const OpWork &work) const;
  const Cluster &cluster() const { return network.cluster(); }

private:
  Prices(Network network, const ShardingContext &context)
      : network(std::move(network)), context(context),
        rates(this->network.cluster().ratesFor(1, this->network.ranks())) {}

  Network network;
  ShardingContext context;   ///< a copy, without prices
  Rates rates;               ///< of a rank of one thread, all ranks computing
  std::vector<SubAxis> axes; ///< of each atom
  std::map<std::tuple<int, std::vector<int>, double, int64_t>, double> known;
};

/// The cluster that is taken where none is named: as models/clusters/threads.json.
const char *defaultCluster();

} // namespace cleave
