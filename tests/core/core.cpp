// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/compressor/drop_quantization_error.hpp"
#include "terse/compressor/mean_over_senders.hpp"
#include "terse/compressor/natural.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/compressor/threshold.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/core/draw.hpp"
#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/packet.hpp"
#include "terse/core/segment_predicates.hpp"
#include "terse/core/type_name.hpp"
#include "terse/core/version.hpp"
#include "terse/core/view.hpp"
#include "terse/error_feedback/ef21.hpp"
#include "terse/error_feedback/error_control.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/executor/numerics.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"
#include "terse/optimizer/for_hidden_matrices.hpp"
#include "terse/optimizer/local/schedule.hpp"

// Layout, ranges, views, buffers, random streams, packet headers and errors.

namespace terse {
// Names that begin with one that was renamed.
struct Ef21K {};
struct Ef21Kept {};
}  // namespace terse

namespace my_terse {
/// A name that ends with one that was renamed.
template <class, class>
struct Ef21 {};
}  // namespace my_terse

namespace {

using terse::Draw;
using terse::index_t;
using terse::Layout;
using terse::Piece;
using terse::Purpose;
using terse::Range;

/// What() of the E that `act` throws; empty if it throws none.
template <class E, class Act>
std::string message_of(Act act) {
  try {
    act();
  } catch (const E& failure) {
    return failure.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Layout layout_of(const std::vector<index_t>& counts) {
  Layout layout;
  for (std::size_t s = 0; s < counts.size(); ++s) layout.add({"s" + std::to_string(s), {counts[s]}});
  return layout;
}

/// Arena indices of a range, in its order.
std::vector<index_t> elements_of(const Range& range) {
  std::vector<index_t> indices;
  for (const Piece& piece : range.pieces())
    for (index_t i = 0; i < piece.count; ++i) indices.push_back(piece.offset + i);
  return indices;
}

/// How many elements of `counts`, in order, lie in the first parts up to `part`, by the documented rule: the
/// first (part + 1) / parts of them, rounded up to 64 within their piece.
index_t documented_end(const std::vector<index_t>& counts, int parts, int part) {
  index_t all = 0;
  for (const index_t count : counts) all += count;
  const index_t goal = all * (part + 1) / parts;
  index_t before = 0;
  for (const index_t count : counts) {
    if (goal <= before + count) {
      const index_t within = goal - before;
      return before + std::min(count, (within + 63) / 64 * 64);
    }
    before += count;
  }
  return all;
}

}  // namespace

TEST_CASE("this build's arithmetic is the documented one") {
  CHECK(terse::numerics_of(terse::executor::host{}) == 0);
  CHECK_NOTHROW(terse::detail::check_numerics(0, 0));
}

TEST_CASE("a layout places each segment at a multiple of 64 behind the one before") {
  Layout layout;
  layout.add({"weight", {3, 50}}).add({"bias", {64}}).add({"scalar", {}}).add({"none", {5, 0}});
  layout.add({"last", {1}, 0.5F, 0, false});
  const auto& segments = layout.segments();
  REQUIRE(segments.size() == 5);
  const std::vector<index_t> offsets{0, 192, 256, 320, 320}, counts{150, 64, 1, 0, 1};
  for (std::size_t s = 0; s < segments.size(); ++s) {
    CAPTURE(s);
    CHECK(segments[s].offset == offsets[s]);
    CHECK(segments[s].count == counts[s]);
  }
  CHECK(layout.size() == 384);
  CHECK(segments[4].learning_rate_scale == 0.5F);
  CHECK(segments[4].weight_decay == 0);
  CHECK_FALSE(segments[4].compress);
  CHECK(segments[0].compress);

  const Range range = layout.range();
  REQUIRE(range.pieces().size() == 4);
  CHECK(range.pieces()[3].segment == 4);
  CHECK(range.pieces()[3].offset == 320);
  CHECK(range.elements() == 216);
  CHECK(range.begin_offset() == 0);
  CHECK(range.end_offset() == 384);
}

TEST_CASE("a flat layout is one segment") {
  const Layout layout = Layout::flat(65);
  REQUIRE(layout.segments().size() == 1);
  CHECK(layout.segments()[0].name == "parameters");
  CHECK(layout.segments()[0].count == 65);
  CHECK(layout.size() == 128);
  CHECK(Layout{}.size() == 0);
  CHECK(Layout{}.range().pieces().empty());
  CHECK(Layout{}.range().end_offset() == 0);
}

TEST_CASE("counts are rounded up to words of 64") {
  static_assert(terse::alignment == 64);
  static_assert(terse::aligned(0) == 0 && terse::aligned(1) == 64 && terse::aligned(64) == 64);
  static_assert(terse::aligned(65) == 128);
}

TEST_CASE("a layout refuses segments that can't be") {
  Layout layout;
  layout.add({"a", {4}});
  CHECK(contains(message_of<terse::usage_error>([&] { layout.add({"a", {5}}); }), "'a'"));
  CHECK(contains(message_of<terse::usage_error>([&] {
                   layout.add({"b", {2, -1}});
                 }),
                 "'b' has a negative dimension"));
  const index_t large = index_t{1} << 40;
  CHECK(contains(message_of<terse::usage_error>([&] {
                   layout.add({"c", {large, large}});
                 }),
                 "'c' has too many elements"));
  CHECK(contains(message_of<terse::usage_error>([&] {
                   layout.add({"d", {large, large, large, large}});
                 }),
                 "'d'"));
  CHECK(
      contains(message_of<terse::usage_error>([&] { layout.add({.name = "e", .shape = {4}, .group = -1}); }),
               "'e' is of group -1"));
  CHECK(layout.segments().size() == 1);
  CHECK(layout.size() == 64);
  // What was refused has taken no name.
  for (const char* name : {"b", "c", "d", "e"}) layout.add({name, {4}});
  CHECK(layout.segments().size() == 5);
}

TEST_CASE("a layout knows its groups, and without any has the hash that it always had") {
  Layout layout;
  layout.add({"weight", {3, 50}}).add({"bias", {64}, 0.5F, 0, false});
  CHECK(layout.groups() == std::vector<int>{0});
  CHECK(terse::detail::layout_hash(layout) == 0x25e2bdb36119afb6U);
  std::set<std::uint64_t> hashes;
  for (const int group : {0, 1, 2})
    for (const bool compress : {false, true}) {
      Layout one;
      one.add({.name = "a", .shape = {4}, .compress = compress, .group = group});
      hashes.insert(terse::detail::layout_hash(one));
    }
  CHECK(hashes.size() == 6);
  const terse::Segment whole{.name = "a", .shape = {4, 2}};
  hashes.clear();
  for (const terse::Segment& other :
       {whole, terse::Segment{.name = "b", .shape = {4, 2}}, terse::Segment{.name = "a", .shape = {2, 4}},
        terse::Segment{.name = "a", .shape = {8}},
        terse::Segment{.name = "a", .shape = {4, 2}, .learning_rate_scale = 2},
        terse::Segment{.name = "a", .shape = {4, 2}, .weight_decay = 0},
        terse::Segment{.name = "a", .shape = {4, 2}, .hidden = true}})
    hashes.insert(terse::detail::layout_hash(Layout().add(other)));
  CHECK(hashes.size() == 7);
  for (const int group : {7, 2, 7})
    layout.add({.name = std::to_string(layout.size()), .shape = {1}, .group = group});
  CHECK(layout.groups() == std::vector<int>{0, 2, 7});
}

TEST_CASE("names of segments are UTF-8, as checkpoints need them") {
  for (const std::string& good :
       {std::string("h\xC3\xBC"
                    "fte"),
        std::string("\xE2\x82\xAC"), std::string("\xF4\x8F\xBF\xBF"), std::string("\xED\x9F\xBF"),
        std::string("\xF0\x90\x80\x80"), std::string("\xE0\xA0\x80"), std::string(1, '\0'), std::string()}) {
    CAPTURE(good);
    CHECK_NOTHROW(Layout{}.add({good, {1}}));
  }
  // Latin-1, cut off, a byte that only follows, the longer form of another one, a surrogate, and beyond U+10FFFF.
  for (const std::string bad : {"h\xFC"
                                "fte",
                                "\xE2\x82", "\xC3", "\x80", "\xC0\xAF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                                "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x28\xA1"}) {
    CAPTURE(bad);
    CHECK(contains(message_of<terse::usage_error>([&] { Layout{}.add({bad, {1}}); }), "not UTF-8"));
  }
}

TEST_CASE("a range refuses pieces out of order, overlapping, or off the alignment") {
  CHECK_NOTHROW(Range({{0, 0, 64}, {1, 64, 1}, {2, 128, 0}, {3, 128, 5}}));
  const auto message = [](std::vector<Piece> pieces) {
    return message_of<terse::usage_error>([&] { Range{pieces}; });
  };
  CHECK(contains(message({{0, 0, 65}, {1, 64, 1}}), "starts at 64"));
  CHECK(contains(message({{0, 128, 1}, {1, 0, 1}}), "starts at 0"));
  CHECK(contains(message({{0, 32, 1}}), "starts at 32"));
  CHECK(contains(message({{0, 64, -1}}), "starts at 64"));
  CHECK(contains(message({{0, -64, 1}}), "starts at -64"));
}

TEST_CASE("the parts of a cut cover the range once, in order, at multiples of 64, and are even") {
  const std::vector<std::vector<index_t>> shapes{{0},
                                                 {1},
                                                 {7},
                                                 {8},
                                                 {9},
                                                 {63},
                                                 {64},
                                                 {65},
                                                 {1000},
                                                 {4095},
                                                 {4097},
                                                 {1, 1, 1},
                                                 {65, 0, 4095},
                                                 {1000, 7, 64, 63, 9},
                                                 {1, 4097, 1, 8, 1000},
                                                 {4095, 4097, 63, 0, 65, 1000},
                                                 {0, 0},
                                                 {64, 64, 64, 64},
                                                 {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  for (const std::vector<index_t>& counts : shapes)
    for (const int parts : {1, 2, 3, 4, 7, 8}) {
      const Range range = layout_of(counts).range();
      const std::vector<Range> cuts = range.cut(parts);
      CAPTURE(counts.size());
      CAPTURE(counts[0]);
      CAPTURE(parts);
      REQUIRE(cuts.size() == static_cast<std::size_t>(parts));

      std::vector<index_t> covered;
      index_t done = 0;
      for (int part = 0; part < parts; ++part) {
        const Range& cut = cuts[static_cast<std::size_t>(part)];
        for (const index_t i : elements_of(cut)) covered.push_back(i);
        done += cut.elements();
        CHECK(done == documented_end(counts, parts, part));
        for (const Piece& piece : cut.pieces()) {
          CHECK(piece.offset % 64 == 0);
          CHECK(piece.count > 0);
          const auto whole = std::find_if(range.pieces().begin(), range.pieces().end(),
                                          [&](const Piece& other) { return other.segment == piece.segment; });
          REQUIRE(whole != range.pieces().end());
          CHECK(piece.offset >= whole->offset);
          CHECK(piece.offset + piece.count <= whole->offset + whole->count);
        }
      }
      CHECK(covered == elements_of(range));

      for (const Range& a : cuts)
        for (const Range& b : cuts) {
          const auto touched =
              static_cast<index_t>(std::max<std::size_t>(1, std::max(a.pieces().size(), b.pieces().size())));
          CHECK(a.elements() - b.elements() < 2 * terse::alignment * touched);
        }
    }
}

TEST_CASE("a cut of a cut covers it, too") {
  const Range range = layout_of({1000, 65, 4097}).range();
  for (const Range& part : range.cut(3)) {
    std::vector<index_t> covered;
    for (const Range& piece : part.cut(4))
      for (const index_t i : elements_of(piece)) covered.push_back(i);
    CHECK(covered == elements_of(part));
  }
}

TEST_CASE("buckets are runs of whole segments of the wanted size") {
  const Layout layout = layout_of({10, 20, 30, 5, 100, 1});
  const auto segments = [](const Range& range) {
    std::vector<index_t> list;
    for (const Piece& piece : range.pieces()) list.push_back(piece.segment);
    return list;
  };
  const std::vector<Range> buckets = layout.buckets(30);
  REQUIRE(buckets.size() == 4);
  CHECK(segments(buckets[0]) == std::vector<index_t>{0, 1});
  CHECK(segments(buckets[1]) == std::vector<index_t>{2});
  CHECK(segments(buckets[2]) == std::vector<index_t>{3, 4});
  CHECK(segments(buckets[3]) == std::vector<index_t>{5});
  CHECK(layout.buckets(1).size() == 6);
  CHECK(layout.buckets(1000).size() == 1);
  CHECK(layout.buckets(1000)[0].elements() == 166);
  CHECK(Layout{}.buckets(1).empty());
}

TEST_CASE("a filter keeps the pieces whose segments are compressed, or are not") {
  Layout layout;
  layout.add({"a", {10}}).add({"b", {100}, 1, 1, false}).add({"c", {7}});
  const Range compressed = layout.filter(layout.range(), true);
  const Range dense = layout.filter(layout.range(), false);
  REQUIRE(compressed.pieces().size() == 2);
  CHECK(compressed.pieces()[0].segment == 0);
  CHECK(compressed.pieces()[1].segment == 2);
  REQUIRE(dense.pieces().size() == 1);
  CHECK(dense.pieces()[0].segment == 1);
  CHECK(dense.elements() == 100);
}

TEST_CASE("the type of a view says what it is made of") {
  using host = terse::memory::host;
  using device = terse::memory::device;
  using terse::view;
  using vector = std::vector<float>;
  static_assert(std::is_convertible_v<vector&, view<float>>);
  static_assert(std::is_convertible_v<vector&, view<const float>>);
  static_assert(std::is_convertible_v<const vector&, view<const float>>);
  static_assert(!std::is_convertible_v<const vector&, view<float>>);
  static_assert(std::is_convertible_v<std::span<float>, view<float>>);
  static_assert(std::is_convertible_v<std::span<const float>, view<const float>>);
  static_assert(!std::is_convertible_v<std::span<const float>, view<float>>);
  static_assert(std::is_convertible_v<std::array<float, 3>&, view<float>>);
  static_assert(!std::is_convertible_v<std::vector<double>&, view<float>>);
  static_assert(!std::is_convertible_v<std::vector<double>&, view<const float>>);
  static_assert(!std::is_convertible_v<float*, view<float>>);

  static_assert(std::is_convertible_v<view<float, host>, view<const float, host>>);
  static_assert(std::is_convertible_v<view<float, device>, view<const float, device>>);
  static_assert(!std::is_convertible_v<view<const float, host>, view<float, host>>);
  static_assert(!std::is_convertible_v<view<const float, device>, view<float, device>>);
  static_assert(!std::is_constructible_v<view<float, host>, view<float, device>>);
  static_assert(!std::is_constructible_v<view<const float, host>, view<float, device>>);
  static_assert(!std::is_constructible_v<view<const float, host>, view<const float, device>>);
  static_assert(!std::is_constructible_v<view<float, device>, view<float, host>>);
  static_assert(!std::is_constructible_v<view<const float, device>, view<float, host>>);
  static_assert(!std::is_constructible_v<view<float, device>, std::vector<float>&>);
  static_assert(!std::is_constructible_v<view<const float, device>, const std::vector<float>&>);
  static_assert(!std::is_constructible_v<view<const double>, view<float>>);

  static_assert(std::ranges::contiguous_range<view<float>>);
  static_assert(!std::ranges::range<view<float, device>>);

  using terse::buffer;
  static_assert(std::is_convertible_v<buffer<float>&, view<float>>);
  static_assert(std::is_convertible_v<const buffer<float>&, view<const float>>);
  static_assert(!std::is_convertible_v<const buffer<float>&, view<float>>);
  static_assert(!std::is_convertible_v<buffer<float>&, view<float, device>>);
  static_assert(!std::is_copy_constructible_v<buffer<float>> && !std::is_copy_assignable_v<buffer<float>>);
  static_assert(std::is_nothrow_move_constructible_v<buffer<float>>);
  static_assert(std::is_nothrow_move_assignable_v<buffer<float>>);
}

TEST_CASE("a view reads and writes the memory it was made of") {
  std::vector<float> values{1, 2, 3, 4, 5};
  const terse::view<float> all = values;
  CHECK(all.size() == 5);
  CHECK(all.data() == values.data());
  all[1] = 20;
  CHECK(values[1] == 20);
  const terse::view<float> part = all.part(1, 3);
  CHECK(part.size() == 3);
  CHECK(part[0] == 20);
  CHECK(part[2] == 4);
  float sum = 0;
  for (const float value : part) sum += value;
  CHECK(sum == 27);
  CHECK(terse::view<float>{}.empty());
  CHECK_FALSE(all.empty());
  const terse::view<const float> reading = all;
  CHECK(reading.data() == values.data());
}

TEST_CASE("a buffer starts at a cache line and holds zeros") {
  for (const index_t size : {1, 15, 16, 17, 1000}) {
    CAPTURE(size);
    for (int round = 0; round < 4; ++round) {
      // The allocator is likely to hand the dirty memory out again.
      terse::buffer<std::uint32_t> buffer(size);
      CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
      CHECK(buffer.size() == size);
      CHECK(std::count(buffer.data(), buffer.data() + size, 0U) == size);
      std::fill(buffer.data(), buffer.data() + size, 0xFFFFFFFFU);
    }
  }
  terse::buffer<float> empty(0);
  CHECK(empty.size() == 0);
  CHECK(empty.all().empty());
}

TEST_CASE("a buffer hands its memory on when it moves") {
  terse::buffer<float> first(3);
  first[2] = 7;
  const float* const place = first.data();
  terse::buffer<float> second(std::move(first));
  CHECK(second.data() == place);
  CHECK(second[2] == 7);
  CHECK(first.size() == 0);  // NOLINT: moved from on purpose
  CHECK(first.data() == nullptr);
  terse::buffer<float> third(8);
  third = std::move(second);
  CHECK(third.data() == place);
  CHECK(third.size() == 3);
  const terse::buffer<float>& constant = third;
  CHECK(constant.all()[2] == 7);
}

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
  using Words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t ones = 0xFFFFFFFF;
  CHECK(terse::detail::philox4x32({0, 0, 0, 0}, {0, 0}) ==
        Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(terse::detail::philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  constexpr Words pi =
      terse::detail::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  static_assert(pi == Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("streams of other seeds, ranks, steps and purposes share no block") {
  std::set<std::array<std::uint32_t, 4>> blocks;
  std::size_t streams = 0;
  const auto add = [&](const Draw& draw) {
    ++streams;
    for (const std::uint64_t block : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
      blocks.insert(draw.block(block));
  };
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
    for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
      for (const Purpose purpose :
           {Purpose::quantization, Purpose::selection, Purpose::matching, Purpose::shuffle, Purpose::user}) {
        add(Draw::shared(seed, step, purpose));
        for (const int rank : {0, 1, 2, 255}) add(Draw::local(seed, rank, step, purpose));
      }
  CHECK(streams == 225);
  CHECK(blocks.size() == 3 * streams);
}

TEST_CASE("a stream is a function of its coordinates") {
  constexpr Draw draw = Draw::local(42, 3, 7, Purpose::user);
  CHECK(draw.block(5) == Draw::local(42, 3, 7, Purpose::user).block(5));
  CHECK(Draw::shared(42, 7, Purpose::shuffle).bits(9) == Draw::shared(42, 7, Purpose::shuffle).bits(9));
  for (std::uint64_t block = 0; block < 4; ++block) {
    const auto words = draw.block(block);
    CHECK(draw.bits(2 * block) == (words[0] | std::uint64_t{words[1]} << 32));
    CHECK(draw.bits(2 * block + 1) == (words[2] | std::uint64_t{words[3]} << 32));
  }
}

TEST_CASE("below stays below and reaches every value") {
  const Draw draw = Draw::shared(1, 2, Purpose::shuffle);
  for (const std::uint64_t bound : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{10},
                                    std::uint64_t{60000}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    CAPTURE(bound);
    std::uint64_t largest = 0;
    for (std::uint64_t index = 0; index < 1000; ++index) {
      const std::uint64_t value = draw.below(bound, index);
      CHECK(value < bound);
      largest = std::max(largest, value);
    }
    CHECK(largest >= bound - bound / 50 - 1);
  }
  std::array<int, 10> seen{};
  for (std::uint64_t index = 0; index < 10000; ++index) ++seen[draw.below(10, index)];
  for (const int times : seen) {
    CHECK(times > 850);  // five standard deviations
    CHECK(times < 1150);
  }
}

TEST_CASE("a packet header stands in memory as documented") {
  terse::PacketHeader header;
  header.flags = 0x0201;
  header.step = 0x1122334455667788;
  header.length = 0x99;
  header.check = 0xAABBCCDDEEFF0011;
  std::array<unsigned char, 32> bytes{};
  static_assert(sizeof header == sizeof bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  const std::array<unsigned char, 32> expected{'4',  'T',  'R',  'S',  3,    0,    0x01, 0x02,  //
                                               0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  //
                                               0x99, 0,    0,    0,    0,    0,    0,    0,     //
                                               0x11, 0x00, 0xFF, 0xEE, 0xDD, 0xCC, 0xBB, 0xAA};
  CHECK(bytes == expected);
}

TEST_CASE("a packet with a wrong field is refused by the field's name") {
  terse::PacketHeader good;
  good.step = 17;
  good.length = 96;
  good.check = terse::detail::check_with_flags(1234, 3);
  good.flags = 3;
  const auto read = [](const terse::PacketHeader& header) {
    std::array<std::byte, sizeof header> bytes{};
    std::memcpy(bytes.data(), &header, sizeof header);
    return terse::detail::read_header(bytes.data(), {96, 96, 17, 1234}, 5, 2);
  };
  CHECK(read(good).flags == 3);

  const auto refused = [&](auto change) {
    terse::PacketHeader header = good;
    change(header);
    try {
      read(header);
    } catch (const terse::wire_error& failure) {
      CHECK(failure.rank() == 2);
      CHECK(failure.step() == 17);
      CHECK(contains(failure.what(), "the packet from rank 5"));
      return std::string(failure.what());
    }
    return std::string();
  };
  CHECK(contains(refused([](auto& header) { header.magic ^= 1; }),
                 "has magic 1397904437, expected 1397904436"));
  CHECK(contains(refused([](auto& header) { header.version = 1; }), "has wire version 1, expected 3"));
  CHECK(contains(refused([](auto& header) { header.step = 18; }), "has step 18, expected 17"));
  CHECK(contains(refused([](auto& header) { header.length = 95; }), "has length 95, expected 96"));
  CHECK(contains(refused([](auto& header) { header.check = 1235; }), "belongs to another exchange"));
  // Flags name a rank, so that one of their bits must not change without a word.
  for (int bit = 0; bit < 16; ++bit) {
    const auto flip = [&](auto& header) {
      header.flags = static_cast<std::uint16_t>(header.flags ^ 1 << bit);
    };
    CHECK(contains(refused(flip), "the packet was damaged on its way"));
    CHECK(contains(refused([&](auto& header) { header.flags = 0, header.check = 1234, flip(header); }),
                   "was damaged on its way: its flags don't match its check"));
  }
}

TEST_CASE("a fault of a packet that was handed on names who made it and who brought it, if both are known") {
  const auto said = [](int from) {
    try {
      terse::detail::refuse({terse::detail::PacketFault::step, 4, 5}, "", 5, 2, 0, from);
    } catch (const terse::wire_error& failure) {
      return std::string(failure.what());
    }
    return std::string();
  };
  CHECK(said(1) ==
        "terse: rank 0, step 5: the packet from rank 2, received from rank 1, has step 4, expected 5");
  for (const int from : {-1, 2})
    CHECK(said(from) == "terse: rank 0, step 5: the packet from rank 2 has step 4, expected 5");
}

TEST_CASE("an error says who reports it and when") {
  using terse::error;
  CHECK(std::string(error("late", 2, 17).what()) == "terse: rank 2, step 17: late");
  CHECK(std::string(error("late", 2).what()) == "terse: rank 2: late");
  CHECK(std::string(error("late", -1, 17).what()) == "terse: step 17: late");
  CHECK(std::string(error("late").what()) == "terse: late");
  CHECK(std::string(error("late", 0, 0).what()) == "terse: rank 0, step 0: late");
  CHECK(error("late").rank() == -1);
  CHECK(error("late").step() == -1);

  const terse::peer_error peer("gone", 3, 1, 9);
  CHECK(peer.culprit() == 3);
  CHECK(peer.rank() == 1);
  CHECK(peer.step() == 9);
  CHECK(std::string(peer.what()) == "terse: rank 1, step 9: gone");
  const terse::non_finite_error gradient("NaN", 4, 0, 8);
  CHECK(gradient.culprit() == 4);
  CHECK(std::string(gradient.what()) == "terse: rank 0, step 8: NaN");

  static_assert(std::is_base_of_v<std::runtime_error, error>);
  static_assert(std::is_base_of_v<error, terse::usage_error> && std::is_base_of_v<error, terse::peer_error>);
  static_assert(std::is_base_of_v<error, terse::mismatch_error> &&
                std::is_base_of_v<error, terse::wire_error>);
  static_assert(std::is_base_of_v<error, terse::non_finite_error> &&
                std::is_base_of_v<error, terse::checkpoint_error>);
}

TEST_CASE("type names and the version read as people write them") {
  CHECK(terse::type_name<terse::Layout>() == "terse::Layout");
  CHECK(terse::type_name<int>() == "int");
  // As checkpoints have them.
  CHECK(terse::type_name<terse::NoErrorFeedback>() == "terse::None");
  CHECK(terse::type_name<terse::Natural<>>() == "terse::Packed<terse::NaturalPowers, terse::PerSegment>");
  CHECK(terse::type_name<terse::IsSmallerThan<9>>() == "terse::Below<9l>");
  CHECK(terse::type_name<terse::Threshold<>>() ==
        "terse::Sparse<terse::Above, terse::Dense, terse::PerSegment>");
  CHECK(terse::type_name<terse::Ef21>() == "terse::Difference");
  CHECK(terse::type_name<terse::Streaming>() == "terse::Fragments");
  CHECK(terse::type_name<terse::Ef21Kept>() == "terse::Ef21Kept");
  CHECK(terse::type_name<my_terse::Ef21<terse::Ef21K, terse::Ef21>>() ==
        "my_terse::Ef21<terse::Ef21K, terse::Difference>");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  static_assert(std::is_same_v<terse::None, terse::NoErrorFeedback>);
  static_assert(std::is_same_v<terse::Above, terse::AboveThreshold>);
  static_assert(std::is_same_v<terse::Below<9>, terse::IsSmallerThan<9>>);
  static_assert(std::is_same_v<terse::Difference, terse::Ef21>);
  static_assert(std::is_same_v<terse::Controlled, terse::ErrorControl>);
  static_assert(std::is_same_v<terse::Dropping<terse::Sign>, terse::DropQuantizationError<terse::Sign>>);
  static_assert(std::is_same_v<terse::OverSenders<terse::TopK<>>, terse::MeanOverSenders<terse::TopK<>>>);
  static_assert(std::is_same_v<terse::OnHidden<terse::HeavyBall, terse::NoMomentum>,
                               terse::ForHiddenMatrices<terse::HeavyBall, terse::NoMomentum>>);
  static_assert(std::is_same_v<terse::AllAtOnce, terse::Synchronous>);
  static_assert(std::is_same_v<terse::OnePeriodLate, terse::Overlapped>);
  static_assert(std::is_same_v<terse::Fragments, terse::Streaming>);
  static_assert(std::is_same_v<decltype(terse::unwritten), decltype(terse::uninitialized)>);
#pragma GCC diagnostic pop
  static_assert(TERSE_VERSION ==
                10000 * TERSE_VERSION_MAJOR + 100 * TERSE_VERSION_MINOR + TERSE_VERSION_PATCH);
}
