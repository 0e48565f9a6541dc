//===- Profile.cpp - where a step's time goes -----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Profile.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace cleave::tool {

static constexpr std::pair<StepKind, const char *> kinds[] = {
    {StepKind::Gemm, "GEMM"},
    {StepKind::Attention, "attention"},
    {StepKind::Elementwise, "elementwise"},
    {StepKind::Optimizer, "optimizer"},
    {StepKind::Collective, "collectives"},
    {StepKind::Copy, "copy"}};

const char *kindText(StepKind kind) {
  for (const auto &[k, text] : kinds)
    if (k == kind)
      return text;
  return "";
}

std::string stepName(const Program &program, const Step &step) {
  if (std::holds_alternative<AwaitStep>(step.action))
    return "await " + (step.label >= 0 ? program.labels[static_cast<size_t>(step.label)].ops : "");
  std::string ops = step.label >= 0 ? program.labels[static_cast<size_t>(step.label)].ops : "";
  if (const auto *g = std::get_if<GemmStep>(&step.action)) {
    std::string batch = g->batch > 1 ? fmt::format("{} x ", g->batch) : "";
    const char *layout = g->transA ? (g->transB ? "TT" : "TN") : g->transB ? "NT" : "NN";
    return fmt::format("{} {}{}x{}x{} {}", ops, batch, g->m, g->n, g->k, layout);
  }
  return ops;
}

std::string stepSource(const Program &program, const Step &step) {
  if (step.label < 0)
    return "";
  const std::string &source = program.labels[static_cast<size_t>(step.label)].source;
  return source.substr(source.rfind('/') + 1);
}

std::vector<KernelGroup> kernelGroups(const Program &program) {
  std::map<std::tuple<std::string, std::string, StepKind>, KernelGroup> groups;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step &step = program.steps[i];
    std::string name = stepName(program, step), source = stepSource(program, step);
    KernelGroup &group = groups[{name, source, step.kind}];
    if (group.steps.empty())
      group = {name, source, step.kind, {}};
    group.steps.push_back(i);
  }
  std::vector<KernelGroup> list;
  for (auto &[key, group] : groups)
    list.push_back(std::move(group));
  return list;
}

std::vector<KernelTime> kernelTimes(const Session &session, size_t program, int64_t runs) {
  const Program &p = session.executable().programs[program];
  auto all = session.profile(program);
  double share = 1.0 / (double(std::max<int64_t>(1, runs)) * double(all.size()));
  std::vector<KernelTime> list;
  for (KernelGroup &group : kernelGroups(p)) {
    KernelTime k;
    k.name = std::move(group.name);
    k.source = std::move(group.source);
    k.kind = group.kind;
    k.count = std::ssize(group.steps);
    for (size_t i : group.steps) {
      k.bytes += double(p.steps[i].bytes);
      k.flops += double(p.steps[i].flops);
      for (const auto &rank : all)
        if (i < rank.size()) {
          k.seconds += rank[i].seconds * share;
          k.waitSeconds += rank[i].waitSeconds * share;
        }
    }
    list.push_back(std::move(k));
  }
  std::sort(list.begin(), list.end(),
            [](const auto &x, const auto &y) { return x.seconds > y.seconds; });
  return list;
}

std::vector<std::pair<std::string, double>> timeByKind(const std::vector<KernelTime> &kernels) {
  std::vector<std::pair<std::string, double>> list;
  double waiting = 0;
  for (const auto &[kind, text] : kinds) {
    double seconds = 0;
    for (const KernelTime &k : kernels)
      if (k.kind == kind)
        seconds += k.working();
    list.emplace_back(text, seconds);
  }
  for (const KernelTime &k : kernels)
    waiting += k.waitSeconds;
  list.emplace_back("waiting", waiting);
  return list;
}

static Roofline ofRank(const Roofline &all, int ranks) {
  return {all.flops / ranks, all.bytes / ranks};
}

std::string kernelTable(const std::vector<KernelTime> &kernels, const Roofline &roofline, int ranks,
                        double perRun) {
  constexpr size_t most = 24;
  constexpr size_t widest = 52;
  Table t({"kernels", "times", "time", "share", "GFLOP/s", "GB/s", "of roofline", "source"},
          {true, false, false, false, false, false, false, true});
  Roofline rank = ofRank(roofline, ranks);
  double rest = 0;
  int64_t left = 0;
  auto percent = [&](double x) {
    return fmt::format("{:.1f} %", perRun > 0 ? 100 * x / perRun : 0);
  };
  for (size_t i = 0; i < kernels.size(); ++i) {
    const KernelTime &k = kernels[i];
    if (i >= most || k.seconds < 0.0005 * perRun) {
      rest += k.seconds;
      left += k.count;
      continue;
    }
    // A name's end has the sizes of a product.
    std::string name = k.name;
    if (name.size() > widest)
      name = name.substr(0, widest / 2 - 2) + "..." + name.substr(name.size() - widest / 2 + 1);
    double time = std::max(k.working(), 1e-12);
    bool works = k.kind != StepKind::Collective;
    t.row({name, std::to_string(k.count), secondsText(k.seconds), percent(k.seconds),
           k.flops > 0 ? fmt::format("{:.1f}", k.flops / time * 1e-9) : "",
           fmt::format("{:.1f}", k.bytes / time * 1e-9),
           works ? fmt::format("{:.0f} %", 100 * k.ofRoofline(rank)) : "", k.source});
  }
  if (left)
    t.row({fmt::format("{} more", left), "", secondsText(rest), percent(rest), "", "", "", ""});
  return t.text("  ") +
         fmt::format("\n  roofline of a rank, measured now: {:.1f} GFLOP/s, {:.1f} GB/s\n",
                     rank.flops * 1e-9, rank.bytes * 1e-9);
}

Json kernelsJson(const std::vector<KernelTime> &kernels, const Roofline &roofline, int ranks) {
  Json list = Json::array();
  Roofline rank = ofRank(roofline, ranks);
  for (const KernelTime &k : kernels)
    list.push_back({{"name", k.name},
                    {"kind", kindText(k.kind)},
                    {"source", k.source},
                    {"count", k.count},
                    {"seconds", k.seconds},
                    {"wait_seconds", k.waitSeconds},
                    {"flops", k.flops},
                    {"bytes", k.bytes},
                    {"of_roofline", k.ofRoofline(rank)}});
  return {{"kernels", list},
          {"roofline_flops_per_second", rank.flops},
          {"roofline_bytes_per_second", rank.bytes}};
}

} // namespace cleave::tool
