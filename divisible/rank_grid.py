"""The numbering of ranks that are replicas of a pipeline."""

from __future__ import annotations

from typing import NamedTuple

#: How ranks may be numbered.
PLACEMENTS = ("stages_together", "replicas_together")


class RankGrid(NamedTuple):
    """Ranks in rows, which are pipelines, and columns, which have the same stages.

    ::

        'stages_together'                 'replicas_together'

                   rank in the pipeline              rank in the pipeline
                     0   1   2                         0   1   2
        replica 0    0   1   2            replica 0    0   2   4
        replica 1    3   4   5            replica 1    1   3   5

    Attributes:
        n_pipeline: Ranks of a pipeline.
        n_replicas: How many pipelines there are.
        placement: One of `PLACEMENTS`.

    Example:
        >>> grid = RankGrid(3, 2, "replicas_together")
        >>> grid.place(3), grid.rank_of(1, 1)
        ((1, 1), 3)
    """

    n_pipeline: int
    n_replicas: int
    placement: str

    def place(self, rank: int) -> tuple[int, int]:
        """Returns the replica of a rank, and its rank in that pipeline."""
        if self.placement == "stages_together":
            replica, place = divmod(rank, self.n_pipeline)
        else:
            place, replica = divmod(rank, self.n_replicas)
        return replica, place

    def rank_of(self, replica: int, place: int) -> int:
        """Returns the rank at a place in a replica's pipeline."""
        if self.placement == "stages_together":
            return replica * self.n_pipeline + place
        return place * self.n_replicas + replica


def check_placement(placement: str) -> None:
    """Refuses what is no placement.

    Raises:
        ValueError: With those that there are.
    """
    if placement not in PLACEMENTS:
        raise ValueError(
            f"placement must be {' or '.join(map(repr, PLACEMENTS))}, not {placement!r}"
        )
