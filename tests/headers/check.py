#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every header compiles by itself and when included twice, under warnings as errors, and that
terse/terse.hpp draws in nothing heavy.

Usage: check.py [--together | --alone] [-I DIR ...] COMPILER [FLAG ...]
  --together   all headers that need the same in one unit, after the macros of macros.hpp: for a second compiler
  --alone      each without anything before it. By default the standard library's headers are there already, compiled
               once for all, which finds all but a missing one of those. clang reads the core's headers once, as a
               module's parts, which see only what they include themselves; elsewhere a unit has several headers, each
               behind some that it includes itself. Both find the same as a unit of its own for each
  -I DIR       where optional dependencies are, such as mpi.h; only headers that need them see it
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from precompile import precompiled  # pylint: disable=wrong-import-position

INCLUDE = pathlib.Path(__file__).resolve().parent.parent.parent / "include"

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wdouble-promotion", "-Wfloat-equal", "-Wshadow",
            "-Werror"]

# Before #include "terse/terse.hpp" -> words that say why it doesn't compile then.
REFUSED = {
    "#define check(x)\n": "before it, or #undef it",
    "#include <vector>\n#define max(a, b)\n": "before it, or #undef it",
}

# What other libraries define, for units that include those before terse.
MACROS = f'#include "{pathlib.Path(__file__).resolve().parent / "macros.hpp"}"\n'

# Headers that a unit at C++17 may include, too.
SEVENTEEN = ["terse/core/config.hpp", "terse/core/draw.hpp", "terse/core/error.hpp", "terse/core/layout.hpp",
             "terse/core/step_scalars.hpp", "terse/pipeline/micro_batch.hpp"]

# Header, folder, or what headers' paths begin with -> what it needs beyond the standard library; without that it is skipped. LibTorch does not
# compile as C++20 everywhere, so headers that need it alone are checked as C++17.
OPTIONAL = {
    "terse/transport/mpi": ["boost/mpi/communicator.hpp", "mpi.h"],
    "terse/transport/c10d.hpp": ["torch/csrc/distributed/c10d/ProcessGroup.hpp"],
    "terse/transport/c10d_root.hpp": ["torch/csrc/distributed/c10d/ProcessGroup.hpp"],
    "terse/transport/nccl": ["cuda_runtime_api.h", "nccl.h"],
    "terse/transport/nvtx.hpp": ["nvtx3/nvToolsExt.h"],
    "terse/pipeline/nccl": ["cuda_runtime_api.h", "nccl.h"],
    "terse/device/memory.hpp": ["cuda_runtime_api.h"],
    "terse/device/overlapped.hpp": ["cuda_runtime_api.h"],
    "terse/device/gpu_rank.hpp": ["cuda_runtime_api.h", "nccl.h"],
    "terse/transport/cuda_aware_mpi.hpp": ["boost/mpi/communicator.hpp", "mpi.h"],
    "terse/interop/libtorch.hpp": ["torch/torch.h"],
    "terse/interop/libtorch_guards.hpp": ["torch/torch.h"],
    "terse/interop/libtorch_stage": ["torch/torch.h"],
    "terse/interop/gradient_hooks.hpp": ["torch/torch.h"],
    "terse/interop/data_parallel.hpp": ["torch/torch.h"],
    "terse/interop/checkpoint.hpp": ["torch/torch.h", "nlohmann/json.hpp", "xxhash.h"],
    "terse/interop/libtorch_cuda.hpp": ["torch/torch.h", "cuda_runtime_api.h", "c10/cuda/impl/cuda_cmake_macros.h"],
    "terse/interop/data_parallel_cuda.hpp": ["torch/torch.h", "cuda_runtime_api.h", "c10/cuda/impl/cuda_cmake_macros.h"],
    "terse/bench/": ["benchmark/benchmark.h"],
    "terse/checkpoint/": ["nlohmann/json.hpp", "xxhash.h"],
}
STANDARD_OF = {"terse/interop/libtorch.hpp": "c++17", "terse/interop/libtorch_stage.hpp": "c++17",
               "terse/interop/libtorch_guards.hpp": "c++17", "terse/interop/libtorch_stage_batch.hpp": "c++17",
               "terse/interop/libtorch_stage_forward.hpp": "c++17", "terse/interop/libtorch_stage_options.hpp": "c++17",
               "terse/interop/libtorch_cuda.hpp": "c++17", "terse/interop/gradient_hooks.hpp": "c++17"}
# Header -> a compiler and a library that don't go together, as the preprocessor tells, and how to say so.
CLANG_OLD_TORCH = ("#include <torch/version.h>\n#if defined(__clang__) && TORCH_VERSION_MAJOR < 2\n#error\n#endif\n",
                   "a LibTorch that clang takes as C++20")
