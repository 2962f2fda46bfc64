#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries a copy of examples/pytorch over MPI: the training, whose ranks must be alike; a run that is saved and resumed, which must give
the bits of one that is not; what must be refused in words; and where it looks for terse's headers.

Usage: pytorch.py MPIRUN [DATA]     DATA: Fashion-MNIST's folder; without it there is no training
Run by a Python that has PyTorch."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "pytorch"
# At one place, so that what was built from it is built once.
COPY = pathlib.Path(os.environ.get("TORCH_EXTENSIONS_DIR", tempfile.gettempdir())) / "terse_copy"


def refused(act, *parts):
    try:
        act()
    except RuntimeError as refusal:
        assert all(part in str(refusal) for part in parts), refusal
    else:
        raise AssertionError(f"nothing was refused, but this should have been: {parts}")


def refuses(terse_torch):
    """What would crash, train nothing or train something else."""
    import torch

    def refused_model(model, *parts):
        places = [parameter.data_ptr() for parameter in model.parameters()]
        refused(lambda: terse_torch.Optimizer(model.named_parameters()), *parts)
        assert [parameter.data_ptr() for parameter in model.parameters()] == places, "what was refused was moved"

    # Of all devices but the CPU this one is on every machine.
    refused_model(torch.nn.Linear(3, 2, device="meta"), "'weight' lies on meta", "model.cpu()")
    refused_model(torch.nn.Linear(3, 2, dtype=torch.float64), "'weight' holds Double")
    refused_model(torch.nn.Linear(3, 2, dtype=torch.bfloat16), "'weight' holds BFloat16")
    strided = torch.nn.Linear(3, 2)
    strided.weight.data = torch.ones(3, 2).t()
    refused_model(strided, "'weight' is not contiguous")
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    tied[1].weight.data = tied[0].weight.data
    refused_model(tied, "'0/weight' shares memory with '1/weight'")

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)
    optimizer = terse_torch.Optimizer(model.named_parameters())
    for parameter, trained, part in ((model[0].bias, True, "no step would train it"), (model[1].bias, False, "was frozen after")):
        before = parameter.clone()
        parameter.requires_grad_(trained)
        refused(optimizer.step, "/bias'", part)
        assert torch.equal(parameter, before)
        parameter.requires_grad_(not trained)
    optimizer.step()


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

    refuses(terse_torch)
    model.zero_grad(set_to_none=True)
    refused(optimizer.step, "gradient")
    print("resumed", flush=True)


def environment(folder, **others):
    """The example's at that place, with no terse installed."""
    others = {"PKG_CONFIG_LIBDIR": "/none", "PKG_CONFIG_PATH": "/none", "TERSE_INCLUDE": "", **others}
    return dict(os.environ, PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1", **others)


def finds(folder, expected, **others):
    """What an import says in the place of compiling: its flags, or why there are none."""
    program = "import sys, torch.utils.cpp_extension as e; e.load = lambda *_, extra_cflags, **__: sys.exit(str(extra_cflags)); import terse_torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=environment(folder, **others))
    assert done.returncode == 1 and expected in done.stderr, f"{expected} is not in {done.stdout}{done.stderr}"


def finds_headers(folder):
    finds(EXAMPLE, f"'-I{ROOT / 'include'}'")
    finds(COPY, "ImportError: terse_torch: found no headers of terse next to this folder or by pkg-config: set TERSE_INCLUDE")
    finds(COPY, "in TERSE_INCLUDE=/none, which has no terse/terse.hpp", TERSE_INCLUDE="/none")
    finds(EXAMPLE, "found no mpicxx in PATH", PATH="/none")
    if shutil.which("pkg-config"):
        (pathlib.Path(folder) / "terse.pc").write_text("Name: terse\nDescription: none\nVersion: 1\nCflags: -I/installed -fno-math-errno\n")
        finds(COPY, "'-I/installed', '-fno-math-errno'", PKG_CONFIG_PATH=folder)


def run(mpirun, ranks, *command):
    done = subprocess.run([mpirun, "-n", str(ranks), sys.executable, *map(str, command)], capture_output=True, text=True, timeout=400,
                          env=environment(COPY, TERSE_INCLUDE=str(ROOT / "include")))
    print(done.stdout + done.stderr[-3000:])
    if done.returncode:
        raise SystemExit(f"{command}: status {done.returncode}")
    return done.stdout


def main():
    if sys.argv[1:2] == ["--resumes"]:
        return resumes(sys.argv[2])
    mpirun, data = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    shutil.copytree(EXAMPLE, COPY, dirs_exist_ok=True)
    # The bits are the same, and it compiles in half the time.
    module = COPY / "terse_torch.py"
    module.write_text(module.read_text().replace('"-O3"', '"-O1"'))
    # Built once, not by two ranks at a time.
    subprocess.run([sys.executable, "-c", "import terse_torch"], check=True, timeout=400,
                   env=environment(COPY, TERSE_INCLUDE=str(ROOT / "include")))
    with tempfile.TemporaryDirectory() as folder:
        finds_headers(folder)
        assert run(mpirun, 2, __file__, "--resumes", folder).count("resumed") == 2
    if data:
        table = run(mpirun, 2, COPY / "train.py", "--epochs", 2, "--limit", 12800, "--data", data)
        accuracy = {line.split("  ")[0]: float(line.split("%")[0].split()[-1]) for line in table.splitlines() if "%" in line}
        print(accuracy)
        assert accuracy["terse, 1-bit Adam"] > accuracy["DDP, Adam"] - 2 > 70, "1-bit Adam is behind"
    return None


if __name__ == "__main__":
    sys.exit(main())
