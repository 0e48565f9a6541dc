//===- Overlap.cpp - when collectives run -------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/Steps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

using namespace cleave;

/// Whether the step needs the collective's result, or writes what it reads.
bool StepList::conflicts(const Recorded &collective, const Recorded &step) const {
  auto meet = [&](Place x, Place y) {
    x.buffer = find(x.buffer);
    y.buffer = find(y.buffer);
    return x.overlaps(y);
  };
  auto any = [&](const std::vector<Place> &list, const Place &with) {
    return std::any_of(list.begin(), list.end(), [&](const Place &p) { return meet(p, with); });
  };
  return any(step.reads, collective.writes[0]) || any(step.writes, collective.writes[0]) ||
         any(step.writes, collective.reads[0]);
}

/// The first step behind the collective that must not run before it is done.
size_t StepList::firstConflict(size_t collective) const {
  size_t j = collective + 1;
  while (j < steps.size() && !conflicts(steps[collective], steps[j]))
    ++j;
  return j;
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

StepList::Readers StepList::readers() const {
  Readers found(buffers.size());
  for (size_t i = 0; i < steps.size(); ++i)
    for (const Place &read : steps[i].reads)
      if (auto &list = found[find(read.buffer)]; list.empty() || list.back() != i)
        list.push_back(i);
  return found;
}

/// The later steps that read what the step writes, in order.
std::vector<size_t> StepList::readersOf(size_t step, const Readers &readers) const {
  std::set<size_t> found;
  for (Place write : steps[step].writes) {
    write.buffer = find(write.buffer);
    const std::vector<size_t> &list = readers[write.buffer];
    for (auto j = std::upper_bound(list.begin(), list.end(), step); j != list.end(); ++j)
      for (Place read : steps[*j].reads) {
        read.buffer = find(read.buffer);
        if (read.overlaps(write))
          found.insert(*j);
      }
  }
  return {found.begin(), found.end()};
}

/// Whether a product of the backward pass reads what the step makes, or what others make of it.
bool StepList::entersProduct(size_t i, const Readers &readers,
                             std::vector<std::optional<bool>> &known) const {
  if (known[i])
    return *known[i];
  known[i] = false;
  for (size_t j : readersOf(i, readers))
    if (steps[j].backward && !*known[i])
      known[i] = steps[j].step.kind == StepKind::Gemm ||
                 steps[j].step.kind == StepKind::Attention || entersProduct(j, readers, known);
  return *known[i];
}

/// The param whose gradient the step makes: what becomes of it is a result "grad:PARAM", or the
/// optimizer's first step that reads it reads the param too, or its state. Empty if neither is so.
std::string StepList::paramOf(size_t gradient, const Readers &readers,
                              const Program &program) const {
  std::vector<size_t> from = {gradient};
  for (size_t next = 0; next < from.size(); ++next) {
    for (const Place &write : steps[from[next]].writes)
      if (const Buffer &b = buffers[find(write.buffer)]; b.kind == Buffer::Kind::Result) {
        std::string_view name = program.results[static_cast<size_t>(b.index)].name;
        if (name.substr(0, 5) == "grad:")
          return std::string(name.substr(5));
      }
    for (size_t j : readersOf(from[next], readers)) {
      const Recorded &reader = steps[j];
      std::set<std::string> names;
      for (const Place &read : reader.reads)
        if (const Buffer &b = buffers[find(read.buffer)]; b.kind == Buffer::Kind::Argument) {
          const Argument &a = program.arguments[static_cast<size_t>(b.index)];
          if (a.role == Argument::Role::Param)
            names.insert(a.name);
          else if (size_t colon = a.name.find(':');
                   a.role == Argument::Role::State && colon != std::string::npos)
            names.insert(a.name.substr(colon + 1));
        }
      if (!reader.backward && names.size() == 1)
        return *names.begin();
      // On through the backward pass, and through what clips the gradient but not its norm.
      bool same = !reader.writes.empty() && reader.writes[0].bytes >= reader.reads[0].bytes;
      if ((reader.backward || same) && std::find(from.begin(), from.end(), j) == from.end())
        from.push_back(j);
    }
  }
  return "";
}

std::vector<int32_t> StepList::argumentsBehind() const {
  std::vector<int32_t> found(buffers.size(), -1);
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].kind == Buffer::Kind::Argument)
      found[i] = buffers[i].index;
  std::set<int32_t> written; // by another step already: what lies there is more than a copy
  for (const Recorded &step : steps)
    for (const Place &write : step.writes) {
      int32_t to = find(write.buffer);
      if (buffers[to].kind == Buffer::Kind::Argument)
        continue;
      const Buffer *from = step.reads.size() == 1 ? &buffers[find(step.reads[0].buffer)] : nullptr;
      bool copies = from && std::holds_alternative<KernelStep>(step.step.action) &&
                    from->kind == Buffer::Kind::Argument;
      found[to] = written.insert(to).second && copies ? from->index : -1;
    }
  return found;
}

