"""Where a model is cut."""

from __future__ import annotations

import dataclasses
import json
import operator
import os
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where a model is cut into stages.

    Args:
        cuts: Positions in the model: stage ``i`` has the layers ``cuts[i]`` to
            ``cuts[i + 1] - 1``. Starts with 0, grows, and ends with the number of
            layers.

    Raises:
        ValueError: If ``cuts`` is not of this form.
        TypeError: If a cut is not an integer.

    Example:
        >>> plan = Plan([0, 3, 5])
        >>> plan.n_stages, plan.range(1)
        (2, (3, 5))
    """

    cuts: Sequence[int]

    def __post_init__(self) -> None:
        cuts = [operator.index(cut) for cut in self.cuts]
        object.__setattr__(self, "cuts", cuts)
        if len(cuts) < 2 or cuts[0] != 0:
            raise ValueError(
                f"cuts {cuts}: expected 0, the positions to cut at, and the number of"
                f" layers, such as [0, 3, 5] for layers 0 to 2 and 3 to 4"
            )
        for a, b in zip(cuts, cuts[1:]):
            if a >= b:
                raise ValueError(
                    f"cuts {cuts}: the stage from {a} to {b} has no layers; cuts must"
                    f" grow"
                )

    @classmethod
    def uniform(cls, n_layers: int, n_stages: int) -> Plan:
        """Cuts into stages of equally many layers, as the paper does (section 7).

        Args:
            n_layers (int): Number of layers in the model.
            n_stages (int): Number of stages. If it does not divide ``n_layers``,
                the first stages get one layer more.

        Raises:
            ValueError: If there are more stages than layers.

        Example:
            >>> Plan.uniform(5, 2).cuts
            [0, 3, 5]
        """
        if not 1 <= n_stages <= n_layers:
            raise ValueError(
                f"{n_layers} layers cannot be cut into {n_stages} stages: each stage"
                f" needs at least one layer. Start between 1 and {n_layers} ranks."
            )
        each, extra = divmod(n_layers, n_stages)
        return cls([i * each + min(i, extra) for i in range(n_stages + 1)])

    @property
    def n_stages(self) -> int:
        """The number of stages."""
        return len(self.cuts) - 1

    @property
    def n_layers(self) -> int:
        """The number of layers of the model."""
        return self.cuts[-1]

    def range(self, stage: int) -> tuple[int, int]:
        """Returns ``(start, end)`` of a stage, for :meth:`Divisible.divide`.

        Raises:
            IndexError: If there is no such stage.
        """
        if not 0 <= stage < self.n_stages:
            raise IndexError(
                f"no stage {stage} in a plan of {self.n_stages} stages {self.cuts}: the"
                f" number of ranks must be the number of stages"
            )
        return self.cuts[stage], self.cuts[stage + 1]

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan as JSON; the file appears only when it is complete."""
        aside = f"{os.fspath(path)}.tmp{os.getpid()}"
        with open(aside, "w", encoding="utf-8") as file:
            json.dump({"cuts": self.cuts}, file)
            file.write("\n")
        os.replace(aside, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Plan:
        """Reads a plan written by :meth:`save`.

        Raises:
            ValueError: If the file holds something else.
        """
        with open(path, encoding="utf-8") as file:
            try:
                return cls(json.load(file)["cuts"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path} is not a plan: {error}") from error
