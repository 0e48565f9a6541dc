// RUN: cleave-opt --cleave-print-schedule --split-input-file --verify-diagnostics %s -o /dev/null

!x = !cleave.tensor<f32 [b=4, w=5]>
!h = !cleave.tensor<f32 [b=4, n=3]>
!n = !cleave.tensor<f32 [w=5, n=3]>
!b = !cleave.tensor<f32 [n=3]>
func.func @alone(%x: !x, %q: !h) -> (!n, !b) {
  %w = cleave.contract %x, %q : (!x, !h) -> !n
  %t = cleave.fused elementwise(%a = %w : !n) -> !n {
    %y = cleave.tanh %a : !n -> !n
    cleave.yield %y : !n
  }
  // expected-error @below {{is a sum and must stand behind the product whose operand it sums}}
  %s = cleave.fused sums(%a = %q : !h) -> !b {
    %y = cleave.reduce sum %a over ["b"] : !h -> !b
    cleave.yield %y : !b
  }
  return %t, %s : !n, !b
}

// -----

!x = !cleave.tensor<f32 [b=4, w=5]>
!h = !cleave.tensor<f32 [b=4, n=3]>
!n = !cleave.tensor<f32 [w=5, n=3]>
!b = !cleave.tensor<f32 [b=4]>
func.func @otherDims(%x: !x, %q: !h) -> (!n, !b) {
  %w = cleave.contract %x, %q : (!x, !h) -> !n
  // expected-error @below {{has 4 sums beside a product that makes 3}}
  %s = cleave.fused sums(%a = %q : !h) -> !b {
    %y = cleave.reduce sum %a over ["n"] : !h -> !b
    cleave.yield %y : !b
  }
  return %w, %s : !n, !b
}
