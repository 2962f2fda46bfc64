#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/network/run: steps of PyTorch's DistributedDataParallel over gloo, the model of libtorch_model.cpp.

Usage: ddp.py HOOK,... MODEL BATCH STEPS RANK RANKS MASTER    HOOK: ddp, ddp/fp16, ddp/bf16 or ddp/powersgd, and by
terse_torch, where that Python has it, ddp/terse-sign or ddp/terse-low-rank
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

SYMBOLS, CHARACTERS, HEADS = 96, 64, 4
FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES


def perceptron(hidden):
    widths = [784, hidden, hidden, hidden, 10]
    layers = []
    for k in range(len(widths) - 1):
        if k > 0:
            layers.append(nn.ReLU())
        layers.append(nn.Linear(widths[k], widths[k + 1]))
    return nn.Sequential(*layers)


class Embeddings(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(SYMBOLS, width)
        self.places = nn.Parameter(0.02 * torch.randn(CHARACTERS, width))

    def forward(self, x):
        return self.words(x.long()) + self.places


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.queries = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_wide = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.register_buffer("future", torch.full((CHARACTERS, CHARACTERS), -1e9).triu(1))

    def forward(self, x):
        rows, _, width = x.shape
        each = width // HEADS
        q, k, v = self.queries(self.before_attention(x)).view(rows, CHARACTERS, 3, HEADS, each).permute(2, 0, 3, 1, 4)
        weights = (q.matmul(k.transpose(-1, -2)) / each**0.5 + self.future).softmax(-1)
        h = x + self.attended(weights.matmul(v).transpose(1, 2).reshape(rows, CHARACTERS, width))
        return h + self.narrow(nn.functional.gelu(self.wide(self.before_wide(h))))


def transformer(width):
    return nn.Sequential(Embeddings(width), *(Block(width) for _ in range(4)), nn.LayerNorm(width), nn.Linear(width, SYMBOLS))


def network(name):
    """That of libtorch_model.cpp, to the bit where random numbers are drawn alike."""
    torch.manual_seed(0)
    kind, width = name.split("/")
    return {"perceptron": perceptron, "transformer": transformer}[kind](int(width))


def loss_of(found, targets):
    """Of each character, where an example has many."""
    return nn.functional.cross_entropy(found.flatten(0, -2), targets.flatten())


def parallel(hook, name):
    model = network(name)
    dist._DEFAULT_FIRST_BUCKET_BYTES, megabytes = FIRST_BUCKET_BYTES, 25
    if hook == "ddp/powersgd":
        # In one bucket: the hook starts collectives when others end, for several buckets in an order of each rank's own, and
        # gloo takes one for the other.
        whole = 4 * sum(parameter.numel() for parameter in model.parameters())
        dist._DEFAULT_FIRST_BUCKET_BYTES, megabytes = whole, whole / 2**20
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=megabytes)
    if hook in ("ddp/fp16", "ddp/bf16"):
        model.register_comm_hook(None, getattr(default_hooks, hook[4:] + "_compress_hook"))
    if hook == "ddp/powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    if hook in ("ddp/terse-sign", "ddp/terse-low-rank"):
        import terse_torch
        model.register_comm_hook(None, terse_torch.hook(hook.removeprefix("ddp/terse-").replace("-", "_"), rank=4))
    return model


def examples(name, batch, rank):
    """A rank's batch, with targets."""
    torch.manual_seed(rank)
    if name.startswith("perceptron"):
        return torch.rand(batch, 784), torch.randint(10, (batch,))
    return torch.randint(SYMBOLS, (2, batch, CHARACTERS))


def sent():
    """Bytes that this rank has sent over its link, without the headers of Ethernet, IP and TCP."""
    folder = f"/sys/class/net/{os.environ['GLOO_SOCKET_IFNAME']}/statistics"
    length, packets = (int(open(f"{folder}/tx_{what}").read()) for what in ("bytes", "packets"))
    return length - 66 * packets


def join(rank, ranks, master):
    os.environ.update(MASTER_ADDR=master, MASTER_PORT="29500", GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "eth0"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)


def leave():
    """Ends the process at once: threads of gloo that are still there would abort it."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def measure(hook, name, batch, steps, rank):
    model = parallel(hook, name)
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = examples(name, batch, rank)
    seconds = []
    # PowerSGD's own first two steps are exact.
    for step in range(-3 if hook == "ddp/powersgd" else -2, steps):
        dist.barrier()
        begin, before = time.perf_counter(), sent()
        optimizer.zero_grad(set_to_none=False)
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        if step >= 0:
            seconds.append(time.perf_counter() - begin)
    length = sent() - before
    if rank == 0:
        print(json.dumps({"method": hook, "seconds": seconds, "bytes": length, "torch": torch.__version__}), flush=True)


def main():
    hooks, name, batch, steps, rank, ranks, master = sys.argv[1:]
    join(int(rank), int(ranks), master)
    for hook in hooks.split(","):
        measure(hook, name, int(batch), int(steps), int(rank))
    leave()


if __name__ == "__main__":
    main()
