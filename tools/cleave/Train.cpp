//===- Train.cpp - cleave train -------------------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Emulate.h"
#include "Inputs.h"
#include "Load.h"
#include "Profile.h"
#include "Trace.h"

#include "runtime/core/AtomicFile.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

namespace cleave::tool {

namespace {

struct TrainOptions : CommonOptions {
  std::string data, tokenizer = "bytes", weights, trace;
  OptimizerChoice optimizer;
  RateSchedule schedule;
  int64_t steps = 100, every = 1;
  bool dryRun = false, profile = false, noOverlap = false;
};

struct StepRecord {
  int64_t step = 0;
  double loss = 0, norm = 0, rate = 0, seconds = 0, tokensPerSecond = 0;
  double lossScale = 0; ///< by which this step's loss was multiplied; 0: by none

  /// A norm that is not finite: params and state are what they were.
  bool skipped() const { return !std::isfinite(norm); }
  Json json() const {
    Json json = {{"step", step},
                 {"loss", loss},
                 {"gradient_norm", norm},
                 {"lr", rate},
                 {"skipped", skipped()},
                 {"seconds", seconds},
                 {"tokens_per_second", tokensPerSecond}};
    if (lossScale > 0)
      json["loss_scale"] = lossScale;
    return json;
  }
};

volatile std::sig_atomic_t interrupted = 0;
timespec interruptedAt = {};

/// The first Ctrl-C lets the step end; another one, a second or more later, ends
/// the program. (Some senders signal both the process and its group.)
void onInterrupt(int signal) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!interrupted) {
    interruptedAt = now;
    interrupted = 1;
  } else if (now.tv_sec - interruptedAt.tv_sec > 1) {
    std::signal(signal, SIG_DFL);
    raise(signal);
  }
}

class InterruptGuard {
public:
  InterruptGuard() {
    struct sigaction action = {};
    action.sa_handler = onInterrupt;
    sigaction(SIGINT, &action, &oldInt);
    sigaction(SIGTERM, &action, &oldTerm);
  }
  ~InterruptGuard() {
    sigaction(SIGINT, &oldInt, nullptr);
    sigaction(SIGTERM, &oldTerm, nullptr);
  }

private:
  struct sigaction oldInt = {}, oldTerm = {};
};

/// The folder is there and can be written, before hours of work.
Status prepareFolder(const std::string &path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (failed)
    return Error{fmt::format("--out {}: cannot make this folder: {}", path, failed.message())};
  if (access(path.c_str(), W_OK | X_OK) != 0)
    return Error{fmt::format("--out {}: cannot write there: {}", path, std::strerror(errno))};
  return {};
}

double numberOf(const RunResult &run, const std::string &name) {
  auto found = run.results.find(name);
  if (found == run.results.end())
    return std::nan("");
  double value = elementAsDouble(found->second.dtype, found->second.data.data(), 0);
  return std::isnan(value) ? std::abs(value) : value; // the sign of a NaN says nothing
}

std::string stagesText(const CompileResult &info) {
  Table t({"compilation", "time"});
  double all = 0;
  for (const auto &[stage, seconds] : info.seconds) {
    t.row({stage, secondsText(seconds)});
    all += seconds;
  }
  t.row({"total", secondsText(all)});
  return t.text("  ");
}

class Training {
public:
  explicit Training(const TrainOptions &o) : o(o), progress(o.quiet || o.json) {}
  Status run();

private:
  Result<Built> compileOrRead();
  Status dryRun(const Built &built, const Program &program);
  Status loop(Session &session, const TextSource &text, size_t number);
  Status save(Session &session, const Program &program);
  void finish(Session &session, const Built &built, size_t number);
  bool wantsLine(int64_t step) const { return step % o.every == 0 || step == 1 || step == o.steps; }

  /// More steps in a row without a finite gradient than this do not come right again.
  static constexpr int64_t mostSkipped = 10;

  const TrainOptions &o;
  double rate = 0; ///< learning rate, the highest
  Progress progress;
  std::vector<StepRecord> records;
  EmulatedSteps emulated; ///< with --emulate, as many as records
  /// A record with its emulated figures.
  Json recordJson(size_t record) const {
    Json json = records[record].json();
    if (!emulated.empty())
      emulated.into(json, record, tokens);
    return json;
  }
  double tokens = 0; ///< of a step
};

