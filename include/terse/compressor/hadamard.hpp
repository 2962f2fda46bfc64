// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/commit_elements.hpp"
#include "terse/compressor/packed.hpp"
#include "terse/executor/sparse.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The product of 32 neighbours with the Hadamard matrix of order 32 and with a factor. The matrix has H_jk =
/// (-1)^(number of ones in both j and k). A shorter group at the end of a piece is not transformed.
struct HadamardGroups {
  static constexpr int order = 32;
  const float* from;
  float* to;
  index_t count;
  float factor;

  static index_t groups(index_t count) { return (count + order - 1) / order; }
  TERSE_HD void operator()(index_t group) const {
    const index_t first = group * order;
    if (count - first < order) {
      for (index_t i = first; i < count; ++i) to[i] = from[i];
      return;
    }
    float x[order];
    for (int j = 0; j < order; ++j) x[j] = from[first + j];
    for (int half = 1; half < order; half *= 2)
      for (int j = 0; j < order; j += 2 * half)
        for (int k = j; k < j + half; ++k) {
          const float a = x[k], b = x[k + half];
          x[k] = a + b;
          x[k + half] = a - b;
        }
    for (int j = 0; j < order; ++j) to[first + j] = factor * x[j];
  }
};

/// Coefficients as a message, in whose place their decoded values are written. Coefficients beyond `limit` count as
/// not finite, so that sums of the others stay within the range of elements.
struct Coefficients {
  static constexpr float limit = largest_finite / HadamardGroups::order;
  float* numbers;
  index_t begin;  // the arena index of the first coefficient

  TERSE_HD Sample operator()(const Piece&, index_t i, bool) const {
    const bool good = magnitude(load(i)) <= limit;
    numbers[i - begin] = keep_if(good, load(i));
    return {load(i), keep_if(!good, 1.0F)};
  }
  TERSE_HD float load(index_t i) const { return numbers[i - begin]; }
  TERSE_HD void commit(index_t i, bool, float, float decoded) const { numbers[i - begin] = decoded; }
};
struct SumCoefficients {
  float* numbers;
  index_t begin;
  TERSE_HD void operator()(const Piece&, index_t i, bool, float sum) const { numbers[i - begin] = sum; }
};

}  // namespace detail

/// A quantizer of the Hadamard coefficients of every 32 neighbours: c = H y / 32 is quantized, H C(c) is decoded. So
/// one large element doesn't alone determine the step of its neighbours. It suits heavy-tailed distributions;
/// bell-shaped ones stay bell-shaped. The last count % 32 elements of a piece are quantized without a transform.
///
/// Inner is Packed with PerBlock<N>. Wire and traits are Inner's: the transform keeps angles and, up to a factor,
/// lengths. A receiver sums the packets' coefficients and transforms once. Coefficients beyond 2^58 count as not
/// finite. Memory: 2 n floats. The error feedback must hold the whole message (Residual, not StoredResidual). On a
/// device each thread transforms 32 elements. Source: Jia et al., "SDP4Bit", NeurIPS 2024, section 3.2.
template <class Inner>
struct Hadamard {
  static_assert(sizeof(Inner) == 0,
                "terse: Hadamard takes a Packed compressor with PerBlock<N>: Hadamard<Uniform<4, Nearest, "
                "Symmetric, MaxAbs, PerBlock<128>>>");
};

/// The specialization for packed quantizers, with the wire and the traits of Packed<Q, PerBlock<N>>.
template <class Q, index_t N>
struct Hadamard<Packed<Q, PerBlock<N>>> {
  using Inner = Packed<Q, PerBlock<N>>;
  static constexpr bool lossless = false;
  static constexpr bool unbiased = Inner::unbiased;
  static constexpr bool contractive = Inner::contractive;
  static constexpr bool tracks = Inner::tracks;
  static constexpr bool measured = false;
  static constexpr bool decodes_sums = true;
  static constexpr bool unbounded = Inner::unbounded;

