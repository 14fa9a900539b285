"""The answer to a question: what the page draws, as plain values for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from divisible.explore.formula import formula_of
from divisible.explore.measured import lost_time
from divisible.explore.question import Question
from divisible.explore.reasons import reasons
from divisible.explore.simulation import BYTES, Simulation
from divisible.explore.sources import Sources
from divisible.planning.layer_cost import SECONDS
from divisible.planning.units import count, format_bytes, format_seconds
from divisible.schedules.actions import KINDS
from divisible.schedules.bars import COLORS, chunks
from divisible.schedules.catalogue import CATALOGUE, Placement
from divisible.schedules.critical_path import critical_path
from divisible.schedules.dependencies import NONE, other_rank_suppliers, receivers
from divisible.schedules.event_table import EventTable
from divisible.schedules.events import CATEGORIES
from divisible.schedules.grid import grid_steps
from divisible.schedules.lower_bound import above
from divisible.schedules.plot import LABELS
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import results_sent


def answer(
    simulation: Simulation, sources: Sources, with_reasons: bool = False
) -> dict[str, Any]:
    """Returns what the page draws of a simulation.

    Args:
        simulation: The simulation.
        sources: Contents of the files that were read.
        with_reasons: Whether there is a reason for each event, for a page without a
            server.

    Returns:
        Plain values: the schedule's text and grid, events, messages, memory, and facts
        in words.
    """
    schedule, timeline = simulation.schedule, simulation.timeline
    question = simulation.question
    found = {
        "name": schedule.name,
        "text": str(schedule),
        "ranks": schedule.n_ranks,
        "stages": schedule.n_stages,
        "microbatches": schedule.n_microbatches,
        "minibatches": question.minibatches,
        "grid": _grid(schedule),
        "seconds": timeline.makespan,
        "bubble": timeline.bubble.tolist(),
        "events": events_of(timeline),
        "messages": _messages(simulation),
        "critical": critical_path(timeline),
        "memory": _memory(simulation),
        "formula": formula_of(simulation),
        "facts": _facts(simulation),
        "cuts": simulation.cuts,
    }
    if sources.measured is not None:
        found["lost"] = lost_time(sources.measured, timeline)
    if with_reasons:
        found["reasons"] = [[each.text, each.chain] for each in reasons(simulation)]
    return found


def start(sources: Sources) -> dict[str, Any]:
    """Returns what the page needs once: defaults, names, colours, and what was read.

    Args:
        sources: Contents of the files that were read.
    """
    found = {
        "defaults": Question().to_json(),
        "question": sources.first_question().to_json(),
        "schedules": [
            {
                "name": name,
                "any_chunks": entry.placement is Placement.LOOP,
                "chunks": entry.stages_per_rank,
            }
            for name, entry in CATALOGUE.items()
        ],
        "colors": COLORS,
        "labels": {each: LABELS.get(each, each) for each in CATEGORIES},
        "note": sources.left_out,
        "layers": None,
        "measured": None,
    }
    if sources.profiles:
        profile = sources.profiles[-1]
        seconds = sum(profile.column(name) for name in SECONDS)
        found["layers"] = {
            "names": [layer.title for layer in profile.layers],
            "seconds": seconds.tolist(),
        }
    if sources.measured is not None:
        found["measured"] = {
            "name": sources.measured.name,
            "ranks": sources.measured.n_ranks,
            "seconds": sources.measured.makespan,
            "events": events_of(sources.measured),
        }
    return found


def events_of(timeline: EventTable) -> dict[str, list]:
    """Returns the columns of a timeline's events.

    Args:
        timeline: A predicted or measured timeline; times begin at its first event.

    Returns:
        For each event ``rank``, ``kind`` (of `CATEGORIES`), ``start`` and ``end`` in
        seconds, ``text``, and the ``place`` of its stage on the rank, from 0 to 1.
    """
    begin = float(timeline.start.min()) if len(timeline) else 0.0
    return {
        "rank": timeline.rank.tolist(),
        "kind": [CATEGORIES[each] for each in timeline.category.tolist()],
        "start": (timeline.start - begin).tolist(),
        "end": (timeline.end - begin).tolist(),
        "text": [str(event.what) for event in timeline],
        "place": chunks(timeline).tolist(),
    }


def _grid(schedule: Schedule) -> dict[str, list]:
    """Returns the columns of the grid: ranks, steps, kinds and texts of actions."""
    return {
        "rank": schedule.action_ranks.tolist(),
        "step": grid_steps(schedule).tolist(),
        "kind": [KINDS[kind] for kind in schedule.kind.tolist()],
        "text": [str(action) for row in schedule.actions for action in row],
        "offsets": schedule.offsets.tolist(),
    }


def _messages(simulation: Simulation) -> dict[str, list]:
    """Returns the messages: ranks, moments, and what each carries.

    A message arrives when its time has passed, or later where its receiver waits for
    it, as where it shares a link.
    """
    run, timeline, events = simulation.run, simulation.timeline, simulation.events
    receiver, transfer, latency = results_sent(run, simulation.costs)
    start, end = timeline.start[events], timeline.end[events]
    arrives = end + transfer + latency
    user = other_rank_suppliers(run)
    using = np.flatnonzero(user != NONE)
    before = np.where(events > 0, timeline.end[events - 1], 0.0)
    before[events == timeline.offsets[run.action_ranks]] = 0.0
    waits = using[start[using] > before[using]]
    np.maximum.at(arrives, user[waits], start[waits])
    sent = np.flatnonzero(receiver != NONE)
    return {
        "from": run.action_ranks[sent].tolist(),
        "to": receiver[sent].tolist(),
        "sent": end[sent].tolist(),
        "arrives": arrives[sent].tolist(),
        "text": [f"{run.action(k)}>{receiver[k]}" for k in sent.tolist()],
    }


def _memory(simulation: Simulation) -> dict[str, Any]:
    limit = simulation.question.limit()
    peaks = simulation.peaks
    over = [] if limit is None else [r for r, p in enumerate(peaks) if p > limit]
    show = format_bytes if simulation.unit == BYTES else "{:.4g}".format
    words = ""
    if over:
        words = (
            f"rank {over[0]} holds {show(peaks[over[0]])} at its peak, above the limit"
            f" of {show(limit)}"
        )
        if len(over) > 1:
            more = count(len(over) - 1, "more rank")
            words += f", and {more} {'is' if len(over) == 2 else 'are'} above it"
    return {
        "unit": simulation.unit,
        "levels": simulation.levels,
        "peaks": [show(peak) for peak in peaks],
        "limit": limit,
        "over": over,
        "words": words,
    }


def _facts(simulation: Simulation) -> list[tuple[str, str]]:
    timeline = simulation.timeline
    facts = [("step", format_seconds(timeline.makespan))]
    if timeline.n_minibatches > 1:
        facts = [
            (count(timeline.n_minibatches, "minibatch"), facts[0][1]),
            ("the last one adds", format_seconds(timeline.minibatch_seconds)),
        ]
    facts += [
        ("bubble, mean of the ranks", f"{timeline.bubble.mean():.1%}"),
        ("bound", format_seconds(timeline.bound)),
        ("gap", above(timeline.gap)),
        ("most held by a rank", _most_held(simulation)),
        ("messages", str(_n_messages(simulation.run))),
    ]
    return facts


def _n_messages(run: Schedule) -> int:
    return int(run.count[receivers(run) != NONE].sum())


def _most_held(simulation: Simulation) -> str:
    most = max(simulation.peaks)
    if simulation.unit == BYTES:
        return format_bytes(most)
    name = "microbatch" if most == 1 else "microbatches"
    return f"{most:.4g} {name} in its layers"
