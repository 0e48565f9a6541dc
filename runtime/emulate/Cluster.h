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
// What has been measured (`cleave calibrate`) may stand beside it, and then takes the place of the
// levels' and of the roofline's times:
//   "collectives": [{"kind": "all_reduce", "ranks": 2, "kb": [4, 1000], "us": [5, 100]}, ...]
//     seconds of one collective over so many ranks; kb: of the whole tensor, as n below. The levels
//     stand for other kinds and numbers of ranks.
//   "compute": {..., "rates": [{"threads": 1, "ranks": 2, ...}, ...]}
//     of a rank that computes on `threads` threads while `ranks` ranks of its machine do; what is
//     nearest to a mesh's is taken for it. Each of these may be left out:
//       "launch_us": 1                of each kernel, before it does anything
//       "products": [{"form": "NT", "element_bytes": 4, "m": [1, 64], "n": [64, 512],
//                     "k": [64, 512], "gflops": [[[3, 4], [5, 6]], [[30, 40], [50, 60]]]}, ...]
//                                     gflops[m][n][k]; T: stored transposed
//       "attention": [{"pass": "backward", "causal": true, "length": [64, 256], "depth": [32, 64],
//                      "gflops": [[20, 30], [25, 35]]}, ...]
//                                     gflops[length][depth], as AttentionShape counts (core/Work.h)
//       "memory": {"kb": [100, 100000], "gb_per_s": [60, 12]}   passes over so much, again and
//       again "pass_gflops": 20             arithmetic in passes over memory, without functions
//       "pass_gfunctions": {"exp": 2, "tanh": 1, "erf": 0.7, "sin": 0.8, "pow": 0.1,
//                        "random": 0.5}
//                                     functions in passes over memory (ScalarFunction in
//                                     core/Work.h)
// Sizes increase. Rates.h says what is taken between and beyond them.
// Levels go from inner to outer: `ranks` ranks with adjacent numbers are joined by one unit of a
// level, a multiple of the level within; the outermost may leave it out and then joins all.
// 1 GB is 10^9 bytes, 1 kB 10^3; bandwidths are of one link in each direction.
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
#include "runtime/emulate/Rates.h"
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
  std::vector<Rates> rates; ///< measured; none of them: these two are all that is known

  struct Collective {
    CollectiveStep::Kind kind = CollectiveStep::Kind::AllReduce;
    int64_t ranks = 2;
    TimeGrid grid; ///< over bytes of the whole tensor
  };
  std::vector<Collective> collectives;

  /// What stands for ranks on `threads` threads each while `computing` ranks compute: the nearest
  /// number of threads, then of ranks.
  Rates ratesFor(int threads, int64_t computing) const;
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
