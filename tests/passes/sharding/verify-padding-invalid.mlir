// RUN: cleave-opt %s -split-input-file -verify-diagnostics --cleave-verify-padding

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @sum_reads_padding(%x: !cleave.tensor<f32 [m=3, k=5 {tp}]>) {
    // expected-error @+1 {{reads the padding of dim 'k' of operand 0, which holds anything and must hold 0}}
    %s = cleave.reduce sum %x over ["k"] : !cleave.tensor<f32 [m=3, k=5 {tp}]> -> !cleave.tensor<f32 [m=3] sum {tp}>
    return
  }
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @max_of_zeros(%x: !cleave.tensor<f32 [m=3, k=5 {tp}]> {cleave.role = "param"}) {
    // expected-error @+1 {{which holds 0 and must hold -inf}}
    %s = cleave.reduce max %x over ["k"] : !cleave.tensor<f32 [m=3, k=5 {tp}]> -> !cleave.tensor<f32 [m=3] max {tp}>
    return
  }
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @param_loses_its_zeros(%w: !cleave.tensor<f32 [k=5 {tp}]> {cleave.role = "param", cleave.donated_to = 0 : i64}) -> !cleave.tensor<f32 [k=5 {tp}]> {
    %e = cleave.exp %w : !cleave.tensor<f32 [k=5 {tp}]> -> !cleave.tensor<f32 [k=5 {tp}]>
    // expected-error @+1 {{reads the padding of dim 'k' of operand 0, which holds anything and must hold 0}}
    return %e : !cleave.tensor<f32 [k=5 {tp}]>
  }
}

// -----

// An even split has no padding.
module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @even(%x: !cleave.tensor<f32 [m=3, k=4 {tp}]>) {
    %s = cleave.reduce sum %x over ["k"] : !cleave.tensor<f32 [m=3, k=4 {tp}]> -> !cleave.tensor<f32 [m=3] sum {tp}>
    return
  }
}
