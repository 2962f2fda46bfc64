# SPDX-License-Identifier: Apache-2.0
"""Jobs that go on without a rank that is killed, or that stalls, and with ranks that join."""

import contextlib
import datetime
import os
import pathlib
import signal
import tempfile
import time

import pytest
import torch

import terse_torch
from terse_torch import _native
from ranks import FORK, loss_of, net, on_ranks, processes, train, values

DEADLINE = 20.0
SECONDS = datetime.timedelta(seconds=60)


def members_of(folder, rank, ranks, deadline=DEADLINE):
    store = torch.distributed.FileStore(str(pathlib.Path(folder) / "members"), ranks)
    return terse_torch.Members(store, rank, ranks, deadline=deadline, grace=3.0)


def make(name, model, members, deadline=DEADLINE):
    more = {"OneBitAdam": {"freeze_step": 4}, "StreamingDiLoCo": {"period": 4, "fragments": 2, "delay": 2}}.get(name, {})
    return getattr(terse_torch, name)(model.named_parameters(), lr=0.01, process_group=members.group, deadline=deadline, **more)


def go_on(model, optimizer, members, last):
    """Trains until step `last`; returns the numbers of lost ranks, and the longest time from a loss to the next step."""
    lost, longest = [], 0.0
    while optimizer.steps < last:
        try:
            train(model, optimizer, members.number, [optimizer.steps])
        except terse_torch.PeerError as failure:
            begin = time.monotonic()
            lost += members.regroup(failure)
            optimizer.carry_over(members.group)
            longest = max(longest, time.monotonic() - begin)
    return lost, longest


@pytest.mark.parametrize("name, at", [("OneBitAdam", 2), ("OneBitAdam", 9), ("ErrorFeedbackSgd", 5), ("StreamingDiLoCo", 9)])
def test_the_others_go_on_in_the_same_processes_when_a_rank_is_killed(name, at):
    if name not in _native.methods():
        pytest.skip(f"{name} was not compiled")
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            members = members_of(folder, rank, ranks)
            model = net()
            optimizer = make(name, model, members)
            if rank == 1:
                train(model, optimizer, rank, range(at))
                os.kill(os.getpid(), signal.SIGKILL)
            first = loss_of(model, 7, 50).item()
            lost, longest = go_on(model, optimizer, members, 40)
            return lost, longest, values(model), optimizer.steps, loss_of(model, 7, 50).item() / first, members.numbers, members.size

        said = processes(4, program)
    assert said[1] == ("ended", None)
    others = [what for how, what in said if how == "returned"]
    assert len(others) == 3, said
    for lost, longest, model, steps, loss, numbers, size in others:
        assert (lost, steps, numbers, size) == ([1], 40, [0, 2, 3], 3)
        assert name == "StreamingDiLoCo" or model == others[0][2], "replicas differ"
        assert loss < 0.95
        assert longest < DEADLINE + 1


def test_a_rank_that_stalls_is_left_and_told_so():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            members = members_of(folder, rank, ranks, deadline=2.0)
            model = net()
            optimizer = make("ErrorFeedbackSgd", model, members, deadline=2.0)
            train(model, optimizer, rank, range(3))
            gone_on = pathlib.Path(folder) / "gone on"
            if rank == 2:
                until = time.monotonic() + 60
                while not gone_on.exists() and time.monotonic() < until:
                    time.sleep(0.05)
                with pytest.raises(terse_torch.PeerError) as failure:
                    train(model, optimizer, rank, range(3, 6))
                with pytest.raises(terse_torch.PeerError, match="the other ranks go on without rank 2"):
                    members.regroup(failure.value)
                return None
            lost, _ = go_on(model, optimizer, members, 10)
            gone_on.touch()
            return lost, optimizer.steps

        assert on_ranks(3, program) == [([2], 10), ([2], 10), None]


def test_a_second_rank_may_die_while_the_others_connect():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            members = members_of(folder, rank, ranks, deadline=4.0)
            model = net()
            optimizer = make("ErrorFeedbackSgd", model, members, deadline=4.0)
            train(model, optimizer, rank, range(3))
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 2:  # is agreed on, and never connects
                members._connect = lambda: os.kill(os.getpid(), signal.SIGKILL)  # pylint: disable=protected-access
            lost, _ = go_on(model, optimizer, members, 10)
            return lost, optimizer.steps, values(model)

        said = processes(4, program)
    assert said[1] == said[2] == ("ended", None)
    assert said[0] == said[3] and said[0][0] == "returned", said
    assert said[0][1][:2] == ([1, 2], 10)


