"""The formula of a simulated schedule, and whether it holds for the question."""

from __future__ import annotations

from divisible.explore.question import Question
from divisible.explore.simulation import Simulation
from divisible.planning.units import format_seconds
from divisible.schedules.formulas import FORMULAS


def formula_of(simulation: Simulation) -> dict[str, str]:
    """Returns the formula of a schedule's step, and its seconds or why it has none.

    Args:
        simulation: The simulation.

    Returns:
        ``text`` with the formula, empty without one; and ``words`` with the seconds, or
        the condition under which the formula holds.

    Example:
        >>> from divisible.explore.simulation import simulated
        >>> from divisible.explore.sources import Sources
        >>> formula_of(simulated(Question("interleaved"), Sources()))["words"]
        '28.5 s'
        >>> slow = Question("interleaved", latency=0.1)
        >>> formula_of(simulated(slow, Sources()))["words"]
        'it holds where messages take no time'
    """
    question, schedule = simulation.question, simulation.schedule
    formula = FORMULAS.get(question.schedule)
    if question.text is not None or formula is None:
        return {"text": "", "words": "there is none for this schedule"}
    needed = _needed(question)
    if not needed:
        d, m = schedule.n_ranks, schedule.n_microbatches
        times = question.forward, question.backward_input, question.backward_weight
        seconds = formula.seconds(d, schedule.n_stages // d, m, *times)
        if seconds is not None:
            return {"text": formula.text, "words": format_seconds(seconds)}
        needed = formula.holds
    return {"text": formula.text, "words": f"it holds where {needed}"}


def _needed(question: Question) -> str:
    """Returns the first condition of all formulas that a question does not meet."""
    times = question.forward, question.backward_input, question.backward_weight
    if question.layers or any(isinstance(each, tuple) for each in times):
        return "all stages take equally long"
    if question.message or question.latency:
        return "messages take no time"
    if question.minibatches > 1:
        return "there is one minibatch"
    return "there are no groups" if question.groups > 1 else ""
