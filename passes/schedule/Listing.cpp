//===- Listing.cpp - a schedule as text -----------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/schedule/Listing.h"

#include "passes/schedule/MemoryPlan.h"

#include <sstream>

using namespace cleave;

namespace {

struct Printer {
  const std::vector<MeshAxis> &mesh;
  std::ostringstream out;

  void axes(const std::vector<SubAxis> &list) {
    out << "{";
    for (size_t i = 0; i < list.size(); ++i) {
      const MeshAxis &axis = mesh[list[i].axis];
      out << (i ? ", " : "") << axis.name;
      if (list[i].pre != 1 || list[i].size != axis.size)
        out << ":(" << list[i].pre << ")" << list[i].size;
    }
    out << "}";
  }

  void layout(const TensorLayout &type) {
    out << name(type.dtype);
    for (size_t i = 0; i < type.dims.size(); ++i) {
      out << (i ? ", " : " [") << type.dims[i].name << "=" << type.dims[i].size;
      if (!type.dims[i].axes.empty()) {
        out << " ";
        axes(type.dims[i].axes);
      }
    }
    if (!type.dims.empty())
      out << "]";
  }

  void ref(BufferRef ref) {
    out << "b" << ref.buffer;
    if (ref.offset)
      out << "+" << ref.offset;
  }

  void refs(const std::vector<BufferRef> &list) {
    out << "(";
    for (size_t i = 0; i < list.size(); ++i) {
      out << (i ? ", " : "");
      ref(list[i]);
    }
    out << ")";
  }

  void scalars(const std::vector<RankScalar> &list) {
    if (list.empty())
      return;
    out << " scalars(";
    for (size_t i = 0; i < list.size(); ++i) {
      const RankScalar &s = list[i];
      out << (i ? ", " : "");
      if (s.kind == RankScalar::Kind::Constant) {
        out << s.value;
        continue;
      }
      out << (s.kind == RankScalar::Kind::Offset ? "offset" : "extent");
      axes(s.axes);
      if (s.parts > 1)
        out << " part " << s.part << " of " << s.parts << " ";
      out << "*" << s.block;
      if (s.kind == RankScalar::Kind::Extent)
        out << " of " << s.size;
    }
    out << ")";
  }

  void operator()(const KernelStep &s) {
    out << "kernel " << s.symbol;
    refs(s.buffers);
    scalars(s.scalars);
    out << " extent " << s.extent;
    if (s.grain != 1)
      out << " grain " << s.grain;
  }
  void operator()(const GemmStep &s) {
    out << "gemm " << name(s.dtype) << " ";
    if (s.batch != 1)
      out << s.batch << " x ";
    out << "[" << s.m << "x" << s.n << "x" << s.k << "] ";
    auto matrix = [&](const char *what, BufferRef place, bool transposed, int64_t lead,
                      int64_t stride) {
      out << what << (transposed ? "^T " : " ");
      ref(place);
      out << " ld " << lead;
      if (s.batch != 1)
        out << " stride " << stride;
    };
    matrix("A", s.a, s.transA, s.lda, s.strideA);
    matrix(", B", s.b, s.transB, s.ldb, s.strideB);
    matrix(s.accumulate ? ", C +=" : ", C", s.c, false, s.ldc, s.strideC);
    if (!s.epilogue.empty()) {
      out << " then " << s.epilogue;
      refs(s.epilogueBuffers);
      scalars(s.epilogueScalars);
    }
    if (s.sums != GemmStep::Sums::None) {
      out << ", sums of " << (s.sums == GemmStep::Sums::OfA ? "A " : "B ");
      ref(s.sumsTo);
    }
    if (s.sameA)
      out << ", A as packed before";
  }
  void operator()(const CopyStep &s) {
    out << "copy ";
    ref(s.from);
    out << " -> ";
    ref(s.to);
    out << ", " << s.bytes << " bytes";
  }
  void operator()(const FillStep &s) {
    out << "zero ";
    ref(s.to);
    out << ", " << s.bytes << " bytes";
  }
  void operator()(const CollectiveStep &s) {
    constexpr const char *kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
    constexpr const char *reductions[] = {"sum", "max", "min"};
    using Kind = CollectiveStep::Kind;
    out << kinds[static_cast<int>(s.kind)];
    if (s.kind == Kind::AllReduce || s.kind == Kind::ReduceScatter)
      out << " " << reductions[static_cast<int>(s.reduction)];
    out << " " << name(s.dtype) << " [" << s.outer << ", " << s.inDim << " -> " << s.outDim << ", ";
    if (s.kind == Kind::AllToAll)
      out << s.middle << ", " << s.inDim2 << " -> " << s.outDim2 << ", ";
    out << s.inner << "]" << (s.dimFirst ? "" : " split dim first") << " over ";
    axes(s.axes);
    out << " ";
    ref(s.in);
    out << " -> ";
    ref(s.out);
    out << " site " << s.site;
    if (s.begun)
      out << ", begun";
  }
  void operator()(const AwaitStep &s) { out << "await step " << s.step; }
};

} // namespace

