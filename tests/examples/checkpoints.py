#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The trainer's checkpoints and outputs from outside: a run that goes on has the bits of one that never stopped, also from an
older checkpoint where the newest one is damaged; one that goes on with more ranks has their losses; files of two saves are not mixed; two runs don't share a folder, and one
that was killed keeps nobody out; a full disk is called that, and costs no other output.

Usage: checkpoints.py TRAIN
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from tiny_data import write_data

train = sys.argv[1]
scratch = pathlib.Path(tempfile.mkdtemp(prefix="terse-train-"))


def expect(condition, what):
    if not condition:
        sys.exit(what)


def command(*options):
    epochs = () if "--epochs" in options else ("--epochs", 4)
    return [train, "--data", str(scratch / "data"), "--ranks", "2", "--optimizers", "one-bit-adam", "--most-masked", "1", "--batch", "8",
            *map(str, epochs + options)]


def run(*options):
    return subprocess.run(command(*options), capture_output=True, text=True, timeout=60)


def hash_of(done, file):
    expect(done.returncode == 0, f"{done.args} ended with {done.returncode}: {done.stderr}")
    return json.loads(file.read_text())["runs"][0]["parameters_hash"]


def check_resuming():
    state, saved, report = scratch / "state", scratch / "saved", scratch / "report.json"
    whole = hash_of(run("--checkpoint", state, "--checkpoint-every", 5, "--json", report), report)
    folder = state / "one-bit-adam"
    expect(sorted(os.listdir(folder)) == ["run.lock", "step-00000015", "step-00000016"], f"kept {os.listdir(folder)}")
    shutil.copytree(state, saved)
    newest, older = "step-00000016", "step-00000015"

    def damage(file, work):
        shutil.rmtree(state)
        shutil.copytree(saved, state)
        work(folder / newest / file)

    def digit(file):
        text = file.read_text()
        at = text.index('"bytes_after_step":[') + 20
        file.write_text(text[:at] + str((int(text[at]) + 1) % 9 + 1) + text[at + 1:])

    def old(file):
        shutil.copyfile(folder / older / file.name, file)

    for file, work in ("rank-1-of-2.safetensors", old), ("train-state.json", digit), ("manifest.json", pathlib.Path.unlink):
        damage(file, work)
        report.unlink()
        done = run("--checkpoint", state, "--resume", state, "--json", report)
        expect(hash_of(done, report) == whole, f"with another {file} the run went another way")
        expect("skips a checkpoint" in done.stderr and file in done.stderr and older in done.stderr,
               f"not told what was skipped: {done.stderr}")
        expect(sorted(os.listdir(folder)) == ["run.lock", older, newest + ".2", newest + ".skipped"],
               f"left {os.listdir(folder)}")
    done = run("--checkpoint", state, "--resume", state, "--seed", 3)
    expect(done.returncode == 2 and "was saved with --seed" in done.stderr, f"another seed: {done.stderr}")
    # Where none is left the run does not start from the beginning.
    for file in folder.glob("*/rank-0-of-2.safetensors"):
        file.write_bytes(b"nothing")
    done = run("--resume", state)
    expect(done.returncode == 2 and "none of the checkpoints" in done.stderr and done.stderr.count("has 7 bytes, not") == 2,
           f"nothing to go on from: {done.stderr}")


