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

namespace terse::detail {

/// Implements agree_on_fingerprint for a recipe's name and hyper-parameters.
TERSE_COLD std::uint64_t agree_on_setup(Channel& channel, const Layout& layout, const std::string& recipe,
                                        const SettingsList& settings, const Options& options,
                                        std::uint64_t numerics);

/// Compares the setup that must be equal on all ranks, including `numerics` of their executors, and returns its hash. Collective.
/// Throws a mismatch_error that names the first field that differs, and the rank. Throws usage_error if the arithmetic of all ranks
/// is equal but wrong.
template <class R>
TERSE_COLD std::uint64_t agree_on_fingerprint(Channel& channel, const Layout& layout, const R& recipe,
                                              const Options& options, std::uint64_t numerics) {
  SettingsList settings;
  composed(recipe).settings(SettingsVisitor(settings));
  return agree_on_setup(channel, layout, type_name<R>(), settings, options, numerics);
}

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/optimizer/fingerprint.ipp"
#endif
