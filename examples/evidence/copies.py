# SPDX-License-Identifier: Apache-2.0
"""Copies of AC-SGD in the fine-tuning of a pretrained BERT: their error beside the bound that a contraction has."""

import math

from evidence import ROOT, Row
from fine_tune import FineTune

# Bits forward and back. With 8 bits a copy follows its activation, so that its change is the activation's own movement.
EXACT, METHODS = "changes:8/8", ["changes:4/8", "changes:2/4"]


class Copies(FineTune):
    """Error of AC-SGD's copies in the fine-tuned BERT against the bound c delta / (1 - c)."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.environment = ROOT / "build" / "evidence-fine-tune"  # has the model

    def rows(self):
        examples, epochs, held_out = (32, 3, 20) if self.smoke else (2000, 4, 500)
        for method in [EXACT, *(METHODS[-1:] if self.smoke else METHODS)]:
            key = {"method": method, "examples": examples, "epochs": epochs, "held_out": held_out, "granularity": 64, "seed": 1}
            yield Row(key, [self.program("examples/pipeline"), "--task", "glosses", "--pretrained", self.model, "--method", method, "--granularity", 64,
                            "--examples", examples, "--epochs", epochs, "--held-out", held_out, "--seeds", 1, "--json", "-", "--quiet"],
                      minutes=0.1 if self.smoke else 5)

    def table(self, results):
        """A line for each method and boundary. c and delta are the largest of all epochs but the first, in which nothing has a copy."""
        runs = {key["method"]: lines[0]["runs"][0]["epochs"][1:] for key, lines in results}
        header = ["messages", "boundary", "change, last epoch", "error, last epoch", "largest error", "c", "delta", "c delta / (1 - c)", "error / bound"]
        lines = []
        for method in METHODS if EXACT in runs else []:
            for boundary, first in enumerate(runs[method][0]["change"] if method in runs else []):
                if first is None:
                    continue
                changes, errors = ([epoch[what][boundary] for epoch in runs[method]] for what in ("change", "error"))
                c = max(error / change for change, error in zip(changes, errors))
                delta = max(epoch["change"][boundary] for epoch in runs[EXACT])
                bound = c * delta / (1 - c) if c < 1 else math.inf
                lines.append([method.replace(":", " "), boundary + 1, *(f"{value:.4f}" for value in (
                    changes[-1], errors[-1], max(errors), c, delta, bound)), f"{max(errors) / bound:.2f}"])
        return header, lines

    def picture(self, results):
        return None
