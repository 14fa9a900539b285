"""The measurements so far: a line of JSON for each, written at once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import json_lines
from benchmarks.paper_tables.points import Point, from_json, to_json

#: Cores of all hosts together in samples that do not state the share.
OLDER_CPU = 1.6


@dataclass(frozen=True)
class Sample:
    """One measured step.

    Attributes:
        point: The measured point.
        round: Number of the round; a rerun measures only rounds that are missing.
        seconds: Seconds of the rank that took longest; for a step that ran several
            times, those of the middle run.
        cuts: Positions of the cuts.
        machine: Name of the machine.
        load: Load average when the hosts came up.
        date: Date of the measurement.
        pages: Most pages of memory that a rank got from the system in the step. Unknown
            in older samples, most of which are first steps.
        stolen: Largest part of the machine's time that its hypervisor gave to others
            during the step or another of the same point. Unknown in older samples.
        share: Share of a core that each host had. The hosts of older samples had equal
            parts of `OLDER_CPU` cores, and at most one each.
        library: Library of the provider, with its version. Unknown in older samples.
    """

    point: Point
    round: int
    seconds: float
    cuts: list[int]
    machine: str
    load: float
    date: str
    pages: int | None = None
    stolen: float | None = None
    share: float | None = None
    library: str = ""


def append(path: Path, sample: Sample) -> None:
    """Adds a sample to the file."""
    json_lines.append(path, {**vars(sample), "point": to_json(sample.point)})


def read(path: Path) -> dict[Point, list[Sample]]:
    """Reads samples; a last line that was cut off is left out."""
    found: dict[Point, list[Sample]] = {}
    for _, sample in _lines(path):
        found.setdefault(sample.point, []).append(sample)
    return found


def merge(path: Path, newer: Path) -> None:
    """Adds samples of a file to another one, in place of those of the same points.

    Args:
        path: File to change.
        newer: File with the samples to add.
    """
    added = list(_lines(newer))
    points = {sample.point for _, sample in added}
    kept = [line for line, sample in _lines(path) if sample.point not in points]
    lines = [*kept, *(line for line, _ in added)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _lines(path: Path) -> Iterator[tuple[str, Sample]]:
    """Yields the whole lines of a file, with what they say."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            content = json.loads(line)
            content["point"] = point = from_json(content["point"])
            content.setdefault("share", point.on(OLDER_CPU).share)
            yield line, Sample(**content)
