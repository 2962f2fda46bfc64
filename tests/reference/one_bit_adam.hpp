// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "dense.hpp"
#include "terse/core/layout.hpp"

// Oracle of 1-bit Adam: all ranks in one thread, written from the formulas. It shares nothing with the
// library but `Layout` and the partition by `Range::cut`.

namespace terse::reference {

enum class Topology { scatter_gather, ring, all_gather, alone };
enum class Scale { rms, mean_abs };
enum class Granularity { per_segment, per_block, whole };
enum class Feedback { residual, none };

/// Step `step` is the last one with full precision.
struct FreezeAtStep {
  index_t step = 1;
};

/// Freezes after the first step t > max(learning_rate_warmup_steps, horizon) at which a, the sum of the
/// variance over the compressed segments, has min(a(t) / a(t - horizon), a(t - horizon) / a(t)) >= threshold.
struct FreezeAtVarianceRatio {
  double threshold = 0.96;
  index_t horizon = 1000;
  index_t learning_rate_warmup_steps = 0;
};

/// The state is public: a test may compare it, or set it before a step.
///
/// To compare with a run in float, give `Options` the float constants themselves (0.999f, not 0.999): the
/// oracle computes 1 - beta from what it is given.
template <class Real = double>
struct OneBitAdam {
  struct Options {
    Topology topology = Topology::scatter_gather;
    Scale scale = Scale::rms;
    Granularity granularity = Granularity::per_segment;
    index_t block = 64;  ///< elements of a unit under Granularity::per_block
    Feedback feedback = Feedback::residual;
    std::variant<FreezeAtStep, FreezeAtVarianceRatio> freeze = FreezeAtStep{};
    Real beta1 = Real(0.9);
    Real beta2 = Real(0.999);
    Real epsilon = Real(1e-8);
    Real weight_decay = 0;
    bool bias_correction = false;  ///< of both averages in the stage with full precision
    Real update_clip = std::numeric_limits<Real>::infinity();  ///< bounds |m d| in the compressed stage
    Real clip_norm = std::numeric_limits<Real>::infinity();
    /// A sign decision is ambiguous when |compensated| < margin * scale of its unit.
    Real margin = Real(1e-5);
  };

  Layout layout;
  std::size_t ranks;
  Options options;
  Range compressed;           ///< the elements that are compressed once frozen
  std::vector<Range> chunks;  ///< `compressed` cut by rank: the owner's chunk, the chunk that starts there

  Arena<Real> parameters;
  Arena<Real> momentum;                       ///< common to all ranks
  Arena<Real> variance;                       ///< of compressed segments constant once frozen
  Arena<Real> inverse;                        ///< d, set by the freeze in compressed segments
  std::vector<char> live;                     ///< 0 where the freeze found no variance
  std::vector<char> doubted;                  ///< 1 where any sign decision so far was ambiguous
  std::vector<Arena<Real>> residuals;         ///< e, [rank][k]
  std::vector<Arena<Real>> server_residuals;  ///< E, [owner][k], 0 outside the owner's chunk
  index_t steps = 0;                          ///< done so far
  bool frozen = false;                        ///< whether the next step is compressed
  index_t frozen_at = 0;                      ///< the last step with full precision, once frozen
  std::vector<Real> variance_sums;            ///< a(t), at t - 1, of the steps with full precision
  Real variance_ratio = 0;                    ///< what the last step compared with the threshold
  Real gradient_norm = 0;                     ///< what the last step compared with `clip_norm`
  index_t ambiguous = 0;                      ///< ambiguous sign decisions of all steps
  index_t ambiguous_in_step = 0;              ///< those of the last step

  template <class Values>
  OneBitAdam(Layout layout_, int ranks_, Options options_, const Values& start)
      : layout(std::move(layout_)),
        ranks(at(ranks_)),
        options(options_),
        compressed(layout.filter(layout.range(), true)),
        chunks(compressed.cut(ranks_)),
        parameters(start.begin(), start.end()),
        momentum(at(layout.size())),
        variance(at(layout.size())),
        inverse(at(layout.size())),
        live(at(layout.size()), 1),
        doubted(at(layout.size()), 0),
        residuals(ranks, Arena<Real>(at(layout.size()))),
        server_residuals(ranks, Arena<Real>(at(layout.size()))) {
    if (parameters.size() != at(layout.size()))
      throw std::invalid_argument("the parameters must fill the arena");
    if (options.topology == Topology::alone && ranks != 1)
      throw std::invalid_argument(
          "the oracle has common parameters, so it knows Topology::alone for one rank");
    if (options.granularity == Granularity::per_block && options.block < 1)
      throw std::invalid_argument("a block needs an element");
    if (const auto* rule = std::get_if<FreezeAtStep>(&options.freeze); rule != nullptr && rule->step < 1)
      throw std::invalid_argument("the first step has full precision");
    if (const auto* rule = std::get_if<FreezeAtVarianceRatio>(&options.freeze);
        rule != nullptr && rule->horizon < 1)
      throw std::invalid_argument("the horizon needs a step");
  }

