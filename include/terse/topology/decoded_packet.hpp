// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/executor/sparse.hpp"
#include "terse/topology/round.hpp"

// A packet in the form that merges of packets read: its decoded values in one arena, and their norms.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// The functor that stores each element's decoded value, 0 if it is masked.
struct WriteSum {
  float* to;
  index_t begin;
  using StreamsOf = WriteSum;
  TERSE_HD auto streams() { return writes(to, begin); }
  TERSE_HD void operator()(const Piece&, index_t i, bool keep, float sum) const {
    to[i - begin] = keep_if(keep, sum);
  }
};
struct ReadValue {
  const float* from;
  index_t begin;
  using StreamsOf = ReadValue;
  TERSE_HD auto streams() { return reads(from, begin); }
  TERSE_HD Sample operator()(const Piece&, index_t i, bool) const { return {from[i - begin], 0}; }
};

TERSE_NUMERICS_END

/// A buffer for the elements of a portion, by arena index from `begin` on; n floats.
template <Executor E>
struct PortionValues {
  index_t begin = 0;
  buffer<float, typename E::memory> values;

  TERSE_COLD explicit PortionValues(const Portion& portion) {
    index_t end = 0;
    for (const Range* range : {&portion.compressed, &portion.dense}) {
      if (range->pieces().empty()) continue;
      begin = end == 0 ? range->begin_offset() : std::min(begin, range->begin_offset());
      end = std::max(end, range->end_offset());
    }
    values = buffer<float, typename E::memory>(end - begin, uninitialized);
  }
  ArrivedSums sums() const { return {values.data(), begin}; }
};

/// A decoder of one packet at a time. If squares of values overflow, the norm is 0.
template <Compressor C, Executor E>
class DecodedPacket {
 public:
  TERSE_COLD DecodedPacket(E executor, const Portion& portion)
      : values_(portion),
        scratch_(std::max(reduction_scratch<SumOfSquares>(executor, portion.compressed, Units{0, true}),
                          reduction_scratch<SumOfSquares>(executor, portion.dense, Units{0, true})),
                 uninitialized),
        ignored_(1) {}

  /// Decodes the one packet in the inbox.
  template <class Context>
  void load(Context& context, Inbox<C>& inbox) {
    const Portion& portion = context.plan.whole;
    const WriteSum write{values_.values.data(), values_.begin};
    if constexpr (!C::lossless)
      for_each(context.executor, portion.compressed, context.mask,
               context.codec.arrived(portion.compressed, inbox), write);
    for_each(context.executor, portion.dense, NoMask{}, inbox.dense(), write);
  }
  const PortionValues<E>& values() const { return values_; }
  /// Measures a statistic of `values`, the decoded ones or others: of each piece, or of the whole range.
  template <class Statistic>
  void measure(E executor, const Range& range, Units units, const PortionValues<E>& values, out<E> statistics,
               std::uint32_t* bad) {
    if (range.pieces().empty()) return;
    reduce<Statistic>(executor, range, units, Mask<typename E::memory>{}, NoPackets{},
                      ReadValue{values.values.data(), values.begin}, scratch_.all(), statistics, bad);
  }
  template <class Statistic>
  void measure(E executor, const Range& range, Units units, const PortionValues<E>& values,
               out<E> statistics) {
    measure<Statistic>(executor, range, units, values, statistics, ignored_.data());
  }

 private:
  PortionValues<E> values_;
  buffer<float, typename E::memory> scratch_;
  buffer<std::uint32_t, typename E::memory> ignored_;
};

}  // namespace terse::detail
