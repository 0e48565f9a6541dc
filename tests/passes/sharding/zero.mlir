// ZeRO: which dim is split, and where gradients, states and params are.
// RUN: cleave-opt %s --split-input-file --cleave-assign-shardings | FileCheck %s --check-prefix=ASSIGN
// RUN: cleave-opt %s --split-input-file --cleave-assign-shardings --cleave-insert-collectives --cleave-mask-padding --cleave-verify-shardings --cleave-verify-padding | FileCheck %s

// Levels 1 and 2: the gradient's sum is scattered, the update is on shards, the new param is gathered.
module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.plan = [#cleave.shard_rule<b by dp>], cleave.zero = #cleave.zero<1 over dp>} {
  // ASSIGN-LABEL: @momentum
  // ASSIGN-SAME: %{{[^:]*}}: {{[^:]*}} {{{[^}]*}}cleave.name = "w", {{[^}]*}}cleave.sharding = #cleave.sharding<[{}, {}]>
  // ASSIGN-SAME: cleave.name = "m", {{[^}]*}}cleave.sharding = #cleave.sharding<[{dp}, {}]>
  // ASSIGN: cleave.contract {{.*}} cleave.rests_as = [#cleave.sharding<[{dp}, {}]>], cleave.sharding = [#cleave.sharding<[{}, {}]>]
  // CHECK-LABEL: @momentum
  // CHECK-SAME: <f32 [k=4, n=6] replicated> {{.*}}<f32 [k=4 {dp}, n=6]>
  // CHECK: %[[SUM:.*]] = cleave.contract {{.*}} -> {{.*}}<f32 [k=4, n=6] sum {dp}>
  // CHECK-NEXT: %[[G:.*]] = cleave.reduce_scatter sum %[[SUM]] along "k" {{.*}} -> {{.*}}<f32 [k=4 {dp}, n=6]>
  // CHECK-NEXT: %[[M:.*]] = cleave.add %{{.*}}, %[[G]] {{.*}} -> {{.*}}<f32 [k=4 {dp}, n=6]>
  // CHECK-NEXT: %[[P:.*]] = cleave.shard_slice
  // CHECK-NEXT: %[[W:.*]] = cleave.sub %[[P]], %[[M]] {{.*}} -> {{.*}}<f32 [k=4 {dp}, n=6]>
  // CHECK-NEXT: %[[ALL:.*]] = cleave.all_gather %[[W]] {{.*}}"each rank has updated its shard"{{.*}} -> <f32 [k=4, n=6] replicated>
  // CHECK-NEXT: return %[[ALL]], %[[M]]
  func.func @momentum(%w: !cleave.tensor<f32 [k=4, n=6]> {cleave.name = "w", cleave.role = "param", cleave.donated_to = 0},
                      %m: !cleave.tensor<f32 [k=4, n=6]> {cleave.name = "m", cleave.role = "state", cleave.donated_to = 1},
                      %x: !cleave.tensor<f32 [b=8, k=4]>, %dy: !cleave.tensor<f32 [b=8, n=6]>)
      -> (!cleave.tensor<f32 [k=4, n=6]>, !cleave.tensor<f32 [k=4, n=6]>) {
    %g = cleave.contract %x, %dy {cleave.phase = "backward"} : (!cleave.tensor<f32 [b=8, k=4]>, !cleave.tensor<f32 [b=8, n=6]>) -> !cleave.tensor<f32 [k=4, n=6]>
    %m1 = cleave.add %m, %g {cleave.phase = "optimizer"} : (!cleave.tensor<f32 [k=4, n=6]>, !cleave.tensor<f32 [k=4, n=6]>) -> !cleave.tensor<f32 [k=4, n=6]>
    %w1 = cleave.sub %w, %m1 {cleave.phase = "optimizer"} : (!cleave.tensor<f32 [k=4, n=6]>, !cleave.tensor<f32 [k=4, n=6]>) -> !cleave.tensor<f32 [k=4, n=6]>
    return %w1, %m1 : !cleave.tensor<f32 [k=4, n=6]>, !cleave.tensor<f32 [k=4, n=6]>
  }
}

// -----

