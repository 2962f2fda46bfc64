// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "terse/compressor/uniform.hpp"
#include "terse/core/draw.hpp"
#include "terse/core/type_name.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/exchange/exchange.hpp"
#include "terse/executor/host.hpp"
#include "terse/laws/policy.hpp"
#include "terse/laws/topology_trial.hpp"

// Checks that a topology gives all ranks the mean, over threads.
//
//     #include <terse/laws/topology.hpp>
//
//     const terse::laws::Report report = terse::laws::check_topology<MyTopology>();
//     if (!report) std::puts(report.text().c_str());

namespace terse::laws {

namespace detail {

/// Damages each message of packets in a round, one at a time, and expects an error of its receiver that contains words(damage).
/// Describes the first message without this error, or returns "".
template <class Trial, class Words>
std::string undetected(const Trial& trial, int ranks, Damage::Part part, const Words& words) {
  using Ending = typename Trial::Ending;
  for (int sender = 0; sender < ranks; ++sender)
    for (int message = 0;; ++message) {
      Damage damage(part, sender, message);
      const auto endings = trial.endings(-1, damage);
      if (!damage.done()) break;
      const Ending& ending = endings[static_cast<std::size_t>(damage.receiver())];
      if (ending.kind == Ending::wire && ending.what.find(words(damage)) != std::string::npos) continue;
      const std::string where = "the message of rank " + std::to_string(sender) + " to rank " +
                                std::to_string(damage.receiver()) + " in phase '" + name(damage.phase()) +
                                "', ";
      return where +
             (part == Damage::header ? "with a damaged header, " : "with a NaN in its last values, ") +
             (ending.kind == Ending::none ? "is taken without an error"
                                          : "ends in the receiver's error '" + ending.what + "'");
    }
  return "";
}

}  // namespace detail

/// Checks the laws of exact topologies, with the numbers of ranks in `worlds`, by default 1, 2, 3 and 5:
///
///     mean            full-precision messages give their mean, up to rounding
///     agreement       all ranks have the same bits, for full-precision and for compressed messages
///     determinism     a repeated run gives the same bits
///     once            consume is called once for each element
///     tracking        4 bits with error feedback: the mean of 100 rounds is that of the messages, up to 2 % of their size
///     bias            4 bits to the nearest level, without an error to feed back: the mean over all elements of the
///                     means' errors is 0, within 4 standard deviations
///     norm            the norm that the exchange computes for gradient clipping is the norm of the mean, equal on all
///                     ranks; not for topologies that name ForDense
///     settings        a topology with members visits them
///     accept          a packet whose header was damaged on its way is refused by its receiver
///     phase           values damaged on their way are an error of the receiver, which names the phase of the message
///     not finite      a message that is not finite on one rank is an error on all
///     checkpoint      a run resumed from a checkpoint equals the uninterrupted run
///     failure         if a rank throws in the middle, the others end within their deadline
template <class P>
Report check_topology(const P& topology = {}, const Options& options = {},
                      std::span<const int> worlds = detail::usual_worlds) {
  static_assert(P::exact, "terse: these laws are for topologies that give all ranks the same mean");
  static_assert(terse::detail::check_stages<Uniform<4, Nearest, Symmetric>, Residual, P>());
  Report report{.compressor = type_name<P>(), .passed = {}, .not_applicable = {}, .failures = {}};
  const auto judge = [&](const char* law, const auto& violation) {
    for (const int ranks : worlds) {
      std::string what;
      try {
        what = violation(ranks);
      } catch (const std::exception& failure) {
        what = failure.what();
      }
      if (what.empty()) continue;
      report.failures.push_back({law, std::to_string(ranks) + " ranks: " + what});
      return;
    }
    report.passed.emplace_back(law);
  };
  using Exact = detail::TopologyTrial<P, Dense, NoErrorFeedback>;
  // Symmetric, with equally many levels above and below zero.
  using Compressed = detail::TopologyTrial<P, Uniform<4, Nearest, Symmetric>, Residual>;
  const auto elements = [](const Layout& layout, const auto& act) {
    const Range all = layout.range();
    for (const Piece& piece : all.pieces())
      for (index_t i = piece.offset; i < piece.offset + piece.count; ++i) act(i);
  };

  judge("mean", [&](int ranks) {
    const Exact trial(topology, ranks, options);
    const auto outcome = trial.run(2, false);
    std::string what;
    elements(trial.layout(), [&](index_t i) {
      const double got = static_cast<double>(outcome.means[0][static_cast<std::size_t>(i)]);
      const double wanted = trial.wanted(2, i);
      if (what.empty() && !(std::abs(got - wanted) <= 1e-6 * static_cast<double>(options.magnitude)))
        what = "element " + std::to_string(i) + " is " + std::to_string(got) + ", the mean " +
               std::to_string(wanted);
    });
    return what;
  });
  judge("agreement", [&](int ranks) -> std::string {
    const auto exact = Exact(topology, ranks, options).run(2, false);
    const auto compressed = Compressed(topology, ranks, options).run(3, false);
    for (std::size_t rank = 1; rank < exact.means.size(); ++rank) {
      if (exact.means[rank] != exact.means[0])
        return "full-precision means of rank " + std::to_string(rank) + " are not those of rank 0";
      if (compressed.means[rank] != compressed.means[0])
        return "compressed means of rank " + std::to_string(rank) + " are not those of rank 0";
    }
    return "";
  });
  judge("determinism", [&](int ranks) -> std::string {
    const Compressed trial(topology, ranks, options);
    return trial.run(3, false).means == trial.run(3, false).means ? "" : "two runs differ";
  });
  judge("once", [&](int ranks) -> std::string {
    if (!Exact(topology, ranks, options).run(2, false).once) return "a full-precision element came not once";
    return Compressed(topology, ranks, options).run(2, false).once ? ""
                                                                   : "a compressed element came not once";
  });
  judge("tracking", [&](int ranks) {
    constexpr std::uint64_t rounds = 100;
    const Compressed trial(topology, ranks, options);
    const auto outcome = trial.run(rounds, true);
    std::string what;
    elements(trial.layout(), [&](index_t i) {
      const double got = outcome.sums[0][static_cast<std::size_t>(i)] / static_cast<double>(rounds);
      const double wanted = trial.wanted(1, i);
      if (what.empty() && !(std::abs(got - wanted) <= 0.02 * static_cast<double>(options.magnitude)))
        what = "element " + std::to_string(i) + " is " + std::to_string(got) + " in the mean of " +
               std::to_string(rounds) + " rounds, of messages whose mean is " + std::to_string(wanted);
    });
    return what;
  });
  judge("bias", [&](int ranks) -> std::string {
    const Compressed trial(topology, ranks, options);
    const auto outcome = trial.run(1, true);
    double count = 0, sum = 0, squares = 0;
    elements(trial.layout(), [&](index_t i) {
      const double off =
          static_cast<double>(outcome.means[0][static_cast<std::size_t>(i)]) - trial.wanted(1, i);
      ++count;
      sum += off;
      squares += off * off;
    });
    const double deviation = std::sqrt(squares);
    if (std::abs(sum) <= 4 * deviation) return "";
    return "elements are off by " + std::to_string(sum / count) + " in the mean, which is " +
           std::to_string(std::abs(sum) / deviation) + " standard deviations";
  });
  if constexpr (std::is_same_v<terse::detail::DenseTopologyOf<P>, P>)
    judge("norm", [&](int ranks) -> std::string {
      const detail::TopologyTrial<P, Dense, NoErrorFeedback, true> trial(topology, ranks, options);
      const auto outcome = trial.run(2, false);
      double wanted = 0;
      elements(trial.layout(), [&](index_t i) {
        const auto mean = static_cast<double>(outcome.means[0][static_cast<std::size_t>(i)]);
        wanted += mean * mean;
      });
      wanted = std::sqrt(wanted);
      for (std::size_t rank = 0; rank < outcome.norms.size(); ++rank) {
        const double got = outcome.norms[rank];
        if (!(std::abs(got - wanted) <= 1e-5 * wanted) || got != outcome.norms[0])
          return "the norm is " + std::to_string(got) + " on rank " + std::to_string(rank) + " and " +
                 std::to_string(outcome.norms[0]) + " on rank 0, of a mean whose norm is " +
                 std::to_string(wanted);
      }
      return "";
    });
  else
    report.not_applicable.emplace_back("norm");
  judge("settings", [&](int) { return detail::settings_fault(topology); });
  judge("accept", [&](int ranks) -> std::string {
    const std::string what =
        detail::undetected(Compressed(topology, ranks, options), ranks, detail::Damage::header,
                           [](const detail::Damage&) { return "has step"; });
    return what.empty() ? ""
                        : what + ": `context.accept` checks every packet that arrives, before it is read";
  });
  judge("phase", [&](int ranks) -> std::string {
    const std::string what = detail::undetected(
        Compressed(topology, ranks, options), ranks, detail::Damage::last_values,
        [](const detail::Damage& damage) { return "(phase '" + std::string(name(damage.phase())) + "')"; });
    return what.empty()
               ? ""
               : what +
                     ": `context.add` takes the phase in which the packet was sent, Phase::reduce if "
                     "its values are encoded again and Phase::spread if they are consumed";
  });
  judge("not finite", [&](int ranks) -> std::string {
    const Compressed trial(topology, ranks, options);
    for (int culprit = 0; culprit < ranks; ++culprit) {
      detail::Damage none;
      const auto endings = trial.endings(culprit, none);
      for (int rank = 0; rank < ranks; ++rank)
        if (const auto& ending = endings[static_cast<std::size_t>(rank)];
            ending.kind != Compressed::Ending::non_finite)
          return "rank " + std::to_string(culprit) + "'s message has a NaN, and rank " +
                 std::to_string(rank) +
                 (ending.kind == Compressed::Ending::none ? " takes the mean"
                                                          : " throws '" + ending.what + "'") +
                 ": `context.accept` takes over the flags of packets, and those stamped later pass them on";
    }
    return "";
  });
  judge("checkpoint", [&](int ranks) { return Compressed(topology, ranks, options).resumed(); });
  judge("failure", [&](int ranks) -> std::string {
    if (ranks == 1) return "";
    const Exact trial(topology, ranks, options);
    const auto begin = std::chrono::steady_clock::now();
    try {
      ThreadGroup(ranks, std::chrono::seconds(5)).run([&](Threads& transport) {
        Channel channel(transport);
        Exchange<Dense, NoErrorFeedback, P, executor::host> exchange(
            {}, channel, trial.layout(), trial.layout().range(), Dense{}, NoErrorFeedback{}, false, topology);
        std::vector<float> x(static_cast<std::size_t>(trial.layout().size()));
        std::vector<int> times(x.size());
        const detail::GivenMessage from{x.data()};
        const detail::CountedMean into{x.data(), times.data()};
        if (transport.rank() == ranks - 1) throw usage_error("this rank has had enough", transport.rank());
        exchange.mix({.step = 1}, {}, Message{from, from}, Message{into, into});
      });
    } catch (const usage_error&) {
      return std::chrono::steady_clock::now() - begin < std::chrono::seconds(6) ? "" : "the others waited on";
    }
    return "no rank learned which rank threw";
  });
  return report;
}

}  // namespace terse::laws
