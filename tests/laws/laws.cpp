// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "laws/support.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/compressor/tiled.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"

// The laws themselves: wrong compressors, each wrong in one way, must be caught by the law that is about it, with an
// example of a few elements.

namespace {

using namespace terse;  // NOLINT: a test of the library's names

/// `broken` fails, and its example has at most `most` elements.
template <class C, class F = laws::DefaultFeedback<C>>
void fails(const std::string& law, int most, const C& compressor = {}) {
  const laws::Report report = laws::check<C, F>(compressor, {.draws = 1000, .attempts = 200});
  INFO(report.text());
  CHECK_FALSE(report);
  CHECK(report.broke(law));
  for (const laws::Failure& failure : report.failures)
    if (failure.law == law) CHECK(std::stoi(failure.what.substr(4)) <= most);
}

// ------------------------------------------------------------------------------------------------ quantizers

/// The sender's residual and the receivers read other values.
struct Disagreeing : quantizer::SignBit<MeanAbs> {
  static float value(std::uint32_t code, float scale) {
    static int calls = 0;
    return SignBit::value(code, ++calls % 2 == 0 ? scale : scale / 2);
  }
};

/// Rounds to nearest and says that it is unbiased.
struct Nearby : quantizer::UniformLevels<3, Nearest, Symmetric, MaxAbs> {
  static constexpr bool unbiased = true, contractive = false, tracks = false;
};

/// A bias of a thirtieth of a step.
struct Leaning : quantizer::UniformLevels<4, Stochastic, Symmetric, MaxAbs> {
  static std::uint32_t code(float value, float scale, std::uint32_t random) {
    return UniformLevels::code(value, scale, random > 2000 ? random - 2000 : 0);
  }
};

struct Overstated : quantizer::SignBit<MeanAbs> {
  static constexpr double delta(index_t n) { return 1.1 / static_cast<double>(n); }
};

struct Understated : quantizer::UniformLevels<2, Stochastic, Symmetric, MaxAbs> {
  static double omega(index_t n) { return 0.8 * UniformLevels::omega(n); }
};

/// Signs times the largest magnitude: no contraction.
struct Expanding : quantizer::SignBit<MaxAbs> {
  static constexpr bool contractive = true, tracks = true;
};

/// A step too long to be made up for.
struct Overshooting : quantizer::UniformLevels<4, Nearest, Symmetric, MaxAbs> {
  static constexpr bool contractive = false;
  static float value(std::uint32_t code, float scale) { return 2.05F * UniformLevels::value(code, scale); }
};

/// 0 / 0 for zeros.
struct Normalized : SumOfSquares {
  static float finish(const float* total, index_t count) {
    const auto n = static_cast<float>(count);
    return count > 0 ? total[0] / std::sqrt(total[0] * n) : 0.0F;
  }
};
struct DividingByZero : quantizer::SignBit<RootMeanSquare> {
  using Statistic = Normalized;
};

/// One of the four codes, which is never sent, is not a number.
struct Gap : quantizer::UniformLevels<2, Nearest, Symmetric, MaxAbs> {
  static float value(std::uint32_t code, float scale) {
    return code == 3 ? std::numeric_limits<float>::quiet_NaN() : UniformLevels::value(code, scale);
  }
};

/// Three halves of the scale, which a peer may have made as large as it likes.
/// Overflows with scales that packets may have, though no message here has them.
struct Overflowing : quantizer::SignBit<RootMeanSquare> {
  static float value(std::uint32_t code, float scale) {
    return code != 0 ? 0x1p97F * scale * 0x1p-97F : -scale;
  }
};

struct NotZero : quantizer::UniformLevels<2, Nearest, Symmetric, MaxAbs> {
  static float value(std::uint32_t code, float scale) { return UniformLevels::value(code, scale) + 0x1p-40F; }
};

/// Another code every time.
struct Moody : quantizer::UniformLevels<4, Nearest, Symmetric, MaxAbs> {
  static std::uint32_t code(float value, float scale, std::uint32_t) {
    static std::uint32_t calls = 0;
    return UniformLevels::code(value, scale, 0) ^ (++calls % 50 == 0 ? 1U : 0U);
  }
};

/// Says that it takes random numbers, and doesn't.
struct Pretending : quantizer::UniformLevels<4, Nearest, Symmetric, MaxAbs> {
  static constexpr bool stochastic = true;
};

template <class Q>
using Made = Packed<Q, PerSegment>;

TEST_CASE("wrong quantizers are caught") {
  fails<Made<Nearby>>("unbiasedness", 2);
  fails<Made<Leaning>>("unbiasedness", 16);
  fails<Made<Overstated>>("contraction", 3);
  fails<Made<Understated>>("variance", 5);
  fails<Made<Expanding>>("contraction", 3);
  fails<Made<Overshooting>>("mean tracking", 2);
  fails<Made<DividingByZero>>("round trip", 1);
  fails<Made<Gap>>("arbitrary bytes", 4);
  fails<Made<Overflowing>>("arbitrary bytes", 1);
  fails<Made<NotZero>>("zero", 1);
  fails<Made<Disagreeing>>("feedback law", 2);
  fails<Made<Moody>>("determinism", 60);
  fails<Made<Pretending>>("draws", 500);
}

// --------------------------------------------------------------------------------- error feedback and sections

/// Keeps the error of a decoded value that receivers don't read.
struct Forgetful : Residual {
  struct View : Residual::View {
    void commit(index_t i, bool keep, float value, float decoded) const {
      Residual::View::commit(i, keep, value, decoded * 1.0001F);
    }
  };
  template <Executor E>
  struct State : Residual::State<E> {
    using Residual::State<E>::State;
    View view() { return {Residual::State<E>::view()}; }
  };
};

/// Keeps errors of masked elements.
struct Unmasked : Residual {
  struct View : Residual::View {
    void commit(index_t i, bool, float value, float decoded) const {
      Residual::View::commit(i, true, value, decoded);
    }
  };
  template <Executor E>
  struct State : Residual::State<E> {
    using Residual::State<E>::State;
    View view() { return {Residual::State<E>::view()}; }
  };
};

TEST_CASE("wrong error feedback is caught") {
  fails<Sign, Forgetful>("feedback law", 1);
  fails<Sign, Unmasked>("feedback law", 2);
}

/// Signs, and what goes wrong around them: the base is right.
struct Section : ScaledSign<MeanAbs, PerBlock<128>> {
  using Base = ScaledSign<MeanAbs, PerBlock<128>>;
  template <Executor E>
  struct Workspace : Base::Workspace<E> {
    template <class Self>
    Workspace(E executor, const Self& self, const Range& range) : Base::Workspace<E>(executor, self, range) {}
  };
};

struct Beyond : Section {
  template <class E, class W, class R, class Mask, class In, class M, class F>
  index_t measure_and_encode(E executor, W& workspace, const R& range, Mask mask, In in, M message,
                             F feedback, const EncodeContext& context, std::byte* section,
                             std::uint32_t* bad) const {
    const index_t bytes = Base::measure_and_encode(executor, workspace, range, mask, in, message, feedback,
                                                   context, section, bad);
    if (range.elements() > 100) section[bytes] ^= std::byte{1};
    return bytes;
  }
};

struct TooLong : Section {
  index_t wire_bytes(const Range& range) const { return Base::wire_bytes(range) + 8; }
  template <class E, class W, class R, class Mask, class In, class M, class F>
  index_t measure_and_encode(E executor, W& workspace, const R& range, Mask mask, In in, M message,
                             F feedback, const EncodeContext& context, std::byte* section,
                             std::uint32_t* bad) const {
    return Base::measure_and_encode(executor, workspace, range, mask, in, message, feedback, context, section,
                                    bad) +
           8;
  }
};

/// Says too many bytes.
struct Mistaken : Section {
  index_t wire_bytes(const Range& range) const { return Base::wire_bytes(range) + 8; }
};

/// Writes eight bytes for each element beyond its bytes.
struct FarBeyond : Section {
  template <class E, class W, class R, class Mask, class In, class M, class F>
  index_t measure_and_encode(E executor, W& workspace, const R& range, Mask mask, In in, M message,
                             F feedback, const EncodeContext& context, std::byte* section,
                             std::uint32_t* bad) const {
    const index_t bytes = Base::measure_and_encode(executor, workspace, range, mask, in, message, feedback,
                                                   context, section, bad);
    std::fill_n(section + bytes, 8 * range.elements(), std::byte{1});
    return bytes;
  }
};

/// A block's scale takes the mask's elements in.
struct Peeking : Section {
  template <class E, class W, class R, class Mask, class In, class M, class F>
  index_t measure_and_encode(E executor, W& workspace, const R& range, Mask, In in, M message, F feedback,
                             const EncodeContext& context, std::byte* section, std::uint32_t* bad) const {
    return Base::measure_and_encode(executor, workspace, range, Mask{}, in, message, feedback, context,
                                    section, bad);
  }
};

/// Notes nothing.
struct Silent : Section {
  template <class E, class W, class R, class Mask, class In, class M, class F>
  index_t measure_and_encode(E executor, W& workspace, const R& range, Mask mask, In in, M message,
                             F feedback, const EncodeContext& context, std::byte* section,
                             std::uint32_t*) const {
    std::uint32_t ignored = 0;
    return Base::measure_and_encode(executor, workspace, range, mask, in, message, feedback, context, section,
                                    &ignored);
  }
};

TEST_CASE("wrong sections are caught") {
  fails<Beyond>("wire bounds", 101);
  fails<FarBeyond>("wire bounds", 1);
  fails<TooLong>("determined bytes", 0);
  fails<Mistaken>("wire size", 0);
  fails<Peeking>("feedback law", 2);
  fails<Silent>("not finite", 1);
}

// ------------------------------------------------------------------------------------------------ selections

enum class Pick { right, more, fewer, twice, outside, scratch, wire };

/// Picks every second value, and does one thing otherwise.
template <Pick P, bool Variable = true>
struct EverySecond {
  using Reader = Positions::Reader;
  static constexpr bool variable = Variable, unbiased = false, contractive = false, tracks = false;

  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}
  static index_t most(index_t n) { return (n + 1) / (P == Pick::more ? 4 : 2); }
  template <Executor E>
  static index_t floats(E, index_t n) {
    return P == Pick::scratch ? n / 2 : n;
  }
  static index_t words(index_t) { return 0; }
  static index_t index_bytes(index_t n, index_t k) {
    return Positions::bytes(n, k) - (P == Pick::wire && k > 100 ? 64 : 0);
  }
  static const char* fault(const std::byte* wire, index_t n, index_t k) {
    return Positions::fault(wire, n, k);
  }
  template <Executor E>
  index_t select(E executor, in<E> values, index_t, const EncodeContext&, PickScratch<E> scratch,
                 out<E, std::uint32_t> positions, std::byte* wire) const {
    const index_t n = values.size();
    for (index_t i = 0; i < n; ++i) scratch.floats[i] = values[i];
    index_t k = 0;
    for (index_t i = 0; i < n; i += 2) positions[k++] = static_cast<std::uint32_t>(i);
    if (P == Pick::fewer && k > 0) --k;
    if (P == Pick::twice && k > 1) positions[1] = 0;
    if (P == Pick::outside && k > 0) positions[k - 1] = static_cast<std::uint32_t>(n);
    if (P == Pick::right || P == Pick::wire)
      Positions::write(executor, in<E, std::uint32_t>(positions.part(0, k)), n, wire);
    return k;
  }
};

