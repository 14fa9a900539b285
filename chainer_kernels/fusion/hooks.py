"""Hooks that look at single functions, for which layers run one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chainer

from chainer_kernels import switch


def is_quiet() -> bool:
    """Returns whether nobody looks at the functions in between.

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
    """Returns whether a hook wants to see each function.

    One that does not says so by an attribute ``minds_fusion`` that is false.
    """
    return any(getattr(hook, "minds_fusion", True) for hook in hooks.values())