@pytest.mark.parametrize("after", [0.005, 0.01])
def test_no_other_rank_is_lost_with_one_that_dies_while_it_connects(after):
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            members = members_of(folder, rank, ranks, deadline=10.0)
            if rank == 0:
                gloo = terse_torch._members._gloo  # pylint: disable=protected-access

                def connect(*arguments):
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
                    signal.setitimer(signal.ITIMER_REAL, after)
                    gloo(*arguments)
                    os.kill(os.getpid(), signal.SIGKILL)

                terse_torch._members._gloo = connect  # pylint: disable=protected-access
            begin = time.monotonic()
            members.regroup()
            if members.size == ranks:  # all were connected before
                members.regroup()
            return members.numbers, time.monotonic() - begin < 30.0

        said = processes(5, program)
    assert said[0][0] == "ended" and said[1:] == [("returned", ([1, 2, 3, 4], True))] * 4, said


def store_of(folder, ranks):
    return torch.distributed.FileStore(str(pathlib.Path(folder) / "members"), ranks)


def _serve(pipe):
    server = torch.distributed.TCPStore("127.0.0.1", 0, None, True, SECONDS, False)
    pipe.send(server.port)
    time.sleep(600)


@contextlib.contextmanager
def tcp_server():
    """The port of a TCPStore's server in a process of its own: a fork of a server's process would wait for its thread as it ends."""
    here, there = FORK.Pipe(duplex=False)
    server = FORK.Process(target=_serve, args=(there,))
    server.start()
    try:
        assert here.poll(60), "no server"
        yield here.recv()
    finally:
        server.kill()
        server.join()


def train_and_admit(model, optimizer, members):
    """Trains until a rank has joined, and then for 30 steps; returns the step after which it has joined."""
    until = time.monotonic() + 60
    while not (optimizer.steps % 5 == 0 and members.admit()):
        assert time.monotonic() < until
        train(model, optimizer, members.number, [optimizer.steps])
    optimizer.carry_over(members.group)
    begun = optimizer.steps
    train(model, optimizer, members.number, range(begun, begun + 30))
    return begun


@pytest.mark.parametrize("name, tcp", [("OneBitAdam", False), ("ErrorFeedbackSgd", True), ("DiLoCo", False)])
def test_a_rank_joins_and_is_a_replica(name, tcp):
    if name not in _native.methods():
        pytest.skip(f"{name} was not compiled")
    with tempfile.TemporaryDirectory() as folder, tcp_server() as port:
        def store_for(ranks):
            return torch.distributed.TCPStore("127.0.0.1", port, None, False, SECONDS) if tcp else store_of(folder, ranks)

        def program(rank, ranks):
            more = {"OneBitAdam": {"freeze_step": 4}, "DiLoCo": {"period": 5}}.get(name, {})
            model = net(seed=rank)
            begins = pathlib.Path(folder) / "begun"
            if rank == 3:
                until = time.monotonic() + 60
                while not begins.exists() and time.monotonic() < until:
                    time.sleep(0.02)
                members = terse_torch.Members.join(store_for(ranks), deadline=DEADLINE)
            else:
                members = terse_torch.Members(store_for(ranks), rank, 3, deadline=DEADLINE)
            optimizer = getattr(terse_torch, name)(model.named_parameters(), lr=0.01, process_group=members.group, joins=members.joined,
                                                   deadline=DEADLINE, **more)
            begun = optimizer.steps
            if members.joined:
                train(model, optimizer, members.number, range(begun, begun + 30))
            else:
                train(model, optimizer, rank, range(7))
                begins.touch()
                begun = train_and_admit(model, optimizer, members)
            return begun, members.number, members.numbers, values(model)

        said = on_ranks(4, program)
    begun, _, _, model = said[3]
    assert begun > 7 and begun % 5 == 0
    for rank in range(4):
        assert said[rank] == (begun, rank, [0, 1, 2, 3], model), f"rank {rank} is no replica"


