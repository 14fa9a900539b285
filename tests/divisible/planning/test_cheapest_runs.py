"""The parts of the compiled search: bytes, runs and fronts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divisible.planning.cheapest_runs import (
    STATE,
    Memory,
    Run,
    Stage,
    State,
    enter,
    fits,
    longer,
    records,
    run_behind,
)
from divisible.planning.recomputed_layers import LayerArrays


def memory(limit=0.0, frees=0.0):
    """Two moments: most microbatches in flight, most pending weight gradients."""
    counts = {"in_flight": [4.0, 1.0], "graphs": [3.0, 1.0], "pending": [0.0, 5.0]}
    columns = {name: np.array(column) for name, column in counts.items()}
    columns = records(columns)
    numbers = {"inputs": 1.0, "outputs": 1.0, "copies": 0.0}
    return Memory(columns, **numbers, buffers=0.0, frees=frees, limit=limit)


def state(seconds, graph, peak):
    return State(float(seconds), float(graph), float(peak), -1, 0, 0)


def entered(states, most):
    """Returns the numbers of the states that are in a front after all have entered."""
    front, size, counts = np.empty(most, STATE), 0, memory()
    for each in states:
        size = enter(front, size, state(*each), counts)
    return [tuple(record)[:3] for record in front[:size].tolist()]


few = st.integers(0, 4)


@settings(deadline=None)
@given(st.lists(st.tuples(few, few, few), max_size=30))
def test_a_front_has_the_states_that_none_is_as_good_as(states):
    def is_beaten(one):
        return any(
            other != one and all(a <= b for a, b in zip(other, one)) for other in states
        )

    expected = {one for one in states if not is_beaten(one)}
    found = entered(states, most=30)
    assert len(found) == len(expected) and set(found) == expected


# At most three microbatches hold a graph: (5, 20, 1) has 3 * 20 + 1 = 61 bytes.
@pytest.mark.parametrize("peak, enters", [(3, True), (4, False), (5, False)])
def test_a_full_front_keeps_the_smaller_of_similar_states(peak, enters):
    first, similar, last, new = (1, 40, 0), (5, 20, 1), (9, 5, 0), (6, 19, peak)
    kept = new if enters else similar
    assert entered([first, similar, last, new], most=3) == [first, kept, last]


@pytest.mark.parametrize(
    "graph, worst",
    # Inputs of 10 bytes and pending weight gradients of 7 bytes.
    [(1, 1 * 10 + 1 * 1 + 5 * 7), (100, 4 * 10 + 3 * 100)],
)
def test_a_stage_fits_at_its_worst_moment(graph, worst):
    stage = Stage(inputs=10.0, pending=7.0, always=1000.0, output=0.0)
    whole = worst + 1000.0 + 50.0
    assert fits(stage, memory(whole), float(graph), 50.0)
    assert not fits(stage, memory(whole - 1), float(graph), 50.0)


@pytest.mark.parametrize("frees", [0.0, 1.0])
def test_a_run_holds_its_input_and_what_outlives_it(frees):
    random, n = np.random.RandomState(0), 6
    arrays = LayerArrays(*random.randint(1, 100, (8, n)).astype(float))
    blocks = records(arrays._asdict())
    edges = records({"passing": np.append(0.0, arrays.passing)})
    for end in range(1, n + 1):
        run = Run(end, end, 0.0, 0.0, 0.0, 0.0, 0.0)
        while run.first > 0:
            run = longer(run, blocks)
            part = slice(run.first, end)
            stays = arrays.outlives(run.first, end)
            for front in range(2):
                added = run_behind(front, run, blocks, edges, 0, frees)
                is_after_plain = front == 0 and run.first > 0
                late = arrays.unheld[run.first - 1] if is_after_plain else 0.0
                assert added.seconds == pytest.approx(arrays.forward[part].sum())
                assert (added.graph, added.last_graph) == (late + stays, late)
                assert added.last_held == late and added.begun == run.first
                again = arrays.again[part].sum()
                spaces = again + frees * late + arrays.workspace[part]
                before = arrays.workspace[run.first - 1] + frees * late
                others = [before] if is_after_plain else []
                assert added.last_peak == max([*spaces, *others])
                # Where more layers follow, its output is held while the last one runs.
                spaces[-1] += frees * stays
                assert added.peak == max([*spaces, *others])
