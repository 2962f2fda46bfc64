// SPDX-License-Identifier: Apache-2.0
#include "any_state.hpp"

#include "terse/checkpoint/folder.hpp"

namespace train {

void save_state(const std::filesystem::path& file, AnyState& state, terse::view<const float> parameters) {
  terse::checkpoint::save(file, state, parameters);
}

void load_state(const terse::checkpoint::Manifest& manifest, AnyState& state, terse::view<float> parameters) {
  terse::checkpoint::load(manifest, state, parameters);
}

}  // namespace train
