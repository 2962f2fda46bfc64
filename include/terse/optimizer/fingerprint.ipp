// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <span>

#include "terse/core/separate.hpp"
#include "terse/optimizer/fingerprint.hpp"

namespace terse::detail {

/// Describes the first difference between the layouts of ranks, by this rank's segment there. Collective.
TERSE_COLD TERSE_CORE std::string first_difference(Channel& channel, const Layout& layout) {
  const std::vector<Segment>& segments = layout.segments();
  const auto ranks = static_cast<std::size_t>(channel.size());
  std::size_t common = segments.size();
  Assembly<std::uint64_t, Channel> counts(channel);
  for (const std::uint64_t count : counts(channel, segments.size(), Phase::setup))
    common = std::min(common, static_cast<std::size_t>(count));
  std::vector<std::uint64_t> mine, all(common * ranks);
  for (std::size_t s = 0; s < common; ++s) {
    Layout one;
    one.add(segments[s]);
    mine.push_back(layout_hash(one));
  }
  CheckedGather gather(channel.size());
  gather(channel, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), Phase::setup);
  std::size_t first = common;
  for (std::size_t k = 0; k < all.size(); ++k)
    if (all[k] != mine[k % common]) first = std::min(first, k % common);
  if (first == segments.size()) return sentence(", which has more segments than the %zu here", first);
  const Segment& segment = segments[first];
  std::string shape;
  for (const index_t extent : segment.shape) shape += sentence(shape.empty() ? "%td" : ", %td", extent);
  std::string text =
      sentence(", from segment %zu on: here it is '%s' {%s}, learning_rate_scale %.9g, weight_decay %.9g",
               first, segment.name.c_str(), shape.c_str(), static_cast<double>(segment.learning_rate_scale),
               static_cast<double>(segment.weight_decay));
  if (segment.group != 0) text += sentence(", group %d", segment.group);
  if (segment.hidden) text += ", hidden";
  return text + (segment.compress ? "" : ", not compressed");
}

/// Returns a hash of the options. Different options have different hashes, except for slice sizes that result in the same packets.
TERSE_CORE std::uint64_t options_hash(const Options& options, const Layout& layout, bool in_stream_order) {
  const std::uint64_t hash = mix_hash(static_cast<std::uint64_t>(options.on_non_finite),
                                      std::bit_cast<std::uint32_t>(options.clip_norm));
  const auto slices = [&](bool compressed) {
    return slices_of(layout.range(), slice_bytes_of(options.slice_bytes, in_stream_order, compressed)).size();
  };
  const std::uint64_t exact = slices(false) == 1 ? hash : mix_hash(hash, slices(false));
  const std::uint64_t cut = slices(true) == slices(false) ? exact : mix_hash(exact, slices(true));
  const std::uint64_t masked = std::bit_cast<std::uint32_t>(options.most_masked);
  const std::uint64_t frozen =
      masked == std::bit_cast<std::uint32_t>(Options{}.most_masked) ? cut : mix_hash(cut, masked);
  if (!options.check_payload && options.compare_every == 0) return frozen;
  return mix_hash(mix_hash(frozen, options.check_payload ? 1 : 0), options.compare_every);
}

TERSE_CORE std::uint64_t agree_on_setup(Channel& channel, const Layout& layout, const std::string& recipe,
                                        const SettingsList& settings, const Options& options,
                                        std::uint64_t numerics) {
  const Call call(Verb::optimizer);
  const Agreed fields[] = {{"wire version", PacketHeader::wire_version},
                           {"world", static_cast<std::uint64_t>(channel.size())},
                           {"layout", layout_hash(layout)},
                           {"recipe", mix_hash(0, recipe.c_str())},
                           {"seed", options.seed},
                           {"value of an option (on_non_finite, clip_norm, slice_bytes, check_payload, "
                            "compare_every, most_masked)",
                            options_hash(options, layout, channel.in_stream_order())},
                           {"numerics", numerics}};
  constexpr std::size_t layout_at = 2, count = std::size(fields), numerics_at = count - 1;
  const auto more = [&](const std::vector<std::uint64_t>& all) -> std::string {
    // Equal on all ranks, since all see the same values.
    if (std::string faults = describe_numerics(all, count, numerics_at); !faults.empty()) return faults;
    bool layouts_alone = false;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k] == all[k % count]) continue;
      if (k % count != layout_at) return "";
      layouts_alone = true;
    }
    return layouts_alone ? first_difference(channel, layout) : "";
  };
  const std::uint64_t alike = agree(channel, fields, more);
  check_numerics(numerics, channel.rank());
  agree_on_settings(channel, "other hyper-parameters", settings);
  return mix_hash(alike, settings.hash());
}

}  // namespace terse::detail
