// RUN: cleave-opt %s -split-input-file -verify-diagnostics --cleave-verify-shardings

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @bias_on_a_partial_sum(%x: !cleave.tensor<f32 [n=4] sum {tp}>, %b: !cleave.tensor<f32 [n=4] replicated>) {
    // expected-error @+1 {{operand 0 is still an unreduced sum over {tp}, which this op does not commute with}}
    %y = cleave.add %x, %b : (!cleave.tensor<f32 [n=4] sum {tp}>, !cleave.tensor<f32 [n=4] replicated>) -> !cleave.tensor<f32 [n=4] sum {tp}>
    return
  }
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @max_of_negated(%x: !cleave.tensor<f32 [n=4] max {tp}>) {
    // expected-error @+1 {{operand 0 is still an unreduced max over {tp}}}
    %y = cleave.neg %x : !cleave.tensor<f32 [n=4] max {tp}> -> !cleave.tensor<f32 [n=4] max {tp}>
    return
  }
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @forgets_the_partial_sum(%x: !cleave.tensor<f32 [m=3, k=4 {tp}]>, %w: !cleave.tensor<f32 [k=4 {tp}, n=5]>) {
    // expected-error @+1 {{leaves its result unreduced over {tp}, but its type says {}}}
    %y = cleave.contract %x, %w : (!cleave.tensor<f32 [m=3, k=4 {tp}]>, !cleave.tensor<f32 [k=4 {tp}, n=5]>) -> !cleave.tensor<f32 [m=3, n=5] replicated>
    return
  }
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @factors_disagree(%x: !cleave.tensor<f32 [m=3, k=4 {tp}]>, %w: !cleave.tensor<f32 [k=4, n=5] replicated>) {
    // expected-error @+1 {{operand 1 splits 'k' over {}, another value over {tp}}}
    %y = cleave.contract %x, %w : (!cleave.tensor<f32 [m=3, k=4 {tp}]>, !cleave.tensor<f32 [k=4, n=5] replicated>) -> !cleave.tensor<f32 [m=3, n=5] sum {tp}>
    return
  }
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @needs_it_whole(%x: !cleave.tensor<f32 [m=3, k=4 {tp}]>) {
    // expected-error @+1 {{operand 0 splits 'k' over {tp}, which this op needs whole}}
    %y = cleave.softmax %x over ["k"] : (!cleave.tensor<f32 [m=3, k=4 {tp}]>) -> !cleave.tensor<f32 [m=3, k=4 {tp}]>
    return
  }
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @returns_unreduced(%x: !cleave.tensor<f32 [n=4] sum {tp}>) -> !cleave.tensor<f32 [n=4] sum {tp}> {
    // expected-error @+1 {{returns a value that is still unreduced}}
    return %x : !cleave.tensor<f32 [n=4] sum {tp}>
  }
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
  func.func @wrong_reduction(%x: !cleave.tensor<f32 [n=4] max {tp}>) {
    // expected-error @+1 {{reduces by sum what is an unreduced max}}
    %y = cleave.all_reduce sum %x over [#cleave.axis<tp>] : !cleave.tensor<f32 [n=4] max {tp}> -> !cleave.tensor<f32 [n=4] replicated>
    return
  }
}
