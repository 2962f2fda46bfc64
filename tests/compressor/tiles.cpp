// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "laws/support.hpp"
#include "reference/demo.hpp"
#include "terse/codec.hpp"
#include "terse/compressor/chain.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/compressor/threshold.hpp"
#include "terse/compressor/tiled.hpp"
#include "terse/compressor/two_magnitudes.hpp"
#include "terse/error_feedback/residual.hpp"

// Tiles and their cosine transform against the formula, summed in double term by term, and by every law.

namespace {

using namespace terse;  // NOLINT: a test of the library's names

using Floats = std::vector<float>;
using reference::Doubles, reference::restored, reference::transformed;

constexpr std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

Floats noise(index_t n, std::uint64_t seed) {
  const Draw draw = Draw::shared(seed, 1, Purpose::user);
  Floats x(at(n));
  for (index_t i = 0; i < n; ++i)
    x[at(i)] = static_cast<float>(draw.bits(static_cast<std::uint64_t>(i)) >> 40) * 0x1p-23F - 1;
  return x;
}

double norm(const Doubles& x) { return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0)); }
template <class A, class B>
double farthest(const A& a, const B& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

TEST_CASE("cosines by series") {
  double most = 0;
  for (index_t b = 1; b <= 256; ++b)
    for (index_t a = 0; a <= 2 * b; ++a)
      most = std::max(most,
                      std::abs(detail::cosine(a, b) -
                               std::cos(std::acos(-1.0) * static_cast<double>(a) / static_cast<double>(b))));
  CHECK(most < 2e-15);  // what the argument of std::cos is rounded by
  static_assert(detail::cosine(1, 2) == 0 && detail::cosine(1, 1) == -1 &&
                detail::cosine(7, 3) == detail::cosine(1, 3));
}

TEST_CASE("the transform is the formula's, orthonormal and its own inverse's inverse") {
  using Transform = CosineWaves::Transform<64>;
  const auto transform = std::make_unique<Transform>();
  const std::vector<index_t> sides{1, 2, 3, 4, 5, 7, 12, 16, 17, 30, 61, 62, 63, 64};
  for (const index_t rows : sides)
    for (const index_t columns : sides) {
      if (rows > 5 && columns > 5 && (rows + columns) % 3 != 0 && rows != columns) continue;
      CAPTURE(rows);
      CAPTURE(columns);
      // Rows lie apart, as in a matrix that is wider than the tile.
      const index_t n = rows * columns, stride = columns + 3;
      const Floats wide = noise(rows * stride, static_cast<std::uint64_t>(n));
      Floats x(at(n)), tile(at(n));
      for (index_t r = 0; r < rows; ++r) std::copy_n(&wide[at(r * stride)], columns, &x[at(r * columns)]);
      const detail::TilePlace place{0, rows, columns, stride};
      transform->forward(place, wide.data(), tile.data());
      const Doubles exact(x.begin(), x.end());
      const double length = norm(exact);
      REQUIRE(farthest(tile, transformed(rows, columns, exact)) < 3e-7 * length);
      REQUIRE(norm(Doubles(tile.begin(), tile.end())) == doctest::Approx(length).epsilon(1e-6));
      REQUIRE(farthest(restored(rows, columns, Doubles(tile.begin(), tile.end())), exact) < 3e-7 * length);
      transform->inverse(place, tile.data());
      REQUIRE(farthest(tile, x) < 6e-7 * length);

      // All ones are one wave.
      const Floats ones(at(rows * stride), 1.0F);
      transform->forward(place, ones.data(), tile.data());
      REQUIRE(tile[0] == doctest::Approx(std::sqrt(static_cast<double>(n))).epsilon(1e-6));
      for (index_t i = 1; i < n; ++i)
        REQUIRE(std::abs(static_cast<double>(tile[at(i)])) < 2e-6 * std::sqrt(static_cast<double>(n)));
      if (rows != columns) continue;

      // What is turned has turned coefficients.
      Floats turned(at(n)), coefficients(at(n)), of_turned(at(n));
      for (index_t r = 0; r < rows; ++r)
        for (index_t c = 0; c < rows; ++c) turned[at(c * rows + r)] = x[at(r * rows + c)];
      const detail::TilePlace tight{0, rows, rows, rows};
      transform->forward(tight, x.data(), coefficients.data());
      transform->forward(tight, turned.data(), of_turned.data());
      for (index_t u = 0; u < rows; ++u)
        for (index_t v = 0; v < rows; ++v)
          REQUIRE(std::abs(static_cast<double>(coefficients[at(v * rows + u)] -
                                               of_turned[at(u * rows + v)])) < 6e-7 * length);
    }
}

Layout some_layout() {
  Layout layout;
  layout.add({"matrix", {70, 130}}).add({"empty", {0, 3}}).add({"vector", {4301}}).add({"row", {1, 65}});
  layout.add({"filter", {6, 5, 3, 3}})
      .add({"bias", {7}})
      .add({"exact", {3, 3}, 1, 1, false})
      .add({"one", {}});
  return layout;
}

TEST_CASE("tiles take each element once, and units follow each other") {
  const Layout layout = some_layout();
  const Range range = layout.range();
  std::vector<int> taken(at(layout.size()));
  std::vector<std::pair<index_t, index_t>> of_matrix;
  index_t end = 0, piece = -1;
  for (detail::UnitsOf<PerTile<64>> units(range); units.more(); units.next()) {
    const Piece unit = units.unit();
    const detail::TilePlace& place = units.place();
    REQUIRE(place.rows * place.columns == unit.count);
    REQUIRE((place.rows <= 64 && place.columns <= 64));
    if (unit.segment != piece) end = layout.segments()[at(unit.segment)].offset;
    piece = unit.segment;
    REQUIRE(unit.offset == std::exchange(end, unit.offset + unit.count));
    if (unit.segment == 0) of_matrix.emplace_back(place.rows, place.columns);
    for (index_t r = 0; r < place.rows; ++r)
      for (index_t c = 0; c < place.columns; ++c) ++taken[at(place.first + r * place.stride + c)];
  }
  for (const Segment& segment : layout.segments())
    for (index_t i = 0; i < aligned(segment.count); ++i)
      REQUIRE(taken[at(segment.offset + i)] == (i < segment.count ? 1 : 0));
  CHECK(of_matrix ==
        std::vector<std::pair<index_t, index_t>>{{64, 64}, {64, 64}, {64, 2}, {6, 64}, {6, 64}, {6, 2}});
}

/// What receivers read of x, the message of one rank; `error` becomes what it keeps.
template <class C>
Floats read_back(const C& compressor, const Layout& layout, const Floats& x, Floats& error, int parts = 1) {
  const Plan plan(compressor, layout, layout.range(), parts, false);
  Codec<C, Residual, executor::host> codec({}, compressor, {}, plan.whole);
  codec.start(1);
  struct Read {
    const float* x;
    float operator()(const Piece&, index_t i) const { return x[i]; }
  };
  struct Write {
    float* x;
    void operator()(const Piece&, index_t i, bool, float sum) const { x[i] = sum; }
  };
  const Message message{Read{x.data()}, Read{x.data()}};
  const EncodeContext context{1, Draw::local(1, 0, 1, Purpose::quantization),
                              Draw::shared(1, 1, Purpose::selection)};
  Floats decoded(x.size());
  for (const Portion& chunk : plan.chunks) {
    buffer<std::byte> packet(chunk.bytes);
    codec.encode(chunk, {}, EmptyInbox{}, message, context, false, packet.data());
    Inbox<C> inbox(1);
    inbox.add(compressor, chunk, packet.data(), context.shared);
    for_each(executor::host{}, chunk.compressed, NoMask{}, codec.arrived(chunk.compressed, inbox),
             Write{decoded.data()});
    for_each(executor::host{}, chunk.dense, NoMask{}, inbox.dense(), Write{decoded.data()});
  }
  CHECK(!codec.take_bad());
  error.assign(x.size(), 0);
  const Floats nothing(x.size());
  for (const Piece& piece : plan.whole.compressed.pieces())
    for (index_t i = piece.offset; i < piece.offset + piece.count; ++i)
      error[at(i)] = codec.feedback().compensate(i, 0.0F);
  return decoded;
}

/// The k of largest magnitude of each tile's waves, of blocks of a matrix, by the formula.
Floats by_formula(index_t rows, index_t columns, index_t side, double ratio, const Floats& x) {
  Floats result(x.size());
  for (index_t r = 0; r < rows; r += side)
    for (index_t c = 0; c < columns; c += side) {
      const index_t h = std::min(side, rows - r), w = std::min(side, columns - c);
      Doubles block;
      for (index_t i = 0; i < h; ++i)
        for (index_t j = 0; j < w; ++j)
          block.push_back(static_cast<double>(x[at((r + i) * columns + c + j)]));
      Doubles waves = transformed(h, w, block), sorted = waves;
      std::sort(sorted.begin(), sorted.end(), [](double a, double b) { return std::abs(a) > std::abs(b); });
      const auto k = static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(h * w)));
      const double least = std::abs(sorted[k - 1]);
      // Nothing hangs on a rounding.
      if (k < sorted.size()) REQUIRE(least - std::abs(sorted[k]) > 1e-5 * least);
      for (double& value : waves)
        if (std::abs(value) < least) value = 0;
      const Doubles read = restored(h, w, waves);
      for (index_t i = 0; i < h; ++i)
        for (index_t j = 0; j < w; ++j)
          result[at((r + i) * columns + c + j)] = static_cast<float>(read[at(i * w + j)]);
    }
  return result;
}

