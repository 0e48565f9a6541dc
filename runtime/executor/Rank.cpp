//===- Rank.cpp - one rank of a session -----------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executor/Rank.h"

#include "runtime/core/Init.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fmt/format.h>
#include <new>
#include <stdexcept>
#include <thread>

namespace cleave {

static bool isPersistent(const Argument &a) {
  return a.role == Argument::Role::Param || a.role == Argument::Role::State;
}

static int64_t layoutBytes(const TensorLayout &layout) {
  return localElements(layout) * byteSize(layout.dtype);
}

Rank::Rank(const Executable &executable, const KernelSource &kernels, Communicator &communicator,
           std::unique_ptr<Device> device, const SessionOptions &options)
    : executable(executable), kernels(kernels), communicator(communicator), options(options),
      position(executable.mesh, communicator.rank()), device(std::move(device)),
      programs(executable.programs.size()) {
  jitter.seed(static_cast<unsigned>(communicator.rank()) + 1u);
  if (options.fault && options.fault->rank == communicator.rank())
    faultStep = options.fault->step;
}

Result<std::unique_ptr<DeviceBuffer>> Rank::allocateFor(std::string_view what, int64_t bytes,
                                                        bool offloaded) {
  auto buffer = offloaded ? device->allocateOffloaded(bytes, options.offloadDirectory)
                          : device->allocate(bytes);
  if (!buffer)
    return Error{fmt::format("rank {}: {} for {}", position.rank(), buffer.error().message, what),
                 buffer.error().fault};
  return buffer;
}

Status Rank::allocate() {
  int64_t arenaBytes = 0;
  for (const Program &program : executable.programs) {
    arenaBytes = std::max(arenaBytes, program.arenaBytes);
    for (const Argument &argument : program.arguments) {
      if (!isPersistent(argument) || persistent.count(argument.name))
        continue;
      auto buffer = allocateFor("'" + argument.name + "'", argument.localBytes, argument.offloaded);
      if (!buffer)
        return buffer.error();
      persistent[argument.name] = std::move(*buffer);
    }
  }
  auto buffer = allocateFor("the arena", arenaBytes);
  if (!buffer)
    return buffer.error();
  arena = std::move(*buffer);
  return {};
}

Status Rank::storeInto(char *local, const TensorLayout &layout, const char *global) {
  if (device->hostVisible()) {
    extractShard(layout, position, global, local);
    return {};
  }
  std::vector<char> staging(static_cast<size_t>(layoutBytes(layout)));
  extractShard(layout, position, global, staging.data());
  return device->toDevice(local, staging.data(), std::ssize(staging));
}

Status Rank::loadFrom(const char *local, const TensorLayout &layout, char *global) {
  if (device->hostVisible()) {
    insertShard(layout, position, local, global);
    return {};
  }
  std::vector<char> staging(static_cast<size_t>(layoutBytes(layout)));
  if (auto status = device->toHost(staging.data(), local, std::ssize(staging)); !status)
    return status;
  insertShard(layout, position, staging.data(), global);
  return {};
}

Status Rank::initialise(const Argument &argument, uint64_t seed) {
  auto spec = InitSpec::parse(argument.init);
  if (!spec)
    return Error{fmt::format("'{}': {}", argument.name, spec.error().message)};
  char *local = persistent.find(argument.name)->second->data();
  hasChanged(argument);
  if (device->hostVisible()) {
    fillInitial(*spec, seed, argument.name, argument.layout, position, local, device->team());
    return {};
  }
  std::vector<char> staging(static_cast<size_t>(argument.localBytes));
  fillInitial(*spec, seed, argument.name, argument.layout, position, staging.data(),
              device->team());
  return device->toDevice(local, staging.data(), std::ssize(staging));
}

Status Rank::store(const Argument &argument, const char *global) {
  hasChanged(argument);
  return storeInto(persistent.find(argument.name)->second->data(), argument.layout, global);
}

Status Rank::load(const Argument &argument, char *global) {
  return loadFrom(persistent.find(argument.name)->second->data(), argument.layout, global);
}

char *Rank::argumentData(size_t program, size_t index) const {
  const Argument &argument = executable.programs[program].arguments[index];
  if (isPersistent(argument))
    return persistent.find(argument.name)->second->data();
  return programs[program].inputs[index]->data();
}

char *Rank::resultData(size_t program, size_t index) const {
  const ProgramResult &result = executable.programs[program].results[index];
  if (result.aliasOf >= 0)
    return argumentData(program, static_cast<size_t>(result.aliasOf));
  return programs[program].results[index]->data();
}

char *Rank::at(size_t program, const BufferRef &ref) const {
  const Buffer &buffer = executable.programs[program].buffers[static_cast<size_t>(ref.buffer)];
  auto index = static_cast<size_t>(buffer.index);
  switch (buffer.kind) {
  case Buffer::Kind::Arena:
    return arena->data() + buffer.offset + ref.offset;
  case Buffer::Kind::Argument:
    return argumentData(program, index) + ref.offset;
  case Buffer::Kind::Result:
    return resultData(program, index) + ref.offset;
  }
  return nullptr;
}

Status Rank::prepare(size_t number) {
  Prepared &prepared = programs[number];
  if (prepared.ready)
    return {};
  const Program &program = executable.programs[number];
  prepared.inputs.resize(program.arguments.size());
  prepared.results.resize(program.results.size());
  for (size_t i = 0; i < program.arguments.size(); ++i) {
    const Argument &argument = program.arguments[i];
    if (isPersistent(argument))
      continue;
    auto buffer = allocateFor("input '" + argument.name + "'", argument.localBytes);
    if (!buffer)
      return buffer.error();
    prepared.inputs[i] = std::move(*buffer);
  }
  for (size_t i = 0; i < program.results.size(); ++i) {
    const ProgramResult &result = program.results[i];
    if (result.aliasOf >= 0)
      continue;
    auto buffer = allocateFor("result '" + result.name + "'", layoutBytes(result.layout));
    if (!buffer)
      return buffer.error();
    prepared.results[i] = std::move(*buffer);
  }

  // The calls point into these two, so they must not grow later.
  size_t pointerCount = 0, scalarCount = 0;
  for (const Step &step : program.steps) {
    if (auto *kernel = std::get_if<KernelStep>(&step.action)) {
      pointerCount += kernel->buffers.size();
      scalarCount += kernel->scalars.size();
    } else if (auto *gemm = std::get_if<GemmStep>(&step.action)) {
      pointerCount += gemm->epilogueBuffers.size();
      scalarCount += gemm->epilogueScalars.size();
    }
  }
  prepared.pointers.reserve(pointerCount);
  prepared.scalars.reserve(scalarCount);
  auto resolveCall = [&](const std::string &symbol, const std::vector<BufferRef> &buffers,
                         const std::vector<RankScalar> &scalars) {
    KernelCall call{kernels.find(symbol), prepared.pointers.data() + prepared.pointers.size(),
                    prepared.scalars.data() + prepared.scalars.size()};
    for (const BufferRef &ref : buffers)
      prepared.pointers.push_back(at(number, ref));
    for (const RankScalar &scalar : scalars)
      prepared.scalars.push_back(position.resolve(scalar));
    return call;
  };
  for (const Step &step : program.steps) {
    Resolved resolved;
    if (auto *s = std::get_if<KernelStep>(&step.action)) {
      resolved.call = resolveCall(s->symbol, s->buffers, s->scalars);
    } else if (auto *s = std::get_if<GemmStep>(&step.action)) {
      resolved.a = at(number, s->a);
      resolved.b = at(number, s->b);
      resolved.c = at(number, s->c);
      if (s->sums != GemmStep::Sums::None)
        resolved.sums = at(number, s->sumsTo);
      if (!s->epilogue.empty())
        resolved.call = resolveCall(s->epilogue, s->epilogueBuffers, s->epilogueScalars);
    } else if (auto *s = std::get_if<CopyStep>(&step.action)) {
      resolved.a = at(number, s->from);
      resolved.c = at(number, s->to);
    } else if (auto *s = std::get_if<FillStep>(&step.action)) {
      resolved.c = at(number, s->to);
    } else if (auto *s = std::get_if<CollectiveStep>(&step.action)) {
      resolved.a = at(number, s->in);
      resolved.c = at(number, s->out);
    }
    prepared.steps.push_back(resolved);
    prepared.profile.emplace_back();
  }
  if (options.packWeights)
    if (auto status = preparePacked(number); !status)
      return status;
  prepared.ready = true;
  return {};
}

Status Rank::preparePacked(size_t number) {
  const Program &program = executable.programs[number];
  auto bytes = [&](const GemmStep &step) { return device->packedBytes(step); };
  for (const PackDecision &decision : decidePacking(executable, program, bytes)) {
    if (!decision.reason.empty())
      continue;
    auto step = static_cast<size_t>(decision.step);
    Resolved &resolved = programs[number].steps[step];
    Packed &weight = packed[decision.weight];
    if (!weight.copy) {
      auto copy = allocateFor("the packed '" + decision.weight.param + "'", decision.bytes);
      if (!copy)
        return copy.error();
      weight = {std::move(*copy), &std::get<GemmStep>(program.steps[step].action), resolved.b};
    }
    resolved.packedB = weight.copy->data();
    programs[number].packed.push_back(&weight);
  }
  return {};
}

Status Rank::refreshPacked(const Prepared &program) {
  for (Packed *weight : program.packed) {
    if (weight->current)
      continue;
    if (auto status = device->packB(*weight->step, weight->b, weight->copy->data()); !status)
      return status;
    weight->current = true;
  }
  return {};
}

void Rank::hasChanged(const Argument &argument) {
  for (auto &[weight, copy] : packed)
    if (weight.param == argument.name)
      copy.current = false;
}

void Rank::sleepAtRandom() {
  if (jitter() % 8 == 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(
        options.jitterSeconds * double(jitter()) / double(jitter.max())));
}

Status Rank::injectFault() {
  switch (options.fault->kind) {
  case FaultInjection::Kind::Throw:
    throw std::runtime_error("a fault was injected");
  case FaultInjection::Kind::BadAlloc:
    throw std::bad_alloc();
  case FaultInjection::Kind::Hang:
    while (communicator.check()) // until the others' watchdog ends it
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return communicator.check();
  case FaultInjection::Kind::Skip:
    break;
  }
  return {};
}

Status Rank::execute(const Program &program, const Step &step, const Resolved &resolved) {
  if (auto *s = std::get_if<KernelStep>(&step.action))
    return device->launch(resolved.call, s->extent, s->grain);
  if (auto *s = std::get_if<GemmStep>(&step.action))
    return device->gemm(*s, resolved.a, resolved.b, resolved.c, resolved.call, resolved.sums,
                        resolved.packedB);
  if (auto *s = std::get_if<CopyStep>(&step.action))
    return device->copy(resolved.c, resolved.a, s->bytes);
  if (auto *s = std::get_if<FillStep>(&step.action))
    return device->fill(resolved.c, 0, s->bytes);
  if (auto *s = std::get_if<AwaitStep>(&step.action)) {
    auto found = begun.find(s->step);
    if (found == begun.end())
      return {}; // a fault left its beginning out
    awaited = std::move(found->second);
    begun.erase(found);
    return device->wait(*awaited);
  }
  const auto &s = std::get<CollectiveStep>(step.action);
  std::string_view where;
  if (step.location >= 0)
    where = program.locations[static_cast<size_t>(step.location)];
  else if (s.site >= 0)
    where = program.collectiveSites[static_cast<size_t>(s.site)].location;
  if (!s.begun)
    return device->collective(communicator, s, resolved.a, resolved.c, where);
  auto event = device->beginCollective(communicator, s, resolved.a, resolved.c, where);
  if (!event)
    return event.error();
  begun[static_cast<int32_t>(&step - program.steps.data())] = std::move(*event);
  return {};
}

/// CPU time of the calling thread, in seconds.
static double threadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

Status Rank::count(const Program &program, size_t number, const Resolved &resolved) {
  const Step &step = program.steps[number];
  auto clock = [&] {
    return options.cpuClock ? options.cpuClock(static_cast<int>(position.rank())) : threadSeconds();
  };
  double start = clock();
  Status status = execute(program, step, resolved);
  // The profile says what collectives take.
  if (!std::holds_alternative<CollectiveStep>(step.action) &&
      !std::holds_alternative<AwaitStep>(step.action))
    computed[number] = (clock() - start) / options.emulate->speedup;
  return status;
}

Status Rank::run(size_t number, const std::vector<const char *> &inputs) {
  const Program &program = executable.programs[number];
  Prepared &prepared = programs[number];
  begun.clear();
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i])
      if (auto status = storeInto(argumentData(number, i), program.arguments[i].layout, inputs[i]);
          !status)
        return status;
  if (options.poison) {
    constexpr uint8_t nan = 0xFF; // a NaN in every float type, -1 in integers
    if (auto status = device->fill(arena->data(), nan, arena->bytes()); !status)
      return status;
    for (const auto &result : prepared.results)
      if (result)
        if (auto status = device->fill(result->data(), nan, result->bytes()); !status)
          return status;
  }
  if (auto status = refreshPacked(prepared); !status)
    return status;
  if (options.emulate)
    computed.assign(program.steps.size(), 0);
  using Clock = std::chrono::steady_clock;
  auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  for (size_t i = 0; i < program.steps.size(); ++i) {
    if (auto status = communicator.check(); !status)
      return status;
    if (options.jitterSeconds > 0)
      sleepAtRandom();
    if (static_cast<int64_t>(i) == faultStep) {
      if (auto status = injectFault(); !status)
        return status;
      continue; // Skip
    }
    if (options.emulate) {
      if (auto status = count(program, i, prepared.steps[i]); !status)
        return status;
      continue;
    }
    if (!options.profile) {
      if (auto status = execute(program, program.steps[i], prepared.steps[i]); !status)
        return status;
      continue;
    }
    double waited = communicator.waited();
    Clock::time_point start = Clock::now();
    if (auto status = execute(program, program.steps[i], prepared.steps[i]); !status)
      return status;
    // A device that queues would give the time of the call, not of the work.
    if (!device->hostVisible())
      if (auto status = device->synchronize(); !status)
        return status;
    StepProfile &profile = prepared.profile[i];
    ++profile.runs;
    Clock::time_point end = Clock::now();
    const Step &step = program.steps[i];
    const auto *collective = std::get_if<CollectiveStep>(&step.action);
    const auto *await = std::get_if<AwaitStep>(&step.action);
    // While a collective runs beside the steps, its waiting is not theirs.
    double waiting = await                              ? seconds(end - start)
                     : collective && !collective->begun ? communicator.waited() - waited
                                                        : 0;
    profile.seconds += seconds(end - start);
    profile.waitSeconds += waiting;
    if (options.timeline && std::ssize(timeline) < mostEvents)
      timeline.push_back({number, static_cast<int64_t>(i), seconds(start.time_since_epoch()),
                          seconds(end - start), waiting});
    if (options.timeline && await && awaited && std::ssize(timeline) < mostEvents) {
      auto [begin, took] = awaited->span();
      if (took > 0) // else it was over when it had begun
        timeline.push_back({number, await->step, begin, took, 0, /*beside=*/true});
    }
  }
  return device->synchronize();
}

