#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a perceptron on Fashion-MNIST with 1-bit Adam by terse, and with PyTorch's DistributedDataParallel and Adam, on the ranks of
MPI, and prints what both reach, and what 1-bit Adam sends.

    mpirun -n 4 python3 examples/pytorch/train.py [--epochs 5] [--seed 1] [--data FOLDER]"""

import argparse
import gzip
import os
import pathlib
import tempfile
import time

import torch
import torch.distributed
import torch.nn.functional as F

import terse_torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="pictures of a rank in a step (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=60000, help="pictures to train on, at most")
    parser.add_argument("--data", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist", help="IDX files (%(default)s)")
    return parser.parse_args()


def read(folder, name):
    with gzip.open(folder / f"{name}.gz") as file:
        data = file.read()
    dimensions = [int.from_bytes(data[4 + 4 * k:8 + 4 * k], "big") for k in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * len(dimensions):]), dtype=torch.uint8).reshape(dimensions)


def load(folder, kind):
    pictures = read(folder, f"{kind}-images-idx3-ubyte").flatten(1).float()
    return (pictures / 255 - 0.286) / 0.353, read(folder, f"{kind}-labels-idx1-ubyte").long()


def train(args, make):
    """`make(model)` returns what is called for a forward pass, and its optimizer."""
    rank, ranks = terse_torch.rank(), terse_torch.size()
    torch.manual_seed(args.seed)
    model = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128), torch.nn.ReLU(),
                                torch.nn.Linear(128, 10))
    forward, optimizer = make(model)
    pictures, labels = load(args.data, "train")
    pictures, labels = pictures[:args.limit], labels[:args.limit]
    steps = len(labels) // (ranks * args.batch)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * args.epochs)
    sent, begin = 0, time.perf_counter()
    for epoch in range(args.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(args.seed + epoch))
        total = 0.0
        for step in range(steps):
            rows = order[(step * ranks + rank) * args.batch:][:args.batch]
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(pictures[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
            sent += getattr(optimizer, "bytes_sent", 0)
    seconds = time.perf_counter() - begin
    model.eval()
    with torch.no_grad():
        test, truth = load(args.data, "t10k")
        accuracy = (model(test).argmax(1) == truth).double().mean().item()
    fingerprint = sum(parameter.double().sum().item() for parameter in model.parameters())
    alike = terse_torch.mean(fingerprint) == fingerprint
    return {"loss": terse_torch.mean(total / steps), "accuracy": accuracy, "sent": sent, "seconds": seconds, "alike": alike,
            "bytes": getattr(optimizer, "bytes_sent", 0), "optimizer": optimizer, "model": model}


def main():
    args = arguments()
    torch.set_num_threads(1)
    rank, ranks = terse_torch.rank(), terse_torch.size()
    per_epoch = min(args.limit, 60000) // (ranks * args.batch)
    freeze = max(1, int(0.15 * per_epoch * args.epochs))

    def one_bit(model):
        return model, terse_torch.Optimizer(model.named_parameters(), lr=1e-3, freeze_step=freeze)

    # A rendezvous of torch.distributed's, in a file that all ranks see.
    store = pathlib.Path(tempfile.gettempdir()) / f"terse-ddp-{os.environ.get('PMIX_NAMESPACE', os.getpid())}"
    torch.distributed.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=ranks)

    def ddp(model):
        return torch.nn.parallel.DistributedDataParallel(model), torch.optim.Adam(model.parameters(), lr=1e-3)

    results = {"terse, 1-bit Adam": train(args, one_bit), "DDP, Adam": train(args, ddp)}
    torch.distributed.destroy_process_group()
    if rank == 0:
        store.unlink(missing_ok=True)
        print(f"{ranks} ranks, seed {args.seed}, {args.epochs} epochs, {per_epoch} steps each, one bit after step {freeze}")
        print(f"{'':20}{'loss':>8}{'accuracy':>10}{'seconds':>9}  ranks alike  bytes sent by a rank: in all, by the last step")
        for name, r in results.items():
            sent = f"{r['sent'] / 1e6:.1f} MB, {r['bytes'] / 1e3:.1f} kB" if r["sent"] else ""
            print(f"{name:20}{r['loss']:8.4f}{100 * r['accuracy']:9.2f} %{r['seconds']:9.1f}  {'yes' if r['alike'] else 'NO':11}  {sent}")
    if not results["terse, 1-bit Adam"]["alike"]:
        raise SystemExit("the ranks hold different parameters")


if __name__ == "__main__":
    main()