Result<Built> Training::compileOrRead() {
  if (o.dryRun)
    if (auto status = requireNone(o.optimizer.app,
                                  {"--profile", "--trace", "--out", "--weights", "--emulate"},
                                  "with --dry-run, which trains nothing");
        !status)
      return status.error();
  if (isExecutable(o)) {
    std::vector<std::string> options = OptimizerChoice::compiled();
    options.insert(options.end(), {"--fn", "--accumulate", "--recompute", "--gathered"});
    for (const std::string &option : options)
      if (o.optimizer.given(option))
        return Error{fmt::format("{} cannot be changed: '{}' is an executable, compiled already",
                                 option, o.file)};
    if (o.noOverlap)
      return Error{fmt::format("--no-overlap cannot be changed: '{}' is an executable, compiled "
                               "already",
                               o.file)};
    return readBuilt(o);
  }
  auto optimizer = o.optimizer.chosen();
  if (!optimizer)
    return optimizer.error();
  auto source = Source::open(o);
  if (!source)
    return source.error();
  auto sizes = source->complete({{"batch", 8}, {"seq", 64}});
  if (!sizes)
    return sizes.error();
  auto program = source->check(*sizes);
  if (!program)
    return program.error();
  auto function = findFunction(*program, o.function);
  if (!function)
    return function.error();
  if (auto scalar = requireScalar(*program, **function); !scalar)
    return scalar.error();
  CompileOptions options;
  if (auto status = chooseCluster(options, *program, o.plan, o); !status)
    return status.error();
  options.entries = {{o.function, EntryPoint::Kind::TrainStep, true}};
  options.optimizer = *optimizer;
  options.accumulate = o.accumulate;
  options.recompute = o.recompute;
  options.gathered = o.gathered;
  auto mixed = o.precisionUnder(*program, planName(o.plan));
  if (!mixed)
    return mixed.error();
  if (auto suited = o.optimizer.suits(*mixed); !suited)
    return suited.error();
  options.precision = *mixed;
  options.overlap = !o.noOverlap;
  return build(*program, o.plan, o.elementType(), std::move(options), progress);
}

Status Training::dryRun(const Built &built, const Program &program) {
  PlannedMemory memory = plannedMemory(*built.executable, program);
  if (o.json) {
    Json stages = Json::object();
    for (const auto &[stage, seconds] : built.info.seconds)
      stages[stage] = seconds;
    outPretty({{"model", built.executable->model},
               {"plan", built.executable->plan},
               {"mesh", meshJson(built.executable->mesh)},
               {"sizes", sizesJson(program.dims)},
               {"params", memory.paramElements},
               {"memory", memory.json()},
               {"collectives", collectivesJson(program)},
               {"compile_seconds", stages}});
    return {};
  }
  out(fmt::format("{}: {}, plan {} on {}, {}\n\n", built.executable->model,
                  countText(memory.paramElements, "param"), built.executable->plan,
                  meshText(built.executable->mesh), sizesText(program.dims)));
  out(memory.table("  ") + "\n" + collectivesTable(program, "  "));
  if (!built.info.seconds.empty())
    out("\n" + stagesText(built.info));
  out("\n--dry-run: nothing was trained\n");
  return {};
}

