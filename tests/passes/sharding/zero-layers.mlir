// ZeRO 3 over layers: a layer's params are gathered in its body, in the forward pass and again in the backward pass, and
// its gradients are scattered there.
// RUN: cleave-opt %s --cleave-expand-composites --cleave-differentiate=function=loss "--cleave-add-optimizer=function=loss_grads kind=sgd momentum=0.9" -cse --cleave-assign-shardings --cleave-insert-collectives --cleave-mask-padding --cleave-verify-shardings --cleave-verify-padding | FileCheck %s

module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.plan = [#cleave.shard_rule<b by dp>], cleave.zero = #cleave.zero<3 over dp>} {
// CHECK-LABEL: func.func @train_step
// CHECK-SAME: <f32 [layers=3, n=4 {dp}, m=5]>
// CHECK-SAME: <f32 [layers=3, m=5, n=4 {dp}]>
// CHECK-SAME: cleave.name = "sgd.momentum:w"
// CHECK: cleave.repeat layers = 3 %{{.*}} carry
// CHECK: %[[U:.*]] = cleave.all_gather %{{.*}} along "n" {{.*}} -> <f32 [n=4, m=5] replicated>
// CHECK-NEXT: cleave.contract %{{.*}}, %[[U]]
// CHECK: %[[D:.*]] = cleave.all_gather %{{.*}} along "n" {{.*}} -> <f32 [m=5, n=4] replicated>
// CHECK-NEXT: cleave.contract %{{.*}}, %[[D]]
// CHECK: cleave.yield
// CHECK: cleave.repeat layers = 3 reverse
// CHECK-DAG: cleave.all_gather %{{.*}} -> <f32 [m=5, n=4] replicated>
// CHECK-DAG: cleave.all_gather %{{.*}} -> <f32 [n=4, m=5] replicated>
// CHECK-DAG: cleave.reduce_scatter sum {{.*}} -> <f32 [m=5, n=4 {dp}]>
// CHECK-DAG: cleave.reduce_scatter sum {{.*}} -> <f32 [n=4 {dp}, m=5]>
// CHECK: cleave.yield
// CHECK-NOT: cleave.all_gather
// CHECK: return %{{.*}}<f32 [layers=3, n=4 {dp}, m=5]>
func.func @loss(%w: !cleave.tensor<f32 [layers=3, n=4, m=5]> {cleave.role = "param", cleave.name = "w", cleave.stacked = 1 : i64},
                %v: !cleave.tensor<f32 [layers=3, m=5, n=4]> {cleave.role = "param", cleave.name = "v", cleave.stacked = 1 : i64},
                %x: !cleave.tensor<f32 [b=2, n=4]> {cleave.role = "input", cleave.name = "x"}) -> !cleave.tensor<f32> {
  %r = cleave.repeat layers = 3 %i carry(%c = %x : !cleave.tensor<f32 [b=2, n=4]>)
      slices(%s = %w : !cleave.tensor<f32 [layers=3, n=4, m=5]> -> !cleave.tensor<f32 [n=4, m=5]>,
             %t = %v : !cleave.tensor<f32 [layers=3, m=5, n=4]> -> !cleave.tensor<f32 [m=5, n=4]>) -> !cleave.tensor<f32 [b=2, n=4]> {
    %u = cleave.contract %c, %s : (!cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [n=4, m=5]>) -> !cleave.tensor<f32 [b=2, m=5]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=2, m=5]> -> !cleave.tensor<f32 [b=2, m=5]>
    %d = cleave.contract %a, %t : (!cleave.tensor<f32 [b=2, m=5]>, !cleave.tensor<f32 [m=5, n=4]>) -> !cleave.tensor<f32 [b=2, n=4]>
    %y = cleave.add %c, %d : (!cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [b=2, n=4]>) -> !cleave.tensor<f32 [b=2, n=4]>
    cleave.yield %y : !cleave.tensor<f32 [b=2, n=4]>
  }
  %l = cleave.reduce sum %r over ["b", "n"] : !cleave.tensor<f32 [b=2, n=4]> -> !cleave.tensor<f32>
  return %l : !cleave.tensor<f32>
}
}
