//===- Session.cpp - an executable at work --------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executor/Session.h"

#include "runtime/comm/ThreadCommunicator.h"
#include "runtime/core/Init.h"
#include "runtime/core/NearMatch.h"
#include "runtime/core/Shard.h"
#include "runtime/core/Threads.h"
#include "runtime/cpu/CpuDevice.h"
#include "runtime/executable/Format.h"
#include "runtime/executor/Rank.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <limits>
#include <mutex>
#include <new>
#include <set>
#include <thread>

namespace cleave {

Result<FaultInjection> FaultInjection::parse(std::string_view text) {
  FaultInjection fault;
  auto refuse = [&] {
    return Error{
        fmt::format("fault '{}': expected rank=N,step=N,kind=throw|bad_alloc|hang|skip", text)};
  };
  std::string_view rest = text;
  while (!rest.empty()) {
    size_t comma = rest.find(',');
    std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      return refuse();
    std::string_view key = item.substr(0, equals), value = item.substr(equals + 1);
    if (key == "kind") {
      constexpr std::array<std::string_view, 4> kinds = {"throw", "bad_alloc", "hang", "skip"};
      auto found = std::find(kinds.begin(), kinds.end(), value);
      if (found == kinds.end())
        return refuse();
      fault.kind = static_cast<Kind>(found - kinds.begin());
      continue;
    }
    int64_t number = 0;
    auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (failed != std::errc() || end != value.data() + value.size() || number < 0)
      return refuse();
    if (key == "rank")
      fault.rank = static_cast<int>(number);
    else if (key == "step")
      fault.step = number;
    else
      return refuse();
  }
  return fault;
}

struct Session::State {
  std::shared_ptr<const Executable> executable;
  std::shared_ptr<const KernelSource> kernels;
  SessionOptions options;
  int workers = 1;
  std::unique_ptr<ThreadWorld> world;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<const Argument *> persistent; ///< first declaration of each name
  std::map<std::string, const Argument *, std::less<>> byName;
  std::set<std::string, std::less<>> hasValue;

  // Emulation.
  std::optional<Network> network;
  ComputeTimes computeTimes;
  ClockedRun clocks;
  double clocked = 0;                              ///< seconds of all runs before
  std::vector<std::vector<StepEvent>> virtualTime; ///< [rank]

  // The ranks' threads take one job at a time.
  using Job = std::function<Status(Rank &)>;
  std::mutex mutex;
  std::condition_variable posted, finished;
  const Job *job = nullptr;
  uint64_t jobNumber = 0;
  size_t running = 0;
  bool stopping = false;
  std::vector<Status> outcomes;
  std::vector<std::thread> threads;

  ~State() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    posted.notify_all();
    for (std::thread &thread : threads)
      thread.join();
  }

  void start() {
    outcomes.resize(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i)
      threads.emplace_back([this, i] { rankLoop(i); });
  }

  void rankLoop(size_t index) {
    uint64_t done = 0;
    for (;;) {
      const Job *mine = nullptr;
      {
        std::unique_lock lock(mutex);
        posted.wait(lock, [&] { return stopping || jobNumber != done; });
        if (stopping)
          return;
        done = jobNumber;
        mine = job;
      }
      Status outcome;
      Communicator &comm = ranks[index]->comm();
      try {
        outcome = (*mine)(*ranks[index]);
        if (!outcome && outcome.error().fault != Fault::User)
          comm.fail(outcome.error().message);
      } catch (const std::bad_alloc &) {
        comm.fail("out of memory");
        outcome = comm.check();
      } catch (const std::exception &problem) {
        comm.fail(problem.what());
        outcome = comm.check();
      } catch (...) {
        comm.fail("an unknown exception");
        outcome = comm.check();
      }
      ranks[index]->drain(); // nobody reads this rank's memory once it has returned
      comm.end();
      std::lock_guard lock(mutex);
      outcomes[index] = std::move(outcome);
      if (--running == 0)
        finished.notify_one();
    }
  }

  /// Runs a job on all ranks; the first cause of a failure.
  Status onAllRanks(std::string_view name, const Job &work) {
    if (auto status = world->check(); !status)
      return status;
    for (auto &rank : ranks)
      rank->comm().begin(name);
    std::unique_lock lock(mutex);
    job = &work;
    ++jobNumber;
    running = ranks.size();
    posted.notify_all();
    finished.wait(lock, [&] { return running == 0; });
    if (auto status = world->check(); !status)
      return status;
    for (const Status &outcome : outcomes)
      if (!outcome)
        return outcome;
    return {};
  }

