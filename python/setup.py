# SPDX-License-Identifier: Apache-2.0
"""Compiles terse_torch against the PyTorch that is installed: pip install --no-build-isolation ./python

TERSE_TORCH_METHODS   units of terse_torch/native/methods to compile, by commas, in the place of all: "one_bit_adam,diloco"
TERSE_TORCH_FLAGS     more flags for the compiler: "-march=native" where the package stays on this kind of machine
"""

import os
import pathlib
import re
import shlex
import shutil
import tempfile

import setuptools
import torch
from setuptools.command.build_py import build_py
from torch.utils.cpp_extension import BuildExtension, CppExtension

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
FLAGS = shlex.split(os.environ.get("TERSE_TORCH_FLAGS", ""))
os.chdir(HERE)  # paths of sources are relative


def version():
    header = ROOT / "include/terse/core/version.hpp"
    if not header.exists():
        raise SystemExit(f"terse_torch: there is no {header}: install from python/ of a clone of the repository, where include/ is next to it")
    return ".".join(re.search(rf"TERSE_VERSION_{part} (\d+)", header.read_text())[1] for part in ("MAJOR", "MINOR", "PATCH"))


def methods():
    every = sorted(path.stem for path in (HERE / "terse_torch/native/methods").glob("*.cpp"))
    wanted = [name for name in os.environ.get("TERSE_TORCH_METHODS", "").split(",") if name] or every
    if unknown := [name for name in wanted if name not in every]:
        raise SystemExit(f"TERSE_TORCH_METHODS names {', '.join(unknown)}; there are {', '.join(every)}")
    return [f"terse_torch/native/methods/{name}.cpp" for name in wanted]


class WithHeaders(build_py):
    """Packs terse's headers, for terse_torch.compile."""

    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.copytree(ROOT / "include", pathlib.Path(self.build_lib) / "terse_torch/include", dirs_exist_ok=True)


class Extension(BuildExtension):
    """Says beforehand, in words, which headers are missing."""

    def finalize_options(self):
        super().finalize_options()
        self.force = True  # setuptools looks at the times of sources alone; Ninja looks at headers and flags, too

    def build_extensions(self):
        with tempfile.TemporaryDirectory() as folder:
            for header, package in (("nlohmann/json.hpp", "nlohmann-json3-dev"), ("xxhash.h", "libxxhash-dev")):
                source = pathlib.Path(folder) / "has.cpp"
                source.write_text(f"#if !__has_include(<{header}>)\n#error missing\n#endif\n")
                try:
                    self.compiler.compile([str(source)], output_dir=folder, extra_postargs=FLAGS)
                except Exception as failure:
                    raise SystemExit(f"terse_torch: the C++ compiler finds no {header}: install it (Debian: {package}; conda-forge: "
                                     f"{package.removesuffix('-dev').removesuffix('3').removeprefix('lib')})") from failure
        super().build_extensions()


setuptools.setup(
    version=version(),
    options={"build": {"build_base": f"build/torch-{torch.__version__}"}},  # which each PyTorch has its own of
    packages=["terse_torch"],
    package_data={"terse_torch": ["native/*.hpp"]},
    ext_modules=[CppExtension(
        "terse_torch._native",
        ["terse_torch/native/bindings.cpp", "../src/terse.cpp", "../src/checkpoint.cpp", *methods()],
        include_dirs=[str(ROOT / "include")],
        define_macros=[("TERSE_SEPARATE", None)],
        extra_compile_args=["-std=c++20", "-O2", "-fno-math-errno", "-g0", *FLAGS])],
    cmdclass={"build_ext": Extension, "build_py": WithHeaders})
