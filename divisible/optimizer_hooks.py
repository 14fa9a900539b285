"""The hooks of an optimizer, or of an update rule: Chainer has no method that tells."""

from __future__ import annotations

from typing import Any


def named_hooks(owner: Any) -> list[tuple[str, Any]]:
    """Returns hooks with the names under which they were added.

    Args:
        owner: An optimizer, which has none before it is set up; an update rule, or
            ``None`` where a parameter has none.

    Returns:
        Those before an update in their order, then those after it.

    Example:
        >>> import chainer
        >>> optimizer = chainer.optimizers.SGD().setup(chainer.links.Linear(2, 2))
        >>> optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
        >>> [name for name, _ in named_hooks(optimizer)]
        ['WeightDecay']
    """
    hooks = getattr(owner, "_hookable", None)
    if hooks is None:
        return []
    return [*hooks._pre_update_hooks.items(), *hooks._post_update_hooks.items()]
