// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "power_sgd.hpp"
#include "terse/codec.hpp"
#include "terse/compressor/low_rank.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/optimizer/staged.hpp"

// One oracle for every Averaging and Staged whose messages are compressed once, over AllGather, or not at all: all ranks in
// one thread, in double. What the policies' rules compute is their own text as Rule<double>, so that a rule needs a formula
// of its own to be held against; which rule is asked when, about what and with which buffers and rates, is written from
// the policies' documentation. Compressors have oracles elsewhere: packets are the library's, one Codec for each rank,
// which is given the message in double, rounded to float.

namespace terse::reference {

/// The policies of a stage, and its rates.
template <class M, class P>
struct StageParts {
  using Momentum = M;
  using Preconditioner = P;

  float learning_rate, weight_decay;
  M momentum_correction;
  P preconditioner;
};

/// What a recipe is made of.
template <class First_, class Second_, class C, class F>
struct Parts {
  using First = First_;
  using Second = Second_;
  using Compressor = C;
  using Feedback = F;

  First first;
  Second second;
  C compressor;
  F error_feedback;
  std::uint64_t exact_steps;  ///< the first ones
  bool staged;
};

template <class M, class P, class C, class F, class T>
auto stage_of(const recipes::AveragingOf<M, P, C, F, T>& recipe) {
  return StageParts<M, P>{recipe.learning_rate, recipe.weight_decay, recipe.momentum_correction,
                          recipe.preconditioner};
}

inline std::uint64_t exact_steps_of(const AtStep& when) { return when.step; }
inline std::uint64_t exact_steps_of(const Freeze& when) { return std::get<AtStep>(when.rule).step; }

template <class M, class P, class C, class F, class T>
auto parts_of(const recipes::AveragingOf<M, P, C, F, T>& recipe) {
  using S = StageParts<M, P>;
  return Parts<S, S, C, F>{stage_of(recipe),      stage_of(recipe),    recipe.compressor,
                           recipe.error_feedback, recipe.warmup_steps, false};
}
template <class First, class Second, class When>
auto parts_of(const Staged<First, Second, When>& recipe) {
  return Parts<decltype(stage_of(recipe.first)), decltype(stage_of(recipe.second)),
               typename Second::compressor_type, typename Second::error_feedback_type>{
      stage_of(recipe.first),       stage_of(recipe.second),     recipe.second.compressor,
      recipe.second.error_feedback, exact_steps_of(recipe.when), true};
}
/// A named one, which says as what it runs.
template <class R>
auto parts_of(const R& recipe) {
  return parts_of(recipe.composition());
}

/// A policy's buffers by their names.
using Buffers = std::map<std::string, Arena<double>>;

/// One element as a rule sees it.
struct Element {
  double parameter, gradient, learning_rate, weight_decay;
  double* const* buffers;
  std::size_t place;
  const double* scalars;
  double* const* numbers;  ///< of its layer

  double x() const { return parameter; }
  double g() const { return gradient; }
  double rate() const { return learning_rate; }
  double decay() const { return weight_decay; }
  double& operator[](int k) const { return buffers[k][place]; }
  double scalar(int k) const { return scalars[k]; }
  double layer(int k) const { return *numbers[k]; }
};

/// One layer as a preconditioner sees it.
struct Layer {
  std::vector<double> statistics;
  double weight_decay;
  const std::vector<double*>& numbers;

  double measured(int k) const { return statistics.at(at(k)); }
  double decay() const { return weight_decay; }
  double& operator[](int k) const { return *numbers.at(at(k)); }
};
/// All of them as a momentum correction sees them.
struct AllLayers {
  std::vector<double> norms;
  const Layout& layout;
  std::vector<std::vector<double*>> numbers;

