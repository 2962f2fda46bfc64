# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import terse_torch
from ranks import loss_of, net, on_ranks, values
from terse_torch import _native

HAS_SIGN, HAS_LOW_RANK = "ErrorFeedbackSgd" in _native.methods(), "PowerSgd of rank 2" in _native.methods()


def ddp_run(rank, make_hook, steps=30):
    model = net()
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)  # several buckets
    if make_hook is not None:
        ddp.register_comm_hook(None, make_hook())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, step)
        loss.backward()
        optimizer.step()
    return loss.item(), values(model)


@pytest.mark.parametrize("kind", ["sign", "low_rank"])
def test_ddp_trains_with_the_hook_and_ranks_are_alike(kind):
    if not (HAS_SIGN if kind == "sign" else HAS_LOW_RANK):
        pytest.skip("this build has no such method")

    def program(rank, _):
        exact, _ = ddp_run(rank, None)
        return exact, ddp_run(rank, lambda: terse_torch.hook(kind))

    (exact, (loss, ours)), (_, (_, others)) = on_ranks(2, program)
    assert ours == others
    assert loss < 1.3 * exact + 0.05


def test_two_models_in_one_backward_pass_have_a_hook_each():
    if not HAS_SIGN:
        pytest.skip("this build has no such method")

    def program(rank, _):
        models = [net(1), net(2)]
        both = [torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001) for model in models]
        for ddp in both:
            ddp.register_comm_hook(None, terse_torch.hook("sign"))
        optimizer = torch.optim.SGD([parameter for model in models for parameter in model.parameters()], lr=0.05)
        for step in range(10):
            optimizer.zero_grad()
            sum(loss_of(ddp, rank, step) for ddp in both).backward()
            optimizer.step()
        return [values(model) for model in models]

    one, other = on_ranks(2, program)
    assert one == other


def test_the_hook_s_mean_is_exact_where_messages_are_not_compressed():
    if not HAS_SIGN:
        pytest.skip("this build has no such method")

    def program(rank, _):
        class Vectors(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = torch.nn.Parameter(torch.ones(7)), torch.nn.Parameter(torch.ones(300))

            def forward(self, x):
                return (self.a * x).sum() + (self.b * x.sum()).sum()

        ddp = torch.nn.parallel.DistributedDataParallel(Vectors())
        ddp.register_comm_hook(None, terse_torch.hook("sign"))
        means = []
        for step in range(3):
            ddp.zero_grad()
            ddp(torch.arange(7.0) + rank + step).backward()
            means.append((ddp.module.a.grad.tolist(), ddp.module.b.grad.tolist()))
        return means

    for means in on_ranks(2, program):
        for step, (a, b) in enumerate(means):
            assert a == [k + 0.5 + step for k in range(7)]
            assert b == [21 + 7 * (0.5 + step)] * 300


def test_hooks_that_are_not_there_are_refused_in_words():
    def program(_, __):
        with pytest.raises(ValueError, match="'sign', 'low_rank' or a result of compile"):
            terse_torch.hook("sing")
        with pytest.raises(ValueError, match="ranks 1, 2 and 4, not 3"):
            terse_torch.hook("low_rank", rank=3)
        return True

    assert on_ranks(1, program) == [True]
