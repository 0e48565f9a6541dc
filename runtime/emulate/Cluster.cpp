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
#include <array>
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

  /// A list of increasing positive numbers, times `unit`.
  std::vector<double> sizes(const Json &object, const std::string &name, const char *key,
                            double unit = 1) {
    std::vector<double> list;
    const Json *value = member(object, name, key, true);
    if (!value)
      return list;
    std::string place = inside(name, key);
    if (!value->is_array() || value->empty())
      fail(place, fmt::format("{} is no list of sizes", shown(*value)));
    else
      for (const Json &entry : *value) {
        if (!entry.is_number() || !(entry.get<double>() > 0) || !(entry.get<double>() < 1e12)) {
          fail(place, fmt::format("{} is no size above 0", shown(entry)));
          break;
        }
        double x = entry.get<double>() * unit;
        if (!list.empty() && x <= list.back())
          fail(place, fmt::format("{} stands behind {:g}: sizes increase", shown(entry),
                                  list.back() / unit));
        list.push_back(x);
      }
    return list;
  }
  /// A grid whose times `secondsOf` gives from a size of each dim and the number that stands there.
  template <typename F>
  TimeGrid grid(const Json &object, const std::string &name, const char *key,
                std::vector<std::vector<double>> dims, F secondsOf) {
    const Json *value = member(object, name, key, true);
    std::vector<double> seconds;
    std::vector<double> at;
    if (value)
      fill(*value, inside(name, key), dims, at, secondsOf, seconds);
    return error ? TimeGrid() : TimeGrid(std::move(dims), std::move(seconds));
  }

  std::optional<Error> error;

private:
  template <typename F>
  void fill(const Json &value, const std::string &name,
            const std::vector<std::vector<double>> &dims, std::vector<double> &at, F secondsOf,
            std::vector<double> &seconds) {
    if (error)
      return;
    if (at.size() == dims.size()) {
      if (!value.is_number() || !(value.get<double>() > 0) || !(value.get<double>() < 1e12))
        fail(name, fmt::format("{} is no number above 0", shown(value)));
      else
        seconds.push_back(secondsOf(at, value.get<double>()));
      return;
    }
    const std::vector<double> &sizes = dims[at.size()];
    if (!value.is_array() || value.size() != sizes.size())
      return fail(name, fmt::format("{} is no list of {} values, one for each size", shown(value),
                                    sizes.size()));
    for (size_t i = 0; i < sizes.size(); ++i) {
      at.push_back(sizes[i]);
      fill(value[i], fmt::format("{}[{}]", name, i), dims, at, secondsOf, seconds);
      at.pop_back();
    }
  }

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

/// Calls `each` with the entries of a list, if there is one, and their names.
template <typename F>
void readList(ProfileReader &r, const Json &object, const std::string &name, const char *key,
              F each) {
  const Json *list = r.member(object, name, key, false);
  std::string place = r.inside(name, key);
  if (list && !list->is_array())
    r.fail(place, fmt::format("{} is no list", r.shown(*list)));
  else if (list)
    for (size_t i = 0; i < list->size() && !r.error; ++i)
      each((*list)[i], fmt::format("{}[{}]", place, i));
}

/// The number of the word among those that may stand there.
size_t readChoice(ProfileReader &r, const Json &object, const std::string &name, const char *key,
                  const std::vector<std::string> &words) {
  std::string word = r.word(object, name, key, true);
  auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end())
    return static_cast<size_t>(found - words.begin());
  r.fail(r.inside(name, key), fmt::format("'{}' is none of {}", word, fmt::join(words, ", ")));
  return 0;
}

Rates::Products readProducts(ProfileReader &r, const Json &value, const std::string &name) {
  Rates::Products p;
  if (!r.object(value, name, {"form", "element_bytes", "m", "n", "k", "gflops"}))
    return p;
  size_t form = readChoice(r, value, name, "form", {"NN", "NT", "TN", "TT"});
  p.transA = form >= 2;
  p.transB = form % 2;
  p.elementBytes = r.whole(value, name, "element_bytes", 4);
  auto m = r.sizes(value, name, "m"), n = r.sizes(value, name, "n"), k = r.sizes(value, name, "k");
  if (!r.error)
    p.grid = r.grid(value, name, "gflops", {m, n, k}, [](const auto &at, double gflops) {
      return 2 * at[0] * at[1] * at[2] / (gflops * 1e9);
    });
  return p;
}

Rates::Attention readAttention(ProfileReader &r, const Json &value, const std::string &name) {
  Rates::Attention a;
  if (!r.object(value, name, {"pass", "causal", "length", "depth", "gflops"}))
    return a;
  a.gradient = readChoice(r, value, name, "pass", {"forward", "backward"}) == 1;
  if (const Json *causal = r.member(value, name, "causal", true)) {
    if (!causal->is_boolean())
      r.fail(r.inside(name, "causal"),
             fmt::format("{} is neither true nor false", r.shown(*causal)));
    else
      a.causal = causal->get<bool>();
  }
  auto length = r.sizes(value, name, "length"), depth = r.sizes(value, name, "depth");
  if (!r.error)
    a.grid = r.grid(value, name, "gflops", {length, depth}, [&](const auto &at, double gflops) {
      AttentionShape one{1, 1, 1, 1, a.causal, a.gradient};
      double scores = at[0] * at[0];
      one.depth = static_cast<int64_t>(at[1]);
      return scores * one.flops() / (gflops * 1e9);
    });
  return a;
}

