//===- Main.cpp - cleave: one program, its commands, its exit codes -------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Exit codes: 0; 1 the user's input; 2 ours; 3 compared and differs; 4 a rank
// failed.
//
//===----------------------------------------------------------------------===//
#include "Options.h"
#include "Print.h"

#include <fmt/format.h>
#include <optional>
#include <set>

using namespace cleave;
using namespace cleave::tool;

static int exitCode(Fault fault) {
  switch (fault) {
  case Fault::User:
    return 1;
  case Fault::Internal:
    return 2;
  case Fault::Differs:
    return 3;
  case Fault::Rank:
    return 4;
  }
  return 2;
}

/// Diagnostics of the source bring their own "file:line:column: error:".
static bool saysError(const std::string &message) {
  std::string first = message.substr(0, message.find('\n'));
  return first.rfind("error: ", 0) == 0 || first.find(": error: ") != std::string::npos;
}

static int report(const Error &error) {
  std::fflush(stdout);
  std::string text = error.message;
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  fmt::print(stderr, "{}{}\n", saysError(text) ? "" : "error: ", text);
  if (error.fault == Fault::Internal)
    fmt::print(stderr, "this is a fault of cleave itself: please report it with the program and "
                       "the command line\n");
  return exitCode(error.fault);
}

static int usage(const std::string &message, const std::string &command) {
  fmt::print(stderr, "error: {}\n`cleave {}--help` shows what there is\n", message,
             command.empty() ? "" : command + " ");
  return 1;
}

/// What the parser would only call "not expected": a command or an option that
/// does not exist, with the one that was meant.
static std::optional<std::string> findUnknown(const Commands &commands, int count, char **words,
                                              std::string &command) {
  if (count < 2)
    return "no command is given";
  std::string first = words[1];
  std::vector<std::string> names;
  CLI::App *app = nullptr;
  for (const auto &entry : commands.list) {
    names.push_back(entry.first->get_name());
    if (names.back() == first)
      app = entry.first;
  }
  if (!app) {
    if (first[0] == '-')
      return std::nullopt;
    std::string near = meant(first, names);
    return fmt::format("there is no command '{}'{}", first,
                       near.empty() ? fmt::format(" (there are {})", fmt::join(names, ", "))
                                    : near);
  }
  command = first;
  std::vector<std::string> options;
  for (const CLI::Option *option : app->get_options())
    for (const std::string &name : option->get_lnames())
      if (option->get_group() != "")
        options.push_back("--" + name);
  std::set<const CLI::Option *> seen;
  for (int i = 2; i < count; ++i) {
    std::string word = words[i];
    if (word == "--")
      break;
    if (word.rfind("--", 0) != 0)
      continue;
    word = word.substr(0, word.find('='));
    const CLI::Option *option = app->get_option_no_throw(word);
    if (option && !seen.insert(option).second &&
        option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw)
      return fmt::format("{} is given twice", word);
    if (!option)
      return fmt::format("`cleave {}` has no option '{}'{}", first, word, meant(word, options));
  }
  return std::nullopt;
}

int main(int count, char **words) {
  CLI::App app{"Cleave: transformers in a small language, compiled into programs that run split "
               "over many ranks."};
  app.name("cleave");
  app.set_version_flag("--version",
                       std::string("cleave " CLEAVE_VERSION ", LLVM " CLEAVE_LLVM_VERSION));
  app.require_subcommand(1);
  app.get_formatter()->column_width(32);
  app.footer("\nExamples:\n"
             "  cleave train models/gpt2.cleave --data text.txt --plan megatron --mesh tp=2\n"
             "  cleave check models/gpt2.cleave --plan megatron --mesh dp=2,tp=2\n"
             "  cleave explain models/gpt2.cleave --plan megatron --mesh tp=2\n"
             "`cleave COMMAND --help` shows a command's options and examples.\n");
  Commands commands{app, {}};
  addTrain(commands);
  addRun(commands);
  addCheck(commands);
  addCompare(commands);
  addExplain(commands);
  addCompile(commands);
  addPlan(commands);
  addInit(commands);
  addInspect(commands);
  addCalibrate(commands);
  addDoctor(commands);

  try {
    std::string command;
    if (auto unknown = findUnknown(commands, count, words, command))
      return usage(*unknown, command);
    try {
      app.parse(count, words);
    } catch (const CLI::ParseError &problem) {
      if (problem.get_exit_code() == 0)
        return app.exit(problem); // --help, --version
      return usage(problem.what(), command);
    }
    for (auto &[entry, action] : commands.list) {
      if (!entry->parsed())
        continue;
      Status status = action();
      if (!status)
        return report(status.error());
    }
    if (!flushOutput())
      return report({"cannot write to the standard output"});
    return 0;
  } catch (const std::bad_alloc &) {
    return report({"out of memory", Fault::Internal});
  } catch (const std::exception &problem) {
    return report({problem.what(), Fault::Internal});
  }
}
