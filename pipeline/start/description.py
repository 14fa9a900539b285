"""Describes a pipeline by lines of text and a table, for terminals and notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from chainer_kernels.text_table import text_table
from data_parallel import Grid
from divisible import ModelMemory
from divisible.layer_texts import title
from divisible.planning.layer_memory import rank_rows
from divisible.planning.message_plan import message_lines
from divisible.planning.plan import Plan
from divisible.planning.profile import check_layers
from divisible.planning.retained_arrays import FULL
from divisible.planning.units import (
    count,
    format_bytes,
    format_seconds,
    words_of_runs,
)
from divisible.schedules.schedule import Schedule
from divisible.schedules.weight_versions import n_weights
from divisible.terminal_text import printable

# Most layers of a stage that are named; longer stages leave some out.
_SHOWN = 5
# Position of the column with their names.
_NAMES = 3
_PREDICTED = ("microbatch", "memory", "of")


class Description(NamedTuple):
    """The description of a pipeline.

    Attributes:
        lines: Lines about how it runs; the first one is a headline.
        columns: Titles of the columns in a table of stages.
        rows: Texts of a row for each stage.
    """

    lines: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        table = text_table([self.columns, *self.rows], left=(_NAMES,))
        head, *rest = self.lines
        return printable("\n".join([head, table, *rest]), keeps_lines=True)

    def to_html(self) -> str:
        """Returns the description as HTML."""
        head, *rest = map(html.escape, self.lines)
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self.rows
        )
        names = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        below = "".join(f"<div>{line}</div>" for line in rest)
        return f"<div>{head}</div><table><tr>{names}</tr>{rows}</table>{below}"


def describe(
    plan: Plan | None,
    cuts: Sequence[int],
    schedule: Schedule,
    model_layers: Sequence[str],
    ranks: Sequence[Sequence[int]],
    changes: Sequence[str] = (),
    waits_for: str = "",
    confirmed: str = "",
    varying: Sequence[tuple[str, str, str]] = (),
    memory: ModelMemory | None = None,
) -> Description:
    """Returns the description of a pipeline.

    Args:
        plan: The plan in force; ``None`` if no plan describes what runs.
        cuts: Cuts of the model.
        schedule: The schedule in force.
        model_layers: A text about each layer of the model.
        ranks: Ranks of each stage, one of each replica.
        changes: Texts about arguments that differ from the plan.
        waits_for: The feature for which minibatches do not overlap; empty if they do.
        confirmed: A text about updates that were confirmed late; empty without them.
        varying: Channels whose messages have shapes that are not static: a title, an
            empty text, and a reason.
        memory: The memory of the model's layers from shapes; ``None`` if it is unknown.

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> plan = Plan([0, 2, 3], 4, '1f1b')
        >>> layers = ['Linear(2)', 'relu', 'Linear(3)']
        >>> print(describe(plan, plan.cuts, one_f_one_b(2, 4), layers, [[0], [1]]))
        3 layers in 2 stages on 2 ranks, 1f1b schedule, 4 microbatches
        stage  rank  layers                in flight
            0     0    0..1  Linear, relu          2
            1     1    2..2  Linear                1
    """
    in_flight = schedule.validate().stage_in_flight
    columns = ["stage", "rank", "layers", "", "in flight"]
    rows = [
        [
            str(number),
            " ".join(map(str, ranks[number])),
            f"{start}..{end - 1}",
            _names(model_layers[start:end]),
            str(in_flight[number]),
        ]
        for number, (start, end) in enumerate(zip(cuts, cuts[1:]))
    ]
    if schedule.weight_versions > 1:
        columns.append("weight versions")
        for row, held in zip(rows, n_weights(schedule)):
            row.append(str(held))
    if plan is not None and plan.stages is not None:
        columns += _PREDICTED
        for row, stage in zip(rows, plan.stages):
            limit = stage.memory_limit
            row += [format_seconds(stage.seconds), format_bytes(stage.memory)]
            row.append("" if limit is None else format_bytes(limit))
    n_ranks = len({rank for each in ranks for rank in each})
    head = (
        f"{count(cuts[-1], 'layer')} in {count(len(cuts) - 1, 'stage')} on"
        f" {count(n_ranks, 'rank')}, {schedule.name} schedule,"
        f" {count(schedule.n_microbatches, 'microbatch')}"
    )
    besides = _besides(plan, changes)
    if waits_for and n_ranks > 1:
        words = f"minibatches do not overlap: {waits_for}"
        made_for = None if plan is None else plan.conditions
        if made_for is not None and made_for.overlap_minibatches:
            words += ". The predicted step is of minibatches that do"
        besides.append(words)
    if confirmed:
        besides.append(confirmed)
    for channel, _, reason in varying:
        besides.append(f"shapes of messages are not static, {channel}: {reason}")
    if memory is not None:
        besides += _memory_lines(memory, cuts, schedule, model_layers)
    return Description([head, *besides], columns, rows)


def ranks_of_stages(
    grid: Grid | None, stage_ranks: Sequence[int]
) -> Sequence[Sequence[int]]:
    """Returns the ranks of each stage, one of each replica.

    Args:
        grid: The grid; ``None`` without replicas.
        stage_ranks: The rank of each stage in its pipeline.
    """
    if grid is None:
        return [[rank] for rank in stage_ranks]
    replicas = range(grid.n_replicas)
    return [[grid.rank_of(each, rank) for each in replicas] for rank in stage_ranks]


def _memory_lines(
    memory: ModelMemory,
    cuts: Sequence[int],
    schedule: Schedule,
    model_layers: Sequence[str],
) -> list[str]:
    """Returns a line for each rank of a pipeline about its memory."""
    try:
        names = [layer.name for layer in memory.layers]
        check_layers("the memory", names, "the pipeline", model_layers)
        rows = rank_rows(memory, cuts, schedule)
    except ValueError as error:
        return [f"memory is not shown: {error}"]
    size = count(memory.n_samples, "sample")
    lines = [f"memory from shapes, for microbatches of {size}:"]
    for rank, _, *sizes, _ in rows:
        parameters, gradients, optimizer, activations, whole = sizes
        lines.append(
            f"  rank {rank}: {whole}: parameters {parameters}, gradients {gradients},"
            f" optimizer {optimizer}, activations and messages {activations}"
        )
    return lines


def _names(layers: Sequence[str]) -> str:
    """Returns the names of layers; of many, only the first ones and the last."""
    names = [title(text).partition("(")[0] for text in layers]
    if len(names) > _SHOWN:
        names[_SHOWN - 2 : -1] = ["..."]
    return ", ".join(names)


def _besides(plan: Plan | None, changes: Sequence[str]) -> list[str]:
    """Returns lines about the other fields of the plan in force."""
    if plan is None:
        return []
    words = []
    if plan.replicas > 1:
        shares = ""
        if plan.shares is not None:
            shares = f" with shares {':'.join(f'{x:g}' for x in plan.shares)}"
        feedback = ", with error feedback" * plan.error_feedback
        words.append(
            f"{count(plan.replicas, 'replica')}{shares}, which exchange gradients in"
            f" {plan.exchange_dtype or 'fp32'}{feedback}"
        )
    if any(each.is_narrowed for each in plan.messages):
        words += message_lines(plan.messages)
    if plan.recompute != "never":
        words.append(f"microbatches are recomputed: {plan.recompute}")
    if plan.recomputed:
        words.append(f"recomputed layers: {words_of_runs(plan.recomputed)}")
    if plan.weight_groups > 1:
        words.append(
            f"weight gradients of {count(plan.weight_groups, 'microbatch')} are one"
            f" product"
        )
    if plan.stage_groups:
        sizes = ", ".join(map(str, plan.stage_groups))
        words.append(f"microbatches that the stages take as one: {sizes}")
    if "disk" in plan.hold_in:
        holding = [str(i) for i, place in enumerate(plan.hold_in) if place == "disk"]
        words.append(f"microbatches wait on disk on the ranks {', '.join(holding)}")
    if plan.hold_dtype != FULL:
        words.append(f"activations wait in {plan.hold_dtype}")
    if plan.streamed:
        words.append(f"weights on disk: layers {', '.join(map(str, plan.streamed))}")
    if plan.fusion:
        chains = ", ".join(f"{start}..{end - 1}" for start, end in plan.fusion)
        words.append(f"layers that run as one function: {chains}")
    if plan.step_seconds is not None:
        words.append(
            f"predicted: {format_seconds(plan.step_seconds)} a step"
            + ("" if plan.bubble is None else f", bubble {plan.bubble:.1%}")
        )
    if plan.conditions is not None:
        words.append(f"planned for {plan.conditions}")
    if changes:
        words.append(f"given besides the plan: {', '.join(changes)}")
    return words
