// A Megatron MLP: the reduction follows from the rules, before the bias.
// RUN: cleave-opt %s --cleave-assign-shardings --cleave-insert-collectives --cleave-verify-shardings | FileCheck %s

module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<ffn by tp>]} {
  // CHECK-LABEL: @mlp
  // CHECK-SAME: %[[X:.*]]: !cleave.tensor<f32 [b=2, w=4] replicated>
  // CHECK-SAME: !cleave.tensor<f32 [w=4, ffn=6 {tp}]>
  // CHECK: %[[U:.*]] = cleave.contract %[[X]], %{{.*}} -> {{.*}}<f32 [b=2, ffn=6 {tp}]>
  // CHECK: %[[A:.*]] = cleave.tanh %[[U]] : {{.*}} -> {{.*}}<f32 [b=2, ffn=6 {tp}]>
  // CHECK: %[[D:.*]] = cleave.contract %[[A]], %{{.*}} -> {{.*}}<f32 [b=2, w=4] sum {tp}>
  // CHECK: %[[R:.*]] = cleave.all_reduce sum %[[D]] over [#cleave.axis<tp>] {cleave.why = "contract over the split ffn leaves a partial sum"}
  // CHECK: cleave.add %[[R]], %{{.*}} -> {{.*}}<f32 [b=2, w=4] replicated>
  // CHECK-NOT: cleave.all
  func.func @mlp(%x: !cleave.tensor<f32 [b=2, w=4]>, %up: !cleave.tensor<f32 [w=4, ffn=6]>, %down: !cleave.tensor<f32 [ffn=6, w=4]>,
                 %bias: !cleave.tensor<f32 [w=4]>) -> !cleave.tensor<f32 [b=2, w=4]> {
    %u = cleave.contract %x, %up : (!cleave.tensor<f32 [b=2, w=4]>, !cleave.tensor<f32 [w=4, ffn=6]>) -> !cleave.tensor<f32 [b=2, ffn=6]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=2, ffn=6]> -> !cleave.tensor<f32 [b=2, ffn=6]>
    %d = cleave.contract %a, %down : (!cleave.tensor<f32 [b=2, ffn=6]>, !cleave.tensor<f32 [ffn=6, w=4]>) -> !cleave.tensor<f32 [b=2, w=4]>
    %y = cleave.add %d, %bias : (!cleave.tensor<f32 [b=2, w=4]>, !cleave.tensor<f32 [w=4]>) -> !cleave.tensor<f32 [b=2, w=4]>
    return %y : !cleave.tensor<f32 [b=2, w=4]>
  }

  // Two partial sums are added before the one reduction.
  // CHECK-LABEL: @two_sums
  // CHECK-NOT: cleave.all_reduce
  // CHECK: cleave.add %{{.*}}, %{{.*}} -> {{.*}}<f32 [b=2, w=4] sum {tp}>
  // CHECK: cleave.all_reduce sum
  // CHECK-NOT: cleave.all_reduce
  func.func @two_sums(%p: !cleave.tensor<f32 [b=2, ffn=6]>, %q: !cleave.tensor<f32 [b=2, ffn=6]>, %w: !cleave.tensor<f32 [ffn=6, w=4]>)
      -> !cleave.tensor<f32 [b=2, w=4]> {
    %a = cleave.contract %p, %w : (!cleave.tensor<f32 [b=2, ffn=6]>, !cleave.tensor<f32 [ffn=6, w=4]>) -> !cleave.tensor<f32 [b=2, w=4]>
    %b = cleave.contract %q, %w : (!cleave.tensor<f32 [b=2, ffn=6]>, !cleave.tensor<f32 [ffn=6, w=4]>) -> !cleave.tensor<f32 [b=2, w=4]>
    %y = cleave.add %a, %b : (!cleave.tensor<f32 [b=2, w=4]>, !cleave.tensor<f32 [b=2, w=4]>) -> !cleave.tensor<f32 [b=2, w=4]>
    return %y : !cleave.tensor<f32 [b=2, w=4]>
  }

  // B23: a partial sum squared would be wrong, and so would the same value twice.
  // CHECK-LABEL: @square
  // CHECK: %[[R:.*]] = cleave.all_reduce sum
  // CHECK: cleave.mul %[[R]], %[[R]]
  func.func @square(%p: !cleave.tensor<f32 [b=2, ffn=6]>) -> !cleave.tensor<f32 [b=2]> {
    %s = cleave.reduce sum %p over ["ffn"] : !cleave.tensor<f32 [b=2, ffn=6]> -> !cleave.tensor<f32 [b=2]>
    %y = cleave.mul %s, %s : (!cleave.tensor<f32 [b=2]>, !cleave.tensor<f32 [b=2]>) -> !cleave.tensor<f32 [b=2]>
    return %y : !cleave.tensor<f32 [b=2]>
  }

  // B03: a maximum is combined by a maximum.
  // CHECK-LABEL: @max
  // CHECK: cleave.all_reduce max
  func.func @max(%p: !cleave.tensor<f32 [b=2, ffn=6]>) -> !cleave.tensor<f32 [b=2]> {
    %s = cleave.reduce max %p over ["ffn"] : !cleave.tensor<f32 [b=2, ffn=6]> -> !cleave.tensor<f32 [b=2]>
    return %s : !cleave.tensor<f32 [b=2]>
  }
}
