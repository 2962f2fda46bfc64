// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "terse/core/hash.hpp"
#include "terse/core/packet.hpp"
#include "terse/core/type_name.hpp"
#include "terse/executor/numerics.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/transport/agreement.hpp"

namespace terse {

/// Compares what must be alike on all ranks, `numerics` of their executors included, and returns its hash. Collective.
/// Throws mismatch_error that names the first field that differs, and the rank.
template <class R, Transport T>
TERSE_COLD std::uint64_t agree_on_fingerprint(T& channel, const Layout& layout, const R& recipe,
                                              std::uint64_t seed, std::uint64_t options,
                                              std::uint64_t numerics) {
  SettingsList settings;
  composed(recipe).settings(detail::SettingsVisitor(settings));
  const Agreed fields[] = {{"wire version", PacketHeader::wire_version},
                           {"world", static_cast<std::uint64_t>(channel.size())},
                           {"layout", layout_hash(layout)},
                           {"recipe", mix_hash(0, type_name<R>().c_str())},
                           {"seed", seed},
                           {"options", options},
                           {"numerics (contraction, denormals or sqrt)", numerics}};
  const std::uint64_t alike = agree(channel, fields);
  agree_on_settings(channel, "other hyper-parameters", settings);
  return mix_hash(alike, settings.hash());
}

}  // namespace terse
