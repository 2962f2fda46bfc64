# SPDX-License-Identifier: Apache-2.0
"""Any composition of terse's as an optimizer, compiled when it is first asked for."""

import fcntl
import hashlib
import os
import pathlib
import shlex

import torch

from . import _native
from ._optimizer import Optimizer

HERE = pathlib.Path(__file__).resolve().parent

UNIT = """// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include "method.hpp"
#include "terse/terse.hpp"
HEADER
namespace {

EXECUTOR

auto recipe_of(const terse_torch::Settings& settings) {
  auto recipe = RECIPE;
  terse_torch::set_weight_decay(recipe, settings);
  return recipe;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.attr("make") = reinterpret_cast<std::uintptr_t>(&terse_torch::make<recipe_of, executor_of>);
}
"""

# What a unit includes, and where its optimizer runs. The emulated device is the tests'.
EXECUTORS = {
    "cpu": ("", "terse::executor::host executor_of(std::uintptr_t) { return {}; }"),
    "emulated": ('#include "terse/device.hpp"\n#include "terse/device/emulated.hpp"\n', "terse::executor::emulated executor_of(std::uintptr_t) { return {}; }"),
    "cuda": ('#include "terse/cuda.cuh"\n',
             "terse::executor::cuda executor_of(std::uintptr_t stream) { return {reinterpret_cast<cudaStream_t>(stream)}; }"),
}


def _headers():
    """The package's own, or the repository's where the package is used in place."""
    for folder in (HERE / "include", HERE.parents[1] / "include"):
        if (folder / "terse" / "terse.hpp").exists():
            return folder
    raise ImportError(f"terse_torch: found terse's headers neither in {HERE / 'include'} nor in {HERE.parents[1] / 'include'}: install the package again")


def _reason(output):
    """terse's own sentences of what a compiler says; otherwise its first errors."""
    lines = [line.split("error:", 1)[1].strip() for line in output.splitlines() if "error:" in line and "ninja" not in line]
    sentences = [line.split("terse: ", 1)[1] for line in lines if "terse: " in line]
    return "; ".join(list(dict.fromkeys(sentences or lines))[:3]) or output


class Compiled:
    """A recipe that is compiled: makes optimizers."""

    def __init__(self, recipe, method, arena):
        self.recipe, self.method, self.arena = recipe, method, arena

    def __call__(self, params, lr=1e-3, weight_decay=0.0, **options):
        """A terse_torch.Optimizer; all else is in the recipe's text."""
        return Optimizer(params, self.method, {}, lr=lr, weight_decay=weight_decay, arena=self.arena, saved_as=self.recipe, **options)

    def __repr__(self):
        return f"terse_torch.compile({self.recipe!r})"


def compile(recipe, device="cpu"):  # pylint: disable=redefined-builtin
    """Compiles an expression of C++ that is a recipe, with its hyper-parameters, all but learning rate and weight decay:

        DiLoCo8 = terse_torch.compile("terse::DiLoCo<terse::Adam<>, terse::Uniform<8>>{.period = 64}")
        optimizer = DiLoCo8(model.named_parameters(), lr=1e-3)

    device: "cpu", or "cuda" for models on a GPU, whose parameters, gradients and state stay there: messages go by way of the host. Needs nvcc 12 or later,
    and TORCH_CUDA_ARCH_LIST where there is no GPU.

    Takes some 20 s, once for each text: it is kept in TERSE_TORCH_CACHE, or ~/.cache/terse_torch, for this version of PyTorch and of terse. One
    process compiles, others wait for it. TERSE_TORCH_FLAGS are more flags for the compiler. Raises a RuntimeError with the compiler's words."""
    from torch.utils import cpp_extension  # which takes a second, and looks for CUDA
    if device not in EXECUTORS:
        raise ValueError(f"terse_torch: device is 'cpu' or 'cuda', not {device!r}")
    if device == "cuda" and not (torch.version.cuda and cpp_extension.CUDA_HOME):
        raise RuntimeError("terse_torch: compiling for CUDA requires nvcc (set CUDA_HOME) and a PyTorch with CUDA; models on a GPU step without it, too, "
                           "by copies to the host: terse_torch.compile(recipe)")
    headers, flags = _headers(), os.environ.get("TERSE_TORCH_FLAGS", "")
    header, executor = EXECUTORS[device]
    text = UNIT.replace("HEADER", header).replace("EXECUTOR", executor).replace("RECIPE", recipe)
    version = pathlib.Path(_native.__file__).stat()
    key = hashlib.sha256("\n".join([text, flags, torch.__version__, str(headers), str(version.st_size), str(version.st_mtime_ns)]).encode()).hexdigest()[:16]
    folder = pathlib.Path(os.environ.get("TERSE_TORCH_CACHE") or pathlib.Path.home() / ".cache" / "terse_torch") / key
    folder.mkdir(parents=True, exist_ok=True)
    unit = folder / ("recipe.cu" if device == "cuda" else "recipe.cpp")
    with open(folder / "one_at_a_time", "w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # which ends with its process; PyTorch's own file of a lock would stay
        (folder / "lock").unlink(missing_ok=True)
        if not unit.exists() or unit.read_text(encoding="utf-8") != text:
            unit.write_text(text, encoding="utf-8")
        try:
            made = cpp_extension.load(
                f"terse_{key}", [str(unit)], build_directory=str(folder), extra_include_paths=[str(headers), str(HERE / "native")],
                extra_cflags=["-std=c++20", "-O2", "-fno-math-errno", "-g0", *shlex.split(flags)],
                extra_cuda_cflags=["-std=c++20", "-O2", "-fmad=false", "--expt-relaxed-constexpr"])
        except RuntimeError as failure:
            cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(f"terse_{key}", None)  # which counts it as built
            raise RuntimeError(f"terse_torch: {recipe} doesn't compile: {_reason(str(failure))}") from failure
    method = f"{recipe} ({key})"
    _native.adopt(method, made.make)
    return Compiled(recipe, method, "cuda" if device == "cuda" else "cpu")
