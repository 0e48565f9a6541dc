//===- Kernels.cpp - from fused groups to an ELF object -------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/lowering/Kernels.h"

#include "passes/lowering/Attention.h"
#include "passes/lowering/Generator.h"

#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/FuncToLLVM/ConvertFuncToLLVMPass.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/Passes.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Conversion/VectorToLLVM/ConvertVectorToLLVMPass.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/Passes.h"

#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"

using namespace mlir;
using namespace cleave;

namespace {

/// What two groups must agree in to be the same kernel: ops, types, attributes,
/// and who feeds whom. Names of values and locations do not count, nor do
/// discardable attributes.
std::string contentOf(FusedOp fused) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << fused.getKind() << "\n";
  if (Attribute parts = fused->getAttr(kParts))
    os << parts << "\n";
  llvm::DenseMap<Value, unsigned> numbers;
  auto define = [&](Value v) {
    unsigned n = numbers.size();
    numbers[v] = n;
    os << " " << v.getType();
  };
  for (BlockArgument arg : fused.getBody().getArguments())
    define(arg);
  for (Operation &op : fused.getBody().front()) {
    os << "\n" << op.getName();
    for (Value v : op.getOperands())
      os << " %" << numbers.lookup(v);
    for (NamedAttribute a : op.getPropertiesAsAttribute()
                                ? cast<DictionaryAttr>(op.getPropertiesAsAttribute())
                                : DictionaryAttr::get(op.getContext()))
      os << " " << a.getName() << "=" << a.getValue();
    for (Value v : op.getResults())
      define(v);
  }
  return text;
}

} // namespace

struct KernelCompiler::State {
  KernelOptions options;
  MLIRContext context{MLIRContext::Threading::DISABLED};
  OwningOpRef<ModuleOp> module;
  std::map<std::string, KernelInfo> known;
  std::unique_ptr<llvm::TargetMachine> target;

  explicit State(KernelOptions options) : options(options) {
    context.loadDialect<arith::ArithDialect, cf::ControlFlowDialect, func::FuncDialect,
                        LLVM::LLVMDialect, math::MathDialect, scf::SCFDialect,
                        vector::VectorDialect>();
    registerBuiltinDialectTranslation(context);
    registerLLVMDialectTranslation(context);
    module = ModuleOp::create(UnknownLoc::get(&context));
  }

  bool makeTarget(std::string &error);
  std::unique_ptr<llvm::Module> translate(llvm::LLVMContext &llvmContext, std::string &error);
};

KernelCompiler::KernelCompiler(KernelOptions options) : state(std::make_unique<State>(options)) {}
KernelCompiler::~KernelCompiler() = default;
size_t KernelCompiler::size() const { return state->known.size(); }

FailureOr<KernelInfo> KernelCompiler::add(FusedOp fused) {
  std::string content = contentOf(fused);
  auto [known, isNew] = state->known.try_emplace(content);
  if (!isNew)
    return known->second;
  KernelInfo &info = known->second;
  info.symbol = "kernel_" + std::to_string(state->known.size() - 1);
  bool made;
  if (attentionIn(fused)) {
    made = generateAttention(fused, *state->module, state->options, info.symbol, info);
  } else {
    // A copy that the generator may change.
    Region copy;
    IRMapping mapping;
    fused.getBody().cloneInto(&copy, mapping);
    made = Generator(copy, fused, *state->module, state->options).generate(info.symbol, info);
  }
  if (!made) {
    if (Operation *half = state->module->lookupSymbol(info.symbol))
      half->erase();
    state->known.erase(known);
    return failure();
  }
  return info;
}

