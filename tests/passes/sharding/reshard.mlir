// Each pair of shardings by the cheapest collective.
// RUN: cleave-opt %s -split-input-file --cleave-assign-shardings --cleave-insert-collectives --cleave-verify-shardings | FileCheck %s

// A partial sum that is wanted split: reduce-scatter, not all-reduce and slice.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<ffn else seq by tp>]} {
  // CHECK-LABEL: @sequence
  // CHECK: cleave.all_gather %{{.*}} along "seq" over [#cleave.axis<tp>]
  // CHECK: cleave.contract %{{.*}} -> {{.*}}<f32 [seq=4, ffn=6 {tp}]>
  // CHECK: cleave.reduce_scatter sum %{{.*}} along "seq" over [#cleave.axis<tp>]
  // CHECK-NOT: all_reduce
  func.func @sequence(%x: !cleave.tensor<f32 [seq=4, w=4]>, %up: !cleave.tensor<f32 [w=4, ffn=6]>, %down: !cleave.tensor<f32 [ffn=6, w=4]>)
      -> !cleave.tensor<f32 [seq=4, w=4]> {
    %u = cleave.contract %x, %up : (!cleave.tensor<f32 [seq=4, w=4]>, !cleave.tensor<f32 [w=4, ffn=6]>) -> !cleave.tensor<f32 [seq=4, ffn=6]>
    %d = cleave.contract %u, %down : (!cleave.tensor<f32 [seq=4, ffn=6]>, !cleave.tensor<f32 [ffn=6, w=4]>) -> !cleave.tensor<f32 [seq=4, w=4]>
    return %d : !cleave.tensor<f32 [seq=4, w=4]>
  }
}

// -----

// A pin moves an axis from one dim to another: all-to-all.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<a by tp>]} {
  // CHECK-LABEL: @move
  // CHECK: cleave.all_to_all %{{.*}} from "a" to "b" over [#cleave.axis<tp>]
  // CHECK: cleave.pin "y"
  func.func @move(%x: !cleave.tensor<f32 [a=4, b=6]>) -> !cleave.tensor<f32 [b=6]> {
    %e = cleave.exp %x : !cleave.tensor<f32 [a=4, b=6]> -> !cleave.tensor<f32 [a=4, b=6]>
    %y = cleave.pin "y" %e [#cleave.shard_rule<b by tp>] axes ["tp"] : !cleave.tensor<f32 [a=4, b=6]> -> !cleave.tensor<f32 [a=4, b=6]>
    %s = cleave.reduce sum %y over ["a"] : !cleave.tensor<f32 [a=4, b=6]> -> !cleave.tensor<f32 [b=6]>
    return %s : !cleave.tensor<f32 [b=6]>
  }
}

// -----

// Fewer kv heads than ranks: kv_heads on a sub-axis, the group on the rest, and
// the kv projection replicated over the rest.
module attributes {cleave.mesh = #cleave.mesh<tp=4>, cleave.plan = [#cleave.shard_rule<kv * group by tp>]} {
  // CHECK-LABEL: @grouped
  // CHECK-SAME: !cleave.tensor<f32 [b=2, kv=2 {tp:(1)2}, group=3 {tp:(2)2}]>
  // CHECK-SAME: !cleave.tensor<f32 [b=2, kv=2 {tp:(1)2}]>
  // The gradient of what is replicated over a part of the axis is summed over it.
  // CHECK: cleave.reduce sum %{{.*}} -> {{.*}}<f32 [b=2, kv=2 {tp:(1)2}] sum {tp:(2)2}>
  // CHECK: cleave.all_reduce sum %{{.*}} over [#cleave.axis<tp:(2)2>]
  func.func @grouped(%q: !cleave.tensor<f32 [b=2, kv=2, group=3]>, %k: !cleave.tensor<f32 [b=2, kv=2]>) -> !cleave.tensor<f32 [b=2, kv=2]> {
    %p = cleave.mul %q, %k : (!cleave.tensor<f32 [b=2, kv=2, group=3]>, !cleave.tensor<f32 [b=2, kv=2]>) -> !cleave.tensor<f32 [b=2, kv=2, group=3]>
    %s = cleave.reduce sum %p over ["group"] : !cleave.tensor<f32 [b=2, kv=2, group=3]> -> !cleave.tensor<f32 [b=2, kv=2]>
    return %s : !cleave.tensor<f32 [b=2, kv=2]>
  }
}
