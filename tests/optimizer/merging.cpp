// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support.hpp"
#include "terse/compressor/mean_over_senders.hpp"
#include "terse/device.hpp"
#include "terse/device/emulated.hpp"
#include "terse/topology/median_clip.hpp"
#include "terse/topology/radial.hpp"
#include "terse/transport/through_host.hpp"

// What becomes of packets that are merged by another rule than their mean, against oracles in double, one exchange at a time: on the
// host, and on the emulated device with the same bits.

using namespace terse;
using namespace terse::test;

namespace {

using Device = executor::emulated;
using Messages = std::vector<Floats>;  // [rank]

/// Compressed and not, with edges of blocks, nothing and one element.
Layout layers() {
  Layout layout;
  layout.add({"matrix", {20, 37}}).add({"none", {0}}).add({"vector", {300}});
  layout.add({"bias", {65}, 1, 0, false}).add({"embedding", {9, 31}}).add({"one", {1}});
  return layout;
}
/// Of sizes that differ by rank.
Messages some_messages(int ranks, const Layout& layout) {
  Messages messages(at(ranks), Floats(at(layout.size())));
  for (int rank = 0; rank < ranks; ++rank)
    each(
        layout, [](const Segment&) { return true; },
        [&](std::size_t i) {
          const auto k = static_cast<index_t>(i);
          messages[at(rank)][i] =
              static_cast<float>(1 + rank * rank) * (noise(5, 0, 1, k) + noise(6, rank, 1, k));
        });
  return messages;
}

struct Said {
  const float* x;
  float operator()(const Piece&, index_t i) const { return x[i]; }
};
struct Heard {
  float* x;
  void operator()(const Piece&, index_t i, float mean) const { x[i] = mean; }
};

/// One round on this executor: what a rank hears.
template <Executor E, class C, class F, class P, class T>
Floats exchanged(T& transport, const Layout& layout, const Floats& message, const C& compressor,
                 const P& topology) {
  Channel channel(transport);
  Exchange<C, F, P, E> exchange(E{}, channel, layout, layout.range(), compressor, F{}, false, topology);
  buffer<float, typename E::memory> x(layout.size()), mean(layout.size());
  upload(view<const float>(message), x.all());
  const Said said{x.data()};
  const Heard heard{mean.data()};
  const StepScalars first{.step = 1};
  buffer<StepScalars, typename E::memory> now(1);
  upload(view<const StepScalars>(&first, 1), now.all());
  const StepContext context{.step = 1, .seed = 3, .now = now.data()};
  exchange.mix(context, {}, Message{said, said}, Message{heard, heard});
  exchange.settle(context);
  Floats result(at(layout.size()));
  download(view<const float, typename E::memory>(mean.all()), view<float>(result));
  return result;
}

/// What all ranks hear on the host, and, of three ranks, with the same bits on the device. `weights`, where given, one for each
/// rank.
template <class C = Dense, class P>
Floats merged(const Messages& messages, const P& recipe, const Layout& layout, const C& compressor = {},
              const std::vector<double>& weights = {}) {
  using F = std::conditional_t<C::lossless, NoErrorFeedback, Residual>;
  const int ranks = static_cast<int>(messages.size());
  Messages host(messages.size()), device(messages.size());
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    const std::size_t rank = at(transport.rank());
    P topology = recipe;
    if constexpr (requires { topology.weight; })
      if (!weights.empty()) topology.weight = &weights[rank];
    host[rank] = exchanged<executor::host, C, F>(transport, layout, messages[rank], compressor, topology);
    if (ranks != 3) return;
    ThroughHost<Threads, Device> staged(transport.split(0, transport.rank()), Device{});
    device[rank] = exchanged<Device, C, F>(staged, layout, messages[rank], compressor, topology);
  });
  for (const Floats& heard : host) CHECK(heard == host[0]);
  if (ranks == 3)
    for (const Floats& heard : device) CHECK(heard == host[0]);
  return host[0];
}