std::vector<std::string> KernelCompiler::cpuFeatures() const {
  std::vector<std::string> features{"avx2", "fma", "f16c"};
  if (state->options.vectorBits > 256)
    features.insert(features.end(), {"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  return features;
}

bool KernelCompiler::State::makeTarget(std::string &error) {
  if (target)
    return true;
  static const bool initialised = [] {
    return !llvm::InitializeNativeTarget() && !llvm::InitializeNativeTargetAsmPrinter();
  }();
  if (!initialised) {
    error = "LLVM has no code generator for this machine";
    return false;
  }
  llvm::Triple triple(llvm::sys::getDefaultTargetTriple());
  const llvm::Target *t = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!t)
    return false;
  // Any processor with these features runs the object, not this one only.
  std::string features, cpu = "generic";
  if (triple.isX86()) {
    cpu = "x86-64-v3";
    if (options.vectorBits > 256)
      cpu = "x86-64-v4";
    features = options.vectorBits > 256 ? "" : "+prefer-256-bit";
  }
  llvm::TargetOptions machine;
  auto level = options.optLevel == 0   ? llvm::CodeGenOptLevel::None
               : options.optLevel == 1 ? llvm::CodeGenOptLevel::Less
               : options.optLevel == 2 ? llvm::CodeGenOptLevel::Default
                                       : llvm::CodeGenOptLevel::Aggressive;
  target.reset(t->createTargetMachine(triple, cpu, features, machine, llvm::Reloc::PIC_,
                                      std::nullopt, level));
  if (!target)
    error = "no target machine for " + triple.str();
  return target != nullptr;
}

std::unique_ptr<llvm::Module> KernelCompiler::State::translate(llvm::LLVMContext &llvmContext,
                                                               std::string &error) {
  if (!makeTarget(error))
    return nullptr;
  OwningOpRef<ModuleOp> lowered(module->clone());
  std::string messages;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &d) {
    messages += d.str() + "\n";
    return success();
  });
  PassManager pm(&context);
  pm.addPass(createCSEPass());
  pm.addPass(createSCFToControlFlowPass());
  pm.addPass(createConvertVectorToLLVMPass());
  pm.addPass(createConvertMathToLLVMPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createConvertFuncToLLVMPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
  if (mlir::failed(pm.run(*lowered))) {
    error = "kernels could not be lowered to LLVM: " + messages;
    return nullptr;
  }
  auto llvmModule = translateModuleToLLVMIR(*lowered, llvmContext, "cleave_kernels");
  if (!llvmModule) {
    error = "kernels could not be translated to LLVM IR: " + messages;
    return nullptr;
  }
  llvmModule->setDataLayout(target->createDataLayout());
  llvmModule->setTargetTriple(target->getTargetTriple());
  for (llvm::Function &f : *llvmModule) {
    f.setDoesNotThrow();
    if (f.isDeclaration() && !f.isIntrinsic()) {
      f.setDoesNotAccessMemory(); // libm without errno
      f.setWillReturn();
    }
  }

  // The usual pipeline but for the vectorisers: the code is vectors already. No
  // library function is known to it, so it makes no calls of its own.
  llvm::PipelineTuningOptions tuning;
  tuning.LoopVectorization = false;
  tuning.SLPVectorization = false;
  llvm::PassBuilder builder(target.get(), tuning);
  llvm::TargetLibraryInfoImpl library(target->getTargetTriple());
  library.disableAllFunctions();
  llvm::LoopAnalysisManager lam;
  llvm::FunctionAnalysisManager fam;
  llvm::CGSCCAnalysisManager cam;
  llvm::ModuleAnalysisManager mam;
  fam.registerPass([&] { return llvm::TargetLibraryAnalysis(library); });
  builder.registerModuleAnalyses(mam);
  builder.registerCGSCCAnalyses(cam);
  builder.registerFunctionAnalyses(fam);
  builder.registerLoopAnalyses(lam);
  builder.crossRegisterProxies(lam, fam, cam, mam);
  auto level = options.optLevel <= 0   ? llvm::OptimizationLevel::O0
               : options.optLevel == 1 ? llvm::OptimizationLevel::O1
               : options.optLevel == 2 ? llvm::OptimizationLevel::O2
                                       : llvm::OptimizationLevel::O3;
  llvm::ModulePassManager pipeline = options.optLevel <= 0
                                         ? builder.buildO0DefaultPipeline(level)
                                         : builder.buildPerModuleDefaultPipeline(level);
  pipeline.run(*llvmModule, mam);
  return llvmModule;
}

FailureOr<std::string> KernelCompiler::emitLLVM(std::string &error) {
  llvm::LLVMContext llvmContext;
  auto llvmModule = state->translate(llvmContext, error);
  if (!llvmModule)
    return failure();
  std::string text;
  llvm::raw_string_ostream os(text);
  llvmModule->print(os, nullptr);
  return text;
}

FailureOr<std::string> KernelCompiler::emitObject(std::string &error) {
  llvm::LLVMContext llvmContext;
  auto llvmModule = state->translate(llvmContext, error);
  if (!llvmModule)
    return failure();
  llvm::SmallString<0> bytes;
  llvm::raw_svector_ostream os(bytes);
  llvm::legacy::PassManager codegen;
  if (state->target->addPassesToEmitFile(codegen, os, nullptr, llvm::CodeGenFileType::ObjectFile)) {
    error = "the target cannot emit object files";
    return failure();
  }
  codegen.run(*llvmModule);
  return std::string(bytes.str());
}

std::string KernelCompiler::emitLoops() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  state->module->print(os);
  return text;
}
