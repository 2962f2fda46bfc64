// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/transport/agreement.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"

namespace terse {

/// Options of a Grid; equal on all ranks.
struct GridOptions {
  int stages = 1;  ///< stages of a pipeline; divides the number of ranks
};

/// Data-parallel pipelines: each of `replicas` pipelines of `stages` ranks trains on its own examples, and the ranks of
/// one stage share an optimizer. Rank of the world = stage * replicas + replica.
///
///     terse::Grid grid(world, {.stages = 4});
///     terse::Pipeline pipeline{policy, grid.pipe(), stage, {.micro_batch = 32, .seed = grid.seed(1)}};
///     terse::Optimizer optimizer{terse::OneBitAdam<>{}, grid.data(), layout_of_the_stage};
///     const terse::PipelineResult result = pipeline.train(ids_of_this_replica);
///     if (grid.agree(result)) optimizer.step(parameters, gradients, grid.clip_scale(square, 1.0F));
///
/// Construction is collective and splits the world three times; `world` need not outlive the grid. Throws on all ranks:
/// mismatch_error if the ranks' numbers of stages differ, usage_error if the number of ranks is not a multiple of the
/// stages.
///
/// Ranks in errors (`rank()`, `culprit()`) are ranks of the channel that throws: stages for a Pipeline over `pipe()`,
/// replicas for an Optimizer over `data()`, and ranks of the world for the grid itself. `rank_of` converts them.
/// Transports that know the whole world (Threads) name its ranks in every peer_error.
template <Transport T>
class Grid {
 public:
  Grid(T& world, const GridOptions& options)
      : world_(world.split(0, world.rank())),
        stages_(checked(options.stages, world_)),
        replicas_(world_.size() / stages_),
        pipe_(world_.split(replica(), stage())),
        data_(world_.split(stage(), replica())),
        everyone_(world_) {}

  /// Returns the channel of this rank's replica; stage s is its rank s.
  T& pipe() { return pipe_; }
  /// Returns the channel of this rank's stage, whose ranks have equal parameters; replica r is its rank r.
  T& data() { return data_; }

  int stage() const { return world_.rank() / replicas_; }
  int stages() const { return stages_; }
  int replica() const { return world_.rank() % replicas_; }
  int replicas() const { return replicas_; }
  /// Returns the rank in the world.
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  int rank_of(int stage, int replica) const { return stage * replicas_ + replica; }

  /// Returns a seed for this replica's pipeline. It is equal on the stages of the replica, which must agree on it,
  /// and different on each replica, so that the replicas' rounding errors differ and average out.
  std::uint64_t seed(std::uint64_t seed) const {
    return mix_hash(seed, static_cast<std::uint64_t>(replica()));
  }

  /// Returns true if all ranks pass true. Collective, 12 bytes to each peer. If pipelines skip steps that are not finite,
  /// call it before each optimizer step: otherwise one replica could skip alone, and the others would wait for it. A
  /// gradient of parameters can overflow even if all activations are finite; `agree(result.applied &&
  /// std::isfinite(square))` also detects that.
  ///
  /// With NonFinite::throw_ the ranks of one replica throw, and the others get a peer_error here.
  bool agree(bool applied) {
    const detail::Call call(detail::Verb::grid_agree);
    bool all = true;
    for (const std::uint64_t theirs : everyone_(world_, applied ? 1 : 0, Phase::agree))
      all = all && theirs != 0;
    return all;
  }
  /// Returns true if the results of all ranks are `applied`.
  template <class Result>
  bool agree(const Result& result) requires requires {
    { result.applied } -> std::same_as<const bool&>;
  }
  { return agree(result.applied); }

  /// Returns the factor, at most 1, that reduces the gradients' norm to `clip_norm`; it is equal on all ranks:
  ///
  ///     norm = sqrt(mean over replicas of the sum over stages of `square`)        clip_norm / max(norm, clip_norm)
  ///
  /// This norm is an upper bound of the norm of the mean gradient over all stages. In compressed steps of one stage,
  /// Options::clip_norm bounds the same norm. `square` is the sum of squares of this rank's gradients, as a step uses them.
  /// If there is a gradient_scale, multiply `square` by its square and the returned factor by the scale. Collective, 12
  /// bytes to each peer. `clip_norm` is equal on all ranks; infinity for no clipping. Do not also set Options::clip_norm: it
  /// bounds the norm of one stage alone. Throws on all ranks: usage_error unless clip_norm is positive, and non_finite_error
  /// that names the first rank of the world whose square is not finite.
  float clip_scale(double square, float clip_norm) {
    if (!(clip_norm > 0))
      throw usage_error("clip_norm must be positive, not " + std::to_string(clip_norm), world_.rank());
    const detail::Call call(detail::Verb::grid_clip_scale);
    double sum = 0;
    int peer = 0, culprit = -1;
    for (const std::uint64_t bits : everyone_(world_, std::bit_cast<std::uint64_t>(square), Phase::agree)) {
      const auto theirs = std::bit_cast<double>(bits);
      if (culprit < 0 && !std::isfinite(theirs)) culprit = peer;
      sum += theirs;
      ++peer;
    }
    if (culprit >= 0)
      throw non_finite_error("the sum of squares of the gradients of rank " + std::to_string(culprit) +
                                 " (stage " + std::to_string(culprit / replicas_) + " of replica " +
                                 std::to_string(culprit % replicas_) + ") is not finite",
                             culprit, world_.rank(), -1);
    const double norm = std::sqrt(sum / replicas_);
    return norm > static_cast<double>(clip_norm) ? static_cast<float>(static_cast<double>(clip_norm) / norm)
                                                 : 1.0F;
  }

 private:
  static int checked(int stages, T& world) {
    const detail::Call call(detail::Verb::grid);
    terse::agree(world, std::array{detail::Agreed{"number of stages", static_cast<std::uint64_t>(stages)}});
    if (stages < 1 || world.size() % stages != 0)
      throw usage_error("a grid of " + std::to_string(stages) +
                            " stages needs a multiple of as many ranks, not " + std::to_string(world.size()),
                        world.rank());
    return stages;
  }

  T world_;
  int stages_, replicas_;
  T pipe_, data_;
  Assembly<std::uint64_t, T> everyone_;
};

}  // namespace terse
