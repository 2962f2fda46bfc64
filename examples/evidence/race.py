# SPDX-License-Identifier: Apache-2.0
import statistics
import subprocess

from evidence import ROOT, Experiment, Row

# Name and settings of the program `race`; the first ones run with all seeds. Of Adam's rates 5e-4, 1e-3 and 2e-3 the second had the lowest
# held-out loss in short runs (400 steps; the last one was stopped halfway).
ADAM = {"method": "adam", "learning-rate": 1e-3}
ONE_BIT = {"method": "one-bit-adam", "learning-rate": 1e-3, "warm-up": 0.15}
CORRECTED = {"bias-correction": "first-stage"}
ONE_BIT_LAMB = {"method": "one-bit-lamb", "learning-rate": 1e-2, "warm-up": 0.15}
METHODS = [
    ("Adam", ADAM),
    ("1-bit Adam", ONE_BIT),
    ("1-bit Adam, bias correction", ONE_BIT | CORRECTED),
]
ONE_SEED = [
    ("Adam, twice the rate", ADAM | {"learning-rate": 2e-3}),
    ("1-bit Adam, bias correction, twice the rate", ONE_BIT | CORRECTED | {"learning-rate": 2e-3}),
    ("1-bit Adam, bias correction, 5 % first stage", ONE_BIT | CORRECTED | {"warm-up": 0.05}),
    ("1-bit Adam, half the rate", ONE_BIT | {"learning-rate": 5e-4}),
    ("0/1 Adam", {"method": "zero-one-adam", "learning-rate": 1e-3, "warm-up": 0.15}),
    ("LAMB", {"method": "lamb", "learning-rate": 1e-2}),
    ("1-bit LAMB", ONE_BIT_LAMB),
    ("1-bit LAMB, bias correction", ONE_BIT_LAMB | CORRECTED),
    ("DiLoCo, 8 bits", {"method": "diloco-int8", "learning-rate": 1e-3, "period": 20}),
    ("SparseLoCo", {"method": "sparse-loco", "learning-rate": 1e-3, "period": 20}),
    ("PowerSGD, rank 2", {"method": "power-sgd", "learning-rate": 5e-2}),
    ("Muon", {"method": "muon", "learning-rate": 1e-3}),
    ("Dion, rank 32", {"method": "dion", "learning-rate": 1e-3}),
]
# More would have colours twice.
PICTURED = ["Adam", "1-bit Adam", "1-bit Adam, bias correction", "1-bit Adam, bias correction, 5 % first stage", "1-bit LAMB, bias correction",
            "Muon"]
TRAINING = {"steps": 2000, "ranks": 4, "rows": 8, "schedule": "cosine", "rate-warmup": 0.05}
TINY = {"steps": 10, "every": 5, "ranks": 2, "rows": 2, "width": 72, "heads": 2, "blocks": 1, "length": 16, "rate-warmup": 0.1}


class Race(Experiment):
    """A GPT of 2.2 million parameters on 11 MB of English: steps and bytes to the held-out loss that Adam has in the end."""

    packages = ["libtorch-dev", "libopenblas0-pthread", "libsentencepiece-dev", "nlohmann-json3-dev", "libxxhash-dev", "zlib1g-dev",
                "libcli11-dev", "libfmt-dev"]
    programs = ["examples/race", "examples/gpt_sub_words"]

    data = ["perl-doc", "python3.11-doc"]

    def prepare(self):
        # The smoke test reads the project's own pages, so that it needs no packages of text.
        if self.smoke:
            self.data = []
        super().prepare()
        if not (self.folder / "text").exists():
            sources = [400, ROOT / "docs"] if self.smoke else []
            partial = self.folder / "text.partial"
            subprocess.run([self.program("examples/gpt_sub_words"), partial, *map(str, sources)], check=True)
            partial.rename(self.folder / "text")

    def rows(self):
        runs = [(name, settings, seed) for seed in self.seeds for name, settings in METHODS]
        runs += [(name, settings, self.seeds[0]) for name, settings in ONE_SEED]
        for name, settings, seed in runs:
            key = {"name": name, **settings, **(TINY if self.smoke else TRAINING), "seed": seed}
            options = [word for setting, value in list(key.items())[1:] for word in (f"--{setting}", value)]
            yield Row(key, [self.program("examples/race"), "--text", self.folder / "text", "--save", "{state}", *options], 7)

    def table(self, results):
        """Steps, and the ratio to Adam's, where the held-out loss is the one that Adam of the same seed has in the end, and 1.02 times it.
        Seconds on links are to come from bench/network."""
        header = ["method", "seeds", "steps to Adam's last loss", "times Adam's", "steps to 1.02 times it", "times Adam's", "held-out loss",
                  "deviation", "MB sent by a rank", "processor seconds a step"]
        adam = {key["seed"]: lines for key, lines in results if key["name"] == "Adam"}
        lines = []
        for name in dict.fromkeys(key["name"] for key, _ in results):
            runs = [(key["seed"], curve) for key, curve in results if key["name"] == name]
            paired = [(adam[seed], curve) for seed, curve in runs if seed in adam]
            losses = [curve[-1]["held_out"] for _, curve in runs]
            line = [name, len(runs)]
            for factor in (1, 1.02):
                targets = [factor * base[-1]["held_out"] for base, _ in paired]
                steps = [reached(curve, target) for (_, curve), target in zip(paired, targets)]
                bases = [reached(base, target) for (base, _), target in zip(paired, targets)]
                if not steps or None in steps:
                    line += [f"not in {runs[0][1][-1]['step']}" if steps else "–", "–"]
                else:
                    line += [f"{statistics.mean(steps):.0f}", f"{statistics.mean(a / b for a, b in zip(steps, bases)):.3f}"]
            known = None not in losses
            line += [f"{statistics.mean(losses):.4f}" if known else "diverged",
                     f"{statistics.stdev(losses):.4f}" if known and len(losses) > 1 else "–",
                     f"{statistics.mean(curve[-1]['bytes'] for _, curve in runs) / 1e6:.0f}",
                     f"{statistics.mean(curve[-1]['seconds'] / curve[-1]['step'] for _, curve in runs):.2f}"]
            lines.append(line)
        return header, lines

    def picture(self, results):
        """The first seed's held-out losses of PICTURED, without the steep beginning."""
        series = []
        for key, lines in results:
            points = [(line["step"], line["held_out"]) for line in lines[len(lines) // 10:] if line["held_out"] is not None]
            if key["seed"] == self.seeds[0] and key["name"] in PICTURED and points:
                series.append({"name": key["name"], "points": points})
        return {"x": {"label": "steps"}, "y": {"label": "held-out loss"}, "series": series}


def reached(curve, loss):
    """The step at which the held-out loss is first at most that, between two evaluations on a straight line; None if it never is."""
    before = None
    for line in curve:
        now = line["held_out"]
        if now is not None and now <= loss:
            if before is None or before[1] is None:
                return line["step"]
            step, last = before
            return step + (line["step"] - step) * (last - loss) / (last - now)
        before = line["step"], now
    return None
