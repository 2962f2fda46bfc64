# SPDX-License-Identifier: Apache-2.0
"""Shared by tests/parity/run and tests/parity/packages: gradients, two ranks, deviations, the table of docs/parity.md."""

import array
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing

STEPS, BOUND = 50, 1e-5


def draw_numbers(n, orders, zeros):
    """Parameters, and gradients of two ranks of so many orders of magnitude; every tenth of them may be 0."""
    generator = torch.Generator().manual_seed(1)
    size = 10 ** (orders * torch.rand(n, generator=generator) + 2 - orders)
    gradients = torch.randn(STEPS, 2, n, generator=generator) * size
    if zeros:
        gradients[:, :, :: n // 10] = 0
    return torch.cat([0.01 * torch.randn(1, n, generator=generator), gradients.reshape(2 * STEPS, n)])


def draw_strong_directions(shapes):
    """The same, where the gradient of a matrix has two strong directions, as in training, and noise."""
    generator = torch.Generator().manual_seed(2)
    numbers = draw_numbers(sum(torch.Size(shape).numel() for shape in shapes), orders=0, zeros=False)
    numbers[1:] *= 1e-3
    begin = 0
    for shape in shapes:
        size = torch.Size(shape).numel()
        if len(shape) == 2:
            left, right = (torch.randn(*part, generator=generator) for part in ((shape[0], 2), (2, shape[1])))
            strength = 0.5 + torch.rand(2 * STEPS, 1, 2, generator=generator)
            numbers[1:, begin : begin + size] += ((left * strength) @ right).flatten(1)
        begin += size
    return numbers


def gradients_of(numbers):
    """As step, rank, parameter."""
    return numbers[1:].reshape(STEPS, 2, numbers.shape[1])


def run_rank(rank, body, folder, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        torch.save(body(rank, *arguments), f"{folder}/{rank}")
    except BaseException:
        traceback.print_exc()
        raise
    dist.destroy_process_group()


def on_two_ranks(body, *arguments):
    """The rows of body(rank, ...) of two processes with a process group, as step, rank, parameter."""
    with tempfile.TemporaryDirectory() as folder:
        context = torch.multiprocessing.start_processes(
            run_rank, (body, folder, arguments), nprocs=2, join=False, start_method="fork"
        )
        deadline = time.monotonic() + 100
        while not context.join(timeout=1):
            if time.monotonic() > deadline:
                for process in context.processes:
                    process.kill()
                raise TimeoutError(f"{body.__name__} has not ended after 100 seconds")
        return torch.stack([torch.load(f"{folder}/{rank}") for rank in range(2)], 1)


class Trajectories:
    """Parameters that a program of terse's optimizers has written, from these numbers."""

    def __init__(self, program, numbers):
        self.numbers = numbers.double()
        self.folder = tempfile.TemporaryDirectory()
        given = pathlib.Path(self.folder.name) / "given"
        given.write_bytes(array.array("f", numbers.flatten().tolist()).tobytes())
        subprocess.run([program, given, str(numbers.shape[1]), self.folder.name], check=True, timeout=120)

    def read(self, name):
        path = pathlib.Path(self.folder.name) / name
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32).double()

    def of(self, method):
        """As step, rank, parameter."""
        return self.read(method).reshape(STEPS, 2, -1)


class Table:
    """Prints the rows of docs/parity.md."""

    def __init__(self):
        self.worst = 0
        print("| method | implementation | steps | largest deviation |\n|---|---|---:|---:|")

    def add(self, method, implementation, ours, theirs, numbers, bounded=True):
        """Prints the largest deviation over steps, relative to the largest change of a parameter until then."""
        moved = (theirs - numbers[0]).abs().amax((1, 2)).cummax(0).values
        found = ((ours - theirs).abs().amax((1, 2)) / moved).max().item()
        print(f"| {method} | {implementation} | {STEPS} | {found:.1e} |", flush=True)
        if bounded:
            self.worst = max(self.worst, found if found == found else torch.inf)

    def status(self):
        """The program's exit status."""
        if self.worst <= BOUND:
            return 0
        print(f"the largest deviation is {self.worst:.1e}, above {BOUND:.0e}", file=sys.stderr)
        return 1
