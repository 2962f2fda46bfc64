// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "dense.hpp"
#include "jumps.hpp"

// Oracles of local methods: all ranks in one thread, in double, from the equations of the papers, in the papers'
// variables. The inner optimizer is any oracle of dense.hpp, made for one rank. They share nothing with the library
// but `Layout`.

namespace terse::reference {

using Arenas = std::vector<Arena<double>>;  ///< [rank][k]
using LocalGradient = std::function<Arena<double>(std::size_t rank, const Arena<double>& x)>;

/// What becomes of all ranks' x once they have met: from the mean of x_i and gamma, the learning rate.
class Outer {
 public:
  virtual ~Outer() = default;
  /// x is where all ranks start.
  virtual void start(const Arena<double>&) {}
  virtual Arena<double> step(const Arena<double>& mean, double gamma) = 0;
};

/// Local SGD: x = mean.
struct TakeMean : Outer {
  Arena<double> step(const Arena<double>& mean, double) override { return mean; }
};

/// u = beta u + (x0 - mean) / gamma, x0 = x0 - alpha gamma u. Where gamma is 0 u has no value: there x0 = x0 - alpha
/// (x0 - mean), the limit without momentum, and momentum starts anew.
struct SlowMomentum : Outer {
  double alpha, beta;
  Jumps jumps;
  Arena<double> x0, u;

  SlowMomentum(double alpha_, double beta_, bool follows_jumps = false)
      : alpha(alpha_), beta(beta_), jumps{follows_jumps ? 0 : beta_} {}
  void start(const Arena<double>& x) override {
    x0 = x;
    u.assign(x.size(), 0);
  }
  Arena<double> step(const Arena<double>& mean, double gamma) override {
    const double left = jumps.factor(gamma);
    for (std::size_t k = 0; k < x0.size(); ++k) {
      const double moved = x0[k] - mean[k];
      u[k] = gamma > 0 ? beta * left * u[k] + moved / gamma : 0;
      x0[k] -= alpha * (gamma > 0 ? gamma * u[k] : moved);
    }
    return x0;
  }
};

/// G = mean - Wg, D = eta D + zeta G, W = W + D; Wg, from which all go on, is W or, with Nesterov's, W + eta D.
struct BlockMomentum : Outer {
  double zeta, eta;
  bool nesterov;
  Arena<double> w, wg, d;

  BlockMomentum(double zeta_, double eta_, bool nesterov_) : zeta(zeta_), eta(eta_), nesterov(nesterov_) {}
  void start(const Arena<double>& x) override {
    w = wg = x;
    d.assign(x.size(), 0);
  }
  Arena<double> step(const Arena<double>& mean, double) override {
    for (std::size_t k = 0; k < w.size(); ++k) {
      d[k] = eta * d[k] + zeta * (mean[k] - wg[k]);
      w[k] += d[k];
      wg[k] = w[k] + (nesterov ? eta * d[k] : 0);
    }
    return wg;
  }
};

/// DiLoCo: torch.optim.SGD(lr, momentum, nesterov = True), whose buffer is the gradient at the first call, on D = x -
/// mean.
struct TorchNesterov : Outer {
  double lr, momentum;
  Arena<double> x, buffer;
  bool first = true;

  TorchNesterov(double lr_, double momentum_) : lr(lr_), momentum(momentum_) {}
  void start(const Arena<double>& x_) override {
    x = x_;
    buffer.assign(x.size(), 0);
  }
  Arena<double> step(const Arena<double>& mean, double) override {
    for (std::size_t k = 0; k < x.size(); ++k) {
      const double gradient = x[k] - mean[k];
      buffer[k] = first ? gradient : momentum * buffer[k] + gradient;
      x[k] -= lr * (gradient + momentum * buffer[k]);
    }
    first = false;
    return x;
  }
};

enum class Buffers { keep, reset, average };

/// The buffers of an inner oracle.
template <class Real>
std::vector<Arena<Real>*> buffers_of(MomentumSgd<Real>& inner) {
  return {&inner.momentum};
}
template <class Real>
std::vector<Arena<Real>*> buffers_of(Adam<Real>& inner) {
  return {&inner.momentum, &inner.variance};
}

/// One inner oracle on each rank.
template <class Inner>
class Replicas {
 public:
  template <class Values>
  Replicas(const Layout& layout, std::size_t ranks, const typename Inner::Options& options,
           const Values& start)
      : inner_(ranks, Inner(layout, 1, options, start)) {}
  virtual ~Replicas() = default;

  Arenas x() const {
    Arenas all;
    for (const Inner& one : inner_) all.push_back(one.parameters);
    return all;
  }

