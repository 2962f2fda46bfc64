# SPDX-License-Identifier: Apache-2.0
"""Ranks in network namespaces of their own, on one switch, whose links a token bucket holds to a bandwidth, and MPI jobs over
them. A link's bandwidth is that of payload: a message takes bytes / bandwidth, see bench/network/wire. Needs root and iproute2.
What is made is removed at the end, however that comes, and nothing else is touched."""

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


def why_not():
    """A sentence on what this machine lacks for slow links, or ''. It tries in a namespace that ends with the attempt."""
    attempt = ("ip link add veth0 type veth peer name veth1 && tc qdisc add dev veth0 root handle 1: htb && "
               "tc filter add dev veth0 parent 1: protocol ip u32 match u16 0 0xffc0 at 2 flowid 1:0")
    tried = subprocess.run(["unshare", "-n", "sh", "-c", attempt], capture_output=True, text=True, timeout=60)
    return f"slow links need root, iproute2 and a kernel with HTB: {tried.stderr.strip()}" if tried.returncode else ""


def require_root():
    if reason := why_not():
        raise SystemExit(f"{reason}; {DELAYED}")


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
        for where, device in self.devices():
            # Links are as fast as the machine until `hold_to` makes class 1. Acknowledgements, packets of less than 64 bytes, pass freely
            # at all rates. In the bucket's queue they would wait for data of the other way: messages of 8 and 64 kB that meet then took
            # up to 1.5 times as long.
            command("tc", "-n", where, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1")
            command("tc", "-n", where, "filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "u32",
                    "match", "u16", "0", "0xffc0", "at", "2", "flowid", "1:0")

    def devices(self):
        """(namespace, device) of both ends of all links."""
        for rank in range(self.ranks):
            yield self.namespace(rank), "eth0"
            yield self.switch, f"port{rank}"

    def hold_to(self, megabits):
        """Limits the payload that each rank sends and receives, after an idle moment, too.

        Seconds as multiples of bytes / bandwidth, medians of bench/network/wire: at 8 and 27 Mbit/s 0.96 to 1.06 for 8 kB, 1.00 to
        1.01 for 64 kB and 1 MB; at 100 Mbit/s 1.00 to 1.07 and 1.00 to 1.06. A bucket of 64 kB took 0.03 for 8 kB."""
        # The first packet after an idle moment passes at once, which is 6 % of 8 kB with packets of 576 bytes, 18 % with 1500. Small
        # ones cost processor time that ranks need for computing: at 22 Mbit/s a step of a BERT in four stages took 1.21 times as long.
        mtu = 576 if megabits < 5 else 1500
        payload = megabits * 1e6 / 8  # bytes a second
        rate = payload * (mtu + 14) / (mtu - 52)  # with headers of Ethernet, IP and TCP
        # A bucket of 100 us makes up for late timers: on a busy machine 64 kB at 100 Mbit/s took 1.03 times bytes / bandwidth with it,
        # 1.09 with 10 us, 0.99 with 300 us.
        bucket = f"{rate * 100e-6:.0f}"
        # TCP's segments pass whole, of which the first is free: at most 200 us, or a packet. With 50 us four ranks at 1 Gbit/s kept two
        # cores so busy that 10 MB around a ring took twice as long, where other programs ran.
        packets = str(max(1, int(payload * 200e-6 / mtu)))
        # A switch's buffer of 50 ms. 1 MB holds what TCP sends before it knows how slow a link is: a loss there costs 0.2 s.
        buffer = f"{max(rate * 50e-3, 1e6):.0f}"
        for where, device in self.devices():
            command("ip", "-n", where, "link", "set", device, "mtu", str(mtu), "gso_max_segs", packets)
            command("tc", "-n", where, "class", "replace", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate",
                    f"{8 * rate:.0f}bit", "burst", bucket, "cburst", bucket, "quantum", "3000")
            command("tc", "-n", where, "qdisc", "replace", "dev", device, "parent", "1:1", "bfifo", "limit", buffer)

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


def build(target="bench/bench_network", *packages):
    # Debian's LibTorch and Open MPI with g++.
    subprocess.run([ROOT / "scripts" / "require", "g++", "meson", "ninja-build", "pkg-config", "libboost-mpi-dev", "libopenmpi-dev",
                    "openmpi-bin", "libtorch-dev", "libopenblas0-pthread", "iproute2", *packages], check=True)
    folder = ROOT / "build" / "network"
    # A folder of earlier days has no examples, or lacks what packages have brought since.
    if subprocess.run(["ninja", "-C", folder, "-n", target], capture_output=True).returncode != 0:
        again = ["--reconfigure"] if (folder / "build.ninja").exists() else []
        subprocess.run(["meson", "setup", *again, folder, "-Dtests=disabled", "-Dexamples=auto", "-Dbuildtype=release"],
                       cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder, target], check=True, stdout=subprocess.DEVNULL)
    return folder / target


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
    # Daemons of one machine that make the same folder at the same time stop each other: each has its own.
    agent.write_text(f'#!/bin/sh\ncase $1 in\n{cases}esac\nshift\nexport TMPDIR="{folder}/$namespace"\nmkdir -p "$TMPDIR"\n'
                     'exec ip netns exec "$namespace" sh -c "$*"\n')
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


def mpi_job(links, agent, *words, ranks=None):
    """The command and the environment of a program that runs on all ranks, or on the first ones."""
    ranks = ranks or links.ranks
    hosts = ",".join(links.address(rank) for rank in range(ranks))
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # Without the protocol "put", by which large messages of both ways wait for each other, and without a handshake for messages of
    # up to 1 MiB: see docs/transports.md.
    environment.setdefault("OMPI_MCA_btl_tcp_flags", "send,inplace,need-ack,need-csum,hetero-rdma")
    for limit in ("eager_limit", "rndv_eager_limit"):
        environment.setdefault(f"OMPI_MCA_btl_tcp_{limit}", str(1 << 20))
    tcp = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0",
           "--mca", "plm_rsh_agent", str(agent),
           # Daemons, of which one runs in each namespace, share a map of the machine's cores in memory, and once in a while one of
           # them crashes while it writes it.
           "--mca", "rtc_hwloc_vmhole", "none"]
    return ["ip", "netns", "exec", links.namespace(0), "mpirun", "-n", str(ranks), "--host", hosts, "--bind-to", "none",
            *tcp, *map(str, words)], environment


def run_mpi(links, agent, *words, ranks=None):
    """The lines of JSON that a program prints which runs on all ranks, or on the first ones."""
    job, environment = mpi_job(links, agent, *words, ranks=ranks)
    return results([subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)],
                   pathlib.Path(words[0]).name)


def run_python(links, python, *words):
    """The same of a Python script that gets RANK RANKS MASTER as its last arguments, one process for each rank."""
    return results([subprocess.Popen(["ip", "netns", "exec", links.namespace(rank), python, *map(str, words), str(rank),
                                      str(links.ranks), links.address(0)],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(links.ranks)],
                   f"{words[0]}, rank")
