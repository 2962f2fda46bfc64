// SPDX-License-Identifier: Apache-2.0
// The same of checkpoints: needs nlohmann-json and xxHash.
#ifndef TERSE_SEPARATE
#define TERSE_SEPARATE
#endif

#include "terse/checkpoint/checkpoint.ipp"
#include "terse/checkpoint/agreement.ipp"
#include "terse/checkpoint/dealing.ipp"
#include "terse/checkpoint/digest.ipp"
#include "terse/checkpoint/draft.ipp"
#include "terse/checkpoint/elastic.ipp"
#include "terse/checkpoint/file_io.ipp"
#include "terse/checkpoint/lock_holders.ipp"
#include "terse/checkpoint/manifest.ipp"
#include "terse/checkpoint/matching.ipp"
#include "terse/checkpoint/open_file.ipp"
#include "terse/checkpoint/places.ipp"
#include "terse/checkpoint/replace_file.ipp"
#include "terse/checkpoint/run_lock.ipp"
#include "terse/checkpoint/safetensors.ipp"
#include "terse/checkpoint/stop_signal.ipp"
