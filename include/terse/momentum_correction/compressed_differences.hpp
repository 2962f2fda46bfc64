// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/mixing_rule.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

// Rules that depend on compression, since they send the changes of a rank's vectors.

/// DCD's rule: only decoded packets change parameters, so that all neighbours know them. Each rank keeps D_i = sum_j
/// W_ij (x_j - x_i) instead of its neighbours' parameters:
///
///     q_i = C(D_i - learning_rate g_i)        x_i = x_i + q_i        D_i = D_i + sum_j W_ij (q_j - q_i)
struct DifferenceDescent {
  static constexpr MixingFacts facts{.moves_by_packet = true, .needs_fixed = true, .sums_over_ranks = true};
  static constexpr std::array<const char*, 1> state{"consensus"};
  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real outgoing(const Element& e) const {
      return (e.x() - e.held()) + (e[0] - e.rate() * e.g());
    }
    template <class Element>
    TERSE_HD Real update(const Element& e, Real own, Real difference) const {
      take_up(e, difference);
      return e.held() + own;
    }
    template <class Element>
    TERSE_HD void take_up(const Element& e, Real difference) const {
      e[0] = e[0] + difference;
    }
  };
};

/// BEER's rule: gradient tracking in which model and tracker are mixed by their public copies. It is for Ef21,
/// whose sums of differences, times the consensus rate c, are D^x and D^y here:
///
///     y_i = y_i + c D^y_i + g_i - g_i'        x_i = x_i + c D^x_i - learning_rate y_i
///
/// Only then are the copies, and with them D^x and D^y, updated by C(x_i - its copy) and C(y_i - its copy).
struct CompressedTracker {
  static constexpr MixingFacts facts{.vectors = 2, .sums_over_ranks = true, .second_by_difference = true};
  static constexpr std::array<const char*, 2> state{"tracker", "pull"};
  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real outgoing(Vector<0>, const Element& e) const {
      return (e.x() + e[1]) - e.rate() * (e[0] + e.g());
    }
    template <class Element>
    TERSE_HD Real outgoing(Vector<1>, const Element& e) const {
      return e[0] + e.g();
    }
    template <class Element>
    TERSE_HD Real update(Vector<0>, const Element& e, Real own, Real difference) const {
      e[1] = difference;
      return own;
    }
    template <class Element>
    TERSE_HD void update(Vector<1>, const Element& e, Real, Real difference) const {
      e[0] += difference;
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
