// RUN: sed -e 's/HOW/cleave.overlap = "layers"/' %s | cleave-opt --cleave-print-schedule -o /dev/null | FileCheck %s --check-prefix=LAYERS
// RUN: sed -e 's/HOW/cleave.overlap = "none"/' %s | cleave-opt --cleave-print-schedule -o /dev/null | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/HOW/cleave.overlap = "bucketed", cleave.bucket_bytes = 48/' %s | cleave-opt --cleave-print-schedule -o /dev/null | FileCheck %s --check-prefix=B48
// RUN: sed -e 's/HOW/cleave.overlap = "bucketed", cleave.bucket_bytes = 1/' %s | cleave-opt --cleave-print-schedule -o /dev/null | FileCheck %s --check-prefix=LAYERS
// RUN: sed -e 's/HOW/cleave.overlap = "bucketed", cleave.bucket_bytes = 1000/' %s | cleave-opt --cleave-print-schedule -o /dev/null | FileCheck %s --check-prefix=ALL
// RUN: not cleave-opt --cleave-print-schedule %s -o /dev/null 2>&1 | sed -e 's/HOW//' | FileCheck %s --check-prefix=PARSE
// RUN: sed -e 's/HOW/cleave.overlap = "buckets"/' %s | not cleave-opt --cleave-print-schedule -o /dev/null 2>&1 | FileCheck %s --check-prefix=BAD
// RUN: sed -e 's/HOW/cleave.overlap = "bucketed", cleave.bucket_bytes = 0/' %s | not cleave-opt --cleave-print-schedule -o /dev/null 2>&1 | FileCheck %s --check-prefix=BAD

// PARSE: error
// BAD: error: 'cleave.overlap' is none, layers or bucketed, the last with 'cleave.bucket_bytes' of at least 1

// Three gradients of f32, one of f64; one all-reduce that the backward pass goes on with.
//
// LAYERS:      steps
// LAYERS:      0: kernel
// LAYERS-NEXT: 1: all_reduce sum f32 [1, 6 -> 6, 1]
// LAYERS-NEXT: 2: kernel
// LAYERS-NEXT: 3: all_reduce sum f32 [1, 5 -> 5, 1]
// LAYERS-NEXT: 4: kernel
// LAYERS-NEXT: 5: all_reduce sum f64 [1, 5 -> 5, 1]
// LAYERS-NEXT: 6: kernel
// LAYERS-NEXT: 7: all_reduce sum f32 [1, 4 -> 4, 1]
// LAYERS-NEXT: 8: kernel
// LAYERS-NEXT: 9: kernel
// LAYERS-NEXT: 10: all_reduce sum f32 [1, 7 -> 7, 1]
//
// NONE:      0: kernel
// NONE-NEXT: 1: kernel
// NONE-NEXT: 2: kernel
// NONE-NEXT: 3: kernel
// NONE-NEXT: 4: all_reduce sum f32 [1, 4 -> 4, 1]
// NONE-NEXT: 5: kernel
// NONE-NEXT: 6: kernel
// NONE-NEXT: 7: all_reduce sum f32 [1, 6 -> 6, 1]
// NONE-NEXT: 8: all_reduce sum f32 [1, 5 -> 5, 1]
// NONE-NEXT: 9: all_reduce sum f64 [1, 5 -> 5, 1]
// NONE-NEXT: 10: all_reduce sum f32 [1, 7 -> 7, 1]
//
// 6 and 5 fill a bucket of 48 bytes; 7 is alone, and so is the one of f64.
// B48:      site 0: all_reduce over dp, backward, 1 times, payload 40, ring 40 bytes
// B48:      site 1: all_reduce over dp, backward, 1 times, payload 16, ring 16 bytes
// B48:      site 2: all_reduce over dp, backward, 1 times, payload 28, ring 28 bytes
// B48:      site 3: all_reduce over dp, backward, 1 times, payload 44, ring 44 bytes, {{.*}} (a bucket of 2 gradients)
// B48-NOT:  site
// B48:      0: kernel
// B48-NEXT: 1: copy [[G:b[0-9]+]] -> [[B:b[0-9]+]], 24 bytes
// B48-NEXT: 2: kernel
// B48-NEXT: 3: copy [[H:b[0-9]+]] -> [[B]]+24, 20 bytes
// B48-NEXT: 4: all_reduce sum f32 [1, 11 -> 11, 1] over {dp} [[B]] -> [[B]] site 3
// B48-NEXT: 5: kernel
// B48-NEXT: 6: all_reduce sum f64 [1, 5 -> 5, 1]
// B48:      all_reduce sum f32 [1, 7 -> 7, 1]
// B48:      copy [[B]] -> [[G]], 24 bytes
// B48-NEXT: copy [[B]]+24 -> [[H]], 20 bytes
//
// ALL-COUNT-2: all_reduce sum f{{(32 .1, 4|64 .1, 5)}} -> 
// ALL:      all_reduce sum f32 [1, 18 -> 18, 1]
// ALL-NOT:  all_reduce

