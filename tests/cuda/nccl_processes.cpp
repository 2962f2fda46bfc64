// SPDX-License-Identifier: Apache-2.0
#include "queued.hpp"

// Over the stand-in, which knows threads only: one rank, for the program around it.

using Device = terse::test::Queued;

#include "cuda/nccl_processes.inc"