TEST_CASE("receivers read the largest waves of each tile, and the rest is the error") {
  for (const auto& [rows, columns] :
       std::vector<std::pair<index_t, index_t>>{{16, 16}, {21, 37}, {3, 50}, {40, 7}}) {
    Layout layout;
    layout.add({"matrix", {rows, columns}});
    Floats x = noise(layout.size(), static_cast<std::uint64_t>(rows)), error;
    const Floats expected = by_formula(rows, columns, 16, 0.1, x);
    const Floats decoded = read_back(Dct<16>{.inner = {.selection = {.ratio = 0.1}}}, layout, x, error);
    CHECK(farthest(Floats(decoded.begin(), decoded.begin() + rows * columns),
                   Floats(expected.begin(), expected.begin() + rows * columns)) < 3e-6);
    for (index_t i = 0; i < rows * columns; ++i) REQUIRE(error[at(i)] == x[at(i)] - decoded[at(i)]);
  }
  // A vector is rows of 16, and one of what is left.
  Layout layout;
  layout.add({"vector", {600}});
  const Floats x = noise(640, 9);
  Floats error, expected = by_formula(37, 16, 16, 0.1, Floats(x.begin(), x.begin() + 592));
  const Floats rest = by_formula(1, 8, 16, 0.1, Floats(x.begin() + 592, x.begin() + 600));
  expected.insert(expected.end(), rest.begin(), rest.end());
  const Floats decoded = read_back(Dct<16>{.inner = {.selection = {.ratio = 0.1}}}, layout, x, error);
  CHECK(farthest(expected, decoded) < 3e-6);
}

