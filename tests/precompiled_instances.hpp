// SPDX-License-Identifier: Apache-2.0
// Optimizers of which many units have parts, for precompiled headers whose code is compiled once (-fpch-codegen).
#pragma once

#include <terse/checkpoint/elastic.hpp>
#include <terse/checkpoint/folder.hpp>
#include <terse/device.hpp>
#include <terse/device/emulated.hpp>
#include <terse/transport/through_host.hpp>

namespace terse::precompiled {

template <class R, class T, class E = executor::host>
void step(T& transport, view<float, typename E::memory> parameters,
          view<const float, typename E::memory> gradient) {
  Optimizer<R, T, E> optimizer(R{}, transport, Layout::flat(1));
  optimizer.step(parameters, gradient);
}
template <class... Recipes, class T>
void step_all(T& transport, view<float> parameters) {
  (step<Recipes>(transport, parameters, parameters), ...);
}
inline void host(Threads& threads, Metered<Threads>& metered, AnyTransport& any, view<float> parameters) {
  step_all<Adam<>, OneBitAdam<>, MomentumSgd<>, OneBitAdam<AllGather>, OneBitAdam<Ring>,
           OneBitAdam<Packed<quantizer::SignBit<MeanAbs>, PerBlock<64>>>, OneBitLamb<>, ZeroOneAdam<>, Lamb<>,
           LocalSgd<MomentumSgd<>>>(threads, parameters);
  step_all<Adam<>, OneBitAdam<>>(metered, parameters);
  step_all<Adam<>>(any, parameters);
}

}  // namespace terse::precompiled