UNFIT = {"terse/interop/data_parallel.hpp": CLANG_OLD_TORCH, "terse/interop/data_parallel_cuda.hpp": CLANG_OLD_TORCH,
         "terse/interop/checkpoint.hpp": CLANG_OLD_TORCH, "terse/transport/c10d.hpp": CLANG_OLD_TORCH, "terse/transport/c10d_root.hpp": CLANG_OLD_TORCH}

# Names of standard headers, and parts of paths of others, that the core must not draw in.
HEAVY = r"/(iostream|random|filesystem|regex|fstream|mpi\.h|nccl\.h)$|/(cuda|torch|nlohmann|json|boost)[^/]*(/|\.h)"


def compile_text(compiler, flags, text):
    """Whether `text` compiles, and what the compiler says."""
    command = [*compiler, *flags, f"-I{INCLUDE}", "-x", "c++", "-fsyntax-only", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=240,
                          env=dict(os.environ, LC_ALL="C"), check=False)
    return done.returncode == 0, done.stdout + done.stderr


def includes_of(compiler, text):
    """Paths of all files that `text` draws in."""
    command = [*compiler, "-std=c++20", f"-I{INCLUDE}", "-x", "c++", "-M", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.replace("\\\n", " ").split()[1:]


def heavy_of(compiler, text):
    return [path for path in includes_of(compiler, text) if re.search(HEAVY, path)]


def standard_headers():
    """Those that the library uses."""
    text = "".join(path.read_text() for path in INCLUDE.rglob("*.hpp"))
    return sorted(set(re.findall(r"^#include <([a-z_]+)>", text, re.MULTILINE)))


def needs_of(header):
    return next((needs for key, needs in OPTIONAL.items() if header.startswith(key)), [])


def check_headers(compiler, folders, headers, standard, before=(), macros=""):
    """What is wrong with headers that need the same, after `macros`; None if nothing is; a text that begins with 'skipped' if it
    can't be told."""
    needs = needs_of(headers[0])
    search = [f"-isystem{folder}" for folder in folders] if needs else []
    probe = "".join(f"#if !__has_include(<{need}>)\n#error\n#endif\n" for need in needs)
    if needs and not compile_text(compiler, search, probe)[0]:
        return "skipped, needs " + ", ".join(needs)
    unfit = UNFIT.get(headers[0])
    if unfit and not compile_text(compiler, search, unfit[0])[0]:
        return "skipped, needs " + unfit[1]
    text = "".join(f'#include "{header}"\n' for header in headers)
    before = before if standard == "c++20" else ()
    first = macros and "".join(f"#include <{need}>\n" for need in needs) + macros
    fine, output = compile_text(compiler, [f"-std={standard}", *WARNINGS, *before, *search], first + text + text)
    return None if fine else "\n".join(output.splitlines()[:12])


def chains_of(headers):
    """Parts `headers` into as few lists as can be, in which each header draws in the one before itself: what is there
    when the compiler comes to it, it would have brought. Fewest chains are most pairs of neighbours (Fulkerson 1956)."""
    direct = {header: re.findall(r'^#include "(terse/[^"]+\.hpp)"', (INCLUDE / header).read_text(), re.MULTILINE)
              for header in sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.hpp"))}

    def closure(header, found):
        for one in direct[header]:
            if one not in found:
                found.add(one)
                closure(one, found)
        return found
    drawn_in = {header: sorted(closure(header, set()) & set(headers)) for header in headers}
    next_of, before = {}, {}

    def pair(header, tried):
        for one in drawn_in[header]:
            if one not in tried:
                tried.add(one)
                if one not in next_of or pair(next_of[one], tried):
                    next_of[one], before[header] = header, one
                    return True
        return False
    for header in headers:
        pair(header, set())
    chains = []
    for first in (header for header in headers if header not in before):
        chain = [first]
        while chain[-1] in next_of:
            chain.append(next_of[chain[-1]])
        chains.append(chain)
    return chains


def check_as_modules(compiler, headers, folder):
    """What the compiler says of headers of C++20 as parts of one module, of which each sees what it includes and no more;
    None if nothing."""
    standard = standard_headers()
    listed = subprocess.run([*compiler, "-std=c++20", "-H", "-fsyntax-only", "-x", "c++", "-"], capture_output=True, text=True,
                            input="".join(f"#include <{one}>\n" for one in standard), timeout=240, check=True).stderr
    paths = {}
    for path in re.findall(r"^\.+ (.*)", listed, re.MULTILINE):
        paths.setdefault(path.rpartition("/")[2], path)
    modules = pathlib.Path(folder) / "module.modulemap"
    modules.write_text("module standard [system] {\n" + "".join(f'header "{paths[one]}"\n' for one in standard) + "export *\n}\n"
                       + "module terse {\n" + "".join(f'module part_{k} {{ header "{INCLUDE / header}" export * }}\n'
                                                      for k, header in enumerate(headers)) + "}\n")
    # Textual headers of the system, such as <unistd.h>, may come with several parts.
    done = subprocess.run(
        [*compiler, "-std=c++20", *WARNINGS, "-Wno-modules-ambiguous-internal-linkage", f"-I{INCLUDE}", "-fmodules", "-fcxx-modules",
         f"-fmodules-cache-path={folder}/modules", f"-fmodule-map-file={modules}", "-fmodule-name=terse",
         "-Xclang", "-fmodules-local-submodule-visibility", "-Xclang", "-emit-module", "-x", "c++", str(modules),
         "-c", "-o", f"{folder}/terse.pcm"],
        capture_output=True, text=True, timeout=240, env=dict(os.environ, LC_ALL="C"), check=False)
    return None if done.returncode == 0 else done.stdout + done.stderr


def check_weight(compiler):
    """What is wrong with what terse.hpp draws in; None if nothing is."""
    if not heavy_of(compiler, "#include <random>\n") or not heavy_of(compiler, "#include <fstream>\n"):
        return "this check does not recognise <random> and <fstream>"
    heavy = heavy_of(compiler, "#include <terse/terse.hpp>\n")
    return f"draws in {', '.join(heavy)}" if heavy else None


def check_refusals(compiler):
    """What terse.hpp should refuse in words of its own, and doesn't; None if nothing."""
    for before, words in REFUSED.items():
        fine, output = compile_text(compiler, ["-std=c++20", "-E"], before + '#include "terse/terse.hpp"\n')
        if fine or words not in output:
            return f"no '{words}' after\n{before}"
    return None


def main(arguments):
    together, alone = arguments[:1] == ["--together"], arguments[:1] == ["--alone"]
    arguments = arguments[together or alone:]
    folders = []
    while arguments[:1] == ["-I"]:
        folders.append(arguments[1])
        arguments = arguments[2:]
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2

    headers = sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.hpp"))
    if not set(SEVENTEEN) <= set(headers):
        print("the headers are not where they should be")
        return 1
    jobs = [(header, STANDARD_OF.get(header, "c++20")) for header in headers]
    jobs += [(header, "c++17") for header in SEVENTEEN]
    failures = 0

    def report(name, fault):
        nonlocal failures
        skipped = fault is not None and fault.startswith("skipped")
        failures += fault is not None and not skipped
        print(f"{'ok' if fault is None else 'skip' if skipped else 'FAILED':6}  {name}", flush=True)
        if fault:
            print("\n".join("        " + line for line in fault.splitlines()))

    groups = {}
    for header, standard in jobs:
        groups.setdefault((standard, *needs_of(header), header if header in UNFIT else ""), []).append(header)
    core = ("c++20", "")
    is_clang = compile_text(arguments, [], "#ifndef __clang__\n#error\n#endif\n")[0]
    if is_clang and not together and not alone:
        with tempfile.TemporaryDirectory() as folder:
            fault = check_as_modules(arguments, groups[core], folder)
        if fault is None:
            for header in groups.pop(core):
                report(f"{header} (c++20)", None)
        else:
            print("as parts of a module, not all is well; one by one:", *fault.splitlines()[:12], sep="\n    ", flush=True)

    def units_of(group):
        if together:
            return [group]
        return [[header] for header in group] if alone else chains_of(group)
    units = [(unit, key[0]) for key, group in groups.items() for unit in units_of(group)]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        before = [] if together or alone else precompiled(arguments, ["-std=c++20", *WARNINGS], standard_headers(), folder)

        def check_unit(unit):
            chain, standard = unit
            fault = check_headers(arguments, folders, chain, standard, before, MACROS if together else "")
            if together and len(chain) > 1:
                return [(f"{len(chain)} headers together, {chain[0]} first", standard, fault)]
            if fault is None or fault.startswith("skipped") or len(chain) == 1:
                return [(header, standard, fault) for header in chain]
            return [(header, standard, check_headers(arguments, folders, [header], standard, before)) for header in chain]
        for results in pool.map(check_unit, units):
            for header, standard, fault in results:
                report(f"{header} ({standard})", fault)
    report("what terse/terse.hpp draws in", check_weight(arguments))
    report("what terse/terse.hpp refuses", check_refusals(arguments))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
