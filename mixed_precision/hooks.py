"""The hooks of an optimizer, of which gradient clipping needs no look at parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np
from chainer.optimizer_hooks import GradientClipping


class Hooks(NamedTuple):
    """The hooks of an optimizer, or of an update rule.

    Attributes:
        before: Those before an update, in their order.
        after: Those after it.
    """

    before: Sequence[Any]
    after: Sequence[Any]

    @classmethod
    def of(cls, optimizer: chainer.Optimizer | chainer.UpdateRule) -> Hooks:
        """Returns the hooks that there are now."""
        hooks = optimizer._hookable
        if hooks is None:
            # There can be none before there is a target.
            return cls((), ())
        pre, post = hooks._pre_update_hooks, hooks._post_update_hooks
        return cls((*pre.values(),), (*post.values(),))

    @property
    def look_at_parameters(self) -> bool:
        """Whether parameters are to be in float32 for one of them."""
        return bool(self.after) or not all(map(is_clipping, self.before))


def is_clipping(hook: Any) -> bool:
    """Whether a hook is Chainer's clipping by the norm of all gradients."""
    # A subclass with a call of its own may do anything.
    return (
        isinstance(hook, GradientClipping)
        and type(hook).__call__ is GradientClipping.__call__
    )


def clipping_rate(hook: GradientClipping, squared_norm: Any) -> Any:
    """Returns what gradients of a norm are multiplied by, 1 at most, as the hook does.

    Args:
        hook (GradientClipping): The hook.
        squared_norm: A number of any floating-point dtype, in which the rate is
            computed; one that is not finite gives 0 or NaN.
    """
    norm = np.sqrt(squared_norm)
    return 1.0 if norm <= hook.threshold else hook.threshold / norm
