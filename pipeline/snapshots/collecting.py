"""Collects a rank's state as arrays by file, and what the other ranks must know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from divisible.streaming.mapped import parts_of
from pipeline.pipeline import Pipeline
from pipeline.snapshots import layer_state, manifest
from pipeline.snapshots.arrays import of_range
from pipeline.snapshots.directories import Draft
from pipeline.snapshots.optimizer_state import optimizer_arrays
from pipeline.snapshots.optimizers_of_stages import OptimizersOfStages, covers
from pipeline.snapshots.random_states import dump_random_states

#: By file the arrays by key.
Contents = dict[str, dict[str, np.ndarray]]


class Announcement(NamedTuple):
    """The facts that a rank tells the others before it writes.

    Attributes:
        place: Its replica, and its rank in that.
        path: Of the snapshot.
        folder: Where to write it; that of rank 0 counts.
        layer_ranges: Of its stages, by number.
        is_first: Whether it has the first stage.
        objects: The state of what it alone has besides its stages.
        random_states: Of its generators.
        digests: By file and key of what it has, if there are several replicas.
    """

    place: tuple[int, int]
    path: str
    folder: str
    layer_ranges: Mapping[int, tuple[int, int]]
    is_first: bool
    objects: Mapping[str, np.ndarray]
    random_states: str
    digests: Mapping[str, Mapping[str, str]]


def collect(
    pipeline: Pipeline,
    optimizers: Any,
    state: Mapping[str, Any],
    values: Mapping[str, Any],
    draft: Draft,
) -> tuple[Contents, Announcement]:
    """Returns what this rank is to write, by file, and what the others must know."""
    layer_state.check_objects(state)
    json.dumps(values)
    contents = _layer_contents(pipeline, OptimizersOfStages(optimizers, pipeline))
    objects = {}
    ranks = pipeline.ranks
    digests = _digests(contents) if ranks.n_replicas > 1 else {}
    if ranks.is_chief or (pipeline.is_first and ranks.replica == 0):
        objects = layer_state.object_arrays({**state, "pipeline": pipeline})
    if ranks.is_chief:
        contents[manifest.COMMON] = objects
        objects = {}
        draft.begin()
    ranges = {number: stage.layer_range for number, stage in pipeline.stages.items()}
    mine = Announcement(
        (ranks.replica, ranks.rank),
        str(draft.path),
        str(draft.folder),
        ranges,
        pipeline.is_first,
        objects,
        dump_random_states(state),
        digests,
    )
    return contents, mine


def _layer_contents(pipeline: Pipeline, optimizers: OptimizersOfStages) -> Contents:
    """Returns the arrays of this rank's stages, and of its loss, by file."""
    contents = {}
    of_stages = optimizers.of_stages
    states = [optimizer_arrays(each, optimizers.names(each)) for each in of_stages]
    for number, stage in pipeline.stages.items():
        covering = [
            of_range(state, stage.layer_range)
            for optimizer, state in zip(of_stages, states)
            if covers(optimizer, stage)
        ]
        model = layer_state.model_arrays(stage)
        contents[manifest.stage_file(number)] = _file_contents(
            f"parameters of stage {number}", model, covering
        )
    if pipeline.is_last and optimizers.loss_links:
        model = layer_state.object_arrays(optimizers.loss_links)
        covering = [optimizer_arrays(each) for each in optimizers.of_loss]
        contents[manifest.LOSS] = _file_contents("the loss", model, covering)
    return contents


def _file_contents(
    what: str,
    model: Mapping[str, np.ndarray],
    optimizers: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Returns the arrays of one file: those of a model, and of its optimizer if any."""
    if len(optimizers) > 1:
        raise ValueError(f"{len(optimizers)} optimizers update {what}; only one can")
    contents = {f"model/{key}": value for key, value in model.items()}
    for optimizer in optimizers:
        contents.update((f"optimizer/{key}", v) for key, v in optimizer.items())
    return contents


def common_arrays(
    announcements: Sequence[Announcement], objects: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the arrays that belong to no stage; ``objects`` are those of rank 0.

    Random states are numbered by replica, whatever the placement of the grid.
    """
    merged: dict[str, np.ndarray] = {}
    for theirs in (*(each.objects for each in announcements), objects):
        merged.update((f"state/{key}", value) for key, value in theirs.items())
    by_place = sorted(announcements, key=lambda each: each.place)
    for number, theirs in enumerate(by_place):
        merged[f"random/{number}"] = np.array(theirs.random_states.encode())
        if theirs.is_first and theirs.place[0] == 0:
            merged["random/first"] = merged[f"random/{number}"]
    return merged


def of_replica(
    contents: Contents, mine: Announcement, announcements: Sequence[Announcement]
) -> Contents:
    """Returns what a rank is to write: in later replicas, what they have otherwise.

    Args:
        contents: What it has, by file.
        mine: What it has said.
        announcements: What all ranks have said.
    """
    replica, rank = mine.place
    if replica == 0:
        return contents
    (first,) = (each.digests for each in announcements if each.place == (0, rank))
    own = {}
    for name, arrays in contents.items():
        there, here = first.get(name, {}), mine.digests[name]
        found = {k: value for k, value in arrays.items() if there.get(k) != here[k]}
        if found:
            own[manifest.replica_file(replica, name)] = found
    return own


def _digests(contents: Contents) -> dict[str, dict[str, str]]:
    return {
        name: {key: _digest(np.asarray(value)) for key, value in arrays.items()}
        for name, arrays in contents.items()
    }


def _digest(array: np.ndarray) -> str:
    kind = f"{array.dtype.str} {array.shape}"
    digest = hashlib.blake2b(digest_size=16)
    for part in parts_of(array):
        has_objects = part.dtype.hasobject
        digest.update(repr(part).encode() if has_objects else part.tobytes())
    return digest.hexdigest() + kind
