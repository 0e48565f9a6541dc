//===- Compile.cpp - from a checked program to an executable --------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/Compile.h"

#include "frontend/EmitIR.h"
#include "ir/Auto.h"
#include "ir/Dialect.h"
#include "passes/Location.h"
#include "passes/Passes.h"
#include "passes/differentiate/Differentiate.h"
#include "passes/fusion/Fusion.h"
#include "passes/lowering/Kernels.h"
#include "passes/schedule/Activations.h"
#include "passes/schedule/Layouts.h"
#include "passes/schedule/Listing.h"
#include "passes/schedule/Schedule.h"
#include "passes/search/Prices.h"
#include "passes/search/Search.h"
#include "passes/sharding/Mutate.h"
#include "passes/sharding/Sharding.h"
#include "passes/structure/Accumulate.h"
#include "passes/structure/GroupLayers.h"
#include "passes/structure/HoistCasts.h"
#include "passes/structure/Tap.h"

#include "runtime/emulate/Clocks.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <numeric>

using namespace mlir;
using namespace cleave;

namespace {

std::string placeOf(Location loc) { return locationText(loc); }
std::string placeOf(const SourceLocation &at) {
  return at.file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
}

/// Collects what MLIR reports: errors become the Error, remarks are kept.
class Reports {
public:
  explicit Reports(MLIRContext &context)
      : handler(&context, [this](mlir::Diagnostic &d) { return take(d); }) {}

  Error error(const std::string &stage) const {
    Error e;
    e.message = errors.empty() ? "the compiler failed in the stage '" + stage +
                                     "' without saying why; please report this"
                               : errors;
    e.fault = user ? Fault::User : Fault::Internal;
    return e;
  }
  std::vector<std::string> remarks;

private:
  LogicalResult take(mlir::Diagnostic &d) {
    std::string place = placeOf(d.getLocation());
    std::string text = (place.empty() ? "" : place + ": ") + d.str();
    for (mlir::Diagnostic &note : d.getNotes()) {
      std::string where = placeOf(note.getLocation());
      text += "\n  note: " + (where.empty() ? "" : where + ": ") + note.str();
    }
    user |= isUserError(d);
    if (d.getSeverity() == DiagnosticSeverity::Error)
      errors += (errors.empty() ? "" : "\n") + text;
    else
      remarks.push_back(text);
    return success();
  }

  std::string errors;
  bool user = false; ///< an error is the user's
  ScopedDiagnosticHandler handler;
};

struct Provider final : KernelProvider {
  explicit Provider(KernelCompiler &compiler) : compiler(compiler) {}
  FailureOr<KernelInfo> kernelFor(FusedOp op) override { return compiler.add(op); }
  KernelCompiler &compiler;
};

class Pipeline {
public:
  /// What a search is told besides the plan.
  struct Search {
    int64_t memory = 0;  ///< bytes of a rank that it may use by its own count; 0: any number
    int64_t hidden = 0;  ///< percent of gradients' sums
    bool mayZero = true; ///< updates may be split further
  };
  Pipeline(const CheckedProgram &program, const CompileOptions &options, Search search)
      : program(program), options(options), search(search),
        context(MLIRContext::Threading::DISABLED), reports(context),
        kernels(kernelOptions(options)), provider(kernels) {
    context.printOpOnDiagnostic(false);
    context.loadDialect<CleaveDialect, func::FuncDialect>();
  }

  Result<CompileResult> run() {
    // Where params live is searched for in the program that does most: a training step's.
    std::vector<size_t> order(options.entries.size());
    std::iota(order.begin(), order.end(), 0);
    if (plan() && plan()->automatic && options.emit == EmitStage::None)
      std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        auto rank = [&](size_t i) {
          return std::pair(-static_cast<int>(options.entries[i].kind), i);
        };
        return rank(a) < rank(b);
      });
    for (size_t number : order) {
      const EntryPoint &entry = options.entries[number];
      if (Status s = entry.kind == EntryPoint::Kind::Function ? Status() : suits(); !s)
        return s.error();
      else if (s = compileEntry(entry); !s)
        return s.error();
    }
    // A program for each entry, in the entries' order.
    std::vector<Program> programs(result.executable.programs.size());
    if (programs.size() == order.size()) {
      for (size_t i = 0; i < order.size(); ++i)
        programs[order[i]] = std::move(result.executable.programs[i]);
      result.executable.programs = std::move(programs);
    }
    if (options.emit == EmitStage::LLVM) {
      std::string why;
      FailureOr<std::string> text = kernels.emitLLVM(why);
      if (failed(text))
        return Error{why, Fault::Internal};
      result.text = *text;
    } else if (options.emit == EmitStage::None) {
      if (Status s = finish(); !s)
        return s.error();
    }
    result.remarks = std::move(reports.remarks);
    result.kernels = static_cast<int64_t>(kernels.size());
    return std::move(result);
  }

