"""Counts of cases behind each pair of features, and the page of the documentation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.composition.cases import Case
from tests.composition.features import FEATURES, features
from tests.composition.judging import FAULT, REFUSED, RIGHT, Verdict
from tests.composition.refusals import REFUSALS, Refusal

#: Cases that each pair should have.
LEAST = 20


class Count(NamedTuple):
    """Outcomes of the cases that have a pair of features.

    Attributes:
        right: Number of cases that agree with the serial script.
        exact: Number of these whose values have the same bits.
        refused: Number of cases that were refused for just this pair.
    """

    right: int = 0
    exact: int = 0
    refused: int = 0


class Tally:
    """Outcomes of many cases.

    Attributes:
        n_cases: Number of cases.
        counts: Counts by pair; a single feature is a pair with itself.
    """

    def __init__(self) -> None:
        self.n_cases = 0
        self.counts: dict[tuple[str, str], Count] = {}

    def add(self, case: Case, verdict: Verdict) -> None:
        """Counts a case."""
        self.n_cases += 1
        if verdict.kind == REFUSED:
            first, second = REFUSALS[verdict.refusal].features
            self._count(first, second, refused=1)
        elif verdict.kind == RIGHT:
            found = features(case)
            for pair in itertools.combinations_with_replacement(found, 2):
                self._count(*pair, right=1, exact=int(verdict.is_exact))
        else:
            assert verdict.kind == FAULT

    def _count(self, first: str, second: str, **more: int) -> None:
        pair = _sorted(first, second)
        count = self.counts.get(pair, Count())
        added = {name: getattr(count, name) + n for name, n in more.items()}
        self.counts[pair] = count._replace(**added)

    def merge(self, other: Tally) -> None:
        """Adds the counts of other cases."""
        self.n_cases += other.n_cases
        for pair, count in other.counts.items():
            self._count(*pair, **count._asdict())

    def save(self, path: Path) -> None:
        """Writes the counts."""
        rows = [[*pair, *count] for pair, count in sorted(self.counts.items())]
        text = ",\n".join(json.dumps(row) for row in rows)
        path.write_text(f'{{"n_cases": {self.n_cases}, "pairs": [\n{text}\n]}}\n')

    @classmethod
    def load(cls, path: Path) -> Tally:
        """Reads counts."""
        content = json.loads(path.read_text())
        tally = cls()
        tally.n_cases = content["n_cases"]
        for first, second, *numbers in content["pairs"]:
            tally.counts[first, second] = Count(*numbers)
        return tally


def _sorted(first: str, second: str) -> tuple[str, str]:
    pair = sorted((first, second), key=FEATURES.index)
    return pair[0], pair[1]


def sign(count: Count | None) -> str:
    """Returns the sign of a pair in the table."""
    if count is None:
        return " "
    if count.refused:
        return "x" if not count.right else "/"
    if count.right < LEAST:
        return "?"
    return "=" if count.exact == count.right else "~"


def matrix(tally: Tally, names: Iterable[str] = FEATURES) -> list[str]:
    """Returns the lines of a triangle with a sign for each pair."""
    names = list(names)
    width = max(map(len, names))
    lines = []
    for row, name in enumerate(names):
        signs = [
            sign(tally.counts.get(_sorted(other, name))) for other in names[: row + 1]
        ]
        lines.append(f"{row:3} {name:{width}} {''.join(signs)}".rstrip())
    tens = "".join(str(i // 10 % 10) for i in range(len(names)))
    ones = "".join(str(i % 10) for i in range(len(names)))
    margin = " " * (width + 5)
    return [*lines, margin + tens, margin + ones]


def page(tally: Tally, source: str) -> str:
    """Returns the page of the documentation about the counts in a file."""
    few, n_pairs = least(tally)
    rows = "\n".join(
        f"   * - {one}\n     - {', '.join(others)}\n     - {reason}"
        for one, others, reason in refused_together()
    )
    lines = "\n".join(f"   {line}".rstrip() for line in matrix(tally))
    return _PAGE.format(
        n=tally.n_cases, pairs=n_pairs, few=few, matrix=lines, rows=rows, source=source
    )


def refused_together(
    refusals: Sequence[Refusal] = REFUSALS,
) -> list[tuple[str, list[str], str]]:
    """Returns the rows of the table of refusals, each reason once if possible.

    Returns:
        A feature, the features that it does not go together with, and the reason that
        all these pairs share. Pairs of one reason without a common feature have a row
        each.
    """
    by_reason: dict[str, list[tuple[str, str]]] = {}
    for each in refusals:
        by_reason.setdefault(each.reason, []).append(each.features)
    rows = []
    for reason, pairs in by_reason.items():
        common = [one for one in pairs[0] if all(one in pair for pair in pairs)]
        groups = [(common[0], pairs)] if common else [(p[0], [p]) for p in pairs]
        for one, some in groups:
            others = [name for pair in some for name in pair if name != one]
            rows.append((one, others, reason))
    return rows


_PAGE = """\
Features together
=================

``python -m tests.composition`` draws models, ways to run them and lives at random, and
compares each run with the undivided model in stock Chainer: one process, double
precision, no kernels. If a run applies gradients one step late, as with
``double_buffering``, the serial script does so too. Losses, reports, gradients,
parameters, running averages and states must agree within bounds of rounding errors. A
refusal must come on every rank, before an array is sent. This page is written by that
command, from {n} cases. {few} of {pairs} pairs have fewer than 20 of them;
``{source}`` has the number behind each pair.

=======  ==============================================================================
sign     the pair
=======  ==============================================================================
``=``    all cases have the bits of the serial script
``~``    all cases agree within rounding
``/``    some cases are refused, as the list below says; the others agree
``x``    refused
``?``    all cases agree, but there are fewer than 20
blank    not drawn together
=======  ==============================================================================

.. code-block:: text

{matrix}

Refused together
----------------

.. list-table::
   :header-rows: 1
   :widths: 20 40 40

   * - feature
     - not together with
     - reason
{rows}

Not drawn
---------

- Groups of stages with layers that depend on the microbatch as a whole: the first group
  of a stage decides which layers run once.
- Groups of stages with ``'pipedream_2bw'``, for which there is no such schedule.
- Pruned or quantized layers whose weights are streamed.
- Pruned layers with numbers in few bits: a rounding error may prune another weight.
- Blocks that are skipped (``Prune(skip_blocks=True)``): whether a layer skips them is
  measured, and its weights are too small here. ``tests/mpi/model_compression`` compares
  such layers on several ranks.
- Inputs that are larger than memory (``StreamedInput``): the first layer alone reads
  them. ``tests/divisible/streaming`` compares them with inputs in memory.
"""


def least(tally: Tally) -> tuple[int, int]:
    """Returns how many pairs have too few cases, and how many pairs there are."""
    few = [c for c in tally.counts.values() if 0 < c.right < LEAST and not c.refused]
    return len(few), len(tally.counts)