Status Rank::loadResult(size_t program, size_t result, char *global) {
  return loadFrom(resultData(program, result), executable.programs[program].results[result].layout,
                  global);
}

Status Rank::copyResult(size_t program, size_t result, std::vector<char> &local) {
  const TensorLayout &layout = executable.programs[program].results[result].layout;
  local.resize(static_cast<size_t>(layoutBytes(layout)));
  return device->toHost(local.data(), resultData(program, result), std::ssize(local));
}

std::vector<StepProfile> Rank::profile(size_t program) const { return programs[program].profile; }

void Rank::resetProfile() {
  for (Prepared &prepared : programs)
    for (StepProfile &step : prepared.profile)
      step = StepProfile();
  timeline.clear();
}

MemoryReport Rank::memory() const {
  MemoryReport report;
  report.arena = arena ? arena->bytes() : 0;
  std::map<std::string_view, const Argument *> seen;
  for (const Program &program : executable.programs)
    for (const Argument &argument : program.arguments)
      if (isPersistent(argument) && seen.emplace(argument.name, &argument).second)
        (argument.role == Argument::Role::Param ? report.params
         : argument.offloaded                   ? report.offloaded
                                                : report.states) += argument.localBytes;
  for (const auto &[weight, copy] : packed)
    report.packed += copy.copy->bytes();
  for (const Prepared &prepared : programs) {
    for (const auto &buffer : prepared.inputs)
      report.inputs += buffer ? buffer->bytes() : 0;
    for (const auto &buffer : prepared.results)
      report.results += buffer ? buffer->bytes() : 0;
  }
  return report;
}

} // namespace cleave
