// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dense.hpp"
#include "terse/core/layout.hpp"

// Oracles of the recipes that average compressed gradients: all ranks in one thread, in double, written from
// the formulas. They share nothing with the library but `Layout` and `Range`; low rank is in power_sgd.hpp.
//
// Segments with `compress` go through the compressor. The others are averaged exactly and take the same
// momentum rule, applied to the mean. To compare with a run in float, give the options the float constants
// themselves (0.9f, not 0.9): the oracles compute 1 - beta from what they are given.

namespace terse::reference {

/// -0.0 and +0.0 are both positive.
inline double sgn(double value) { return value < 0 ? -1.0 : 1.0; }

/// max(1, ceil(ratio * count)), at most `count`.
inline index_t top_count(double ratio, index_t count) {
  const index_t wanted = static_cast<index_t>(std::ceil(ratio * static_cast<double>(count)));
  return std::clamp(wanted, std::min<index_t>(1, count), count);
}

/// The arena indices of a segment by falling magnitude, ties by rising index.
inline std::vector<std::size_t> by_magnitude(const Segment& segment, const Arena<double>& values) {
  std::vector<std::size_t> order;
  for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) order.push_back(at(k));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  return order;
}

/// The mean magnitude of a piece, or its root mean square.
inline double scale_of(const Piece& piece, const Arena<double>& values, bool rms) {
  double sum = 0;
  for (std::size_t k = at(piece.offset); k < at(piece.offset + piece.count); ++k)
    sum += rms ? values[k] * values[k] : std::abs(values[k]);
  const double mean = piece.count > 0 ? sum / static_cast<double>(piece.count) : 0.0;
  return rms ? std::sqrt(mean) : mean;
}

/// m = mu m + g; the direction is m, or g + mu m with Nesterov's.
inline double heavy_ball(double& m, double g, double mu, bool nesterov) {
  m = mu * m + g;
  return nesterov ? g + mu * m : m;
}

/// How many elements of a segment are sent.
using Elements = std::function<index_t(const Segment&)>;
/// What the receivers decode of `values`, an arena, from `rank` in step `step`, counted from 1.
using Decoder = std::function<Arena<double>(std::size_t rank, index_t step, const Arena<double>& values)>;

/// What all oracles have. The state is public: a test may compare it, or set it before a step.
///
/// A decision is a close call when rounding to float may turn it: a sign of a value under `margin` times its
/// scale, or a selection whose first loser is within `margin` of the last winner. Zeros and ties that are
/// exact are none: they come from the data, and float has them too.
struct Simulation {
  Layout layout;
  std::size_t ranks;
  Arena<double> parameters;
  double margin = 1e-6;
  index_t steps = 0;          ///< done so far
  bool close_call = false;    ///< whether the last step made one
  std::vector<char> doubted;  ///< 1 where any decision so far was one

  template <class Values>
  Simulation(Layout layout_, int ranks_, const Values& start)
      : layout(std::move(layout_)),
        ranks(at(ranks_)),
        parameters(start.begin(), start.end()),
        doubted(at(layout.size()), 0) {
    if (parameters.size() != at(layout.size()))
      throw std::invalid_argument("the parameters must fill the arena");
  }

 protected:
  template <class Gradients>
  std::vector<Arena<double>> begin(const Gradients& gradients) {
    ++steps;
    close_call = false;
    return read_gradients<double>(layout, ranks, gradients);
  }

  Arena<double> arena() const { return Arena<double>(at(layout.size())); }
  std::vector<Arena<double>> arenas() const { return std::vector<Arena<double>>(ranks, arena()); }
  std::vector<Piece> compressed() const { return layout.filter(layout.range(), true).pieces(); }
  const Segment& segment_of(const Piece& piece) const { return layout.segments()[at(piece.segment)]; }

  void doubt(std::size_t k) {
    close_call = true;
    doubted[k] = 1;
  }

  static bool near_zero(double value, double bound) { return value != 0 && std::abs(value) < bound; }

  /// decoded = scale * sgn(y) over a piece.
  void scaled_sign(const Piece& piece, const Arena<double>& y, bool rms, Arena<double>& decoded) {
    const double scale = scale_of(piece, y, rms);
    for (std::size_t k = at(piece.offset); k < at(piece.offset + piece.count); ++k) {
      decoded[k] = scale * sgn(y[k]);
      if (near_zero(y[k], margin * scale)) doubt(k);
    }
  }

