#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/supervise, with jobs that do nothing but end in some way; given the trainer, with that: one that is killed at random
moments ends with the bits of one that was not, and one that is asked to stop, by a signal to any of its processes, stops on
all ranks after the same step, and goes on later; one that loses a rank for good goes on with one fewer, to the same losses.

Usage: supervise.py [--kills N] [--seed S] SUPERVISE [TRAIN [MPIRUN]]
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tiny_data import write_data

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("--kills", type=int, default=20)
parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
parser.add_argument("supervise")
parser.add_argument("train", nargs="?")
parser.add_argument("mpirun", nargs="?")
given = parser.parse_args()
given.supervise = str(pathlib.Path(given.supervise).resolve())
scratch = pathlib.Path(tempfile.mkdtemp(prefix="terse-supervise-"))
draw = random.Random(given.seed)


def expect(condition, what):
    if not condition:
        sys.exit(f"{what} (seed {given.seed})")


def wait_for(what, condition, seconds=30):
    until = time.monotonic() + seconds
    while not (found := condition()):
        expect(time.monotonic() < until, f"waited {seconds} s for {what}")
        time.sleep(0.005)
    return found


class Job:
    """`script` of the shell, in a folder of its own, by the supervisor; $n there is the number of the run."""

    def __init__(self, script, *options):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
        counting = "echo run >> runs; n=$(wc -l < runs); "
        self.process = subprocess.Popen(
            [given.supervise, "--pause", "0.01", *options, "--", "sh", "-c", counting + script, "{ranks}" if "--ranks" in options else ""],
            cwd=self.folder, stderr=subprocess.PIPE, text=True)

    def started(self):
        wait_for("the job", (self.folder / "ready").exists)
        return self

    def ends(self, status, runs, *words):
        try:
            _, said = self.process.communicate(timeout=15)
        finally:
            self.process.kill()
        ran = len((self.folder / "runs").read_text().splitlines())
        expect(self.process.returncode == status and ran == runs and all(word in said for word in words),
               f"{self.process.args}: status {self.process.returncode}, {ran} runs, wanted {status}, {runs} and {words}:\n{said}")


def check_statuses():
    Job("exit 0").ends(0, 1)
    Job("exit 2").ends(2, 1, "can't be started like this")
    Job("exit 75").ends(75, 1, "stopped in run 1")
    Job("exit $((n < 3 ? 75 : 0))", "--after-stop", "restart").ends(0, 3)
    # Another run has the folder: no failed try, but not for ever.
    Job("exit $((n < 5 ? 69 : n < 6 ? 1 : n < 7 ? 69 : 0))", "--tries", "2").ends(0, 7, "another run has the job's folder", "try 1 of 2")
    Job("exit 69", "--in-use", "3", "--pause", "2").ends(69, 3, "gives up: another run has had the job's folder for 3 s")
    Job("exit 7").ends(7, 3, "gives up", "the 3. in a row without a new checkpoint")
    Job("kill -9 $$", "--tries", "2").ends(137, 2, "status 137")
    saves = 'mkdir -p state/adam/step-0000000$n; touch state/adam/step-0000000$n/manifest.json; exit $((n < 6 ? 1 : 0))'
    Job(saves, "--checkpoints", "state", "--tries", "1").ends(0, 6, "in run 5; starts")
    Job(saves.replace("manifest.json", "other"), "--checkpoints", "state", "--tries", "1").ends(1, 1, "gives up")
    fewer = ["--tries", "1", "--ranks", "4", "--least-ranks"]
    Job("exit $(($0 > 2))", *fewer, "2").ends(0, 3, "with 3 ranks", "with 2 ranks")
    Job("exit $(($0 > 2))", *fewer, "3").ends(1, 2, "gives up")


def check_signals():
    waits = "for k in $(seq 1000); do sleep 0.02; done"
    for option, word, number in ((), "TERM", signal.SIGTERM), ((), "USR1", signal.SIGUSR1), (
            ("--pass-as", "USR1"), "USR1", signal.SIGTERM), ((), "TERM", signal.SIGINT):
        job = Job(f"trap 'exit 75' {word}; touch ready; {waits}", *option).started()
        job.process.send_signal(number)
        job.ends(75, 1, "stopped in run 1")
    job = Job(f"trap '' TERM; touch ready; {waits}", "--grace", "0.2").started()
    job.process.terminate()
    job.ends(137, 1, "did not stop within 0.2 s")
    job = Job("touch ready; exit 1", "--pause", "60").started()
    time.sleep(0.2)
    job.process.terminate()
    job.ends(75, 1, "between two runs")
    job = Job("touch ready; exit 69", "--pause", "60").started()
    time.sleep(0.2)
    job.process.terminate()
    job.ends(75, 1, "between two runs")
    Job("exec sleep 60", "--checkpoints", "state", "--stall", "0.2", "--tries", "1").ends(137, 1, "saved nothing for 0.2 s")