std::string cleave::listing(const Program &program, const std::vector<MeshAxis> &mesh) {
  Printer p{mesh, {}};
  std::ostringstream &out = p.out;
  out << "program @" << program.name << ": " << program.steps.size() << " steps, arena "
      << program.arenaBytes << " bytes\n";
  constexpr const char *roles[] = {"param", "state", "input", "scalar"};
  for (size_t i = 0; i < program.arguments.size(); ++i) {
    const Argument &a = program.arguments[i];
    out << "  argument " << i << " \"" << a.name << "\" " << roles[static_cast<int>(a.role)] << " ";
    p.layout(a.layout);
    out << ", " << a.localBytes << " bytes" << (a.offloaded ? ", offloaded" : "");
    if (a.donatedTo >= 0)
      out << ", replaced by result " << a.donatedTo;
    if (a.rangeEnd >= 0)
      out << ", below " << a.rangeEnd << (a.hasIgnore ? " or " + std::to_string(a.ignore) : "");
    out << "\n";
  }
  for (size_t i = 0; i < program.results.size(); ++i) {
    const ProgramResult &r = program.results[i];
    out << "  result " << i << " \"" << r.name << "\" ";
    p.layout(r.layout);
    if (r.aliasOf >= 0)
      out << ", in argument " << r.aliasOf;
    out << "\n";
  }
  for (size_t i = 0; i < program.collectiveSites.size(); ++i) {
    const CollectiveSite &s = program.collectiveSites[i];
    out << "  site " << i << ": " << s.kind << " over " << s.axes << ", " << s.phase << ", "
        << s.executions << " times, payload " << s.payloadBytes << ", ring " << s.ringBytes
        << " bytes";
    if (!s.location.empty())
      out << ", " << s.location;
    if (!s.rule.empty())
      out << " (" << s.rule << ")";
    out << "\n";
  }
  constexpr const char *kinds[] = {"gemm",      "attention",  "elementwise",
                                   "optimizer", "collective", "copy"};
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step &step = program.steps[i];
    out << "  " << i << ": ";
    std::visit(p, step.action);
    out << "  # " << kinds[static_cast<int>(step.kind)];
    if (step.location >= 0)
      out << " " << program.locations[step.location];
    out << "\n";
  }
  std::vector<Lifetime> lifetimes = lifetimesOf(program);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer &b = program.buffers[i];
    out << "  b" << i << ": ";
    if (b.kind == Buffer::Kind::Arena)
      out << "arena [" << b.offset << ", " << b.offset + b.bytes << ")";
    else
      out << (b.kind == Buffer::Kind::Argument ? "argument " : "result ") << b.index << ", "
          << b.bytes << " bytes";
    if (lifetimes[i].first <= lifetimes[i].last)
      out << ", steps " << lifetimes[i].first << " to " << lifetimes[i].last;
    out << "\n";
  }
  return out.str();
}

std::string cleave::listing(const Executable &executable) {
  std::string text;
  for (const Program &program : executable.programs)
    text += listing(program, executable.mesh);
  return text;
}