TEST_CASE("all coefficients are the message, to rounding; all elements are, to the bit") {
  const Layout layout = some_layout();
  const Floats x = noise(layout.size(), 3);
  const Range range = layout.range();
  Floats error;
  for (const int parts : {1, 3}) {
    const Floats waves = read_back(Dct<64>{.inner = {.selection = {.ratio = 1}}}, layout, x, error, parts);
    const Floats elements =
        read_back(Tiles<64>{.inner = {.selection = {.ratio = 1}}}, layout, x, error, parts);
    for (const Piece& piece : range.pieces())
      for (index_t i = piece.offset; i < piece.offset + piece.count; ++i) {
        REQUIRE(std::abs(waves[at(i)] - x[at(i)]) < 3e-6F);
        REQUIRE(elements[at(i)] == x[at(i)]);
        REQUIRE(error[at(i)] == 0);
      }
  }
}

TEST_CASE("parts of a matrix that is cut have larger tiles than the matrix") {
  Layout layout;
  layout.add({"tall", {1500, 2}});
  const Floats x = noise(layout.size(), 5);
  Floats error;
  const Floats elements = read_back(Tiles<16>{.inner = {.selection = {.ratio = 1}}}, layout, x, error, 2);
  CHECK(Floats(elements.begin(), elements.begin() + 3000) == Floats(x.begin(), x.begin() + 3000));
}

