# SPDX-License-Identifier: Apache-2.0
"""Process groups that go on without ranks that are lost."""

import datetime
import time

import torch
import torch.distributed

from . import _native


def _gloo(store, rank, size, timeout):
    """A process group of Gloo's over a store, beside those of torch.distributed.init_process_group."""
    backend = torch.distributed.ProcessGroupGloo(store, rank, size, timeout)
    if isinstance(backend, torch.distributed.ProcessGroup):
        return backend  # PyTorch 1
    group = torch.distributed.ProcessGroup(store, rank, size)
    # pylint: disable=protected-access
    group._register_backend(torch.device("cpu"), torch.distributed.ProcessGroup.BackendType.GLOO, backend)
    return group


class Members:
    """The ranks of a job that goes on when it loses some: a process group over a store, and another one without the lost ranks.

        members = terse_torch.Members(store, rank, size, deadline=20)
        optimizer = terse_torch.DiLoCo(model.named_parameters(), lr=1e-3, period=30, process_group=members.group, deadline=20)
        while optimizer.steps < total:
            try:
                optimizer.zero_grad(); loss(model, members.number).backward(); optimizer.step()
            except terse_torch.PeerError as lost:
                members.regroup(lost)
                optimizer.carry_over(members.group)

    store     a torch.distributed store that outlives each rank: a FileStore, or a TCPStore whose server runs in a process that is
              no rank, such as the launcher; its timeout becomes the deadline
    rank      this rank, from 0 to size - 1: its `number` in this job, which it keeps
    deadline  seconds for which the others wait, in `regroup` and while they connect, for a rank of which nothing is known
    grace     seconds for which they wait for a rank that a PeerError has named: its connections close when it is killed, and also when it
              is about to call `regroup`, like them [a quarter of the deadline, at most 5]
    name      tells jobs apart that share a store

    `group` is the process group, `numbers` are the members' numbers by their present ranks, and `rank` and `size` are the present ones."""

    def __init__(self, store, rank, size, deadline=60.0, grace=None, name="terse"):
        if not 0 <= rank < size:
            raise ValueError(f"terse_torch: ranks are 0 to {size - 1}, not {rank}")
        if not deadline > 0:
            raise ValueError(f"terse_torch: deadline must be above 0, not {deadline}")
        self._store, self._deadline, self._name = store, deadline, name
        self._grace = min(deadline / 4, 5.0) if grace is None else min(grace, deadline)
        self._generation = 0
        self.number, self.numbers = rank, list(range(size))
        self.group = self._connect()

    @property
    def rank(self):
        return self.numbers.index(self.number)

    @property
    def size(self):
        return len(self.numbers)

    def regroup(self, lost=None):
        """Goes on without lost ranks, after a PeerError: `group` becomes one of the ranks that call this. It returns the numbers of the lost
        ranks. Lost are those that don't call it in time. Collective among the ranks that are left. Raises a PeerError if the others have gone on without this rank.
        Messages of the group before fail: let go of it, and of what was made with it (optimizer.carry_over does)."""
        culprit = getattr(lost, "culprit", -1)
        blamed = self.numbers[culprit] if 0 <= culprit < self.size else -1
        before = self.numbers
        self.group = None
        for _ in before:  # each try that fails has lost at least one more
            self._generation += 1
            self.numbers = self._agree(before, blamed)
            if self.number not in self.numbers:
                raise _native.PeerError(f"terse_torch: the other ranks go on without rank {self.number}, which came too late")
            try:
                self.group = self._connect()
                return [number for number in before if number not in self.numbers]
            except RuntimeError as failure:
                last, blamed = failure, -1
        raise _native.PeerError(f"terse_torch: the ranks that are left can't connect: {last}")

    def _key(self, what):
        return f"{self._name}/{self._generation}/{what}"

    def _agree(self, before, blamed):
        """The members of this generation: those that the first one to decide has found here."""
        # Counters, since PyTorch 1's stores can't check for a key: 0 is a rank that is not here, others are 2 + the rank that it blames, or -1.
        self._store.add(self._key(self.number), 2 + blamed)
        begin, blames = time.monotonic(), {self.number: blamed}
        while True:
            for number in before:
                if number not in blames and (told := self._store.add(self._key(number), 0)) > 0:
                    blames[number] = told - 2
            missing, since = set(before) - blames.keys(), time.monotonic() - begin
            if not missing or since >= self._deadline or self._store.add(self._key("decided"), 0) > 0:
                break
            if since >= self._grace and missing <= set(blames.values()):
                break
            time.sleep(0.005)
        chosen = self._store.compare_set(self._key("members"), "", ",".join(map(str, sorted(blames))))
        self._store.add(self._key("decided"), 1)
        return [int(number) for number in chosen.decode().split(",")]

    def _connect(self):
        store = torch.distributed.PrefixStore(self._key("group"), self._store)
        store.set_timeout(datetime.timedelta(seconds=self._deadline))
        return _gloo(store, self.rank, self.size, datetime.timedelta(seconds=self._deadline))
