// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "dense.hpp"
#include "jumps.hpp"
#include "terse/core/draw.hpp"
#include "terse/core/layout.hpp"

// Oracles of decentralized SGD: all ranks in one thread, in double, from the equations of the papers, in the papers'
// variables. They share nothing with the library but `Layout` and, for random matchings, `Draw`.

namespace terse::reference {

/// W, row-major: what row i says is what rank i makes of the others.
using Matrix = std::vector<double>;

/// Everybody's mean.
inline Matrix complete(std::size_t n) { return Matrix(n * n, 1 / static_cast<double>(n)); }

/// Metropolis-Hastings weights of the undirected graph of those pairs, once each.
inline Matrix metropolis(std::size_t n, const std::vector<std::pair<std::size_t, std::size_t>>& edges) {
  std::vector<double> degree(n);
  for (const auto& [a, b] : edges) degree[a] += 1, degree[b] += 1;
  Matrix w(n * n);
  for (std::size_t i = 0; i < n; ++i) w[i * n + i] = 1;
  for (const auto& [a, b] : edges) {
    const double weight = 1 / (1 + std::max(degree[a], degree[b]));
    w[a * n + b] = w[b * n + a] = weight;
    w[a * n + a] -= weight;
    w[b * n + b] -= weight;
  }
  return w;
}

/// Both neighbours on a circle.
inline Matrix ring(std::size_t n) {
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  for (std::size_t i = 0; i < n; ++i)
    if (n > 2 || i + 1 < n) edges.emplace_back(i, (i + 1) % n);
  return n == 1 ? Matrix{1} : metropolis(n, edges);
}

/// rows x columns places without wrap-around.
inline Matrix mesh(std::size_t rows, std::size_t columns) {
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) {
      if (c + 1 < columns) edges.emplace_back(r * columns + c, r * columns + c + 1);
      if (r + 1 < rows) edges.emplace_back(r * columns + c, (r + 1) * columns + c);
    }
  return metropolis(rows * columns, edges);
}

/// The mean over oneself and the ranks at these distances on a circle, given without repetition.
inline Matrix circulant(std::size_t n, const std::vector<std::size_t>& hops) {
  Matrix w(n * n);
  const double weight = 1 / static_cast<double>(hops.size() + 1);
  for (std::size_t i = 0; i < n; ++i) {
    w[i * n + i] = weight;
    for (const std::size_t hop : hops) w[i * n + (i + n - hop % n) % n] = weight;
  }
  return w;
}

/// Half from the rank 1, 2, 4 ... before, one after the other.
inline Matrix one_peer_exponential(std::size_t n, std::uint64_t round) {
  if (n == 1) return {1};
  std::vector<std::size_t> hops;
  for (std::size_t hop = 1; hop < n; hop *= 2) hops.push_back(hop);
  return circulant(n, {hops[static_cast<std::size_t>(round) % hops.size()]});
}

/// Half from the rank whose number differs in bit 0, 1, 2 ..., one after the other; n = 2^k.
inline Matrix one_peer_hypercube(std::size_t n, std::uint64_t round) {
  std::vector<std::size_t> bits;
  for (std::size_t bit = 1; bit < n; bit *= 2) bits.push_back(bit);
  Matrix w(n * n);
  for (std::size_t i = 0; i < n; ++i)
    w[i * n + i] = w[i * n + (i ^ bits[static_cast<std::size_t>(round) % bits.size()])] = 0.5;
  return w;
}

/// Ranks in the order of keys drawn for the round; first with second, third with fourth and so on.
inline Matrix random_matching(std::size_t n, std::uint64_t seed, std::uint64_t round) {
  const Draw draw = Draw::shared(seed, round, Purpose::matching);
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  for (std::size_t i = 0; i < n; ++i) order.emplace_back(draw.bits(i), i);
  std::sort(order.begin(), order.end());
  Matrix w(n * n);
  for (std::size_t i = 0; i < n; ++i) w[i * n + i] = 1;
  for (std::size_t k = 0; k + 1 < n; k += 2) {
    const std::size_t a = order[k].second, b = order[k + 1].second;
    w[a * n + a] = w[a * n + b] = w[b * n + a] = w[b * n + b] = 0.5;
  }
  return w;
}

