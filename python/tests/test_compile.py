# SPDX-License-Identifier: Apache-2.0
import time

import pytest

import terse_torch
from ranks import net, on_ranks, train, values


def test_a_recipe_in_cpp_has_the_bits_of_the_precompiled_one_on_a_device_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TERSE_TORCH_CACHE", str(tmp_path))
    monkeypatch.setenv("TERSE_TORCH_FLAGS", "-O0")
    text = "terse::OneBitAdam<terse::Ring>{.preconditioner = {.freeze = terse::AtStep{4}}}"

    def program(rank, _):
        begin = time.monotonic()
        compiled = terse_torch.compile(text, device="emulated")  # on one rank; the other one waits
        first = time.monotonic() - begin
        begin = time.monotonic()
        terse_torch.compile(text, device="emulated")
        again = time.monotonic() - begin
        results = []
        for make in (lambda p: compiled(p, lr=0.01, weight_decay=0.1),
                     lambda p: terse_torch.OneBitAdam(p, lr=0.01, weight_decay=0.1, freeze_step=4, topology="ring")):
            model = net()
            optimizer = make(model.named_parameters())
            train(model, optimizer, rank, range(6))
            optimizer.load_state_dict(optimizer.state_dict())
            train(model, optimizer, rank, range(6, 10))
            results.append(values(model))
        return results[0] == results[1] and again < first / 2

    assert on_ranks(2, program, seconds=300) == [True, True]
    with pytest.raises(ValueError, match="'cpu' or 'cuda', not 'tpu'"):
        terse_torch.compile(text, device="tpu")
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", None)
    with pytest.raises(RuntimeError, match="compiling for CUDA requires nvcc"):
        terse_torch.compile(text, device="cuda")
    with pytest.raises(RuntimeError, match="OneBitAdamm.*doesn't compile: .OneBitAdamm. is not a member of .terse.") as failure:
        terse_torch.compile("terse::OneBitAdamm<>{}")
    assert len(str(failure.value)) < 400
