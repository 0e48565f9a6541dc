//===- ObjectLoader.cpp - generated code into memory ----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/cpu/ObjectLoader.h"

#include <llvm/ExecutionEngine/Orc/AbsoluteSymbols.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>

#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <set>

namespace cleave {

static std::string text(llvm::Error error) { return llvm::toString(std::move(error)); }

/// Name -> address of all that generated code may call.
static const std::map<std::string, void *, std::less<>> &allowed() {
  static const std::map<std::string, void *, std::less<>> table = [] {
    std::map<std::string, void *, std::less<>> t;
    auto add = [&](const char *name, auto *function) {
      t[name] = reinterpret_cast<void *>(function);
    };
    add("memcpy", &std::memcpy);
    add("memset", &std::memset);
    add("memmove", &std::memmove);
    add("memcmp", &std::memcmp);
    using F1 = float (*)(float);
    using D1 = double (*)(double);
    using F2 = float (*)(float, float);
    using D2 = double (*)(double, double);
    auto both = [&](const char *name, const char *floatName, F1 f, D1 d) {
      add(name, d);
      add(floatName, f);
    };
    both("exp", "expf", ::expf, static_cast<D1>(::exp));
    both("exp2", "exp2f", ::exp2f, static_cast<D1>(::exp2));
    both("expm1", "expm1f", ::expm1f, static_cast<D1>(::expm1));
    both("log", "logf", ::logf, static_cast<D1>(::log));
    both("log2", "log2f", ::log2f, static_cast<D1>(::log2));
    both("log10", "log10f", ::log10f, static_cast<D1>(::log10));
    both("log1p", "log1pf", ::log1pf, static_cast<D1>(::log1p));
    both("sin", "sinf", ::sinf, static_cast<D1>(::sin));
    both("cos", "cosf", ::cosf, static_cast<D1>(::cos));
    both("tan", "tanf", ::tanf, static_cast<D1>(::tan));
    both("sinh", "sinhf", ::sinhf, static_cast<D1>(::sinh));
    both("cosh", "coshf", ::coshf, static_cast<D1>(::cosh));
    both("tanh", "tanhf", ::tanhf, static_cast<D1>(::tanh));
    both("erf", "erff", ::erff, static_cast<D1>(::erf));
    both("erfc", "erfcf", ::erfcf, static_cast<D1>(::erfc));
    both("sqrt", "sqrtf", ::sqrtf, static_cast<D1>(::sqrt));
    both("cbrt", "cbrtf", ::cbrtf, static_cast<D1>(::cbrt));
    both("floor", "floorf", ::floorf, static_cast<D1>(::floor));
    both("ceil", "ceilf", ::ceilf, static_cast<D1>(::ceil));
    both("trunc", "truncf", ::truncf, static_cast<D1>(::trunc));
    both("round", "roundf", ::roundf, static_cast<D1>(::round));
    both("rint", "rintf", ::rintf, static_cast<D1>(::rint));
    both("nearbyint", "nearbyintf", ::nearbyintf, static_cast<D1>(::nearbyint));
    both("fabs", "fabsf", ::fabsf, static_cast<D1>(::fabs));
    auto pair = [&](const char *name, const char *floatName, F2 f, D2 d) {
      add(name, d);
      add(floatName, f);
    };
    pair("pow", "powf", ::powf, static_cast<D2>(::pow));
    pair("fmod", "fmodf", ::fmodf, static_cast<D2>(::fmod));
    pair("fmax", "fmaxf", ::fmaxf, static_cast<D2>(::fmax));
    pair("fmin", "fminf", ::fminf, static_cast<D2>(::fmin));
    pair("atan2", "atan2f", ::atan2f, static_cast<D2>(::atan2));
    pair("copysign", "copysignf", ::copysignf, static_cast<D2>(::copysign));
    add("fma", static_cast<double (*)(double, double, double)>(::fma));
    add("fmaf", static_cast<float (*)(float, float, float)>(::fmaf));
    add("ldexp", static_cast<double (*)(double, int)>(::ldexp));
    add("ldexpf", static_cast<float (*)(float, int)>(::ldexpf));
    add("sincos", static_cast<void (*)(double, double *, double *)>(::sincos));
    add("sincosf", static_cast<void (*)(float, float *, float *)>(::sincosf));
    return t;
  }();
  return table;
}

std::vector<std::string> ObjectLoader::allowedSymbols() {
  std::vector<std::string> names;
  for (const auto &[name, unused] : allowed())
    names.push_back(name);
  return names;
}

struct ObjectLoader::State {
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::map<std::string, KernelHandle, std::less<>> kernels;
};

ObjectLoader::ObjectLoader() : state(std::make_unique<State>()) {}
ObjectLoader::~ObjectLoader() = default;

KernelHandle ObjectLoader::find(std::string_view symbol) const {
  auto found = state->kernels.find(symbol);
  return found == state->kernels.end() ? nullptr : found->second;
}

namespace {
struct Symbols {
  std::set<std::string> defined, undefined;
};
} // namespace

/// The object's symbols, or why it is no object for this machine.
static Result<Symbols> readSymbols(const std::string &object, size_t number) {
  auto refuse = [&](std::string_view why) {
    return Error{fmt::format("code object {} cannot be loaded: {}", number, why)};
  };
  auto parsed = llvm::object::ObjectFile::createObjectFile(
      llvm::MemoryBufferRef(object, "object " + std::to_string(number)));
  if (!parsed)
    return refuse(text(parsed.takeError()));
  auto *elf = llvm::dyn_cast<llvm::object::ELFObjectFileBase>(parsed->get());
  if (!elf || !elf->isRelocatableObject())
    return refuse("it is not a relocatable ELF object");
#if defined(__x86_64__)
  constexpr auto machine = llvm::Triple::x86_64;
#else
  constexpr auto machine = llvm::Triple::aarch64;
#endif
  if (elf->getArch() != machine)
    return refuse(
        fmt::format("it was made for {}", llvm::Triple::getArchTypeName(elf->getArch()).str()));
  Symbols symbols;
  for (const llvm::object::SymbolRef &symbol : elf->symbols()) {
    auto flags = symbol.getFlags();
    if (!flags)
      return refuse(text(flags.takeError()));
    auto name = symbol.getName();
    if (!name)
      return refuse(text(name.takeError()));
    if (name->empty())
      continue;
    if (*flags & llvm::object::BasicSymbolRef::SF_Undefined)
      symbols.undefined.insert(name->str());
    else if (*flags & llvm::object::BasicSymbolRef::SF_Global)
      symbols.defined.insert(name->str());
  }
  return symbols;
}

Result<std::shared_ptr<ObjectLoader>> ObjectLoader::load(const std::vector<std::string> &objects,
                                                         const std::vector<std::string> &wanted) {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });

  Symbols all;
  for (size_t i = 0; i < objects.size(); ++i) {
    auto symbols = readSymbols(objects[i], i);
    if (!symbols)
      return symbols.error();
    for (const std::string &name : symbols->defined)
      if (!all.defined.insert(name).second)
        return Error{fmt::format("'{}' is defined by two code objects", name)};
    all.undefined.merge(symbols->undefined);
  }
  std::vector<std::string> refused, missing;
  for (const std::string &name : all.undefined)
    if (!all.defined.count(name) && !allowed().count(name) && name != "_GLOBAL_OFFSET_TABLE_")
      refused.push_back(name);
  if (!refused.empty())
    return Error{fmt::format("the executable's code calls {}, which generated code may not",
                             fmt::join(refused, ", "))};
  for (const std::string &name : wanted)
    if (!all.defined.count(name))
      missing.push_back(name);
  if (!missing.empty())
    return Error{
        fmt::format("the executable's code lacks the kernels {}", fmt::join(missing, ", "))};

  std::shared_ptr<ObjectLoader> loader(new ObjectLoader());
  auto fail = [](std::string_view what, llvm::Error error) {
    return Error{
        fmt::format("cannot load the executable's code: {}: {}", what, text(std::move(error))),
        Fault::Internal};
  };
  // No symbols of the process and no initialisers: only what is defined below.
  auto jit = llvm::orc::LLJITBuilder()
                 .setLinkProcessSymbolsByDefault(false)
                 .setPlatformSetUp(llvm::orc::setUpInactivePlatform)
                 .create();
  if (!jit)
    return fail("start", jit.takeError());
  loader->state->jit = std::move(*jit);
  llvm::orc::LLJIT &j = *loader->state->jit;
  llvm::orc::SymbolMap absolute;
  for (const auto &[name, address] : allowed())
    if (all.undefined.count(name) && !all.defined.count(name))
      absolute[j.mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(address),
                                           llvm::JITSymbolFlags::Exported |
                                               llvm::JITSymbolFlags::Callable};
  if (!absolute.empty())
    if (auto error = j.getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(absolute))))
      return fail("libm", std::move(error));
  for (size_t i = 0; i < objects.size(); ++i)
    if (auto error = j.addObjectFile(
            llvm::MemoryBuffer::getMemBufferCopy(objects[i], "object " + std::to_string(i))))
      return fail(fmt::format("object {}", i), std::move(error));
  for (const std::string &name : wanted) {
    auto address = j.lookup(name);
    if (!address)
      return fail(name, address.takeError());
    loader->state->kernels[name] = address->toPtr<void *>();
  }
  return loader;
}

Result<std::shared_ptr<ObjectLoader>> ObjectLoader::load(const Executable &executable) {
  std::set<std::string> symbols;
  for (const Program &program : executable.programs)
    for (const Step &step : program.steps) {
      if (auto *kernel = std::get_if<KernelStep>(&step.action))
        symbols.insert(kernel->symbol);
      else if (auto *gemm = std::get_if<GemmStep>(&step.action); gemm && !gemm->epilogue.empty())
        symbols.insert(gemm->epilogue);
    }
  return load(executable.objects, {symbols.begin(), symbols.end()});
}

} // namespace cleave
