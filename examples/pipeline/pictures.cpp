// SPDX-License-Identifier: Apache-2.0
#include "pictures.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace pipeline {
namespace {

constexpr std::int64_t tuning_pictures = 10'000;
constexpr std::int64_t before_from = 20'000;
constexpr std::int64_t before_pictures = 20'000;
constexpr std::int64_t before_classes = 5;

void append(Examples& to, const train::Dataset& from, std::int64_t picture) {
  const auto width = static_cast<std::ptrdiff_t>(to.input_width);
  const auto at = from.images.begin() + static_cast<std::ptrdiff_t>(picture) * width;
  to.inputs.insert(to.inputs.end(), at, at + width);
  to.targets.push_back(from.labels[static_cast<std::size_t>(picture)]);
  ++to.count;
}

}  // namespace

Data load_pictures(const std::string& directory) {
  const train::Dataset training = train::load_images_labels(directory, true, train::Inputs::unit);
  train::Dataset test = train::load_images_labels(directory, false, train::Inputs::unit);

  Data data;
  for (Examples* some : {&data.before, &data.tuning, &data.test}) {
    some->input_width = training.rows * training.columns;
    some->target_width = 1;
  }
  for (std::int64_t p = 0; p < std::min(tuning_pictures, training.count); ++p)
    append(data.tuning, training, p);
  for (std::int64_t p = before_from; p < training.count && data.before.count < before_pictures; ++p)
    if (training.labels[static_cast<std::size_t>(p)] < before_classes) append(data.before, training, p);
  data.test.count = test.count;
  data.test.inputs = std::move(test.images);
  data.test.targets = std::move(test.labels);
  return data;
}

}  // namespace pipeline
