"""Judges what came of a case on ranks: right, refused, or a fault."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import chainer_kernels
from tests.composition import comparison
from tests.composition.cases import Case
from tests.composition.on_ranks import Ended
from tests.composition.record import Entry, Record
from tests.composition.refusals import refusal_of
from tests.composition.serial import Serial

RIGHT, REFUSED, FAULT = "right", "refused", "fault"


class Verdict(NamedTuple):
    """A verdict on a case.

    Attributes:
        kind: RIGHT, REFUSED or FAULT.
        words: Differences, or the reason.
        is_exact: Whether all values have the bits of the serial script.
        refusal: Number of the known refusal, or -1.
    """

    kind: str
    words: str = ""
    is_exact: bool = False
    refusal: int = -1


def judge(case: Case, folder: Path, outcome: Sequence[str], output: str) -> Verdict:
    """Returns the verdict on a case.

    Args:
        case: The case.
        folder: Folder with the files of its ranks.
        outcome: Answers of the ranks at the end: 'done' for each.
        output: Output of the ranks.
    """
    n_ranks = max(way.n_ranks for way in case.ways)
    files = [folder / f"{rank}.pkl" for rank in range(n_ranks)]
    if list(outcome) != ["done"] * n_ranks or not all(map(Path.exists, files)):
        return Verdict(FAULT, f"a rank crashed or hung: {outcome}\n{output}")
    ended = [Ended(*pickle.loads(file.read_bytes())) for file in files]
    errors = [(rank, each) for rank, each in enumerate(ended) if each.record is None]
    if errors:
        return _of_errors(case, errors, n_ranks)
    try:
        found = joined([each.record for each in ended])
    except AssertionError as error:
        return Verdict(FAULT, str(error))
    with chainer_kernels.disabled():
        known: dict[float, Record] = {}

        def live(perturbed_by: float) -> Record:
            if perturbed_by not in known:
                serial = Serial(case, found.skipped, perturbed_by)
                with np.errstate(all="ignore"):
                    known[perturbed_by] = serial.live()
            return known[perturbed_by]

        differing = comparison.differences(case, found, live)
    if differing:
        return Verdict(FAULT, "\n".join(map(str, differing[:8])))
    return Verdict(RIGHT, is_exact=comparison.is_bit_for_bit(found, known[0.0]))


def _of_errors(case: Case, errors: Sequence[tuple[int, Ended]], n: int) -> Verdict:
    own = [(rank, each) for rank, each in errors if each.kind != "LeftError"]
    last = case.ways[-1].n_ranks
    texts = [
        f"rank {rank}: {each.kind}: {each.words}"
        + (" (arrays were sent before)" if each.has_sent else "")
        for rank, each in own
    ]
    whole = "\n".join([*texts, own[0][1].trace if own else ""])
    # Other ranks than those of the last way have ended before it began.
    if len(errors) < n and [rank for rank, _ in errors] != [*range(last)]:
        return Verdict(FAULT, f"not all ranks refuse:\n{whole}")
    numbers = {refusal_of(case, each.words) for _, each in own}
    if None in numbers or not numbers:
        return Verdict(FAULT, f"an error that is no known refusal:\n{whole}")
    if any(each.has_sent for _, each in own):
        return Verdict(FAULT, f"a refusal comes after messages:\n{whole}")
    return Verdict(REFUSED, own[0][1].words, refusal=min(numbers))


def joined(records: Sequence[Record]) -> Record:
    """Returns the record of all ranks.

    Raises:
        AssertionError: If two ranks disagree.
    """
    whole = Record()
    n_entries = max(len(record.entries) for record in records)
    for number in range(n_entries):
        entries = [
            record.entries[number] for record in records if number < len(record.entries)
        ]
        assert len({entry.name for entry in entries}) == 1, "ranks made other calls"
        together: dict = {}
        for entry in entries:
            # Until an update has exchanged them, replicas have gradients of their own.
            _join(together, entry.values, f"{entry.name}, call {number}")
        whole.entries.append(Entry(entries[0].name, together))
    for record in records:
        _join(whole.state, record.state, "the state")
        whole.skipped = record.skipped or whole.skipped
    return whole


def _join(together: dict, values: dict, where: str) -> None:
    for key, value in values.items():
        same = np.array_equal(together.setdefault(key, value), value, equal_nan=True)
        assert same, f"ranks disagree on {key} of {where}"
