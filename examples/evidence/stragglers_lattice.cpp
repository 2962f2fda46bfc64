// SPDX-License-Identifier: Apache-2.0

// Swarms with lattice packets that the trainer doesn't have.

#include "stragglers_lattice.hpp"
#include "../../tools/train/local.hpp"
#include "terse/compressor/lattice.hpp"
#include "terse/optimizer/local/async_swarm_sgd.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"

train::Made lattice_swarm(const train::Order<train::OnHost>& order) {
  using Inner = terse::MomentumSgd<>;
  using Packets = terse::Lattice<8>;
  const Packets packets{.step = static_cast<float>(train::lattice_step_of(order.options))};
  const auto period = static_cast<std::uint64_t>(train::period_of(order.options));
  if (!train::sends_messages(order.method))
    return made(order, terse::AsyncSwarmSgd<Inner, Packets>{
                           .inner = inner_momentum_sgd(order), .period = period, .compressor = packets});
  return made(order, terse::NonBlockingSwarmSgd<Inner, Packets>{
                         .inner = inner_momentum_sgd(order),
                         .schedule = {.graph = {.seed = order.options.seed}, .period = period},
                         .compressor = packets});
}
