//===- Verify.cpp - what the runtime relies on ----------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executable/Format.h"

#include "runtime/core/Shard.h"

#include <algorithm>
#include <fmt/format.h>
#include <initializer_list>
#include <limits>
#include <set>

namespace cleave {

/// More than any machine has, and far from where int64 overflows.
static constexpr int64_t mostBytes = int64_t{1} << 48;
static constexpr int64_t mostRanks = 1 << 20;

/// The product, or -1 if a factor is negative or it is too large.
static int64_t product(std::initializer_list<int64_t> factors) {
  int64_t n = 1;
  bool zero = false, overflow = false;
  for (int64_t f : factors) {
    if (f < 0)
      return -1;
    zero |= f == 0;
    if (!zero && (__builtin_mul_overflow(n, f, &n) || n > mostBytes))
      overflow = true;
    if (overflow)
      n = 1; // zero may still follow
  }
  return zero ? 0 : overflow ? -1 : n;
}

namespace {
class ProgramVerifier {
public:
  ProgramVerifier(const Executable &e, const Program &p) : executable(e), program(p) {}

  Status run() {
    for (size_t i = 0; i < program.arguments.size(); ++i)
      if (std::string fault = argument(program.arguments[i], i); !fault.empty())
        return error(fmt::format("argument '{}'", program.arguments[i].name), fault);
    for (size_t i = 0; i < program.results.size(); ++i)
      if (std::string fault = result(program.results[i], i); !fault.empty())
        return error(fmt::format("result '{}'", program.results[i].name), fault);
    if (program.arenaBytes < 0 || program.arenaBytes > mostBytes)
      return error("arena", fmt::format("{} bytes", program.arenaBytes));
    for (size_t i = 0; i < program.buffers.size(); ++i)
      if (std::string fault = buffer(program.buffers[i]); !fault.empty())
        return error(fmt::format("buffer {}", i), fault);
    for (size_t i = 0; i < program.steps.size(); ++i) {
      const Step &step = program.steps[i];
      if (step.location < -1 || step.location >= std::ssize(program.locations))
        return error(fmt::format("step {}", i), "its location does not exist");
      if (step.label < -1 || step.label >= std::ssize(program.labels))
        return error(fmt::format("step {}", i), "its label does not exist");
      const AttentionShape &a = step.attention;
      if (step.bytes < 0 || step.flops < 0 ||
          *std::min_element(step.functions.begin(), step.functions.end()) < 0 ||
          std::min({a.heads, a.queries, a.keys, a.depth}) < 0)
        return error(fmt::format("step {}", i), "its work is negative");
      std::string fault = std::visit([&](const auto &s) { return check(s); }, step.action);
      if (!fault.empty())
        return error(fmt::format("step {}", i), fault);
    }
    if (std::string fault = awaits(); !fault.empty())
      return error("collectives", fault);
    if (std::string fault = packedOperands(); !fault.empty())
      return error("products", fault);
    return {};
  }

private:
  Error error(std::string_view where, std::string_view what) const {
    return {fmt::format("program '{}', {}: {}", program.name, where, what), Fault::Internal};
  }

  std::string layout(const TensorLayout &layout) const {
    std::vector<SubAxis> all;
    int64_t local = byteSize(layout.dtype), global = local;
    for (const DimLayout &dim : layout.dims) {
      if (dim.size < 0 || dim.size > mostBytes)
        return fmt::format("dim '{}' has size {}", dim.name, dim.size);
      all.insert(all.end(), dim.axes.begin(), dim.axes.end());
      if (!axesAreValid(all, executable.mesh))
        return fmt::format("dim '{}' is split over axes that the mesh does not have, or that "
                           "another dim uses",
                           dim.name);
      local = product({local, dim.block()});
      global = product({global, dim.size});
      if (local < 0 || global < 0)
        return "its size is out of range";
    }
    return "";
  }

  std::string argument(const Argument &a, size_t index) const {
    if (std::string fault = layout(a.layout); !fault.empty())
      return fault;
    int64_t need = localElements(a.layout) * byteSize(a.layout.dtype);
    if (a.localBytes != need)
      return fmt::format("localBytes is {}, its layout needs {}", a.localBytes, need);
    if (a.role == Argument::Role::Scalar && !a.layout.dims.empty())
      return "a scalar has dims";
    if (a.donatedTo >= 0) {
      if (a.donatedTo >= std::ssize(program.results))
        return fmt::format("it is donated to result {}, which does not exist", a.donatedTo);
      const ProgramResult &r = program.results[static_cast<size_t>(a.donatedTo)];
      if (r.aliasOf != static_cast<int64_t>(index) || !sameLayout(a.layout, r.layout))
        return fmt::format("it is donated to result '{}', which does not match", r.name);
    } else if (a.donatedTo != -1) {
      return "donatedTo is negative";
    }
    if (a.rangeEnd >= 0 && a.layout.dtype != DType::I32 && a.layout.dtype != DType::I64)
      return "a range is given, but it does not hold integers";
    return "";
  }

