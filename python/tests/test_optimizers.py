# SPDX-License-Identifier: Apache-2.0
import contextlib
import copy
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import torch

import terse_torch
from ranks import loss_of, net, on_ranks, processes, train, values
from terse_torch import _native

HERE = pathlib.Path(__file__).resolve().parent
BUILT = _native.methods()
OPTIONS = {"OneBitAdam": {"freeze_step": 4}, "OneBitLamb": {"freeze_step": 4},
           "ZeroOneAdam": {"freeze_step": 12, "variance_updates": 8, "local_interval_steps": 4, "most_local_steps": 4},
           "DiLoCo": {"period": 4}, "StreamingDiLoCo": {"period": 4, "fragments": 2}, "SparseLoCo": {"period": 4}}
DIFFER = {"DecentLaM", "StreamingDiLoCo"}  # ranks that are never alike
METHODS = [name for name in ("Adam", "Lamb", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "ErrorFeedbackSgd", "PowerSgd", "DiLoCo",
                             "StreamingDiLoCo", "SparseLoCo", "Muon", "Dion", "DecentLaM")
           if any(built.startswith(name) for built in BUILT)]


def held_out(model):
    with torch.no_grad():
        return sum(loss_of(model, 7, step).item() for step in range(50, 90))


def make(name, model, **more):
    named = list(model.named_parameters())
    hidden, others = {"params": named[:1], "hidden": name in ("Muon", "Dion")}, {"params": named[1:]}
    return getattr(terse_torch, name)([hidden, others], lr=0.01, **OPTIONS.get(name, {}), **more)


def test_the_transport_keeps_its_laws():
    for ranks in (2, 4):
        for holds, text in on_ranks(ranks, lambda rank, ranks: terse_torch.check_transport()):
            assert holds, text


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_goes_on_from_a_state_dict_to_the_bit(name):
    def program(rank, _):
        width = 200 if name == "Dion" else 30  # whose factors are smaller than such a matrix
        model = net(seed=3 + rank, width=width)  # ranks start from rank 0's
        optimizer = make(name, model)
        start = values(model)
        first = held_out(model)
        train(model, optimizer, rank, range(16))
        state = optimizer.state_dict()
        sent = optimizer.result.bytes_sent
        train(model, optimizer, rank, range(16, 24))

        again = net(seed=99, width=width)
        resumed = make(name, again)
        resumed.load_state_dict(state)
        assert resumed.steps == 16
        train(again, resumed, rank, range(16, 24))
        assert values(again) == values(model), "the resumed run went another way"
        with optimizer.mean_parameters():
            mean, last = values(model), held_out(model)
        return start, first, last, values(model), mean, sent

    (start, first, last, ours, mean, sent), other = on_ranks(2, program)
    assert start == other[0]
    assert last < 0.9 * first
    assert (ours == other[3]) == (name not in DIFFER)
    assert mean == other[4]
    assert (mean == ours) == (name not in DIFFER)
    assert sent > 0 or name in OPTIONS


def test_adam_is_pytorch_s_on_the_mean_with_groups_that_have_rates_of_their_own():
    def program(rank, ranks):
        model, single = net(), net()
        groups = [{"params": list(model[0].named_parameters()), "lr": 0.01, "weight_decay": 0.1},
                  {"params": list(("last." + name, p) for name, p in model[2].named_parameters()), "lr": 0.003}]
        optimizer = terse_torch.Adam(groups, lr=0.5, weight_decay=0.02)
        plain = torch.optim.AdamW([{"params": single[0].parameters(), "lr": 0.01, "weight_decay": 0.1},
                                   {"params": single[2].parameters(), "lr": 0.003}], lr=0.5, weight_decay=0.02)
        # The second group's rate falls, and the first one's stays.
        rates = [torch.optim.lr_scheduler.LambdaLR(one, [lambda _: 1.0, lambda step: 0.9 ** step]) for one in (optimizer, plain)]
        for step in range(20):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
            plain.zero_grad()
            (sum(loss_of(single, r, step) for r in range(ranks)) / ranks).backward()
            plain.step()
            for rate in rates:
                rate.step()
        return [torch.max(torch.abs(a - b)).item() for a, b in zip(model.parameters(), single.parameters())]

    if "Adam" not in BUILT:
        pytest.skip("this build has no Adam")
    for differences in on_ranks(2, program):
        assert max(differences) < 2e-5


def test_a_run_whose_groups_have_schedules_of_their_own_goes_on_to_the_bit():
    def program(rank, _):
        model = net()
        named = list(model.named_parameters())

        def make_both():
            optimizer = terse_torch.OneBitAdam([{"params": named[:2], "lr": 0.01}, {"params": named[2:], "lr": 0.003}], freeze_step=3)
            return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda _: 1.0, lambda step: 0.5 ** step])

        def steps(optimizer, schedule, numbers):
            for step in numbers:
                train(model, optimizer, rank, [step])
                schedule.step()

        optimizer, schedule = make_both()
        steps(optimizer, schedule, range(5))
        states = optimizer.state_dict(), schedule.state_dict()
        steps(optimizer, schedule, range(5, 8))
        expected = values(model)
        optimizer, schedule = make_both()
        optimizer.load_state_dict(states[0])
        schedule.load_state_dict(states[1])
        steps(optimizer, schedule, range(5, 8))
        return values(model) == expected

    assert on_ranks(2, program) == [True, True]


