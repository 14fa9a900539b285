"""The runs of blocks that are cheapest to compute again, for all stages from one block.

A *state* is a choice for the blocks before an edge. It has seconds of second forwards,
bytes held by each microbatch, and bytes at the peak of a backward. A *front* holds the
states at an edge of which none is as good as another one in all three. Each edge has
two fronts. Those at edge 3 come from both fronts at the edges before::

    edge   0          1          2          3
           |          |          |-- plain block 2 --->  plain front
           |          |          '-- run of block 2 -->  run front
           |          '------ run of blocks 1, 2 ----->  run front
           '--------------- run of blocks 0, 1, 2 ---->  run front

The fronts differ because a run holds its input. A plain block before it may not hold
that output; another run before it does.

Numba keeps compiled code until this file changes, so all of the code is here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from chainer_kernels.compiling import njit

# The fronts of an edge: a plain block ends there, or a run.
_PLAIN, _RUN = 0, 1


class State(NamedTuple):
    """A choice for the blocks before an edge, and the state that it extends.

    Attributes:
        seconds: Seconds of second forwards.
        graph: Bytes held by each microbatch.
        peak: Bytes of a microbatch while one of its layers runs backward.
        begun: First block of the run that ends at the edge; -1 for a plain block.
        front: The front of the state before.
        place: Place of that state in its front.
    """

    seconds: float
    graph: float
    peak: float
    begun: int
    front: int
    place: int


#: The type of the records of states.
STATE = np.dtype(
    [(name, np.float64) for name in State._fields[:3]]
    + [(name, np.int64) for name in State._fields[3:]]
)


class Memory(NamedTuple):
    """The memory of a stage, and how often the stage holds what it holds.

    Attributes:
        moments: Records of ``in_flight``, ``graphs`` and ``pending`` of
            `~divisible.schedules.held.Moments`, of shape (n_moments,).
        inputs: Number of inputs besides those in flight.
        outputs: Number of messages that come back for the outputs.
        copies: Copies of the parameters, besides those in ``fixed`` of the edges.
        buffers: Bytes for the exchange between replicas.
        frees: 1 if a layer runs backward when the layers behind have freed what they
            hold; 0 if it may run while other microbatches hold all of it.
        limit: Bytes that the stage may use.
    """

    moments: np.ndarray
    inputs: float
    outputs: float
    copies: float
    buffers: float
    frees: float
    limit: float


class Stage(NamedTuple):
    """The bytes of a stage that no choice changes.

    Attributes:
        inputs: Bytes of the inputs of a microbatch.
        pending: Bytes for the pending weight gradients of a microbatch.
        always: Bytes at all moments.
        output: Bytes of the gradients of the outputs, or of the outputs themselves.
    """

    inputs: float
    pending: float
    always: float
    output: float


class Run(NamedTuple):
    """A run of blocks, and sums over its blocks as in `LayerArrays`.

    Attributes:
        first: Its first block.
        end: The edge behind its last block.
        forward: Seconds.
        again: Bytes held while it is computed again.
        ended: Bytes of skip connections that end in it.
        workspace: The largest workspace of its blocks.
        inner: The largest workspace of its blocks but the last one.
    """

    first: int
    end: int
    forward: float
    again: float
    ended: float
    workspace: float
    inner: float


class Addition(NamedTuple):
    """The seconds and bytes that a plain block or a run adds to a state.

    Attributes:
        seconds: Seconds of second forwards.
        graph: Bytes held by each microbatch if more blocks follow.
        peak: Bytes that are there while its backward runs, in that case. Together with
            what blocks before hold, if layers behind are freed.
        last_graph: Bytes held by each microbatch if the stage ends here.
        last_held: The part of them that the layers hold, without their output.
        last_peak: Bytes that are there while its backward runs, in that case.
        begun: First block of the run; -1 for a plain block.
    """

    seconds: float
    graph: float
    peak: float
    last_graph: float
    last_held: float
    last_peak: float
    begun: int


class Fronts(NamedTuple):
    """The fronts of all edges, plain ones first.

    Attributes:
        states: Records of `State`, of shape (2, n_edges, most states).
        sizes: Number of states, of shape (2, n_edges).
    """

    states: np.ndarray
    sizes: np.ndarray


def records(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Returns columns as the records that the compiled code reads, in float64."""
    shape = next(iter(columns.values())).shape
    found = np.empty(shape, [(name, np.float64) for name in columns])
    for name, column in columns.items():
        found[name] = column
    return found


