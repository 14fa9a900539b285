"""The rank that has the second copy of another rank's files.

::

    place   a        b        c
    rank    0, 1     2        3
    partner of 0 and 1: 2     of 2: 3     of 3: 0
"""

from __future__ import annotations

from collections.abc import Sequence


def partners(places: Sequence[str]) -> list[int | None]:
    """Returns the partner of each rank: a rank in the next place.

    Args:
        places: Name of each rank's place, which is lost as a whole.

    Returns:
        Number of each rank's partner; ``None`` for all if there is a single place,
        where a second copy would be lost together with the first.

    Example:
        >>> partners(['a', 'a', 'b', 'b'])
        [2, 3, 0, 1]
        >>> partners(['a', 'b', 'b', 'c'])
        [1, 3, 3, 0]
        >>> partners(['a', 'a'])
        [None, None]
    """
    members: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        members.setdefault(place, []).append(rank)
    order = list(members)
    if len(order) < 2:
        return [None] * len(places)
    found: list[int | None] = []
    for rank, place in enumerate(places):
        following = members[order[(order.index(place) + 1) % len(order)]]
        found.append(following[members[place].index(rank) % len(following)])
    return found
