// RUN: cleave-opt --cleave-print-fusion-groups %s -o /dev/null | FileCheck %s
// RUN: cleave-opt --cleave-fuse %s | FileCheck %s --check-prefix=FUSED
// RUN: cleave-opt --cleave-fuse=fuse=false %s | FileCheck %s --check-prefix=ALONE

!x = !cleave.tensor<f32 [b=4, s=8, w=32]>
!r = !cleave.tensor<f32 [b=4, s=8]>
!w = !cleave.tensor<f32 [w=32]>
!f = !cleave.tensor<f32>
!m = !cleave.tensor<f32 [w=32, f=64]>
!h = !cleave.tensor<f32 [b=4, s=8, f=64]>

// The residual sum, which others read too, and the norm of it: one kernel.
// CHECK-LABEL: function @residual_norm
// CHECK-NEXT: group 0: rows over [b, s], reduces [w]
// CHECK-NEXT: ops: constant constant add reduce mul sub mul reduce mul add rsqrt mul mul
// CHECK-NEXT: reads argument 0: f32 [b=4, s=8, w=32]
// CHECK-NEXT: reads argument 1: f32 [b=4, s=8, w=32]
// CHECK-NEXT: reads argument 2: f32 [w=32]
// CHECK-NEXT: writes add: f32 [b=4, s=8, w=32]
// CHECK-NEXT: writes mul: f32 [b=4, s=8, w=32]
// CHECK-NOT: group

// FUSED-LABEL: func.func @residual_norm
// FUSED-NEXT: [[R:%.*]]:2 = cleave.fused rows({{.*}}) -> !cleave.tensor<f32 [b=4, s=8, w=32]>, !cleave.tensor<f32 [b=4, s=8, w=32]> {
// FUSED: cleave.yield
// FUSED-NEXT: }
// FUSED-NEXT: return [[R]]#0, [[R]]#1
// ALONE-LABEL: func.func @residual_norm
// ALONE-COUNT-11: cleave.fused
// ALONE-NOT: cleave.fused
// ALONE: return
func.func @residual_norm(%x: !x, %y: !x, %g: !w) -> (!x, !x) {
  %inv = cleave.constant 3.125000e-02 : f32 : !f
  %eps = cleave.constant 1.0e-05 : f32 : !f
  %z = cleave.add %x, %y : (!x, !x) -> !x
  %sum = cleave.reduce sum %z over ["w"] : !x -> !r
  %mean = cleave.mul %sum, %inv : (!r, !f) -> !r
  %c = cleave.sub %z, %mean : (!x, !r) -> !x
  %cc = cleave.mul %c, %c : (!x, !x) -> !x
  %ss = cleave.reduce sum %cc over ["w"] : !x -> !r
  %var = cleave.mul %ss, %inv : (!r, !f) -> !r
  %ve = cleave.add %var, %eps : (!r, !f) -> !r
  %rstd = cleave.rsqrt %ve : !r -> !r
  %n = cleave.mul %c, %rstd : (!x, !r) -> !x
  %o = cleave.mul %n, %g : (!x, !w) -> !x
  return %z, %o : !x, !x
}

// Between two contractions: the bias and the activation; and the bias's gradient,
// which walks columns, beside the rows.
// CHECK-LABEL: function @mlp
// CHECK-NEXT: group 0: epilogue over [b, s, f] of a contract of f32 [b=4, s=8, w=32] and f32 [w=32, f=64]
// CHECK-NEXT: ops: add tanh
// CHECK: group 1: columns over [f], reduces [b, s]
// CHECK-NEXT: ops: add mul tanh reduce
func.func @mlp(%x: !x, %up: !m, %bias: !cleave.tensor<f32 [f=64]>, %d: !h) -> (!x, !cleave.tensor<f32 [f=64]>) {
  %h = cleave.contract %x, %up : (!x, !m) -> !h
  %hb = cleave.add %h, %bias : (!h, !cleave.tensor<f32 [f=64]>) -> !h
  %t = cleave.tanh %hb : !h -> !h
  %y = cleave.contract %t, %up : (!h, !m) -> !x
  %u = cleave.mul %hb, %d : (!h, !h) -> !h
  %v = cleave.tanh %u : !h -> !h
  %db = cleave.reduce sum %v over ["b", "s"] : !h -> !cleave.tensor<f32 [f=64]>
  return %y, %db : !x, !cleave.tensor<f32 [f=64]>
}

