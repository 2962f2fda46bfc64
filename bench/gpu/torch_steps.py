#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times on a CUDA device what bench_gpu is held against: torch.optim.Adam(fused=True), and the local work of a
compressed step of 1-bit Adam as a pass for each operation.

Usage: torch_steps.py [--elements N (268435456)] [--rounds R (20)] [--json FILE] [--device K] [--no-cupy]

The passes are DeepSpeed's, in their order (deepspeed/runtime/fp16/onebit/adam.py and runtime/comm/nccl.py): bits are
packed by CuPy where it is installed, otherwise by PyTorch's operations. What the owner of a chunk does, and the
messages, are left out, as they are in bench_gpu's local passes. Exits with 77 where there is no PyTorch or no device.
"""

import argparse
import json
import math
import statistics
import sys

WARM_UP = 3


class Missing(Exception):
    """Something that cannot be had here; main says so and returns 77."""


def load(no_cupy):
    try:
        import torch
    except ImportError as problem:
        raise Missing(f"PyTorch is not installed ({problem})") from None
    if not torch.cuda.is_available():
        raise Missing("PyTorch sees no CUDA device")
    if torch.version.hip is not None:
        raise Missing("this PyTorch is not for CUDA")
    cupy, why = None, "--no-cupy"
    if not no_cupy:
        try:
            import cupy
            cupy.packbits(cupy.zeros(64, dtype=cupy.uint8))
        except Exception as problem:  # an import that fails half-way does so in many ways
            cupy, why = None, f"{type(problem).__name__}: {problem}".splitlines()[0]
    return torch, cupy, why


class Stopwatch:
    """Milliseconds of one call by events, with nothing of its data in the cache, as bench_gpu's."""

    def __init__(self, torch, device):
        self.torch = torch
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        self.zeros = torch.zeros(max(64 << 20, cache // 2), device=device)
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, work):
        self.zeros.sum()
        self.begin.record()
        work()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end)


def measure(clock, lines, rounds):
    """[{subject, bytes, median_ms, ...}] of (subject, bytes, work); all lines of a call take turns."""
    times = [[] for _ in lines]
    for this_round in range(-WARM_UP, rounds):
        for line, (_, _, work) in enumerate(lines):
            ms = clock.time(work)
            if this_round >= 0:
                times[line].append(ms)
    results = []
    for (subject, size, _), ms in zip(lines, times):
        results.append({"subject": subject, "bytes": size, "median_ms": statistics.median(ms), "least_ms": min(ms),
                        "most_ms": max(ms), "rounds": rounds})
        print(f"{subject:68} {results[-1]['median_ms']:9.4f} ms", flush=True)
    return results


def copy_line(torch, n, device):
    a, b = torch.randn(n, device=device), torch.empty(n, device=device)
    return "copy", 8 * n, lambda: b.copy_(a)


def adam_line(torch, n, device, shapes, name):
    """Adam(fused=True) over tensors of these sizes: parameters, gradients and two moments are read, all but the
    gradients written."""
    parameters = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.Adam(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, fused=True)
    return f"torch.optim.Adam(fused=True), {name}", 28 * n, optimizer.step


