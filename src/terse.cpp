// SPDX-License-Identifier: Apache-2.0
// The bodies that units with TERSE_SEPARATE leave out, but those of checkpoints. A program compiles this once.
#ifndef TERSE_SEPARATE
#define TERSE_SEPARATE
#endif

#include "terse/compressor/section_fault.ipp"
#include "terse/core/error.ipp"
#include "terse/core/hash.ipp"
#include "terse/core/layout.ipp"
#include "terse/core/packet.ipp"
#include "terse/core/type_name.ipp"
#include "terse/executor/numerics.ipp"
#include "terse/executor/team.ipp"
#include "terse/graph/directed_list.ipp"
#include "terse/graph/stochastic.ipp"
#include "terse/graph/verify.ipp"
#include "terse/optimizer/comparison.ipp"
#include "terse/optimizer/failure.ipp"
#include "terse/optimizer/fingerprint.ipp"
#include "terse/optimizer/groups.ipp"
#include "terse/optimizer/guards.ipp"
#include "terse/optimizer/non_finite_value.ipp"
#include "terse/pipeline/batch.ipp"
#include "terse/pipeline/example_index.ipp"
#include "terse/pipeline/example_order.ipp"
#include "terse/plan.ipp"
#include "terse/preconditioner/masked_elements.ipp"
#include "terse/topology/envelope.ipp"
#include "terse/topology/gathered.ipp"
#include "terse/transport/agreement.ipp"
#include "terse/transport/assembly.ipp"
#include "terse/transport/call.ipp"
#include "terse/transport/deadline.ipp"
#include "terse/transport/mailbox.ipp"
#include "terse/transport/rendezvous.ipp"
#include "terse/transport/thread_mailbox.ipp"
#include "terse/transport/thread_rank.ipp"
#include "terse/transport/thread_shared.ipp"
#include "terse/transport/threads.ipp"
#include "terse/transport/trace.ipp"
#include "terse/transport/watchdog.ipp"

const char TERSE_CORE_SYMBOL = 0;
