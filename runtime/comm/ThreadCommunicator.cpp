//===- ThreadCommunicator.cpp - ranks as threads --------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Each rank has a slot where it publishes its current call and a counter that
// only grows. A call number n goes through up to four points; reaching point k
// sets the counter to 4n + k:
//   0  arrived: the call is in the slot, `in` may be read by the group
//   1  reduced: the rank's part of the result may be read by the group
//   2  done reading: the owners may write their memory again
// A rank leaves when the whole group is done reading, so nobody changes a slot
// or a buffer that a member of its group still looks at.
//
//===----------------------------------------------------------------------===//
#include "runtime/comm/ThreadCommunicator.h"

#include "runtime/comm/Transfers.h"
#include "runtime/core/Shard.h"
#include "runtime/core/Threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <mutex>
#include <optional>

namespace cleave {

using Kind = CollectiveStep::Kind;
using Clock = std::chrono::steady_clock;

static constexpr int spinRounds = 2000;
/// Below this, all ranks reduce everything: one wait less than in two halves.
static constexpr int64_t smallBytes = 4096;
/// Bytes worth a worker of their own.
static constexpr int64_t workerBytes = 64 * 1024;

double watchdogFromEnvironment() {
  if (const char *text = std::getenv("CLEAVE_WATCHDOG_SECONDS")) {
    char *end = nullptr;
    double seconds = std::strtod(text, &end);
    if (end != text && *end == 0 && seconds > 0)
      return seconds;
  }
  return 600;
}

namespace {
/// What a rank is in; compared among the group.
struct Call {
  bool isBarrier = false;
  CollectiveStep step = CollectiveStep();
  std::string_view where;
  const char *in = nullptr;
  char *out = nullptr;
};

bool agree(const Call &x, const Call &y) {
  if (x.isBarrier || y.isBarrier)
    return x.isBarrier == y.isBarrier;
  const CollectiveStep &a = x.step, &b = y.step;
  auto sameAxis = [](const SubAxis &p, const SubAxis &q) {
    return p.axis == q.axis && p.pre == q.pre && p.size == q.size;
  };
  bool reduces = a.kind == Kind::AllReduce || a.kind == Kind::ReduceScatter;
  bool twoDims = a.kind == Kind::AllToAll;
  return a.kind == b.kind && (!reduces || a.reduction == b.reduction) && a.dtype == b.dtype &&
         std::equal(a.axes.begin(), a.axes.end(), b.axes.begin(), b.axes.end(), sameAxis) &&
         a.outer == b.outer && a.inDim == b.inDim && a.outDim == b.outDim && a.inner == b.inner &&
         a.site == b.site &&
         (!twoDims || (a.middle == b.middle && a.inDim2 == b.inDim2 && a.outDim2 == b.outDim2 &&
                       a.dimFirst == b.dimFirst));
}

enum class Doing : uint8_t { Nothing, Computing, Waiting, Ended };

struct alignas(64) Slot {
  std::atomic<uint64_t> progress{0}; ///< 4 * call + point; calls count from 1
  std::atomic<Doing> doing{Doing::Nothing};
  mutable std::mutex mutex; ///< guards the rest
  Call call;
  uint64_t number = 0;
  std::string program;
};
} // namespace

struct ThreadWorld::State {
  class Rank;

  std::vector<MeshAxis> mesh;
  ThreadWorldOptions options;
  std::unique_ptr<Slot[]> slots;
  std::vector<std::unique_ptr<Rank>> ranks;

  std::atomic<bool> failed{false};
  mutable std::mutex mutex; ///< guards `cause`; sleepers use it too
  std::condition_variable wake;
  std::atomic<int> sleepers{0};
  std::optional<Error> cause;

  void fail(Error error) {
    {
      std::lock_guard lock(mutex);
      if (!cause)
        cause = std::move(error);
      failed.store(true);
    }
    wake.notify_all();
  }

  Status check() const {
    if (!failed.load(std::memory_order_acquire))
      return {};
    std::lock_guard lock(mutex);
    return *cause;
  }

