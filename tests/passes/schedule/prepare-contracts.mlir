// RUN: cleave-opt --cleave-prepare-contracts %s | FileCheck %s

// GPT-2's contractions, forward and backward, are matrix products where their
// tensors lie: nothing is copied, nothing changes.

// CHECK-LABEL: func.func @gpt2
// CHECK-NOT: cleave.broadcast
// CHECK-NOT: cleave.mul
// CHECK-COUNT-16: cleave.contract
// CHECK: return
!x = !cleave.tensor<f32 [batch=2, seq=3, width=8]>
!wq = !cleave.tensor<f32 [width=8, heads=2, depth=4]>
!q = !cleave.tensor<f32 [batch=2, seq=3, heads=2, depth=4]>
!k = !cleave.tensor<f32 [batch=2, keys=3, heads=2, depth=4]>
!v = !cleave.tensor<f32 [batch=2, keys=3, heads=2, value=4]>
!y = !cleave.tensor<f32 [batch=2, seq=3, heads=2, value=4]>
!s = !cleave.tensor<f32 [batch=2, heads=2, seq=3, keys=3]>
!wo = !cleave.tensor<f32 [heads=2, depth=4, width=8]>
!wte = !cleave.tensor<f32 [vocab=7, width=8]>
!l = !cleave.tensor<f32 [batch=2, seq=3, vocab=7]>
func.func @gpt2(%x: !x, %wq: !wq, %dq: !q, %k: !k, %v: !v, %p: !s, %ds: !s, %dy: !y, %wo: !wo,
                %wte: !wte, %dl: !l)
    -> (!q, !x, !wq, !s, !y, !v, !s, !q, !k, !x, !q, !wo, !l, !x, !wte, !wte) {
  %0 = cleave.contract %x, %wq : (!x, !wq) -> !q
  %1 = cleave.contract %dq, %wq : (!q, !wq) -> !x
  %2 = cleave.contract %x, %dq : (!x, !q) -> !wq
  %3 = cleave.contract %dq, %k : (!q, !k) -> !s
  %4 = cleave.contract %p, %v : (!s, !v) -> !y
  %5 = cleave.contract %p, %dy : (!s, !y) -> !v
  %6 = cleave.contract %dy, %v : (!y, !v) -> !s
  %7 = cleave.contract %ds, %k : (!s, !k) -> !q
  %8 = cleave.contract %ds, %dq : (!s, !q) -> !k
  %9 = cleave.contract %dq, %wo : (!q, !wo) -> !x
  %10 = cleave.contract %x, %wo : (!x, !wo) -> !q
  %11 = cleave.contract %dq, %x : (!q, !x) -> !wo
  %12 = cleave.contract %x, %wte : (!x, !wte) -> !l
  %13 = cleave.contract %dl, %wte : (!l, !wte) -> !x
  %14 = cleave.contract %dl, %x : (!l, !x) -> !wte
  %15 = cleave.contract %x, %dl : (!x, !l) -> !wte
  return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15
      : !q, !x, !wq, !s, !y, !v, !s, !q, !k, !x, !q, !wo, !l, !x, !wte, !wte
}

// Without a summed dim it is a product; with nothing but batched and summed
// dims, a product and a sum.

// CHECK-LABEL: func.func @elementwise
// CHECK-NOT: cleave.contract
// CHECK: cleave.mul %{{.*}}, %{{.*}} {cleave.phase = "backward"} : {{.*}} -> !cleave.tensor<f32 [n=5, m=6]>
// CHECK: %[[P:.*]] = cleave.mul {{.*}} -> !cleave.tensor<f32 [b=2, k=4]>
// CHECK: cleave.reduce sum %[[P]] over ["k"] : {{.*}} -> <f32 [b=2]>
// CHECK: %[[P:.*]] = cleave.mul {{.*}} -> !cleave.tensor<f32 [b=2, one=1]>
// CHECK: cleave.reduce sum %[[P]] over ["one"] : {{.*}} -> <f32 [b=2]>
func.func @elementwise(%u: !cleave.tensor<f32 [m=6]>, %w: !cleave.tensor<f32 [n=5]>,
                       %a: !cleave.tensor<f32 [b=2, k=4]>, %b: !cleave.tensor<f32 [k=4, b=2]>,
                       %c: !cleave.tensor<f32 [one=1]>, %d: !cleave.tensor<f32 [b=2, one=1]>)
    -> (!cleave.tensor<f32 [n=5, m=6]>, !cleave.tensor<f32 [b=2]>, !cleave.tensor<f32 [b=2]>) {
  %0 = cleave.contract %u, %w {cleave.phase = "backward"} : (!cleave.tensor<f32 [m=6]>, !cleave.tensor<f32 [n=5]>) -> !cleave.tensor<f32 [n=5, m=6]>
  %1 = cleave.contract %a, %b : (!cleave.tensor<f32 [b=2, k=4]>, !cleave.tensor<f32 [k=4, b=2]>) -> !cleave.tensor<f32 [b=2]>
  %2 = cleave.contract %c, %d : (!cleave.tensor<f32 [one=1]>, !cleave.tensor<f32 [b=2, one=1]>) -> !cleave.tensor<f32 [b=2]>
  return %0, %1, %2 : !cleave.tensor<f32 [n=5, m=6]>, !cleave.tensor<f32 [b=2]>, !cleave.tensor<f32 [b=2]>
}

