//===- Calibrate.cpp - cleave calibrate: a profile of this machine --------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Emulate.h"
#include "Machine.h"

#include "runtime/core/AtomicFile.h"
#include "runtime/core/Threads.h"
#include "runtime/cpu/Roofline.h"

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fmt/format.h>

namespace cleave::tool {

/// JSON whose lists of numbers stand on one line.
static std::string profileText(const Json &value, size_t indent = 0) {
  auto plain = [](const Json &x) { return !x.is_structured(); };
  if (plain(value))
    return value.dump();
  bool list = value.is_array(), flat = list && std::all_of(value.begin(), value.end(), plain);
  if (flat) {
    std::string text;
    for (const Json &x : value)
      text += (text.empty() ? "" : ", ") + x.dump();
    return "[" + text + "]";
  }
  std::string lines, margin(indent + 2, ' ');
  for (const auto &[key, entry] : value.items())
    lines += fmt::format("{}{}{}{}", lines.empty() ? "\n" : ",\n", margin,
                         list ? "" : Json(key).dump() + ": ", profileText(entry, indent + 2));
  return fmt::format("{}{}\n{}{}", list ? "[" : "{", lines, std::string(indent, ' '),
                     list ? "]" : "}");
}

/// From the times of an all-reduce over two ranks, as Cluster.h has a link: of the smallest, twice
/// the latency; of the largest, besides, its bytes over the bandwidth.
static Json linkOf(const Json &collectives) {
  const Json &pair = collectives.at(0);
  double small = pair["us"].front(), large = pair["us"].back(), kilobytes = pair["kb"].back();
  auto rounded = [](double x) { return std::strtod(fmt::format("{:.4g}", x).c_str(), nullptr); };
  // Where the small one was disturbed more than the large one takes, all of that is transfer.
  double transfer = large > small ? large - small : large;
  return {{"name", "shared memory"},
          {"latency_us", rounded(small / 2)},
          {"bandwidth_gb_per_s", rounded(kilobytes / std::max(0.01, transfer))}};
}

static Status runCalibrate(const CommonOptions &o, bool quick) {
  std::string path = o.out.empty() ? machineProfilePath() : o.out;
  if (path.empty())
    return Error{"neither XDG_CONFIG_HOME nor HOME says where settings lie: give --out FILE"};
  if (o.out.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  }
  if (auto file = AtomicFile::create(path); !file) // before minutes of measuring
    return file.error();
  auto begin = std::chrono::steady_clock::now();
  Progress progress(o.quiet);
  Machine machine(quick, progress);
  int cores = usableCores();
  std::vector<Setting> settings = {{1, 1}};
  if (cores > 1)
    settings.insert(settings.end(), {{cores, 1}, {1, cores}});
  progress.say("the roofline");
  Roofline roofline = measureRoofline(1, DType::F32);
  auto collectives = machine.collectives(2);
  if (!collectives)
    return collectives.error();
  if (cores > 2) {
    auto more = machine.collectives(cores);
    if (!more)
      return more.error();
    collectives->insert(collectives->end(), more->begin(), more->end());
  }
  Json rates = Json::array();
  for (const Setting &setting : settings) {
    auto measured = machine.rates(setting);
    if (!measured)
      return measured.error();
    rates.push_back(std::move(*measured));
  }
  progress.clear();
  std::time_t today = std::time(nullptr);
  char date[32] = {};
  std::strftime(date, sizeof date, "%Y-%m-%d", std::localtime(&today));
  auto rounded = [](double x) { return std::strtod(fmt::format("{:.4g}", x).c_str(), nullptr); };
  Json profile = {
      {"name", machineProfile},
      {"about", fmt::format("{}, {} cores, measured on {} by cleave " CLEAVE_VERSION "{}",
                            processorName(), cores, date, quick ? ", quickly" : "")},
      {"levels", Json::array({linkOf(*collectives)})},
      {"collectives", std::move(*collectives)},
      {"compute",
       {{"speedup", 1},
        {"peak_gflops", rounded(roofline.flops * 1e-9)},
        {"memory_gb_per_s", rounded(roofline.bytes * 1e-9)},
        {"rates", std::move(rates)}}}};
  std::string text = profileText(profile) + "\n";
  if (auto read = parseCluster(text, path); !read)
    return Error{fmt::format("the profile cannot be read back: {}", read.error().message),
                 Fault::Internal};
  if (auto status = writeFileAtomically(path, text); !status)
    return status;
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (o.json)
    outPretty({{"profile", path}, {"seconds", seconds}, {"contents", profile}});
  else
    out(fmt::format("{}: {} in {:.0f} s\n", path, profile["about"].get<std::string>(), seconds));
  return {};
}

void addCalibrate(Commands &commands) {
  auto o = std::make_shared<CommonOptions>();
  auto quick = std::make_shared<bool>(false);
  CLI::App *app = commands.add(
      "calibrate",
      "Measure this machine, for predictions: products by shape, attention, passes over memory, "
      "collectives. Takes a minute or two, on a machine that does nothing else.",
      "  cleave calibrate\n  cleave explain models/gpt2.cleave --costs --measure\n"
      "  cleave calibrate --quick --out /tmp/machine.json\n"
      "  cleave explain models/gpt2.cleave --costs --cluster /tmp/machine.json\n");
  app->add_option("--out", o->out,
                  "write the profile here (cleave/machine.json in XDG_CONFIG_HOME or "
                  "~/.config: the profile `this`, for which predictions are then made without a "
                  "word)")
      ->type_name("FILE");
  app->add_flag("--quick", *quick, "few sizes and few runs: some seconds, less accurate");
  addOutput(app, *o);
  commands.action(app, [o, quick] { return runCalibrate(*o, *quick); });
}

} // namespace cleave::tool