  std::string result(const ProgramResult &r, size_t index) const {
    if (std::string fault = layout(r.layout); !fault.empty())
      return fault;
    if (r.aliasOf < -1 || r.aliasOf >= std::ssize(program.arguments))
      return fmt::format("it aliases argument {}, which does not exist", r.aliasOf);
    if (r.aliasOf >= 0 &&
        program.arguments[static_cast<size_t>(r.aliasOf)].donatedTo != static_cast<int64_t>(index))
      return "it aliases an argument that is not donated to it";
    return "";
  }

  std::string buffer(const Buffer &b) const {
    if (b.bytes < 0 || b.bytes > mostBytes)
      return fmt::format("{} bytes", b.bytes);
    switch (b.kind) {
    case Buffer::Kind::Arena:
      if (b.offset < 0 || b.offset % 64 != 0 || b.offset > program.arenaBytes ||
          b.bytes > program.arenaBytes - b.offset)
        return fmt::format("{} bytes at {} of an arena of {}", b.bytes, b.offset,
                           program.arenaBytes);
      return "";
    case Buffer::Kind::Argument: {
      if (b.index < 0 || b.index >= std::ssize(program.arguments))
        return fmt::format("argument {} does not exist", b.index);
      const Argument &a = program.arguments[static_cast<size_t>(b.index)];
      return b.bytes <= a.localBytes
                 ? ""
                 : fmt::format("{} bytes, argument '{}' has {}", b.bytes, a.name, a.localBytes);
    }
    case Buffer::Kind::Result: {
      if (b.index < 0 || b.index >= std::ssize(program.results))
        return fmt::format("result {} does not exist", b.index);
      const ProgramResult &r = program.results[static_cast<size_t>(b.index)];
      if (r.aliasOf >= 0)
        return fmt::format("result '{}' is a donated argument: use the argument", r.name);
      int64_t bytes = localElements(r.layout) * byteSize(r.layout.dtype);
      return b.bytes <= bytes ? ""
                              : fmt::format("{} bytes, result '{}' has {}", b.bytes, r.name, bytes);
    }
    }
    return "unknown kind";
  }

  /// The bytes [0, bytes) from `ref` on lie inside its buffer.
  std::string range(const char *what, const BufferRef &ref, int64_t bytes) const {
    if (ref.buffer < 0 || ref.buffer >= std::ssize(program.buffers))
      return fmt::format("{}: buffer {} does not exist", what, ref.buffer);
    const Buffer &b = program.buffers[static_cast<size_t>(ref.buffer)];
    if (bytes < 0 || ref.offset < 0 || ref.offset > b.bytes || bytes > b.bytes - ref.offset)
      return fmt::format("{}: {} bytes at {} of buffer {}, which has {}", what, bytes, ref.offset,
                         ref.buffer, b.bytes);
    return "";
  }

  std::string scalars(const std::vector<RankScalar> &scalars) const {
    for (const RankScalar &s : scalars) {
      if (s.kind == RankScalar::Kind::Constant)
        continue;
      if (!axesAreValid(s.axes, executable.mesh))
        return "a scalar depends on axes that the mesh does not have";
      if (s.size < 0 || s.block < 0 || s.size > mostBytes || s.block > mostBytes)
        return fmt::format("a scalar of size {} and block {}", s.size, s.block);
      if (s.parts < 1 || s.parts > mostBytes || s.part < 0 || s.part >= s.parts)
        return fmt::format("a scalar of part {} of {}", s.part, s.parts);
    }
    return "";
  }

  std::string code(const std::string &symbol, const std::vector<BufferRef> &refs,
                   const std::vector<RankScalar> &numbers) const {
    if (symbol.empty() || symbol.find('\0') != std::string::npos)
      return "a kernel without a name";
    for (const BufferRef &ref : refs)
      if (std::string fault = range(symbol.c_str(), ref, 0); !fault.empty())
        return fault;
    return scalars(numbers);
  }

  std::string check(const KernelStep &s) const {
    if (s.extent < 0 || s.extent > mostBytes || s.grain < 1)
      return fmt::format("kernel '{}' has extent {} and grain {}", s.symbol, s.extent, s.grain);
    return code(s.symbol, s.buffers, s.scalars);
  }

  /// Bytes from the first to behind the last element of a batch of matrices.
  static int64_t span(int64_t batch, int64_t stride, int64_t rows, int64_t cols, int64_t ld,
                      int64_t width) {
    if (batch == 0 || rows == 0 || cols == 0)
      return 0;
    int64_t a = product({batch - 1, stride, width}), b = product({rows - 1, ld, width}),
            c = product({cols, width});
    return a < 0 || b < 0 || c < 0 ? -1 : a + b + c;
  }

