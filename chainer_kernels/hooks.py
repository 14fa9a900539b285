"""Hooks that observe single functions, which are not computed together then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chainer

from chainer_kernels import switch


def is_quiet() -> bool:
    """Returns whether no hook and no debug mode observes single functions.

    Example:
        >>> is_quiet()
        True
        >>> with chainer.function_hooks.TimerHook():
        ...     is_quiet()
        False
    """
    return (
        switch.is_ours()
        and not _minding(chainer.get_function_hooks())
        and not _minding(chainer._get_link_hooks())
        and not chainer.is_debug()
    )


def has_hooks(layer: Any) -> bool:
    """Returns whether a layer, or a link within it, has a hook of its own."""
    return isinstance(layer, chainer.Link) and any(
        link._n_local_link_hooks for link in layer.links()
    )


def _minding(hooks: Mapping[str, Any]) -> bool:
    """Returns whether a hook needs to observe each function.

    A hook that works with fused functions has an attribute ``minds_fusion = False``.
    """
    return any(getattr(hook, "minds_fusion", True) for hook in hooks.values())
