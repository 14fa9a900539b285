"""The journal's entry of a start: what runs, and why."""

from __future__ import annotations

import math
import platform
from typing import Any

from divisible import Plan, __version__
from divisible.communication.flight_record import own_flight_record
from pipeline.pipeline import Pipeline

# Plans that lost, of which the journal has the reasons.
_MOST_ALTERNATIVES = 8


def start_entry(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the words and facts of a start.

    Args:
        pipeline (Pipeline): The pipeline that was made.

    Returns:
        dict: Arguments for :func:`.add_to_journal`. ``text`` describes the pipeline.
        ``plan`` has the table of a plan with predictions, and ``conditions`` what it
        was made for. ``alternatives`` has the plans that lost, with the reasons.
    """
    plan, world = pipeline.plan, pipeline.internals.ranks.world
    return {
        "text": str(pipeline),
        "step": pipeline.n_steps,
        "job": pipeline.internals.step.start.name,
        "n_ranks": world.size,
        "host": own_flight_record.host,
        "versions": f"divisible {__version__}, Python {platform.python_version()}",
        "cuts": list(pipeline.cuts),
        "schedule": pipeline.schedule.name,
        "n_microbatches": pipeline.schedule.n_microbatches,
        **({} if plan is None else _of_plan(plan)),
    }


def _of_plan(plan: Plan) -> dict[str, Any]:
    if plan.step_seconds is None:
        return {}
    return {
        "plan": str(plan),
        "conditions": "" if plan.conditions is None else str(plan.conditions),
        "planned_step": plan.step_seconds,
        "alternatives": [
            {
                "name": other.name,
                "seconds": other.seconds if math.isfinite(other.seconds) else None,
                "reason": other.reason,
            }
            for other in plan.alternatives[:_MOST_ALTERNATIVES]
        ],
    }
