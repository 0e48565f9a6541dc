// RUN: cleave-opt --cleave-print-schedule --split-input-file %s | FileCheck %s
// RUN: cleave-opt --cleave-print-schedule=in-place --split-input-file %s | FileCheck %s --check-prefix=INPLACE

// The old value is read after the new one is made: a copy at the end, whatever
// the kernel does (B68).

!t = !cleave.tensor<f32 [n=16]>
// CHECK-LABEL: program @late_read
// CHECK: 0: kernel rows_0(b0, b1, [[N:b[0-9]+]])
// CHECK: 1: kernel rows_1(b0, [[N]], b2)
// CHECK: 2: copy [[N]] -> b0, 64 bytes
// INPLACE-LABEL: program @late_read
// INPLACE: 0: kernel rows_0(b0, b1, [[N:b[0-9]+]])
// INPLACE: 2: copy [[N]] -> b0, 64 bytes
func.func @late_read(%w: !t {cleave.donated_to = 0}, %g: !t) -> (!t, !t) {
  %n = cleave.fused rows(%a = %w : !t, %b = %g : !t) -> !t {
    %0 = cleave.sub %a, %b : (!t, !t) -> !t
    cleave.yield %0 : !t
  }
  %d = cleave.fused rows(%a = %w : !t, %b = %n : !t) -> !t {
    %0 = cleave.mul %a, %b : (!t, !t) -> !t
    cleave.yield %0 : !t
  }
  return %n, %d : !t, !t
}

// -----

// The old value is read before: the new one is made in its place at once.

!t = !cleave.tensor<f32 [n=16]>
// CHECK-LABEL: program @early_read: 2 steps
// CHECK: 0: kernel rows_0(b0, [[D:b[0-9]+]])
// CHECK: 1: kernel rows_1([[D]], b0)
func.func @early_read(%w: !t {cleave.donated_to = 0}) -> !t {
  %d = cleave.fused rows(%a = %w : !t) -> !t {
    %0 = cleave.exp %a : !t -> !t
    cleave.yield %0 : !t
  }
  %n = cleave.fused rows(%a = %d : !t) -> !t {
    %0 = cleave.exp %a : !t -> !t
    cleave.yield %0 : !t
  }
  return %n : !t
}

// -----

// Two arguments change places: through a third buffer.

!t = !cleave.tensor<f32 [n=16]>
// CHECK-LABEL: program @exchange: 3 steps
// CHECK: 0: copy b1 -> [[T:b[0-9]+]]
// CHECK: 1: copy b0 -> b1
// CHECK: 2: copy [[T]] -> b0
func.func @exchange(%v: !t {cleave.donated_to = 0}, %w: !t {cleave.donated_to = 1}) -> (!t, !t) {
  return %w, %v : !t, !t
}

// -----

// Unchanged and donated: nothing to do. Unchanged and not donated: a copy, before
// the argument changes.

!t = !cleave.tensor<f32 [n=16]>
// CHECK-LABEL: program @unchanged: 3 steps
// CHECK: 0: kernel rows_0(b2, [[N:b[0-9]+]])
// CHECK: 1: copy b1 -> b3, 64 bytes
// CHECK: 2: copy [[N]] -> b2, 64 bytes
// CHECK: b0: argument 0, 64 bytes{{$}}
func.func @unchanged(%v: !t {cleave.donated_to = 0}, %w: !t, %u : !t {cleave.donated_to = 2}) -> (!t, !t, !t) {
  %n = cleave.fused rows(%a = %u : !t) -> !t {
    %0 = cleave.exp %a : !t -> !t
    cleave.yield %0 : !t
  }
  return %v, %w, %n : !t, !t, !t
}

// -----

// Weights that are updated layer by layer: each layer's part is written after its
// own last read, though other layers' are still read.

!s = !cleave.tensor<f32 [layer=3, n=16]>
!t = !cleave.tensor<f32 [n=16]>
// CHECK-LABEL: program @by_layer: 6 steps
// CHECK: 0: kernel rows_0(b0, [[D:b[0-9]+]])
// CHECK: 1: kernel rows_1([[D]], b0)
// CHECK: 2: kernel rows_0(b0+64, [[D1:b[0-9]+]])
// CHECK: 3: kernel rows_1([[D1]], b0+64)
// CHECK: 5: kernel rows_1({{b[0-9]+}}, b0+128)
func.func @by_layer(%w: !s {cleave.donated_to = 0}) -> !s {
  %n = cleave.repeat layer = 3 %i slices(%a = %w : !s -> !t) -> !s {
    %d = cleave.fused rows(%x = %a : !t) -> !t {
      %0 = cleave.exp %x : !t -> !t
      cleave.yield %0 : !t
    }
    %e = cleave.fused rows(%x = %d : !t) -> !t {
      %0 = cleave.neg %x : !t -> !t
      cleave.yield %0 : !t
    }
    cleave.yield %e : !t
  }
  return %n : !s
}
