// What the search chooses where a plan says `auto`, told as remarks, and the program that follows. On "fast" links (0 s, 100 GB/s) and
// ranks that do 10^6 operations a second, prices can be computed by hand; on "slow" ones (1 ms) nothing is worth a collective.
// DEFINE: %{assign} = cleave-opt %s -split-input-file --cleave-assign-shardings
// RUN: %{assign} 2>&1 >/dev/null | FileCheck %s --check-prefix=WHY
// RUN: %{assign} --cleave-insert-collectives --cleave-mask-padding --cleave-verify-shardings --cleave-verify-padding 2>/dev/null | FileCheck %s

// Megatron is found: 2 * 8 * 32 operations of each product and 10 of each tanh, halved, are 0.672 ms; 32 bytes around the ring are nothing.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}"}} {
  // WHY: remark: auto: at w: shard m by tp; zero 0
  // WHY: remark: auto: at v: shard m by tp; zero 0
  // WHY: remark: auto: at [b, n]: replicate over tp
  // WHY: remark: auto: at [b, m]: shard m by tp
  // WHY: remark: auto: megatron takes 0.672 ms by the search's prices, the least; 6 variables, width 2
  // CHECK-LABEL: @megatron
  // CHECK-SAME: <f32 [n=8, m=32 {tp}]>
  // CHECK-SAME: <f32 [m=32 {tp}, n=8]>
  // CHECK: cleave.contract {{.*}} -> !cleave.tensor<f32 [b=1, n=8] sum {tp}>
  // CHECK: cleave.all_reduce sum
  // CHECK-NOT: cleave.all
  func.func @megatron(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}

// -----

// What a collective costs is more than the other rank saves.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":1000,\"bandwidth_gb_per_s\":0.001}],\"compute\":{\"peak_gflops\":0.1,\"memory_gb_per_s\":1000}}"}} {
  // WHY: remark: auto: at w: replicate over tp; zero 0
  // WHY: remark: auto: at [b, m]: replicate over tp
  // WHY: remark: auto: slow takes 0.013 ms
  // CHECK-LABEL: @slow
  // CHECK-NOT: {tp}
  // CHECK: return
  func.func @slow(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}

// -----

// The plan's rule binds, dear as it is: whatever has n is split by it.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<n by tp>], cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":1000,\"bandwidth_gb_per_s\":0.001}],\"compute\":{\"peak_gflops\":0.1,\"memory_gb_per_s\":1000}}"}} {
  // WHY: remark: auto: at w: shard n by tp; zero 0
  // WHY: remark: auto: at v: shard n by tp; zero 0
  // WHY: remark: auto: at [b, n]: shard n by tp
  // CHECK-LABEL: @rule
  // CHECK-SAME: <f32 [b=1, n=8 {tp}]>
  // CHECK-SAME: <f32 [n=8 {tp}, m=32]>
  // CHECK-SAME: <f32 [m=32, n=8 {tp}]>
  // CHECK-SAME: -> !cleave.tensor<f32 [b=1, n=8 {tp}]>
  func.func @rule(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}

// -----

// `at [m, b]: replicate over tp`, in whatever order.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}", homes = [[["m", "b"], [], ["tp"]]]}} {
  // WHY: remark: auto: at [b, m]: replicate over tp
  // CHECK-LABEL: @home
  // CHECK: %[[A:.*]] = cleave.tanh {{.*}} -> <f32 [b=1, m=32] replicated>
  func.func @home(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}

// -----

// `at w: shard m by tp` of a param; the rest stays whole.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":1000,\"bandwidth_gb_per_s\":0.001}],\"compute\":{\"peak_gflops\":0.1,\"memory_gb_per_s\":1000}}"}} {
  // WHY: remark: auto: at w: shard m by tp; zero 0
  // WHY: remark: auto: at v: replicate over tp; zero 0
  // CHECK-LABEL: @pin
  // CHECK-SAME: <f32 [n=8, m=32 {tp}]>
  // CHECK-SAME: <f32 [m=32, n=8] replicated>
  func.func @pin(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w", cleave.pin = [#cleave.shard_rule<m by tp>], cleave.pin_axes = ["tp"]},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}

// -----

// A pinned value: the one reduction comes before it.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":1000,\"bandwidth_gb_per_s\":0.001}],\"compute\":{\"peak_gflops\":0.1,\"memory_gb_per_s\":1000}}"}} {
  // WHY: remark: auto: at u: shard m by tp
  // CHECK-LABEL: @pinned_value
  // CHECK: %[[U:.*]] = cleave.contract
  // CHECK: cleave.tanh %{{.*}} -> <f32 [b=1, m=32 {tp}]>
  func.func @pinned_value(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"}) -> !cleave.tensor<f32 [b=1, m=32]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %p = cleave.pin "u" %u [#cleave.shard_rule<m by tp>] axes ["tp"] : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %p : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    return %a : !cleave.tensor<f32 [b=1, m=32]>
  }
}

// -----

