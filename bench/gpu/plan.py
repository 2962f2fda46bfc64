# SPDX-License-Identifier: Apache-2.0
"""The stages of bench/gpu_run, the most important first."""

from typing import NamedTuple


class Stage(NamedTuple):
    name: str
    program: str        # of bench/ or tests/cuda/; none: the tool alone is run
    arguments: str      # in shell syntax; {out} is the folder of results
    expected: int       # seconds, of which a budget must have as many left
    timeout: int        # seconds after which the stage has failed
    about: str
    tool: str = ""      # a command that runs the program and must be installed
    environment: str = ""
    figures: bool = False  # its output is part of the summary


SANITIZER = "compute-sanitizer --error-exitcode 1 --report-api-errors no --tool "
# Starts where the program calls cudaProfilerStart: after its comparison with the host.
PROFILER = "ncu --clock-control none --set detailed --launch-count 1 --kernel-name-base demangled "
BENCHMARK = PROFILER + "--profile-from-start off "
# A case of each kind: blocks that take a unit all the way, codes, random numbers, and packets that vary in size.
KINDS = "-tc=*all*the*way*,*coded*picks*,random-k*,threshold*"
SLICES = "--ranks 1 --slices 16777216,268435456,0"


def test(name, expected, timeout, about, arguments=""):
    return Stage(name, f"test_cuda_{name}", arguments, expected, timeout, about)


def sanitize(tool, name, arguments, about, options=""):
    return Stage(f"{tool}_{name}", f"test_cuda_{name}", arguments, 45, 180, about, SANITIZER + tool + options)


def steps(name, floats, tiles):
    return Stage(f"steps_{name}_few_{tiles}", "bench_gpu_steps", f"--floats {floats} --few-tiles {tiles} {SLICES}", 20, 90,
                 "whole steps by size of slices", figures=True)


def passes(name, elements, expected):
    return Stage(f"bench_gpu_{name}", "bench_gpu", f"--elements {elements} --json {{out}}/bench_gpu_{name}.json", expected, 180,
                 f"passes next to a copy, {name} floats", figures=True)


def profile(name, kernel, about, only, elements=16 << 20):
    return Stage(f"ncu_{name}", "bench_gpu", f"--elements {elements} --rounds 1 --only '{only}'", 30, 120, about,
                 BENCHMARK + f"--kernel-name regex:.*{kernel}.*", figures=True)


PLAN = [
    test("contraction", 2, 30, "device code has the right flags"),
    test("verbs", 30, 150, "every verb, by the host's bits"),
    test("optimizer", 40, 180, "whole optimizers, by the host's bits"),
    # A hang is last_block or a barrier in TopPicks.
    test("sparse", 90, 240, "sparse compressors, tiles, codes"),
    test("low_rank", 60, 180, "PowerSGD and Dion"),
    test("muon", 30, 150, "Muon and Dion2"),
    test("mixing", 40, 150, "mixing with neighbours, Moniqua"),
    test("local", 40, 150, "local methods, LAMB"),
    test("replay", 20, 120, "recorded steps"),
    test("sharded", 30, 150, "sharded state"),
    test("pipeline", 40, 150, "stages of a pipeline"),
    sanitize("synccheck", "sparse", KINDS, "barriers of sparse compressors"),
    sanitize("racecheck", "sparse", KINDS, "shared memory of sparse compressors"),
    sanitize("synccheck", "low_rank", "-tc=PowerSGD", "barriers of low-rank compressors"),
    sanitize("racecheck", "low_rank", "-tc=PowerSGD", "shared memory of low-rank compressors"),
    sanitize("racecheck", "verbs", "-tc='*reduction*'", "shared memory of reductions"),
    sanitize("initcheck", "sparse", KINDS, "reads of unwritten memory"),
    sanitize("initcheck", "optimizer", "-tc='*of layers*'", "reads of unwritten memory"),
    sanitize("memcheck", "low_rank", "-tc=PowerSGD", "accesses out of bounds and leaks", " --leak-check full"),
    *(steps(name, floats, tiles) for name, floats in (("100M", 10**8), ("10M", 10**7), ("1M", 10**6)) for tiles in (4096, 0)),
    Stage("steps_default", "bench_gpu_steps", "", 60, 180, "whole steps, 1 and 2 ranks", figures=True),
    Stage("steps_1G", "bench_gpu_steps", "--floats 1000000000 --ranks 1 --steps 20", 60, 180,
          "whole steps; 40 GB", figures=True),
    passes("4Mi", 4 << 20, 30),
    passes("16Mi", 16 << 20, 30),
    passes("256Mi", 256 << 20, 60),
    Stage("torch", "", "--json {out}/torch_steps.json", 60, 180, "fused Adam, separate passes",
          "python3 bench/gpu/torch_steps.py", figures=True),
    Stage("variants", "bench_gpu_variants", "268435456 10 {out}/variants.json", 40, 150, "tunings of the kernels, in turns", figures=True),
    Stage("launches", "bench_gpu_launches", "", 5, 60, "launches with 16 B to 32 KB", figures=True),
    profile("find_digit", "FindDigit", "threshold of top-k, long units", "TopK<>/"),
    profile("top_picks", "TopPicks", "top-k by one block", "Dct<64"),
    profile("reduce", "ReduceBody", "a sum of many tiles", "1-bit Adam/momentum", 4 << 20),
    profile("tiles", "TransformTiles", "cosine transforms of tiles", "Dct<64"),
    profile("multiply", "Multiply", "a matrix by a few vectors", "LowRank"),
    profile("orthonormalize", "Orthonormalize", "Gram-Schmidt by one block", "LowRank"),
    Stage("ncu_product", "test_cuda_muon", "-tc='products of matrices*'", 30, 120, "products of two matrices",
          PROFILER + "--kernel-name regex:.*ProductKernel.*", figures=True),
    Stage("nccl", "test_nccl", "", 40, 180, "NCCL itself: messages, deadlines, aborts"),
    Stage("nccl_processes_2", "test_cuda_nccl_processes", "2", 40, 200, "1-bit Adam, 2 processes on a GPU"),
    Stage("nccl_processes_3", "test_cuda_nccl_processes", "3", 60, 200, "1-bit Adam, 3 processes on a GPU"),
    *(Stage(f"stopping_{mode.lower()}", "test_cuda_nccl_processes", "2 stopping", 40, 120,
            "a rank stops after an exchange", environment=f"CUDA_MODULE_LOADING={mode}",
            figures=True) for mode in ("LAZY", "EAGER")),
    test("large", 90, 240, "2^31 elements; 27 GB here and there"),
    test("others", 30, 150, "Hadamard, ErrorControl, Star, two levels"),
    test("nccl_optimizer", 40, 180, "whole optimizers, a GPU for each rank"),
    test("nccl_pipeline", 40, 180, "pipelines, a GPU for each stage"),
    # The trainer is built by hand with a LibTorch for CUDA, see docs/libtorch.md.
    Stage("libtorch", "train", "--device cuda --ranks 2 --data {out}/data --most-masked 1 --batch 8 --epochs 2", 60, 180,
          "LibTorch, two ranks on one GPU", "python3 tests/examples/tiny_data.py {out}/data"),
]


def target(program):
    """The program's place in a Meson build directory."""
    return {"train": "tools/train"}.get(program) or ("bench/" if program.startswith("bench_") else "tests/cuda/") + program
