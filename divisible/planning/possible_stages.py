"""The costs of every possible stage, in sums that a search for cuts can subtract.

Stage ``s`` of the layers ``i`` to ``j - 1`` costs a difference of two sums, one over
the layers before ``j`` and one over those before ``i``::

         0          i           j         n
         |-- before --|-- stage s --|...
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from divisible.planning.cost_model import CostModel
from divisible.planning.layer_sums import Posted, held_bytes
from divisible.planning.messages import both_ways
from divisible.schedules.held import Moments


class MemoryTable(NamedTuple):
    """The memory of every possible stage.

    At each moment stage ``s`` of the layers ``i`` to ``j - 1`` needs ``ends[s, j] -
    starts[s, i]`` bytes, and the largest ``reaches[s]`` of its layers. It also holds
    the skip connections that end in it, for ``inputs[s]`` microbatches, and those that
    leave it, for ``outputs[s]``.

    Attributes:
        ends: Bytes up to each end, of shape (n_moments, n_stages, n_layers + 1).
        starts: Bytes up to each start, of the same shape.
        inputs: Numbers of microbatches, of shape (n_moments, n_stages).
        outputs: Numbers of microbatches, of shape (n_stages,).
        reaches: Bytes up to each layer while it computes, of shape (n_stages,
            n_layers).
        at_least: Bytes that a stage needs at least, as differences, independent of its
            ends; shape (n_stages, n_layers + 1).
    """

    ends: np.ndarray
    starts: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    reaches: np.ndarray
    at_least: np.ndarray


def memory_table(model: CostModel) -> MemoryTable:
    """Returns the memory of every possible stage."""
    layers, buffers = model.largest.sums, model.stage_exchange_bytes
    messages = 1 + model.posted.inputs, 1 + model.posted.gradients
    # Each stage has its own number of microbatches: columns against rows.
    in_flight, graphs, pending, waiting, waiting_graphs = (
        m[..., None] for m in model.moments
    )
    grows = layers.fixed + graphs * layers.activations + pending * layers.pending
    grows = grows - waiting_graphs * layers.activations_saved
    grows = grows + model.copies[:, None] * layers.parameters
    behind = graphs * layers.boundary - waiting_graphs * layers.boundary_saved
    before = (in_flight + messages[0][:, None]) * layers.own_input
    before = before - waiting * layers.own_input_saved
    behind = behind + messages[1][:, None] * layers.own_output
    # While a layer runs, the activations behind it are not there: see `passing_bytes`.
    has_pending = model.moments.has_pending[:, None]
    behind = behind - np.where(has_pending, 0.0, layers.activations)
    return MemoryTable(
        ends=grows + behind + buffers,
        starts=grows - before,
        inputs=model.moments.in_flight + messages[0],
        outputs=messages[1],
        reaches=np.where(has_pending, layers.workspace, layers.reach),
        at_least=grows[0],
    )


def bytes_alone(model: CostModel) -> np.ndarray:
    """Returns the bytes that each layer would need as a stage of its own.

    Returns:
        Shape (n_stages, n_layers).
    """
    each = model.largest.sums.stages(range(len(model.largest) + 1))
    moments = Moments(*(m[..., None] for m in model.moments))
    copied = model.copies[:, None] * each.parameter_bytes
    posted = Posted(*(numbers[:, None] for numbers in model.posted))
    return held_bytes(each, moments, posted) + model.stage_exchange_bytes + copied


def busy_seconds(model: CostModel) -> np.ndarray:
    """Returns the seconds of each stage for the layers before each position.

    Returns:
        Seconds for one microbatch, of shape (n_stages, n_layers + 1).
    """
    return model.compute_seconds(model.largest.sums) / model.speeds[:, None]


def link_seconds(model: CostModel) -> np.ndarray:
    """Returns the seconds that a message keeps each link busy, for each cut.

    With overlap these are the seconds of the transfer alone: many messages can be on
    their way.

    Returns:
        Shape (n_stages + 1, n_layers + 1); edge ``s`` lies before stage ``s``; the
        first and the last do not exist and cost nothing.
    """
    crossing, links = model.largest.sums.crossing, model.links
    seconds = np.zeros((model.n_stages + 1, len(crossing)))
    n_bytes = np.tile(crossing, (model.n_stages - 1, 1))
    forward, backward = both_ways(
        model.narrowing, n_bytes, links.bandwidth, model.speeds
    )
    # The slower direction counts.
    seconds[1:-1] = np.maximum(forward.link, backward.link)
    if not links.overlap:
        seconds[1:-1] += links.latency[:, None]
    return seconds
