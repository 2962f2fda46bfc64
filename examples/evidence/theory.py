# SPDX-License-Identifier: Apache-2.0
import itertools
import math
import statistics

from evidence import Experiment, Row

# Of `theory`, with the theorem's constants. A run of 8 ranks gives the slope in steps; speed-up comes from the steps that each number of
# ranks takes to the gradient norm of one rank after LONGEST steps.
LONGEST = 32768
METHODS = ["sgd", "d-sgd", "dm-sgd", "decentlam", "momentum-consensus", "awc-dm-sgd", "local-sgd", "slowmo", "swarm-sgd", "ef-sgd",
           "one-bit-adam"]
PIPELINES = ["ac-sgd", "direct"]
PICTURED = ["d-sgd", "decentlam", "local-sgd", "swarm-sgd", "ef-sgd", "one-bit-adam"]
SLOPE = [(8, steps) for steps in (2048, 4096, 8192, 16384, LONGEST)]
SPEED_UP = [(ranks, LONGEST // ranks * k // 2) for ranks in (1, 2, 4, 16) for k in (1, 2, 4) if ranks > 1 or k < 4]
PIPELINE = [(2, steps) for steps in (4096, 16384, 65536, 262144)]
# Momentum consensus against its base: each at its best rate of these.
RACERS, RATES, RACE = ["ring-awc-d-sgd", "ring-awc-dm-sgd", "ring-momentum-consensus"], [0.5, 1, 2, 4, 8, 16], "8x4096"
TINY = [(ranks, steps) for ranks in (1, 4) for steps in (1024, 4096)]
BETAS = [0.5, 0.8, 0.9, 0.95]


class Theory(Experiment):
    """Rates of theorems: slopes in steps, speed-up by ranks, and rest points against momentum."""

    packages = ["libcli11-dev", "libfmt-dev", "nlohmann-json3-dev", "libxxhash-dev"]
    programs = ["examples/theory", "examples/inconsistency_bias"]

    def rows(self):
        for seed in self.seeds:
            for method in METHODS + PIPELINES:
                points = TINY if self.smoke else PIPELINE if method in PIPELINES else SLOPE + SPEED_UP
                words = ",".join(f"{ranks}x{steps}" for ranks, steps in points)
                yield Row({"method": method, "points": words, "seed": seed},
                          [self.program("examples/theory"), "--method", method, "--seed", seed, "--points", words], 2)
            for method, rate in () if self.smoke else itertools.product(RACERS, RATES):
                yield Row({"racer": method, "rate": rate, "points": RACE, "seed": seed},
                          [self.program("examples/theory"), "--method", method, "--seed", seed, "--rate", rate, "--points", RACE], 0.3)
        # In one line each, as rows are. Two ranks whose optima are 1 and -1: momentum's fixed point has a closed form.
        script = '"$0" --problem two-node --learning-rate 0.002 --iterations 10000 --beta "$1" --json "$2/rest" >&2; tr -d "\\n" < "$2/rest"'
        for beta in BETAS[:1] if self.smoke else BETAS:
            yield Row({"rest": f"rest point, momentum {beta}", "beta": beta},
                      ["sh", "-ec", script, self.program("examples/inconsistency_bias"), beta, "{state}"], 1)

    def table(self, results):
        """Slopes in log steps and speed-up over ranks, mean and deviation of seeds."""
        header = ["method", "seeds", "slope", "deviation", *(f"speed-up / {ranks}" for ranks in (2, 4, 8, 16)), "norm x root of ranks x steps"]
        lines = []
        for method in METHODS + PIPELINES:
            runs = [norms(lines_) for key, lines_ in results if key.get("method") == method]
            if not runs:
                continue
            most = 8 if (8, LONGEST) in runs[0] else max(ranks for ranks, _ in runs[0])
            slopes = [slope(run, most) for run in runs]
            last = [max(run) for run in runs]
            speed = [[speed_up(run, ranks) for run in runs] for ranks in (2, 4, 8, 16)]
            lines.append([method, len(runs), f"{statistics.mean(slopes):.3f}", deviation(slopes),
                          *(f"{statistics.mean(each) / ranks:.3f}" if None not in each else "–"
                            for ranks, each in zip((2, 4, 8, 16), speed)),
                          f"{statistics.mean(run[at] * math.sqrt((1 if method in PIPELINES else at[0]) * at[1]) for run, at in zip(runs, last)):.3f}"])
        for method in RACERS:
            runs = {(key["rate"], key["seed"]): found[-1]["norm"] for key, found in results if key.get("racer") == method}
            seeds = {seed for _, seed in runs}
            means = {rate: statistics.mean(runs[rate, seed] for seed in seeds) for rate in RATES
                     if seeds and all((rate, seed) in runs for seed in seeds)}
            if means:
                best = min(means, key=means.get)
                lines.append([method, len(seeds), "", "", "", "", "", "", f"mean norm {means[best]:.3g} at the best rate, {best}"])
        for key, found in results:
            if "beta" in key:
                rest = found[-1]["methods"]
                lines.append([key["rest"], 1, *(f"{name} {rest[name]['limit']:.7g}" for name in ("dsgd", "decentlam", "dmsgd")),
                              f"dmsgd / dsgd, squared, x (1 - beta)^2: "
                              f"{(rest['dmsgd']['limit'] / rest['dsgd']['limit'] * (1 - key['beta'])) ** 2:.3f}", "", "", ""])
        return header, lines

    def picture(self, results):
        """Gradient norms of the first seed against steps, at 8 ranks."""
        series = []
        for key, lines in results:
            if key.get("method") not in PICTURED or key["seed"] != self.seeds[0]:
                continue
            points = sorted((steps, norm) for (ranks, steps), norm in norms(lines).items() if ranks == 8)
            if len(points) > 1:
                series.append({"name": key["method"], "points": points})
        return {"x": {"label": "steps, 8 ranks", "log": True}, "y": {"label": "mean squared gradient norm", "log": True},
                "series": series}


def norms(lines):
    return {(line["ranks"], line["steps"]): line["norm"] for line in lines if "norm" in line}


def deviation(values):
    return f"{statistics.stdev(values):.3f}" if len(values) > 1 else "–"


def slope(run, ranks):
    """Of log norm over log steps, by least squares."""
    points = [(math.log(steps), math.log(norm)) for (others, steps), norm in run.items() if others == ranks]
    return statistics.linear_regression(*zip(*points)).slope


def speed_up(run, ranks):
    """LONGEST over the steps in which `ranks` ranks reach the norm that one rank has after LONGEST, on lines between logarithms."""
    if (1, LONGEST) not in run:
        return None
    target = math.log(run[1, LONGEST])
    points = sorted((math.log(steps), math.log(norm)) for (others, steps), norm in run.items() if others == ranks)
    for (before, high), (after, low) in zip(points, points[1:]):
        if low <= target or after == points[-1][0]:
            return LONGEST / math.exp(before + (after - before) * (high - target) / (high - low))
    return None
