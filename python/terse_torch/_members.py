# SPDX-License-Identifier: Apache-2.0
"""Process groups that go on without ranks that are lost, and with ranks that join."""

import datetime
import time
import weakref

import torch
import torch.distributed

from . import _native


replaced, stepped = weakref.WeakSet(), weakref.WeakSet()
"""Process groups in whose place `Members` has made others, and those over which an optimizer has taken a step."""


def _gloo(store, rank, size, timeout):
    """A process group of Gloo's over a store, beside those of torch.distributed.init_process_group."""
    backend = torch.distributed.ProcessGroupGloo(store, rank, size, timeout)
    if isinstance(backend, torch.distributed.ProcessGroup):
        return backend  # PyTorch 1
    group = torch.distributed.ProcessGroup(store, rank, size)
    # pylint: disable=protected-access
    group._register_backend(torch.device("cpu"), torch.distributed.ProcessGroup.BackendType.GLOO, backend)
    return group


def _text(numbers):
    return ",".join(map(str, numbers))


def _numbers(text):
    return [int(number) for number in text.split(",") if number]


class Members:
    """The ranks of a job that goes on when it loses some, or when others join: a process group over a store, and another one after each change.

        members = terse_torch.Members(store, rank, size, deadline=20)  # or Members.join(store, deadline=20)
        optimizer, changed, lost = None, True, None
        while True:
            if lost:
                members.regroup(lost)
            lost = None
            try:
                if optimizer is None:
                    optimizer = terse_torch.DiLoCo(model.named_parameters(), lr=1e-3, period=30, process_group=members.group,
                                                   joins=members.joined, deadline=20)
                elif changed:
                    optimizer.carry_over(members.group)
                changed = False
                if optimizer.steps >= total:
                    break
                optimizer.zero_grad(); loss(model, members.number).backward(); optimizer.step()
                changed = optimizer.steps % 30 == 0 and members.admit()
            except (terse_torch.PeerError, terse_torch.MismatchError) as failure:
                if optimizer is None and (isinstance(failure, terse_torch.MismatchError) or not members.joined):
                    raise  # the job has not begun, or this rank joins with other settings
                lost, changed = failure, True

    store     a torch.distributed store that outlives each rank: a FileStore, or a TCPStore whose server runs in a process that is
              no rank, such as the launcher; its timeout becomes the deadline
    rank      this rank, from 0 to size - 1: its `number` in this job, which it keeps
    deadline  seconds for which the others wait, in `regroup` and while they connect, for a rank of which nothing is known
    grace     seconds for which they wait for a rank that a PeerError has named: its connections close when it is killed, and also when it
              is about to call `regroup`, like them [a quarter of the deadline, at most 5]
    name      tells jobs apart that share a store

    `group` is the process group, for optimizers: the timeout of other messages over it is a tenth of the deadline. `numbers` are the members' numbers by their present ranks, and `rank` and `size` are the present ones.
    `joined` tells whether this rank has joined a running job."""

    def __init__(self, store, rank, size, deadline=60.0, grace=None, name="terse"):
        if not 0 <= rank < size:
            raise ValueError(f"terse_torch: ranks are 0 to {size - 1}, not {rank}")
        self._set(store, deadline, grace, name)
        self._first = int(self._decide(f"{name}/size", size))
        if self._first != size:
            raise ValueError(f"terse_torch: rank {rank} begins a job of {size} ranks, and another has begun it with {self._first}; "
                             "jobs that share a store need names of their own")
        self.number, self.numbers = rank, list(range(size))
        self.group = self._connect()

    @classmethod
    def join(cls, store, deadline=60.0, grace=None, name="terse", patience=600.0):
        """Joins a running job as soon as its members call `admit`; make optimizers with joins=True then. The rank gets a number that no other
        had. Raises a PeerError if no member has admitted it after `patience` seconds. Arguments as above."""
        self = cls.__new__(cls)
        self._set(store, deadline, grace, name)
        self.joined = True
        ticket = store.add(f"{name}/tickets", 1) - 1
        place, until = f"{name}/ticket/{ticket}", time.monotonic() + patience
        # A counter, since a compare_set wakes no rank that waits for its key in PyTorch 1's TCPStore.
        while store.add(f"{place}/answers", 0) == 0:
            late = time.monotonic() - until
            # The first to decide about the ticket is this rank, or a member that admits it in this moment.
            if late > deadline or late > 0 and self._decide(place, "withdrawn") == "withdrawn":
                raise _native.PeerError(f"terse_torch: no member of '{name}' has called admit within {patience} seconds")
            time.sleep(0.02)
        self._generation = int(store.get(f"{place}/generation").decode()) - 1
        self._first = int(store.get(f"{name}/size").decode())
        self.number = self._first + ticket
        self.numbers = [self.number]
        self._go_on(-1)
        return self

    def _set(self, store, deadline, grace, name):
        if not deadline > 0:
            raise ValueError(f"terse_torch: deadline must be above 0, not {deadline}")
        self._store, self._deadline, self._name = store, deadline, name
        self._grace = min(deadline / 4, 5.0) if grace is None else min(grace, deadline)
        self._generation = self._asked = self._tickets = 0
        self.group, self.joined, self._guests = None, False, ()

    @property
    def rank(self):
        return self.numbers.index(self.number)

    @property
    def size(self):
        return len(self.numbers)

    def regroup(self, lost=None):
        """Goes on without lost ranks, after a PeerError, or a MismatchError since ranks have joined with other settings: `group` becomes one
        of the ranks that call this. It returns the numbers of the lost ranks. Lost are those that don't call it in time. Collective among the
        ranks that are left. Raises a PeerError if the others have gone on without this rank. Raises `lost` if no rank is, and it is a
        MismatchError or no step was taken over the group that has failed: the error would come again.
        Messages of the group before fail: let go of it, and of what was made with it (optimizer.carry_over does)."""
        culprit, mismatch = getattr(lost, "culprit", -1), isinstance(lost, _native.MismatchError)
        before, repeats = self.numbers, lost is not None and (mismatch or self.group not in stepped)
        self._go_on(self.numbers[culprit] if 0 <= culprit < self.size else -1, suspects=self._guests if mismatch and self.group not in stepped else ())
        if repeats and self.numbers == before:
            raise lost
        return [number for number in before if number not in self.numbers]

    def admit(self):
        """Admits those that wait in `join`: `group` becomes one of the members and them. It returns whether `group` is another one now: then all
        members, and those that have joined, carry their optimizers' state over. Collective: all members call it after the same steps, and not
        before a step, since ranks that join begin with one. Looks at the store twice. Raises a PeerError if the others have gone on without this
        rank."""
        self._asked += 1
        tickets = int(self._decide(self._key(f"admit/{self._asked}"), self._store.add(f"{self._name}/tickets", 0)))
        waiting, self._tickets = range(self._tickets, tickets), tickets
        guests = [self._first + ticket for ticket in waiting if self._decide(f"{self._name}/ticket/{ticket}", "admitted") != "withdrawn"]
        if guests:
            self._go_on(-1, guests)
        self._guests = guests
        return bool(guests)

    def _go_on(self, blamed, guests=(), suspects=()):
        """Connects the members that are left, and guests. If that fails, tries again without the ranks that are lost by then. Suspects are
        waited for as long as ranks that are blamed."""
        if self.group is not None:
            replaced.add(self.group)
        self.group, tries = None, 0
        self._check_present()
        while self.group is None:
            self._generation, self._asked = self._generation + 1, 0
            self.numbers = self._agree(blamed, guests, suspects)
            self._check_present()
            try:
                self.group = self._connect()
            except RuntimeError as failure:
                tries += 1
                if tries > len(self.numbers):
                    raise _native.PeerError(f"terse_torch: the ranks that are left can't connect: {failure}") from failure
                blamed, guests, suspects = -1, (), ()

    def _check_present(self):
        if self.number not in self.numbers:
            raise _native.PeerError(f"terse_torch: the other ranks go on without rank {self.number}, which came too late")

    def _decide(self, key, value):
        """The first value that a rank has given to this key."""
        return self._store.compare_set(key, "", str(value)).decode()

    def _key(self, what):
        return f"{self._name}/{self._generation}/{what}"

    def _agree(self, blamed, guests, suspects):
        """The members of this generation: of the ranks that the first one here has called, those that the first one to decide has found here."""
        called = self._decide(self._key("called"), ";".join(_text(part) for part in ([self._tickets], self.numbers, guests)))
        (self._tickets,), before, guests = map(_numbers, called.split(";"))
        for number in guests:
            place = f"{self._name}/ticket/{number - self._first}"
            self._decide(f"{place}/generation", self._generation)
            self._store.add(f"{place}/answers", 1)
        # Counters, since PyTorch 1's stores can't check for a key: 0 is a rank that is not here, others are 2 + the rank that it blames, or -1.
        self._store.add(self._key(self.number), 2 + blamed)
        begin, blames = time.monotonic(), {self.number: blamed}
        while True:
            for number in before + guests:
                if number not in blames and (told := self._store.add(self._key(number), 0)) > 0:
                    blames[number] = told - 2
            missing, since = {*before, *guests} - blames.keys(), time.monotonic() - begin
            if not missing or since >= self._deadline or self._store.add(self._key("decided"), 0) > 0:
                break
            # A guest does nothing but wait for its call.
            if since >= self._grace and missing <= {*guests, *suspects, *blames.values()}:
                break
            time.sleep(0.005)
        numbers = _numbers(self._decide(self._key("members"), _text(sorted(blames))))
        self._store.add(self._key("decided"), 1)
        return numbers

    def _connect(self):
        """The process group of this generation. Raises a RuntimeError within the deadline if a member is gone."""
        until = time.monotonic() + self._deadline
        if self._store.add(self._key(f"here/{self.number}"), 1) > 1:
            raise ValueError(f"terse_torch: another process is rank {self.number} of '{self._name}', or was in an earlier job of this store; "
                             "jobs that share a store need names of their own")
        missing = self.numbers
        while missing := [number for number in missing if self._store.add(self._key(f"here/{number}"), 0) == 0]:
            if time.monotonic() > until:
                raise _native.PeerError(f"terse_torch: ranks {missing} of '{self._name}' are not here after {self._deadline} seconds")
            time.sleep(0.005)
        store = torch.distributed.PrefixStore(self._key("group"), self._store)
        # All are here, so a rank that does not connect within half the deadline is lost: others may know it at once, and wait for the deadline
        # in the next generation. Gloo waits for a rank's address in the store, and for a connection five times as long as for messages.
        store.set_timeout(datetime.timedelta(seconds=self._deadline / 2))
        return _gloo(store, self.rank, self.size, datetime.timedelta(seconds=min(self._deadline, max(1.0, self._deadline / 10))))
