// `at w: zero 2 over dp` and `at v: zero 3 over dp` beside `auto`: state and gradients in shards, v's shards gathered where they are read.
// DEFINE: %{step} = cleave-opt %s --cleave-expand-composites --cleave-differentiate=function=loss "--cleave-add-optimizer=function=loss_grads kind=sgd momentum=0.9" -cse --cleave-assign-shardings
// RUN: %{step} 2>&1 >/dev/null | FileCheck %s --check-prefix=WHY
// RUN: %{step} --cleave-insert-collectives --cleave-mask-padding --cleave-verify-shardings --cleave-verify-padding 2>/dev/null | FileCheck %s

// WHY: remark: auto: loss_grads takes
// WHY: remark: auto: at w: replicate over dp; zero 2 over dp
// WHY: remark: auto: at v: replicate over dp; zero 3 over dp
// WHY: remark: auto: train_step takes
// CHECK-LABEL: func.func @train_step
// CHECK-SAME: <f32 [n=8, m=6] replicated> {{[^%]*}}cleave.name = "w"
// CHECK-SAME: <f32 [m=6{{( {dp})?}}, n=8{{( {dp})?}}]> {{[^%]*}}cleave.name = "v"
// CHECK-SAME: <f32 [n=8 {dp}, m=6]> {{[^%]*}}cleave.name = "sgd.momentum:w"
// CHECK: cleave.all_gather %{{.*}} {cleave.why = "a param in shards is read"}
// CHECK: cleave.all_gather %{{.*}} {cleave.phase = "backward", cleave.why = "a param in shards is read"}
// CHECK: cleave.all_gather %{{.*}} along "n" {{.*}} -> <f32 [n=8, m=6] replicated>
// CHECK: return
module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}"}} {
  func.func @loss(%w: !cleave.tensor<f32 [n=8, m=6]> {cleave.role = "param", cleave.name = "w", cleave.pin_zero = [2, ["dp"]]},
      %v: !cleave.tensor<f32 [m=6, n=8]> {cleave.role = "param", cleave.name = "v", cleave.pin_zero = [3, ["dp"]]},
      %x: !cleave.tensor<f32 [rows=12, n=8]> {cleave.role = "input", cleave.name = "x"}) -> !cleave.tensor<f32> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [rows=12, n=8]>, !cleave.tensor<f32 [n=8, m=6]>) -> !cleave.tensor<f32 [rows=12, m=6]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [rows=12, m=6]> -> !cleave.tensor<f32 [rows=12, m=6]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [rows=12, m=6]>, !cleave.tensor<f32 [m=6, n=8]>) -> !cleave.tensor<f32 [rows=12, n=8]>
    %l = cleave.reduce sum %y over ["rows", "n"] : !cleave.tensor<f32 [rows=12, n=8]> -> !cleave.tensor<f32>
    return %l : !cleave.tensor<f32>
  }
}
