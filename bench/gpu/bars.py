# SPDX-License-Identifier: Apache-2.0
"""The bars of the local passes on a GPU, and their tables, from what bench_gpu and torch_steps.py have measured."""

import re

FULL_SIZE = 256 << 20
PASSES = [("1-bit Adam", "momentum + error + scale + bits"), ("1-bit Adam", "decode + update"),
          ("1-bit Adam per block", "momentum + error + scale + bits"), ("1-bit Adam per block", "decode + update")]
SEPARATE = "1-bit Adam, a pass for each operation"
# A line of bench_gpu_steps: floats, microseconds by graph, and the floor's part of them.
STEP = re.compile(r"^ *(\d+) +1 +1 +default +1-bit Adam, compressed +[\d.]+ +([\d.]+) +[\d.]+ +([\d.]+)$", re.MULTILINE)

def line_of(results, subject, what=""):
    """The first such line of a step, or None."""
    for line in (results or {}).get("lines", []):
        if line["subject"] == subject and line.get("what", "") == what and line.get("group", "step") == "step":
            return line
    return None


def bars(ours, torch, why_no_torch, steps):
    """[(bar, wanted, value or None, "met", "missed" or "not run: why")]; `steps` is the output of bench_gpu_steps."""
    found = []
    steps = {int(floats): (float(graph), float(part)) for floats, graph, part in STEP.findall(steps)}

    def bar(name, wanted, value, why=None):
        if value is None:
            verdict = f"not run: {why}"
        elif ours["elements"] != FULL_SIZE:
            verdict = f"not run: the bar is for {FULL_SIZE} elements, this is {ours['elements']}"
        elif ours["device"]["major"] < 9:
            verdict = f"not run: the bar is for an H100 or better, this is {ours['device']['name']}"
        else:
            verdict = "met" if value >= wanted else "missed"
        found.append((name, wanted, value, verdict))

    def against(theirs, subject, what):
        line = line_of(ours, subject, what)
        other = next((one for one in (torch or {}).get("lines", []) if one["subject"].startswith(theirs)), None)
        return other["median_ms"] / line["median_ms"] if line and other else None

    for subject, what in PASSES:
        line = line_of(ours, subject, what)
        bar(f"{subject}, {what}: of the copy's speed", 0.85, line and line["of_copy"], "it was not measured")
    bar("Adam, update: times the speed of torch.optim.Adam(fused=True), one flat tensor", 0.95,
        against("torch.optim.Adam(fused=True), one flat", "Adam", "update"), why_no_torch)
    by = "bits by PyTorch, no CuPy" if torch and not torch["cupy"] else "bits by CuPy"
    bar(f"1-bit Adam, three local passes: times faster than a pass for each operation ({by})", 8,
        against(SEPARATE, "1-bit Adam", "three local passes"), why_no_torch)
    missing = "the step was not measured"
    for millions in 10, 100, 1000:
        _, part = steps.get(millions * 1000000, (None, None))
        bar(f"a compressed step of {millions} M floats, by graph: of the copy's speed for its bytes", 0.85, part, missing)
    graph, _ = steps.get(1000000, (None, None))
    bar("a compressed step of 1 M floats, by graph: times faster than 60 µs", 1, graph and 60 / graph, missing)
    return found


def size_text(n):
    for unit, name in [(1 << 20, "Mi"), (1 << 10, "Ki")]:
        if n % unit == 0:
            return f"{n // unit} {name}"
    return str(n)


def digits(value):
    return "–" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def table(head, rows):
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" + "---:|" * (len(head) - 1),
                      *(f"| {' | '.join(row)} |" for row in rows)])


def bar_table(found):
    return table(["bar", "at least", "measured", "verdict"],
                 [[name, f"{wanted:g}", digits(value), verdict] for name, wanted, value, verdict in found])


def markdown(ours, torch, why_no_torch, found):
    device = ours["device"]
    copy = line_of(ours, "copy")
    parts = [f"{device['name']} (compute capability {device['major']}.{device['minor']}, {device['multiprocessors']} "
             f"multiprocessors, L2 {device['l2_bytes'] >> 20} MiB), CUDA {device['runtime'] // 1000}."
             f"{device['runtime'] % 1000 // 10}, driver for {device['driver'] // 1000}."
             f"{device['driver'] % 1000 // 10}; {ours['results_compared']} results were the host's, bit for bit, before "
             "anything was timed."]
    if copy:
        speed = copy["bytes"] / copy["median_ms"] * 1e-6
        parts.append(f"{size_text(ours['elements'])} floats. The device's copy moved {speed:.0f} GB/s, read and "
                     f"written; it took {copy['median_ms']:.3f} ms, {copy['least_ms']:.3f} to {copy['most_ms']:.3f}.")
        floor = copy["median_ms"] / copy["bytes"]
        rows = [[f"{line['subject']}: {line['what']}", f"{line['bytes'] / (4 * line['elements']):.2f}",
                 f"{line['bytes'] * floor:.3f}", f"{line['median_ms']:.3f}", digits(line["of_copy"])]
                for line in ours["lines"] if line["group"] == "step" and line["subject"] != "copy"]
        parts.append(table(["pass", "streams", "floor, ms", "median, ms", "of the copy's speed"], rows))
    if torch:
        bits = f"CuPy {torch['cupy']}" if torch["cupy"] else f"PyTorch's operations ({torch['cupy_missing']})"
        copies = [line["bytes"] / line["median_ms"] * 1e-6 for line in torch["lines"] if line["subject"] == "copy"]
        parts.append(f"Beside them PyTorch {torch['torch']}, bits by {bits}; its own copies moved "
                     f"{min(copies):.0f} to {max(copies):.0f} GB/s.")
        parts.append(table(["PyTorch and CuPy", "median, ms"], [[line["subject"], f"{line['median_ms']:.3f}"]
                           for line in torch["lines"] if line["subject"] != "copy"]))
    else:
        parts.append(f"PyTorch and CuPy were not measured: {why_no_torch}.")
    parts.append(bar_table(found))
    compressors = [line for line in ours["lines"] if line["group"] == "compressor" and line["subject"] != "copy"]
    for n in sorted({line["elements"] for line in compressors}, reverse=True):
        subjects = {}
        for line in compressors:
            if line["elements"] == n:
                subjects.setdefault(line["subject"], {})[line["what"]] = line
        rows = []
        for name, whats in subjects.items():
            rows.append([f"`{name}`"])
            for what in ("encode", "encode with residual", "accumulate"):
                line = whats.get(what)
                rows[-1].append(f"{line['median_ms'] * 1e3:.0f} ({line['of_copy']:.2f})" if line else "–")
        parts.append(f"Compressors, {size_text(n)} floats; µs, and in brackets how near to the copy's speed:")
        parts.append(table(["compressor", "encode", "with residual", "accumulate"], rows))
    low_rank = [line for line in ours["lines"] if line["group"] == "low rank" and line["subject"] != "copy"]
    if low_rank:
        parts.append(table(["low rank", "median, µs", "of the copy's speed"],
                           [[f"{line['subject']}: {line['what']}", f"{line['median_ms'] * 1e3:.1f}", digits(line["of_copy"])]
                            for line in low_rank]))
    return "\n\n".join(parts) + "\n"
