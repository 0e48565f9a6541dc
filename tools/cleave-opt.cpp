//===- cleave-opt.cpp - runs passes on text -------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/Dialect.h"
#include "passes/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Support/FileUtilities.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/ToolOutputFile.h"

namespace {

/// MLIR's parser calls itself for each bracket that opens, without a limit, and
/// would leave its stack. No program of ours comes near this.
constexpr int kDeepest = 1000;

/// Whether brackets nest no deeper than that; else the error is printed.
bool checkNesting(llvm::StringRef text, llvm::StringRef name) {
  if (text.starts_with("ML\xefR")) // bytecode
    return true;
  int depth = 0;
  size_t line = 1, start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
    case '\n':
      ++line;
      start = i + 1;
      break;
    case '"':
      for (++i; i < text.size() && text[i] != '"' && text[i] != '\n'; ++i)
        if (text[i] == '\\')
          ++i;
      if (i < text.size() && text[i] == '\n')
        --i;
      break;
    case '/':
      if (text.substr(i).starts_with("//"))
        i = std::min(text.find('\n', i), text.size()) - 1;
      break;
    case '(':
    case '[':
    case '{':
    case '<':
      if (++depth > kDeepest) {
        llvm::errs() << name << ':' << line << ':' << i - start + 1 << ": error: nested more than "
                     << kDeepest << " deep\n";
        return false;
      }
      break;
    case '>':
      if (i && text[i - 1] == '-')
        break;
      [[fallthrough]];
    case ')':
    case ']':
    case '}':
      depth = std::max(depth - 1, 0);
      break;
    }
  }
  return true;
}

} // namespace

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  registry.insert<cleave::CleaveDialect, mlir::func::FuncDialect>();
  cleave::registerCleavePasses();
  mlir::registerTransformsPasses();
  auto [inputName, outputName] = mlir::registerAndParseCLIOptions(
      argc, argv,
      "Runs the passes of Cleave on IR text.\n\n"
      "Examples:\n"
      "  cleave compile models/mlp.cleave --emit=ir > mlp.mlir\n"
      "  cleave-opt mlp.mlir --cleave-expand-composites --cleave-differentiate=function=loss -cse\n"
      "  cleave compile models/mlp.cleave --emit=grad | cleave-opt --cleave-print-fusion-groups -o "
      "/dev/null\n"
      "  cleave compile models/mlp.cleave --emit=fused | cleave-opt --cleave-print-schedule\n",
      registry);
  auto config = mlir::MlirOptMainConfig::createFromCLOptions();
  if (config.shouldShowDialects() || config.shouldListPasses())
    return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, inputName, outputName, registry));
  std::string message;
  auto input = mlir::openInputFile(inputName, &message);
  if (!input) {
    llvm::errs() << message << '\n';
    return 1;
  }
  if (!checkNesting(input->getBuffer(), input->getBufferIdentifier()))
    return 1;
  auto output = mlir::openOutputFile(outputName, &message);
  if (!output) {
    llvm::errs() << message << '\n';
    return 1;
  }
  if (failed(mlir::MlirOptMain(output->os(), std::move(input), registry, config)))
    return 1;
  output->keep();
  return 0;
}
