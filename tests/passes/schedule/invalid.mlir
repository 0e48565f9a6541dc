// RUN: cleave-opt --cleave-print-schedule --split-input-file --verify-diagnostics %s | FileCheck %s --allow-empty --implicit-check-not=program

// expected-error@+1 {{argument 'w' is donated to result 1 of 1}}
func.func @no_result(%w: !cleave.tensor<f32 [n=2]> {cleave.name = "w", cleave.donated_to = 1}) -> !cleave.tensor<f32 [n=2]> {
  return %w : !cleave.tensor<f32 [n=2]>
}

// -----

// expected-error@+1 {{both 'v' and 'w' are donated to result 0}}
func.func @two_donors(%v: !cleave.tensor<f32 [n=2]> {cleave.name = "v", cleave.donated_to = 0},
                      %w: !cleave.tensor<f32 [n=2]> {cleave.name = "w", cleave.donated_to = 0}) -> !cleave.tensor<f32 [n=2]> {
  return %w : !cleave.tensor<f32 [n=2]>
}

// -----

// expected-error@+1 {{argument 'w' of type '!cleave.tensor<f32 [n=3]>' is donated to a result of type '!cleave.tensor<f32 [n=2]>'}}
func.func @other_type(%v: !cleave.tensor<f32 [n=2]>, %w: !cleave.tensor<f32 [n=3]> {cleave.name = "w", cleave.donated_to = 0}) -> !cleave.tensor<f32 [n=2]> {
  return %v : !cleave.tensor<f32 [n=2]>
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
// expected-error@+1 {{one rank's part of '!cleave.tensor<f32 [n=6 {tp}]>' is not '!cleave.tensor<f32 [n=6]>'}}
func.func @not_local(%w: !cleave.tensor<f32 [n=6]>) attributes {cleave.layouts = [!cleave.tensor<f32 [n=6 {tp}]>]} {
  return
}
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
func.func @no_axis(%x: !cleave.tensor<f32 [n=6]>) -> !cleave.tensor<f32 [n=6]> {
  // expected-error@+1 {{the mesh has no axis 'dp'}}
  %0 = cleave.all_reduce sum %x over [#cleave.axis<dp>] : !cleave.tensor<f32 [n=6]> -> !cleave.tensor<f32 [n=6]>
  return %0 : !cleave.tensor<f32 [n=6]>
}
}

// -----

module attributes {cleave.mesh = #cleave.mesh<tp=2>} {
func.func @wrong_block(%x: !cleave.tensor<f32 [n=6]>) -> !cleave.tensor<f32 [n=10]> {
  // expected-error@+1 {{over 2 ranks does not turn '!cleave.tensor<f32 [n=6]>' into '!cleave.tensor<f32 [n=10]>'}}
  %0 = cleave.all_gather %x along "n" over [#cleave.axis<tp>] : !cleave.tensor<f32 [n=6]> -> !cleave.tensor<f32 [n=10]>
  return %0 : !cleave.tensor<f32 [n=10]>
}
}

// -----

!a = !cleave.tensor<f32 [k=3, j=2000, b=3000]>
!w = !cleave.tensor<f32 [j=2000, n=5, b=3000]>
func.func @scattered(%a: !a, %w: !w) -> !cleave.tensor<f32 [k=3, n=5, j=2000, b=3000]> {
  // expected-error@+1 {{would be 6000 matrix products; cleave-prepare-contracts, run before fusion, puts its dims in a better order}}
  %0 = cleave.contract %a, %w : (!a, !w) -> !cleave.tensor<f32 [k=3, n=5, j=2000, b=3000]>
  return %0 : !cleave.tensor<f32 [k=3, n=5, j=2000, b=3000]>
}

// -----

func.func @half(%a: !cleave.tensor<bf16 [m=4, k=3]>, %w: !cleave.tensor<bf16 [k=3, n=5]>) -> !cleave.tensor<bf16 [m=4, n=5]> {
  // expected-error@+1 {{of 'bf16' gives 'bf16'; cleave-prepare-contracts, run before fusion, makes it 'f32' and a cast}}
  %0 = cleave.contract %a, %w : (!cleave.tensor<bf16 [m=4, k=3]>, !cleave.tensor<bf16 [k=3, n=5]>) -> !cleave.tensor<bf16 [m=4, n=5]>
  return %0 : !cleave.tensor<bf16 [m=4, n=5]>
}

// -----

func.func @no_product(%x: !cleave.tensor<f32 [n=2]>) -> !cleave.tensor<f32 [n=2]> {
  // expected-error@+1 {{is an epilogue and must stand behind the product it reads first}}
  %y = cleave.fused epilogue(%a = %x : !cleave.tensor<f32 [n=2]>) -> !cleave.tensor<f32 [n=2]> attributes {cleave.parts = array<i64: 2>} {
    %t = cleave.tanh %a : !cleave.tensor<f32 [n=2]> -> !cleave.tensor<f32 [n=2]>
    cleave.yield %t : !cleave.tensor<f32 [n=2]>
  }
  return %y : !cleave.tensor<f32 [n=2]>
}

// -----

func.func @several(%q: !cleave.tensor<f32 [b=2, s=3, h=4, d=5]>, %k: !cleave.tensor<f32 [b=2, t=6, h=4, d=5]>)
    -> !cleave.tensor<f32 [b=2, h=4, s=3, t=6]> {
  // expected-error@+1 {{is 2 matrix products and has an epilogue}}
  %p = cleave.contract %q, %k : (!cleave.tensor<f32 [b=2, s=3, h=4, d=5]>, !cleave.tensor<f32 [b=2, t=6, h=4, d=5]>) -> !cleave.tensor<f32 [b=2, h=4, s=3, t=6]>
  %y = cleave.fused epilogue(%a = %p : !cleave.tensor<f32 [b=2, h=4, s=3, t=6]>) -> !cleave.tensor<f32 [b=2, h=4, s=3, t=6]> attributes {cleave.parts = array<i64: 0, 0, 1, 2>} {
    %t = cleave.tanh %a : !cleave.tensor<f32 [b=2, h=4, s=3, t=6]> -> !cleave.tensor<f32 [b=2, h=4, s=3, t=6]>
    cleave.yield %t : !cleave.tensor<f32 [b=2, h=4, s=3, t=6]>
  }
  return %y : !cleave.tensor<f32 [b=2, h=4, s=3, t=6]>
}
