"""The arguments of an updater that one rank can check alone."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import chainer

from divisible.number_lists import as_list
from pipeline.pipeline import Pipeline


def by_name(optimizer: Any) -> dict[str, chainer.Optimizer]:
    """Returns optimizers by name: ``'main'`` first, then ``'main_1'`` and so on.

    Args:
        optimizer (chainer.Optimizer, list or dict): One optimizer, or several.

    Raises:
        ValueError: If a dict has no optimizer ``'main'``.
    """
    if isinstance(optimizer, Mapping):
        if "main" not in optimizer:
            raise ValueError(
                f"no optimizer is called 'main', only {sorted(optimizer)}: give the"
                f" optimizer of the stages the name 'main'"
            )
        # 'main' comes first in any case.
        return {"main": optimizer["main"], **optimizer}
    several = enumerate(as_list(optimizer))
    return {f"main_{i}" if i else "main": each for i, each in several}


def check_samples(iterator: Any) -> None:
    """Refuses an empty data set, because Chainer divides by its length."""
    dataset = getattr(iterator, "dataset", None)
    if isinstance(dataset, Sized) and len(dataset) == 0:
        raise ValueError(
            f"the data set of the {type(iterator).__name__} is empty: there is nothing"
            f" to train on"
        )


def check_targets(
    optimizers: Mapping[str, chainer.Optimizer], pipeline: Pipeline
) -> None:
    """Refuses optimizers that do not update all stages of this rank, alike.

    Args:
        optimizers: The optimizers by name.
        pipeline (Pipeline): The pipeline of the stages.

    Raises:
        TypeError: If an object is not an optimizer.
        ValueError: If a stage has no optimizer, or an optimizer would skip steps that
            other ranks take.
    """
    for name, optimizer in optimizers.items():
        # ChainerMN's wrapper is not a chainer.Optimizer.
        if not hasattr(optimizer, "target"):
            raise TypeError(
                f"the optimizer {name!r} of rank {pipeline.rank} must be a"
                f" chainer.Optimizer, not {type(optimizer).__name__}"
            )
        if optimizer.target is None:
            raise ValueError(
                f"the optimizer {name!r} has no model: call optimizer.setup(stage)"
            )
    targets = set()
    for optimizer in optimizers.values():
        # Several stages may be children of the target of one optimizer.
        targets |= {id(optimizer.target), *map(id, optimizer.target.children())}
    scaling = [name for name, o in optimizers.items() if hasattr(o, "loss_scale")]
    if len(scaling) > 1:
        raise ValueError(
            f"the optimizers {', '.join(scaling)} of rank {pipeline.rank} are in mixed"
            f" precision, and each would skip its own steps: make one for all stages,"
            f" MixedPrecision(optimizer, comm=comm).setup([stage, stage])"
        )
    for name in scaling:
        decides_alone = not getattr(optimizers[name], "has_comm", True)
        if pipeline.internals.ranks.world.size > 1 and decides_alone:
            raise ValueError(
                f"the optimizer {name!r} of rank {pipeline.rank} is in mixed precision,"
                f" and would skip steps that the other ranks take: give it their"
                f" communicator, MixedPrecision(optimizer, comm=comm)"
            )
    for stage in pipeline.stages.values():
        if id(stage) not in targets:
            start, end = stage.layer_range
            raise ValueError(
                f"no optimizer on rank {pipeline.rank} was set up with the stage"
                f" of the layers {start} to {end - 1}, so it would not be trained:"
                f" make one for each of the rank's stages (in mixed precision, one for"
                f" all of them)"
            )