def like_a_model(n):
    """Sizes of tensors as a transformer's: a matrix and a vector in turn, some hundred pairs, n elements together."""
    width = max(64, math.isqrt(n // 256) // 64 * 64)
    pair = width * width + width
    sizes = [size for _ in range(n // pair) for size in (width * width, width)]
    return sizes + ([n % pair] if n % pair else [])


def packers(torch, cupy, device):
    """(pack, unpack): n values of 0 and 1 in bytes to n / 8 bytes, and back."""
    if cupy is not None:
        return (lambda ones: torch.from_dlpack(cupy.packbits(cupy.from_dlpack(ones))),
                lambda packed: torch.from_dlpack(cupy.unpackbits(cupy.from_dlpack(packed))))
    powers = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=device)
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=device)
    return (lambda ones: ones.view(-1, 8).mul(powers).sum(1, dtype=torch.uint8),
            lambda packed: packed.unsqueeze(1).bitwise_right_shift(shifts).bitwise_and_(1).view(-1))


class SeparatePasses:
    """One whole-array operation after the other."""

    # What these read and write, in n floats, where bits are packed and unpacked in a pass each: 9 up to the norm, 15.5
    # for the error, 6.03 for bits, 9.53 back, 12 for the update.
    streams = 52.0625

    def __init__(self, torch, cupy, n, device):
        self.torch, self.n = torch, n
        self.pack, self.unpack = packers(torch, cupy, device)
        self.m, self.g, self.x = (torch.randn(n, device=device) for _ in range(3))
        self.v = torch.rand(n, device=device).add_(0.1)
        self.error = torch.zeros(n, device=device)

    def signs(self, values):
        """+1 and -1, both zeros +."""
        return values.sign().add_(1).bool().float().add_(-0.5).mul_(2.0)

    def local(self):
        torch, m = self.torch, self.m
        m.mul_(0.9).add_(self.g, alpha=1 - 0.9)
        m.add_(self.error)
        scale = torch.linalg.vector_norm(m) / math.sqrt(self.n)
        self.error.set_(m - scale * self.signs(m))
        packed = self.pack(m.sign_().add_(1).bool().to(dtype=torch.uint8))
        # Here packets travel.
        m.copy_(self.unpack(packed).float().add_(-0.5).mul_(2.0).mul_(scale))
        update = m / (self.v.sqrt() + 1e-8)
        self.x.add_(-1e-3 * update)

    def check(self):
        """That a step is 1-bit Adam's: against the same in double precision."""
        torch = self.torch
        y = 0.9 * self.m.double() + (1 - 0.9) * self.g.double() + self.error.double()
        scale = y.square().mean().sqrt()
        sent = torch.where(y < 0, -scale, scale)
        x = self.x.double() - 1e-3 * sent / (self.v.double().sqrt() + 1e-8)
        error = y - sent
        self.local()
        near = y.abs() > 1e-5  # a sign may turn where rounding decides
        for name, value, wanted in [("m", self.m, sent), ("error", self.error, error), ("x", self.x, x)]:
            worst = (value.double() - wanted).abs()[near].max().item()
            if not worst < 1e-4:
                raise SystemExit(f"torch_steps: the separate passes are wrong: {name} is off by {worst}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=256 << 20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--no-cupy", action="store_true")
    options = parser.parse_args()
    n = options.elements // 16384 * 16384
    if n < 16384 or options.rounds < 1:
        parser.error("at least 16384 elements and 1 round")
    try:
        torch, cupy, why_not = load(options.no_cupy)
    except Missing as problem:
        print(f"torch_steps: {problem}: nothing was measured", file=sys.stderr)
        return 77
    torch.cuda.set_device(options.device)
    device = torch.device("cuda", options.device)
    if cupy is not None:
        cupy.cuda.Device(options.device).use()
    bits = f"cupy.packbits of CuPy {cupy.__version__}" if cupy else f"PyTorch's operations (CuPy: {why_not})"
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name(device)}, bits by {bits}", flush=True)
    # Five arrays of a step, its largest intermediates at once, and the copy's two.
    needed, free = 10.5 * 4 * n + 1e9, torch.cuda.mem_get_info(device)[0]
    if needed > free:
        print(f"torch_steps: {n} elements need {needed / 2**30:.1f} GiB of device memory and {free / 2**30:.1f} GiB "
              "are free; try fewer --elements", file=sys.stderr)
        return 2

    clock = Stopwatch(torch, device)
    results = []
    with torch.no_grad():
        SeparatePasses(torch, cupy, 16384, device).check()
        # One after the other, for their memory; the copy beside each.
        makers = [
            lambda: adam_line(torch, n, device, [n], "one flat tensor"),
            lambda: adam_line(torch, n, device, like_a_model(n), f"{len(like_a_model(n))} tensors"),
            lambda: ("1-bit Adam, a pass for each operation", SeparatePasses.streams * 4 * n if cupy else None,
                     SeparatePasses(torch, cupy, n, device).local),
        ]
        if cupy:
            makers.append(lambda: ("1-bit Adam, a pass for each operation, bits by PyTorch", None,
                                   SeparatePasses(torch, None, n, device).local))
        for make in makers:
            line = make()
            results += measure(clock, [copy_line(torch, n, device), line], options.rounds)
            line = None
            torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "cupy": cupy.__version__ if cupy else None, "cupy_missing": None if
                       cupy else why_not, "device": torch.cuda.get_device_name(device), "elements": n,
                       "lines": results}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
