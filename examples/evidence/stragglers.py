# SPDX-License-Identifier: Apache-2.0
import math
import statistics

from evidence import Experiment, Row

# Name, and settings of the program `stragglers`. Methods around Adam have Adam's rates.
METHODS = {
    "all-reduce": {"method": "momentum-sgd"},
    "Local SGD": {"method": "local-sgd"},
    "Overlap-Local-SGD": {"method": "overlap-local-sgd"},
    "CoCoD-SGD": {"method": "cocod-sgd"},
    "NoLoCo": {"method": "noloco"},
    "Streaming DiLoCo": {"method": "streaming-diloco"},
    "SwarmSGD, blocking": {"method": "swarm-sgd"},
    "SwarmSGD, blocking, lattice": {"method": "swarm-sgd-lattice"},
    "SwarmSGD, non-blocking": {"method": "swarm-sgd-non-blocking"},
    "SwarmSGD, non-blocking, lattice": {"method": "swarm-sgd-non-blocking", "lattice": True},
    "SwarmSGD, asynchronous": {"method": "async-swarm-sgd"},
    "SwarmSGD, asynchronous, lattice": {"method": "async-swarm-sgd", "lattice": True},
}
AROUND_ADAM = ["NoLoCo", "Streaming DiLoCo"]
RATES, ADAM_RATES = [0.0125, 0.025, 0.05, 0.1], [1e-3, 2e-3, 4e-3, 8e-3]
SCENES = {
    "no straggler": {},
    "2x": {"factor": 2},
    "4x": {"factor": 4},
    "rank 0 stalls": {"stall-every": 50},
    "any rank stalls": {"stall-every": 50, "stalling": "any"},
}
TRAINING = {"steps": 300, "gradient": 0.2}
# Rates are compared with no straggler, and in less time: where ranks take turns by a schedule, the result is the same.
TUNING = {"steps": 300, "gradient": 0.02, "most-overrun": 100}
TINY = {"steps": 10, "gradient": 0.004, "snapshots": 5, "stall": 0.05, "most-overrun": 100}
TESTED = ["SwarmSGD, non-blocking, lattice", "SwarmSGD, asynchronous, lattice"]  # with --smoke
SEEDED = ["all-reduce", "SwarmSGD, asynchronous", "SwarmSGD, asynchronous, lattice"]
PICTURED = ["all-reduce", "Local SGD", "Overlap-Local-SGD", "SwarmSGD, blocking", "SwarmSGD, non-blocking", "SwarmSGD, asynchronous",
            "SwarmSGD, asynchronous, lattice"]
BAR, ABOVE, SHARE = "4x", 0.02, 0.6  # there: all-reduce's last loss and so much more, in this share of its seconds


