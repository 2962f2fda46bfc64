// SPDX-License-Identifier: Apache-2.0
#include "terse/error_feedback/observed.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support.hpp"
#include "terse/device.hpp"
#include "terse/device/emulated.hpp"
#include "terse/error_feedback/ef21.hpp"
#include "terse/error_feedback/stored_residual.hpp"
#include "terse/laws/error_feedback.hpp"
#include "terse/optimizer/ef21_sgd.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/power_sgd.hpp"
#include "terse/transport/through_host.hpp"

// CompressionReport against norms in double, of messages that the test encodes and decodes by itself.

using namespace terse;
using namespace terse::test;
using Line = CompressionReport::Line;

namespace {

/// Chunks of two ranks are one segment each.
Layout halves() {
  Layout layout;
  layout.add({"first", {640}}).add({"second", {40, 16}});
  return layout;
}
Layout uneven() {
  Layout layout;
  layout.add({"w1", {33, 7}}).add({"bias", {65}, 1, 0, false}).add({"one", {1}}).add({"w2", {1000}});
  return layout;
}

struct FromArena {
  const float* x;
  float operator()(const Piece&, index_t i) const { return x[i]; }
};
struct IntoArena {
  float* x;
  void operator()(const Piece&, index_t i, bool, float sum) const { x[i] = sum; }
};

/// Returns what receivers decode from the packet of y, by a codec without any error.
template <class C>
Floats decoded(const C& compressor, const Layout& layout, const Floats& y, std::uint64_t step) {
  using E = executor::host;
  const Plan plan(compressor, layout, layout.range(), 1, false);
  Codec<C, Unchecked<NoErrorFeedback>, E> codec(E{}, compressor, {}, plan.whole);
  std::vector<std::byte> packet(at(plan.whole.bytes));
  const Message from{FromArena{y.data()}, FromArena{y.data()}};
  const Draw draw = Draw::shared(1, step, Purpose::quantization);
  codec.measure(plan.whole, {}, EmptyInbox{}, from);
  codec.encode(plan.whole, {}, EmptyInbox{}, from, {step, draw, draw}, true, packet.data());
  Inbox<C> inbox(1);
  inbox.add(compressor, plan.whole, packet.data(), draw);
  Floats values(y.size());
  for_each(E{}, plan.whole.compressed, NoMask{}, codec.arrived(plan.whole.compressed, inbox),
           IntoArena{values.data()});
  return values;
}

double dot(const Segment& segment, const Floats& a, const Floats& b) {
  double sum = 0;
  for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
    sum += static_cast<double>(a[at(i)]) * static_cast<double>(b[at(i)]);
  return sum;
}
/// ||a - b|| over a segment.
double distance(const Segment& segment, const Floats& a, const Floats& b) {
  double sum = 0;
  for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
    sum += std::pow(static_cast<double>(a[at(i)]) - static_cast<double>(b[at(i)]), 2);
  return std::sqrt(sum);
}
bool near(double ours, double expected) {
  return std::isnan(expected) ? std::isnan(ours) : std::abs(ours - expected) <= 1e-12 * std::abs(expected);
}

/// An error feedback in the test's own arrays: y = m + e, e' = y - C(y).
struct Oracle {
  Floats error, carried, value, sent;

