"""The costs of a model's layers: the measurements that plans are made from."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from divisible.files import write_json
from divisible.layer_texts import differing_titles
from divisible.model import Divisible
from divisible.notebook_html import Part, Rows, as_html, as_text
from divisible.planning.coding import CodingRate, check_coding, rates_from_json
from divisible.planning.layer_cost import SECONDS, LayerCost
from divisible.planning.layer_sums import LayerSums
from divisible.planning.tables import PROFILE_COLUMNS, profile_rows
from divisible.records import (
    from_fields,
    plain_integer,
    plain_number,
    plain_text,
    reading_json,
    shown,
    take_kind,
)


@dataclass(frozen=True)
class Profile:
    """The costs of each layer of a model, at one size of microbatch.

    :func:`divisible.profile` measures one; :func:`divisible.partition` and
    :func:`divisible.best_plan` make plans from it. Printed, a profile is a table.

    Args:
        layers: A :class:`LayerCost` for each layer of the undivided model.
        n_samples: Samples of the microbatch.
        input_bytes: Bytes of the first layer's input.
        loss: Costs of the loss, which follows the last layer on the last stage.
        machine: Machine on which the costs were measured.
        coding: Speed of coding gradients on one core of the machine, by dtype on the
            wire.
        scatter: How far the timings of a layer lie from their median, as a part of it:
            half of them are as near, or nearer. ``None`` if this is not known.

    Attributes:
        file: The file that the profile was loaded from, for plans to name; ``None``
            without one.

    Raises:
        ValueError: If there is no layer or no sample, ``input_bytes`` or ``scatter`` is
            negative, or ``coding`` has an unknown dtype.
        TypeError: If ``n_samples`` or ``input_bytes`` is not an integer, ``machine``
            not a text, ``coding`` not a mapping to :class:`CodingRate`, or ``scatter``
            not a number.

    Example:
        >>> layers = [LayerCost(0.1, 0.1, 0.1, output_bytes=400), LayerCost(0.2, 0, 0)]
        >>> profile = Profile(layers, n_samples=10, input_bytes=40)
        >>> len(profile), round(profile.seconds, 9)
        (2, 0.5)
    """

    layers: Sequence[LayerCost]
    n_samples: int
    input_bytes: int = 0
    loss: LayerCost | None = None
    machine: str = ""
    coding: Mapping[str, CodingRate] = field(
        default_factory=dict, repr=False, compare=False
    )
    scatter: float | None = field(default=None, repr=False, compare=False)
    file: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        for name in ("n_samples", "input_bytes"):
            object.__setattr__(self, name, plain_integer(name, getattr(self, name)))
        if not self.layers:
            raise ValueError("a profile needs at least one layer")
        if self.n_samples < 1:
            raise ValueError(
                f"a profile is of 1 sample at least: n_samples are {self.n_samples}"
            )
        if self.input_bytes < 0:
            raise ValueError(
                f"input_bytes must not be negative, as {self.input_bytes} is"
            )
        plain_text("machine", self.machine)
        check_coding(self.coding)
        if self.scatter is not None:
            scatter = plain_number("scatter", self.scatter, "Leave it out")
            object.__setattr__(self, "scatter", scatter)

    def __len__(self) -> int:
        """Returns the number of layers of the model."""
        return len(self.layers)

    @property
    def seconds(self) -> float:
        """Seconds of one microbatch on one rank, forward and backward."""
        return float(sum(self.column(name).sum() for name in SECONDS))

    def column(self, name: str) -> np.ndarray:
        """Returns one attribute of all layers; the loss counts with the last one.

        Args:
            name: An attribute of :class:`LayerCost` that is a number.

        Returns:
            Array of shape (n_layers,), of float64. ``workspace_bytes`` of the loss are
            not added, because no layer computes then, and ``boundary_output_bytes`` are
            0 for the last layer, which sends nothing.
        """
        values = np.array([getattr(layer, name) for layer in self.layers], float)
        loss = getattr(self.loss, name, 0)
        if name in ("output_bytes", "boundary_output_bytes"):
            values[-1] = 0
        elif name == "workspace_bytes":
            values[-1] = max(values[-1], loss)
        else:
            values[-1] += loss
        return values

    @functools.cached_property
    def sums(self) -> LayerSums:
        """Sums over the layers before each position."""
        return LayerSums(self.column, self.input_bytes)

    def check(self, model: Divisible) -> None:
        """Checks that this is a profile of a model.

        Raises:
            ValueError: If the profile is of another model; the message names the first
                layer that differs.
        """
        names = [layer.name for layer in self.layers]
        check_layers("the profile", names, type(model).__name__, model.model_layers)

    def save(self, path: str | os.PathLike) -> None:
        """Writes JSON; the file appears only when it is complete."""
        content = {"divisible": "profile", **dataclasses.asdict(self)}
        del content["file"]
        write_json(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Profile:
        """Reads a file that :meth:`save` wrote.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file holds something else; the message names the field.
        """
        with reading_json(path, "a profile") as content:
            take_kind(content, "profile")
            rows = content.get("layers")
            if not isinstance(rows, list):
                raise ValueError(f"layers must be a list, not {shown(rows)}")
            content["layers"] = [
                from_fields(LayerCost, row, f"layer {i}") for i, row in enumerate(rows)
            ]
            if content.get("loss") is not None:
                content["loss"] = from_fields(LayerCost, content["loss"], "loss")
            if "coding" in content:
                content["coding"] = rates_from_json(content["coding"])
            if "file" in content:
                raise ValueError("file is not part of a file")
            profile = from_fields(cls, content)
        object.__setattr__(profile, "file", os.fspath(path))
        return profile

    def __str__(self) -> str:
        return as_text(self._parts())

    def _repr_html_(self) -> str:
        """Returns the profile as a notebook shows it."""
        return as_html(self._parts())

    def _parts(self) -> Iterator[Part]:
        yield self.headline
        yield Rows([PROFILE_COLUMNS, *profile_rows(self.layers, self.loss)], left=(1,))

    @property
    def headline(self) -> str:
        """The profile in a line of text: samples, machine and scatter."""
        words = [f"{self.n_samples} samples", self.machine]
        if self.scatter is not None:
            words.append(f"timings scattered by {self.scatter:.1%}")
        return ", ".join(filter(None, words))


def named_files(profiles: Sequence[Profile]) -> tuple[str, ...]:
    """Returns the files of profiles; none if one of them is not from a file."""
    files = tuple(profile.file for profile in profiles)
    return () if None in files else files


def check_layers(
    what: str, names: Sequence[str], other: str, layers: Sequence[str]
) -> None:
    """Checks that layers described in two places are the same.

    Args:
        what: Owner of one description, for the message.
        names: A text for each layer.
        other: Owner of the other description.
        layers: A text for each layer of the other description.

    Raises:
        ValueError: If the layers differ; the message names the first one that does.
    """
    if len(names) != len(layers):
        raise ValueError(
            f"{what} is of a model of {len(names)} layers, but {other} has"
            f" {len(layers)}: it belongs to another model"
        )
    for position, (a, b) in enumerate(zip(names, layers)):
        # Costs that were not measured may have layers without a text.
        if a and b and a != b:
            a, b = differing_titles(a, b)
            raise ValueError(
                f"{what} is of another model: layer {position} is {a} there and {b} in"
                f" {other}"
            )
