# SPDX-License-Identifier: Apache-2.0
"""Jobs that go on without a rank that is killed, or that stalls."""

import os
import pathlib
import signal
import tempfile
import time

import pytest
import torch

import terse_torch
from ranks import loss_of, net, on_ranks, processes, train, values

DEADLINE = 20.0


def members_of(folder, rank, ranks, deadline=DEADLINE):
    store = torch.distributed.FileStore(str(pathlib.Path(folder) / "members"), ranks)
    return terse_torch.Members(store, rank, ranks, deadline=deadline, grace=3.0)


def make(name, model, members, deadline=DEADLINE):
    more = {"freeze_step": 4} if name == "OneBitAdam" else {}
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


@pytest.mark.parametrize("name, at", [("OneBitAdam", 2), ("OneBitAdam", 9), ("ErrorFeedbackSgd", 5)])
def test_the_others_go_on_in_the_same_processes_when_a_rank_is_killed(name, at):
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
        assert model == others[0][2], "replicas differ"
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


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="ranks are 0 to 3, not 4"):
        terse_torch.Members(None, 4, 4)
    with pytest.raises(ValueError, match="deadline must be above 0"):
        terse_torch.Members(None, 0, 4, deadline=0)
    assert issubclass(terse_torch.PeerError, RuntimeError) and terse_torch.PeerError.culprit == -1
