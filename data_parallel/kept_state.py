"""The state of an exchange that is kept until the next one, saved and loaded.

It is saved by array. So stages that are cut differently, whose exchanges have other
arrays, find it::

    optimizer/0/W/exchange/state      {"minimum": .., "n_means": .., "quantile": .., ..}
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
        comm: Communicator of the exchange.
        layouts: Layout with the smallest bucket that is coded.
        is_measured: Whether this smallest bucket was measured, and so is loaded.
        residuals: Residuals of error feedback, or ``None``.
        quantiles: Quantiles of the strategy, or ``None``.

    Attributes:
        n_exchanges (int): Number of exchanges so far, with those that compare ranks.
        n_means (int): Number of means so far.
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
        self.n_exchanges = self.n_means = 0

    @property
    def residuals(self) -> dict[str, Any]:
        """The residuals of error feedback, by the name of the array; may be changed."""
        return {} if self._residuals is None else self._residuals.by_name

    def serialize(self, serializer: Any) -> None:
        """Loads or saves the state, with the names of the arrays."""
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
        """Loads or saves the part of the state that belongs to each array.

        Values of the whole exchange are loaded from the first array.

        Args:
            serializers: Serializers by name of the array.
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

    def forget(self) -> None:
        """Drops the residuals and the quantiles, as before the first exchange."""
        if self._residuals is not None:
            self._residuals.forget()
        if self._quantiles is not None:
            self._quantiles.load({})

    def load_means(self, replicas: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the residuals by the mean of those of several replicas.

        Args:
            replicas: For each former replica its serializers, as for
                :meth:`serialize_arrays`.
        """
        if self._residuals is not None:
            self._residuals.load_means(replicas, self._comm)

    def parts(self) -> list[Any]:
        """Returns the objects whose attributes are set when the state is loaded."""
        return [self, self._layouts, self._residuals, self._quantiles]

    def _own(self) -> dict[str, Any]:
        minimum = self._layouts.shape.minimum
        return {
            "minimum": minimum,
            "n_exchanges": self.n_exchanges,
            "n_means": self.n_means,
        }

    def _load_own(self, state: Mapping[str, Any]) -> None:
        self.n_exchanges = state["n_exchanges"]
        # Snapshots of earlier versions have no number of means.
        self.n_means = state.get("n_means", self.n_exchanges)
        if self._is_measured:
            shape = self._layouts.shape
            self._layouts.shape = shape._replace(minimum=state["minimum"])