  std::string check(const GemmStep &s) const {
    if (s.dtype == DType::I1 || s.dtype == DType::I32 || s.dtype == DType::I64)
      return fmt::format("a product of {}", name(s.dtype));
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    for (int64_t v : {s.m, s.n, s.k, s.lda, s.ldb, s.ldc})
      if (v < 0 || v > most)
        return fmt::format("a product of {} x {} x {} with rows of {}, {}, {}", s.m, s.n, s.k,
                           s.lda, s.ldb, s.ldc);
    if (s.batch < 0 || s.batch > mostBytes || s.strideA < 0 || s.strideB < 0 || s.strideC < 0)
      return fmt::format("a batch of {} with strides {}, {}, {}", s.batch, s.strideA, s.strideB,
                         s.strideC);
    int64_t rowsA = s.transA ? s.k : s.m, colsA = s.transA ? s.m : s.k;
    int64_t rowsB = s.transB ? s.n : s.k, colsB = s.transB ? s.k : s.n;
    if (s.lda < std::max<int64_t>(1, colsA) || s.ldb < std::max<int64_t>(1, colsB) ||
        s.ldc < std::max<int64_t>(1, s.n))
      return fmt::format("rows of {}, {}, {} elements are longer than the rows' distances {}, "
                         "{}, {}",
                         colsA, colsB, s.n, s.lda, s.ldb, s.ldc);
    // Batches of C are written by different threads at once.
    int64_t spanC = span(1, 0, s.m, s.n, s.ldc, 1);
    if (s.batch > 1 && s.strideC < spanC && !(s.strideC >= s.n && s.ldc >= s.batch * s.strideC))
      return "matrices of C overlap";
    int64_t width = byteSize(s.dtype), sumWidth = byteSize(accumulatorOf(s.dtype));
    std::string fault = range("A", s.a, span(s.batch, s.strideA, rowsA, colsA, s.lda, width));
    if (fault.empty())
      fault = range("B", s.b, span(s.batch, s.strideB, rowsB, colsB, s.ldb, width));
    if (fault.empty())
      fault = range("C", s.c, span(s.batch, s.strideC, s.m, s.n, s.ldc, sumWidth));
    if (fault.empty() && !s.epilogue.empty())
      fault = code(s.epilogue, s.epilogueBuffers, s.epilogueScalars);
    if (fault.empty() && s.sums != GemmStep::Sums::None) {
      if (s.batch != 1)
        fault = fmt::format("sums of an operand beside a batch of {}", s.batch);
      else
        fault = range("the sums", s.sumsTo, (s.sums == GemmStep::Sums::OfA ? s.m : s.n) * sumWidth);
    }
    return fault;
  }

  /// Who takes A as the product before has packed it has the same A.
  std::string packedOperands() const {
    const GemmStep *before = nullptr;
    for (int64_t i = 0; i < std::ssize(program.steps); ++i) {
      auto *s = std::get_if<GemmStep>(&program.steps[static_cast<size_t>(i)].action);
      if (!s)
        continue;
      auto form = [](const GemmStep &g) {
        return std::tuple(g.dtype, g.transA, g.batch, g.m, g.k, g.lda, g.a.buffer, g.a.offset);
      };
      if (s->sameA && (!before || s->batch != 1 || form(*s) != form(*before)))
        return fmt::format("step {} takes A from the product before it, which has another", i);
      before = s;
    }
    return "";
  }

  std::string check(const CopyStep &s) const {
    std::string fault = range("from", s.from, s.bytes);
    return fault.empty() ? range("to", s.to, s.bytes) : fault;
  }

  std::string check(const FillStep &s) const { return range("to", s.to, s.bytes); }

  std::string check(const AwaitStep &s) const {
    const CollectiveStep *collective =
        s.step >= 0 && s.step < std::ssize(program.steps)
            ? std::get_if<CollectiveStep>(&program.steps[static_cast<size_t>(s.step)].action)
            : nullptr;
    return collective && collective->begun
               ? ""
               : fmt::format("it awaits step {}, which begins no collective", s.step);
  }

  /// Each collective that is begun is awaited once, later.
  std::string awaits() const {
    std::map<int64_t, int64_t> open;
    for (int64_t i = 0; i < std::ssize(program.steps); ++i) {
      const StepAction &action = program.steps[static_cast<size_t>(i)].action;
      if (const auto *c = std::get_if<CollectiveStep>(&action); c && c->begun)
        open[i] = i;
      if (const auto *a = std::get_if<AwaitStep>(&action); a && !open.erase(a->step))
        return fmt::format("step {} awaits step {}, which is not under way", i, a->step);
    }
    return open.empty() ? ""
                        : fmt::format("step {} begins a collective that no step awaits",
                                      open.begin()->first);
  }

