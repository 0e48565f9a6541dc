// The gradient of a weight has no stop in bf16; that of an activation is added up in f32 and then has one.
// RUN: cleave-opt %s -split-input-file --cleave-lower-precision --cse --cleave-differentiate --cse | FileCheck %s
// RUN: cleave-opt %s -split-input-file --cleave-lower-precision --cse --cleave-differentiate="recompute=none" --cse | FileCheck %s --check-prefix=NONE

module attributes {cleave.precision = bf16, cleave.reduce = f32} {

// Saved for the way back: the residual stream and what the product gave, in bf16. The bf16 of a weight never is.
// CHECK-LABEL: func @loss_grads
// CHECK: cleave.repeat layers = 3 %{{.*}} -> !cleave.tensor<bf16 [batch=2, width=4]>, !cleave.tensor<bf16 [layers=3, batch=2, width=4]>, !cleave.tensor<bf16 [layers=3, batch=2, out=5]> {
// NONE-LABEL: func @loss_grads
// NONE-NOT: bf16 [layers=3, width=4, out=5]
// NONE: cleave.repeat layers = 3 reverse
// CHECK: cleave.repeat layers = 3 reverse %{{.*}} carry(%{{[^ ]*}} = %{{[^ ]*}} : !cleave.tensor<bf16 [batch=2, width=4]>
// CHECK-SAME: -> !cleave.tensor<bf16 [batch=2, width=4]>, !cleave.tensor<f32 [out=5]>, !cleave.tensor<f32 [layers=3, width=4, out=5]>, !cleave.tensor<f32 [layers=3, out=5, width=4]>
// CHECK: %[[W:.*]] = cleave.cast %{{.*}} wide_gradient {{.*}} -> <bf16 [width=4, out=5]>
// CHECK: cleave.sub
// CHECK: %[[G:.*]] = cleave.cast %{{.*}} -> <bf16 [batch=2, out=5]>
// CHECK: %[[DX:.*]] = cleave.contract %[[G]], %[[W]] {{.*}} -> !cleave.tensor<f32 [batch=2, width=4]>
// CHECK-NEXT: %[[DW:.*]] = cleave.contract %[[G]], %{{.*}} -> !cleave.tensor<f32 [width=4, out=5]>
// CHECK: %[[BOTH:.*]] = cleave.add %{{.*}}, %[[DX]]
// CHECK-NEXT: %[[NEXT:.*]] = cleave.cast %[[BOTH]] {{.*}} -> <bf16 [batch=2, width=4]>
// CHECK: cleave.yield %[[NEXT]], %{{.*}}, %[[DW]], %{{.*}}
func.func @loss(%w: !cleave.tensor<f32 [layers=3, width=4, out=5]> {cleave.role = "param", cleave.name = "w", cleave.stacked = 1 : i64},
                %v: !cleave.tensor<f32 [layers=3, out=5, width=4]> {cleave.role = "param", cleave.name = "v", cleave.stacked = 1 : i64},
                %b: !cleave.tensor<f32 [out=5]> {cleave.role = "param", cleave.name = "b"},
                %x: !cleave.tensor<f32 [batch=2, width=4]> {cleave.role = "input"}) -> !cleave.tensor<f32> {
  %y = cleave.repeat layers = 3 %i carry(%h = %x : !cleave.tensor<f32 [batch=2, width=4]>) slices(%s = %w : !cleave.tensor<f32 [layers=3, width=4, out=5]> -> !cleave.tensor<f32 [width=4, out=5]>, %t = %v : !cleave.tensor<f32 [layers=3, out=5, width=4]> -> !cleave.tensor<f32 [out=5, width=4]>) -> !cleave.tensor<f32 [batch=2, width=4]> {
    %0 = cleave.contract %h, %s : (!cleave.tensor<f32 [batch=2, width=4]>, !cleave.tensor<f32 [width=4, out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
    %1 = cleave.add %0, %b : (!cleave.tensor<f32 [batch=2, out=5]>, !cleave.tensor<f32 [out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
    %2 = cleave.tanh %1 : !cleave.tensor<f32 [batch=2, out=5]> -> !cleave.tensor<f32 [batch=2, out=5]>
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

module attributes {cleave.precision = f16, cleave.reduce = f16} {

// The seed is the scale of the loss, an argument. Gradients of params are rounded, so that each rank's part may be.
// CHECK-LABEL: func @loss_grads
// CHECK-SAME: %[[SCALE:[^:]*]]: !cleave.tensor<f32> {cleave.name = "loss_scale", cleave.role = "scalar"}
// CHECK: cleave.broadcast %[[SCALE]]
// CHECK: %[[DW:.*]] = cleave.contract %{{.*}} -> !cleave.tensor<f32 [width=4, out=5]>
// CHECK: %[[PART:.*]] = cleave.cast %[[DW]] partial {{.*}} -> <f16 [width=4, out=5]>
// CHECK: %[[GRADIENT:.*]] = cleave.cast %[[PART]] {{.*}} -> <f32 [width=4, out=5]>
// CHECK: return %{{.*}}, %[[GRADIENT]] :
// NONE-LABEL: func @loss_grads
func.func @loss(%w: !cleave.tensor<f32 [width=4, out=5]> {cleave.role = "param", cleave.name = "w"},
                %x: !cleave.tensor<f32 [batch=2, width=4]> {cleave.role = "input"}) -> !cleave.tensor<f32> {
  %0 = cleave.contract %x, %w : (!cleave.tensor<f32 [batch=2, width=4]>, !cleave.tensor<f32 [width=4, out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
  %1 = cleave.mul %0, %0 : (!cleave.tensor<f32 [batch=2, out=5]>, !cleave.tensor<f32 [batch=2, out=5]>) -> !cleave.tensor<f32 [batch=2, out=5]>
  %2 = cleave.reduce sum %1 over ["batch", "out"] : !cleave.tensor<f32 [batch=2, out=5]> -> !cleave.tensor<f32>
  return %2 : !cleave.tensor<f32>
}
}
