"""``divisible plan --shapes``: the memory of a model, without a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from divisible.deferred.scope import deferred_init
from divisible.planning.cut_plan import LAYERS
from divisible.planning.layer_memory import (
    MEMORY_COLUMNS,
    RANK_COLUMNS,
    ModelMemory,
    memory_rows,
    rank_rows,
)
from divisible.planning.memory_tracing import trace_memory
from divisible.planning.per_rank import spread_memory
from divisible.planning.shape_arrays import ShapeArray
from divisible.planning.units import count, format_bytes
from divisible.schedules.catalogue import create
from divisible.schedules.recomputation import recompute as recomputed
from divisible.schedules.schedule import Schedule
from pipeline.command_line import console
from pipeline.command_line.model_argument import (
    blaming,
    make_model,
    make_optimizer,
)

_DEFAULT = "1f1b"


def show_shapes(
    model: str,
    stages: int | None,
    *,
    inputs: Sequence[tuple],
    batch: int | None,
    microbatches: Sequence[int] | None,
    schedules: Sequence[str | Schedule],
    recompute: Sequence[str],
    optimizer: str | None,
    memory: Any,
    **others: Any,
) -> None:
    """Prints the memory of layers and, with stages, that of ranks by schedules.

    Args:
        model: The model, as :func:`make_model` reads it.
        stages: Number of stages; ``None`` for a table of layers alone.
        inputs: Shape of a sample and dtype, of each input.
        batch: Samples of a minibatch.
        microbatches: Numbers of microbatches.
        schedules: Names of schedules, or schedules of these stages.
        recompute: Ways of running microbatches forward again.
        optimizer: Name of an optimizer.
        memory: Bytes that a rank may use.
        **others: Options of the command that have no use here.

    Raises:
        ValueError: If shapes or names are wrong, or a rank does not have the memory.
    """
    if not inputs or batch is None:
        raise click.UsageError("--shapes needs --input, the shape of a sample, --batch")
    if LAYERS in recompute:
        raise click.UsageError("--recompute layers needs a profile")
    if stages is None and (schedules or microbatches or recompute):
        raise click.UsageError(
            "--schedule, --microbatches and --recompute with --shapes need --stages"
        )
    updates = None if optimizer is None else make_optimizer(optimizer)
    own = [each.n_microbatches for each in schedules if isinstance(each, Schedule)]
    numbers = microbatches or own[:1] or (1,)
    for n_microbatches in numbers:
        if n_microbatches > batch:
            raise ValueError(
                f"--microbatches {n_microbatches} are more than {batch} samples"
            )
    chosen = {
        n: [_schedule(each, stages, n) for each in schedules or (_DEFAULT,)]
        for n in numbers
        if stages
    }
    lacking: list[str] = []
    for n_microbatches in numbers:
        n_samples = -(-batch // n_microbatches)
        with blaming(model), deferred_init():
            made = make_model(model)
        found = _traced(made, inputs, n_samples, updates)
        console.say_wrapped(f"{model}, microbatches of {count(n_samples, 'sample')}")
        console.print_table(MEMORY_COLUMNS, memory_rows(found), left=(1, 2))
        if found.unknown:
            raise ValueError(found.unknown)
        for plain in chosen.get(n_microbatches, ()):
            for when in recompute or ("never",):
                schedule = recomputed(plain, when)
                limits = spread_memory(memory, schedule.n_ranks)
                lacking += _show_ranks(found, schedule, when, limits)
    if stages:
        console.say_wrapped(
            "What layers allocate while they compute is left out: divisible profile"
            " measures it."
        )
    if lacking:
        raise ValueError(
            f"{'; '.join(lacking)}. Give more --stages, more --microbatches or"
            f" --recompute always"
        )


def _schedule(schedule: str | Schedule, stages: int, n_microbatches: int) -> Schedule:
    """Returns a schedule of these stages and microbatches, by its name or as it is."""
    if not isinstance(schedule, Schedule):
        return create(schedule, stages, n_microbatches)
    if (schedule.n_stages, schedule.n_microbatches) != (stages, n_microbatches):
        raise ValueError(
            f"the schedule {schedule.name} has {count(schedule.n_stages, 'stage')} and"
            f" {count(schedule.n_microbatches, 'microbatch')}, not {stages} and"
            f" {n_microbatches}: give its numbers as --stages and --microbatches"
        )
    schedule.validate()
    return schedule


def _traced(model: Any, inputs: Sequence[tuple], n: int, optimizer: Any) -> ModelMemory:
    """Traces a model with softmax cross entropy, where its output allows that."""
    x = tuple(ShapeArray((n, *shape), dtype) for shape, dtype in inputs)
    found = trace_memory(model, x, optimizer=optimizer)
    output = found.output_shapes
    if found.unknown or len(output) != 1 or len(output[0]) < 2:
        return found
    t = ShapeArray((n, *output[0][2:]), np.int32)
    return trace_memory(model, x, t, optimizer=optimizer)


def _show_ranks(
    memory: ModelMemory, schedule: Schedule, when: str, limits: np.ndarray
) -> list[str]:
    """Prints what each rank holds, and returns a line about one that has no room."""
    cuts = memory.even_cuts(schedule)
    again = "" if when == "never" else f", recompute {when}"
    name = (
        f"{schedule.name}{again}, {count(schedule.n_stages, 'stage')},"
        f" {count(schedule.n_microbatches, 'microbatch')}"
    )
    console.say("")
    console.say_wrapped(f"{name}, cut where the fullest stage holds least: {cuts}")
    rows = rank_rows(memory, cuts, schedule, limits)
    console.print_table(RANK_COLUMNS, rows, left=(1,))
    lack = memory.rank_bytes(cuts, schedule) - limits
    worst = int(lack.argmax())
    if lack[worst] <= 0:
        return []
    needed, limit = map(format_bytes, (lack[worst] + limits[worst], limits[worst]))
    return [f"{name}: rank {worst} needs {needed}, and has {limit}"]