// Param, moments and the gradient's norm by rows: each tensor is read once.
// CHECK-LABEL: function @momentum
// CHECK-NEXT: group 0: rows over [w], reduces [f]
// CHECK: writes add: f32 [w=32, f=64]
// CHECK-NEXT: writes sub: f32 [w=32, f=64]
// CHECK-NEXT: writes reduce: f32 [w=32]
// CHECK-NOT: group
func.func @momentum(%p: !m, %m: !m, %g: !m, %lr: !f) -> (!m, !m, !w) {
  %beta = cleave.constant 0.9 : f32 : !f
  %mb = cleave.mul %m, %beta : (!m, !f) -> !m
  %mn = cleave.add %mb, %g : (!m, !m) -> !m
  %step = cleave.mul %mn, %lr : (!m, !f) -> !m
  %pn = cleave.sub %p, %step : (!m, !m) -> !m
  %gg = cleave.mul %g, %g : (!m, !m) -> !m
  %norm = cleave.reduce sum %gg over ["f"] : !m -> !w
  return %pn, %mn, %norm : !m, !m, !w
}

// A view needs no kernel; a kernel that reads another's elements at other places
// stays apart.
// CHECK-LABEL: function @transposed
// CHECK-NEXT: group 0: elementwise over [a, b]
// CHECK-NEXT: ops: tanh
// CHECK: group 1: elementwise over [a, b]
// CHECK-NEXT: ops: rename add
// CHECK: apart: group 0 and group 1: one reads the other's elements at other places
// FUSED-LABEL: func.func @transposed
// FUSED-COUNT-2: cleave.fused
// FUSED: cleave.rename %arg1
// FUSED-NEXT: return
func.func @transposed(%x: !cleave.tensor<f32 [a=8, b=8]>, %y: !cleave.tensor<f32 [a=8, b=8]>)
    -> (!cleave.tensor<f32 [a=8, b=8]>, !cleave.tensor<f32 [a=8, b=8]>, !cleave.tensor<f32 [c=8, d=8]>) {
  %t = cleave.tanh %x : !cleave.tensor<f32 [a=8, b=8]> -> !cleave.tensor<f32 [a=8, b=8]>
  %r = cleave.rename %t : !cleave.tensor<f32 [a=8, b=8]> -> !cleave.tensor<f32 [b=8, a=8]>
  %s = cleave.add %t, %r : (!cleave.tensor<f32 [a=8, b=8]>, !cleave.tensor<f32 [b=8, a=8]>) -> !cleave.tensor<f32 [a=8, b=8]>
  %v = cleave.rename %y : !cleave.tensor<f32 [a=8, b=8]> -> !cleave.tensor<f32 [c=8, d=8]>
  return %t, %s, %v : !cleave.tensor<f32 [a=8, b=8]>, !cleave.tensor<f32 [a=8, b=8]>, !cleave.tensor<f32 [c=8, d=8]>
}

// Sums of whole tensors go by rows first.
// CHECK-LABEL: function @norm
// CHECK-NEXT: group 0: rows over [i], reduces [j]
// CHECK: group 1: scalars over [], reduces [i]
func.func @norm(%x: !cleave.tensor<f32 [i=256, j=256]>) -> !f {
  %xx = cleave.mul %x, %x : (!cleave.tensor<f32 [i=256, j=256]>, !cleave.tensor<f32 [i=256, j=256]>) -> !cleave.tensor<f32 [i=256, j=256]>
  %s = cleave.reduce sum %xx over ["i", "j"] : !cleave.tensor<f32 [i=256, j=256]> -> !f
  %r = cleave.sqrt %s : !f -> !f
  return %r : !f
}

// Bodies of repeats have groups of their own; numbers move into them.
// CHECK-LABEL: function @layers
// CHECK-NEXT: repeat
// CHECK-NEXT: group 0: elementwise over [w]
// CHECK-NEXT: ops: constant mul add
func.func @layers(%x: !w, %ws: !cleave.tensor<f32 [layer=2, w=32]>) -> !w {
  %half = cleave.constant 0.5 : f32 : !f
  %y = cleave.repeat layer = 2 %i carry(%c = %x : !w) slices(%p = %ws : !cleave.tensor<f32 [layer=2, w=32]> -> !w) -> !w {
    %h = cleave.mul %c, %half : (!w, !f) -> !w
    %n = cleave.add %h, %p : (!w, !w) -> !w
    cleave.yield %n : !w
  }
  return %y : !w
}
