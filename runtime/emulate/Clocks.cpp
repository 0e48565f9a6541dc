//===- Clocks.cpp - the virtual clocks of emulated ranks ------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/emulate/Clocks.h"

#include "runtime/emulate/Reuse.h"

#include <algorithm>

namespace cleave {

ClockedRun wind(const Program &program, Network &network, const ComputeTimes &times) {
  auto ranks = static_cast<size_t>(network.ranks());
  ClockedRun run;
  run.ranks.assign(ranks, std::vector<ClockedStep>(program.steps.size()));
  std::vector<double> clock(ranks, 0.0), stream(ranks, 0.0); ///< stream: when it is free
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const StepAction &action = program.steps[i].action;
    if (const auto *collective = std::get_if<CollectiveStep>(&action)) {
      const Network::Groups &groups = network.groups(*collective);
      for (size_t g = 0; g < groups.members.size(); ++g) {
        double start = 0, took = network.seconds(*collective, g);
        for (int32_t member : groups.members[g]) {
          auto r = static_cast<size_t>(member);
          start = std::max({start, clock[r], stream[r]});
        }
        for (int32_t member : groups.members[g]) {
          auto r = static_cast<size_t>(member);
          ClockedStep &step = run.ranks[r][i];
          step.begin = clock[r];
          step.transferBegin = start;
          step.transfer = took;
          stream[r] = start + took;
          if (collective->begun)
            continue;
          step.waiting = start - clock[r];
          step.seconds = step.waiting + took;
          clock[r] = stream[r];
        }
      }
      continue;
    }
    for (size_t r = 0; r < ranks; ++r) {
      ClockedStep &step = run.ranks[r][i];
      step.begin = clock[r];
      if (const auto *await = std::get_if<AwaitStep>(&action)) {
        const ClockedStep &begun = run.ranks[r][static_cast<size_t>(await->step)];
        double end = begun.transferBegin + begun.transfer;
        step.seconds = std::max(0.0, end - clock[r]);
        step.waiting = std::max(0.0, begun.transferBegin - clock[r]);
      } else {
        step.seconds = times[r][i];
      }
      clock[r] += step.seconds;
    }
  }
  run.seconds = *std::max_element(clock.begin(), clock.end());
  return run;
}

/// Of a step that computes or copies. What it touches lies as far away as its reuse distance says:
/// a product and an attention were measured with operands at hand, and take so much longer.
static double secondsOf(const Step &step, const std::vector<Touched> &touched, const Rates &rates) {
  double moving = 0, atHand = rates.moved(double(step.bytes), double(step.bytes));
  for (const Touched &t : touched)
    moving += rates.moved(t.bytes, t.distance);
  double farther = std::max(0.0, moving - atHand);
  PassShape pass{double(step.bytes), double(step.flops), step.functions};
  for (int64_t count : step.functions)
    pass.flops -= 10 * double(count);
  if (step.attention.heads)
    return rates.attentionOf(step.attention) + farther + // dropout
           rates.pass({0, 0, step.functions}) - rates.launch;
  const auto *gemm = std::get_if<GemmStep>(&step.action);
  if (!gemm)
    return std::max(rates.pass(pass, 0), rates.launch + moving);
  ProductShape product{gemm->batch,           gemm->m,      gemm->n,     gemm->k,
                       byteSize(gemm->dtype), gemm->transA, gemm->transB};
  // What its epilogue does besides, without a launch of its own.
  pass.bytes = std::max(0.0, pass.bytes - product.bytes());
  pass.flops = std::max(0.0, pass.flops - product.flops());
  return rates.product(product) + rates.pass(pass) - rates.launch + farther;
}

ComputeTimes predictCompute(const Program &program, const Cluster &cluster, int64_t ranks,
                            int threads) {
  Rates rates = cluster.ratesFor(threads, ranks);
  std::vector<double> one;
  std::vector<std::vector<Touched>> touched;
  if (!cluster.rates.empty())
    touched = reuseDistances(program);
  for (const Step &step : program.steps)
    if (std::holds_alternative<CollectiveStep>(step.action) ||
        std::holds_alternative<AwaitStep>(step.action))
      one.push_back(0);
    else if (cluster.rates.empty())
      one.push_back(
          std::max(double(step.flops) / rates.flops, double(step.bytes) / rates.memoryBandwidth));
    else
      one.push_back(secondsOf(step, touched[one.size()], rates));
  return ComputeTimes(static_cast<size_t>(ranks), one);
}

std::vector<SiteTime> siteTimes(const Program &program, const ClockedRun &run) {
  std::vector<SiteTime> sites(program.collectiveSites.size());
  double share = 1 / double(run.ranks.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const auto *await = std::get_if<AwaitStep>(&program.steps[i].action);
    const auto *collective = std::get_if<CollectiveStep>(
        &program.steps[await ? static_cast<size_t>(await->step) : i].action);
    if (!collective || collective->site < 0)
      continue;
    SiteTime &site = sites[static_cast<size_t>(collective->site)];
    site.times += !await;
    for (const auto &steps : run.ranks) {
      site.transfer += steps[i].transfer * share;
      site.exposed += steps[i].seconds * share;
      site.waiting += steps[i].waiting * share;
    }
  }
  return sites;
}

SiteTime totalTime(const std::vector<SiteTime> &sites) {
  SiteTime all;
  for (const SiteTime &site : sites) {
    all.times += site.times;
    all.transfer += site.transfer;
    all.exposed += site.exposed;
    all.waiting += site.waiting;
  }
  return all;
}

} // namespace cleave
