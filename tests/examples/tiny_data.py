#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""As little data as the trainer takes, in the files' format.

tiny_data.py FOLDER PROGRAM [ARGUMENT ...]: writes them if they aren't there, and runs the program
"""

import os
import pathlib
import random
import struct
import sys


def write_data(folder):
    draw = random.Random(1)
    folder.mkdir()
    for name, count in ("train", 64), ("t10k", 16):
        pixels = struct.pack(">4i", 0x803, count, 28, 28) + bytes(draw.randrange(256) for _ in range(count * 784))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(pixels)
        labels = struct.pack(">2i", 0x801, count) + bytes(draw.randrange(10) for _ in range(count))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)


if __name__ == "__main__":
    if not pathlib.Path(sys.argv[1]).exists():
        write_data(pathlib.Path(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
