// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "terse/terse.hpp"

// What the tests of faults in pipelines share, over threads and over MPI.

namespace trial {

using terse::index_t;
using terse::MicroBatch;
using terse::Phase;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Ids = std::vector<std::uint64_t>;

/// y = x (1 + w), element by element, and the last stage's loss is the mean over the rows of ||y||^2 / 2. Before each
/// pass it calls `strike`.
class Toy {
 public:
  std::vector<float> weights, gradients;
  /// What a pass returns has this in an element in its middle, once.
  float spoil = 1;
  /// With the number of the pass, counted from the first one on.
  std::function<void(int pass)> strike;

  Toy(int rank, int stages, index_t elements)
      : weights(static_cast<std::size_t>(elements), 0.5F),
        gradients(weights.size()),
        first_(rank == 0),
        last_(rank + 1 == stages),
        elements_(elements) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= 0.01F * static_cast<float>(i % 7);
  }

  index_t input_elements() const { return first_ ? 0 : elements_; }
  index_t output_elements() const { return last_ ? 0 : elements_; }
  const float* forward(const MicroBatch& rows, const float* input) {
    begin_pass();
    if (first_) input = make_input(rows);
    inputs_[rows.index] = input;
    result_.resize(static_cast<std::size_t>(rows.rows * elements_));
    loss_ = 0;
    for (std::size_t k = 0; k < result_.size(); ++k) {
      result_[k] = input[k] * (1 + weights[k % weights.size()]);
      loss_ += 0.5 * static_cast<double>(result_[k]) * static_cast<double>(result_[k]);
    }
    loss_ *= rows.weight / static_cast<double>(rows.rows);
    return last_ ? nullptr : spoilt();
  }
  const float* backward(const MicroBatch& rows, const float* output_gradient) {
    begin_pass();
    const float* const input = inputs_.at(rows.index);
    result_.resize(static_cast<std::size_t>(rows.rows * elements_));
    const auto share = static_cast<float>(rows.weight / static_cast<double>(rows.rows));
    for (std::size_t k = 0; k < result_.size(); ++k) {
      const std::size_t i = k % weights.size();
      const float gradient = last_ ? input[k] * (1 + weights[i]) * share : output_gradient[k];
      gradients[i] += gradient * input[k];
      result_[k] = gradient * (1 + weights[i]);
    }
    return first_ ? nullptr : spoilt();
  }
  double loss(const MicroBatch&) const { return loss_; }

  void descend() {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= 0.05F * gradients[i];
    gradients.assign(gradients.size(), 0);
  }
  std::uint64_t hash() const {
    std::uint64_t hash = 0;
    for (const float weight : weights) hash = terse::mix_hash(hash, std::bit_cast<std::uint32_t>(weight));
    return hash;
  }
  int passes() const { return passes_; }

 private:
  void begin_pass() {
    const int pass = passes_++;
    if (strike) strike(pass);
  }
  const float* spoilt() {
    if (spoil != 1) result_[result_.size() / 2] = std::exchange(spoil, 1.0F);
    return result_.data();
  }
  const float* make_input(const MicroBatch& rows) {
    std::vector<float>& made = made_[rows.index];
    made.clear();
    for (index_t row = 0; row < rows.rows; ++row)
      for (index_t i = 0; i < elements_; ++i)
        made.push_back(std::sin(static_cast<float>(static_cast<index_t>(rows.ids[row]) * 7 + i)));
    return made.data();
  }

  bool first_, last_;
  index_t elements_;
  std::map<index_t, const float*> inputs_;  // which stay in place until the backward pass
  std::map<index_t, std::vector<float>> made_;
  std::vector<float> result_;
  double loss_ = 0;
  int passes_ = 0;
};

/// Nine examples, in another order each step: five micro-batches of two, the last one of one.
inline constexpr int micro_batches = 5;
inline constexpr index_t rows_at_once = 2, batch_rows = 9;
inline Ids batch(int step) {
  Ids ids;
  for (std::uint64_t k = 0; k < batch_rows; ++k)
    ids.push_back(100 + (4 * k + static_cast<std::uint64_t>(step)) % batch_rows);
  return ids;
}

/// The copies that a stage keeps, by boundary ("incoming" or "outgoing") and example.
using Copies = std::map<std::string, std::map<std::uint64_t, Bytes>>;
template <class P>
Copies copies_of(P& pipeline) {
  Copies all;
  const terse::detail::ExampleIndex& examples = pipeline.examples();
  pipeline.copies(examples.end(), [&](const char* name, auto rows, index_t row_bytes) {
    for (index_t slot = 0; slot < examples.end(); ++slot) {
      const std::byte* const row = rows.data() + slot * row_bytes;
      if (examples.id(slot) != terse::no_example) all[name][examples.id(slot)] = Bytes(row, row + row_bytes);
    }
  });
  return all;
}