def test_one_bit_adam_has_the_bits_of_a_program_of_cpp_over_threads(tmp_path):
    program = tmp_path / "threads"
    subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-O0", "-fno-math-errno", "-pthread", f"-I{HERE.parents[1] / 'include'}",
                    str(HERE / "threads.cpp"), "-o", str(program)], check=True, timeout=200)
    expected = subprocess.run([str(program)], check=True, timeout=100, capture_output=True, text=True).stdout.split()

    def ranks(rank, _):
        x = torch.nn.Parameter(torch.zeros(9, 1000))
        optimizer = terse_torch.OneBitAdam([x], topology="ring", freeze_step=15)
        i = torch.arange(9000).view(9, 1000)
        for _ in range(50):
            x.grad = x.detach() - (i % 7 + rank).float() / 3.0
            optimizer.step()
        text = 1469598103934665603
        for bits in x.detach().flatten().view(torch.int32).tolist():
            text = ((text ^ (bits & 0xFFFFFFFF)) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
        return f"{text:016x}"

    assert on_ranks(4, ranks) == expected and len(set(expected)) == 1


def test_gradients_that_travel_meanwhile_are_none_or_come_in_two_passes_give_the_same_bits():
    def program(rank, _):
        def run(how):
            model = net()
            optimizer = terse_torch.OneBitAdam(model.named_parameters(), lr=0.01, freeze_step=3, slice_bytes=1024)
            for step in range(8):
                if how == "none":
                    model.zero_grad(set_to_none=True)
                else:
                    optimizer.zero_grad()
                with optimizer.overlap() if how == "overlap" else contextlib.nullcontext():
                    loss_of(model, rank, step).backward()
                if how == "twice":  # the same gradient twice is the gradient, halved
                    loss_of(model, rank, step).backward()
                optimizer.step(**({"gradient_scale": 0.5} if how == "twice" else {}))
            return values(model)

        plain = run("plain")
        return [run(how) == plain for how in ("overlap", "none", "twice")]

    assert on_ranks(2, program) == [[True] * 3] * 2


def test_what_would_be_lost_of_gradients_that_have_left_is_refused():
    def program(rank, _):
        def run(inside, behind, words, **step):
            model = net()
            optimizer = terse_torch.OneBitAdam(model.named_parameters(), deadline=5)
            with pytest.raises(ValueError, match=words):
                with optimizer.overlap():
                    loss_of(model, rank, 0).backward()
                    inside(model)
                behind(model)
                optimizer.step(**step)

        def nothing(_):
            pass

        run(lambda model: loss_of(model, rank, 1).backward(), nothing, "one backward pass is inside of overlap")
        run(nothing, lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1), "changed between overlap")
        run(nothing, nothing, "gradient_scale is overlap", gradient_scale=0.5)
        return True

    assert on_ranks(1, program) == [True]


def test_bfloat16_has_a_master_in_float32():
    def program(rank, _):
        model = net().to(torch.bfloat16)
        optimizer = terse_torch.OneBitAdam(model.named_parameters(), lr=1e-4, freeze_step=5)
        start = values(model)
        first = loss_of(model, rank, 0).item()
        # Steps of 1e-4 are too small for the 8 bits of weights of 0.2: in bfloat16 alone nearly all would stand still.
        last = train(model, optimizer, rank, range(300))
        moved = sum(a != b for a, b in zip(start, values(model)))
        # Loaded again behind the optimizer, as some programs do, a model takes no bits from the masters.
        masters = optimizer._values.clone()  # pylint: disable=protected-access
        model.load_state_dict(model.state_dict())
        optimizer.zero_grad()
        rates = [group["lr"] for group in optimizer.param_groups]
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step()
        kept = torch.equal(masters, optimizer._values)  # pylint: disable=protected-access
        optimizer.param_groups[0]["lr"] = rates[0]
        with torch.no_grad():  # what others write counts
            model[0].weight.fill_(0.5)
        optimizer.zero_grad()
        optimizer.step()
        return first, last, moved / len(start), kept and abs(model[0].weight.float().mean().item() - 0.5) < 0.01, values(model)

    (first, last, moved, written, ours), other = on_ranks(2, program)
    assert last < 0.8 * first and moved > 0.8 and written and ours == other[4]


def test_one_rank_s_gradient_that_is_not_finite_skips_the_step_on_all():
    def program(rank, _):
        model = net()
        optimizer = terse_torch.OneBitAdam(model.named_parameters(), skip_non_finite=True)
        before = values(model)
        loss_of(model, rank, 0).backward()
        if rank == 1:
            model[0].weight.grad[0, 0] = float("nan")
        optimizer.step()
        skipped = not optimizer.result.applied and values(model) == before and optimizer.steps == 0
        raising = terse_torch.OneBitAdam(net().named_parameters())
        raising._gradients.fill_(float("nan"))  # pylint: disable=protected-access
        with pytest.raises(RuntimeError, match=r"0\.weight"):
            raising.step()
        return skipped

    assert on_ranks(2, program) == [True, True]