  template <class C>
  void send(const C& compressor, const Layout& layout, const Floats& message, std::uint64_t step) {
    error.resize(message.size());
    carried = error;
    value = message;
    for (std::size_t i = 0; i < value.size(); ++i) value[i] += error[i];
    sent = decoded(compressor, layout, value, step);
    for (std::size_t i = 0; i < value.size(); ++i) error[i] = value[i] - sent[i];
  }
  void compare(const Segment& segment, const Line& line) const {
    CAPTURE(segment.name);
    const Floats zeros(value.size());
    CHECK(line.segment == segment.name);
    CHECK(line.elements == segment.count);
    CHECK(near(line.message, distance(segment, value, carried)));
    CHECK(near(line.carried, distance(segment, carried, zeros)));
    CHECK(near(line.value, distance(segment, value, zeros)));
    CHECK(near(line.sent, distance(segment, sent, zeros)));
    CHECK(near(line.error, distance(segment, value, sent)));
    const double both = dot(segment, value, carried) - dot(segment, carried, carried);
    const double cosine = both / (distance(segment, value, carried) * distance(segment, carried, zeros));
    // The numerator may cancel.
    if (std::isnan(cosine))
      CHECK(std::isnan(line.cosine));
    else
      CHECK(std::abs(line.cosine - cosine) < 1e-12);
  }
};

bool empty(const Line& line) {
  return line.elements == 0 && std::isnan(line.message) && std::isnan(line.carried) &&
         std::isnan(line.value) && std::isnan(line.sent) && std::isnan(line.error) && std::isnan(line.cosine);
}

/// Each rank's lines are those of its own messages, and updates are those of the parameters.
template <class C>
void compare_messages(const C& compressor) {
  using Recipe = ErrorFeedbackSgd<C, HeavyBall, AllGather, Observed<Residual>>;
  CAPTURE(type_name<C>());
  const Layout layout = uneven();
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    CompressionReport report(layout);
    Optimizer optimizer{Recipe{.compressor = compressor, .error_feedback = {{}, &report}}, transport, layout};
    Oracle oracle;
    Floats x = start(layout), before;
    for (std::uint64_t step = 1; step <= 6; ++step) {
      const Floats message = gradient(layout, transport.rank(), step, 0);
      optimizer.step(x, message);
      oracle.send(compressor, layout, message, step);
      if (step % 2 != 0) continue;  // the report is of the last step
      const std::vector<Line> lines = report.read(x);
      REQUIRE(lines.size() == layout.segments().size());
      for (std::size_t s = 0; s < lines.size(); ++s) {
        const Segment& segment = layout.segments()[s];
        CHECK(!lines[s].of_means);
        if (segment.compress)
          oracle.compare(segment, lines[s]);
        else
          CHECK(empty(lines[s]));
        CHECK(near(lines[s].update, before.empty() ? std::nan("") : distance(segment, x, before)));
      }
      before = x;
    }
    CHECK(empty(report.read()[0]));  // no step since
  });
}

/// The parameters of all steps, and a checkpoint's parts after them.
template <class R>
std::pair<Floats, std::map<std::string, std::vector<double>>> bits_of(R recipe, const Layout& layout) {
  std::pair<Floats, std::map<std::string, std::vector<double>>> shown;
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    CompressionReport report(layout);
    R mine = recipe;
    if constexpr (requires { mine.error_feedback.report; }) mine.error_feedback.report = &report;
    Optimizer optimizer{mine, transport, layout, masks_any()};
    Floats x = start(layout), all;
    for (std::uint64_t step = 1; step <= 8; ++step) {
      optimizer.step(x, gradient(layout, transport.rank(), step, 0));
      all.insert(all.end(), x.begin(), x.end());
      report.read(x);
    }
    Seen state;
    optimizer.walk(state);
    if (transport.rank() == 1) shown = {all, state.parts};
  });
  return shown;
}

}  // namespace

TEST_CASE("norms are those of messages that are encoded and decoded again") {
  compare_messages(ScaledSign<MeanAbs, PerSegment>{});
  compare_messages(Sign{});
  compare_messages(TopK<>{.selection = {.ratio = 0.05F}});
  compare_messages(Uniform<4, Nearest>{});
}

TEST_CASE("a chunk's owner reports the compression of the mean") {
  using C = ScaledSign<MeanAbs, PerSegment>;
  const Layout layout = halves();
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    CompressionReport report(layout);
    Optimizer optimizer{
        ErrorFeedbackSgd<C, HeavyBall, ScatterGather, Observed<Residual>>{.error_feedback = {{}, &report}},
        transport, layout};
    std::array<Oracle, 2> ranks;
    Oracle owner;
    Floats x = start(layout), mean(x.size());
    for (std::uint64_t step = 1; step <= 5; ++step) {
      optimizer.step(x, gradient(layout, transport.rank(), step, 0));
      for (int rank = 0; rank < 2; ++rank)
        ranks[at(rank)].send(C{}, layout, gradient(layout, rank, step, 0), step);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = (ranks[0].sent[i] + ranks[1].sent[i]) * 0.5F;
      owner.send(C{}, layout, mean, step);
      const std::vector<Line> lines = report.read(x);
      REQUIRE(lines.size() == 3);
      for (std::size_t s = 0; s < 2; ++s) ranks[at(transport.rank())].compare(layout.segments()[s], lines[s]);
      CHECK(lines[2].of_means);
      CHECK(std::isnan(lines[2].update));
      owner.compare(layout.segments()[at(transport.rank())], lines[2]);
    }
  });
}