@functools.cache
def program() -> Callable:
    """Compiles `_cheapest_runs`, or loads its code."""
    return njit()(_cheapest_runs)


def _cheapest_runs(blocks, edges, memory, start, stop, most):
    """Finds the best choice for each stage that begins at one block.

    Args:
        blocks: Records of `LayerArrays`, one for each block.
        edges: Records of columns of `LayerSums`, one for each edge.
        memory: The memory of the stage.
        start: Number of its first block.
        stop: Number of the last edge of the largest stage.
        most: Largest number of states in a front.

    Returns:
        The best state for each edge where a stage may end, its seconds infinite where
        nothing fits; and the states of all fronts.
    """
    n = stop + 1
    best = np.empty(n, STATE)
    best.seconds[:] = np.inf
    fronts = Fronts(np.empty((2, n, most), STATE), np.zeros((2, n), np.int64))
    # A stage without blocks.
    write(fronts.states[_PLAIN, start], 0, State(0.0, 0.0, 0.0, -1, -1, -1))
    fronts.sizes[_PLAIN, start] = 1
    for end in range(start + 1, n):
        stage = stage_between(edges, memory, start, end)
        block = plain_block(blocks, edges, end, memory.frees)
        for kind in range(2):
            extend((kind, end - 1), (_PLAIN, end), block, stage, memory, fronts, best)
        run = Run(end, end, 0.0, 0.0, 0.0, 0.0, 0.0)
        while run.first > start:
            run = longer(run, blocks)
            if stage.always + run.again + run.workspace > memory.limit:
                break
            for kind in range(2):
                before = kind, run.first
                if fronts.sizes[before]:
                    added = run_behind(kind, run, blocks, edges, start, memory.frees)
                    extend(before, (_RUN, end), added, stage, memory, fronts, best)
    return best, fronts.states


@numba.njit
def stage_between(edges, memory, start, end):
    """Returns the `Stage` between two edges; see `LayerSums.stages`."""
    first, last = edges[start], edges[end]
    ended = last.ended_skips - first.ended_skips
    inputs = first.own_input + min(first.passing, ended)
    begun = max(last.passing - first.passing + ended, 0.0)
    output = memory.outputs * (last.own_output + min(last.passing, begun))
    copies = memory.copies * (last.parameters - first.parameters)
    always = last.fixed - first.fixed + copies + memory.buffers
    always += memory.inputs * inputs
    return Stage(inputs, last.pending - first.pending, always, output)


@numba.njit
def fits(stage, memory, graph, peak):
    """Returns whether a stage fits at its worst moment; see `State` for the bytes."""
    worst = 0.0
    for moment in memory.moments:
        held = moment.in_flight * stage.inputs
        held += moment.graphs * graph + moment.pending * stage.pending
        worst = max(worst, held)
    return worst + stage.always + peak <= memory.limit


@numba.njit
def plain_block(blocks, edges, end, frees):
    """Returns the `Addition` of the plain block before an edge."""
    block = blocks[end - 1]
    at_end = block.held + edges[end].boundary
    peak = frees * block.held + block.workspace
    return Addition(0.0, block.held, peak, at_end, block.held, peak, -1)


@numba.njit
def longer(run, blocks):
    """Returns a run that begins one block earlier."""
    block = blocks[run.first - 1]
    is_last = run.first == run.end
    return Run(
        run.first - 1,
        run.end,
        run.forward + block.forward,
        run.again + block.again,
        run.ended + block.ended,
        max(run.workspace, block.workspace),
        0.0 if is_last else max(run.inner, block.workspace),
    )


