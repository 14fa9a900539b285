"""The hooks of an optimizer, or of an update rule, which Chainer keeps private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np
from chainer.optimizer_hooks import GradientClipping


def named_hooks(owner: Any) -> list[tuple[str, Any]]:
    """Returns hooks with the names under which they were added.

    Args:
        owner: An optimizer, which has no hooks before it is set up; an update rule; or
            ``None`` for a parameter without a rule.

    Returns:
        The hooks before an update in their order, then the hooks after it.

    Example:
        >>> import chainer
        >>> optimizer = chainer.optimizers.SGD().setup(chainer.links.Linear(2, 2))
        >>> optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
        >>> [name for name, _ in named_hooks(optimizer)]
        ['WeightDecay']
    """
    before, after = _by_name(owner)
    return [*before.items(), *after.items()]


def _by_name(owner: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the hooks before an update, and those after it."""
    hooks = getattr(owner, "_hookable", None)
    # An optimizer without a target has no hooks.
    if hooks is None:
        return {}, {}
    return hooks._pre_update_hooks, hooks._post_update_hooks


class Hooks(NamedTuple):
    """The hooks of an optimizer, or of an update rule.

    Attributes:
        before: The hooks before an update, in their order.
        after: The hooks after an update.
    """

    before: Sequence[Any]
    after: Sequence[Any]

    @classmethod
    def of(cls, optimizer: chainer.Optimizer | chainer.UpdateRule) -> Hooks:
        """Returns the present hooks of an optimizer or update rule."""
        before, after = _by_name(optimizer)
        return cls((*before.values(),), (*after.values(),))

    @property
    def look_at_parameters(self) -> bool:
        """Whether some hook needs the parameters in float32."""
        return bool(self.after) or not all(map(is_clipping, self.before))


def is_clipping(hook: Any) -> bool:
    """Returns whether a hook is Chainer's clipping by the norm of all gradients."""
    # A subclass with its own ``__call__`` may do anything.
    return (
        isinstance(hook, GradientClipping)
        and type(hook).__call__ is GradientClipping.__call__
    )


def clipping_rate(hook: GradientClipping, squared_norm: Any) -> Any:
    """Returns the factor by which the hook multiplies gradients, 1 at most.

    Args:
        hook (GradientClipping): The hook.
        squared_norm: The squared norm of the gradients. Its floating-point dtype is the
            dtype of the computation. If it is not finite, the result is 0 or NaN.
    """
    norm = np.sqrt(squared_norm)
    return 1.0 if norm <= hook.threshold else hook.threshold / norm
