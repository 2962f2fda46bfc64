# SPDX-License-Identifier: Apache-2.0
import itertools
import statistics

from evidence import Experiment, Row

# Name, and settings of the program `batches`.
MIXING = {
    "PmSGD": {"method": "momentum-sgd"},
    "DmSGD, ring": {"method": "dm-sgd", "graph": "ring"},
    "DecentLaM, ring": {"method": "decentlam", "graph": "ring"},
    "DmSGD, exponential": {"method": "dm-sgd", "graph": "exponential"},
    "DecentLaM, exponential": {"method": "decentlam", "graph": "exponential"},
}
LAYERS = {
    "Adam": {"method": "adam"},
    "LAMB": {"method": "lamb"},
    "1-bit LAMB": {"method": "one-bit-lamb"},
}
# Rates at the smallest batch, which are then multiplied by each batch's factor.
RATES = {"adam": [5e-4, 1e-3, 2e-3], "lamb": [5e-3, 1e-2, 2e-2], "one-bit-lamb": [5e-3, 1e-2, 2e-2]}
SGD_RATES = [0.025, 0.05, 0.1]
BATCHES = {16384: 4, 2048: 2, 256: 1}
# Labels that differ between ranks matter while the rate stays high.
SETTINGS = {"labels differ": {"schedule": "constant", "skew": 0.1}, "same labels": {"schedule": "cosine"}}
TRAINING, TINY = {"examples": 400_000}, {"examples": 2048}
TESTED = ["PmSGD", "DecentLaM, exponential", "1-bit LAMB"]  # with --smoke


class Batches(Experiment):
    """Large batches, equal numbers of examples: decentralized momentum, with equal and different labels; Adam, LAMB and 1-bit LAMB."""

    packages = ["libtorch-dev", "nlohmann-json3-dev", "libxxhash-dev", "zlib1g-dev", "libcli11-dev", "libfmt-dev"]
    data = ["dataset-fashion-mnist"]
    minutes_after = 12
    programs = ["examples/batches"]

    def row(self, name, setting, batch, rates, seed):
        settings = {**(MIXING | LAYERS)[name], **SETTINGS[setting], **(TINY if self.smoke else TRAINING), "batch": batch,
                    "rates": ",".join(f"{rate:g}" for rate in rates), "seed": seed}
        options = [word for option, value in settings.items() for word in (f"--{option}", value)]
        return Row({"name": f"{name}, {setting}, batch {batch}", "kind": name, "setting": setting, **settings},
                   [self.program("examples/batches"), *options], 0.2 * len(rates))

    def kinds(self):
        """The smallest batch takes longest, and comes last."""
        for batches in [[256]] if self.smoke else [[16384, 2048], [256]]:
            for setting, batch in itertools.product(SETTINGS, batches):
                for name in MIXING | (LAYERS if setting == "same labels" else {}):
                    if not self.smoke or name in TESTED:
                        yield name, setting, batch

    def rates(self, name, batch):
        rates = RATES.get((MIXING | LAYERS)[name]["method"], SGD_RATES)
        return [BATCHES[batch] * rate for rate in (rates[:1] if self.smoke else rates)]

    def rows(self):
        """All rates, with the first seed."""
        for name, setting, batch in self.kinds():
            yield self.row(name, setting, batch, self.rates(name, batch), self.seeds[0])

    def rows_after(self, results):
        """The rate with the highest validation accuracy and the next lower one, with the other seeds, where labels differ: a rate that is
        best with one seed may be too high for others."""
        first = [(key, lines) for key, lines in results if key["seed"] == self.seeds[0]]
        for name, setting, batch in self.kinds():
            rate = best_rate(first, name, setting, batch)
            if setting == "labels differ" and rate is not None:
                rates = [each for each in self.rates(name, batch) if rate / 2 <= each <= rate]
                for seed in self.seeds[1:]:
                    yield self.row(name, setting, batch, rates, seed)

    def table(self, results):
        header = ["labels", "method", *(f"% right, batch {batch}" for batch in BATCHES), "- PmSGD", "distance between ranks, %", "best rates"]
        lines = []
        for setting in SETTINGS:
            for name in MIXING | LAYERS:
                cells, less, apart, rates = [], [], [], []
                for batch in BATCHES:
                    rate = best_rate(results, name, setting, batch)
                    own, base = (tests(results, one, setting, batch) for one in (name, "PmSGD"))
                    rates.append("–" if rate is None else f"{rate:g}")
                    cells.append(spread([test for test, _ in own.values()]))
                    less.append(spread([own[seed][0] - base[seed][0] for seed in own if seed in base]))
                    apart.append(f"{statistics.mean(distance for _, distance in own.values()):.2f}" if own else "–")
                if any(cell != "–" for cell in cells):
                    lines.append([setting, name, *cells, "; ".join(less), "; ".join(apart), "; ".join(rates)])
        return header, lines

    def picture(self, results):
        """Accuracy against batch, where labels differ."""
        series = []
        for name in MIXING:
            found = {batch: tests(results, name, "labels differ", batch) for batch in BATCHES}
            series.append({"name": name, "marks": True, "points": [(batch, statistics.mean(test for test, _ in each.values()))
                                                                   for batch, each in found.items() if each]})
        return {"x": {"label": "examples a step", "log": True}, "y": {"label": "% right, labels differ between ranks"}, "series": series}


def scores(results, name, setting, batch):
    """Of each seed and rate that has not diverged."""
    found = {}
    for key, lines in results:
        if (key["kind"], key["setting"], key["batch"]) == (name, setting, batch):
            found[key["seed"]] = {line["rate"]: line for line in lines if line.get("loss") is not None}
    return found


def best_rate(results, name, setting, batch):
    """By mean validation accuracy, of the rates that all seeds have."""
    found = scores(results, name, setting, batch)
    common = set.intersection(*(set(rates) for rates in found.values())) if found else ()
    return max(common, key=lambda rate: sum(rates[rate]["validation"] for rates in found.values()), default=None)


def tests(results, name, setting, batch):
    """Test accuracy and distance between ranks in percent, of each seed at the best rate."""
    rate = best_rate(results, name, setting, batch)
    lines = {seed: rates[rate] for seed, rates in sorted(scores(results, name, setting, batch).items()) if rate is not None}
    return {seed: (100 * line["test"], 100 * line["apart"]) for seed, line in lines.items()}


def spread(values):
    if not values:
        return "–"
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")