private:
  static KernelOptions kernelOptions(const CompileOptions &options) {
    KernelOptions k;
    k.vectorBits = options.vectorBits;
    k.optLevel = options.optLevel;
    return k;
  }

  /// Runs one stage: times it, verifies the module after it, and prints it when
  /// it is the one asked for. True: go on.
  template <typename F> Result<bool> stage(const std::string &name, EmitStage emits, F &&work) {
    if (options.progress)
      options.progress(name);
    auto start = std::chrono::steady_clock::now();
    bool ok = succeeded(work());
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    addSeconds(name, took);
    if (!ok || (module && failed(verify(*module))))
      return reports.error(name);
    if (options.emit != emits || emits == EmitStage::None)
      return true;
    llvm::raw_string_ostream os(result.text);
    module->print(os);
    return false;
  }

  /// Stages of several entries add up.
  void addSeconds(const std::string &name, double took) {
    for (auto &[stage, seconds] : result.seconds)
      if (stage == name) {
        seconds += took;
        return;
      }
    result.seconds.emplace_back(name, took);
  }

  LogicalResult simplify() {
    PassManager pm(&context);
    pm.addPass(createCSEPass());
    return pm.run(*module);
  }

  /// Keeps one function, under the name.
  void keepOnly(func::FuncOp kept, StringRef name) {
    for (auto f : llvm::make_early_inc_range(module->getOps<func::FuncOp>()))
      if (f != kept)
        f.erase();
    kept.setSymName(name);
  }

  const checked::Plan *plan() const {
    return options.plan == "none" ? nullptr : program.plan(options.plan);
  }
  int64_t microBatches() const {
    return options.accumulate ? options.accumulate : plan() ? plan()->accumulate : 1;
  }
  std::string recompute() const {
    return !options.recompute.empty() ? options.recompute
           : plan()                   ? plan()->recompute
                                      : "selective";
  }
  bool keepsGathered() const {
    return (!options.gathered.empty() ? options.gathered
            : plan()                  ? plan()->gathered
                                      : "again") == "kept";
  }
  Status suits() const;
  std::optional<checked::Precision> precision() const {
    auto own = options.precision ? options.precision : plan() ? plan()->precision : std::nullopt;
    bool none = options.dtype == DType::F64 || !own || own->compute == DType::F32;
    return none ? std::nullopt : own;
  }
  LogicalResult gatheredInputs();
  std::string accumulateDim() const { return plan() ? plan()->accumulateDim : "batch"; }
  void listFusion(Block &block, const FusionPlan &plan);
  Status compileEntry(const EntryPoint &entry);
  Status finish();

  const CheckedProgram &program;
  const CompileOptions &options;
  Search search;
  MLIRContext context;
  Reports reports;
  OwningOpRef<ModuleOp> module;
  KernelCompiler kernels;
  Provider provider;
  ParamPins paramPins; ///< of the first program that a search has placed
  CompileResult result;
};

void Pipeline::listFusion(Block &block, const FusionPlan &plan) {
  int64_t times = 1;
  for (Operation *op = block.getParentOp(); op; op = op->getParentOp())
    if (auto repeat = dyn_cast<RepeatOp>(op))
      times *= static_cast<int64_t>(repeat.getCount());
  auto bytesOf = [](Value v) -> int64_t {
    auto type = dyn_cast<NamedTensorType>(v.getType());
    return type ? type.getNumElements() * type.getElementBytes() : 0;
  };
  auto labelOfGroup = [](const Group &g) {
    SmallVector<Operation *> ops;
    if (g.product)
      ops.push_back(const_cast<ContractOp &>(g.product));
    ops.append(g.ops);
    return labelOf(ops);
  };
  for (const Group &g : plan.groups) {
    FusionEntry entry;
    entry.loops = cleave::toString(g.kind).str();
    entry.what = labelOfGroup(g);
    for (Value v : g.inputs)
      entry.bytes += bytesOf(v);
    for (Value v : g.outputs)
      entry.bytes += bytesOf(v);
    entry.times = times;
    result.fusion.push_back(std::move(entry));
  }
  for (BareProduct p : plan.bare)
    result.fusion.push_back({FusionEntry::Kind::BareProduct,
                             "",
                             labelOf({p.op.getOperation()}),
                             {},
                             p.reason,
                             bytesOf(p.op.getResult()),
                             times});
  for (const Refusal &r : plan.refusals)
    result.fusion.push_back({FusionEntry::Kind::Apart, "", labelOfGroup(plan.groups[r.first]),
                             labelOfGroup(plan.groups[r.second]), r.reason, 0, times});
}