  /// The lowest rank with the same part of a tensor.
  bool isFirstCopy(const TensorLayout &layout, const RankPosition &position) const {
    return firstCopy(layout, position) == position.rank();
  }
  int64_t firstCopy(const TensorLayout &layout, const RankPosition &position) const {
    for (int64_t other = 0; other < position.rank(); ++other) {
      RankPosition candidate(executable->mesh, other);
      if (std::all_of(layout.dims.begin(), layout.dims.end(), [&](const DimLayout &dim) {
            return candidate.shardIndex(dim.axes) == position.shardIndex(dim.axes);
          }))
        return other;
    }
    return position.rank();
  }

  Status collectPersistent();
  Status checkKernels() const;
  Result<size_t> findProgram(std::string_view name,
                             const std::map<std::string, HostTensor> &inputs) const;
  Status checkInput(const Argument &argument, const HostTensor &value) const;
  Result<std::vector<const char *>> gatherInputs(const Program &program,
                                                 const std::map<std::string, HostTensor> &inputs,
                                                 const std::map<std::string, ScalarValue> &scalars,
                                                 std::vector<HostTensor> &converted) const;
  Status initialiseWhere(uint64_t seed, const std::function<bool(const Argument &)> &wanted);
  Status compareCopies(size_t program);
  void windClocks(size_t program);
};

//===----------------------------------------------------------------------===//
// Creation
//===----------------------------------------------------------------------===//

/// Params and states are shared by name, so all programs must see them alike.
Status Session::State::collectPersistent() {
  for (const Program &program : executable->programs)
    for (const Argument &argument : program.arguments) {
      if (argument.role != Argument::Role::Param && argument.role != Argument::Role::State)
        continue;
      auto [found, isNew] = byName.emplace(argument.name, &argument);
      if (isNew) {
        if (auto spec = InitSpec::parse(argument.init); !spec)
          return Error{fmt::format("'{}': {}", argument.name, spec.error().message)};
        persistent.push_back(&argument);
      } else if (!sameLayout(found->second->layout, argument.layout)) {
        return Error{fmt::format("'{}' is split or shaped differently in two programs of this "
                                 "executable",
                                 argument.name),
                     Fault::Internal};
      }
    }
  return {};
}

Status Session::State::checkKernels() const {
  std::set<std::string_view> missing;
  for (const Program &program : executable->programs)
    for (const Step &step : program.steps) {
      std::string_view symbol;
      if (auto *kernel = std::get_if<KernelStep>(&step.action))
        symbol = kernel->symbol;
      else if (auto *gemm = std::get_if<GemmStep>(&step.action))
        symbol = gemm->epilogue;
      if (!symbol.empty() && !kernels->find(symbol))
        missing.insert(symbol);
    }
  if (missing.empty())
    return {};
  return Error{fmt::format("the executable's code lacks the kernels {}", fmt::join(missing, ", ")),
               Fault::Internal};
}

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const Executable> executable,
                                                 std::shared_ptr<const KernelSource> kernels,
                                                 SessionOptions options) {
  if (auto status = verify(*executable); !status)
    return status.error();
  if (auto status = checkCpuFeatures(*executable); !status)
    return status.error();
  auto state = std::make_unique<State>();
  state->executable = std::move(executable);
  state->kernels = std::move(kernels);
  if (const char *poison = std::getenv("CLEAVE_POISON"); poison && std::string_view(poison) == "1")
    options.poison = true;
#ifdef CLEAVE_FAULTS
  if (const char *text = std::getenv("CLEAVE_FAULT"); text && !options.fault) {
    auto fault = FaultInjection::parse(text);
    if (!fault)
      return fault.error();
    options.fault = *fault;
  }
#endif
  if (auto status = state->collectPersistent(); !status)
    return status.error();
  if (auto status = state->checkKernels(); !status)
    return status.error();

  if (options.offloadDirectory.empty()) {
    std::error_code failed;
    auto folder = std::filesystem::temp_directory_path(failed);
    options.offloadDirectory = failed ? "." : folder.string();
  }
  auto ranks = static_cast<int>(state->executable->ranks());
  if (options.emulate) {
    auto network = Network::create(*options.emulate, state->executable->mesh);
    if (!network)
      return network.error();
    state->network = std::move(*network);
    state->virtualTime.resize(static_cast<size_t>(ranks));
    // A collective is over when it has begun: when that would be is the clocks' affair.
    options.threads = ranks;
    options.beside = false;
  }
  int cores = usableCores();
  int threads = options.threads > 0 ? options.threads : cores;
  state->workers = std::max(1, threads / ranks);
  bool spin = state->workers * ranks <= cores;
  bool beside = options.beside.value_or(state->workers * ranks < cores);
  state->options = options;
  double watchdog =
      options.watchdogSeconds > 0 ? options.watchdogSeconds : watchdogFromEnvironment();
  try {
    state->world =
        std::make_unique<ThreadWorld>(state->executable->mesh, ThreadWorldOptions{watchdog, spin});
    for (int i = 0; i < ranks; ++i)
      state->ranks.push_back(std::make_unique<Rank>(
          *state->executable, *state->kernels, state->world->rank(i),
          std::make_unique<CpuDevice>(state->workers, spin, beside), state->options));
    state->start();
  } catch (const std::exception &problem) {
    return Error{fmt::format("cannot start {} ranks with {} threads each: {}", ranks,
                             state->workers, problem.what()),
                 Fault::Rank};
  }
  std::unique_ptr<Session> session(new Session(std::move(state)));
  if (auto status = session->state->onAllRanks("start", [](Rank &rank) { return rank.allocate(); });
      !status)
    return status.error();
  return session;
}

