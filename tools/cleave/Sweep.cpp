//===- Sweep.cpp - the same program on faster and slower links ------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Costs.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>

namespace cleave::tool {

static constexpr int points = 12;

using Units = std::vector<std::pair<std::string, double>>;
static const Units bandwidths = {{"GB/s", 1e9}, {"MB/s", 1e6}, {"Gb/s", 1e9 / 8}};
static const Units latencies = {{"us", 1e-6}, {"ms", 1e-3}, {"ns", 1e-9}};

Result<Sweep> Sweep::parse(const std::string &text) {
  auto wrong = [&](const std::string &why) {
    return Error{
        fmt::format("--sweep {}: {}, as in bandwidth=1..900GB/s or latency=1..100us", text, why)};
  };
  size_t equals = text.find('='), dots = text.find("..");
  if (equals == std::string::npos || dots == std::string::npos || dots < equals)
    return wrong("expected a quantity and two numbers");
  Sweep sweep;
  sweep.what = text.substr(0, equals);
  if (sweep.what != "bandwidth" && sweep.what != "latency")
    return wrong(fmt::format("there is no '{}'{} (there are bandwidth, latency)", sweep.what,
                             meant(sweep.what, {"bandwidth", "latency"})));
  double from = 0, to = 0;
  const char *begin = text.data() + equals + 1, *middle = text.data() + dots,
             *last = text.data() + text.size();
  auto first = std::from_chars(begin, middle, from);
  auto second = std::from_chars(middle + 2, last, to);
  if (first.ec != std::errc() || first.ptr != middle || second.ec != std::errc())
    return wrong("expected a quantity and two numbers");
  std::string unit(second.ptr, last);
  std::vector<std::string> names;
  for (const auto &[name, factor] : sweep.what == "bandwidth" ? bandwidths : latencies) {
    names.push_back(name);
    if (unit != name)
      continue;
    sweep.from = from * factor;
    sweep.to = to * factor;
    if (!(from > 0) || !(to > from) || !std::isfinite(sweep.to))
      return wrong(
          fmt::format("{} to {} is no way from a number above 0 to a larger one", from, to));
    return sweep;
  }
  return wrong(fmt::format("there is no unit '{}' of {}{} (there are {})", unit, sweep.what,
                           meant(unit, names), fmt::join(names, ", ")));
}

static size_t levelOf(const Network &network) {
  const auto &levels = network.cluster().levels;
  size_t level = 0;
  while (level + 1 < levels.size() && levels[level].ranks < network.ranks())
    ++level;
  return level;
}

SweptPlan sweep(const std::string &plan, const Program &program, const Costs &costs,
                const Sweep &range) {
  size_t level = levelOf(costs.network);
  SweptPlan swept{plan, costs.where(), costs.how(), costs.network.cluster().levels[level].name, {}};
  for (int i = 0; i < points; ++i) {
    SweepPoint point;
    point.value = range.from * std::pow(range.to / range.from, i / double(points - 1));
    Network network = costs.network.with([&](Cluster &cluster) {
      LinkLevel &link = cluster.levels[level];
      (range.what == "bandwidth" ? link.bandwidth : link.latency) = point.value;
    });
    ClockedRun run = wind(program, network, costs.times);
    point.seconds = run.seconds;
    point.collectives = totalTime(siteTimes(program, run));
    swept.points.push_back(point);
  }
  return swept;
}

static std::string valueText(const Sweep &range, double value) {
  if (range.what == "latency")
    return secondsText(value);
  return value < 1e9 ? fmt::format("{:.3g} MB/s", value * 1e-6)
                     : fmt::format("{:.3g} GB/s", value * 1e-9);
}

static double shareOf(const SweepPoint &p) {
  return p.seconds > 0 ? 100 * p.collectives.exposed / p.seconds : 0;
}

/// The levels that are swept: one, if all meshes reach the same.
static std::string levelsText(const std::vector<SweptPlan> &plans) {
  std::string text;
  for (const SweptPlan &plan : plans)
    if (text.find(plan.level) == std::string::npos)
      text += (text.empty() ? "" : ", ") + plan.level;
  return text;
}

std::string sweepText(const Sweep &range, const std::vector<SweptPlan> &plans) {
  bool alone = plans.size() == 1;
  std::vector<std::string> header = {range.what};
  for (const SweptPlan &plan : plans)
    if (alone)
      header.insert(header.end(), {"step", "collectives", "exposed", "share of the step"});
    else
      header.insert(header.end(), {plan.plan, "exposed"});
  Table t(header);
  for (size_t i = 0; i < plans[0].points.size(); ++i) {
    std::vector<std::string> row = {valueText(range, plans[0].points[i].value)};
    for (const SweptPlan &plan : plans) {
      const SweepPoint &p = plan.points[i];
      row.push_back(secondsText(p.seconds));
      if (alone)
        row.insert(row.end(),
                   {secondsText(p.collectives.transfer), secondsText(p.collectives.exposed)});
      row.push_back(fmt::format("{:.1f} %", shareOf(p)));
    }
    t.row(row);
  }
  return fmt::format("{} of {} from {} to {}, {}\n\n{}", range.what, levelsText(plans),
                     valueText(range, range.from), valueText(range, range.to), plans[0].where,
                     t.text());
}

Json sweepJson(const Sweep &range, const SweptPlan &plan) {
  Json rows = Json::array();
  for (const SweepPoint &p : plan.points)
    rows.push_back({{range.what == "bandwidth" ? "bytes_per_second" : "seconds", p.value},
                    {plan.how + "_seconds", p.seconds},
                    {plan.how + "_communication_seconds", p.collectives.transfer},
                    {plan.how + "_exposed_seconds", p.collectives.exposed},
                    {plan.how + "_waiting_seconds", p.collectives.waiting}});
  return {{"plan", plan.plan}, {"what", range.what}, {"level", plan.level}, {"points", rows}};
}

//===----------------------------------------------------------------------===//
// The plot
//===----------------------------------------------------------------------===//

namespace {

/// From one number to another, along a side of a picture.
struct Axis {
  double from, to;
  bool logarithmic;
  double begin, end; ///< in the picture

