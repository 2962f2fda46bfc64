// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "terse/checkpoint/agreement.hpp"
#include "terse/checkpoint/digest.hpp"
#include "terse/checkpoint/matching.hpp"
#include "terse/checkpoint/state.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/type_name.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"

// A rank's parameters and optimizer state in one safetensors file:
//
//     parameters.<segment>    F32, BF16 or F16, the segment's shape
//     state.<part>            F32, U8, U16 or U64, flat, as the optimizer's walk shows it; scalars have no dimensions
//     __metadata__            format, recipe, world, rank, step, seed, layout, digests, and for a part that
//                             begins within the arena its first index, offset.<part>

namespace terse::checkpoint {

namespace detail {

template <Number P>
std::string parameters_hash(const Layout& layout, view<const P> parameters) {
  Digest digest;
  for (const Segment& segment : layout.segments())
    digest.add(parameters.data() + segment.offset, static_cast<std::size_t>(segment.count) * sizeof(P));
  return digest.hex();
}

}  // namespace detail

/// Returns XXH3-128 of the parameters without padding, as 32 hex digits. Equal hashes mean equal bits.
inline std::string parameters_hash(const Layout& layout, view<const float> parameters) {
  return detail::parameters_hash(layout, parameters);
}
/// Returns the hash of 16-bit parameters, and of parameters on a device, which are copied first.
template <Number P, class Space>
std::string parameters_hash(const Layout& layout, view<const P, Space> parameters) {
  detail::HostCopies here;
  return detail::parameters_hash(layout, here(parameters));
}

namespace detail {

/// Returns the name of the recipe; wrappers of an optimizer whose type isn't known here provide it.
template <class Optimizer>
std::string recipe_of(const Optimizer& optimizer) {
  if constexpr (requires { optimizer.recipe_name(); })
    return optimizer.recipe_name();
  else
    return type_name<decltype(optimizer.recipe)>();
}

template <class Optimizer>
Metadata describe(Optimizer& optimizer) {
  return {{"format", checkpoint_format},
          {"recipe", recipe_of(optimizer)},
          {"world", std::to_string(optimizer.size())},
          {"rank", std::to_string(optimizer.rank())},
          {"seed", std::to_string(optimizer.options().seed)},
          {"layout", std::to_string(terse::detail::layout_hash(optimizer.layout()))}};
}

template <class P, class Space>
void restore_parameters(const Restore& restore, const Layout& layout, view<P, Space> parameters) {
  for (const Segment& segment : layout.segments()) restore_segment(restore, segment, parameters);
}

/// Throws usage_error after `begin`: messages sent for the next step belong to these parameters and this state.
template <class Optimizer>
void require_between_steps(const Optimizer& optimizer) {
  if (optimizer.begun())
    throw usage_error("begin has sent messages of the next step: save and load before it, or after step",
                      optimizer.rank(), static_cast<std::int64_t>(optimizer.steps() + 1));
}

/// Throws foreign_checkpoint_error if a file's metadata differ from `expected`.
void require_same(const std::filesystem::path& file, const File& read, const Metadata& expected,
                  const Layout& layout);

/// A source and its step, as `open` returns them on each rank.
struct Opened {
  std::unique_ptr<Source> source;
  std::uint64_t step = 0;
};

/// The step of a rank's file.
struct FoundStep {
  std::uint64_t step;
};

/// Loads from the source that `open()` returns on each rank. Errors name `file` if another rank's is at fault.
template <class Optimizer>
void load_from(const std::filesystem::path& file, Optimizer& optimizer,
               out<typename Optimizer::runs_on, typename Optimizer::parameter> parameters,
               const std::function<Opened()>& open) {
  const terse::detail::Call call(terse::detail::Verb::load);
  require_between_steps(optimizer);
  terse::detail::await_messages(optimizer.channel());
  // Completes rounds in flight on every rank, even if its file turns out to be invalid.
  optimizer.walk([](auto&&...) {});
  Opened opened;
  const auto restore = [&](bool apply) {
    const Restore from{*opened.source, apply};
    optimizer.walk(from);
    restore_parameters(from, optimizer.layout(), parameters);
  };
  read_together(file, optimizer.channel(), "rank", [&] {
    require_size(file, optimizer.layout(), parameters.size());
    opened = open();
    restore(false);
    return FoundStep{opened.step};
  });
  restore(true);
}

}  // namespace detail

/// Writes this rank's parameters and state to a file next to `file` and then renames it, so that an older file stays
/// whole until the new one is. Not collective, except for recipes that have a round in flight between steps, which it
/// completes (OverlapLocalSgd, StreamingDiLoCo: all ranks save together; SwarmSgd: the two ranks of a pair). Throws
/// checkpoint_error, usage_error between begin and step, and the error of a transport on which messages of a lost
/// peer are still in flight.
template <class Optimizer>
void save(const std::filesystem::path& file, Optimizer& optimizer,
          in<typename Optimizer::runs_on, typename Optimizer::parameter> parameters) {
  const terse::detail::Call call(terse::detail::Verb::save);
  detail::require_between_steps(optimizer);
  detail::require_size(file, optimizer.layout(), parameters.size());
  terse::detail::await_messages(optimizer.channel());
  detail::HostCopies copies;
  using Parameter = typename Optimizer::parameter;
  const view<const Parameter> here = copies(parameters);
  std::vector<Tensor> tensors;
  Metadata metadata = detail::describe(optimizer);
  metadata["step"] = std::to_string(optimizer.steps());
  for (const Segment& segment : optimizer.layout().segments())
    tensors.push_back({detail::parameters_name(segment.name), detail::dtype_of<Parameter>(), segment.shape,
                       reinterpret_cast<const std::byte*>(here.data() + segment.offset),
                       static_cast<std::size_t>(segment.count) * sizeof(Parameter)});
  optimizer.walk(detail::Collect{tensors, metadata, copies});
  write(file, tensors, std::move(metadata));
}

/// Reads a file of `save` into an optimizer that was made with the same arguments. Collective: nothing changes on
/// any rank unless every rank's file is good and belongs to it, and all are of one step. Otherwise every rank
/// throws. A rank whose own file is at fault throws its own checkpoint_error, the others one that names the rank.
/// Different steps are a mismatch_error. A whole file of another run is a foreign_checkpoint_error on all ranks.
template <class Optimizer>
void load(const std::filesystem::path& file, Optimizer& optimizer,
          out<typename Optimizer::runs_on, typename Optimizer::parameter> parameters) {
  std::optional<File> read;
  detail::load_from(file, optimizer, parameters, [&] {
    read.emplace(File::read(file));
    detail::require_same(file, *read, detail::describe(optimizer), optimizer.layout());
    return detail::Opened{std::make_unique<detail::OneFile>(*read), detail::step_of(file, *read)};
  });
}

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/checkpoint.ipp"
#endif
