//===- Volumes.cpp - what collectives move, beside closed forms -----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/emulate/Volumes.h"

#include "runtime/comm/Communicator.h"
#include "runtime/core/Shard.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <set>

namespace cleave {

double Volume::unexplained() const {
  double rest = static_cast<double>(counted) - closed;
  for (const VolumeTerm &term : differences)
    rest -= term.bytes;
  return std::abs(rest) < 1e-6 * std::max(1.0, closed) ? 0 : rest;
}

namespace {

/// A collective site with what its steps say.
struct Site {
  const CollectiveSite *site = nullptr;
  const CollectiveStep *step = nullptr; ///< one of them
  double elements = 0;                  ///< of one execution, without padding
  int64_t width = 4;                    ///< bytes of an element

  bool moves(std::string_view what) const { return site->moves == what; }
  double perElement() const { return step->kind == CollectiveStep::Kind::AllReduce ? 2 : 1; }
  /// Elements times how often a ring moves them, in bytes.
  double bytes() const {
    return perElement() * elements * static_cast<double>(site->executions * width);
  }
  /// Executions in a layer, or outside of all: in micro-batches.
  double perLayer() const {
    return static_cast<double>(site->executions) /
           static_cast<double>(std::max<int64_t>(1, site->layers));
  }
  double padding() const { // bytes
    double more = static_cast<double>(site->payloadBytes) - elements * static_cast<double>(width);
    return perElement() * more * static_cast<double>(site->executions);
  }
  std::string dims() const {
    return site->tensors.size() == 1 ? site->tensors[0].dims
                                     : fmt::format("{} tensors", site->tensors.size());
  }
  std::string line() const {
    const std::string &at = site->location; // file:line:column
    size_t column = at.rfind(':'), name = at.rfind('/');
    name = name == std::string::npos ? 0 : name + 1;
    return column == std::string::npos || column < name ? at : at.substr(name, column - name);
  }
};

bool has(const std::vector<SubAxis> &axes, const SubAxis &axis) {
  return std::any_of(axes.begin(), axes.end(), [&](const SubAxis &a) {
    return a.axis == axis.axis && a.pre == axis.pre && a.size == axis.size;
  });
}

/// The sites over the same axes, and what is said of them.
class Form {
public:
  Form(const Program &program, std::vector<Site> sites)
      : program(program), sites(std::move(sites)) {
    volume.axes = this->sites.front().site->axes;
    volume.ranks = groupSize(*this->sites.front().step);
    for (const Site &s : this->sites)
      volume.counted += s.site->ringBytes * s.site->executions;
  }

  bool tensor(); ///< false: it is not about these sites
  bool data(const std::vector<Site> &all);

  Volume volume;

private:
  double share() const {
    return static_cast<double>(volume.ranks - 1) / static_cast<double>(volume.ranks);
  }
  /// `bytes`: moved if each rank sent all; a ring leaves out its own share.
  void differ(const std::string &what, double bytes) {
    if (bytes == 0)
      return;
    for (VolumeTerm &term : volume.differences)
      if (term.what == what) {
        term.bytes += bytes * share();
        return;
      }
    volume.differences.push_back({what, bytes * share()});
  }
  /// Padding and whole bytes, of all sites.
  void finish();
  /// Of a param, as a rank would have it if it were whole over the axes; 0: it does not learn.
  double elementsOf(const Argument &param) const;
  struct Moved;
  std::map<std::string, Moved> movedOf(const std::vector<Site> &all);
  bool learns(const Argument &param) const;
  struct Widths {
    int64_t sums = 0, gathers = 0;
    bool operator==(const Widths &) const = default;
  };
  Widths widthsOf(const std::string &direction, double stream) const;