TEST_CASE("full precision and exact rounds that start copies have no norms") {
  const Layout layout = uneven();
  ThreadGroup(1).run([&](Threads& transport) {
    CompressionReport report(layout);
    Optimizer optimizer{OneBitAdam<Observed<Residual>>{.preconditioner = {.freeze = AtStep{2}},
                                                       .error_feedback = {{}, &report}},
                        transport, layout, masks_any()};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 4; ++step) {
      optimizer.step(x, gradient(layout, 0, step, 0));
      CHECK(empty(report.read()[0]) == (step <= 2));
    }
  });
  // Its first round is exact, and so is the one after a failed step.
  ThreadGroup(2).run([&](Threads& transport) {
    CompressionReport report(layout);
    Optimizer optimizer{Ef21Sgdm<Observed<Ef21>>{.error_feedback = {{}, &report}}, transport, layout};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 6; ++step) {
      Floats mine = gradient(layout, transport.rank(), step, 0);
      if (step == 4) mine[0] = std::numeric_limits<float>::quiet_NaN();
      try {
        optimizer.step(x, mine);
        CHECK(step != 4);
      } catch (const non_finite_error&) {
        CHECK(step == 4);
      }
      const bool compressed = !empty(report.read()[0]);
      if (step != 4) CHECK(compressed == (step != 1 && step != 5));
    }
  });
}

TEST_CASE("an observed optimizer takes the same steps and has the same state") {
  const Layout layout = uneven();
  const auto same = [&](auto plain, auto observed) {
    CAPTURE(type_name<decltype(plain)>());
    CHECK(type_name<decltype(observed)>() == type_name<decltype(plain)>());
    const auto expected = bits_of(plain, layout), found = bits_of(observed, layout);
    CHECK(found.first == expected.first);
    CHECK(found.second == expected.second);
  };
  const FrozenVariance soon{.freeze = AtStep{2}};
  same(OneBitAdam<>{.preconditioner = soon}, OneBitAdam<Observed<Residual>>{.preconditioner = soon});
  same(OneBitAdam<Ring>{.preconditioner = soon},
       OneBitAdam<Ring, Observed<Residual>>{.preconditioner = soon});
  same(ErrorFeedbackSgd<TopK<>, AllGather>{}, ErrorFeedbackSgd<TopK<>, AllGather, Observed<Residual>>{});
  same(ErrorFeedbackSgd<Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<64>>, Int8Residual>{},
       ErrorFeedbackSgd<Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<64>>, Observed<Int8Residual>>{});
  same(ErrorFeedbackSgd<Sign, Unchecked<NoErrorFeedback>>{},
       ErrorFeedbackSgd<Sign, Observed<Unchecked<NoErrorFeedback>>>{});
  same(PowerSgd<2>{}, PowerSgd<2, Observed<Residual>>{});
  same(Ef21Sgd<>{}, Ef21Sgd<Observed<Ef21>>{});
}

TEST_CASE("ranks that observe and ranks that don't take steps together") {
  const Layout layout = uneven();
  std::array<Floats, 2> x;
  ThreadGroup(2).run([&](Threads& transport) {
    const auto train = [&](const auto& recipe) {
      Optimizer optimizer{recipe, transport, layout};
      Floats& mine = x[at(transport.rank())] = start(layout);
      for (std::uint64_t step = 1; step <= 3; ++step)
        optimizer.step(mine, gradient(layout, transport.rank(), step, 0));
    };
    CompressionReport report(layout);
    if (transport.rank() == 0)
      train(ErrorFeedbackSgd<Observed<Residual>>{.error_feedback = {{}, &report}});
    else
      train(ErrorFeedbackSgd<>{});
    CHECK(report.read().size() == layout.segments().size());  // the optimizer is gone
  });
  CHECK(x[0] == x[1]);
}

