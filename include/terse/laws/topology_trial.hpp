// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/exchange/exchange.hpp"
#include "terse/executor/host.hpp"
#include "terse/laws/damage.hpp"
#include "terse/laws/report.hpp"
#include "terse/laws/saved_state.hpp"

// Rounds of one exchange over threads, for the laws of topologies.

namespace terse::laws {

namespace detail {

inline constexpr int usual_worlds[] = {1, 2, 3, 5};

TERSE_NUMERICS_BEGIN

struct GivenMessage {
  const float* x;
  TERSE_HD float operator()(const Piece&, index_t i) const { return x[i]; }
};
/// Writes the mean, and counts the calls for each element.
struct CountedMean {
  float* x;
  int* times;
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    x[i] = mean;
    ++times[i];
  }
};

TERSE_NUMERICS_END

/// Rounds of one exchange between ranks that are threads. If `note`, the exchange also computes the norm of the
/// mean.
template <class P, Compressor C, ErrorFeedback F, bool note = false>
class TopologyTrial {
 public:
  TopologyTrial(const P& topology, int ranks, const Options& options)
      : topology_(topology), ranks_(ranks), options_(options) {
    layout_.add({"matrix", {37, 41}})
        .add({"excluded", {128 * ranks + 26}, 1, 1, false})  // in every packet
        .add({"empty", {0}})
        .add({"one", {1}});
  }

  const Layout& layout() const { return layout_; }
  float message(int rank, std::uint64_t round, index_t i) const {
    const Draw draw = Draw::local(options_.seed, rank, round, Purpose::user);
    return options_.magnitude *
           (static_cast<float>(draw.bits(static_cast<std::uint64_t>(i)) >> 40) * 0x1p-23F - 1);
  }

  struct Outcome {
    std::vector<std::vector<float>> means;  // by rank, of the last round
    std::vector<std::vector<double>> sums;  // by rank, of all rounds
    std::vector<double> norms;              // by rank, of the last round
    bool once = true;                       // true if each element came once in each round
  };
  /// Runs `rounds` rounds. If `same`, all rounds have the messages of the first round.
  Outcome run(std::uint64_t rounds, bool same) const {
    const auto size = static_cast<std::size_t>(layout_.size());
    Outcome outcome{std::vector(static_cast<std::size_t>(ranks_), std::vector<float>(size)),
                    std::vector(static_cast<std::size_t>(ranks_), std::vector<double>(size)),
                    std::vector<double>(static_cast<std::size_t>(ranks_))};
    std::vector<char> once(static_cast<std::size_t>(ranks_), 1);
    ThreadGroup(ranks_, std::chrono::seconds(20)).run([&](Threads& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      Channel channel(transport);
      auto exchange = make_exchange(channel);
      std::vector<int> times(size);
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        std::fill(times.begin(), times.end(), 0);
        mix(exchange, round, message_of(transport.rank(), same ? 1 : round), outcome.means[rank], times);
        if constexpr (note) outcome.norms[rank] = exchange.mean_norm();
        for (std::size_t i = 0; i < size; ++i)
          outcome.sums[rank][i] += static_cast<double>(outcome.means[rank][i]);
        const Range all = layout_.range();
        for (const Piece& piece : all.pieces())
          for (index_t i = piece.offset; i < piece.offset + piece.count; ++i)
            if (times[static_cast<std::size_t>(i)] != 1) once[rank] = 0;
      }
    });
    outcome.once = std::all_of(once.begin(), once.end(), [](char fine) { return fine != 0; });
    return outcome;
  }

  /// The error that a rank has thrown in a round.
  struct Ending {
    enum Kind { none, wire, non_finite, other };
    Kind kind = none;
    std::string what{};
  };
  /// Runs one round, with a NaN in the message of rank `culprit`, if it is not -1, and with this damage.
  std::vector<Ending> endings(int culprit, Damage& damage) const {
    std::vector<Ending> endings(static_cast<std::size_t>(ranks_));
    ThreadGroup(ranks_, std::chrono::seconds(5)).run([&](Threads& threads) {
      const int rank = threads.rank();
      Ending& ending = endings[static_cast<std::size_t>(rank)];
      DamagedThreads transport(threads.split(0, rank), rank, damage);
      Channel channel(transport);
      auto exchange = make_exchange(channel);
      damage.meet(ranks_);
      std::vector<float> x = message_of(rank, 1), mean(x.size());
      std::vector<int> times(x.size());
      if (rank == culprit) x.front() = std::numeric_limits<float>::quiet_NaN();
      // Errors are not thrown again: peers that have received all that they need must not fail at that time.
      try {
        mix(exchange, 1, x, mean, times);
      } catch (const wire_error& error) {
        ending = {Ending::wire, error.what()};
      } catch (const non_finite_error& error) {
        ending = {Ending::non_finite, error.what()};
      } catch (const error& error) {
        ending = {Ending::other, error.what()};
      }
      damage.end_of(rank);
    });
    return endings;
  }

  /// Compares an uninterrupted run with a run that is resumed from a checkpoint after three of six rounds. Describes a difference,
  /// or returns "".
  std::string resumed() const {
    std::vector<std::string> faults(static_cast<std::size_t>(ranks_));
    ThreadGroup(ranks_, std::chrono::seconds(20)).run([&](Threads& transport) {
      const int rank = transport.rank();
      std::string& fault = faults[static_cast<std::size_t>(rank)];
      Channel channel(transport);
      auto one = make_exchange(channel), other = make_exchange(channel);
      std::vector<float> mean(static_cast<std::size_t>(layout_.size())), again(mean.size());
      std::vector<int> times(mean.size());
      for (std::uint64_t round = 1; round <= 6; ++round) {
        const std::vector<float> x = message_of(rank, round);
        mix(one, round, x, mean, times);
        if (round > 3) mix(other, round, x, again, times);
        if (round > 3 && mean != again && fault.empty())
          fault =
              "rank " + std::to_string(rank) + "'s mean of round " + std::to_string(round) +
              " differs after a checkpoint of round 3: `walk(visit)` of the Round visits its state, such as "
              "its Codec's walk of a second stage";
        if (round != 3) continue;
        const SavedState saved(one);
        fault = saved.fault();
        saved.load(other);
      }
    });
    for (const std::string& fault : faults)
      if (!fault.empty()) return fault;
    return "";
  }

  /// Returns the exact mean, in double.
  double wanted(std::uint64_t round, index_t i) const {
    double sum = 0;
    for (int rank = 0; rank < ranks_; ++rank) sum += static_cast<double>(message(rank, round, i));
    return sum / ranks_;
  }

 private:
  using Mixed = Exchange<C, F, P, executor::host>;

  Mixed make_exchange(Channel& channel) const {
    return Mixed({}, channel, layout_, layout_.range(), C{}, F{}, note, topology_);
  }
  std::vector<float> message_of(int rank, std::uint64_t round) const {
    std::vector<float> x(static_cast<std::size_t>(layout_.size()));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = message(rank, round, static_cast<index_t>(i));
    return x;
  }
  static void mix(Mixed& exchange, std::uint64_t round, const std::vector<float>& x, std::vector<float>& mean,
                  std::vector<int>& times) {
    const GivenMessage from{x.data()};
    const CountedMean into{mean.data(), times.data()};
    const StepContext context{.step = round};
    exchange.mix(context, {}, Message{from, from}, Message{into, into});
    exchange.settle(context);
  }

  P topology_;
  int ranks_;
  Options options_;
  Layout layout_;
};

}  // namespace detail

}  // namespace terse::laws
