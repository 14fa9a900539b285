"""Outputs of a forward, one by one.

A model returns variables. The result of a forward is taken apart in its order::

    return y                                y
    return [y, z]                           y, z
    return {'map': y, 'size': z}            y, z
    return [{'map': a, 'size': b}, c]       a, b, c
"""

from __future__ import annotations

from typing import Any


def returned(result: Any) -> list[Any]:
    """Returns the outputs of a forward, and the values of dictionaries, one by one.

    Args:
        result: Result of a forward: an output, or a tuple or list of outputs.

    Example:
        >>> returned([1, {"a": 2, "b": 3}]), returned(()), returned({})
        ([1, 2, 3], [()], [{}])
    """
    several = isinstance(result, (tuple, list)) and len(result) > 0
    found: list[Any] = []
    for output in result if several else (result,):
        if isinstance(output, dict) and output:
            found.extend(output.values())
        else:
            found.append(output)
    return found
