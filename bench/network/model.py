# SPDX-License-Identifier: Apache-2.0
"""How large the models of libtorch_model.cpp are: perceptron/WIDTH and transformer/WIDTH."""


def parameters(name):
    kind, width = name.split("/")
    width = int(width)
    if kind == "perceptron":
        return 784 * width + 2 * width * width + 13 * width + 10
    if kind != "transformer":
        raise SystemExit(f"'{name}' is no model; perceptron/512 and transformer/128 are")
    # Embeddings of 96 symbols and 64 places; in each of 4 blocks two normalizations and four linear layers; the head.
    return 160 * width + 4 * (4 * width + 12 * width * width + 9 * width) + 2 * width + 96 * width + 96


def dense_bytes(name, ranks):
    """What a rank sends for an exact mean."""
    return 8 * (ranks - 1) / ranks * parameters(name)
