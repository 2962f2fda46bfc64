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

inline constexpr std::array optimizer_words{
    Word<Optimizer>{"adam", Optimizer::adam},
    Word<Optimizer>{"one-bit-adam", Optimizer::one_bit_adam},
    Word<Optimizer>{"zero-one-adam", Optimizer::zero_one_adam},
    Word<Optimizer>{"momentum-sgd", Optimizer::momentum_sgd},
    Word<Optimizer>{"error-feedback-sgd", Optimizer::error_feedback_sgd},
    Word<Optimizer>{"dist-error-feedback-sgd", Optimizer::dist_error_feedback_sgd},
    Word<Optimizer>{"sign-sgd", Optimizer::sign_sgd},
    Word<Optimizer>{"deep-gradient-compression", Optimizer::deep_gradient_compression},
    Word<Optimizer>{"power-sgd", Optimizer::power_sgd},
    Word<Optimizer>{"quantized-sgd", Optimizer::quantized_sgd},
    Word<Optimizer>{"ef21-sgd", Optimizer::ef21_sgd},
    Word<Optimizer>{"demo", Optimizer::demo},
    Word<Optimizer>{"distributed-lion", Optimizer::distributed_lion},
    Word<Optimizer>{"lamb", Optimizer::lamb},
    Word<Optimizer>{"one-bit-lamb", Optimizer::one_bit_lamb},
    Word<Optimizer>{"muon", Optimizer::muon},
    Word<Optimizer>{"local-sgd", Optimizer::local_sgd},
    Word<Optimizer>{"post-local-sgd", Optimizer::post_local_sgd},
    Word<Optimizer>{"slowmo", Optimizer::slowmo},
    Word<Optimizer>{"slowmo-sgp", Optimizer::slowmo_sgp},
    Word<Optimizer>{"bmuf-classical", Optimizer::bmuf_classical},
    Word<Optimizer>{"bmuf-nesterov", Optimizer::bmuf_nesterov},
    Word<Optimizer>{"diloco", Optimizer::diloco},
    Word<Optimizer>{"streaming-diloco", Optimizer::streaming_diloco},
    Word<Optimizer>{"overlap-local-sgd", Optimizer::overlap_local_sgd},
    Word<Optimizer>{"cocod-sgd", Optimizer::cocod_sgd},
    Word<Optimizer>{"swarm-sgd", Optimizer::swarm_sgd},
    Word<Optimizer>{"swarm-sgd-lattice", Optimizer::swarm_sgd_lattice},
    Word<Optimizer>{"swarm-sgd-non-blocking", Optimizer::swarm_sgd_non_blocking},
    Word<Optimizer>{"async-swarm-sgd", Optimizer::async_swarm_sgd},
    Word<Optimizer>{"d-sgd", Optimizer::d_sgd},
    Word<Optimizer>{"awc-d-sgd", Optimizer::awc_d_sgd},
    Word<Optimizer>{"cta-d-sgd", Optimizer::cta_d_sgd},
    Word<Optimizer>{"dm-sgd", Optimizer::dm_sgd},
    Word<Optimizer>{"da-dm-sgd", Optimizer::da_dm_sgd},
    Word<Optimizer>{"awc-dm-sgd", Optimizer::awc_dm_sgd},
    Word<Optimizer>{"qg-dm-sgd", Optimizer::qg_dm_sgd},
    Word<Optimizer>{"decentlam", Optimizer::decentlam},
    Word<Optimizer>{"momentum-consensus", Optimizer::momentum_consensus},
    Word<Optimizer>{"d2", Optimizer::d2},
    Word<Optimizer>{"d2-dm-sgd", Optimizer::d2_dm_sgd},
    Word<Optimizer>{"gradient-tracking", Optimizer::gradient_tracking},
    Word<Optimizer>{"momentum-tracking", Optimizer::momentum_tracking},
    Word<Optimizer>{"stochastic-gradient-push", Optimizer::stochastic_gradient_push},
    Word<Optimizer>{"choco-sgd", Optimizer::choco_sgd},
    Word<Optimizer>{"deep-squeeze", Optimizer::deep_squeeze},
    Word<Optimizer>{"dcd-sgd", Optimizer::dcd_sgd},
    Word<Optimizer>{"beer", Optimizer::beer},
    Word<Optimizer>{"moniqua-sgd", Optimizer::moniqua_sgd}};
// What papers call some of them; understood, too.
inline constexpr std::array optimizer_synonyms{Word<Optimizer>{"pmsgd", Optimizer::momentum_sgd},
                                               Word<Optimizer>{"bmuf", Optimizer::bmuf_nesterov},
                                               Word<Optimizer>{"dsgd", Optimizer::d_sgd},
                                               Word<Optimizer>{"dmsgd", Optimizer::dm_sgd},
                                               Word<Optimizer>{"da-dmsgd", Optimizer::da_dm_sgd},
                                               Word<Optimizer>{"awc-dmsgd", Optimizer::awc_dm_sgd},
                                               Word<Optimizer>{"qg-dmsgd", Optimizer::qg_dm_sgd},
                                               Word<Optimizer>{"d2-dmsgd", Optimizer::d2_dm_sgd},
                                               Word<Optimizer>{"sgp", Optimizer::stochastic_gradient_push},
                                               Word<Optimizer>{"choco", Optimizer::choco_sgd},
                                               Word<Optimizer>{"deepsqueeze", Optimizer::deep_squeeze}};
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
inline constexpr std::array transport_words{Word<Transport>{"threads", Transport::threads},
                                            Word<Transport>{"mpi", Transport::mpi}};
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
