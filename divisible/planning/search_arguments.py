"""The arguments of :func:`divisible.best_plan`, checked."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from divisible.planning.layer_cost import SAMPLE_BYTES
from divisible.planning.profile import Profile
from divisible.records import shown
from divisible.schedules.catalogue import NAMES
from divisible.schedules.recomputation import CHECKPOINTS


def integers(name: str, values: Sequence[int]) -> list[int]:
    """Returns numbers to try as Python's integers.

    Raises:
        TypeError: If they are not integers.
        ValueError: If there is none, or one is not positive.
    """
    try:
        found = [operator.index(value) for value in values]
    except TypeError:
        raise TypeError(
            f"{name} must be integers to try, such as [1, 2, 4], not {shown(values)}"
        ) from None
    if not found or min(found) < 1:
        raise ValueError(f"{name} must be some positive integers, not {found}")
    return found


def check_arguments(
    ranks: int,
    batch: int,
    schedules: Sequence[str],
    checkpoints: Sequence[str],
    replicas: tuple[int, int],
) -> None:
    """Refuses numbers that are not positive, and names of nothing.

    Raises:
        ValueError: With what is expected.
    """
    fewest, most = replicas
    for name, number in (
        ("ranks", ranks),
        ("batch", batch),
        ("max_replicas", most),
        ("min_replicas", fewest),
    ):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    if fewest > min(most, ranks):
        raise ValueError(
            f"min_replicas is {fewest}, but of {ranks} ranks there can be"
            f" {min(most, ranks)} at most: max_replicas is {most}"
        )
    for name, values, known in (
        ("schedules", schedules, NAMES),
        ("checkpoints", checkpoints, CHECKPOINTS),
    ):
        unknown = [value for value in values if value not in known]
        if unknown or not values:
            raise ValueError(
                f"{name} must be some of {', '.join(known)}, not {list(values)}"
            )


def check_size(profile: Profile, batch: int) -> None:
    """Refuses minibatches whose memory is no 64-bit integer."""
    of_layers = sum(float(profile.column(name).sum()) for name in SAMPLE_BYTES)
    n_bytes = batch / profile.n_samples * of_layers
    if n_bytes >= 2**62:
        raise ValueError(
            f"batch is {batch}, for which the layers would hold {n_bytes:.0e} bytes"
        )
