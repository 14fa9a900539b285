"""Snapshots with other cuts of the model, written without training."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from divisible import Plan
from pipeline.snapshots.arrays import Arrays, of_range, write_arrays
from pipeline.snapshots.directories import Draft
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.names import COMMON, LOSS, replica_file, stage_file


def repartition(
    snapshot: str | os.PathLike, plan: Plan | int, output: str | os.PathLike
) -> Path:
    """Writes a snapshot with other cuts of the model.

    :func:`~pipeline.load_snapshot` loads any snapshot for any cuts. With the snapshot
    from this function, a rank reads only files that it needs as a whole. One stage is
    in memory at a time.

    Args:
        snapshot: Directory of the snapshot to read; it stays as it is.
        plan (Plan or int): The new cuts; or a number of stages with equally many
            layers.
        output: Directory to write; a snapshot that is there is replaced.

    Returns:
        Path: ``output``.

    Raises:
        SnapshotError: If the snapshot is incomplete, truncated or changed; if stages
            with different optimizers would be joined; if something other than a
            snapshot is at ``output``; or if a run saves in the same directory.
        ValueError: If the cuts do not fit the model.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> from pipeline import Pipeline, save_snapshot
        >>> model = Divisible(*(L.Linear(2, 2) for _ in range(5)))
        >>> optimizer = chainer.optimizers.Adam().setup(model)
        >>> pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_snapshot(f'{folder}/1', pipe, optimizer)
        ...     path = repartition(f'{folder}/1', 2, f'{folder}/1_on_2_stages')
        ...     Snapshot.open(path).layer_ranges
        [(0, 3), (3, 5)]
    """
    source, output = Snapshot.open(snapshot), Path(output)
    if isinstance(plan, int):
        plan = Plan.uniform(source.n_layers, plan)
    _check_cut(source, plan, output)
    source.verify()
    draft = Draft(output)
    try:
        draft.begin()
        ranges = [plan.range(number) for number in range(plan.n_stages)]
        _write_cut(source, ranges, draft.folder)
        draft.finish()
    except BaseException:
        draft.discard()
        raise
    finally:
        draft.release()
    draft.warn()
    return output


def _check_cut(source: Snapshot, plan: Plan, output: Path) -> None:
    """Refuses cuts that do not fit the model, and an output in the snapshot."""
    if plan.n_layers != source.n_layers:
        raise ValueError(
            f"the cut {plan.cuts} is of {plan.n_layers} layers, but {source.path} is of"
            f" a model of {source.n_layers}"
        )
    there, here = output.resolve(), source.path.resolve()
    if there == here or here in there.parents:
        raise ValueError(
            f"{output} is the snapshot to read, or in it: give another output"
        )


def _write_cut(source: Snapshot, ranges: list[tuple[int, int]], folder: Path) -> None:
    """Writes all files of a snapshot with other cuts."""
    written = {}
    for number, layer_range in enumerate(ranges):
        files = source.files_of(range(*layer_range))
        for each in source.of_replicas():
            name, names = stage_file(number), files
            if each.replica:
                # Only the replica's own values.
                name = replica_file(each.replica, name)
                names = list(each.own_files(files).values())
            with source.arrays(names) as arrays:
                kept = _of_layers(arrays, layer_range)
                if kept or not each.replica:
                    written[name] = write_arrays(folder / name, kept)
    for name in {COMMON, LOSS} & set(source.files):
        with source.arrays([name]) as arrays:
            written[name] = write_arrays(folder / name, arrays)
    cut = replace(source, path=folder, layer_ranges=ranges, files=written, schedule={})
    cut.write_manifest()


def _of_layers(arrays: Arrays, layer_range: tuple[int, int]) -> dict[str, np.ndarray]:
    """Returns the arrays of some layers, or of none, by their full keys."""
    return {
        kind + key: value
        for kind in ("model/", "optimizer/")
        for key, value in of_range(arrays.below(kind), layer_range).items()
    }
