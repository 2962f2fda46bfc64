// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
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
std::uint64_t agree_on_fingerprint(T& channel, const Layout& layout, const R& recipe, std::uint64_t seed,
                                   std::uint64_t options, std::uint64_t numerics) {
  std::uint64_t hyper_parameters = 0;
  composed(recipe).settings([&](const char* name, double value) {
    hyper_parameters = mix_hash(mix_hash(hyper_parameters, name), std::bit_cast<std::uint64_t>(value));
  });
  const std::uint64_t alike =
      agree(channel, std::array{Agreed{"wire version", PacketHeader::wire_version},
                                Agreed{"world", static_cast<std::uint64_t>(channel.size())},
                                Agreed{"layout", layout_hash(layout)},
                                Agreed{"recipe", mix_hash(0, type_name<R>().c_str())}, Agreed{"seed", seed},
                                Agreed{"options", options},
                                Agreed{"numerics (contraction, denormals or sqrt)", numerics}});
  agree_on_settings(channel, "other hyper-parameters",
                    [&](const auto& visit) { composed(recipe).settings(visit); });
  return mix_hash(alike, hyper_parameters);
}

}  // namespace terse
