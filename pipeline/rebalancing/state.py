"""The arrays of layers that move to other stages, by the keys of snapshots.

::

    stage 0   layers 0 1 2         sends  model/2/...  optimizer/2/...
                                              |
    stage 1   layers   2 3         gets   model/2/...  optimizer/2/...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import chainer
import numpy as np

from divisible import Divisible
from pipeline.pipeline import Pipeline
from pipeline.snapshots.arrays import Arrays, position
from pipeline.snapshots.layers import load_model
from pipeline.snapshots.objects import object_arrays
from pipeline.snapshots.optimizers import (
    OptimizersOfStages,
    load_optimizer,
    optimizer_arrays,
)

_MODEL, _OPTIMIZER = "model/", "optimizer/"
#: The attribute of links that return another dtype than they compute in, such as
#: streamed layers in float16. A layer that moves keeps it, as it keeps its parameters'
#: dtypes.
OUTPUT_DTYPE = "output_dtype"


class Want(NamedTuple):
    """Arrays that a stage needs.

    Attributes:
        prefix: Prefix of their keys, such as ``'model/7/'``.
        stage: Number of the stage that has them now.
    """

    prefix: str
    stage: int


def wants(stage: Divisible, new: Iterable[int], cuts: Sequence[int]) -> list[Want]:
    """Returns the arrays that a stage needs for its new layers.

    Args:
        stage (Divisible): The stage with its future layers.
        new: Positions of the layers that it does not have yet.
        cuts: Present cuts of the model.

    Returns:
        All arrays of the new layers. For parameters shared with earlier layers, the
        optimizer's state, which the first of these layers has.
    """
    found = []
    for each in sorted(_names(stage, new)):
        owner = _stage_of(each, cuts)
        found += [Want(f"{kind}{each}/", owner) for kind in (_MODEL, _OPTIMIZER)]
    start, _ = stage.layer_range
    for path, _ in stage.namedparams():
        first = position(path)
        if first < start:
            owner = _stage_of(first, cuts)
            found.append(Want(f"{_OPTIMIZER}{path.strip('/')}/", owner))
    return found


def _names(stage: Divisible, positions: Iterable[int]) -> set[int]:
    """Returns the positions in layers' keys; a repeated link has that of the first."""
    start, _ = stage.layer_range
    layers = {position: stage[position - start] for position in positions}
    return {
        int(layer.name) if isinstance(layer, chainer.Link) else position
        for position, layer in layers.items()
    }


def _stage_of(layer: int, cuts: Sequence[int]) -> int:
    return int(np.searchsorted(cuts, layer, side="right")) - 1


def give(
    pipeline: Pipeline, optimizers: OptimizersOfStages, prefixes: Iterable[str]
) -> dict[str, np.ndarray]:
    """Returns the arrays on this rank that stages need, by key.

    Arrays in host memory are those of the layers, not copies.

    Args:
        pipeline (Pipeline): The pipeline before the move.
        optimizers: Optimizers of its stages.
        prefixes: Prefixes of the keys.
    """
    prefixes = tuple(prefixes)
    found: dict[str, np.ndarray] = {}
    wanted = {position(p[len(_MODEL) :]) for p in prefixes if p.startswith(_MODEL)}
    for stage in pipeline.stages.values():
        for start, end in _runs(wanted & {*range(*stage.layer_range)}):
            part = stage.view(start, end)
            found.update(object_arrays({"model": part}))
            found.update(
                (f"model{path}/{OUTPUT_DTYPE}", np.array(getattr(link, OUTPUT_DTYPE)))
                for path, link in part.namedlinks(skipself=True)
                if hasattr(link, OUTPUT_DTYPE)
            )
    if any(each.startswith(_OPTIMIZER) for each in prefixes):
        for optimizer in optimizers.of_stages:
            arrays = _optimizer_arrays(optimizers, optimizer)
            found.update((k, v) for k, v in arrays.items() if k.startswith(prefixes))
    return found


def _optimizer_arrays(
    optimizers: OptimizersOfStages, optimizer: Any
) -> dict[str, np.ndarray]:
    arrays = optimizer_arrays(optimizer, optimizers.names(optimizer))
    return {_OPTIMIZER + key: array for key, array in arrays.items()}


