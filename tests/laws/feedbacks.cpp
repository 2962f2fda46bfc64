// SPDX-License-Identifier: Apache-2.0

// The library's error feedbacks keep the laws of error feedbacks, and each law finds what breaks it.

#include <doctest/doctest.h>

#include "archetype_packets.hpp"
#include "terse/error_feedback/controlled.hpp"
#include "terse/error_feedback/difference.hpp"
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

enum class Fault { none, lost, forgets, grows, masks, checkpoint, names, finite, device };

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
      if (F == Fault::lost) error *= 0.9F;
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
  holds<Unchecked<None>>();
  holds<Residual>();
  holds(Residual{.decay = 0.99F});
  holds<Difference>();
  holds<Controlled>();
  holds(Controlled{.eta = 1});
  holds<StoredResidual<CastTo<bf16, Unscaled>, 64>>();
  holds<Int8Residual>();
  holds<Broken<Fault::none>>();
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
