#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every type of the table of compositions in docs/algorithms/averaging.md. A row `A`: `B` says that A runs as B.

Usage: compositions.py ROOT COMPILER [FLAG ...]
"""

import pathlib
import re
import subprocess
import sys
import tempfile

LEAST = 30  # rows that the table had when this was written


def rows(text):
    """(method, [types]) of each row of the table under "## Compositions"."""
    section = text.split("## Compositions", 1)[1].split("\n## ", 1)[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        types = re.findall(r"`([^`]+)`", cells[1]) if line.startswith("|") and len(cells) == 2 else []
        if types:
            yield cells[0], types


def main():
    root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
    table = list(rows((root / "docs/algorithms/averaging.md").read_text()))
    if len(table) < LEAST:
        sys.exit(f"the table has {len(table)} rows, which are fewer than {LEAST}")
    code = ['#include <type_traits>', '#include "terse/terse.hpp"', "using namespace terse;"]
    count = 0
    for number, (method, types) in enumerate(table):
        for k, one in enumerate(types):
            name = f"Row{number}_{k}"
            code.append(f"using {name} = {one};")
            code.append(f'static_assert(check_recipe<{name}>(), "{method}");')
            count += 1
        for k in range(1, len(types)):
            code.append(
                f"static_assert(std::is_same_v<detail::Composed<Row{number}_0>, detail::Composed<Row{number}_{k}>>,"
                f' "{method} does not run as what the table says");'
            )
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / "compositions.cpp"
        unit.write_text("\n".join(code) + "\n")
        command = compiler + ["-std=c++20", "-fsyntax-only", "-I", str(root / "include"), str(unit)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if result.returncode != 0:
        sys.exit(result.stderr[:4000])
    print(f"{len(table)} rows, {count} types")


main()
