// SPDX-License-Identifier: Apache-2.0
// doctest itself, which every test is linked to.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
