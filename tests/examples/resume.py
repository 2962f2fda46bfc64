#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An example's run that stops in the middle and goes on ends where one that never stopped does, to the bit.

Usage: resume.py MPIRUN PROGRAM MIDDLE       PROGRAM FOLDER [STEP] saves to FOLDER
"""

import pathlib
import subprocess
import sys
import tempfile

mpirun, program, middle = sys.argv[1:]


def run(folder, *step):
    done = subprocess.run([mpirun, "-n", "2", program, folder, *step], stdout=subprocess.PIPE, text=True, timeout=120)
    if done.returncode:
        sys.exit(f"{program} {folder} {' '.join(step)}: ended with {done.returncode}")
    return done.stdout


with tempfile.TemporaryDirectory() as place:
    whole, halves = pathlib.Path(place, "whole"), pathlib.Path(place, "halves")
    print(run(whole))
    run(halves, middle)
    text = run(halves)
    if f"resumes after step {middle}" not in text:
        sys.exit(f"the second half did not go on behind step {middle}:\n{text}")
    newest = max(path for path in whole.iterdir() if path.is_dir())
    for rank in range(2):
        file = pathlib.Path(newest.name, f"rank-{rank}-of-2.safetensors")
        if (whole / file).read_bytes() != (halves / file).read_bytes():
            sys.exit(f"{file} is another one after a stop")
