// RUN: cleave-opt %s -split-input-file -verify-diagnostics --cleave-differentiate=function=loss

// expected-error @+1 {{the gradient of 'loss' needs a float scalar as its first result}}
func.func @loss(%x: !cleave.tensor<f32 [n=4]> {cleave.role = "param"}) -> !cleave.tensor<f32 [n=4]> {
  return %x : !cleave.tensor<f32 [n=4]>
}

// -----

func.func @loss(%x: !cleave.tensor<f32 [n=4]> {cleave.role = "param"}) -> !cleave.tensor<f32> {
  // expected-error @+1 {{has no gradient; run cleave-expand-composites first}}
  %s = cleave.softmax %x over ["n"] : (!cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [n=4]>
  %l = cleave.reduce sum %s over ["n"] : !cleave.tensor<f32 [n=4]> -> !cleave.tensor<f32>
  return %l : !cleave.tensor<f32>
}

// -----

// expected-error @+1 {{there is no function 'loss'}}
module {
}