  /// `gradients[rank][k]`; `learning_rate` is this step's.
  template <class Gradients>
  void step(const Gradients& gradients, Real learning_rate) {
    ++steps;
    ambiguous_in_step = 0;
    std::vector<Arena<Real>> g = read_gradients<Real>(layout, ranks, gradients);
    if (!frozen) {
      warmup_step(mean_of(g), learning_rate);
      if (rule_fires()) freeze();
    } else {
      compressed_step(std::move(g), learning_rate);
    }
  }

  /// Ends the stage with full precision here.
  void freeze() {
    frozen = true;
    frozen_at = steps;
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      if (!segment.compress) return;
      live[k] = variance[k] > 0 ? 1 : 0;
      inverse[k] =
          live[k] ? 1 / (std::sqrt(variance[k] / start_of(options.beta2)) + options.epsilon) : Real{0};
      if (!live[k]) momentum[k] = 0;
    });
  }

 private:
  /// The arena indices that share a scale.
  using Unit = std::vector<std::size_t>;

  void warmup_step(Arena<Real> g, Real learning_rate) {
    gradient_norm = std::sqrt(squared_norm(layout, g));
    const Real factor = clip_factor(options.clip_norm, gradient_norm);
    for (Real& value : g) value *= factor;
    Real sum = 0;
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      adam(segment, k, g[k], learning_rate);
      if (segment.compress) sum += variance[k];
    });
    variance_sums.push_back(sum);
  }

  void adam(const Segment& segment, std::size_t k, Real g, Real learning_rate) {
    momentum[k] = options.beta1 * momentum[k] + (1 - options.beta1) * g;
    variance[k] = options.beta2 * variance[k] + (1 - options.beta2) * g * g;
    const Real direction = momentum[k] / start_of(options.beta1) /
                           (std::sqrt(variance[k] / start_of(options.beta2)) + options.epsilon);
    descend(segment, learning_rate, options.weight_decay, direction, parameters[k]);
  }

  /// The sum of an average's weights after its start from 0, where that is corrected.
  Real start_of(Real beta) const {
    return options.bias_correction ? 1 - std::pow(beta, static_cast<Real>(steps)) : Real{1};
  }

  bool rule_fires() {
    if (const auto* rule = std::get_if<FreezeAtStep>(&options.freeze)) return steps == rule->step;
    const auto& rule = std::get<FreezeAtVarianceRatio>(options.freeze);
    if (steps <= rule.horizon) return false;
    const Real now = variance_sums[at(steps - 1)];
    const Real then = variance_sums[at(steps - 1 - rule.horizon)];
    variance_ratio = now > 0 && then > 0 ? std::min(now / then, then / now) : Real{0};
    return then > 0 && steps > rule.learning_rate_warmup_steps &&
           variance_ratio >= static_cast<Real>(rule.threshold);
  }

  void compressed_step(std::vector<Arena<Real>> g, Real learning_rate) {
    Real sum = 0;
    for (const Arena<Real>& one : g) sum += squared_norm(layout, one);
    gradient_norm = std::sqrt(sum / static_cast<Real>(ranks));
    const Real factor = clip_factor(options.clip_norm, gradient_norm);
    for (Arena<Real>& one : g)
      for (Real& value : one) value *= factor;

    std::vector<Arena<Real>> local(ranks, momentum);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      for (std::size_t k = 0; k < momentum.size(); ++k)
        local[rank][k] = options.beta1 * momentum[k] + (1 - options.beta1) * g[rank][k];

    Arena<Real> mean;
    switch (options.topology) {
      case Topology::scatter_gather:
        mean = scatter_gather(local);
        break;
      case Topology::ring:
        mean = ring(local);
        break;
      case Topology::all_gather:
      case Topology::alone:
        mean = mean_of(encode_all(units(compressed), local));
        break;
    }

    const Arena<Real> dense = mean_of(g);
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      if (!segment.compress) {
        adam(segment, k, dense[k], learning_rate);
        return;
      }
      momentum[k] = mean[k];
      const Real bound = options.update_clip;
      const Real direction = std::clamp(momentum[k] * inverse[k], -bound, bound);
      descend(segment, learning_rate, options.weight_decay, direction, parameters[k]);
    });
  }

  /// The units of a range whose pieces are whole: blocks start with the piece.
  std::vector<Unit> units(const Range& range) const {
    std::vector<Unit> result;
    if (options.granularity == Granularity::whole) result.emplace_back();
    for (const Piece& piece : range.pieces()) {
      if (options.granularity == Granularity::per_segment) result.emplace_back();
      for (index_t j = 0; j < piece.count; ++j) {
        if (options.granularity == Granularity::per_block && j % options.block == 0) result.emplace_back();
        result.back().push_back(at(piece.offset + j));
      }
    }
    return result;
  }

  /// Writes what the receivers of y's signs and scales decode. Where the freeze found no variance it is 0.
  void encode(const std::vector<Unit>& all, const Arena<Real>& y, Arena<Real>& decoded) {
    for (const Unit& unit : all) {
      Real sum = 0;
      index_t count = 0;
      for (const std::size_t k : unit) {
        if (!live[k]) continue;
        sum += options.scale == Scale::rms ? y[k] * y[k] : std::abs(y[k]);
        ++count;
      }
      Real scale = count > 0 ? sum / static_cast<Real>(count) : Real{0};
      if (options.scale == Scale::rms) scale = std::sqrt(scale);
      for (const std::size_t k : unit) {
        decoded[k] = !live[k] ? Real{0} : y[k] < 0 ? -scale : scale;
        if (live[k] && std::abs(y[k]) < options.margin * scale) {
          ++ambiguous;
          ++ambiguous_in_step;
          doubted[k] = 1;
        }
      }
    }
  }

  /// Sets `residual` to what `decoded` lacks of y.
  void keep(const std::vector<Unit>& all, const Arena<Real>& y, const Arena<Real>& decoded,
            Arena<Real>& residual) const {
    if (options.feedback == Feedback::none) return;
    for (const Unit& unit : all)
      for (const std::size_t k : unit) residual[k] = live[k] ? y[k] - decoded[k] : Real{0};
  }

  /// Each rank compresses its own compensated momentum; returns what the others decode.
  std::vector<Arena<Real>> encode_all(const std::vector<Unit>& all, const std::vector<Arena<Real>>& local) {
    std::vector<Arena<Real>> decoded(ranks, Arena<Real>(momentum.size()));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Arena<Real> y(momentum.size());
      for (const Unit& unit : all)
        for (const std::size_t k : unit) y[k] = live[k] ? local[rank][k] + residuals[rank][k] : Real{0};
      encode(all, y, decoded[rank]);
      keep(all, y, decoded[rank], residuals[rank]);
    }
    return decoded;
  }

  Arena<Real> scatter_gather(const std::vector<Arena<Real>>& local) {
    // Blocks stay within a chunk; segments and the whole range go over its borders.
    std::vector<Unit> first;
    if (options.granularity == Granularity::per_block) {
      for (const Range& chunk : chunks)
        for (Unit& unit : units(chunk)) first.push_back(std::move(unit));
    } else {
      first = units(compressed);
    }
    const Arena<Real> average = mean_of(encode_all(first, local));

    Arena<Real> result(momentum.size());
    for (std::size_t owner = 0; owner < ranks; ++owner) {
      const std::vector<Unit> second = units(chunks[owner]);
      Arena<Real> s(momentum.size());
      for (const Unit& unit : second)
        for (const std::size_t k : unit) s[k] = live[k] ? average[k] + server_residuals[owner][k] : Real{0};
      encode(second, s, result);
      keep(second, s, result, server_residuals[owner]);
    }
    return result;
  }

  Arena<Real> ring(const std::vector<Arena<Real>>& local) {
    Arena<Real> carried(momentum.size());  // the sum so far, as decoded from the last hop
    for (std::size_t start = 0; start < ranks; ++start) {
      const std::vector<Unit> all = units(chunks[start]);
      for (std::size_t hop = 0; hop < ranks; ++hop) {
        const std::size_t rank = (start + hop) % ranks;
        Arena<Real> y(momentum.size());
        for (const Unit& unit : all)
          for (const std::size_t k : unit)
            y[k] = live[k] ? local[rank][k] + residuals[rank][k] + carried[k] : Real{0};
        encode(all, y, carried);
        keep(all, y, carried, residuals[rank]);
      }
    }
    for (Real& value : carried) value /= static_cast<Real>(ranks);
    return carried;
  }
};

}  // namespace terse::reference
