#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/network/run: steps of PyTorch's DistributedDataParallel over gloo, the model of libtorch_model.cpp.

Usage: ddp.py HOOK,... HIDDEN BATCH STEPS RANK RANKS MASTER    HOOK: ddp, ddp/fp16 or ddp/powersgd
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES


def perceptron(hidden):
    """That of libtorch_model.cpp, to the bit where random numbers are drawn alike."""
    torch.manual_seed(0)
    widths = [784, hidden, hidden, hidden, 10]
    layers = []
    for k in range(len(widths) - 1):
        if k > 0:
            layers.append(torch.nn.ReLU())
        layers.append(torch.nn.Linear(widths[k], widths[k + 1]))
    return torch.nn.Sequential(*layers)


def parallel(hook, hidden):
    network = perceptron(hidden)
    dist._DEFAULT_FIRST_BUCKET_BYTES, megabytes = FIRST_BUCKET_BYTES, 25
    if hook == "ddp/powersgd":
        # In one bucket: the hook starts collectives when others end, for several buckets in an order of each rank's own, and
        # gloo takes one for the other.
        whole = 4 * sum(parameter.numel() for parameter in network.parameters())
        dist._DEFAULT_FIRST_BUCKET_BYTES, megabytes = whole, whole / 2**20
    model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=megabytes)
    if hook == "ddp/fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "ddp/powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model


def join(rank, ranks, master):
    os.environ.update(MASTER_ADDR=master, MASTER_PORT="29500", GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "eth0"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)


def leave():
    """Ends the process at once: threads of gloo that are still there would abort it."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def measure(hook, hidden, batch, steps, rank):
    model = parallel(hook, hidden)
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(rank)
    images, labels = torch.rand(batch, 784), torch.randint(10, (batch,))
    seconds = []
    # PowerSGD's own first two steps are exact.
    for step in range(-3 if hook == "ddp/powersgd" else -2, steps):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step >= 0:
            seconds.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps({"method": hook, "seconds": seconds}), flush=True)


def main():
    hooks, hidden, batch, steps, rank, ranks, master = sys.argv[1:]
    join(int(rank), int(ranks), master)
    for hook in hooks.split(","):
        measure(hook, int(hidden), int(batch), int(steps), int(rank))
    leave()


if __name__ == "__main__":
    main()
