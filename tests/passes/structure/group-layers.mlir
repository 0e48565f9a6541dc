// RUN: cleave-opt %s --cleave-group-layers=size=2 | FileCheck %s
// RUN: cleave-opt %s --cleave-group-layers=size=2 --cleave-differentiate | FileCheck %s --check-prefix=GRAD
// RUN: not cleave-opt %s --cleave-group-layers=size=4 2>&1 | FileCheck %s --check-prefix=UNEVEN
// RUN: not cleave-opt %s --cleave-group-layers=size=0 2>&1 | FileCheck %s --check-prefix=NONE
// UNEVEN: recompute every(4): groups of 4 do not make layers=6; possible are 1, 2, 3, 6
// NONE: there are no groups of 0 layers

// Params are seen as groups of layers; a layer's number is that in the whole stack.
// CHECK-LABEL: @loss
// CHECK-DAG: %[[W:.*]] = cleave.split_dim %{{.*}} : <f32 [layers=6, n=4]> -> <f32 [layers_groups=3, layers=2, n=4]>
// CHECK-DAG: %[[I:.*]] = cleave.iota "layers" : <i32 [layers=6]>
// CHECK-DAG: %[[N:.*]] = cleave.split_dim %[[I]] : <i32 [layers=6]> -> <i32 [layers_groups=3, layers=2]>
// CHECK: %[[R:.*]]:2 = cleave.repeat layers_groups = 3
// CHECK-SAME: slices(%[[WG:.*]] = %[[W]] {{.*}}%[[NG:.*]] = %[[N]]
// CHECK: cleave.repeat layers = 2
// CHECK-SAME: slices(%[[WI:.*]] = %[[WG]] {{.*}}%[[NI:.*]] = %[[NG]]
// CHECK: cleave.random "loss.h" {{.*}} layer %[[NI]]
// CHECK: cleave.join_dims %[[R]]#1 : <f32 [layers_groups=3, layers=2, n=4]> -> <f32 [layers=6, n=4]>

// What enters a group is saved; in the backward pass its layers run forward, then backward.
// GRAD-LABEL: @loss_grads
// GRAD: cleave.repeat layers_groups = 3
// GRAD: cleave.repeat layers_groups = 3 reverse
// GRAD: cleave.repeat layers = 2
// GRAD: cleave.repeat layers = 2 reverse
// GRAD: cleave.join_dims {{.*}} -> <f32 [layers=6, n=4]>
func.func @loss(%x: !cleave.tensor<f32 [n=4]> {cleave.role = "input"}, %w: !cleave.tensor<f32 [layers=6, n=4]> {cleave.role = "param", cleave.name = "w"},
                %seed: !cleave.tensor<i64> {cleave.role = "scalar", cleave.name = "seed"}, %step: !cleave.tensor<i64> {cleave.role = "scalar", cleave.name = "step"})
    -> (!cleave.tensor<f32>, !cleave.tensor<f32 [layers=6, n=4]>) {
  %r:2 = cleave.repeat layers = 6 %i carry(%h = %x : !cleave.tensor<f32 [n=4]>)
      slices(%wi = %w : !cleave.tensor<f32 [layers=6, n=4]> -> !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [layers=6, n=4]> {
    %u = cleave.random "loss.h" seed %seed step %step layer %i {site = 1 : i64, global_sizes = array<i64: 4>} : (!cleave.tensor<i64>, !cleave.tensor<i64>, !cleave.tensor<i32>) -> !cleave.tensor<f32 [n=4]>
    %p = cleave.mul %h, %wi : (!cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [n=4]>
    %t = cleave.tanh %p : <f32 [n=4]> -> <f32 [n=4]>
    %d = cleave.mul %t, %u : (!cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [n=4]>
    cleave.yield %d, %p : !cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [n=4]>
  }
  %l = cleave.reduce sum %r#0 over ["n"] : <f32 [n=4]> -> <f32>
  return %l, %r#1 : !cleave.tensor<f32>, !cleave.tensor<f32 [layers=6, n=4]>
}
