// Micro-batches beside `auto`: the axis over time is no axis to choose for, sums over it send nothing, and no sentence speaks of it.
// DEFINE: %{step} = cleave-opt %s --cleave-split-micro-batches="count=3 dim=rows" --cleave-expand-composites --cleave-differentiate=function=loss "--cleave-add-optimizer=function=loss_grads kind=sgd momentum=0.9" -cse --cleave-assign-shardings
// RUN: %{step} 2>&1 >/dev/null | FileCheck %s --check-prefix=WHY
// RUN: %{step} --cleave-insert-collectives --cleave-mask-padding --cleave-verify-shardings --cleave-verify-padding 2>/dev/null | FileCheck %s
// RUN: %{step} --cleave-insert-collectives --cleave-mask-padding --cleave-partition --cleave-repeat-micro-batches -cse 2>/dev/null | FileCheck %s --check-prefix=REPEAT

// WHY-NOT: {{remark:.*accumulate}}
// WHY: remark: auto: train_step takes
// CHECK-LABEL: func.func @train_step
// CHECK-SAME: <f32 [rows=12 {accumulate{{[^}]*}}}, n=8]>
// CHECK: return
// REPEAT-LABEL: func.func @train_step
// REPEAT: cleave.repeat accumulate = 3
// REPEAT: cleave.add {{.*}} {cleave.part = "accumulate"
// REPEAT: cleave.yield
// REPEAT-NOT: accumulate
// REPEAT: return
module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}"}} {
  func.func @loss(%w: !cleave.tensor<f32 [n=8, m=6]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=6, n=8]> {cleave.role = "param", cleave.name = "v"},
      %x: !cleave.tensor<f32 [rows=12, n=8]> {cleave.role = "input", cleave.name = "x"}) -> !cleave.tensor<f32> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [rows=12, n=8]>, !cleave.tensor<f32 [n=8, m=6]>) -> !cleave.tensor<f32 [rows=12, m=6]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [rows=12, m=6]> -> !cleave.tensor<f32 [rows=12, m=6]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [rows=12, m=6]>, !cleave.tensor<f32 [m=6, n=8]>) -> !cleave.tensor<f32 [rows=12, n=8]>
    %l = cleave.reduce sum %y over ["rows", "n"] : !cleave.tensor<f32 [rows=12, n=8]> -> !cleave.tensor<f32>
    return %l : !cleave.tensor<f32>
  }
}
