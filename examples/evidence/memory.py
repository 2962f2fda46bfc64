# SPDX-License-Identifier: Apache-2.0
"""Copies of examples of a compressed pipeline: seconds of a step in RAM and in a mapped file, which may be larger than the RAM."""

import atexit
import os
import pathlib
import statistics

from evidence import Experiment, Missing, Row

GROUPS = pathlib.Path("/sys/fs/cgroup")


class Memory(Experiment):
    """Copies of 10 GB in RAM and in a mapped file, also with 4 GB of memory: takes 11 GB of RAM, and 10 GB of disk in /var/tmp."""
    programs = ["bench/bench_memory"]

    def prepare(self):
        super().prepare()
        group, file = limited_group()
        if not can_limit():
            print(f"rows with a limit of memory are left out: {group.parent} can't be written to")
            return
        try:
            group.mkdir(exist_ok=True)
            atexit.register(group.rmdir)
            (group / file).write_text(str(self.megabytes()[1] * 10**6))
        except OSError as why:
            raise Missing(f"memory can't be limited by {group / file}: {why.strerror}") from None

    def megabytes(self):
        """The copies, and the limit of memory."""
        return (200, 100) if self.smoke else (10000, 4000)

    def rows(self):
        megabytes, limit = self.megabytes()
        for copies, order, memory in [("ram", "shuffled", None), ("mapped", "shuffled", None), ("mapped", "shuffled", limit),
                                      ("mapped", "same", limit)]:
            if memory and not can_limit():
                continue
            command = [self.program("bench/bench_memory"), "--megabytes", megabytes, "--memory", copies, "--order", order]
            if memory:
                command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', limited_group()[0], *command]
            yield Row({"copies": copies, "order": order, "megabytes": megabytes, "limit": memory}, command,
                      minutes=0.1 if self.smoke else 3)

    def table(self, results):
        header = ["copies", "memory", "order", "first visits, s a step", "later", "slowest", "processor s", "resident MB", "read MB", "written MB", "faults"]
        return header, [line(key, [one for one in lines if "epoch" in one]) for key, lines in results]


def limited_group():
    """A control group for programs with little memory, and the file of its limit. In the first version of control groups it is within
    the group of this process."""
    if not (GROUPS / "memory").is_dir():
        return GROUPS / "terse-memory", "memory.max"
    own = next(line.split(":", 2)[2] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
    return GROUPS / "memory" / own.lstrip("/") / "terse-memory", "memory.limit_in_bytes"


def can_limit():
    return os.access(limited_group()[0].parent, os.W_OK)


def line(key, epochs):
    later = epochs[1:]
    return [key["copies"], f"{key['limit']} MB" if key["limit"] else "all", key["order"], f"{epochs[0]['step']:.4f}",
            f"{statistics.mean(one['step'] for one in later):.4f}", f"{max(one['slowest'] for one in later):.3f}",
            f"{statistics.mean(one['processor'] for one in later):.4f}",
            f"{later[-1]['anonymous_mb'] + later[-1]['file_mb']:.0f}",
            *(f"{statistics.mean(one[what] for one in later):.0f}" for what in ("read_mb", "written_mb", "major_faults"))]
