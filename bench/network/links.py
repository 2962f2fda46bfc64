# SPDX-License-Identifier: Apache-2.0
"""Ranks in network namespaces of their own, on one switch, whose links a token bucket holds to a bandwidth, and MPI jobs over
them. Needs root and iproute2. What is made is removed at the end, however that comes, and nothing else is touched."""

import contextlib
import json
import os
import pathlib
import signal
import stat
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
DELAYED = ("terse::Delayed around a transport is a slow link without any of this: build/release/tools/train --delay MS "
           "--bandwidth MBIT, see docs/transports.md")

# Waits until its standard input ends, as it does when whoever holds the other end ends, by kill -9, too; then removes the
# namespaces that are its arguments, and the processes in them first, which would keep them alive.
JANITOR = """
read _
for name; do
  for try in 1 2 3 4 5 6 7 8 9 10; do
    pids=$(ip netns pids "$name" 2>&-) && [ -n "$pids" ] || break
    kill -9 $pids
    sleep 0.1
  done
  ip netns delete "$name"
done
"""


def command(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True)


def require_root():
    if os.geteuid() != 0:
        raise SystemExit(f"network namespaces need root; {DELAYED}")


class Links:
    """Rank r is 10.77.0.(r + 1) in namespace terse-PID-r; all are ports of a bridge in namespace terse-PID-switch."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.name = f"terse-{os.getpid()}"
        self.switch = f"{self.name}-switch"
        self.janitor = None

    def namespace(self, rank):
        return f"{self.name}-{rank}"

    def address(self, rank):
        return f"10.77.0.{rank + 1}"

    def __enter__(self):
        names = [self.namespace(rank) for rank in range(self.ranks)] + [self.switch]
        # In a session of its own, where neither Ctrl-C nor a terminal's end reaches it.
        self.janitor = subprocess.Popen(["sh", "-c", JANITOR, "janitor", *names], stdin=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
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

    def cut(self, rank):
        """Takes a rank's link away, for good. Nobody is told: connections stay open, and nothing passes."""
        command("ip", "-n", self.switch, "link", "set", f"port{rank}", "down")

    def remove(self):
        if self.janitor:
            self.janitor.communicate()
            self.janitor = None


@contextlib.contextmanager
def ended_by_signals():
    """SIGTERM and SIGHUP end the program as SIGINT does, by an exception, so that it cleans up before it has ended."""
    def end(number, _):
        raise SystemExit(128 + number)
    old = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def build(target="bench_network", *packages):
    # Debian's LibTorch and Open MPI with g++.
    subprocess.run([ROOT / "scripts" / "require", "g++", "meson", "ninja-build", "pkg-config", "libboost-mpi-dev", "libopenmpi-dev",
                    "openmpi-bin", "libtorch-dev", "libopenblas0-pthread", "iproute2", "gnuplot-nox", *packages], check=True)
    folder = ROOT / "build" / "network"
    if not (folder / "build.ninja").exists():
        subprocess.run(["meson", "setup", folder, "-Dtests=disabled", "-Dexamples=disabled", "-Dbuildtype=release"],
                       cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder, f"bench/{target}"], check=True, stdout=subprocess.DEVNULL)
    return folder / "bench" / target


def python_with_torch():
    for python in ("/usr/bin/python3", "python3"):
        try:
            if subprocess.run([python, "-c", "import torch.distributed"], capture_output=True).returncode == 0:
                return python
        except FileNotFoundError:
            pass
    return None


def write_agent(folder, links):
    """What mpirun calls instead of ssh: HOST COMMAND..., in that rank's namespace."""
    agent = pathlib.Path(folder) / "agent"
    cases = "".join(f"  {links.address(rank)}) namespace={links.namespace(rank)} ;;\n" for rank in range(links.ranks))
    agent.write_text(f'#!/bin/sh\ncase $1 in\n{cases}esac\nshift\nexec ip netns exec "$namespace" sh -c "$*"\n')
    agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
    return agent


def results(processes, what, timeout=3600):
    """What the first has printed, a line of JSON for each method. The others may print nothing; all must succeed."""
    try:
        printed = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    faults = [f"{what}, {number}:\n{out}{errors}" for number, (process, (out, errors)) in enumerate(zip(processes, printed))
              if process.returncode != 0]
    if faults:
        raise SystemExit("\n".join(faults))
    return [json.loads(line) for line in printed[0][0].splitlines() if line.startswith("{")]


def mpi_job(links, agent, *words):
    """The command and the environment of a program that runs on all ranks."""
    hosts = ",".join(links.address(rank) for rank in range(links.ranks))
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # Without the protocol "put", by which large messages of both ways wait for each other: see docs/transports.md.
    environment.setdefault("OMPI_MCA_btl_tcp_flags", "send,inplace,need-ack,need-csum,hetero-rdma")
    tcp = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0",
           "--mca", "plm_rsh_agent", str(agent),
           # Daemons, of which one runs in each namespace, share a map of the machine's cores in memory, and once in a while one of
           # them crashes while it writes it.
           "--mca", "rtc_hwloc_vmhole", "none"]
    return ["ip", "netns", "exec", links.namespace(0), "mpirun", "-n", str(links.ranks), "--host", hosts, "--bind-to", "none",
            *tcp, *map(str, words)], environment


def run_mpi(links, agent, *words):
    """The lines of JSON that a program prints which runs on all ranks."""
    job, environment = mpi_job(links, agent, *words)
    return results([subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)],
                   pathlib.Path(words[0]).name)


def run_python(links, python, *words):
    """The same of a Python script that gets RANK RANKS MASTER as its last arguments, one process for each rank."""
    return results([subprocess.Popen(["ip", "netns", "exec", links.namespace(rank), python, *map(str, words), str(rank),
                                      str(links.ranks), links.address(0)],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(links.ranks)],
                   f"{words[0]}, rank")