  std::string check(const CollectiveStep &s) const {
    using Kind = CollectiveStep::Kind;
    if (!axesAreValid(s.axes, executable.mesh))
      return "a collective over axes that the mesh does not have";
    if (s.site < -1 || s.site >= std::ssize(program.collectiveSites))
      return fmt::format("collective site {} does not exist", s.site);
    int64_t p = 1, width = byteSize(s.dtype);
    for (const SubAxis &a : s.axes)
      p *= a.size;
    bool twoDims = s.kind == Kind::AllToAll;
    int64_t middle = twoDims ? s.middle : 1, in2 = twoDims ? s.inDim2 : 1,
            out2 = twoDims ? s.outDim2 : 1;
    int64_t outDim = s.kind == Kind::AllReduce ? s.inDim : s.outDim;
    int64_t in = product({s.outer, s.inDim, s.inner, middle, in2, width});
    int64_t out = product({s.outer, outDim, s.inner, middle, out2, width});
    int64_t all = product(
        {s.outer, std::max(s.inDim, outDim), s.inner, middle, std::max(in2, out2), width, p});
    if (in < 0 || out < 0 || all < 0)
      return "a collective whose size is out of range";
    bool gathers = s.kind == Kind::AllGather || twoDims;
    if (gathers && s.outDim > p * s.inDim)
      return fmt::format("{} shards of {} do not fill {}", p, s.inDim, s.outDim);
    if (s.kind == Kind::ReduceScatter && s.inDim > p * s.outDim)
      return fmt::format("{} shards of {} do not hold {}", p, s.outDim, s.inDim);
    if (twoDims && in2 > p * out2)
      return fmt::format("{} shards of {} do not hold {}", p, out2, in2);
    std::string fault = range("in", s.in, in);
    return fault.empty() ? range("out", s.out, out) : fault;
  }

  const Executable &executable;
  const Program &program;
};
} // namespace

Status verify(const Executable &e) {
  auto error = [](std::string what) { return Error{std::move(what), Fault::Internal}; };
  int64_t ranks = 1;
  std::set<std::string_view> names;
  for (const MeshAxis &axis : e.mesh) {
    if (axis.size < 1 || axis.size > mostRanks || (ranks *= axis.size) > mostRanks)
      return error(fmt::format("mesh axis '{}' has size {}", axis.name, axis.size));
    if (!names.insert(axis.name).second)
      return error(fmt::format("two mesh axes are called '{}'", axis.name));
  }
  if (!e.rankProgram.empty() && std::ssize(e.rankProgram) != ranks)
    return error(
        fmt::format("the rank table has {} entries for {} ranks", e.rankProgram.size(), ranks));
  if (e.programs.empty())
    return error("there is no program in it");
  std::set<std::pair<std::string_view, std::map<std::string, int64_t>>> programs;
  for (const Program &program : e.programs) {
    if (!programs.emplace(program.name, program.dims).second)
      return error(
          fmt::format("two programs are called '{}' and have the same sizes", program.name));
    if (auto status = ProgramVerifier(e, program).run(); !status)
      return status;
  }
  return {};
}

// Clang and GCC want literals here, so the names stand twice.
#if defined(__x86_64__)
#define CLEAVE_FEATURES(X)                                                                         \
  X(sse4.1)                                                                                        \
  X(sse4.2)                                                                                        \
  X(avx)                                                                                           \
  X(avx2)                                                                                          \
  X(fma)                                                                                           \
  X(f16c)                                                                                          \
  X(bmi)                                                                                           \
  X(bmi2)                                                                                          \
  X(popcnt)                                                                                        \
  X(lzcnt) X(avx512f) X(avx512vl) X(avx512bw) X(avx512dq) X(avx512cd) X(avx512vnni) X(avx512bf16)
std::vector<std::string> cpuFeatures() {
  std::vector<std::string> found;
  __builtin_cpu_init();
#define CLEAVE_HAS(name)                                                                           \
  if (__builtin_cpu_supports(#name))                                                               \
    found.push_back(#name);
  CLEAVE_FEATURES(CLEAVE_HAS)
#undef CLEAVE_HAS
  return found;
}
#undef CLEAVE_FEATURES
#else
std::vector<std::string> cpuFeatures() { return {}; }
#endif

Status checkCpuFeatures(const Executable &e) {
  std::vector<std::string> have = cpuFeatures(), lacking;
  for (const std::string &feature : e.cpuFeatures)
    if (std::find(have.begin(), have.end(), feature) == have.end())
      lacking.push_back(feature);
  if (lacking.empty())
    return {};
  return Error{fmt::format("this executable was compiled for a processor with {}; this one has "
                           "no {}: compile the model again on this machine",
                           fmt::join(e.cpuFeatures, ", "), fmt::join(lacking, ", "))};
}

} // namespace cleave
