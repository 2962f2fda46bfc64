// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "options.hpp"
#include "report.hpp"

namespace train {

/// The value in force of an option that some methods use; nothing for what recipes themselves hold against a checkpoint.
/// Throws std::logic_error for one that is not known here, which a row of the table must not name.
inline std::optional<std::string> setting_of(const Options& options, const Method& method,
                                             std::string_view option) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  if (option == "layers" || option == "average-every") return std::nullopt;
  if (option == "most-masked") return std::nullopt;  // changes nothing that is computed
  if (option == "momentum") return number(options.momentum);
  if (option == "warmup-fraction") return number(options.warmup_fraction);
  if (option == "ratio") return number(ratio_of(options, method));
  if (option == "topology") return name(options.topology);
  if (option == "scale") return name(options.scale);
  if (option == "granularity") return name(options.granularity);
  if (option == "bias-correction") return name(options.bias_correction);
  if (option == "update-clip") return number(options.update_clip);
  if (option == "variance-updates") return number(options.variance_updates);
  if (option == "local-interval") return number(options.local_interval);
  if (option == "most-local-steps") return number(options.most_local_steps);
  if (option == "graph") return name(options.graph);
  if (option == "consensus-rate") return number(consensus_rate_of(options, method));
  if (option == "moniqua-bound") return number(moniqua_bound_of(options));
  if (option == "period") return number(period_of(options));
  if (option == "outer-learning-rate") return number(outer_learning_rate_of(options, method));
  if (option == "outer-momentum") return number(outer_momentum_of(options, method));
  if (option == "inner-buffers") return name(inner_buffers_of(options));
  if (option == "average-until") return number(average_until_of(options, method));
  if (option == "pullback") return number(pullback_of(options));
  if (option == "anchor-momentum") return number(anchor_momentum_of(options));
  if (option == "fragments") return number(options.fragments);
  if (option == "fragment-delay") return number(options.fragment_delay);
  if (option == "local-share") return number(options.local_share);
  if (option == "lattice-step") return number(lattice_step_of(options));
  throw std::logic_error("settings.hpp has no option " + std::string(option));
}

/// The options that decide what an optimizer computes, and how long it takes. A run goes on only under the same ones.
inline Settings settings_of(const Options& options, const Method& method, const Dataset& training) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const HighestRate rate = rate_of(options, method);
  Settings settings{
      {"optimizer", method.name},
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
  for (const Use& use : method.uses)
    if (use.option != nullptr)
      if (const std::optional<std::string> value = setting_of(options, method, use.option))
        settings.insert({{use.option, *value}});
  if (is_decentralized(method))
    settings.insert(
        {{"average-every", options.average_every > 0 ? fmt::format("{}", options.average_every) : "never"},
         {"consensus-rate", fmt::format("{}", consensus_rate_of(options, method))}});
  return settings;
}

}  // namespace train
