//===- Samples.h - executables for tests ------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/cpu/KernelTable.h"
#include "runtime/executable/Executable.h"

#include <algorithm>
#include <memory>

namespace cleave::samples {

/// y = relu(x @ w1 + b) @ w2, then w2 -= lr * y_00 * w2, on `tp` ranks: w1 by columns,
/// b and w2 by rows, one all-reduce; batch split over `dp`. What Megatron does
/// with an MLP, written by hand.
struct Mlp {
  int64_t batch = 5, width = 4, ffn = 7;
  int64_t dp = 1, tp = 1;
  bool overlap = false; ///< the sum runs beside the update and the counter

  Executable build() const {
    const SubAxis dpAxis{0, 1, dp}, tpAxis{1, 1, tp};
    DimLayout rows{"batch", batch, {dpAxis}}, columns{"width", width, {}},
        hidden{"ffn", ffn, {tpAxis}};
    auto f32 = [](std::vector<DimLayout> dims) { return TensorLayout{DType::F32, dims}; };
    int64_t b = rows.block(), f = hidden.block();
    auto argument = [](Argument::Role role, const char *name, TensorLayout layout,
                       const char *init = "") {
      Argument a;
      a.role = role;
      a.name = name;
      a.layout = layout;
      a.init = init;
      a.localBytes = byteSize(layout.dtype);
      for (const DimLayout &dim : layout.dims)
        a.localBytes *= dim.block();
      return a;
    };
    using Role = Argument::Role;
    Program p;
    p.name = "step";
    p.dims = {{"batch", batch}};
    p.arguments = {argument(Role::Param, "mlp.w1", f32({columns, hidden}), "normal(0.5)"),
                   argument(Role::Param, "mlp.b", f32({hidden}), "ones"),
                   argument(Role::Param, "mlp.w2", f32({hidden, columns}), "uniform(-1, 1)"),
                   argument(Role::State, "sgd.count", {DType::I32, {}}, "zeros"),
                   argument(Role::Input, "x", f32({rows, columns})),
                   argument(Role::Input, "tokens", {DType::I32, {rows}}),
                   argument(Role::Scalar, "lr", f32({}))};
    p.arguments[2].donatedTo = 1;
    p.arguments[3].donatedTo = 2;
    p.arguments[5].rangeEnd = 10;
    p.arguments[5].rangeWhat = "vocab";
    p.arguments[5].hasIgnore = true;
    p.arguments[5].ignore = -1;
    p.results = {{"y", f32({rows, columns}), -1},
                 {"mlp.w2", f32({hidden, columns}), 2},
                 {"sgd.count", {DType::I32, {}}, 3}};
    auto buffer = [](Buffer::Kind kind, int64_t bytes, int32_t index, int64_t offset = 0) {
      return Buffer{kind, bytes, offset, index};
    };
    int64_t hiddenBytes = (b * f * 4 + 63) / 64 * 64;
    p.arenaBytes = hiddenBytes + 64 * ((b * width * 4 + 63) / 64);
    for (int32_t i = 0; i < 7; ++i)
      p.buffers.push_back(
          buffer(Buffer::Kind::Argument, p.arguments[static_cast<size_t>(i)].localBytes, i));
    p.buffers.push_back(buffer(Buffer::Kind::Result, b * width * 4, 0));             // 7: y
    p.buffers.push_back(buffer(Buffer::Kind::Arena, b * f * 4, 0));                  // 8: h
    p.buffers.push_back(buffer(Buffer::Kind::Arena, b * width * 4, 0, hiddenBytes)); // 9: partial

    GemmStep up;
    up.m = b, up.n = f, up.k = width;
    up.lda = width, up.ldb = f, up.ldc = f;
    up.a = {4, 0}, up.b = {0, 0}, up.c = {8, 0};
    up.epilogue = "bias_relu";
    up.epilogueBuffers = {{8, 0}, {1, 0}};
    up.epilogueScalars = {{RankScalar::Kind::Constant, f, 0, 0, {}}};
    GemmStep down;
    down.m = b, down.n = width, down.k = f;
    down.lda = f, down.ldb = width, down.ldc = width;
    down.a = {8, 0}, down.b = {2, 0}, down.c = {9, 0};
    CollectiveStep reduce = CollectiveStep();
    reduce.axes = {tpAxis};
    reduce.outer = 1, reduce.inDim = b, reduce.outDim = b, reduce.inner = width;
    reduce.in = {9, 0}, reduce.out = {9, 0};
    reduce.site = 0;
    KernelStep update;
    update.symbol = "update";
    update.buffers = {{2, 0}, {6, 0}, {3, 0}};
    update.scalars = {{RankScalar::Kind::Extent, 0, ffn, f, {tpAxis}},
                      {RankScalar::Kind::Constant, width, 0, 0, {}}};
    update.extent = f;
    KernelStep count;
    count.symbol = "count";
    count.buffers = {{3, 0}};
    p.locations = {"mlp.cleave:2:3", "mlp.cleave:3:3"};
    p.labels = {{"add, gelu", "mlp.cleave:2,3"}};
    p.collectiveSites = {{"all_reduce",
                          "tp",
                          "contract over ffn leaves a partial sum",
                          "mlp.cleave:3:3",
                          "forward",
                          b * width * 4,
                          0,
                          1,
                          "activation",
                          {{"[batch, width]", b * width, ""}},
                          0}};
    p.steps = {{up, StepKind::Gemm, 0},
               {down, StepKind::Gemm, 1},
               {reduce, StepKind::Collective, 1},
               {CopyStep{{9, 0}, {7, 0}, b * width * 4}, StepKind::Copy, -1},
               {update, StepKind::Optimizer, -1},
               {FillStep{{8, 0}, b * f * 4}, StepKind::Copy, -1},
               {count, StepKind::Optimizer, -1}};
    if (overlap) {
      std::get<CollectiveStep>(p.steps[2].action).begun = true;
      Step copy = p.steps[3];
      p.steps.erase(p.steps.begin() + 3);
      p.steps.push_back({AwaitStep{2}, StepKind::Collective, 1});
      p.steps.push_back(copy);
    }
    Executable e;
    e.model = "mlp";
    e.plan = "megatron";
    e.settings = {{"width", "4"}, {"dtype", "f32"}};
    e.mesh = {{"dp", dp}, {"tp", tp}};
    e.rankProgram.assign(static_cast<size_t>(dp * tp), 0);
    e.programs = {p};
    return e;
  }

