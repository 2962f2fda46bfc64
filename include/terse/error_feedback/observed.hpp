// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <memory>

#include "terse/core/policy.hpp"
#include "terse/error_feedback/compression_report.hpp"
#include "terse/error_feedback/concept.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// An error feedback F that also shows a CompressionReport the values of each round. Steps, packets and checkpoints have the bits of F, and a
/// checkpoint of either is loaded by the other. All ranks or some may observe. Around any F and with any compressor:
/// Observed<MyFeedback>, Observed<Unchecked<NoErrorFeedback>>, where Unchecked is inside.
///
/// State: that of F and 3 n floats; for a chunk's owner 3 n / W more. Cost: each round writes these, and errors are not computed late
/// (terse/late_errors.hpp), so a step takes more time. Programs that don't name it pay nothing.
template <class F>
struct Observed : F {
  CompressionReport* report = nullptr;  ///< of this rank; it must exist while the optimizer is made
  bool of_means = false;                ///< set by topologies, for owners that compress means again

  void check() const {
    detail::check_policy(static_cast<const F&>(*this));
    if (report == nullptr)
      throw usage_error("Observed needs a report: .error_feedback = {{}, &report}, a CompressionReport");
  }
  template <class Visit>
  void settings([[maybe_unused]] Visit&& visit) const {
    if constexpr (requires(const F& feedback) { feedback.settings(visit); }) F::settings(visit);
  }

  template <class Inner>
  struct View : Inner {
    float* value;
    float* carried;
    float* decoded;
    index_t first;  // arena index of the first element

    /// Keeps the value to send and the feedback's part of it.
    TERSE_HD void store(index_t i, float wanted) const {
      carried[i - first] = Inner::compensate(i, 0.0F);
      value[i - first] = wanted;
      decoded[i - first] = 0;
      Inner::store(i, wanted);
    }
    TERSE_HD void commit(index_t i, bool keep, float wanted, float sent) const {
      decoded[i - first] = keep_if(keep, sent);
      Inner::commit(i, keep, wanted, sent);
    }
    /// An exact round has stored the message, but compressed nothing.
    TERSE_HD void seed(index_t i, float message, float exact) const requires requires(const Inner& view) {
      view.seed(i, message, exact);
    }
    {
      value[i - first] = std::numeric_limits<float>::quiet_NaN();
      Inner::seed(i, message, exact);
    }
  };

  template <Executor E>
  struct State : F::template State<E> {
    using Inner = typename F::template State<E>;
    std::shared_ptr<detail::SightingsIn<typename E::memory>> seen;

    State(const Observed& policy, index_t first, index_t end) : Inner(policy, first, end) {
      policy.check();
      seen = policy.report->template watch<typename E::memory>(first, end, policy.of_means);
    }
    auto view() {
      return View<decltype(Inner::view())>{Inner::view(), seen->value.data(), seen->carried.data(),
                                           seen->sent.data(), seen->begin};
    }
  };
};

TERSE_NUMERICS_END

namespace detail {

/// The owner of a chunk is observed, too.
template <class F>
struct OfOwners<Observed<F>> {
  using type = Observed<typename OfOwners<F>::type>;
  static type of(const Observed<F>& feedback) { return {OfOwners<F>::of(feedback), feedback.report, true}; }
};

}  // namespace detail

}  // namespace terse
