// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "terse/compressor/uniform.hpp"
#include "terse/core/type_name.hpp"
#include "terse/laws/device.hpp"
#include "terse/laws/report.hpp"

// Whether an error feedback keeps its promises, on one rank under a contraction.
//
//     #include <terse/laws/error_feedback.hpp>
//
//     const terse::laws::Report report = terse::laws::check_error_feedback<MyFeedback>();
//     if (!report) std::puts(report.text().c_str());

namespace terse::laws {

/// What feedbacks are tried with: a contraction, unit by unit, so that errors stored in blocks may be tried, too.
using NearestFourBits = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<64>>;

namespace detail {

TERSE_NUMERICS_BEGIN

/// Where the mean of one packet goes, past the feedback.
template <class View>
struct ReceiveMean {
  View view;
  float* x;
  void enter_block(index_t first) { terse::detail::enter_block(view, first); }
  void operator()(const Piece&, index_t i, bool keep, float mean) const {
    if constexpr (requires { view.receive(i, keep, mean); })
      x[i] = view.receive(i, keep, mean);
    else
      x[i] = mean;
  }
};

/// One rank that sends to itself.
template <class F, class C>
class FeedbackTrial {
  using E = executor::host;

 public:
  explicit FeedbackTrial(const F& feedback)
      : layout_(layout()),
        plan_(C{}, layout_, layout_.range(), 1, false),
        codec_({}, C{}, feedback, plan_.whole),
        packet_(static_cast<std::size_t>(plan_.whole.bytes)) {}

  static Layout layout() {
    Layout layout;
    layout.add({"matrix", {130}}).add({"bias", {7}});
    return layout;
  }
  Values message(std::uint64_t seed, std::uint64_t step) const {
    Values values(at(layout_.size()), 0);
    const Draw draw = Draw::local(seed, 0, step, Purpose::user);
    each([&](std::size_t i) { values[i] = static_cast<float>(draw.bits(i) >> 40) * 0x1p-23F - 1; });
    return values;
  }
  template <class Act>
  void each(const Act& act) const {
    const Range range = layout_.range();
    for (const Piece& piece : range.pieces())
      for (index_t i = piece.offset; i < piece.offset + piece.count; ++i) act(at(i));
  }

  /// What would be sent for this message.
  Values compensated(const Values& message) {
    Values y(at(layout_.size()), 0);
    for_each(E{}, plan_.whole.compressed, NoMask{}, NoPackets{},
             Ask<decltype(codec_.feedback())>{codec_.feedback(), message.data(), y.data()});
    return y;
  }
  struct Sent {
    Values decoded, received;
  };
  Sent send(const Values& message, HostMask mask = {}) {
    codec_.start(1);
    const terse::Message from{FromArena{message.data()}, FromArena{message.data()}};
    const Draw draw = Draw::shared(1, ++steps_, Purpose::quantization);
    codec_.measure(plan_.whole, mask, EmptyInbox{}, from);
    codec_.encode(plan_.whole, mask, EmptyInbox{}, from, {steps_, draw, draw}, true, packet_.data());
    Sent sent{Values(at(layout_.size()), 0), Values(at(layout_.size()), 0)};
    Inbox<C> inbox(1);
    inbox.add(C{}, plan_.whole, packet_.data(), draw);
    for_each(E{}, plan_.whole.compressed, mask, codec_.arrived(plan_.whole.compressed, inbox),
             IntoArena{sent.decoded.data()});
    inbox.clear();
    inbox.add(C{}, plan_.whole, packet_.data(), draw);
    for_each(E{}, plan_.whole.compressed, mask, codec_.arrived(plan_.whole.compressed, inbox),
             ReceiveMean<decltype(codec_.feedback())>{codec_.feedback(), sent.received.data()});
    (void)codec_.take_bad();
    return sent;
  }

  /// What a checkpoint holds, by name.
  std::map<std::string, std::vector<std::byte>> saved(std::string* fault = nullptr) {
    std::map<std::string, std::vector<std::byte>> parts;
    codec_.walk([&](const std::string& name, auto&&... part) {
      if (fault != nullptr && name.empty()) *fault = "a part of the state has no name";
      if (fault != nullptr && parts.count(name) != 0)
        *fault = "two parts of the state are called '" + name + "'";
      copy_part(parts[name], true, part...);
    });
    return parts;
  }
  void load(std::map<std::string, std::vector<std::byte>> parts) {
    codec_.walk([&](const std::string& name, auto&&... part) { copy_part(parts[name], false, part...); });
  }