void StepList::sayWhatMoves(Program &program) const {
  const std::vector<int32_t> arguments = argumentsBehind();
  const Readers readers = this->readers();
  std::vector<std::optional<bool>> known(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto *c = std::get_if<CollectiveStep>(&steps[i].step.action);
    if (!c)
      continue;
    CollectiveSite &site = program.collectiveSites[static_cast<size_t>(c->site)];
    bool sums = c->reduction == CollectiveStep::Reduction::Sum &&
                (c->kind == CollectiveStep::Kind::AllReduce ||
                 c->kind == CollectiveStep::Kind::ReduceScatter);
    bool optimizer = site.phase == "optimizer";
    auto argument = [&](const Place &place) {
      int32_t number = arguments[find(place.buffer)];
      return number < 0 ? std::string() : program.arguments[static_cast<size_t>(number)].name;
    };
    const char *moves = "activation";
    std::string param;
    if (sums && steps[i].backward && !entersProduct(i, readers, known)) {
      moves = "gradient";
      if (site.moves.empty())
        param = paramOf(i, readers, program);
    } else if (c->kind == CollectiveStep::Kind::AllGather &&
               (optimizer || !argument(steps[i].reads[0]).empty())) {
      moves = "param";
      param = argument(optimizer ? steps[i].writes[0] : steps[i].reads[0]);
    } else if (optimizer) {
      moves = "norm";
    }
    if (site.moves.empty())
      site.tensors[0].param = param;
    // The first layer's input has no product before it.
    if (site.moves.empty() || site.moves == "gradient")
      site.moves = moves;
  }
}

/// All-reduces that become one: of one dtype over the same axes.
struct StepList::Bucket {
  std::vector<size_t> members; ///< steps
  int64_t bytes = 0;
};

static int64_t bytesOf(const CollectiveStep &c) {
  return c.outer * c.inDim * c.inner * byteSize(c.dtype);
}

