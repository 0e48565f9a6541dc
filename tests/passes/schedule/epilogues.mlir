// RUN: cleave-opt --cleave-fuse --cleave-print-schedule=in-place %s | FileCheck %s

!x = !cleave.tensor<f32 [b=6, w=8]>
!m = !cleave.tensor<f32 [w=8, v=8]>
!y = !cleave.tensor<f32 [b=6, v=8]>
!v = !cleave.tensor<f32 [v=8]>

// The bare product lies where the result will.
// CHECK-LABEL: program @bias: 1 steps, arena 0 bytes
// CHECK: 0: gemm f32 [6x8x8] A b0 ld 8, B b1 ld 8, C b3 ld 8 then epilogue_{{[0-9]+}}(b3, b2, b3)  # gemm
func.func @bias(%x: !x, %w: !m, %b: !v) -> !y {
  %p = cleave.contract %x, %w : (!x, !m) -> !y
  %y = cleave.add %p, %b : (!y, !v) -> !y
  return %y : !y
}

// Not where an operand lies, though that is not needed any more: the product would
// overwrite it (B66). Here the result may be written over it, so the product is apart.
// CHECK-LABEL: program @state: 1 steps, arena 192 bytes
// CHECK: 0: gemm f32 [6x8x8] A b0 ld 8, B b1 ld 8, C [[P:b[0-9]+]] ld 8 then epilogue_{{[0-9]+}}([[P]], b2, b2)
func.func @state(%x: !x, %w: !m, %old: !y {cleave.donated_to = 0}) -> !y {
  %p = cleave.contract %x, %w : (!x, !m) -> !y
  %y = cleave.mul %p, %old : (!y, !y) -> !y
  return %y : !y
}

// Others read the bare product: it stays.
// CHECK-LABEL: program @both: 1 steps
// CHECK: 0: gemm f32 [6x8x8] A b0 ld 8, B b1 ld 8, C [[P:b[0-9]+]] ld 8 then epilogue_{{[0-9]+}}([[P]], b2, {{b[0-9]+}})
// CHECK: [[P]]: result 0
func.func @both(%x: !x, %w: !m, %b: !v) -> (!y, !y) {
  %p = cleave.contract %x, %w : (!x, !m) -> !y
  %y = cleave.add %p, %b : (!y, !v) -> !y
  return %p, %y : !y, !y
}
