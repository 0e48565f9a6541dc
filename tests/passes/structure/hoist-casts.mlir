// A param that layers cast is cast once ahead of them all, and is no longer sliced itself.
// RUN: cleave-opt %s --cleave-hoist-param-casts | FileCheck %s

// CHECK-LABEL: func @f
// CHECK-SAME: %[[W:[a-z0-9]*]]: {{.*}}, %[[X:[a-z0-9]*]]: {{.*}}, %[[D:[a-z0-9]*]]:
// CHECK-NEXT: %[[COPY:.*]] = cleave.cast %[[W]] wide_gradient : <f32 [layers=3, k=4, n=4]> -> <bf16 [layers=3, k=4, n=4]>
// CHECK-NEXT: %[[Y:.*]] = cleave.repeat layers = 3 %{{.*}} slices(%{{[^ ]*}} = %[[D]] {{.*}}, %[[S:.*]] = %[[COPY]] : !cleave.tensor<bf16 [layers=3, k=4, n=4]> -> !cleave.tensor<bf16 [k=4, n=4]>)
// What is no param is cast where it was.
// CHECK-NEXT: %[[OTHER:.*]] = cleave.cast
// CHECK-NEXT: cleave.contract %[[OTHER]], %[[S]]
// CHECK-NEXT: cleave.contract %[[OTHER]], %[[S]]
// CHECK: cleave.repeat layers = 3 reverse %{{.*}} slices(%[[B:[^ ]*]] = %[[COPY]] :
// CHECK-NEXT: cleave.contract %{{.*}}, %[[B]]
// CHECK-NOT: cleave.cast
func.func @f(%w: !cleave.tensor<f32 [layers=3, k=4, n=4]> {cleave.role = "param", cleave.name = "w"},
             %x: !cleave.tensor<bf16 [b=2, k=4]>, %d: !cleave.tensor<f32 [layers=3, b=2, k=4]>)
    -> (!cleave.tensor<f32 [layers=3, b=2, n=4]>, !cleave.tensor<f32 [layers=3, b=2, n=4]>, !cleave.tensor<f32 [layers=3, b=2, n=4]>) {
  %y:2 = cleave.repeat layers = 3 %i slices(%s = %w : !cleave.tensor<f32 [layers=3, k=4, n=4]> -> !cleave.tensor<f32 [k=4, n=4]>, %e = %d : !cleave.tensor<f32 [layers=3, b=2, k=4]> -> !cleave.tensor<f32 [b=2, k=4]>) -> !cleave.tensor<f32 [layers=3, b=2, n=4]>, !cleave.tensor<f32 [layers=3, b=2, n=4]> {
    %c = cleave.cast %s wide_gradient : !cleave.tensor<f32 [k=4, n=4]> -> !cleave.tensor<bf16 [k=4, n=4]>
    %c2 = cleave.cast %s wide_gradient : !cleave.tensor<f32 [k=4, n=4]> -> !cleave.tensor<bf16 [k=4, n=4]>
    %o = cleave.cast %e : !cleave.tensor<f32 [b=2, k=4]> -> !cleave.tensor<bf16 [b=2, k=4]>
    %0 = cleave.contract %o, %c : (!cleave.tensor<bf16 [b=2, k=4]>, !cleave.tensor<bf16 [k=4, n=4]>) -> !cleave.tensor<f32 [b=2, n=4]>
    %1 = cleave.contract %o, %c2 : (!cleave.tensor<bf16 [b=2, k=4]>, !cleave.tensor<bf16 [k=4, n=4]>) -> !cleave.tensor<f32 [b=2, n=4]>
    cleave.yield %0, %1 : !cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [b=2, n=4]>
  }
  %z = cleave.repeat layers = 3 reverse %i slices(%s = %w : !cleave.tensor<f32 [layers=3, k=4, n=4]> -> !cleave.tensor<f32 [k=4, n=4]>) -> !cleave.tensor<f32 [layers=3, b=2, n=4]> {
    %c = cleave.cast %s wide_gradient : !cleave.tensor<f32 [k=4, n=4]> -> !cleave.tensor<bf16 [k=4, n=4]>
    %0 = cleave.contract %x, %c : (!cleave.tensor<bf16 [b=2, k=4]>, !cleave.tensor<bf16 [k=4, n=4]>) -> !cleave.tensor<f32 [b=2, n=4]>
    cleave.yield %0 : !cleave.tensor<f32 [b=2, n=4]>
  }
  return %y#0, %y#1, %z : !cleave.tensor<f32 [layers=3, b=2, n=4]>, !cleave.tensor<f32 [layers=3, b=2, n=4]>, !cleave.tensor<f32 [layers=3, b=2, n=4]>
}
