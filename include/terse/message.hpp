// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>

#include "terse/core/vector.hpp"
#include "terse/error_feedback/concept.hpp"
#include "terse/executor/atomic.hpp"
#include "terse/executor/concept.hpp"
#include "terse/executor/streams.hpp"

// The path of a message through the error feedback, element by element: to the compressor and, as a mean, to its
// consumer.

namespace terse {

/// A rank's message, element by element: one functor for compressed pieces, one for dense ones.
template <class Compressed, class Exact>
struct Message {
  Compressed compressed;
  Exact dense;
};
/// Deduces the types of both functors.
template <class Compressed, class Exact>
Message(Compressed, Exact) -> Message<Compressed, Exact>;

TERSE_NUMERICS_BEGIN

namespace detail {

/// A message or a consumer, used both directly and as the first of several vectors that are sent together.
template <class F>
struct OneVector : Message<F, F> {
  OneVector vector(Vector<0>) const { return *this; }
};
template <class F>
OneVector<F> one_vector(const F& f) {
  return {{f, f}};
}

/// Views that are notified of masked messages.
template <class View>
concept KeepsMasked = requires(const View& view) {
  view.keep(index_t{}, true, 0.0F);
};

/// Computes and stores y = message + error. A message that is not finite is omitted: then y is the error alone.
template <class F, class View>
struct Compensate {
  F message;
  View feedback;

  using StreamsOf = Compensate;
  TERSE_HD auto streams() requires(NamesStreams<F>&& NamesStreams<View>) {
    return message.streams() + compensated(feedback);
  }
  TERSE_HD void enter(const Piece& piece) {
    terse::enter(message, piece);
    terse::enter(feedback, piece);
  }
  TERSE_HD void enter_block(index_t first) { detail::enter_block(feedback, first); }
  template <class... Sum>
  TERSE_HD Sample operator()(const Piece& piece, index_t i, bool keep, Sum... sum) const {
    const float wanted = feedback.compensate(i, message(piece, i, sum...));
    const bool finite = is_finite(wanted);
    const float y = keep_if(keep, keep_if(finite, wanted, feedback.compensate(i, 0.0F)));
    if constexpr (KeepsMasked<View>)
      feedback.keep(i, keep, y);
    else
      feedback.store(i, y);
    return {y, keep_if(!finite, 1.0F)};
  }
};

/// Functor of the elements of dense pieces, as they are sent.
template <class F>
struct Exact {
  F message;

  using StreamsOf = Exact;
  TERSE_HD auto streams() requires NamesStreams<F> { return message.streams(); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(message, piece); }
  template <class... Sum>
  TERSE_HD Sample operator()(const Piece& piece, index_t i, bool, Sum... sum) const {
    return sanitized(message(piece, i, sum...));
  }
};

/// Exact that raises a flag for values that are not finite, for passes without a statistic.
template <class F>
struct NotedExact {
  Exact<F> exact;
  std::uint32_t* bad;

  using StreamsOf = NotedExact;
  TERSE_HD auto streams() requires NamesStreams<F> { return exact.streams(); }
  TERSE_HD void enter(const Piece& piece) { exact.enter(piece); }
  template <class... Sum>
  TERSE_HD Sample operator()(const Piece& piece, index_t i, bool keep, Sum... sum) const {
    const Sample sample = exact(piece, i, keep, sum...);
    if (sample.bad != 0) atomic_raise(bad);
    return sample;
  }
};

/// Evaluates a NotedExact for its flag.
template <class F>
struct Examine {
  NotedExact<F> noted;

  using StreamsOf = Examine;
  TERSE_HD auto streams() requires NamesStreams<F> { return noted.streams(); }
  TERSE_HD void enter(const Piece& piece) { noted.enter(piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep) const { noted(piece, i, keep); }
};

/// Also notifies the message of its decoded value: sent(i, keep, decoded). Factor masking requires it.
template <class F, class View>
struct Reporting : View {
  F message;
  TERSE_HD void commit(index_t i, bool keep, float value, float decoded) const {
    View::commit(i, keep, value, decoded);
    // While the feedback holds its errors, sent values don't count.
    if constexpr (requires { this->hold; })
      message.sent(i, keep, keep_if(!this->hold, decoded));
    else
      message.sent(i, keep, decoded);
  }
};

/// Returns the mean unchanged.
struct AsItIs {
  using StreamsOf = AsItIs;
  TERSE_HD static Streams<> streams() { return {}; }
  TERSE_HD float receive(index_t, bool, float mean) const { return mean; }
};

/// Passes the mean through the error feedback to its consumer; 0 if masked.
template <class F, class View>
struct Deliver {
  F consume;
  float weight;
  View feedback;

  using StreamsOf = Deliver;
  TERSE_HD auto streams() requires(NamesStreams<F>&& NamesStreams<View>) {
    return consume.streams() + received(feedback);
  }
  TERSE_HD void enter(const Piece& piece) { terse::enter(consume, piece); }
  TERSE_HD bool rests() const requires(std::same_as<View, AsItIs>&& Rests<F>) { return consume.rests(); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, float sum) const {
    consume(piece, i, feedback.receive(i, keep, keep_if(keep, sum * weight)));
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
