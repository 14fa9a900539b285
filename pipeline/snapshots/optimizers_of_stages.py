"""Tells which stages, which layers or which loss the state of an optimizer is of."""

from __future__ import annotations

from typing import Any

import chainer

from divisible import Divisible
from divisible.number_lists import as_list
from pipeline.hooks.parameter_paths import ParameterPaths
from pipeline.pipeline import Pipeline
from pipeline.snapshots.arrays import position


class OptimizersOfStages:
    """The optimizers of a rank, by what they update.

    Args:
        optimizers: One, or several as a list.
        pipeline (Pipeline): Whose stages and loss they update.

    Attributes:
        of_stages (list): Those of the rank's stages.
        of_loss (list): Those of the loss alone.
        loss_links (dict): By name what follows the last layer and has a state to save.

    Raises:
        ValueError: If one is neither of the stages nor of the loss, and would be lost.
    """

    def __init__(self, optimizers: Any, pipeline: Pipeline) -> None:
        self._stages = list(pipeline.stages.values())
        self.loss_links = {
            name: link
            for name, link in pipeline.loss.links.items()
            if any(inner._params or inner._persistent for inner in link.links())
        }
        self._paths = ParameterPaths(pipeline.stages, self.loss_links)
        self.of_stages, self.of_loss = [], []
        for optimizer in as_list(optimizers):
            if getattr(optimizer, "target", None) is None:
                raise ValueError(
                    f"{type(optimizer).__name__} is no optimizer with a target: call"
                    f" optimizer.setup(stage) before"
                )
            if any(covers(optimizer, stage) for stage in self._stages):
                self.of_stages.append(optimizer)
            elif any(covers(optimizer, link) for link in self.loss_links.values()):
                self.of_loss.append(optimizer)
            else:
                raise ValueError(
                    f"the optimizer of a {type(optimizer.target).__name__} updates no"
                    f" stage of rank {pipeline.rank}, nor its loss: give it as"
                    f" state={{'name': optimizer}}"
                )

    def names(self, optimizer: Any) -> dict[str, str]:
        """Returns the names under which the state of an optimizer of stages is saved.

        ::

            target                   path in the target      name
            a stage                  /7/W                    /7/W
            ChainList(stage, stage)  /0/7/W                  /7/W
            Chain of stage and loss  /criterion/W            /loss/W

        Returns:
            The name by the path. That of a layer is its path in the undivided model, as
            a stage has it, whatever the optimizer was set up with.
        """
        # Of what is neither in a stage nor in the loss, a number is no position.
        above = "" if isinstance(optimizer.target, Divisible) else "/target"
        return {
            path: self._paths.of(param) or above + path
            for path, param in optimizer.target.namedparams()
        }

    def positions(self, optimizer: Any) -> set[int]:
        """Returns the layers whose optimizer's state an optimizer needs."""
        found = {position(name) for name in self.names(optimizer).values()}
        # Parameters of a loss beside the stage.
        found.discard(None)
        if not found:
            for stage in self._stages:
                if covers(optimizer, stage):
                    found.update(range(*stage.layer_range))
        return found


def covers(optimizer: Any, link: chainer.Link) -> bool:
    """Whether an optimizer is that of a stage or a loss, perhaps among others."""
    target = optimizer.target
    if target is link or any(child is link for child in target.children()):
        return True
    ids = {id(param) for param in target.params()}
    return any(id(param) in ids for param in link.params())


def positions_of_layers(stage: Divisible) -> set[int]:
    """Returns the layers whose state a stage needs: its own and some it shares."""
    paths = (path for path, _ in stage.namedparams())
    return {*range(*stage.layer_range), *map(position, paths)}
