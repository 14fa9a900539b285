"""Draws predicted timelines while the documentation is built.

    .. predicted-timeline:: zero_bubble_h1(n_stages=4, n_microbatches=8)
       :costs: forward=1, backward_input=1, backward_weight=1

The picture comes from the code that it illustrates, so it cannot go stale.
"""

from __future__ import annotations

import hashlib
import pathlib

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from divisible import schedules, simulate
from divisible.schedules import Costs, recomputation

FOLDER = "_pictures"
ONE_SECOND_EACH = "forward=1, backward_input=1, backward_weight=1"


class PredictedTimeline(SphinxDirective):
    """The picture of `divisible.simulate` for the schedule that the argument makes.

    The argument is an expression over the names of `divisible.schedules`, `Costs` and
    `recompute`; ``:costs:`` are the arguments of `Costs`, one second for each of F, I
    and W by default.
    """

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"costs": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Draws the picture and returns the node that shows it."""
        expression = " ".join(self.arguments[0].split())
        costs = self.options.get("costs", ONE_SECOND_EACH)
        names = {
            # Some are imported when they are first asked for.
            **{name: getattr(schedules, name) for name in schedules.__all__},
            "Costs": Costs,
            "recompute": recomputation.recompute,
        }
        try:
            schedule = eval(expression, names)
            timeline = simulate(schedule, eval(f"Costs({costs})", names))
        except Exception as error:
            raise self.error(f"{expression}: {error}") from error

        digest = hashlib.sha256(f"{expression}|{costs}".encode()).hexdigest()[:12]
        path = f"/{FOLDER}/{schedule.name}-{digest}.svg"
        file = pathlib.Path(f"{self.env.srcdir}{path}")
        file.parent.mkdir(exist_ok=True)
        timeline.plot(file)
        # Sphinx reads a page again when the code of its pictures has changed.
        for module in (schedules, recomputation):
            self.env.note_dependency(module.__file__)
        bubble = timeline.bubble
        return [
            nodes.image(
                uri=path,
                alt=(
                    f"Predicted timeline of {schedule.name}: {timeline.makespan:g}"
                    f" seconds, of which a rank waits for {bubble.min():.0%} to"
                    f" {bubble.max():.0%}."
                ),
            )
        ]


def setup(app) -> dict[str, bool]:
    """Registers the directive with Sphinx."""
    app.add_directive("predicted-timeline", PredictedTimeline)
    return {"parallel_read_safe": True}
