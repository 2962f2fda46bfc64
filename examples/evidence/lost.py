# SPDX-License-Identifier: Apache-2.0
import statistics

from evidence import Experiment, Row


class Lost(Experiment):
    """Eight asynchronous ranks, one slow and one lost at a random moment: how soon the others go on, and what it costs."""

    packages = ["nlohmann-json3-dev", "libxxhash-dev", "zlib1g-dev", "libcli11-dev", "libfmt-dev"]
    data = ["dataset-fashion-mnist"]
    programs = ["examples/lost"]
    tries, undisturbed = 80, 20

    def rows(self):
        for lose, count in (True, self.tries), (False, self.undisturbed):
            for seed in range(1, (1 if self.smoke else count) + 1):
                options = ["--lose"] * lose + (["--seconds", "1", "--gradient", "0.01"] if self.smoke else [])
                yield Row({"name": "lost" if lose else "undisturbed", "seed": seed, **({"smoke": True} if self.smoke else {})},
                          [self.program("examples/lost"), "--seed", seed, *options], 0.13)

    def table(self, results):
        """Differences of the loss are to the undisturbed run of the same seed."""
        header = ["", "tries", "seconds until the others go on, median", "most", "fast ranks idle, %, median", "most", "held-out loss, mean", "- undisturbed, mean",
                  "most"]
        found = {(key["name"], key["seed"]): lines[-1] for key, lines in results}
        lines = []
        for name in "undisturbed", "lost":
            each = {seed: one for (kind, seed), one in found.items() if kind == name}
            if not each:
                continue
            seconds, idle, losses = ([one[what] for one in each.values()] for what in ("seconds", "idle", "loss"))
            more = [one["loss"] - found["undisturbed", seed]["loss"] for seed, one in each.items() if ("undisturbed", seed) in found]
            lost = name == "lost"
            lines.append([name, len(each), f"{statistics.median(seconds):.3f}" if lost else "", f"{max(seconds):.3f}" if lost else "",
                          f"{100 * statistics.median(idle):.1f}", f"{100 * max(idle):.1f}", f"{statistics.mean(losses):.4f}",
                          f"{statistics.mean(more):+.4f}" if lost and more else "", f"{max(more):+.4f}" if lost and more else ""])
        return header, lines
