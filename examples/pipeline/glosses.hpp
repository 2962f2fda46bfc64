// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "../../tools/train/idx.hpp"
#include "data.hpp"

namespace pipeline {

/// Definitions of WordNet and their classes, see ../bert/glosses.hpp: `tuning` and `test` of them, and none before. `folder`
/// has a model's weights and vocabulary. Throws train::input_error that names the file.
Data load_glosses(const std::string& folder, std::int64_t tuning, std::int64_t test);

}  // namespace pipeline