Session::Session(std::unique_ptr<State> state) : state(std::move(state)) {}
Session::~Session() = default;

const Executable &Session::executable() const { return *state->executable; }
int Session::ranks() const { return static_cast<int>(state->ranks.size()); }
int Session::workersPerRank() const { return state->workers; }

//===----------------------------------------------------------------------===//
// Params and states
//===----------------------------------------------------------------------===//

std::vector<const Argument *> Session::persistentArguments() const { return state->persistent; }

const Argument *Session::findPersistent(std::string_view name) const {
  auto found = state->byName.find(name);
  return found == state->byName.end() ? nullptr : found->second;
}

Status Session::State::initialiseWhere(uint64_t seed,
                                       const std::function<bool(const Argument &)> &wanted) {
  auto status = onAllRanks("initialise", [&](Rank &rank) -> Status {
    for (const Argument *argument : persistent)
      if (wanted(*argument))
        if (auto one = rank.initialise(*argument, seed); !one)
          return one;
    return {};
  });
  if (!status)
    return status;
  for (const Argument *argument : persistent)
    if (wanted(*argument))
      hasValue.insert(argument->name);
  return {};
}

Status Session::initialise(uint64_t seed) {
  return state->initialiseWhere(seed, [](const Argument &) { return true; });
}

Status Session::resetStates() {
  return state->initialiseWhere(0,
                                [](const Argument &a) { return a.role == Argument::Role::State; });
}

static Error unknownName(std::string_view what, std::string_view name,
                         const std::vector<std::string> &known) {
  std::string list;
  if (known.size() <= 12)
    list = fmt::format(" (there are: {})", fmt::join(known, ", "));
  return Error{fmt::format("there is no {} '{}'{}{}", what, name, didYouMean(name, known), list)};
}

static std::string layoutText(const TensorLayout &layout) {
  std::string text = fmt::format("{} [", name(layout.dtype));
  for (size_t i = 0; i < layout.dims.size(); ++i)
    text += fmt::format("{}{}={}", i ? ", " : "", layout.dims[i].name, layout.dims[i].size);
  return text + "]";
}

static Status checkShape(std::string_view what, std::string_view name_, const TensorLayout &layout,
                         DType dtype, const std::vector<int64_t> &shape) {
  if (dtype == layout.dtype && shape == globalShape(layout))
    return {};
  return Error{fmt::format("{} '{}' is {}, but {} {} was given", what, name_, layoutText(layout),
                           name(dtype), shapeText(shape))};
}

Status Session::set(std::string_view name, const TensorView &value) {
  const Argument *argument = findPersistent(name);
  if (!argument) {
    std::vector<std::string> known;
    for (const Argument *a : state->persistent)
      known.push_back(a->name);
    return unknownName("param or state", name, known);
  }
  std::string_view what = argument->role == Argument::Role::Param ? "param" : "state";
  if (auto status = checkShape(what, name, argument->layout, value.dtype, value.shape); !status)
    return status;
  auto status =
      state->onAllRanks("set", [&](Rank &rank) { return rank.store(*argument, value.data); });
  if (status)
    state->hasValue.insert(std::string(name));
  return status;
}