  /// Pairs with the sleepers' check under the mutex: seq_cst on both sides.
  void notify() {
    if (sleepers.load() > 0) {
      {
        std::lock_guard lock(mutex);
      }
      wake.notify_all();
    }
  }

  std::string callText(const Call &call, uint64_t number) const {
    std::string text = call.isBarrier ? "a barrier" : describe(call.step, mesh);
    if (!call.where.empty())
      text += fmt::format(" at {}", call.where);
    return text + fmt::format(" (call {})", number);
  }

  /// One line for each rank: who waits where.
  std::string whoWaits() const {
    std::string text;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const Slot &slot = slots[i];
      std::lock_guard lock(slot.mutex);
      text += fmt::format("\n  rank {}: ", i);
      switch (slot.doing.load()) {
      case Doing::Nothing:
        text += "has not begun";
        break;
      case Doing::Computing:
        text += fmt::format("is computing, after {} collectives", slot.number);
        break;
      case Doing::Waiting:
        text += "waits in " + callText(slot.call, slot.number);
        break;
      case Doing::Ended:
        text += fmt::format("has ended '{}' after {} collectives", slot.program, slot.number);
        break;
      }
    }
    return text;
  }
};

class ThreadWorld::State::Rank final : public Communicator {
public:
  Rank(State &world, int number)
      : world(world), slot(world.slots[static_cast<size_t>(number)]), position(world.mesh, number) {
  }

  int rank() const override { return static_cast<int>(position.rank()); }
  int size() const override { return static_cast<int>(world.ranks.size()); }

  Status run(const CollectiveStep &step, const char *in, char *out, std::string_view where,
             ThreadTeam *team, bool beside) override;
  Status barrier(std::string_view where) override;

  void fail(const std::string &message) override {
    world.fail({fmt::format("rank {} failed: {}", rank(), message), Fault::Rank});
  }
  Status check() const override { return world.check(); }

  void begin(std::string_view program) override {
    std::lock_guard lock(slot.mutex);
    slot.program = program;
    slot.doing.store(Doing::Computing);
  }
  void end() override {
    slot.doing.store(Doing::Ended);
    world.notify();
  }

private:
  struct Group {
    std::vector<SubAxis> axes;
    std::vector<int32_t> members;
    int64_t index = 0;
  };
  const Group &groupOf(const std::vector<SubAxis> &axes);
  Status arrive(Call call, const std::vector<int32_t> &members);
  Status reach(int point, const std::vector<int32_t> &members);
  Status waitFor(int32_t peer, uint64_t target);
  Status compare(int32_t peer);

  void allReduce(const CollectiveStep &step, const Group &group, int64_t from, int64_t to,
                 char *out, ThreadTeam *team);
  void allGather(const CollectiveStep &step, const Group &group, char *out, ThreadTeam *team);
  void reduceScatter(const CollectiveStep &step, const Group &group, char *out, ThreadTeam *team);
  void allToAll(const CollectiveStep &step, const Group &group, char *out, ThreadTeam *team);

  template <typename Body>
  static void forRange(ThreadTeam *team, int64_t count, int64_t bytesEach, Body &&body) {
    if (team)
      team->parallelFor(0, count,
                        std::max<int64_t>(1, workerBytes / std::max<int64_t>(1, bytesEach)), body);
    else if (count > 0)
      body(int64_t{0}, count);
  }

  State &world;
  Slot &slot;
  RankPosition position;
  uint64_t number = 0;
  bool spins = true;
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<const char *> inputs; ///< the group's `in`, by index in the group
  std::vector<char *> outputs;
  std::vector<char> scratch;
};

const ThreadWorld::State::Rank::Group &
ThreadWorld::State::Rank::groupOf(const std::vector<SubAxis> &axes) {
  auto same = [](const SubAxis &a, const SubAxis &b) {
    return a.axis == b.axis && a.pre == b.pre && a.size == b.size;
  };
  for (const auto &group : groups)
    if (std::equal(axes.begin(), axes.end(), group->axes.begin(), group->axes.end(), same))
      return *group;
  groups.push_back(
      std::make_unique<Group>(Group{axes, position.group(axes), position.shardIndex(axes)}));
  return *groups.back();
}

