// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "../../tools/train/idx.hpp"
#include "data.hpp"

namespace pipeline {

/// Fashion-MNIST: pixels from 0 to 1, one label each. `before`: the first 20,000 pictures of the classes 0 to 4 behind
/// the first 20,000 of the training set (or all there are); `tuning`: the first 10,000 of the training set, of all
/// classes; `test`: the test set. Throws train::input_error, which names the file, and the Debian package where files
/// are missing.
Data load_pictures(const std::string& directory = train::default_data_directory);

}  // namespace pipeline