/// Of how many micro-batches of a step the copies have moved: [least, most], since a copy may have moved by nothing. No
/// number at all (least > most) if they are neither of before nor of after a message, or of a later message but not of
/// an earlier one.
struct Moved {
  int least = 0, most = -1;
};
inline Moved moved(const std::map<std::uint64_t, Bytes>& now, const std::map<std::uint64_t, Bytes>& before,
                   const std::map<std::uint64_t, Bytes>& after, const Ids& ids) {
  // An example that is new in this step has zeros before.
  const auto old = [&](std::uint64_t id) {
    const auto found = before.find(id);
    return found == before.end() ? Bytes(after.at(id).size()) : found->second;
  };
  const auto all = [&](int j, const auto& is) {
    for (index_t row = j * rows_at_once; row < std::min((j + 1) * rows_at_once, batch_rows); ++row)
      if (!is(ids[static_cast<std::size_t>(row)])) return false;
    return true;
  };
  Moved result{micro_batches + 1, -1};
  for (int count = 0; count <= micro_batches; ++count) {
    bool fits = true;
    for (int j = 0; j < micro_batches && fits; ++j)
      fits = all(j, [&](std::uint64_t id) {
        const auto found = now.find(id);
        const Bytes current = found == now.end() ? Bytes(after.at(id).size()) : found->second;
        return current == (j < count ? after.at(id) : old(id));
      });
    if (!fits) continue;
    result.least = std::min(result.least, count);
    result.most = count;
  }
  return result;
}

/// How a call has ended.
struct Outcome {
  enum class Kind {
    none,
    returned,
    peer,
    usage,
    mismatch,
    wire,
    non_finite,
    other,
    foreign
  } kind = Kind::none;
  int culprit = -1;
  std::string text;
  Clock::time_point when;
  std::exception_ptr thrown;
};
template <class F>
Outcome outcome_of(F call) {
  const auto note = [](Outcome::Kind kind, const std::string& text = {}, int culprit = -1) {
    return Outcome{kind, culprit, text, Clock::now(), std::current_exception()};
  };
  using Kind = Outcome::Kind;
  try {
    call();
    return note(Kind::returned);
  } catch (const terse::peer_error& failure) {
    return note(Kind::peer, failure.what(), failure.culprit());
  } catch (const terse::non_finite_error& failure) {
    return note(Kind::non_finite, failure.what(), failure.culprit());
  } catch (const terse::usage_error& failure) {
    return note(Kind::usage, failure.what());
  } catch (const terse::mismatch_error& failure) {
    return note(Kind::mismatch, failure.what());
  } catch (const terse::wire_error& failure) {
    return note(Kind::wire, failure.what());
  } catch (const std::exception& failure) {
    return note(Kind::other, failure.what());
  } catch (...) {
    return note(Kind::foreign);
  }
}

using Kind = Outcome::Kind;

inline std::size_t at(int number) { return static_cast<std::size_t>(number); }

/// What has become of one stage.
struct Seat {
  Outcome outcome;             // of the call of train that failed, or of the last one
  int step = 0;                // which that was
  bool torn = false;           // afterwards
  Outcome again;               // of another call of train
  bool mended = false;         // whether forget() has ended the tear, where a neighbour has failed
  Outcome after;               // of train after that
  std::vector<Copies> copies;  // before the first step, after each, and last as the failure has left them
  std::vector<double> losses;
  std::uint64_t hash = 0;  // of the parameters
};
using Seats = std::vector<Seat>;

/// Trains on batch(0), batch(1), ... on this stage until something happens, and looks at what it leaves behind.
template <class P>
void train(
    P& pipeline, Toy& toy, int steps, Seat& seat,
    const std::function<Ids(int)>& ids = [](int step) { return batch(step); }) {
  seat.copies.push_back(copies_of(pipeline));
  for (seat.step = 0; seat.step < steps; ++seat.step) {
    seat.outcome = outcome_of([&] { seat.losses.push_back(pipeline.train(ids(seat.step)).loss); });
    if (seat.outcome.kind != Kind::returned) break;
    toy.descend();
    seat.copies.push_back(copies_of(pipeline));
  }
  seat.hash = toy.hash();
  if (seat.outcome.kind == Kind::returned) return;
  seat.torn = pipeline.torn();
  seat.copies.push_back(copies_of(pipeline));
  seat.again = outcome_of([&] { pipeline.train(ids(seat.step)); });
}

/// Of how many messages since the first step the copies of a boundary have moved.
inline Moved moved_of(const Seat& seat, const Seat& right, const char* side) {
  const auto rows_of = [&](const Copies& copies) {
    const auto found = copies.find(side);
    return found == copies.end() ? std::map<std::uint64_t, Bytes>{} : found->second;
  };
  REQUIRE(!seat.copies.empty());
  REQUIRE(right.copies.size() > at(seat.step + 1));
  const Moved found = moved(rows_of(seat.copies.back()), rows_of(right.copies[at(seat.step)]),
                            rows_of(right.copies[at(seat.step + 1)]), batch(seat.step));
  // At no time at all if the copies are those of no time.
  CHECK(found.least <= found.most);
  return {seat.step * micro_batches + found.least, seat.step * micro_batches + found.most};
}

/// The policies that the tests take: rows of 64 elements make one block.
using Changes = terse::Uniform<4, terse::Nearest, terse::Asymmetric, terse::MaxAbs, terse::PerBlock<64>>;
using Gradients = terse::Uniform<8, terse::Stochastic, terse::Symmetric, terse::MaxAbs, terse::PerBlock<64>>;
using Compressed = terse::AcSgd<Changes, Gradients>;
inline constexpr index_t elements = 64;
inline Compressed compressed() { return {.capacity = 20}; }

}  // namespace trial
