// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <utility>

#include "terse/transport/forwarding.hpp"

namespace terse::test {

/// A transport whose batch number `at`, of those with messages over all channels of a rank, throws; -1: none.
struct Trap {
  long at = -1, batches = 0;
};
template <Transport Inner>
class Trapped : public Forwarding<Trapped<Inner>, Inner> {
 public:
  Trapped(Inner inner, Trap& trap) : Forwarding<Trapped, Inner>(std::move(inner)), trap_(&trap) {}
  [[nodiscard]] auto exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if (sends.size() + receives.size() > 0 && trap_->batches++ == trap_->at)
      throw peer_error("the trap", 0, this->rank());
    return this->inner_.exchange(sends, receives, phase);
  }
  template <Transport Other>
  Trapped<Other> around(Other other) const {
    return Trapped<Other>(std::move(other), *trap_);
  }

 private:
  Trap* trap_;
};

}  // namespace terse::test