@numba.njit
def run_behind(kind, run, blocks, edges, start, frees):
    """Returns the `Addition` of a run behind the plain block or run before it."""
    last = blocks[run.end - 1]
    # A run holds its input, also where the plain block before does not.
    late = before = 0.0
    if run.first == start:
        passing = edges[start].passing
    else:
        passing = blocks[run.first - 1].passing
        if kind == _PLAIN:
            late = blocks[run.first - 1].unheld
            before = frees * late + blocks[run.first - 1].workspace
    begun = max(last.passing - passing + run.ended, 0.0)
    stays = last.output + min(last.passing, begun)
    again = frees * late + run.again
    # The output of the run is held until its last block has run backward.
    peak = max(before, again + run.inner, again + frees * stays + last.workspace)
    last_peak = max(before, again + run.workspace)
    return Addition(run.forward, late + stays, peak, late, late, last_peak, run.first)


@numba.njit
def extend(before, behind, added, stage, memory, fronts, best):
    """Adds a plain block or a run to all states of a front.

    Args:
        before: The front, and its edge.
        behind: The front that the longer states enter, and its edge.
        added: The `Addition`.
        stage: The `Stage` that may end there.
        memory: The memory of the stage.
        fronts: The fronts, changed.
        best: The best state for each edge, changed.
    """
    states, front = fronts.states[before], fronts.states[behind]
    size, end, frees = fronts.sizes[behind], behind[1], memory.frees
    for place in range(fronts.sizes[before]):
        old = states[place]
        new = State(
            old.seconds + added.seconds,
            old.graph + added.graph,
            max(old.peak, frees * old.graph + added.peak),
            added.begun,
            before[0],
            place,
        )
        # The stage may end here, or more blocks follow.
        if new.seconds < best[end].seconds:
            peak = max(old.peak, frees * old.graph + added.last_peak)
            excess = peak - frees * (old.graph + added.last_held)
            graph = old.graph + added.last_graph
            if fits(stage, memory, graph, stage.output + excess):
                write(best, end, new)
        if fits(stage, memory, new.graph, new.peak - frees * new.graph):
            size = enter(front, size, new, memory)
    fronts.sizes[behind] = size


@numba.njit
def enter(front, size, new, memory):
    """Puts a state into a front if none is as good; returns the front's size then."""
    for k in range(size):
        if is_as_good(front[k], new):
            return size
    size = without_worse(front, size, new)
    if size < front.size:
        write(front, size, new)
        return size + 1
    # A full front keeps the one of two similar states that needs less memory.
    place = nearest(front, new)
    if most_bytes(new, memory) < most_bytes(front[place], memory):
        write(front, place, new)
    return size


@numba.njit
def is_as_good(one, other):
    """Returns whether a state is as good as another one in everything."""
    return (
        one.seconds <= other.seconds
        and one.graph <= other.graph
        and one.peak <= other.peak
    )


@numba.njit
def without_worse(front, size, new):
    """Drops the states that a new one is as good as; returns how many are left."""
    k = 0
    while k < size:
        if is_as_good(new, front[k]):
            size -= 1
            front[k] = front[size]
        else:
            k += 1
    return size


@numba.njit
def nearest(front, new):
    """Returns the place of the state in a full front with the most similar seconds."""
    place, least = 0, np.inf
    for k in range(front.size):
        gap = abs(front[k].seconds - new.seconds)
        if gap < least:
            place, least = k, gap
    return place


@numba.njit
def most_bytes(state, memory):
    """Returns the bytes of a state while most microbatches hold their activations."""
    most = 0.0
    for moment in memory.moments:
        most = max(most, moment.graphs)
    return (most - memory.frees) * state.graph + state.peak


@numba.njit
def write(states, place, state):
    """Writes a state into an array of records."""
    record = states[place]
    record.seconds = state.seconds
    record.graph = state.graph
    record.peak = state.peak
    record.begun = state.begun
    record.front = state.front
    record.place = state.place