TEST_CASE("an observed error feedback keeps the laws, on the emulated device as well") {
  CompressionReport report(Layout::flat(1 << 20));
  const auto holds = [](const auto& feedback) {
    const laws::Report found = laws::check_error_feedback(feedback);
    CHECK_MESSAGE(found, found.text());
    CHECK(found.passed.size() + found.not_applicable.size() == 7);
  };
  holds(Observed<Residual>{{}, &report});
  holds(Observed<Ef21>{{}, &report});
}

TEST_CASE("a report of a device is the host's") {
  const Layout layout = uneven();
  const auto text_of = [&]<class E>(auto recipe, auto& transport, E executor) {
    CompressionReport report(layout);
    recipe.error_feedback.report = &report;
    Optimizer optimizer{recipe, transport, layout, {}, executor};
    buffer<float, typename E::memory> x(layout.size()), g(layout.size());
    upload<float, typename E::memory>(start(layout), x.all());
    std::string text;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      upload<float, typename E::memory>(gradient(layout, transport.rank(), step, 0), g.all());
      optimizer.step(x.all(), g.all());
      text += CompressionReport::json(report.read(x.all()), step, transport.rank());
    }
    return text;
  };
  const auto same = [&](const auto& recipe) {
    std::array<std::string, 2> host, device;
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      host[at(transport.rank())] = text_of(recipe, transport, executor::host{});
    });
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      const executor::emulated there;
      ThroughHost<Threads, executor::emulated> staged(transport.split(0, transport.rank()), there);
      device[at(transport.rank())] = text_of(recipe, staged, there);
    });
    CHECK(host[0].find("\"elements\": 1000, \"message\": ") != std::string::npos);
    CHECK(host == device);
  };
  same(ErrorFeedbackSgd<Observed<Residual>>{});
  same(ErrorFeedbackSgd<TopK<>, AllGather, Observed<Residual>>{});
}

TEST_CASE("wrong uses are named") {
  const Layout layout = uneven();
  const auto refusal = [&](CompressionReport* report) -> std::string {
    std::string text;
    std::thread([&] {
      ThreadGroup(1).run([&](Threads& transport) {
        try {
          Optimizer optimizer{ErrorFeedbackSgd<Observed<Residual>>{.error_feedback = {{}, report}}, transport,
                              layout};
        } catch (const usage_error& fault) {
          text = fault.what();
        }
      });
    }).join();
    return text;
  };
  CHECK(refusal(nullptr).find("Observed needs a report: .error_feedback = {{}, &report}") !=
        std::string::npos);
  CompressionReport made_here(layout);
  CHECK(refusal(&made_here).find("belongs to one rank") != std::string::npos);
  ThreadGroup(1).run([&](Threads& transport) {
    CompressionReport small(Layout::flat(64)), report(layout);
    const auto make = [&](CompressionReport* which) {
      Optimizer optimizer{ErrorFeedbackSgd<Observed<Residual>>{.error_feedback = {{}, which}}, transport,
                          layout};
    };
    CHECK_THROWS_WITH_AS(make(&small), doctest::Contains("was made for a layout of 64 elements"),
                         usage_error);
    make(&report);
    CHECK_THROWS_WITH_AS(report.read(Floats(3)), doctest::Contains("and the parameters 3"), usage_error);
  });
}

TEST_CASE("a line of JSON has each number, and null for none") {
  Line line;
  line.segment = "a \"b\"\n";
  line.elements = 3;
  line.message = 0.5;
  CHECK(
      CompressionReport::json({line}, 7, 1) ==
      "{\"step\": 7, \"rank\": 1, \"segment\": \"a \\\"b\\\"\\u000a\", \"of_means\": false, \"elements\": 3, "
      "\"message\": 0.5, \"carried\": null, \"value\": null, \"sent\": null, \"error\": null, "
      "\"cosine\": null, \"update\": null}\n");
}

TEST_CASE("parameters in 16 bits are widened") {
  CompressionReport report(Layout::flat(64));
  std::vector<bf16> x(64, narrowed<bf16>(1.0F));
  report.read(view<const bf16>(x));
  x[5] = narrowed<bf16>(3.0F);
  CHECK(report.read(view<const bf16>(x))[0].update == 2);
}
