// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

// The linker takes it from the library for programs that have no main of their own.
int main(int count, char** arguments) { return doctest::Context(count, arguments).run(); }
