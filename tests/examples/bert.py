#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests fine_tune_bert: the held-out loss and accuracy that it prints before any training must be those of a BERT in NumPy's double
precision, which computes each gloss by itself and so without padding or masks, on word pieces cut by another program. Errors must be one
sentence. The model is small and random, and its classifier is in its file.

Usage: bert.py PROGRAM [MODEL]
  MODEL   a folder with a pretrained model, which is compared on WordNet's glosses; a copy of it gets a random classifier
"""

import json
import math
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/evidence"))
from fine_tune import write_random, write_small_model  # noqa: E402

TOKENS, CLASSES = 20, 45
PARTS = ["noun", "verb", "adj", "adv"]
PIECES = ["cat", "c", "ca", "##s", "##at", "##ast", "un", "und", "##do", "##er", "##erdo", "##g", "dog", "dogma", "7", "##7", "x", "##x", ";",
          "(", ")", "-", "'", "."]
# Longest pieces first, an end that is no piece, capitals, digits, and punctuation that is and isn't in the vocabulary.
WORDS = ["cat", "cats", "Cat", "catast", "undo", "under", "underdog", "dog", "DOGS", "dogmas", "x7x", "77", "catq", "zebra", "dog-cat", "(x)",
         "cat's", "undo;", "dog.", "~", "x_x", "cas", "cs", "ungdo", "catat"]


def expect(condition, what):
    if not condition:
        sys.exit(what)


def write_wordnet(folder, glosses):
    """Writes (text, class) into the four files in turn."""
    folder.mkdir()
    for k, part in enumerate(PARTS):
        lines = ["  1 This is the licence | and no gloss"]
        for number, (text, label) in enumerate(glosses[k::len(PARTS)]):
            lines.append(f'{number:08} {label:02} {part[0]} 01 word 0 000 | {text}; "a dog | of its use"  ')
        (folder / f"data.{part}").write_text("\n".join(lines) + "\n")


def read_wordnet(folder):
    lines = [line for part in PARTS for line in (folder / f"data.{part}").read_text().splitlines() if not line.startswith("  ")]
    return [(line.partition(" | ")[2].partition('; "')[0], int(line.split()[1])) for line in lines]


def philox(counter, key):
    """Four words of Philox4x32-10."""
    a, b, c, d = counter
    for turn in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        k0, k1 = ((key[0] + turn * 0x9E3779B9) & 0xFFFFFFFF), ((key[1] + turn * 0xBB67AE85) & 0xFFFFFFFF)
        a, b, c, d = (second >> 32) ^ b ^ k0, second & 0xFFFFFFFF, (first >> 32) ^ d ^ k1, first & 0xFFFFFFFF
    return a, b, c, d


def shuffle(values):
    """Orders the glosses as the program does: by terse::Draw::shared(1, 0, Purpose::shuffle)."""
    for i in range(len(values) - 1, 0, -1):
        words = philox((i // 2, 0, 0, 0), (1, 4 * 0x9E3779B1 & 0xFFFFFFFF))[i % 2 * 2:][:2]
        j = (words[0] | words[1] << 32) * (i + 1) >> 64
        values[i], values[j] = values[j], values[i]


def pieces_of(text, vocabulary):
    found = []
    for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower()):
        cut, rest, mark = [], word, ""
        while rest:
            lengths = [n for n in range(1, len(rest) + 1) if mark + rest[:n] in vocabulary]
            if not lengths:
                cut = [100]
                break
            cut.append(vocabulary[mark + rest[:lengths[-1]]])
            rest, mark = rest[lengths[-1]:], "##"
        found += cut
    return [101, *found[:TOKENS - 2], 102]


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, data = json.loads(data[8:8 + size]), data[8 + size:]
    return {name: numpy.frombuffer(data[slice(*one["data_offsets"])], "<f4").astype(float).reshape(one["shape"])
            for name, one in header.items() if one.get("dtype") == "F32"}


class Bert:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = read_tensors(folder / "model.safetensors")
        self.erf = numpy.vectorize(math.erf)

    def dense(self, x, name):
        return x @ self.tensors[name + ".weight"].T + self.tensors[name + ".bias"]

    def normal(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        deviation = numpy.sqrt((x * x).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        return x / deviation * self.tensors[name + ".weight"] + self.tensors[name + ".bias"]

    def layer(self, x, at):
        heads = self.config["num_attention_heads"]
        query, key, value = (self.dense(x, f"{at}attention.self.{name}").reshape(len(x), heads, -1).swapaxes(0, 1)
                             for name in ("query", "key", "value"))
        weights = numpy.exp(query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1]))
        seen = (weights / weights.sum(-1, keepdims=True) @ value).swapaxes(0, 1).reshape(x.shape)
        x = self.normal(x + self.dense(seen, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        inner = self.dense(x, at + "intermediate.dense")
        inner *= (1 + self.erf(inner / math.sqrt(2))) / 2
        return self.normal(x + self.dense(inner, at + "output.dense"), at + "output.LayerNorm")

    def scores(self, pieces):
        tables = [self.tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
        x = self.normal(tables[0][pieces] + tables[1][:len(pieces)] + tables[2][0], "embeddings.LayerNorm")
        for k in range(self.config["num_hidden_layers"]):
            x = self.layer(x, f"encoder.layer.{k}.")
        return self.dense(x.mean(0), "classifier")


def run(program, *args):
    return subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=120)


def compare(program, model, wordnet, examples, epochs):
    """Returns the held-out glosses' pieces."""
    done = run(program, model, examples, epochs, wordnet)
    expect(done.returncode == 0, f"status {done.returncode}: {done.stderr}")
    lines = re.findall(r"^epoch (\d+)  loss (\S+)  held out (\S+), (\S+) % right$", done.stdout, re.M)
    expect([int(line[0]) for line in lines] == list(range(epochs + 1)), f"not {epochs + 1} epochs: {done.stdout}")
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    glosses = read_wordnet(wordnet)
    shuffle(glosses)
    held_out = [(pieces_of(text, vocabulary), label) for text, label in glosses[examples:examples + 500]]
    bert, losses, right = Bert(model), [], []
    for pieces, label in held_out:
        scores = bert.scores(pieces)
        losses.append(numpy.log(numpy.exp(scores - scores[label]).sum()))
        right.append(scores.argmax() == label)
    loss, accuracy = numpy.mean(losses), 100 * numpy.mean(right)
    print(f"{len(held_out)} held-out glosses: loss {lines[0][2]} against {loss:.6f}, {lines[0][3]} % right against {accuracy:.3f}")
    expect(abs(float(lines[0][2]) - loss) <= 1e-4, "the loss is another")
    expect(abs(float(lines[0][3]) - accuracy) <= 0.051, "the accuracy is another")
    expect(all(math.isfinite(float(line[1])) for line in lines[1:]), f"a loss is not finite: {done.stdout}")
    return [pieces for pieces, _ in held_out]


