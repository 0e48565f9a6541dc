// RUN: cleave-opt %s -split-input-file -verify-diagnostics

func.func @contract_sizes_differ(%a: !cleave.tensor<f32 [m=2, k=3]>, %b: !cleave.tensor<f32 [k=4, n=5]>) {
  // expected-error @+1 {{dim 'k' has size 3 on the left and 4 on the right}}
  %c = cleave.contract %a, %b : (!cleave.tensor<f32 [m=2, k=3]>, !cleave.tensor<f32 [k=4, n=5]>) -> !cleave.tensor<f32 [m=2, n=5]>
  return
}

// -----

func.func @contract_loses_a_dim(%a: !cleave.tensor<f32 [m=2, k=3]>, %b: !cleave.tensor<f32 [k=3, n=5]>) {
  // expected-error @+1 {{dim 'm' of the left side is neither in the right side nor in the result}}
  %c = cleave.contract %a, %b : (!cleave.tensor<f32 [m=2, k=3]>, !cleave.tensor<f32 [k=3, n=5]>) -> !cleave.tensor<f32 [n=5]>
  return
}

// -----

func.func @elementwise_extra_dim(%a: !cleave.tensor<f32 [m=2]>, %b: !cleave.tensor<f32 [n=3]>) {
  // expected-error @+1 {{operand 1 has the dim 'n', which the result lacks}}
  %c = cleave.add %a, %b : (!cleave.tensor<f32 [m=2]>, !cleave.tensor<f32 [n=3]>) -> !cleave.tensor<f32 [m=2]>
  return
}

// -----

func.func @elementwise_needs_broadcast(%a: !cleave.tensor<f32 [m=2]>) {
  // expected-error @+1 {{no operand has the result's dim 'n'; use cleave.broadcast}}
  %c = cleave.exp %a : !cleave.tensor<f32 [m=2]> -> !cleave.tensor<f32 [m=2, n=3]>
  return
}

// -----

// expected-error @+1 {{dim 'm' is there twice in one tensor}}
func.func @name_twice(%a: !cleave.tensor<f32 [m=2, m=3]>) { return }

// -----

// expected-error @+1 {{element type 'i8' is none of f32, f64, bf16, f16, i1, i32, i64}}
func.func @element_type(%a: !cleave.tensor<i8 [m=2]>) { return }

// -----

// expected-error @+1 {{one axis is used twice in a sharding}}
func.func @axis_twice(%a: !cleave.tensor<f32 [m=2 {tp}, n=4 {tp}]>) { return }

// -----

// expected-error @+1 {{more than 2^48 elements}}
func.func @huge(%a: !cleave.tensor<f32 [m=4611686018427387904, n=4611686018427387904]>) { return }

// -----

// expected-error @+1 {{mesh axis 'tp' has size 0; it must be from 1 to 4096}}
module attributes {cleave.mesh = #cleave.mesh<tp=0>} {}

// -----

// expected-error @+1 {{a sub-axis is written axis:(major part)size with both at least 1}}
func.func @sub_axis(%a: !cleave.tensor<f32 [m=2 {tp:(0)2}]>) { return }

// -----

func.func @slice_past_the_end(%a: !cleave.tensor<f32 [m=4]>) {
  // expected-error @+1 {{elements 2 to 4 of a dim of size 4}}
  %c = cleave.slice %a["m" from 2] : !cleave.tensor<f32 [m=4]> -> !cleave.tensor<f32 [m2=3]>
  return
}

// -----

func.func @reduce_unknown_dim(%a: !cleave.tensor<f32 [m=4]>) {
  // expected-error @+1 {{the operand has no dim 'k'}}
  %c = cleave.reduce sum %a over ["k"] : !cleave.tensor<f32 [m=4]> -> !cleave.tensor<f32 [m=4]>
  return
}

// -----

func.func @gather_float_ids(%t: !cleave.tensor<f32 [v=4, w=2]>, %i: !cleave.tensor<f32 [b=3]>) {
  // expected-error @+1 {{ids must be i32, not 'f32'}}
  %c = cleave.gather %t["v" = %i] : (!cleave.tensor<f32 [v=4, w=2]>, !cleave.tensor<f32 [b=3]>) -> !cleave.tensor<f32 [b=3, w=2]>
  return
}

// -----

func.func @repeat_changes_type(%x: !cleave.tensor<f32 [n=4]>) {
  // expected-error @+1 {{carried value 0 changes its type}}
  %r = cleave.repeat layers = 2 %i carry(%c = %x : !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [n=4]> {
    %m = cleave.cast %c : !cleave.tensor<f32 [n=4]> -> !cleave.tensor<f64 [n=4]>
    cleave.yield %m : !cleave.tensor<f64 [n=4]>
  }
  return
}

// -----

func.func @dropout_rate(%x: !cleave.tensor<f32 [n=4]>, %s: !cleave.tensor<i64>, %l: !cleave.tensor<i32>) {
  // expected-error @+1 {{rate 1.000000e+00 is not in [0, 1)}}
  %r = cleave.dropout "a" %x rate 1.0 seed %s step %s layer %l {site = 1 : i64} : (!cleave.tensor<f32 [n=4]>, !cleave.tensor<i64>, !cleave.tensor<i64>, !cleave.tensor<i32>) -> !cleave.tensor<f32 [n=4]>
  return
}

// -----

func.func @attention_of_two_types(%q: !cleave.tensor<bf16 [s=2, d=3]>, %k: !cleave.tensor<bf16 [t=4, d=3]>, %v: !cleave.tensor<f32 [t=4, e=3]>) {
  // expected-error @+1 {{query, key and value are of one type, not of 'bf16', 'bf16' and 'f32'}}
  %y, %l = cleave.attention %q, %k, %v {causal = false, depth_dim = "d", key_dim = "t", path = "a", query_dim = "s", rate = 0.0 : f64, scale = 1.0 : f64, site = 1 : i64, value_dim = "e"} : (!cleave.tensor<bf16 [s=2, d=3]>, !cleave.tensor<bf16 [t=4, d=3]>, !cleave.tensor<f32 [t=4, e=3]>) -> (!cleave.tensor<bf16 [s=2, e=3]>, !cleave.tensor<f32 [s=2]>)
  return
}
