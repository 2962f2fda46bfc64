// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

int main() {
  terse::ThreadGroup(3, std::chrono::seconds(30)).run([](terse::Threads& transport) {
    bits::hash_all(transport);
  });
}