  /// The `count` elements of a segment with the largest magnitudes, ties to the lower index.
  std::vector<std::size_t> select(const Segment& segment, const Arena<double>& values, index_t count) {
    std::vector<std::size_t> order = by_magnitude(segment, values);
    if (count < 0 || at(count) > order.size())
      throw std::invalid_argument("more elements wanted than there are");
    if (count > 0 && at(count) < order.size()) {
      // The run of elements within the margin of the last winner, from `first` to `last`.
      const double edge = std::abs(values[order[at(count) - 1]]);
      const auto near = [&](std::size_t j) {
        return std::abs(std::abs(values[order[j]]) - edge) <= margin * edge;
      };
      std::size_t first = at(count) - 1, last = at(count);
      while (first > 0 && near(first - 1)) --first;
      while (last < order.size() && near(last)) ++last;
      const bool contested = last > at(count);
      const bool tied = std::abs(values[order[first]]) == std::abs(values[order[last - 1]]);
      if (contested && !tied)
        for (std::size_t j = first; j < last; ++j) doubt(order[j]);
    }
    order.resize(at(count));
    return order;
  }

  /// Momentum on the averaged direction, then the descent, in all segments.
  void descend_all(const Arena<double>& mean, double learning_rate, double mu, bool nesterov,
                   double weight_decay, Arena<double>& momentum) {
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      const double direction = heavy_ball(momentum[k], mean[k], mu, nesterov);
      descend(segment, learning_rate, weight_decay, direction, parameters[k]);
    });
  }
};

/// Error feedback with scaled signs (Karimireddy et al. 2019; dist-EF-SGD, Zheng et al. 2019), in gradient
/// units: y = g + e; c = C(y); e = y - c; x -= lr (mean c + wd x). Chunks make it two-stage: the owner of a
/// chunk has s = mean c + E; the direction is C(s); E = s - C(s).
///
/// The error enters y as residual_decay * (lr_prev / lr) * e, the quotient only with `rescale`: lr_prev is the
/// last rate other than 0 with which an error was kept. With `rescale` a step at lr = 0 keeps e and E as they
/// were and sends y = g: what momentum on the mean takes in, if `momentum_at_zero_rate` is set.
struct ErrorFeedbackSgd : Simulation {
  struct Options {
    bool rms = false;                   ///< the scale is the root mean square, not the mean magnitude
    double momentum = 0;                ///< mu
    bool nesterov = false;              ///< g + mu m in place of m
    bool momentum_before = false;       ///< each rank sends its own m, or g + mu m (dist-EF-SGD)
    bool rescale = false;               ///< by lr_prev / lr
    double residual_decay = 1;          ///< of both errors
    double weight_decay = 0;            ///< outside momentum and compression
    bool momentum_at_zero_rate = true;  ///< false: with `rescale`, lr = 0 leaves compressed segments' m too
  };

  Options options;
  std::vector<Range> chunks;                  ///< by owner; empty: one stage
  std::vector<Arena<double>> errors;          ///< e, [rank][k]
  std::vector<Arena<double>> server_errors;   ///< E, [owner][k], 0 outside the owner's chunk
  std::vector<Arena<double>> local_momentum;  ///< [rank][k], of compressed segments, momentum_before
  Arena<double> momentum;                     ///< on the mean; always so in uncompressed segments
  double kept_rate = 0;                       ///< lr_prev, 0 before the first

  template <class Values>
  ErrorFeedbackSgd(Layout layout_, int ranks_, Options options_, const Values& start,
                   std::vector<Range> chunks_ = {})
      : Simulation(std::move(layout_), ranks_, start),
        options(options_),
        chunks(std::move(chunks_)),
        errors(arenas()),
        server_errors(arenas()),
        local_momentum(arenas()),
        momentum(arena()) {
    if (chunks.empty()) return;
    index_t covered = 0;
    for (const Range& chunk : chunks) covered += chunk.elements();
    if (chunks.size() != ranks || covered != layout.filter(layout.range(), true).elements())
      throw std::invalid_argument("each compressed element needs an owner");
  }

