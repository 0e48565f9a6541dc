//===- MinimizeFile.cpp - minimises a problem that stands in a file -------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
//   minimize-file FILE.json [BYTES]     the result as JSON, within BYTES; seconds: of the processor
//   minimize-file --random SEED         prints a random problem
//   minimize-file --layer SEED CLASSES CHOICES OPS CHOICES     prints one shaped like a layer
//
// tests/oracles/solve_ilp.py compares the result with an ILP solver's.
//
//===----------------------------------------------------------------------===//
#include "Problems.h"

#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>

using namespace cleave;

int main(int argc, char **argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  auto number = [&](size_t i) { return std::stoi(arguments[i]); };
  if (arguments.size() == 2 && arguments[0] == "--random") {
    test::RandomOptions options;
    options.memory = true;
    std::cout << toJson(test::randomProblem(uint64_t(number(1)), options)) << "\n";
    return 0;
  }
  if (arguments.size() == 6 && arguments[0] == "--layer") {
    std::cout << toJson(test::layerProblem(uint64_t(number(1)), number(2), number(3), number(4),
                                           number(5)))
              << "\n";
    return 0;
  }
  if (arguments.empty() || arguments.size() > 2) {
    std::cerr << "usage: minimize-file FILE.json [BYTES]\n";
    return 1;
  }
  std::ifstream file(arguments[0]);
  std::stringstream text;
  text << file.rdbuf();
  Result<ChoiceProblem> problem = choiceProblemFromJson(text.str());
  if (!problem) {
    std::cerr << "error: " << problem.error().message << "\n";
    return 1;
  }
  MinimizeOptions options;
  if (arguments.size() == 2)
    options.memoryLimit = std::stod(arguments[1]);
  const std::clock_t start = std::clock();
  Result<Minimum> minimum = minimize(*problem, options);
  const double seconds = double(std::clock() - start) / CLOCKS_PER_SEC;
  if (!minimum) {
    std::cout << "{\"error\": true}\n";
    std::cerr << "error: " << minimum.error().message << "\n";
    return 0;
  }
  fmt::print("{{\"cost\": {}, \"memory\": {}, \"lower_bound\": {}, \"exact\": {}, \"states\": {}, "
             "\"width\": {}, \"multiplier\": {}, \"seconds\": {:.3f}}}\n",
             minimum->cost, minimum->memory, minimum->lowerBound, minimum->exact(), minimum->states,
             minimum->width, minimum->multiplier, seconds);
  return 0;
}
