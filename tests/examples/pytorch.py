#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries examples/pytorch over MPI: the training, whose ranks must be alike; a run that is saved and resumed, which must give the bits of
one that is not; and what must be refused in words.

Usage: pytorch.py MPIRUN [DATA]     DATA: Fashion-MNIST's folder; without it there is no training
Run by a Python that has PyTorch."""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "pytorch"


def resumes(folder):
    """One rank's part, under mpirun."""
    import torch
    import terse_torch

    torch.set_num_threads(1)
    rank = terse_torch.rank()

    def make(seed=3):
        torch.manual_seed(seed + rank)  # ranks start from rank 0's parameters
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
        return model, terse_torch.Optimizer(model.named_parameters(), lr=0.01, freeze_step=4)

    def steps(model, optimizer, numbers):
        for number in numbers:
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(100 * number + rank)
            model(torch.randn(8, 20, generator=generator)).square().mean().backward()
            optimizer.step()

    model, optimizer = make()
    steps(model, optimizer, range(8))
    assert not optimizer.native.full_precision() and optimizer.bytes_sent > 0
    file = pathlib.Path(folder) / f"rank-{rank}"
    optimizer.save(file)
    steps(model, optimizer, range(8, 12))
    again, resumed = make(seed=99)
    resumed.load(file)
    steps(again, resumed, range(8, 12))
    for one, other in zip(model.parameters(), again.parameters()):
        assert torch.equal(one, other), "the resumed run went another way"
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    assert terse_torch.mean(total) == total, "ranks differ"

    model.zero_grad(set_to_none=True)
    try:
        optimizer.step()
    except RuntimeError as refusal:
        assert "gradient" in str(refusal), refusal
    else:
        raise AssertionError("gradients were let go of, and nobody noticed")
    print("resumed", flush=True)


def run(mpirun, ranks, *command):
    done = subprocess.run([mpirun, "-n", str(ranks), sys.executable, *map(str, command)], capture_output=True, text=True, timeout=400,
                          env=dict(os.environ, PYTHONPATH=str(EXAMPLE), PYTHONDONTWRITEBYTECODE="1"))
    print(done.stdout + done.stderr[-3000:])
    if done.returncode:
        raise SystemExit(f"{command}: status {done.returncode}")
    return done.stdout


def main():
    if sys.argv[1:2] == ["--resumes"]:
        return resumes(sys.argv[2])
    mpirun, data = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    # Built once, not by two ranks at a time.
    subprocess.run([sys.executable, "-c", "import terse_torch"], check=True, timeout=400,
                   env=dict(os.environ, PYTHONPATH=str(EXAMPLE), PYTHONDONTWRITEBYTECODE="1"))
    with tempfile.TemporaryDirectory() as folder:
        assert run(mpirun, 2, __file__, "--resumes", folder).count("resumed") == 2
    if data:
        table = run(mpirun, 2, EXAMPLE / "train.py", "--epochs", 2, "--limit", 12800, "--data", data)
        accuracy = {line.split("  ")[0]: float(line.split("%")[0].split()[-1]) for line in table.splitlines() if "%" in line}
        print(accuracy)
        assert accuracy["terse, 1-bit Adam"] > accuracy["DDP, Adam"] - 2 > 70, "1-bit Adam is behind"
    return None


if __name__ == "__main__":
    sys.exit(main())
