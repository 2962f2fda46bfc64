// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "options.hpp"
#include "report.hpp"

namespace train {

/// The options that decide what an optimizer computes, and how long it takes. A run goes on only under the same ones.
inline Settings settings_of(const Options& options, Optimizer optimizer, const Dataset& training) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const HighestRate rate = rate_of(options, optimizer);
  Settings settings{
      {"optimizer", name(optimizer)},
      {"model", options.model},
      {"inputs", name(options.inputs)},
      {"label-skew", options.label_skew ? number(*options.label_skew) : "inf"},
      {"ranks", number(options.ranks)},
      {"pictures", number(training.count)},
      {"checksum", fmt::format("{:08x}", training.checksum)},
      {"epochs", number(options.epochs)},
      {"batch", number(options.batch)},
      {rate.option, number(rate.given)},
      {"learning-rate-warmup", number(options.learning_rate_warmup)},
      {"rate-schedule", name(options.rate_schedule)},
      {"weight-decay", number(options.weight_decay)},
      {"clip-norm", options.clip_norm ? number(*options.clip_norm) : "none"},
      {"on-non-finite", name(options.on_non_finite)},
      {"seed", number(options.seed)},
      // These three decide about seconds only, but one run has one kind of those.
      {"delay", options.modelled.delay ? number(*options.modelled.delay) : "none"},
      {"bandwidth", options.modelled.bandwidth ? number(*options.modelled.bandwidth) : "none"},
      {"straggler", options.modelled.straggler ? fmt::format("{}:{}", options.modelled.straggler->rank,
                                                             options.modelled.straggler->factor)
                                               : "none"},
  };
  if (uses_momentum(optimizer)) settings.insert({{"momentum", number(options.momentum)}});
  if (is_local(optimizer)) {
    settings.insert({{"period", number(period_of(options, optimizer))}});
    if (has_inner_buffers(optimizer))
      settings.insert({{"inner-buffers", name(inner_buffers_of(options, optimizer))}});
  }
  if (has_outer_step(optimizer))
    settings.insert({{"outer-learning-rate", number(outer_learning_rate_of(options, optimizer))},
                     {"outer-momentum", number(outer_momentum_of(options, optimizer))}});
  if (optimizer == Optimizer::post_local_sgd)
    settings.insert({{"average-until", number(average_until_of(options, optimizer))}});
  if (optimizer == Optimizer::overlap_local_sgd)
    settings.insert({{"pullback", number(pullback_of(options, optimizer))},
                     {"anchor-momentum", number(anchor_momentum_of(options, optimizer))}});
  if (optimizer == Optimizer::streaming_diloco)
    settings.insert({{"fragments", number(options.fragments)},
                     {"fragment-delay", number(options.fragment_delay)},
                     {"local-share", number(options.local_share)}});
  if (optimizer == Optimizer::swarm_sgd_lattice)
    settings.insert({{"lattice-step", number(lattice_step_of(options, optimizer))}});
  if (is_decentralized(optimizer))
    settings.insert({{"graph", name(options.graph)},
                     {"average-every", options.average_every > 0 ? number(options.average_every) : "never"},
                     {"consensus-rate", number(consensus_rate_of(options, optimizer))}});
  if (optimizer == Optimizer::one_bit_adam)
    settings.insert({{"warmup-fraction", number(options.warmup_fraction)},
                     {"topology", name(options.topology)},
                     {"scale", name(options.scale)},
                     {"granularity", name(options.granularity)},
                     {"update-clip", number(options.update_clip)}});
  if (optimizer == Optimizer::moniqua_sgd)
    settings.insert({{"moniqua-bound", number(moniqua_bound_of(options, optimizer))}});
  if (optimizer == Optimizer::zero_one_adam)
    settings.insert({{"warmup-fraction", number(options.warmup_fraction)},
                     {"update-clip", number(options.update_clip)},
                     {"variance-updates", number(options.variance_updates)},
                     {"local-interval", number(options.local_interval)},
                     {"most-local-steps", number(options.most_local_steps)}});
  if (optimizer == Optimizer::one_bit_lamb)
    settings.insert(
        {{"warmup-fraction", number(options.warmup_fraction)}, {"update-clip", number(options.update_clip)}});
  if (optimizer == Optimizer::deep_gradient_compression)
    settings.insert({{"warmup-fraction", number(options.warmup_fraction)}});
  if (optimizer == Optimizer::deep_gradient_compression || optimizer == Optimizer::ef21_sgd ||
      optimizer == Optimizer::demo)
    settings.insert({{"ratio", number(ratio_of(options, optimizer))}});
  return settings;
}

}  // namespace train
