"""The memory of a model's layers, known from shapes before a step or a measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from divisible.layer_texts import title as title_of
from divisible.notebook_html import Part, Rows, as_html, as_text
from divisible.planning.cost_model import CostModel
from divisible.planning.dynamic_program import least_lacking
from divisible.planning.held_arrays import LayerBytes
from divisible.planning.layer_sums import LayerSums
from divisible.planning.network import Network
from divisible.planning.units import count, format_bytes
from divisible.schedules.schedule import Schedule
from divisible.schedules.weight_versions import n_copies

MEMORY_COLUMNS = ("layer", "", "output", "parameters", "gradients", "optimizer")
MEMORY_COLUMNS += ("activations",)
RANK_COLUMNS = ("rank", "layers", "parameters", "gradients", "optimizer")
RANK_COLUMNS += ("activations, messages", "memory", "of")
_UNKNOWN = "?"


@dataclass(frozen=True)
class LayerMemory:
    """The memory of one layer, for one microbatch.

    Attributes:
        name: One line or more that describes the layer.
        place: The file and the line of a lambda, which has no name.
        parameter_bytes: Bytes of the parameters; their gradients take as many.
        optimizer_bytes: Bytes of the optimizer's state.
        n_parameters: Elements of the parameters.
        held: Bytes of the arrays that wait for the backward; ``None`` if unknown.
        pending_bytes: Bytes held between I and W.
        workspace_bytes: Bytes of arrays that are held while the layer is run again.
        outputs: Shape and dtype of each output.
    """

    name: str
    place: str = ""
    parameter_bytes: int = 0
    optimizer_bytes: int = 0
    n_parameters: int = 0
    held: LayerBytes | None = None
    pending_bytes: int = 0
    workspace_bytes: int = 0
    outputs: Sequence[tuple[tuple[int, ...], str]] = ()

    @property
    def output(self) -> str:
        """Shapes and dtypes of the outputs, such as ``'(64, 10) float32'``."""
        return ", ".join(f"{shape} {dtype}" for shape, dtype in self.outputs)

    @property
    def title(self) -> str:
        """The name in a line; for a lambda its file and line."""
        return f"lambda in {self.place}" if self.place else title_of(self.name)


@dataclass(frozen=True)
class ModelMemory:
    """The memory of a model, at one size of microbatch; printed, a table.

    Attributes:
        layers: The memory of each layer of the undivided model.
        n_samples: Samples of the microbatch.
        input_bytes: Bytes of the first layer's input.
        loss: The memory of the loss; ``None`` without one.
        unknown: Why the activations from a layer on are unknown; empty if all are
            known.
    """

    layers: Sequence[LayerMemory]
    n_samples: int
    input_bytes: int
    loss: LayerMemory | None = None
    unknown: str = ""

    def __len__(self) -> int:
        """Returns the number of layers of the model."""
        return len(self.layers)

    def column(self, name: str) -> np.ndarray:
        """Returns one attribute of all layers; the loss counts with the last one.

        Args:
            name: An attribute of :class:`~divisible.LayerCost` that is a number. Times
                are 0, as are unknown bytes.
        """
        values = np.array([_value(layer, name) for layer in self.layers], float)
        loss = 0 if self.loss is None else _value(self.loss, name)
        if name in ("output_bytes", "boundary_output_bytes"):
            values[-1] = 0
        else:
            values[-1] += loss
        return values

    @property
    def sums(self) -> LayerSums:
        """Sums over the layers before each position."""
        return LayerSums(self.column, self.input_bytes)

    @property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the outputs of the last layer; empty if they are unknown."""
        return [shape for shape, _ in self.layers[-1].outputs]

    def rank_bytes(self, cuts: Sequence[int], schedule: Schedule) -> list[int]:
        """Returns the bytes that each rank holds at its peak.

        These are parameters, gradients, the optimizer's state, activations of the
        microbatches in flight, and a message from either side. What a layer allocates
        while it computes is not known from shapes.

        Args:
            cuts: Positions of the cuts, with 0 and the number of layers.
            schedule: The schedule, at this size of microbatch.

        Raises:
            ValueError: If activations are unknown.
        """
        return self._model(schedule).rank_bytes(cuts).tolist()

    def even_cuts(self, schedule: Schedule) -> list[int]:
        """Returns the cuts with which the fullest stage holds least.

        Args:
            schedule: The schedule, at this size of microbatch.

        Raises:
            ValueError: If activations are unknown, or there are fewer layers than
                stages.
        """
        if schedule.n_stages > len(self):
            raise ValueError(
                f"the model has {count(len(self), 'layer')}, fewer than the"
                f" {schedule.n_stages} stages of the schedule"
            )
        model = self._model(schedule)
        return least_lacking(model, np.zeros(schedule.n_stages))

    def _model(self, schedule: Schedule) -> CostModel:
        if self.unknown:
            raise ValueError(f"the memory of ranks is unknown: {self.unknown}")
        links = Network().links(schedule.n_ranks)
        return CostModel.of(schedule, [self], np.ones(schedule.n_ranks), links)

    def __str__(self) -> str:
        return as_text(self._parts())

    def _repr_html_(self) -> str:
        """Returns the memory as a notebook shows it."""
        return as_html(self._parts())

    def _parts(self) -> Iterator[Part]:
        yield f"memory for microbatches of {count(self.n_samples, 'sample')}"
        yield Rows([MEMORY_COLUMNS, *memory_rows(self)], left=(1, 2))
        if self.unknown:
            yield self.unknown


