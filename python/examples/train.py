#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a perceptron on Fashion-MNIST by one of terse's optimizers, or by DistributedDataParallel with Adam and a hook.

    torchrun --standalone --nproc-per-node 4 train.py [--method OneBitAdam] [--checkpoints FOLDER]

With --checkpoints each rank keeps a file of its own after each epoch, and a run that finds files there goes on from them, to the bit."""

import argparse
import contextlib
import gzip
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import terse_torch

METHODS = ["OneBitAdam", "Adam", "ZeroOneAdam", "DiLoCo"]
HOOKS = ["ddp", "ddp+sign", "ddp+low_rank", "ddp+fp16", "ddp+power_sgd"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="OneBitAdam", choices=METHODS + HOOKS, help="an optimizer of terse's, or PyTorch's DDP and Adam "
                        "with its own mean (ddp), with a hook of terse's (sign, low_rank) or of PyTorch's (fp16, power_sgd)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="pictures of a rank in a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=256, help="of the first hidden layer (%(default)s)")
    parser.add_argument("--limit", type=int, default=60000, help="pictures to train on, at most")
    parser.add_argument("--checkpoints", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist", help="IDX files (%(default)s)")
    return parser.parse_args()


def read(folder, name):
    with gzip.open(folder / f"{name}.gz") as file:
        data = file.read()
    dimensions = [int.from_bytes(data[4 + 4 * k:8 + 4 * k], "big") for k in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * len(dimensions):]), dtype=torch.uint8).reshape(dimensions)


def load(folder, kind, limit):
    pictures = read(folder, f"{kind}-images-idx3-ubyte")[:limit].flatten(1).float()
    return (pictures / 255 - 0.286) / 0.353, read(folder, f"{kind}-labels-idx1-ubyte")[:limit].long()


def make(args, model, steps):
    """The forward pass and the optimizer."""
    if not args.method.startswith("ddp"):
        warmup = max(1, int(0.15 * steps))
        options = {"OneBitAdam": {"freeze_step": warmup, "topology": "ring"}, "Adam": {}, "DiLoCo": {"period": 20},
                   "ZeroOneAdam": {"freeze_step": warmup, "local_interval_steps": max(1, steps // 4)}}[args.method]
        return model, getattr(terse_torch, args.method)(model.named_parameters(), lr=args.lr, **options)
    forward = torch.nn.parallel.DistributedDataParallel(model)
    if args.method in ("ddp+sign", "ddp+low_rank"):
        forward.register_comm_hook(None, terse_torch.hook(args.method.removeprefix("ddp+")))
    elif args.method == "ddp+fp16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        forward.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif args.method == "ddp+power_sgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        forward.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return forward, torch.optim.Adam(model.parameters(), lr=args.lr)


def main():
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = torch.nn.Sequential(torch.nn.Linear(784, args.width), torch.nn.ReLU(), torch.nn.Linear(args.width, 128), torch.nn.ReLU(),
                                torch.nn.Linear(128, 10))
    pictures, labels = load(args.data, "train", args.limit)
    steps = len(labels) // (ranks * args.batch)
    forward, optimizer = make(args, model, steps * args.epochs)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * args.epochs)

    begin_epoch, file = 0, args.checkpoints and args.checkpoints / f"rank-{rank}.pt"
    if file and file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        begin_epoch = saved["epoch"]

    sent, seconds, total = 0, 0.0, 0.0
    for epoch in range(begin_epoch, args.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(args.seed + epoch))
        begin, total = time.perf_counter(), 0.0
        for step in range(steps):
            rows = order[(step * ranks + rank) * args.batch:][:args.batch]
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(pictures[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
            sent += optimizer.result.bytes_sent if isinstance(optimizer, terse_torch.Optimizer) else 0
        seconds += time.perf_counter() - begin
        if file:
            args.checkpoints.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            torch.save({"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict()}, part)
            os.replace(part, file)
    # Ranks of some methods differ between meetings: the mean is the model.
    with optimizer.mean_parameters() if args.method in METHODS else contextlib.nullcontext(), torch.no_grad():
        test, truth = load(args.data, "t10k", 10000)
        accuracy = (model(test).argmax(1) == truth).double().mean().item()
        fingerprints = [None] * ranks
        dist.all_gather_object(fingerprints, sum(parameter.double().sum().item() for parameter in model.parameters()))
    if len(set(fingerprints)) > 1:
        raise SystemExit("ranks hold different parameters")
    if rank == 0:
        bytes_sent = f", {sent / 1e6:.1f} MB sent by a rank" if sent else ""
        print(f"{args.method}: {ranks} ranks, {args.epochs} epochs of {steps} steps, loss {total / steps:.4f}, accuracy {100 * accuracy:.2f} %, "
              f"{1e3 * seconds / max(1, steps * (args.epochs - begin_epoch)):.2f} ms a step{bytes_sent}, fingerprint {fingerprints[0].hex()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
