# SPDX-License-Identifier: Apache-2.0
"""Ranks in network namespaces of their own, on one switch, whose links a token bucket holds to a bandwidth. Needs root and
iproute2. What is made is removed at the end, after an error or a signal, too; nothing else is touched."""

import contextlib
import os
import signal
import subprocess


def command(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True)


class Links:
    """Rank r is 10.77.0.(r + 1) in namespace terse-PID-r; all are ports of a bridge in namespace terse-PID-switch."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.name = f"terse-{os.getpid()}"
        self.switch = f"{self.name}-switch"

    def namespace(self, rank):
        return f"{self.name}-{rank}"

    def address(self, rank):
        return f"10.77.0.{rank + 1}"

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def _make(self):
        command("ip", "netns", "add", self.switch)
        in_switch = ("ip", "-n", self.switch, "link")
        command(*in_switch, "add", "bridge", "type", "bridge")
        command(*in_switch, "set", "bridge", "up")
        for rank in range(self.ranks):
            name = self.namespace(rank)
            command("ip", "netns", "add", name)
            command(*in_switch, "add", f"port{rank}", "type", "veth", "peer", "name", "eth0", "netns", name)
            command(*in_switch, "set", f"port{rank}", "master", "bridge", "up")
            command("ip", "-n", name, "address", "add", f"{self.address(rank)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                command("ip", "-n", name, "link", "set", device, "up")

    def hold_to(self, megabits):
        """Limits what each rank sends and what it receives."""
        # What a kernel of 250 ticks a second lets pass in one of them, or one large segment. A switch's buffer of 50 ms.
        burst = max(int(megabits * 1e6 / 8 / 250), 65536)
        for rank in range(self.ranks):
            for where, device in ((self.namespace(rank), "eth0"), (self.switch, f"port{rank}")):
                command("tc", "-n", where, "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{megabits}mbit",
                        "burst", str(burst), "latency", "50ms")

    def remove(self):
        for name in [self.switch] + [self.namespace(rank) for rank in range(self.ranks)]:
            command("ip", "netns", "delete", name, check=False)


@contextlib.contextmanager
def ended_by_signals():
    """SIGTERM and SIGHUP end the program as SIGINT does, by an exception, so that what was made is removed."""
    def end(number, _):
        raise SystemExit(128 + number)
    old = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