Status Training::loop(Session &session, const TextSource &text, size_t number) {
  const Program &program = session.executable().programs[number];
  tokens = static_cast<double>(text.tokensPerStep());
  using Clock = std::chrono::steady_clock;
  interrupted = 0;
  InterruptGuard guard;
  int64_t inARow = 0; // skipped steps, behind which no smaller scale of the loss helps
  auto scale = [&]() -> Result<double> {
    if (!session.findPersistent("loss_scale"))
      return 0.0;
    auto value = session.get("loss_scale");
    if (!value)
      return value.error();
    return elementAsDouble(value->dtype, value->data.data(), 0);
  };
  auto lossScale = scale();
  if (!lossScale)
    return lossScale.error();
  for (int64_t step = 0; step < o.steps && !interrupted; ++step) {
    auto start = Clock::now();
    double now = o.schedule.at(step + 1, o.steps, rate);
    auto result = session.run(program.name, text.step(static_cast<uint32_t>(step)),
                              scalarsOf(program, o.seed, step, now));
    if (!result)
      return text.explain(result.error());
    // The first step pays for touching memory for the first time.
    if (step == 0 && o.steps > 1)
      session.resetProfile();
    StepRecord record;
    record.step = step + 1;
    record.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    record.tokensPerSecond = tokens / record.seconds;
    record.loss = numberOf(*result, "loss");
    record.norm = numberOf(*result, "gradient_norm");
    record.rate = now;
    record.lossScale = *lossScale;
    records.push_back(record);
    double shown = record.tokensPerSecond;
    if (!o.emulate.empty()) {
      emulated.add(session, number);
      shown = tokens / std::max(result->emulatedSeconds, 1e-12);
    }
    lossScale = scale();
    if (!lossScale)
      return lossScale.error();
    bool rescaled = *lossScale != record.lossScale;
    inARow = record.skipped() && !rescaled ? inARow + 1 : 0;
    if (o.json)
      outLine(recordJson(records.size() - 1));
    else if (!o.quiet && (wantsLine(record.step) || record.skipped() || rescaled)) {
      progress.clear();
      out(fmt::format(
          "step {:>5}  loss {:<9.6g}  gradient norm {:<9.4g}  lr {:<9.4g}  {:>9} "
          "{}tokens/s{}{}\n",
          record.step, record.loss, record.norm, record.rate, countText(std::llround(shown)),
          o.emulate.empty() ? "" : "emulated ",
          record.skipped() ? "  skipped: the norm is not finite" : "",
          rescaled ? fmt::format("  loss scale {:g} -> {:g}", record.lossScale, *lossScale) : ""));
      std::fflush(stdout);
    } else {
      progress.say(fmt::format("step {} of {}, loss {:.6g}", record.step, o.steps, record.loss));
    }
    bool lost = !record.skipped() && !std::isfinite(record.loss);
    if (lost || inARow == mostSkipped || (inARow > 0 && inARow == o.steps)) {
      progress.clear();
      return Error{fmt::format(
          "the loss is {} and the gradient norm {} at step {}{}: a smaller "
          "--lr than {:g} may help; nothing was written",
          record.loss, record.norm, record.step,
          lost ? "" : fmt::format(", and {} in a row skipped", countText(inARow, "step")), rate)};
    }
  }
  progress.clear();
  return {};
}

Status Training::save(Session &session, const Program &program) {
  std::string metrics;
  for (size_t i = 0; i < records.size(); ++i)
    metrics += recordJson(i).dump() + "\n";
  std::filesystem::path folder(o.out);
  std::map<std::string, std::string> about = {
      {"made_by", "cleave train"},         {"model", session.executable().model},
      {"plan", session.executable().plan}, {"steps", std::to_string(records.size())},
      {"seed", std::to_string(o.seed)},
  };
  for (const auto &[name, size] : program.dims)
    about[name] = std::to_string(size);
  if (auto status = saveWeights(session, (folder / "weights.safetensors").string(), about); !status)
    return status;
  return writeFileAtomically((folder / "metrics.jsonl").string(), metrics);
}