  double at(double value) const {
    double part =
        logarithmic ? std::log(value / from) / std::log(to / from) : (value - from) / (to - from);
    return begin + part * (end - begin);
  }
  /// 1, 2 and 5 times powers of ten; all of them over less than two decades.
  std::vector<double> ticks() const {
    std::vector<double> list;
    if (!logarithmic) {
      for (int i = 0; i <= 5; ++i)
        list.push_back(from + (to - from) * i / 5);
      return list;
    }
    bool few = to / from > 100;
    for (int power = static_cast<int>(std::floor(std::log10(from))); power <= 12; ++power)
      for (double digit : {1.0, 2.0, 5.0}) {
        double value = digit * std::pow(10, power);
        if (value >= from * 0.999 && value <= to * 1.001 && (!few || digit == 1))
          list.push_back(value);
      }
    return list;
  }
};

/// The end of an axis from 0 that goes past the value in five steps of few digits.
double roundTop(double value) {
  double step = std::max(value, 1e-12) * 1.02 / 5,
         power = std::pow(10, std::floor(std::log10(step)));
  for (double digits : {1.0, 2.0, 2.5, 4.0, 5.0})
    if (digits * power >= step)
      return 5 * digits * power;
  return 50 * power;
}

std::string xmlText(const std::string &text) {
  std::string out;
  for (char c : text)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

class Svg {
public:
  void line(double x1, double y1, double x2, double y2, const char *colour, double width = 1) {
    body += fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' stroke='{}' "
                        "stroke-width='{}'/>\n",
                        x1, y1, x2, y2, colour, width);
  }
  void text(double x, double y, const std::string &what, const char *anchor, double size = 13,
            const std::string &more = "") {
    body += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='{}' font-size='{}'{}>{}</text>\n",
                        x, y, anchor, size, more, xmlText(what));
  }
  void curve(const std::vector<std::pair<double, double>> &list, const char *colour,
             const char *dashes) {
    std::string path;
    for (const auto &[x, y] : list)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x, y);
    body += fmt::format("<path d='{}' fill='none' stroke='{}' stroke-width='2.5'{}/>\n", path,
                        colour, *dashes ? fmt::format(" stroke-dasharray='{}'", dashes) : "");
    for (const auto &[x, y] : list)
      body += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='3' fill='{}'/>\n", x, y, colour);
  }
  std::string whole(double width, double height) const {
    return fmt::format("<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' "
                       "viewBox='0 0 {0} {1}' font-family='sans-serif' fill='#222'>\n"
                       "<rect width='{0}' height='{1}' fill='white'/>\n{2}</svg>\n",
                       width, height, body);
  }

private:
  std::string body;
};

struct Curve {
  std::string name;
  const char *colour, *dashes;
  std::vector<double> values;
};