  const Program &program;
  std::vector<Site> sites;
};

void Form::finish() {
  double padding = 0, exact = 0;
  for (const Site &s : sites) {
    padding += s.padding();
    exact += (s.bytes() + s.padding()) * share();
  }
  differ("padding of blocks that are not full", padding);
  double rounding = static_cast<double>(volume.counted) - exact;
  if (std::abs(rounding) > 1e-3)
    volume.differences.push_back({"parts of a ring are counted in whole bytes", rounding});
}

/// Bytes of an element of the residual stream as layers sum it up, and as they gather it; an
/// all-reduce does both.
Form::Widths Form::widthsOf(const std::string &direction, double stream) const {
  Widths widths;
  for (const Site &s : sites)
    if (s.site->layers && s.moves("activation") && s.site->phase == direction &&
        s.elements == stream) {
      bool gathers = s.step->kind == CollectiveStep::Kind::AllGather;
      if (!gathers)
        widths.sums = std::max(widths.sums, s.width);
      if (gathers || s.step->kind == CollectiveStep::Kind::AllReduce)
        widths.gathers = std::max(widths.gathers, s.width);
    }
  if (!widths.sums)
    widths.sums = widths.gathers;
  if (!widths.gathers)
    widths.gathers = widths.sums;
  return widths;
}

bool Form::tensor() {
  const Site *reference = nullptr; // the forward pass's, if it has one
  for (const char *phase : {"forward", "backward"})
    for (const Site &s : sites)
      if (!reference || reference->site->phase == phase)
        if (s.site->layers && s.moves("activation") && s.site->phase == phase &&
            (!reference || s.elements > reference->elements))
          reference = &s;
  if (!reference)
    return false;
  auto layers = static_cast<double>(reference->site->layers);
  double stream = reference->elements;
  double times = static_cast<double>(reference->site->executions) / layers; // micro-batches
  std::set<std::string> directions = {reference->site->phase};
  for (const Site &s : sites)
    if (s.site->phase != "optimizer")
      directions.insert(s.site->phase);
  volume.form = "tensor parallelism";
  const Widths first = widthsOf(reference->site->phase, stream);
  bool same = true; // in both directions
  for (const std::string &direction : directions) {
    Widths widths = widthsOf(direction, stream);
    same &= widths == first || widths == Widths();
  }
  std::string part = fmt::format("({0}-1)/{0}", volume.ranks);
  if (same && first.sums == first.gathers)
    volume.formula = fmt::format("4 b s h {} elements of {} bytes", part, first.sums);
  else if (same)
    volume.formula = fmt::format("2 b s h ({} + {}) {} bytes", first.sums, first.gathers, part);
  else
    volume.formula = fmt::format("2 b s h (s + g) {} bytes", part);
  volume.formula += " a layer and direction";
  volume.formula += fmt::format(": b s h of {}, {} layers{}, {}", reference->dims(), layers,
                                times > 1 ? fmt::format(", {} micro-batches", times) : "",
                                directions.size() == 2 ? "2 directions" : "1 direction");
  for (const std::string &direction : directions) {
    Widths widths = widthsOf(direction, stream);
    if (widths == Widths())
      widths = first;
    if (!same)
      volume.formula += fmt::format(", {} s={} g={}", direction, widths.sums, widths.gathers);
    double closed = 2 * stream * layers * times * static_cast<double>(widths.sums + widths.gathers);
    volume.closed += closed * share();
    double moved = 0;
    std::map<std::string, double> kinds; // each, in a layer
    for (const Site &s : sites)
      if (s.site->layers && s.moves("activation") && s.site->phase == direction &&
          s.elements == stream) {
        moved += s.bytes();
        kinds[s.site->kind] += static_cast<double>(s.site->executions) / (layers * times);
      }
    std::string text;
    for (const auto &[kind, count] : kinds)
      text += fmt::format("{}{:g} {}", text.empty() ? "" : ", ", count, kind);
    differ(fmt::format("in layers, {}: {} of b s h a layer, not what 2 all_reduce move", direction,
                       text.empty() ? "none" : text),
           moved - closed);
  }
  for (const Site &s : sites) {
    const CollectiveSite &site = *s.site;
    if (s.moves("gradient"))
      differ("gradients of params that the axis does not split", s.bytes());
    else if (s.moves("param"))
      differ("params that the axis splits and an op reads whole", s.bytes());
    else if (s.moves("norm"))
      differ("norm of the gradients", s.bytes());
    else if (!site.layers || s.elements != stream)
      differ(fmt::format("{}, {}: {} of {} at {}",
                         site.layers ? "in layers besides" : "outside of layers", site.phase,
                         site.kind, s.dims(), s.line()),
             s.bytes());
  }
  finish();
  return true;
}

bool Form::learns(const Argument &param) const {
  if (param.donatedTo >= 0)
    return true;
  return std::any_of(program.results.begin(), program.results.end(),
                     [&](const ProgramResult &r) { return r.name == "grad:" + param.name; });
}

double Form::elementsOf(const Argument &param) const {
  double n = 1;
  const std::vector<SubAxis> &over = sites.front().step->axes;
  for (const DimLayout &dim : param.layout.dims) {
    DimLayout whole = dim;
    std::erase_if(whole.axes, [&](const SubAxis &axis) { return has(over, axis); });
    n *= static_cast<double>(whole.block());
  }
  return n;
}

/// What is moved of one param over the form's axes, in elements of a step.
struct Form::Moved {
  struct Amount {
    double elements = 0, bytes = 0;
    void add(double more, int64_t width) {
      elements += more;
      bytes += more * static_cast<double>(width);
    }
    /// Bytes of an element; `none` if nothing was moved.
    double width(double none) const { return elements > 0 ? bytes / elements : none; }
  };
  Amount sums;             ///< twice if all-reduced; of one micro-batch if each has its own
  Amount before;           ///< gathered for the forward and backward pass
  Amount after;            ///< gathered once it is updated
  int64_t parts = 0;       ///< sums
  double part = 0;         ///< elements of the last of them
  std::string dims;        ///< of it
  std::string over, under; ///< other axes of its sums: those with ours among them; apart, scattered
};

std::map<std::string, Form::Moved> Form::movedOf(const std::vector<Site> &all) {
  std::map<std::string, Moved> params;
  const auto &own = sites.front().step->axes;
  for (const Site &s : all) {
    double times = s.perLayer();
    bool ours = s.site->axes == volume.axes;
    auto theirsToo = [&](const SubAxis &axis) { return has(s.step->axes, axis); };
    if (ours && s.moves("gradient") && times > 1)
      differ(fmt::format("gradients that are summed in each of {:g} micro-batches", times),
             s.bytes() * (1 - 1 / times));
    for (const CollectiveSite::Tensor &t : s.site->tensors) {
      Moved &m = params[t.param];
      double elements = static_cast<double>(t.elements) * static_cast<double>(s.site->executions);
      if (s.moves("param") && ours) {
        (s.site->phase == "optimizer" ? m.after : m.before).add(elements, s.width);
      } else if (s.moves("gradient") && ours) {
        m.sums.add(s.perElement() * elements / times, s.width);
        ++m.parts;
        m.part = elements / times;
        m.dims = t.dims;
      } else if (s.moves("gradient")) {
        if (std::all_of(own.begin(), own.end(), theirsToo))
          m.over = s.site->axes;
        else if (s.step->kind == CollectiveStep::Kind::ReduceScatter &&
                 std::none_of(own.begin(), own.end(), theirsToo))
          m.under = s.site->axes;
      }
    }
  }
  return params;
}

bool Form::data(const std::vector<Site> &all) {
  bool sums = false, scatters = false, gathersBefore = false, narrower = false;
  const auto &own = sites.front().step->axes;
  for (const Site &s : sites) {
    sums |= s.moves("gradient");
    scatters |= s.moves("gradient") && s.step->kind == CollectiveStep::Kind::ReduceScatter;
    gathersBefore |= s.moves("param") && s.site->phase != "optimizer";
  }
  for (const Site &s : all) // the forms of these say what is summed over more at once
    narrower |= s.moves("gradient") && s.step->axes.size() < own.size() &&
                std::all_of(
                    s.step->axes.begin(), s.step->axes.end(),
                    [&](const SubAxis &axis) { return has(own, axis); });
  if ((!sums && !gathersBefore) || narrower)
    return false;
  int level = gathersBefore ? 3 : scatters ? 2 : 0;
  std::map<std::string, Moved> moved = movedOf(all);
  double params = 0, summed = 0, gathered = 0; // elements; bytes
  std::set<double> widths;
  for (const Argument &a : program.arguments) {
    if (a.role != Argument::Role::Param)
      continue;
    double n = elementsOf(a);
    const Moved &m = moved[a.name];
    if (!learns(a)) {
      differ("params that do not learn are gathered too", m.before.bytes);
      continue;
    }
    params += n;
    bool split = m.before.elements > 0 || m.after.elements > 0;
    double sumWidth = m.sums.width(static_cast<double>(byteSize(a.layout.dtype)));
    double gatherWidth = (level == 3 ? m.before : m.after).width(sumWidth);
    summed += n * sumWidth;
    gathered += n * gatherWidth;
    widths.insert({sumWidth, gatherWidth});
    double once = split ? n : 2 * n; // a gradient that is reduce-scattered, or all-reduced
    if (level == 3 && !split)
      differ("params that stay whole: summed as such, not gathered",
             n * (sumWidth - 2 * gatherWidth));
    else if (level == 3 && m.before.elements < 2 * n)
      differ("params that the backward pass has no use for: gathered once",
             m.before.bytes - 2 * n * gatherWidth);
    else if (level == 3)
      differ(fmt::format("params that are gathered {:g} times, not twice", m.before.elements / n),
             m.before.bytes - 2 * n * gatherWidth);
    if (m.sums.elements == once)
      continue;
    std::string why;
    if (m.parts == 0)
      why =
          m.over.empty()
              ? fmt::format("the gradient of {} is not summed", a.name)
              : fmt::format("gradients that are summed over {} at once: not counted here", m.over);
    else if (m.parts > 1)
      why = fmt::format("the gradient of {} is summed in {} parts", a.name, m.parts);
    else if (m.part < n && m.under.empty())
      why = fmt::format("of {} only {} is summed", a.name, m.dims);
    else if (m.part < n)
      why = fmt::format("gradients that are in shards over {} already", m.under);
    else if (m.part > n)
      why = "gradients that are summed before other axes split them";
    else
      why = "gradients that are all-reduced where a part was enough";
    differ(why, m.sums.bytes - once * sumWidth);
  }
  volume.form = fmt::format("data parallelism ({})", level == 3   ? "ZeRO 3"
                                                     : level == 2 ? "ZeRO 1 or 2"
                                                                  : "ZeRO 0");
  double summing = level == 0 ? 2 : 1, gathering = level == 3 ? 2 : level == 2 ? 1 : 0;
  volume.closed = (summing * summed + gathering * gathered) * share();
  if (widths.size() == 1)
    volume.formula =
        fmt::format("{0} P ({1}-1)/{1}: P of {2:.0f} elements of {3:g} bytes, the params "
                    "that learn, of one rank",
                    summing + gathering, volume.ranks, params, *widths.begin());
  else if (level == 0)
    volume.formula = fmt::format("2 S ({0}-1)/{0}: S of {1:.0f} bytes, the gradients of {2:.0f} "
                                 "elements that learn, of one rank",
                                 volume.ranks, summed, params);
  else
    volume.formula =
        fmt::format("(S + {0}G) ({1}-1)/{1}: of the {2:.0f} elements that learn, of one "
                    "rank, S of {3:.0f} bytes as gradients are summed, G of {4:.0f} "
                    "bytes as params are gathered",
                    level == 3 ? "2 " : "", volume.ranks, params, summed, gathered);
  for (const Site &s : sites) {
    if (s.moves("norm"))
      differ("norm of the gradients", s.bytes());
    else if (s.moves("activation"))
      differ(fmt::format("{}: {} of {} at {}", s.site->phase, s.site->kind, s.dims(), s.line()),
             s.bytes());
  }
  finish();
  return true;
}

} // namespace

std::vector<Volume> closedForms(const Program &program) {
  std::vector<Site> all(program.collectiveSites.size());
  for (const Step &step : program.steps)
    if (const auto *c = std::get_if<CollectiveStep>(&step.action); c && c->site >= 0)
      all[static_cast<size_t>(c->site)] = {&program.collectiveSites[static_cast<size_t>(c->site)],
                                           c, 0, byteSize(c->dtype)};
  std::erase_if(all, [](const Site &s) { return !s.step || groupSize(*s.step) < 2; });
  for (Site &s : all)
    for (const CollectiveSite::Tensor &t : s.site->tensors)
      s.elements += static_cast<double>(t.elements);
  std::vector<std::string> axes;
  for (const Site &s : all)
    if (std::find(axes.begin(), axes.end(), s.site->axes) == axes.end())
      axes.push_back(s.site->axes);
  std::vector<Volume> volumes;
  for (const std::string &over : axes) {
    std::vector<Site> sites;
    for (const Site &s : all)
      if (s.site->axes == over)
        sites.push_back(s);
    Form form(program, std::move(sites));
    if (form.tensor() || form.data(all))
      volumes.push_back(std::move(form.volume));
  }
  return volumes;
}

} // namespace cleave
