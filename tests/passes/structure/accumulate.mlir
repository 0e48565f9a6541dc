// DEFINE: %{shard} = --cleave-assign-shardings --cleave-insert-collectives --cleave-mask-padding --cleave-verify-shardings
// RUN: cleave-opt %s --cleave-split-micro-batches="count=3 dim=rows" | FileCheck %s --check-prefix=AXIS
// RUN: cleave-opt %s --cleave-split-micro-batches="count=3 dim=rows" %{shard} | FileCheck %s --check-prefix=SHARD
// RUN: cleave-opt %s --cleave-split-micro-batches="count=3 dim=rows" %{shard} --cleave-partition --cleave-repeat-micro-batches -cse | FileCheck %s --check-prefix=REPEAT
// RUN: cleave-opt %s --cleave-split-micro-batches=count=1 | FileCheck %s --check-prefix=SAME

// AXIS: module attributes {cleave.mesh = #cleave.mesh<dp=2, accumulate=3>, cleave.plan = [#cleave.shard_rule<rows by dp>, #cleave.shard_rule<rows by accumulate>]}
// SAME: module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.plan = [#cleave.shard_rule<rows by dp>]}
// The axis is gone again.
// REPEAT: module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.plan = [#cleave.shard_rule<rows by dp>]}
module attributes {cleave.mesh = #cleave.mesh<dp=2>, cleave.plan = [#cleave.shard_rule<rows by dp>]} {
  // A weighted mean: the sum of the weights is needed by each micro-batch's gradient.
  // SHARD-LABEL: @weighted
  // SHARD-SAME: f32 [rows=12 {dp, accumulate}, n=4]>
  // SHARD: cleave.all_reduce sum %{{.*}} over [#cleave.axis<dp>, #cleave.axis<accumulate>]
  // REPEAT-LABEL: @weighted
  // REPEAT-SAME: %[[X:[^:]*]]: !cleave.tensor<f32 [rows=6, n=4]>
  // REPEAT-SAME: %[[K:[^:]*]]: !cleave.tensor<f32 [rows=6]>
  // REPEAT-SAME: %[[W:[^:]*]]: !cleave.tensor<f32 [n=4]>
  // REPEAT-SAME: cleave.layouts = [!cleave.tensor<f32 [rows=12 {dp}, n=4]>
  // REPEAT-DAG: %[[XS:.*]] = cleave.split_dim %[[X]] : <f32 [rows=6, n=4]> -> <f32 [accumulate=3, rows=2, n=4]>
  // REPEAT-DAG: %[[KS:.*]] = cleave.split_dim %[[K]]
  // The weights alone, first.
  // REPEAT: %[[ALL:.*]] = cleave.repeat accumulate = 3
  // REPEAT-NOT: %[[W]]
  // REPEAT: cleave.reduce sum
  // REPEAT: cleave.yield
  // REPEAT: %[[TOTAL:.*]] = cleave.all_reduce sum %[[ALL]] over [#cleave.axis<dp>]
  // Then both sums, which need the total.
  // REPEAT: %[[SUMS:.*]]:2 = cleave.repeat accumulate = 3
  // REPEAT: cleave.div %{{.*}}, %[[TOTAL]]
  // REPEAT: cleave.yield
  // REPEAT-DAG: cleave.all_reduce sum %[[SUMS]]#0 over [#cleave.axis<dp>]
  // REPEAT-DAG: cleave.all_reduce sum %[[SUMS]]#1 over [#cleave.axis<dp>]
  // REPEAT-NOT: cleave.all_reduce
  func.func @weighted(%x: !cleave.tensor<f32 [rows=12, n=4]> {cleave.role = "input"}, %k: !cleave.tensor<f32 [rows=12]> {cleave.role = "input"},
                      %w: !cleave.tensor<f32 [n=4]> {cleave.role = "param", cleave.name = "w"})
      -> (!cleave.tensor<f32>, !cleave.tensor<f32 [n=4]>) {
    %y = cleave.contract %x, %w : (!cleave.tensor<f32 [rows=12, n=4]>, !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [rows=12]>
    %yk = cleave.mul %y, %k : (!cleave.tensor<f32 [rows=12]>, !cleave.tensor<f32 [rows=12]>) -> !cleave.tensor<f32 [rows=12]>
    %sum = cleave.reduce sum %yk over ["rows"] : !cleave.tensor<f32 [rows=12]> -> !cleave.tensor<f32>
    %total = cleave.reduce sum %k over ["rows"] : !cleave.tensor<f32 [rows=12]> -> !cleave.tensor<f32>
    %mean = cleave.div %sum, %total : (!cleave.tensor<f32>, !cleave.tensor<f32>) -> !cleave.tensor<f32>
    %dy = cleave.div %k, %total : (!cleave.tensor<f32 [rows=12]>, !cleave.tensor<f32>) -> !cleave.tensor<f32 [rows=12]>
    %dw = cleave.contract %dy, %x : (!cleave.tensor<f32 [rows=12]>, !cleave.tensor<f32 [rows=12, n=4]>) -> !cleave.tensor<f32 [n=4]>
    return %mean, %dw : !cleave.tensor<f32>, !cleave.tensor<f32 [n=4]>
  }

  // What a repeat over layers stacks, or adds up, stays a partial sum until all is done.
  // REPEAT-LABEL: @layers
  // REPEAT: %[[SUMS:.*]]:2 = cleave.repeat accumulate = 3
  // REPEAT: %[[IN:.*]]:3 = cleave.repeat layers = 5
  // REPEAT-NOT: cleave.all_reduce
  // REPEAT-DAG: cleave.add %{{.*}}, %[[IN]]#1
  // REPEAT-DAG: cleave.add %{{.*}}, %[[IN]]#2
  // REPEAT: cleave.yield
  // REPEAT: cleave.all_reduce sum %[[SUMS]]#
  // REPEAT: cleave.all_reduce sum %[[SUMS]]#
  func.func @layers(%x: !cleave.tensor<f32 [rows=12, n=4]> {cleave.role = "input"}, %w: !cleave.tensor<f32 [layers=5, n=4]> {cleave.role = "param"})
      -> (!cleave.tensor<f32 [layers=5, n=4]>, !cleave.tensor<f32 [n=4]>) {
    %zero = cleave.constant 0.0 : f32 : !cleave.tensor<f32 [n=4]>
    %r:3 = cleave.repeat layers = 5 %i carry(%h = %x : !cleave.tensor<f32 [rows=12, n=4]>, %s = %zero : !cleave.tensor<f32 [n=4]>)
        slices(%wi = %w : !cleave.tensor<f32 [layers=5, n=4]> -> !cleave.tensor<f32 [n=4]>)
        -> !cleave.tensor<f32 [rows=12, n=4]>, !cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [layers=5, n=4]> {
      %y = cleave.mul %h, %wi : (!cleave.tensor<f32 [rows=12, n=4]>, !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [rows=12, n=4]>
      %g = cleave.reduce sum %y over ["rows"] : !cleave.tensor<f32 [rows=12, n=4]> -> !cleave.tensor<f32 [n=4]>
      %q = cleave.reduce sum %h over ["rows"] : !cleave.tensor<f32 [rows=12, n=4]> -> !cleave.tensor<f32 [n=4]>
      %t = cleave.add %s, %q : (!cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [n=4]>
      cleave.yield %y, %t, %g : !cleave.tensor<f32 [rows=12, n=4]>, !cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [n=4]>
    }
    return %r#2, %r#1 : !cleave.tensor<f32 [layers=5, n=4]>, !cleave.tensor<f32 [n=4]>
  }
}
