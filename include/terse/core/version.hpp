// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The library's version, for `#if`. The build reads it from here; it is not defined elsewhere.
#define TERSE_VERSION_MAJOR 0
#define TERSE_VERSION_MINOR 1
#define TERSE_VERSION_PATCH 0
/// 10000 * major + 100 * minor + patch.
#define TERSE_VERSION (TERSE_VERSION_MAJOR * 10000 + TERSE_VERSION_MINOR * 100 + TERSE_VERSION_PATCH)
