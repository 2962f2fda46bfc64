// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "terse/transport/forwarding.hpp"

namespace terse {

/// Adds up what a rank sends over an inner transport and the channels split from it, into a number that its owner keeps in
/// place: Metered's bytes_sent, without clocks and tickets of its own. Adds nothing but the sum to a batch.
template <Transport Inner>
class Counting : public Forwarding<Counting<Inner>, Inner> {
 public:
  Counting(Inner inner, std::uint64_t& sent) : Forwarding<Counting, Inner>(std::move(inner)), sent_(&sent) {}

  template <class Call>
  auto carry(Phase, const Load& load, const Call& call) {
    *sent_ += load.bytes_sent;
    return call();
  }
  template <Transport Other>
  Counting<Other> around(Other other) const {
    return Counting<Other>(std::move(other), *sent_);
  }

 private:
  std::uint64_t* sent_;
};

}  // namespace terse
