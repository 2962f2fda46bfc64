// SPDX-License-Identifier: Apache-2.0
#pragma once

// The earlier name of transport/threads.hpp, for programs that include it.

#include "terse/transport/threads.hpp"  // IWYU pragma: export
