"""Layers whose forward runs again in their own backward, and their costs.

Neighbouring layers form a *run*. Of a run only the input is held from forward to
backward; in the backward, all its arrays are there at once::

                          held by each microbatch          while it runs backward
    plain                 activations of every layer       workspace of a layer
    layers 2, 3 again     input of 2, output of 3,         workspace of a layer, and
                          activations of the others        activations of 2 and 3

So layers with large outputs that are cheap to compute are worth it: many bytes are
freed for each second. Source: Chen et al., Training Deep Nets with Sublinear Memory
Cost, 2016.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from divisible.planning.layer_cost import LayerCost
from divisible.planning.profile import Profile


class LayerArrays(NamedTuple):
    """Costs of layers that are computed again, each an array of shape (n_layers,).

    Attributes:
        forward: Seconds of the forward, which runs twice.
        held: Bytes held from forward to backward.
        again: Bytes held while the layer is computed again: ``held``, and outputs that
            it does not hold otherwise.
        unheld: Bytes of outputs that are held only if a run begins after the layer.
        output: Bytes of the output to the next layer.
        passing: Bytes that skip connections carry past the layer's end.
        ended: Bytes of skip connections that end in the layer.
        workspace: Bytes that the layer needs while it runs.
    """

    forward: np.ndarray
    held: np.ndarray
    again: np.ndarray
    unheld: np.ndarray
    output: np.ndarray
    passing: np.ndarray
    ended: np.ndarray
    workspace: np.ndarray

    @classmethod
    def of(cls, profile: Profile) -> LayerArrays:
        """Returns the arrays of a profile; the loss counts with the last layer."""
        column = profile.column
        held, unheld = column("activation_bytes"), column("boundary_output_bytes")
        passing = column("passing_bytes")
        return cls(
            column("forward"),
            held,
            held + unheld,
            unheld,
            column("output_bytes") - passing,
            passing,
            column("skip_bytes"),
            column("workspace_bytes"),
        )

    def blocks(self, starts: Sequence[int]) -> LayerArrays:
        """Returns the arrays of blocks of neighbours, which begin at some layers."""
        starts = np.asarray(starts)
        last = np.append(starts[1:], len(self.forward)) - 1
        return LayerArrays(
            np.add.reduceat(self.forward, starts),
            np.add.reduceat(self.held, starts),
            np.add.reduceat(self.again, starts),
            self.unheld[last],
            self.output[last],
            self.passing[last],
            np.add.reduceat(self.ended, starts),
            np.maximum.reduceat(self.workspace, starts),
        )

    def outlives(self, start: int, end: int) -> float:
        """Returns the bytes of a run's results that stay: output and skip connections.

        Args:
            start: The run's first layer.
            end: The layer behind its last one, in the same stage.
        """
        before = self.passing[start - 1] if start else 0.0
        begun = self.passing[end - 1] - before + self.ended[start:end].sum()
        return float(self.output[end - 1] + min(self.passing[end - 1], max(begun, 0.0)))


def split_at(
    runs: Sequence[tuple[int, int]], cuts: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yields the parts of runs that lie in one stage each.

    Args:
        runs: The first layer of each run, and the one behind its last.
        cuts: Positions of the cuts in the model.

    Example:
        >>> list(split_at([(1, 4), (5, 6)], [0, 3, 6]))
        [(1, 3), (3, 4), (5, 6)]
    """
    for start, end in runs:
        edges = [start, *(cut for cut in cuts if start < cut < end), end]
        yield from zip(edges, edges[1:])


def recomputed_profile(
    profile: Profile, runs: Sequence[tuple[int, int]], cuts: Sequence[int]
) -> Profile:
    """Returns the profile of a model of which some layers are computed again.

    Args:
        profile: Profile at the size of microbatch in use.
        runs: The first layer of each run, and the one behind its last, sorted.
        cuts: Positions of the cuts in the model.

    Example:
        >>> layer = LayerCost(1, 1, 1, output_bytes=10, activation_bytes=70)
        >>> small = recomputed_profile(Profile([layer] * 4, 1), [(1, 3)], [0, 4])
        >>> [each.activation_bytes for each in small.layers]
        [70, 0, 10, 70]
        >>> [each.workspace_bytes for each in small.layers]
        [0, 140, 140, 0]
    """
    if not runs:
        return profile
    layers, loss, arrays = list(profile.layers), profile.loss, LayerArrays.of(profile)
    for start, end in split_at(runs, cuts):
        together = arrays.again[start:end].sum()
        for i in range(start, end):
            layers[i] = _again(layers[i], together)
        if end not in cuts:
            stays = round(arrays.outlives(start, end))
            layers[end - 1] = replace(layers[end - 1], activation_bytes=stays)
        if end == len(layers) and loss is not None:
            loss = _again(loss, together)
        if start not in cuts and not any(start == each for _, each in runs):
            before = layers[start - 1]
            layers[start - 1] = replace(
                before,
                activation_bytes=before.activation_bytes + before.boundary_output_bytes,
                boundary_output_bytes=0,
            )
    return replace(profile, layers=layers, loss=loss)


def _again(cost: LayerCost, together: float) -> LayerCost:
    """Returns the costs of a layer in a run, whose arrays are there together."""
    return replace(
        cost,
        backward_input=cost.backward_input + cost.forward,
        activation_bytes=0,
        activation_saved_bytes=0,
        boundary_output_bytes=0,
        workspace_bytes=round(cost.workspace_bytes + together),
    )