TEST_CASE("few waves say more of what is smooth than few elements do") {
  Layout layout;
  layout.add({"matrix", {128, 128}});
  Floats x(at(layout.size())), error;
  for (index_t r = 0; r < 128; ++r)
    for (index_t c = 0; c < 128; ++c)
      x[at(r * 128 + c)] = std::sin(0.05F * static_cast<float>(r)) + 0.01F * static_cast<float>(c);
  const auto missing = [&](const auto& compressor) {
    read_back(compressor, layout, x, error);
    return norm(Doubles(error.begin(), error.end())) / norm(Doubles(x.begin(), x.end()));
  };
  CHECK(missing(Dct<64>{.inner = {.selection = {.ratio = 8.0 / 4096}}}) < 0.05);
  CHECK(missing(Tiles<64>{.inner = {.selection = {.ratio = 8.0 / 4096}}}) > 0.9);
}

TEST_CASE("slices of compressors that take whole segments end where segments do") {
  Layout layout;
  for (int s = 0; s < 7; ++s) layout.add({std::to_string(s), {64, 10 + s}});
  const std::vector<Range> slices = terse::detail::slices_of(layout.range(), 4 * 2000, true);
  index_t pieces = 0, end = layout.size();
  for (const Range& slice : slices) {
    CHECK(slice.end_offset() == end);
    end = slice.begin_offset();
    CHECK((slice.elements() <= 2000 || slice.pieces().size() == 1));
    for (const Piece& piece : slice.pieces())
      CHECK(piece.count == layout.segments()[at(piece.segment)].count);
    pieces += static_cast<index_t>(slice.pieces().size());
  }
  CHECK(end == 0);
  CHECK(pieces == 7);
  CHECK(slices.size() > 2);
  CHECK(terse::detail::slices_of(layout.range(), 0, true).size() == 1);
}

TEST_CASE("bytes of a tile: positions of 12 bits, and values of 32, 1 or 2") {
  const Range range = Layout::flat(4096).range();
  const Largest selection{.ratio = 64.0 / 4096};
  const auto bytes = [&](auto inner) {
    inner.selection = selection;
    return Tiles<64, decltype(inner)>{.inner = inner}.wire_bytes(range);
  };
  CHECK(bytes(TopK<>{}) == 96 + 256);
  CHECK(bytes(Sparse<Largest, ScaledSign<MeanAbs>, PerSegment>{}) == 96 + 8 + 8);
  CHECK(bytes(Sparse<Largest, TwoMagnitudeSign<>, PerSegment>{}) == 96 + 8 + 16);
}

TEST_CASE("laws") {
  const laws::Options few{.draws = 50};
  holds(Tiles<4>{.inner = {.selection = {.ratio = 0.2}}}, few);
  holds(Dct<4>{.inner = {.selection = {.ratio = 0.2}}}, few);
  holds(Dct<8, Threshold<>>{.inner = {.selection = {.threshold = 0.5F, .most_ratio = 1}}}, few);
  holds(Dct<8, Sparse<Largest, TwoMagnitudeSign<>, PerSegment>>{.inner = {.selection = {.ratio = 0.1}}}, few);
}

}  // namespace
