"""The measurements so far: a line of JSON for each, written at once."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paper_tables.points import Point, from_json, to_json


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


def append(path: Path, sample: Sample) -> None:
    """Adds a sample to the file."""
    before = path.read_bytes() if path.exists() else b""
    torn = before != b"" and not before.endswith(b"\n")
    content = {**vars(sample), "point": to_json(sample.point)}
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(content) + "\n")


def read(path: Path) -> dict[Point, list[Sample]]:
    """Reads samples; a last line that was cut off is left out."""
    found: dict[Point, list[Sample]] = {}
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            content = json.loads(line)
            content["point"] = point = from_json(content["point"])
            found.setdefault(point, []).append(Sample(**content))
    return found
