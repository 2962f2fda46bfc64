// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terse::graph {

/// Visits 64 bits, a seed or a hash, as two numbers that a double holds exactly: a graph's settings are doubles, and
/// different seeds must give different settings.
template <class Visit>
void visit_bits(const char* name, std::uint64_t bits, Visit& visit) {
  visit(name, static_cast<double>(bits >> 32));
  visit(name, static_cast<double>(bits & 0xFFFFFFFF));
}

}  // namespace terse::graph
