// Plans that say `auto` and leave nothing to choose.
// RUN: cleave-opt %s -split-input-file -verify-diagnostics --allow-unregistered-dialect --cleave-assign-shardings --cleave-insert-collectives

// expected-error @+1 {{the memory limit is 1 bytes, but at least 1040 are needed}}
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}", memory = 1 : i64}} {
  func.func @one_byte(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}

// -----

// expected-error @+1 {{profile: not a profile of a cluster: parse error}}
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.auto = {cluster = "{"}} {
  func.func @profile(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}
