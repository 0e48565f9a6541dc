// What passes refuse, each with an error at the place. (cleave-fuse, cleave-prepare-contracts and cleave-expand-shard-slices refuse
// nothing: what they cannot improve they leave as it is.)
// RUN: split-file %s %t
// RUN: not cleave-opt %t/collective.mlir --cleave-insert-collectives 2>&1 | FileCheck %s --check-prefix=COLLECTIVE
// RUN: not cleave-opt %t/axis.mlir --cleave-expand-composites 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: not cleave-opt %t/axis.mlir --cleave-mask-padding 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: not cleave-opt %t/axis.mlir --cleave-partition 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: not cleave-opt %t/bf16.mlir --cleave-print-schedule 2>&1 | FileCheck %s --check-prefix=PRODUCT
// RUN: not cleave-opt %t/attention.mlir 2>&1 | FileCheck %s --check-prefix=ATTENTION
// RUN: not cleave-opt %t/numbers.mlir 2>&1 | FileCheck %s --check-prefix=NUMBERS

//--- collective.mlir
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<w by tp>]} {
  func.func @f(%x: !cleave.tensor<f32 [b=2, w=8]>) -> !cleave.tensor<f32 [b=2, w=8]> {
    // COLLECTIVE: collective.mlir:4:10: error: 'cleave.all_reduce' op doesn't say how it may be split
    %r = cleave.all_reduce sum %x over [#cleave.axis<tp>] : !cleave.tensor<f32 [b=2, w=8]> -> !cleave.tensor<f32 [b=2, w=8]>
    return %r : !cleave.tensor<f32 [b=2, w=8]>
  }
}

//--- axis.mlir
// AXIS: axis.mlir:2:1: error: the plan splits by 'pp', but the mesh #cleave.mesh<tp=2> has no such axis
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<w by pp>]} {
  func.func @f(%x: !cleave.tensor<f32 [b=2, w=8]>) -> !cleave.tensor<f32 [b=2, w=8]> {
    return %x : !cleave.tensor<f32 [b=2, w=8]>
  }
}

//--- bf16.mlir
func.func @f(%x: !cleave.tensor<bf16 [b=2, w=8]>, %y: !cleave.tensor<bf16 [w=8, f=4]>) -> !cleave.tensor<bf16 [b=2, f=4]> {
  // PRODUCT: bf16.mlir:3:8: error: 'cleave.contract' op of 'bf16' gives 'bf16'; cleave-prepare-contracts, run before fusion, makes it 'f32' and a cast
  %h = cleave.contract %x, %y : (!cleave.tensor<bf16 [b=2, w=8]>, !cleave.tensor<bf16 [w=8, f=4]>) -> !cleave.tensor<bf16 [b=2, f=4]>
  return %h : !cleave.tensor<bf16 [b=2, f=4]>
}

//--- attention.mlir
func.func @f(%q: !cleave.tensor<f32 [s=3, d=2]>, %k: !cleave.tensor<f32 [t=3, d=2]>, %v: !cleave.tensor<f32 [t=3, h=2, e=2]>)
    -> (!cleave.tensor<f32 [s=3, e=2]>, !cleave.tensor<f32 [s=3]>) {
  // ATTENTION: attention.mlir:4:12: error: 'cleave.attention' op the value's dims are not the key's with 'e' in place of 'd'
  %y, %l = cleave.attention %q, %k, %v {query_dim = "s", key_dim = "t", depth_dim = "d", value_dim = "e", causal = true, scale = 1.0 : f64, rate = 0.0 : f64, path = "a", site = 1 : i64}
      : (!cleave.tensor<f32 [s=3, d=2]>, !cleave.tensor<f32 [t=3, d=2]>, !cleave.tensor<f32 [t=3, h=2, e=2]>)
      -> (!cleave.tensor<f32 [s=3, e=2]>, !cleave.tensor<f32 [s=3]>)
  return %y, %l : !cleave.tensor<f32 [s=3, e=2]>, !cleave.tensor<f32 [s=3]>
}

//--- numbers.mlir
func.func @f(%q: !cleave.tensor<f32 [s=3, d=2]>, %seed: !cleave.tensor<i64>, %layer: !cleave.tensor<i32>, %k: !cleave.tensor<f32 [t=3, d=2]>) {
  // NUMBERS: numbers.mlir:3:12: error: 'cleave.attention' op with dropout needs the global size of each dim of the scores: 2, not 0
  %y, %l = cleave.attention %q, %k, %k random(%seed, %seed, %layer) {query_dim = "s", key_dim = "t", depth_dim = "d", value_dim = "d", causal = true, scale = 1.0 : f64, rate = 0.5 : f64, path = "a", site = 1 : i64}
      : (!cleave.tensor<f32 [s=3, d=2]>, !cleave.tensor<f32 [t=3, d=2]>, !cleave.tensor<f32 [t=3, d=2]>, !cleave.tensor<i64>, !cleave.tensor<i64>, !cleave.tensor<i32>)
      -> (!cleave.tensor<f32 [s=3, d=2]>, !cleave.tensor<f32 [s=3]>)
  return
}
