// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "options.hpp"

// The words of each choice, once, for parsing, for --help and for reports.

namespace train {

template <class Value>
struct Word {
  const char* word;
  Value value;
};

inline constexpr std::array graph_words{Word<Graph>{"ring", Graph::ring},
                                        Word<Graph>{"mesh", Graph::mesh},
                                        Word<Graph>{"torus", Graph::torus},
                                        Word<Graph>{"star", Graph::star},
                                        Word<Graph>{"complete", Graph::complete},
                                        Word<Graph>{"hypercube", Graph::hypercube},
                                        Word<Graph>{"exponential", Graph::exponential},
                                        Word<Graph>{"symmetric-exponential", Graph::symmetric_exponential},
                                        Word<Graph>{"one-peer-exponential", Graph::one_peer_exponential},
                                        Word<Graph>{"one-peer-hypercube", Graph::one_peer_hypercube},
                                        Word<Graph>{"random-matching", Graph::random_matching}};
inline constexpr std::array rate_schedule_words{Word<RateSchedule>{"cosine", RateSchedule::cosine},
                                                Word<RateSchedule>{"constant", RateSchedule::constant}};
inline constexpr std::array transport_words{
    Word<Transport>{"auto", Transport::automatic}, Word<Transport>{"threads", Transport::threads},
    Word<Transport>{"mpi", Transport::mpi}, Word<Transport>{"nccl", Transport::nccl},
    Word<Transport>{"staged", Transport::staged}};
inline constexpr std::array device_words{Word<Device>{"cpu", Device::cpu},
                                         Word<Device>{"cuda", Device::cuda}};
inline constexpr std::array topology_words{Word<Topology>{"scatter-gather", Topology::scatter_gather},
                                           Word<Topology>{"ring", Topology::ring},
                                           Word<Topology>{"all-gather", Topology::all_gather}};
inline constexpr std::array scale_words{Word<Scale>{"rms", Scale::rms},
                                        Word<Scale>{"mean-abs", Scale::mean_abs}};
inline constexpr std::array granularity_words{Word<Granularity>{"segment", Granularity::segment},
                                              Word<Granularity>{"block", Granularity::block},
                                              Word<Granularity>{"whole", Granularity::whole}};
inline constexpr std::array bias_correction_words{
    Word<BiasCorrection>{"none", BiasCorrection::none},
    Word<BiasCorrection>{"first-stage", BiasCorrection::first_stage}};
inline constexpr std::array non_finite_words{Word<NonFinite>{"throw", NonFinite::raise},
                                             Word<NonFinite>{"skip", NonFinite::skip},
                                             Word<NonFinite>{"zero", NonFinite::zero}};
inline constexpr std::array layer_kind_words{
    Word<LayerKind>{"dense", LayerKind::dense}, Word<LayerKind>{"sign", LayerKind::sign},
    Word<LayerKind>{"top-k", LayerKind::top_k}, Word<LayerKind>{"low-rank", LayerKind::low_rank}};

inline constexpr std::array inner_buffers_words{Word<InnerBuffers>{"keep", InnerBuffers::keep},
                                                Word<InnerBuffers>{"reset", InnerBuffers::reset},
                                                Word<InnerBuffers>{"average", InnerBuffers::average}};
inline constexpr std::array inputs_words{Word<Inputs>{"normalized", Inputs::normalized},
                                         Word<Inputs>{"unit", Inputs::unit}};
inline constexpr std::array model_words{Word<const char*>{"mlp", "mlp"}, Word<const char*>{"cnn", "cnn"}};

template <class Value, std::size_t Count>
const char* word_of(const std::array<Word<Value>, Count>& words, Value value) {
  for (const Word<Value>& entry : words)
    if (entry.value == value) return entry.word;
  return "?";
}

template <class Value, std::size_t Count>
std::string all_words(const std::array<Word<Value>, Count>& words, std::string_view separator) {
  std::string text;
  for (const Word<Value>& entry : words) {
    if (!text.empty()) text += separator;
    text += entry.word;
  }
  return text;
}

}  // namespace train
