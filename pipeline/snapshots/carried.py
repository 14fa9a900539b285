"""States that layers carry, where there are more replicas than there were, or fewer.

The samples of a minibatch are those of replica 0, then those of replica 1, and so on::

    saved by 2    h of samples 0 1 2 3 | 4 5 6 7
    loaded by 1                0 1 2 3 4 5 6 7
    loaded by 4                0 1 | 2 3 | 4 5 | 6 7
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divisible import Divisible
from divisible.carried_state import carrying, declared, place_of
from pipeline.calls.ranks import Ranks
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.serializers import is_none


def load_shares(
    stage: Divisible, replicas: Sequence[Arrays], ranks: Ranks, is_dry_run: bool
) -> None:
    """Gives a stage its replica's share of the states that were carried.

    Args:
        stage: Loaded already.
        replicas: For each replica that there was its arrays, by paths in the model.
        ranks: Of the pipeline.
        is_dry_run: Whether it is to be seen only that this will go well.

    Raises:
        SnapshotError: If the samples cannot be shared out equally.
    """
    for path, link in carrying(stage, stage.layer_range[0]):
        for name, axis in declared(link).items():
            key = f"{path}/{place_of(name)}".lstrip("/")
            parts = [arrays[key] for arrays in replicas if key in arrays]
            # A replica that had nothing to carry has nothing for others either.
            if len(parts) < len(replicas) or any(map(is_none, parts)):
                continue
            rows = np.concatenate(parts, axis)
            if rows.shape[axis] % ranks.n_replicas:
                raise SnapshotError(
                    f"{path}.{name} was carried by {rows.shape[axis]} samples of"
                    f" {len(parts)} replicas, and cannot be shared out among"
                    f" {ranks.n_replicas}: resume with another number of replicas"
                )
            if not is_dry_run:
                share = np.split(rows, ranks.n_replicas, axis)[ranks.replica]
                setattr(link, place_of(name), link.device.send(share))
