# SPDX-License-Identifier: Apache-2.0
"""Runs a function as the ranks of a process group over Gloo, each a process."""

import multiprocessing
import os
import pathlib
import tempfile
import time
import traceback

import torch
import torch.distributed

torch.set_num_threads(1)  # and no thread that a forked process would lack
FORK = multiprocessing.get_context("fork")


def _run(program, rank, ranks, store, pipe):
    try:
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
        pipe.send(("returned", program(rank, ranks)))
    except BaseException:  # pylint: disable=broad-except
        pipe.send(("raised", traceback.format_exc()))
    pipe.close()
    os._exit(0)  # without ends that wait for ranks which are gone


def processes(ranks, program, seconds=120):
    """What each rank returned, or None where its process ended by itself, and the traceback of each that raised."""
    with tempfile.TemporaryDirectory() as folder:
        store = (pathlib.Path(folder) / "store").as_uri()
        ends, workers = [], []
        for rank in range(ranks):
            here, there = FORK.Pipe(duplex=False)
            worker = FORK.Process(target=_run, args=(program, rank, ranks, store, there))
            worker.start()
            there.close()
            ends.append(here)
            workers.append(worker)
        until = time.monotonic() + seconds
        said = []
        try:
            for end in ends:
                assert end.poll(max(0.0, until - time.monotonic())), f"ranks took more than {seconds} s"
                try:
                    said.append(end.recv())
                except EOFError:
                    said.append(("ended", None))
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
    return said


def on_ranks(ranks, program, seconds=120):
    """What `program(rank, ranks)` returns on each."""
    said = processes(ranks, program, seconds)
    for rank, (how, what) in enumerate(said):
        assert how == "returned", f"rank {rank} {how}: {what}"
    return [what for _, what in said]


def net(seed=3, width=30):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, width), torch.nn.Tanh(), torch.nn.Linear(width, 5))


def batch(rank, step, rows=8):
    """Of a rank: pictures of a linear map, so that there is something to learn."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(rows, 20, generator=generator)
    return inputs, inputs[:, :5] - inputs[:, 5:10]


def loss_of(model, rank, step):
    inputs, targets = batch(rank, step)
    return (model(inputs.to(next(model.parameters()).dtype)).float() - targets).square().mean()


def train(model, optimizer, rank, steps):
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        optimizer.step()
    return loss.item()


def values(model):
    """All parameters, as a list that compares bit by bit."""
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()]).view(torch.int32).tolist()