 protected:
  Arenas gradients(const LocalGradient& gradient) const {
    Arenas all;
    for (std::size_t i = 0; i < inner_.size(); ++i) all.push_back(gradient(i, inner_[i].parameters));
    return all;
  }
  void step_inside(const Arenas& gradients, double gamma) {
    for (std::size_t i = 0; i < inner_.size(); ++i) inner_[i].step(Arenas{gradients[i]}, gamma);
  }

  std::vector<Inner> inner_;
};

/// Local SGD and what has an outer step: average gradients in the first steps; then `period` steps alone, and an
/// outer one.
template <class Inner>
class LocalTraining : public Replicas<Inner> {
  using Replicas<Inner>::inner_;

 public:
  struct Schedule {
    std::uint64_t period = 1, average_until = 0;
    Buffers buffers = Buffers::keep;
  };
  template <class Values>
  LocalTraining(const Layout& layout, std::size_t ranks, const typename Inner::Options& options,
                const Values& start, const Schedule& schedule, std::unique_ptr<Outer> outer)
      : Replicas<Inner>(layout, ranks, options, start), schedule_(schedule), outer_(std::move(outer)) {
    outer_->start(inner_[0].parameters);
  }

  void step(double gamma, const LocalGradient& gradient) {
    ++steps_;
    Arenas g = this->gradients(gradient);
    if (steps_ <= schedule_.average_until) {
      const Arena<double> mean = mean_of(g);
      for (Arena<double>& one : g) one = mean;
      this->step_inside(g, gamma);
      if (steps_ == schedule_.average_until) outer_->start(inner_[0].parameters);
      return;
    }
    this->step_inside(g, gamma);
    if ((steps_ - schedule_.average_until) % schedule_.period != 0) return;
    const Arena<double> next = outer_->step(mean_of(this->x()), gamma);
    for (Inner& one : inner_) one.parameters = next;
    for (std::size_t b = 0; b < buffers_of(inner_[0]).size(); ++b) meet(b);
  }

 private:
  void meet(std::size_t which) {
    if (schedule_.buffers == Buffers::keep) return;
    Arenas all;
    for (Inner& one : inner_) all.push_back(*buffers_of(one)[which]);
    const Arena<double> mean = mean_of(all);
    for (Inner& one : inner_)
      *buffers_of(one)[which] = schedule_.buffers == Buffers::average ? mean : Arena<double>(mean.size());
  }

  Schedule schedule_;
  std::unique_ptr<Outer> outer_;
  std::uint64_t steps_ = 0;
};

/// Overlap-Local-SGD: every `period` steps the average that was started `period` steps ago, at first the initial
/// parameters, is the anchor z:
///
///     x_i = (1 - a) x_i + a z        v_i = b v_i + (z - x_i) / gamma        what is averaged: z - gamma v_i
///
/// Where gamma is 0 gamma v_i = z - x_i, and momentum starts anew.
template <class Inner>
struct OverlapTraining : Replicas<Inner> {
  double pullback = 0, momentum = 0;
  Jumps jumps;
  std::uint64_t period = 1;

  using Replicas<Inner>::Replicas;
  void step(double gamma, const LocalGradient& gradient) {
    auto& ranks = this->inner_;
    if (steps_++ == 0) {
      on_its_way_ = ranks[0].parameters;
      v_.assign(ranks.size(), Arena<double>(on_its_way_.size()));
    }
    this->step_inside(this->gradients(gradient), gamma);
    if (steps_ % period != 0) return;
    const Arena<double> z = on_its_way_;
    const double left = jumps.factor(gamma);
    Arenas sent(ranks.size(), z);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      for (std::size_t k = 0; k < z.size(); ++k) {
        double &x = ranks[i].parameters[k], &v = v_[i][k];
        x = (1 - pullback) * x + pullback * z[k];
        v = gamma > 0 ? momentum * left * v + (z[k] - x) / gamma : 0;
        sent[i][k] -= gamma > 0 ? gamma * v : z[k] - x;
      }
    on_its_way_ = mean_of(sent);
  }

 private:
  Arena<double> on_its_way_;
  Arenas v_;
  std::uint64_t steps_ = 0;
};

/// CoCoD-SGD: x_i = average of what all had when they last met + what rank i has done since; at first both are the
/// initial parameters.
template <class Inner>
struct DelayedAverage : Replicas<Inner> {
  std::uint64_t period = 1;

  using Replicas<Inner>::Replicas;
  void step(double gamma, const LocalGradient& gradient) {
    auto& ranks = this->inner_;
    if (steps_++ == 0) met_ = this->x();
    this->step_inside(this->gradients(gradient), gamma);
    if (steps_ % period != 0) return;
    const Arena<double> average = mean_of(met_);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      for (std::size_t k = 0; k < average.size(); ++k)
        ranks[i].parameters[k] = average[k] + (ranks[i].parameters[k] - met_[i][k]);
    met_ = this->x();
  }

 private:
  Arenas met_;
  std::uint64_t steps_ = 0;
};

}  // namespace terse::reference