Rates readRates(ProfileReader &r, const Json &value, const std::string &name,
                const Cluster &cluster) {
  Rates rates;
  rates.flops = cluster.flops;
  rates.memoryBandwidth = cluster.memoryBandwidth;
  if (!r.object(value, name,
                {"threads", "ranks", "launch_us", "products", "attention", "memory", "pass_gflops",
                 "pass_gfunctions"}))
    return rates;
  rates.threads = static_cast<int>(r.whole(value, name, "threads", 1));
  rates.ranks = static_cast<int>(r.whole(value, name, "ranks", 1));
  rates.launch = r.number(value, name, "launch_us", 0, 1e6, 0) * 1e-6;
  readList(r, value, name, "products", [&](const Json &entry, const std::string &place) {
    rates.products.push_back(readProducts(r, entry, place));
  });
  readList(r, value, name, "attention", [&](const Json &entry, const std::string &place) {
    rates.attention.push_back(readAttention(r, entry, place));
  });
  std::string inMemory = r.inside(name, "memory");
  if (const Json *memory = r.member(value, name, "memory", false);
      memory && r.object(*memory, inMemory, {"kb", "gb_per_s"})) {
    auto kb = r.sizes(*memory, inMemory, "kb", 1e3);
    if (!r.error)
      rates.memory = r.grid(*memory, inMemory, "gb_per_s", {kb},
                            [](const auto &at, double gb) { return at[0] / (gb * 1e9); });
  }
  rates.passFlops = r.number(value, name, "pass_gflops", 1e-6, 1e9, 0) * 1e9;
  if (const Json *functions = r.member(value, name, "pass_gfunctions", false)) {
    std::vector<std::string> names(scalarFunctionNames.begin(), scalarFunctionNames.end());
    std::string place = r.inside(name, "pass_gfunctions");
    if (r.object(*functions, place, names))
      for (size_t f = 0; f < names.size(); ++f)
        rates.passFunctions[f] =
            r.number(*functions, place, scalarFunctionNames[f], 1e-6, 1e9, 0) * 1e9;
  }
  return rates;
}

Cluster::Collective readCollective(ProfileReader &r, const Json &value, const std::string &name) {
  Cluster::Collective c;
  if (!r.object(value, name, {"kind", "ranks", "kb", "us"}))
    return c;
  constexpr std::array kinds = {CollectiveStep::Kind::AllReduce, CollectiveStep::Kind::AllGather,
                                CollectiveStep::Kind::ReduceScatter,
                                CollectiveStep::Kind::AllToAll};
  std::vector<std::string> names;
  for (CollectiveStep::Kind kind : kinds)
    names.emplace_back(kindName(kind));
  c.kind = kinds[readChoice(r, value, name, "kind", names)];
  c.ranks = r.whole(value, name, "ranks", 2);
  auto kb = r.sizes(value, name, "kb", 1e3);
  if (!r.error)
    c.grid = r.grid(value, name, "us", {kb}, [](const auto &, double us) { return us * 1e-6; });
  return c;
}

} // namespace

Rates Cluster::ratesFor(int threads, int64_t computing) const {
  if (rates.empty()) {
    Rates roofline;
    roofline.flops = flops;
    roofline.memoryBandwidth = memoryBandwidth;
    return roofline;
  }
  auto distance = [&](const Rates &r) {
    return std::pair(std::abs(std::log(double(r.threads) / double(threads))),
                     std::abs(std::log(double(r.ranks) / double(computing))));
  };
  return *std::min_element(rates.begin(), rates.end(), [&](const Rates &a, const Rates &b) {
    return distance(a) < distance(b);
  });
}

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
  if (!r.error && r.object(json, "", {"name", "about", "levels", "collectives", "compute"})) {
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
        compute &&
        r.object(*compute, "compute", {"speedup", "peak_gflops", "memory_gb_per_s", "rates"})) {
      cluster.speedup = r.number(*compute, "compute", "speedup", 1e-6, 1e9, 1);
      cluster.flops = r.number(*compute, "compute", "peak_gflops", 1e-3, 1e9) * 1e9;
      cluster.memoryBandwidth = r.number(*compute, "compute", "memory_gb_per_s", 1e-3, 1e9) * 1e9;
      readList(r, *compute, "compute", "rates", [&](const Json &entry, const std::string &name) {
        cluster.rates.push_back(readRates(r, entry, name, cluster));
      });
    }
    readList(r, json, "", "collectives", [&](const Json &entry, const std::string &name) {
      cluster.collectives.push_back(readCollective(r, entry, name));
    });
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
  for (const Cluster::Collective &measured : profile.collectives)
    if (measured.kind == step.kind && measured.ranks == groupSize(step))
      return measured.grid.at({double(payloadBytes(step)), 0, 0});
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
