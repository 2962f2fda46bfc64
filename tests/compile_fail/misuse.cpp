// SPDX-License-Identifier: Apache-2.0

// Each CASE_ macro selects a misuse, which must not compile and must say why in words; without any (and without MISUSED)
// the same program, done right, must compile. Run by check.py.

#include "terse/exchange/low_rank_round.hpp"
#include "terse/executor/parallel.hpp"
#include "terse/optimizer/carry_over.hpp"
#include "terse/terse.hpp"

namespace {

/// A compressor that has all but wire_bytes.
struct Silent {
  static constexpr bool lossless = true;
  static constexpr bool unbiased = true;
#if !defined(CASE_NO_WIRE_BYTES)
  terse::index_t wire_bytes(const terse::Range& range) const { return terse::Dense{}.wire_bytes(range); }
#endif
  using Code = terse::Dense::Code;
};

/// A quantizer that can write but not read.
struct Halves {
  using Statistic = terse::MeanAbs;
  static constexpr int bits = 1;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;
  static std::uint32_t code(float x, float, std::uint32_t) { return x < 0 ? 0U : 1U; }
#if !defined(CASE_NO_VALUE)
  static float value(std::uint32_t code, float scale) { return code != 0 ? scale : -scale; }
#endif
};

/// A mixing rule that misspells one of its facts.
struct Misspelt : terse::MixedGradient {
#if defined(CASE_MISSPELT_FACTS)
  static constexpr terse::MixingFacts facts{.vektors = 1};
#endif
};

/// A recipe that does not say its hyper-parameters.
struct Mute {
  void check() const {}
#if !defined(CASE_NO_SETTINGS)
  template <class Visit>
  void settings(Visit&&) const {}
#endif
  template <terse::Executor E>
  struct State {
    State(const Mute&, E, terse::Channel&, const terse::Layout&, const terse::Options&) {}
    bool full_precision() const { return true; }
    template <class Visit>
    void walk(Visit&&) {}
  };
  template <class Input, class State, class Scalars>
  void prepare(const Input&, State&, Scalars&) const {}
  template <class Input, class State>
  void enqueue(const Input&, State&) const {}
  template <class Input, class State>
  void complete(const Input&, State&) const {}
};

/// A transport that has batches and no mailboxes.
struct Pipes {
  using memory = terse::memory::host;
  struct Ticket {
    Ticket(Ticket&&) = default;
    Ticket& operator=(Ticket&&) = default;
    bool ready();
    void wait();
    void wait(std::chrono::milliseconds);
  };
  int rank() const;
  int size() const;
  Ticket exchange(std::span<const terse::Send>, std::span<const terse::Receive>, terse::Phase);
  Pipes split(int, int);
};

/// An executor of kernels, without terse/device.hpp.
struct Kernels {
  using memory = terse::memory::device;
  static constexpr bool grid = true;
};
static_assert(terse::GridExecutor<Kernels>);

using Team = terse::executor::parallel;

/// A momentum correction; its arithmetic may be that of float alone.
struct Straight {
  static constexpr terse::CorrectionFacts facts{};
  static constexpr std::array<const char*, 0> state{};
#if defined(CASE_RULE_IN_ONE_PRECISION)
  template <std::same_as<float> Real>
#else
  template <class Real>
#endif
  struct Rule {
    template <class Element>
    Real direction(const Element&, Real mean) const {
      return mean;
    }
  };
};

/// A layer-wise preconditioner that measures one statistic.
template <class Measured>
struct Evenly {
  static constexpr terse::PreconditionerFacts facts{.layer_wise = true};
  static constexpr std::array<const char*, 0> state{};
  template <class Real>
  struct Rule {
    using measures = terse::Statistics<Measured>;
    template <class Element>
    Real step(const Element&, Real, Real direction) const {
      return direction;
    }
    template <class Element>
    Real measured(int, const Element&, Real u) const {
      return u;
    }
    template <class Layer>
    Real factor(const Layer& layer) const {
      return layer.measured(0);
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {};
  }
};

[[maybe_unused]] float first(terse::view<const float> values) { return values[0]; }

/// A stage that has all but its loss.
struct Passes {
  terse::index_t input_elements() const { return 0; }
  terse::index_t output_elements() const { return 0; }
  const float* forward(const terse::MicroBatch&, const float* input) { return input; }
  const float* backward(const terse::MicroBatch&, const float* gradient) { return gradient; }
};
struct Stage : Passes {
  double loss(const terse::MicroBatch&) { return 0; }
};

/// A boundary's policy that has all but its settings.
struct NoSettings {
  [[maybe_unused]] static constexpr bool remembers = false;
  terse::Dense dense;
  const terse::Dense& whole() const { return dense; }
  const terse::Dense& gradients() const { return dense; }
  void check() const {}
};

/// A step of a model that is one stage.
template <class S = Stage, class Policy>
[[maybe_unused]] void train(const Policy& policy) {
  terse::ThreadGroup(1).run([&](terse::Threads& transport) {
    S stage;
    terse::Pipeline pipeline{policy, transport, stage, {.micro_batch = 1}};
    const std::vector<std::uint64_t> ids(1);
    pipeline.train(ids);
  });
}

template <class T, class... Branches>
void selected_over() {
  terse::ThreadGroup(1).run([&](terse::Threads& transport) {
    terse::Optimizer optimizer{terse::OneBitAdam<terse::Select<Branches...>, T>{}, transport,
                               terse::Layout::flat(1)};
  });
}
template <class... Branches>
void selected() {
  selected_over<terse::ScatterGather, Branches...>();
}

using terse::Uniform;
using Nearby = Uniform<4, terse::Nearest>;
using Unbiased = Uniform<8, terse::Stochastic, terse::Symmetric>;

}  // namespace

#if defined(CASE_GATHER_OF_NARROW_DIFFERENCES)
template class terse::Optimizer<terse::Sharded<terse::Adam<>, terse::GatherBy<terse::TopK<>>>, terse::Threads,
                                terse::executor::host, terse::Numbers<terse::bf16>>;
#endif

int main() {
  float number = 1;
  terse::view<float, terse::memory::device> device(&number, 1);
  terse::view<float> host(&number, 1);
  static_cast<void>(device);
  static_cast<void>(host);

#if defined(CASE_NO_WIRE_BYTES)
  {
    terse::OneBitAdam<Silent> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_BIASED_WITHOUT_FEEDBACK)
  {
    terse::OneBitAdam<terse::Sign, terse::FrozenVariance, terse::ScatterGather, terse::NoErrorFeedback>
        recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_DEVICE_VIEW_IN_STEP)
  {
    terse::ThreadGroup(1).run([&](terse::Threads& transport) {
      terse::Optimizer optimizer{terse::Adam<>{}, transport, terse::Layout::flat(1)};
      optimizer.step(device, device);
    });
  }
#endif
#if defined(CASE_DEVICE_VIEW_AS_HOST)
  { first(device); }
#endif
#if defined(CASE_DEVICE_ELEMENT_ON_HOST)
  {
    for (const float value : device) number += value;
  }
#endif
#if defined(CASE_ROUNDS_WITHOUT_DEVICE)
  { number += sizeof(terse::Envelope<Kernels>); }
#endif
#if defined(CASE_COMPRESSOR_WITHOUT_DEVICE)
  { number += sizeof(terse::TopK<>::Workspace<Kernels>); }
#endif
#if defined(CASE_PICKS_IN_PARALLEL)
  { number += sizeof(terse::TopK<>::Workspace<Team>); }
#endif
#if defined(CASE_LOW_RANK_IN_PARALLEL)
  { number += sizeof(terse::Optimizer<terse::PowerSgd<2>, terse::Threads, Team>); }
#endif
#if defined(CASE_MATRICES_IN_PARALLEL)
  { number += sizeof(terse::Optimizer<terse::Muon<>, terse::Threads, Team>); }
#endif
#if defined(CASE_SMALL_ERROR_IN_PARALLEL)
  { number += sizeof(terse::Bf16Residual::State<Team>); }
#endif
#if defined(CASE_KEYED_IN_PARALLEL)
  { number += sizeof(terse::Optimizer<terse::MoniquaSgd<>, terse::Threads, Team>); }
#endif
#if defined(CASE_NATIVE_WITHOUT_COLLECTIVES)
  { number += sizeof(terse::Optimizer<terse::LocalSgd<terse::MomentumSgd<terse::Native>>, terse::Threads>); }
#endif
#if defined(CASE_SWARM_WITHOUT_MAILBOX)
  { number += sizeof(terse::Optimizer<terse::AsyncSwarmSgd<terse::MomentumSgd<>>, Pipes>); }
#endif
#if defined(CASE_NO_VALUE)
  {
    terse::OneBitAdam<terse::Packed<Halves, terse::PerSegment>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_NO_SETTINGS)
  {
    terse::ThreadGroup(1).run([&](terse::Threads& transport) {
      terse::Optimizer optimizer{Mute{}, transport, terse::Layout::flat(1)};
    });
  }
#endif
#if defined(CASE_BLOCK_OFF_THE_WORD)
  {
    terse::OneBitAdam<terse::ScaledSign<terse::MeanAbs, terse::PerBlock<100>>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_DOUBLES_IN_STEP)
  {
    terse::ThreadGroup(1).run([&](terse::Threads& transport) {
      terse::Optimizer optimizer{terse::Adam<>{}, transport, terse::Layout::flat(1)};
      std::vector<double> parameters(64), gradients(64);
      optimizer.step(parameters, gradients);
    });
  }
#endif
#if defined(CASE_DOUBLES_IN_BEGIN)
  {
    terse::ThreadGroup(1).run([&](terse::Threads& transport) {
      terse::Optimizer optimizer{terse::Adam<>{}, transport, terse::Layout::flat(1)};
      std::vector<double> parameters(64), gradients(64);
      optimizer.begin(parameters, gradients);
    });
  }
#endif
#if defined(CASE_CONSTANT_PARAMETERS)
  {
    terse::ThreadGroup(1).run([&](terse::Threads& transport) {
      terse::Optimizer optimizer{terse::Adam<>{}, transport, terse::Layout::flat(1)};
      const std::vector<float> parameters(64);
      optimizer.step(parameters, parameters);
    });
  }
#endif
#if defined(CASE_SCALED_TWICE)
  {
    terse::QuantizedSgd<terse::UnbiasedRandomK, terse::HeavyBall, terse::ScatterGather> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_CARRIES_A_TRACKER)
  using Tracking = terse::Optimizer<terse::GradientTracking<>, terse::Threads>;
  static_cast<void>(&terse::carry_over<Tracking, Tracking>);
#endif
#if defined(CASE_GATHERED_IN_FULL_PRECISION)
  static_cast<void>(terse::Averaging<terse::Gathered<terse::WeightedMean>>{});
#endif
#if defined(CASE_GATHERED_WITH_DIFFERENCE)
  static_cast<void>(terse::Ef21Sgd<terse::TopK<>, terse::HeavyBall, terse::Gathered<terse::MedianClip>>{});
#endif
#if defined(CASE_SELECT_WITHOUT_FEEDBACK)
  selected<terse::Where<terse::IsMatrix, terse::TopK<>>,
           terse::Where<terse::AnySegment, terse::Sign, terse::NoErrorFeedback>>();
#endif
#if defined(CASE_SELECT_NO_BRANCH)
  selected<terse::Sign>();
#endif
#if defined(CASE_SELECT_NO_PREDICATE)
  selected<terse::Where<terse::Ring, terse::Sign>>();
#endif
#if defined(CASE_SELECT_KEYED)
  selected<terse::Otherwise<terse::Moniqua<8>>>();
#endif
#if defined(CASE_SELECT_IN_SELECT)
  selected<terse::Otherwise<terse::Select<terse::Otherwise<terse::Sign>>>>();
#endif
#if defined(CASE_SELECT_NOTHING_COMPRESSED)
  selected<terse::SmallerThan<64>, terse::Otherwise<terse::Dense>>();
#endif
#if defined(CASE_SELECT_BEHIND_OTHERWISE)
  selected<terse::SmallerThan<64>, terse::Otherwise<terse::Sign>,
           terse::Where<terse::IsMatrix, terse::TopK<>>>();
#endif
#if defined(CASE_SELECT_OWN_COPIES)
  selected<terse::Where<terse::IsMatrix, terse::TopK<>, terse::Ef21>, terse::Otherwise<terse::Sign>>();
#endif
#if defined(CASE_SELECT_ON_A_GRAPH)
  {
    terse::ThreadGroup(1).run([&](terse::Threads& transport) {
      terse::Optimizer optimizer{terse::DeepSqueeze<terse::Select<terse::Otherwise<terse::Sign>>>{},
                                 transport, terse::Layout::flat(1)};
    });
  }
#endif
#if defined(CASE_SELECT_LOW_RANK_OVER_NODES)
  selected_over<terse::Hierarchical<>, terse::Where<terse::IsMatrix, terse::LowRank<2>>>();
#endif
#if defined(CASE_DIFFERENCE_RECOMPRESSED)
  {
    terse::Ef21Sgd<terse::TopK<>, terse::HeavyBall, terse::ScatterGather> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_DIFFERENCE_WITHOUT_CONTRACTION)
  {
    terse::Ef21Sgd<terse::Sign> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_CONTROLLED_RECOMPRESSED)
  static_cast<void>(terse::EControl<terse::ScatterGather>{});
#endif
#if defined(CASE_WITHIN_WITHOUT_COMPRESSOR)
  static_cast<void>(terse::Adam<terse::Hierarchical<terse::Within<terse::Uniform<8>>>>{});
#endif
#if defined(CASE_WITHIN_BACK_BIASED)
  static_cast<void>(terse::Within<terse::Uniform<8>, terse::Residual, terse::Sign>{});
#endif
#if defined(CASE_GROWING_RESIDUAL)
  {
    terse::ErrorFeedbackSgd<terse::Qsgd<4>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_SMALL_ERROR_OF_A_SEGMENT)
  {
    terse::ErrorFeedbackSgd<terse::Sign, terse::HeavyBall, terse::ScatterGather, terse::Bf16Residual> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_DECENTLAM_ON_A_CHANGING_GRAPH)
  {
    terse::DecentLaM<terse::Mixing<terse::graph::OnePeerHypercube>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_CONSENSUS_ON_A_DIRECTED_GRAPH)
  {
    terse::MomentumConsensus<terse::Mixing<terse::graph::DirectedExponential>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_D2_ON_A_CHANGING_GRAPH)
  {
    terse::D2<terse::Mixing<terse::graph::OnePeerHypercube>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_D2_NOT_LAZY)
  {
    terse::ParameterMixing<terse::ExactDiffusion<terse::GradientDirection>, terse::Mixing<terse::graph::Ring>>
        recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_SECOND_VECTOR_WITH_DECAY)
  {
    terse::ParameterMixing<terse::DoublyAveraged, terse::Gossip, terse::TopK<>, terse::Ef21,
                           terse::CoupledDecay>
        recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_OUTER_MEAN_OF_PUSH_SUM)
  {
    terse::SlowMo<terse::StochasticGradientPush<terse::graph::DirectedList>, terse::Inside::together> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_MEAN_NOT_KEPT)
  {
    terse::DmSgd<terse::Mixing<terse::graph::RowStochasticMatrix>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_PUSH_SUM_WITH_ANY_METHOD)
  {
    terse::QgDmSgd<terse::Mixing<terse::graph::PushSum<terse::graph::Ring>>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_COPIES_ON_A_CHANGING_GRAPH)
  {
    terse::ChocoSgd<terse::TopK<>, terse::Mixing<terse::graph::RandomMatching>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_CHANGES_WITHOUT_CONTRACTION)
  train(terse::AcSgd<Uniform<2, terse::Stochastic, terse::Symmetric>, Unbiased>{.capacity = 1});
#endif
#if defined(CASE_BIASED_GRADIENTS)
  train(terse::AcSgd<Nearby, Nearby>{.capacity = 1});
#endif
#if defined(CASE_ROWS_OF_VARIABLE_SIZE)
  train(terse::AcSgd<terse::Unchecked<terse::Threshold<>>, Unbiased>{.capacity = 1});
#endif
#if defined(CASE_ROWS_WITH_COMPANIONS)
  train(terse::DirectActivations<Uniform<4, terse::Nearest, terse::Asymmetric, terse::MaxAbs, terse::Whole>,
                                 Unbiased>{});
#endif
#if defined(CASE_ROWS_IN_ROUNDS)
  train(terse::DirectActivations<terse::LowRank<4>, Unbiased>{});
#endif
#if defined(CASE_BLOCKS_OF_PICKS)
  train(terse::AcSgd<terse::TopK<>, Unbiased, terse::InMemory<terse::Int8>>{.capacity = 1});
#endif
#if defined(CASE_TWO_FOLLOW_THE_RATE)
  {
    terse::SlowMo<terse::LocalSgd<terse::MomentumSgd<>>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_POLICY_INSIDE)
  {
    terse::DiLoCo<terse::Ring> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_TOGETHER_IN_DILOCO)
  {
    terse::DiLoCo<terse::DmSgd<>, terse::Inside::together> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_DILOCO_ON_A_CHANGING_GRAPH)
  static_cast<void>(terse::DiLoCo<terse::MomentumSgd<>, terse::Mixing<terse::graph::OnePeerExponential>>{});
#endif
#if defined(CASE_DILOCO_COMPRESSED_OVER_A_GRAPH)
  static_cast<void>(terse::DiLoCo<terse::MomentumSgd<>, terse::Gossip, terse::Uniform<8>>{});
#endif
#if defined(CASE_BARE_QUANTIZER)
  static_cast<void>(terse::Adam<terse::quantizer::SignBit<terse::MeanAbs>>{});
#endif
#if defined(CASE_BARE_SELECTION)
  static_cast<void>(terse::ErrorFeedbackSgd<terse::Largest>{});
#endif
#if defined(CASE_BARE_SELECTION_CHECKED)
  static_cast<void>(terse::check_compressor<terse::Strata<false>>());
#endif
#if defined(CASE_MISSPELT_FACTS)
  static_cast<void>(terse::ParameterMixing<Misspelt>{});
#endif
#if defined(CASE_MIXING_RULE_IN_A_MEAN)
  static_cast<void>(terse::Averaging<terse::MixedGradient>{});
#endif
#if defined(CASE_MOMENTUM_IN_A_MIXTURE)
  static_cast<void>(terse::ParameterMixing<terse::HeavyBall>{});
#endif
#if defined(CASE_COMPRESSED_NATIVE)
  static_cast<void>(terse::OneBitAdam<terse::Native>{});
#endif
#if defined(CASE_OVERLAP_AROUND_LOCAL)
  {
    terse::OverlapLocalSgd<terse::LocalSgd<terse::MomentumSgd<>>> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_PLAIN_AVERAGE_IN_FRAGMENTS)
  static_cast<void>(terse::LocalUpdatesFrom<terse::MomentumSgd<>, terse::PlainAverage, terse::Streaming>{});
#endif
#if defined(CASE_PULL_BACK_IN_FRAGMENTS)
  static_cast<void>(terse::LocalUpdatesFrom<terse::MomentumSgd<>, terse::PullBack, terse::Streaming>{});
#endif
#if defined(CASE_LATE_MOMENTUM_AT_ONCE)
  static_cast<void>(terse::LocalUpdatesFrom<terse::MomentumSgd<>, terse::LateMomentum>{});
#endif
#if defined(CASE_OVERLAP_ON_A_RING)
  static_cast<void>(terse::OverlapLocalSgd<terse::MomentumSgd<>, terse::PullBack, terse::Ring>{});
#endif
#if defined(CASE_BOUNDARY_WITHOUT_SETTINGS)
  train(NoSettings{});
#endif
#if defined(CASE_HALF_OF_A_FLOAT)
  static_cast<void>(terse::bf16(1.5F));
#endif
#if defined(CASE_STAGE_WITHOUT_LOSS)
  train<Passes>(terse::ExactActivations{});
#endif
#if defined(CASE_TWO_COMPRESSORS)
  static_cast<void>(terse::OneBitAdam<terse::Sign, terse::Ring, terse::TopK<>>{});
#endif
#if defined(CASE_TWO_TOPOLOGIES)
  static_cast<void>(terse::Adam<terse::Ring, terse::AllGather>{});
#endif
#if defined(CASE_TWO_FEEDBACKS)
  static_cast<void>(terse::ErrorFeedbackSgd<terse::Residual, terse::Ef21>{});
#endif
#if defined(CASE_TWO_CORRECTIONS)
  static_cast<void>(terse::Averaging<terse::HeavyBall, terse::Sign, terse::ExponentialAverage>{});
#endif
#if defined(CASE_HIDDEN_IN_A_LOCAL_DIRECTION)
  static_cast<void>(terse::AdaptThenCombine<
                    terse::Locally<terse::ForHiddenMatrices<terse::HeavyBall, terse::ExponentialAverage>>>{});
#endif
#if defined(CASE_ROW_MOMENTUM_IN_A_LOCAL_DIRECTION)
  static_cast<void>(terse::AdaptThenCombine<terse::Locally<terse::RowMomentum>>{});
#endif
#if defined(CASE_SPARSE_LOCO_WITHOUT_A_MEMORY)
  {
    terse::SparseLoCo<terse::Adam<>, terse::Tiles<>, terse::Ef21> recipe;
    static_cast<void>(recipe);
  }
#endif
#if defined(CASE_COCKTAIL_WITH_A_MEMORY)
  {
    terse::CocktailSgd<terse::Adam<>, terse::TopK<>, terse::Residual> recipe;
    static_cast<void>(recipe.composition());
  }
#endif
#if defined(CASE_COCKTAIL_OF_FACTORS)
  {
    terse::CocktailSgd<terse::Adam<>, terse::LowRank<2>> recipe;
    static_cast<void>(recipe.composition());
  }
#endif
#if defined(CASE_COCKTAIL_OF_NODES)
  {
    terse::CocktailSgd<terse::Adam<>, terse::TopK<>, terse::OwnersResidual, terse::Hierarchical<>> recipe;
    static_cast<void>(recipe.composition());
  }
#endif
#if defined(CASE_OWNERS_RESIDUAL_ALONE)
  static_cast<void>(terse::Averaging<terse::TopK<>, terse::OwnersResidual>{});
#endif
#if defined(CASE_SHARDED_POLICY)
  static_cast<void>(sizeof(terse::Sharded<terse::TopK<>>));
#endif
#if defined(CASE_SHARDED_COMPRESSED)
  static_cast<void>(sizeof(terse::Sharded<terse::Adam<terse::TopK<>>>));
#endif
#if defined(CASE_SHARDED_LOCAL)
  static_cast<void>(sizeof(terse::Sharded<terse::LocalSgd<terse::Adam<>>>));
#endif
#if defined(CASE_SHARDED_LAYER_NUMBERS)
  static_cast<void>(sizeof(terse::Sharded<terse::Averaging<terse::BalancedAverage>>));
#endif
#if defined(CASE_SHARDED_ON_A_RING)
  static_cast<void>(sizeof(terse::Sharded<terse::Adam<terse::Ring>>));
#endif
#if defined(CASE_SHARDED_LOW_RANK)
  static_cast<void>(sizeof(terse::Sharded<terse::Adam<>, terse::LowRank<1>>));
#endif
#if defined(CASE_SHARDED_DIFFERENCE)
  static_cast<void>(sizeof(terse::Sharded<terse::Adam<>, terse::TopK<>, terse::Ef21>));
#endif
#if defined(CASE_SHARDED_INSIDE_LOCAL)
  static_cast<void>(sizeof(terse::LocalSgd<terse::Sharded<terse::Adam<>>>));
#endif
#if defined(CASE_GATHER_OF_FACTORS)
  static_cast<void>(sizeof(terse::Sharded<terse::Adam<>, terse::GatherBy<terse::LowRank<1>>>));
#endif
#if defined(CASE_GATHER_THAT_GROWS)
  static_cast<void>(sizeof(terse::Sharded<terse::Adam<>, terse::GatherBy<terse::UnbiasedRandomK>>));
#endif
#if defined(CASE_TWO_GATHERS)
  static_cast<void>(sizeof(terse::Sharded<terse::Adam<>, terse::GatherBy<>, terse::GatherBy<terse::TopK<>>>));
#endif
#if defined(CASE_TWO_PRECONDITIONERS)
  static_cast<void>(terse::Averaging<terse::SignStep, terse::AdamVariance>{});
#endif
#if defined(CASE_NO_POLICY)
  static_cast<void>(terse::Lion<int>{});
#endif
#if defined(CASE_FIXED_BY_ITS_NAME)
  static_cast<void>(terse::Adam<terse::HeavyBall>{});
#endif
#if defined(CASE_VOTES_ON_A_RING)
  static_cast<void>(terse::SignSgd<terse::Ring>{});
#endif
#if defined(CASE_TIE_WITHOUT_ZERO)
  static_cast<void>(terse::DistributedLion<terse::Unchecked<terse::UnitSign>>{}.composition());
#endif
#if defined(CASE_MEAN_OF_SIGNS_AGAIN)
  static_cast<void>(terse::AveragedLion<terse::ScatterGather>{}.composition());
#endif
#if defined(CASE_TILES_OF_NO_PICKS)
  static_cast<void>(terse::DeMo<terse::Dct<64, terse::Sign>>{});
#endif
#if defined(CASE_MOMENTUM_WITHOUT_DECAY)
  static_cast<void>(terse::DeMo<terse::Ef21>{});
#endif
#if defined(CASE_MEAN_OF_NEIGHBOURS)
  static_cast<void>(terse::Adam<terse::Gossip>{});
#endif
#if defined(CASE_NEVER_FREEZES)
  static_cast<void>(terse::OneBitAdam<terse::AdamVariance>{});
#endif
#if defined(CASE_MASK_WITHOUT_STAGES)
  terse::ThreadGroup(1).run([](terse::Threads& transport) {
    terse::Optimizer optimizer{terse::Adam<terse::Sign>{}, transport, terse::Layout::flat(64)};
    optimizer.mask(std::vector<std::uint8_t>(64, 1));
  });
#endif
#if defined(CASE_DIRECTION_BESIDE_A_RULE)
  static_cast<void>(terse::ParameterMixing<terse::MixedGradient, terse::MomentumDirection>{});
#endif
#if defined(CASE_DIFFERENCE_IN_A_SECOND_STAGE)
  terse::ThreadGroup(1).run([](terse::Threads& transport) {
    terse::Optimizer optimizer{terse::OneBitAdam<terse::TopK<>, terse::Ef21>{}, transport,
                               terse::Layout::flat(1)};
  });
#endif
#if defined(CASE_STAGES_OF_ONE_KIND)
  static_cast<void>(terse::Staged<terse::Averaging<>, terse::Averaging<terse::HeavyBall>>{});
#endif
#if defined(CASE_RULE_IN_ONE_PRECISION)
  static_cast<void>(terse::Averaging<Straight>{});
#endif
#if defined(CASE_STATISTICS_OF_OTHER_KINDS)
  terse::ThreadGroup(1).run([&](terse::Threads& transport) {
    terse::Optimizer other{terse::Staged<terse::Averaging<Evenly<terse::EuclideanNorm>>,
                                         terse::Averaging<Evenly<terse::MaxAbs>, terse::Sign>>{},
                           transport, terse::Layout::flat(1)};
  });
#endif
#if defined(CASE_ORTHOGONAL_STAGES)
  terse::ThreadGroup(1).run([&](terse::Threads& transport) {
    terse::Optimizer optimizer{terse::Staged<terse::Averaging<terse::NewtonSchulz>,
                                             terse::Averaging<terse::NewtonSchulz, terse::Sign>>{},
                               transport, terse::Layout::flat(1)};
  });
#endif
#if defined(CASE_HIDDEN_MESSAGES)
  static_cast<void>(
      terse::Averaging<terse::ForHiddenMatrices<terse::LocalMomentumBefore, terse::ExponentialAverage>>{});
#endif
#if defined(CASE_HIDDEN_OF_TWO_KINDS)
  static_cast<void>(terse::ForHiddenMatrices<terse::HeavyBall, terse::AdamVariance>{});
#endif
#if defined(CASE_MUON_BY_ELEMENT)
  static_cast<void>(terse::Muon<terse::AdamVariance>{});
#endif
#if defined(CASE_DION2_OF_WHOLE_MATRICES)
  static_cast<void>(terse::Dion2<terse::NewtonSchulz>{});
#endif
#if defined(CASE_ROWS_BY_ELEMENT)
  static_cast<void>(terse::Averaging<terse::RowMomentum, terse::AdamVariance>{}.composition());
#endif
#if !defined(MISUSED)
  // The twin of all of them.
  selected<terse::SmallerThan<64>, terse::Where<terse::IsMatrix, terse::TopK<>>,
           terse::Otherwise<terse::Sign>>();
  terse::ThreadGroup(1).run([&](terse::Threads& transport) {
    std::vector<float> parameters(64);
    const std::vector<float> gradients(64);
    terse::Optimizer adam{terse::Adam<>{}, transport, terse::Layout::flat(1)};
    adam.step(parameters, gradients);
    terse::Optimizer mute{Mute{}, transport, terse::Layout::flat(1)};
    mute.step(parameters, gradients);
  });
  static_cast<void>(terse::OneBitAdam<terse::Ring, terse::TopK<>, terse::Residual>{});
  static_cast<void>(terse::Averaging<Straight, terse::AdamVariance, terse::Sign>{});
  static_cast<void>(terse::Averaging<Evenly<terse::MaxAbs>>{});
  static_cast<void>(terse::SignSgd<terse::AllGather>{});
  static_cast<void>(terse::Averaging<terse::ForHiddenMatrices<terse::HeavyBall, terse::ExponentialAverage>,
                                     terse::ForHiddenMatrices<terse::PolarExpress, terse::AdamVariance>>{});
  static_cast<void>(terse::Muon<terse::AllGather, terse::PolarExpress>{});
  static_cast<void>(terse::Staged<terse::Averaging<>, terse::Averaging<terse::TopK<>>>{});
  terse::OneBitAdam<Silent> silent;
  terse::OneBitAdam<Silent, terse::FrozenVariance, terse::ScatterGather, terse::NoErrorFeedback> unbiased;
  terse::OneBitAdam<terse::Sign, terse::FrozenVariance, terse::ScatterGather, terse::Residual> corrected;
  terse::OneBitAdam<terse::Packed<Halves, terse::PerSegment>> halves;
  terse::OneBitAdam<terse::ScaledSign<terse::MeanAbs, terse::PerBlock<128>>> blocks;
  terse::QuantizedSgd<terse::UnbiasedRandomK, terse::HeavyBall, terse::AllGather> scaled;
  terse::Ef21Sgd<terse::TopK<>, terse::HeavyBall, terse::AllGather> contractive;
  terse::ErrorFeedbackSgd<terse::Unchecked<terse::Qsgd<4>>> growing;
  terse::ErrorFeedbackSgd<terse::Sign, terse::HeavyBall, terse::ScatterGather,
                          terse::Unchecked<terse::NoErrorFeedback>>
      daring;
  terse::ErrorFeedbackSgd<terse::ScaledSign<terse::MeanAbs, terse::PerBlock<256>>, terse::HeavyBall,
                          terse::ScatterGather, terse::Bf16Residual>
      small;
  using terse::Mixing;
  terse::DecentLaM<> symmetric;
  terse::DecentLaM<Mixing<terse::graph::Unchecked<terse::graph::OnePeerHypercube>>> diverging;
  terse::MomentumConsensus<Mixing<terse::graph::Torus>> torus;
  terse::D2<Mixing<terse::graph::Ring>> lazy;
  terse::ParameterMixing<terse::ExactDiffusion<terse::GradientDirection>,
                         Mixing<terse::graph::SymmetricMatrix>>
      decided_later;
  terse::StochasticGradientPush<terse::graph::OnePeerExponential> push;
  terse::QgDmSgd<Mixing<terse::graph::OnePeerExponential>> changing;
  terse::ChocoSgd<terse::TopK<>> copies;
  static_cast<void>(symmetric);
  static_cast<void>(diverging);
  static_cast<void>(torus);
  static_cast<void>(lazy);
  static_cast<void>(decided_later);
  static_cast<void>(push);
  static_cast<void>(changing);
  static_cast<void>(copies);
  static_cast<void>(scaled);
  static_cast<void>(contractive);
  static_cast<void>(growing);
  static_cast<void>(daring);
  static_cast<void>(small);
  static_cast<void>(silent);
  static_cast<void>(unbiased);
  static_cast<void>(corrected);
  static_cast<void>(halves);
  static_cast<void>(blocks);
  for (const float value : host) number += value;
  number += first(host);
  number += sizeof(terse::Optimizer<terse::OneBitAdam<>, terse::Threads, Team>);
  train(terse::ExactActivations{});
  train(terse::AcSgd<Nearby, Unbiased, terse::InMemory<terse::Int8>>{.capacity = 1});
  train(terse::AcSgd<terse::TopK<>, terse::UnbiasedRandomK>{.capacity = 1});
  train(terse::AcSgd<terse::Unchecked<Uniform<2, terse::Stochastic, terse::Symmetric>>,
                     terse::Unchecked<Nearby>>{.capacity = 1});
#endif
  return number > 0 ? 0 : 1;
}
