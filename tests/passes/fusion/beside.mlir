// RUN: cleave-opt --cleave-print-fusion-groups %s -o /dev/null | FileCheck %s
// RUN: cleave-opt --cleave-fuse %s | FileCheck %s --check-prefix=FUSED
// RUN: cleave-opt --cleave-fuse --cleave-print-schedule %s -o /dev/null | FileCheck %s --check-prefix=STEPS
// RUN: cleave-opt --cleave-print-fusion-groups=fuse=false %s -o /dev/null | FileCheck %s --check-prefix=OFF
// RUN: cleave-opt --cleave-fuse %s -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// OFF-NOT: sums over
// OFF-NOT: its left side

!x = !cleave.tensor<f32 [b=4, s=40, w=120]>
!h = !cleave.tensor<f32 [b=4, s=40, n=3, d=50]>
!n = !cleave.tensor<f32 [w=120, n=3, d=50]>
!b = !cleave.tensor<f32 [n=3, d=50]>
!s = !cleave.tensor<f32 [s=40, n=3, d=50]>

// Gradients of Q's, K's and V's weights and biases: one left side, copied once; each
// bias's gradient beside that of its weight.
// CHECK-LABEL: function @gradients
// CHECK-NEXT: group 0: sums over [n, d] of a contract of f32 [b=4, s=40, w=120] and f32 [b=4, s=40, n=3, d=50], reduces [b, s]
// CHECK-NEXT: ops: reduce
// CHECK-NEXT: reads argument 1
// CHECK: group 1: sums over [n, d]
// CHECK: group 2: sums over [n, d]
// CHECK: its left side is copied by the product before: contract to f32 [w=120, n=3, d=50]
// CHECK-NEXT: its left side is copied by the product before: contract to f32 [w=120, n=3, d=50]

// FUSED-LABEL: func.func @gradients
// FUSED: cleave.contract %arg0, %arg1 :
// FUSED-NEXT: cleave.fused sums({{%.*}} = %arg1 :
// FUSED: cleave.contract %arg0, %arg2 {cleave.same_left}
// FUSED-NEXT: cleave.fused sums({{%.*}} = %arg2 :
// FUSED: cleave.contract %arg0, %arg3 {cleave.same_left}
// FUSED-NEXT: cleave.fused sums({{%.*}} = %arg3 :
// STEPS-LABEL: program @gradients: 3 steps
// STEPS: 0: gemm f32 [120x150x160] A^T b0 ld 120, B b1 ld 150, C b4 ld 150, sums of B b5 #
// STEPS-NEXT: 1: gemm f32 [120x150x160] A^T b0 ld 120, B b2 ld 150, C b6 ld 150, sums of B b7, A as packed before #
// STEPS-NEXT: 2: gemm f32 [120x150x160] A^T b0 ld 120, B b3 ld 150, C b8 ld 150, sums of B b9, A as packed before #
func.func @gradients(%x: !x, %q: !h, %k: !h, %v: !h) -> (!n, !b, !n, !b, !n, !b) {
  %bq = cleave.reduce sum %q over ["b", "s"] : !h -> !b
  %bk = cleave.reduce sum %k over ["b", "s"] : !h -> !b
  %bv = cleave.reduce sum %v over ["b", "s"] : !h -> !b
  %wq = cleave.contract %x, %q : (!x, !h) -> !n
  %wk = cleave.contract %x, %k : (!x, !h) -> !n
  %wv = cleave.contract %x, %v : (!x, !h) -> !n
  return %wq, %bq, %wk, %bk, %wv, %bv : !n, !b, !n, !b, !n, !b
}

// With epilogues. The third reads what the second one makes: it may follow, too. The last
// one needs a kernel of its own in between.
// CHECK-LABEL: function @chain
// CHECK-COUNT-2: its left side is copied by the product before
// CHECK-NOT: its left side
// STEPS-LABEL: program @chain: 6 steps
// STEPS: 0: gemm {{.*}} then
// STEPS: 1: gemm {{.*}} then {{.*}}, A as packed before
// STEPS: 2: gemm {{.*}} then {{.*}}, A as packed before
// STEPS: 3: kernel
// STEPS: 4: kernel
// STEPS: 5: gemm
// STEPS-NOT: A as packed before
func.func @chain(%x: !x, %w: !n, %u: !n, %v: !n, %bias: !b) -> (!h, !h, !h, !h) {
  %p = cleave.contract %x, %w : (!x, !n) -> !h
  %q = cleave.add %p, %bias : (!h, !b) -> !h
  %r = cleave.contract %x, %u : (!x, !n) -> !h
  %s = cleave.mul %r, %q : (!h, !h) -> !h
  %t = cleave.contract %x, %v : (!x, !n) -> !h
  %y = cleave.mul %t, %s : (!h, !h) -> !h
  %m = cleave.reduce max %y over ["b", "s"] : !h -> !b
  %z = cleave.add %u, %m : (!n, !b) -> !n
  %l = cleave.contract %x, %z : (!x, !n) -> !h
  return %q, %s, %y, %l : !h, !h, !h, !h
}

// Sums over other dims, and of two operands.
// CHECK-LABEL: function @apart
// CHECK: not beside a product: reduce to f32 [s=40, n=3, d=50]: the product sums over other dims
// CHECK: not beside a product: reduce to f32 [w=120]: the product sums another operand already
// REMARK: remark: no product makes this sum along the way: the product sums over other dims
func.func @apart(%x: !x, %q: !h) -> (!n, !s, !cleave.tensor<f32 [w=120]>, !b) {
  %s = cleave.reduce sum %q over ["b"] : !h -> !s
  %b = cleave.reduce sum %q over ["b", "s"] : !h -> !b
  %c = cleave.reduce sum %x over ["b", "s"] : !x -> !cleave.tensor<f32 [w=120]>
  %w = cleave.contract %x, %q : (!x, !h) -> !n
  return %w, %s, %c, %b : !n, !s, !cleave.tensor<f32 [w=120]>, !b
}

// CHECK-LABEL: function @small
// CHECK: not beside a product: reduce to f32 [n=9]: the product is too small to copy its operands
func.func @small(%x: !cleave.tensor<f32 [b=9, w=9]>, %q: !cleave.tensor<f32 [b=9, n=9]>)
    -> (!cleave.tensor<f32 [w=9, n=9]>, !cleave.tensor<f32 [n=9]>) {
  %b = cleave.reduce sum %q over ["b"] : !cleave.tensor<f32 [b=9, n=9]> -> !cleave.tensor<f32 [n=9]>
  %w = cleave.contract %x, %q : (!cleave.tensor<f32 [b=9, w=9]>, !cleave.tensor<f32 [b=9, n=9]>) -> !cleave.tensor<f32 [w=9, n=9]>
  return %w, %b : !cleave.tensor<f32 [w=9, n=9]>, !cleave.tensor<f32 [n=9]>
}
