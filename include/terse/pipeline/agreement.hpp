// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "terse/core/hash.hpp"
#include "terse/core/packet.hpp"
#include "terse/core/type_name.hpp"
#include "terse/executor/numerics.hpp"
#include "terse/pipeline/batch.hpp"
#include "terse/pipeline/concept.hpp"
#include "terse/pipeline/options.hpp"
#include "terse/transport/agreement.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"

namespace terse::detail {

/// Describes a policy's compressors and copies in words.
template <BoundaryPolicy P>
std::string boundary_kind(const P& policy) {
  std::string kind = "whole " + type_name<std::remove_cvref_t<decltype(policy.whole())>>() + ", gradients " +
                     type_name<std::remove_cvref_t<decltype(policy.gradients())>>();
  if constexpr (P::remembers)
    kind += ", changes " + type_name<std::remove_cvref_t<decltype(policy.changes())>>() + ", copies " +
            RowFormat<typename decltype(P::memory)::Format>::name;
  return kind;
}

/// Compares the settings that must be equal on all stages; returns a hash of them. Collective. Throws mismatch_error.
template <Transport T, BoundaryPolicy P, Schedule Plan, Executor E>
TERSE_COLD std::uint64_t agree_on_pipeline(T& channel, const P& policy, const PipelineOptions& options,
                                           const Plan& schedule, const E& executor) {
  const Call call(Verb::pipeline);
  const Agreed fields[] = {{"wire version", PacketHeader::wire_version},
                           {"number of stages", static_cast<std::uint64_t>(channel.size())},
                           {"policy", mix_hash(0, boundary_kind(policy).c_str())},
                           {"schedule", mix_hash(0, type_name<Plan>().c_str())},
                           {"seed", options.seed},
                           {"numerics", numerics_of(executor)}};
  constexpr std::size_t count = std::size(fields);
  const std::uint64_t alike = agree(channel, fields, [](const std::vector<std::uint64_t>& all) {
    return describe_numerics(all, count, count - 1);
  });
  check_numerics(fields[count - 1].value, channel.rank());
  SettingsList settings;
  policy.settings(settings);
  schedule.settings(settings);
  settings("micro_batch", static_cast<double>(options.micro_batch));
  settings("on_non_finite", static_cast<double>(options.on_non_finite));
  settings("window", options.window);
  settings("evaluation_micro_batch", static_cast<double>(options.evaluation_micro_batch));
  settings("positions", static_cast<double>(options.positions));
  agree_on_settings(channel, "another setting", settings);
  return mix_hash(alike, settings.hash());
}

/// Elements of an example at a stage's two boundaries; 0 at the ends of the pipeline.
struct BoundaryShapes {
  index_t input = 0, output = 0;
};

/// Compares each stage's output elements with the next stage's input elements; returns the shapes of `stage`. Collective.
/// Throws mismatch_error.
template <Transport T, class S>
TERSE_COLD BoundaryShapes agree_on_shapes(T& channel, S& stage, index_t positions) {
  const Call call(Verb::pipeline);
  const BoundaryShapes mine{static_cast<index_t>(stage.input_elements()),
                            static_cast<index_t>(stage.output_elements())};
  Assembly<BoundaryShapes, T> assembly(channel);
  const auto all = assembly(channel, mine, Phase::setup);
  if (all.front().input != 0 || all.back().output != 0)
    throw mismatch_error(
        "the first stage has no input and the last one no output: input_elements() and "
        "output_elements() there must be 0, not " +
            std::to_string(all.front().input) + " and " + std::to_string(all.back().output),
        channel.rank());
  for (std::size_t s = 0; s + 1 < all.size(); ++s)
    if (all[s].output != all[s + 1].input || all[s].output <= 0)
      throw mismatch_error("stage " + std::to_string(s) + " gives " + std::to_string(all[s].output) +
                               " elements an example, and stage " + std::to_string(s + 1) + " takes " +
                               std::to_string(all[s + 1].input),
                           channel.rank());
  for (std::size_t s = 0; s + 1 < all.size(); ++s)
    if (all[s].output % positions != 0)
      throw mismatch_error("stage " + std::to_string(s) + " gives " + std::to_string(all[s].output) +
                               " elements an example, which are no multiple of the " +
                               std::to_string(positions) + " positions in PipelineOptions",
                           channel.rank());
  return mine;
}

/// An allgather of two words from each stage.
template <Transport T>
using TwoWords = Assembly<std::array<std::uint64_t, 2>, T>;

/// Ends of error messages about stages in different steps, and about stages with different examples.
inline constexpr const char* one_step =
    ": all stages make the same calls of train and evaluate, and resume from checkpoints of the same step";
inline constexpr const char* one_batch =
    ": other ids or lengths, another order or number, or one that only one of them has seen before. All "
    "stages are "
    "given the same ids in the same order";

/// Compares the batch on all stages. Collective. Throws wire_error.
template <Transport T>
void agree_on_batch(T& channel, TwoWords<T>& everyone, const Batch& batch) {
  std::uint64_t examples = 0;
  for (const std::uint64_t hash : batch.hashes()) examples = mix_hash(examples, hash);
  const auto all = everyone(channel, {mix_hash(batch.round(), batch.training() ? 1 : 0), examples},
                            Phase::agree, static_cast<std::int64_t>(batch.step()));
  for (std::size_t s = 1; s < all.size(); ++s)
    if (all[s] != all[0])
      throw wire_error("stages 0 and " + std::to_string(s) +
                           (all[s][0] != all[0][0] ? std::string(" are in different steps") + one_step
                                                   : std::string(" work on different examples") + one_batch),
                       channel.rank(), static_cast<std::int64_t>(batch.step()));
}

}  // namespace terse::detail