  using Incoming = typename Inner::Incoming;
  using Source = typename Inner::Source;

  index_t wire_bytes(const Range& range) const { return Inner{}.wire_bytes(range); }
  Source source(const Range& range, const std::byte* section, float weight, Draw shared) const {
    return Inner{}.source(range, section, weight, shared);
  }
  static Incoming incoming(const Source* sources, int count) { return Inner::incoming(sources, count); }
  index_t scale_floats(const Range& range) const { return Inner{}.scale_floats(range); }
  static constexpr float largest_scale() { return Inner::largest_scale() / detail::HadamardGroups::order; }
  const char* fault(const Range& range, const std::byte* section, index_t bytes) const {
    return detail::all_within(largest_scale(), section, scale_floats(range))
               ? Inner{}.fault(range, section, bytes)
               : detail::unlikely_scale;
  }

  template <Executor E>
  struct Workspace {
    typename Inner::template Workspace<E> inner;
    buffer<float, typename E::memory> scratch, total, numbers, elements;
    index_t begin;

    Workspace(E executor, const Hadamard&, const Range& covered)
        : inner(executor, Inner{}, covered),
          scratch(reduction_scratch<MaxAbs>(executor, covered, Units{0, true}), uninitialized),
          total(1),
          numbers(covered.end_offset() - covered.begin_offset(), uninitialized),
          elements(numbers.size(), uninitialized),
          begin(covered.begin_offset()) {}
  };

  /// Evaluates and transforms the message, writes the section and commits the decoded values. Returns the section's
  /// bytes.
  template <Executor E, class In, class Message, class Feedback>
  index_t measure_and_encode(E executor, Workspace<E>& workspace, const Range& range,
                             Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                             const EncodeContext& context, std::byte* section, std::uint32_t* bad) const {
    static_assert(
        requires(const Feedback& view, index_t i) {
          { view.at(i) } -> std::convertible_to<const float*>;
        },
        "terse: under Hadamard an error feedback's view needs `const float* at(index_t i) const`, which "
        "points into an array of the values to send");
    if (range.pieces().empty()) return 0;
    reduce<MaxAbs>(executor, range, Units{0, true}, mask, incoming, message, workspace.scratch.all(),
                   workspace.total.all(), bad);
    float* const numbers = workspace.numbers.data();
    const index_t begin = workspace.begin;
    for (const Piece& piece : range.pieces())
      transform(executor, feedback.at(piece.offset), numbers + (piece.offset - begin), piece.count,
                1.0F / detail::HadamardGroups::order);
    const detail::Coefficients coefficients{numbers, begin};
    const index_t bytes =
        Inner{}.measure_and_encode(executor, workspace.inner, range, Mask<typename E::memory>{}, NoPackets{},
                                   coefficients, coefficients, context, section, bad);
    for_each(executor, range, mask, NoPackets{},
             detail::CommitElements<Feedback>{feedback, inverse(executor, workspace, range)});
    return bytes;
  }
  /// Returns the weighted sums of the packets received over `range`, in the workspace.
  template <Executor E>
  ArrivedSums arrived(E executor, Workspace<E>& workspace, const Range& range, Incoming packets) const {
    for_each(executor, range, Mask<typename E::memory>{}, packets,
             detail::SumCoefficients{workspace.numbers.data(), workspace.begin});
    return inverse(executor, workspace, range);
  }

 private:
  template <Executor E>
  static void transform(E executor, const float* from, float* to, index_t count, float factor) {
    using Groups = detail::HadamardGroups;
    for_each_entry(executor, Groups::groups(count), Groups{from, to, count, factor});
  }
  template <Executor E>
  static ArrivedSums inverse(E executor, Workspace<E>& workspace, const Range& range) {
    for (const Piece& piece : range.pieces()) {
      const index_t at = piece.offset - workspace.begin;
      transform(executor, workspace.numbers.data() + at, workspace.elements.data() + at, piece.count, 1.0F);
    }
    return {workspace.elements.data(), workspace.begin};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