def test_a_rank_that_dies_as_it_joins_delays_the_others_by_a_deadline():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            if rank == 2:
                # pylint: disable=protected-access
                terse_torch.Members._connect = lambda self: os.kill(os.getpid(), signal.SIGKILL)
                terse_torch.Members.join(store_of(folder, ranks), deadline=2.0)
            members = terse_torch.Members(store_of(folder, ranks), rank, 2, deadline=2.0)
            model = net()
            optimizer = make("ErrorFeedbackSgd", model, members, deadline=2.0)
            until = time.monotonic() + 60
            while not members.admit():
                assert time.monotonic() < until
                train(model, optimizer, rank, [optimizer.steps])
            optimizer.carry_over(members.group)
            train(model, optimizer, rank, range(3))
            return members.numbers, values(model)

        said = processes(3, program)
    assert said[2] == ("ended", None)
    assert said[0] == said[1] and said[0][0] == "returned" and said[0][1][0] == [0, 1], said


@pytest.mark.parametrize("first", [0, 1])
def test_a_member_whose_step_has_failed_meets_those_that_admit(first):
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            model, store = net(), store_of(folder, ranks)
            if rank == 2:
                members = terse_torch.Members.join(store, deadline=DEADLINE)
            else:
                members = terse_torch.Members(store, rank, 2, deadline=DEADLINE)
            optimizer = terse_torch.ErrorFeedbackSgd(model.named_parameters(), lr=0.01, process_group=members.group, joins=members.joined,
                                                     deadline=DEADLINE)
            if rank < 2:
                until = time.monotonic() + 60
                while rank != first and store.add(f"terse/1/{first}", 0) == 0:  # until the first one is there
                    assert time.monotonic() < until
                    time.sleep(0.01)
                while rank == 0 and not members.admit():
                    assert time.monotonic() < until
                if rank == 1:
                    assert members.regroup() == []
                if first == 1:  # and has called none but those that were there
                    assert members.numbers == [0, 1]
                    members.group.allreduce([torch.ones(1)]).wait()  # or one could let go of the group before the other has connected
                    assert members.admit()
                assert time.monotonic() < until - 60 + DEADLINE / 2
                optimizer.carry_over(members.group)
            train(model, optimizer, rank, range(3))
            return members.numbers, members.admit(), values(model)

        said = on_ranks(3, program)
    assert said[0] == said[1] == said[2] and said[0][:2] == ([0, 1, 2], False)


def wait_for(file):
    until = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < until, f"no {file}"
        time.sleep(0.02)


def test_ranks_join_one_after_another():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            model, files = net(), [pathlib.Path(folder) / f"{size} ranks" for size in range(ranks + 1)]
            if rank < 2:
                members = terse_torch.Members(store_of(folder, ranks), rank, 2, deadline=DEADLINE)
            else:
                wait_for(files[rank])
                members = terse_torch.Members.join(store_of(folder, ranks), deadline=DEADLINE)
            optimizer = terse_torch.ErrorFeedbackSgd(model.named_parameters(), lr=0.01, process_group=members.group, joins=members.joined,
                                                     deadline=DEADLINE)
            until, last = time.monotonic() + 60, 1000000
            while optimizer.steps < last:
                assert time.monotonic() < until
                train(model, optimizer, members.number, [optimizer.steps])
                if optimizer.steps % 3 == 0 and members.admit():
                    optimizer.carry_over(members.group)
                if members.size == ranks and last == 1000000:
                    last = optimizer.steps // 3 * 3 + 30
                files[members.size].touch()
            return members.numbers, last, values(model)

        said = on_ranks(4, program)
    assert said[0][0] == [0, 1, 2, 3] and all(one == said[0] for one in said)


def keep_on(members, model, last, lr=0.01, admitted=lambda optimizer: None, joins=None, deadline=DEADLINE):
    """The loop of a rank that loses others and admits others until step `last(optimizer)`."""
    optimizer, changed, lost, until = None, True, None, time.monotonic() + 100
    while True:
        assert time.monotonic() < until
        if lost:
            members.regroup(lost)
        lost = None
        try:
            if optimizer is None:
                optimizer = terse_torch.ErrorFeedbackSgd(model.named_parameters(), lr=lr, process_group=members.group,
                                                         joins=members.joined if joins is None else joins, deadline=deadline)
            elif changed:
                optimizer.carry_over(members.group)
            changed = False
            if optimizer.steps >= last(optimizer):
                return optimizer
            train(model, optimizer, members.number, [optimizer.steps])
            changed = optimizer.steps % 3 == 0 and members.admit()
            if changed:
                admitted(optimizer)
        except (terse_torch.PeerError, terse_torch.MismatchError) as failure:
            if optimizer is None and (isinstance(failure, terse_torch.MismatchError) or not members.joined):
                raise
            lost, changed = failure, True


