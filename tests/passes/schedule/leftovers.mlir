// RUN: cleave-opt --cleave-print-schedule %s | FileCheck %s
// RUN: cleave-opt --cleave-print-schedule %s | FileCheck %s --check-prefix=GROUPS

// What fusion did not put into groups gets groups of its own. The layer index is
// read from a table; views cost nothing; a constant goes to where it is used.

!x = !cleave.tensor<f32 [n=16]>
!y = !cleave.tensor<f32 [m=16]>
// CHECK-LABEL: program @views
// CHECK: 0: kernel rows_[[#]]([[T:b[0-9]+]]) extent 3
// CHECK: 1: kernel rows_[[#K:]](b0, [[T]]+8, [[A:b[0-9]+]]) extent 16
// CHECK: 2: kernel rows_[[#K]]([[A]], [[T]]+4, [[B:b[0-9]+]]) extent 16
// CHECK: 3: kernel rows_[[#K]]([[B]], [[T]], [[C:b[0-9]+]]) extent 16
// CHECK: 4: kernel rows_[[#K+1]]([[C]], b1) extent 16
// CHECK: 5: kernel rows_[[#]]([[C]]+16, b2) extent 4
// CHECK-NEXT: b0
// GROUPS-LABEL: func.func @views
// GROUPS: cleave.fused rows(%[[X:.*]] = %{{[0-9]+}} : !cleave.tensor<f32 [n=16]>) -> {{.*}} {
// GROUPS-NEXT: %[[TWO:.*]] = cleave.constant 2.0
// GROUPS-NEXT: cleave.mul %[[X]], %[[TWO]]
func.func @views(%x: !x) -> (!y, !cleave.tensor<f32 [n=4]>) {
  %two = cleave.constant 2.0 : f32 : !cleave.tensor<f32>
  %l = cleave.repeat layer = 3 reverse %i carry(%c = %x : !x) -> !x {
    %f = cleave.fused rows(%a = %c : !x, %k = %i : !cleave.tensor<i32>) -> !x {
      %0 = cleave.cast %k : !cleave.tensor<i32> -> !cleave.tensor<f32>
      %1 = cleave.add %a, %0 : (!x, !cleave.tensor<f32>) -> !x
      cleave.yield %1 : !x
    }
    cleave.yield %f : !x
  }
  %d = cleave.mul %l, %two : (!x, !cleave.tensor<f32>) -> !x
  %b = cleave.barrier %d : !x -> !x
  %r = cleave.rename %b : !x -> !y
  %s = cleave.slice %l ["n" from 4] : !x -> !cleave.tensor<f32 [n=4]>
  %e = cleave.exp %s : !cleave.tensor<f32 [n=4]> -> !cleave.tensor<f32 [n=4]>
  return %r, %e : !y, !cleave.tensor<f32 [n=4]>
}