def check_leftovers():
    # In the job's process group, and out of it but with the lock.
    job = Job("if [ $n = 1 ]; then sleep 60 & echo $! > pid; exit 1; fi; ! kill -0 $(cat pid) || grep -q Z /proc/$(cat pid)/stat")
    job.ends(0, 2)
    held = "mkdir -p state; if [ $n = 1 ]; then setsid flock state/run.lock sh -c 'touch ready; sleep 1' & " \
           "while [ ! -e ready ]; do sleep 0.01; done; exit 1; fi; flock -n state/run.lock true"
    Job(held, "--checkpoints", "state").ends(0, 2)


def trainer(state, epochs, *options):
    return [given.train, "--data", scratch / "data", "--optimizers", "one-bit-adam", "--most-masked", "1", "--batch", "8", "--checkpoint",
            state, "--resume", "auto", "--epochs", str(epochs), "--json", scratch / "report.json", *options]


def on_threads(state, length):
    return trainer(state, length.epochs, "--ranks", "2", "--checkpoint-every", str(length.steps_to_a_checkpoint))


def run(command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    expect(done.returncode == status, f"{command} ended with {done.returncode}, not {status}:\n{done.stderr}")
    return done


def report_of(state):
    """What has been saved goes."""
    shutil.rmtree(state)
    return json.loads((scratch / "report.json").read_text())["runs"][0]


def end_of(state):
    """The bits."""
    return report_of(state)["parameters_hash"]


def newest(state):
    return max((int(path.parent.name[5:].split(".")[0]) for path in state.glob("*/step-*[0-9]/manifest.json")), default=0)


def children(process):
    return [int(word) for word in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]


class Length:
    """Of a job that is long enough for all kills, in this build on this machine, and saves twice a second or more often."""

    def __init__(self, state):
        self.epochs, self.steps_to_a_checkpoint = 4, 1 << 20
        run(on_threads(state, self))
        report = report_of(state)
        steps = report["steps"] / report["seconds"]["total"]  # a second
        self.steps_to_a_checkpoint = max(1, min(50, int(steps / 2)))
        # A kill comes within 0.65 s of training, see check_kills. A job of a second for each kill and two more has room for a faster machine.
        self.epochs = max(4, round((2 + given.kills) * steps * self.epochs / report["steps"]))


def uninterrupted(state, length):
    done = run(on_threads(state, length))
    expect("starts from the beginning" in done.stderr, f"--resume auto of nothing: {done.stderr}")
    return end_of(state)


def check_kills(state, length, whole):
    with subprocess.Popen([given.supervise, "--checkpoints", state, "--pause", "0.01", "--tries", "10", "--",
                           *on_threads(state, length)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as supervisor:
        try:
            killed = set()
            for count in range(given.kills):
                def new_run():
                    expect(supervisor.poll() is None, f"the job was over after {count} of {given.kills} kills")
                    return [one for one in children(supervisor.pid) if one not in killed]
                job = wait_for("the job's next run", new_run)[0]
                saved = newest(state)
                if count % 2:  # while it starts, else while it trains or saves
                    time.sleep(draw.uniform(0, 0.5))
                else:
                    wait_for("a new checkpoint", lambda: newest(state) > saved)
                    time.sleep(draw.uniform(0, 0.15))
                os.kill(job, signal.SIGKILL)
                killed.add(job)
            _, said = supervisor.communicate(timeout=120)
        finally:
            supervisor.terminate()
    expect(supervisor.returncode == 0 and said.count("status 137") == given.kills, f"the supervisor:\n{said}")
    expect("resumes from" in said, f"no run went on from a checkpoint:\n{said}")
    expect(end_of(state) == whole, "a run that was killed went another way")
    print(f"{given.kills} kills, and the same bits")


def stop(command, state, send, number):
    """Asks a run that has saved something to stop, by `send(process)`, and returns what it said."""
    before = newest(state)
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as job:
        try:
            wait_for("a checkpoint", lambda: job.poll() is not None or newest(state) > before)
            if job.poll() is None:
                send(job)
            _, said = job.communicate(timeout=60)
        finally:
            job.kill()
    expect(job.returncode == 75, f"{command} ended with {job.returncode}, not 75:\n{said}")
    words = said[said.index("stopped by"):] if "stopped by" in said else ""
    expect(words.startswith(f"stopped by signal {int(number)} ") and f"after step {newest(state)} of" in words,
           f"the newest checkpoint is of step {newest(state)}, and the run said:\n{said}")


def check_stops(state, length, whole):
    stop(on_threads(state, length), state, lambda job: job.send_signal(signal.SIGTERM), signal.SIGTERM)
    done = run(on_threads(state, length))
    expect("resumes from" in done.stderr, f"--resume auto: {done.stderr}")
    expect(end_of(state) == whole, "a run that was asked to stop went another way")
    done = run([given.train, "--resume", "auto"], 2)
    expect("--resume auto needs --checkpoint" in done.stderr, done.stderr)
    if not given.mpirun:
        return
    command = [given.mpirun, "-n", "2", *trainer(state, length.epochs, "--transport", "mpi", "--checkpoint-every",
                                                     str(length.steps_to_a_checkpoint))]
    def second_rank(job):
        ranks = [one for one in children(job.pid) if given.train.encode() in pathlib.Path(f"/proc/{one}/cmdline").read_bytes()]
        expect(len(ranks) == 2, f"{ranks} are no two ranks")
        os.kill(ranks[1], signal.SIGTERM)
    stop(command, state, second_rank, signal.SIGTERM)  # which rank 0 hears of by the other alone
    stop(command, state, lambda job: job.send_signal(signal.SIGUSR1), signal.SIGUSR1)
    run(command)
    expect(end_of(state) == whole, "a job of MPI that was asked to stop went another way")


def check_fewer_ranks(state, optimizer, bound):
    """4 ranks, of which one is killed, and 3 that go on, against 4 that never stop. First another run has the folder."""
    def job(*options):
        masked = ["--most-masked", "1"] if optimizer == "one-bit-adam" else []
        return [given.train, "--data", scratch / "data", "--model", "cnn", "--optimizers", optimizer, *masked, "--batch", "4",
                "--epochs", "4", "--json", scratch / "report.json", *options]

    def losses():
        return json.loads((scratch / "report.json").read_text())["runs"][0]["train_loss"]
    run(job("--ranks", "4", "--quiet"))
    whole = losses()
    state.mkdir()
    runs, lock = state / "runs", state / "run.lock"
    runs.touch()
    count = f"$(wc -l < {runs})"
    launcher = [given.mpirun, "-n", "{ranks}"] if given.mpirun else []
    ranks = ("--transport", "mpi") if given.mpirun else ("--ranks", "{ranks}")
    with subprocess.Popen(["flock", lock, "sh", "-c", f"while [ {count} -lt 2 ]; do sleep 0.02; done"]) as other:
        wait_for("the lock", lambda: subprocess.run(["flock", "-n", lock, "true"]).returncode)
        # Without --checkpoints, so that the job's status alone says that it must wait. Delays keep it from being over too soon.
        supervisor = subprocess.Popen(
            [given.supervise, "--pause", "0.01", "--tries", "1", "--ranks", "4", "--least-ranks", "3", "--",
             "sh", "-c", f'echo run >> {runs}; exec "$@"', "sh", *launcher,
             *job(*ranks, "--delay", "20", "--checkpoint", state, "--checkpoint-every", "6", "--resume", "auto", "--elastic")],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            wait_for("a checkpoint", lambda: supervisor.poll() is not None or newest(state), 60)
            trainers = [one for started in children(supervisor.pid) for one in [started, *children(started)]
                        if pathlib.Path(f"/proc/{one}/cmdline").read_bytes().startswith(given.train.encode())]
            expect(len(trainers) == (4 if given.mpirun else 1), f"{trainers} are not the job's processes")
            os.kill(trainers[-1], signal.SIGKILL)
            _, said = supervisor.communicate(timeout=120)
        finally:
            supervisor.terminate()
            other.kill()
    expect(supervisor.returncode == 0 and all(words in said for words in (
        "another run has the job's folder", "status 137", "again with 3 ranks", ", of 4 ranks, on 3\n")), f"the supervisor:\n{said}")
    apart = max(abs(one - other) for one, other in zip(whole, losses(), strict=True))
    expect(apart <= bound, f"losses of {optimizer} are {apart} apart, more than {bound}")
    print(f"{optimizer} on 4 ranks, then 3: losses within {apart:.2g} of those of 4, {whole[0]:.3g} to {whole[-1]:.3g}", flush=True)


try:
    if given.train is None:
        check_statuses()
        check_signals()
        check_leftovers()
    else:
        write_data(scratch / "data")
        state = scratch / "state"
        length = Length(state)
        whole = uninterrupted(state, length)
        check_kills(state, length, whole)
        check_stops(state, length, whole)
        check_fewer_ranks(scratch / "one-bit-adam", "one-bit-adam", 0.15)
        check_fewer_ranks(scratch / "adam", "adam", 1e-5)
finally:
    shutil.rmtree(scratch, ignore_errors=True)
