// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "terse/core/hash.hpp"
#include "terse/core/packet.hpp"
#include "terse/core/type_name.hpp"
#include "terse/executor/numerics.hpp"
#include "terse/optimizer/options.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/plan.hpp"
#include "terse/transport/agreement.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"

namespace terse {

namespace detail {

/// Where layouts of ranks part, by this rank's own. Collective.
TERSE_COLD std::string first_difference(Channel& channel, const Layout& layout);

/// Options that differ make another hash, and those that make the same packets need not.
std::uint64_t options_hash(const Options& options, const Layout& layout);

}  // namespace detail

/// Compares what must be alike on all ranks, `numerics` of their executors included, and returns its hash. Collective.
/// Throws mismatch_error that names the first field that differs, and the rank, and usage_error if no arithmetic differs but all is
/// wrong.
template <class R>
TERSE_COLD std::uint64_t agree_on_fingerprint(Channel& channel, const Layout& layout, const R& recipe,
                                              const Options& options, std::uint64_t numerics) {
  const detail::Call call(detail::Verb::optimizer);
  SettingsList settings;
  composed(recipe).settings(detail::SettingsVisitor(settings));
  const Agreed fields[] = {{"wire version", PacketHeader::wire_version},
                           {"world", static_cast<std::uint64_t>(channel.size())},
                           {"layout", layout_hash(layout)},
                           {"recipe", mix_hash(0, type_name<R>().c_str())},
                           {"seed", options.seed},
                           {"value of an option (on_non_finite, clip_norm, slice_bytes, check_payload, "
                            "compare_every, most_masked)",
                            detail::options_hash(options, layout)},
                           {"numerics", numerics}};
  constexpr std::size_t layout_at = 2, count = std::size(fields), numerics_at = count - 1;
  const auto more = [&](const std::vector<std::uint64_t>& all) -> std::string {
    // Alike on all ranks, who see the same values.
    if (std::string faults = describe_numerics(all, count, numerics_at); !faults.empty()) return faults;
    bool layouts_alone = false;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k] == all[k % count]) continue;
      if (k % count != layout_at) return "";
      layouts_alone = true;
    }
    return layouts_alone ? detail::first_difference(channel, layout) : "";
  };
  const std::uint64_t alike = agree(channel, fields, more);
  check_numerics(numerics, channel.rank());
  agree_on_settings(channel, "other hyper-parameters", settings);
  return mix_hash(alike, settings.hash());
}

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/optimizer/fingerprint.ipp"
#endif
