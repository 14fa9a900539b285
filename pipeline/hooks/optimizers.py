"""A rank's optimizers, and what they have been set up with."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import chainer

from divisible import Divisible
from divisible.number_lists import as_list
from divisible.optimizer_wrapper import each_within


class OptimizerOfRank(NamedTuple):
    """An optimizer, and how many of the rank's stages it has.

    Attributes:
        optimizer: The one whose hooks are called, within those of ChainerMN.
        target: What it was set up with when this was made.
        n_stages: Stages of which it has the link, or parameters.
        wrapper: What averages its gradients over replicas; ``None`` if nothing does.
    """

    optimizer: chainer.Optimizer
    target: chainer.Link
    n_stages: int
    wrapper: Any = None

    @classmethod
    def of(cls, optimizer: Any, stages: Iterable[Divisible]) -> OptimizerOfRank:
        """Returns what is known of an optimizer.

        Raises:
            TypeError: If it is no optimizer.
            ValueError: If it is not set up.
        """
        optimizer, wrapper = _unwrapped(optimizer)
        target = optimizer.target
        ids = {*map(id, target.links()), *map(id, target.params())}
        n_stages = sum(
            id(stage) in ids or any(id(param) in ids for param in stage.params())
            for stage in stages
        )
        return cls(optimizer, target, n_stages, wrapper)

    @property
    def is_current(self) -> bool:
        """Whether no other optimizer has been set up with the target since."""
        ours = getattr(self.optimizer, "hyperparam", None)
        rules = [p.update_rule for p in self.target.params() if p.update_rule]
        return not rules or any(rule.hyperparam.parent is ours for rule in rules)


def check_optimizers(optimizers: Any) -> None:
    """Refuses what is no optimizer, or is not set up.

    Args:
        optimizers (chainer.Optimizer or list): One or several.

    Raises:
        TypeError: If one is no optimizer.
        ValueError: If one is not set up.
    """
    for optimizer in as_list(optimizers):
        _unwrapped(optimizer)


def _unwrapped(optimizer: Any) -> tuple[chainer.Optimizer, Any]:
    """Returns the optimizer within ChainerMN's, and what averages its gradients."""
    name, inner, wrapper = type(optimizer).__name__, optimizer, None
    for inner in each_within(optimizer):
        if is_mixed(inner):
            break
        # By the type: wrappers pass on the attributes of what is within.
        if hasattr(type(inner), "average_gradients"):
            wrapper = inner
    if not isinstance(inner, chainer.Optimizer):
        raise TypeError(f"an optimizer must be a chainer.Optimizer, not {name}")
    if inner.target is None:
        raise ValueError(f"{name} has no model: call optimizer.setup(stage) first")
    return inner, wrapper


def is_mixed(optimizer: Any) -> bool:
    """Whether an optimizer is in mixed precision, and agrees with other ranks."""
    return hasattr(optimizer, "loss_scale")


def unique_params(optimizers: Iterable[chainer.Optimizer]) -> list[chainer.Parameter]:
    """Returns the initialized parameters of optimizers, each once."""
    params = {id(p): p for o in optimizers for p in o.target.params(False)}
    return list(params.values())


def find_optimizers(rules: Sequence[chainer.UpdateRule]) -> list[chainer.Optimizer]:
    """Returns the optimizers of this process that made some update rules.

    A rule knows its optimizer by the hyperparameters alone, and Chainer keeps no list
    of optimizers, so this looks through all objects. That takes some milliseconds.
    """
    wanted = {id(rule.hyperparam.parent) for rule in rules} - {id(None)}
    # By the type: what only looks like an optimizer may do anything when it is asked.
    optimizers = [o for o in gc.get_objects() if issubclass(type(o), chainer.Optimizer)]
    optimizers = [o for o in optimizers if getattr(o, "target", None) is not None]
    inner = {id(o.actual_optimizer) for o in optimizers if is_mixed(o)}
    return [
        o
        for o in optimizers
        if id(getattr(o, "hyperparam", None)) in wanted and id(o) not in inner
    ]
