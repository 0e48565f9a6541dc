// Padding is masked where a sum or a maximum would read it, and only there.
// RUN: cleave-opt %s --cleave-assign-shardings --cleave-insert-collectives --cleave-mask-padding --cleave-verify-padding --cleave-partition | FileCheck %s

module attributes {cleave.mesh = #cleave.mesh<tp=4>, cleave.plan = [#cleave.shard_rule<vocab by tp>]} {
  // CHECK-LABEL: @logits
  // CHECK-SAME: !cleave.tensor<f32 [vocab=2, w=4]>
  func.func @logits(%x: !cleave.tensor<f32 [b=3, w=4]>, %wte: !cleave.tensor<f32 [vocab=7, w=4]> {cleave.role = "param"})
      -> (!cleave.tensor<f32 [b=3]>, !cleave.tensor<f32 [b=3]>, !cleave.tensor<f32 [w=4]>) {
    // CHECK: %[[E:.*]] = cleave.shard_extent [#cleave.axis<tp>] block 2 of 7
    %l = cleave.contract %x, %wte : (!cleave.tensor<f32 [b=3, w=4]>, !cleave.tensor<f32 [vocab=7, w=4]>) -> !cleave.tensor<f32 [b=3, vocab=7]>
    // CHECK: cleave.mask_padding %{{.*}} ["vocab"] below(%[[E]]) fill 0xFFF0000000000000
    // CHECK-NEXT: cleave.reduce max
    %m = cleave.reduce max %l over ["vocab"] : !cleave.tensor<f32 [b=3, vocab=7]> -> !cleave.tensor<f32 [b=3]>
    %e = cleave.exp %l : !cleave.tensor<f32 [b=3, vocab=7]> -> !cleave.tensor<f32 [b=3, vocab=7]>
    // CHECK: cleave.mask_padding %{{.*}} ["vocab"] below(%[[E]]) fill 0.000000e+00
    // CHECK-NEXT: cleave.reduce sum
    %s = cleave.reduce sum %e over ["vocab"] : !cleave.tensor<f32 [b=3, vocab=7]> -> !cleave.tensor<f32 [b=3]>
    // A param's padding is known to be zero.
    // CHECK-NOT: mask_padding
    %t = cleave.reduce sum %wte over ["vocab"] : !cleave.tensor<f32 [vocab=7, w=4]> -> !cleave.tensor<f32 [w=4]>
    return %m, %s, %t : !cleave.tensor<f32 [b=3]>, !cleave.tensor<f32 [b=3]>, !cleave.tensor<f32 [w=4]>
  }

  // Positions are global: they get the shard's offset.
  // CHECK-LABEL: @positions
  // CHECK: %[[O:.*]] = cleave.shard_offset [#cleave.axis<tp>] block 2
  // CHECK: cleave.iota "vocab" offset(%[[O]]) : <i32 [vocab=2]>
  func.func @positions() -> !cleave.tensor<i32 [vocab=7]> {
    %i = cleave.iota "vocab" : !cleave.tensor<i32 [vocab=7]>
    return %i : !cleave.tensor<i32 [vocab=7]>
  }
}