def thirty_more(members, size, numbers):
    """The last step: thirty after the ranks have become `numbers`, of which each rank may learn at another step between two admissions."""
    found = []

    def last(optimizer):
        if not found and members.size == size and members.numbers == numbers:
            found.append(optimizer.steps // 3 * 3 + 30)
        return found[0] if found else 1000000

    return last


def test_a_rank_with_other_settings_ends_alone():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            model, store, begin = net(), store_of(folder, ranks), time.monotonic()
            if rank < 2:
                members = terse_torch.Members(store, rank, 2, deadline=DEADLINE, grace=1.0)
            else:
                members = terse_torch.Members.join(store, deadline=DEADLINE)
                with pytest.raises(terse_torch.MismatchError, match="learning_rate is 0.0.* there and 0.5"):
                    keep_on(members, model, lambda _: 0, lr=0.5)
                members = terse_torch.Members.join(store, deadline=DEADLINE)
            optimizer = keep_on(members, model, thirty_more(members, 3, [0, 1, 3]))
            assert time.monotonic() - begin < DEADLINE, "the ranks have waited for the one that has ended"
            return members.numbers, optimizer.steps, values(model)

        said = on_ranks(3, program)
    assert said[0][0] == [0, 1, 3] and said[0] == said[1] == said[2]


def test_a_rank_that_joins_goes_on_when_another_is_lost_meanwhile():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            model, store = net(), store_of(folder, ranks)
            if rank < 3:
                members = terse_torch.Members(store, rank, 3, deadline=DEADLINE, grace=2.0)
            else:
                members = terse_torch.Members.join(store, deadline=DEADLINE, grace=2.0)

            def admitted(_):
                if rank == 1:  # the others, and the one that joins, are making optimizers
                    os.kill(os.getpid(), signal.SIGKILL)

            optimizer = keep_on(members, model, thirty_more(members, 3, [0, 2, 3]), admitted=admitted)
            return members.numbers, optimizer.steps, values(model)

        said = processes(4, program)
    assert said[1] == ("ended", None)
    assert said[0][0] == "returned" and said[0][1][0] == [0, 2, 3], said
    assert said[0] == said[2] == said[3]


def test_a_rank_that_joins_without_its_state_ends_the_job_with_an_error():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            model, store = net(), store_of(folder, ranks)
            if rank < 2:
                members = terse_torch.Members(store, rank, 2, deadline=4.0)
            else:
                members = terse_torch.Members.join(store, deadline=4.0)
            with pytest.raises(terse_torch.PeerError) as failure:
                keep_on(members, model, lambda _: 1000000, joins=False, deadline=4.0)
            return str(failure.value)

        said = on_ranks(3, program)
    assert any("of a carry_over (also of ranks that join)" in text for text in said), said


def test_ranks_that_differ_from_the_first_step_on_are_told_so():
    def program(rank, ranks):
        with pytest.raises(terse_torch.MismatchError, match="learning_rate"):
            terse_torch.ErrorFeedbackSgd(net().named_parameters(), lr=0.1 + rank)
        return True

    assert on_ranks(2, program) == [True, True]
    with tempfile.TemporaryDirectory() as folder:
        def alone(_rank, _ranks):
            members, failure = terse_torch.Members(store_of(folder, 1), 0, 1, deadline=5), terse_torch.MismatchError("settings")
            with pytest.raises(terse_torch.MismatchError, match="settings"):
                members.regroup(failure)
            return True

        assert on_ranks(1, alone) == [True]


def test_a_step_over_the_ranks_before_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            model, store = net(), store_of(folder, ranks)
            if rank == 1:
                members = terse_torch.Members.join(store, deadline=DEADLINE)
                optimizer = terse_torch.ErrorFeedbackSgd(model.named_parameters(), lr=0.01, process_group=members.group, joins=True)
            else:
                members = terse_torch.Members(store, 0, 1, deadline=DEADLINE)
                optimizer = terse_torch.ErrorFeedbackSgd(model.named_parameters(), lr=0.01, process_group=members.group)
                train(model, optimizer, 0, range(2))
                until = time.monotonic() + 60
                while not members.admit():
                    assert time.monotonic() < until
                with pytest.raises(ValueError, match="call carry_over.members.group. before the next step"):
                    train(model, optimizer, 0, [2])
                with pytest.raises(ValueError, match="call carry_over.members.group. before the next step"):
                    with optimizer.overlap():
                        pass
                optimizer.carry_over(members.group)
            train(model, optimizer, rank, [2])
            return optimizer.steps, values(model)

        said = on_ranks(2, program)
    assert said[0] == said[1] and said[0][0] == 3


def test_a_rank_that_dies_while_it_waits_delays_the_others_by_the_grace():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            dead = pathlib.Path(folder) / "dead"
            if rank == 2:
                time.sleep = lambda _: (dead.touch(), os.kill(os.getpid(), signal.SIGKILL))
                terse_torch.Members.join(store_of(folder, ranks), deadline=DEADLINE)
            members = terse_torch.Members(store_of(folder, ranks), rank, 2, deadline=DEADLINE, grace=1.0)
            wait_for(dead)
            begin = time.monotonic()
            return members.admit(), members.numbers, time.monotonic() - begin < DEADLINE / 2

        said = processes(3, program)
    assert said == [("returned", (True, [0, 1], True))] * 2 + [("ended", None)]


def test_a_rank_that_was_left_takes_none_with_it():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            left, waits, told = (pathlib.Path(folder) / name for name in ("left", "waits", "told"))
            if rank == 3:
                wait_for(left)
                waits.touch()
                members = terse_torch.Members.join(store_of(folder, ranks), deadline=DEADLINE, patience=60)
                return members.numbers
            members = terse_torch.Members(store_of(folder, ranks), rank, 3, deadline=5.0)
            if rank == 2:
                wait_for(waits)
                until = time.monotonic() + 60
                with pytest.raises(terse_torch.PeerError, match="the other ranks go on without rank 2"):
                    while not members.admit():
                        assert time.monotonic() < until
                with pytest.raises(terse_torch.PeerError, match="the other ranks go on without rank 2"):
                    members.regroup()
                told.touch()
                return None
            assert members.regroup() == [2]
            left.touch()
            wait_for(told)
            assert members.admit()
            return members.numbers

        assert on_ranks(4, program) == [[0, 1, 3], [0, 1, 3], None, [0, 1, 3]]


def test_a_rank_that_nobody_admits_withdraws():
    with tempfile.TemporaryDirectory() as folder:
        def program(rank, ranks):
            store, left = store_of(folder, ranks), pathlib.Path(folder) / "left"
            if rank == 1:
                with pytest.raises(terse_torch.PeerError, match="no member of 'terse' has called admit within 0.5 seconds"):
                    terse_torch.Members.join(store, deadline=DEADLINE, patience=0.5)
                left.touch()
                return None
            members = terse_torch.Members(store, 0, 1, deadline=DEADLINE)
            until = time.monotonic() + 60
            while not left.exists():
                assert time.monotonic() < until
                time.sleep(0.02)
            return members.admit(), members.admit(), members.size

        assert on_ranks(2, program) == [(False, False, 1), None]


@pytest.mark.skipif("PowerSgd of rank 2" not in _native.methods(), reason="PowerSgd was not compiled")
def test_a_method_that_needs_the_lost_rank_is_refused_and_unchanged():
    def program(rank, ranks):
        model = net()
        optimizer = terse_torch.PowerSgd(model.named_parameters(), lr=0.01)
        with pytest.raises(ValueError, match="can't do without a lost rank's"):
            optimizer.carry_over(None)
        train(model, optimizer, rank, range(2))
        return optimizer.steps

    assert on_ranks(2, program) == [2, 2]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="ranks are 0 to 3, not 4"):
        terse_torch.Members(None, 4, 4)
    with pytest.raises(ValueError, match="deadline must be above 0"):
        terse_torch.Members(None, 0, 4, deadline=0)
    with tempfile.TemporaryDirectory() as folder:
        def program(_rank, _ranks):  # in a process of its own: a fork of one with Gloo's threads might wait for ever
            store = store_of(folder, 1)
            assert terse_torch.Members(store, 0, 1, deadline=5).numbers == [0]
            with pytest.raises(ValueError, match="begins a job of 2 ranks, and another has begun it with 1"):
                terse_torch.Members(store, 1, 2, deadline=5)
            with pytest.raises(ValueError, match="another process is rank 0 of 'terse', or was in an earlier job of this store"):
                terse_torch.Members(store, 0, 1, deadline=5)
            with pytest.raises(terse_torch.PeerError, match=r"ranks \[1\] of 'two' are not here after 0.3 seconds"):
                terse_torch.Members(store, 0, 2, deadline=0.3, name="two")
            return True

        assert on_ranks(1, program) == [True]
    assert issubclass(terse_torch.PeerError, RuntimeError) and terse_torch.PeerError.culprit == -1
