# SPDX-License-Identifier: Apache-2.0
"""A torch.optim.Optimizer of a composition of terse's: optimizer.cpp says which. Builds that file when it is imported for the first
time, which takes a minute; needs a C++20 compiler that takes LibTorch's headers, Ninja, Boost.MPI, nlohmann-json and xxHash.

    import terse_torch
    optimizer = terse_torch.Optimizer(model.named_parameters(), lr=1e-3, freeze_step=100)   # instead of DDP and an optimizer
    optimizer.zero_grad(); loss.backward(); optimizer.step()

Run by `mpirun -n RANKS python3 ...`. The model is on the CPU and float32. Parameters and gradients become views of two arenas, in
which nothing is copied in a step: don't move, freeze or thaw the model afterwards, and let this optimizer's zero_grad() clear gradients,
not `set_to_none`.

The folder may be copied: terse's headers are those of the folder TERSE_INCLUDE names, of the repository that this folder is in, or
of an installed terse that pkg-config knows."""

import os
import pathlib
import shlex
import shutil
import subprocess

import torch
import torch.utils.cpp_extension

HERE = pathlib.Path(__file__).resolve().parent


def _ask(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _headers():
    """Compiler flags that lead to terse's headers."""
    given = os.environ.get("TERSE_INCLUDE")
    folder = pathlib.Path(given) if given else HERE.parent.parent / "include"
    if (folder / "terse" / "terse.hpp").exists():
        return [f"-I{folder}"]
    if not given and shutil.which("pkg-config") and subprocess.run(["pkg-config", "--exists", "terse"]).returncode == 0:
        return shlex.split(_ask("pkg-config", "--cflags", "terse"))
    raise ImportError("terse_torch: found no headers of terse " + (
        f"in TERSE_INCLUDE={given}, which has no terse/terse.hpp" if given else
        "next to this folder or by pkg-config: set TERSE_INCLUDE to the folder that has terse/terse.hpp, or install terse "
        "and let PKG_CONFIG_PATH name the folder of its terse.pc"))


def _mpi(which):
    if not shutil.which("mpicxx"):
        raise ImportError("terse_torch: found no mpicxx in PATH, which says how to compile and link with Open MPI")
    return _ask("mpicxx", f"--showme:{which}").split()


native = torch.utils.cpp_extension.load(
    "terse_optimizer", [str(HERE / "optimizer.cpp")],
    extra_cflags=["-std=c++20", "-O3", "-fno-math-errno", *_headers(), *_mpi("compile")],
    extra_ldflags=[*_mpi("link"), "-lboost_mpi", "-lboost_serialization"])
rank, size, mean = native.rank, native.size, native.mean


class Optimizer(torch.optim.Optimizer):
    """1-bit Adam over all ranks of MPI: `freeze_step` steps of Adam in full precision, and one bit an element from then on. The
    learning rate is that of `param_groups`, so that torch.optim.lr_scheduler works; alike on all ranks. Parameters are those of
    rank 0 from its construction on."""

    def __init__(self, named_parameters, lr=1e-3, weight_decay=0.0, freeze_step=1000):
        named = list(named_parameters)  # frozen ones, too, so that a step finds those that are thawed later
        super().__init__([parameter for _, parameter in named if parameter.requires_grad], {"lr": lr})
        self.native = native.Optimizer(named, lr, weight_decay, freeze_step)
        self.bytes_sent = 0  # by the last step

    def step(self, closure=None, gradient_scale=1.0):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.bytes_sent = self.native.step(self.param_groups[0]["lr"], gradient_scale)
        return loss

    def zero_grad(self, set_to_none=False):
        if set_to_none:
            raise ValueError("gradients are views of one arena, which set_to_none would let go of")
        self.native.zero_grad()

    def add_param_group(self, param_group):
        if self.param_groups:
            raise ValueError("all parameters are given at construction")
        super().add_param_group(param_group)

    def state_dict(self):
        raise NotImplementedError("each rank has errors of its own: save(file) on each rank, and load(file)")

    def save(self, file):
        """Parameters and state, on each rank to a file of its own."""
        self.native.save(str(file))

    def load(self, file):
        """What save wrote on this rank. Collective."""
        self.native.load(str(file))
