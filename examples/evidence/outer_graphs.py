# SPDX-License-Identifier: Apache-2.0
import itertools
import statistics

from batches import best_rate, scores, spread
from evidence import Experiment, Row

# Name, and the graph of the program `outer_graphs`.
GRAPHS = {"DiLoCo": "all", "complete": "complete", "exponential": "exponential", "ring": "ring"}
SETTINGS = {"same labels": {"skew": 0}, "labels differ": {"skew": 0.1}}
RATES = "0.00025,0.0005,0.001,0.002,0.004"
TRAINING, TINY = {"steps": 500, "rates": RATES}, {"steps": 20, "rates": "0.001,0.002"}
BATCH = 32


class OuterGraphs(Experiment):
    """DiLoCo over all ranks, and over a complete graph, an exponential one and a ring, with the same rates."""

    packages = ["nlohmann-json3-dev", "libxxhash-dev", "zlib1g-dev", "libcli11-dev", "libfmt-dev", "libtorch-dev"]
    data = ["dataset-fashion-mnist"]
    programs = ["examples/outer_graphs"]

    def rows(self):
        for seed, setting, name in itertools.product(self.seeds, SETTINGS, GRAPHS):
            settings = {"graph": GRAPHS[name], **SETTINGS[setting], **(TINY if self.smoke else TRAINING), "batch": BATCH, "seed": seed}
            options = [word for option, value in settings.items() for word in (f"--{option}", value)]
            yield Row({"name": f"{name}, {setting}", "kind": name, "setting": setting, **settings}, [self.program("examples/outer_graphs"), *options],
                      0.15)

    def table(self, results):
        """Each at its best rate, and at the best rate of DiLoCo, by mean validation accuracy."""
        header = ["labels", "graph", "best rate", "% right", "- DiLoCo", "% right at DiLoCo's rate", "- DiLoCo at this rate",
                  "distance between ranks, %", "MB sent by a rank"]
        lines = []
        for setting, name in itertools.product(SETTINGS, GRAPHS):
            rates = {one: best_rate(results, one, setting, BATCH) for one in ("DiLoCo", name)}
            if None in rates.values():
                continue
            own, base = ({seed: each for seed, each in scores(results, one, setting, BATCH).items() if rates[one] in each}
                         for one in (name, "DiLoCo"))
            right = {seed: 100 * each[rates[name]]["test"] for seed, each in own.items()}
            base_right = {seed: 100 * each[rates["DiLoCo"]]["test"] for seed, each in base.items()}
            equal_rate = {seed: 100 * each[rates["DiLoCo"]]["test"] for seed, each in own.items() if rates["DiLoCo"] in each}
            lines.append([setting, name, f"{rates[name]:g}", spread(list(right.values())),
                          spread([right[seed] - base_right[seed] for seed in right if seed in base_right]), spread(list(equal_rate.values())),
                          spread([equal_rate[seed] - base_right[seed] for seed in equal_rate if seed in base_right]),
                          f"{statistics.mean(100 * each[rates[name]]['apart'] for each in own.values()):.2f}",
                          f"{statistics.mean(each[rates[name]]['bytes'] for each in own.values()) / 1e6:.0f}"])
        return header, lines