Result<HostTensor> Session::get(std::string_view name) {
  const Argument *argument = findPersistent(name);
  if (!argument) {
    std::vector<std::string> known;
    for (const Argument *a : state->persistent)
      known.push_back(a->name);
    return unknownName("param or state", name, known);
  }
  HostTensor whole(argument->layout.dtype, globalShape(argument->layout));
  auto status = state->onAllRanks("get", [&](Rank &rank) -> Status {
    if (!state->isFirstCopy(argument->layout, rank.place()))
      return {};
    return rank.load(*argument, whole.data.data());
  });
  if (!status)
    return status.error();
  return whole;
}

//===----------------------------------------------------------------------===//
// Running
//===----------------------------------------------------------------------===//

Result<size_t> Session::State::findProgram(std::string_view name,
                                           const std::map<std::string, HostTensor> &inputs) const {
  std::vector<std::string> known;
  std::optional<size_t> first;
  for (size_t i = 0; i < executable->programs.size(); ++i) {
    const Program &program = executable->programs[i];
    known.push_back(program.name);
    if (program.name != name)
      continue;
    if (!first)
      first = i;
    bool fits =
        std::all_of(program.arguments.begin(), program.arguments.end(), [&](const Argument &a) {
          auto found = inputs.find(a.name);
          return found == inputs.end() || found->second.shape == globalShape(a.layout);
        });
    if (fits)
      return i;
  }
  if (!first)
    return unknownName("program", name, known);
  return *first; // its own check says what does not fit
}

template <typename T>
static std::optional<int64_t> firstOutside(const Argument &argument, const HostTensor &value) {
  const T *data = value.as<T>();
  int64_t n = value.elements();
  for (int64_t i = 0; i < n; ++i) {
    int64_t v = data[i];
    if ((v < 0 || v >= argument.rangeEnd) && !(argument.hasIgnore && v == argument.ignore))
      return i;
  }
  return std::nullopt;
}

Status Session::State::checkInput(const Argument &argument, const HostTensor &value) const {
  if (auto status = checkShape("input", argument.name, argument.layout, value.dtype, value.shape);
      !status)
    return status;
  if (argument.rangeEnd < 0)
    return {};
  bool wide = value.dtype == DType::I64;
  auto at = wide ? firstOutside<int64_t>(argument, value) : firstOutside<int32_t>(argument, value);
  if (!at)
    return {};
  int64_t bad = wide ? value.as<int64_t>()[*at] : value.as<int32_t>()[*at];
  std::vector<int64_t> index(value.shape.size());
  int64_t rest = *at;
  for (size_t d = index.size(); d-- > 0;) {
    index[d] = rest % value.shape[d];
    rest /= value.shape[d];
  }
  std::string place;
  for (size_t d = 0; d < index.size(); ++d)
    place += fmt::format("{}{}={}", d ? ", " : "", argument.layout.dims[d].name, index[d]);
  std::string what = argument.rangeWhat.empty()
                         ? fmt::format("the range 0 to {}", argument.rangeEnd - 1)
                         : fmt::format("{} (0 to {})", argument.rangeWhat, argument.rangeEnd - 1);
  std::string ignored =
      argument.hasIgnore ? fmt::format(", and is not the ignored value {}", argument.ignore) : "";
  return Error{fmt::format("input '{}' at [{}] is {}, outside {}{}", argument.name, place, bad,
                           what, ignored)};
}

static Result<HostTensor> scalarTensor(const Argument &argument, const ScalarValue &value) {
  HostTensor tensor(argument.layout.dtype, {});
  auto refuse = [&](std::string_view why) {
    return Error{
        fmt::format("scalar '{}' is {}, but {}", argument.name, name(argument.layout.dtype), why)};
  };
  double real = std::holds_alternative<double>(value)
                    ? std::get<double>(value)
                    : static_cast<double>(std::get<int64_t>(value));
  DType type = argument.layout.dtype;
  if (type == DType::F32 || type == DType::F64 || type == DType::BF16 || type == DType::F16) {
    HostTensor wide(DType::F64, {});
    *wide.as<double>() = real;
    return convert(wide.view(), type);
  }
  if (std::holds_alternative<double>(value) &&
      (real != std::floor(real) || std::abs(real) > 0x1p53))
    return refuse(fmt::format("{:g} was given", real));
  int64_t integer = std::holds_alternative<int64_t>(value) ? std::get<int64_t>(value)
                                                           : static_cast<int64_t>(real);
  if (type == DType::I64) {
    *tensor.as<int64_t>() = integer;
  } else if (type == DType::I1) {
    if (integer != 0 && integer != 1)
      return refuse(fmt::format("{} was given", integer));
    *tensor.as<char>() = static_cast<char>(integer);
  } else {
    // Seeds use all 32 bits, with or without a sign.
    if (integer < std::numeric_limits<int32_t>::min() ||
        integer > int64_t{std::numeric_limits<uint32_t>::max()})
      return refuse(fmt::format("{} was given", integer));
    *tensor.as<int32_t>() = static_cast<int32_t>(static_cast<uint32_t>(integer));
  }
  return tensor;
}

