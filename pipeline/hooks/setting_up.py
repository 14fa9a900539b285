"""Sets up an optimizer for all stages of a rank, as their pipeline's plan wants it.

::

    optimizer ---> for this rank's stage, or for all its stages together
              '--> in an optimizer that averages gradients, if there are replicas
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer

from data_parallel import Grid, MultiNodeOptimizer, create_multi_node_optimizer
from divisible import Divisible
from divisible.optimizer_hooks import named_hooks
from divisible.optimizer_wrapper import OptimizerWrapper, each_within
from mixed_precision.model import LinkGroup


def set_up(
    optimizer: Any, stages: Sequence[Divisible], grid: Grid | None, pipeline: Any
) -> Any:
    """Returns an optimizer that updates all stages of a rank.

    Args:
        optimizer (chainer.Optimizer): Optimizer that is not set up, such as ``Adam()``
            or a :class:`~mixed_precision.MixedPrecision`.
        stages: Stages of the rank.
        grid: Grid of the replicas; ``None`` for a single pipeline.
        pipeline (Pipeline): Pipeline of the stages. Its plan has the dtype in which
            replicas exchange gradients.

    An optimizer that was set up with the chain that the layers come from keeps its
    hooks, and the update rules of the parameters: only its target changes.

    Raises:
        TypeError: If ``optimizer`` is not a single optimizer.
        ValueError: If it has hooks already, which it would lose.
    """
    if isinstance(optimizer, (list, tuple)):
        raise TypeError(
            "setup takes one optimizer for all stages of this rank, not a list: to"
            " treat stages differently, set each up with its stage by itself"
        )
    if isinstance(optimizer, type) or not hasattr(optimizer, "setup"):
        given = optimizer if isinstance(optimizer, type) else type(optimizer)
        raise TypeError(
            f"optimizer must be a chainer.Optimizer such as Adam(), not"
            f" {'the class ' * (given is optimizer)}{given.__name__}"
        )
    target = stages[0] if len(stages) == 1 else LinkGroup(stages)
    if grid is None and _has_set_up(optimizer, target):
        optimizer.target = target
        return optimizer
    if hooks := named_hooks(optimizer):
        raise ValueError(
            f"optimizer has the hooks {', '.join(name for name, _ in hooks)}, which"
            f" setup drops, as in Chainer: add them after pipe.setup(optimizer)"
        )
    is_exchanging = any(
        isinstance(o, MultiNodeOptimizer) for o in each_within(optimizer)
    )
    if grid is not None and not is_exchanging:
        optimizer = create_multi_node_optimizer(optimizer, grid.data, pipeline=pipeline)
    return optimizer.setup(target)


def _has_set_up(optimizer: Any, target: chainer.Link) -> bool:
    """Returns whether an optimizer was set up with the chain of these layers."""
    chain = getattr(optimizer, "target", None)
    if isinstance(optimizer, OptimizerWrapper) or not isinstance(chain, chainer.Link):
        return False
    if isinstance(chain, (Divisible, LinkGroup)):
        return False
    theirs = {id(param) for param in chain.params() if param.update_rule is not None}
    return all(id(param) in theirs for param in target.params())
