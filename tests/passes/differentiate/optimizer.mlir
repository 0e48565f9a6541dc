// RUN: cleave-opt %s --cleave-differentiate --cleave-add-optimizer=kind=adamw -cse | FileCheck %s --check-prefix=ADAM
// RUN: cleave-opt %s --cleave-differentiate --cleave-add-optimizer="kind=sgd momentum=0.9" -cse | FileCheck %s --check-prefix=SGD
// RUN: cleave-opt %s --cleave-differentiate --cleave-add-optimizer="kind=sgd clip=0.5" -cse | FileCheck %s --check-prefix=CLIP
// RUN: not cleave-opt %s --cleave-differentiate --cleave-add-optimizer=kind=adam 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// Params and both moments are donated; the norm's weight does not decay.
// ADAM-LABEL: func.func @train_step
// ADAM-SAME: cleave.donated_to = 0 : i64, cleave.name = "w"
// ADAM-SAME: cleave.name = "adam.m:w"
// ADAM-SAME: cleave.name = "adam.v:g"
// ADAM-SAME: cleave.name = "lr"
// SGD-LABEL: func.func @train_step
// SGD-SAME: cleave.name = "sgd.momentum:w"
// No step is taken when the norm, in f64 and of both params, is not finite.
// ADAM: %[[NORM:.*]] = cleave.sqrt {{.*}} : <f64> -> <f64>
// ADAM: %[[FINITE:.*]] = cleave.compare lt %[[NORM]],
// ADAM: %[[T:.*]] = cleave.add %arg6,
// ADAM: %[[COUNT:.*]] = cleave.select %[[FINITE]], %[[T]], %arg6
// ADAM: cleave.select %[[FINITE]], %{{.*}}, %arg2
// ADAM: cleave.select %[[FINITE]], %{{.*}}, %arg4
// ADAM: cleave.constant 1.000000e-02
// ADAM: %[[W:.*]] = cleave.select %[[FINITE]], %{{.*}}, %arg0
// ADAM: return %[[W]], {{.*}}, %[[COUNT]], %{{.*}}, %[[NORM]] :
// Clipped gradients are multiplied by one number; the norm is that before.
// CLIP: %[[NORM:.*]] = cleave.sqrt
// CLIP: %[[FITS:.*]] = cleave.div
// CLIP: %[[FACTOR:.*]] = cleave.minimum %[[FITS]]
// CLIP: %[[OWN:.*]] = cleave.cast %[[FACTOR]] {{.*}} : <f64> -> <f32>
// CLIP: cleave.mul %{{.*}}, %[[OWN]]
// CLIP: return {{.*}}, %[[NORM]] :
// UNKNOWN: there is no optimizer 'adam'; there are adamw and sgd
func.func @loss(%w: !cleave.tensor<f32 [n=4]> {cleave.role = "param", cleave.name = "w"},
                %g: !cleave.tensor<f32 [n=4]> {cleave.role = "param", cleave.name = "g", cleave.no_decay}) -> !cleave.tensor<f32> {
  %p = cleave.mul %w, %g : (!cleave.tensor<f32 [n=4]>, !cleave.tensor<f32 [n=4]>) -> !cleave.tensor<f32 [n=4]>
  %l = cleave.reduce sum %p over ["n"] : !cleave.tensor<f32 [n=4]> -> !cleave.tensor<f32>
  return %l : !cleave.tensor<f32>
}