// Fewer kv heads than ranks: each is replicated over the ranks that split its group.
module attributes {cleave.mesh = #cleave.mesh<tp=4>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}", compounds = [["kv", "g"]]}} {
  // WHY: remark: auto: at q: shard kv by tp:(1)2; shard g by tp:(2)2; zero 0
  // WHY: remark: auto: at [b, kv, g]: shard kv by tp:(1)2; shard g by tp:(2)2
  // WHY: remark: auto: at [b, kv]: shard kv by tp:(1)2; replicate over tp:(2)2
  // CHECK-LABEL: @heads
  // CHECK-SAME: <f32 [n=8, kv=2 {tp:(1)2}, g=2 {tp:(2)2}]>
  // CHECK: cleave.mul {{.*}} (!cleave.tensor<f32 [b=1, kv=2 {tp:(1)2}, g=2 {tp:(2)2}]>, !cleave.tensor<f32 [b=1, kv=2 {tp:(1)2}]>)
  func.func @heads(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %q: !cleave.tensor<f32 [n=8, kv=2, g=2]> {cleave.role = "param", cleave.name = "q"},
      %k: !cleave.tensor<f32 [n=8, kv=2]> {cleave.role = "param", cleave.name = "k"}) -> !cleave.tensor<f32 [b=1, kv=2, g=2]> {
    %u = cleave.contract %x, %q : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, kv=2, g=2]>) -> !cleave.tensor<f32 [b=1, kv=2, g=2]>
    %t = cleave.contract %x, %k : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, kv=2]>) -> !cleave.tensor<f32 [b=1, kv=2]>
    %a = cleave.mul %u, %t : (!cleave.tensor<f32 [b=1, kv=2, g=2]>, !cleave.tensor<f32 [b=1, kv=2]>) -> !cleave.tensor<f32 [b=1, kv=2, g=2]>
    return %a : !cleave.tensor<f32 [b=1, kv=2, g=2]>
  }
}

// -----

// An axis of one rank splits nothing; there is nothing to say of values.
module attributes {cleave.mesh = #cleave.mesh<tp=1>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}"}} {
  // WHY-NOT: remark: auto: at [b, n]
  // WHY: remark: auto: one takes 1.344 ms by the search's prices, the least
  // CHECK-LABEL: @one
  // CHECK-NOT: {tp}
  // CHECK: return
  func.func @one(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}

// -----

// Nor beside another.
module attributes {cleave.mesh = #cleave.mesh<one=1, tp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}"}} {
  // WHY: remark: auto: at w: shard m by tp; zero 0
  // WHY: remark: auto: beside takes 0.672 ms
  // CHECK-LABEL: @beside
  // CHECK-SAME: <f32 [n=8, m=32 {tp}]>
  func.func @beside(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}

// -----

// Only scalars.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}"}} {
  // WHY: remark: auto: at x: replicate over tp; zero 0
  // WHY: remark: auto: scalars takes 0.000 ms
  // CHECK-LABEL: @scalars
  // CHECK: cleave.exp {{.*}} -> <f32 replicated>
  func.func @scalars(%x: !cleave.tensor<f32> {cleave.role = "param", cleave.name = "x"}) -> !cleave.tensor<f32> {
    %y = cleave.exp %x : !cleave.tensor<f32> -> !cleave.tensor<f32>
    return %y : !cleave.tensor<f32>
  }
}

// -----

// Primes: blocks of 16 of 31, so 2 * 7 * 16 operations twice and 160 for tanh.
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}"}} {
  // WHY: remark: auto: at w: shard m by tp; zero 0
  // WHY: remark: auto: primes takes 0.608 ms
  // CHECK-LABEL: @primes
  // CHECK: cleave.mask_padding
  // CHECK: cleave.all_reduce sum
  func.func @primes(%x: !cleave.tensor<f32 [b=1, n=7]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=7, m=31]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=31, n=7]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=7]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=7]>, !cleave.tensor<f32 [n=7, m=31]>) -> !cleave.tensor<f32 [b=1, m=31]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=31]> -> !cleave.tensor<f32 [b=1, m=31]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=31]>, !cleave.tensor<f32 [m=31, n=7]>) -> !cleave.tensor<f32 [b=1, n=7]>
    return %y : !cleave.tensor<f32 [b=1, n=7]>
  }
}

// -----

// Three ranks: blocks of 11 of 32.
module attributes {cleave.mesh = #cleave.mesh<tp=3>, cleave.auto = {cluster = "{\"name\":\"c\",\"levels\":[{\"name\":\"l\",\"latency_us\":0,\"bandwidth_gb_per_s\":100}],\"compute\":{\"peak_gflops\":0.001,\"memory_gb_per_s\":1000}}"}} {
  // WHY: remark: auto: at w: shard m by tp; zero 0
  // WHY: remark: auto: three takes 0.462 ms
  // CHECK-LABEL: @three
  // CHECK: cleave.shard_extent [#cleave.axis<tp>] block 11 of 32
  func.func @three(%x: !cleave.tensor<f32 [b=1, n=8]> {cleave.role = "input", cleave.name = "x"},
      %w: !cleave.tensor<f32 [n=8, m=32]> {cleave.role = "param", cleave.name = "w"},
      %v: !cleave.tensor<f32 [m=32, n=8]> {cleave.role = "param", cleave.name = "v"}) -> !cleave.tensor<f32 [b=1, n=8]> {
    %u = cleave.contract %x, %w : (!cleave.tensor<f32 [b=1, n=8]>, !cleave.tensor<f32 [n=8, m=32]>) -> !cleave.tensor<f32 [b=1, m=32]>
    %a = cleave.tanh %u : !cleave.tensor<f32 [b=1, m=32]> -> !cleave.tensor<f32 [b=1, m=32]>
    %y = cleave.contract %a, %v : (!cleave.tensor<f32 [b=1, m=32]>, !cleave.tensor<f32 [m=32, n=8]>) -> !cleave.tensor<f32 [b=1, n=8]>
    return %y : !cleave.tensor<f32 [b=1, n=8]>
  }
}
