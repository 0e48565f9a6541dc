// RUN: cleave-opt %s --split-input-file --cleave-expand-composites --cleave-differentiate=function=loss --canonicalize \
// RUN:   --cleave-assign-shardings --cleave-insert-collectives --cleave-mask-padding --cleave-verify-shardings --cleave-verify-padding \
// RUN:   --cleave-partition | FileCheck %s
// Attention under plans: whole and without a collective where heads or batch are split, whole with gathered keys where the
// sequence is, expanded where only its partial form keeps the axis at work.

// Heads: nothing is sent but the loss.
// CHECK-LABEL: func.func @loss_grads(
// CHECK-NOT: all_gather
// CHECK: cleave.attention %
// CHECK-SAME: -> (!cleave.tensor<f32 [b=2, s=6, h=2, g=3, e=7]>
// CHECK: cleave.all_reduce sum %{{.*}} : <f32> -> <f32>
// CHECK-NOT: all_reduce
// CHECK: cleave.attention_grad
// CHECK-NOT: all_reduce
// CHECK: return
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<h by tp>]} {
  func.func @loss(%q: !cleave.tensor<f32 [b=2, s=6, h=4, g=3, d=8]> {cleave.role = "param", cleave.name = "q"}, %k: !cleave.tensor<f32 [b=2, t=6, h=4, d=8]> {cleave.role = "param", cleave.name = "k"},
                  %v: !cleave.tensor<f32 [b=2, t=6, h=4, e=7]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32> {
    %y, %l = cleave.attention %q, %k, %v {query_dim = "s", key_dim = "t", depth_dim = "d", value_dim = "e", causal = true, scale = 1.0 : f64, rate = 0.0 : f64, path = "a", site = 1 : i64}
        : (!cleave.tensor<f32 [b=2, s=6, h=4, g=3, d=8]>, !cleave.tensor<f32 [b=2, t=6, h=4, d=8]>, !cleave.tensor<f32 [b=2, t=6, h=4, e=7]>) -> (!cleave.tensor<f32 [b=2, s=6, h=4, g=3, e=7]>, !cleave.tensor<f32 [b=2, s=6, h=4, g=3]>)
    %s = cleave.reduce sum %y over ["b", "s", "h", "g", "e"] : !cleave.tensor<f32 [b=2, s=6, h=4, g=3, e=7]> -> !cleave.tensor<f32>
    return %s : !cleave.tensor<f32>
  }
}

// -----

// The group: the gradients of k and v are partial sums, that of q is not.
// CHECK-LABEL: func.func @loss_grads(
// CHECK: cleave.attention %
// CHECK-SAME: -> (!cleave.tensor<f32 [b=2, s=6, h=4, g=1, e=7]>
// CHECK: %[[DQ:.*]], %[[DK:.*]], %[[DV:.*]] = cleave.attention_grad
// CHECK: cleave.all_reduce sum %[[DK]]
// CHECK: cleave.all_reduce sum %[[DV]]
// CHECK: return %{{.*}}, %[[DQ]],
module attributes {cleave.mesh = #cleave.mesh<tp=3>, cleave.plan = [#cleave.shard_rule<g by tp>]} {
  func.func @loss(%q: !cleave.tensor<f32 [b=2, s=6, h=4, g=3, d=8]> {cleave.role = "param", cleave.name = "q"}, %k: !cleave.tensor<f32 [b=2, t=6, h=4, d=8]> {cleave.role = "param", cleave.name = "k"},
                  %v: !cleave.tensor<f32 [b=2, t=6, h=4, e=7]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32> {
    %y, %l = cleave.attention %q, %k, %v {query_dim = "s", key_dim = "t", depth_dim = "d", value_dim = "e", causal = true, scale = 1.0 : f64, rate = 0.0 : f64, path = "a", site = 1 : i64}
        : (!cleave.tensor<f32 [b=2, s=6, h=4, g=3, d=8]>, !cleave.tensor<f32 [b=2, t=6, h=4, d=8]>, !cleave.tensor<f32 [b=2, t=6, h=4, e=7]>) -> (!cleave.tensor<f32 [b=2, s=6, h=4, g=3, e=7]>, !cleave.tensor<f32 [b=2, s=6, h=4, g=3]>)
    %s = cleave.reduce sum %y over ["b", "s", "h", "g", "e"] : !cleave.tensor<f32 [b=2, s=6, h=4, g=3, e=7]> -> !cleave.tensor<f32>
    return %s : !cleave.tensor<f32>
  }
}

// -----

// The sequence on both sides: keys and values are gathered, and each rank knows where its queries begin. 6 does not divide
// by 4: what the padding rows would add to the gradients of k and v is masked.
// CHECK-LABEL: func.func @loss_grads(
// CHECK: %[[OFFSET:.*]] = cleave.shard_offset
// CHECK: cleave.all_gather %{{.*}} along "t"
// CHECK: cleave.all_gather %{{.*}} along "t"
// CHECK: cleave.attention %{{.*}} offset(%[[OFFSET]])
// CHECK: cleave.mask_padding %{{.*}} ["s"]
// CHECK: %{{.*}}, %[[DK:.*]], %[[DV:.*]] = cleave.attention_grad %{{.*}} offset(%[[OFFSET]])
// CHECK: cleave.reduce_scatter sum %[[DK]] along "t"
// CHECK: cleave.reduce_scatter sum %[[DV]] along "t"
module attributes {cleave.mesh = #cleave.mesh<sp=4>, cleave.plan = [#cleave.shard_rule<s by sp>, #cleave.shard_rule<t by sp>]} {
  func.func @loss(%q: !cleave.tensor<f32 [b=2, s=6, h=4, g=3, d=8]> {cleave.role = "param", cleave.name = "q"}, %k: !cleave.tensor<f32 [b=2, t=6, h=4, d=8]> {cleave.role = "param", cleave.name = "k"},
                  %v: !cleave.tensor<f32 [b=2, t=6, h=4, e=7]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32> {
    %y, %l = cleave.attention %q, %k, %v {query_dim = "s", key_dim = "t", depth_dim = "d", value_dim = "e", causal = true, scale = 1.0 : f64, rate = 0.0 : f64, path = "a", site = 1 : i64}
        : (!cleave.tensor<f32 [b=2, s=6, h=4, g=3, d=8]>, !cleave.tensor<f32 [b=2, t=6, h=4, d=8]>, !cleave.tensor<f32 [b=2, t=6, h=4, e=7]>) -> (!cleave.tensor<f32 [b=2, s=6, h=4, g=3, e=7]>, !cleave.tensor<f32 [b=2, s=6, h=4, g=3]>)
    %s = cleave.reduce sum %y over ["b", "s", "h", "g", "e"] : !cleave.tensor<f32 [b=2, s=6, h=4, g=3, e=7]> -> !cleave.tensor<f32>
    return %s : !cleave.tensor<f32>
  }
}

// -----

// The depth alone: the scores become partial sums.
// CHECK-LABEL: func.func @loss_grads(
// CHECK-NOT: cleave.attention
// CHECK: cleave.all_reduce sum %{{.*}} : <f32 [b=2, h=4, g=3, s=6, t=6]> -> <f32 [b=2, h=4, g=3, s=6, t=6]>
// CHECK: cleave.reduce max
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<d by tp>]} {
  func.func @loss(%q: !cleave.tensor<f32 [b=2, s=6, h=4, g=3, d=8]> {cleave.role = "param", cleave.name = "q"}, %k: !cleave.tensor<f32 [b=2, t=6, h=4, d=8]> {cleave.role = "param", cleave.name = "k"},
                  %v: !cleave.tensor<f32 [b=2, t=6, h=4, e=7]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32> {
    %y, %l = cleave.attention %q, %k, %v {query_dim = "s", key_dim = "t", depth_dim = "d", value_dim = "e", causal = true, scale = 1.0 : f64, rate = 0.0 : f64, path = "a", site = 1 : i64}
        : (!cleave.tensor<f32 [b=2, s=6, h=4, g=3, d=8]>, !cleave.tensor<f32 [b=2, t=6, h=4, d=8]>, !cleave.tensor<f32 [b=2, t=6, h=4, e=7]>) -> (!cleave.tensor<f32 [b=2, s=6, h=4, g=3, e=7]>, !cleave.tensor<f32 [b=2, s=6, h=4, g=3]>)
    %s = cleave.reduce sum %y over ["b", "s", "h", "g", "e"] : !cleave.tensor<f32 [b=2, s=6, h=4, g=3, e=7]> -> !cleave.tensor<f32>
    return %s : !cleave.tensor<f32>
  }
}