 private:
  template <class T>
  static void copy_part(std::vector<std::byte>& bytes, bool save, view<T> part, index_t) {
    copy_bytes(bytes, save, part.data(), at(part.size()) * sizeof(T));
  }
  static void copy_part(std::vector<std::byte>& bytes, bool save, std::uint64_t& value) {
    copy_bytes(bytes, save, &value, sizeof value);
  }
  static void copy_bytes(std::vector<std::byte>& bytes, bool save, void* place, std::size_t count) {
    if (save) bytes.resize(count);
    if (count > 0) save ? std::memcpy(bytes.data(), place, count) : std::memcpy(place, bytes.data(), count);
  }

  Layout layout_;
  Plan plan_;
  Codec<C, F, E> codec_;
  std::vector<std::byte> packet_;
  std::uint64_t steps_ = 0;
};

template <class F, class C>
class FeedbackLaws {
  using Trial = FeedbackTrial<F, C>;
  static constexpr bool adds_up = terse::detail::accumulates<F>();

 public:
  explicit FeedbackLaws(const F& feedback) : feedback_(feedback) {}

  /// message + old error = decoded + new error, where errors add up, and otherwise what is read of y stands for the
  /// message as far as y was sent, or what it doesn't stand for enters the next y by the share eta.
  std::string nothing_lost() const {
    Trial trial(feedback_);
    const Values zeros(trial.message(1, 1).size(), 0);
    for (std::uint64_t step = 1; step <= 20; ++step) {
      const Values message = trial.message(1, step), y = trial.compensated(message);
      const Values before = trial.compensated(zeros);
      const auto sent = trial.send(message);
      const Values after = trial.compensated(zeros);
      std::string what;
      trial.each([&](std::size_t i) {
        const float left = y[i] - sent.decoded[i];
        float lost = adds_up ? decay() * (gain() * left + (1 - gain()) * before[i]) - after[i]
                             : message[i] - sent.received[i] - left;
        if constexpr (requires { feedback_.eta; })
          lost = after[i] - before[i] + sent.decoded[i] - feedback_.eta * (message[i] - sent.received[i]);
        // Errors stored in fewer bits are rounded.
        const float most = terse::detail::held_by<F>() > 0 ? 0x1p-6F : 0x1p-20F;
        if (what.empty() && !(std::abs(lost) <= most * 4))
          what = say("step %zu, element %zu: message ", static_cast<std::size_t>(step), i) + say(message[i]) +
                 ", sent y = " + say(y[i]) + ", read " + say(sent.decoded[i]) + ", and " + say(lost) +
                 " is lost";
      });
      if (!what.empty()) return what;
    }
    return "";
  }
  /// Of one message again and again the mean of what is received is the message.
  std::string comes_back() const {
    constexpr int steps = 300;
    Trial trial(feedback_);
    const Values message = trial.message(2, 1);
    std::vector<double> sum(message.size());
    for (int step = 0; step < steps; ++step) {
      const auto sent = trial.send(message);
      trial.each([&](std::size_t i) { sum[i] += static_cast<double>(sent.received[i]); });
    }
    std::string what;
    trial.each([&](std::size_t i) {
      const double mean = sum[i] / steps;
      if (what.empty() && !(std::abs(mean - static_cast<double>(message[i])) <= 0.01))
        what = say("element %zu: the mean of %d steps is %g, the message ", i, steps, mean) + say(message[i]);
    });
    return what;
  }
  /// What would be sent for nothing stays near the messages, whose magnitudes are below 1.
  std::string bounded() const {
    Trial trial(feedback_);
    const Values zeros(trial.message(1, 1).size(), 0);
    for (std::uint64_t step = 1; step <= 500; ++step) {
      (void)trial.send(trial.message(3, step));
      std::string what;
      const Values held = trial.compensated(zeros);
      trial.each([&](std::size_t i) {
        if (what.empty() && !(std::abs(held[i]) <= 4))
          what = say("step %zu: element %zu holds ", static_cast<std::size_t>(step), i) + say(held[i]);
      });
      if (!what.empty()) return what;
    }
    return "";
  }
  /// Masked elements keep no error, and of others nothing changes where nothing is sent.
  std::string masks() const {
    Trial trial(feedback_);
    const Values zeros(trial.message(1, 1).size(), 0);
    for (std::uint64_t step = 1; step <= 3; ++step) (void)trial.send(trial.message(4, step));
    const Values before = trial.compensated(zeros);
    std::vector<std::uint64_t> words(zeros.size() / static_cast<std::size_t>(alignment), 0x5555555555555555U);
    (void)trial.send(trial.message(4, 4), {words.data()});
    const Values after = trial.compensated(zeros);
    std::string what;
    trial.each([&](std::size_t i) {
      const float wanted = adds_up ? 0 : before[i];
      if (what.empty() && i % 2 == 1 && after[i] != wanted)
        what = say("masked element %zu keeps ", i) + say(after[i]) + ", not " + say(wanted);
    });
    return what;
  }
  /// A run that goes on from what a checkpoint holds is the run that went on.
  std::string checkpoint() const {
    Trial one(feedback_), other(feedback_);
    for (std::uint64_t step = 1; step <= 5; ++step) (void)one.send(one.message(5, step));
    std::string fault;
    other.load(one.saved(&fault));
    if (!fault.empty()) return fault;
    for (std::uint64_t step = 6; step <= 10; ++step) {
      const Values message = one.message(5, step);
      const auto here = one.send(message), there = other.send(message);
      if (here.decoded != there.decoded || here.received != there.received)
        return say("step %zu: from what walk() shows another message is sent",
                   static_cast<std::size_t>(step));
    }
    return "";
  }
  /// What is not finite leaves no trace.
  std::string finite() const {
    Trial trial(feedback_);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Values message = trial.message(6, 1);
      message[3] = bad;
      (void)trial.send(message);
      const Values held = trial.compensated(Values(message.size(), 0));
      std::string what;
      trial.each([&](std::size_t i) {
        if (what.empty() && !std::isfinite(held[i])) what = say("element %zu holds ", i) + say(held[i]);
      });
      if (!what.empty()) return what + " after a message of " + say(bad);
    }
    return "";
  }

