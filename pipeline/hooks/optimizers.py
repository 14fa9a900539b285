"""A rank's optimizers, and the links that they were set up with."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import chainer
from chainer import optimizer_hooks

from divisible import Divisible
from divisible.number_lists import as_list
from divisible.optimizer_wrapper import each_within
from mixed_precision import LARSHook

#: Types of hooks that change nothing but gradients and parameters, and do the same if
#: their attributes are equal.
KNOWN_HOOKS = (
    LARSHook,
    optimizer_hooks.GradientHardClipping,
    optimizer_hooks.GradientLARS,
    optimizer_hooks.GradientNoise,
    optimizer_hooks.Lasso,
    optimizer_hooks.WeightDecay,
)


class OptimizerOfRank(NamedTuple):
    """An optimizer, and how many of the rank's stages it updates.

    Attributes:
        optimizer: The optimizer whose hooks are called, within those of ChainerMN.
        target: Link that it was set up with when this object was made.
        n_stages: Number of stages of which it has the link, or parameters.
        wrapper: Optimizer that averages the gradients over replicas; ``None`` without.
    """

    optimizer: chainer.Optimizer
    target: chainer.Link
    n_stages: int
    wrapper: Any = None

    @classmethod
    def of(cls, optimizer: Any, stages: Iterable[Divisible]) -> OptimizerOfRank:
        """Returns an optimizer's target, stages and wrapper.

        Raises:
            TypeError: If ``optimizer`` is not an optimizer.
            ValueError: If the optimizer is not set up.
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
        """Whether no other optimizer has been set up with the target since then."""
        ours = getattr(self.optimizer, "hyperparam", None)
        rules = [p.update_rule for p in self.target.params() if p.update_rule]
        return not rules or any(rule.hyperparam.parent is ours for rule in rules)


def check_optimizers(optimizers: Any) -> None:
    """Refuses objects that are not optimizers, or are not set up.

    Args:
        optimizers (chainer.Optimizer or list): One or several.

    Raises:
        TypeError: If an object is not an optimizer.
        ValueError: If an optimizer is not set up.
    """
    for optimizer in as_list(optimizers):
        _unwrapped(optimizer)


def _unwrapped(optimizer: Any) -> tuple[chainer.Optimizer, Any]:
    """Returns the optimizer within ChainerMN's, and the wrapper that averages."""
    name, inner, wrapper = type(optimizer).__name__, optimizer, None
    for inner in each_within(optimizer):
        if is_mixed(inner):
            break
        # Types are compared, because wrappers pass on the attributes of the inner
        # optimizer.
        if hasattr(type(inner), "average_gradients"):
            wrapper = inner
    if not isinstance(inner, chainer.Optimizer):
        raise TypeError(f"an optimizer must be a chainer.Optimizer, not {name}")
    if inner.target is None:
        raise ValueError(f"{name} has no model: call optimizer.setup(stage) first")
    return inner, wrapper


def is_mixed(optimizer: Any) -> bool:
    """Returns whether an optimizer is in mixed precision, and agrees on its own."""
    return hasattr(optimizer, "loss_scale")


def unique_params(optimizers: Iterable[chainer.Optimizer]) -> list[chainer.Parameter]:
    """Returns the initialized parameters of optimizers, each once."""
    params = {id(p): p for o in optimizers for p in o.target.params(False)}
    return list(params.values())


def find_optimizers(rules: Sequence[chainer.UpdateRule]) -> list[chainer.Optimizer]:
    """Returns the optimizers of this process that made some update rules.

    A rule refers to its optimizer only by the hyperparameters, and Chainer keeps no
    list of optimizers. So this searches all objects, which takes some milliseconds.
    """
    wanted = {id(rule.hyperparam.parent) for rule in rules} - {id(None)}
    if not wanted:
        return []
    # Types are compared, because an object that imitates an optimizer may run code if
    # asked.
    optimizers = [o for o in gc.get_objects() if issubclass(type(o), chainer.Optimizer)]
    optimizers = [o for o in optimizers if getattr(o, "target", None) is not None]
    inner = {id(o.actual_optimizer) for o in optimizers if is_mixed(o)}
    return [
        o
        for o in optimizers
        if id(getattr(o, "hyperparam", None)) in wanted and id(o) not in inner
    ]
