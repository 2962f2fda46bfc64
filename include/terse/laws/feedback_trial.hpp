// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "terse/codec.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/executor/host.hpp"
#include "terse/laws/report.hpp"
#include "terse/laws/saved_state.hpp"
#include "terse/laws/subject.hpp"

// Runs an error feedback on one rank, for the laws of error feedbacks.

namespace terse::laws {

/// Default compressor for checks of error feedbacks: a contraction on each unit, so that errors stored in blocks also work.
using NearestFourBits = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<64>>;

namespace detail {

/// A message in an arena.
struct FromArena {
  const float* x;
  float operator()(const Piece&, index_t i) const { return x[i]; }
};
struct IntoArena {
  float* x;
  void operator()(const Piece&, index_t i, bool, float sum) const { x[i] = sum; }
};
/// Writes the messages as compensated by the feedback's view.
template <class View>
struct Ask {
  View view;
  const float* message;
  float* y;
  void enter_block(index_t first) { terse::detail::enter_block(view, first); }
  void operator()(const Piece&, index_t i, bool, auto...) const { y[i] = view.compensate(i, message[i]); }
};

TERSE_NUMERICS_BEGIN

/// Writes the mean of one packet after the feedback's `receive`.
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

/// A rank that sends to itself.
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

  /// Returns the compensated message.
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

  SavedState saved() { return SavedState(codec_); }
  void load(const SavedState& state) { state.load(codec_); }

 private:
  Layout layout_;
  Plan plan_;
  Codec<C, F, E> codec_;
  std::vector<std::byte> packet_;
  std::uint64_t steps_ = 0;
};

/// One element of one step, in which `left` is y - decoded, and `before` and `after` are the errors.
struct Seen {
  std::size_t step, element;
  double message, y, decoded, received, left, before, after;
};
/// Records 20 steps of a feedback.
template <class F, class C>
std::vector<Seen> watch(const F& feedback) {
  std::vector<Seen> seen;
  FeedbackTrial<F, C> trial(feedback);
  const Values zeros(trial.message(1, 1).size(), 0);
  for (std::uint64_t step = 1; step <= 20; ++step) {
    const Values message = trial.message(1, step), y = trial.compensated(message);
    const Values before = trial.compensated(zeros);
    const auto sent = trial.send(message);
    const Values after = trial.compensated(zeros);
    trial.each([&](std::size_t i) {
      const auto left = static_cast<double>(y[i]) - static_cast<double>(sent.decoded[i]);
      seen.push_back({static_cast<std::size_t>(step), i, message[i], y[i], sent.decoded[i], sent.received[i],
                      left, before[i], after[i]});
    });
  }
  return seen;
}

/// Shares of the unsent part and of the old error that a feedback keeps.
struct Shares {
  double fresh = 1, old = 0;

  bool all() const { return std::abs(fresh - 1) < 1e-3 && std::abs(old) < 1e-3; }
  std::string text() const {
    return say("a round keeps %.3f of the unsent part and %.3f of the old error", fresh, std::abs(old));
  }
};
/// One equation, value = fresh * first + old * second.
struct Terms {
  double first, second, value;
};
/// Solves the equations of all elements by least squares.
template <class TermsOf>
Shares fit(const std::vector<Seen>& seen, const TermsOf& terms_of) {
  double aa = 0, ab = 0, bb = 0, av = 0, bv = 0;
  for (const Seen& one : seen) {
    const auto [a, b, value] = terms_of(one);
    aa += a * a;
    ab += a * b;
    bb += b * b;
    av += a * value;
    bv += b * value;
  }
  const double area = aa * bb - ab * ab;
  if (area > 1e-9 * aa * bb) return {(av * bb - bv * ab) / area, (bv * aa - av * ab) / area};
  return {aa > 0 ? av / aa : 0, 0};
}
/// Estimates the shares of an accumulating feedback from its steps.
inline Shares kept_by(const std::vector<Seen>& seen) {
  return fit(seen, [](const Seen& one) { return Terms{one.left, one.before, one.after}; });
}

TERSE_NUMERICS_END

}  // namespace detail

}  // namespace terse::laws
