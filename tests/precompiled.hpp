// SPDX-License-Identifier: Apache-2.0
// The library for tests and programs of a build without optimization.
#pragma once

#include <terse/terse.hpp>

#include "precompiled_instances.hpp"
