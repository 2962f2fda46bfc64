#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills one of eight ranks by SIGKILL at a random moment of a training in which rank 0 is four times slower, and measures how long the
others take to go on, and where they end. With --replace another process joins them in its place.

    python/tests/run PYTHON FOLDER                              # compiles the package
    PYTHONPATH=FOLDER python/tests/lost.py --tries 20           # for each method; some 10 minutes

Ranks sleep in their gradients, which take 10 ms, rank 0's 40 ms. Seconds count from the kill to the end of the first step that the last of
the other ranks takes without it. The loss is that of the ranks' mean model on held-out batches, minus that of the same training without a
kill. With --replace the last columns are seconds from the start of the new process to the end of its first step, and the longest time for which
one of the others was in `admit` and `carry_over`."""

import argparse
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

import torch

import terse_torch
from ranks import FORK, loss_of, net

RANKS, STEPS, GRADIENT = 8, 120, 0.01
METHODS = {"DiLoCo": {"period": 10}, "SparseLoCo": {"period": 10}, "DecentLaM": {}, "OneBitAdam": {"freeze_step": 20}}
RATES = {"DecentLaM": 0.05}


def train(method, rank, folder, deadline, pipe):
    """The rank's program; a rank above the others' joins. Sends its times, and the mean model's loss."""
    begun = time.monotonic()
    store = torch.distributed.FileStore(str(pathlib.Path(folder) / "store"), RANKS)
    if rank < RANKS:
        members = terse_torch.Members(store, rank, RANKS, deadline=deadline)
    else:
        members = terse_torch.Members.join(store, deadline=deadline)
    model = net()
    optimizer = getattr(terse_torch, method)(model.named_parameters(), lr=RATES.get(method, 0.01), process_group=members.group,
                                             joins=members.joined, deadline=deadline, **METHODS[method])
    pipe.send(("begun", time.monotonic()))
    gone_on, lost, failed, paused, joined = None, [], None, 0.0, None
    while optimizer.steps < STEPS:
        if failed:
            lost += members.regroup(failed)
        try:
            if failed:
                optimizer.carry_over(members.group)
            failed = None
            optimizer.zero_grad()
            time.sleep(GRADIENT * (4 if rank == 0 else 1))
            loss_of(model, rank, optimizer.steps).backward()
            optimizer.step()
            if lost and gone_on is None:
                gone_on = time.monotonic()
            if members.joined and joined is None:
                joined = time.monotonic() - begun
            start = time.monotonic()
            if optimizer.steps % 10 == 0 and members.admit():
                optimizer.carry_over(members.group)
                paused = time.monotonic() - start
        except terse_torch.PeerError as failure:
            failed = failure
    with optimizer.mean_parameters(), torch.no_grad():
        loss = statistics.mean(loss_of(model, 1000 + k, 1).item() for k in range(50))
    pipe.send(("done", gone_on, lost, loss, optimizer.steps, members.numbers, joined, paused))


def in_process(method, rank, folder, deadline, pipe):
    try:
        train(method, rank, folder, deadline, pipe)
    except BaseException as failure:  # pylint: disable=broad-except
        pipe.send(("failed", f"{type(failure).__name__}: {failure}"))
    os._exit(0)


class Fault(Exception):
    """What went wrong in a training."""


def attempt(method, deadline, draw, kills, replace):
    """One training: seconds until the others have gone on, the loss, seconds until the new process has taken a step, and the others' longest pause."""
    with tempfile.TemporaryDirectory() as folder:
        ends, workers = {}, []

        def begin(rank):
            ends[rank], there = FORK.Pipe(duplex=False)
            workers.append(FORK.Process(target=in_process, args=(method, rank, folder, deadline, there)))
            workers[-1].start()
            there.close()

        def answer(rank, seconds, wanted):
            if not ends[rank].poll(seconds):
                raise Fault(f"rank {rank} isn't {wanted} after {seconds} s")
            how, *said = ends[rank].recv()
            if how != wanted:
                raise Fault(f"rank {rank}: {said[0]}")
            return said

        try:
            for rank in range(RANKS):
                begin(rank)
            for rank in range(RANKS):
                answer(rank, 60, "begun")
            victim, killed = None, None
            if kills:
                victim = draw.randrange(1, RANKS)
                time.sleep(draw.uniform(0.1, 0.6) * STEPS * 4 * GRADIENT)
                os.kill(workers[victim].pid, signal.SIGKILL)
                killed = time.monotonic()
                ends.pop(victim)
            if replace:
                begin(RANKS)
                answer(RANKS, 60, "begun")
            present, seconds, losses, joined, pause = sorted(ends), 0.0, set(), 0.0, 0.0
            for rank in present:
                gone_on, lost, loss, steps, numbers, new, paused = answer(rank, 120, "done")
                if lost != ([victim] if kills and rank < RANKS else []) or steps != STEPS or numbers != present:
                    raise Fault(f"rank {rank} lost {lost} for {victim}, ends among {numbers}, and took {steps} steps")
                losses.add(loss)
                if gone_on:
                    seconds = max(seconds, gone_on - killed)
                joined, pause = max(joined, new or 0.0), max(pause, paused)
            if len(losses) > 1:
                raise Fault(f"mean models differ: {losses}")
            return seconds, losses.pop(), joined, pause
        finally:
            for worker in workers:
                worker.kill()
                worker.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=20, help="of each method [20]")
    parser.add_argument("--methods", default=",".join(METHODS), help="[%(default)s]")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds, of which a quarter, at most 5, is Members' grace [10]")
    parser.add_argument("--seed", type=int, default=1, help="of moments and ranks [1]")
    parser.add_argument("--replace", action="store_true", help="lets another process join in the place of the killed one")
    options = parser.parse_args()
    draw, worst = random.Random(options.seed), 0
    columns = ["method", "tries", "went on", "seconds, median", "most", "held-out loss without a loss of ranks", "difference, median", "most"]
    columns += ["seconds to join, median", "most", "pause of the others, median", "most"] * options.replace
    print("| " + " | ".join(columns) + " |\n|---|" + "---:|" * (len(columns) - 1))
    for method in options.methods.split(","):
        try:
            _, undisturbed, *_ = attempt(method, options.deadline, draw, False, False)
        except Fault as fault:
            sys.exit(f"lost: {method} without a kill: {fault}")
        found = []
        for number in range(options.tries):
            try:
                found.append(attempt(method, options.deadline, draw, True, options.replace))
                text = "{:.2f} s, loss {:.4f}, joined in {:.2f} s, pause {:.2f} s".format(*found[-1])
            except Fault as fault:
                text = str(fault)
            print(f"{method} {number + 1}: {text}", file=sys.stderr, flush=True)
        seconds, losses, joined, pauses = zip(*found) if found else [[0.0]] * 4
        worst = max(worst, options.tries - len(found), *(took > options.deadline + 1 for took in seconds))
        cells = [method, options.tries, len(found), f"{undisturbed:.4f}"]
        pairs = [(seconds, "{:.2f}"), ([loss - undisturbed for loss in losses], "{:+.4f}")] + [(joined, "{:.2f}"), (pauses, "{:.2f}")] * options.replace
        pairs = [form.format(value) for values, form in pairs for value in (statistics.median(values), max(values))]
        print("| " + " | ".join(map(str, cells[:3] + pairs[:2] + cells[3:] + pairs[2:])) + " |", flush=True)
    sys.exit(worst > 0)


if __name__ == "__main__":
    main()
