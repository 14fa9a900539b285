"""Models and minibatches of cases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import chainer
import numpy as np

from divisible import Divisible, deferred_init
from tests.composition.blocks import (
    BATCH_NORM_EPS,
    BLOCKS,
    N_CLASSES,
    N_WORDS,
    SIDE,
    WIDTH,
    auxiliaries,
    code_of,
    first_and_last,
    layers_of,
)
from tests.composition.cases import Case, Model
from tests.composition.losses import LOSSES


def build(case: Case, is_resident: bool = False) -> Divisible:
    """Returns the undivided model of a case, in the dtype in which it is initialized.

    Args:
        case: The case.
        is_resident: Whether streamed layers are to be in memory.
    """
    with made(case):
        model = Divisible()
        for code in codes_of(case.model, is_resident):
            for layer in layers_of(code):
                model.append(layer)
        for one, other, is_transposed in case.model.ties:
            paths = [weight_of(case.model, block) for block in (one, other)]
            model.tie(*paths, transpose=is_transposed)
        return model


@contextlib.contextmanager
def made(case: Case) -> Iterator[None]:
    """Initializes links in the dtype of a case, and from its seed."""
    dtype = np.float64 if case.model.dtype == "float64" else np.float32
    np.random.seed(case.seed % 2**32)
    with chainer.using_config("dtype", dtype):
        if case.model.is_deferred:
            with deferred_init(seed=case.seed % 2**31):
                yield
        else:
            yield


def codes_of(model: Model, is_resident: bool = False) -> list[str]:
    """Returns the layers of a model as expressions, one for each block."""
    first, last = first_and_last(model.domain, model.n_inputs, model.n_outputs)
    ends = [f"pop({name!r})" for name in auxiliaries(model.blocks)]
    return [first, *(code_of(name, is_resident) for name in model.blocks), last, *ends]


def starts_of(model: Model) -> list[int]:
    """Returns the position of the first layer of each block, and of the last layer."""
    starts = [1]
    for name in model.blocks:
        starts.append(starts[-1] + n_layers_of(name))
    return starts


def n_layers_of(name: str) -> int:
    """Returns the number of layers of a block."""
    if name.startswith("auxiliary "):
        return 4
    if name.startswith(("stash ", "pop ")):
        return 3 if name.endswith("concat") else 1
    return 2 if name in ("tuples", "dictionary", "varying") else 1


def n_layers(model: Model) -> int:
    """Returns the number of layers of a model."""
    return starts_of(model)[-1] + 1 + len(auxiliaries(model.blocks))


def weight_of(model: Model, block: int) -> str:
    """Returns the path of the square matrix of a block."""
    return f"/{starts_of(model)[block]}/{BLOCKS[model.blocks[block]].weight}"


def layer_of_channels(model: Model) -> str | None:
    """Returns the path of a layer whose channels only the next one reads, if any."""
    if model.domain != "vectors" or model.n_outputs > 1:
        return None
    tied = {block for one, other, _ in model.ties for block in (one, other)}
    last = len(model.blocks)
    for i, name in enumerate(model.blocks):
        if name != "linear" or i in tied:
            continue
        end = i + 1
        # Other functions make another number of a zero.
        while end < last and model.blocks[end] == "tanh":
            end += 1
        if end == last or (model.blocks[end] == "linear" and end not in tied):
            return f"/{starts_of(model)[i]}"
    return None


def paths_below(model: Model, blocks: tuple[int, ...]) -> tuple[str, ...]:
    """Returns how the paths of the parameters of some blocks begin."""
    starts = starts_of(model)
    return tuple(
        f"/{position}/"
        for block in blocks
        for position in range(starts[block], starts[block + 1])
    )


def sees_microbatches(model: Model) -> bool:
    """Whether what some layer computes depends on the microbatches."""
    return any(
        BLOCKS[name].sees_microbatches for name in model.blocks if name in BLOCKS
    )


def is_kinked(model: Model) -> bool:
    """Whether a rounding error may change gradients by more."""
    return any(BLOCKS[name].is_kinked for name in model.blocks if name in BLOCKS)


def carries(model: Model) -> bool:
    """Whether some layer goes on from the minibatch before."""
    return bool({"lstm", "gru"} & {*model.blocks})


def minibatch(case: Case, number: int) -> tuple[Any, Any]:
    """Returns inputs and targets of a minibatch of all replicas."""
    random = np.random.RandomState((case.seed * 1009 + number) % 2**32)
    n, model = case.life.sizes[number], case.model
    dtype = np.dtype("float64" if model.dtype == "float64" else "float32")
    if model.domain == "words":
        length = case.life.lengths[number]
        x = random.randint(0, N_WORDS, (n, length)).astype(np.int32)
        t = random.randint(0, N_WORDS, (n, length)).astype(np.int32)
    else:
        shape = (n, 2, SIDE, SIDE) if model.domain == "images" else (n, 5)
        x = random.normal(size=shape).astype(dtype)
        t = random.randint(0, N_CLASSES, n).astype(np.int32)
    if model.n_inputs == 2:
        x = x, random.normal(size=(n, 3)).astype(dtype)
    measure = LOSSES[model.loss]
    if measure.ignores:
        t[random.uniform(size=t.shape) < 0.3] = -1
    return x, t if measure.has_targets else None


def wide(arrays: Any, dtype: str = "float64") -> Any:
    """Returns floating-point arrays in another dtype."""
    if isinstance(arrays, tuple):
        return tuple(wide(array, dtype) for array in arrays)
    if arrays is None or arrays.dtype.kind != "f":
        return arrays
    return arrays.astype(dtype)


def largest_inverse_deviation(case: Case) -> float:
    """Returns by how much batch normalization may multiply a rounding error.

    Of numbers that are equal in exact arithmetic, such as those of a single sample,
    the variance is nothing but ``eps``.
    """
    n = min(
        size // (way.n_microbatches * way.n_replicas)
        for size in case.life.sizes
        for way in case.ways
    )
    has_one = n < 2 and "batch normalization" in case.model.blocks
    return BATCH_NORM_EPS**-0.5 if has_one else 1.0


def largest_sum(case: Case) -> int:
    """Returns an upper bound of the terms of a sum in a forward or a backward."""
    n_pixels = SIDE**2 if case.model.domain == "images" else 1
    n_words = max(case.life.lengths, default=1)
    return 9 * WIDTH * n_pixels + max(case.life.sizes) * n_pixels * n_words
