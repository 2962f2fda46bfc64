// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "input_error.hpp"

namespace train {

/// How pixels become numbers.
enum class Inputs {
  normalized,  ///< (x / 255 - 0.2860) / 0.3530: mean 0, deviation 1 over Fashion-MNIST's training set
  unit         ///< x / 255
};

/// Labelled pictures in memory.
struct Dataset {
  std::vector<float> images;         ///< count x (rows * columns), row by row
  std::vector<std::int64_t> labels;  ///< count, each from 0 to 9
  std::int64_t count = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::uint32_t checksum = 0;  ///< CRC-32 of labels and pixels as they are in the files
};

/// Where the Debian package `dataset-fashion-mnist` puts its files.
inline constexpr const char* default_data_directory = "/usr/share/datasets/fashion-mnist";

/// Reads `train-images-idx3-ubyte` and `train-labels-idx1-ubyte` (or `t10k-...` for the test set) from
/// `directory`, each plain or with `.gz`; the plain one wins. Whether a file is compressed is told from its
/// contents. Throws input_error for a missing, damaged, truncated or overlong file, pictures other than
/// 28 x 28, labels outside 0 to 9, and pictures and labels that differ in number.
Dataset load_images_labels(const std::string& directory, bool train, Inputs inputs = Inputs::normalized);

}  // namespace train
