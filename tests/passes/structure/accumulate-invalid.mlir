// RUN: cleave-opt %s -split-input-file -verify-diagnostics --cleave-split-micro-batches=count=4 --cleave-assign-shardings --cleave-insert-collectives --cleave-partition --cleave-repeat-micro-batches

// 12 rows over 2 ranks are 6, and 4 does not divide 6.
// expected-error @+1 {{accumulate 4: batch=12 over dp is 6 rows on a rank, which 4 does not divide; choose a size of 'batch' that is a multiple of 8}}
module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.plan = [#cleave.shard_rule<batch by dp>]} {
  func.func @rows(%x: !cleave.tensor<f32 [batch=12]> {cleave.role = "input"}) -> !cleave.tensor<f32> {
    %s = cleave.reduce sum %x over ["batch"] : !cleave.tensor<f32 [batch=12]> -> !cleave.tensor<f32>
    return %s : !cleave.tensor<f32>
  }
}

// -----

// expected-error @+1 {{accumulate 4: 'no_batch' has no input with a dim 'batch' to cut}}
func.func @no_batch(%x: !cleave.tensor<f32 [rows=8]> {cleave.role = "input"}) -> !cleave.tensor<f32 [rows=8]> {
  return %x : !cleave.tensor<f32 [rows=8]>
}

// -----

// expected-error @+1 {{accumulate 4: 'batch' is not the first dim of the input 'x'}}
func.func @second(%x: !cleave.tensor<f32 [seq=3, batch=8]> {cleave.role = "input", cleave.name = "x"}) -> !cleave.tensor<f32> {
  %s = cleave.reduce sum %x over ["seq", "batch"] : !cleave.tensor<f32 [seq=3, batch=8]> -> !cleave.tensor<f32>
  return %s : !cleave.tensor<f32>
}

// -----

// The gradient of a squared mean needs the mean, which needs the params.
func.func @square_of_mean(%x: !cleave.tensor<f32 [batch=8, n=4]> {cleave.role = "input"},
                          %w: !cleave.tensor<f32 [n=4]> {cleave.role = "param", cleave.name = "w"}) -> !cleave.tensor<f32 [n=4]> {
  %y = cleave.contract %x, %w : (!cleave.tensor<f32 [batch=8, n=4]>, !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [batch=8]>
  %s = cleave.reduce sum %y over ["batch"] : !cleave.tensor<f32 [batch=8]> -> !cleave.tensor<f32>
  // expected-error @+1 {{accumulate 4: this sum over the whole batch is needed before the backward pass of its first micro-batch, and it depends on the param 'w'}}
  %d = cleave.mul %x, %s : (!cleave.tensor<f32 [batch=8, n=4]>, !cleave.tensor<f32>) -> !cleave.tensor<f32 [batch=8, n=4]>
  %g = cleave.reduce sum %d over ["batch"] : !cleave.tensor<f32 [batch=8, n=4]> -> !cleave.tensor<f32 [n=4]>
  return %g : !cleave.tensor<f32 [n=4]>
}

// -----

// A result for each row.
func.func @per_row(%x: !cleave.tensor<f32 [batch=8]> {cleave.role = "input"}) -> (!cleave.tensor<f32 [batch=8]> {cleave.name = "y"}) {
  // expected-error @+1 {{accumulate 4: the result 'y' is one of the rows}}
  %y = cleave.neg %x : !cleave.tensor<f32 [batch=8]> -> !cleave.tensor<f32 [batch=8]>
  return %y : !cleave.tensor<f32 [batch=8]>
}

// -----

// The greatest of a batch is no sum.
func.func @greatest(%x: !cleave.tensor<f32 [batch=8]> {cleave.role = "input"}) -> !cleave.tensor<f32> {
  // expected-error @+1 {{accumulate 4: this needs rows of all micro-batches at once}}
  %y = cleave.reduce max %x over ["batch"] : !cleave.tensor<f32 [batch=8]> -> !cleave.tensor<f32>
  return %y : !cleave.tensor<f32>
}
