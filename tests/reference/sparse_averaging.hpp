// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <variant>
#include <vector>

#include "gradient_averaging.hpp"

// Oracles of Deep Gradient Compression and of EF21 and DIANA, on the terms of gradient_averaging.hpp.

namespace terse::reference {

/// Deep Gradient Compression (Lin et al. 2018): u = mu u + g; r += u; the top-k of |r| of each segment are sent,
/// and u = r = 0 there; x -= lr (mean of what was sent + wd x). With Nesterov's: u = mu (u + g); r += u + g.
struct DeepGradientCompression : Simulation {
  struct Options {
    double momentum = 0.9;
    bool nesterov = false;
    double weight_decay = 0;
  };

  Options options;
  std::vector<Arena<double>> velocity;         ///< u, [rank][k], of compressed segments
  std::vector<Arena<double>> residuals;        ///< r, [rank][k], of compressed segments
  Arena<double> dense_velocity;                ///< u on the mean, of uncompressed segments
  std::vector<std::vector<std::size_t>> sent;  ///< [rank], arena indices of the last step
  Arena<double> direction;                     ///< of the last step

  template <class Values>
  DeepGradientCompression(Layout layout_, int ranks_, Options options_, const Values& start)
      : Simulation(std::move(layout_), ranks_, start),
        options(options_),
        velocity(arenas()),
        residuals(arenas()),
        dense_velocity(arena()),
        sent(ranks),
        direction(arena()) {}

  /// Sends top_count(ratio, count) elements of each segment.
  template <class Gradients>
  void step(const Gradients& gradients, double learning_rate, double ratio) {
    step(gradients, learning_rate, [&](const Segment& segment) { return top_count(ratio, segment.count); });
  }

  /// `gradients[rank][k]`; `learning_rate` and `elements` are this step's.
  template <class Gradients>
  void step(const Gradients& gradients, double learning_rate, const Elements& elements) {
    const std::vector<Arena<double>> g = begin(gradients);
    std::vector<Arena<double>> sparse = arenas();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sent[rank].clear();
      for (const Piece& piece : compressed()) {
        for (std::size_t k = at(piece.offset); k < at(piece.offset + piece.count); ++k)
          residuals[rank][k] += corrected(velocity[rank][k], g[rank][k]);
        const Segment& segment = segment_of(piece);
        for (const std::size_t k : select(segment, residuals[rank], elements(segment))) {
          sparse[rank][k] = residuals[rank][k];
          residuals[rank][k] = 0;
          velocity[rank][k] = 0;
          sent[rank].push_back(k);
        }
      }
    }
    direction = mean_of(sparse);
    const Arena<double> dense = mean_of(g);
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      if (!segment.compress) direction[k] = corrected(dense_velocity[k], dense[k]);
      descend(segment, learning_rate, options.weight_decay, direction[k], parameters[k]);
    });
  }

 private:
  /// Advances u and returns what it adds to r.
  double corrected(double& u, double g) const {
    u = options.nesterov ? options.momentum * (u + g) : options.momentum * u + g;
    return options.nesterov ? u + g : u;
  }
};

/// EF21 (Richtarik et al. 2021) and, with an unbiased compressor and rate = 1 / (1 + omega), DIANA (Mishchenko et
/// al. 2019): d_i = C(g_i - h_i); g_hat = h + mean d_i; h_i += rate d_i; h += rate mean d_i; momentum on g_hat.
struct Ef21Sgd : Simulation {
  struct Options {
    double rate = 1;           ///< 1: EF21
    bool dense_start = false;  ///< the first step sends h_i = g_i as it is
    double momentum = 0;
    bool nesterov = false;
    double weight_decay = 0;
  };

  Options options;
  std::variant<Elements, Decoder> compressor;  ///< top-k of each segment, or the caller's
  std::vector<Arena<double>> shifts;           ///< h_i, [rank][k], of compressed segments
  Arena<double> shift;                         ///< h, their mean
  Arena<double> momentum;
  Arena<double> estimate;  ///< g_hat of the last step

  template <class Values>
  Ef21Sgd(Layout layout_, int ranks_, Options options_, const Values& start,
          std::variant<Elements, Decoder> compressor_)
      : Simulation(std::move(layout_), ranks_, start),
        options(options_),
        compressor(std::move(compressor_)),
        shifts(arenas()),
        shift(arena()),
        momentum(arena()),
        estimate(arena()) {}

  /// `gradients[rank][k]`; `learning_rate` is this step's.
  template <class Gradients>
  void step(const Gradients& gradients, double learning_rate) {
    const std::vector<Arena<double>> g = begin(gradients);
    estimate = mean_of(g);
    const std::vector<Piece> pieces = compressed();
    if (steps == 1 && options.dense_start) {
      for_each(pieces, [&](std::size_t k) {
        for (std::size_t rank = 0; rank < ranks; ++rank) shifts[rank][k] = g[rank][k];
        shift[k] = estimate[k];
      });
    } else {
      std::vector<Arena<double>> sent;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        Arena<double> difference = arena();
        for_each(pieces, [&](std::size_t k) { difference[k] = g[rank][k] - shifts[rank][k]; });
        sent.push_back(compress(rank, difference));
        for_each(pieces, [&](std::size_t k) { shifts[rank][k] += options.rate * sent[rank][k]; });
      }
      const Arena<double> mean = mean_of(sent);
      for_each(pieces, [&](std::size_t k) {
        estimate[k] = shift[k] + mean[k];
        shift[k] += options.rate * mean[k];
      });
    }
    descend_all(estimate, learning_rate, options.momentum, options.nesterov, options.weight_decay, momentum);
  }

 private:
  template <class Body>
  static void for_each(const std::vector<Piece>& pieces, const Body& body) {
    for (const Piece& piece : pieces)
      for (std::size_t k = at(piece.offset); k < at(piece.offset + piece.count); ++k) body(k);
  }

  Arena<double> compress(std::size_t rank, const Arena<double>& values) {
    if (const Decoder* decode = std::get_if<Decoder>(&compressor)) return (*decode)(rank, steps, values);
    Arena<double> kept = arena();
    for (const Piece& piece : compressed()) {
      const Segment& segment = segment_of(piece);
      for (const std::size_t k : select(segment, values, std::get<Elements>(compressor)(segment)))
        kept[k] = values[k];
    }
    return kept;
  }
};

}  // namespace terse::reference
