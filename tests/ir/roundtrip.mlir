// Print -> parse -> print is a fixed point.
// RUN: cleave-opt %s | FileCheck %s
// RUN: cleave-opt %s -o %t.1 && cleave-opt %t.1 -o %t.2 && diff %t.1 %t.2

// CHECK: module attributes {cleave.mesh = #cleave.mesh<dp=2, tp=4>
// CHECK-SAME: #cleave.shard_rule<batch by dp>, #cleave.shard_rule<kv_heads * group, ffn else seq by tp>
module attributes {cleave.mesh = #cleave.mesh<dp=2, tp=4>,
                   cleave.plan = [#cleave.shard_rule<batch by dp>, #cleave.shard_rule<kv_heads * group, ffn else seq by tp>]} {
  // CHECK-LABEL: @types
  // CHECK-SAME: !cleave.tensor<f32 [batch=8 {dp}, kv_heads=2 {tp:(1)2}] sum {tp:(2)2}>
  // CHECK-SAME: !cleave.tensor<i32>
  // CHECK-SAME: !cleave.tensor<f64 ["odd name"=3] replicated>
  func.func @types(%a: !cleave.tensor<f32 [batch=8 {dp}, kv_heads=2 {tp:(1)2}] sum {tp:(2)2}>, %b: !cleave.tensor<i32>,
                   %c: !cleave.tensor<f64 ["odd name"=3] replicated>) { return }

  // CHECK-LABEL: @loop
  // CHECK: cleave.repeat layers = 3 reverse %{{.*}} carry(%{{.*}} = %{{.*}} : !cleave.tensor<f32 [n=4]>) slices(%{{.*}} = %{{.*}} : !cleave.tensor<f32 [layers=3, n=4]> -> !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [layers=3, n=4]>
  func.func @loop(%x: !cleave.tensor<f32 [n=4]>, %w: !cleave.tensor<f32 [layers=3, n=4]>)
      -> (!cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [layers=3, n=4]>) {
    %r:2 = cleave.repeat layers = 3 reverse %i carry(%c = %x : !cleave.tensor<f32 [n=4]>)
        slices(%s = %w : !cleave.tensor<f32 [layers=3, n=4]> -> !cleave.tensor<f32 [n=4]>)
        -> !cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [layers=3, n=4]> {
      %m = cleave.mul %c, %s : (!cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [n=4]>
      cleave.yield %m, %c : !cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [n=4]>
    }
    return %r#0, %r#1 : !cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [layers=3, n=4]>
  }
}
