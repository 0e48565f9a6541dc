// RUN: cleave-opt --cleave-print-schedule %s | FileCheck %s
// RUN: cleave-opt --cleave-print-schedule=in-place %s | FileCheck %s --check-prefix=INPLACE
// RUN: cleave-opt --cleave-print-schedule=reuse=false %s | FileCheck %s --check-prefix=APART

// A training step in miniature: two layers forward with saved inputs, backward in
// reverse, gradients stacked, the optimizer over the stack; on tp=2.

!x = !cleave.tensor<f32 [b=2, w=8]>
!xs = !cleave.tensor<f32 [layer=2, b=2, w=8]>
!w = !cleave.tensor<f32 [w=8, f=4]>
!ws = !cleave.tensor<f32 [layer=2, w=8, f=4]>
!h = !cleave.tensor<f32 [b=2, f=4]>

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
// CHECK-LABEL: program @train: 19 steps, arena 512 bytes
// CHECK-NEXT: argument 0 "body.w" param f32 [layer=2, w=8, f=8 {tp}], 256 bytes, replaced by result 0
// CHECK-NEXT: argument 1 "x" input f32 [b=2, w=8], 64 bytes
// CHECK-NEXT: result 0 "body.w" f32 [layer=2, w=8, f=8 {tp}], in argument 0
// CHECK-NEXT: result 1 "out" f32 [b=2, w=8]
// CHECK-NEXT: site 0: all_reduce over tp, forward, 2 times, payload 64, ring 64 bytes, m.cleave:7:9 (contract over f)
// CHECK-NEXT: site 1: all_reduce over tp, backward, 2 times, payload 64, ring 64 bytes, {{.*}}schedule.mlir

// The input of layer 0 is copied to the stack of saved inputs; that of layer 1 is made there.
// CHECK: 0: gemm f32 [2x4x8] A b1 ld 8, B b0 ld 4, C [[H:b[0-9]+]] ld 4  # gemm
// CHECK: 1: gemm f32 [2x8x4] A [[H]] ld 4, B^T b0 ld 4, C [[P:b[0-9]+]] ld 8  # gemm
// CHECK: 2: all_reduce sum f32 [1, 16 -> 16, 1] over {tp} [[P]] -> [[P]] site 0  # collective m.cleave:7:9
// CHECK: 3: kernel rows_0(b1, [[P]], [[S:b[0-9]+]]+64) extent 2  # elementwise
// CHECK: 4: copy b1 -> [[S]], 64 bytes
// CHECK: 5: gemm f32 [2x4x8] A [[S]]+64 ld 8, B b0+128 ld 4, C [[H2:b[0-9]+]] ld 4
// CHECK: 6: gemm f32 [2x8x4] A [[H2]] ld 4, B^T b0+128 ld 4, C [[P2:b[0-9]+]] ld 8
// CHECK: 7: all_reduce {{.*}} [[P2]] -> [[P2]] site 0

// The last layer's result is returned: it is made in the result's buffer, with the same kernel.
// CHECK: 8: kernel rows_0([[S]]+64, [[P2]], b2) extent 2
// CHECK-NOT: copy

// Gradients are made in their place in the stack.
// CHECK: 10: gemm f32 [8x4x2] A^T [[S]]+64 ld 8, B {{b[0-9]+}} ld 4, C [[G:b[0-9]+]]+128 ld 4
// CHECK: 14: gemm f32 [8x4x2] A^T [[S]] ld 8, B {{b[0-9]+}} ld 4, C [[G]] ld 4

// The kernel is not known to read each element before it writes it: the new weights are copied.
// CHECK: 17: kernel rows_1(b0, [[G]], [[N:b[0-9]+]]) extent 2  # optimizer
// CHECK: 18: copy [[N]] -> b0, 256 bytes
// CHECK: b0: argument 0, 256 bytes, steps 0 to 18
// CHECK: [[S]]: arena {{.*}}, steps 3 to 14

// When it is known, they are written over the old ones.
// INPLACE-LABEL: program @train: 18 steps
// INPLACE: 17: kernel rows_1(b0, [[G:b[0-9]+]], b0) extent 2  # optimizer
// INPLACE-NEXT: b0

// APART-LABEL: program @train: 19 steps, arena 1152 bytes
func.func @train(%ws: !ws {cleave.name = "body.w", cleave.role = "param", cleave.donated_to = 0},
                 %x: !x {cleave.name = "x", cleave.role = "input"})
    -> (!ws {cleave.name = "body.w"}, !x {cleave.name = "out"})
    attributes {cleave.layouts = [!cleave.tensor<f32 [layer=2, w=8, f=8 {tp}]>, !x,
                                  !cleave.tensor<f32 [layer=2, w=8, f=8 {tp}]>, !x]} {
  %y, %saved = cleave.repeat layer = 2 %i carry(%c = %x : !x) slices(%w = %ws : !ws -> !w) -> !x, !xs {
    %h = cleave.contract %c, %w : (!x, !w) -> !h
    %p = cleave.contract %h, %w : (!h, !w) -> !x
    %r = cleave.all_reduce sum %p over [#cleave.axis<tp>] {cleave.why = "contract over f"} : !x -> !x loc("proj"("m.cleave":7:9))
    %n = cleave.fused rows(%a = %c : !x, %b = %r : !x) -> !x {
      %s = cleave.add %a, %b : (!x, !x) -> !x
      cleave.yield %s : !x
    }
    cleave.yield %n, %c : !x, !x
  }
  %last, %grads = cleave.repeat layer = 2 reverse %i carry(%d = %y : !x) slices(%w = %ws : !ws -> !w, %c = %saved : !xs -> !x) -> !x, !ws {
    %dh = cleave.contract %d, %w {cleave.phase = "backward"} : (!x, !w) -> !h
    %dw = cleave.contract %c, %dh {cleave.phase = "backward"} : (!x, !h) -> !w
    %p = cleave.contract %dh, %w {cleave.phase = "backward"} : (!h, !w) -> !x
    %r = cleave.all_reduce sum %p over [#cleave.axis<tp>] {cleave.phase = "backward"} : !x -> !x
    cleave.yield %r, %dw : !x, !w
  }
  %new = cleave.fused rows(%a = %ws : !ws, %b = %grads : !ws) -> !ws {
    %s = cleave.sub %a, %b {cleave.phase = "optimizer"} : (!ws, !ws) -> !ws
    cleave.yield %s : !ws
  }
  return %new, %y : !ws, !x
}
}
