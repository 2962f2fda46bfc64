// SPDX-License-Identifier: Apache-2.0
#pragma once

// The device's half of a compressor's contract; the host's half is in compressor/concept.hpp. The host can't read the
// memory of the executor E, which is of the grid kind. Batches are the only form: one packet is a batch of one. Each
// PlacedRange has a range and `going`, an offset in bytes. There are at most `most_packets` of them. A compressor has
// one of the first two members, and may have the others:
//
//     scale_floats(range), largest_scale()       if a section's only faults are large floats at its beginning: their
//                                                number and limit
//     check(executor, workspace, ranges, packets, findings)
//                                                reports the faults of packet p over ranges[p] to findings[p], in the
//                                                order of `fault`; the section begins `going` bytes into packets[p]
//
//     arrived(executor, workspace, range, incoming) -> ArrivedSums
//                                                the weighted sums of packets over a range, in the workspace, if verbs
//                                                can't read `Incoming` themselves
//     adds_together = true                       `arrived` takes ranges instead: one for all packets, or ranges[p] for
//                                                packet p
//
//     place(range, first_unit, at) -> PlacedRange    the place of a section that begins `at` bytes after the base, for
//     encode_together(executor, workspace, sections, mask, feedback, context, base)
//                                                if `measured`: writes the sections of measured units
//     encode_together(executor, workspace, sections, mask, incoming, message, feedback, context, base, bad, told)
//                                                otherwise: also evaluates the message, and calls told(c, bytes) for
//                                                each section, if sizes vary
//
// Without `place`, the host's half encodes packets one by one: its functions are templates on the executor, and their
// verbs launch kernels. Kernels that hosts don't include are in a specialization of OnGrid.

namespace terse::detail {

/// The part of a compressor that runs on a grid executor, as a specialization in a header that hosts don't include.
template <class Compressor>
struct OnGrid {
  static_assert(sizeof(Compressor) == 0,
                "terse: compressors on this executor need terse/device.hpp; terse/cuda.cuh brings it");
};

}  // namespace terse::detail