/// The peer is past its arrival in its current call, which must be ours.
Status ThreadWorld::State::Rank::compare(int32_t peer) {
  const Slot &other = world.slots[static_cast<size_t>(peer)];
  Call theirs;
  uint64_t theirNumber;
  {
    std::lock_guard lock(other.mutex);
    theirs = other.call;
    theirNumber = other.number;
  }
  if (theirNumber == number && agree(slot.call, theirs))
    return {};
  int a = rank(), b = peer;
  std::string mine = world.callText(slot.call, number),
              other_ = world.callText(theirs, theirNumber);
  if (a > b) {
    std::swap(a, b);
    std::swap(mine, other_);
  }
  world.fail(
      {fmt::format("collectives disagree:\n  rank {}: {}\n  rank {}: {}", a, mine, b, other_),
       Fault::Rank});
  return world.check();
}

Status ThreadWorld::State::Rank::waitFor(int32_t peer, uint64_t target) {
  Slot &other = world.slots[static_cast<size_t>(peer)];
  auto reached = [&] { return other.progress.load() >= target; };
  // A peer that ended its program before this call will never come.
  auto ended = [&] { return other.doing.load() == Doing::Ended && !reached(); };
  if (reached())
    return {};
  Clock::time_point start = Clock::now();
  if (spins)
    for (int round = 0; round < spinRounds && !reached(); ++round)
      spinPause();
  if (!reached()) {
    slot.doing.store(Doing::Waiting);
    auto limit = start + std::chrono::duration_cast<Clock::duration>(
                             std::chrono::duration<double>(world.options.watchdogSeconds));
    bool inTime = true;
    {
      std::unique_lock lock(world.mutex);
      ++world.sleepers;
      inTime = world.wake.wait_until(lock, limit,
                                     [&] { return reached() || world.failed.load() || ended(); });
      --world.sleepers;
    }
    if (!inTime)
      world.fail({fmt::format("rank {} has waited {:g} s for rank {} (watchdog):{}", rank(),
                              world.options.watchdogSeconds, peer, world.whoWaits()),
                  Fault::Rank});
    else if (!world.failed.load() && ended())
      world.fail({fmt::format("collectives disagree: rank {} waits for rank {}, which has "
                              "ended:{}",
                              rank(), peer, world.whoWaits()),
                  Fault::Rank});
    slot.doing.store(Doing::Computing);
  }
  waiting.fetch_add(std::chrono::duration<double>(Clock::now() - start).count(),
                    std::memory_order_relaxed);
  return world.check();
}

Status ThreadWorld::State::Rank::arrive(Call call, const std::vector<int32_t> &members) {
  if (auto status = world.check(); !status)
    return status;
  ++number;
  {
    std::lock_guard lock(slot.mutex);
    slot.call = std::move(call);
    slot.number = number;
  }
  slot.progress.store(4 * number);
  world.notify();
  for (int32_t peer : members) {
    if (peer == rank())
      continue;
    if (auto status = waitFor(peer, 4 * number); !status)
      return status;
    if (auto status = compare(peer); !status)
      return status;
  }
  return {};
}

Status ThreadWorld::State::Rank::reach(int point, const std::vector<int32_t> &members) {
  uint64_t target = 4 * number + static_cast<uint64_t>(point);
  slot.progress.store(target);
  world.notify();
  for (int32_t peer : members)
    if (peer != rank())
      if (auto status = waitFor(peer, target); !status)
        return status;
  return {};
}

Status ThreadWorld::State::Rank::barrier(std::string_view where) {
  std::vector<int32_t> everybody(world.ranks.size());
  for (size_t i = 0; i < everybody.size(); ++i)
    everybody[i] = static_cast<int32_t>(i);
  Call call;
  call.isBarrier = true;
  call.where = where;
  if (auto status = arrive(std::move(call), everybody); !status)
    return status;
  return reach(2, everybody); // nobody overwrites a call that another still compares
}