def check_more_ranks():
    """3 ranks, and 6 that go on from the middle."""
    state, report = scratch / "grown", scratch / "report.json"

    def train_on(ranks, *options):
        done = subprocess.run([train, "--data", scratch / "data", "--model", "cnn", "--most-masked", "1", "--batch", "4", "--epochs", "3",
                               "--checkpoint", state, "--ranks", str(ranks), "--json", report, *options], capture_output=True, text=True, timeout=60)
        return done, {run["optimizer"]: run["train_loss"] for run in json.loads(report.read_text())["runs"]}

    done, whole = train_on(3, "--checkpoint-every", "8")
    expect(done.returncode == 0, done.stderr)
    for last in state.glob("*/step-00000015"):
        shutil.rmtree(last)
    done, _ = train_on(6, "--resume", state)
    expect(done.returncode == 2 and "was saved by 3 ranks, and now there are 6: start as many, or give --elastic" in done.stderr,
           f"another number of ranks: {done.stderr}")
    done, _ = train_on(13, "--resume", state, "--elastic")
    expect(done.returncode == 2 and "13 ranks can't share the 12 pictures of a step" in done.stderr, f"too many ranks: {done.stderr}")
    done, grown = train_on(6, "--resume", state, "--elastic")
    expect(done.returncode == 0 and done.stderr.count(", of 3 ranks, on 6\n") == 2, f"on more ranks: {done.stderr}")
    for optimizer, bound in ("adam", 1e-5), ("one-bit-adam", 0.05):
        apart = max(abs(one - other) for one, other in zip(whole[optimizer], grown[optimizer], strict=True))
        expect(apart <= bound, f"on more ranks, losses of {optimizer} are {apart} apart, more than {bound}")


def check_two_runs():
    state = scratch / "shared"
    with subprocess.Popen(command("--checkpoint", state, "--checkpoint-every", 1, "--epochs", 100_000, "--quiet")) as first:
        try:
            deadline = time.monotonic() + 30
            while not list(state.glob("*/step-*[0-9]")):
                expect(time.monotonic() < deadline and first.poll() is None, "the first run saves nothing")
                time.sleep(0.02)
            done = run("--checkpoint", state)
            expect(done.returncode == 69 and f"in use by process {first.pid} on" in done.stderr, f"second run: {done.stderr}")
            expect(first.poll() is None, "the second run ended the first")
        finally:
            first.kill()
    done = run("--checkpoint", state, "--resume", state, "--epochs", 100_000, "--seed", 3)
    expect("was saved with --seed" in done.stderr, f"after the first run was killed: {done.stderr}")


def check_outputs():
    table = scratch / "table.csv"
    disk = scratch / "full"
    disk.symlink_to("/dev/full")  # a link, lest a mistake costs the machine its device
    done = run("--epochs", 1, "--json", disk, "--csv", table)
    expect(done.returncode == 2 and f"{disk}: can't be written" in done.stderr and "No space left" in done.stderr,
           f"a full disk: {done.stderr}")
    expect(disk.is_symlink(), "an output took the place of a link")
    expect(len(table.read_text().splitlines()) == 5 and "one-bit-adam" in done.stdout, "a full disk cost other outputs")
    with open("/dev/full", "w") as full:
        done = subprocess.run(command("--epochs", 1, "--csv", table, "--quiet"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    expect(done.returncode == 2 and "can't print: No space left" in done.stderr, f"printing: {done.stderr}")
    trace = scratch / "trace.json"
    done = run("--epochs", 1, "--trace", trace, "--straggler", "1:50")
    expect(done.returncode == 0 and "train: one-bit-adam each other rank waited" in done.stderr and " s for rank 1, its longest wait in" in done.stderr, f"whom ranks wait for: {done.stderr}")
    waits = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    expect("reduce of rank 1" in waits, f"waits in the trace: {sorted(set(waits))}")
    two = [word.replace("one-bit-adam", "adam,one-bit-adam") for word in command("--trace", trace)]
    done = subprocess.run(two, capture_output=True, text=True, timeout=60)
    expect(done.returncode == 2 and "--trace: one file has the waits of one optimizer" in done.stderr, f"two optimizers: {done.stderr}")
    started = time.monotonic()
    done = run("--csv", "/proc/table.csv", "--epochs", 100_000)
    expect(done.returncode == 2 and "--csv: '/proc/table.csv' can't be written" in done.stderr,
           f"what can't be written: {done.stderr}")
    expect(time.monotonic() - started < 30, "found out late that a file can't be written")


try:
    write_data(scratch / "data")
    check_resuming()
    check_more_ranks()
    check_two_runs()
    check_outputs()
finally:
    shutil.rmtree(scratch, ignore_errors=True)
