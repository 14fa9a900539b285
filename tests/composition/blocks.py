"""The blocks of layers that composed models are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from divisible import pop, stash
from divisible.streaming import Streamed
from tests.composition import own_layers, torch_blocks

#: Features of a sample within a model; for images the number of channels.
WIDTH = 6
N_CLASSES, N_WORDS = 4, 9
#: Height and width of images.
SIDE = 4
#: Addend of variances in batch normalization.
BATCH_NORM_EPS = 0.1


class Block(NamedTuple):
    """Some layers.

    Attributes:
        code: The layers, as an expression.
        feature: The feature, in words of the documentation, that is drawn with it.
        domains: Domains in which it may stand.
        is_kinked: Whether its derivative jumps, so that a rounding error may change
            gradients by more than rounding errors.
        sees_microbatches: Whether what it computes depends on the microbatches.
        weight: Path of a square matrix that may be tied, if it has one.
    """

    code: str
    feature: str
    domains: str = "vectors images words"
    is_kinked: bool = False
    sees_microbatches: bool = False
    weight: str = ""


# Normalizations have a large eps: of a single sample they would be ill-conditioned.
BLOCKS = {
    "linear": Block("L.Linear(6, 6)", "Linear", "vectors", weight="W"),
    "each word": Block("EachWord(6, 6)", "Linear", "words", weight="W"),
    "convolution": Block("L.Convolution2D(6, 6, 3, pad=1)", "convolutions", "images"),
    "depthwise": Block(
        "L.Convolution2D(6, 6, 3, pad=1, groups=6)", "grouped convolutions", "images"
    ),
    "deconvolution": Block(
        "L.Deconvolution2D(6, 6, 3, pad=1)", "deconvolutions", "images"
    ),
    "tanh": Block("F.tanh", "pointwise functions"),
    "sigmoid": Block("F.sigmoid", "pointwise functions"),
    "softplus": Block("F.softplus", "pointwise functions"),
    "relu": Block("F.relu", "relu and max pooling", is_kinked=True),
    "pool": Block("pool", "relu and max pooling", "images", is_kinked=True),
    "average": Block("average", "average pooling", "images"),
    "batch normalization": Block(
        f"L.BatchNormalization(6, eps={BATCH_NORM_EPS})",
        "batch normalization",
        "vectors images",
        sees_microbatches=True,
    ),
    "layer normalization": Block(
        "L.LayerNormalization(6, eps=0.1)", "layer normalization", "vectors"
    ),
    "layer normalization of words": Block(
        "NormalizedWords(6, eps=0.1)", "layer normalization", "words"
    ),
    "group normalization": Block(
        "L.GroupNormalization(2, 6, eps=0.1)", "group normalization", "images"
    ),
    "dropout": Block("F.dropout", "dropout", sees_microbatches=True),
    "noise": Block("Noise()", "random layers", sees_microbatches=True),
    "residual": Block(
        "Residual(lambda: L.Linear(6, 6))",
        "residual blocks",
        "vectors",
        weight="first/W",
    ),
    "residual of images": Block(
        "Residual(lambda: L.Convolution2D(6, 6, 3, pad=1))", "residual blocks", "images"
    ),
    "scaled": Block("Scaled(6)", "own links", "vectors"),
    "tuples": Block("Split(), Merge()", "tuples between layers", "vectors images"),
    "dictionary": Block("Name(), Use()", "dictionaries between layers"),
    "split": Block("SplitScaled(6)", "register_split", "vectors"),
    "varying": Block("Pad(), Crop()", "shapes that depend on the data", "vectors"),
    "sometimes": Block(
        "Sometimes(6)",
        "layers that some microbatches use",
        "vectors",
        is_kinked=True,
        sees_microbatches=True,
    ),
    "gate": Block(
        "Gate()",
        "gradients of some microbatches",
        is_kinked=True,
        sees_microbatches=True,
    ),
    "report": Block("Reporting()", "reported values"),
    "streamed": Block(
        "Streamed(L.Linear(6, 6), segment=2)", "streamed layers", "vectors"
    ),
    "lstm": Block("Recurrent(L.LSTM, 6)", "carry_state", "words"),
    "gru": Block("Recurrent(L.StatefulGRU, 6)", "carry_state", "words"),
    "reader": Block("Reader(6)", "recurrent layers", "words"),
    "n-step": Block("NStep(6)", "recurrent layers", "words"),
}
#: Functions that pops join their inputs by, by name.
JOINS = {"add": "F.add", "multiply": "gated"}
#: Names in the code of layers.
NAMES = {**vars(own_layers), "Streamed": Streamed, "pop": pop, "stash": stash}
torch_blocks.register(BLOCKS, NAMES)


def code_of(name: str, is_resident: bool = False) -> str:
    """Returns the layers of a block as an expression.

    Args:
        name: Its name.
        is_resident: Whether streamed layers are to be in memory.
    """
    if name.startswith("stash "):
        return f"stash({name.split()[1]!r})"
    if name.startswith("auxiliary "):
        own = name.split()[1]
        return (
            f"stash('input_{own}'), Auxiliary(), stash({own!r}),"
            f" pop('input_{own}', kept)"
        )
    if name.startswith("pop "):
        _, skip, join = name.split()
        if join == "concat":
            return f"pop({skip!r}), joined, L.Linear(12, 6)"
        return f"pop({skip!r}, {JOINS[join]})"
    return BLOCKS["linear" if is_resident and name == "streamed" else name].code


def auxiliaries(blocks: Iterable[str]) -> list[str]:
    """Returns the names of the outputs that blocks compute for the loss."""
    return [name.split()[1] for name in blocks if name.startswith("auxiliary ")]


def first_and_last(domain: str, n_inputs: int, n_outputs: int) -> tuple[str, str]:
    """Returns the first and the last layer of a model, as expressions."""
    if domain == "words":
        return "L.EmbedID(9, 6)", "Scores(6, 9)"
    n = WIDTH * SIDE**2 if domain == "images" else WIDTH
    last = f"TwoHeads({n}, 4)" if n_outputs == 2 else f"L.Linear({n}, 4)"
    if domain == "images":
        return "L.Convolution2D(2, 6, 3, pad=1)", last
    return ("Join(5, 3, 6)" if n_inputs == 2 else "L.Linear(5, 6)"), last


def layers_of(code: str) -> list[Any]:
    """Returns new layers of an expression."""
    found = eval(code, dict(NAMES))
    return list(found) if isinstance(found, tuple) else [found]
