# SPDX-License-Identifier: Apache-2.0
import statistics

from evidence import Experiment, Row


class Lost(Experiment):
    """Eight asynchronous ranks, one slow and one lost, with another one in its place or not: how soon they go on, and what it costs."""

    packages = ["nlohmann-json3-dev", "libxxhash-dev", "zlib1g-dev", "libcli11-dev", "libfmt-dev"]
    data = ["dataset-fashion-mnist"]
    programs = ["examples/lost"]
    # Tries of each kind, and its options. Asynchronous runs of one seed differ: the second kind shows how much.
    kinds = {"undisturbed": (20, []), "undisturbed, again": (20, []), "lost": (80, ["--lose"]), "replaced": (20, ["--lose", "--back", "0.5"])}

    def rows(self):
        for name, (count, options) in self.kinds.items():
            for seed in range(1, (1 if self.smoke else count) + 1):
                more = ["--seconds", "2", "--gradient", "0.01"] if self.smoke else []
                yield Row({"name": name, "seed": seed, **({"smoke": True} if self.smoke else {})},
                          [self.program("examples/lost"), "--seed", seed, *options, *more], 0.13)

    def table(self, results):
        """Differences of the loss are to the undisturbed run of the same seed."""
        header = ["", "runs", "seconds until the others go on, median", "most", "until a rank has joined, median", "most", "fast ranks idle, %, median",
                  "most", "held-out loss, mean", "- undisturbed, mean", "most"]
        found = {(key["name"], key["seed"]): lines[-1] for key, lines in results}
        lines = []
        for name, (_, options) in self.kinds.items():
            each = {seed: one for (kind, seed), one in found.items() if kind == name}
            if not each:
                continue
            more = [one["loss"] - found["undisturbed", seed]["loss"] for seed, one in each.items() if ("undisturbed", seed) in found]

            def of(what, form, shown, values=each.values()):
                numbers = [one[what] for one in values]
                return [form(statistics.median(numbers)), form(max(numbers))] if shown else ["", ""]
            lines.append([name, len(each), *of("seconds", "{:.3f}".format, "--lose" in options), *of("joined", "{:.3f}".format, name == "replaced"),
                          *of("idle", lambda idle: f"{100 * idle:.1f}", True), f"{statistics.mean(one['loss'] for one in each.values()):.4f}",
                          *([f"{statistics.mean(more):+.4f}", f"{max(more):+.4f}"] if name != "undisturbed" and more else ["", ""])])
        return header, lines
