//===- Cluster.h - a cluster that is not here -------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// A profile (models/clusters/*.json) describes a cluster's links and devices:
//   {"name": "two", "about": "...",
//    "levels": [{"name": "NVLink", "ranks": 8, "latency_us": 3, "bandwidth_gb_per_s": 400},
//               {"name": "InfiniBand", "latency_us": 5, "bandwidth_gb_per_s": 50, "links": 8}],
//    "compute": {"speedup": 1000, "peak_gflops": 60000, "memory_gb_per_s": 3000}}
// Levels go from inner to outer: `ranks` ranks with adjacent numbers are joined by one unit of a
// level, a multiple of the level within; the outermost may leave it out and then joins all.
// 1 GB is 10^9 bytes; bandwidths are of one link in each direction.
//
// What a message costs (the alpha-beta model; Thakur, Rabenseifner and Gropp 2005, Chan et al.
// 2007): latency + bytes / bandwidth of the innermost level that joins sender and receiver.
// Ranks are numbered row-major, the mesh's last axis fastest. The rings of a collective, one for
// each group, run at the same time. `links` links lead out of each unit of the level within (out
// of a rank, at the innermost level); where more messages of the collective leave the unit at
// once, they share its links evenly. Different collectives share nothing: a rank runs one at a
// time, and groups over other axes are taken to be at other links.
//
// A collective over p ranks, n bytes of the whole tensor, goes in steps in which each rank sends
// n/p bytes to one other; a step takes as long as the slowest message of the group:
//   all-reduce                      2(p-1) steps around the ring (reduce-scatter, then gather)
//   all-gather, reduce-scatter       (p-1) steps around the ring
//   all-to-all, n of one rank        (p-1) steps, the i-th to the rank i places on
// The ring goes in the order of the shard index. Arithmetic of reductions counts for nothing.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/core/Result.h"
#include "runtime/executable/Executable.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cleave {

struct LinkLevel {
  std::string name;
  int64_t ranks = 0;    ///< joined by one unit; 0: any number
  double latency = 0;   ///< seconds
  double bandwidth = 0; ///< bytes a second of one link, in each direction
  int64_t links = 1;    ///< out of each unit of the level within
};

struct Cluster {
  std::string name, about;
  std::vector<LinkLevel> levels; ///< innermost first, at least one
  /// How much faster a device is than a rank of this machine on one thread: emulated ranks divide
  /// their CPU time by it.
  double speedup = 1;
  /// What a device attains: arithmetic operations and bytes of memory a second. For predictions
  /// without a run.
  double flops = 0, memoryBandwidth = 0;
};

/// Errors name the file (`file`, for the message), the key and its value.
Result<Cluster> parseCluster(std::string_view text, std::string_view file);
Result<Cluster> readCluster(const std::string &path);

/// The groups of a mesh on a cluster, and what their collectives cost. Used by one thread.
class Network {
public:
  /// Fails if the cluster joins fewer ranks than the mesh has.
  static Result<Network> create(Cluster cluster, std::vector<MeshAxis> mesh);

  const Cluster &cluster() const { return profile; }
  int64_t ranks() const { return count; }
  /// The same ranks on changed links, which join as many.
  template <typename Change> Network with(Change &&change) const {
    Cluster other = profile;
    change(other);
    return Network(std::move(other), mesh, count);
  }

  /// The ranks that run a collective over these axes together.
  struct Groups {
    std::vector<std::vector<int32_t>> members; ///< in the ring's order
    std::vector<int32_t> of;                   ///< the group of each rank
    /// [group][distance - 1]: latency and seconds per byte of the messages that go so many places
    /// on, each pair once.
    std::vector<std::vector<std::vector<std::pair<double, double>>>> messages;
  };
  const Groups &groups(const CollectiveStep &step);
  /// Of one group, from its last rank's arrival to the end.
  double seconds(const CollectiveStep &step, size_t group);

private:
  Network(Cluster cluster, std::vector<MeshAxis> mesh, int64_t count)
      : profile(std::move(cluster)), mesh(std::move(mesh)), count(count) {}

  Cluster profile;
  std::vector<MeshAxis> mesh;
  int64_t count;
  std::map<std::vector<int64_t>, Groups> known; ///< by axes, as numbers
};

/// Steps in which a collective goes, as above.
int64_t collectiveSteps(const CollectiveStep &step);

} // namespace cleave
