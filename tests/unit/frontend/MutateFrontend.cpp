//===- MutateFrontend.cpp - many damaged programs, none may crash -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// mutate-frontend [--count N] [--seed S] FILE...
// Damages the files in every small way and checks the results: a token removed,
// doubled, swapped with another, replaced; cut at a byte; bits flipped; bytes
// put in, also long runs of one; numbers made huge or negative. The same seed gives the same texts.
// A crash ends the program; a wrong verdict (no error and no program, or a printed program that
// reads differently) makes the exit code 1.
//
//===----------------------------------------------------------------------===//
#include "frontend/Check.h"
#include "frontend/Lexer.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

using namespace cleave;

namespace {

/// xorshift64*: the same numbers everywhere.
struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717ull;
  }
  size_t below(size_t n) { return n ? (next() >> 11) % n : 0; }
};

struct Sample {
  std::string name, text;
  std::vector<SourceRange> tokens;
};

const char *const kinds[] = {"token removed",  "token doubled", "tokens swapped",
                             "token replaced", "cut at a byte", "byte flipped",
                             "byte put in",    "run of a byte", "number changed"};

std::string mutate(const Sample &s, const std::vector<Sample> &all, Random &r, size_t kind) {
  const std::string &t = s.text;
  auto token = [&] { return s.tokens[r.below(s.tokens.size())]; };
  auto textOf = [](const Sample &from, SourceRange x) {
    return from.text.substr(x.begin, x.end - x.begin);
  };
  if (t.empty())
    return t;
  SourceRange a = token(), b = token();
  switch (kind) {
  case 0:
    return t.substr(0, a.begin) + t.substr(a.end);
  case 1:
    return t.substr(0, a.end) + " " + t.substr(a.begin);
  case 2:
    if (b.begin < a.begin)
      std::swap(a, b);
    if (a.end > b.begin)
      return t;
    return t.substr(0, a.begin) + textOf(s, b) + t.substr(a.end, b.begin - a.end) + textOf(s, a) +
           t.substr(b.end);
  case 3: {
    const Sample &other = all[r.below(all.size())];
    return t.substr(0, a.begin) + textOf(other, other.tokens[r.below(other.tokens.size())]) +
           t.substr(a.end);
  }
  case 4:
    return t.substr(0, r.below(t.size() + 1));
  case 5: {
    std::string out = t;
    for (size_t n = 1 + r.below(3); n > 0; --n)
      out[r.below(out.size())] ^= 1u << r.below(8);
    return out;
  }
  case 6: {
    std::string out = t;
    static const std::string bytes("\0\xff\x80\xc3(){}[]\"#@=:;,.-\n\t\r0 9e", 27);
    for (size_t n = 1 + r.below(4); n > 0; --n)
      out.insert(out.begin() + r.below(out.size() + 1), bytes[r.below(bytes.size())]);
    return out;
  }
  case 7: {
    std::string out = t;
    static const std::string bytes("\0\x80\xff( #\"x9;\n", 11);
    out.insert(r.below(out.size() + 1), 1 + r.below(400), bytes[r.below(bytes.size())]);
    return out;
  }
  default: {
    static const char *const numbers[] = {"0",
                                          "-1",
                                          "2147483648",
                                          "9223372036854775807",
                                          "99999999999999999999",
                                          "1e308",
                                          "1e999",
                                          "0.5",
                                          "1e-320",
                                          "00",
                                          "1."};
    return t.substr(0, a.begin) + numbers[r.below(std::size(numbers))] + t.substr(a.end);
  }
  }
}

} // namespace

int main(int argc, char **argv) {
  size_t count = 100000;
  uint64_t seed = 1;
  std::vector<Sample> samples;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--count") && i + 1 < argc) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else if (!std::strcmp(argv[i], "--seed") && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::ifstream in(argv[i], std::ios::binary);
      std::stringstream text;
      text << in.rdbuf();
      if (!in || text.str().empty()) {
        std::cerr << argv[i] << ": cannot be read\n";
        return 1;
      }
      samples.push_back({argv[i], text.str(), {}});
    }
  }
  if (samples.empty()) {
    std::cerr << "usage: mutate-frontend [--count N] [--seed S] FILE...\n";
    return 1;
  }
  for (Sample &s : samples) {
    SourceMap sources;
    Diagnostics diagnostics;
    for (const Token &token : lex(sources, sources.add({s.name, s.text}), diagnostics))
      if (token.range.end > token.range.begin)
        s.tokens.push_back(token.range);
  }
  auto begin = std::chrono::steady_clock::now();
  Random random{seed * 0x9E3779B97F4A7C15ull + 1};
  size_t accepted = 0, refused = 0, errors = 0, wrong = 0, perKind[std::size(kinds)] = {};
  double slowest = 0;
  for (size_t i = 0; i < count; ++i) {
    const Sample &sample = samples[i % samples.size()];
    size_t kind = random.below(std::size(kinds));
    std::string text = mutate(sample, samples, random, kind);
    if (random.below(4) == 0) // damage upon damage
      text = mutate({sample.name, text, sample.tokens}, samples, random, 4 + random.below(4));
    if (std::getenv("MUTATE_KEEP")) { // what is being read when it crashes
      std::ofstream(std::getenv("MUTATE_KEEP"), std::ios::binary) << text;
    }
    auto start = std::chrono::steady_clock::now();
    CheckOptions options;
    options.inventSizes = true;
    Diagnostics diagnostics;
    auto program = check({sample.name, text}, options, diagnostics);
    ++perKind[kind];
    ++(program ? accepted : refused);
    errors += diagnostics.size();
    bool bad = static_cast<bool>(program) != diagnostics.empty() ||
               (!program && program.error().message.find("error: ") == std::string::npos);
    if (program) {
      auto once = formatSource({"printed", text});
      auto twice = once ? formatSource({"printed", *once}) : once;
      bad |= !once || !twice || *once != *twice;
      auto again = once ? check({sample.name, *once}, options) : std::move(program);
      bad |= !again;
    }
    if (bad && ++wrong <= 3)
      std::cerr << "wrong verdict, " << kinds[kind] << ":\n" << text << "\n";
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    slowest = std::max(slowest, took.count());
  }
  std::chrono::duration<double> total = std::chrono::steady_clock::now() - begin;
  std::printf("%zu damaged programs: %zu refused with %zu errors, %zu right all the same, %zu "
              "wrong verdicts\n",
              count, refused, errors, accepted, wrong);
  for (size_t k = 0; k < std::size(kinds); ++k)
    std::printf("  %-15s %zu\n", kinds[k], perKind[k]);
  std::printf("%.1f s, the slowest %.1f ms\n", total.count(), slowest * 1e3);
  return wrong ? 1 : 0;
}