// A batched dim innermost: no matrix product reads this, so the operand is
// copied, in the order of the others.

// CHECK-LABEL: func.func @copy_operand
// CHECK: %[[C:.*]] = cleave.broadcast %arg0 : <f32 [m=64, k=32, b=8]> -> <f32 [b=8, m=64, k=32]>
// CHECK: cleave.contract %[[C]], %arg1
func.func @copy_operand(%a: !cleave.tensor<f32 [m=64, k=32, b=8]>, %w: !cleave.tensor<f32 [b=8, k=32, n=16]>)
    -> !cleave.tensor<f32 [b=8, m=64, n=16]> {
  %0 = cleave.contract %a, %w : (!cleave.tensor<f32 [m=64, k=32, b=8]>, !cleave.tensor<f32 [b=8, k=32, n=16]>) -> !cleave.tensor<f32 [b=8, m=64, n=16]>
  return %0 : !cleave.tensor<f32 [b=8, m=64, n=16]>
}

// The result in such an order: elementwise users take any order, a reduce and
// the return get a copy.

// CHECK-LABEL: func.func @copy_result
// CHECK: %[[R:.*]] = cleave.contract {{.*}} -> !cleave.tensor<f32 [b=8, m=64, n=16]>
// CHECK: %[[C:.*]] = cleave.broadcast %[[R]] : {{.*}} -> <f32 [m=64, n=16, b=8]>
// CHECK: cleave.exp %[[R]] : <f32 [b=8, m=64, n=16]> -> <f32 [m=64, n=16, b=8]>
// CHECK: cleave.reduce sum %[[C]]
func.func @copy_result(%a: !cleave.tensor<f32 [b=8, m=64, k=32]>, %w: !cleave.tensor<f32 [b=8, k=32, n=16]>)
    -> (!cleave.tensor<f32 [m=64, n=16, b=8]>, !cleave.tensor<f32 [m=64, n=16]>) {
  %0 = cleave.contract %a, %w : (!cleave.tensor<f32 [b=8, m=64, k=32]>, !cleave.tensor<f32 [b=8, k=32, n=16]>) -> !cleave.tensor<f32 [m=64, n=16, b=8]>
  %1 = cleave.exp %0 : !cleave.tensor<f32 [m=64, n=16, b=8]> -> !cleave.tensor<f32 [m=64, n=16, b=8]>
  %2 = cleave.reduce sum %0 over ["b"] : !cleave.tensor<f32 [m=64, n=16, b=8]> -> !cleave.tensor<f32 [m=64, n=16]>
  return %1, %2 : !cleave.tensor<f32 [m=64, n=16, b=8]>, !cleave.tensor<f32 [m=64, n=16]>
}

// What is added up in f32 is rounded behind the product.
// CHECK-LABEL: func @short_result
// CHECK: %[[SUM:.*]] = cleave.contract %{{.*}} -> !cleave.tensor<f32 [m=40, n=50]>
// CHECK-NEXT: %[[ROUNDED:.*]] = cleave.cast %[[SUM]] : <f32 [m=40, n=50]> -> <bf16 [m=40, n=50]>
// CHECK-NEXT: return %[[ROUNDED]]
func.func @short_result(%a: !cleave.tensor<bf16 [m=40, k=30]>, %w: !cleave.tensor<bf16 [k=30, n=50]>) -> !cleave.tensor<bf16 [m=40, n=50]> {
  %0 = cleave.contract %a, %w : (!cleave.tensor<bf16 [m=40, k=30]>, !cleave.tensor<bf16 [k=30, n=50]>) -> !cleave.tensor<bf16 [m=40, n=50]>
  return %0 : !cleave.tensor<bf16 [m=40, n=50]>
}

// Products without a sum are elementwise, in f32 too.
// CHECK-LABEL: func @short_outer
// CHECK-DAG: %[[A:.*]] = cleave.cast %{{.*}} : <bf16 [m=4]> -> <f32 [m=4]>
// CHECK-DAG: %[[B:.*]] = cleave.cast %{{.*}} : <bf16 [n=5]> -> <f32 [n=5]>
// CHECK: cleave.mul %[[A]], %[[B]] : (!cleave.tensor<f32 [m=4]>, !cleave.tensor<f32 [n=5]>) -> !cleave.tensor<f32 [m=4, n=5]>
func.func @short_outer(%a: !cleave.tensor<bf16 [m=4]>, %w: !cleave.tensor<bf16 [n=5]>) -> !cleave.tensor<f32 [m=4, n=5]> {
  %0 = cleave.contract %a, %w : (!cleave.tensor<bf16 [m=4]>, !cleave.tensor<bf16 [n=5]>) -> !cleave.tensor<f32 [m=4, n=5]>
  return %0 : !cleave.tensor<f32 [m=4, n=5]>
}
