"""Earlier mappings, to compare with rectangular ones (section 4 of Ozawa et al.).

Each group has the same number of processors, and shares its samples::

    abilities 1 : 1.5 : 2 : 2.5 : 3 : 3.5, two groups

              samples    hidden units
    1         1 : 1      1 : 1 : 1            equal parts for all
    H         1 : 2.5    1 : 1 : 1            samples by each group's slowest
    H_rev     1 : 2.5    1 : 1.5 : 2          and units by the slowest group
"""

from __future__ import annotations

from collections.abc import Sequence

from divisible.records import plain_integer
from heterogeneous.costs import OneToOne
from heterogeneous.partition import RectangularPartition, checked, checked_shape


def method_1(
    n_processors: int,
    n_groups: int,
    n: int,
    m: int,
    l: int,  # noqa: E741
    s: int,
) -> RectangularPartition:
    """Gives every processor an equal part, independent of its ability.

    Args:
        n_processors: Number of processors.
        n_groups: Number of columns that they form; a divisor of the number of
            processors.
        n: Inputs of the network.
        m: Hidden units.
        l: Outputs.
        s: Samples.

    Raises:
        TypeError, ValueError: If an argument is not a valid number.

    Example:
        >>> method_1(4, 2, 203, 80, 26, 1024).rectangles[3].samples
        (512, 1024)
    """
    n_processors = plain_integer("n_processors", n_processors)
    if n_processors < 1:
        raise ValueError(f"n_processors must be 1 or more, not {n_processors}")
    abilities = checked([1.0] * n_processors)
    return _grouped(abilities, n_groups, (n, m, l, s))


def method_h(
    abilities: Sequence[float],
    n_groups: int,
    n: int,
    m: int,
    l: int,  # noqa: E741
    s: int,
) -> RectangularPartition:
    """Gives groups samples by the ability of their slowest processors: method H.

    Args:
        abilities: Abilities of the processors, positive, of any sum.
        n_groups: Number of columns that they form; a divisor of the number of
            processors.
        n: Inputs of the network.
        m: Hidden units.
        l: Outputs.
        s: Samples.

    Raises:
        TypeError, ValueError: If an argument is not a valid number.

    Example:
        >>> p = method_h([1, 1.5, 2, 2.5, 3, 3.5], 2, 203, 90, 26, 1400)
        >>> p.rectangles[1].samples, p.rectangles[1].units
        ((0, 400), (30, 60))
    """
    return _grouped(checked(abilities), n_groups, (n, m, l, s), weighs_samples=True)


def method_h_rev(
    abilities: Sequence[float],
    n_groups: int,
    n: int,
    m: int,
    l: int,  # noqa: E741
    s: int,
) -> RectangularPartition:
    """Divides hidden units as well, by the slowest group: H_rev, the paper's method 2.

    Args:
        abilities: Abilities of the processors, positive, of any sum.
        n_groups: Number of columns that they form; a divisor of the number of
            processors.
        n: Inputs of the network.
        m: Hidden units.
        l: Outputs.
        s: Samples.

    Raises:
        TypeError, ValueError: If an argument is not a valid number.

    Example:
        >>> p = method_h_rev([1, 1.5, 2, 2.5, 3, 3.5], 2, 203, 90, 26, 1400)
        >>> [r.units for r in p.rectangles[3:]]
        [(0, 20), (20, 50), (50, 90)]
    """
    return _grouped(
        checked(abilities),
        n_groups,
        (n, m, l, s),
        weighs_samples=True,
        weighs_units=True,
    )


def _grouped(
    abilities: tuple[float, ...],
    n_groups: int,
    shape: tuple[int, int, int, int],
    *,
    weighs_samples: bool = False,
    weighs_units: bool = False,
) -> RectangularPartition:
    """Divides the work in equal parts, or by the abilities of slowest processors."""
    count, n_groups = len(abilities), plain_integer("n_groups", n_groups)
    if n_groups < 1 or count % n_groups:
        fitting = [i for i in range(1, count + 1) if count % i == 0]
        raise ValueError(
            f"n_groups is {n_groups}, but {count} processors form"
            f" {' or '.join(map(str, fitting))} groups of equally many: give one of"
            f" these"
        )
    shape = checked_shape(*shape)
    size = count // n_groups
    by_ability = sorted(range(count), key=lambda i: abilities[i])
    groups = [by_ability[i : i + size] for i in range(0, count, size)]
    # Widths follow the slowest of each group, heights all of the slowest group.
    widths = [abilities[group[0]] if weighs_samples else 1.0 for group in groups]
    heights = [abilities[i] if weighs_units else 1.0 for i in groups[0]]
    return RectangularPartition(
        tuple(map(tuple, groups)),
        tuple(width / sum(widths) for width in widths),
        (tuple(height / sum(heights) for height in heights),) * n_groups,
        abilities,
        *shape,
        OneToOne(*shape),
    )