double norm_of(const Floats& x) {
  double square = 0;
  for (const float value : x) square += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(square);
}
Floats scaled(Floats x, float by) {
  for (float& value : x) value *= by;
  return x;
}
using Doubles = std::vector<double>;
/// sum_i weights_i x_i
Doubles sum_of(const Messages& messages, const Doubles& weights) {
  Doubles sum(messages[0].size());
  for (std::size_t rank = 0; rank < messages.size(); ++rank)
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] += weights[rank] * static_cast<double>(messages[rank][i]);
  return sum;
}
bool any_one(const Segment&) { return true; }
double off(const Layout& layout, const Floats& ours, const Doubles& oracle) {
  return relative_error(layout, ours, oracle, any_one);
}

/// The radial merge, from its definition.
Doubles radial(const Messages& messages, const Layout& layout, const Doubles& weights,
               bool plain_embeddings) {
  Doubles result(messages[0].size());
  double all = 0;
  for (const double weight : weights) all += weight;
  for (const Segment& segment : layout.segments()) {
    const std::size_t first = at(segment.offset), count = at(segment.count);
    Doubles direction(count);
    double length = 0, own = 0;
    for (std::size_t rank = 0; rank < messages.size(); ++rank) {
      double norm = 0;
      for (std::size_t i = 0; i < count; ++i)
        norm = std::hypot(norm, static_cast<double>(messages[rank][first + i]));
      length += weights[rank] * norm / all;
      const bool plain = plain_embeddings && segment.name == "embedding";
      for (std::size_t i = 0; i < count; ++i)
        if (norm > 0)
          direction[i] +=
              weights[rank] * static_cast<double>(messages[rank][first + i]) / (plain ? all : norm);
    }
    for (const double value : direction) own = std::hypot(own, value);
    if (plain_embeddings && segment.name == "embedding") length = own;
    for (std::size_t i = 0; i < count; ++i) result[first + i] = own > 0 ? length * direction[i] / own : 0;
  }
  return result;
}

TEST_CASE(
    "without weights a weighted mean is AllGather, bit by bit, and so are others where nothing is to do") {
  const Layout layout = layers();
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    const Messages messages = some_messages(ranks, layout);
    const Floats mean = merged(messages, AllGather{}, layout);
    CHECK(merged(messages, Gathered<WeightedMean>{}, layout) == mean);
    CHECK(merged(messages, Gathered<WeightedMean>{}, layout, Dense{}, Doubles(at(ranks), 512)) == mean);
    // Norms that are all the same, of messages that aren't.
    Messages turned(at(ranks), messages[0]);
    for (std::size_t rank = 0; rank < turned.size(); ++rank) {
      const Segment& vector = layout.segments()[2];
      for (index_t i = 0; i < vector.count / 2; ++i)
        if (rank % 2 == 1) turned[rank][at(vector.offset + i)] *= -1;
    }
    CHECK(merged(turned, Gathered<MedianClip>{}, layout) == merged(turned, AllGather{}, layout));
  }
}

TEST_CASE("ranks count by their weights") {
  const Layout layout = layers();
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    const Messages messages = some_messages(ranks, layout);
    Doubles weights;
    for (int rank = 0; rank < ranks; ++rank) weights.push_back(rank == 1 ? 0 : 1000 + 77 * rank);
    double all = 0;
    for (const double weight : weights) all += weight;
    Doubles shares = weights;
    for (double& share : shares) share /= all;
    const Floats ours = merged(messages, Gathered<WeightedMean>{}, layout, Dense{}, weights);
    CHECK(off(layout, ours, sum_of(messages, shares)) < 1e-6);
    // Weights beyond fp32's range, too.
    Doubles huge = weights;
    for (double& weight : huge) weight *= 0x1p200;
    CHECK(merged(messages, Gathered<WeightedMean>{}, layout, Dense{}, huge) == ours);
    // Packets whose size varies have their weights in front.
    using Above = Threshold<>;
    const Above everything{.selection = {.threshold = 1e-30F, .most_ratio = 1}};
    CHECK(off(layout, merged(messages, Gathered<WeightedMean>{}, layout, everything, weights),
              sum_of(messages, shares)) < 1e-6);
    const Floats round = merged(messages, Gathered<Radial<>>{}, layout, Dense{}, weights);
    CHECK(off(layout, round, radial(messages, layout, weights, false)) < 1e-5);
  }
}