  /// `gradients[rank][k]`; `learning_rate` is this step's.
  template <class Gradients>
  void step(const Gradients& gradients, double learning_rate) {
    const std::vector<Arena<double>> g = begin(gradients);
    const bool keeps = !(options.rescale && learning_rate == 0);
    const bool moves = keeps || options.momentum_at_zero_rate;
    double weight = keeps ? options.residual_decay : 0.0;
    if (keeps && options.rescale && kept_rate != 0) weight *= kept_rate / learning_rate;

    Arena<double> mean = mean_of(g);
    if (moves) average_compressed(g, weight, keeps, mean);
    if (learning_rate != 0) kept_rate = learning_rate;

    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      if (segment.compress && !moves) return;
      const bool plain = segment.compress && options.momentum_before;
      const double direction =
          plain ? mean[k] : heavy_ball(momentum[k], mean[k], options.momentum, options.nesterov);
      descend(segment, learning_rate, options.weight_decay, direction, parameters[k]);
    });
  }

 private:
  void average_compressed(const std::vector<Arena<double>>& g, double weight, bool keeps,
                          Arena<double>& mean) {
    std::vector<Arena<double>> decoded = arenas();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (const Piece& piece : compressed()) {
        Arena<double> y = arena();
        for (std::size_t k = at(piece.offset); k < at(piece.offset + piece.count); ++k) {
          const double message = options.momentum_before ? heavy_ball(local_momentum[rank][k], g[rank][k],
                                                                      options.momentum, options.nesterov)
                                                         : g[rank][k];
          y[k] = message + weight * errors[rank][k];
        }
        compress(piece, y, keeps, decoded[rank], errors[rank]);
      }
    }
    const Arena<double> average = mean_of(decoded);
    for (const Piece& piece : compressed())
      for (std::size_t k = at(piece.offset); k < at(piece.offset + piece.count); ++k) mean[k] = average[k];

    for (std::size_t owner = 0; owner < chunks.size(); ++owner) {
      for (const Piece& piece : chunks[owner].pieces()) {
        Arena<double> s = arena();
        for (std::size_t k = at(piece.offset); k < at(piece.offset + piece.count); ++k)
          s[k] = average[k] + weight * server_errors[owner][k];
        compress(piece, s, keeps, mean, server_errors[owner]);
      }
    }
  }

  void compress(const Piece& piece, const Arena<double>& y, bool keeps, Arena<double>& decoded,
                Arena<double>& error) {
    scaled_sign(piece, y, options.rms, decoded);
    if (!keeps) return;
    for (std::size_t k = at(piece.offset); k < at(piece.offset + piece.count); ++k)
      error[k] = y[k] - decoded[k];
  }
};

/// signSGD with majority vote (Bernstein et al. 2019): m_i = b m_i + (1 - b) g_i; vote = sgn(sum sgn(m_i));
/// x -= lr (vote + wd x). Uncompressed segments descend along the mean of m_i.
struct SignSgd : Simulation {
  struct Options {
    double beta = 0.9;
    double weight_decay = 0;
  };

  Options options;
  std::vector<Arena<double>> momentum;  ///< [rank][k]
  Arena<double> direction;              ///< of the last step: the vote, or the mean of m_i

  template <class Values>
  SignSgd(Layout layout_, int ranks_, Options options_, const Values& start)
      : Simulation(std::move(layout_), ranks_, start),
        options(options_),
        momentum(arenas()),
        direction(arena()) {}

  /// `gradients[rank][k]`; `learning_rate` is this step's.
  template <class Gradients>
  void step(const Gradients& gradients, double learning_rate) {
    const std::vector<Arena<double>> g = begin(gradients);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      for_each_element(layout, [&](const Segment&, std::size_t k) {
        momentum[rank][k] = options.beta * momentum[rank][k] + (1 - options.beta) * g[rank][k];
      });
    direction = mean_of(momentum);
    for (const Piece& piece : compressed()) vote(piece);
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      descend(segment, learning_rate, options.weight_decay, direction[k], parameters[k]);
    });
  }

 private:
  /// A close sign matters where it may turn the vote.
  void vote(const Piece& piece) {
    std::vector<double> bounds;
    for (const Arena<double>& m : momentum) bounds.push_back(margin * scale_of(piece, m, false));
    for (std::size_t k = at(piece.offset); k < at(piece.offset + piece.count); ++k) {
      double sum = 0, unsure = 0, sure = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const double sign = sgn(momentum[rank][k]);
        sum += sign;
        if (near_zero(momentum[rank][k], bounds[rank]))
          unsure += 1;
        else
          sure += sign;
      }
      direction[k] = sgn(sum);
      if (sgn(sure - unsure) != sgn(sure + unsure)) doubt(k);
    }
  }
};

}  // namespace terse::reference
