// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "local.hpp"

// Oracles of Streaming DiLoCo, all ranks in one thread, in double. They share nothing with the library but `Layout`.

namespace terse::reference {

/// Of each element of the arena the fragment that holds it, whole segments by where their middle lies; padding is in none.
inline std::vector<std::size_t> fragments_of(const Layout& layout, std::size_t count) {
  std::vector<std::size_t> fragments(static_cast<std::size_t>(layout.size()), count);
  std::size_t all = 0, before = 0;
  for (const Segment& segment : layout.segments()) all += static_cast<std::size_t>(segment.count);
  for (const Segment& segment : layout.segments()) {
    const auto size = static_cast<std::size_t>(segment.count);
    for (std::size_t k = 0; k < size; ++k)
      fragments[static_cast<std::size_t>(segment.offset) + k] = (2 * before + size) * count / (2 * all);
    before += size;
  }
  return fragments;
}

struct Streams {
  std::uint64_t period = 1, delay = 0;
  std::size_t fragments = 1;
  double rate = 0, momentum = 0, alpha = 0;

  std::uint64_t offset(std::size_t p) const { return p * period / fragments; }
};

/// Algorithm 2, whose outer optimizer is torch's SGD with Nesterov's momentum:
///
///     where t - t_p = 0 (mod H)           Delta_m = theta_p - theta_m,p is sent
///     where t - tau - t_p = 0 (mod H)     theta_p = OuterOpt(theta_p, mean of what was sent at t - tau)
///                                         theta_m,p = alpha theta_m,p + (1 - alpha) theta_p
///
/// What comes in in a step enters before what is sent in it.
template <class Inner>
class StreamingTraining : public Replicas<Inner> {
 public:
  template <class Values>
  StreamingTraining(const Layout& layout, std::size_t ranks, const typename Inner::Options& options,
                    const Values& start, const Streams& streams)
      : Replicas<Inner>(layout, ranks, options, start),
        streams_(streams),
        fragment_of_(fragments_of(layout, streams.fragments)),
        theta_(this->inner_[0].parameters),
        buffer_(theta_.size()),
        delta_(streams.fragments),
        sent_(streams.fragments),
        met_(streams.fragments) {}

  void step(double gamma, const LocalGradient& gradient) {
    ++t_;
    this->step_inside(this->gradients(gradient), gamma);
    for (std::size_t p = 0; p < streams_.fragments; ++p) {
      if (sent_[p] != 0 && t_ == sent_[p] + streams_.delay) receive(p);
      if (t_ % streams_.period == streams_.offset(p)) send(p);
      if (streams_.delay == 0 && sent_[p] == t_) receive(p);
    }
  }
  /// As it will be when all that is under way has come in.
  Arena<double> theta_to_come() const {
    StreamingTraining later = *this;
    for (std::size_t p = 0; p < streams_.fragments; ++p)
      if (sent_[p] != 0) later.receive(p);
    return later.theta_;
  }

 private:
  void send(std::size_t p) {
    const Arena<double> mean = mean_of(this->x());
    delta_[p].assign(theta_.size(), 0);
    for (std::size_t k = 0; k < theta_.size(); ++k) delta_[p][k] = theta_[k] - mean[k];
    sent_[p] = t_;
  }
  void receive(std::size_t p) {
    for (std::size_t k = 0; k < theta_.size(); ++k) {
      if (fragment_of_[k] != p) continue;
      const double gradient = delta_[p][k];
      buffer_[k] = met_[p] ? streams_.momentum * buffer_[k] + gradient : gradient;
      theta_[k] -= streams_.rate * (gradient + streams_.momentum * buffer_[k]);
      for (Inner& one : this->inner_)
        one.parameters[k] = streams_.alpha * one.parameters[k] + (1 - streams_.alpha) * theta_[k];
    }
    met_[p] = true;
    sent_[p] = 0;
  }

  Streams streams_;
  std::vector<std::size_t> fragment_of_;
  Arena<double> theta_, buffer_;
  Arenas delta_;
  std::vector<std::uint64_t> sent_;
  std::vector<bool> met_;
  std::uint64_t t_ = 0;
};

/// The same around plain gradient steps, element by element: ranks write letters that arrive `delay` steps later, and BMUF's
/// variables stand for the outer optimizer's, D = eta D + zeta (mean - Wg), W = W + D, Wg = W + eta D.
class StreamingLetters {
 public:
  template <class Values>
  StreamingLetters(const Layout& layout, std::size_t ranks, const Values& start, const Streams& streams)
      : streams_(streams), places_(fragments_of(layout, streams.fragments)), rates_(places_.size()) {
    for (const Segment& segment : layout.segments())
      for (index_t k = segment.offset; k < segment.offset + segment.count; ++k)
        rates_[static_cast<std::size_t>(k)] = static_cast<double>(segment.learning_rate_scale);
    for (std::size_t k = 0; k < places_.size(); ++k) {
      const auto x = static_cast<double>(start[k]);
      elements_.push_back({std::vector<double>(ranks, x), x, x, 0, {}});
    }
  }

  void step(double gamma, const LocalGradient& gradient) {
    ++now_;
    Arenas x = this->x();
    for (std::size_t m = 0; m < x.size(); ++m) {
      const Arena<double> g = gradient(m, x[m]);
      for (std::size_t k = 0; k < g.size(); ++k) elements_[k].local[m] -= gamma * rates_[k] * g[k];
    }
    for (std::size_t k = 0; k < elements_.size(); ++k)
      if (places_[k] < streams_.fragments) exchange(elements_[k], streams_.offset(places_[k]));
  }
  Arenas x() const {
    Arenas all(elements_[0].local.size(), Arena<double>(elements_.size()));
    for (std::size_t m = 0; m < all.size(); ++m)
      for (std::size_t k = 0; k < elements_.size(); ++k) all[m][k] = elements_[k].local[m];
    return all;
  }

 private:
  struct Element {
    std::vector<double> local;
    double w, ahead, d;
    std::deque<std::pair<std::uint64_t, double>> letters;  // when they arrive, and the mean that they bring
  };
  void exchange(Element& e, std::uint64_t offset) {
    open(e);
    if ((now_ + streams_.period - offset) % streams_.period != 0) return;
    double sum = 0;
    for (const double x : e.local) sum += x;
    e.letters.emplace_back(now_ + streams_.delay, sum / static_cast<double>(e.local.size()));
    open(e);
  }
  void open(Element& e) {
    while (!e.letters.empty() && e.letters.front().first <= now_) {
      e.d = streams_.momentum * e.d + streams_.rate * (e.letters.front().second - e.ahead);
      e.w += e.d;
      e.ahead = e.w + streams_.momentum * e.d;
      for (double& x : e.local) x += (1 - streams_.alpha) * (e.ahead - x);
      e.letters.pop_front();
    }
  }

  Streams streams_;
  std::vector<std::size_t> places_;
  std::vector<double> rates_;
  std::vector<Element> elements_;
  std::uint64_t now_ = 0;
};

}  // namespace terse::reference
