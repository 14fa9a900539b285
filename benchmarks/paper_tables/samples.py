"""What was measured so far: a line of JSON for each step, written at once."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_tables.points import Point, from_json, to_json


@dataclass(frozen=True)
class Sample:
    """One measured step.

    Attributes:
        point: Of what.
        round: Its number; a rerun measures only rounds that are missing.
        seconds: Of the rank that took longest.
        cuts: Where the model was cut.
        forward: Mean seconds of F on each stage.
        backward_input: Of I, or of B if it was not split.
        backward_weight: Of W.
        latency: Seconds of a message of 8 bytes.
        probe: Seconds of all layers, of which each host took its part while the
            others took theirs, before any step.
        machine: Where.
        load: Load average when the hosts came up.
        date: When.
    """

    point: Point
    round: int
    seconds: float
    cuts: list[int]
    forward: list[float]
    backward_input: list[float]
    backward_weight: list[float]
    latency: float
    probe: float
    machine: str
    load: float
    date: str


def append(path: Path, sample: Sample) -> None:
    """Adds a sample to the file."""
    content: dict[str, Any] = {**vars(sample), "point": to_json(sample.point)}
    before = path.read_bytes() if path.exists() else b""
    torn = before != b"" and not before.endswith(b"\n")
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(content) + "\n")


def read(path: Path) -> dict[Point, list[Sample]]:
    """Reads the file; a last line that was cut off is left out."""
    found: dict[Point, list[Sample]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                content = json.loads(line)
            except json.JSONDecodeError:
                continue
            content["point"] = point = from_json(content["point"])
            found.setdefault(point, []).append(Sample(**content))
    return found


def median(samples: list[Sample]) -> float:
    """Returns the median of the seconds."""
    return statistics.median(sample.seconds for sample in samples)
