// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "demo.hpp"
#include "local.hpp"

// Oracles of SparseLoCo, CocktailSGD, NoLoCo and DiLoCo over a graph, all ranks in one thread, in double. They share nothing with the library but `Layout`.

namespace terse::reference {

/// SparseLoCo, algorithm 1: every `period` steps e_i = beta e_i + D_i, s_i = the top k of each block of e_i, e_i = e_i - s_i,
/// theta = theta - alpha mean s_i. Segments that are not compressed: s_i = D_i.
template <class Inner>
struct SparseTraining : Replicas<Inner> {
  std::uint64_t period = 1;
  index_t side = 64;
  double share = 1, beta = 1, alpha = 1;
  Arena<double> theta;
  Arenas e;
  bool over_senders = false;  ///< elements are averaged over the ranks that have sent them
  bool clipped =
      false;  ///< packets have at most the median of the norms of those that aren't 0, the lower one
  bool doubted = false;  ///< whether a pick hung on a rounding

  template <class Values>
  SparseTraining(const Layout& layout, std::size_t ranks, const typename Inner::Options& options,
                 const Values& start)
      : Replicas<Inner>(layout, ranks, options, start),
        theta(this->inner_[0].parameters),
        e(ranks, Arena<double>(theta.size())),
        layout_(layout) {}

  void step(double gamma, const LocalGradient& gradient) {
    this->step_inside(this->gradients(gradient), gamma);
    doubted = false;
    if (++steps_ % period != 0) return;
    std::vector<Arena<double>> sent(e.size(), Arena<double>(theta.size()));
    for (std::size_t i = 0; i < e.size(); ++i) {
      for (std::size_t k = 0; k < theta.size(); ++k)
        e[i][k] = beta * e[i][k] + (theta[k] - this->inner_[i].parameters[k]);
      for (const Segment& segment : layout_.segments())
        for (const Block& block : blocks_of(segment, side)) send(segment, block, e[i], sent[i]);
    }
    const std::vector<double> scales = clipped ? clipping(sent) : std::vector<double>(e.size(), 1);
    for (const Segment& segment : layout_.segments())
      for (index_t at = segment.offset; at < segment.offset + segment.count; ++at) {
        const auto k = static_cast<std::size_t>(at);
        double sum = 0, senders = 0;
        for (std::size_t i = 0; i < e.size(); ++i) {
          sum += scales[i] * sent[i][k];
          senders += sent[i][k] != 0 ? 1 : 0;
        }
        if (!over_senders || !segment.compress) senders = static_cast<double>(e.size());
        theta[k] -= senders > 0 ? alpha * sum / senders : 0;
      }
    go_on_from(theta);
  }
  void go_on_from(const Arena<double>& x) {
    theta = x;
    for (Inner& one : this->inner_) one.parameters = x;
  }

 private:
  static std::vector<double> clipping(const std::vector<Arena<double>>& sent) {
    std::vector<double> norms, sorted;
    for (const Arena<double>& one : sent) {
      double square = 0;
      for (const double x : one) square += x * x;
      norms.push_back(std::sqrt(square));
      if (square > 0) sorted.push_back(norms.back());
    }
    std::sort(sorted.begin(), sorted.end());
    for (double& norm : norms) norm = norm > 0 ? std::min(1.0, sorted[(sorted.size() - 1) / 2] / norm) : 0;
    return norms;
  }
  void send(const Segment& segment, const Block& block, Arena<double>& memory, Arena<double>& sent) {
    std::vector<double> sizes;
    for (const std::size_t place : block.places) sizes.push_back(std::abs(memory[place]));
    std::sort(sizes.rbegin(), sizes.rend());
    const std::size_t k = segment.compress
                              ? static_cast<std::size_t>(std::ceil(share * static_cast<double>(sizes.size())))
                              : sizes.size();
    if (k < sizes.size() && sizes[k - 1] - sizes[k] < 1e-4 * sizes[0]) doubted = true;
    for (const std::size_t place : block.places) {
      if (std::abs(memory[place]) < sizes[k - 1]) continue;
      sent[place] = memory[place];
      memory[place] = 0;
    }
  }

  Layout layout_;
  std::uint64_t steps_ = 0;
};

/// CocktailSGD: D_i = z - x_i, s_i = the top k of each segment of D_i; z = z - mean s; `delay` steps later x_i = x_i + s_i - mean s.
/// Segments that are not compressed: s_i = D_i.
template <class Inner>
struct TradeTraining : Replicas<Inner> {
  std::uint64_t period = 1, delay = 0;
  double share = 1;
  Arena<double> z;
  Arenas traded;
  bool doubted = false;  ///< whether a pick hung on a rounding

  template <class Values>
  TradeTraining(const Layout& layout, std::size_t ranks, const typename Inner::Options& options,
                const Values& start)
      : Replicas<Inner>(layout, ranks, options, start),
        z(this->inner_[0].parameters),
        traded(ranks, Arena<double>(z.size())),
        layout_(layout) {}

  void step(double gamma, const LocalGradient& gradient) {
    this->step_inside(this->gradients(gradient), gamma);
    doubted = false;
    const bool sends = ++steps_ % period == 0;
    if (sends) merge();
    if (sends) send();
    if (steps_ % period == delay % period && (!sends || delay == 0)) merge();
  }
  void go_on_from(std::size_t rank, const Arena<double>& x, const Arena<double>& own) {
    this->inner_[rank].parameters = x;
    traded[rank] = own;
  }

