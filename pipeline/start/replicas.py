"""Compares the replicas of a pipeline when it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from data_parallel import Grid
from data_parallel.parameters import NamedParameter
from data_parallel.replica_agreement import broadcast_values, differing
from divisible import Divisible
from divisible.communication.errors import DisagreementError, in_words
from pipeline.start.agreement import (
    Refusal,
    Start,
    StartAnnouncement,
    agree,
    compare_models,
    compare_settings,
)


def agree_on_replicas(said: Sequence[StartAnnouncement | Refusal], grid: Grid) -> Start:
    """Returns how the model lies on each pipeline, from all announcements.

    Args:
        said: Announcements of all ranks, in the order of the grid's world.
        grid: The grid of this rank.

    Returns:
        The start of this rank's pipeline.

    Raises:
        DisagreementError: If a rank refuses, if the ranks of a replica do not make up a
            model, or if replicas differ.
    """
    for rank, word in enumerate(said):
        if isinstance(word, Refusal):
            replica, _ = grid.place(rank)
            raise DisagreementError(
                f"rank {rank} (replica {replica}) refuses to start: {word}"
            )
    compare_models(said)
    compare_settings([word.settings for word in said])
    rows = [
        [grid.rank_of(replica, i) for i in range(grid.n_pipeline)]
        for replica in range(grid.n_replicas)
    ]
    starts = []
    for replica, row in enumerate(rows):
        try:
            starts.append(agree([said[rank] for rank in row]))
        except DisagreementError as error:
            raise DisagreementError(
                f"replica {replica} is no pipeline: {error} (ranks 0 to"
                f" {len(row) - 1} of a replica are here {in_words(row)} of all)"
            ) from None
        for here, there in zip(rows[0], row):
            _compare_cuts(said, grid, here, there)
    return starts[grid.replica]


def without_draws(
    said: Sequence[StartAnnouncement], grid: Grid
) -> list[StartAnnouncement]:
    """Returns announcements without the draws of later replicas.

    Replicas begin with the parameters of replica 0, so their own draws do not count.
    """
    return [
        word if grid.place(rank)[0] == 0 else word._replace(early_draws=None)
        for rank, word in enumerate(said)
    ]


def begin_alike(
    grid: Grid | None, stages: Mapping[int, Divisible], timeout: float
) -> None:
    """Gives this rank's parameters the values that they have in replica 0.

    Replicas may have been made with different seeds, as may copies of a tied parameter.

    Args:
        grid: Grid of this rank; ``None`` without replicas.
        stages: This rank's stages, by number.
        timeout: Seconds to wait for another replica.

    Raises:
        StallError: If another replica does not answer in time.
    """
    if grid is None:
        return
    params = [
        NamedParameter(path, param)
        for _, stage in sorted(stages.items())
        for path, param in sorted(stage.namedparams(include_uninit=False))
        if param.device.xp is np
    ]
    found = differing(grid.data, params, timeout)
    broadcast_values(grid.data, params, found, timeout)


def _compare_cuts(
    said: Sequence[StartAnnouncement], grid: Grid, here: int, there: int
) -> None:
    if said[here].layer_ranges != said[there].layer_ranges:
        places = [
            f"rank {rank} (replica {grid.place(rank)[0]}, rank {grid.place(rank)[1]}"
            f" of its pipeline) has the layers "
            + " and ".join(f"{a} to {b - 1}" for a, b in said[rank].layer_ranges)
            for rank in (here, there)
        ]
        raise DisagreementError(
            f"replicas are cut differently: {', but '.join(places)}. Cut the model by"
            f" the rank in grid.pipeline, the same way in all replicas"
        )