def _runs(positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yields runs of consecutive positions as half-open ranges."""
    pairs = enumerate(sorted(positions))
    for _, group in groupby(pairs, lambda pair: pair[1] - pair[0]):
        run = [each for _, each in group]
        yield run[0], run[-1] + 1


def load_layers(
    stage: Divisible, new: Iterable[int], arrays: Mapping[str, np.ndarray]
) -> None:
    """Sets the parameters and persistent values of a stage's new layers.

    Args:
        stage (Divisible): The stage with its future layers.
        new: Positions of its new layers.
        arrays: Arrays by key.

    Raises:
        ValueError: If the arrays do not belong to these layers.
    """
    for start, end in _runs(new):
        part = stage.view(start, end)
        found = _found(arrays, _names(stage, range(start, end)), _MODEL)
        _take_dtypes(part, arrays)
        load_model(part, found.below(_MODEL))
        _refuse_differences(found, f"the layers {start} to {end - 1}")


def _take_dtypes(part: Divisible, arrays: Mapping[str, np.ndarray]) -> None:
    """Gives layers the dtypes that they had before, because a stage may be cast."""
    for path, link in part.namedlinks(skipself=True):
        returned = arrays.get(f"model{path}/{OUTPUT_DTYPE}")
        if returned is not None:
            setattr(link, OUTPUT_DTYPE, str(returned))
        for name in link._params:
            param, saved = vars(link)[name], arrays.get(f"model{path}/{name}")
            is_cast = saved is not None and param.is_initialized
            if is_cast and saved.dtype.kind == "f" and saved.dtype != param.dtype:
                # An existing gradient does not fit the new dtype.
                param.cleargrad()
                param.array = param.array.astype(saved.dtype)


def load_optimizers(
    pipeline: Pipeline,
    optimizers: Any,
    before: Mapping[int, Mapping[str, np.ndarray]],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Gives the optimizers of this rank the state of all their present layers.

    Args:
        pipeline (Pipeline): The pipeline with its new layers.
        optimizers: All optimizers of this rank.
        before: State of each optimizer before the move, by its number.
        arrays: Arrays received from other ranks, by key.

    Raises:
        ValueError: If the arrays do not belong to these layers.
    """
    found = OptimizersOfStages(optimizers, pipeline)
    for number, optimizer in enumerate(found.of_stages):
        names = found.names(optimizer)
        own = tuple(f"{_OPTIMIZER}{name.strip('/')}/" for name in names.values())
        state = {**before[number], **arrays}
        state = Arrays(
            {
                "what was moved": {
                    key: array
                    for key, array in state.items()
                    if key.startswith(own)
                    or (
                        key.startswith(_OPTIMIZER)
                        and position(key[len(_OPTIMIZER) :]) is None
                    )
                }
            }
        )
        load_optimizer(optimizer, state.below(_OPTIMIZER), names)
        _refuse_differences(state, "optimizers")
    _separate(found.of_stages)


def _separate(optimizers: Iterable[Any]) -> None:
    """Copies state that several update rules were given as one array.

    Two stages on a rank may each have a copy of a parameter that layers share.
    """
    seen: set[int] = set()
    for param in (param for each in optimizers for param in each.target.params()):
        rule = param.update_rule
        for name, value in ((rule and rule.state) or {}).items():
            if id(value) in seen:
                rule.state[name] = value.copy()
            seen.add(id(value))


def optimizer_states(
    optimizers: OptimizersOfStages,
) -> dict[int, dict[str, np.ndarray]]:
    """Returns the state of each optimizer of stages, by its number, not copied."""
    return {
        number: _optimizer_arrays(optimizers, optimizer)
        for number, optimizer in enumerate(optimizers.of_stages)
    }


def _found(
    arrays: Mapping[str, np.ndarray], positions: Iterable[int], kind: str
) -> Arrays:
    prefixes = tuple(f"{kind}{each}/" for each in positions)
    return Arrays(
        {
            "what was moved": {
                key: array for key, array in arrays.items() if key.startswith(prefixes)
            }
        }
    )


def _refuse_differences(arrays: Arrays, what: str) -> None:
    ledger = arrays.ledger
    wrong = [f"{key} is missing" for key in sorted(ledger.missing)]
    wrong += list(ledger.unlike)
    wrong += [f"{saved} is {here} here" for saved, here in sorted(ledger.kinds)]
    if wrong:
        raise ValueError(f"{what} are unlike those that were there: {'; '.join(wrong)}")