class Stragglers(Experiment):
    """Eight ranks, one of them slow, by sleeping: held-out loss against seconds, and who waits for whom."""

    packages = ["libtorch-dev", "nlohmann-json3-dev", "libxxhash-dev", "zlib1g-dev", "libcli11-dev", "libfmt-dev"]
    data = ["dataset-fashion-mnist"]
    minutes_after = 135
    programs = ["examples/stragglers"]

    def row(self, name, scene, rate, seed, training, minutes):
        settings = {**METHODS[name], **SCENES.get(scene, {}), **(TINY if self.smoke else training), "rate": rate, "seed": seed}
        options = [word for setting, value in settings.items()
                   for word in ([f"--{setting}"] if value is True else [f"--{setting}", value])]
        return Row({"name": f"{name}, {scene}", "kind": name, "scene": scene, **settings}, [self.program("examples/stragglers"), *options],
                   minutes)

    def rows(self):
        """The tuning, with the first seed."""
        for name in TESTED if self.smoke else METHODS:
            rates = ADAM_RATES if name in AROUND_ADAM else RATES
            for rate in rates[:1] if self.smoke else rates:
                training = TRAINING if METHODS[name]["method"] == "async-swarm-sgd" else TUNING
                yield self.row(name, f"rate {rate:g}", rate, self.seeds[0], training, 0.3)

    def rows_after(self, results):
        """Every scene with the first seed, at each method's best rate; the bar's with the other seeds, too, of methods that come near it."""
        rates = best_rates(results)
        scenes = [BAR, "any rank stalls"] if self.smoke else SCENES
        for seed, scene in [(self.seeds[0], scene) for scene in scenes] + [(seed, BAR) for seed in self.seeds[1:]]:
            for name in [name for name in (METHODS if seed == self.seeds[0] else SEEDED) if name in rates]:
                yield self.row(name, scene, rates[name], seed, TRAINING, SCENES[scene].get("factor", 1) + 0.2)

    def table(self, results):
        """Seconds are those of the slowest rank; the ratio is of the seconds to all-reduce's loss + 0.02. Losses are means of the last tenth
        of the snapshots."""
        header = ["method", "scene", "seed", "rate", "seconds", "held-out loss", "seconds to all-reduce's loss + 0.02", "/ all-reduce's",
                  "% of time that rank 0 waits", "the others", "steps of rank 0", "of the others", "MB of a rank", "most overrun, %",
                  "most seconds without a processor"]
        lines = []
        for key, found in results:
            if key["scene"] not in SCENES:
                continue
            if "ranks" not in found[-1]:
                lines.append([key["kind"], key["scene"], key["seed"], key["rate"], "diverged", *[""] * (len(header) - 5)])
                continue
            own, base, ranks = reached(results, key, key["kind"]), reached(results, key, "all-reduce"), found[-1]["ranks"]
            waits = [100 * rank["waited"] / rank["seconds"] for rank in ranks]
            lines.append([key["kind"], key["scene"], key["seed"], key["rate"], f"{max(rank['seconds'] for rank in ranks):.1f}",
                          f"{last_loss(found[:-1]):.4f}", f"{own:.1f}" if own else "never",
                          f"{own / base:.2f}" if own and base else "–", f"{waits[0]:.1f}", f"{statistics.mean(waits[1:]):.1f}",
                          ranks[0]["steps"], round(statistics.mean(rank["steps"] for rank in ranks[1:])),
                          f"{statistics.mean(rank['bytes'] for rank in ranks) / 1e6:.1f}",
                          f"{100 * max(rank['overrun'] for rank in ranks):.1f}", f"{max(rank['queued'] for rank in ranks):.2f}"])
        return header, lines

    def picture(self, results):
        """Losses with a rank at a quarter of the speed, without the steep beginning."""
        series = []
        for key, found in results:
            if key["scene"] == BAR and key["seed"] == self.seeds[0] and key["kind"] in PICTURED:
                points = [(line["at"], line["test"]) for line in found[len(found) // 6:-1] if line["test"] is not None]
                series.append({"name": key["kind"], "points": points})
        return {"x": {"label": "seconds, one of 8 ranks four times slower"}, "y": {"label": "held-out loss"}, "series": series}


def best_rates(results):
    """Of each method: that with the lowest validation loss."""
    losses = {}
    for key, found in results:
        loss = found[-1].get("validation")
        if key["scene"] not in SCENES and loss is not None:
            losses.setdefault(key["kind"], {})[key["rate"]] = loss
    return {name: min(each, key=each.get) for name, each in losses.items()}


def last_loss(curve):
    last = [line["test"] for line in curve[-max(1, len(curve) // 10):]]
    return math.inf if None in last else statistics.mean(last)


def reached(results, key, kind):
    """The seconds after which a method first has all-reduce's loss + 0.02 in the scene of `key`."""
    def curve(name):
        return next((found[:-1] for other, found in results
                     if other["kind"] == name and other["scene"] == key["scene"] and other["seed"] == key["seed"]), [])
    base = curve("all-reduce")
    target = last_loss(base) + ABOVE if base else -math.inf
    return next((line["at"] for line in curve(kind) if line["test"] is not None and line["test"] <= target), None)
