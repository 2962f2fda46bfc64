// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "terse/compressor/cast.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/residual.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

template <class Q>
using StoredCode = std::conditional_t<Q::bits == 32, float, CodeElement<Q::bits>>;

/// Errors that a device rounds into storage, see device/error_feedback/stored_residual.hpp; all three pointers begin at
/// arena index `origin`.
template <class Q>
struct ErrorsToStore {
  const float* errors;
  StoredCode<Q>* codes;
  typename Q::Statistic::Scale* scales;
  index_t origin;
};

}  // namespace detail

/// Residual with an error of 8 or 16 bits per element instead of 32:
///
///     y = message + decay (rate' / rate) e        e' = round_Q(fl(y - C(y)))
///
/// Q is a quantizer that rounds to nearest; if it has scales, there is one for every 64 elements. Its rounding error is
/// lost. Messages are kept in a block of `Block` floats, so the compressor's granularity must be PerBlock<N> with N <=
/// Block. State: n codes and n / 64 scales. Source: Xie et al., "LoCo", 2024, for the int8 error.
///
/// On a device all messages of a round are buffered between two kernels: n more floats of temporary memory. In total
/// this is more than with Residual, whose state holds its messages; on a device only checkpoints become smaller.
template <class Q, index_t Block = 4096>
struct StoredResidual {
  static_assert(Q::bits == 8 || Q::bits == 16 || Q::bits == 32,
                "terse: an error is stored in 8, 16 or 32 bits");
  static_assert(!Q::stochastic, "terse: an error is stored by rounding to nearest");
  static_assert(detail::JoinsOneByOne<typename Q::Statistic>,
                "terse: an error is stored with a statistic whose components are joined one by one");
  static_assert(Block >= alignment && (Block & (Block - 1)) == 0,
                "terse: Block is a power of two, at least 64");
  using Code = detail::StoredCode<Q>;
  using Statistic = typename Q::Statistic;
  using Scale = typename Statistic::Scale;

  static constexpr bool corrects = true;
  static constexpr bool accumulates = true;
  static constexpr index_t block = Block;

  float decay = 1;            ///< in (0, 1]
  bool follows_rate = false;  ///< see Residual

  void check() const { Residual{decay, follows_rate}.check(); }
  const char* unrecordable(const RecordUse& use) const {
    return Residual{decay, follows_rate}.unrecordable(use);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    Residual{decay, follows_rate}.settings(visit);
  }

  struct View : Residual::View {
    float* messages = nullptr;  // `Block` floats: arena index i is at i % Block
    Code* codes = nullptr;      // from arena index `origin` on
    Scale* scales = nullptr;    // one for every 64 codes
    index_t origin = 0;
    Scale scale{};

    TERSE_HD void enter_block(index_t first) {
      this->y = messages + first % Block;
      this->begin = first;
      scale = scales[(first - origin) / alignment];
    }
    TERSE_HD float error(index_t i) const { return Q::value(codes[i - origin], scale); }
    TERSE_HD float compensate(index_t i, float message) const {
      return keep_if(!this->hold, message) + this->weight * error(i);
    }
    /// Rounds the block's errors, which have replaced its messages, into storage.
    TERSE_HD void leave_block(index_t first, int count) {
      if (this->hold) return;
      float totals[Statistic::width][alignment];
      for (int l = 0; l < alignment; ++l) {
        float term[Statistic::width];
        Statistic::terms(this->y[l], term);
        for (int c = 0; c < Statistic::width; ++c) totals[c][l] = l < count ? term[c] : Statistic::initial;
      }
      for (int half = alignment / 2; half > 0; half /= 2)
        for (int c = 0; c < Statistic::width; ++c)
          for (int l = 0; l < half; ++l) totals[c][l] = Statistic::join(totals[c][l], totals[c][l + half]);
      float total[Statistic::width];
      for (int c = 0; c < Statistic::width; ++c) total[c] = totals[c][0];
      scale = Statistic::finish(total, count);
      scales[(first - origin) / alignment] = scale;
      Code* const to = codes + (first - origin);
      if (count == alignment)
        for (int l = 0; l < alignment; ++l) to[l] = static_cast<Code>(Q::code(this->y[l], scale, 0));
      else
        for (int l = 0; l < count; ++l) to[l] = static_cast<Code>(Q::code(this->y[l], scale, 0));
    }
  };

  /// A device's view of all messages at once.
  struct GridView : Residual::View {
    const Code* codes = nullptr;  // from arena index `begin` on
    const Scale* scales = nullptr;

    TERSE_HD float error(index_t i) const {
      const index_t l = i - this->begin;
      return Q::value(codes[l], scales[l / alignment]);
    }
    TERSE_HD float compensate(index_t i, float message) const {
      return keep_if(!this->hold, message) + this->weight * error(i);
    }
  };

  template <Executor E>
  struct State {
    static_assert(
        !detail::TeamExecutor<E>,
        "terse: errors in fewer bits have no parallel form, since messages wait in one block's room: "
        "take executor::host, or Residual");
    buffer<float, typename E::memory> messages;
    buffer<Code, typename E::memory> codes;
    buffer<Scale, typename E::memory> scales;
    index_t begin = 0;
    detail::Carry carry;

    State(const StoredResidual& policy, index_t begin_, index_t end)
        : messages(GridExecutor<E> ? end - begin_
                   : end > begin_  ? Block
                                   : 0),
          codes(end - begin_),
          scales((end - begin_) / alignment),
          begin(begin_),
          carry(policy.decay, policy.follows_rate) {
      // Code 0 need not represent 0.
      const auto zero = static_cast<Code>(Q::code(0.0F, Scale{}, 0));
      if constexpr (GridExecutor<E>) {
        const std::vector<Code> zeros(static_cast<std::size_t>(codes.size()), zero);
        upload(terse::view<const Code>(zeros), codes.all());
      } else {
        for (Code& code : codes.all()) code = zero;
      }
    }
    void start(float rate) { carry.start(rate); }
    auto view() {
      if constexpr (GridExecutor<E>) {
        GridView view;
        view.y = messages.data();
        view.begin = begin;
        set(view);
        return view;
      } else {
        View view;
        view.messages = messages.data();
        view.origin = begin;
        set(view);
        return view;
      }
    }
    /// Rounds the errors, which have replaced the messages, into storage.
    void store(E ex, const Range& range) requires GridExecutor<E> {
      if (carry.hold()) return;
      store_errors(ex, range, detail::ErrorsToStore<Q>{messages.data(), codes.data(), scales.data(), begin});
    }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("error", codes.all(), begin);
      if constexpr (!std::is_empty_v<Scale>) visit("error_scales", scales.all(), begin / alignment);
      carry.walk(visit);
    }

   private:
    template <class AnyView>
    void set(AnyView& view) {
      view.weight = carry.weight();
      view.hold = carry.hold();
      view.codes = codes.data();
      view.scales = scales.data();
    }
  };
};

TERSE_NUMERICS_END

/// Residual with the error in bf16: 2 bytes per element, 8 bits of precision.
using Bf16Residual = StoredResidual<quantizer::CastTo<bf16, Unscaled>>;

/// Residual with the error in 8-bit integers with a scale for every 64: 1.06 bytes per element.
using Int8Residual = StoredResidual<quantizer::UniformLevels<8, Nearest, Symmetric, MaxAbs>>;

}  // namespace terse