/// (I + W) / 2.
inline Matrix lazy(Matrix w, std::size_t n) {
  for (double& weight : w) weight /= 2;
  for (std::size_t i = 0; i < n; ++i) w[i * n + i] += 0.5;
  return w;
}

/// Column-stochastic A of the lists of who sends to whom: each rank splits what it has evenly, with itself too.
inline Matrix push(const std::vector<std::vector<int>>& receivers_of) {
  const std::size_t n = receivers_of.size();
  Matrix a(n * n);
  for (std::size_t j = 0; j < n; ++j) {
    const double share = 1 / static_cast<double>(receivers_of[j].size() + 1);
    a[j * n + j] = share;
    for (const int i : receivers_of[j]) a[static_cast<std::size_t>(i) * n + j] = share;
  }
  return a;
}

/// What all methods have. g_i is the gradient at x_i; with coupled decay weight_decay x_i is added to it, and without
/// each step begins with x_i - gamma weight_decay x_i.
///
/// What is divided by gamma in a paper has no value where gamma = 0. There a rank takes W x alone, the limit without
/// momentum, and momentum starts anew.
class Gossip {
 public:
  struct Options {
    double momentum = 0;
    bool nesterov = false;
    double weight_decay = 0;
    bool coupled = false;
    double quasi_global_decay = 0.9;  ///< mu of quasi-global momentum
    double omega = 0.5;               ///< of momentum-accelerated consensus
    double keeps = 0;                 ///< see Jumps
  };
  using Vectors = std::vector<Arena<double>>;  ///< [rank][k]
  using Gradient = std::function<Arena<double>(std::size_t rank, const Arena<double>& x)>;

  Vectors x;  ///< the parameters at which gradients are taken

  template <class Values>
  Gossip(Layout layout, std::size_t ranks, const Options& options, const Values& start)
      : x(ranks, Arena<double>(start.begin(), start.end())),
        options_(options),
        layout_(std::move(layout)),
        gamma_(x[0].size()),
        decay_(x[0].size()),
        zero_(ranks, Arena<double>(x[0].size())) {}
  virtual ~Gossip() = default;

  virtual void step(const Matrix& w, double learning_rate, const Gradient& gradient) = 0;

 protected:
  /// The rates of this step, this step's gradients, and x after decoupled decay.
  void begin(double learning_rate, const Gradient& gradient) {
    for_each_element(layout_, [&](const Segment& segment, std::size_t k) {
      gamma_[k] = learning_rate * static_cast<double>(segment.learning_rate_scale);
      decay_[k] = options_.weight_decay * static_cast<double>(segment.weight_decay);
    });
    g_.clear();
    for (std::size_t i = 0; i < x.size(); ++i) g_.push_back(gradient(i, x[i]));
    y_ = x;
    each([&](std::size_t i, std::size_t k) {
      if (options_.coupled)
        g_[i][k] += decay_[k] * x[i][k];
      else
        y_[i][k] -= gamma_[k] * decay_[k] * x[i][k];
    });
  }
  template <class Body>
  void each(Body body) const {
    for (std::size_t i = 0; i < x.size(); ++i)
      for_each_element(layout_, [&](const Segment&, std::size_t k) { body(i, k); });
  }
  template <class Value>
  Vectors vectors(Value value) const {
    Vectors all = zero_;
    each([&](std::size_t i, std::size_t k) { all[i][k] = value(i, k); });
    return all;
  }
  Vectors mix(const Matrix& w, const Vectors& v) const {
    const std::size_t n = v.size();
    return vectors([&](std::size_t i, std::size_t k) {
      double sum = 0;
      for (std::size_t j = 0; j < n; ++j) sum += w[i * n + j] * v[j][k];
      return sum;
    });
  }
  /// m = beta m + g; returns the direction, m or, with Nesterov, g + beta m.
  Vectors heavy_ball(Vectors& m, const Vectors& g) const {
    m = vectors([&](std::size_t i, std::size_t k) { return options_.momentum * m[i][k] + g[i][k]; });
    if (!options_.nesterov) return m;
    return vectors([&](std::size_t i, std::size_t k) { return g[i][k] + options_.momentum * m[i][k]; });
  }
  /// y - gamma d
  Vectors descended(const Vectors& d) const { return descended(y_, d); }
  Vectors descended(const Vectors& from, const Vectors& d) const {
    return vectors([&](std::size_t i, std::size_t k) { return from[i][k] - gamma_[k] * d[i][k]; });
  }

