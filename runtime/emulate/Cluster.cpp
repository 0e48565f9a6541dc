//===- Cluster.cpp - a cluster that is not here ---------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/emulate/Cluster.h"

#include "runtime/comm/Communicator.h"
#include "runtime/core/AtomicFile.h"
#include "runtime/core/NearMatch.h"
#include "runtime/core/Shard.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

namespace cleave {

using Json = nlohmann::json;

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

namespace {

/// Reads the members of JSON objects; keeps the first error.
class ProfileReader {
public:
  explicit ProfileReader(std::string_view file) : file(file) {}

  void fail(const std::string &key, std::string_view what) {
    if (!error)
      error = Error{fmt::format("{}: {}{}", file, key.empty() ? "" : key + ": ", what)};
  }
  static std::string inside(const std::string &object, std::string_view key) {
    return object.empty() ? std::string(key) : fmt::format("{}.{}", object, key);
  }
  static std::string shown(const Json &value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  }

  /// Whether it is an object with no other keys than these.
  bool object(const Json &value, const std::string &name, const std::vector<std::string> &keys) {
    if (!value.is_object()) {
      fail(name, fmt::format("{} is no object, which {{...}} is", shown(value)));
      return false;
    }
    for (const auto &[key, unused] : value.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        std::string near = didYouMean(key, keys);
        fail(name, fmt::format("there is no key '{}'{}", key,
                               near.empty() ? fmt::format(" (there are {})", fmt::join(keys, ", "))
                                            : near));
        return false;
      }
    return true;
  }
  const Json *member(const Json &object, const std::string &name, const char *key, bool required) {
    auto found = object.find(key);
    if (found != object.end())
      return &*found;
    if (required)
      fail(name, fmt::format("the key '{}' is missing", key));
    return nullptr;
  }
  std::string word(const Json &object, const std::string &name, const char *key, bool required) {
    const Json *value = member(object, name, key, required);
    if (!value)
      return "";
    if (!value->is_string() || (required && value->get_ref<const std::string &>().empty())) {
      fail(inside(name, key), fmt::format("{} is no text", shown(*value)));
      return "";
    }
    return value->get<std::string>();
  }
  /// From `least` to `most`; `fallback` unless required.
  double number(const Json &object, const std::string &name, const char *key, double least,
                double most, std::optional<double> fallback = std::nullopt) {
    const Json *value = member(object, name, key, !fallback);
    if (!value)
      return fallback.value_or(0);
    if (!value->is_number()) {
      fail(inside(name, key), fmt::format("{} is no number", shown(*value)));
      return 0;
    }
    auto x = value->get<double>();
    if (!(x >= least && x <= most))
      fail(inside(name, key),
           fmt::format("{} is outside {:g} to {:g}", shown(*value), least, most));
    return x;
  }
  int64_t whole(const Json &object, const std::string &name, const char *key, int64_t fallback) {
    double x = number(object, name, key, 1, 1e6, static_cast<double>(fallback));
    if (x != std::floor(x))
      fail(inside(name, key), fmt::format("{} is no whole number", x));
    return static_cast<int64_t>(x);
  }