Status ThreadWorld::State::Rank::run(const CollectiveStep &step, const char *in, char *out,
                                     std::string_view where, ThreadTeam *team, bool beside) {
  spins = world.options.spin && !beside;
  const Group &group = groupOf(step.axes);
  int64_t width = byteSize(step.dtype);
  int64_t inBytes = inElements(step) * width, outBytes = outElements(step) * width;

  CollectiveStats::Kind &count = stats.kinds[static_cast<int>(step.kind)];
  ++count.calls;
  count.payloadBytes += payloadBytes(step);
  count.ringBytes += ringBytes(step);

  // Where input and output have other shapes, writing one destroys the other
  // while the group still reads it.
  bool overlaps = in < out + outBytes && out < in + inBytes;
  if (overlaps && !(step.kind == Kind::AllReduce && in == out)) {
    if (scratch.size() < static_cast<size_t>(inBytes))
      scratch.resize(static_cast<size_t>(inBytes));
    std::memcpy(scratch.data(), in, static_cast<size_t>(inBytes));
    in = scratch.data();
  }

  Call call{false, step, where, in, out};
  if (auto status = arrive(std::move(call), group.members); !status)
    return status;
  inputs.clear();
  outputs.clear();
  for (int32_t member : group.members) {
    // Read without the lock: the owner changes it only after this call.
    const Call &theirs = world.slots[static_cast<size_t>(member)].call;
    inputs.push_back(theirs.in);
    outputs.push_back(theirs.out);
  }

  switch (step.kind) {
  case Kind::AllReduce: {
    int64_t elements = inElements(step);
    if (inBytes <= smallBytes) {
      alignas(64) char all[smallBytes];
      reduceInOrder(step.reduction, step.dtype, inputs, all, elements);
      if (auto status = reach(2, group.members); !status)
        return status;
      std::memcpy(out, all, static_cast<size_t>(inBytes));
      return {};
    }
    // Parts of whole cache lines, so that no two ranks write to the same one.
    auto p = static_cast<int64_t>(group.members.size());
    int64_t line = 64 / width, part = ((elements + p - 1) / p + line - 1) / line * line;
    auto partBegin = [&](int64_t i) { return std::min(elements, i * part); };
    allReduce(step, group, partBegin(group.index), partBegin(group.index + 1), out, team);
    if (auto status = reach(1, group.members); !status)
      return status;
    for (int64_t i = 1; i < p; ++i) { // begin with the neighbour: spread the reads
      int64_t peer = (group.index + i) % p;
      int64_t from = partBegin(peer), to = partBegin(peer + 1);
      forRange(team, to - from, width, [&](int64_t a, int64_t b) {
        std::memcpy(out + (from + a) * width,
                    outputs[static_cast<size_t>(peer)] + (from + a) * width,
                    static_cast<size_t>((b - a) * width));
      });
    }
    break;
  }
  case Kind::AllGather:
    allGather(step, group, out, team);
    break;
  case Kind::ReduceScatter:
    reduceScatter(step, group, out, team);
    break;
  case Kind::AllToAll:
    allToAll(step, group, out, team);
    break;
  }
  return reach(2, group.members);
}

void ThreadWorld::State::Rank::allReduce(const CollectiveStep &step, const Group &, int64_t from,
                                         int64_t to, char *out, ThreadTeam *team) {
  int64_t width = byteSize(step.dtype), p = static_cast<int64_t>(inputs.size());
  forRange(team, to - from, width * p, [&](int64_t a, int64_t b) {
    std::vector<const char *> at(inputs);
    for (const char *&input : at)
      input += (from + a) * width;
    reduceInOrder(step.reduction, step.dtype, at, out + (from + a) * width, b - a);
  });
}

void ThreadWorld::State::Rank::allGather(const CollectiveStep &s, const Group &, char *out,
                                         ThreadTeam *team) {
  int64_t row = s.inner * byteSize(s.dtype), inRow = s.inDim * row, outRow = s.outDim * row;
  forRange(team, s.outer, outRow, [&](int64_t a, int64_t b) {
    for (size_t peer = 0; peer < inputs.size(); ++peer) {
      int64_t offset = static_cast<int64_t>(peer) * s.inDim;
      int64_t extent = std::min(s.inDim, s.outDim - offset);
      copyRows(out + a * outRow + offset * row, outRow, inputs[peer] + a * inRow, inRow,
               extent * row, b - a);
    }
  });
}

