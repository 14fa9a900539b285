"""Runs many cases on ranks that are started once, each with a deadline.

::

    draw ---> case ---> ranks, which write what came of it ---> judge, beside the next

Ranks that crash or hang are ended, and others started: the case before is a fault.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.composition.cases import Case
from tests.composition.judging import FAULT, Verdict, judge
from tests.composition.on_ranks import run_case
from tests.support.ranks import Result, close_shared_ranks, shared_ranks

#: Seconds of an idle machine that a case may take.
DEADLINE = 60


class Outcome(NamedTuple):
    """A case, and what came of it."""

    case: Case
    verdict: Verdict


def run_cases(cases: Iterable[Case], fault: str = "") -> Iterator[Outcome]:
    """Runs cases one after the other, and yields what came of each.

    Args:
        cases: The cases.
        fault: Name of a planted fault; '' for none.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        before: tuple[Case, Path, Future[Result]] | None = None
        for number, case in enumerate(cases):
            path = Path(folder, str(number))
            path.mkdir()
            running = thread.submit(_run, case, path, fault)
            if before is not None:
                yield _judged(*before)
            before = case, path, running
        if before is not None:
            yield _judged(*before)


def run_one(case: Case, fault: str = "") -> Verdict:
    """Returns what comes of a case."""
    ((_, verdict),) = run_cases([case], fault)
    return verdict


def _run(case: Case, folder: Path, fault: str) -> Result:
    n_ranks = max(way.n_ranks for way in case.ways)
    arguments = str(case), str(folder), fault
    result = shared_ranks().call(n_ranks, run_case, arguments, DEADLINE)
    if result.outcomes != ["done"] * n_ranks:
        close_shared_ranks()
    return result


def _judged(case: Case, folder: Path, running: Future[Result]) -> Outcome:
    try:
        result = running.result()
    except Exception as error:
        close_shared_ranks()
        return Outcome(case, Verdict(FAULT, f"ranks could not be started: {error}"))
    try:
        verdict = judge(case, folder, result.outcomes, result.output)
    except Exception as error:
        words = f"the serial script failed: {type(error).__name__}: {error}"
        import traceback

        verdict = Verdict(FAULT, f"{words}\n{traceback.format_exc()}")
    return Outcome(case, verdict)