  std::optional<Error> error;

private:
  std::string_view file;
};

LinkLevel readLevel(ProfileReader &r, const Json &value, const std::string &name) {
  LinkLevel level;
  if (!r.object(value, name, {"name", "ranks", "latency_us", "bandwidth_gb_per_s", "links"}))
    return level;
  level.name = r.word(value, name, "name", true);
  level.ranks = value.contains("ranks") ? r.whole(value, name, "ranks", 1) : 0;
  level.latency = r.number(value, name, "latency_us", 0, 1e6) * 1e-6;
  level.bandwidth = r.number(value, name, "bandwidth_gb_per_s", 1e-6, 1e6) * 1e9;
  level.links = r.whole(value, name, "links", 1);
  return level;
}

} // namespace

Result<Cluster> parseCluster(std::string_view text, std::string_view file) {
  ProfileReader r(file);
  // The parser would keep the last of two equal keys, and what stands first would have no effect.
  std::vector<std::set<std::string>> keys;
  auto watch = [&](int, Json::parse_event_t event, Json &value) {
    if (event == Json::parse_event_t::object_start)
      keys.emplace_back();
    else if (event == Json::parse_event_t::object_end)
      keys.pop_back();
    else if (event == Json::parse_event_t::key &&
             !keys.back().insert(value.get<std::string>()).second)
      r.fail("", fmt::format("the key '{}' stands twice in one object", value.get<std::string>()));
    return true;
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception &problem) {
    std::string what = problem.what(); // "[json.exception.parse_error.101] parse error at line ..."
    if (size_t end = what.find("] "); end != std::string::npos)
      what = what.substr(end + 2);
    return Error{fmt::format("{}: not a profile of a cluster: {}", file, what)};
  }
  Cluster cluster;
  if (!r.error && r.object(json, "", {"name", "about", "levels", "compute"})) {
    cluster.name = r.word(json, "", "name", true);
    cluster.about = r.word(json, "", "about", false);
    if (const Json *levels = r.member(json, "", "levels", true)) {
      if (!levels->is_array() || levels->empty())
        r.fail("levels", fmt::format("{} is no list of at least one level", r.shown(*levels)));
      else
        for (size_t i = 0; i < levels->size() && !r.error; ++i)
          cluster.levels.push_back(readLevel(r, (*levels)[i], fmt::format("levels[{}]", i)));
    }
    if (const Json *compute = r.member(json, "", "compute", true);
        compute && r.object(*compute, "compute", {"speedup", "peak_gflops", "memory_gb_per_s"})) {
      cluster.speedup = r.number(*compute, "compute", "speedup", 1e-6, 1e9, 1);
      cluster.flops = r.number(*compute, "compute", "peak_gflops", 1e-3, 1e9) * 1e9;
      cluster.memoryBandwidth = r.number(*compute, "compute", "memory_gb_per_s", 1e-3, 1e9) * 1e9;
    }
  }
  for (size_t i = 0; i < cluster.levels.size() && !r.error; ++i) {
    std::string key = fmt::format("levels[{}].ranks", i);
    int64_t ranks = cluster.levels[i].ranks, within = i ? cluster.levels[i - 1].ranks : 1;
    bool last = i + 1 == cluster.levels.size();
    if (!ranks && !last)
      r.fail(key, "only the outermost level may leave it out");
    else if (ranks && (ranks % within || (i && ranks == within)))
      r.fail(key,
             fmt::format("{} is no multiple of the {} ranks of the level within", ranks, within));
  }
  if (r.error)
    return *r.error;
  return cluster;
}

Result<Cluster> readCluster(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return file.error();
  return parseCluster(file->view(), path);
}

//===----------------------------------------------------------------------===//
// Costs
//===----------------------------------------------------------------------===//

Result<Network> Network::create(Cluster cluster, std::vector<MeshAxis> mesh) {
  int64_t count = 1;
  for (const MeshAxis &axis : mesh)
    count *= axis.size;
  const LinkLevel &outermost = cluster.levels.back();
  if (outermost.ranks && count > outermost.ranks)
    return Error{fmt::format("the mesh has {} ranks, and the profile '{}' joins {} at most: its "
                             "outermost level, {}, has \"ranks\": {}",
                             count, cluster.name, outermost.ranks, outermost.name,
                             outermost.ranks)};
  return Network(std::move(cluster), std::move(mesh), count);
}

const Network::Groups &Network::groups(const CollectiveStep &step) {
  std::vector<int64_t> key;
  for (const SubAxis &axis : step.axes)
    key.insert(key.end(), {axis.axis, axis.pre, axis.size});
  auto [entry, isNew] = known.try_emplace(key);
  Groups &groups = entry->second;
  if (isNew) {
    groups.of.resize(static_cast<size_t>(count));
    for (int64_t rank = 0; rank < count; ++rank) {
      std::vector<int32_t> members = RankPosition(mesh, rank).group(step.axes);
      if (members.front() != rank)
        continue;
      for (int32_t member : members)
        groups.of[static_cast<size_t>(member)] = static_cast<int32_t>(groups.members.size());
      groups.members.push_back(std::move(members));
    }
    groups.messages.resize(groups.members.size());
  }
  auto p = static_cast<int64_t>(groups.members.front().size());
  int64_t distances = p == 1 ? 0 : step.kind == CollectiveStep::Kind::AllToAll ? p - 1 : 1;
  // The level of a message, and the unit of the level within that it leaves.
  auto route = [&](int64_t from, int64_t to) {
    int64_t within = 1;
    size_t level = 0;
    for (; level + 1 < profile.levels.size(); ++level) {
      int64_t ranks = profile.levels[level].ranks;
      if (from / ranks == to / ranks)
        break;
      within = ranks;
    }
    return std::pair(level, from / within);
  };
  for (int64_t distance = std::ssize(groups.messages.front()) + 1; distance <= distances;
       ++distance) {
    std::map<std::pair<size_t, int64_t>, int64_t> leaving;
    auto each = [&](auto &&use) {
      for (size_t g = 0; g < groups.members.size(); ++g)
        for (int64_t i = 0; i < p; ++i)
          use(g, route(groups.members[g][static_cast<size_t>(i)],
                       groups.members[g][static_cast<size_t>((i + distance) % p)]));
    };
    each([&](size_t, auto way) { ++leaving[way]; });
    std::vector<std::set<std::pair<double, double>>> found(groups.members.size());
    each([&](size_t g, auto way) {
      const LinkLevel &level = profile.levels[way.first];
      double sharing = std::max(1.0, double(leaving[way]) / double(level.links));
      found[g].insert({level.latency, sharing / level.bandwidth});
    });
    for (size_t g = 0; g < found.size(); ++g)
      groups.messages[g].emplace_back(found[g].begin(), found[g].end());
  }
  return groups;
}

double Network::seconds(const CollectiveStep &step, size_t group) {
  const auto &messages = groups(step).messages[group];
  double bytes = double(payloadBytes(step)) / double(groupSize(step));
  auto slowest = [&](const auto &list) {
    double longest = 0;
    for (const auto &[latency, perByte] : list)
      longest = std::max(longest, latency + bytes * perByte);
    return longest;
  };
  if (messages.empty())
    return 0;
  if (step.kind != CollectiveStep::Kind::AllToAll)
    return double(collectiveSteps(step)) * slowest(messages.front());
  double all = 0;
  for (const auto &list : messages)
    all += slowest(list);
  return all;
}

int64_t collectiveSteps(const CollectiveStep &step) {
  return (step.kind == CollectiveStep::Kind::AllReduce ? 2 : 1) * (groupSize(step) - 1);
}

} // namespace cleave
