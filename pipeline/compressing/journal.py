"""The state of a compression by trying, on disk: a killed run continues from it.

::

    compressed/journal.json       settings, the dense metric, the rounds so far
               dense.npz          the weights of the dense run
               sensitivity.json   the trials so far
               table.json         those that plans are made of
               round_2.npz        the weights of a round that was kept
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from divisible.files import write_json
from divisible.records import finite_number, plain_text, reading_json, shown, take_kind
from model_compression.plan import CompressionPlan
from model_compression.rounds import Try

_KIND = "compression by trying"
_FILE = "journal.json"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of a session; each of them changes the result.

    Attributes:
        script: Path of the script, and its arguments.
        budget: The budget, as text.
        n_bytes: Bytes that the weights may have in the end: a part of the dense ones if
            below 1; ``None`` for as few as the budget allows.
        time: Part of the layers' seconds that may be left in the end; ``None`` for all.
        methods: Methods to try.
        degrees: Degrees to try.
        granularity: Granularity of pruning.
        layers: Layers to try.
        rounds: Number of rounds to the smallest model.
        tries: Largest number of rounds.
        epochs: Epochs of a round; ``None`` for those of the script.
    """

    script: list[str]
    budget: str
    n_bytes: float | None
    time: float | None
    methods: list[str]
    degrees: list[float]
    granularity: str | list[int]
    layers: list[str]
    rounds: int
    tries: int
    epochs: float | None


@dataclasses.dataclass(frozen=True)
class Round:
    """A round that has ended.

    Attributes:
        way: How far it went; see `model_compression.rounds`.
        goal: Bytes that it might leave; ``None`` for any number.
        time: Part of the layers' seconds that it might leave.
        plan: Settings of its plan.
        metric: Value of the metric after it; ``None`` if that is not finite.
        bytes: Bytes of each layer's weights after it.
        took: Seconds of an evaluation after it, as a part of the dense model's.
        is_kept: Whether the metric stayed within the budget.
    """

    way: float
    goal: float | None
    time: float
    plan: list[dict[str, Any]]
    metric: float | None
    bytes: dict[str, float]
    took: float
    is_kept: bool


@dataclasses.dataclass
class Journal:
    """The settings of a session, and what it has done.

    Attributes:
        folder: Folder of the files.
        settings: The settings.
        metric: Full name of the metric; ``None`` before the dense model is evaluated.
        base: Value of the metric for the dense model.
        seconds: Seconds of its evaluation.
        layer_seconds: Seconds of each layer in it.
        rounds: The rounds that have ended.
    """

    folder: Path
    settings: Settings
    metric: str | None = None
    base: float | None = None
    seconds: float = 0.0
    layer_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    rounds: list[Round] = dataclasses.field(default_factory=list)

    @classmethod
    def begun(cls, folder: str | os.PathLike, settings: Settings) -> Journal:
        """Returns the journal in a folder, or a new one.

        Raises:
            OSError: If the journal cannot be read.
            ValueError: If the folder has a session with other settings, or the file
                holds something else.
        """
        folder = Path(folder)
        path = folder / _FILE
        if not path.exists():
            return cls(folder, settings)
        with reading_json(path, f"a journal of a {_KIND}") as content:
            take_kind(content, _KIND)
            saved, rows = content.pop("settings", None), content.pop("rounds", None)
            seconds = content.get("layer_seconds")
            if not isinstance(rows, list) or not isinstance(seconds, dict):
                raise ValueError(
                    f"its rounds are {shown(rows)}, its layers take {shown(seconds)}"
                )
            if content.get("metric") is not None:
                plain_text("metric", content["metric"])
                finite_number("base", content.get("base"))
            finite_number("seconds", content.get("seconds"))
            for each in seconds.values():
                finite_number("seconds of a layer", each)
            rounds = [_round(row, number) for number, row in enumerate(rows, 1)]
            found = cls(folder, settings, rounds=rounds, **content)
        wanted = dataclasses.asdict(settings)
        if saved != wanted:
            raise ValueError(
                f"{path} is of another session: {_difference(saved, wanted)}. Give"
                f" another folder by --output, or the options of before"
            )
        return found

    def save(self) -> None:
        """Writes the journal; the file appears only when it is complete."""
        content = dataclasses.asdict(self)
        del content["folder"]
        write_json(self.folder / _FILE, {"divisible": _KIND, **content})

    @property
    def tries(self) -> list[Try]:
        """The rounds, as the choice of the next one needs them."""
        return [Try(each.way, each.is_kept) for each in self.rounds]

    @property
    def best(self) -> int | None:
        """The number of the kept round that went furthest, from 1; ``None`` if none."""
        kept = [(each.way, i) for i, each in enumerate(self.rounds, 1) if each.is_kept]
        return max(kept)[1] if kept else None

    @property
    def dense_weights(self) -> Path:
        """The file of the dense model's weights."""
        return self.folder / "dense.npz"

    @property
    def trials(self) -> Path:
        """The file of the trials."""
        return self.folder / "sensitivity.json"

    @property
    def table(self) -> Path:
        """The file of the trials that plans are made of."""
        return self.folder / "table.json"

    def weights(self, number: int) -> Path:
        """Returns the file of the weights after a round."""
        return self.folder / f"round_{number}.npz"

    def plan(self, number: int) -> CompressionPlan:
        """Returns the plan of a round."""
        return CompressionPlan.of_settings(self.rounds[number - 1].plan)


def _round(row: Any, number: int) -> Round:
    try:
        found = Round(**row)
        CompressionPlan.of_settings(found.plan)
        for size in found.bytes.values():
            finite_number("a size", size)
        for name in ("way", "time", "took"):
            finite_number(name, getattr(found, name))
    except (AttributeError, TypeError, KeyError) as error:
        raise ValueError(f"round {number}, {shown(row)}, is not one: {error}") from None
    return found


def _difference(saved: Any, wanted: dict[str, Any]) -> str:
    """Returns a text of the first setting that differs."""
    before = saved if isinstance(saved, dict) else {}
    name = next(
        (name for name in wanted if before.get(name) != wanted[name]), "settings"
    )
    return f"{name} was {shown(before.get(name))}, not {shown(wanted.get(name))}"