/// Copies the members' gradients into a buffer, where each was summed before; sums that
/// behind the last; copies back before anyone reads.
void StepList::fill(const Bucket &bucket, std::vector<CollectiveSite> &sites,
                    std::map<size_t, std::vector<Recorded>> &before) {
  auto collectiveOf = [&](size_t i) -> CollectiveStep & {
    return std::get<CollectiveStep>(steps[i].step.action);
  };
  Place whole = wholeOf(addArena(bucket.bytes));
  const CollectiveStep first = collectiveOf(bucket.members.front());
  int64_t offset = 0, ranks = 1;
  size_t needed = steps.size();
  auto site = static_cast<int32_t>(sites.size());
  sites.push_back(sites[static_cast<size_t>(first.site)]);
  sites.back().tensors.clear();
  auto copy = [](Recorded like, const Place &from, const Place &to) {
    like.step.kind = StepKind::Copy;
    like.step.bytes = 2 * from.bytes;
    like.step.action = CopyStep{from.ref(), to.ref(), from.bytes};
    like.reads = {from};
    like.writes = {to};
    return like;
  };
  std::vector<Recorded> back;
  for (size_t i : bucket.members) {
    needed = std::min(needed, firstConflict(i));
    CollectiveSite &from = sites[static_cast<size_t>(collectiveOf(i).site)];
    --from.executions;
    sites.back().tensors.push_back(from.tensors[0]);
    Place part{whole.buffer, offset, bytesOf(collectiveOf(i))};
    offset += part.bytes;
    back.push_back(copy(steps[i], part, steps[i].writes[0]));
  }
  Recorded sum = steps[bucket.members.back()];
  for (size_t m = 0; m < bucket.members.size(); ++m) {
    size_t i = bucket.members[m];
    Place from = steps[i].reads[0];
    steps[i] = copy(steps[i], from, back[m].reads[0]);
  }
  CollectiveStep c = first;
  c.outer = c.inner = 1;
  c.inDim = c.outDim = bucket.bytes / byteSize(c.dtype);
  c.in = c.out = whole.ref();
  c.site = site;
  sum.step.action = c;
  sum.step.bytes = bucket.bytes;
  sum.reads = sum.writes = {whole};
  for (const SubAxis &axis : c.axes)
    ranks *= axis.size;
  CollectiveSite &made = sites.back();
  made.rule = "a bucket of " + std::to_string(bucket.members.size()) + " gradients";
  made.payloadBytes = bucket.bytes;
  made.ringBytes =
      2 * (bucket.bytes / ranks * (ranks - 1) + bucket.bytes % ranks * (ranks - 1) / ranks);
  made.executions = 1;
  made.layers = 0;
  // What is behind a bucket that was summed earlier comes first.
  auto &behind = before[bucket.members.back() + 1];
  behind.push_back(std::move(sum));
  auto &at = before[needed];
  at.insert(at.end(), back.begin(), back.end());
}

void StepList::placeGradients(const GradientOverlap &how, std::vector<CollectiveSite> &sites) {
  if (how.kind == GradientOverlap::Kind::Layers)
    return;
  size_t end = 0; // of the backward pass
  for (size_t i = 0; i < steps.size(); ++i)
    if (steps[i].backward)
      end = i + 1;
  std::map<size_t, std::vector<Recorded>> before; ///< this step: these
  std::vector<bool> moved(steps.size(), false);
  // By axes and dtype, as text: the order of the buckets is the order in which they are full.
  std::map<std::string, Bucket> open;
  auto close = [&](Bucket &bucket) {
    if (bucket.members.size() > 1)
      fill(bucket, sites, before);
    bucket = {};
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    auto *c = std::get_if<CollectiveStep>(&steps[i].step.action);
    bool sums = c && c->reduction == CollectiveStep::Reduction::Sum &&
                (c->kind == CollectiveStep::Kind::AllReduce ||
                 c->kind == CollectiveStep::Kind::ReduceScatter);
    if (!sums || !steps[i].backward)
      continue;
    size_t needed = firstConflict(i);
    if (needed < steps.size() && steps[needed].backward)
      continue; // the backward pass goes on with it
    if (how.kind == GradientOverlap::Kind::None) {
      size_t to = std::min(needed, end);
      Recorded late = steps[i];
      late.waits = true;
      before[to].push_back(std::move(late));
      moved[i] = true;
      continue;
    }
    if (c->kind != CollectiveStep::Kind::AllReduce)
      continue; // its parts would have to be interleaved
    std::string key = std::to_string(static_cast<int>(c->dtype));
    for (const SubAxis &axis : c->axes)
      key += " " + std::to_string(axis.axis) + ":" + std::to_string(axis.pre) + ":" +
             std::to_string(axis.size);
    Bucket &bucket = open[key];
    int64_t bytes = bytesOf(*c);
    // Nor may a member be needed before the bucket is full.
    auto neededEarly = [&](size_t member) { return firstConflict(member) <= i; };
    if (bucket.bytes + bytes > how.bucketBytes ||
        std::any_of(bucket.members.begin(), bucket.members.end(), neededEarly))
      close(bucket);
    bucket.members.push_back(i);
    bucket.bytes += bytes;
  }
  for (auto &[key, bucket] : open)
    close(bucket);
  std::vector<Recorded> all;
  for (size_t i = 0; i <= steps.size(); ++i) {
    if (auto found = before.find(i); found != before.end())
      std::move(found->second.begin(), found->second.end(), std::back_inserter(all));
    if (i < steps.size() && !moved[i])
      all.push_back(std::move(steps[i]));
  }
  steps = std::move(all);
  // Sites of which no execution is left are none.
  std::vector<int32_t> number(sites.size(), -1);
  std::vector<CollectiveSite> left;
  for (size_t i = 0; i < sites.size(); ++i)
    if (sites[i].executions > 0) {
      number[i] = static_cast<int32_t>(left.size());
      left.push_back(std::move(sites[i]));
    }
  sites = std::move(left);
  for (Recorded &step : steps)
    if (auto *c = std::get_if<CollectiveStep>(&step.step.action))
      c->site = number[static_cast<size_t>(c->site)];
}

