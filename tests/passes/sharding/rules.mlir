// Each rule, printed by a pass that does nothing else.
// RUN: cleave-opt %s --cleave-print-sharding-rules --mlir-print-op-on-diagnostic=false -o /dev/null 2>&1 | FileCheck %s

func.func @rules(%x: !cleave.tensor<f32 [b=2, s=3, k=4]>, %w: !cleave.tensor<f32 [k=4, n=5]>, %bias: !cleave.tensor<f32 [k=4]>,
                 %ids: !cleave.tensor<i32 [b=2, s=3]>, %seed: !cleave.tensor<i64>, %layer: !cleave.tensor<i32>) {
  // CHECK: rule: k=4 sum, b=2, s=3, n=5 | [b, s, k] x [k, n] -> [b, s, n] | sum passes {0}, {1}
  %0 = cleave.contract %x, %w : (!cleave.tensor<f32 [b=2, s=3, k=4]>, !cleave.tensor<f32 [k=4, n=5]>) -> !cleave.tensor<f32 [b=2, s=3, n=5]>
  // CHECK: rule: b=2, s=3, k=4 | [b, s, k] x [k] -> [b, s, k] | sum passes {0,1}
  %1 = cleave.add %x, %bias : (!cleave.tensor<f32 [b=2, s=3, k=4]>, !cleave.tensor<f32 [k=4]>) -> !cleave.tensor<f32 [b=2, s=3, k=4]>
  // CHECK: rule: b=2, s=3, k=4 | [b, s, k] x [k] -> [b, s, k] | sum passes {0}, {1}
  %2 = cleave.mul %x, %bias : (!cleave.tensor<f32 [b=2, s=3, k=4]>, !cleave.tensor<f32 [k=4]>) -> !cleave.tensor<f32 [b=2, s=3, k=4]>
  // An exponential commutes with a maximum, not with a sum.
  // CHECK: rule: b=2, s=3, k=4 | [b, s, k] -> [b, s, k] | max passes {0}
  %3 = cleave.exp %x : !cleave.tensor<f32 [b=2, s=3, k=4]> -> !cleave.tensor<f32 [b=2, s=3, k=4]>
  // CHECK: rule: k=4 max, b=2, s=3 | [b, s, k] -> [b, s] | max passes {0}
  %4 = cleave.reduce max %x over ["k"] : !cleave.tensor<f32 [b=2, s=3, k=4]> -> !cleave.tensor<f32 [b=2, s=3]>
  // CHECK: rule: k=4 sum offset, b=2, s=3, n=5 | [k, n] x [b, s] -> [b, s, n] | sum passes {0}
  %5 = cleave.gather %w["k" = %ids] : (!cleave.tensor<f32 [k=4, n=5]>, !cleave.tensor<i32 [b=2, s=3]>) -> !cleave.tensor<f32 [b=2, s=3, n=5]>
  // CHECK: rule: k=4 offset, n=5, b=2 sum, s=3 sum | [b, s, n] x [b, s] -> [k, n] | sum passes {0}
  %6 = cleave.scatter_add %5["k" = %ids] : (!cleave.tensor<f32 [b=2, s=3, n=5]>, !cleave.tensor<i32 [b=2, s=3]>) -> !cleave.tensor<f32 [k=4, n=5]>
  // CHECK: rule: k=4 partial, b=2, s=3 | [b, s, k] -> [b, s, k]
  %7 = cleave.softmax %x over ["k"] : (!cleave.tensor<f32 [b=2, s=3, k=4]>) -> !cleave.tensor<f32 [b=2, s=3, k=4]>
  // CHECK: rule: b=2, s=3, k=4 blocked, k2'=2 blocked | [b, s, k] -> [b, s, k2'] | sum passes {0}
  %8 = cleave.slice %x["k" from 1] : !cleave.tensor<f32 [b=2, s=3, k=4]> -> !cleave.tensor<f32 [b=2, s=3, k2=2]>
  // CHECK: rule: b=2 offset, k=4 offset | [] x [] x [] -> [b, k]
  %9 = cleave.random "site" seed %seed step %seed layer %layer {site = 1 : i64, global_sizes = array<i64: 2, 4>} : (!cleave.tensor<i64>, !cleave.tensor<i64>, !cleave.tensor<i32>) -> !cleave.tensor<f32 [b=2, k=4]>
  // Rounding does not commute with a sum.
  // CHECK: rule: b=2, s=3, k=4 | [b, s, k] -> [b, s, k]{{ *$}}
  %10 = cleave.cast %x : !cleave.tensor<f32 [b=2, s=3, k=4]> -> !cleave.tensor<bf16 [b=2, s=3, k=4]>
  // Unless the parts may be rounded; and what is not rounded does.
  // CHECK: rule: b=2, s=3, k=4 | [b, s, k] -> [b, s, k] | sum passes {0}
  %11 = cleave.cast %x partial : !cleave.tensor<f32 [b=2, s=3, k=4]> -> !cleave.tensor<bf16 [b=2, s=3, k=4]>
  // CHECK: rule: b=2, s=3, k=4 | [b, s, k] -> [b, s, k] | sum passes {0}
  %12 = cleave.cast %10 : !cleave.tensor<bf16 [b=2, s=3, k=4]> -> !cleave.tensor<f32 [b=2, s=3, k=4]>
  // Two types of 16 bits hold different numbers.
  // CHECK: rule: b=2, s=3, k=4 | [b, s, k] -> [b, s, k]{{ *$}}
  %13 = cleave.cast %10 : !cleave.tensor<bf16 [b=2, s=3, k=4]> -> !cleave.tensor<f16 [b=2, s=3, k=4]>
  return
}

