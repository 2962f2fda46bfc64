// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "terse/compressor/packed.hpp"
#include "terse/compressor/selection_concept.hpp"
#include "terse/compressor/sparse.hpp"
#include "terse/error_feedback/concept.hpp"
#include "terse/executor/host.hpp"

// What packets are made of, with nothing but what the contracts promise: see archetype_rules.hpp.

namespace archetype {

using terse::index_t;

TERSE_NUMERICS_BEGIN

/// Residual.
struct Feedback {
#if !defined(OMIT_FEEDBACK_CORRECTS)
  static constexpr bool corrects = true;
#endif

  struct View {
    float* y;
    index_t begin;
#if !defined(OMIT_FEEDBACK_COMPENSATE)
    float compensate(index_t i, float message) const { return message + y[i - begin]; }
#endif
#if !defined(OMIT_FEEDBACK_LOAD)
    float load(index_t i) const { return y[i - begin]; }
#endif
    void store(index_t i, float value) const { y[i - begin] = value; }
#if !defined(OMIT_FEEDBACK_COMMIT)
    void commit(index_t i, bool keep, float value, float decoded) const {
      y[i - begin] = keep ? value - decoded : 0;
    }
#endif
#if defined(WRONG_FEEDBACK_RECEIVE)
    float receive(index_t, float mean) const { return mean; }
#endif
  };

#if !defined(OMIT_FEEDBACK_STATE)
  template <terse::Executor E>
  struct State {
    terse::buffer<float, typename E::memory> error;
    index_t begin;

    State(const Feedback&, index_t begin_, index_t end) : error(end - begin_), begin(begin_) {}
#if !defined(OMIT_FEEDBACK_VIEW)
    View view() { return {error.data(), begin}; }
#endif
#if !defined(OMIT_FEEDBACK_WALK)
    template <class Visit>
    void walk(Visit&& visit) {
#if defined(WRONG_FEEDBACK_VISIT)
      visit("error", error, begin);
#else
      visit("error", error.all(), begin);
#endif
    }
#endif
#if defined(WRONG_FEEDBACK_START)
    void start() {}
#endif
  };
#endif
};

/// SignBit<MeanAbs>, with a statistic of its own.
struct Quantizer {
#if !defined(OMIT_QUANTIZER_STATISTIC)
  struct Statistic {
    static constexpr int width = 1;
    static constexpr float initial = 0;
    using Scale = float;
    static void terms(float x, float (&term)[1]) { term[0] = x < 0 ? -x : x; }
    static float join(float a, float b) { return a + b; }
#if !defined(OMIT_QUANTIZER_FINISH)
    static float finish(const float* total, index_t count) {
      return count > 0 ? total[0] / static_cast<float>(count) : 0.0F;
    }
#endif
  };
#endif
#if !defined(OMIT_QUANTIZER_BITS)
  static constexpr int bits = 1;
#endif
#if !defined(OMIT_QUANTIZER_STOCHASTIC)
  static constexpr bool stochastic = false;
#endif
#if !defined(OMIT_QUANTIZER_UNBIASED)
  static constexpr bool unbiased = false;
#endif
#if !defined(OMIT_QUANTIZER_CODE)
  static std::uint32_t code(float value, float, std::uint32_t) { return value < 0 ? 0U : 1U; }
#endif
#if !defined(OMIT_QUANTIZER_VALUE)
  static float value(std::uint32_t code, float scale) { return code != 0 ? scale : -scale; }
#endif
};

/// Values as they are, by a compressor that is not called lossless: Dense. For the host.
struct Compressor {
#if !defined(OMIT_COMPRESSOR_LOSSLESS)
  static constexpr bool lossless = false;
#endif
#if !defined(OMIT_COMPRESSOR_UNBIASED)
  static constexpr bool unbiased = true;
#endif
#if !defined(OMIT_COMPRESSOR_MEASURED)
  static constexpr bool measured = false;
#endif

