#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/network/run: local steps of Adam, after every eighth of which torchft's DiLoCo or hivemind's averager
synchronizes the ranks. Seconds and bytes are those of a step, a mean over 8. Requires the packages torchft-nightly, hivemind and, for
its 8 bits, numpy below 2.4.

Usage: peers.py PEER,... MODEL BATCH STEPS RANK RANKS MASTER
PEER: torchft/diloco, hivemind/local-sgd, hivemind/local-sgd/fp16 or hivemind/local-sgd/int8
"""

import contextlib
import datetime
import json
import socket
import sys
import tempfile
import time

import hivemind
import torch
import torch.distributed as dist
import torchft
import torchft.coordination
import torchft.local_sgd
from hivemind.compression import Float16Compression, NoCompression, Uniform8BitQuantization
from hivemind.optim.state_averager import TrainingStateAverager
from torch.nn.utils import parameters_to_vector

from ddp import examples, join, leave, loss_of, network, sent

PERIOD = 8
DEADLINE = datetime.timedelta(seconds=600)
COMPRESSIONS = {"fp16": Float16Compression, "int8": Uniform8BitQuantization}


def own_address(master):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 1))
        return probe.getsockname()[0]


@contextlib.contextmanager
def torchft_diloco(_, model, rank, ranks, master):
    """Yields the function that ends step k of a period."""
    own = own_address(master)
    # Process groups find each other by their host's name, which all namespaces share.
    socket.gethostname = lambda: own
    lighthouse = torchft.coordination.LighthouseServer(bind="[::]:29510", min_replicas=ranks) if rank == 0 else None
    store = dist.TCPStore(own, 29511, is_master=True, wait_for_workers=False)
    dist.barrier()
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(DEADLINE), load_state_dict=None, state_dict=None, min_replica_size=ranks, rank=0, world_size=1,
        use_async_quorum=False, init_sync=False, timeout=DEADLINE, quorum_timeout=DEADLINE, max_retries=0, hostname=own,
        store_addr=own, store_port=store.port, lighthouse_addr=f"http://{master}:29510", replica_id=f"rank{rank}")
    inner = torch.optim.Adam(model.parameters())
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with torchft.local_sgd.DiLoCo(manager, [model], inner, outer, sync_every=PERIOD):
        yield lambda k: inner.step()
    dist.barrier()
    manager.shutdown()
    if lighthouse:
        lighthouse.shutdown()


@contextlib.contextmanager
def hivemind_local_sgd(peer, model, rank, ranks, master):
    """Yields the function that ends step k of a period. Ranks look for each other during the period, before they average."""
    sockets = tempfile.TemporaryDirectory()  # hivemind leaves its own there
    hivemind.p2p.P2P._UNIX_SOCKET_PREFIX = f"/unix{sockets.name}/"
    where = {"host_maddrs": [f"/ip4/{own_address(master)}/tcp/0"], "start": True}
    known = [None]
    if rank == 0:
        dht = hivemind.DHT(**where)
        known = [[str(address) for address in dht.get_visible_maddrs()]]
    dist.broadcast_object_list(known)
    if rank > 0:
        dht = hivemind.DHT(initial_peers=known[0], **where)
    averager = TrainingStateAverager(
        dht=dht, optimizer=torch.optim.Adam(model.parameters()), prefix=peer, start=True, target_group_size=ranks,
        min_group_size=ranks, compression=COMPRESSIONS.get(peer.split("/")[-1], NoCompression)())
    control = None

    def step(k):
        nonlocal control
        if k == 0:
            control = averager.schedule_step()
        averages = {"averaging_round": True, "averaging_control": control} if k == PERIOD - 1 else {}
        averager.step(optimizer_step=True, **averages)

    yield step
    dist.barrier()
    averager.shutdown()
    dht.shutdown()
    sockets.cleanup()


def require_mean(peer, model, start, rank, ranks):
    """Ends the program where parameters have not moved, or not to one mean: peers report a failed round in a log alone."""
    mine = parameters_to_vector(model.parameters()).detach()[::1000].clone()
    mean = mine.clone()
    dist.all_reduce(mean)
    moved, apart = (float((v - mean / ranks).norm() / start.norm()) for v in (start, mine))
    if moved == 0 or apart > 0.02:
        raise SystemExit(f"{peer}: rank {rank} differs from the mean by {apart:.2g}, which moved by {moved:.2g}: a round failed")


def measure(peer, name, batch, steps, rank, ranks, master):
    model = network(name)
    start = parameters_to_vector(model.parameters()).detach()[::1000].clone()
    inputs, targets = examples(name, batch, rank)
    seconds, gradients = [], []
    with (torchft_diloco if peer == "torchft/diloco" else hivemind_local_sgd)(peer, model, rank, ranks, master) as step:
        for period in range(-1, steps):
            dist.barrier()
            begin, before, gradient = time.perf_counter(), sent(), torch.zeros(1)
            for k in range(PERIOD):
                since = time.perf_counter()
                model.zero_grad(set_to_none=False)
                loss_of(model(inputs), targets).backward()
                gradient += time.perf_counter() - since
                step(k)
            whole = time.perf_counter() - begin
            dist.all_reduce(gradient, dist.ReduceOp.MAX)  # the slowest rank's, for which all others wait
            if period >= 0:
                seconds.append(whole / PERIOD)
                gradients.append(gradient.item() / PERIOD)
        length = (sent() - before) // PERIOD
    require_mean(peer, model, start, rank, ranks)
    if rank == 0:
        print(json.dumps({"method": peer, "seconds": seconds, "gradient": gradients, "bytes": length,
                          "torch": torch.__version__}), flush=True)


def main():
    peers, name, batch, steps, rank, ranks, master = sys.argv[1:]
    join(int(rank), int(ranks), master)
    for peer in peers.split(","):
        measure(peer, name, int(batch), int(steps), int(rank), int(ranks), master)
    leave()


if __name__ == "__main__":
    main()
