#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills one of eight ranks by SIGKILL at a random moment of a training in which rank 0 is four times slower, and measures how long the
others take to go on, and where they end.

    python/tests/run PYTHON FOLDER                              # compiles the package
    PYTHONPATH=FOLDER python/tests/lost.py --tries 20           # for each method; some 10 minutes

Ranks sleep in their gradients, which take 10 ms, rank 0's 40 ms. Seconds count from the kill to the end of the first step that the last of
the other ranks takes without it. The loss is that of the ranks' mean model on held-out batches, minus that of the same training without a
kill."""

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
    """The rank's program. Sends its times, and rank 0's mean model's loss."""
    store = torch.distributed.FileStore(str(pathlib.Path(folder) / "store"), RANKS)
    members = terse_torch.Members(store, rank, RANKS, deadline=deadline)
    model = net()
    optimizer = getattr(terse_torch, method)(model.named_parameters(), lr=RATES.get(method, 0.01), process_group=members.group,
                                             deadline=deadline, **METHODS[method])
    pipe.send(("begun", time.monotonic()))
    gone_on, lost = None, []
    while optimizer.steps < STEPS:
        try:
            optimizer.zero_grad()
            time.sleep(GRADIENT * (4 if rank == 0 else 1))
            loss_of(model, rank, optimizer.steps).backward()
            optimizer.step()
            if lost and gone_on is None:
                gone_on = time.monotonic()
        except terse_torch.PeerError as failure:
            lost += members.regroup(failure)
            optimizer.carry_over(members.group)
    with optimizer.mean_parameters(), torch.no_grad():
        loss = statistics.mean(loss_of(model, 1000 + k, 1).item() for k in range(50))
    pipe.send(("done", gone_on, lost, loss, optimizer.steps))


def in_process(method, rank, folder, deadline, pipe):
    try:
        train(method, rank, folder, deadline, pipe)
    except BaseException as failure:  # pylint: disable=broad-except
        pipe.send(("failed", f"{type(failure).__name__}: {failure}"))
    os._exit(0)


def attempt(method, deadline, draw, kills):
    """One training: seconds until the others have gone on, the loss, and what went wrong, if anything."""
    with tempfile.TemporaryDirectory() as folder:
        ends, workers = [], []
        for rank in range(RANKS):
            here, there = FORK.Pipe(duplex=False)
            workers.append(FORK.Process(target=in_process, args=(method, rank, folder, deadline, there)))
            workers[-1].start()
            there.close()
            ends.append(here)
        try:
            for end in ends:
                if not end.poll(60) or end.recv()[0] != "begun":
                    return None, None, "a rank didn't begin"
            victim, killed = draw.randrange(1, RANKS), None
            if kills:
                time.sleep(draw.uniform(0.1, 0.6) * STEPS * 4 * GRADIENT)
                os.kill(workers[victim].pid, signal.SIGKILL)
                killed = time.monotonic()
            seconds, losses = 0.0, []
            for rank, end in enumerate(ends):
                if kills and rank == victim:
                    continue
                if not end.poll(120):
                    return None, None, f"rank {rank} didn't end"
                how, *said = end.recv()
                if how != "done":
                    return None, None, f"rank {rank}: {said[0]}"
                gone_on, lost, loss, steps = said
                if lost != ([victim] if kills else []) or steps != STEPS:
                    return None, None, f"rank {rank} lost {lost} for {victim} and took {steps} steps"
                losses.append(loss)
                if kills:
                    seconds = max(seconds, gone_on - killed)
            if len(set(losses)) > 1:
                return None, None, f"mean models differ: {losses}"
            return seconds, losses[0], None
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
    options = parser.parse_args()
    draw, worst = random.Random(options.seed), 0
    print("| method | tries | went on | seconds, median | most | held-out loss without a loss of ranks | difference, median | most |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for method in options.methods.split(","):
        _, undisturbed, fault = attempt(method, options.deadline, draw, kills=False)
        if fault:
            sys.exit(f"lost: {method} without a kill: {fault}")
        seconds, differences = [], []
        for number in range(options.tries):
            took, loss, fault = attempt(method, options.deadline, draw, kills=True)
            print(f"{method} {number + 1}: " + (fault or f"{took:.2f} s, loss {loss:.4f}"), file=sys.stderr, flush=True)
            if fault is None:
                seconds.append(took)
                differences.append(loss - undisturbed)
        worst = max(worst, options.tries - len(seconds), *(took > options.deadline + 1 for took in seconds))
        print(f"| {method} | {options.tries} | {len(seconds)} | {statistics.median(seconds or [0]):.2f} | {max(seconds or [0]):.2f} | {undisturbed:.4f} | "
              f"{statistics.median(differences or [0]):+.4f} | {max(differences or [0]):+.4f} |", flush=True)
    sys.exit(worst > 0)


if __name__ == "__main__":
    main()
