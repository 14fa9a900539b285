"""The table that :func:`divisible.streaming.stream` prints."""

from __future__ import annotations

from typing import NamedTuple

from chainer_kernels.text_table import text_table
from divisible.planning.disk import Disk
from divisible.planning.units import format_bytes, format_seconds

_COLUMNS = ("layer", "name", "bytes", "on disk", "longer by")


class StreamedLayer(NamedTuple):
    """A layer in a :class:`StreamReport`.

    Attributes:
        position: Position of the layer in the undivided model.
        name: Name of the layer.
        n_bytes: Bytes of its weights, their gradients and the optimizer's state.
        is_streamed: Whether its weights are on disk.
        seconds: Predicted extra seconds of a minibatch with the weights on disk;
            ``None`` where they are unknown.
        reason: Reason why the weights cannot be on disk; empty if they can.
    """

    position: int
    name: str
    n_bytes: int
    is_streamed: bool
    seconds: float | None
    reason: str


class RankMemory(NamedTuple):
    """The memory of a rank in a :class:`StreamReport`, in bytes.

    Attributes:
        limit: Memory that the rank may use.
        weights: Memory of all its weights, with gradients and state.
        resident: Memory of the weights that stay in memory, with gradients and state.
        activations: Memory of microbatches in flight and of layers that compute;
            ``None`` without a profile.
        segments: Memory for segments of the weights on disk.
    """

    limit: float
    weights: int
    resident: int
    activations: int | None
    segments: int

    @property
    def needed(self) -> int:
        """Memory that the rank needs with the chosen layers on disk."""
        return self.resident + (self.activations or 0) + self.segments


class StreamReport(NamedTuple):
    """The choice of :func:`stream`; printed, it is a table.

    Attributes:
        layers: Each layer that has weights.
        ranks: The memory of each rank.
        directory: Directory of the files.
        disk: Bandwidths of the disk, where they were needed.
    """

    layers: tuple[StreamedLayer, ...]
    ranks: tuple[RankMemory, ...]
    directory: str
    disk: Disk | None

    @property
    def streamed(self) -> tuple[int, ...]:
        """The positions of the layers whose weights are on disk."""
        return tuple(each.position for each in self.layers if each.is_streamed)

    def __str__(self) -> str:
        rows = list(map(_row, self.layers))
        # Without a profile the extra seconds are unknown.
        columns = zip(_COLUMNS, *rows)
        columns = [column for column in columns if any(column[1:]) or not rows]
        table = text_table([*zip(*columns)], left=range(len(columns)))
        head, *body = table.splitlines()
        lines = [head]
        for line, layer in zip(body, self.layers):
            lines.append(line)
            if layer.reason:
                lines.append(
                    f"{'':{len(_COLUMNS[0])}}  cannot be on disk: {layer.reason}"
                )
        lines += [f"rank {i}: {_sentence(rank)}" for i, rank in enumerate(self.ranks)]
        if self.disk is not None:
            lines.append(
                f"{self.directory} reads {format_bytes(self.disk.read)}/s and writes"
                f" {format_bytes(self.disk.write)}/s"
            )
        return "\n".join(lines)


def _row(layer: StreamedLayer) -> tuple[str, ...]:
    return (
        str(layer.position),
        layer.name,
        format_bytes(layer.n_bytes),
        "yes" if layer.is_streamed else "no",
        "" if layer.seconds is None else format_seconds(layer.seconds),
    )


def _sentence(rank: RankMemory) -> str:
    unknown = rank.activations is None
    activations = "unknown" if unknown else format_bytes(rank.activations)
    return (
        f"{format_bytes(rank.needed)} of {format_bytes(rank.limit)}: weights"
        f" {format_bytes(rank.resident)} (all {format_bytes(rank.weights)}), segments"
        f" {format_bytes(rank.segments)}, activations {activations}"
    )