 private:
  float decay() const {
    if constexpr (requires { feedback_.decay; }) return feedback_.decay;
    return 1;
  }
  float gain() const {
    if constexpr (requires { feedback_.gain; }) return feedback_.gain;
    return 1;
  }
  F feedback_;
};

TERSE_NUMERICS_END

}  // namespace detail

/// Tries the laws of error feedbacks with C, on one rank whose messages are below 1 in magnitude:
///
///     nothing lost      message + old error = decoded + new error, times decay and gain, where errors add up (`accumulates`);
///                       elsewhere received + y - decoded = message, or, with a member `eta`, what received lacks of
///                       message is, times eta, in the next y; up to rounding
///     comes back        where `corrects`: of 300 equal messages the mean is received, up to 0.01
///     bounded           what would be sent for a message of 0 stays below 4 in 500 steps
///     masks             masked elements keep no error, and otherwise change nothing
///     checkpoint        parts have names, each its own, and a run from them is the run that went on
///     finite            messages that are not finite leave what is finite
///     the host's bits   the emulated device gives them, see check_device
///
/// For feedbacks that need no exact start, and whose `decay` and `rate` are near 1.
template <class F, class C = NearestFourBits>
Report check_error_feedback(const F& feedback = {}) {
  static_assert(terse::check_error_feedback<F>() && check_compressor<C>() && check_feedback<C, F>());
  Report report{.compressor = type_name<F>(), .passed = {}, .not_applicable = {}, .failures = {}};
  const detail::FeedbackLaws<F, C> laws(feedback);
  const auto judge = [&](const char* law, bool applies, auto violation) {
    if (!applies) {
      report.not_applicable.emplace_back(law);
      return;
    }
    std::string what = (laws.*violation)();
    if (what.empty())
      report.passed.emplace_back(law);
    else
      report.failures.push_back({law, what});
  };
  using Laws = detail::FeedbackLaws<F, C>;
  judge("nothing lost", true, &Laws::nothing_lost);
  judge("comes back", F::corrects, &Laws::comes_back);
  judge("bounded", true, &Laws::bounded);
  judge("masks", true, &Laws::masks);
  judge("checkpoint", true, &Laws::checkpoint);
  judge("finite", true, &Laws::finite);
  const Report device = check_device<C, F>({}, feedback);
  report.passed.insert(report.passed.end(), device.passed.begin(), device.passed.end());
  report.failures.insert(report.failures.end(), device.failures.begin(), device.failures.end());
  return report;
}

}  // namespace terse::laws
