// SPDX-License-Identifier: Apache-2.0
// The passes whose instructions bench/gpu/sass counts. Nothing runs this.
#include "passes.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/device/cuda.cuh"
#include "terse/error_feedback/ef21.hpp"

namespace terse::bench::gpu {

using Device = executor::cuda;

void one_bit_adam(Device ex, Rank<Device>& rank) { OneBitPasses<Sign, Device>(ex, rank).all(); }
void adam(Device ex, Rank<Device>& rank) { for_each(ex, rank.layout.range(), rank.adam()); }
void stretch(Device ex, const Range& range, float* x) { for_each(ex, range, Stretch{x, 1.0001F}); }

template <Compressor C, ErrorFeedback F = Residual>
void compress(Device ex, const Layout& layout, const float* samples, float* x) {
  CompressorPasses<C, F, Device> passes(ex, layout, samples, x);
  passes.send();
  passes.accumulate();
}
template void compress<Cast<bf16>>(Device, const Layout&, const float*, float*);
template void compress<Uniform<4, Stochastic, Symmetric, MaxAbs, PerBlock<512>>>(Device, const Layout&,
                                                                                 const float*, float*);
template void compress<TopK<>, Ef21>(Device, const Layout&, const float*, float*);

}  // namespace terse::bench::gpu
