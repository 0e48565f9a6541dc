// Sums over ranks in mixed precision: in f32 before they are rounded, or rounded in their parts; and ZeRO's gathers.
// RUN: cleave-opt %s --split-input-file --cleave-assign-shardings --cleave-insert-collectives --cleave-mask-padding --cleave-verify-shardings --cleave-verify-padding | FileCheck %s

module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<k by tp>]} {
  // CHECK-LABEL: @in_f32
  // CHECK: %[[PART:.*]] = cleave.contract {{.*}} -> {{.*}}<f32 [b=8, n=6] sum {tp}>
  // CHECK-NEXT: %[[SUM:.*]] = cleave.all_reduce sum %[[PART]] {{.*}}<f32 [b=8, n=6]
  // CHECK-NEXT: cleave.cast %[[SUM]] : {{.*}} -> <bf16 [b=8, n=6] replicated>
  func.func @in_f32(%x: !cleave.tensor<bf16 [b=8, k=4]>, %w: !cleave.tensor<bf16 [k=4, n=6]>) -> !cleave.tensor<bf16 [b=8, n=6]> {
    %y = cleave.contract %x, %w : (!cleave.tensor<bf16 [b=8, k=4]>, !cleave.tensor<bf16 [k=4, n=6]>) -> !cleave.tensor<f32 [b=8, n=6]>
    %z = cleave.cast %y : !cleave.tensor<f32 [b=8, n=6]> -> !cleave.tensor<bf16 [b=8, n=6]>
    return %z : !cleave.tensor<bf16 [b=8, n=6]>
  }

  // CHECK-LABEL: @in_parts
  // CHECK: %[[PART:.*]] = cleave.contract {{.*}} -> {{.*}}<f32 [b=8, n=6] sum {tp}>
  // CHECK-NEXT: %[[ROUNDED:.*]] = cleave.cast %[[PART]] partial : {{.*}} -> <bf16 [b=8, n=6] sum {tp}>
  // CHECK-NEXT: %[[SUM:.*]] = cleave.all_reduce sum %[[ROUNDED]] {{.*}}<bf16 [b=8, n=6]
  // CHECK-NEXT: cleave.cast %[[SUM]] : {{.*}} -> <f32 [b=8, n=6] replicated>
  func.func @in_parts(%x: !cleave.tensor<bf16 [b=8, k=4]>, %w: !cleave.tensor<bf16 [k=4, n=6]>) -> !cleave.tensor<f32 [b=8, n=6]> {
    %y = cleave.contract %x, %w : (!cleave.tensor<bf16 [b=8, k=4]>, !cleave.tensor<bf16 [k=4, n=6]>) -> !cleave.tensor<f32 [b=8, n=6]>
    %z = cleave.cast %y partial : !cleave.tensor<f32 [b=8, n=6]> -> !cleave.tensor<bf16 [b=8, n=6]>
    %u = cleave.cast %z : !cleave.tensor<bf16 [b=8, n=6]> -> !cleave.tensor<f32 [b=8, n=6]>
    return %u : !cleave.tensor<f32 [b=8, n=6]>
  }
}

// -----

