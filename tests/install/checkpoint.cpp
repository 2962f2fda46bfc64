// SPDX-License-Identifier: Apache-2.0
#include "terse/checkpoint/digest.hpp"
#include "terse/checkpoint/strict_json.hpp"

// Links what terse::checkpoint and terse-checkpoint say.
int main() { return XXH_versionNumber() == 0; }