 private:
  void merge() {
    for (std::size_t i = 0; i < traded.size(); ++i)
      for (std::size_t k = 0; k < z.size(); ++k)
        this->inner_[i].parameters[k] += std::exchange(traded[i][k], 0);
  }
  void send() {
    Arena<double> mean(z.size());
    for (std::size_t i = 0; i < traded.size(); ++i)
      for (const Segment& segment : layout_.segments()) {
        const auto moved = [&](std::size_t k) { return z[k] - this->inner_[i].parameters[k]; };
        const std::size_t first = static_cast<std::size_t>(segment.offset),
                          n = static_cast<std::size_t>(segment.count);
        std::vector<double> sizes;
        for (std::size_t k = first; k < first + n; ++k) sizes.push_back(std::abs(moved(k)));
        std::sort(sizes.rbegin(), sizes.rend());
        const std::size_t picks =
            segment.compress ? static_cast<std::size_t>(std::ceil(share * static_cast<double>(n))) : n;
        if (picks < n && sizes[picks - 1] - sizes[picks] < 1e-4 * sizes[0]) doubted = true;
        for (std::size_t k = first; k < first + n; ++k) {
          if (std::abs(moved(k)) < sizes[picks - 1]) continue;
          traded[i][k] = moved(k);
          mean[k] += moved(k) / static_cast<double>(traded.size());
        }
      }
    for (std::size_t k = 0; k < z.size(); ++k) {
      z[k] -= mean[k];
      for (Arena<double>& own : traded) own[k] -= mean[k];
    }
  }

  Layout layout_;
  std::uint64_t steps_ = 0;
};

/// NoLoCo as its paper writes it, with both of its terms: every `period` steps, P_i the rank and its partner,
///
///     m_i = mu m_i + eta mean over P_i of (x - phi) + gamma (mean over P_i of phi - phi_i)        gamma = eta
///     phi_i = phi_i + m_i        x_i = phi_i
template <class Inner>
struct PairTraining : Replicas<Inner> {
  std::uint64_t period = 1;
  double mu = 0, eta = 0;
  std::function<int(int rank, std::uint64_t step)> partner;
  Arenas phi, m;

  template <class Values>
  PairTraining(const Layout& layout, std::size_t ranks, const typename Inner::Options& options,
               const Values& start)
      : Replicas<Inner>(layout, ranks, options, start),
        phi(this->x()),
        m(ranks, Arena<double>(phi[0].size())) {}

  void step(double gamma, const LocalGradient& gradient) {
    this->step_inside(this->gradients(gradient), gamma);
    if (++steps_ % period != 0) return;
    const Arenas x = this->x(), before = phi;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const int other = partner(static_cast<int>(i), steps_);
      const std::size_t j = other < 0 ? i : static_cast<std::size_t>(other);
      for (std::size_t k = 0; k < x[i].size(); ++k) {
        const double moved = (x[i][k] - before[i][k] + x[j][k] - before[j][k]) / 2;
        const double apart = (before[i][k] + before[j][k]) / 2 - before[i][k];
        m[i][k] = mu * m[i][k] + eta * moved + eta * apart;
        phi[i][k] += m[i][k];
      }
      this->inner_[i].parameters = phi[i];
    }
  }

 private:
  std::uint64_t steps_ = 0;
};

/// DiLoCo over a graph, in GASLoC's variables: every `period` steps, with g_i = x_i - theta_i and W in place of 1 - alpha Lambda,
///
///     y_i = sum_j W_ij (theta_j + eta g_j)        theta_i = y_i + gamma (y_i - the last y_i)        x_i = theta_i
template <class Inner>
struct GraphTraining : Replicas<Inner> {
  std::uint64_t period = 1;
  double eta = 0, gamma = 0;
  std::vector<double> w;  // row-major
  Arenas theta, y;

  template <class Values>
  GraphTraining(const Layout& layout, std::size_t ranks, const typename Inner::Options& options,
                const Values& start)
      : Replicas<Inner>(layout, ranks, options, start), theta(this->x()), y(theta) {}

  void step(double rate, const LocalGradient& gradient) {
    this->step_inside(this->gradients(gradient), rate);
    if (++steps_ % period != 0) return;
    const Arenas x = this->x(), last = y;
    const std::size_t ranks = x.size();
    for (std::size_t i = 0; i < ranks; ++i)
      for (std::size_t k = 0; k < x[i].size(); ++k) {
        y[i][k] = 0;
        for (std::size_t j = 0; j < ranks; ++j)
          y[i][k] += w[i * ranks + j] * (theta[j][k] + eta * (x[j][k] - theta[j][k]));
      }
    for (std::size_t i = 0; i < ranks; ++i) {
      for (std::size_t k = 0; k < x[i].size(); ++k) theta[i][k] = y[i][k] + gamma * (y[i][k] - last[i][k]);
      this->inner_[i].parameters = theta[i];
    }
  }

 private:
  std::uint64_t steps_ = 0;
};

}  // namespace terse::reference