module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.plan = [#cleave.shard_rule<b by dp>], cleave.zero = #cleave.zero<3 over dp>} {
  // A param that is read in bf16 only: its shard is cast, the copy is gathered. The rounded parts of its gradient are scattered.
  // CHECK-LABEL: @copy
  // CHECK-SAME: %[[W:[a-z0-9]*]]: !cleave.tensor<f32 [k=4 {dp}, n=5]>
  // CHECK-NEXT: %[[SHARD:.*]] = cleave.cast %[[W]] wide_gradient {{.*}} -> <bf16 [k=4 {dp}, n=5]>
  // CHECK-NEXT: %[[COPY:.*]] = cleave.all_gather %[[SHARD]] {{.*}}"a param in shards is read"{{.*}} -> <bf16 [k=4, n=5] replicated>
  // CHECK-NEXT: cleave.contract %{{.*}}, %[[COPY]]
  // CHECK: %[[G:.*]] = cleave.contract {{.*}} -> {{.*}}<f32 [k=4, n=5] sum {dp}>
  // CHECK-NEXT: %[[PART:.*]] = cleave.cast %[[G]] partial
  // CHECK-NEXT: %[[SUM:.*]] = cleave.reduce_scatter sum %[[PART]] {{.*}} -> <bf16 [k=4 {dp}, n=5]>
  // CHECK-NEXT: cleave.cast %[[SUM]] {{.*}} -> <f32 [k=4 {dp}, n=5]>
  // CHECK-NOT: cleave.all
  // CHECK: return
  func.func @copy(%w: !cleave.tensor<f32 [k=4, n=5]> {cleave.name = "w", cleave.role = "param", cleave.donated_to = 0},
                  %x: !cleave.tensor<bf16 [b=8, k=4]>, %dy: !cleave.tensor<bf16 [b=8, n=5]>)
      -> (!cleave.tensor<f32 [k=4, n=5]>, !cleave.tensor<f32 [b=8, n=5]>) {
    %c = cleave.cast %w wide_gradient : !cleave.tensor<f32 [k=4, n=5]> -> !cleave.tensor<bf16 [k=4, n=5]>
    %y = cleave.contract %x, %c : (!cleave.tensor<bf16 [b=8, k=4]>, !cleave.tensor<bf16 [k=4, n=5]>) -> !cleave.tensor<f32 [b=8, n=5]>
    %g = cleave.contract %x, %dy {cleave.phase = "backward"} : (!cleave.tensor<bf16 [b=8, k=4]>, !cleave.tensor<bf16 [b=8, n=5]>) -> !cleave.tensor<f32 [k=4, n=5]>
    %p = cleave.cast %g partial {cleave.phase = "backward"} : !cleave.tensor<f32 [k=4, n=5]> -> !cleave.tensor<bf16 [k=4, n=5]>
    %u = cleave.cast %p {cleave.phase = "backward"} : !cleave.tensor<bf16 [k=4, n=5]> -> !cleave.tensor<f32 [k=4, n=5]>
    %w1 = cleave.sub %w, %u {cleave.phase = "optimizer"} : (!cleave.tensor<f32 [k=4, n=5]>, !cleave.tensor<f32 [k=4, n=5]>) -> !cleave.tensor<f32 [k=4, n=5]>
    return %w1, %y : !cleave.tensor<f32 [k=4, n=5]>, !cleave.tensor<f32 [b=8, n=5]>
  }

  // One that is also looked up in f32 is gathered as it is, once, and then cast.
  // CHECK-LABEL: @tied
  // CHECK: %[[ALL:.*]] = cleave.all_gather %{{.*}} -> <f32 [v=6, n=4] replicated>
  // CHECK: cleave.cast %[[ALL]]
  // CHECK-NOT: all_gather
  // CHECK: return
  func.func @tied(%w: !cleave.tensor<f32 [v=6, n=4]> {cleave.name = "w", cleave.role = "param"},
                  %ids: !cleave.tensor<i32 [b=8]>, %h: !cleave.tensor<bf16 [b=8, n=4]>)
      -> (!cleave.tensor<f32 [b=8, n=4]>, !cleave.tensor<f32 [b=8, v=6]>) {
    %x = cleave.gather %w["v" = %ids] : (!cleave.tensor<f32 [v=6, n=4]>, !cleave.tensor<i32 [b=8]>) -> !cleave.tensor<f32 [b=8, n=4]>
    %c = cleave.cast %w wide_gradient : !cleave.tensor<f32 [v=6, n=4]> -> !cleave.tensor<bf16 [v=6, n=4]>
    %y = cleave.contract %h, %c : (!cleave.tensor<bf16 [b=8, n=4]>, !cleave.tensor<bf16 [v=6, n=4]>) -> !cleave.tensor<f32 [b=8, v=6]>
    return %x, %y : !cleave.tensor<f32 [b=8, n=4]>, !cleave.tensor<f32 [b=8, v=6]>
  }
}
