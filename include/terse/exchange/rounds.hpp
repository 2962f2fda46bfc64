// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include "terse/core/non_finite.hpp"
#include "terse/topology/alone.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace terse {

/// What holds for one step, on this rank.
struct StepContext {
  std::uint64_t step = 0;  ///< counts from 1
  std::uint64_t seed = 0;
  std::uint64_t agreement =
      0;  ///< hash of the hyper-parameters in force; packets of other values are refused
  NonFinite on_non_finite = NonFinite::throw_;
  float learning_rate = 0;           ///< for error feedbacks that follow it
  const StepScalars* now = nullptr;  ///< this step's scalars, in the executor's memory
  bool* compressed = nullptr;        ///< where given, becomes true where ranks exchange compressed messages
  bool dense_only = false;           ///< the compressed part of the mean is not consumed

  StepContext at_rate(float rate) const {
    StepContext other = *this;
    other.learning_rate = rate;
    return other;
  }
};

namespace detail {

/// What carries full-precision packets for a topology: itself, or what it names as ForDense; for those that mix with
/// neighbours ScatterGather.
template <class T>
struct DenseTopology {
  using type = std::conditional_t<T::exact, T, ScatterGather>;
};
template <class T>
requires requires { typename T::ForDense; }
struct DenseTopology<T> {
  using type = typename T::ForDense;
};

}  // namespace detail
template <class T>
using DenseTopologyOf = typename detail::DenseTopology<T>::type;
/// The one that goes with this topology, its parameters included.
template <class T>
DenseTopologyOf<T> dense_topology(const T& topology) {
  if constexpr (std::is_same_v<DenseTopologyOf<T>, T>)
    return topology;
  else if constexpr (requires { topology.for_dense(); })
    return topology.for_dense();
  else
    return {};
}

namespace detail {

/// What an exchange of this compressor over this topology does in a round. Here, what the topology's own Round does with one
/// RoundContext; keyed mixing and hierarchies have theirs.
///
///     open(context, mask), start(message), advance(message, block)   as of rounds
///     arrived(throws)       all is here, see Envelope
///     read(message)         optional, after it: for what can be read beside the message alone
///     consume(consumer), gated(functor), settle(step), notes(), most_bytes(told), walk(visit)
///     envelope()            the step's, which an outer round may lend
///     plan(), feedback(), set_compressor(compressor)
template <class C, class F, class P, class T, class E>
class Rounds {
  using Context = RoundContext<C, F, T, E>;
  using Round = typename RoundOf<C, F, P, T, E>::type;
  static constexpr bool sound() {
    if constexpr (P::exact) return check_round<Round, Context, std::is_same_v<DenseTopologyOf<P>, P>>();
    return true;
  }
  static_assert(sound());

 public:
  TERSE_COLD Rounds(E executor, T& transport, const C& compressor, const F& feedback, const Layout& layout,
                    const Range& range, bool note, const P& topology, RankNames names = {})
      : context_(executor, transport.split(0, transport.rank()), compressor, feedback, layout,
                 Plan(compressor, layout, range, transport.size(), note), names),
        round_(make_round(context_, topology)) {}

  void open(const StepContext& step, Mask<typename E::memory> mask) {
    context_.open(step.step, step.seed, step.agreement, step.learning_rate, mask, step.now);
    context_.dense_only = step.dense_only;
  }
  template <class M>
  void start(const M& message) {
    round_.start(context_, message);
  }
  template <class M>
  bool advance(const M& message, bool block) {
    return round_.advance(context_, message, block);
  }
  void arrived(bool throws) { context_.arrived(throws); }
  template <class Consumer>
  void consume(const Consumer& consumer) {
    round_.consume(context_, consumer);
  }
  template <class Functor>
  auto gated(const Functor& f) const {
    return context_.envelope.gated(f);
  }
  void await() { await_messages(context_.channel); }
  void settle(std::uint64_t step) {
    await();
    context_.settle(step);
  }
  double notes() {
    await();
    return round_.notes(context_.executor);
  }
  index_t most_bytes(bool = false) const { return round_.most_bytes(context_); }
  Envelope<E>& envelope() { return context_.envelope; }

  const Plan& plan() const { return context_.plan; }
  void set_compressor(const C& compressor) { context_.codec.set_compressor(compressor); }
  auto feedback() { return context_.codec.feedback(); }
  template <class Visit>
  TERSE_COLD void walk(Visit&& visit) {
    context_.codec.walk(visit);
    if constexpr (requires { round_.walk(visit); }) round_.walk(visit);
  }

 private:
  /// Some topologies have parameters.
  static Round make_round(Context& context, const P& topology) {
    if constexpr (std::is_constructible_v<Round, Context&, const P&>)
      return Round(context, topology);
    else
      return Round(context);
  }

  Context context_;
  Round round_;
};

}  // namespace detail

}  // namespace terse
