// RUN: cleave-opt %s -split-input-file -verify-diagnostics --cleave-assign-shardings

// expected-error @+1 {{the plan splits by 'pp', but the mesh #cleave.mesh<tp=2> has no such axis}}
module attributes {cleave.mesh = #cleave.mesh<tp=2>, cleave.plan = [#cleave.shard_rule<n by pp>]} {
  func.func @f(%x: !cleave.tensor<f32 [n=4]>) { return }
}

// -----

// expected-error @+1 {{a=2 * b=8 cuts axis 'tp' of 6 ranks into parts of 3, c=3 * d=8 into parts of 2}}
module attributes {cleave.mesh = #cleave.mesh<tp=6>, cleave.plan = [#cleave.shard_rule<a * b by tp>, #cleave.shard_rule<c * d by tp>]} {
  func.func @f(%x: !cleave.tensor<f32 [a=2, b=8]>, %y: !cleave.tensor<f32 [c=3, d=8]>) { return }
}