Result<std::vector<const char *>> Session::State::gatherInputs(
    const Program &program, const std::map<std::string, HostTensor> &inputs,
    const std::map<std::string, ScalarValue> &scalars, std::vector<HostTensor> &converted) const {
  std::vector<std::string> inputNames, scalarNames, missing;
  std::vector<const char *> data(program.arguments.size());
  converted.reserve(program.arguments.size());
  for (size_t i = 0; i < program.arguments.size(); ++i) {
    const Argument &argument = program.arguments[i];
    if (argument.role == Argument::Role::Input) {
      inputNames.push_back(argument.name);
      auto found = inputs.find(argument.name);
      if (found == inputs.end()) {
        missing.push_back(
            fmt::format("input '{}', {}", argument.name, layoutText(argument.layout)));
        continue;
      }
      if (auto status = checkInput(argument, found->second); !status)
        return status.error();
      data[i] = found->second.data.data();
    } else if (argument.role == Argument::Role::Scalar) {
      scalarNames.push_back(argument.name);
      auto found = scalars.find(argument.name);
      if (found == scalars.end()) {
        missing.push_back(fmt::format("scalar '{}'", argument.name));
        continue;
      }
      auto tensor = scalarTensor(argument, found->second);
      if (!tensor)
        return tensor.error();
      converted.push_back(std::move(*tensor));
      if (auto status = checkInput(argument, converted.back()); !status)
        return status.error();
      data[i] = converted.back().data.data();
    } else if (argument.role == Argument::Role::Param && !hasValue.count(argument.name)) {
      missing.push_back(fmt::format("a value for param '{}'", argument.name));
    }
  }
  for (const auto &[key, unused] : inputs)
    if (std::find(inputNames.begin(), inputNames.end(), key) == inputNames.end())
      return unknownName(fmt::format("input of '{}' called", program.name), key, inputNames);
  for (const auto &[key, unused] : scalars)
    if (std::find(scalarNames.begin(), scalarNames.end(), key) == scalarNames.end())
      return unknownName(fmt::format("scalar of '{}' called", program.name), key, scalarNames);
  if (!missing.empty()) {
    size_t count = missing.size();
    if (count > 8) {
      missing.resize(8);
      missing.push_back(fmt::format("{} more", count - 8));
    }
    return Error{fmt::format("'{}' needs {}", program.name, fmt::join(missing, "; "))};
  }
  return data;
}

Status Session::State::compareCopies(size_t number) {
  const Program &program = executable->programs[number];
  std::vector<char> mine, theirs;
  for (size_t r = 0; r < program.results.size(); ++r) {
    const ProgramResult &result = program.results[r];
    int64_t width = byteSize(result.layout.dtype);
    for (auto &rank : ranks) {
      int64_t first = firstCopy(result.layout, rank->place());
      if (first == rank->place().rank())
        continue;
      if (auto status = rank->copyResult(number, r, mine); !status)
        return status;
      if (auto status = ranks[static_cast<size_t>(first)]->copyResult(number, r, theirs); !status)
        return status;
      ShardRuns runs(result.layout, rank->place());
      for (int64_t i = 0; i < runs.count(); ++i)
        for (int64_t j = 0; j < runs.length(); ++j) {
          int64_t local = runs.at(i).local + j;
          if (std::memcmp(&mine[static_cast<size_t>(local * width)],
                          &theirs[static_cast<size_t>(local * width)],
                          static_cast<size_t>(width)) == 0)
            continue;
          return Error{
              fmt::format("result '{}' has copies that differ: element {} is {:.17g} on rank "
                          "{} and {:.17g} on rank {}",
                          result.name, runs.at(i).global + j,
                          elementAsDouble(result.layout.dtype, theirs.data(), local), first,
                          elementAsDouble(result.layout.dtype, mine.data(), local),
                          rank->place().rank()),
              Fault::Differs};
        }
    }
  }
  return {};
}

