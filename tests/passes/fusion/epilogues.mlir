// RUN: cleave-opt --cleave-print-fusion-groups %s -o /dev/null | FileCheck %s
// RUN: cleave-opt --cleave-fuse %s | FileCheck %s --check-prefix=FUSED
// RUN: cleave-opt --cleave-print-fusion-groups=fuse=false %s -o /dev/null | FileCheck %s --check-prefix=OFF

// OFF-NOT: epilogue over
// OFF: no epilogue: contract to f32 [b=4, s=8, f=64]: fusion is off

!x = !cleave.tensor<f32 [b=4, s=8, w=32]>
!r = !cleave.tensor<f32 [b=4, s=8]>
!w = !cleave.tensor<f32 [w=32]>
!f = !cleave.tensor<f32 [f=64]>
!up = !cleave.tensor<f32 [w=32, f=64]>
!h = !cleave.tensor<f32 [b=4, s=8, f=64]>

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
// Bias and activation, with the pre-activation that the backward pass wants; the
// residual behind the second product.
// CHECK-LABEL: function @mlp
// CHECK-NEXT: group 0: epilogue over [b, s, f] of a contract of f32 [b=4, s=8, w=32] and f32 [w=32, f=64]
// CHECK-NEXT: ops: add tanh
// CHECK-NEXT: reads contract: f32 [b=4, s=8, f=64]
// CHECK-NEXT: reads argument 2: f32 [f=64]
// CHECK-NEXT: writes add: f32 [b=4, s=8, f=64]
// CHECK-NEXT: writes tanh: f32 [b=4, s=8, f=64]
// CHECK-NEXT: group 1: epilogue over [b, s, w]
// CHECK-NEXT: ops: add
// CHECK-NOT: group
// CHECK-NOT: no epilogue
// FUSED-LABEL: func.func @mlp
// FUSED: [[P:%.*]] = cleave.contract
// FUSED-NEXT: [[H:%.*]]:2 = cleave.fused epilogue({{%.*}} = [[P]] : {{.*}}, {{%.*}} = %arg2 : {{.*}}) -> {{.*}} attributes {cleave.parts = array<i64: 1, 1, 2>}
// FUSED: [[Q:%.*]] = cleave.contract [[H]]#1
// FUSED-NEXT: cleave.fused epilogue({{%.*}} = [[Q]] : {{.*}}, {{%.*}} = %arg0 :
func.func @mlp(%x: !x, %w: !up, %bias: !f) -> (!x, !h) {
  %p = cleave.contract %x, %w : (!x, !up) -> !h
  %h = cleave.add %p, %bias : (!h, !f) -> !h
  %t = cleave.tanh %h : !h -> !h
  %q = cleave.contract %t, %w : (!h, !up) -> !x
  %y = cleave.add %x, %q : (!x, !x) -> !x
  return %y, %h : !x, !h
}