// Attention needs keys and depth whole. Its gradients of k and v are sums over the queries and over the group, which
// these lack: only there a split leaves a partial sum.
func.func @attention(%q: !cleave.tensor<f32 [b=2, s=3, h=2, g=4, d=6]>, %k: !cleave.tensor<f32 [b=2, t=5, h=2, d=6]>,
                     %v: !cleave.tensor<f32 [b=2, t=5, h=2, e=7]>, %dy: !cleave.tensor<f32 [b=2, s=3, h=2, g=4, e=7]>) {
  // CHECK: rule: s=3 offset, t=5 partial, d=6 partial, e=7, b=2, h=2, g=4 | [b, s, h, g, d] x [b, t, h, d] x [b, t, h, e] -> [b, s, h, g, e], [b, s, h, g]
  %y, %l = cleave.attention %q, %k, %v {query_dim = "s", key_dim = "t", depth_dim = "d", value_dim = "e", causal = true, scale = 1.0 : f64, rate = 0.0 : f64, path = "a", site = 1 : i64}
      : (!cleave.tensor<f32 [b=2, s=3, h=2, g=4, d=6]>, !cleave.tensor<f32 [b=2, t=5, h=2, d=6]>, !cleave.tensor<f32 [b=2, t=5, h=2, e=7]>)
      -> (!cleave.tensor<f32 [b=2, s=3, h=2, g=4, e=7]>, !cleave.tensor<f32 [b=2, s=3, h=2, g=4]>)
  // CHECK: rule: s=3 sum, t=5 partial, d=6 partial, e=7 sum, b=2, h=2, g=4 sum |
  // CHECK-SAME: -> [b, s, h, g, d], [b, t, h, d], [b, t, h, e] | sum passes {5}
  %dq, %dk, %dv = cleave.attention_grad %q, %k, %v output %y, %l gradient %dy {query_dim = "s", key_dim = "t", depth_dim = "d", value_dim = "e", causal = false, scale = 1.0 : f64, rate = 0.0 : f64, path = "a", site = 1 : i64}
      : (!cleave.tensor<f32 [b=2, s=3, h=2, g=4, d=6]>, !cleave.tensor<f32 [b=2, t=5, h=2, d=6]>, !cleave.tensor<f32 [b=2, t=5, h=2, e=7]>,
         !cleave.tensor<f32 [b=2, s=3, h=2, g=4, e=7]>, !cleave.tensor<f32 [b=2, s=3, h=2, g=4]>, !cleave.tensor<f32 [b=2, s=3, h=2, g=4, e=7]>)
      -> (!cleave.tensor<f32 [b=2, s=3, h=2, g=4, d=6]>, !cleave.tensor<f32 [b=2, t=5, h=2, d=6]>, !cleave.tensor<f32 [b=2, t=5, h=2, e=7]>)
  return
}
