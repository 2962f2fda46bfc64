// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "terse/optimizer/check_mixing.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/preconditioner/rates.hpp"

namespace terse::detail {

/// The state of a ParameterMixing on one rank, and its memory.
template <class M, class P, class C, class F, Executor E>
struct ParameterMixingState {
  static constexpr int vectors = M::facts.vectors;
  using Topology = typename P::template With<vectors>;
  using Mixer = Exchange<C, F, Topology, E>;

  Mixer mixer;
  std::optional<DenseExchange<P, E>> exact;
  Rates<E> rates;
  std::vector<buffer<float, typename E::memory>> buffers;
  buffer<float, typename E::memory> kept;  // second vector, for exact means
  std::uint64_t mixed_steps = 0;
  std::uint64_t last_rate = 0;  // bits of a float, as checkpoints store it
  int rank, size;
  Range range;
  bool begun = false;  // this step's messages have been sent

  template <class Recipe>
  ParameterMixingState(const Recipe& recipe, E executor, Channel& transport, const Layout& layout,
                       const Options& options)
      : mixer(executor, transport, layout, layout.range(), recipe.compressor, recipe.error_feedback, false,
              recipe.topology.template with<vectors>()),
        rates(layout),
        rank(transport.rank()),
        size(transport.size()),
        range(layout.range()) {
    if constexpr (!C::lossless)
      if (recipe.average_every > 0)
        throw usage_error("average_every is for packets that are not compressed", transport.rank());
    check_average<M, P>(recipe.average_every, rank);
    if (recipe.average_every > 0)
      exact.emplace(executor, transport, layout, layout.range(), Dense{}, NoErrorFeedback{}, false,
                    DenseTopologyOf<P>{}, options.slice_bytes);
    if (vectors > 1 && recipe.average_every > 0) kept = buffer<float, typename E::memory>(layout.size());
    // Allocates the graph's memory.
    recipe.topology.graph.check(recipe.topology.nodes(size));
    check_spectrum(recipe.momentum_correction, recipe.topology, size, rank);
    for ([[maybe_unused]] const char* name : M::state) buffers.emplace_back(layout.size());
  }
  bool full_precision() const { return false; }
  StepBytes bytes_per_step() const {
    if (!C::lossless) return {0, mixer.most_bytes()};
    return {std::max(mixer.most_bytes(), exact ? vectors * exact->most_bytes() : 0), 0};
  }
  template <class Visit>
  void walk_buffers(Visit&& visit) {
    for (auto& buffer : buffers) visit(buffer.all());
  }
  template <class Visit>
  void walk(Visit&& visit) {
    visit("mixed_steps", mixed_steps);
    visit("last_rate", last_rate);
    for (std::size_t k = 0; k < buffers.size(); ++k) visit(M::state[k], buffers[k].all(), index_t{0});
    mixer.walk(visit);
  }

  /// Returns the view that is the argument of a step's functors.
  template <class View, class N>
  View view_of(const StepInput<E, N>& input) {
    View view{input.parameters, input.gradients,   {},
              rates.table(),    input.context.now, input.context.on_non_finite == NonFinite::zero};
    for (std::size_t k = 0; k < buffers.size(); ++k) view.buffers[k] = buffers[k].data();
    return view;
  }
};

}  // namespace terse::detail
