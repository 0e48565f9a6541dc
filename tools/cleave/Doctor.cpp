//===- Doctor.cpp - cleave doctor -----------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Emulate.h"
#include "Options.h"
#include "Print.h"

#include "runtime/core/Threads.h"
#include "runtime/executable/Format.h"

#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <thread>

namespace cleave::tool {

namespace fs = std::filesystem;

static bool isThere(const fs::path &path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// The program's full path, or empty.
static std::string findProgram(const std::string &name) {
  const char *path = std::getenv("PATH");
  std::string folders = std::string(path ? path : "") + ":/usr/local/cuda/bin";
  for (size_t at = 0; at <= folders.size();) {
    size_t end = std::min(folders.find(':', at), folders.size());
    fs::path candidate = fs::path(folders.substr(at, end - at)) / name;
    if (end > at && isThere(candidate))
      return candidate.string();
    at = end + 1;
  }
  return "";
}

/// "key   : value" of a file of the kernel's.
static std::string field(const char *file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0)
      continue;
    size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::string processorName() { return field("/proc/cpuinfo", "model name"); }

static int64_t kilobytes(const char *key) {
  return std::atoll(field("/proc/meminfo", key).c_str()) * 1024;
}

/// Numbers of the GPUs that the driver shows.
static std::vector<std::string> gpus() {
  std::vector<std::string> list;
  std::error_code failed;
  for (const auto &entry : fs::directory_iterator("/proc/driver/nvidia/gpus", failed)) {
    std::string model = field((entry.path() / "information").c_str(), "Model");
    list.push_back(model.empty() ? "a GPU" : model);
  }
  return list;
}

static Status runDoctor(const CommonOptions &o) {
  int cores = usableCores();
  auto machine = static_cast<int>(std::thread::hardware_concurrency());
  std::string processor = processorName();
  std::vector<std::string> features = cpuFeatures();
  int64_t total = kilobytes("MemTotal"), available = kilobytes("MemAvailable");
  std::string ptxas = findProgram("ptxas"), nvcc = findProgram("nvcc"), mpi = findProgram("mpirun");
  std::vector<std::string> cards = gpus();
  if (o.json) {
    outPretty({{"version", CLEAVE_VERSION},
               {"llvm", CLEAVE_LLVM_VERSION},
               {"processor", processor},
               {"cores_usable", cores},
               {"cores", machine},
               {"cpu_features", features},
               {"memory_bytes", total},
               {"memory_available_bytes", available},
               {"cuda_toolkit", !(ptxas + nvcc).empty()},
               {"gpus", cards},
               {"mpi", !mpi.empty()}});
    return {};
  }
  Table t({"cleave " CLEAVE_VERSION, "LLVM " CLEAVE_LLVM_VERSION}, {true, true});
  t.row({"processor", processor.empty() ? "unknown" : processor});
  t.row({"cores", fmt::format("{} usable of {}", cores, machine)});
  t.row({"vector units", features.empty() ? "none that Cleave knows"
                                          : fmt::format("{}", fmt::join(features, ", "))});
  t.row({"memory", total ? fmt::format("{}, {} available", bytesText(total), bytesText(available))
                         : "unknown"});
  std::string toolkit = !nvcc.empty() ? nvcc : ptxas;
  t.row({"CUDA toolkit", toolkit.empty() ? "not found" : toolkit});
  t.row({"GPUs", cards.empty() ? "none" : fmt::format("{}", fmt::join(cards, ", "))});
  t.row({"MPI", mpi.empty() ? "not found" : mpi});
  t.row({"ranks run as", "threads of one process on the processor"});
  out(t.text());
  return {};
}

void addDoctor(Commands &commands) {
  auto o = std::make_shared<CommonOptions>();
  CLI::App *app = commands.add("doctor", "Say what of this machine Cleave can use.",
                               "  cleave doctor\n  cleave doctor --json\n");
  addOutput(app, *o);
  commands.action(app, [o] { return runDoctor(*o); });
}

} // namespace cleave::tool