TEST_CASE("packets are clipped to the median of their norms") {
  const Layout layout = layers();
  for (const int ranks : {1, 2, 3, 4, 5}) {
    CAPTURE(ranks);
    Messages messages = some_messages(ranks, layout);
    if (ranks == 4) messages[2].assign(messages[2].size(), 0.0F);
    const auto oracle = [&](const Messages& read, const Doubles& weights) {
      Doubles norms, sorted, factors;
      double all = 0;
      for (std::size_t rank = 0; rank < read.size(); ++rank) {
        norms.push_back(norm_of(read[rank]));
        if (norms.back() > 0) sorted.push_back(norms.back());
        all += weights[rank];
      }
      std::sort(sorted.begin(), sorted.end());
      const double median = sorted[(sorted.size() - 1) / 2];
      for (std::size_t rank = 0; rank < read.size(); ++rank)
        factors.push_back(norms[rank] > 0 ? weights[rank] / all * std::min(1.0, median / norms[rank]) : 0);
      return sum_of(read, factors);
    };
    const Doubles alike(at(ranks), 1);
    CHECK(off(layout, merged(messages, Gathered<MedianClip>{}, layout), oracle(messages, alike)) < 1e-5);
    Doubles weights;
    for (int rank = 0; rank < ranks; ++rank) weights.push_back(1 + rank);
    CHECK(off(layout, merged(messages, Gathered<MedianClip>{}, layout, Dense{}, weights),
              oracle(messages, weights)) < 1e-5);
    // What receivers read counts, not what was meant: signs with the mean magnitude.
    using Signs = ScaledSign<MeanAbs>;
    Messages read = messages;
    for (Floats& one : read)
      for (const Segment& segment : layout.segments()) {
        if (!segment.compress) continue;
        double sum = 0;
        const std::size_t first = at(segment.offset), end = first + at(segment.count);
        for (std::size_t i = first; i < end; ++i) sum += std::abs(static_cast<double>(one[i]));
        const auto scale = static_cast<float>(sum / static_cast<double>(std::max<index_t>(segment.count, 1)));
        for (std::size_t i = first; i < end; ++i) one[i] = one[i] < 0 ? -scale : scale;
      }
    CHECK(off(layout, merged(messages, Gathered<MedianClip>{}, layout, Signs{}), oracle(read, alike)) < 1e-4);
  }
}

TEST_CASE("a rank that sends anything moves no one by more than the median") {
  const Layout layout = layers();
  Messages messages = some_messages(3, layout);
  const double usual = std::max(norm_of(messages[0]), norm_of(messages[1]));
  for (const float size : {1e3F, 1e12F, 1e17F}) {
    messages[2] = scaled(some_messages(3, layout)[2], size);
    const Floats ours = merged(messages, Gathered<MedianClip>{}, layout);
    CHECK(norm_of(ours) <= usual * (1 + 1e-6));
    CHECK(norm_of(ours) > 0);
  }
  // A packet whose square is no float counts as 0, on all ranks.
  messages[2].assign(messages[2].size(), 0.0F);
  std::fill_n(messages[2].begin(), 700, 0x1p62F);
  const TopK<> all{.selection = {.ratio = 1}};
  CHECK(off(layout, merged(messages, Gathered<MedianClip>{}, layout, all),
            sum_of(messages, {1.0 / 3, norm_of(messages[0]) / norm_of(messages[1]) / 3, 0})) < 1e-5);
}

TEST_CASE("norms and directions are averaged apart") {
  const Layout layout = layers();
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    const Messages messages = some_messages(ranks, layout);
    const Doubles alike(at(ranks), 1);
    CHECK(off(layout, merged(messages, Gathered<Radial<>>{}, layout),
              radial(messages, layout, alike, false)) < 1e-5);
    CHECK(off(layout, merged(messages, Gathered<Radial<Named<"emb*">>>{}, layout),
              radial(messages, layout, alike, true)) < 1e-5);
    // Whatever the packets.
    CHECK(off(layout, merged(messages, Gathered<Radial<>>{}, layout, TopK<>{.selection = {.ratio = 1}}),
              radial(messages, layout, alike, false)) < 1e-5);
    // The same from all is what they say.
    const Doubles same = sum_of({messages[0]}, {1});
    CHECK(off(layout, merged(Messages(at(ranks), messages[0]), Gathered<Radial<>>{}, layout), same) < 1e-6);
  }
}