def expect_sentence(program, words, *args):
    done = run(program, *args)
    sentence = done.stderr.strip()
    expect(done.returncode == 1 and re.fullmatch(f"fine_tune_bert: .*{words}.*", sentence), f"status {done.returncode}, not about {words}: {sentence}")


def main(program, folder, pretrained):
    wordnet, model = folder / "wordnet", folder / "model"
    classifier = {"classifier.weight": [CLASSES, 64], "classifier.bias": [CLASSES]}
    settings = {"num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 128}
    vocabulary = {piece: 103 + k for k, piece in enumerate(PIECES)}
    # An epsilon that shows.
    write_small_model(model, vocabulary, classifier, **settings, layer_norm_eps=0.1)
    draw, bert, glosses = random.Random(1), Bert(model), []
    for k in range(24 + 73):
        text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 14)))
        # The model is right about every other gloss.
        glosses.append((text, int(bert.scores(pieces_of(text, vocabulary)).argmax()) if k % 2 else draw.randrange(CLASSES)))
    write_wordnet(wordnet, glosses)
    held_out = compare(program, model, wordnet, 24, 1)
    used = {piece for pieces in held_out for piece in pieces}
    expect(used == {100, 101, 102, *vocabulary.values()}, f"not all pieces are used: {used}")
    expect({TOKENS} < {len(pieces) for pieces in held_out}, "no gloss is cut, or all are")

    expect_sentence(program, "tokenizer.json: can't be read", folder / "nowhere", 24, 0, wordnet)
    expect_sentence(program, "nowhere/data.noun: can't be read; install", model, 24, 0, folder / "nowhere")
    expect_sentence(program, "EXAMPLES must be at least 1 and less than", model, len(glosses), 0, wordnet)
    expect_sentence(program, "EXAMPLES must be at least 1 and less than", model, 0, 0, wordnet)
    write_wordnet(folder / "accents", [*glosses[:40], ("a café", 3)])
    expect_sentence(program, "not ASCII: a café", model, 24, 0, folder / "accents")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "layer_norm_eps"}))
    expect_sentence(program, "config.json: is no configuration of a BERT: .*layer_norm_eps", model, 24, 0, wordnet)
    name = "encoder.layer.3.output.dense.weight"
    write_small_model(model, vocabulary, classifier | {name: [128, 64]}, **settings)
    expect_sentence(program, f"model.safetensors.*{re.escape(name)}.*64, 128", model, 24, 0, wordnet)

    if pretrained:
        shutil.copytree(pretrained, folder / "pretrained")
        add_classifier(folder / "pretrained/model.safetensors", folder / "classifier")
        compare(program, folder / "pretrained", pathlib.Path("/usr/share/wordnet"), 1000, 0)


def add_classifier(path, scratch):
    """Appends a random classifier of 384 inputs to a safetensors file."""
    parts = []
    write_random(scratch, {"classifier.weight": [CLASSES, 384], "classifier.bias": [CLASSES]})
    for data in (path.read_bytes(), scratch.read_bytes()):
        size = struct.unpack("<Q", data[:8])[0]
        parts.append((json.loads(data[8:8 + size]), data[8 + size:]))
    (header, values), (more, more_values) = parts
    for one in more.values():
        one["data_offsets"] = [offset + len(values) for offset in one["data_offsets"]]
    text = json.dumps(header | more).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values + more_values)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(sys.argv[1], pathlib.Path(scratch), sys.argv[2] if len(sys.argv) > 2 else None)
