// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "terse/executor/emulated.hpp"
#include "terse/executor/host.hpp"

#define TERSE_TEST_EXECUTORS terse::executor::host, terse::executor::emulated
#define TERSE_TEST_SLOW terse::executor::emulated

#include "select.inc"