TEST_CASE(
    "of W orthogonal messages of one length the radial merge is sqrt(W) times the mean, and 0 of nothing") {
  const Layout layout = layers();
  for (const int ranks : {2, 3, 4}) {
    Messages messages(at(ranks), Floats(at(layout.size())));
    const Segment& vector = layout.segments()[2];
    for (int rank = 0; rank < ranks; ++rank)
      for (index_t i = rank; i < 4 * ranks; i += ranks)
        messages[at(rank)][at(vector.offset + i)] = noise(1, 0, 0, i / ranks);
    const Doubles wanted = sum_of(messages, Doubles(at(ranks), 1 / std::sqrt(static_cast<double>(ranks))));
    const Floats ours = merged(messages, Gathered<Radial<>>{}, layout);
    CHECK(off(layout, ours, wanted) < 1e-6);
    // All other segments are nothing but zeros.
    each(
        layout, [](const Segment& segment) { return segment.name != "vector"; },
        [&](std::size_t i) { REQUIRE(ours[i] == 0); });
    // Directions that cancel out, of lengths that differ.
    Messages against{messages[0], scaled(messages[0], -4)};
    for (const float value : merged(against, Gathered<Radial<>>{}, layout)) REQUIRE(value == 0);
  }
}

TEST_CASE("an element is averaged over its senders") {
  const Layout layout = layers();
  for (const int ranks : {1, 2, 5}) {
    CAPTURE(ranks);
    const Messages messages = some_messages(ranks, layout);
    const auto over_senders = [&](const auto& picks) {
      Doubles wanted = sum_of(messages, Doubles(at(ranks), 1.0 / ranks)), senders(wanted.size());
      each(
          layout, [](const Segment& segment) { return segment.compress; },
          [&](std::size_t i) {
            double sum = 0, count = 0;
            for (int rank = 0; rank < ranks; ++rank)
              if (picks(messages[at(rank)][i])) {
                sum += static_cast<double>(messages[at(rank)][i]);
                ++count;
              }
            wanted[i] = count > 0 ? sum / count : 0;
          });
      return wanted;
    };
    // Large enough to have picks of all, some and no ranks.
    const MeanOverSenders<Threshold<>> some{{.selection = {.threshold = 1, .most_ratio = 1}}};
    const Doubles wanted = over_senders([](float x) { return std::abs(x) >= 1; });
    CHECK(off(layout, merged(messages, AllGather{}, layout, some), wanted) < 1e-6);
    CHECK(off(layout, merged(messages, Gathered<WeightedMean>{}, layout, some), wanted) < 1e-6);
    // All pick alike: the mean, bit by bit. Zeros that are picked count, too.
    Messages alike = messages;
    alike[0].assign(alike[0].size(), 0.0F);
    const auto check_alike = [&](const auto& compressor) {
      using C = std::remove_cvref_t<decltype(compressor)>;
      CHECK(merged(alike, AllGather{}, layout, MeanOverSenders<C>{compressor}) ==
            merged(alike, AllGather{}, layout, compressor));
    };
    check_alike(TopK<>{.selection = {.ratio = 1}});
    check_alike(RandomK{.selection = {.ratio = 0.3}});
    check_alike(Tiles<16>{.inner = {.selection = {.ratio = 1}}});
    check_alike(Dct<16>{.inner = {.selection = {.ratio = 1}}});
  }
}

TEST_CASE("senders' means on host and device have the same bits, of all kinds of picks") {
  Layout layout;
  layout.add({"matrix", {20, 17}}).add({"vector", {70}}).add({"bias", {5}, 1, 0, false});
  const Messages messages = some_messages(3, layout);
  const auto check = [&](const auto& compressor) {
    using C = std::remove_cvref_t<decltype(compressor)>;
    const MeanOverSenders<C> over{compressor};
    merged(messages, Gathered<MedianClip>{}, layout, over, {1, 2, 3});
  };
  check(Sparse<Largest, ScaledSign<MeanAbs>, PerSegment>{.selection = {.ratio = 0.1}});
  check(Dct<16>{.inner = {.selection = {.ratio = 0.1}}});
  check(Tiles<16, Threshold<>>{.inner = {.selection = {.threshold = 1}}});
}