  static std::shared_ptr<KernelTable> kernels() {
    auto table = std::make_shared<KernelTable>();
    table->addEpilogue("bias_relu", [](int64_t, int64_t r0, int64_t r1, int64_t c0, int64_t c1,
                                       char **buffers, const int64_t *scalars) {
      auto *h = reinterpret_cast<float *>(buffers[0]);
      auto *bias = reinterpret_cast<const float *>(buffers[1]);
      for (int64_t i = r0; i < r1; ++i)
        for (int64_t j = c0; j < c1; ++j) {
          float &x = h[i * scalars[0] + j];
          x = std::max(0.0f, x + bias[j]);
        }
    });
    table->add("update", [](int64_t begin, int64_t end, char **buffers, const int64_t *scalars) {
      auto *w = reinterpret_cast<float *>(buffers[0]);
      float lr = *reinterpret_cast<const float *>(buffers[1]);
      for (int64_t i = begin; i < std::min(end, scalars[0]); ++i)
        for (int64_t j = 0; j < scalars[1]; ++j)
          w[i * scalars[1] + j] *= 1 - lr;
    });
    table->add("count", [](int64_t, int64_t, char **buffers, const int64_t *) {
      ++*reinterpret_cast<int32_t *>(buffers[0]);
    });
    return table;
  }
};

} // namespace cleave::samples