  Options options_;
  Layout layout_;
  Arena<double> gamma_, decay_;
  Vectors zero_, g_, y_;
};

/// m = beta m + g, x = W (x - gamma m). beta = 0: DSGD.
struct AdaptThenCombineSgd : Gossip {
  using Gossip::Gossip;
  Vectors m = zero_;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    begin(learning_rate, gradient);
    x = mix(w, descended(heavy_ball(m, g_)));
  }
};

/// m = beta m + g, x = W x - gamma m.
struct AdaptWithCombineSgd : Gossip {
  using Gossip::Gossip;
  Vectors m = zero_;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    begin(learning_rate, gradient);
    x = descended(mix(w, y_), heavy_ball(m, g_));
  }
};

/// y = W x, x = y - gamma g(y), decay at y.
struct CombineThenAdaptSgd : Gossip {
  using Gossip::Gossip;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    x = mix(w, x);
    begin(learning_rate, gradient);
    x = descended(g_);
  }
};

/// m = beta m + g, x = W (x - gamma m), m = W m.
struct DoublyAveragedSgd : Gossip {
  using Gossip::Gossip;
  Vectors m = zero_;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    begin(learning_rate, gradient);
    x = mix(w, descended(heavy_ball(m, g_)));
    m = mix(w, m);
  }
};

/// z = x - gamma g, g~ = (x - W z) / gamma, m = beta m + g~, x = x - gamma m or x - gamma (g~ + beta m).
struct DecentLaM : Gossip {
  using Gossip::Gossip;
  Vectors m = zero_;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    begin(learning_rate, gradient);
    const Vectors mixed = mix(w, descended(g_));
    const Vectors tilde = vectors([&](std::size_t i, std::size_t k) {
      return gamma_[k] > 0 ? (y_[i][k] - mixed[i][k]) / gamma_[k] : 0;
    });
    const double left = jumps_.factor(learning_rate);
    each([&](std::size_t i, std::size_t k) { m[i][k] *= left; });
    x = descended(heavy_ball(m, tilde));
    each([&](std::size_t i, std::size_t k) {
      if (gamma_[k] == 0) x[i][k] = mixed[i][k], m[i][k] = 0;
    });
  }

 private:
  Jumps jumps_{options_.keeps};
};

/// z = x - gamma (beta m + g), or x - gamma (g + beta (beta m + g)); x' = W z; d = (x - x') / gamma;
/// m = mu m + (1 - mu) d.
struct QuasiGlobalSgd : Gossip {
  using Gossip::Gossip;
  Vectors m = zero_;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    begin(learning_rate, gradient);
    const double mu = options_.quasi_global_decay, left = jumps_.factor(learning_rate);
    each([&](std::size_t i, std::size_t k) { m[i][k] *= left; });
    Vectors local = m;
    x = mix(w, descended(heavy_ball(local, g_)));
    each([&](std::size_t i, std::size_t k) {
      const double d = gamma_[k] > 0 ? (y_[i][k] - x[i][k]) / gamma_[k] : 0;
      m[i][k] = gamma_[k] > 0 ? mu * m[i][k] + (1 - mu) * d : 0;
    });
  }

 private:
  Jumps jumps_{options_.keeps};
};