// Level 3: a param in shards is gathered for its readers, once for the forward and once for the backward pass, not for the update.
module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.plan = [#cleave.shard_rule<b by dp>], cleave.zero = #cleave.zero<3 over dp>} {
  // ASSIGN-LABEL: @whole
  // ASSIGN-SAME: cleave.read_as = #cleave.sharding<[{}, {}]>, {{.*}}cleave.sharding = #cleave.sharding<[{dp}, {}]>
  // CHECK-LABEL: @whole
  // CHECK-SAME: %[[W:[a-z0-9]*]]: !cleave.tensor<f32 [k=4 {dp}, n=4]>
  // CHECK-NEXT: %[[F:.*]] = cleave.all_gather %[[W]] {{.*}}"a param in shards is read"
  // CHECK-NEXT: %[[H:.*]] = cleave.contract %{{.*}}, %[[F]]
  // CHECK-NEXT: cleave.contract %[[H]], %[[F]]
  // CHECK-NEXT: %[[B:.*]] = cleave.all_gather %[[W]] {{.*}}cleave.phase = "backward"
  // CHECK-NEXT: cleave.contract %{{.*}}, %[[B]]
  // CHECK: cleave.reduce_scatter
  // CHECK-NOT: cleave.all
  // CHECK: cleave.sub %[[W]], %{{.*}} -> {{.*}}<f32 [k=4 {dp}, n=4]>
  // CHECK-NEXT: return
  func.func @whole(%w: !cleave.tensor<f32 [k=4, n=4]> {cleave.name = "w", cleave.role = "param", cleave.donated_to = 0},
                   %x: !cleave.tensor<f32 [b=8, k=4]>, %dy: !cleave.tensor<f32 [b=8, k=4]>)
      -> (!cleave.tensor<f32 [k=4, n=4]>, !cleave.tensor<f32 [b=8]>, !cleave.tensor<f32 [b=8, n=4]>) {
    %h = cleave.contract %x, %w : (!cleave.tensor<f32 [b=8, k=4]>, !cleave.tensor<f32 [k=4, n=4]>) -> !cleave.tensor<f32 [b=8, n=4]>
    %y = cleave.contract %h, %w : (!cleave.tensor<f32 [b=8, n=4]>, !cleave.tensor<f32 [k=4, n=4]>) -> !cleave.tensor<f32 [b=8, k=4]>
    %e = cleave.contract %dy, %w {cleave.phase = "backward"} : (!cleave.tensor<f32 [b=8, k=4]>, !cleave.tensor<f32 [k=4, n=4]>) -> !cleave.tensor<f32 [b=8, n=4]>
    %s = cleave.reduce sum %y over ["k"] : !cleave.tensor<f32 [b=8, k=4]> -> !cleave.tensor<f32 [b=8]>
    %g = cleave.contract %x, %e {cleave.phase = "backward"} : (!cleave.tensor<f32 [b=8, k=4]>, !cleave.tensor<f32 [b=8, n=4]>) -> !cleave.tensor<f32 [k=4, n=4]>
    %w1 = cleave.sub %w, %g {cleave.phase = "optimizer"} : (!cleave.tensor<f32 [k=4, n=4]>, !cleave.tensor<f32 [k=4, n=4]>) -> !cleave.tensor<f32 [k=4, n=4]>
    return %w1, %s, %e : !cleave.tensor<f32 [k=4, n=4]>, !cleave.tensor<f32 [b=8]>, !cleave.tensor<f32 [b=8, n=4]>
  }
}

// -----