/// A panel: curves over the swept quantity, with its axes.
void panel(Svg &svg, const Axis &x, const Axis &y, const std::vector<double> &at,
           const std::vector<Curve> &curves, const std::string &label,
           const std::function<std::string(double)> &tick) {
  for (double value : y.ticks()) {
    svg.line(x.begin, y.at(value), x.end, y.at(value), "#ddd");
    svg.text(x.begin - 8, y.at(value) + 4, tick(value), "end");
  }
  for (double value : x.ticks())
    svg.line(x.at(value), y.begin, x.at(value), y.end, "#eee");
  svg.line(x.begin, y.begin, x.end, y.begin, "#444");
  svg.line(x.begin, y.begin, x.begin, y.end, "#444");
  double middle = (y.begin + y.end) / 2;
  svg.text(22, middle, label, "middle", 14,
           fmt::format(" transform='rotate(-90 22 {:.1f})'", middle));
  double legend = y.end + 8;
  for (const Curve &c : curves) {
    std::vector<std::pair<double, double>> list;
    for (size_t i = 0; i < at.size(); ++i)
      if (!y.logarithmic || c.values[i] > 0)
        list.emplace_back(x.at(at[i]), y.at(std::max(c.values[i], y.from)));
    svg.curve(list, c.colour, c.dashes);
    svg.curve({{x.end + 16, legend}, {x.end + 44, legend}}, c.colour, c.dashes);
    svg.text(x.end + 52, legend + 4, c.name, "start");
    legend += 22;
  }
}

} // namespace

std::string sweepSvg(const std::string &title, const Sweep &range,
                     const std::vector<SweptPlan> &plans) {
  constexpr double width = 920, left = 100, right = 640;
  constexpr const char *colours[] = {"#1f5fbf", "#b01e3c", "#2b8a3e",
                                     "#c2571a", "#6f42a8", "#444444"};
  std::vector<Curve> times, shares;
  std::vector<double> at;
  for (const SweepPoint &p : plans[0].points)
    at.push_back(p.value);
  auto curve = [&](const std::string &name, const char *colour, const char *dashes, auto &&value,
                   const SweptPlan &plan) {
    Curve c{name, colour, dashes, {}};
    for (const SweepPoint &p : plan.points)
      c.values.push_back(value(p));
    return c;
  };
  auto step = [](const SweepPoint &p) { return p.seconds; };
  auto transfer = [](const SweepPoint &p) { return p.collectives.transfer; };
  auto exposed = [](const SweepPoint &p) { return p.collectives.exposed; };
  if (plans.size() == 1) {
    times = {curve("step", colours[0], "", step, plans[0]),
             curve("collectives", colours[3], "6 4", transfer, plans[0]),
             curve("exposed", colours[1], "", exposed, plans[0])};
    shares = {curve("exposed", colours[1], "", shareOf, plans[0])};
  }
  for (size_t i = 0; plans.size() > 1 && i < plans.size(); ++i) {
    const char *colour = colours[i % std::size(colours)];
    times.push_back(curve(plans[i].plan, colour, "", step, plans[i]));
    shares.push_back(curve(plans[i].plan + ", exposed", colour, "6 4", shareOf, plans[i]));
  }
  double most = 0, least = 1e300;
  for (const Curve &c : times)
    for (double value : c.values) {
      most = std::max(most, value);
      if (value > 0)
        least = std::min(least, value);
    }
  bool wide = most > 20 * least;
  Axis x{range.from, range.to, true, left, right};
  // Of a curve that falls to nothing four decades are shown.
  Axis y = wide ? Axis{std::max(least, most / 1e4) * 0.8, most * 1.25, true, 340, 70}
                : Axis{0, roundTop(most), false, 340, 70};
  Axis part{0, 100, false, 520, 380};
  Svg svg;
  svg.text(left, 28, title, "start", 16, " font-weight='bold'");
  svg.text(left, 48, fmt::format("{}; {} of {}", plans[0].where, range.what, levelsText(plans)),
           "start");
  panel(svg, x, y, at, times, "time of a step", secondsText);
  panel(svg, x, part, at, shares, "share of the step",
        [](double value) { return fmt::format("{:.0f} %", value); });
  for (double value : x.ticks())
    svg.text(x.at(value), part.begin + 20, valueText(range, value), "middle");
  svg.text((left + right) / 2, part.begin + 46,
           range.what == "bandwidth" ? "bandwidth of a link, in each direction"
                                     : "latency of a link",
           "middle", 14);
  return svg.whole(width, 590);
}

} // namespace cleave::tool
