// RUN: cleave-opt %s --cleave-differentiate=function=loss -cse | FileCheck %s

// A value with a residual connection around a block that uses it twice: the block's gradients meet
// first, then the connection's. Split over m, the block's are partial sums, which are reduced
// once so.
// CHECK-LABEL: func.func @loss_grads
// CHECK: %[[Y:.*]] = cleave.mul {{.*}} {cleave.phase = "backward"}
// CHECK-NEXT: %[[RESIDUAL:.*]] = cleave.add %[[Y]], %[[Y]] {cleave.phase = "backward"}
// CHECK: %[[Q:.*]] = cleave.contract %{{.*}}, %arg2 {cleave.phase = "backward"}
// CHECK: %[[P:.*]] = cleave.contract %{{.*}}, %arg1 {cleave.phase = "backward"}
// CHECK: %[[BLOCK:.*]] = cleave.add %[[Q]], %[[P]] {cleave.phase = "backward"}
// CHECK: %[[ALL:.*]] = cleave.add %[[RESIDUAL]], %[[BLOCK]] {cleave.phase = "backward"}
// CHECK: return %{{.*}}, %[[ALL]],
func.func @loss(%x: !cleave.tensor<f32 [b=2, n=4]> {cleave.role = "param", cleave.name = "x"},
                %v: !cleave.tensor<f32 [n=4, m=5]> {cleave.role = "param", cleave.name = "v"},
                %w: !cleave.tensor<f32 [n=4, m=5]> {cleave.role = "param", cleave.name = "w"}) -> !cleave.tensor<f32> {
  %p = cleave.contract %x, %v : (!cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [n=4, m=5]>) -> !cleave.tensor<f32 [b=2, m=5]>
  %q = cleave.contract %x, %w : (!cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [n=4, m=5]>) -> !cleave.tensor<f32 [b=2, m=5]>
  %a = cleave.mul %p, %q : (!cleave.tensor<f32 [b=2, m=5]>, !cleave.tensor<f32 [b=2, m=5]>) -> !cleave.tensor<f32 [b=2, m=5]>
  %s = cleave.reduce sum %a over ["m"] : !cleave.tensor<f32 [b=2, m=5]> -> !cleave.tensor<f32 [b=2]>
  %y = cleave.add %x, %s : (!cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [b=2]>) -> !cleave.tensor<f32 [b=2, n=4]>
  %z = cleave.mul %y, %y : (!cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [b=2, n=4]>) -> !cleave.tensor<f32 [b=2, n=4]>
  %l = cleave.reduce sum %z over ["b", "n"] : !cleave.tensor<f32 [b=2, n=4]> -> !cleave.tensor<f32>
  return %l : !cleave.tensor<f32>
}