  index_t count() const { return static_cast<index_t>(norms.size()); }
  index_t elements(index_t layer) const { return layout.segments()[at(layer)].count; }
  double norm(index_t layer) const { return norms[at(layer)]; }
  double& operator()(index_t layer, int k) const { return *numbers[at(layer)].at(at(k)); }
};

inline double measured_as(EuclideanNorm, const std::vector<double>& values) {
  double square = 0;
  for (const double value : values) square += value * value;
  return std::sqrt(square);
}
inline double measured_as(MaxAbs, const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

/// A policy's rule in one step on one rank.
template <class Policy>
struct Seat {
  using Rule = typename Policy::template Rule<double>;

  Rule rule;
  std::vector<double> scalars;
  std::vector<double*> buffers;
  std::vector<std::vector<double*>> numbers;  // of each layer
  const Segment* first;

  Seat(const Policy& policy, std::uint64_t step, Buffers& own, Buffers& of_layers, const Layout& layout)
      : rule(rule_of<double>(policy)), numbers(layout.segments().size()), first(layout.segments().data()) {
    if constexpr (requires { rule.at_step(step); })
      for (const double value : rule.at_step(step)) scalars.push_back(value);
    for (const char* name : Policy::state) {
      Arena<double>& buffer = own[name];
      buffer.resize(at(layout.size()));
      buffers.push_back(buffer.data());
    }
    for (const char* name : detail::layer_state_of<Policy>()) {
      Arena<double>& numbers_of_name = of_layers[name];
      numbers_of_name.resize(numbers.size());
      for (std::size_t s = 0; s < numbers.size(); ++s) numbers[s].push_back(&numbers_of_name[s]);
    }
  }

  /// Of a segment of the layout.
  const std::vector<double*>& numbers_of(const Segment& segment) const {
    return numbers[at(&segment - first)];
  }
  Element element(const Segment& segment, std::size_t k, double x, double g, float rate, float decay) const {
    return {x,
            g,
            static_cast<double>(rate) * static_cast<double>(segment.learning_rate_scale),
            static_cast<double>(decay) * static_cast<double>(segment.weight_decay),
            buffers.data(),
            k,
            scalars.data(),
            numbers_of(segment).data()};
  }
};

/// What comes of a round of messages, [rank][k], 0 outside of what is compressed.
struct Arrived {
  std::vector<Arena<double>> means;    ///< what each rank makes of all packets
  std::vector<Arena<double>> decoded;  ///< of the rank's own packet; empty where there are no packets
};

/// The packets of all ranks: AllGather, without a transport.
template <class C, class F>
class Packets {
 public:
  Packets(const Layout& layout, std::size_t ranks, const C& compressor, const F& feedback, std::uint64_t seed,
          const std::vector<double>&)
      : plan_(compressor, layout, layout.range(), static_cast<int>(ranks), false),
        size_(at(layout.size())),
        seed_(seed) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      codecs_.push_back(std::make_unique<Codec>(executor::host{}, compressor, feedback, plan_.whole));
      packets_.emplace_back(plan_.whole.bytes);
    }
  }

  const std::vector<Piece>& compressed() const { return plan_.whole.compressed.pieces(); }

  /// Whether an exact step is where the feedback starts from.
  static constexpr bool seeds() {
    return requires(Codec & codec) { codec.feedback().seed(index_t{}, 0.0F, 0.0F); };
  }
  void seed(std::size_t rank, const Arena<double>& gradient, const Arena<double>& mean) {
    each([&](std::size_t k, index_t i) {
      codecs_[rank]->feedback().seed(i, static_cast<float>(gradient[k]), static_cast<float>(mean[k]));
    });
  }

  /// Elements whose bit in `mask` is 0 are masked.
  Arrived exchange(std::uint64_t step, float rate, const std::vector<Arena<double>>& messages,
                   const std::vector<std::uint64_t>& mask) {
    const Portion& whole = plan_.whole;
    const Mask<memory::host> kept{mask.data()};
    const StepDraw shared{Draw::shared(seed_, step, Purpose::selection)};
    for (std::size_t rank = 0; rank < codecs_.size(); ++rank) {
      const std::vector<float> said(messages[rank].begin(), messages[rank].end());
      const Message message{Say{said.data()}, Nothing{}};
      codecs_[rank]->start(rate);
      codecs_[rank]->measure(whole, kept, EmptyInbox{}, message);
      codecs_[rank]->encode(
          whole, kept, EmptyInbox{}, message,
          {step, {Draw::local(seed_, static_cast<int>(rank), step, Purpose::quantization)}, shared}, true,
          packets_[rank].data());
    }
    Arrived arrived;
    for (std::size_t rank = 0; rank < codecs_.size(); ++rank) {
      Codec& codec = *codecs_[rank];
      Inbox<C> inbox(1);
      inbox.add(codec.compressor(), whole, packets_[rank].data(), shared);
      Arena<double>& decoded = arrived.decoded.emplace_back(size_);
      for_each(executor::host{}, whole.compressed, kept, codec.arrived(whole.compressed, inbox),
               Read{decoded.data()});
    }
    const Arena<double> mean = mean_of(arrived.decoded);
    for (const auto& codec : codecs_) {
      Arena<double>& own = arrived.means.emplace_back(mean);
      auto feedback = codec->feedback();
      if constexpr (requires { feedback.receive(index_t{}, true, 0.0F); })
        each([&](std::size_t k, index_t i) {
          const bool keep = (kept.word(i / alignment * alignment) >> i % alignment & 1) != 0;
          own[k] = static_cast<double>(feedback.receive(i, keep, static_cast<float>(mean[k])));
        });
    }
    return arrived;
  }

