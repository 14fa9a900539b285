"""Tuples, lists and dictionaries around the inputs and outputs of a module.

::

    (x, [h, c], None)   ->   leaves [x, h, c]   and   (slot 0, [slot 1, slot 2], None)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Slot(NamedTuple):
    """The place of a leaf in a structure.

    Attributes:
        index: Position of the leaf.
    """

    index: int


def without_leaves(
    value: Any, is_leaf: Callable[[Any], bool], leaves: list[Any]
) -> Any:
    """Returns a structure with slots in place of its leaves.

    Args:
        value: A leaf, another value, or tuples, lists and dictionaries of them.
        is_leaf: Returns whether a value is a leaf; other values stay.
        leaves (list): List to which the leaves are appended, in their order.

    Example:
        >>> leaves = []
        >>> without_leaves((1.5, ['a', 2.5]), lambda x: isinstance(x, float), leaves)
        (Slot(index=0), ['a', Slot(index=1)])
        >>> leaves
        [1.5, 2.5]
    """
    if is_leaf(value):
        leaves.append(value)
        return Slot(len(leaves) - 1)
    return _mapped(lambda part: without_leaves(part, is_leaf, leaves), value)


def with_leaves(structure: Any, leaves: Sequence[Any]) -> Any:
    """Returns a structure with leaves in place of its slots.

    Args:
        structure: Result of :func:`without_leaves`.
        leaves: The leaves, by the index of their slot.

    Example:
        >>> with_leaves((Slot(1), {'a': Slot(0)}), [3, 4])
        (4, {'a': 3})
    """
    if isinstance(structure, Slot):
        return leaves[structure.index]
    return _mapped(lambda part: with_leaves(part, leaves), structure)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, tuple):
        parts = [function(part) for part in value]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, list):
        return [function(part) for part in value]
    if isinstance(value, dict):
        changed = copy.copy(value)
        for key, part in value.items():
            changed[key] = function(part)
        return changed
    return value
