"""Whose the state of an optimizer is: of which stages, which layers, or of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer

from divisible import Divisible
from pipeline.pipeline import Pipeline
from pipeline.snapshots.arrays import position


def as_list(optimizers: Any) -> list:
    """Returns a list of optimizers, of one or of several."""
    return list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]


def loss_links(pipeline: Pipeline) -> dict[str, chainer.Link]:
    """Returns what follows the last layer and has something to save, by name."""
    return {
        name: link
        for name, link in pipeline.loss_links.items()
        if any(inner._params or inner._persistent for inner in link.links())
    }


def of_stages(optimizers: Sequence[Any], pipeline: Pipeline) -> list[Any]:
    """Returns the optimizers of this rank's stages.

    Raises:
        ValueError: If one is neither of them nor of the loss, and would be lost.
    """
    stages = pipeline.stages.values()
    found = [o for o in optimizers if any(covers(o, stage) for stage in stages)]
    known = [*found, *of_loss(optimizers, pipeline)]
    for optimizer in optimizers:
        if not any(optimizer is other for other in known):
            raise ValueError(
                f"the optimizer of a {type(optimizer.target).__name__} updates no stage"
                f" of rank {pipeline.rank}, nor its loss: give it as"
                f" state={{'name': optimizer}}"
            )
    return found


def of_loss(optimizers: Sequence[Any], pipeline: Pipeline) -> list[Any]:
    """Returns the optimizers of the loss alone."""
    links, stages = loss_links(pipeline).values(), pipeline.stages.values()
    return [
        optimizer
        for optimizer in optimizers
        if any(covers(optimizer, link) for link in links)
        and not any(covers(optimizer, stage) for stage in stages)
    ]


def covers(optimizer: Any, stage: chainer.Link) -> bool:
    """Whether an optimizer is that of a stage or a loss, perhaps among others."""
    target = optimizer.target
    if target is stage or any(child is stage for child in target.children()):
        return True
    ids = {id(param) for param in target.params()}
    return any(id(param) in ids for param in stage.params())


def names(optimizer: Any, pipeline: Pipeline) -> dict[str, str]:
    """Returns the names under which the state of an optimizer of stages is saved.

    ::

        target                   path in the target      name
        a stage                  /7/W                    /7/W
        ChainList(stage, stage)  /0/7/W                  /7/W
        Chain of stage and loss  /criterion/W            /loss/W

    Returns:
        The name by the path. That of a layer is its path in the undivided model, as a
        stage has it, whatever the optimizer was set up with.
    """
    known = {}
    for name, link in loss_links(pipeline).items():
        for path, param in link.namedparams():
            known[id(param)] = f"/{name}{path}"
    for stage in pipeline.stages.values():
        for path, param in stage.namedparams():
            known[id(param)] = path
    # Of what is neither in a stage nor in the loss, a number is no position.
    above = "" if isinstance(optimizer.target, Divisible) else "/target"
    return {
        path: known.get(id(param), above + path)
        for path, param in optimizer.target.namedparams()
    }


def positions(stage: Divisible) -> set[int]:
    """Returns the layers whose state a stage needs: its own and some it shares."""
    paths = (path for path, _ in stage.namedparams())
    return {*range(*stage.layer_range), *map(position, paths)}


def optimized_positions(optimizer: Any, pipeline: Pipeline) -> set[int]:
    """Returns the layers whose optimizer's state an optimizer needs."""
    found = {position(name) for name in names(optimizer, pipeline).values()}
    # Parameters of a loss beside the stage.
    found.discard(None)
    if not found:
        for stage in pipeline.stages.values():
            if covers(optimizer, stage):
                found.update(range(*stage.layer_range))
    return found
