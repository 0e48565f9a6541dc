// RUN: cleave-opt %s --cleave-expand-composites --cleave-differentiate=function=loss -cse | FileCheck %s

// A repeat gets a reverse repeat. Of the forward body only the carried value and
// the activation are stacked: tanh is the only reader of the product, so its result is kept in the product's place.
// CHECK-LABEL: func.func @loss_grads
// CHECK: %[[F:.*]]:3 = cleave.repeat layers = 3 %{{.*}} carry
// CHECK: cleave.contract
// CHECK: cleave.yield %{{.*}}, %{{.*}}, %{{.*}} : !cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [b=2, n=4]>, !cleave.tensor<f32 [b=2, m=5]>
// CHECK: %[[B:.*]]:3 = cleave.repeat layers = 3 reverse
// CHECK-NOT: cleave.tanh
// CHECK: return %{{.*}}, %[[B]]#{{[12]}}, %[[B]]#{{[12]}} : !cleave.tensor<f32>, !cleave.tensor<f32 [layers=3, n=4, m=5]>, !cleave.tensor<f32 [layers=3, m=5, n=4]>
func.func @loss(%w: !cleave.tensor<f32 [layers=3, n=4, m=5]> {cleave.role = "param", cleave.name = "w"},
                %v: !cleave.tensor<f32 [layers=3, m=5, n=4]> {cleave.role = "param", cleave.name = "v"},
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