void ThreadWorld::State::Rank::reduceScatter(const CollectiveStep &s, const Group &group, char *out,
                                             ThreadTeam *team) {
  int64_t width = byteSize(s.dtype), row = s.inner * width;
  int64_t offset = std::min(s.inDim, group.index * s.outDim);
  int64_t extent = std::min(s.outDim, s.inDim - offset);
  forRange(team, s.outer, s.outDim * row * static_cast<int64_t>(inputs.size()),
           [&](int64_t a, int64_t b) {
             std::vector<const char *> at(inputs.size());
             for (int64_t o = a; o < b; ++o) {
               for (size_t peer = 0; peer < inputs.size(); ++peer)
                 at[peer] = inputs[peer] + (o * s.inDim + offset) * row;
               char *to = out + o * s.outDim * row;
               reduceInOrder(s.reduction, s.dtype, at, to, extent * s.inner);
               std::memset(to + extent * row, 0, static_cast<size_t>((s.outDim - extent) * row));
             }
           });
}

void ThreadWorld::State::Rank::allToAll(const CollectiveStep &s, const Group &group, char *out,
                                        ThreadTeam *team) {
  // This rank's part of the split dim, from each peer's block of the gathered one.
  int64_t piece = s.inner * byteSize(s.dtype);
  int64_t offset = std::min(s.inDim2, group.index * s.outDim2);
  int64_t extent = std::min(s.outDim2, s.inDim2 - offset);
  int64_t inBytes = s.inDim * s.middle * s.inDim2 * piece;
  int64_t outBytes = s.outDim * s.middle * s.outDim2 * piece;
  // Byte strides of (gathered dim, middle, split dim) in both tensors.
  int64_t inGathered, inMiddle, inSplit, outGathered, outMiddle, outSplit;
  if (s.dimFirst) {
    inSplit = outSplit = piece;
    inMiddle = s.inDim2 * piece, outMiddle = s.outDim2 * piece;
    inGathered = s.middle * inMiddle, outGathered = s.middle * outMiddle;
  } else {
    inGathered = outGathered = piece;
    inMiddle = s.inDim * piece, outMiddle = s.outDim * piece;
    inSplit = s.middle * inMiddle, outSplit = s.middle * outMiddle;
  }
  forRange(team, s.outer, outBytes, [&](int64_t a, int64_t b) {
    for (int64_t o = a; o < b; ++o) {
      char *to = out + o * outBytes;
      if (extent < s.outDim2)
        std::memset(to, 0, static_cast<size_t>(outBytes));
      for (size_t peer = 0; peer < inputs.size(); ++peer) {
        int64_t first = static_cast<int64_t>(peer) * s.inDim;
        int64_t gathered = std::min(s.inDim, s.outDim - first);
        const char *from = inputs[peer] + o * inBytes + offset * inSplit;
        char *at = to + first * outGathered;
        // The dim that stands last is contiguous: copy it in one piece.
        if (s.dimFirst)
          for (int64_t x = 0; x < gathered; ++x)
            copyRows(at + x * outGathered, outMiddle, from + x * inGathered, inMiddle,
                     extent * piece, s.middle);
        else if (gathered > 0)
          for (int64_t y = 0; y < extent; ++y)
            copyRows(at + y * outSplit, outMiddle, from + y * inSplit, inMiddle, gathered * piece,
                     s.middle);
      }
    }
  });
}

ThreadWorld::ThreadWorld(std::vector<MeshAxis> mesh, ThreadWorldOptions options)
    : state(std::make_unique<State>()) {
  int64_t count = 1;
  for (const MeshAxis &axis : mesh)
    count *= axis.size;
  state->mesh = std::move(mesh);
  state->options = options;
  state->slots = std::make_unique<Slot[]>(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    state->ranks.push_back(std::make_unique<State::Rank>(*state, static_cast<int>(i)));
}

ThreadWorld::~ThreadWorld() = default;
int ThreadWorld::size() const { return static_cast<int>(state->ranks.size()); }
Communicator &ThreadWorld::rank(int rank) { return *state->ranks[static_cast<size_t>(rank)]; }
Status ThreadWorld::check() const { return state->check(); }

} // namespace cleave