def test_elements_without_a_gradient_are_masked_as_far_as_the_option_says():
    def program(rank, _):
        def run(**options):
            model = net()
            optimizer = terse_torch.OneBitAdam(model.named_parameters(), freeze_step=2, **options)
            for step in range(5):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                model[0].weight.grad[:3] = 0  # a tenth, as of ReLUs that are dead
                optimizer.step()
            return optimizer.full_precision

        with pytest.raises(ValueError, match="would be masked"):
            run()
        return run(most_masked=0.2)

    assert on_ranks(2, program) == [False, False]


def test_what_can_not_be_stepped_is_refused_in_words():
    def program(_, __):
        def refused(words, *arguments, **options):
            with pytest.raises(ValueError, match=words):
                terse_torch.OneBitAdam(*arguments, **options)

        refused("no parameters", [])
        refused("'weight' lies on the meta device", torch.nn.Linear(3, 2, device="meta").named_parameters())
        refused("'weight' holds torch.float64, but", torch.nn.Linear(3, 2, dtype=torch.float64).named_parameters())
        strided = torch.nn.Linear(3, 2)
        strided.weight.data = torch.ones(3, 2).t()
        refused("'weight' is not contiguous", strided.named_parameters())
        tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        tied[1].weight.data = tied[0].weight.data
        refused(r"'0\.weight' and '1\.weight' share memory|'1\.weight' and '0\.weight' share memory", tied.named_parameters())
        refused("topology is 'scatter_gather' or 'ring', not 'star'", net().parameters(), topology="star")
        refused("takes parameters, model.named_parameters", net())
        refused("group 0 has 'betas', but groups have 'lr'", [{"params": net().parameters(), "betas": (0.8, 0.9)}])
        refused("group 0 has no 'params', but 'parameters'", [{"parameters": net().parameters()}])
        refused("freeze_step must be a whole number of at least 0, not -5", net().parameters(), freeze_step=-5)
        refused("beta1 must be", net().parameters(), betas=(1.5, 0.999))
        refused("deadline", net().parameters(), deadline=0)

        model = net()
        optimizer = terse_torch.OneBitAdam(model.named_parameters())
        for spoil, words in ((lambda: model[0].bias.requires_grad_(False), r"'0\.bias' was frozen"),
                             (lambda: setattr(model[0].bias.requires_grad_(True), "data", torch.zeros(30)), r"'0\.bias' was moved")):
            spoil()
            with pytest.raises(ValueError, match=words):
                optimizer.step()
        other = terse_torch.OneBitAdam(net().named_parameters())
        with pytest.raises(ValueError, match="of another optimizer"):
            other.load_state_dict(torch.optim.SGD(net().parameters(), lr=1).state_dict())
        with pytest.raises(ValueError, match="all groups of parameters are given"):
            other.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            copy.deepcopy(other)
        other.grad_scale = torch.ones(1)  # as GradScaler does
        with pytest.raises(ValueError, match="GradScaler"):
            other.step()
        return True

    assert on_ranks(1, program) == [True]


def test_a_state_dict_of_another_rank_or_model_is_refused_and_nothing_changes():
    def program(rank, ranks):
        model = net()
        optimizer = terse_torch.OneBitAdam(model.named_parameters(), freeze_step=2)
        train(model, optimizer, rank, range(4))
        states = [None] * ranks
        torch.distributed.all_gather_object(states, optimizer.state_dict())
        before, other = values(model), states[(rank + 1) % ranks]
        other["param_groups"][0]["lr"] = 0.5
        with pytest.raises(RuntimeError, match="each rank loads the state_dict that it saved itself"):
            optimizer.load_state_dict(other)
        return values(model) == before and optimizer.param_groups[0]["lr"] == 1e-3

    assert on_ranks(2, program) == [True, True]


def test_a_rank_that_dies_ends_the_others_at_once_and_a_late_one_by_the_deadline():
    def dies(rank, _):
        model = net()
        optimizer = terse_torch.OneBitAdam(model.named_parameters(), deadline=60)
        train(model, optimizer, rank, range(3))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match="rank 1"):
            train(model, optimizer, rank, range(3, 1000))
        return time.monotonic() - begin

    (how, seconds), (ended, _), (how_2, seconds_2) = processes(3, dies)
    assert how == how_2 == "returned" and ended == "ended" and max(seconds, seconds_2) < 10

    def late(rank, _):
        model = net()
        optimizer = terse_torch.OneBitAdam(model.named_parameters(), deadline=3)
        if rank == 1:
            time.sleep(5)
            return None
        with pytest.raises(RuntimeError, match="waited 3000 ms for rank 1"):
            train(model, optimizer, rank, range(1))
        return True

    assert on_ranks(2, late)[0] is True


def test_without_a_process_group_it_says_what_to_call():
    done = subprocess.run([sys.executable, "-c", "import torch, terse_torch; terse_torch.OneBitAdam(torch.nn.Linear(2, 2).parameters())"],
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1 and "init_process_group('gloo')" in done.stderr