def memory_rows(memory: ModelMemory) -> list[tuple[str, ...]]:
    """Returns a row of text for each layer, the loss, and the sums."""
    rows = [(str(i), layer) for i, layer in enumerate(memory.layers)]
    if memory.loss is not None:
        rows.append(("loss", memory.loss))

    def sizes(parameters: float, optimizer: float, activations: float | None) -> tuple:
        known = _UNKNOWN if activations is None else format_bytes(activations)
        return (*map(format_bytes, (parameters, parameters, optimizer)), known)

    found = [
        (
            position,
            layer.title if len(layer.title) <= 44 else layer.title[:43] + "…",
            layer.output if layer.held is not None else _UNKNOWN,
            *sizes(
                layer.parameter_bytes,
                layer.optimizer_bytes,
                None if layer.held is None else layer.held.activation_bytes,
            ),
        )
        for position, layer in rows
    ]
    names = ("parameter_bytes", "optimizer_bytes", "activation_bytes")
    totals = [memory.column(name).sum() for name in names]
    if memory.unknown:
        totals[-1] = None
    return [*found, ("sum", "", "", *sizes(*totals))]


def rank_rows(
    memory: ModelMemory,
    cuts: Sequence[int],
    schedule: Schedule,
    limits: Sequence[float] | None = None,
) -> list[tuple[str, ...]]:
    """Returns a row of text for each rank.

    Args:
        memory: The memory of the layers.
        cuts: Positions of the cuts, with 0 and the number of layers.
        schedule: The schedule, at this size of microbatch.
        limits: Bytes that each rank may use, infinite without a limit.
    """
    sums, copies = memory.sums.stages(cuts), n_copies(schedule)
    parameters = (1 + copies) * sums.parameter_bytes
    gradients = sums.parameter_bytes
    optimizer = sums.fixed_bytes - 2 * sums.parameter_bytes
    ranges = [f"{start}..{end - 1}" for start, end in zip(cuts, cuts[1:])]
    rows = []
    for rank, needed in enumerate(memory.rank_bytes(cuts, schedule)):
        own = [s for s, owner in enumerate(schedule.stage_ranks) if owner == rank]
        fixed = [part[own].sum() for part in (parameters, gradients, optimizer)]
        limit = np.inf if limits is None else limits[rank]
        rows.append(
            (
                str(rank),
                ", ".join(ranges[s] for s in own),
                *map(format_bytes, (*fixed, needed - sum(fixed), needed)),
                "" if np.isinf(limit) else format_bytes(limit),
            )
        )
    return rows


def _value(layer: LayerMemory, name: str) -> float:
    if name == "n_gradients":
        return layer.n_parameters
    return getattr(layer, name, getattr(layer.held, name, 0))
