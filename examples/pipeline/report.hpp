// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "run.hpp"

namespace pipeline {

/// A number over seeds. The deviation is that of a sample, 0 of one seed.
struct Spread {
  double mean = 0, deviation = 0;
};
Spread spread_of(const std::vector<double>& values);

/// The runs of one coding, in the order of their seeds.
std::vector<std::vector<const Run*>> by_coding(const Options& options, const std::vector<Run>& runs);

std::string format_table(const Options& options, const std::vector<Run>& runs);

/// Settings, every epoch, every stage. Throws train::input_error where the file can't be written.
void write_json(const Options& options, const std::vector<Run>& runs);

}  // namespace pipeline
