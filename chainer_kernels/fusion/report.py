"""Reports which layers of a list are fused, and why others are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from chainer_kernels.fusion.fusing import Fusion
from chainer_kernels.fusion.measuring import FusionChoice
from chainer_kernels.fusion.side_inputs import Surroundings
from chainer_kernels.text_table import text_table


class NotFused(NamedTuple):
    """A layer that is in no chain.

    Attributes:
        position: Position of the layer in the list.
        reason: The reason why the layer is in no chain.
    """

    position: int
    reason: str


class FusionReport:
    """Layers with fused chains. A call runs the layers; ``str`` prints a table.

    Args:
        layers: The layers.
        fusion: The chains that were found in the layers.

    Attributes:
        choices (tuple of FusionChoice): The measured chains, in the order of their
            layers.
        not_fused (tuple of NotFused): Layers that are in no chain for a known reason.
    """

    def __init__(self, layers: Sequence[Callable], fusion: Fusion) -> None:
        self._layers, self._fusion = list(layers), fusion
        self.choices: tuple[FusionChoice, ...] = tuple(
            fusion.choices[span] for span in sorted(fusion.choices)
        )
        in_chains = {p for c in self.choices for p in range(c.start, c.end)}
        self.not_fused = tuple(
            NotFused(position, fusion.reasons[position])
            for position in sorted(fusion.reasons)
            if position not in in_chains
        )

    def __call__(self, *inputs: Any) -> Any:
        """Passes inputs through the layers."""
        return run_layers(self._layers, self._fusion, inputs)

    def __str__(self) -> str:
        return table(self.choices, self.not_fused)


def fuse(layers: Sequence[Callable], *inputs: Any) -> FusionReport:
    """Fuses chains of pointwise functions in a list of layers.

    A chain becomes one function of Chainer's, with one compiled loop forward and one
    backward, if that is faster on these inputs. A chain may begin with a batch
    normalization, a linear layer or a convolution. The loop behind a linear layer or a
    convolution writes to the output of that layer.

    Args:
        layers: Functions and links, each called with the output of the previous one.
            Functions and links of Chainer, and those marked
            :func:`~chainer_kernels.fusible`, can be fused.
        inputs (arrays or variables): Inputs of the first layer. Only float32 in host
            memory is fused.

    Returns:
        FusionReport: A callable that runs the layers, and prints as a table.

    Example:
        >>> import chainer.functions as F
        >>> import numpy as np
        >>> import chainer_kernels
        >>> @chainer_kernels.fusible
        ... def shifted(x):
        ...     return 2 * x + 1
        >>> x = np.ones((200, 300), np.float32)
        >>> report = chainer_kernels.fuse([shifted, F.tanh, abs], x)
        >>> [(c.start, c.end, c.is_exact) for c in report.choices]
        [(0, 2, True)]
        >>> report.not_fused
        (NotFused(position=2, reason='it is not marked @chainer_kernels.fusible'),)
        >>> report(x).shape
        (200, 300)
    """
    fusion = Fusion()
    run_layers(layers, fusion, inputs)
    return FusionReport(layers, fusion)


def run_layers(layers: Sequence[Callable], fusion: Fusion, inputs: tuple) -> Any:
    """Passes inputs through layers, and runs fused chains as one function."""
    value: Any = inputs if len(inputs) != 1 else inputs[0]
    index = 0
    while index < len(layers):
        found = fusion.run(layers, index, index, value, Surroundings())
        if found is None:
            layer = layers[index]
            value = layer(*value) if isinstance(value, tuple) else layer(value)
            index += 1
        else:
            n_layers, value = found
            index += n_layers
    return value


def table(choices: Sequence[FusionChoice], not_fused: Sequence[NotFused] = ()) -> str:
    """Returns a table of chains, and below it the reasons of layers in no chain."""
    heads = "layers", "fused", "ms before", "after", "MB before", "after", "difference"
    rows = [
        (
            f"{c.start}-{c.end - 1}",
            "yes" if c.is_fused else "no",
            f"{c.ms_before:.3f}",
            f"{c.ms_after:.3f}",
            f"{c.bytes_before / 1e6:.2f}",
            f"{c.bytes_after / 1e6:.2f}",
            f"{c.largest_difference:.1e}" if c.largest_difference else "none",
            c.functions,
        )
        for c in choices
    ]
    chains = text_table([(*heads, ""), *rows], left=(len(heads),))
    reasons = [f"layer {n.position}: {n.reason}" for n in not_fused]
    return "\n".join([chains, *reasons])