//===----------------------------------------------------------------------===//
// Beside other work
//===----------------------------------------------------------------------===//

/// Roughly, on one core; collectives count for nothing.
static double secondsOf(const Step &step) {
  constexpr double flops = 5e10, bytes = 1e10;
  if (std::holds_alternative<CollectiveStep>(step.action))
    return 0;
  return std::max(double(step.flops) / flops, double(step.bytes) / bytes);
}

void StepList::prefetchGathers(double worthIt) {
  std::map<int32_t, size_t> latest;                     ///< by site: the gather of the layer before
  std::vector<std::vector<size_t>> after(steps.size()); ///< behind this step: these gathers
  std::vector<bool> moved(steps.size());
  const std::vector<int32_t> arguments = argumentsBehind();
  for (size_t i = 0; i < steps.size(); ++i) {
    auto *gather = std::get_if<CollectiveStep>(&steps[i].step.action);
    if (!gather || gather->kind != CollectiveStep::Kind::AllGather)
      continue;
    if (arguments[find(steps[i].reads[0].buffer)] < 0)
      continue;
    auto [entry, first] = latest.try_emplace(gather->site, i);
    size_t before = std::exchange(entry->second, i);
    if (first)
      continue;
    double seconds = 0;
    size_t j = i;
    for (; j > before + 1 && !conflicts(steps[i], steps[j - 1]); --j)
      seconds += secondsOf(steps[j - 1].step);
    if (j > before + 1 || seconds < worthIt)
      continue;
    after[before].push_back(i);
    moved[i] = true;
  }
  std::vector<Recorded> all;
  for (size_t i = 0; i < after.size(); ++i) {
    if (!moved[i])
      all.push_back(std::move(steps[i]));
    for (size_t gather : after[i])
      all.push_back(std::move(steps[gather]));
  }
  steps = std::move(all);
}

void StepList::overlapCollectives(double worthIt) {
  std::map<size_t, std::vector<size_t>> awaits; ///< before this step: for these collectives
  for (size_t i = 0; i < steps.size(); ++i) {
    auto *collective = std::get_if<CollectiveStep>(&steps[i].step.action);
    if (!collective || steps[i].waits)
      continue;
    double seconds = 0;
    size_t j = i + 1;
    for (; j < steps.size() && !conflicts(steps[i], steps[j]); ++j)
      seconds += secondsOf(steps[j].step);
    if (j == i + 1 || seconds < worthIt)
      continue;
    collective->begun = true;
    awaits[j].push_back(i);
  }
  std::vector<Recorded> all;
  std::vector<int32_t> number(steps.size());
  for (size_t i = 0; i <= steps.size(); ++i) {
    if (auto found = awaits.find(i); found != awaits.end())
      for (size_t collective : found->second) {
        const Recorded &begun = all[number[collective]];
        Recorded await;
        await.step = {AwaitStep{number[collective]}, StepKind::Collective, begun.step.location,
                      begun.step.label};
        await.reads = begun.reads;
        await.writes = begun.writes;
        all.push_back(std::move(await));
      }
    if (i == steps.size())
      break;
    number[i] = static_cast<int32_t>(all.size());
    all.push_back(std::move(steps[i]));
  }
  steps = std::move(all);
}
