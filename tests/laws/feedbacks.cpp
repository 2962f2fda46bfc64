// SPDX-License-Identifier: Apache-2.0

// The library's error feedbacks keep the laws of error feedbacks, and each law finds what breaks it.

#include <doctest/doctest.h>

#include "archetype_packets.hpp"
#include "terse/error_feedback/averaged_residual.hpp"
#include "terse/error_feedback/ef21.hpp"
#include "terse/error_feedback/error_control.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/stored_residual.hpp"
#include "terse/laws/error_feedback.hpp"

namespace {

using namespace terse;

template <class F>
void holds(const F& feedback = {}) {
  const laws::Report report = laws::check_error_feedback(feedback);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() + report.not_applicable.size() == 7);
}

enum class Fault { none, lost, decays, forgets, grows, masks, checkpoint, names, finite, device };

TERSE_NUMERICS_BEGIN

/// Residual with a fault.
template <Fault F>
struct Broken {
  static constexpr bool corrects = true;
  static constexpr bool accumulates = F != Fault::forgets;

  struct View : detail::Materialized {
    static constexpr bool commits_zero = true;
    bool on_device = false;
    TERSE_HD float compensate(index_t i, float message) const {
      if (F == Fault::forgets) return message;
      if (F == Fault::finite && !is_finite(message)) store(i, message);
      return message + load(i);
    }
    TERSE_HD void commit(index_t i, bool keep, float value, float decoded) const {
      float error = value - decoded;
      if (F == Fault::lost && i % 3 == 0) error *= 0.9F;
      if (F == Fault::decays) error *= 0.98F;  // which no member says
      if (F == Fault::grows) error = value;
      if (F == Fault::device && on_device) error += 0x1p-12F;
      store(i, keep_if(keep, error, F == Fault::masks ? 0.5F : 0.0F));
    }
  };

  template <Executor E>
  struct State {
    buffer<float, typename E::memory> error;
    index_t begin = 0;

    State(const Broken&, index_t begin_, index_t end) : error(end - begin_), begin(begin_) {}
    View view() { return {{error.data(), begin}, GridExecutor<E>}; }
    template <class Visit>
    void walk(Visit&& visit) {
      if (F != Fault::checkpoint) visit("error", error.all(), begin);
      if (F == Fault::names) visit("error", error.all(), begin);
    }
  };
};

TERSE_NUMERICS_END

template <Fault F>
void breaks(const char* law) {
  const laws::Report report = laws::check_error_feedback<Broken<F>>();
  CHECK_MESSAGE(report.broke(law), report.text());
}

}  // namespace

TEST_CASE("error feedbacks keep the laws") {
  holds<Unchecked<NoErrorFeedback>>();
  holds<Residual>();
  holds(Residual{.decay = 0.99F});
  holds<Ef21>();
  holds<ErrorControl>();
  holds<StoredResidual<quantizer::CastTo<bf16, Unscaled>, 64>>();
  holds<Int8Residual>();
  holds<AveragedResidual<>>();
  holds<Broken<Fault::none>>();
  holds<Broken<Fault::decays>>();
  CHECK(laws::check_error_feedback<Broken<Fault::none>>().notes.empty());
  const laws::Report decays = laws::check_error_feedback<Broken<Fault::decays>>();
  REQUIRE(decays.notes.size() == 1);
  CHECK(decays.notes[0] == "a round keeps 0.980 of the unsent part and 0.000 of the old error");
}

TEST_CASE("laws find what breaks them") {
  breaks<Fault::lost>("nothing lost");
  breaks<Fault::forgets>("comes back");
  breaks<Fault::grows>("bounded");
  breaks<Fault::masks>("masks");
  breaks<Fault::checkpoint>("checkpoint");
  breaks<Fault::names>("checkpoint");
  breaks<Fault::finite>("finite");
  breaks<Fault::device>("the host's bits");
}

namespace {

using Fp32 = AveragedResidual<Unrounded>;
using Bytes = AveragedResidual<>;
template <class F>
using Trial = laws::detail::FeedbackTrial<F, laws::NearestFourBits>;

}  // namespace

TEST_CASE("a gain is a moving average of errors") {
  constexpr double beta = 0.25;
  Trial<Fp32> trial(Fp32{.gain = 0.25F, .clear_every = 0});
  // e, the paper's average, and E, which adds up, in double, given what was read; e = beta E.
  std::vector<double> e(trial.message(1, 1).size()), sum(e.size());
  double apart = 0, off = 0, largest = 0;
  for (std::uint64_t step = 1; step <= 300; ++step) {
    const laws::Values message = trial.message(9, step), y = trial.compensated(message);
    const auto sent = trial.send(message);
    trial.each([&](std::size_t i) {
      const auto g = static_cast<double>(message[i]), c = static_cast<double>(sent.decoded[i]);
      const double ours = g + beta * sum[i], papers = g + e[i];
      apart = std::max(apart, std::abs(ours - papers));
      off = std::max(off, std::abs(static_cast<double>(y[i]) - papers));
      largest = std::max(largest, std::abs(e[i]));
      e[i] = (1 - beta) * e[i] + beta * (papers - c);
      sum[i] += g - c;
    });
  }
  CHECK(apart < 1e-12);
  CHECK(off < 1e-5);
  CHECK(largest > 0.01);
}

TEST_CASE("a gain of 1 is classic error feedback, to the bit") {
  Trial<Fp32> one(Fp32{.gain = 1, .clear_every = 0}), other(Fp32{.gain = 0.5F, .clear_every = 0});
  Trial<Residual> classic(Residual{});
  bool differs = false;
  for (std::uint64_t step = 1; step <= 50; ++step) {
    const laws::Values message = one.message(9, step);
    const auto sent = one.send(message);
    CHECK(sent.decoded == classic.send(message).decoded);
    CHECK(one.compensated(message) == classic.compensated(message));
    differs = differs || other.send(message).decoded != sent.decoded;
  }
  CHECK(differs);
}

TEST_CASE("an error that is cleared starts anew, after a checkpoint, too") {
  const Bytes policy{.gain = 0.5F, .clear_every = 5};
  Trial<Bytes> trial(policy), kept(Bytes{.gain = 0.5F}), resumed(policy);
  for (std::uint64_t step = 1; step <= 15; ++step) {
    const laws::Values message = trial.message(9, step);
    if (step == 9) resumed.load(trial.saved());
    const auto sent = trial.send(message);
    if (step >= 9) CHECK(resumed.send(message).decoded == sent.decoded);
    const auto not_cleared = kept.send(message);
    CHECK((sent.decoded == not_cleared.decoded) == (step <= 5));
    if (step % 5 == 1) CHECK(sent.decoded == Trial<Bytes>(policy).send(message).decoded);
  }
  CHECK_THROWS_WITH_AS(Bytes{.gain = 0}.check(), doctest::Contains("gain must be in (0, 1], not 0"),
                       usage_error);
  CHECK_THROWS_WITH_AS(Bytes{.gain = 1.5F}.check(), doctest::Contains("gain must be in (0, 1], not 1.5"),
                       usage_error);
}
