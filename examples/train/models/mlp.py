"""A fully connected network."""

from __future__ import annotations

import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal

from divisible import Divisible


class MLP(Divisible):
    """The fully connected network of Takisawa et al.

    The defaults are the network of section 5: 31 layers of 5,000 inputs and outputs and
    one of 10 outputs. Its parameters take 3 GB: give fewer units to try it. ``MLP(3072,
    n_layers=4)`` is the network of section 4. The activations are layers of their own.

    Args:
        n_units (int): Outputs of every layer but the last.
        n_layers (int): Number of fully connected layers.
        n_outputs (int): Outputs of the last layer.
        n_inputs (int or None): Inputs of the first layer; ``None`` for ``n_units``,
            as in the paper.

    Inputs of more than two axes, such as images, are flattened.
    """

    def __init__(
        self,
        n_units: int = 5000,
        n_layers: int = 32,
        n_outputs: int = 10,
        n_inputs: int | None = None,
    ) -> None:
        n_in = n_units if n_inputs is None else n_inputs
        for _ in range(n_layers - 1):
            # The scale is He et al.'s: with a smaller one no signal arrives at layer
            # 32.
            self.append(L.Linear(n_in, n_units, initialW=HeNormal()))
            self.append(F.relu)
            n_in = n_units
        self.append(L.Linear(n_in, n_outputs))