void Training::finish(Session &session, const Built &built, size_t number) {
  const Program &program = built.program(number);
  std::vector<double> seconds; // but the first, as long as there are others
  for (size_t i = records.size() > 2 ? 1 : 0; i < records.size(); ++i)
    seconds.push_back(records[i].seconds);
  std::sort(seconds.begin(), seconds.end());
  double median = seconds.empty() ? 0 : seconds[seconds.size() / 2];
  double speed =
      seconds.empty() ? 0 : records.front().tokensPerSecond * records.front().seconds / median;
  PlannedMemory memory = plannedMemory(*built.executable, program);
  auto steps = static_cast<int64_t>(records.size());
  int64_t skipped =
      std::count_if(records.begin(), records.end(), [](auto &r) { return r.skipped(); });
  double rows = 0;
  for (const StepRecord &record : records)
    rows += record.seconds;
  // The profile leaves out the first step, so this does.
  auto profiled = std::max<int64_t>(1, o.steps > 1 ? steps - 1 : steps);
  if (steps > 1)
    rows -= records.front().seconds;
  double perStep = rows / static_cast<double>(profiled);
  std::vector<KernelTime> kernels;
  std::vector<std::pair<std::string, double>> byKind;
  Roofline roofline;
  if (o.profile && steps) {
    kernels = kernelTimes(session, number, profiled);
    byKind = timeByKind(kernels);
    progress.say("measuring the roofline");
    auto dtype = built.executable->settings.find("dtype");
    bool f64 = dtype != built.executable->settings.end() && dtype->second == "f64";
    roofline =
        measureRoofline(session.ranks() * session.workersPerRank(), f64 ? DType::F64 : DType::F32);
    progress.clear();
  }

  if (o.json) {
    Json end = {{"end", interrupted ? "interrupted" : "done"},
                {"steps", steps},
                {"skipped", skipped},
                {"loss", steps ? Json(records.back().loss) : Json()},
                {"step_seconds_median", median},
                {"tokens_per_second", speed},
                {"model", built.executable->model},
                {"plan", built.executable->plan},
                {"mesh", meshJson(built.executable->mesh)},
                {"sizes", sizesJson(program.dims)},
                {"params", memory.paramElements},
                {"memory", memory.json()},
                {"collectives", collectivesJson(program)}};
    if (steps && !emulated.empty()) {
      end["emulated_on"] = o.emulate;
      emulated.into(end, emulated.median(), tokens);
    }
    for (const auto &[kind, time] : byKind)
      end["profile_seconds_per_step"][kind] = time;
    if (!kernels.empty())
      end["profile"] = kernelsJson(kernels, roofline, session.ranks());
    for (const auto &[stage, time] : built.info.seconds)
      end["compile_seconds"][stage] = time;
    if (!o.out.empty())
      end["out"] = o.out;
    outLine(end);
    return;
  }
  if (interrupted)
    out(fmt::format("interrupted after step {}\n", steps));
  if (skipped)
    out(fmt::format("{} skipped: the gradient norm was not finite\n", countText(skipped, "step")));
  if (steps && !emulated.empty()) {
    size_t run = emulated.median();
    out(fmt::format(
        "{} on {}: loss {:.6g} -> {:.6g}\n"
        "emulated on {}: {} a step, {} tokens/s, exposed communication {}; computed "
        "here on {} in {} a step\n",
        countText(steps, "step"), meshText(built.executable->mesh), records.front().loss,
        records.back().loss, o.emulate, secondsText(emulated.seconds[run]),
        countText(std::llround(tokens / std::max(emulated.seconds[run], 1e-12))),
        emulated.exposedText(), countText(session.ranks(), "thread"), secondsText(median)));
  } else if (steps)
    out(fmt::format("{} on {} ({}{}): loss {:.6g} -> {:.6g}, {} a step, {} tokens/s\n",
                    countText(steps, "step"), meshText(built.executable->mesh),
                    countText(session.workersPerRank(), "thread"),
                    session.ranks() > 1 ? " each" : "", records.front().loss, records.back().loss,
                    secondsText(median), countText(std::llround(speed))));
  if (!o.out.empty())
    out(fmt::format("wrote {0}/weights.safetensors and {0}/metrics.jsonl\n", o.out));
  if (!o.profile)
    return;
  Table t({"time of a step", "", "share"});
  double known = 0;
  auto row = [&](const std::string &what, double time) {
    t.row(
        {what, secondsText(time), fmt::format("{:.1f} %", perStep > 0 ? 100 * time / perStep : 0)});
  };
  for (const auto &[kind, time] : byKind) {
    row(kind, time);
    known += time;
  }
  row("other (data, results)", std::max(0.0, perStep - known));
  row("total", perStep);
  out("\n" + t.text("  ") + "\n");
  out(kernelTable(kernels, roofline, session.ranks(), perStep) + "\n");
  if (!built.info.seconds.empty())
    out(stagesText(built.info) + "\n");
  out(memory.table("  ") + "\n" + collectivesTable(program, "  "));
  auto [now, peak] = residentBytes();
  out(fmt::format("\n  resident size of the process: {}, at most {}\n", bytesText(now),
                  bytesText(peak)));
}

