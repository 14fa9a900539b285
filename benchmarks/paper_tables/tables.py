"""The tables of best speed-ups, and remarks on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np

from benchmarks.paper_tables.campaigns import Campaign
from benchmarks.paper_tables.claim import Measured
from benchmarks.paper_tables.points import EQUAL_LAYERS, OURS, PRINTED, WAYS
from benchmarks.paper_tables.rows import Row


def best_speedups(campaign: Campaign) -> list[str]:
    """Returns the table of the best speed-up of each way, of usual size and links."""
    models = dict.fromkeys(row.point.model for row in campaign.rows.values())
    text = []
    for model in models:
        of_model = Measured(campaign.rows.values()).usual(model)
        for hosts, mine in of_model.by("hosts").items():
            found = {way: best(list(mine.of(way=way))) for way in WAYS}
            printed = PRINTED.get(model, {}).get(hosts)
            rounds = sorted({len(row.seconds) for row in mine})
            cells = [
                model,
                str(hosts),
                *(named(row) for row in found.values()),
                predicted(found[EQUAL_LAYERS]),
                f"{printed[1]:.2f} (m = {printed[0]})" if printed else "",
                " to ".join(map(str, sorted({rounds[0], rounds[-1]}))),
            ]
            text.append(f"| {' | '.join(cells)} |")
    columns = ["model", "hosts", *WAYS, "by equation (3)", "printed in the paper"]
    columns.append("rounds a point")
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *text]


def best(mine: Sequence[Row]) -> Row | None:
    """Returns the row with the greatest speed-up, if there are any."""
    return max(mine, key=attrgetter("speedup"), default=None)


def named(row: Row | None) -> str:
    """Formats a speed-up with how it was reached."""
    if row is None:
        return ""
    microbatches = f"m = {row.point.microbatches}"
    if row.point.turns != row.point.microbatches:
        microbatches += f", in fact {row.point.turns}"
    way = f", {row.point.schedule}" if row.point.cut == OURS else ""
    return f"{row.speedup:.2f} ({microbatches}{way})"


def predicted(row: Row | None) -> str:
    """Formats the speed-up by equation (3), if there is one."""
    if row is None or not row.equation:
        return ""
    return f"{row.speedup_by_equation:.2f}{' (fitted)' if row.is_fitted else ''}"


def remarks(campaign: Campaign) -> list[str]:
    """Returns remarks on the numbers of a campaign."""
    found = campaign.rows.values()
    text = [
        "",
        "The table has the best of the measured numbers m of microbatches."
        + "".join(
            f" For {model} they are {', '.join(map(str, sorted(numbers)))}."
            for model, numbers in microbatches_of(found).items()
        ),
    ]
    errors = np.abs([row.error_of_equation for row in found if not row.is_fitted])
    errors = errors[~np.isnan(errors)]
    if errors.size:
        text[-1] += (
            f" At the {errors.size} points that equation (3) was not fitted to it is"
            f" off by {np.median(errors):.1%} in the median, by {errors.max():.1%} at"
            " most."
        )
    uneven = {
        f"the {p.batch} samples of {p.model} in {p.turns} microbatches, not"
        f" {p.microbatches}"
        for p in (row.point for row in found)
        if p.turns != p.microbatches
    }
    if uneven:
        text += [
            "",
            "Fig. 4 cuts a minibatch into microbatches of equal size, rounded up, and a"
            f" smaller last one. So it runs {'; '.join(sorted(uneven))}.",
        ]
    shared = [row for row in found if row.is_scaled]
    if shared:
        text += [
            "",
            f"For {len(shared)} points the undivided step was measured on a host with a"
            " larger share of a core, and its seconds are multiplied by the ratio of"
            " the shares.",
        ]
    older = [row.point for row in found if row.is_older]
    if older:
        groups = sorted({f"{point.model} {point.size}" for point in older})
        text += [
            "",
            f"{len(older)} points ({', '.join(groups)}) are older: the machine may have"
            " been needed elsewhere, and most steps may have got memory from the system"
            " while they were timed, as a first step does. Where that is so of the"
            " undivided step, the speed-up is too high.",
        ]
    return text


def microbatches_of(found: Iterable[Row]) -> dict[str, set[int]]:
    """Returns the numbers of microbatches that were measured of each model."""
    numbers: dict[str, set[int]] = {}
    for row in found:
        numbers.setdefault(row.point.model, set()).add(row.point.microbatches)
    return numbers
