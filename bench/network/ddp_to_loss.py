# SPDX-License-Identifier: Apache-2.0
"""What to_loss.cpp does, with PyTorch's DistributedDataParallel over gloo and torch.optim.Adam.

Usage: ddp_to_loss.py HOOK MODEL BATCH LEARNING_RATE LOSS MOST_STEPS DATA RANK RANKS MASTER    HOOK: see ddp.py
"""

import gzip
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist

sys.dont_write_bytecode = True  # beside this file
from ddp import CHARACTERS, join, leave, loss_of, parallel  # noqa: E402

SMOOTHED_OVER = 64


def bytes_of(folder, name, header):
    plain = pathlib.Path(folder) / name
    data = plain.read_bytes() if plain.exists() else gzip.decompress(plain.with_name(name + ".gz").read_bytes())
    return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8)


def pictures(folder):
    inputs = bytes_of(folder, "train-images-idx3-ubyte", 16).view(-1, 784)
    targets = bytes_of(folder, "train-labels-idx1-ubyte", 8).long()
    return targets, lambda which: (inputs[which].float() / 255 - 0.2860) / 0.3530


def text(file):
    """Of characters of a text the first are inputs, and the last, each one's next, targets."""
    examples = torch.frombuffer(bytearray(pathlib.Path(file).read_bytes()), dtype=torch.uint8).view(-1, CHARACTERS + 1).long()
    return examples[:, 1:], lambda which: examples[which, :-1]


class Order:
    """That of to_loss.cpp: SplitMix64's shuffles of what the epoch before had."""

    def __init__(self, count):
        self.order, self.epochs, self.state = list(range(count)), 0, 0

    def __getitem__(self, number):
        while number // len(self.order) >= self.epochs:
            for left in range(len(self.order), 1, -1):
                other = self.draw() % left
                self.order[left - 1], self.order[other] = self.order[other], self.order[left - 1]
            self.epochs += 1
        return self.order[number % len(self.order)]

    def draw(self):
        full = (1 << 64) - 1
        self.state = (self.state + 0x9e3779b97f4a7c15) & full
        z = (self.state ^ (self.state >> 30)) * 0xbf58476d1ce4e5b9 & full
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb & full
        return z ^ (z >> 31)


def main():
    hook, name, batch, rate, target, most_steps, data, rank, ranks, master = sys.argv[1:]
    batch, rank, ranks = int(batch), int(rank), int(ranks)
    targets, inputs_of = (pictures if name.startswith("perceptron") else text)(data)
    join(rank, ranks, master)
    model = parallel(hook, name)
    optimizer = torch.optim.Adam(model.parameters(), lr=float(rate))
    order, losses, curve, seconds = Order(len(targets)), [], [], 0.0
    for step in range(int(most_steps)):
        first = (step * ranks + rank) * batch
        which = torch.tensor([order[first + k] for k in range(batch)])
        inputs, answers = inputs_of(which), targets[which]
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model(inputs), answers)
        loss.backward()
        optimizer.step()
        slowest = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        total = loss.detach().double().reshape(1)
        dist.all_reduce(total)
        seconds += slowest.item()
        losses.append(total.item() / ranks)
        if len(losses) < SMOOTHED_OVER:
            continue
        mean = sum(losses[-SMOOTHED_OVER:]) / SMOOTHED_OVER
        curve.append([seconds, mean])
        if mean <= float(target):
            break
    if rank == 0:
        print(json.dumps({"method": hook, "curve": curve}), flush=True)
    leave()


if __name__ == "__main__":
    main()