module attributes {cleave.mesh = #cleave.mesh<dp=2>, HOW} {
  func.func @step(%x: !cleave.tensor<f32 [a=6]>, %y: !cleave.tensor<f32 [c=5]>, %z: !cleave.tensor<f64 [c=5]>,
                  %u: !cleave.tensor<f32 [d=4]>, %v: !cleave.tensor<f32 [e=7]>)
      -> (!cleave.tensor<f32 [a=6]>, !cleave.tensor<f32 [c=5]>, !cleave.tensor<f64 [c=5]>, !cleave.tensor<f32 [d=4]>, !cleave.tensor<f32 [e=7]>) {
    %0 = cleave.exp %x {cleave.phase = "backward"} : !cleave.tensor<f32 [a=6]> -> !cleave.tensor<f32 [a=6]>
    %1 = cleave.all_reduce sum %0 over [#cleave.axis<dp>] {cleave.phase = "backward"} : !cleave.tensor<f32 [a=6]> -> !cleave.tensor<f32 [a=6]>
    %2 = cleave.exp %y {cleave.phase = "backward"} : !cleave.tensor<f32 [c=5]> -> !cleave.tensor<f32 [c=5]>
    %3 = cleave.all_reduce sum %2 over [#cleave.axis<dp>] {cleave.phase = "backward"} : !cleave.tensor<f32 [c=5]> -> !cleave.tensor<f32 [c=5]>
    %4 = cleave.exp %z {cleave.phase = "backward"} : !cleave.tensor<f64 [c=5]> -> !cleave.tensor<f64 [c=5]>
    %5 = cleave.all_reduce sum %4 over [#cleave.axis<dp>] {cleave.phase = "backward"} : !cleave.tensor<f64 [c=5]> -> !cleave.tensor<f64 [c=5]>
    %6 = cleave.exp %u {cleave.phase = "backward"} : !cleave.tensor<f32 [d=4]> -> !cleave.tensor<f32 [d=4]>
    %7 = cleave.all_reduce sum %6 over [#cleave.axis<dp>] {cleave.phase = "backward"} : !cleave.tensor<f32 [d=4]> -> !cleave.tensor<f32 [d=4]>
    %8 = cleave.exp %7 {cleave.phase = "backward"} : !cleave.tensor<f32 [d=4]> -> !cleave.tensor<f32 [d=4]>
    %9 = cleave.exp %v {cleave.phase = "backward"} : !cleave.tensor<f32 [e=7]> -> !cleave.tensor<f32 [e=7]>
    %10 = cleave.all_reduce sum %9 over [#cleave.axis<dp>] {cleave.phase = "backward"} : !cleave.tensor<f32 [e=7]> -> !cleave.tensor<f32 [e=7]>
    %11 = cleave.neg %1 : !cleave.tensor<f32 [a=6]> -> !cleave.tensor<f32 [a=6]>
    %12 = cleave.neg %3 : !cleave.tensor<f32 [c=5]> -> !cleave.tensor<f32 [c=5]>
    %13 = cleave.neg %5 : !cleave.tensor<f64 [c=5]> -> !cleave.tensor<f64 [c=5]>
    %14 = cleave.neg %10 : !cleave.tensor<f32 [e=7]> -> !cleave.tensor<f32 [e=7]>
    return %11, %12, %13, %8, %14 : !cleave.tensor<f32 [a=6]>, !cleave.tensor<f32 [c=5]>, !cleave.tensor<f64 [c=5]>, !cleave.tensor<f32 [d=4]>, !cleave.tensor<f32 [e=7]>
  }
}