 private:
  using Codec = terse::Codec<C, F, executor::host>;

  struct Say {
    const float* values;
    float operator()(const Piece&, index_t i) const { return values[i]; }
  };
  /// Exact segments are averaged in double.
  struct Nothing {
    float operator()(const Piece&, index_t) const { return 0; }
  };
  struct Read {
    double* to;
    void operator()(const Piece&, index_t i, bool keep, float value) const {
      to[i] = keep ? static_cast<double>(value) : 0.0;
    }
  };

  template <class Body>
  void each(const Body& body) const {
    for (const Piece& piece : compressed())
      for (index_t i = piece.offset; i < piece.offset + piece.count; ++i) body(at(i), i);
  }

  Plan plan_;
  std::size_t size_;
  std::uint64_t seed_;
  std::vector<std::unique_ptr<Codec>> codecs_;
  std::vector<buffer<std::byte>> packets_;
};

/// Low rank sends no packets; its means are those of the oracle of PowerSGD, which is asked for a step of length 1 from 0.
template <int R>
class Packets<LowRank<R>, Residual> {
 public:
  /// `first_q`: the right factors before the first step, as the library shows them.
  Packets(const Layout& layout, std::size_t ranks, const LowRank<R>& compressor, const Residual&,
          std::uint64_t, const std::vector<double>& first_q)
      : power_(plain(layout, compressor), static_cast<int>(ranks), {.keep_lost_columns = true},
               Arena<double>(at(layout.size())), initial(plain(layout, compressor), first_q)),
        compressed_(power_.layout.filter(layout.range(), true)) {}

  const std::vector<Piece>& compressed() const { return compressed_.pieces(); }
  static constexpr bool seeds() { return false; }

  Arrived exchange(std::uint64_t, float, const std::vector<Arena<double>>& messages,
                   const std::vector<std::uint64_t>&) {
    power_.parameters.assign(power_.parameters.size(), 0.0);
    power_.step(messages, 1);
    Arena<double> mean = power_.parameters;
    for (double& value : mean) value = -value;
    return {std::vector<Arena<double>>(messages.size(), mean), {}};
  }

 private:
  static Layout plain(const Layout& layout, const LowRank<R>& compressor) {
    Layout copy;
    for (const Segment& segment : layout.segments())
      copy.add({segment.name, segment.shape, 1, 0, segment.compress && compressor.takes(segment)});
    return copy;
  }
  static std::vector<std::vector<double>> initial(const Layout& layout, const std::vector<double>& first_q) {
    std::vector<std::vector<double>> q;
    std::size_t begin = 0;
    for (const Segment& segment : layout.segments()) {
      std::vector<double>& own = q.emplace_back();
      if (!segment.compress) continue;
      const std::size_t columns = reference::matrix_shape(segment).columns;
      const std::size_t apart = at(aligned(static_cast<index_t>(columns)));
      for (std::size_t b = 0; b < columns; ++b)
        for (std::size_t r = 0; r < R; ++r) own.push_back(first_q.at(begin + r * apart + b));
      begin += R * apart;
    }
    return q;
  }

  PowerSgd power_;
  Range compressed_;
};

/// What an oracle must know beside the recipe.
struct RunOptions {
  std::uint64_t seed = 0;
  float clip_norm = std::numeric_limits<float>::infinity();
  std::vector<double> first_q{};  ///< of LowRank
  /// Elements at which it is 0 are left out of a second stage; empty: none.
  std::vector<std::uint8_t> mask{};
};

/// Averaging or Staged on all ranks.
///
/// Rates are those of the stage whose rules a segment follows. Buffers of one name are one buffer in both stages, but not
/// those of a momentum correction and of a preconditioner.
template <class Parts_>
class Composition {
  using First = typename Parts_::First;
  using Second = typename Parts_::Second;
  using C = typename Parts_::Compressor;
  using F = typename Parts_::Feedback;

 public:
  /// Each rank keeps its own; what must be equal comes out equal.
  struct Rank {
    Arena<double> parameters;
    Buffers momenta, scales;  ///< of the momentum corrections and of the preconditioners
    Buffers of_layers;        ///< what both keep of each layer
  };