/// Whether the settings go together.
Status Pipeline::suits() const {
  if (!keepsGathered() || recompute() != "full")
    return {};
  return Error{
      (plan() ? placeOf(program.sources.locate(plan()->range)) + ": " : "") +
      "`recompute full` keeps nothing of a layer but what enters it, and `gathered kept` "
      "what it gathers: choose `gathered again`, or recompute none, selective or every(N)"};
}

/// Tells of them and keeps them, as asked.
LogicalResult Pipeline::gatheredInputs() {
  result.gatheredKept = keepsGathered();
  if (options.listGathered && recompute() != "full") {
    OwningOpRef<ModuleOp> copy = module->clone();
    PassManager pm(&context);
    pm.addPass(createCSEPass());
    if (failed(pm.run(*copy)))
      return failure();
    result.gathered = gatheredAgain(*copy);
  }
  return keepsGathered() ? success(succeeded(simplify()) && succeeded(keepGathered(*module)))
                         : success();
}

#define CLEAVE_STAGE(...)                                                                          \
  if (Result<bool> go = stage(__VA_ARGS__); !go)                                                   \
    return go.error();                                                                             \
  else if (!*go)                                                                                   \
    return {}

Status Pipeline::compileEntry(const EntryPoint &entry) {
  if (options.progress)
    options.progress("emit");
  EmitOptions emit;
  emit.functions = {entry.function};
  emit.dtype = options.dtype;
  emit.train = entry.training;
  emit.precision = precision();
  emit.plan = options.plan == "none" ? "" : options.plan;
  auto start = std::chrono::steady_clock::now();
  Result<OwningOpRef<ModuleOp>> emitted = emitIR(program, emit, context);
  if (!emitted)
    return emitted.error();
  addSeconds("emit",
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  module = std::move(*emitted);
  if (auto settings = (*module)->getAttrOfType<DictionaryAttr>(kAutoAttr)) {
    NamedAttrList list(settings);
    auto number = [&](int64_t n) { return IntegerAttr::get(IntegerType::get(&context, 64), n); };
    if (!options.cluster.empty())
      list.set(kAutoCluster, StringAttr::get(&context, options.cluster));
    if (search.memory)
      list.set(kAutoMemory, number(search.memory));
    if (search.hidden)
      list.set(kAutoHidden, number(search.hidden));
    if (!search.mayZero)
      list.set(kAutoNoZero, UnitAttr::get(&context));
    (*module)->setAttr(kAutoAttr, list.getDictionary(&context));
  }
  auto target = module->lookupSymbol<func::FuncOp>(entry.function);
  if (!target)
    return Error{"the program has no function '" + entry.function + "'"};
  CLEAVE_STAGE("emit", EmitStage::IR, [&] {
    if (options.listTaps)
      result.taps = tapNames(target);
    return addTaps(target, entry.kind == EntryPoint::Kind::Function ? options.taps
                                                                    : std::vector<std::string>());
  });
  CLEAVE_STAGE("differentiate", EmitStage::Grad, [&]() -> LogicalResult {
    if (failed(lowerPrecision(*module)))
      return failure();
    bool paramsInShards = plan() && plan()->zero && plan()->zero->level == 3;
    if ((microBatches() > 1 || paramsInShards) && failed(hoistParamCasts(*module)))
      return failure();
    if (failed(expandComposites(*module)) || failed(simplify()))
      return failure();
    func::FuncOp kept = target;
    std::string name = entry.function;
    if (entry.kind != EntryPoint::Kind::Function) {
      if (entry.kind == EntryPoint::Kind::TrainStep &&
          failed(groupParams(target, options.optimizer.groups)))
        return failure();
      std::optional<int64_t> every = checked::layersOfEvery(recompute());
      if (every && failed(groupLayers(target, *every)))
        return failure();
      FailureOr<func::FuncOp> gradients =
          differentiate(target, every ? Recompute::Selective : *recomputeNamed(recompute()));
      if (failed(gradients))
        return failure();
      kept = *gradients;
      name = kept.getSymName().str();
      if (entry.kind == EntryPoint::Kind::TrainStep) {
        OptimizerOptions o;
        o.kind = options.optimizer.kind;
        o.momentum = options.optimizer.momentum;
        o.beta1 = options.optimizer.beta1;
        o.beta2 = options.optimizer.beta2;
        o.epsilon = options.optimizer.epsilon;
        o.decay = options.optimizer.decay;
        o.decayAll = options.optimizer.decayAll;
        o.clip = options.optimizer.clip;
        o.lossScale = options.optimizer.lossScale;
        o.lossScaleSteps = options.optimizer.lossScaleSteps;
        FailureOr<func::FuncOp> step = addOptimizer(kept, o);
        if (failed(step))
          return failure();
        kept = *step;
        name = "train_step";
      } else if (failed(fixLossScale(kept))) {
        return failure();
      }
    }
    keepOnly(kept, name);
    return simplify();
  });
  CLEAVE_STAGE("shard", EmitStage::Sharded, [&]() -> LogicalResult {
    if (entry.kind != EntryPoint::Kind::Function &&
        failed(splitMicroBatches(*module, microBatches(), accumulateDim())))
      return failure();
    bool searches = (*module)->hasAttr(kAutoAttr);
    if (searches)
      pinParams(*module, paramPins);
    if (failed(assignShardings(*module, &result.searches)))
      return failure();
    if (searches && paramPins.empty()) {
      FailureOr<ShardingContext> context = ShardingContext::create(*module);
      if (failed(context))
        return failure();
      paramPins = pinsOfParams(*module, *context);
    }
    if (failed(insertCollectives(*module)) || failed(gatheredInputs()) ||
        failed(maskPadding(*module)) || failed(verifyShardings(*module)) ||
        failed(verifyPadding(*module)))
      return failure();
    if (options.listActivations)
      result.activations = savedByLayers(*module);
    if (options.listShardings)
      result.shardings = valueShardings(*module);
    if (options.emit == EmitStage::Sharded)
      return success();
    if (failed(partition(*module)) || failed(repeatMicroBatches(*module)))
      return failure();
    return options.mutation.empty() ? success() : mutateCollective(*module, options.mutation);
  });
  module->walk([&](Operation *op) {
    if (isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp>(op))
      ++result.collectives;
  });
  CLEAVE_STAGE("fuse", EmitStage::Fused, [&]() -> LogicalResult {
    PassManager pm(&context);
    pm.addPass(createCSEPass());
    pm.addPass(createPrepareContracts());
    pm.addPass(createExpandShardSlices());
    pm.addPass(createCSEPass());
    if (failed(pm.run(*module)))
      return failure();
    FusionOptions f;
    f.fuse = options.fuse;
    if (options.listFusion)
      f.report = [&](Block &block, const FusionPlan &plan) { listFusion(block, plan); };
    return fuse(*module, f);
  });
  Executable built;
  CLEAVE_STAGE("schedule", EmitStage::None, [&]() -> LogicalResult {
    ScheduleOptions s;
    s.model = program.model;
    s.reuseMemory = options.reuseMemory;
    s.overlap = options.overlap;
    s.overlapWorth = options.overlapWorth;
    for (const checked::NamedDim &dim : program.dims)
      if (dim.kind == checked::NamedDim::Free)
        s.dims[dim.name] = dim.size;
    FailureOr<Executable> made = buildExecutable(*module, provider, s);
    if (failed(made))
      return failure();
    built = std::move(*made);
    for (Program &p : built.programs)
      p.training = entry.training;
    return success();
  });
  if (options.emit == EmitStage::Scheduled) {
    result.text += cleave::listing(built);
    return {};
  }
  if (result.executable.programs.empty()) {
    result.executable = std::move(built);
  } else {
    for (Program &p : built.programs)
      result.executable.programs.push_back(std::move(p));
  }
  return {};
}

Status Pipeline::finish() {
  if (options.progress)
    options.progress("machine code");
  auto start = std::chrono::steady_clock::now();
  Executable &e = result.executable;
  std::string why;
  if (kernels.size() && options.machineCode) {
    FailureOr<std::string> object = kernels.emitObject(why);
    if (failed(object))
      return Error{why.empty() ? reports.error("machine code").message : why, Fault::Internal};
    e.objects = {*object};
    e.cpuFeatures = kernels.cpuFeatures();
  }
  e.plan = options.plan.empty() ? "none" : options.plan;
  e.settings["dtype"] = std::string(name(options.dtype));
  if (auto mixed = precision()) {
    e.settings["precision"] = std::string(name(mixed->compute));
    e.settings["reduce"] = std::string(name(mixed->reduce));
  }
  for (const checked::Hyperparameter &h : program.hyperparameters)
    e.settings[h.name] = checked::toString(h.value);
  e.settings["optimizer"] = options.optimizer.kind;
  result.seconds.emplace_back(
      "machine code",
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return {};
}

} // namespace

/// Of a rank: what stays from step to step, inputs, results and the arena.
static int64_t memoryOf(const Program &program) {
  int64_t bytes = program.arenaBytes;
  for (const Argument &a : program.arguments)
    bytes += a.offloaded ? 0 : a.localBytes;
  for (const Buffer &buffer : program.buffers)
    bytes += buffer.kind == Buffer::Kind::Result ? buffer.bytes : 0;
  return bytes;
}

namespace {

using Search = Pipeline::Search;

/// With a search's memory lowered until the memory plan fits the plan's limit: what the search
/// counts is less than what is needed, by the temporary values at the arena's fullest. Gives the
/// search that fits too.
Result<CompileResult> compileWithin(const CheckedProgram &program, const CompileOptions &options,
                                    const checked::Plan &plan, Search &search) {
  int64_t limit = plan.memoryBytes, least = 0;
  search.memory = limit;
  constexpr int rounds = 6;
  for (int round = 0; round < rounds; ++round) {
    auto result = Pipeline(program, options, search).run();
    if (!result) {
      if (!least)
        return result;
      break;
    }
    int64_t need = 0;
    for (const Program &p : result->executable.programs)
      need = std::max(need, memoryOf(p));
    if (!limit || need <= limit || result->searches.empty())
      return result;
    least = least ? std::min(least, need) : need;
    auto counted = static_cast<int64_t>(result->searches[0].minimum.memory);
    search.memory =
        std::min(search.memory, counted) - std::max<int64_t>(need - limit, limit / 1000);
    if (search.memory <= 0)
      break;
  }
  SourceLocation at = program.sources.locate(plan.range);
  return Error{fmt::format(
      "{}the memory limit is {} bytes a rank, and the least that was found "
      "takes {}: give each rank more memory or fewer rows, or take more ranks",
      at.file.empty() ? "" : fmt::format("{}:{}:{}: ", at.file, at.line, at.column), limit, least)};
}

/// Seconds of the training step (else of the first program) by its schedule.
Result<double> scheduledSeconds(const CompileResult &result, const CompileOptions &options) {
  const Executable &executable = result.executable;
  auto cluster =
      parseCluster(options.cluster.empty() ? defaultCluster() : options.cluster, "profile");
  if (!cluster)
    return cluster.error();
  auto network = Network::create(*cluster, executable.mesh);
  if (!network)
    return network.error();
  const Program *timed = &executable.programs.front();
  for (const Program &p : executable.programs)
    if (p.name == "train_step")
      timed = &p;
  return wind(*timed, *network, predictCompute(*timed, *cluster, executable.ranks(), 1)).seconds;
}

} // namespace

/// The search's prices know nothing of overlap, nor of what merging collectives saves. So it is run
/// with several parts of gradients' sums taken to be hidden, with and without splitting updates,
/// and the schedules that follow are compared.
Result<CompileResult> cleave::compile(const CheckedProgram &program,
                                      const CompileOptions &options) {
  const checked::Plan *plan = options.plan == "none" ? nullptr : program.plan(options.plan);
  if (!plan || !plan->automatic)
    return Pipeline(program, options, {}).run();
  std::vector<Search> candidates;
  if (plan->hidden)
    candidates = {{0, *plan->hidden, true}};
  else
    candidates = {{0, 100, true}, {0, 75, true},   {0, 50, true}, {0, 25, true},
                  {0, 0, true},   {0, 100, false}, {0, 50, false}};
  CompileOptions dry = options;
  dry.emit = EmitStage::None;
  dry.machineCode = false;
  dry.taps.clear();
  dry.mutation.clear();
  double least = 0, bound = 0;
  std::optional<Search> best;
  for (Search &candidate : candidates) {
    auto result = compileWithin(program, dry, *plan, candidate);
    if (!result) {
      if (&candidate == &candidates.back() && !best)
        return result;
      continue;
    }
    if (result->searches.empty()) // nothing to search for: one rank
      return Pipeline(program, options, candidate).run();
    auto seconds = scheduledSeconds(*result, options);
    if (!seconds)
      return seconds.error();
    if (candidate.hidden == 100 && candidate.mayZero)
      bound = result->searches[0].minimum.lowerBound;
    // Ways that differ by rounding are the same.
    if (!best || *seconds < least * (1 - 1e-9)) {
      least = *seconds;
      best = candidate;
    }
  }
  auto result = Pipeline(program, options, *best).run();
  if (result)
    for (SearchReport &report : result->searches) {
      report.scheduled = least;
      report.bound = bound;
    }
  return result;
}
