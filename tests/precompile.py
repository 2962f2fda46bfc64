# SPDX-License-Identifier: Apache-2.0
"""Headers that a check compiles once, for all that it compiles."""

import pathlib
import subprocess


def precompiled(compiler, flags, headers, folder):
    """Flags that bring `headers` in; compiled into `folder` with `flags`, which must be those of the units."""
    source = pathlib.Path(folder) / "precompiled.hpp"
    source.write_text("".join(f"#include <{header}>\n" for header in headers))
    subprocess.run([*compiler, *flags, "-x", "c++-header", str(source), "-o", f"{source}.gch"], check=True, timeout=240)
    return ["-include", str(source)]