// A sum passes a scatter_add when that lets it be reduce-scattered along the dim that the param is split by, and not when
// it is scattered as well before, where it has fewer rows.
module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.plan = [#cleave.shard_rule<b by dp>], cleave.zero = #cleave.zero<2 over dp>} {
  // CHECK-LABEL: @positions
  // CHECK: %[[SUM:.*]] = cleave.reduce sum
  // CHECK: %[[ALL:.*]] = cleave.scatter_add %[[SUM]]{{.*}} -> {{.*}}<f32 [p=6, w=5] sum {dp}>
  // CHECK-NEXT: cleave.reduce_scatter sum %[[ALL]] along "p"
  // CHECK: %[[MORE:.*]] = cleave.reduce sum
  // CHECK-NEXT: %[[PART:.*]] = cleave.reduce_scatter sum %[[MORE]] along "w"
  // CHECK: cleave.scatter_add %[[PART]]
  // CHECK-NOT: cleave.all_reduce
  func.func @positions(%u: !cleave.tensor<f32 [p=6, w=5]> {cleave.name = "u", cleave.role = "param"}, %v: !cleave.tensor<f32 [p=7, w=4]> {cleave.name = "v", cleave.role = "param"},
                       %dx: !cleave.tensor<f32 [b=8, s=6, w=5]>, %dy: !cleave.tensor<f32 [b=8, s=5, w=4]>, %i: !cleave.tensor<i32 [s=6]>, %j: !cleave.tensor<i32 [s=5]>)
      -> (!cleave.tensor<f32 [p=6, w=5]> {cleave.name = "grad:u"}, !cleave.tensor<f32 [p=7, w=4]> {cleave.name = "grad:v"}) {
    %a = cleave.reduce sum %dx over ["b"] : !cleave.tensor<f32 [b=8, s=6, w=5]> -> !cleave.tensor<f32 [s=6, w=5]>
    %g = cleave.scatter_add %a["p" = %i] : (!cleave.tensor<f32 [s=6, w=5]>, !cleave.tensor<i32 [s=6]>) -> !cleave.tensor<f32 [p=6, w=5]>
    %c = cleave.reduce sum %dy over ["b"] : !cleave.tensor<f32 [b=8, s=5, w=4]> -> !cleave.tensor<f32 [s=5, w=4]>
    %h = cleave.scatter_add %c["p" = %j] : (!cleave.tensor<f32 [s=5, w=4]>, !cleave.tensor<i32 [s=5]>) -> !cleave.tensor<f32 [p=7, w=4]>
    return %g, %h : !cleave.tensor<f32 [p=6, w=5]>, !cleave.tensor<f32 [p=7, w=4]>
  }
}

// -----

// Which dim: what leaves a rank the fewest elements, then one that no rule splits, then the outermost; no layers' dim;
// a shard must be a part of what the plan gives the rank (5 over 2 x 2 is not); a pin over the axis holds.
module attributes {cleave.mesh = #cleave.mesh<dp=2, tp=2>, cleave.plan = [#cleave.shard_rule<b by dp>, #cleave.shard_rule<h by tp>], cleave.zero = #cleave.zero<3 over dp>} {
  // CHECK-LABEL: @dims
  // CHECK-SAME: <f32 [p=6 {dp}, q=4]>
  // CHECK-SAME: <f32 [p=3, q=4 {dp}]>
  // CHECK-SAME: <f32 [h=8 {tp}, q=4 {dp}]>
  // CHECK-SAME: <f32 [h=8 {tp, dp}, q=3]>
  // CHECK-SAME: <f32 [h=8 {tp, dp}]>
  // CHECK-SAME: <f32 [h=5 {tp}]>
  // CHECK-SAME: <f32 [p=1 {dp}]>
  // CHECK-SAME: <f32 replicated>
  // CHECK-SAME: <f32 [layers=4, p=3 {dp}]>
  // CHECK-SAME: <f32 [layers=4] replicated>
  // CHECK-SAME: <f32 [p=6, q=4] replicated>
  func.func @dims(%0: !cleave.tensor<f32 [p=6, q=4]> {cleave.role = "param"}, %1: !cleave.tensor<f32 [p=3, q=4]> {cleave.role = "param"},
                  %2: !cleave.tensor<f32 [h=8, q=4]> {cleave.role = "param"}, %3: !cleave.tensor<f32 [h=8, q=3]> {cleave.role = "param"},
                  %4: !cleave.tensor<f32 [h=8]> {cleave.role = "param"}, %5: !cleave.tensor<f32 [h=5]> {cleave.role = "param"},
                  %6: !cleave.tensor<f32 [p=1]> {cleave.role = "param"}, %7: !cleave.tensor<f32> {cleave.role = "param"},
                  %8: !cleave.tensor<f32 [layers=4, p=3]> {cleave.role = "param", cleave.stacked = 1 : i64},
                  %9: !cleave.tensor<f32 [layers=4]> {cleave.role = "param", cleave.stacked = 1 : i64},
                  %10: !cleave.tensor<f32 [p=6, q=4]> {cleave.role = "param", cleave.pin = [], cleave.pin_axes = ["dp"]}) {
    return
  }
}