Status Training::run() {
  if (auto status = requireDistinct("--trace", o.trace,
                                    {{"FILE", o.file},
                                     {"--data", o.data},
                                     {"--weights", o.weights},
                                     {"--plan", planFile(o.plan)}});
      !status)
    return status;
  if (auto status = checkEmulation(o.optimizer.app, o); !status)
    return status;
  auto built = compileOrRead();
  if (!built)
    return built.error();
  // An executable was compiled for one optimizer: the default is that one's.
  auto optimizer = built->executable->settings.find("optimizer");
  bool known = optimizer != built->executable->settings.end();
  rate = o.optimizer.rate(known ? optimizer->second : o.optimizer.settings.kind);
  if (auto status = o.schedule.check(o.optimizer.app, o.steps, rate); !status)
    return status;
  auto number = built->find("train_step", o);
  if (!number)
    return number.error();
  const Program &program = built->program(*number);
  if (o.dryRun)
    return dryRun(*built, program);
  if (o.data.empty())
    return Error{"--data is required: the text to train on"};
  auto text = TextSource::open(o.data, program, o.seed);
  if (!text)
    return text.error();
  if (!o.out.empty())
    if (auto status = prepareFolder(o.out); !status)
      return status;
  auto session = openSession(*built, o, o.profile, !o.trace.empty());
  if (!session)
    return session.error();
  if (auto status = (*session)->initialise(o.seed); !status)
    return status;
  if (!o.weights.empty()) {
    auto file = SafetensorsFile::open(o.weights);
    if (!file)
      return file.error();
    auto report = loadWeights(**session, *file, built->compounds);
    if (!report)
      return report.error();
    if (report->ignored)
      note(o.quiet, fmt::format("'{}' has {} that the program does not take", o.weights,
                                countText(static_cast<int64_t>(report->ignored), "tensor")));
  }
  if (!o.quiet && !o.json)
    out(fmt::format("{}: {}, plan {} on {}, {}, {} of text\n", built->executable->model,
                    countText(plannedMemory(*built->executable, program).paramElements, "param"),
                    built->executable->plan, meshText(built->executable->mesh),
                    sizesText(program.dims), countText(text->size(), "token")));
  if (auto status = loop(**session, *text, *number); !status)
    return status;
  if (!o.out.empty())
    if (auto status = save(**session, program); !status)
      return status;
  if (!o.trace.empty())
    if (auto status = writeFileAtomically(
            o.trace, traceText({runOf(**session, *number,
                                      o.emulate.empty() ? program.name
                                                        : fmt::format("{} (emulated on {})",
                                                                      program.name, o.emulate))}));
        !status)
      return status;
  finish(**session, *built, *number);
  return {};
}

} // namespace

void addTrain(Commands &commands) {
  auto o = std::make_shared<TrainOptions>();
  CLI::App *app = commands.add(
      "train", "Train a model on text.",
      "  cleave train models/gpt2.cleave --data shakespeare.txt --steps 200 --out run1\n"
      "  cleave train models/gpt2.cleave --plan megatron --mesh tp=2 --data shakespeare.txt\n"
      "  cleave train models/gpt2.cleave --set layers=12,width=768 --plan megatron --mesh tp=2 "
      "--dry-run\n"
      "  cleave train gpt2.cleavex --data shakespeare.txt --json\n"
      "  cleave train models/gpt2.cleave --data shakespeare.txt --steps 3 --profile --trace "
      "t.json\n"
      "  cleave train models/gpt2.cleave --data shakespeare.txt --plan data --mesh dp=4 --steps 9 "
      "--emulate ethernet\n");
  addFile(app, *o, true);
  app->add_option("--data", o->data, "the text")->type_name("TEXT");
  app->add_option("--tokenizer", o->tokenizer, "tokens of the text (bytes)")
      ->check(oneOf({"bytes"}))
      ->type_name("WORD");
  addFunction(app, *o, "loss");
  app->add_option("--steps", o->steps, "training steps (100)")
      ->check(wholeNumber(1, 1LL << 31))
      ->type_name("N");
  addSizes(app, *o);
  addOptimizer(app, o->optimizer);
  addRate(app, o->optimizer);
  addSchedule(app, o->schedule);
  addOptimizerSettings(app, o->optimizer);
  app->add_option("--weights", o->weights, "start from these weights")->type_name("FILE");
  app->add_option("--out", o->out, "folder for weights.safetensors and metrics.jsonl")
      ->type_name("DIR");
  addModel(app, *o);
  addPlan(app, *o);
  addCluster(app, *o);
  addTrainingPlan(app, *o);
  addSeed(app, *o);
  addThreads(app, *o);
  addOffload(app, *o);
  addEmulate(app, *o);
  app->add_option("--every", o->every, "print every Nth step (1)")
      ->check(wholeNumber(1, 1LL << 31))
      ->type_name("N");
  app->add_flag("--no-overlap", o->noOverlap, "wait for each collective at once");
  app->add_flag("--dry-run", o->dryRun, "compile and show memory and collectives only");
  app->add_flag("--profile", o->profile, "where the time and the memory go, kernel by kernel");
  app->add_option("--trace", o->trace, "write when each step of each rank ran, for Perfetto")
      ->type_name("OUT.json");
  addOutput(app, *o);
  commands.action(app, [o] { return Training(*o).run(); });
}

} // namespace cleave::tool