  std::vector<Rank> ranks;

  template <class Values>
  Composition(Parts_ parts, Layout layout, std::size_t count, const Values& start, const RunOptions& options)
      : parts_(std::move(parts)),
        layout_(std::move(layout)),
        options_(options),
        is_compressed_(at(layout_.size()), 0),
        mask_(at(layout_.size() / alignment), ~std::uint64_t{0}) {
    ranks.resize(count);
    for (Rank& rank : ranks) rank.parameters.assign(start.begin(), start.end());
    if constexpr (!C::lossless) {
      packets_.emplace(layout_, count, parts_.compressor, parts_.error_feedback, options.seed,
                       options.first_q);
      for (const Piece& piece : packets_->compressed())
        for (index_t i = piece.offset; i < piece.offset + piece.count; ++i) is_compressed_[at(i)] = 1;
      if (packets_->seeds()) parts_.exact_steps = std::max<std::uint64_t>(parts_.exact_steps, 1);
      if (parts_.staged && parts_.exact_steps == 0)
        for (std::size_t k = 0; k < options.mask.size(); ++k)
          if (options.mask[k] == 0) leave_out(k);
    }
  }

  /// Of both stages.
  void learning_rate(float rate) { parts_.first.learning_rate = parts_.second.learning_rate = rate; }

  /// `gradients[rank][k]`
  template <class Gradients>
  void step(const Gradients& gradients) {
    ++steps_;
    std::vector<Arena<double>> g = read_gradients<double>(layout_, ranks.size(), gradients);
    if (C::lossless || steps_ <= parts_.exact_steps) {
      step_exactly(g);
      if (parts_.staged && steps_ == parts_.exact_steps) go_over();
    } else {
      step_compressed(g);
    }
  }

 private:
  /// The two rules of a stage in one step on one rank.
  template <class Stage>
  struct Seats {
    Seat<typename Stage::Momentum> momentum;
    Seat<typename Stage::Preconditioner> preconditioner;
    Seats(const Stage& stage, std::uint64_t step, Rank& rank, const Layout& layout)
        : momentum(stage.momentum_correction, step, rank.momenta, rank.of_layers, layout),
          preconditioner(stage.preconditioner, step, rank.scales, rank.of_layers, layout) {}
  };

  struct Exactly {};

