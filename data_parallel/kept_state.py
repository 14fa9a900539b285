"""The state that an exchange keeps from one to the next, read and written.

It is written beside each array, so that stages that are cut otherwise, whose exchanges
have other arrays, find it::

    optimizer/0/W/exchange/state      {"minimum": .., "n_exchanges": .., "quantile": ..}
    optimizer/0/W/exchange/residual   what error feedback keeps of the array
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from data_parallel import json_arrays
from data_parallel.layout import Layouts
from data_parallel.quantiles import Quantiles
from data_parallel.residuals import Residuals


class KeptState:
    """The state of an exchange.

    Args:
        comm: Of the exchange.
        layouts: With the smallest bucket that is coded.
        is_measured: Whether that was measured, and so is read.
        residuals: If there is error feedback.
        quantiles: If the strategy has some.

    Attributes:
        n_exchanges (int): How many there were.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        layouts: Layouts,
        is_measured: bool,
        residuals: Residuals | None,
        quantiles: Quantiles | None,
    ) -> None:
        self._comm, self._layouts, self._is_measured = comm, layouts, is_measured
        self._residuals, self._quantiles = residuals, quantiles
        self.n_exchanges = 0

    @property
    def residuals(self) -> dict[str, Any]:
        """The residuals of error feedback, by the name of the array; may be changed."""
        return {} if self._residuals is None else self._residuals.by_name

    def serialize(self, serializer: Any) -> None:
        """Reads or writes it, with the names of the arrays."""
        names: set[str] = set()
        if self._residuals is not None:
            names.update(self._residuals.by_name)
        if self._quantiles is not None:
            names.update(self._quantiles.names)
        state = {**self._own(), "names": sorted(names)}
        state = json_arrays.serialize(serializer, "state", state)
        if state is not None:
            self._load_own(state)
            of = serializer["of"]
            self.serialize_arrays({name: of[name] for name in state["names"]})

    def serialize_arrays(self, serializers: Mapping[str, Any]) -> None:
        """Reads or writes it where each array's part goes.

        What is of the exchange as a whole is that of the first array.

        Args:
            serializers: By the name of the array.
        """
        states = {}
        for name, serializer in serializers.items():
            state = self._own()
            if self._quantiles is not None:
                state["quantile"] = self._quantiles.state(name)
            state = json_arrays.serialize(serializer, "state", state)
            if state is not None:
                states[name] = state
        if not states:
            return
        self._load_own(next(iter(states.values())))
        if self._quantiles is not None:
            having = {name: s for name, s in states.items() if s.get("quantile")}
            self._quantiles.load({name: s["quantile"] for name, s in having.items()})
        if self._residuals is not None:
            those = {name: serializers[name] for name in states}
            self._residuals.serialize(those, self._comm)

    def load_means(self, replicas: Sequence[Mapping[str, Any]]) -> None:
        """Replaces what error feedback keeps by the mean of what replicas kept.

        Args:
            replicas: For each that there was as :meth:`serialize_arrays` takes.
        """
        if self._residuals is not None:
            self._residuals.load_means(replicas, self._comm)

    def parts(self) -> list[Any]:
        """Returns whose attributes are set when it is read."""
        return [self, self._layouts, self._residuals, self._quantiles]

    def _own(self) -> dict[str, Any]:
        minimum = self._layouts.shape.minimum
        return {"minimum": minimum, "n_exchanges": self.n_exchanges}

    def _load_own(self, state: Mapping[str, Any]) -> None:
        self.n_exchanges = state["n_exchanges"]
        if self._is_measured:
            shape = self._layouts.shape
            self._layouts.shape = shape._replace(minimum=state["minimum"])