// The residual sum is made with the product, the norm of it is not. An unreduced
// product gets nothing.
// CHECK-LABEL: function @norm
// CHECK-NEXT: group 0: epilogue over [b, s, w]
// CHECK-NEXT: ops: add
// CHECK: group 1: rows over [b, s], reduces [w]
// CHECK: no epilogue: contract to f32 [b=4, s=8, w=32]: its result is reduced by all_reduce first
func.func @norm(%h: !h, %w: !up, %x: !x) -> (!x, !x, !x) {
  %p = cleave.contract %h, %w : (!h, !up) -> !x
  %z = cleave.add %p, %x : (!x, !x) -> !x
  %t = cleave.tanh %z : !x -> !x
  %m = cleave.reduce max %t over ["w"] : !x -> !r
  %y = cleave.sub %t, %m : (!x, !r) -> !x
  %q = cleave.contract %h, %w : (!h, !up) -> !x
  %s = cleave.all_reduce sum %q over [#cleave.axis<tp>] : !x -> !x
  %u = cleave.tanh %s : !x -> !x
  return %z, %y, %u : !x, !x, !x
}

// Two products of one value: the second one's epilogue reads the first.
// CHECK-LABEL: function @gate
// CHECK-NEXT: group 0: epilogue over [b, s, f]
// CHECK-NEXT: ops: sigmoid mul mul
// CHECK-NEXT: reads contract: f32 [b=4, s=8, f=64]
// CHECK-NEXT: reads contract: f32 [b=4, s=8, f=64]
// CHECK: no epilogue: contract to f32 [b=4, s=8, f=64]: another product's epilogue reads it
func.func @gate(%x: !x, %wg: !up, %wu: !up) -> !h {
  %g = cleave.contract %x, %wg : (!x, !up) -> !h
  %u = cleave.contract %x, %wu : (!x, !up) -> !h
  %s = cleave.sigmoid %g : !h -> !h
  %a = cleave.mul %g, %s : (!h, !h) -> !h
  %y = cleave.mul %a, %u : (!h, !h) -> !h
  return %y : !h
}

// Backward: what the activation's derivative makes of the input gradient, and the
// activation, computed again for the weight gradient: one sigmoid for both.
// CHECK-LABEL: function @backward
// CHECK-NEXT: group 0: epilogue over [b, s, f] of a contract of f32 [b=4, s=8, w=32] and f32 [w=32, f=64]
// CHECK-NEXT: ops: sigmoid mul mul
// CHECK: writes mul: f32 [b=4, s=8, f=64]
// CHECK-NEXT: writes mul: f32 [b=4, s=8, f=64]
// CHECK-NOT: group
// CHECK: no epilogue: contract to f32 [f=64, w=32]: it is a result as it is
func.func @backward(%dy: !x, %w: !up, %h: !h) -> (!h, !cleave.tensor<f32 [f=64, w=32]>) {
  %t = cleave.sigmoid %h : !h -> !h
  %a = cleave.mul %h, %t : (!h, !h) -> !h
  %da = cleave.contract %dy, %w : (!x, !up) -> !h
  %dh = cleave.mul %da, %t : (!h, !h) -> !h
  %dw = cleave.contract %a, %dy : (!h, !x) -> !cleave.tensor<f32 [f=64, w=32]>
  return %dh, %dw : !h, !cleave.tensor<f32 [f=64, w=32]>
}

// What does not fit, and why.
// CHECK-LABEL: function @apart
// CHECK: no epilogue: contract to f32 [b=4, s=8, f=64]: a reduction over [f] needs whole rows
// CHECK: no epilogue: contract to f32 [b=4, s=8, f=64]: a sum over [b, s] takes rows of all tiles
// CHECK: no epilogue: contract to f32 [b=4, s=8, f=64]: what follows stores its elements in another order
// CHECK: no epilogue: contract to f32 [b=4, s=8, f=64]: a pad between takes elements from other places
// CHECK: no epilogue: contract to f32 [b=4, s=8, f=64]: what else it reads needs the whole product first
// CHECK: no epilogue: contract to f32 [b=4, s=8]: the product is a single column
func.func @apart(%x: !x, %w: !up, %v: !w)
    -> (!r, !f, !cleave.tensor<f32 [f=64, b=4, s=8]>, !h, !h, !r) {
  %p0 = cleave.contract %x, %w : (!x, !up) -> !h
  %m = cleave.reduce max %p0 over ["f"] : !h -> !r
  %p1 = cleave.contract %x, %w : (!x, !up) -> !h
  %s = cleave.reduce sum %p1 over ["b", "s"] : !h -> !f
  %p2 = cleave.contract %x, %w : (!x, !up) -> !h
  %t = cleave.broadcast %p2 : !h -> !cleave.tensor<f32 [f=64, b=4, s=8]>
  %p3 = cleave.contract %x, %w : (!x, !up) -> !h
  %part = cleave.slice %p3["f" from 0] : !h -> !cleave.tensor<f32 [b=4, s=8, f=32]>
  %whole = cleave.pad %part["f" at 0] : !cleave.tensor<f32 [b=4, s=8, f=32]> -> !h
  %p4 = cleave.contract %x, %w : (!x, !up) -> !h
  %back = cleave.contract %p4, %w : (!h, !up) -> !x
  %again = cleave.contract %back, %w : (!x, !up) -> !h
  %late = cleave.all_reduce sum %again over [#cleave.axis<tp>] : !h -> !h
  %y4 = cleave.add %p4, %late : (!h, !h) -> !h
  %p5 = cleave.contract %x, %v : (!x, !w) -> !r
  %y5 = cleave.tanh %p5 : !r -> !r
  return %m, %s, %t, %whole, %y4, %y5 : !r, !f, !cleave.tensor<f32 [f=64, b=4, s=8]>, !h, !h, !r
}
}