/// The law `picks` is broken with these words, and no other law is tried after it.
template <Pick P, bool Variable = true>
void misfits(const std::string& words, int most) {
  const auto refused = [&](const laws::Report& report) {
    INFO(report.text());
    REQUIRE(report.failures.size() == 1);
    CHECK(report.passed.empty());
    CHECK(report.failures[0].law == "picks");
    CHECK(report.failures[0].what.find(words) != std::string::npos);
    CHECK(std::stoi(report.failures[0].what.substr(4)) <= most);
  };
  using Picks = Sparse<EverySecond<P, Variable>, Dense, PerSegment>;
  refused(laws::check<Picks>());
  refused(laws::check<Tiles<16, Picks>>());
}

TEST_CASE("selections that leave the memory that they state are caught before they do harm") {
  CHECK(laws::check<Sparse<EverySecond<Pick::right>, Dense, PerSegment>>());
  CHECK(laws::check<Sparse<EverySecond<Pick::right, false>, Dense, PerSegment>>());
  misfits<Pick::more>("select picks 1 of 1 values, and `most` states 0 at most", 1);
  misfits<Pick::fewer, false>("select picks 0 of 1 values, and `most` states 1 exactly", 1);
  misfits<Pick::twice>("select writes position 0 after 0: positions ascend, from 0 to 2", 3);
  misfits<Pick::outside>("select writes position 1 after -1: positions ascend, from 0 to 0", 1);
  misfits<Pick::scratch>("select writes floats of scratch beyond the 0 that `floats` states", 1);
}

TEST_CASE("a selection's wire form is as long as it states") {
  const laws::Report report = laws::check<Sparse<EverySecond<Pick::wire>, Dense, PerSegment>>();
  INFO(report.text());
  REQUIRE(report.broke("picks"));
  CHECK(report.failures[0].what.find("select writes bytes of positions beyond the") != std::string::npos);
  CHECK(report.failures[0].what.find("that `index_bytes` states") != std::string::npos);
}

TEST_CASE("a report is for people") {
  const laws::Report report = laws::check<Made<Nearby>>({}, {.draws = 200});
  CHECK_FALSE(report);
  CHECK(report.compressor.find("Nearby") != std::string::npos);
  CHECK(report.text().find("BROKEN  unbiasedness") != std::string::npos);
  CHECK(report.text().find("holds   wire size") != std::string::npos);
  CHECK(report.text().find("n = 2") != std::string::npos);
  const std::string first = laws::check<Made<Nearby>>({}, {.draws = 200}).text();
  CHECK(first == report.text());
}

}  // namespace
