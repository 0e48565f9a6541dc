// Products read bf16; the rest computes in f32 and what it stores is bf16. Params and their gradients stay f32.
// RUN: cleave-opt %s -split-input-file --cleave-lower-precision --cse | FileCheck %s

module attributes {cleave.precision = bf16, cleave.reduce = f32} {

// A bias is added to the product before it is rounded; GELU reads what is stored; the residual
// connection is added in f32. The weight is read in the layer, the bias is read as it is.
// CHECK-LABEL: func @loss
// CHECK: %[[FIRST:.*]] = cleave.cast %{{.*}} : <f32 [batch=2, width=4]> -> <bf16 [batch=2, width=4]>
// CHECK: %[[LAST:.*]] = cleave.repeat layers = 3 %{{.*}} carry(%[[X:.*]] = %[[FIRST]] : !cleave.tensor<bf16 [batch=2, width=4]>) slices(%[[W:.*]] = %{{.*}} : !cleave.tensor<f32 [layers=3, width=4, out=5]>
// CHECK-NEXT: %[[READ:.*]] = cleave.cast %[[W]] wide_gradient : <f32 [width=4, out=5]> -> <bf16 [width=4, out=5]>
// CHECK-NEXT: %[[PRODUCT:.*]] = cleave.contract %[[X]], %[[READ]] : {{.*}} -> !cleave.tensor<f32 [batch=2, out=5]>
// CHECK-NEXT: %[[SUM:.*]] = cleave.add %[[PRODUCT]], %{{.*}} : {{.*}} -> !cleave.tensor<f32 [batch=2, out=5]>
// CHECK-NEXT: %[[STORED:.*]] = cleave.cast %[[SUM]] : {{.*}} -> <bf16 [batch=2, out=5]>
// CHECK-NEXT: %[[FULL:.*]] = cleave.cast %[[STORED]] : {{.*}} -> <f32 [batch=2, out=5]>
// CHECK-NEXT: %[[GELU:.*]] = cleave.gelu %[[FULL]]
// CHECK-NEXT: %[[H:.*]] = cleave.cast %[[GELU]]
// CHECK: %[[BACK:.*]] = cleave.contract %[[H]], %{{.*}} -> !cleave.tensor<f32 [batch=2, width=4]>
// CHECK-NEXT: %[[XFULL:.*]] = cleave.cast %[[X]]
// CHECK-NEXT: %[[RESIDUAL:.*]] = cleave.add %[[BACK]], %[[XFULL]] : {{.*}} -> !cleave.tensor<f32
// CHECK-NEXT: %[[NEXT:.*]] = cleave.cast %[[RESIDUAL]]
// CHECK-NEXT: cleave.yield %[[NEXT]]
// A square of what is stored is summed in f32; a scalar is not rounded.
// CHECK: %[[OUT:.*]] = cleave.cast %[[LAST]]
// CHECK-NEXT: %[[SQUARE:.*]] = cleave.mul %[[OUT]], %[[OUT]]
// CHECK-NEXT: %[[TOTAL:.*]] = cleave.reduce sum %[[SQUARE]]
// CHECK-NEXT: return %[[TOTAL]] : !cleave.tensor<f32>

func.func @loss(%w: !cleave.tensor<f32 [layers=3, width=4, out=5]> {cleave.role = "param", cleave.name = "w", cleave.stacked = 1 : i64},
                %v: !cleave.tensor<f32 [layers=3, out=5, width=4]> {cleave.role = "param", cleave.name = "v", cleave.stacked = 1 : i64},
                %b: !cleave.tensor<f32 [out=5]> {cleave.role = "param", cleave.name = "b"},
                %x: !cleave.tensor<f32 [batch=2, width=4]> {cleave.role = "input"}) -> !cleave.tensor<f32> {
  %y = cleave.repeat layers = 3 %i carry(%h = %x : !cleave.tensor<f32 [batch=2, width=4]>) slices(%s = %w : !cleave.tensor<f32 [layers=3, width=4, out=5]> -> !cleave.tensor<f32 [width=4, out=5]>, %t = %v : !cleave.tensor<f32 [layers=3, out=5, width=4]> -> !cleave.tensor<f32 [out=5, width=4]>) -> !cleave.tensor<f32 [batch=2, width=4]> {
    %0 = cleave.contract %h, %s : (!cleave.tensor<f32 [batch=2, width=4]>, !cleave.tensor<f32 [width=4, out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
    %1 = cleave.add %0, %b : (!cleave.tensor<f32 [batch=2, out=5]>, !cleave.tensor<f32 [out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
    %2 = cleave.gelu %1 tanh = true : (!cleave.tensor<f32 [batch=2, out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
    %3 = cleave.contract %2, %t : (!cleave.tensor<f32 [batch=2, out=5]>, !cleave.tensor<f32 [out=5, width=4]>) -> !cleave.tensor<f32 [batch=2, width=4]>
    %4 = cleave.add %3, %h : (!cleave.tensor<f32 [batch=2, width=4]>, !cleave.tensor<f32 [batch=2, width=4]>) -> !cleave.tensor<f32 [batch=2, width=4]>
    cleave.yield %4 : !cleave.tensor<f32 [batch=2, width=4]>
  }
  %sq = cleave.mul %y, %y : (!cleave.tensor<f32 [batch=2, width=4]>, !cleave.tensor<f32 [batch=2, width=4]>) -> !cleave.tensor<f32 [batch=2, width=4]>
  %l = cleave.reduce sum %sq over ["batch", "width"] : !cleave.tensor<f32 [batch=2, width=4]> -> !cleave.tensor<f32>
  return %l : !cleave.tensor<f32>
}
}

// -----

module attributes {cleave.precision = f16, cleave.reduce = f32} {

// Means, and what is computed of params alone, stay f32; so does what is returned, and what depends on no param.
// CHECK-LABEL: func @kept
// CHECK-NOT: f16
// CHECK: %[[X:.*]] = cleave.mul %{{.*}}, %{{.*}} : {{.*}} -> !cleave.tensor<f32 [batch=2, width=4]>
// CHECK: %[[SUM:.*]] = cleave.reduce sum %{{.*}} -> <f32 [batch=2]>
// CHECK: %[[MEAN:.*]] = cleave.mul %[[SUM]], %{{.*}} -> !cleave.tensor<f32 [batch=2]>
// CHECK: cleave.exp %[[MEAN]]
// CHECK: cleave.mul %[[MEAN]], %{{.*}} -> !cleave.tensor<f32 [batch=2]>
func.func @kept(%p: !cleave.tensor<f32 [width=4]> {cleave.role = "param", cleave.name = "p"},
                %x: !cleave.tensor<f32 [batch=2, width=4]> {cleave.role = "input"}) -> (!cleave.tensor<f32 [batch=2]>, !cleave.tensor<f32 [batch=2, width=4]>) {
  %quarter = cleave.constant 0.25 : f32 : !cleave.tensor<f32>
  %0 = cleave.mul %x, %x : (!cleave.tensor<f32 [batch=2, width=4]>, !cleave.tensor<f32 [batch=2, width=4]>) -> !cleave.tensor<f32 [batch=2, width=4]>
  %1 = cleave.exp %0 : !cleave.tensor<f32 [batch=2, width=4]> -> !cleave.tensor<f32 [batch=2, width=4]>
  %q = cleave.mul %p, %p : (!cleave.tensor<f32 [width=4]>, !cleave.tensor<f32 [width=4]>) -> !cleave.tensor<f32 [width=4]>
  %r = cleave.exp %q : !cleave.tensor<f32 [width=4]> -> !cleave.tensor<f32 [width=4]>
  %2 = cleave.add %1, %r : (!cleave.tensor<f32 [batch=2, width=4]>, !cleave.tensor<f32 [width=4]>) -> !cleave.tensor<f32 [batch=2, width=4]>
  %3 = cleave.reduce sum %2 over ["width"] : !cleave.tensor<f32 [batch=2, width=4]> -> !cleave.tensor<f32 [batch=2]>
  %4 = cleave.mul %3, %quarter : (!cleave.tensor<f32 [batch=2]>, !cleave.tensor<f32>) -> !cleave.tensor<f32 [batch=2]>
  %5 = cleave.exp %4 : !cleave.tensor<f32 [batch=2]> -> !cleave.tensor<f32 [batch=2]>
  %6 = cleave.mul %4, %5 : (!cleave.tensor<f32 [batch=2]>, !cleave.tensor<f32 [batch=2]>) -> !cleave.tensor<f32 [batch=2]>
  return %6, %1 : !cleave.tensor<f32 [batch=2]>, !cleave.tensor<f32 [batch=2, width=4]>
}
}

// -----

module attributes {cleave.precision = bf16, cleave.reduce = bf16} {

// What a product leaves on each rank is rounded first.
// CHECK-LABEL: func @parts
// CHECK: %[[PRODUCT:.*]] = cleave.contract
// CHECK-NEXT: %[[PART:.*]] = cleave.cast %[[PRODUCT]] partial : {{.*}} -> <bf16
// CHECK-NEXT: %[[WHOLE:.*]] = cleave.cast %[[PART]] : {{.*}} -> <f32
// CHECK-NEXT: cleave.add %[[WHOLE]], %{{.*}}
func.func @parts(%w: !cleave.tensor<f32 [width=4, out=5]> {cleave.role = "param", cleave.name = "w"},
                 %b: !cleave.tensor<f32 [out=5]> {cleave.role = "param", cleave.name = "b"},
                 %x: !cleave.tensor<f32 [batch=2, width=4]> {cleave.role = "input"}) -> !cleave.tensor<f32> {
  %0 = cleave.contract %x, %w : (!cleave.tensor<f32 [batch=2, width=4]>, !cleave.tensor<f32 [width=4, out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
  %1 = cleave.add %0, %b : (!cleave.tensor<f32 [batch=2, out=5]>, !cleave.tensor<f32 [out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
  %2 = cleave.mul %1, %1 : (!cleave.tensor<f32 [batch=2, out=5]>, !cleave.tensor<f32 [batch=2, out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
  %3 = cleave.reduce sum %2 over ["batch", "out"] : !cleave.tensor<f32 [batch=2, out=5]> -> !cleave.tensor<f32>
  return %3 : !cleave.tensor<f32>
}
}
