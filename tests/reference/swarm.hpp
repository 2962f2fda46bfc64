// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "local.hpp"

// SwarmSGD in double, all ranks in one thread, in the paper's variables: each rank has a live model and, in the
// non-blocking form, a communication copy. It shares nothing with the library but `Layout`; who meets whom is told.

namespace terse::reference {

template <class Inner>
struct Swarm : Replicas<Inner> {
  bool blocking = true;

  using Replicas<Inner>::Replicas;
  /// One local step of each rank; then those meet that have a partner, partners[i] >= 0.
  void step(double gamma, const LocalGradient& gradient, const std::vector<int>& partners) {
    auto& ranks = this->inner_;
    if (copies_.empty()) copies_ = averages_ = this->x();
    this->step_inside(this->gradients(gradient), gamma);
    if (!blocking)
      for (std::size_t i = 0; i < ranks.size(); ++i)
        if (partners[i] >= 0) {
          Arena<double>& x = ranks[i].parameters;
          // The average of communication copies, and the steps that were made meanwhile.
          for (std::size_t k = 0; k < x.size(); ++k) x[k] = averages_[i][k] + (x[k] - copies_[i][k]);
        }
    const Arenas now = this->x();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (partners[i] < 0) continue;
      const Arena<double>& other = now[static_cast<std::size_t>(partners[i])];
      Arena<double> average(other.size());
      for (std::size_t k = 0; k < other.size(); ++k) average[k] = (now[i][k] + other[k]) / 2;
      if (blocking) {
        ranks[i].parameters = average;
      } else {
        copies_[i] = now[i];
        averages_[i] = average;
      }
    }
  }

 private:
  Arenas copies_, averages_;  // of each rank's last meeting
};

/// The asynchronous form, one rank's step at a time, in whatever order: after its local step a rank takes the mean with
/// what the partner has published last, and publishes its own. Who has not begun has published nothing.
template <class Inner>
struct AsyncSwarm : Replicas<Inner> {
  using Replicas<Inner>::Replicas;
  void step(std::size_t rank, double gamma, const LocalGradient& gradient, int partner) {
    auto& ranks = this->inner_;
    published_.resize(ranks.size());
    Arena<double>& x = ranks[rank].parameters;
    if (published_[rank].empty()) published_[rank] = x;
    ranks[rank].step(Arenas{gradient(rank, x)}, gamma);
    if (partner < 0) return;
    const Arena<double>& read = published_[static_cast<std::size_t>(partner)];
    for (std::size_t k = 0; k < read.size(); ++k) x[k] = (x[k] + read[k]) / 2;  // read may be empty
    published_[rank] = x;
  }

 private:
  Arenas published_;
};

}  // namespace terse::reference