  struct Code {
    static constexpr int bits = 32;
    using Scale = float;
    static float value(std::uint32_t code, float) { return std::bit_cast<float>(code); }
  };
#if !defined(OMIT_COMPRESSOR_INCOMING)
  using Incoming = terse::Packets<Code>;
  using Source = terse::Packets<Code>::Source;
#endif

#if !defined(OMIT_COMPRESSOR_WORKSPACE)
  template <terse::Executor E>
  struct Workspace {
    terse::buffer<float, typename E::memory> scratch, total;
    Workspace(E executor, const Compressor&, const terse::Range& covered)
        : scratch(terse::reduction_scratch<terse::MaxAbs>(executor, covered, terse::Units{0, true})),
          total(1) {}
  };
#endif

#if !defined(OMIT_COMPRESSOR_WIRE_BYTES)
  index_t wire_bytes(const terse::Range& range) const {
    index_t bytes = 0;
    for (const terse::Piece& piece : range.pieces()) bytes += (4 * piece.count + 7) / 8 * 8;
    return bytes;
  }
#endif
#if !defined(OMIT_COMPRESSOR_SOURCE)
  terse::Packets<Code>::Source source(const terse::Range&, const std::byte* section, float weight,
                                      const terse::StepDraw&) const {
    return {section, nullptr, weight};
  }
#endif
#if !defined(OMIT_COMPRESSOR_HOW_INCOMING)
  static terse::Packets<Code> incoming(const terse::Packets<Code>::Source* sources, int count) {
    return {sources, count, {}};
  }
#endif
#if !defined(OMIT_COMPRESSOR_FAULT)
  const char* fault(const terse::Range& range, const std::byte* section, index_t) const {
    for (const terse::Piece& piece : range.pieces()) {
      for (index_t k = 0; k < piece.count; ++k) {
        float value;
        std::memcpy(&value, section + 4 * k, sizeof value);
        if (!terse::is_finite(value)) return "a value that is not finite";
      }
      section += (4 * piece.count + 7) / 8 * 8;
    }
    return nullptr;
  }
#endif
#if !defined(OMIT_COMPRESSOR_ENCODE)
  template <terse::Executor E, class In, class Message, class Feedback>
  index_t measure_and_encode(E executor, Workspace<E>& workspace, const terse::Range& range,
                             terse::Mask<typename E::memory> mask, In incoming, Message message,
                             Feedback feedback, const terse::EncodeContext&, std::byte* section,
                             std::uint32_t* bad) const {
    // The verb evaluates the message, which leaves y in the feedback.
    terse::reduce<terse::MaxAbs>(executor, range, terse::Units{0, true}, mask, incoming, message,
                                 workspace.scratch.all(), workspace.total.all(), bad);
    std::byte* at = section;
    for (const terse::Piece& piece : range.pieces()) {
      const index_t end = (4 * piece.count + 7) / 8 * 8;
      std::memset(at, 0, static_cast<std::size_t>(end));
      for (index_t k = 0; k < piece.count; ++k) {
        const index_t i = piece.offset + k;
        const bool keep = (mask.word(i) >> i % 64 & 1) != 0;
        const float y = feedback.load(i), sent = keep ? y : 0;
        std::memcpy(at + 4 * k, &sent, sizeof sent);
        feedback.commit(i, keep, y, sent);
      }
      at += end;
    }
    return wire_bytes(range);
  }
#endif
};

/// All of n values: what Largest picks with a ratio of 1. For the host.
struct Selection {
#if !defined(OMIT_SELECTION_TRAITS)
  static constexpr bool variable = false;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = true;
#endif

  struct Reader {
    index_t at = 0;
    Reader() = default;
    Reader(const Selection&, const std::byte*, index_t, index_t, index_t, const terse::StepDraw&) {}
    index_t position() const { return at; }
#if !defined(OMIT_SELECTION_READER)
    void next() { ++at; }
#endif
  };

  void check() const {}
#if !defined(OMIT_SELECTION_SETTINGS)
  template <class Visit>
  void settings(Visit&&) const {}
#endif
#if !defined(OMIT_SELECTION_MOST)
  index_t most(index_t n) const { return n; }
#endif
#if !defined(OMIT_SELECTION_INDEX_BYTES)
  index_t index_bytes(index_t, index_t) const { return 0; }
#endif
#if !defined(OMIT_SELECTION_FLOATS)
  template <terse::Executor E>
  index_t floats(E, index_t) const {
    return 0;
  }
#endif
  index_t words(index_t) const { return 0; }
#if !defined(OMIT_SELECTION_FAULT)
  const char* fault(const std::byte*, index_t, index_t) const { return nullptr; }
#endif
#if !defined(OMIT_SELECTION_SELECT)
  template <terse::Executor E>
  index_t select(E, terse::in<E> values, index_t, const terse::EncodeContext&, terse::PickScratch<E>,
                 terse::out<E, std::uint32_t> positions, std::byte*) const {
    for (index_t k = 0; k < values.size(); ++k) positions[k] = static_cast<std::uint32_t>(k);
    return values.size();
  }
#endif
};

TERSE_NUMERICS_END

}  // namespace archetype
