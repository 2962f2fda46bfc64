// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/config.hpp"
#include "terse/executor/concept.hpp"
#include "terse/laws/report.hpp"
#include "terse/laws/subject.hpp"

// Laws of decoded values, and of inputs that must not influence them.

namespace terse::laws {

TERSE_NUMERICS_BEGIN

/// Checks that packets decode to finite values, equal at every call, and that excluded elements are unchanged.
/// Checks that weighted packets add up in order, to the last bit, or, if sums are decoded, within a few roundings of
/// the largest element.
inline std::string round_trip_violation(const Subject& subject, const Example& example) {
  constexpr float weights[] = {1, 0.5F, 1.0F / 3};
  const Arena arena = subject.arena(example);
  const auto reader = subject.rank(arena);
  std::vector<std::vector<const std::byte*>> begins;
  std::vector<Sent> sent;
  Values sequential(at(example.elements()), 0);
  for (std::size_t r = 0; r < example.messages.size(); ++r) {
    const auto rank = subject.rank(arena);
    sent.push_back(rank->encode(arena.spread(example.messages[r]), moment(example, 0, static_cast<int>(r))));
    begins.emplace_back();
    for (const Packet& packet : sent.back()) begins.back().push_back(packet.data());
    const Values decoded = arena.gather(reader->decode(sent.back(), moment(example)));
    if (const std::string found = not_finite(decoded); !found.empty())
      return say("message %zu decodes to ", r) + found;
    if (!same(decoded, arena.gather(reader->decode(sent.back(), moment(example)))))
      return say("message %zu, decoded a second time: ", r) +
             difference(decoded, arena.gather(reader->decode(sent.back(), moment(example))));
    for (std::size_t e = 0; e < decoded.size(); ++e) {
      if (arena.compressed[e] == 0 && !(decoded[e] == example.messages[r][e]))
        return say("element %zu of an excluded segment comes back as ", e) + say(decoded[e]);
      sequential[e] += weights[r % 3] * decoded[e];
    }
  }
  Values sum;
  std::vector<float> used;
  for (std::size_t r = 0; r < begins.size(); ++r) used.push_back(weights[r % 3]);
  reader->decode(begins, used, moment(example), sum);
  const std::string found = subject.claims().decodes_sums ? distance(arena.gather(sum), sequential)
                                                          : difference(arena.gather(sum), sequential);
  if (!found.empty()) return "the packets' sum, and the decoded messages added one after the other: " + found;
  return "";
}

/// Checks that zeros of both signs decode to zeros.
inline std::string zero_violation(const Subject& subject, const Example& example) {
  const Arena arena = subject.arena(example);
  const auto rank = subject.rank(arena);
  for (const float value : example.messages.front())
    if (value != 0) return "";
  const Values decoded = arena.gather(
      rank->decode(rank->encode(arena.spread(example.messages.front()), moment(example)), moment(example)));
  for (std::size_t e = 0; e < decoded.size(); ++e)
    if (decoded[e] != 0) return say("a message of zeros decodes to element %zu: ", e) + say(decoded[e]);
  return "";
}

/// Checks that non-finite values count as 0, are recorded, and have no effect on packets, values or feedback.
inline std::string finite_violation(const Subject& subject, const Example& example) {
  const Arena arena = subject.arena(example);
  const auto one = subject.rank(arena), other = subject.rank(arena);
  for (std::size_t m = 0; m < example.messages.size(); ++m) {
    Values clean = example.messages[m];
    bool any = false;
    for (float& value : clean) {
      any = any || !is_finite(value);
      value = is_finite(value) ? value : 0.0F;
    }
    const Sent sent = one->encode(arena.spread(example.messages[m]), moment(example, m));
    const bool noted = one->take_bad();
    const std::string found = difference(sent, other->encode(arena.spread(clean), moment(example, m)));
    if (any && !noted) return say("message %zu: `take_bad` does not report a value that is not finite", m);
    if (!found.empty())
      return say("message %zu, and the same with 0 in place of values that are not finite: ", m) + found;
    if (const std::string wrong = not_finite(arena.gather(one->decode(sent, moment(example, m))));
        !wrong.empty())
      return say("message %zu decodes to ", m) + wrong;
    const Values zeros = arena.spread(Values(at(example.elements()), 0)),
                 kept = arena.gather(one->compensated(zeros));
    if (const std::string wrong = not_finite(kept); !wrong.empty())
      return say("after message %zu the error is ", m) + wrong;
    if (const std::string wrong = difference(kept, arena.gather(other->compensated(zeros))); !wrong.empty())
      return say("after message %zu the error, and with 0 in place of values that are not finite: ", m) +
             wrong;
  }
  return "";
}

/// Checks that padding and masked elements don't influence scales, codes of other elements, or the error; masked elements
/// keep no error.
inline std::string mask_violation(const Subject& subject, const Example& example) {
  const Arena arena = subject.arena(example);
  const auto one = subject.rank(arena), other = subject.rank(arena);
  const Values zeros(at(arena.layout.size()), 0);
  for (std::size_t m = 0; m < example.messages.size(); ++m) {
    Values changed = example.messages[m];
    for (std::size_t e = 0; e < changed.size(); ++e)
      if (arena.compressed[e] != 0 && !example.keeps(static_cast<index_t>(e)))
        changed[e] = uniform(example.seed, 4, e) * (e % 3 == 0 ? 1e6F : 1e-3F);
    const float padding = std::numeric_limits<float>::quiet_NaN();
    const std::string found = difference(one->encode(arena.spread(example.messages[m]), moment(example, m)),
                                         other->encode(arena.spread(changed, padding), moment(example, m)));
    if (!found.empty())
      return say("message %zu, and with other values in padding and masked elements: ", m) + found;
    const Values kept = arena.gather(one->compensated(zeros));
    if (const std::string wrong = difference(kept, arena.gather(other->compensated(zeros))); !wrong.empty())
      return say("the error after message %zu, and with other values in padding and masked elements: ", m) +
             wrong;
    for (std::size_t e = 0; e < kept.size(); ++e)
      if (arena.compressed[e] != 0 && !example.keeps(static_cast<index_t>(e)) && kept[e] != 0)
        return say("after message %zu masked element %zu has an error of ", m, e) + say(kept[e]);
  }
  return "";
}

/// Checks that the same messages in the same steps give the same packets.
inline std::string determinism_violation(const Subject& subject, const Example& example) {
  const Arena arena = subject.arena(example);
  const auto one = subject.rank(arena), other = subject.rank(arena);
  for (std::size_t m = 0; m < example.messages.size(); ++m) {
    const Values message = arena.spread(example.messages[m]);
    const Sent first = one->encode(message, moment(example, m));
    if (const std::string found = difference(first, other->encode(message, moment(example, m)));
        !found.empty())
      return say("message %zu, sent by two ranks of equal state: ", m) + found;
  }
  one->reset();
  for (std::size_t m = 0; m < example.messages.size(); ++m) {
    if (m == 0) other->reset();
    const Values message = arena.spread(example.messages[m]);
    const Sent first = one->encode(message, moment(example, m));
    if (const std::string found = difference(first, other->encode(message, moment(example, m)));
        !found.empty())
      return say("message %zu, once more: ", m) + found;
  }
  return "";
}

/// Checks that the packets of a `stochastic` compressor differ between steps, seeds and ranks, and that those of a
/// compressor with `stochastic` false are equal.
inline std::string draws_violation(const Subject& subject, const Example& example) {
  const Arena arena = subject.arena(example);
  const Values message = arena.spread(example.messages.front());
  const auto packets = [&](const Moment& when) { return subject.rank(arena)->encode(message, when); };
  const Moment here = moment(example);
  const Sent first = packets(here);
  const std::pair<const char*, Moment> others[] = {{"step", {here.seed, here.step + 1, here.rank}},
                                                   {"seed", {here.seed + 1, here.step, here.rank}},
                                                   {"rank", {here.seed, here.step, here.rank + 1}}};
  for (const auto& [what, when] : others) {
    const std::string found = difference(first, packets(when));
    if (*subject.claims().stochastic && found.empty())
      return std::string("the same packet under another ") + what;
    if (!*subject.claims().stochastic && !found.empty())
      return std::string("not stochastic, but another packet under another ") + what + ": " + found;
  }
  return "";
}

TERSE_NUMERICS_END

/// Returns examples in which one element of eight is not finite, except in the first message, which leaves an error.
inline std::vector<Example> poisoned(const std::vector<Example>& pool) {
  constexpr float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()};
  std::vector<Example> result = pool;
  for (Example& example : result)
    for (std::size_t m = 1; m < example.messages.size(); ++m)
      for (std::size_t e = 0; e < example.messages[m].size(); ++e)
        if (uniform(example.seed + m, 5, e) > 0.75F || example.messages[m].size() == 1)
          example.messages[m][e] = bad[(e + m) % std::size(bad)];
  return result;
}

/// Returns the laws of decoded values: round trip, zeros, non-finite values, padding and masks, determinism, draws.
inline std::vector<Law> value_laws(const Subject& subject, const Options& options) {
  const auto pool = examples(options.seed, options.magnitude, 3);
  std::vector<Example> zeros = examples(options.seed, options.magnitude, 1);
  for (Example& example : zeros) example.messages.front() = values(Pattern::zeros, example.elements(), 1, 1);
  const Example many{.counts = {500},
                     .messages = {values(Pattern::uniform, 500, options.magnitude, options.seed)},
                     .seed = options.seed};
  const auto on = [&subject](auto violation) {
    return [&subject, violation](const Example& example) { return violation(subject, example); };
  };
  return {{"round trip", true, pool, on(round_trip_violation)},
          {"zero", subject.claims().zero_to_zero, zeros, on(zero_violation)},
          {"not finite", true, poisoned(pool), on(finite_violation)},
          {"padding and masks", true, pool, on(mask_violation)},
          {"determinism", true, pool, on(determinism_violation)},
          {"draws", subject.claims().stochastic.has_value(), {many}, on(draws_violation), false}};
}

}  // namespace terse::laws