  void step_exactly(const std::vector<Arena<double>>& g) {
    Arena<double> mean = mean_of(g);
    if constexpr (!C::lossless)
      if constexpr (Packets<C, F>::seeds())
        for (std::size_t r = 0; r < ranks.size(); ++r) packets_->seed(r, g[r], mean);
    const double factor =
        clip_factor(static_cast<double>(options_.clip_norm), std::sqrt(squared_norm(layout_, mean)));
    for (double& value : mean) value *= factor;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const Seats<First> seats(parts_.first, steps_, ranks[r], layout_);
      Arena<double> u(mean.size());
      for_each_element(layout_, [&](const Segment& segment, std::size_t k) {
        u[k] = step_of<true>(parts_.first, seats, segment, k, ranks[r], g[r][k], mean[k]);
      });
      const Seats<Second> next(parts_.second, steps_, ranks[r], layout_);
      for (const Segment& segment : layout_.segments())
        if (parts_.staged)
          move(segment, parts_.first, seats.preconditioner, ranks[r], g[r], u, next.preconditioner);
        else
          move(segment, parts_.first, seats.preconditioner, ranks[r], g[r], u);
    }
  }

  void step_compressed(std::vector<Arena<double>>& g) {
    if constexpr (!C::lossless) {
      // Before compression ranks agree on one factor, from what all of them have.
      double square = 0;
      for (const Arena<double>& one : g) square += squared_norm(layout_, one);
      const double factor = static_cast<double>(static_cast<float>(clip_factor(
          static_cast<double>(options_.clip_norm), std::sqrt(square / static_cast<double>(ranks.size())))));
      for (Arena<double>& one : g)
        for (double& value : one) value *= factor;
      const Arena<double> exact = mean_of(g);

      std::vector<Arena<double>> messages;
      for (std::size_t r = 0; r < ranks.size(); ++r) messages.push_back(message_of(ranks[r], g[r]));
      const float rate = parts_.second.learning_rate;
      const Arrived arrived = packets_->exchange(steps_, rate, messages, mask_);

      // An error that follows the rate waits where nothing moves: what is sent counts for nothing.
      bool waits = false;
      if constexpr (requires { parts_.error_feedback.follows_rate; })
        waits = parts_.error_feedback.follows_rate && rate == 0;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        tell_what_was_sent(ranks[r], g[r], arrived, r, waits);
        const Seats<First> first(parts_.first, steps_, ranks[r], layout_);
        const Seats<Second> second(parts_.second, steps_, ranks[r], layout_);
        Arena<double> u(exact.size());
        for_each_element(layout_, [&](const Segment& segment, std::size_t k) {
          if (is_compressed_[k] == 0)
            u[k] = step_of<true>(parts_.first, first, segment, k, ranks[r], g[r][k], exact[k]);
          else if (!waits)
            u[k] = step_of<false>(parts_.second, second, segment, k, ranks[r], g[r][k], arrived.means[r][k]);
        });
        for (const Segment& segment : layout_.segments()) {
          if (is_compressed_[at(segment.offset)] == 0)
            move(segment, parts_.first, first.preconditioner, ranks[r], g[r], u);
          else if (!waits)
            move(segment, parts_.second, second.preconditioner, ranks[r], g[r], u);
        }
      }
    }
  }

  Arena<double> message_of(Rank& rank, const Arena<double>& g) {
    const Seats<Second> seats(parts_.second, steps_, rank, layout_);
    Arena<double> messages(g.size());
    for_each_element(layout_, [&](const Segment& segment, std::size_t k) {
      if (is_compressed_[k] == 0) return;
      const Element e = element(parts_.second, seats.momentum, segment, k, rank, g[k]);
      if constexpr (requires { seats.momentum.rule.message(e); })
        messages[k] = seats.momentum.rule.message(e);
      else
        messages[k] = e.g();
    });
    return messages;
  }

  void tell_what_was_sent(Rank& rank, const Arena<double>& g, const Arrived& arrived, std::size_t r,
                          bool waits) {
    const Seats<Second> seats(parts_.second, steps_, rank, layout_);
    for_each_element(layout_, [&](const Segment& segment, std::size_t k) {
      const Element e = element(parts_.second, seats.momentum, segment, k, rank, g[k]);
      if constexpr (requires { seats.momentum.rule.sent(e, true, 0.0); })
        if (is_compressed_[k] != 0)
          seats.momentum.rule.sent(e, keeps(k), waits ? 0.0 : arrived.decoded.at(r)[k]);
    });
  }

  /// The step u of an element, from a mean of gradients (Exact) or of messages.
  template <bool Exact, class Stage>
  double step_of(const Stage& stage, const Seats<Stage>& seats, const Segment& segment, std::size_t k,
                 const Rank& rank, double g, double mean) const {
    const Element m = element(stage, seats.momentum, segment, k, rank, g);
    const Element p = element(stage, seats.preconditioner, segment, k, rank, g);
    double direction = 0, gradient = mean;
    if constexpr (!Exact && requires { seats.momentum.rule.mean_gradient(m, mean); })
      gradient = seats.momentum.rule.mean_gradient(m, mean);
    if constexpr (Exact && requires { seats.momentum.rule.exact_direction(m, mean); })
      direction = seats.momentum.rule.exact_direction(m, mean);
    else
      direction = seats.momentum.rule.direction(m, mean);
    return seats.preconditioner.rule.step(p, gradient, direction);
  }

  /// x = x - rate (u + decay x) in a segment, or as a layer-wise preconditioner wants it.
  /// What the second stage's preconditioner observes of the first one is asked of `observer`.
  template <class Stage, class Preconditioner, class Observer = Exactly>
  void move(const Segment& segment, const Stage& stage, const Preconditioner& seat, Rank& rank,
            const Arena<double>& g, const Arena<double>& u,
            [[maybe_unused]] const Observer& observer = {}) const {
    using P = typename Stage::Preconditioner;
    const std::size_t begin = at(segment.offset), end = at(segment.offset + segment.count);
    if (begin == end) return;
    const Element any = element(stage, seat, segment, begin, rank, g[begin]);
    if constexpr (!P::facts.layer_wise) {
      for (std::size_t k = begin; k < end; ++k)
        rank.parameters[k] -= any.rate() * (u[k] + any.decay() * rank.parameters[k]);
    } else {
      double rate = any.rate();
      if (segment.shape.size() >= P::facts.least_dimensions) {
        using Rule = typename P::template Rule<double>;
        const std::vector<double> statistics =
            statistics_of(typename Rule::measures{}, seat.rule, begin, end, [&](std::size_t k) {
              return std::pair{element(stage, seat, segment, k, rank, g[k]), u[k]};
            });
        const double factor = seat.rule.factor(Layer{statistics, any.decay(), seat.numbers_of(segment)});
        rate *= factor;
        if constexpr (!std::is_same_v<Observer, Exactly>)
          if constexpr (requires(const Layer& layer) { observer.rule.observe(layer, factor); })
            observer.rule.observe(Layer{statistics, any.decay(), observer.numbers_of(segment)}, factor);
      }
      for (std::size_t k = begin; k < end; ++k) {
        const Element e = element(stage, seat, segment, k, rank, g[k]);
        if constexpr (requires { seat.rule.move(e, rate, rate); })
          rank.parameters[k] -= seat.rule.move(e, u[k], rate);
        else
          rank.parameters[k] -= rate * (u[k] + e.decay() * e.x());
      }
    }
  }

  template <class... S, class Rule, class Kept>
  static std::vector<double> statistics_of(Statistics<S...>, const Rule& rule, std::size_t begin,
                                           std::size_t end, const Kept& kept) {
    int place = 0;
    const auto values = [&](int k) {
      std::vector<double> all;
      for (std::size_t i = begin; i < end; ++i) {
        const auto [e, u] = kept(i);
        all.push_back(rule.measured(k, e, u));
      }
      return all;
    };
    return {measured_as(S{}, values(place++))...};
  }

  /// From the first stage to the second one.
  void go_over() {
    for (Rank& rank : ranks) {
      const Seats<First> first(parts_.first, steps_, rank, layout_);
      const Seats<Second> second(parts_.second, steps_, rank, layout_);
      for_each_element(layout_, [&](const Segment& segment, std::size_t k) {
        if (is_compressed_[k] == 0) return;
        const Element from = element(parts_.first, first.preconditioner, segment, k, rank, 0);
        const Element to = element(parts_.second, second.preconditioner, segment, k, rank, 0);
        const Element m = element(parts_.second, second.momentum, segment, k, rank, 0);
        bool part = true;
        const bool wanted = options_.mask.empty() || options_.mask[k] != 0;
        if constexpr (requires { second.preconditioner.rule.carry(to, 0.0); })
          second.preconditioner.rule.carry(to, wanted ? first.preconditioner.rule.denominator(from) : 0.0);
        if constexpr (requires { second.preconditioner.rule.takes_part(to); })
          part = second.preconditioner.rule.takes_part(to);
        part = part && wanted;
        if constexpr (requires { second.momentum.rule.carry(m, part); }) {
          second.momentum.rule.carry(m, part);
        } else if (!wanted) {
          for (const char* name : Second::Momentum::state) rank.momenta.at(name)[k] = 0;
        }
        if (!part) leave_out(k);
      });
      AllLayers layers{{}, layout_, second.momentum.numbers};
      if constexpr (requires { second.momentum.rule.balance(layers); }) {
        for (const Segment& segment : layout_.segments()) {
          std::vector<double> kept;
          for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k)
            if (is_compressed_[k] != 0) kept.push_back(second.momentum.buffers.at(0)[k]);
          layers.norms.push_back(measured_as(EuclideanNorm{}, kept));
        }
        second.momentum.rule.balance(layers);
      }
    }
  }

  void leave_out(std::size_t k) { mask_[k / at(alignment)] &= ~(std::uint64_t{1} << k % at(alignment)); }
  bool keeps(std::size_t k) const { return (mask_[k / at(alignment)] >> k % at(alignment) & 1) != 0; }

  template <class Stage, class Seat>
  static Element element(const Stage& stage, const Seat& seat, const Segment& segment, std::size_t k,
                         const Rank& rank, double g) {
    return seat.element(segment, k, rank.parameters[k], g, stage.learning_rate, stage.weight_decay);
  }

  Parts_ parts_;
  Layout layout_;
  RunOptions options_;
  std::uint64_t steps_ = 0;
  std::vector<char> is_compressed_;
  std::vector<std::uint64_t> mask_;  // of the second stage
  std::optional<std::conditional_t<C::lossless, Exactly, Packets<C, F>>> packets_;
};

/// The oracle of a recipe.
template <class R, class Values>
auto composition(const R& recipe, const Layout& layout, int ranks, const Values& start,
                 const RunOptions& options = {}) {
  auto parts = parts_of(recipe);
  return Composition<decltype(parts)>(parts, layout, at(ranks), start, options);
}

}  // namespace terse::reference
