"""Hooks that observe single functions, which are not computed together then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chainer

from chainer_kernels import switch


def is_quiet() -> bool:
    """Returns whether this project's kernels run, and nothing observes functions.

    Example:
        >>> is_quiet()
        True
        >>> with chainer.function_hooks.TimerHook():
        ...     is_quiet()
        False
    """
    return switch.is_ours() and not is_observed()


def is_observed() -> bool:
    """Returns whether a hook or debug mode observes single functions."""
    return (
        are_minding(chainer.get_function_hooks())
        or are_minding(chainer._get_link_hooks())
        or chainer.is_debug()
    )


def has_hooks(layer: Any) -> bool:
    """Returns whether a layer, or a link within it, has a hook of its own."""
    return isinstance(layer, chainer.Link) and any(
        link._n_local_link_hooks for link in layer.links()
    )


def are_minding(hooks: Mapping[str, Any]) -> bool:
    """Returns whether a hook needs to observe each function.

    A hook that works with fused functions has an attribute ``minds_fusion = False``.

    Args:
        hooks: Hooks of functions or of links, by name.
    """
    return any(getattr(hook, "minds_fusion", True) for hook in hooks.values())