void Session::State::windClocks(size_t number) {
  const Program &program = executable->programs[number];
  computeTimes.clear();
  for (const auto &rank : ranks)
    computeTimes.push_back(rank->computeTimes());
  clocks = wind(program, *network, computeTimes);
  for (size_t r = 0; options.timeline && r < ranks.size(); ++r) {
    std::vector<StepEvent> &events = virtualTime[r];
    for (size_t i = 0; i < program.steps.size() && std::ssize(events) < mostEvents; ++i) {
      const ClockedStep &step = clocks.ranks[r][i];
      auto index = static_cast<int64_t>(i);
      events.push_back({number, index, clocked + step.begin, step.seconds, step.waiting});
      const auto *collective = std::get_if<CollectiveStep>(&program.steps[i].action);
      if (collective && collective->begun)
        events.push_back({number, index, clocked + step.transferBegin, step.transfer, 0,
                          /*beside=*/true});
    }
  }
  clocked += clocks.seconds;
}

Result<RunResult> Session::run(std::string_view name,
                               const std::map<std::string, HostTensor> &inputs,
                               const std::map<std::string, ScalarValue> &scalars,
                               RunOptions options) {
  if (auto status = state->world->check(); !status)
    return status.error();
  auto number = state->findProgram(name, inputs);
  if (!number)
    return number.error();
  const Program &program = executable().programs[*number];
  std::vector<HostTensor> converted;
  auto data = state->gatherInputs(program, inputs, scalars, converted);
  if (!data)
    return data.error();
  auto lacksValue = [&](const Argument &a) {
    return a.role == Argument::Role::State && !state->hasValue.count(a.name);
  };
  if (std::any_of(program.arguments.begin(), program.arguments.end(), lacksValue))
    if (auto status = state->initialiseWhere(0, lacksValue); !status)
      return status.error();
  if (auto status = state->onAllRanks(name, [&](Rank &rank) { return rank.prepare(*number); });
      !status)
    return status.error();

  RunResult out;
  auto start = std::chrono::steady_clock::now();
  if (auto status = state->onAllRanks(name, [&](Rank &rank) { return rank.run(*number, *data); });
      !status)
    return status.error();
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (state->network) {
    state->windClocks(*number);
    out.emulatedSeconds = state->clocks.seconds;
  }
  if (options.checkReplicas)
    if (auto status = state->compareCopies(*number); !status)
      return status.error();
  if (!options.fetch)
    return out;
  for (const ProgramResult &result : program.results)
    if (result.aliasOf < 0)
      out.results.emplace(result.name, HostTensor(result.layout.dtype, globalShape(result.layout)));
  auto status = state->onAllRanks(name, [&](Rank &rank) -> Status {
    for (size_t i = 0; i < program.results.size(); ++i) {
      const ProgramResult &result = program.results[i];
      if (result.aliasOf >= 0 || !state->isFirstCopy(result.layout, rank.place()))
        continue;
      if (auto one = rank.loadResult(*number, i, out.results.find(result.name)->second.data.data());
          !one)
        return one;
    }
    return {};
  });
  if (!status)
    return status.error();
  return out;
}

//===----------------------------------------------------------------------===//
// Measures
//===----------------------------------------------------------------------===//

std::vector<std::vector<StepProfile>> Session::profile(size_t program) const {
  std::vector<std::vector<StepProfile>> all;
  for (const auto &rank : state->ranks)
    all.push_back(state->options.profile ? rank->profile(program) : std::vector<StepProfile>{});
  return all;
}

const std::vector<StepEvent> &Session::timeline(int rank) const {
  auto r = static_cast<size_t>(rank);
  return state->network ? state->virtualTime[r] : state->ranks[r]->events();
}

const ComputeTimes &Session::computeTimes() const { return state->computeTimes; }
const ClockedRun &Session::clocks() const { return state->clocks; }

void Session::resetProfile() {
  for (auto &rank : state->ranks)
    rank->resetProfile();
  for (auto &events : state->virtualTime)
    events.clear();
}

CollectiveStats Session::collectives(int rank) const {
  return state->ranks[static_cast<size_t>(rank)]->comm().stats;
}

void Session::resetCollectives() {
  for (auto &rank : state->ranks)
    rank->comm().stats = {};
}

MemoryReport Session::memory() const {
  MemoryReport report = state->ranks.front()->memory();
  std::tie(report.resident, report.peakResident) = residentBytes();
  return report;
}

} // namespace cleave