TEST_CASE("weights that are none are errors, and so is nothing but zeros") {
  const Layout layout = layers();
  const auto ends = [&](const std::vector<double>& weights) {
    std::array<std::string, 2> said;
    ThreadGroup(2, std::chrono::seconds(2)).run([&](Threads& transport) {
      const std::size_t rank = at(transport.rank());
      Gathered<Radial<>> topology{.weight = &weights[rank]};
      try {
        exchanged<executor::host, Dense, NoErrorFeedback>(transport, layout, Floats(at(layout.size()), 1.0F),
                                                          Dense{}, topology);
      } catch (const usage_error& failure) {
        said[rank] = failure.what();
      } catch (const peer_error&) {
        said[rank] = "alone";
      }
    });
    return said;
  };
  const auto zeros = ends({0, 0});
  for (const std::string& one : zeros)
    CHECK(one.find("messages of all ranks have a weight of 0") != one.npos);
  CHECK(ends({0, 1}) == std::array<std::string, 2>{});
  for (const double wrong :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const auto said = ends({1, wrong});
    CHECK(said[0] == "alone");
    CHECK(said[1].find("rank 1, step 1: the weight of this rank's message is") != said[1].npos);
  }
}

TEST_CASE("a weight that is none is refused before the error feedback has taken the message up") {
  const Layout layout = layers();
  const Floats message = some_messages(1, layout)[0];
  const Said said{message.data()};
  ThreadGroup(1).run([&](Threads& transport) {
    double weight = -1;
    Channel channel(transport);
    Exchange<Threshold<>, Residual, Gathered<WeightedMean>, executor::host> exchange(
        {}, channel, layout, layout.range(), {.selection = {.threshold = 1, .most_ratio = 1}}, {}, false,
        {.weight = &weight});
    const StepScalars first{.step = 1};
    const StepContext context{.step = 1, .seed = 3, .now = &first};
    Floats mean(message.size());
    const Heard heard{mean.data()};
    CHECK_THROWS_AS(exchange.mix(context, {}, Message{said, said}, Message{heard, heard}), usage_error);
    weight = 1;
    exchange.mix(context, {}, Message{said, said}, Message{heard, heard});
    each(
        layout, [](const Segment& segment) { return segment.compress; },
        [&](std::size_t i) { REQUIRE(mean[i] == (std::abs(message[i]) >= 1 ? message[i] : 0)); });
  });
}

TEST_CASE("after a weight that can't be, in a step that was opened, the step throws that error again") {
  const Layout layout = layers();
  std::vector<std::string> all(2);
  try {
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      const bool bad = transport.rank() == 1;
      double weight = bad ? -1 : 1;
      Optimizer optimizer{ErrorFeedbackSgd<Gathered<WeightedMean>>{.topology = {.weight = &weight}},
                          transport, layout};
      Floats x(at(layout.size())), g(x.size(), 1);
      optimizer.begin(x, g);
      try {
        for (index_t segment = 5; segment >= 0; --segment) optimizer.ready(segment);
      } catch (const usage_error& failure) {
        all[0] = failure.what();
        weight = 1;
      }
      try {
        optimizer.step(x, g);
      } catch (const usage_error& failure) {
        all[1] = failure.what();
        throw;
      }
    });
  } catch (const error&) {
  }
  CHECK(all[0].find("weight") != std::string::npos);
  CHECK(all[1] == all[0]);
}

TEST_CASE("steps that wait for norms or weights can't be recorded") {
  const double examples = 1;
  const RecordUse first{1, 1};
  CHECK(detail::unrecordable(first, Gathered<Radial<>>{}) == nullptr);
  CHECK(std::string(detail::unrecordable(first, Gathered<Radial<>>{.weight = &examples}))
            .find("a topology that waits for norms or weights") == 0);
  CHECK(detail::unrecordable(first, Gathered<MedianClip>{}) != nullptr);
}

}  // namespace
