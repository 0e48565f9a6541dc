// RUN: cleave-opt %s -split-input-file -verify-diagnostics --cleave-lower-precision

// expected-error@below {{products read bf16 or f16, not 'f64'}}
module @computes_in_f64 attributes {cleave.precision = f64} {}

// -----

// expected-error@below {{sums over ranks are of f32 or 'bf16', not 'f16'}}
module @reduces_another_type attributes {cleave.precision = bf16, cleave.reduce = f16} {}

// -----

func.func @sum_of_another_type(%a: !cleave.tensor<bf16 [m=2, k=3]>, %b: !cleave.tensor<bf16 [k=3, n=4]>) -> !cleave.tensor<f16 [m=2, n=4]> {
  // expected-error@below {{of 'bf16' gives 'bf16' or f32, not 'f16'}}
  %0 = cleave.contract %a, %b : (!cleave.tensor<bf16 [m=2, k=3]>, !cleave.tensor<bf16 [k=3, n=4]>) -> !cleave.tensor<f16 [m=2, n=4]>
  return %0 : !cleave.tensor<f16 [m=2, n=4]>
}
