# SPDX-License-Identifier: Apache-2.0
"""As little data as the trainer takes, in the files' format."""

import random
import struct


def write_data(folder):
    draw = random.Random(1)
    folder.mkdir()
    for name, count in ("train", 64), ("t10k", 16):
        pixels = struct.pack(">4i", 0x803, count, 28, 28) + bytes(draw.randrange(256) for _ in range(count * 784))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(pixels)
        labels = struct.pack(">2i", 0x801, count) + bytes(draw.randrange(10) for _ in range(count))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)