/// x(k+1) = W (2 x(k) - x(k-1) - gamma(k) d(k) + gamma(k-1) d(k-1)), first W (x - gamma d); d is the momentum, m = beta m
/// + g, and decoupled decay is a part of it that has no momentum.
struct ExactDiffusionSgd : Gossip {
  using Gossip::Gossip;
  Vectors m = zero_, last_x, last_move;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    begin(learning_rate, gradient);
    const Vectors d = heavy_ball(m, g_);
    const Vectors move = vectors([&](std::size_t i, std::size_t k) {
      return gamma_[k] * (d[i][k] + (options_.coupled ? 0 : decay_[k] * x[i][k]));
    });
    if (last_x.empty()) last_x = x, last_move = zero_;
    const Vectors next = mix(w, vectors([&](std::size_t i, std::size_t k) {
                               return 2 * x[i][k] - last_x[i][k] - move[i][k] + last_move[i][k];
                             }));
    last_x = std::exchange(x, next);
    last_move = move;
  }
};

/// y = W y + g - g_old, first y = g; x = W (x - gamma y).
struct GradientTrackingSgd : Gossip {
  using Gossip::Gossip;
  Vectors y, g_old;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    begin(learning_rate, gradient);
    if (y.empty())
      y = g_;
    else
      y = vectors([&, mixed = mix(last_w_, y)](std::size_t i, std::size_t k) {
        return mixed[i][k] + g_[i][k] - g_old[i][k];
      });
    g_old = g_;
    last_w_ = w;  // of the round in which y travels
    x = mix(w, descended(y));
  }

 private:
  Matrix last_w_;
};

/// u = beta u + g, x = W x - gamma (u - c), c = W (c - u) + u.
struct MomentumTrackingSgd : Gossip {
  using Gossip::Gossip;
  Vectors u = zero_, c = zero_;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    begin(learning_rate, gradient);
    heavy_ball(u, g_);
    const Vectors gap = vectors([&](std::size_t i, std::size_t k) { return c[i][k] - u[i][k]; });
    x = vectors([&, mixed = mix(w, y_)](std::size_t i, std::size_t k) {
      return mixed[i][k] + gamma_[k] * gap[i][k];
    });
    c = vectors([&, mixed = mix(w, gap)](std::size_t i, std::size_t k) { return mixed[i][k] + u[i][k]; });
  }
};

/// x(k+1) = W x(k) + beta (omega W + (1 - omega) I) (x(k) - x(k-1)) - gamma g(k); what decay takes is no displacement.
struct MomentumConsensusSgd : Gossip {
  using Gossip::Gossip;
  Vectors last_x = x;
  void step(const Matrix& w, double learning_rate, const Gradient& gradient) override {
    begin(learning_rate, gradient);
    const Vectors moved = vectors([&](std::size_t i, std::size_t k) { return x[i][k] - last_x[i][k]; });
    const Vectors mixed = mix(w, y_), shared = mix(w, moved);
    x = vectors([&](std::size_t i, std::size_t k) {
      const double momentum = options_.omega * shared[i][k] + (1 - options_.omega) * moved[i][k];
      return mixed[i][k] + options_.momentum * momentum - gamma_[k] * g_[i][k];
    });
    last_x = y_;
  }
};

/// n = w z, with push-sum weights w: m = beta m + g(z), n = A (n - gamma (m + weight_decay z)), w = A w, z = n / w. The
/// matrix given is A, column-stochastic. x of the base is z.
struct StochasticGradientPushSgd : Gossip {
  using Gossip::Gossip;
  Vectors m = zero_;
  std::vector<double> weights = std::vector<double>(x.size(), 1.0);
  void step(const Matrix& a, double learning_rate, const Gradient& gradient) override {
    const std::size_t n = x.size();
    begin(learning_rate, gradient);
    const Vectors d = heavy_ball(m, g_);
    const Vectors numerator = mix(a, vectors([&](std::size_t i, std::size_t k) {
                                    const double decay = options_.coupled ? 0 : decay_[k] * x[i][k];
                                    return weights[i] * x[i][k] - gamma_[k] * (d[i][k] + decay);
                                  }));
    std::vector<double> next(n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) next[i] += a[i * n + j] * weights[j];
    weights = next;
    x = vectors([&](std::size_t i, std::size_t k) { return numerator[i][k] / weights[i]; });
  }
};

}  // namespace terse::reference
