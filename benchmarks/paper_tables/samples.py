"""What was measured so far: a line of JSON for each, written at once."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator
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
    machine: str
    load: float
    date: str


@dataclass(frozen=True)
class Probe:
    """How fast hosts are that are all busy.

    Attributes:
        group: Of the points whose hosts they are.
        samples: Of the microbatch.
        seconds: Forward and backward of all layers, of which each host took its part
            while the others took theirs: the sum over the hosts.
    """

    group: tuple
    samples: int
    seconds: float


def append(path: Path, sample: Sample) -> None:
    """Adds a sample to the file."""
    _append(path, {**vars(sample), "point": to_json(sample.point)})


def append_probe(path: Path, probe: Probe) -> None:
    """Adds a probe to the file."""
    _append(path, vars(probe))


def read(path: Path) -> dict[Point, list[Sample]]:
    """Reads samples; a last line that was cut off is left out."""
    found: dict[Point, list[Sample]] = {}
    for content in _lines(path):
        content["point"] = point = from_json(content["point"])
        found.setdefault(point, []).append(Sample(**content))
    return found


def read_probes(path: Path) -> dict[tuple[tuple, int], float]:
    """Reads the seconds of probes, by their group and samples."""
    return {
        (tuple(content["group"]), content["samples"]): content["seconds"]
        for content in _lines(path)
    }


def _append(path: Path, content: dict[str, Any]) -> None:
    before = path.read_bytes() if path.exists() else b""
    torn = before != b"" and not before.endswith(b"\n")
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(content) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


def median(samples: list[Sample]) -> float:
    """Returns the median of the seconds."""
    return statistics.median(sample.seconds for sample in samples)
