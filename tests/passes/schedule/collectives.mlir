// RUN: cleave-opt --cleave-print-schedule --split-input-file %s | FileCheck %s
// RUN: cleave-opt --cleave-expand-shard-slices --split-input-file %s | FileCheck %s --check-prefix=SLICE

module attributes {cleave.mesh = #cleave.mesh<dp=2, tp=4>} {
// Uneven: 5 over 4 ranks are blocks of 2; the bytes are the whole tensor's, with padding.
// CHECK-LABEL: program @gather
// CHECK: site 0: all_gather over tp, forward, 1 times, payload 96, ring 72 bytes
// CHECK: all_gather f32 [3, 2 -> 5, 1] over {tp} b0 -> b1 site 0
func.func @gather(%x: !cleave.tensor<f32 [a=3, b=2]>) -> !cleave.tensor<f32 [a=3, b=5]> {
  %0 = cleave.all_gather %x along "b" over [#cleave.axis<tp>] : !cleave.tensor<f32 [a=3, b=2]> -> !cleave.tensor<f32 [a=3, b=5]>
  return %0 : !cleave.tensor<f32 [a=3, b=5]>
}

// A part of an axis, and two axes.
// CHECK-LABEL: program @scatter
// CHECK: site 0: reduce_scatter over tp:(1)2, forward, 1 times, payload 64, ring 32 bytes
// CHECK: site 1: reduce_scatter over dp, tp, optimizer, 1 times, payload 64, ring 56 bytes
// CHECK: reduce_scatter sum f64 [1, 4 -> 2, 2] over {tp:(1)2} b0 -> b2 site 0
// CHECK: reduce_scatter max f64 [1, 8 -> 1, 1] over {dp, tp} b1 -> b3 site 1
func.func @scatter(%x: !cleave.tensor<f64 [a=4, b=2]>, %y: !cleave.tensor<f64 [a=8]>) -> (!cleave.tensor<f64 [a=2, b=2]>, !cleave.tensor<f64 [a=1]>) {
  %0 = cleave.reduce_scatter sum %x along "a" over [#cleave.axis<tp:(1)2>] : !cleave.tensor<f64 [a=4, b=2]> -> !cleave.tensor<f64 [a=2, b=2]>
  %1 = cleave.reduce_scatter max %y along "a" over [#cleave.axis<dp>, #cleave.axis<tp>] {cleave.phase = "optimizer"} : !cleave.tensor<f64 [a=8]> -> !cleave.tensor<f64 [a=1]>
  return %0, %1 : !cleave.tensor<f64 [a=2, b=2]>, !cleave.tensor<f64 [a=1]>
}

// CHECK-LABEL: program @exchange
// CHECK: site 0: all_to_all over tp, forward, 1 times, payload 384, ring 288 bytes
// CHECK: all_to_all f32 [2, 2 -> 7, 1, 8 -> 2, 3] split dim first over {tp} b0 -> b1
func.func @exchange(%x: !cleave.tensor<f32 [a=2, h=8, s=2, d=3]>) -> !cleave.tensor<f32 [a=2, h=2, s=7, d=3]> {
  %0 = cleave.all_to_all %x from "s" to "h" over [#cleave.axis<tp>] : !cleave.tensor<f32 [a=2, h=8, s=2, d=3]> -> !cleave.tensor<f32 [a=2, h=2, s=7, d=3]>
  return %0 : !cleave.tensor<f32 [a=2, h=2, s=7, d=3]>
}

// An argument is not reduced in place, nor a value that is read again.
// CHECK-LABEL: program @keep
// CHECK: all_reduce sum f32 [1, 4 -> 4, 1] over {tp} b0 -> [[R:b[0-9]+]] site 0
// CHECK: kernel rows_0([[R]], [[E:b[0-9]+]])
// CHECK: all_reduce sum f32 [1, 4 -> 4, 1] over {tp} [[E]] -> b1
// CHECK: kernel rows_1([[E]], b2)
func.func @keep(%x: !cleave.tensor<f32 [a=4]>) -> (!cleave.tensor<f32 [a=4]>, !cleave.tensor<f32 [a=4]>) {
  %0 = cleave.all_reduce sum %x over [#cleave.axis<tp>] : !cleave.tensor<f32 [a=4]> -> !cleave.tensor<f32 [a=4]>
  %1 = cleave.exp %0 : !cleave.tensor<f32 [a=4]> -> !cleave.tensor<f32 [a=4]>
  %2 = cleave.all_reduce sum %1 over [#cleave.axis<tp>] : !cleave.tensor<f32 [a=4]> -> !cleave.tensor<f32 [a=4]>
  %3 = cleave.neg %1 : !cleave.tensor<f32 [a=4]> -> !cleave.tensor<f32 [a=4]>
  return %2, %3 : !cleave.tensor<f32 [a=4]>, !cleave.tensor<f32 [a=4]>
}

// A rank's shard of a value that it has whole: the rows from its offset on.
// CHECK-LABEL: program @slice
// CHECK: kernel rows_{{[0-9]+}}([[I:b[0-9]+]]) scalars(offset{tp}*2)
// CHECK: kernel gather_{{[0-9]+}}(b0, [[I]], b1)
// SLICE-LABEL: func.func @slice
// SLICE: %[[O:.*]] = cleave.shard_offset [#cleave.axis<tp>] block 2
// SLICE: %[[I:.*]] = cleave.iota "a" offset(%[[O]]) : <i32 [a=2]>
// SLICE: cleave.gather %arg0["a" = %[[I]]] : {{.*}} -> !cleave.tensor<f32 [a=2, b=3]>
func.func @slice(%x: !cleave.tensor<f32 [a=7, b=3]>) -> !cleave.tensor<f32 [a=2, b=3]> {
  %0 = cleave.shard_slice %x along "a" over [#cleave.axis<tp>] : !cleave.tensor<f32 [a=7, b=3]> -> !cleave.tensor<f32 [a=2, b=3]>
  return %0 : !cleave.tensor<f32 [a=2, b=3]>
}
}
