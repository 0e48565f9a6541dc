// RUN: cleave-opt %s --cleave-differentiate=recompute=none | FileCheck %s --check-prefix=NONE
// RUN: cleave-opt %s --cleave-differentiate | FileCheck %s --check-prefix=SELECTIVE
// RUN: cleave-opt %s --cleave-differentiate=recompute=full | FileCheck %s --check-prefix=FULL
// RUN: not cleave-opt %s --cleave-differentiate=recompute=selectiv 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// UNKNOWN: there is no recompute policy 'selectiv'; did you mean 'selective'?; there are none, selective and full

// A layer is h + random * tanh(h w).
// All that the backward pass reads comes from the forward pass.
// NONE-LABEL: @loss_grads
// NONE: cleave.repeat layers = 3 reverse
// NONE-NOT: cleave.tanh
// NONE-NOT: cleave.random
// NONE: return
// Of elementwise values the one behind the product is saved in its place; the others are made again.
// SELECTIVE-LABEL: @loss_grads
// SELECTIVE: %[[F:.*]]:3 = cleave.repeat layers = 3 %{{.*}} carry
// SELECTIVE: cleave.repeat layers = 3 reverse %{{.*}} slices({{.*}}%[[F]]#1 {{.*}}%[[F]]#2
// SELECTIVE-NOT: cleave.tanh
// SELECTIVE: cleave.random {{.*}}cleave.phase = "backward"
// SELECTIVE-NOT: cleave.tanh
// SELECTIVE: return
// The layer's input alone is saved: the product is made again too.
// FULL-LABEL: @loss_grads
// FULL: %[[F:.*]]:2 = cleave.repeat layers = 3 %{{.*}} carry
// FULL: cleave.repeat layers = 3 reverse
// FULL: cleave.contract {{.*}}cleave.phase = "backward"
// FULL: cleave.tanh
// FULL: cleave.contract
func.func @loss(%x: !cleave.tensor<f32 [b=2, n=4]> {cleave.role = "input"}, %w: !cleave.tensor<f32 [layers=3, n=4, m=4]> {cleave.role = "param", cleave.name = "w"},
                %seed: !cleave.tensor<i64> {cleave.role = "scalar", cleave.name = "seed"}, %step: !cleave.tensor<i64> {cleave.role = "scalar", cleave.name = "step"})
    -> !cleave.tensor<f32> {
  %r = cleave.repeat layers = 3 %i carry(%h = %x : !cleave.tensor<f32 [b=2, n=4]>)
      slices(%wi = %w : !cleave.tensor<f32 [layers=3, n=4, m=4]> -> !cleave.tensor<f32 [n=4, m=4]>) -> !cleave.tensor<f32 [b=2, n=4]> {
    %p = cleave.contract %h, %wi : (!cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [n=4, m=4]>) -> !cleave.tensor<f32 [b=2, m=4]>
    %t = cleave.tanh %p : <f32 [b=2, m=4]> -> <f32 [b=2, m=4]>
    %u = cleave.random "loss.h" seed %seed step %step layer %i {site = 1 : i64, global_sizes = array<i64: 2, 4>} : (!cleave.tensor<i64>, !cleave.tensor<i64>, !cleave.tensor<i32>) -> !cleave.tensor<f32 [b=2, m=4]>
    %d = cleave.mul %t, %u : (!cleave.tensor<f32 [b=2, m=4]>, !cleave.tensor<f32 [b=2, m=4]>) -> !cleave.tensor<f32 [b=2, m=4]>
    %n = cleave.rename %d : <f32 [b=2, m=4]> -> <f32 [b=2, n=4]>
    %o = cleave.add %h, %n : (!cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [b=2, n=4]>) -> !cleave.tensor<f32 [b=2, n=4]>
    cleave.yield %o : !cleave.tensor<f32 [b=2, n=4]>
  }
  %l = cleave.reduce sum %r over ["b", "n"] : <f32 [b=2, n=4]> -> <f32>
  return %l : !cleave.tensor<f32>
}
