"""The table of losses of a metric by layer, method and degree."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from chainer_kernels.text_table import text_table
from divisible.files import write_json
from divisible.records import (
    LIMIT,
    finite_number,
    plain_integer,
    plain_text,
    reading_json,
    shown,
    take_kind,
)
from divisible.terminal_text import printable
from model_compression.choosing import least_loss, most_saved
from model_compression.pictures import plot_sensitivity
from model_compression.plan import CompressionPlan, Rule
from model_compression.rules import Prune, Quantize
from model_compression.rules import course as course_of
from model_compression.scores import check_granularity

#: Kind that files of a table begin with.
KIND = "sensitivity table"
BETTER = ("higher", "lower")
_COURSE = ("begin", "end", "steps", "curve")


class SensitivityTrial(NamedTuple):
    """One layer, changed by one method to one degree.

    Attributes:
        layer: The path of the layer.
        method: The method of :class:`Prune` or :class:`Quantize`.
        degree: Part that is pruned; 0 for a method that quantizes.
        metric: The value that ``evaluate`` returned; NaN in a table from a file if it
            was not finite.
        bytes: Size of the layer's weights after the change: those that are not zero, in
            their bits.
        seconds: Seconds that ``evaluate`` took.
    """

    layer: str
    method: str
    degree: float
    metric: float
    bytes: float
    seconds: float

    @property
    def column(self) -> str:
        """Method and degree, as the head of a column."""
        return f"{self.method} {self.degree:.0%}" if self.degree else self.method

    def fields(self) -> dict[str, Any]:
        """Returns the fields that files have; a metric that is not finite is null."""
        return {**self._asdict(), "metric": _finite(self.metric)}


class Sensitivity:
    """The table that :func:`sensitivity` returns: a row a layer, a column a degree.

    Attributes:
        base (float): Metric of the unchanged model.
        trials (list of SensitivityTrial): All trials of the table, layer by layer.
        sizes (dict): Bytes of the weights, by layer.
        better (str): The better direction of the metric, ``'higher'`` or ``'lower'``.
        granularity: Groups in which elements were pruned.
    """

    def __init__(
        self,
        base: float,
        trials: Sequence[SensitivityTrial],
        sizes: Mapping[str, int],
        better: str,
        granularity: Any,
    ) -> None:
        self.base, self.trials, self.sizes = base, list(trials), dict(sizes)
        self.better, self.granularity = better, granularity

    def loss(self, trial: SensitivityTrial) -> float:
        """Returns by how much the metric is worse than that of the model."""
        sign = 1 if self.better == "higher" else -1
        return sign * (self.base - trial.metric)

    def choose(self, budget: float, **course: Any) -> CompressionPlan:
        """Returns the plan that saves most bytes within a loss of the metric.

        Each layer gets one method and degree, or none. Losses of layers are assumed to
        add up, and gains to be zero; the best choice is found by mixed integer
        programming.

        Args:
            budget (float): Amount by which the metric may become worse, for all layers
                together.
            **course: Course of the rules: ``begin``, and for pruning ``end``,
                ``steps``, ``curve``, as in :class:`Prune`.

        Returns:
            CompressionPlan: A rule for each layer that is changed.

        Raises:
            TypeError: If ``course`` has another argument.
            ValueError: If nothing can be changed within the budget, or the course is
                not valid.
        """
        _check_course(f"choose({budget!r})", course)
        if not isinstance(budget, Real) or not budget >= 0:
            raise ValueError(f"budget must be 0 or more, not {budget!r}")
        losses = np.array([self.loss(t) for t in self.trials])
        # A loss that is not a number is more than any budget.
        losses = np.where(np.isfinite(losses), losses.clip(0), budget + 1)
        layers = [t.layer for t in self.trials]
        chosen = most_saved(layers, self._saved(), losses, budget)
        if not chosen:
            least = min(self.trials, key=self.loss)
            raise ValueError(
                f"no layer can be changed within {budget:g}: what costs least is"
                f" {least.column} of {least.layer}, which costs {self.loss(least):g}"
            )
        return CompressionPlan([self._rule(self.trials[i], course) for i in chosen])

    def reach(
        self,
        n_bytes: float,
        *,
        seconds: Mapping[str, float] | None = None,
        time: float = 1.0,
        **course: Any,
    ) -> CompressionPlan:
        """Returns the plan that loses least, of those with so few bytes.

        As for :meth:`choose`, losses of layers are assumed to add up.

        Args:
            n_bytes (float): Bytes that the weights of all layers may have together.
            seconds (dict): Seconds that each layer takes. A part of its rows that is
                pruned saves the same part of them.
            time (float): Part of all these seconds that may be left.
            **course: Course of the rules, as for :meth:`choose`.

        Returns:
            CompressionPlan: A rule for each layer that is changed.

        Raises:
            TypeError: If ``course`` has another argument.
            ValueError: If the trials cannot save so much, nothing is to be saved, or
                the course is not valid.
        """
        _check_course(f"reach({n_bytes!r})", course)
        whole, seconds = sum(self.sizes.values()), seconds or {}
        all_seconds = sum(seconds.values())
        saved = np.array(
            [self._saved(), [seconds.get(t.layer, 0.0) * t.degree for t in self.trials]]
        )
        wanted = [max(0.0, whole - n_bytes), all_seconds * (1 - time)]
        if not n_bytes >= 0 or not 0 <= time <= 1 or not any(wanted):
            raise ValueError(
                f"nothing is to be saved by {n_bytes!r} of {whole} bytes, and {time!r}"
                f" of the time: give less of one"
            )
        losses = np.array([self.loss(t) for t in self.trials])
        is_finite = np.isfinite(losses)
        losses = losses.clip(0)
        # A loss that is not a number is more than all others together.
        losses[~is_finite] = 1 + losses[is_finite].sum()
        layers = [t.layer for t in self.trials]
        chosen = least_loss(layers, saved, losses, wanted)
        if chosen is None:
            raise ValueError(
                f"the trials leave {self.least_bytes:,.0f} bytes and"
                f" {self.least_time(seconds):.2f} of the time at least, perhaps not"
                f" both, not {n_bytes:,.0f} bytes and {time:.2f}: try higher degrees,"
                f" fewer bits, or more layers"
            )
        return CompressionPlan([self._rule(self.trials[i], course) for i in chosen])

    def least_time(self, seconds: Mapping[str, float]) -> float:
        """Returns the least part of the layers' seconds that a choice leaves."""
        left = sum(
            n * (1 - max([0.0, *(t.degree for t in self.trials if t.layer == layer)]))
            for layer, n in seconds.items()
        )
        return left / (sum(seconds.values()) or 1.0)

    @property
    def least_bytes(self) -> float:
        """The fewest bytes that a choice of trials leaves."""
        return sum(
            min([size, *(t.bytes for t in self.trials if t.layer == layer)])
            for layer, size in self.sizes.items()
        )

    def _saved(self) -> np.ndarray:
        return np.array([self.sizes[t.layer] - t.bytes for t in self.trials], float)

    def _rule(self, trial: SensitivityTrial, course: Mapping[str, Any]) -> Rule:
        if trial.degree:
            return Prune(
                trial.method,
                layers=trial.layer,
                to=trial.degree,
                granularity=self.granularity,
                **course,
            )
        begin = course.get("end") or course.get("begin")
        return Quantize(trial.method, layers=trial.layer, begin=begin)

    def plot(self, path: str | os.PathLike | None = None) -> Any:
        """Draws the metric over the degrees, a line a layer; needs matplotlib.

        Args:
            path: Path of the picture; the ending gives the format. ``None`` to write
                none.

        Returns:
            matplotlib.figure.Figure: The picture, which a notebook shows.
        """
        return plot_sensitivity(self, path)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the table as JSON; the file appears only when it is complete."""
        write_json(path, {"divisible": KIND, **self.fields()})

    def fields(self) -> dict[str, Any]:
        """Returns the fields of the table that files have."""
        trials = [each.fields() for each in self.trials]
        return {**vars(self), "base": _finite(self.base), "trials": trials}

    @classmethod
    def load(cls, path: str | os.PathLike) -> Sensitivity:
        """Reads a table that :meth:`save`, or an interrupted run, wrote.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file holds something else.
        """
        with reading_json(path, f"a {KIND}") as content:
            take_kind(content, KIND)
            content.pop("model", None)
            return cls(**_checked(content))

    def __str__(self) -> str:
        """Returns the metrics as a table, with the bytes of each layer."""
        columns = list(dict.fromkeys(each.column for each in self.trials))
        rows = [("layer", "bytes", *columns)]
        found = {(t.layer, t.column): f"{t.metric:.4g}" for t in self.trials}
        for layer, size in self.sizes.items():
            cells = [found.get((layer, column), "") for column in columns]
            rows.append((layer, f"{size:,}", *cells))
        head = f"metric {self.base:.4g} as it is, {self.better} is better"
        rows = [[printable(cell) for cell in row] for row in rows]
        return head + "\n" + text_table(rows, left=(0,))

    __repr__ = __str__


def _check_course(call: str, course: Mapping[str, Any]) -> None:
    """Checks a course, even if no rule that is chosen uses all of it."""
    others = course.keys() - {*_COURSE}
    if others:
        raise TypeError(
            f"{call} takes {', '.join(_COURSE)}, not {', '.join(sorted(others))}"
        )
    checked = {"curve": "cubic", **course}
    course_of(*(checked.get(name) for name in _COURSE), call)


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a table in a file after checking each."""
    names = {"base", "trials", "sizes", "better", "granularity"}
    if names != fields.keys():
        wrong = min(names ^ fields.keys())
        is_missing = wrong in names
        raise ValueError(
            f"the field {shown(wrong)} is {'missing' if is_missing else 'unknown'}"
        )
    base = _number("base", fields["base"])
    if fields["better"] not in BETTER:
        raise ValueError(f"better must be higher or lower: {shown(fields['better'])}")
    sizes, trials, granularity = (
        fields[name] for name in ("sizes", "trials", "granularity")
    )
    if not isinstance(sizes, dict):
        raise TypeError(f"sizes must have the bytes of layers, not {shown(sizes)}")
    for layer, size in sizes.items():
        plain_integer(f"the size of {shown(layer)}", size)
    if not isinstance(trials, list):
        raise TypeError(f"trials must be a list, not {shown(trials)}")
    if isinstance(granularity, list):
        granularity = tuple(granularity)
    check_granularity(granularity, "the trials")
    trials = [_trial_of(row, f"trial {i}") for i, row in enumerate(trials)]
    return {**fields, "base": base, "trials": trials, "granularity": granularity}


def _trial_of(row: Any, what: str) -> SensitivityTrial:
    if not isinstance(row, dict) or row.keys() != {*SensitivityTrial._fields}:
        raise ValueError(
            f"{what} must have {', '.join(SensitivityTrial._fields)}, not {shown(row)}"
        )
    trial = SensitivityTrial(**row)
    for name in ("layer", "method"):
        plain_text(f"{name} of {what}", row[name])
    for name in ("degree", "bytes", "seconds"):
        finite_number(f"{name} of {what}", row[name])
    return trial._replace(metric=_number(f"metric of {what}", row["metric"]))


def _finite(value: float) -> float | None:
    """Returns a number for a file, which has none that is infinite, NaN or huge."""
    return value if -LIMIT < value < LIMIT else None


def _number(what: str, value: Any) -> float:
    """Returns a number that :func:`_finite` has made ready for JSON."""
    return float("nan") if value is None else finite_number(what, value)
